/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass in fp32: cpu_backward_tile.h with REAL as float. Scale and softcap, which calls
 * give as doubles, are rounded to float once, where they are used.
 */
#define REAL float
#define REAL_EXP expf
#define REAL_TANH tanhf
#define gradient_bytes gradient_bytes_f32
#define gradient_delta_bytes gradient_delta_bytes_f32
#define gradient_place gradient_place_f32
#define gradient_delta gradient_delta_f32
#define gradient_tile gradient_tile_f32
#define gradient_rows_of gradient_rows_f32
#define gradient_sink gradient_sink_f32
#include "cpu/cpu_backward_tile.h"
