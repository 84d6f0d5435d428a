/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass in fp64: cpu_forward_tile.h with REAL as double. Invariant: with FFA_FP64
 * tensors no number of a call passes through a float.
 */
#define REAL double
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_TANH tanh
#define forward_bytes forward_bytes_f64
#define forward_place forward_place_f64
#define forward_tile forward_tile_f64
#include "cpu/cpu_forward_tile.h"
