/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_device_soak [--steps N] [--ranks N] [--tokens N] [--seed N]
 *
 * Training steps with another mask each, forward and backward on all ranks, run twice: all results
 * have the same bits in both runs, and what the process holds of host memory, device memory,
 * objects of CUDA (on the emulator), threads and files is the same after both. 1000 steps; at level
 * 0 (FFA_TEST_LEVEL) a few. Exit 77 without a GPU.
 *
 * Ranks are threads, with the GPUs of this host or shares of one. A step is drawn from the seed: a
 * mask of some family, or one without cells, or that of one of the last steps; tokens, stages,
 * sinks, a gradient through lse; two layers. Dispatches and plans come from a cache that is too
 * small for them. Several steps are in flight at a time. In the second run ranks are late, now and
 * then, by other times.
 *
 * Invariant: what steps need is planned and allocated before the first run, as to free memory of a
 * device that ranks share would wait for ranks that wait for this one. For the same reason such
 * ranks upload plans while none of them has a call under way: uploads of one context share slots.
 * All slots of uploads are filled before the first run: how many a run needs depends on how many
 * uploads are under way at once, which no two runs have alike.
 */
#include "cuda_calls.h"
#include "emulator/live.h"
#include "gpu/gpu.h"
#include "gpu/upload_ring.h"
#include "service/context.h"
#include "support/bootstrap.h"
#include "support/parallel_cases.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <dlfcn.h>
#include <ffa/ffa.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    STEPS = 1000,
    STEPS_FEW = 12,
    TOKENS = 6000,
    TOKENS_FEW = 160,
    RANKS_MAX = BOOTSTRAP_RANKS,
    HEADS_Q = 4,
    HEADS_KV = 2,
    HEAD_DIM = 64,
    SINKS_MAX = 2,
    LAYERS = 2,
    FLIGHT = 4,        /* steps */
    CACHE_ENTRIES = 9, /* fewer than steps look back for a mask, with its dispatch and its plan */
    LOOK_BACK = 6,
    STAGE_NS = 1000, /* so that a plan has the stages that it is asked for */
    SMS_FREE = 4,    /* of a GPU that ranks share: for copies between them */
    LATE_US_MOST = 2000,
    RUNS = 2
};
/* What may be more after the second run: allocators keep some, and pages are touched late. */
#define HEAP_SLACK ((int64_t)4 << 20)
#define RESIDENT_SLACK ((int64_t)32 << 20)
#define DEVICE_SLACK ((int64_t)8 << 20)

enum tensor { Q, K, V, DOUT, DLSE, OUT, LSE, DQ, DK, DV, DSINK, TENSORS, OUTPUTS = OUT };

static struct {
    int steps, ranks;
    int64_t tokens; /* at most, of all ranks */
    uint64_t seed;
} options;

static ffa_context *contexts[RANKS_MAX];
static ffa_kernels *kernels[RANKS_MAX];
static int devices;
static struct bootstrap *bootstrap;
static pthread_barrier_t meeting;

/* ---- a step, as it is drawn ---- */

enum family {
    CAUSAL_DOCUMENTS,
    FULL_DOCUMENTS,
    WINDOW,
    BLOCK_CAUSAL,
    UNION,
    FULL,
    EMPTY,
    FAMILIES
};

struct drawn {
    enum family family;
    int64_t tokens;
    uint64_t seed; /* of what the family draws */
    int32_t stages, algorithm, sinks;
    bool has_dlse;
};

static struct rng rng_of(uint64_t what, int step)
{
    return (struct rng){ options.seed * 1000003 + what * 7919 + (uint64_t)step };
}

/* The step whose mask, tokens and plan this one has: often one of the last. */
static int step_of_mask(int step)
{
    while (step > 0) {
        struct rng rng = rng_of(1, step);

        if (rng_range(&rng, 0, 2) != 0)
            break;
        step -= (int)rng_range(&rng, 1, step < LOOK_BACK ? step : LOOK_BACK);
    }
    return step;
}

static struct drawn draw(int step)
{
    struct rng shared = rng_of(2, step_of_mask(step)), own = rng_of(3, step);
    struct drawn d = { .family = (enum family)rng_range(&shared, 0, FAMILIES - 1) };

