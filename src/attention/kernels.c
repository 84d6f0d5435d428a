/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_kernels: a spec resolved to loaded kernels, or to the CPU backend.
 *
 * Once made, kernels never change: all that a plan may choose from is loaded here, so that planning
 * and calls neither compile nor load. Kernels that are only better for some masks (a second tile,
 * the kernels of a split that was not asked for, pairs of blocks) are optional: where they cannot
 * be had, a plan has less to choose from. Not with ordered accumulation, where the kernel decides
 * the bits of dq.
 */
#include "attention/kernels.h"
#include "attention/rows_device.h"
#include "attention/spec_check.h"

#include "attention_backward.args.h"
#include "choose/spec_choice.h"

#include <assert.h>

/* The CPU backend has no register file to fit: one tile for all. */
enum { CPU_TILE_M = 128, CPU_TILE_N = 128 };

static void list_add(struct kernel_list *list, const struct jit_spec *asked,
                     const struct jit_spec *resolved)
{
    for (int32_t i = 0; i < list->count; i++)
        if (!memcmp(&list->resolved[i], resolved, sizeof *resolved))
            return;
    assert(list->count < KERNEL_LIST_MAX);
    list->asked[list->count] = *asked;
    list->resolved[list->count++] = *resolved;
}

/* The spec of the settings, with its choices made. Kernels that are only listed have it in their
 * list then. */
static ffa_status spec_make(struct jit_spec *jit, const ffa_kernels *kernels,
                            const char *template_name, const struct setting *settings,
                            ffa_error *err)
{
    struct jit_spec asked;
    ffa_status rc;

    FFA_TRY(jit_spec_init(jit, template_name, err));
    for (; settings->name; settings++)
        if (settings->value)
            FFA_TRY(jit_spec_put(jit, settings->name, settings->value, err));
    asked = *jit;
    rc = choose_spec(jit, kernels->list ? kernels->list->arch : kernels->context->arch, err);
    if (rc == FFA_OK && kernels->list)
        list_add(kernels->list, &asked, jit);
out:
    return rc;
}

/* Where a kernel is loaded, and as what. */
struct load {
    struct gpu_kernel **out;
    struct gpu_device *device;
    const struct jit_spec *jit;
};

static ffa_status load_on_gpu(void *user, const struct resolved *found, bool *is_refused,
                              ffa_error *err)
{
    const struct load *load = user;
    const struct gpu_kernel_desc desc = {
        .cubin = found->cubin,
        .cubin_bytes = found->cubin_bytes,
        .entry = jit_spec_template(load->jit),
        .threads = jit_spec_threads(load->jit),
        .shared_bytes = jit_spec_shared_bytes(load->jit),
        .cluster = jit_spec_cluster(load->jit),
    };

    return gpu_kernel_load(load->out, load->device, &desc, is_refused, err);
}

/* Look up or compile, and load; nothing where kernels are only listed. info: NULL, or receives the
 * kernel's facts. */
static ffa_status kernel_load(struct gpu_kernel **out, ffa_kernel_info *info,
                              const struct jit_spec *jit, const ffa_kernels *kernels,
                              ffa_error *err)
{
    ffa_context *context = kernels->context;
    struct load load = { .out = out, .jit = jit };
    struct jit_request request;
    struct resolved found;
    ffa_status rc;

    if (kernels->list)
        return FFA_OK;
    load.device = context->gpu;
    jit_request_init(&request, jit, context->arch);
    rc = context_load(&found, context, &request, load_on_gpu, &load, err);
    if (rc == FFA_OK && info)
        *info = found.info;
    jit_request_finish(&request);
    return rc;
}

ffa_status kernel_make(struct gpu_kernel **out, struct jit_spec *jit, const ffa_kernels *kernels,
                       const char *template_name, const struct setting *settings, ffa_error *err)
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

/* Which kernels of a spec: of whole tiles, or of parts. */
struct forward_set {
    struct forward_kernel *kernels; /* [most] */
    int32_t *count, most;
    bool is_split;
};

