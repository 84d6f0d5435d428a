/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a call, compared with its rules. Invariant: after a check both strides are the ones
 * that are taken, and no offset that the call computes with them overflows. Trick: a stride that is
 * never taken, over a single token or head, becomes the contiguous one before it is looked at,
 * because frameworks leave any number there.
 */
#include "tensor/tensor.h"

static const char *dtype_text(int32_t dtype)
{
    static const char *const names[] = { "unknown", "bf16", "fp16", "fp32", "fp64" };

    return names[dtype >= FFA_BF16 && dtype <= FFA_FP64 ? dtype : 0];
}

/* What the caller knows of the tensor. */
static ffa_status facts_check(const struct tensor_rule *rule, ffa_error *err)
{
    const ffa_tensor *tensor = rule->tensor;

    if (tensor->dtype && tensor->dtype != (int32_t)rule->dtype)
        return error_fail(err, FFA_INVALID, 0, "%s: dtype is %d (%s), the call takes %d (%s)",
                          rule->name, tensor->dtype, dtype_text(tensor->dtype), (int)rule->dtype,
                          dtype_text((int32_t)rule->dtype));
    if (tensor->tokens && tensor->tokens < rule->tokens)
        return error_fail(err, FFA_INVALID, 0, "%s: tokens is %lld, the call needs %lld",
                          rule->name, (long long)tensor->tokens, (long long)rule->tokens);
    if (tensor->heads && tensor->heads != rule->heads)
        return error_fail(err, FFA_INVALID, 0, "%s: heads is %d, the call needs %lld", rule->name,
                          tensor->heads, (long long)rule->heads);
    if (tensor->head_dim && tensor->head_dim != rule->head_dim)
        return error_fail(err, FFA_INVALID, 0, "%s: head_dim is %lld, the call needs %lld",
                          rule->name, (long long)tensor->head_dim, (long long)rule->head_dim);
    return FFA_OK;
}

/* The strides are as they were given. */
static ffa_status batch_check(const struct tensor_rule *rule, ffa_error *err)
{
    const ffa_tensor *tensor = rule->tensor;
    const int64_t tokens = tensor->tokens > 0 ? tensor->tokens : rule->tokens;
    const int64_t stride = tensor->token_stride == FFA_CONTIGUOUS ? rule->heads * rule->head_dim
                                                                  : tensor->token_stride;
    int64_t folded;

    if (tensor->batch < 0 || (tensor->batch > 1 && tokens % tensor->batch))
        return error_fail(err, FFA_INVALID, 0, "%s: batch is %d, not a divisor of its %lld tokens",
                          rule->name, tensor->batch, (long long)tokens);
    if (tensor->batch <= 1 || tensor->batch_stride == FFA_CONTIGUOUS)
        return FFA_OK;
    if (__builtin_mul_overflow(tokens / tensor->batch, stride, &folded) ||
        tensor->batch_stride != folded)
        return error_fail(err, FFA_INVALID, 0,
                          "%s: batch_stride is %lld, a batch must be foldable into the tokens: "
                          "%lld tokens a sample times a token_stride of %lld",
                          rule->name, (long long)tensor->batch_stride,
                          (long long)(tokens / tensor->batch), (long long)stride);
    return FFA_OK;
}

static ffa_status stride_check(int64_t *stride, const char *which, int64_t contiguous,
                               int64_t count, const struct tensor_rule *rule, ffa_error *err)
{
    const int64_t multiple =
        rule->needs_alignment ? (int64_t)(16 / ffa_dtype_bytes(rule->dtype)) : 1;

    if (*stride == FFA_CONTIGUOUS || count <= 1)
        *stride = contiguous;
    if (*stride == 0 && rule->is_output)
        return error_fail(err, FFA_INVALID, 0,
                          "%s: %s is 0, which makes its rows overlap, and it is written; "
                          "FFA_CONTIGUOUS says that a tensor is contiguous",
                          rule->name, which);
    if (multiple == 1 && (*stride < 0 || *stride > TENSOR_STRIDE_MAX))
        return error_fail(err, FFA_INVALID, 0, "%s: %s is %lld, not in [0, %lld] elements",
                          rule->name, which, (long long)*stride, (long long)TENSOR_STRIDE_MAX);
    if (*stride < 0 || *stride > TENSOR_STRIDE_MAX || *stride % multiple)
        return error_fail(err, FFA_INVALID, 0,
                          "%s: %s is %lld, not a multiple of %lld in [0, %lld] elements",
                          rule->name, which, (long long)*stride, (long long)multiple,
                          (long long)TENSOR_STRIDE_MAX);
    if (count > 0 && *stride > TENSOR_EXTENT_MAX / count)
        return error_fail(err, FFA_INVALID, 0, "%s: %s is %lld, times %lld over %lld elements",
                          rule->name, which, (long long)*stride, (long long)count,
                          (long long)TENSOR_EXTENT_MAX);
    return FFA_OK;
}

/* The smaller stride steps inside a row, or the larger one inside what the smaller one spans: rows
 * share elements, or those of one token lie between those of another. */
static bool rows_overlap(const ffa_tensor *tensor, const struct tensor_rule *rule)
{
    const bool by_token =
        rule->heads == 1 || (rule->tokens > 1 && tensor->token_stride < tensor->head_stride);
    const int64_t near = by_token ? tensor->token_stride : tensor->head_stride;
    const int64_t near_count = by_token ? rule->tokens : rule->heads;
    const int64_t far = by_token ? tensor->head_stride : tensor->token_stride;
    const int64_t far_count = by_token ? rule->heads : rule->tokens;

    return (near_count > 1 && near < rule->head_dim) ||
           (far_count > 1 && far < (near_count - 1) * near + rule->head_dim);
}

static ffa_status tensor_check(const struct tensor_rule *rule, ffa_error *err)
{
    ffa_tensor *tensor = rule->tensor;
    const size_t unit = rule->needs_alignment ? 16 : ffa_dtype_bytes(rule->dtype);
    ffa_status rc;

    if (!tensor->data && rule->tokens > 0)
        return error_fail(err, FFA_INVALID, 0, "%s: data is NULL, it has %lld rows", rule->name,
                          (long long)rule->tokens);
    if ((uintptr_t)tensor->data % unit)
        return error_fail(err, FFA_INVALID, 0, "%s: data is %p, not %zu-byte aligned", rule->name,
                          tensor->data, unit);
    FFA_TRY(facts_check(rule, err));
    FFA_TRY(batch_check(rule, err));
    FFA_TRY(stride_check(&tensor->token_stride, "token_stride", rule->heads * rule->head_dim,
                         rule->tokens, rule, err));
    FFA_TRY(
        stride_check(&tensor->head_stride, "head_stride", rule->head_dim, rule->heads, rule, err));
    if (rule->is_output && rows_overlap(tensor, rule))
        rc = error_fail(
            err, FFA_INVALID, 0,
            "%s: token_stride %lld and head_stride %lld make its rows of %lld overlap or "
            "interleave",
            rule->name, (long long)tensor->token_stride, (long long)tensor->head_stride,
            (long long)rule->head_dim);
out:
    return rc;
}

ffa_status tensors_check(const struct tensor_rule *rules, size_t count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < count; i++)
        if (rules[i].tensor)
            FFA_TRY(tensor_check(&rules[i], err));
out:
    return rc;
}
