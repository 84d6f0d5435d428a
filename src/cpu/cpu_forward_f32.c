/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass in fp32: cpu_forward_tile.h with REAL as float. Scale and softcap, which calls
 * give as doubles, are rounded to float once, where they are used.
 */
#define REAL float
#define REAL_EXP expf
#define REAL_LOG logf
#define REAL_TANH tanhf
#define forward_bytes forward_bytes_f32
#define forward_place forward_place_f32
#define forward_tile forward_tile_f32
#include "cpu/cpu_forward_tile.h"
