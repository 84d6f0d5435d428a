/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_kernels: a spec resolved to loaded kernels, or to the CPU backend.
 */
#include "attention/attention.h"

#include "attention_backward.args.h"

#include <assert.h>

enum {
    BACKWARD_FLAGS = FFA_SPEC_BACKWARD | FFA_SPEC_GRAD_FP32 | FFA_SPEC_DETERMINISTIC,
    KNOWN_FLAGS = FFA_SPEC_DEBUG | FFA_SPEC_SOFTCAP | FFA_SPEC_OUT_FP32 | FFA_SPEC_MAX_LOGITS |
                  FFA_SPEC_STAGED | FFA_SPEC_SPLIT | BACKWARD_FLAGS
};

/* As many as the rows of a warpgroup, and a box of Q holds them. */
enum { PACK_HEADS_MAX = 64 };

/* The CPU backend has no register file to fit: one tile for all. */
enum { CPU_TILE_M = 128, CPU_TILE_N = 128, CPU_TILE_MAX = 1024 };

/* What holds on both backends. */
static ffa_status spec_check(const ffa_attention_spec *spec, ffa_error *err)
{
    if (spec->flags & ~(uint32_t)KNOWN_FLAGS)
        return error_fail(err, FFA_UNSUPPORTED, 0, "spec: flags is 0x%x, known are 0x%x",
                          spec->flags, (unsigned)KNOWN_FLAGS);
    if (spec->pack_heads < 0 || spec->pack_heads > PACK_HEADS_MAX)
        return error_fail(err, FFA_INVALID, 0, "spec: pack_heads is %d, not in [0, %d]",
                          spec->pack_heads, PACK_HEADS_MAX);
    if (spec->head_dim < 8 || spec->head_dim > 256 || spec->head_dim % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim is %d, not a multiple of 8 in [8, 256]", spec->head_dim);
    if (spec->head_dim_v < 0 || spec->head_dim_v > 256 || spec->head_dim_v % 8)
        return error_fail(err, FFA_INVALID, 0,
                          "spec: head_dim_v is %d, not a multiple of 8 in [8, 256] (or 0)",
                          spec->head_dim_v);
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
    return FFA_OK;
}

static ffa_status tile_check_cpu(const char *name, int32_t tile, ffa_error *err)
{
    if (tile < 0 || tile > CPU_TILE_MAX)
        return error_fail(err, FFA_INVALID, 0, "spec: %s is %d, not in [0, %d]", name, tile,
                          CPU_TILE_MAX);
    return FFA_OK;
}

static ffa_status spec_check_cpu(const ffa_attention_spec *spec, ffa_error *err)
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

/* What a GPU kernel takes beyond the template's own limits. */
static ffa_status spec_check_gpu(const ffa_attention_spec *spec, ffa_error *err)
{
    const int32_t backward_tile_n = attention_backward_tile_n(spec->head_dim, spec->head_dim_v);

    if (spec->dtype == FFA_FP32 || spec->dtype == FFA_FP64)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "spec: dtype fp32 and fp64 exist on the CPU backend only");
    if (spec->dtype != FFA_BF16 && spec->dtype != FFA_FP16)
        return error_fail(err, FFA_INVALID, 0, "spec: dtype is %d, not bf16 (%d) or fp16 (%d)",
                          (int)spec->dtype, FFA_BF16, FFA_FP16);
    if (spec->tile_m % 64 || spec->tile_m < 0 || spec->tile_m > 192)
        return error_fail(err, FFA_INVALID, 0, "spec: tile_m is %d, not 0, 64, 128 or 192",
                          spec->tile_m);
    if (spec->backward_tile_n != 0 && spec->backward_tile_n != backward_tile_n)
        return error_fail(err, FFA_INVALID, 0, "spec: backward_tile_n is %d, not 0 or %d",
                          spec->backward_tile_n, backward_tile_n);
    return FFA_OK;
}

/* One row of a template's spec; value 0 leaves the template's default, or the choice to it. */
struct setting {
    const char *name;
    int32_t value;
};

/* The spec of the settings, with its choices made. */
static ffa_status spec_make(struct jit_spec *jit, const ffa_kernels *kernels,
                            const char *template_name, const struct setting *settings,
                            ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(jit_spec_init(jit, template_name, err));
    for (; settings->name; settings++)
        if (settings->value)
            FFA_TRY(jit_spec_put(jit, settings->name, settings->value, err));
    rc = jit_spec_resolve(jit, kernels->context->arch, err);
out:
    return rc;
}

