/* SPDX-License-Identifier: Apache-2.0
 *
 * What others do, on the same kernels, copy engines and inputs as the library's passes: what the
 * ring (parallel_ring.c) and Ulysses (parallel_ulysses.c) have in common.
 */
#include "parallel_others.h"

#include "service/context.h"

#include <stdlib.h>
#include <string.h>

void *others_allocate(const struct rank *r, int64_t bytes)
{
    ffa_error err;
    void *at;

    must(ffa_device_alloc(&at, r->context, bytes, &err), "allocate", &err);
    must(ffa_device_fill(r->context, at, 0, bytes, &err), "fill", &err);
    return at;
}

/* ---- memory that peers reach ---- */

void *others_share(struct others *o, const struct rank *r, enum reach reach, int64_t bytes)
{
    return o->reached[r->rank][reach] = others_allocate(r, shared_bytes(bytes));
}

/* What a rank says of its memory: the address, for its own process, or a handle. */
struct offer {
    void *at;
    unsigned char handle[GPU_IPC_BYTES];
};

static void reach_peers(struct others *o, const struct rank *r)
{
    struct offer mine[REACHES] = { { NULL, { 0 } } };
    struct offer(*all)[REACHES] = memory((size_t)options.ranks * sizeof *all);
    ffa_error err;

    for (int i = 0; i < REACHES; i++) {
        mine[i].at = o->reached[r->rank][i];
        if (mine[i].at && bench.processes)
            must(gpu_ipc_export(o->gpu, mine[i].at, mine[i].handle, &err), "export memory", &err);
    }
    gather(r->rank, mine, all, sizeof mine);
    for (int32_t p = 0; p < options.ranks; p++)
        for (int i = 0; i < REACHES && p != r->rank; i++)
            if (all[p][i].at && bench.processes)
                must(gpu_ipc_open(o->gpu, all[p][i].handle, &o->reached[p][i], &err),
                     "map a peer's memory", &err);
            else
                o->reached[p][i] = all[p][i].at;
    free(all);
}

void others_leave(struct rank *r, int v)
{
    struct others *o = r->plans[v].others;

    for (int32_t p = 0; p < options.ranks; p++)
        for (int i = 0; i < REACHES && p != r->rank; i++)
            if (bench.processes)
                gpu_ipc_close(o->gpu, o->reached[p][i]);
}

/* ---- words ---- */

uint64_t *others_word_of(const struct others *o, int32_t of, bool is_backward, enum word_kind kind,
                         int32_t from)
{
    uint64_t *const words = o->reached[of][REACH_WORDS];

    return words + ((int)is_backward * KINDS + (int)kind) * RANKS_MAX + from;
}

static void value_ops(const struct others *o, ffa_stream stream, struct gpu_value_op *ops,
                      int32_t count)
{
    ffa_error err;

    for (int32_t i = 0; i < count; i += GPU_VALUE_BATCH_MAX)
        must(gpu_value_batch(o->gpu, stream, ops + i,
                             count - i < GPU_VALUE_BATCH_MAX ? count - i : GPU_VALUE_BATCH_MAX,
                             &err),
             "words", &err);
}

void others_tell(const struct rank *r, int v, bool is_backward, enum word_kind kind,
                 ffa_stream stream)
{
    const struct others *o = r->plans[v].others;
    struct gpu_value_op ops[RANKS_MAX];

    for (int32_t p = 0; p < options.ranks; p++)
        ops[p] = (struct gpu_value_op){ others_word_of(o, p, is_backward, kind, r->rank),
                                        o->calls[is_backward], false };
    value_ops(o, stream, ops, options.ranks);
}

void others_wait(const struct rank *r, int v, bool is_backward, enum word_kind kind, uint64_t call,
                 ffa_stream stream)
{
    const struct others *o = r->plans[v].others;
    struct gpu_value_op ops[RANKS_MAX];

    for (int32_t p = 0; p < options.ranks; p++)
        ops[p] =
            (struct gpu_value_op){ others_word_of(o, r->rank, is_backward, kind, p), call, true };
    value_ops(o, stream, ops, options.ranks);
}

void others_word(const struct others *o, ffa_stream stream, uint64_t *at, uint64_t value,
                 bool is_wait)
{
    value_ops(o, stream, &(struct gpu_value_op){ at, value, is_wait }, 1);
}

void others_follow(struct gpu_event *event, ffa_stream first, ffa_stream then)
{
    ffa_error err;

    must(gpu_event_record(event, first, &err), "event", &err);
    must(gpu_event_wait(event, then, &err), "event", &err);
}

/* ---- plans ---- */

