/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_kernels: a spec resolved to loaded kernels, or to the CPU backend.
 */
#include "api/attention.h"

static const char forward_name[] = "attention_forward";

/* The CPU backend has no register file to fit: one tile for all. */
enum { KNOWN_FLAGS = FFA_SPEC_DEBUG | FFA_SPEC_SOFTCAP | FFA_SPEC_OUT_FP32 | FFA_SPEC_MAX_LOGITS };

/* What holds on both backends. */
static ffa_status dims_check(const ffa_attention_spec *spec, ffa_error *err)
{
    if (spec->head_dim < 8 || spec->head_dim > 256 || spec->head_dim % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim is %d, not a multiple of 8 in [8, 256]", spec->head_dim);
    if (spec->head_dim_v < 0 || spec->head_dim_v > 256 || spec->head_dim_v % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim_v is %d, not a multiple of 8 in [8, 256] (or 0)",
                          spec->head_dim_v);
    return FFA_OK;
}

enum { CPU_TILE_M = 128, CPU_TILE_N = 128, CPU_TILE_MAX = 1024 };

static ffa_status spec_check_cpu(const ffa_attention_spec *spec, ffa_error *err)
{
    if (spec->dtype < FFA_BF16 || spec->dtype > FFA_FP64)
        return error_fail(err, FFA_INVALID, 0, "spec: dtype is %d, not in [%d, %d]",
                          (int)spec->dtype, FFA_BF16, FFA_FP64);
    if (spec->dtype == FFA_FP64 && spec->flags & FFA_SPEC_OUT_FP32)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: flags has FFA_SPEC_OUT_FP32, dtype is fp64, whose out is fp64");
    if (spec->tile_m < 0 || spec->tile_m > CPU_TILE_MAX)
        return error_fail(err, FFA_INVALID, 0, "spec: tile_m is %d, not in [0, %d]", spec->tile_m,
                          CPU_TILE_MAX);
    if (spec->tile_n < 0 || spec->tile_n > CPU_TILE_MAX)
        return error_fail(err, FFA_INVALID, 0, "spec: tile_n is %d, not in [0, %d]", spec->tile_n,
                          CPU_TILE_MAX);
    return FFA_OK;
}

/* What a GPU kernel takes beyond the template's own limits. */
static ffa_status spec_check_gpu(const ffa_attention_spec *spec, ffa_error *err)
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
    return FFA_OK;
}

static ffa_status kernels_resolve_gpu(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                      ffa_error *err)
{
    ffa_context *context = kernels->context;
    struct gpu_kernel_desc desc;
    struct resolved found;
    struct jit_spec jit;
    ffa_status rc;

    FFA_TRY(spec_check_gpu(spec, err));
    FFA_TRY(jit_spec_init(&jit, forward_name, err));
    FFA_TRY(jit_spec_put(&jit, "head_dim", spec->head_dim, err));
    if (spec->head_dim_v)
        FFA_TRY(jit_spec_put(&jit, "head_dim_v", spec->head_dim_v, err));
    FFA_TRY(jit_spec_put(&jit, "dtype", (int32_t)spec->dtype, err));
    if (spec->tile_m)
        FFA_TRY(jit_spec_put(&jit, "consumers", spec->tile_m / 64, err));
    if (spec->tile_n)
        FFA_TRY(jit_spec_put(&jit, "tile_n", spec->tile_n, err));
    if (spec->flags & FFA_SPEC_DEBUG)
        FFA_TRY(jit_spec_put(&jit, "debug", 1, err));
    if (spec->flags & FFA_SPEC_SOFTCAP)
        FFA_TRY(jit_spec_put(&jit, "softcap", 1, err));
    if (spec->flags & FFA_SPEC_OUT_FP32)
        FFA_TRY(jit_spec_put(&jit, "out_fp32", 1, err));
    if (spec->flags & FFA_SPEC_MAX_LOGITS)
        FFA_TRY(jit_spec_put(&jit, "max_logits", 1, err));
    FFA_TRY(jit_spec_resolve(&jit, context->arch, err));
    FFA_TRY(context_resolve(&found, context, &jit, context->arch, NULL, err));

    kernels->tile_m = 64 * jit_spec_get(&jit, "consumers");
    kernels->tile_n = jit_spec_get(&jit, "tile_n");
    kernels->info = found.info;
    desc = (struct gpu_kernel_desc){
        .cubin = found.cubin,
        .cubin_bytes = found.cubin_bytes,
        .entry = forward_name,
        .threads = jit_spec_threads(&jit),
        .shared_bytes = jit_spec_shared_bytes(&jit),
    };
    FFA_TRY(gpu_kernel_load(&kernels->forward, context->gpu, &desc, err));
out:
    return rc;
}

ffa_status ffa_kernels_create(ffa_kernels **out, ffa_context *context,
                              const ffa_attention_spec *spec_in, ffa_error *err)
{
    struct ffa_kernels *kernels = NULL;
    ffa_attention_spec spec;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_kernels_create: out is NULL");
    *out = NULL;
    if (!context || !spec_in)
        return error_fail(err, FFA_INVALID, 0, "ffa_kernels_create: %s is NULL",
                          context ? "spec" : "context");
    FFA_TRY(opts_import(&spec, sizeof spec, spec_in, err));
    if (spec.flags & ~(uint32_t)KNOWN_FLAGS) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "spec: flags is 0x%x, known are 0x%x", spec.flags,
                        (unsigned)KNOWN_FLAGS);
        goto out;
    }
    if (spec.pad_) {
        rc = error_fail(err, FFA_INVALID, 0, "spec: pad_ is %d, must be 0", spec.pad_);
        goto out;
    }
    FFA_TRY(dims_check(&spec, err));
    kernels = mem_array(1, sizeof *kernels);
    if (!kernels) {
        rc = error_nomem(err, "the kernels");
        goto out;
    }
    kernels->context = context;
    kernels->dtype = spec.dtype;
    kernels->head_dim = spec.head_dim;
    kernels->head_dim_v = spec.head_dim_v ? spec.head_dim_v : spec.head_dim;
    kernels->out_dtype = spec.flags & FFA_SPEC_OUT_FP32 ? FFA_FP32 : spec.dtype;
    kernels->has_softcap = (spec.flags & FFA_SPEC_SOFTCAP) != 0;
    kernels->has_max_logits = (spec.flags & FFA_SPEC_MAX_LOGITS) != 0;
    if (context->gpu) {
        FFA_TRY(kernels_resolve_gpu(kernels, &spec, err));
    } else {
        FFA_TRY(spec_check_cpu(&spec, err));
        kernels->tile_m = spec.tile_m ? spec.tile_m : CPU_TILE_M;
        kernels->tile_n = spec.tile_n ? spec.tile_n : CPU_TILE_N;
    }
    *out = kernels;
    kernels = NULL;
out:
    ffa_kernels_destroy(kernels);
    return rc;
}

void ffa_kernels_destroy(ffa_kernels *kernels)
{
    if (!kernels)
        return;
    gpu_kernel_unload(kernels->forward);
    mem_free(kernels);
}

ffa_status ffa_kernels_info(const ffa_kernels *kernels, ffa_kernel_info *info, ffa_error *err)
{
    if (!kernels || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_kernels_info: %s is NULL",
                          kernels ? "info" : "kernels");
    return opts_export(info, &kernels->info, sizeof kernels->info, err);
}