/* Look up or compile, and load. info: NULL, or receives the kernel's facts. */
static ffa_status kernel_load(struct gpu_kernel **out, ffa_kernel_info *info,
                              const struct jit_spec *jit, const ffa_kernels *kernels,
                              ffa_error *err)
{
    ffa_context *context = kernels->context;
    struct gpu_kernel_desc desc;
    struct jit_request request;
    struct resolved found;
    ffa_status rc;

    jit_request_init(&request, jit, context->arch);
    FFA_TRY(context_resolve(&found, context, &request, NULL, err));
    if (info)
        *info = found.info;
    desc = (struct gpu_kernel_desc){
        .cubin = found.cubin,
        .cubin_bytes = found.cubin_bytes,
        .entry = jit_spec_template(jit),
        .threads = jit_spec_threads(jit),
        .shared_bytes = jit_spec_shared_bytes(jit),
        .cluster = jit_spec_cluster(jit),
    };
    rc = gpu_kernel_load(out, context->gpu, &desc, err);
out:
    jit_request_finish(&request);
    return rc;
}

static ffa_status kernel_make(struct gpu_kernel **out, struct jit_spec *jit,
                              const ffa_kernels *kernels, const char *template_name,
                              const struct setting *settings, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(spec_make(jit, kernels, template_name, settings, err));
    rc = kernel_load(out, NULL, jit, kernels, err);
out:
    return rc;
}

static int32_t has(const ffa_attention_spec *spec, uint32_t flag)
{
    return (spec->flags & flag) != 0;
}

/* Packed tiles where the mask decides, by columns of a head: the first for all masks, the next for
 * those whose blocks it fits better, as it does a window's. Costs are fitted to the cycles of full,
 * causal, window and packed-document masks of 16k tokens on an H200, without softcap and the like,
 * and are within 1 % of them. */
static const struct packed_tile {
    int32_t head_dim, consumers, tile_n;
    struct tile_cost cost;
} packed_tiles[] = {
    { 64, 3, 128, { 316, 1 } },  { 64, 3, 96, { 251, 1.039 } },  { 96, 3, 80, { 294, 1 } },
    { 128, 2, 128, { 318, 1 } }, { 128, 2, 80, { 208, 1.073 } }, { 192, 2, 80, { 250, 1 } },
    { 256, 2, 80, { 250, 1 } },
};

/* Add a kernel; 0: chosen. */
static ffa_status forward_add(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                              const struct packed_tile *tile, ffa_error *err)
{
    const struct setting settings[] = {
        { "head_dim", spec->head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "dtype", (int32_t)spec->dtype },
        { "consumers", tile->consumers },
        { "tile_n", tile->tile_n },
        { "debug", has(spec, FFA_SPEC_DEBUG) },
        { "softcap", has(spec, FFA_SPEC_SOFTCAP) },
        { "out_fp32", has(spec, FFA_SPEC_OUT_FP32) },
        { "staged", has(spec, FFA_SPEC_STAGED) },
        { "packed", spec->pack_heads > 0 },
        { "split", has(spec, FFA_SPEC_SPLIT) },
        { "max_logits", has(spec, FFA_SPEC_MAX_LOGITS) },
        { NULL, 0 },
    };
    struct forward_kernel *to = &kernels->forward[kernels->forward_count];
    struct jit_spec jit;
    ffa_status rc;

    assert(kernels->forward_count < FORWARD_KERNELS_MAX);
    FFA_TRY(spec_make(&jit, kernels, "attention_forward", settings, err));
    FFA_TRY(kernel_load(&to->kernel, &to->info, &jit, kernels, err));
    to->tile_m = 64 * jit_spec_get(&jit, "consumers");
    if (kernels->pack_heads)
        to->tile_m /= kernels->pack_heads;
    to->tile_n = jit_spec_get(&jit, "tile_n");
    to->cost = tile->cost;
    kernels->forward_count++;
out:
    return rc;
}

/* Kernels for the tiles that a mask may want; one of a pass in stages, whose stages share theirs. A
 * tile may be too large for what else the spec asks for. The first is for all masks, so that where
 * nothing may be compiled, it will do. */
static ffa_status forward_make_packed(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                      ffa_error *err)
{
    static const struct packed_tile any = { .consumers = 2, .cost = { 250, 1 } };
    const int32_t columns = jit_columns(spec->head_dim);
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < sizeof packed_tiles / sizeof *packed_tiles; i++) {
        ffa_error found = { FFA_OK, 0, "" };

        if (packed_tiles[i].head_dim != columns || jit_columns(kernels->head_dim_v) != columns ||
            (kernels->is_staged && kernels->forward_count))
            continue;
        rc = forward_add(kernels, spec, &packed_tiles[i], &found);
        if (rc == FFA_INVALID || (rc == FFA_NOT_FOUND && kernels->forward_count))
            rc = FFA_OK;
        if (rc != FFA_OK) {
            if (err)
                *err = found;
            goto out;
        }
    }
    if (!kernels->forward_count)
        rc = forward_add(kernels, spec, &any, err);
out:
    return rc;
}

static ffa_status forward_make(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                               ffa_error *err)
{
    const struct packed_tile asked = { .consumers = spec->tile_m / 64,
                                       .tile_n = spec->tile_n,
                                       .cost = { 0, 1 } };
    const struct setting combine[] = { { "dtype", (int32_t)spec->dtype }, { NULL, 0 } };
    struct jit_spec jit;
    ffa_status rc;

    if (spec->pack_heads && !spec->tile_m && !spec->tile_n)
        FFA_TRY(forward_make_packed(kernels, spec, err));
    else
        FFA_TRY(forward_add(kernels, spec, &asked, err));
    if (kernels->is_split)
        FFA_TRY(kernel_make(&kernels->combine, &jit, kernels, "forward_combine", combine, err));
out:
    return rc;
}