/* Add a kernel. Of its tile, 0 is chosen. */
static ffa_status forward_add(const struct forward_set *set, const struct ffa_kernels *kernels,
                              const ffa_attention_spec *spec, const struct cost_tile *tile,
                              ffa_error *err)
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
        { "packed", kernels->pack_heads > 0 },
        { "split", set->is_split },
        { "max_logits", has(spec, FFA_SPEC_MAX_LOGITS) },
        { "arrivals", has(spec, FFA_SPEC_PARALLEL) },
        { NULL, 0 },
    };
    struct forward_kernel *to = &set->kernels[*set->count];
    struct jit_spec jit;
    ffa_status rc;

    assert(*set->count < set->most);
    FFA_TRY(spec_make(&jit, kernels, "attention_forward", settings, err));
    FFA_TRY(kernel_load(&to->kernel, &to->info, &jit, kernels, err));
    to->tile_m = 64 * jit_spec_get(&jit, "consumers");
    if (kernels->pack_heads)
        to->tile_m /= kernels->pack_heads;
    to->tile_n = jit_spec_get(&jit, "tile_n");
    to->cost = tile->cost;
    to->unit_us = tile->unit_us;
    ++*set->count;
out:
    return rc;
}

/* Whether a kernel is in no layer and cannot be compiled here: that is forbidden, or there is no
 * NVRTC. */
static bool is_missing(ffa_status rc)
{
    return rc == FFA_NOT_FOUND || rc == FFA_UNSUPPORTED;
}

/* What a key of a row costs with a tile where a plan has one kernel. Parts of tiles even out the
 * better the fewer rows they have: a tile of two warpgroups may cost a tenth more than one of three
 * (at head_dim 128 it costs 7 % more, at 96 29 %). */
static double row_cost(const struct cost_tile *tile, bool is_split)
{
    return tile->cost.key / tile->consumers * (is_split && tile->consumers > 2 ? 1.1 : 1);
}

/* The tiles to make kernels for, best first; how many. Plans of whole tiles, but for passes in
 * stages, choose among several kernels, in the order of the table. */
static int32_t tiles_find(const struct cost_tile *tiles[COST_TILES_MAX],
                          const struct ffa_kernels *kernels, bool is_split)
{
    const int32_t count =
        choose_cost_tiles(tiles, kernels->device.costs, jit_columns(kernels->head_dim),
                          jit_columns(kernels->head_dim_v), kernels->pack_heads > 0);

    for (int32_t i = 1; (is_split || kernels->is_staged) && i < count; i++)
        for (int32_t k = i; k > 0; k--) {
            const struct cost_tile *tile = tiles[k];

            if (row_cost(tile, is_split) >= row_cost(tiles[k - 1], is_split))
                break;
            tiles[k] = tiles[k - 1];
            tiles[k - 1] = tile;
        }
    return count;
}

/* Where the table has no tile that fits: of heads apart, the architecture's (spec_choice.h). */
static struct cost_tile tile_by_default(const struct ffa_kernels *kernels)
{
    return kernels->pack_heads
               ? (struct cost_tile){ .consumers = 2, .cost = kernels->device.costs->packed_cost }
               : (struct cost_tile){ .cost = { 0, 1 } };
}

/* Kernels for the table's tiles that a mask may want, of the first that are not too large for what
 * else the spec asks for; passes in stages, and parts of tiles, share one. Each is for all masks,
 * so that where nothing may be compiled, one will do. FFA_INVALID: none fits; the error of the
 * first that is missing where none is there. */
static ffa_status forward_add_table(const struct forward_set *set,
                                    const struct ffa_kernels *kernels,
                                    const ffa_attention_spec *spec, ffa_error *err)
{
    const struct cost_tile *tiles[COST_TILES_MAX];
    const int32_t count = tiles_find(tiles, kernels, set->is_split);
    ffa_status none = FFA_INVALID;
    int32_t fitting = 0;

    for (int32_t i = 0; i < count && fitting < set->most; i++) {
        ffa_error found = { FFA_OK, 0, "" };
        const ffa_status rc = forward_add(set, kernels, spec, tiles[i], &found);

        if (rc == FFA_INVALID) /* too large */
            continue;
        if (rc != FFA_OK && (!is_missing(rc) || fitting == 0)) {
            none = rc;
            *err = found;
        }
        if (rc != FFA_OK && !is_missing(rc))
            return rc;
        fitting++; /* missing or not */
    }
    return *set->count ? FFA_OK : none;
}

/* Where none of the table's tiles fits, or is there, heads apart get by with the architecture's,
 * which is warmed without a table, too; packed heads that are missing get by without packing
 * (whole_make). */