    d.tokens = rng_range(&shared, options.tokens / 3, options.tokens);
    d.stages = (int32_t)rng_range(&shared, 0, 3);
    d.algorithm = (int32_t)rng_range(&shared, FFA_DISPATCH_AFFINITY, FFA_DISPATCH_ZIGZAG);
    d.seed = rng_next(&shared);
    d.sinks = (int32_t)rng_range(&own, 0, SINKS_MAX);
    d.has_dlse = rng_range(&own, 0, 1) != 0;
    return d;
}

/* Short documents more often than long ones. */
static ffa_mask *make_documents(const struct drawn *d, bool is_causal)
{
    int64_t *cu = malloc(((size_t)d->tokens + 1) * sizeof *cu), count = 0;
    ffa_documents documents = { .cu_q = cu };
    struct rng rng = { d->seed };
    ffa_mask *mask = NULL;

    if (!cu)
        return NULL;
    for (cu[0] = 0; cu[count] < d->tokens; count++) {
        const int64_t most = 1 + (d->tokens >> rng_range(&rng, 0, 6));
        const int64_t length = rng_range(&rng, 1, most);

        cu[count + 1] = cu[count] + length < d->tokens ? cu[count] + length : d->tokens;
    }
    documents.document_count = count;
    (void)(is_causal ? ffa_mask_varlen_causal(&mask, &documents, NULL)
                     : ffa_mask_varlen_full(&mask, &documents, NULL));
    free(cu);
    return mask;
}

static ffa_mask *make_mask(const struct drawn *d)
{
    const ffa_mask_shape shape = { d->tokens, d->tokens };
    struct rng rng = { d->seed };
    ffa_mask *mask = NULL;
    char text[96];

    switch (d->family) {
    case CAUSAL_DOCUMENTS:
    case FULL_DOCUMENTS:
        return make_documents(d, d->family == CAUSAL_DOCUMENTS);
    case UNION:
        return parallel_random_mask(&rng, d->tokens, 8);
    case EMPTY:
        (void)ffa_mask_create(&mask, &shape, NULL, 0, NULL);
        return mask;
    case WINDOW:
        (void)snprintf(text, sizeof text, "window:%lld,left=%lld,right=%lld", (long long)d->tokens,
                       (long long)rng_range(&rng, 0, d->tokens / 2),
                       (long long)rng_range(&rng, 0, 40));
        break;
    case BLOCK_CAUSAL:
        (void)snprintf(text, sizeof text, "block-causal:%lld/block=%lld", (long long)d->tokens,
                       (long long)rng_range(&rng, 1, d->tokens));
        break;
    default:
        (void)snprintf(text, sizeof text, "full:%lld", (long long)d->tokens);
        break;
    }
    (void)ffa_mask_parse(&mask, text, NULL);
    return mask;
}

/* ---- ranks ---- */

/* A step in flight. */
struct flight {
    int step;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_parallel_pass *pass;
    int64_t rows;
    void *upload, *outputs[LAYERS][TENSORS];
};

struct rank {
    struct bootstrap_end end;
    int32_t rank;
    ffa_context *context;
    const ffa_kernels *kernels;
    ffa_stream stream;
    ffa_comm *comm;
    ffa_parallel_cache *cache;
    int64_t rows_most;           /* of any step */
    ffa_parallel_pass_info most; /* of any step */
    void *inputs[OUTPUTS], *sink, *workspace, *host;
    struct flight flights[FLIGHT];
    uint64_t *digests[RUNS]; /* [steps] */
    ffa_status status;
    ffa_error err;
    pthread_t thread;
};

static struct rank ranks[RANKS_MAX];

static int32_t sharing(void)
{
    return options.ranks > devices ? options.ranks : 1;
}

/* Of the GPU: how many this rank leaves to others. */
static int32_t sms_of(const struct rank *r, int32_t *margin)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    int32_t sms;

    (void)ffa_context_info_get(r->context, &info, NULL);
    sms = sharing() > 1 ? (info.sm_count - SMS_FREE) / sharing() : info.sm_count;
    *margin = info.sm_count - sms;
    return sms;
}

static bool is_key(enum tensor t)
{
    return t == K || t == V || t == DK || t == DV;
}

static bool is_sum(enum tensor t)
{
    return t == LSE || t == DLSE;
}