static ffa_status backward_make(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                ffa_error *err)
{
    const int32_t head_dim = spec->head_dim, dtype = (int32_t)spec->dtype;
    const struct setting prepare[] = {
        { "head_dim", head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "dtype", dtype },
        { "out_fp32", has(spec, FFA_SPEC_OUT_FP32) },
        { NULL, 0 },
    };
    const struct setting finish[] = {
        { "head_dim", head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "gradient", (int32_t)kernels->grad_dtype },
        { NULL, 0 },
    };
    struct setting main[] = {
        { "head_dim", head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "dtype", dtype },
        { "tile_m", spec->backward_tile_m },
        { "softcap", has(spec, FFA_SPEC_SOFTCAP) },
        { "deterministic", has(spec, FFA_SPEC_DETERMINISTIC) },
        { "debug", has(spec, FFA_SPEC_DEBUG) },
        { "dkv_fp32", has(spec, FFA_SPEC_GRAD_FP32) },
        { NULL, 0 },
    };
    const size_t fp32_row = sizeof main / sizeof *main - 2;
    struct jit_spec jit;
    ffa_status rc;

    FFA_TRY(kernel_make(&kernels->prepare, &jit, kernels, "backward_prepare", prepare, err));
    FFA_TRY(kernel_make(&kernels->finish, &jit, kernels, "backward_finish", finish, err));
    FFA_TRY(kernel_make(&kernels->backward, &jit, kernels, "attention_backward", main, err));
    kernels->backward_tile_m = jit_spec_get(&jit, "tile_m");
    kernels->backward_cluster = jit_spec_cluster(&jit);
    kernels->backward_tile_n = attention_backward_tile_n(spec->head_dim, spec->head_dim_v);
    kernels->dq_columns = jit_spec_get(&jit, "head_dim");
    if (main[fp32_row].value)
        goto out;
    main[3].value = kernels->backward_tile_m; /* the same tiles */
    main[fp32_row].value = 1;
    FFA_TRY(kernel_make(&kernels->backward_fp32, &jit, kernels, "attention_backward", main, err));
out:
    return rc;
}

static ffa_status kernels_resolve_gpu(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                      ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(spec_check_gpu(spec, err));
    FFA_TRY(forward_make(kernels, spec, err));
    if (kernels->has_backward)
        FFA_TRY(backward_make(kernels, spec, err));
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
    FFA_TRY(spec_check(&spec, err));
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
    kernels->grad_dtype = spec.flags & FFA_SPEC_GRAD_FP32 ? FFA_FP32 : spec.dtype;
    kernels->has_softcap = has(&spec, FFA_SPEC_SOFTCAP);
    kernels->has_max_logits = has(&spec, FFA_SPEC_MAX_LOGITS);
    kernels->is_staged = has(&spec, FFA_SPEC_STAGED);
    kernels->pack_heads = spec.pack_heads;
    kernels->is_split = has(&spec, FFA_SPEC_SPLIT);
    kernels->has_backward = has(&spec, FFA_SPEC_BACKWARD);
    kernels->is_deterministic = has(&spec, FFA_SPEC_DETERMINISTIC);
    if (context->gpu) {
        FFA_TRY(kernels_resolve_gpu(kernels, &spec, err));
    } else {
        FFA_TRY(spec_check_cpu(&spec, err));
        kernels->forward[0] =
            (struct forward_kernel){ .tile_m = spec.tile_m ? spec.tile_m : CPU_TILE_M,
                                     .tile_n = spec.tile_n ? spec.tile_n : CPU_TILE_N };
        kernels->forward_count = 1;
        kernels->backward_tile_m = spec.backward_tile_m ? spec.backward_tile_m : CPU_TILE_M;
        kernels->backward_tile_n = spec.backward_tile_n ? spec.backward_tile_n : CPU_TILE_N;
        kernels->backward_cluster = 1;
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
    for (int32_t i = 0; i < kernels->forward_count; i++)
        gpu_kernel_unload(kernels->forward[i].kernel);
    gpu_kernel_unload(kernels->combine);
    gpu_kernel_unload(kernels->prepare);
    gpu_kernel_unload(kernels->finish);
    gpu_kernel_unload(kernels->backward);
    gpu_kernel_unload(kernels->backward_fp32);
    mem_free(kernels);
}

ffa_status ffa_kernels_info(const ffa_kernels *kernels, ffa_kernel_info *info, ffa_error *err)
{
    if (!kernels || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_kernels_info: %s is NULL",
                          kernels ? "info" : "kernels");
    return opts_export(info, &kernels->forward[0].info, sizeof kernels->forward[0].info, err);
}