static ffa_status forward_add_open(const struct forward_set *set, const struct ffa_kernels *kernels,
                                   const ffa_attention_spec *spec, ffa_error *err)
{
    const struct cost_tile any = tile_by_default(kernels);
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc = forward_add_table(set, kernels, spec, &found);

    if (rc == FFA_INVALID)
        rc = forward_add(set, kernels, spec, &any, &found);
    else if (is_missing(rc) && !kernels->pack_heads &&
             forward_add(set, kernels, spec, &any, NULL) == FFA_OK)
        rc = FFA_OK;
    if (rc != FFA_OK && err)
        *err = found;
    return rc;
}

static ffa_status forward_add_all(const struct forward_set *set, const struct ffa_kernels *kernels,
                                  const ffa_attention_spec *spec, ffa_error *err)
{
    const struct cost_tile asked = { .consumers = spec->tile_m / 64,
                                     .tile_n = spec->tile_n,
                                     .cost = { 0, 1 } };

    return spec->tile_m || spec->tile_n ? forward_add(set, kernels, spec, &asked, err)
                                        : forward_add_open(set, kernels, spec, err);
}

static ffa_status combine_make(struct ffa_kernels *kernels, ffa_error *err)
{
    const struct setting settings[] = { { "dtype", (int32_t)kernels->dtype }, { NULL, 0 } };
    struct jit_spec jit;

    return kernel_make(&kernels->combine, &jit, kernels, "forward_combine", settings, err);
}

static void forward_unload(struct forward_kernel *all, int32_t *count)
{
    for (int32_t i = 0; i < *count; i++)
        gpu_kernel_unload(all[i].kernel);
    *count = 0;
}

/* Whether plans of the spec may be split without being asked for. */
static bool may_split(const ffa_attention_spec *spec)
{
    const uint32_t others = FFA_SPEC_SPLIT | FFA_SPEC_OUT_FP32 | FFA_SPEC_STAGED |
                            FFA_SPEC_BACKWARD | FFA_SPEC_PARALLEL;

    return spec->split == FFA_SPLIT_AUTO && spec->heads_q && !(spec->flags & others);
}

/* The kernels of a split that was not asked for: without them, no plan is split. */
static ffa_status split_make(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                             ffa_error *err)
{
    const struct forward_set set = { kernels->split, &kernels->split_count, SPLIT_KERNELS_MAX,
                                     true };
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc = combine_make(kernels, &found);

    if (rc == FFA_OK)
        rc = forward_add_all(&set, kernels, spec, &found);
    if (rc == FFA_OK)
        return FFA_OK;
    forward_unload(kernels->split, &kernels->split_count);
    gpu_kernel_unload(kernels->combine);
    kernels->combine = NULL;
    if (is_missing(rc) || rc == FFA_INVALID)
        return FFA_OK;
    if (err)
        *err = found;
    return rc;
}

/* The kernels of whole tiles. Packing that was chosen, not asked for, is given up where only the
 * kernels of heads apart can be had: the error is that of the packed ones otherwise. */
static ffa_status whole_make(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                             ffa_error *err)
{
    const struct forward_set set = { kernels->forward, &kernels->forward_count,
                                     kernels->is_split || kernels->is_staged ? 1
                                                                             : FORWARD_KERNELS_MAX,
                                     kernels->is_split };
    const bool is_chosen = kernels->pack_heads && spec->pack_heads == FFA_PACK_AUTO;
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc = forward_add_all(&set, kernels, spec, &found);

    if (is_chosen && is_missing(rc)) {
        forward_unload(kernels->forward, &kernels->forward_count);
        kernels->pack_heads = 0;
        if (forward_add_all(&set, kernels, spec, NULL) == FFA_OK)
            rc = FFA_OK;
    }
    if (rc != FFA_OK && err)
        *err = found;
    return rc;
}

static ffa_status forward_make(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                               ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(whole_make(kernels, spec, err));
    if (kernels->is_split)
        FFA_TRY(combine_make(kernels, err));
    if (kernels->may_split)
        FFA_TRY(split_make(kernels, spec, err));
out:
    return rc;
}

/* The gradients' kernel, with dk and dv in grad_dtype or in fp32. tile_n: 0 is chosen. */
static ffa_status backward_load(struct gpu_kernel **out, struct jit_spec *jit,
                                const struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                int32_t tile_n, bool is_fp32, ffa_error *err)
{
    const int32_t cta_keys = attention_backward_cta_keys(kernels->head_dim, kernels->head_dim_v);
    const struct setting settings[] = {
        { "head_dim", spec->head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "dtype", (int32_t)spec->dtype },
        { "tile_m", spec->backward_tile_m },
        { "cluster", tile_n / cta_keys },
        { "softcap", has(spec, FFA_SPEC_SOFTCAP) },
        { "deterministic", has(spec, FFA_SPEC_DETERMINISTIC) },
        { "debug", has(spec, FFA_SPEC_DEBUG) },
        { "dkv_fp32", is_fp32 },
        { "arrivals", has(spec, FFA_SPEC_PARALLEL) },
        { NULL, 0 },
    };

    return kernel_make(out, jit, kernels, "attention_backward", settings, err);
}

