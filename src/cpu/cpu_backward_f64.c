/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass in fp64: cpu_backward_tile.h with REAL as double. Invariant: with FFA_FP64
 * tensors no number of a call passes through a float.
 */
#define REAL double
#define REAL_EXP exp
#define REAL_TANH tanh
#define gradient_bytes gradient_bytes_f64
#define gradient_delta_bytes gradient_delta_bytes_f64
#define gradient_place gradient_place_f64
#define gradient_delta gradient_delta_f64
#define gradient_tile gradient_tile_f64
#define gradient_rows_of gradient_rows_f64
#define gradient_sink gradient_sink_f64
#include "cpu/cpu_backward_tile.h"