static int64_t tensor_bytes(enum tensor t, int64_t rows)
{
    const int64_t heads = is_key(t) ? HEADS_KV : HEADS_Q;

    if (t == DSINK)
        return SINKS_MAX * HEADS_Q * (int64_t)sizeof(float);
    return rows * heads *
           (is_sum(t) ? (int64_t)sizeof(float) : HEAD_DIM * (int64_t)sizeof(uint16_t));
}

static ffa_status plan_step(struct rank *r, struct flight *f, ffa_error *err)
{
    const struct drawn d = draw(f->step);
    const ffa_topology topology = { options.ranks, 0 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_opts dispatch = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask weighed = { NULL, 1 };
    int32_t margin;
    ffa_status rc;

    f->mask = make_mask(&d);
    if (!f->mask)
        return FFA_NOMEM;
    weighed.mask = f->mask;
    dispatch.algorithm = d.algorithm;
    opts.forward_stages = opts.backward_stages = d.stages;
    opts.stage_rows_min = 1;
    opts.sms = sms_of(r, &margin);
    opts.model.launch_ns = STAGE_NS;
    opts.model.heads_q = HEADS_Q;
    opts.model.heads_kv = HEADS_KV;
    opts.model.head_dim = HEAD_DIM;
    opts.model.element_bytes = sizeof(uint16_t);
    rc =
        ffa_parallel_cache_dispatch(r->cache, &f->dispatch, &weighed, 1, &topology, &dispatch, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_cache_plan(r->cache, &f->plan, f->dispatch, f->mask, r->rank, &opts, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_create(&f->pass, f->plan, r->kernels, err);
    if (rc == FFA_OK)
        f->rows = ffa_dispatch_query_rows(f->dispatch, r->rank);
    return rc;
}

static void drop_step(struct flight *f)
{
    ffa_parallel_pass_destroy(f->pass);
    ffa_parallel_plan_destroy(f->plan);
    ffa_dispatch_destroy(f->dispatch);
    ffa_mask_destroy(f->mask);
    f->pass = NULL;
    f->plan = NULL;
    f->dispatch = NULL;
    f->mask = NULL;
}

/* ---- what steps need at most ---- */

static void most(int64_t *to, int64_t value)
{
    *to = *to > value ? *to : value;
}

static ffa_status measure(struct rank *r)
{
    ffa_status rc = ffa_parallel_cache_create(&r->cache, CACHE_ENTRIES, &r->err);

    for (int step = 0; step < options.steps && rc == FFA_OK; step++) {
        ffa_parallel_pass_info info = FFA_PARALLEL_PASS_INFO_INIT;
        struct flight f = { .step = step };

        rc = plan_step(r, &f, &r->err);
        if (rc == FFA_OK)
            rc = ffa_parallel_pass_info_get(f.pass, r->kernels, HEADS_Q, HEADS_KV, &info, &r->err);
        most(&r->rows_most, f.rows);
        most(&r->most.upload_bytes, info.upload_bytes);
        most(&r->most.key_bytes, info.key_bytes);
        most(&r->most.sum_bytes, info.sum_bytes);
        most(&r->most.forward_workspace_bytes, info.forward_workspace_bytes);
        most(&r->most.forward_workspace_bytes, info.backward_workspace_bytes);
        drop_step(&f);
    }
    return rc;
}

/* Small numbers of both signs. */
static ffa_status make_input(struct rank *r, void **out, int64_t bytes, bool is_fp32, int what)
{
    struct rng rng = { options.seed + (uint64_t)(what * RANKS_MAX + r->rank + 1) };
    uint16_t *bits = r->host;
    float *numbers = r->host;
    ffa_status rc = ffa_device_alloc(out, r->context, bytes, &r->err);

    for (int64_t i = 0; i < bytes / (is_fp32 ? 4 : 2); i++)
        if (is_fp32)
            numbers[i] = (float)rng_range(&rng, -100, 100) / 100;
        else
            bits[i] = (uint16_t)(0x3e00 | (rng_next(&rng) & 0x81ff));
    return rc == FFA_OK && bytes > 0
               ? ffa_device_copy(r->context, *out, r->host, bytes, FFA_TO_DEVICE, &r->err)
               : rc;
}

static ffa_status allocate(struct rank *r)
{
    const int64_t sink_bytes = tensor_bytes(DSINK, 0);
    ffa_status rc =
        ffa_device_alloc(&r->workspace, r->context, r->most.forward_workspace_bytes, &r->err);

    r->host = malloc((size_t)(tensor_bytes(Q, r->rows_most + LAYERS) + sink_bytes));
    if (!r->host)
        return FFA_NOMEM;
    for (enum tensor t = Q; t < OUTPUTS && rc == FFA_OK; t++)
        rc =
            make_input(r, &r->inputs[t], tensor_bytes(t, r->rows_most + LAYERS), is_sum(t), (int)t);
    for (int f = 0; f < FLIGHT && rc == FFA_OK; f++) {
        rc = ffa_device_alloc(&r->flights[f].upload, r->context, r->most.upload_bytes, &r->err);
        for (int l = 0; l < LAYERS; l++)
            for (enum tensor t = OUTPUTS; t < TENSORS && rc == FFA_OK; t++)
                rc = ffa_device_alloc(&r->flights[f].outputs[l][t], r->context,
                                      tensor_bytes(t, r->rows_most), &r->err);
    }
    for (int i = 0; i < RUNS; i++) {
        r->digests[i] = calloc((size_t)options.steps, sizeof *r->digests[i]);
        rc = r->digests[i] ? rc : FFA_NOMEM;
    }
    /* The same sinks on all ranks. */
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&r->sink, r->context, sink_bytes, &r->err);
    if (rc == FFA_OK)
        rc = ffa_device_fill(r->context, r->sink, 0x3d, sink_bytes, &r->err);
    return rc;
}

static void CUDART_CB wait_for(void *gate)
{
    (void)pthread_mutex_lock(gate);
    (void)pthread_mutex_unlock(gate);
}

/* As many uploads as there are slots, none of which ends before all are enqueued. */
static ffa_status upload_all_slots(struct rank *r, void *to, const void *from, int64_t bytes)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    ffa_status rc, status;

    (void)pthread_mutex_lock(&gate);
    rc = cudaLaunchHostFunc((cudaStream_t)r->stream, wait_for, &gate) == cudaSuccess ? FFA_OK
                                                                                     : FFA_GPU;
    for (int i = 0; i < UPLOAD_SLOTS && rc == FFA_OK; i++)
        rc = gpu_upload_enqueue(r->context->gpu, to, from, bytes, r->stream, &r->err);
    (void)pthread_mutex_unlock(&gate);
    status = ffa_device_stream_synchronize(r->context, r->stream, rc == FFA_OK ? &r->err : NULL);
    return rc == FFA_OK ? status : rc;
}

/* From here on the device has all slots of uploads, each large enough for any rank's step. */
static ffa_status fill_slots(struct rank *r)
{
    int64_t bytes = 0;
    void *from, *to = NULL;
    ffa_status rc;

    for (int i = 0; i < options.ranks; i++)
        most(&bytes, ranks[i].most.upload_bytes);
    from = calloc(1, (size_t)bytes);
    rc = from ? ffa_device_alloc(&to, r->context, bytes, &r->err) : FFA_NOMEM;
    if (rc == FFA_OK)
        rc = upload_all_slots(r, to, from, bytes);
    ffa_device_free(r->context, to);
    free(from);
    return rc;
}

static ffa_status join(struct rank *r)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;

    r->end.all = bootstrap;
    r->end.rank = r->rank;
    opts.key_bytes = r->most.key_bytes;
    opts.sum_bytes = r->most.sum_bytes;
    return bootstrap_join(&r->comm, r->context, &r->end, &opts, &r->err);
}

