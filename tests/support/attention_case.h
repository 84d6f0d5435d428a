/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of one attention call in host memory, in any layout, filled with seeded numbers.
 */
#ifndef TESTS_ATTENTION_CASE_H
#define TESTS_ATTENTION_CASE_H

#include "support/rng.h"
#include <ffa/attention.h>

enum attention_layout {
    LAYOUT_TOKENS, /* [tokens][heads][dim], contiguous */
    LAYOUT_HEADS,  /* [heads][tokens][dim]: permuted */
    LAYOUT_PADDED, /* gaps after each head's row and after each token */
    LAYOUT_COUNT
};

struct attention_shape {
    ffa_mask_shape mask;
    ffa_dtype dtype;
    int32_t heads_q, heads_kv, head_dim;
    enum attention_layout layout;
};

struct attention_case {
    struct attention_shape shape;
    int32_t head_dim_v;    /* of v and out */
    ffa_forward_args args; /* strides and softmax_scale are set, none 0 */
    void *memory[5];       /* q, k, v, out, lse: one allocation each */
};

/* q, k and v hold rng_bell() rounded to the dtype; out and lse hold zeros. head_dim_v: 0 means
 * head_dim. */
void attention_case_init(struct attention_case *test, const struct attention_shape *shape,
                         struct rng *rng);
void attention_case_init_v(struct attention_case *test, const struct attention_shape *shape,
                           int32_t head_dim_v, struct rng *rng);
void attention_case_finish(struct attention_case *test);

/* The tensors that only the backward pass has, in the layout of the case. */
struct attention_gradients {
    ffa_dtype grad_dtype;
    ffa_tensor dout;       /* in the case's dtype, rng_bell() */
    ffa_tensor dq, dk, dv; /* in grad_dtype, zeros */
    ffa_tensor dlse;       /* of attention_sum_dtype(), rng_bell() */
    void *memory[5];
};

void attention_gradients_init(struct attention_gradients *gradients,
                              const struct attention_case *test, ffa_dtype grad_dtype,
                              struct rng *rng);
void attention_gradients_finish(struct attention_gradients *gradients);
/* Arguments of ffa_backward with host pointers, and without dsink and dlse. */
ffa_backward_args attention_backward_args_of(const struct attention_case *test,
                                             const struct attention_gradients *gradients);

/* Set the strides of a layout and allocate zeros: exactly up to the last element, so that a
 * sanitizer sees an access beyond it. *memory is tensor->data: the caller's, free(). `bytes`: of an
 * element. Aborts without memory. */
void attention_place(ffa_tensor *tensor, void **memory, enum attention_layout layout,
                     int64_t tokens, int64_t heads, int64_t dim, int64_t bytes);

/* Of lse, dlse, sinks, dsink and max_logits of a case of `dtype`. */
ffa_dtype attention_sum_dtype(ffa_dtype dtype);
/* Element c of (token, head); attention_sum_dtype() for lse. */
double attention_read(const ffa_tensor *tensor, ffa_dtype dtype, int64_t token, int32_t head,
                      int32_t c);
void attention_write(const ffa_tensor *tensor, ffa_dtype dtype, int64_t token, int32_t head,
                     int32_t c, double value);
/* Element `at` of an array, such as sinks. */
double attention_get(const void *array, ffa_dtype dtype, int64_t at);
void attention_put(void *array, ffa_dtype dtype, int64_t at, double value);

#endif
