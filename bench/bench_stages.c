/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pass over keys that arrive in stages costs beside one over keys that are there, on one
 * GPU: the rows of one rank of a plan, with the keys that it has and those it would receive.
 * Exit 77 where there is no GPU.
 *
 *   bench_stages MASK RANKS RANK HEADS_Q HEADS_KV HEAD_DIM STAGES
 *
 * In turns, RUNS times each, medians:
 *
 *   whole   one launch of ordinary kernels, all keys there
 *   set     one launch of kernels that wait for flags, which were all set before
 *   late    the same, while another stream copies stage after stage and sets its flag
 *   staged  a launch a stage with fp32 partial results in between (FFA_SPEC_STAGED)
 *
 * Copies within one GPU need SMs, so the launch of `late` leaves LATE_SMS free.
 *
 * Times are of the attention launches of a pass, with what each needs before and after on its own
 * GPU; backward, the sums of received keys stay in fp32, and own keys' are not cast.
 */
#include "attention/arriving.h"
#include "gpu/gpu_stream.h"
#include "mask/band_mask.h"
#include "parallel/plan/rank_plan_local.h"

#include <ffa/device.h>

#include <stdio.h>

enum { RUNS = 21, STREAM_BYTE = 0x11, LATE_SMS = 4 };

enum way { WAY_WHOLE, WAY_SET, WAY_LATE, WAY_STAGED, WAYS };
static const char *const way_names[WAYS] = { "whole", "set", "late", "staged" };

/* A pass of the rank in one way: its plans, uploaded. */
struct ways {
    ffa_plan *plans[WAYS][TILE_STAGES_MAX];
    int32_t counts[WAYS];
    void *buffers[WAYS][TILE_STAGES_MAX];
};

struct bench {
    ffa_context *context;
    struct gpu_device *gpu;
    struct gpu_stream *stream, *other;
    struct gpu_event *begin, *end;
    ffa_kernels *kernels[WAYS];
    int32_t heads_q, heads_kv, dim, stages;
    struct rank_local local[2];
    struct ways ways[2];
    int64_t columns;
    unsigned char *keys, *spare; /* key windows */
    void *q, *out, *lse, *dout, *dq, *dkv, *partial, *workspace;
    float *sums;
    int64_t workspace_bytes;
    uint64_t *set, *late, **blocks; /* flags */
    int32_t *owners;
    int32_t owner_at[TILE_STAGES_MAX + 1];
    uint64_t call;
};

static ffa_error err;

static void must(ffa_status rc, const char *what)
{
    if (rc == FFA_OK)
        return;
    fprintf(stderr, "bench_stages: %s: %s\n", what, err.message);
    exit(1);
}

static void *device_memory(struct bench *b, int64_t bytes, int byte)
{
    void *memory;

    must(ffa_device_alloc(&memory, b->context, bytes, &err), "allocate");
    must(ffa_device_fill(b->context, memory, byte, bytes, &err), "fill");
    return memory;
}

/* ---- plans ---- */

static void upload(struct bench *b, struct ways *ways, enum way way, int32_t i)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    int64_t bytes;

    must(ffa_plan_info_get(ways->plans[way][i], &info, &err), "plan info");
    ways->buffers[way][i] = device_memory(b, info.upload_bytes, 0);
    must(ffa_plan_upload(ways->plans[way][i], b->kernels[way], ways->buffers[way][i], NULL, &err),
         "upload");
    if (ways == &b->ways[1])
        must(ffa_backward_workspace_bytes(b->kernels[way], ways->plans[way][i], b->heads_q,
                                          b->heads_kv, &bytes, &err),
             "workspace");
    else
        must(ffa_workspace_bytes(b->kernels[way], ways->plans[way][i], &bytes, &err), "workspace");
    b->workspace_bytes = max64(b->workspace_bytes, bytes);
}

/* The cells of one stage, its keys from 0. */
static void stage_bands(struct bands *out, const struct rank_local *local, int32_t stage)
{
    const int64_t begin = stage ? local->stage_ends[stage - 1] : 0, end = local->stage_ends[stage];

    for (int64_t i = 0; i < local->lists[0].count; i++) {
        struct band band;

        if (!band_cut_k(&band, &local->lists[0].at[i], begin, end))
            continue;
        band = band_translate(&band, 0, -begin);
        must(bands_add(out, &band, &err), "bands");
    }
}