/* ---- a step ---- */

static ffa_parallel_args args_of(const struct rank *r, const struct flight *f, int layer)
{
    const struct drawn d = draw(f->step);
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;
    const struct {
        ffa_tensor *tensor;
        enum tensor t;
    } inputs[] = { { &args.q, Q }, { &args.k, K }, { &args.v, V }, { &args.dout, DOUT } };

    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) /* other rows in other layers */
        inputs[i].tensor->data = (char *)r->inputs[inputs[i].t] + tensor_bytes(inputs[i].t, layer);
    if (d.has_dlse)
        args.dlse.data = (char *)r->inputs[DLSE] + tensor_bytes(DLSE, layer);
    args.heads_q = HEADS_Q;
    args.heads_kv = HEADS_KV;
    args.head_dim = HEAD_DIM;
    args.dtype = FFA_BF16;
    args.out.data = f->outputs[layer][OUT];
    args.lse.data = f->outputs[layer][LSE];
    args.dq.data = f->outputs[layer][DQ];
    args.dk.data = f->outputs[layer][DK];
    args.dv.data = f->outputs[layer][DV];
    args.sink_count = d.sinks;
    args.sink = d.sinks ? r->sink : NULL;
    args.dsink = d.sinks ? f->outputs[layer][DSINK] : NULL;
    (void)sms_of(r, &args.sm_margin);
    args.workspace = r->workspace;
    args.workspace_bytes = r->most.forward_workspace_bytes;
    return args;
}

