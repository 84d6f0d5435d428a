/* SPDX-License-Identifier: Apache-2.0
 *
 * What an attention spec may say, on both backends and on each. A check names the field, its value
 * and the limit. Limits of a template's own rows are not repeated here: src/jit checks them.
 */
#include "attention/spec_check.h"

#include "attention_backward.args.h"
#include "choose/tile_choice.h"

enum {
    BACKWARD_FLAGS = FFA_SPEC_BACKWARD | FFA_SPEC_GRAD_FP32 | FFA_SPEC_DETERMINISTIC,
    KNOWN_FLAGS = FFA_SPEC_DEBUG | FFA_SPEC_SOFTCAP | FFA_SPEC_OUT_FP32 | FFA_SPEC_MAX_LOGITS |
                  FFA_SPEC_STAGED | FFA_SPEC_SPLIT | FFA_SPEC_PARALLEL | BACKWARD_FLAGS
};

enum { CPU_TILE_MAX = 1024 };

/* heads_q and heads_kv, and the fields whose choice depends on them: pack_heads and split. */
static ffa_status spec_heads_check(const ffa_attention_spec *spec, ffa_error *err)
{
    const int32_t pack = spec->pack_heads;
    ffa_status rc;

    if ((pack < 0 && pack != FFA_PACK_AUTO) || pack > PACK_HEADS_MAX)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: pack_heads is %d, not in [0, %d] or FFA_PACK_AUTO (%d)", pack,
                          PACK_HEADS_MAX, FFA_PACK_AUTO);
    if (spec->split && spec->split != FFA_SPLIT_AUTO)
        return error_fail(err, FFA_INVALID, 0, "spec: split is %d, not 0 or FFA_SPLIT_AUTO (%d)",
                          spec->split, FFA_SPLIT_AUTO);
    if (spec->pad_)
        return error_fail(err, FFA_INVALID, 0, "spec: pad_ is %d, must be 0", spec->pad_);
    if (!spec->heads_q && !spec->heads_kv)
        return FFA_OK;
    FFA_TRY(check_heads("spec: ", spec->heads_q, spec->heads_kv, FFA_HEADS_MAX, err));
    if (pack > 0 && pack != spec->heads_q / spec->heads_kv)
        return error_fail(err, FFA_INVALID, 0, "spec: pack_heads is %d, heads_q / heads_kv is %d",
                          pack, spec->heads_q / spec->heads_kv);
out:
    return rc;
}

/* Flags that the kernels of context-parallel passes cannot have: such a pass is one launch, with an
 * out and gradients of dtype. */
static ffa_status parallel_spec_check(const ffa_attention_spec *spec, ffa_error *err)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } others[] = {
        { FFA_SPEC_OUT_FP32, "OUT_FP32" },
        { FFA_SPEC_SPLIT, "SPLIT" },
        { FFA_SPEC_GRAD_FP32, "GRAD_FP32" },
    };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (spec->flags & FFA_SPEC_PARALLEL && spec->flags & others[i].flag)
            return error_fail(err, FFA_UNSUPPORTED, 0,
                              "spec: flags has FFA_SPEC_PARALLEL with FFA_SPEC_%s", others[i].name);
    return FFA_OK;
}

ffa_status spec_check(const ffa_attention_spec *spec, ffa_error *err)
{
    ffa_status rc;

    if (spec->flags & ~(uint32_t)KNOWN_FLAGS)
        return error_fail(err, FFA_UNSUPPORTED, 0, "spec: flags is 0x%x, known are 0x%x",
                          spec->flags, (unsigned)KNOWN_FLAGS);
    if (spec->head_dim < 8 || spec->head_dim > 256 || spec->head_dim % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim is %d, not a multiple of 8 in [8, 256]", spec->head_dim);
    if (spec->head_dim_v < 0 || spec->head_dim_v > 256 || spec->head_dim_v % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim_v is %d, not a multiple of 8 in [8, 256] (or 0)",
                          spec->head_dim_v);
    if (spec->dtype == (ffa_dtype)0)
        return error_fail(err, FFA_INVALID, 0, "spec: dtype is missing");
    if (!(spec->flags & FFA_SPEC_BACKWARD)) {
        if (spec->flags & BACKWARD_FLAGS)
            return error_fail(err, FFA_INVALID, 0, "spec: flags has %s without FFA_SPEC_BACKWARD",
                              spec->flags & FFA_SPEC_GRAD_FP32 ? "FFA_SPEC_GRAD_FP32"
                                                               : "FFA_SPEC_DETERMINISTIC");
        if (spec->backward_tile_m || spec->backward_tile_n)
            return error_fail(
                err, FFA_INVALID, 0, "spec: backward_tile_%c is %d, flags has no FFA_SPEC_BACKWARD",
                spec->backward_tile_m ? 'm' : 'n',
                spec->backward_tile_m ? spec->backward_tile_m : spec->backward_tile_n);
    }
    if (spec->flags & FFA_SPEC_SPLIT &&
        spec->flags & (FFA_SPEC_OUT_FP32 | FFA_SPEC_STAGED | FFA_SPEC_BACKWARD))
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "spec: flags has FFA_SPEC_SPLIT with FFA_SPEC_%s",
                          spec->flags & FFA_SPEC_OUT_FP32 ? "OUT_FP32"
                          : spec->flags & FFA_SPEC_STAGED ? "STAGED"
                                                          : "BACKWARD");
    if (spec->flags & FFA_SPEC_OUT_FP32 && spec->flags & FFA_SPEC_STAGED)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: flags has FFA_SPEC_OUT_FP32 and FFA_SPEC_STAGED: out is fp32 in "
                          "all stages, or until the last");
    FFA_TRY(parallel_spec_check(spec, err));
    rc = spec_heads_check(spec, err);