static void make_staged(struct bench *b, struct ways *ways, const struct rank_local *local)
{
    ffa_mask masks[TILE_STAGES_MAX];
    const ffa_mask *list[TILE_STAGES_MAX];

    for (int32_t s = 0; s < local->stage_count; s++) {
        const int64_t begin = s ? local->stage_ends[s - 1] : 0;
        const ffa_mask_shape shape = { local->shape.seqlen_q, local->stage_ends[s] - begin };
        struct bands bands = { 0 };

        stage_bands(&bands, local, s);
        must(band_mask_init(&masks[s], &shape, &bands, 1, &err), "a stage");
        bands_finish(&bands);
        list[s] = &masks[s];
    }
    ways->counts[WAY_STAGED] = local->stage_count;
    must(ffa_plan_create_stages(ways->plans[WAY_STAGED], b->kernels[WAY_STAGED], list,
                                local->stage_count, NULL, &err),
         "plans of stages");
    for (int32_t s = 0; s < local->stage_count; s++) {
        upload(b, ways, WAY_STAGED, s);
        band_mask_finish(&masks[s]);
    }
}

static void make_ways(struct bench *b, bool is_backward)
{
    struct ways *ways = &b->ways[is_backward];
    const struct rank_local *local = &b->local[is_backward];
    const struct arriving_keys keys = { .shape = local->shape,
                                        .lists = local->lists,
                                        .list_count = local->list_count,
                                        .stage_count = local->stage_count,
                                        .stage_ends = local->stage_ends,
                                        .first = (const int64_t(*)[2])local->first,
                                        .first_count = local->first_count };
    ffa_mask mask;

    must(band_mask_init(&mask, &local->shape, local->lists, local->list_count, &err), "mask");
    must(ffa_plan_create(&ways->plans[WAY_WHOLE][0], b->kernels[WAY_WHOLE], &mask, &err), "plan");
    band_mask_finish(&mask);
    for (enum way way = WAY_SET; way <= WAY_LATE; way++)
        must(plan_create_arriving(&ways->plans[way][0], b->kernels[way], &keys, is_backward, &err),
             "plan of arriving keys");
    for (enum way way = WAY_WHOLE; way <= WAY_LATE; way++) {
        ways->counts[way] = 1;
        upload(b, ways, way, 0);
    }
    make_staged(b, ways, local);
}

/* ---- calls ---- */

static ffa_tensor key_tensor(const struct bench *b, void *window, int64_t row, bool is_v)
{
    ffa_tensor tensor = FFA_TENSOR_INIT((unsigned char *)window +
                                        (row * b->columns + (is_v ? b->columns / 2 : 0)) * 2);

    tensor.token_stride = b->columns;
    tensor.head_stride = b->dim;
    return tensor;
}

static ffa_forward_args forward_args(const struct bench *b, int64_t row)
{
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;

    args.heads_q = b->heads_q;
    args.heads_kv = b->heads_kv;
    args.q.data = b->q;
    args.k = key_tensor(b, b->keys, row, false);
    args.v = key_tensor(b, b->keys, row, true);
    args.out.data = b->out;
    args.lse.data = b->lse;
    args.workspace = b->workspace;
    args.workspace_bytes = b->workspace_bytes;
    return args;
}

static ffa_backward_args backward_args(const struct bench *b, int64_t row)
{
    const ffa_forward_args from = forward_args(b, row);
    ffa_backward_args args = FFA_BACKWARD_ARGS_INIT;

    args.heads_q = from.heads_q;
    args.heads_kv = from.heads_kv;
    args.q = from.q;
    args.k = from.k;
    args.v = from.v;
    args.out = from.out;
    args.lse = from.lse;
    args.dout.data = b->dout;
    args.dq.data = b->dq;
    args.dk = key_tensor(b, b->dkv, row, false);
    args.dv = key_tensor(b, b->dkv, row, true);
    args.workspace = b->workspace;
    args.workspace_bytes = b->workspace_bytes;
    return args;
}

/* The stages come: copied by another stream, one after the other. */
static void send_stages(struct bench *b, const struct rank_local *local)
{
    const ffa_stream other = gpu_stream_handle(b->other);

    must(gpu_event_wait(b->begin, other, &err), "wait");
    for (int32_t s = 1; s < local->stage_count; s++) {
        const int64_t at = local->stage_ends[s - 1] * b->columns * 2;
        const size_t bytes = (size_t)(local->stage_ends[s] * b->columns * 2 - at);
        void *const to = b->keys + at;
        const void *const from = b->spare + at;

        if (bytes > 0)
            must(gpu_copy_batch(b->gpu, other, &to, &from, &bytes, 1, &err), "copy");
        must(gpu_write_value(b->gpu, other, b->late + s, b->call, &err), "write a flag");
    }
}