/* What no step may leave: NaN. */
static ffa_status poison(struct rank *r, const struct flight *f)
{
    cudaError_t code = cudaSuccess;

    for (int l = 0; l < LAYERS; l++)
        for (enum tensor t = OUTPUTS; t < TENSORS && code == cudaSuccess; t++)
            if (tensor_bytes(t, f->rows) > 0)
                code = cudaMemsetAsync(f->outputs[l][t], 0xff, (size_t)tensor_bytes(t, f->rows),
                                       (cudaStream_t)r->stream);
    return code == cudaSuccess ? FFA_OK : FFA_GPU;
}

/* Before any call of the flight. */
static ffa_status prepare_step(struct rank *r, struct flight *f)
{
    ffa_status rc = plan_step(r, f, &r->err);

    if (rc == FFA_OK)
        rc = poison(r, f);
    return rc == FFA_OK
               ? ffa_parallel_pass_upload(f->pass, r->kernels, f->upload, r->stream, &r->err)
               : rc;
}

static ffa_status enqueue_step(struct rank *r, struct flight *f)
{
    ffa_status rc = FFA_OK;

    for (int l = 0; l < LAYERS && rc == FFA_OK; l++) {
        const ffa_parallel_args args = args_of(r, f, l);

        rc = ffa_parallel_forward(f->pass, r->kernels, r->comm, &args, r->stream, &r->err);
    }
    for (int l = LAYERS - 1; l >= 0 && rc == FFA_OK; l--) {
        const ffa_parallel_args args = args_of(r, f, l);

        rc = ffa_parallel_backward(f->pass, r->kernels, r->comm, &args, r->stream, &r->err);
    }
    return rc;
}

static bool has_nan(const void *at, int64_t bytes, bool is_fp32)
{
    const uint16_t *bits = at;
    const float *numbers = at;

    for (int64_t i = 0; i < bytes / (is_fp32 ? 4 : 2); i++)
        if (is_fp32 ? isnan(numbers[i]) : (bits[i] & 0x7fff) > 0x7f80)
            return true;
    return false;
}

/* FNV-1a, a word at a time; bytes is a multiple of 4. */
static uint64_t digest(uint64_t sum, const uint32_t *words, int64_t bytes)
{
    for (int64_t i = 0; i < bytes / 4; i++)
        sum = (sum ^ words[i]) * 0x100000001b3u;
    return sum;
}

static ffa_status look_at_step(struct rank *r, const struct flight *f, uint64_t *out)
{
    uint64_t sum = 0xcbf29ce484222325u;
    const struct drawn d = draw(f->step);

    for (int l = 0; l < LAYERS; l++)
        for (enum tensor t = OUTPUTS; t < TENSORS; t++) {
            const bool is_fp32 = is_sum(t) || t == DSINK;
            const int64_t bytes =
                t == DSINK ? d.sinks * HEADS_Q * (int64_t)sizeof(float) : tensor_bytes(t, f->rows);
            ffa_status rc;

            if (bytes == 0)
                continue;
            rc = ffa_device_copy(r->context, r->host, f->outputs[l][t], bytes, FFA_FROM_DEVICE,
                                 &r->err);
            if (rc != FFA_OK)
                return rc;
            if (has_nan(r->host, bytes, is_fp32)) {
                (void)snprintf(r->err.message, sizeof r->err.message,
                               "step %d, layer %d, tensor %d: not a number", f->step, l, (int)t);
                return FFA_BUG;
            }
            sum = digest(sum, r->host, bytes);
        }
    *out = sum;
    return FFA_OK;
}

