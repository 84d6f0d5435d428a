/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of one attention call in host memory, in any layout, filled with seeded numbers.
 *
 * Each tensor has an allocation that ends with its last element, so a sanitizer sees a read or
 * write beyond it. Elements are read and written through strides only, which are set in every
 * layout.
 */
#include "support/attention_case.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>

static int64_t bytes_of(ffa_dtype dtype)
{
    return dtype == FFA_FP64 ? 8 : dtype == FFA_FP32 ? 4 : 2;
}

void attention_place(ffa_tensor *tensor, void **memory, enum attention_layout layout,
                     int64_t tokens, int64_t heads, int64_t dim, int64_t bytes)
{
    const int64_t pad = layout == LAYOUT_PADDED ? 8 : 0; /* elements: 16 bytes, as TMA needs */
    int64_t last;

    if (layout == LAYOUT_HEADS) {
        tensor->token_stride = dim;
        tensor->head_stride = tokens * dim;
    } else {
        tensor->head_stride = dim + pad;
        tensor->token_stride = heads * (dim + pad) + 2 * pad;
    }
    last = (tokens - 1) * tensor->token_stride + (heads - 1) * tensor->head_stride + dim;
    *memory = calloc((size_t)last, (size_t)bytes);
    if (!*memory)
        abort();
    tensor->data = *memory;
}

ffa_dtype attention_sum_dtype(ffa_dtype dtype)
{
    return dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
}

double attention_get(const void *array, ffa_dtype dtype, int64_t at)
{
    switch (dtype) {
    case FFA_BF16:
        return (double)bf16_to_float(((const uint16_t *)array)[at]);
    case FFA_FP16:
        return (double)fp16_to_float(((const uint16_t *)array)[at]);
    case FFA_FP32:
        return (double)((const float *)array)[at];
    case FFA_FP64:
        return ((const double *)array)[at];
    }
    return NAN;
}

void attention_put(void *array, ffa_dtype dtype, int64_t at, double value)
{
    switch (dtype) {
    case FFA_BF16:
        ((uint16_t *)array)[at] = bf16_from_float((float)value);
        break;
    case FFA_FP16:
        ((uint16_t *)array)[at] = fp16_from_float((float)value);
        break;
    case FFA_FP32:
        ((float *)array)[at] = (float)value;
        break;
    case FFA_FP64:
        ((double *)array)[at] = value;
        break;
    }
}

double attention_read(const ffa_tensor *tensor, ffa_dtype dtype, int64_t token, int32_t head,
                      int32_t c)
{
    return attention_get(tensor->data, dtype,
                         token * tensor->token_stride + head * tensor->head_stride + c);
}

void attention_write(const ffa_tensor *tensor, ffa_dtype dtype, int64_t token, int32_t head,
                     int32_t c, double value)
{
    attention_put(tensor->data, dtype,
                  token * tensor->token_stride + head * tensor->head_stride + c, value);
}

/* `count` elements from `at` on. */
static void fill_line(void *array, ffa_dtype dtype, int64_t at, int32_t count, struct rng *rng)
{
    switch (dtype) {
    case FFA_BF16:
        for (int32_t c = 0; c < count; c++)
            ((uint16_t *)array)[at + c] = bf16_from_float((float)rng_bell(rng));
        break;
    case FFA_FP16:
        for (int32_t c = 0; c < count; c++)
            ((uint16_t *)array)[at + c] = fp16_from_float((float)rng_bell(rng));
        break;
    default:
        for (int32_t c = 0; c < count; c++)
            attention_put(array, dtype, at + c, rng_bell(rng));
    }
}

static void fill_as(const ffa_tensor *tensor, ffa_dtype dtype, int64_t tokens, int32_t heads,
                    int32_t dim, struct rng *rng)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < heads; h++)
            fill_line(tensor->data, dtype, t * tensor->token_stride + h * tensor->head_stride, dim,
                      rng);
}

static void fill(const ffa_tensor *tensor, const struct attention_shape *shape, int64_t tokens,
                 int32_t heads, int32_t dim, struct rng *rng)
{
    fill_as(tensor, shape->dtype, tokens, heads, dim, rng);
}

void attention_case_init(struct attention_case *test, const struct attention_shape *shape,
                         struct rng *rng)
{
    attention_case_init_v(test, shape, 0, rng);
}