void others_add_plan(struct others *o, const struct rank *r, int64_t i)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    int64_t bytes[2];
    ffa_error err;

    must(ffa_plan_info_get(o->plans[i], &info, &err), "plan info", &err);
    o->uploads[i] = others_allocate(r, info.upload_bytes);
    must(ffa_plan_upload(o->plans[i], o->kernels, o->uploads[i], r->stream, &err), "upload", &err);
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), "upload", &err);
    must(ffa_workspace_bytes(o->kernels, o->plans[i], &bytes[0], &err), "workspace", &err);
    must(ffa_backward_workspace_bytes(o->kernels, o->plans[i], o->heads_q, o->heads_kv, &bytes[1],
                                      &err),
         "workspace", &err);
    for (int pass = 0; pass < 2; pass++)
        o->workspace_bytes = bytes[pass] > o->workspace_bytes ? bytes[pass] : o->workspace_bytes;
    o->plan_count = i + 1;
}

static ffa_status make_group(ffa_kernels **out, const struct rank *r, uint32_t flags,
                             int32_t heads_q, int32_t heads_kv, ffa_error *err)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

    spec.dtype = FFA_BF16;
    spec.head_dim = spec.head_dim_v = HEAD_DIM;
    spec.heads_q = heads_q;
    spec.heads_kv = heads_kv;
    spec.flags = flags;
    return ffa_kernels_create(out, r->context, &spec, err);
}

void others_kernels(struct others *o, const struct rank *r, uint32_t flags, int32_t heads_q,
                    int32_t heads_kv)
{
    ffa_error err;

    o->heads_q = heads_q;
    o->heads_kv = heads_kv;
    must(make_group(&o->kernels, r, flags, heads_q, heads_kv, &err), "kernels", &err);
}

/* ---- what a method can, and has ---- */

bool others_can(enum method method, bool is_backward)
{
    const int32_t q = bench.c->heads_q, kv = bench.c->heads_kv, n = options.ranks;

    if (method == METHOD_PLAN)
        return true;
    if (options.transport > FFA_TRANSPORT_PULL) /* they copy from peers */
        return false;
    if (method == METHOD_RING)
        return bench.tokens % (2 * n) == 0;
    /* Gradients of a kv head that several ranks have would be summed: nobody does that. */
    return q % n == 0 && (kv % n == 0 || (n % kv == 0 && !is_backward));
}

void others_create(struct rank *r, int v)
{
    struct rank_plan *p = &r->plans[v];
    struct others *o = memory(sizeof *o);
    ffa_error err;

    memset(o, 0, sizeof *o);
    p->others = o;
    o->gpu = r->context->gpu;
    o->rows = ffa_dispatch_query_rows(p->dispatch, r->rank);
    (void)others_share(o, r, REACH_WORDS,
                       (int64_t)2 * KINDS * RANKS_MAX * (int64_t)sizeof(uint64_t));
    for (int i = 0; i < STREAMS; i++)
        must(gpu_stream_create(&o->streams[i], o->gpu, -1, &err), "stream", &err);
    must(gpu_event_create(&o->begin, o->gpu, false, &err), "event", &err);
    must(gpu_event_create(&o->back, o->gpu, false, &err), "event", &err);
    for (int32_t i = 0; i < options.ranks; i++) {
        must(gpu_event_create(&o->arrived[i], o->gpu, false, &err), "event", &err);
        must(gpu_event_create(&o->computed[i], o->gpu, false, &err), "event", &err);
    }
    if (variants[v].method == METHOD_RING)
        ring_create(o, r, p);
    else
        ulysses_create(o, r, p);
    o->workspace = others_allocate(r, o->workspace_bytes);
    reach_peers(o, r);
}

void others_pass(struct rank *r, int v, bool is_backward)
{
    if (variants[v].method == METHOD_RING)
        ring_pass(r, v, is_backward);
    else
        ulysses_pass(r, v, is_backward);
}

void others_destroy(struct rank *r, int v)
{
    struct others *o = r->plans[v].others;
    void *const lone[] = { o->reached[r->rank][REACH_WORDS],
                           o->workspace,
                           o->keys[0][0],
                           o->keys[0][1],
                           o->keys[1][0],
                           o->keys[1][1],
                           o->sums[0],
                           o->sums[1],
                           o->in[0],
                           o->in[1],
                           o->partial,
                           o->dq,
                           o->segment,
                           o->sources };

    for (size_t i = 0; i < sizeof lone / sizeof *lone; i++)
        ffa_device_free(r->context, lone[i]);
    for (int t = 0; t < TENSORS; t++) {
        ffa_device_free(r->context, o->packed[t]);
        ffa_device_free(r->context, o->group[t]);
    }
    for (int64_t i = 0; i < o->plan_count; i++) {
        ffa_device_free(r->context, o->uploads[i]);
        ffa_plan_destroy(o->plans[i]);
    }
    for (int32_t i = 0; i < options.ranks; i++) {
        gpu_event_destroy(o->arrived[i]);
        gpu_event_destroy(o->computed[i]);
    }
    gpu_event_destroy(o->begin);
    gpu_event_destroy(o->back);
    for (int i = 0; i < STREAMS; i++)
        gpu_stream_destroy(o->streams[i]);
    ffa_kernels_destroy(o->kernels);
    free(o);
}