static void be_late(const struct rank *r, int run, int step)
{
    struct rng rng = rng_of(4 + (uint64_t)(run * RANKS_MAX + r->rank), step);
    const struct timespec pause = { .tv_nsec = rng_range(&rng, 0, LATE_US_MOST) * 1000 };

    if (rng_range(&rng, 0, 3) == 0)
        (void)nanosleep(&pause, NULL);
}

/* Steps [first, first + count). */
static ffa_status prepare_flight(struct rank *r, int first, int count)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < count && rc == FFA_OK; i++) {
        r->flights[i].step = first + i;
        rc = prepare_step(r, &r->flights[i]);
    }
    return rc;
}

/* The same steps, all in flight. */
static ffa_status run_flight(struct rank *r, int run, int first, int count)
{
    ffa_status rc = r->status, status;

    for (int i = 0; i < count && rc == FFA_OK; i++) {
        be_late(r, run, first + i);
        rc = enqueue_step(r, &r->flights[i]);
    }
    if (rc != FFA_OK) /* the others are released */
        ffa_comm_cancel(r->comm, r->err.message);
    status = ffa_device_stream_synchronize(r->context, r->stream, rc == FFA_OK ? &r->err : NULL);
    rc = rc == FFA_OK ? status : rc;
    if (rc == FFA_OK)
        rc = ffa_comm_status(r->comm, &r->err);
    for (int i = 0; i < count; i++) {
        if (rc == FFA_OK)
            rc = look_at_step(r, &r->flights[i], &r->digests[run][first + i]);
        drop_step(&r->flights[i]);
    }
    return rc;
}

/* ---- what the process holds ---- */

struct held {
    int64_t heap, resident, device, threads, files;
    int64_t live[LIVE_KINDS]; /* of the emulator; else 0 */
};

static int64_t entries_of(const char *folder)
{
    DIR *dir = opendir(folder);
    int64_t count = 0;

    while (dir && readdir(dir))
        count++;
    if (dir)
        (void)closedir(dir);
    return count;
}

static int64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long long pages = 0;

    if (file) {
        (void)!fscanf(file, "%*d %lld", &pages);
        (void)fclose(file);
    }
    return pages * sysconf(_SC_PAGESIZE);
}

/* By rank 0, while no rank has a call. */
static struct held look(void)
{
    const struct mallinfo2 heap = mallinfo2();
    struct held held = { .heap = (int64_t)(heap.uordblks + heap.hblkhd),
                         .resident = resident_bytes(),
                         .threads = entries_of("/proc/self/task"),
                         .files = entries_of("/proc/self/fd") };
    void (*live)(int64_t counts[LIVE_KINDS]);

    *(void **)&live = dlsym(RTLD_DEFAULT, "emulator_live");
    if (live)
        live(held.live);
    for (int i = 0; i < devices && i < options.ranks; i++) {
        size_t free_bytes = 0, bytes = 0;

        (void)cudaSetDevice(i);
        (void)cudaMemGetInfo(&free_bytes, &bytes);
        held.device += (int64_t)(bytes - free_bytes);
    }
    return held;
}

static struct held after[RUNS];

static bool is_flat(const char *name, int64_t before, int64_t now, int64_t slack)
{
    const bool is_fine = now - before <= slack;

    printf("%-20s %12lld %12lld%s\n", name, (long long)before, (long long)now,
           is_fine ? "" : "  grows");
    return is_fine;
}

static bool are_flat(void)
{
    static const char *const kinds[] = { "device allocations", "device bytes", "streams", "events",
                                         "libraries" };
    const struct held *a = &after[0], *b = &after[RUNS - 1];
    bool is_fine = true;

    printf("%-20s %12s %12s\n", "held after a run", "first", "last");
    is_fine &= is_flat("heap bytes", a->heap, b->heap, HEAP_SLACK);
    is_fine &= is_flat("resident bytes", a->resident, b->resident, RESIDENT_SLACK);
    is_fine &= is_flat("GPU bytes", a->device, b->device, DEVICE_SLACK);
    is_fine &= is_flat("threads", a->threads, b->threads, 0);
    is_fine &= is_flat("files", a->files, b->files, 0);
    for (int i = 0; i < LIVE_KINDS; i++)
        is_fine &= is_flat(kinds[i], a->live[i], b->live[i], 0);
    return is_fine;
}