static void backward_unload(struct backward_kernel *kernel)
{
    gpu_kernel_unload(kernel->kernel);
    gpu_kernel_unload(kernel->fp32);
    *kernel = (struct backward_kernel){ 0 };
}

/* Add a kernel of the gradients, and the same in fp32 where a pass may have parts. */
static ffa_status backward_add(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                               int32_t tile_n, ffa_error *err)
{
    const bool is_fp32 = has(spec, FFA_SPEC_GRAD_FP32 | FFA_SPEC_PARALLEL) != 0;
    struct backward_kernel *to = &kernels->backward[kernels->backward_count];
    struct jit_spec jit;
    ffa_status rc;

    assert(kernels->backward_count < BACKWARD_KERNELS_MAX);
    FFA_TRY(backward_load(&to->kernel, &jit, kernels, spec, tile_n, is_fp32, err));
    to->tile_m = jit_spec_get(&jit, "tile_m");
    to->cluster = jit_spec_cluster(&jit);
    to->tile_n = attention_backward_tile_n(kernels->head_dim, kernels->head_dim_v, to->cluster);
    kernels->dq_columns = jit_spec_get(&jit, "head_dim");
    if (!is_fp32) /* tile_m follows from the columns: the tiles are the same */
        FFA_TRY(backward_load(&to->fp32, &jit, kernels, spec, tile_n, true, err));
    assert(jit_spec_get(&jit, "tile_m") == to->tile_m);
    ++kernels->backward_count;
out:
    if (rc != FFA_OK)
        backward_unload(to);
    return rc;
}

/* Pairs of blocks are faster on many masks: timed, and so chosen, where q and v have as many
 * columns, and scores no softcap. */
static ffa_status backward_add_pairs(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                     ffa_error *err)
{
    const int32_t head_dim = kernels->head_dim, head_dim_v = kernels->head_dim_v;
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc;

    if (kernels->is_parallel || kernels->is_staged || has(spec, FFA_SPEC_SOFTCAP) ||
        spec->backward_tile_m || spec->backward_tile_n || head_dim != head_dim_v ||
        !attention_backward_may_pair(head_dim, head_dim_v))
        return FFA_OK;
    rc = backward_add(kernels, spec, attention_backward_tile_n(head_dim, head_dim_v, 2), &found);
    if (is_missing(rc) && !kernels->is_deterministic)
        return FFA_OK;
    if (rc != FFA_OK && err)
        *err = found;
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
    const struct setting finish_fp32[] = {
        { "head_dim", head_dim },
        { "head_dim_v", spec->head_dim_v },
        { "gradient", (int32_t)FFA_FP32 },
        { NULL, 0 },
    };
    struct jit_spec jit;
    ffa_status rc;

    FFA_TRY(kernel_make(&kernels->prepare, &jit, kernels, "backward_prepare", prepare, err));
    FFA_TRY(kernel_make(&kernels->finish, &jit, kernels, "backward_finish", finish, err));
    if (kernels->is_parallel && kernels->is_staged && kernels->grad_dtype != FFA_FP32)
        FFA_TRY(
            kernel_make(&kernels->finish_fp32, &jit, kernels, "backward_finish", finish_fp32, err));
    FFA_TRY(backward_add(kernels, spec, spec->backward_tile_n, err));
    FFA_TRY(backward_add_pairs(kernels, spec, err));
out:
    return rc;
}

struct forward_list kernels_forward(const ffa_kernels *kernels, bool is_split)
{
    return is_split && kernels->split_count
               ? (struct forward_list){ kernels->split, kernels->split_count }
               : (struct forward_list){ kernels->forward, kernels->forward_count };
}

const struct forward_kernel *kernels_forward_of(struct forward_list list,
                                                const struct tile_plan *tiles)
{
    for (int32_t i = 0; i < list.count; i++)
        if (list.kernels[i].tile_m == tiles->tile_m && list.kernels[i].tile_n == tiles->tile_n)
            return &list.kernels[i];
    return NULL;
}

