/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_check.h"

#include "base/half.h"

/* Ragged: rows and keys that end amid tiles, a document of three tokens, one of two tiles. */
static const char CHECK_MASK[] = "varlen-causal:70,3,150,200";
static const char LOCKSTEP_MASK[] = "causal:331"; /* all key tiles end at the last row */

/* ---- tensors ---- */

int64_t tune_tensor_bytes(const struct tune_record *record, const ffa_mask *mask,
                          enum tune_tensor tensor)
{
    const int64_t q = ffa_mask_seqlen_q(mask) * record->heads_q;
    const int64_t k = ffa_mask_seqlen_k(mask) * record->heads_kv;

    if (!tune_is_backward(record) && (tensor == TENSOR_DOUT || tensor >= TENSOR_DQ))
        return 0;
    switch (tensor) {
    case TENSOR_Q:
    case TENSOR_DQ:
        return q * record->head_dim * 2;
    case TENSOR_OUT:
    case TENSOR_DOUT:
        return q * record->head_dim_v * 2;
    case TENSOR_K:
    case TENSOR_DK:
        return k * record->head_dim * 2;
    case TENSOR_V:
    case TENSOR_DV:
        return k * record->head_dim_v * 2;
    case TENSOR_LSE:
        return q * (int64_t)sizeof(float);
    case TENSORS:
        break;
    }
    return 0;
}

int64_t tune_tensor_stride(const struct tune_record *record, const ffa_mask *mask,
                           enum tune_tensor tensor)
{
    return (tune_tensor_bytes(record, mask, tensor) + 255) / 256 * 256;
}

/* splitmix64 (Steele et al. 2014) of a counter. */
static uint64_t mix(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void tune_tensor_make_up(void *to, int64_t bytes, int32_t dtype, uint64_t seed)
{
    uint16_t *at = to;

    for (int64_t i = 0; i < bytes / 2; i++) {
        const float value = (float)((int64_t)(mix(seed + (uint64_t)i) >> 48) - 32768) / 16384.0f;

        at[i] = dtype == FFA_BF16 ? bf16_from_float(value) : fp16_from_float(value);
    }
}

/* ---- references ---- */

/* The case of the oracle. args: filled in, and pointed to by it. */
static struct oracle_backward_case case_of(const struct tune_reference *reference,
                                           const struct tune_record *record,
                                           const ffa_slice_list *list, ffa_forward_args *args)
{
    void *const *host = reference->host;
    struct oracle_backward_case test = {
        .forward = { .shape = { ffa_mask_seqlen_q(reference->mask),
                                ffa_mask_seqlen_k(reference->mask) },
                     .lists = list,
                     .list_count = 1,
                     .head_dim = record->head_dim,
                     .head_dim_v = record->head_dim_v,
                     .dtype = (ffa_dtype)record->dtype,
                     .args = args },
        .grad_dtype = (ffa_dtype)record->dtype,
        .dout = FFA_TENSOR_INIT(host[TENSOR_DOUT]),
        .dlse = FFA_TENSOR_INIT(NULL),
        .dq = FFA_TENSOR_INIT(host[TENSOR_DQ]),
        .dk = FFA_TENSOR_INIT(host[TENSOR_DK]),
        .dv = FFA_TENSOR_INIT(host[TENSOR_DV]),
    };

    *args = (ffa_forward_args)FFA_FORWARD_ARGS_INIT;
    args->heads_q = record->heads_q;
    args->heads_kv = record->heads_kv;
    args->q.data = host[TENSOR_Q];
    args->k.data = host[TENSOR_K];
    args->v.data = host[TENSOR_V];
    args->out.data = host[TENSOR_OUT];
    args->lse.data = host[TENSOR_LSE];
    return test;
}

static ffa_status make_tensors(struct tune_reference *out, const struct tune_record *record,
                               ffa_error *err)
{
    for (int t = 0; t < TENSORS; t++) {
        const int64_t bytes = tune_tensor_stride(record, out->mask, (enum tune_tensor)t);

        if (!bytes)
            continue;
        out->host[t] = mem_array((size_t)bytes, 1);
        if (!out->host[t])
            return error_nomem(err, "tensors");
        if (t < TENSOR_OUT)
            tune_tensor_make_up(out->host[t], bytes, record->dtype, (uint64_t)t << 40);
    }
    return FFA_OK;
}

ffa_status tune_reference_make(struct tune_reference *out, const struct tune_record *record,
                               bool has_lockstep, ffa_error *err)
{
    struct oracle_backward_case test;
    ffa_forward_args args;
    ffa_slice_list list;
    ffa_status rc;

    FFA_TRY(ffa_mask_parse(&out->mask, has_lockstep ? LOCKSTEP_MASK : CHECK_MASK, err));
    FFA_TRY(make_tensors(out, record, err));
    list = ffa_mask_slices(out->mask, 0);
    test = case_of(out, record, &list, &args);
    rc = tune_is_backward(record) ? oracle_backward(&out->backward, &test, err)
                                  : oracle_forward(&out->forward, &test.forward, err);
out:
    return rc;
}

void tune_reference_finish(struct tune_reference *reference)
{
    for (int t = 0; t < TENSORS; t++)
        mem_free(reference->host[t]);
    oracle_result_finish(&reference->forward);
    oracle_gradients_finish(&reference->backward);
    ffa_mask_destroy(reference->mask);
    *reference = (struct tune_reference){ 0 };
}

bool tune_reference_compare(const struct tune_reference *reference,
                            const struct tune_record *record, char reason[200])
{
    const ffa_dtype dtype = (ffa_dtype)record->dtype;
    const ffa_slice_list list = ffa_mask_slices(reference->mask, 0);
    struct oracle_backward_report backward;
    struct oracle_report forward;
    ffa_forward_args args;
    const struct oracle_backward_case test = case_of(reference, record, &list, &args);

    if (tune_is_backward(record)) {
        const struct oracle_backward_tolerance tolerance =
            oracle_backward_tolerance_of(dtype, ffa_mask_seqlen_k(reference->mask));

        oracle_backward_compare(&backward, &test, &reference->backward, &tolerance);
        text_format(reason, 200, "%s", backward.reason);
        return backward.passed;
    } else {
        const struct oracle_tolerance tolerance = oracle_tolerance_of(dtype);

        oracle_compare(&forward, &test.forward, &reference->forward, &tolerance);
        text_format(reason, 200, "%s", forward.reason);
        return forward.passed;
    }
}