/* ---- running ---- */

static void run_steps(struct rank *r, int run)
{
    for (int first = 0; first < options.steps; first += FLIGHT) {
        const int left = options.steps - first, count = left < FLIGHT ? left : FLIGHT;
        const bool was_fine = r->status == FFA_OK;

        if (was_fine)
            r->status = prepare_flight(r, first, count);
        if (sharing() > 1)
            (void)pthread_barrier_wait(&meeting);
        if (was_fine)
            r->status = run_flight(r, run, first, count);
    }
    (void)pthread_barrier_wait(&meeting);
    if (r->rank == 0)
        after[run] = look();
    (void)pthread_barrier_wait(&meeting);
}

/* Asked by all ranks together. */
static bool are_all_fine(void)
{
    bool is_fine = true;

    (void)pthread_barrier_wait(&meeting);
    for (int i = 0; i < options.ranks; i++)
        is_fine = is_fine && ranks[i].status == FFA_OK;
    (void)pthread_barrier_wait(&meeting);
    return is_fine;
}

static void *run_rank(void *user)
{
    struct rank *r = user;

    r->context = contexts[r->rank % (sharing() > 1 ? 1 : devices)];
    r->kernels = kernels[r->rank % (sharing() > 1 ? 1 : devices)];
    r->status = ffa_device_stream_create(&r->stream, r->context, &r->err);
    if (r->status == FFA_OK)
        r->status = measure(r);
    if (r->status == FFA_OK)
        r->status = allocate(r);
    if (!are_all_fine())
        return NULL;
    if (sharing() == 1 || r->rank == 0) /* the slots are the device's */
        r->status = fill_slots(r);
    if (!are_all_fine())
        return NULL;
    r->status = join(r);
    for (int run = 0; run < RUNS; run++)
        run_steps(r, run);
    ffa_comm_destroy(r->comm);
    (void)pthread_barrier_wait(&meeting);
    return NULL;
}

static void rank_finish(struct rank *r)
{
    for (int f = 0; f < FLIGHT; f++) {
        ffa_device_free(r->context, r->flights[f].upload);
        for (int l = 0; l < LAYERS; l++)
            for (int t = 0; t < TENSORS; t++)
                ffa_device_free(r->context, r->flights[f].outputs[l][t]);
    }
    for (int t = 0; t < OUTPUTS; t++)
        ffa_device_free(r->context, r->inputs[t]);
    ffa_device_free(r->context, r->sink);
    ffa_device_free(r->context, r->workspace);
    ffa_device_stream_destroy(r->context, r->stream);
    ffa_parallel_cache_destroy(r->cache);
    for (int i = 0; i < RUNS; i++)
        free(r->digests[i]);
    free(r->host);
}

/* Whether all ranks worked, and both runs have the same bits; prints what is not so. */
static bool compare_runs(void)
{
    uint64_t all = 0xcbf29ce484222325u;
    int differ = 0;

    for (int i = 0; i < options.ranks; i++)
        if (ranks[i].status != FFA_OK) {
            printf("rank %d: %s: %s\n", i, ffa_status_text(ranks[i].status), ranks[i].err.message);
            differ++;
        }
    for (int step = 0; step < options.steps && !differ; step++)
        for (int i = 0; i < options.ranks; i++) {
            all = digest(all, (const uint32_t *)&ranks[i].digests[0][step], sizeof(uint64_t));
            if (ranks[i].digests[0][step] == ranks[i].digests[1][step])
                continue;
            printf("step %d (mask %d, family %d), rank %d: other bits in the second run\n", step,
                   step_of_mask(step), (int)draw(step).family, i);
            differ++;
        }
    if (!differ)
        printf("digest %016llx, the same in %d runs\n", (unsigned long long)all, RUNS);
    return !differ;
}