bool kernels_take_splits(const ffa_kernels *kernels)
{
    return kernels->is_split || kernels->split_count;
}

const struct backward_kernel *kernels_backward_of(const struct ffa_kernels *kernels, int32_t tile_m,
                                                  int32_t tile_n)
{
    for (int32_t i = 0; i < kernels->backward_count; i++)
        if (kernels->backward[i].tile_m == tile_m && kernels->backward[i].tile_n == tile_n)
            return &kernels->backward[i];
    return NULL;
}

int32_t kernels_backward_at_a_time(const struct backward_kernel *kernel, int32_t sm_count)
{
    return sm_count < kernel->cluster ? 1 : sm_count / kernel->cluster;
}

int64_t kernels_backward_row_bytes(const struct ffa_kernels *kernels)
{
    return order_row_bytes(kernels->head_dim, kernels->head_dim_v, kernels->dtype);
}

bool kernels_can_leave_whole(const struct ffa_kernels *kernels)
{
    return !kernels->is_staged && !kernels->is_parallel && kernels->grad_dtype == kernels->dtype;
}

static ffa_status kernels_resolve_gpu(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                                      ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(spec_check_gpu(spec, err));
    FFA_TRY(forward_make(kernels, spec, err));
    if (kernels->has_backward)
        FFA_TRY(backward_make(kernels, spec, err));
    if (kernels->is_parallel)
        FFA_TRY(rows_kernels_load(kernels, err));
out:
    return rc;
}

static void kernels_resolve_cpu(struct ffa_kernels *kernels, const ffa_attention_spec *spec)
{
    kernels->forward[0] =
        (struct forward_kernel){ .tile_m = spec->tile_m ? spec->tile_m : CPU_TILE_M,
                                 .tile_n = spec->tile_n ? spec->tile_n : CPU_TILE_N };
    kernels->forward_count = 1;
    kernels->backward[0] = (struct backward_kernel){
        .tile_m = spec->backward_tile_m ? spec->backward_tile_m : CPU_TILE_M,
        .tile_n = spec->backward_tile_n ? spec->backward_tile_n : CPU_TILE_N,
        .cluster = 1
    };
    kernels->backward_count = 1;
}

/* Heads to pack: what the spec says, or what is chosen. Explicit tiles count rows as the caller
 * does, and are left alone. */
static int32_t pack_of(const ffa_attention_spec *spec, const struct cost_table *costs)
{
    if (spec->pack_heads != FFA_PACK_AUTO)
        return spec->pack_heads;
    return spec->heads_q && !spec->tile_m && !spec->tile_n
               ? choose_pack_heads(costs, spec->heads_q / spec->heads_kv)
               : 0;
}

/* What follows from a checked spec and a device alone. */
static void kernels_init(struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                         const struct choose_device *device)
{
    kernels->device = *device;
    kernels->dtype = spec->dtype;
    kernels->head_dim = spec->head_dim;
    kernels->head_dim_v = spec->head_dim_v ? spec->head_dim_v : spec->head_dim;
    kernels->out_dtype = spec->flags & FFA_SPEC_OUT_FP32 ? FFA_FP32 : spec->dtype;
    kernels->grad_dtype = spec->flags & FFA_SPEC_GRAD_FP32 ? FFA_FP32 : spec->dtype;
    kernels->has_softcap = has(spec, FFA_SPEC_SOFTCAP);
    kernels->has_max_logits = has(spec, FFA_SPEC_MAX_LOGITS);
    kernels->is_staged = has(spec, FFA_SPEC_STAGED);
    kernels->pack_heads = pack_of(spec, kernels->device.costs);
    kernels->heads_q = spec->heads_q;
    kernels->heads_kv = spec->heads_kv;
    kernels->is_parallel = has(spec, FFA_SPEC_PARALLEL);
    kernels->is_split = has(spec, FFA_SPEC_SPLIT);
    kernels->may_split = may_split(spec);
    kernels->has_backward = has(spec, FFA_SPEC_BACKWARD);
    kernels->is_deterministic = has(spec, FFA_SPEC_DETERMINISTIC);
}

ffa_status kernels_outline(struct ffa_kernels *out, struct kernel_list *list,
                           const ffa_attention_spec *spec, const char *arch,
                           const struct choose_device *device, ffa_error *err)
{
    ffa_status rc;

    *out = (struct ffa_kernels){ .list = list };
    list->arch = arch;
    list->count = 0;
    FFA_TRY(spec_check(spec, err));
    kernels_init(out, spec, device);
    rc = kernels_resolve_gpu(out, spec, err);
out:
    return rc;
}