static void run_arriving(struct bench *b, enum way way, bool is_backward)
{
    const ffa_stream stream = gpu_stream_handle(b->stream);
    const struct arriving_call call = {
        .flags = way == WAY_SET ? b->set : b->late,
        .value = way == WAY_SET ? 1 : ++b->call,
        .sums = b->sums,
        .blocks = b->blocks,
        .owners = b->owners,
        .owner_at = b->owner_at,
    };
    ffa_forward_args forward = forward_args(b, 0);
    ffa_backward_args backward = backward_args(b, 0);

    forward.sm_margin = backward.sm_margin = way == WAY_LATE ? LATE_SMS : 0;
    if (way == WAY_LATE)
        send_stages(b, &b->local[is_backward]);
    if (is_backward)
        must(backward_enqueue_arriving(b->kernels[way], b->ways[1].plans[way][0], &backward, &call,
                                       stream, &err),
             "backward");
    else
        must(forward_enqueue_arriving(b->kernels[way], b->ways[0].plans[way][0], &forward, &call,
                                      stream, &err),
             "forward");
}

static void run_plain(struct bench *b, enum way way, bool is_backward)
{
    const struct rank_local *local = &b->local[is_backward];
    const ffa_stream stream = gpu_stream_handle(b->stream);

    for (int32_t s = 0; s < b->ways[is_backward].counts[way]; s++) {
        const int64_t row = way == WAY_STAGED && s ? local->stage_ends[s - 1] : 0;
        const ffa_plan *plan = b->ways[is_backward].plans[way][s];
        ffa_forward_args forward = forward_args(b, row);
        const ffa_backward_args backward = backward_args(b, row);

        forward.partial.data = way == WAY_STAGED ? b->partial : NULL;
        if (is_backward)
            must(ffa_backward(b->kernels[way], plan, &backward, stream, &err), "backward");
        else
            must(ffa_forward(b->kernels[way], plan, &forward, stream, &err), "forward");
    }
}

static float run_once(struct bench *b, enum way way, bool is_backward)
{
    const ffa_stream stream = gpu_stream_handle(b->stream);
    float ms;

    must(gpu_event_record(b->begin, stream, &err), "record");
    if (way == WAY_SET || way == WAY_LATE)
        run_arriving(b, way, is_backward);
    else
        run_plain(b, way, is_backward);
    must(gpu_event_record(b->end, stream, &err), "record");
    must(gpu_stream_synchronize(b->gpu, stream, &err), "finish");
    must(gpu_stream_synchronize(b->gpu, gpu_stream_handle(b->other), &err), "finish");
    must(gpu_event_elapsed_ms(b->begin, b->end, &ms, &err), "time");
    return ms;
}

static int compare(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void measure(struct bench *b, bool is_backward)
{
    float samples[WAYS][RUNS];

    for (int i = -2; i < RUNS; i++)
        for (enum way way = WAY_WHOLE; way < WAYS; way++) {
            const float ms = run_once(b, way, is_backward);

            if (i >= 0)
                samples[way][i] = ms;
        }
    (void)printf("%-8s %d stages:", is_backward ? "backward" : "forward",
                 b->local[is_backward].stage_count - 1);
    for (enum way way = WAY_WHOLE; way < WAYS; way++) {
        qsort(samples[way], RUNS, sizeof *samples[way], compare);
        (void)printf("  %s %.3f ms (%.3f)", way_names[way], (double)samples[way][RUNS / 2],
                     (double)(samples[way][RUNS / 2] / samples[WAY_WHOLE][RUNS / 2]));
    }
    (void)printf("\n");
}

/* ---- making it ---- */

static void open_device(struct bench *b)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;

    must(ffa_open(&b->context, FFA_DEVICE_AUTO, NULL, &err), "open");
    must(ffa_context_info_get(b->context, &info, &err), "info");
    if (info.device == FFA_DEVICE_CPU) {
        printf("skipped: no GPU that a kernel exists for\n");
        exit(77);
    }
    b->gpu = b->context->gpu;
    must(gpu_stream_create(&b->stream, b->gpu, 0, &err), "stream");
    must(gpu_stream_create(&b->other, b->gpu, -1, &err), "stream");
    must(gpu_event_create(&b->begin, b->gpu, true, &err), "event");
    must(gpu_event_create(&b->end, b->gpu, true, &err), "event");
}