/* The cache was used, and was too small. */
static bool check_cache(void)
{
    ffa_parallel_cache_counts counts = FFA_PARALLEL_CACHE_COUNTS_INIT;

    if (ffa_parallel_cache_counts_get(ranks[0].cache, &counts, NULL) != FFA_OK)
        return false;
    printf("plan cache: %lld hits, %lld misses, %lld evictions\n", (long long)counts.hits,
           (long long)counts.misses, (long long)counts.evictions);
    return counts.hits > 0 && counts.evictions > 0 && counts.entries <= CACHE_ENTRIES;
}

START_TEST(steps_have_the_same_bits_and_leave_nothing)
{
    bool is_fine;

    bootstrap = bootstrap_new(options.ranks);
    (void)pthread_barrier_init(&meeting, NULL, (unsigned)options.ranks);
    for (int i = 0; i < options.ranks; i++) {
        ranks[i].rank = i;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i])) {
            fprintf(stderr, "cannot start a thread\n");
            exit(1);
        }
    }
    for (int i = 0; i < options.ranks; i++)
        (void)pthread_join(ranks[i].thread, NULL);
    is_fine = compare_runs();
    is_fine = is_fine && check_cache();
    is_fine = is_fine && are_flat();
    for (int i = 0; i < options.ranks; i++)
        rank_finish(&ranks[i]);
    (void)pthread_barrier_destroy(&meeting);
    bootstrap_free(bootstrap);
    ck_assert(is_fine); /* what is not was printed */
}
END_TEST

static Suite *soak_suite(void)
{
    Suite *suite = suite_create("device_soak");
    TCase *tc = tcase_create("soak");

    tcase_add_test(tc, steps_have_the_same_bits_and_leave_nothing);
    suite_add_tcase(suite, tc);
    return suite;
}

/* ---- the program ---- */

static ffa_status open_device(int device, ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_status rc;

    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    rc = ffa_open(&contexts[device], device, &opts, err);
    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    spec.flags = FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC;
    if (rc == FFA_OK)
        rc = ffa_kernels_create(&kernels[device], contexts[device], &spec, err);
    return rc;
}

static bool read_options(char **argv)
{
    const char *const level = getenv("FFA_TEST_LEVEL");
    const bool is_quick = level && !strcmp(level, "0");

    options.steps = is_quick ? STEPS_FEW : STEPS;
    options.tokens = is_quick ? TOKENS_FEW : TOKENS;
    options.seed = 1;
    for (; *argv; argv += 2) {
        char *end = NULL;
        const long long n = argv[1] ? strtoll(argv[1], &end, 10) : 0;
        bool is_fine = argv[1] && *argv[1] && !*end && n >= 1;

        if (!strcmp(*argv, "--steps"))
            options.steps = (int)n, is_fine = is_fine && n <= 1000000;
        else if (!strcmp(*argv, "--ranks"))
            options.ranks = (int)n, is_fine = is_fine && n <= RANKS_MAX;
        else if (!strcmp(*argv, "--tokens"))
            options.tokens = n, is_fine = is_fine && n >= 64 && n <= 1 << 20;
        else if (!strcmp(*argv, "--seed"))
            options.seed = (uint64_t)n;
        else
            is_fine = false;
        if (!is_fine)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    ffa_error err = { FFA_OK, 0, "" };
    int rc;

    (void)argc;
    if (!read_options(argv + 1)) {
        fprintf(stderr,
                "usage: test_device_soak [--steps N] [--ranks N] [--tokens N] [--seed N]\n");
        return 2;
    }
    /* Streams of ranks that share a GPU wait for each other: none may stand behind another. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (open_device(0, &err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        ffa_close(contexts[0]);
        return 77;
    }
    for (devices = 1; devices < RANKS_MAX && open_device(devices, NULL) == FFA_OK;)
        devices++;
    options.ranks = options.ranks ? options.ranks : devices > 1 ? devices : 2;
    printf("%d steps, %d ranks on %d GPUs, at most %lld tokens, seed %llu\n", options.steps,
           options.ranks, sharing() > 1 ? 1 : options.ranks, (long long)options.tokens,
           (unsigned long long)options.seed);
    rc = suite_run_here(soak_suite()); /* one CUDA context for all */
    for (int i = 0; i < RANKS_MAX; i++) {
        ffa_kernels_destroy(kernels[i]);
        ffa_close(contexts[i]);
    }
    return rc;
}