ffa_status kernels_list(struct kernel_list *list, const ffa_attention_spec *spec, const char *arch,
                        const struct choose_device *device, ffa_error *err)
{
    struct ffa_kernels kernels;

    return kernels_outline(&kernels, list, spec, arch, device, err);
}

/* A job that may not compile ends at the first kernel that is missing, or goes without some. All
 * that are missing are noted, so that one run tells what to warm. Returns how many, of *all. */
static int32_t note_missing(const struct ffa_kernels *kernels, const ffa_attention_spec *spec,
                            int32_t *all)
{
    struct kernel_list list;
    int32_t missing = 0;

    if (kernels_list(&list, spec, kernels->context->arch, &kernels->device, NULL) != FFA_OK)
        list.count = 0;
    for (int32_t i = 0; i < list.count; i++)
        missing += context_note_missing(kernels->context, &list.resolved[i], list.arch);
    *all = list.count;
    return missing;
}

/* Kernels that are in no layer are compiled side by side, so that a cold start takes about as long
 * as one of them. The caller compiles the first one itself. */
static struct precompile *compile_begin(const struct ffa_kernels *kernels,
                                        const ffa_attention_spec *spec)
{
    const struct jit_spec *missing[KERNEL_LIST_MAX];
    struct precompile *rest = NULL;
    struct kernel_list list;
    int32_t count = 0;

    if (kernels->context->opts.flags & FFA_OPEN_NEVER_COMPILE ||
        kernels_list(&list, spec, kernels->context->arch, &kernels->device, NULL) != FFA_OK)
        return NULL;
    for (int32_t i = 0; i < list.count; i++)
        if (context_lacks(kernels->context, &list.resolved[i], list.arch))
            missing[count++] = &list.resolved[i];
    if (count > 1)
        context_precompile_begin(&rest, kernels->context, missing + 1, count - 1, list.arch);
    return rest;
}

static ffa_status kernels_resolve_or_note(struct ffa_kernels *kernels,
                                          const ffa_attention_spec *spec, ffa_error *err)
{
    const uint32_t notes = FFA_OPEN_NEVER_COMPILE | FFA_OPEN_LOG_MISSES;
    ffa_error why = { FFA_OK, 0, "" };
    struct precompile *rest = compile_begin(kernels, spec);
    const ffa_status rc = kernels_resolve_gpu(kernels, spec, &why);
    int32_t all = 0, missing = 0;

    context_precompile_end(rest);
    if (kernels->context->opts.flags & notes && (rc == FFA_OK || is_missing(rc)))
        missing = note_missing(kernels, spec, &all);
    if (rc == FFA_OK)
        return rc;
    if (missing < 2)
        return error_fail(err, rc, why.native, "%s", why.message);
    return error_fail(err, rc, why.native, "%.400s; %d of the %d kernels of this spec are missing",
                      why.message, missing, all);
}

ffa_status ffa_kernels_create(ffa_kernels **out, ffa_context *context,
                              const ffa_attention_spec *spec_in, ffa_error *err)
{
    struct ffa_kernels *kernels = NULL;
    struct choose_device device;
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
    device = context_choose_device(context);
    kernels_init(kernels, &spec, &device);
    if (context->gpu) {
        FFA_TRY(kernels_resolve_or_note(kernels, &spec, err));
    } else {
        FFA_TRY(spec_check_cpu(&spec, err));
        kernels_resolve_cpu(kernels, &spec);
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
    forward_unload(kernels->forward, &kernels->forward_count);
    forward_unload(kernels->split, &kernels->split_count);
    gpu_kernel_unload(kernels->combine);
    gpu_kernel_unload(kernels->prepare);
    gpu_kernel_unload(kernels->finish);
    gpu_kernel_unload(kernels->finish_fp32);
    for (int32_t i = 0; i < kernels->backward_count; i++)
        backward_unload(&kernels->backward[i]);
    rows_kernels_unload(kernels);
    mem_free(kernels);
}

ffa_status ffa_kernels_info(const ffa_kernels *kernels, ffa_kernel_info *info, ffa_error *err)
{
    if (!kernels || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_kernels_info: %s is NULL",
                          kernels ? "info" : "kernels");
    return opts_export(info, &kernels->forward[0].info, sizeof kernels->forward[0].info, err);
}