void attention_case_init_v(struct attention_case *test, const struct attention_shape *shape,
                           int32_t head_dim_v, struct rng *rng)
{
    const int64_t rows = shape->mask.seqlen_q, keys = shape->mask.seqlen_k;
    const int32_t dim = shape->head_dim, dim_v = head_dim_v ? head_dim_v : dim;
    const int64_t bytes = bytes_of(shape->dtype);
    ffa_forward_args *args = &test->args;

    *test = (struct attention_case){ .shape = *shape,
                                     .head_dim_v = dim_v,
                                     .args = FFA_FORWARD_ARGS_INIT };
    args->heads_q = shape->heads_q;
    args->heads_kv = shape->heads_kv;
    args->softmax_scale = 1 / sqrt((double)dim);
    attention_place(&args->q, &test->memory[0], shape->layout, rows, shape->heads_q, dim, bytes);
    attention_place(&args->k, &test->memory[1], shape->layout, keys, shape->heads_kv, dim, bytes);
    attention_place(&args->v, &test->memory[2], shape->layout, keys, shape->heads_kv, dim_v, bytes);
    attention_place(&args->out, &test->memory[3], shape->layout, rows, shape->heads_q, dim_v,
                    bytes);
    attention_place(&args->lse, &test->memory[4], shape->layout, rows, shape->heads_q, 1,
                    bytes_of(attention_sum_dtype(shape->dtype)));
    fill(&args->q, shape, rows, shape->heads_q, dim, rng);
    fill(&args->k, shape, keys, shape->heads_kv, dim, rng);
    fill(&args->v, shape, keys, shape->heads_kv, dim_v, rng);
}

void attention_case_finish(struct attention_case *test)
{
    for (int i = 0; i < 5; i++)
        free(test->memory[i]);
    *test = (struct attention_case){ 0 };
}

void attention_gradients_init(struct attention_gradients *gradients,
                              const struct attention_case *test, ffa_dtype grad_dtype,
                              struct rng *rng)
{
    const struct attention_shape *shape = &test->shape;
    const int64_t rows = shape->mask.seqlen_q, keys = shape->mask.seqlen_k;
    const int64_t dim = shape->head_dim, dim_v = test->head_dim_v, bytes = bytes_of(grad_dtype);
    const ffa_dtype sum_dtype = attention_sum_dtype(shape->dtype);
    struct rng own = *rng; /* so that what is drawn after dout does not hang on dlse */

    *gradients = (struct attention_gradients){ .grad_dtype = grad_dtype };
    attention_place(&gradients->dout, &gradients->memory[0], shape->layout, rows, shape->heads_q,
                    dim_v, bytes_of(shape->dtype));
    attention_place(&gradients->dq, &gradients->memory[1], shape->layout, rows, shape->heads_q, dim,
                    bytes);
    attention_place(&gradients->dk, &gradients->memory[2], shape->layout, keys, shape->heads_kv,
                    dim, bytes);
    attention_place(&gradients->dv, &gradients->memory[3], shape->layout, keys, shape->heads_kv,
                    dim_v, bytes);
    attention_place(&gradients->dlse, &gradients->memory[4], shape->layout, rows, shape->heads_q, 1,
                    bytes_of(sum_dtype));
    fill(&gradients->dout, shape, rows, shape->heads_q, test->head_dim_v, rng);
    fill_as(&gradients->dlse, sum_dtype, rows, shape->heads_q, 1, &own);
}

void attention_gradients_finish(struct attention_gradients *gradients)
{
    for (int i = 0; i < 5; i++)
        free(gradients->memory[i]);
    *gradients = (struct attention_gradients){ 0 };
}

ffa_backward_args attention_backward_args_of(const struct attention_case *test,
                                             const struct attention_gradients *gradients)
{
    const ffa_forward_args *from = &test->args;

    return (ffa_backward_args){ .struct_size = (uint32_t)sizeof(ffa_backward_args),
                                .heads_q = from->heads_q,
                                .heads_kv = from->heads_kv,
                                .softmax_scale = from->softmax_scale,
                                .q = from->q,
                                .k = from->k,
                                .v = from->v,
                                .out = from->out,
                                .lse = from->lse,
                                .dout = gradients->dout,
                                .dq = gradients->dq,
                                .dk = gradients->dk,
                                .dv = gradients->dv,
                                .sink = from->sink,
                                .sink_count = from->sink_count,
                                .softcap = from->softcap,
                                .sm_margin = from->sm_margin };
}