static void make_kernels(struct bench *b)
{
    static const uint32_t flags[WAYS] = { 0, FFA_SPEC_PARALLEL, FFA_SPEC_PARALLEL,
                                          FFA_SPEC_STAGED };

    for (enum way way = WAY_WHOLE; way < WAYS; way++) {
        ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

        spec.dtype = FFA_BF16;
        spec.head_dim = b->dim;
        spec.heads_q = b->heads_q;
        spec.heads_kv = b->heads_kv;
        spec.pack_heads = way == WAY_STAGED ? 0 : FFA_PACK_AUTO;
        spec.flags = flags[way] | (uint32_t)FFA_SPEC_BACKWARD;
        must(ffa_kernels_create(&b->kernels[way], b->context, &spec, &err), way_names[way]);
    }
}

static void make_locals(struct bench *b, const char *spec, int32_t ranks, int32_t rank, int32_t sms)
{
    const ffa_topology topology = { ranks, 0 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_mask weighted = { .weight = 1 };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_mask *mask;

    must(ffa_mask_parse(&mask, spec, &err), "mask");
    weighted.mask = mask;
    must(ffa_dispatch_create(&dispatch, &weighted, 1, &topology, NULL, &err), "dispatch");
    opts.model.heads_q = b->heads_q;
    opts.model.heads_kv = b->heads_kv;
    opts.model.head_dim = b->dim;
    opts.forward_stages = opts.backward_stages = b->stages;
    opts.sms = sms;
    must(ffa_parallel_plan_create(&plan, dispatch, mask, rank, &opts, &err), "plan");
    for (int i = 0; i < 2; i++)
        must(rank_plan_local(&b->local[i], plan, i, &err), "cells of the rank");
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}

static void make_memory(struct bench *b)
{
    const int64_t rows = b->local[0].shape.seqlen_q * b->heads_q;
    const int64_t keys = max64(b->local[0].shape.seqlen_k, b->local[1].shape.seqlen_k);
    const int64_t window = keys * b->columns * 2;

    b->q = device_memory(b, rows * b->dim * 2, STREAM_BYTE);
    b->out = device_memory(b, rows * b->dim * 2, 0);
    b->lse = device_memory(b, rows * 4, 0);
    b->dout = device_memory(b, rows * b->dim * 2, STREAM_BYTE);
    b->dq = device_memory(b, rows * b->dim * 2, 0);
    b->partial = device_memory(b, rows * b->dim * 4, 0);
    b->keys = device_memory(b, window, STREAM_BYTE);
    b->spare = device_memory(b, window, STREAM_BYTE);
    b->dkv = device_memory(b, window, 0);
    b->sums = device_memory(b, 2 * window, 0);
    b->set = device_memory(b, 8 * TILE_STAGES_MAX, 1);
    b->late = device_memory(b, 8 * TILE_STAGES_MAX, 0);
    b->blocks = device_memory(b, 8, 0);
    b->owners = device_memory(b, 4 * TILE_STAGES_MAX, 0);
    for (int i = 0; i <= TILE_STAGES_MAX; i++) /* every stage but the first has one */
        b->owner_at[i] = i ? i - 1 : 0;
    {
        void *flags = device_memory(b, 8 * TILE_STAGES_MAX, 0);

        must(ffa_device_copy(b->context, b->blocks, &flags, sizeof flags, FFA_TO_DEVICE, &err),
             "flags");
    }
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };

    if (argc != 8) {
        (void)fprintf(stderr,
                      "usage: bench_stages MASK RANKS RANK HEADS_Q HEADS_KV HEAD_DIM STAGES\n");
        return 2;
    }
    b.heads_q = (int32_t)strtol(argv[4], NULL, 10);
    b.heads_kv = (int32_t)strtol(argv[5], NULL, 10);
    b.dim = (int32_t)strtol(argv[6], NULL, 10);
    b.stages = (int32_t)strtol(argv[7], NULL, 10);
    b.columns = 2 * (int64_t)b.heads_kv * b.dim;
    open_device(&b);
    make_kernels(&b);
    make_locals(&b, argv[1], (int32_t)strtol(argv[2], NULL, 10), (int32_t)strtol(argv[3], NULL, 10),
                gpu_device_sm_count(b.gpu));
    make_ways(&b, false);
    make_ways(&b, true);
    make_memory(&b);
    b.workspace = device_memory(&b, b.workspace_bytes, 0);
    measure(&b, false);
    measure(&b, true);
    return 0;
}