out:
    return rc;
}

static ffa_status tile_check_cpu(const char *name, int32_t tile, ffa_error *err)
{
    if (tile < 0 || tile > CPU_TILE_MAX)
        return error_fail(err, FFA_INVALID, 0, "spec: %s is %d, not in [0, %d]", name, tile,
                          CPU_TILE_MAX);
    return FFA_OK;
}

ffa_status spec_check_cpu(const ffa_attention_spec *spec, ffa_error *err)
{
    ffa_status rc;

    if (spec->dtype < FFA_BF16 || spec->dtype > FFA_FP64)
        return error_fail(err, FFA_INVALID, 0, "spec: dtype is %d, not in [%d, %d]",
                          (int)spec->dtype, FFA_BF16, FFA_FP64);
    if (spec->dtype == FFA_FP64 && spec->flags & FFA_SPEC_OUT_FP32)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: flags has FFA_SPEC_OUT_FP32, dtype is fp64, whose out is fp64");
    if (spec->dtype == FFA_FP64 && spec->flags & FFA_SPEC_GRAD_FP32)
        return error_fail(
            err, FFA_INVALID, 0,
            "spec: flags has FFA_SPEC_GRAD_FP32, dtype is fp64, whose gradients are fp64");
    FFA_TRY(tile_check_cpu("tile_m", spec->tile_m, err));
    FFA_TRY(tile_check_cpu("tile_n", spec->tile_n, err));
    FFA_TRY(tile_check_cpu("backward_tile_m", spec->backward_tile_m, err));
    rc = tile_check_cpu("backward_tile_n", spec->backward_tile_n, err);
out:
    return rc;
}

/* Keys of a backward tile: those of the cluster that head_dim has, or of a pair of blocks. */
static ffa_status backward_tile_n_check(const ffa_attention_spec *spec, ffa_error *err)
{
    const int32_t asked = spec->backward_tile_n, dim = spec->head_dim, dim_v = spec->head_dim_v;
    const int32_t chosen = attention_backward_tile_n(dim, dim_v, attention_backward_cluster(dim));
    const int32_t pair = attention_backward_tile_n(dim, dim_v, 2);
    const bool may_pair = attention_backward_may_pair(dim, dim_v);

    if (asked == 0 || asked == chosen)
        return FFA_OK;
    if (!may_pair)
        return error_fail(err, FFA_INVALID, 0, "spec: backward_tile_n is %d, not 0 or %d", asked,
                          chosen);
    if (asked != pair)
        return error_fail(err, FFA_INVALID, 0, "spec: backward_tile_n is %d, not 0, %d or %d",
                          asked, chosen, pair);
    if (spec->flags & FFA_SPEC_PARALLEL)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "spec: backward_tile_n is %d, with FFA_SPEC_PARALLEL it must be 0 or %d",
                          asked, chosen);
    return FFA_OK;
}

ffa_status spec_check_gpu(const ffa_attention_spec *spec, ffa_error *err)
{
    if (spec->dtype == FFA_FP32 || spec->dtype == FFA_FP64)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "spec: dtype fp32 and fp64 exist on the CPU backend only");
    if (spec->dtype != FFA_BF16 && spec->dtype != FFA_FP16)
        return error_fail(err, FFA_INVALID, 0, "spec: dtype is %d, not bf16 (%d) or fp16 (%d)",
                          (int)spec->dtype, FFA_BF16, FFA_FP16);
    if (spec->tile_m % 64 || spec->tile_m < 0 || spec->tile_m > 192)
        return error_fail(err, FFA_INVALID, 0, "spec: tile_m is %d, not 0, 64, 128 or 192",
                          spec->tile_m);
    return backward_tile_n_check(spec, err);
}
