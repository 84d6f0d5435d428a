/* SPDX-License-Identifier: Apache-2.0
 *
 * The zigzag ring: chunks i and i-th from the end, and a launch a step with fp32 partial results in
 * between (FFA_SPEC_STAGED), while the keys of the next step come and, backward, gradients of keys
 * go home. In each step a rank pulls from one rank and one rank pulls from it, so bytes and steps
 * are those of a ring; keys come from their owner, not hand to hand.
 */
#include "parallel_others.h"

#include "mask/band_mask.h"

/* The rank whose keys a rank works on in a step. */
static int32_t owner_at(int32_t rank, int32_t step)
{
    return (rank + options.ranks - step) % options.ranks;
}

/* Rows of the rank's chunks by keys of the owner's, as they lie in their buffers. */
static void add_step(struct bands *out, const struct rank_plan *p, const struct bands *all,
                     int32_t rank, int32_t owner)
{
    int64_t counts[2];
    const int64_t *chunks[2] = { ffa_dispatch_rank_chunks(p->dispatch, rank, &counts[0]),
                                 ffa_dispatch_rank_chunks(p->dispatch, owner, &counts[1]) };
    ffa_error err;

    for (int64_t a = 0; a < counts[0]; a++)
        for (int64_t b = 0; b < counts[1]; b++) {
            ffa_dispatch_chunk q = FFA_DISPATCH_CHUNK_INIT, k = FFA_DISPATCH_CHUNK_INIT;

            must(ffa_dispatch_chunk_get(p->dispatch, chunks[0][a], &q, &err), "chunk", &err);
            must(ffa_dispatch_chunk_get(p->dispatch, chunks[1][b], &k, &err), "chunk", &err);
            for (int64_t i = 0; i < all->count; i++) {
                struct band cut;

                if (!band_cut_q(&cut, &all->at[i], q.begin, q.end) ||
                    !band_cut_k(&cut, &cut, k.begin, k.end))
                    continue;
                cut = band_translate(&cut, q.local_begin - q.begin, k.local_begin - k.begin);
                must(bands_add(out, &cut, &err), "bands", &err);
            }
        }
}

static void ring_plans(struct others *o, const struct rank *r, const struct rank_plan *p)
{
    ffa_mask masks[RANKS_MAX];
    const ffa_mask *list[RANKS_MAX];
    struct bands all = { 0 };
    ffa_error err;

    must(bands_add_normal(&all, &bench.mask->lists[0].normal, &err), "bands", &err);
    for (int32_t t = 0; t < options.ranks; t++) {
        const int32_t owner = owner_at(r->rank, t);
        const ffa_mask_shape shape = { o->rows, ffa_dispatch_key_rows(p->dispatch, owner) };
        struct bands bands = { 0 };

        add_step(&bands, p, &all, r->rank, owner);
        must(band_mask_init(&masks[t], &shape, &bands, 1, &err), "a step", &err);
        bands_finish(&bands);
        list[t] = &masks[t];
    }
    must(ffa_plan_create_stages(o->plans, o->kernels, list, options.ranks, NULL, &err), "plans",
         &err);
    for (int32_t t = 0; t < options.ranks; t++) {
        others_add_plan(o, r, t);
        band_mask_finish(&masks[t]);
    }
    bands_finish(&all);
}

static int64_t key_elements(const struct others *o)
{
    return o->rows * bench.c->heads_kv * HEAD_DIM;
}

void ring_create(struct others *o, const struct rank *r, struct rank_plan *p)
{
    const int64_t keys = key_elements(o), queries = o->rows * bench.c->heads_q * HEAD_DIM;
    const struct row_segment segment = { 0, (int)o->rows, 0, options.ranks - 1 };
    int64_t sources[RANKS_MAX];
    ffa_error err;

    if (!others_can(METHOD_RING, false))
        return;
    others_kernels(o, r, FFA_SPEC_BACKWARD | FFA_SPEC_STAGED | FFA_SPEC_GRAD_FP32, bench.c->heads_q,
                   bench.c->heads_kv);
    ring_plans(o, r, p);
    for (int i = 0; i < 2; i++) {
        o->keys[i][0] = others_allocate(r, keys * 2);
        o->keys[i][1] = others_allocate(r, keys * 2);
        o->sums[i] = others_share(o, r, i ? REACH_DV : REACH_DK, options.ranks * keys * 4);
        o->in[i] = others_allocate(r, options.ranks * keys * 4);
    }
    o->reached[r->rank][REACH_K] = p->rows[K];
    o->reached[r->rank][REACH_V] = p->rows[V];
    o->partial = others_allocate(r, queries * 4);
    o->dq = others_allocate(r, queries * 4);
    o->segment = others_allocate(r, sizeof segment);
    o->sources = others_allocate(r, sizeof sources);
    for (int32_t i = 0; i < RANKS_MAX; i++)
        sources[i] = i * o->rows;
    must(ffa_device_copy(r->context, o->segment, &segment, sizeof segment, FFA_TO_DEVICE, &err),
         "copy", &err);
    must(ffa_device_copy(r->context, o->sources, sources, sizeof sources, FFA_TO_DEVICE, &err),
         "copy", &err);
    p->info.forward_stages = p->info.backward_stages = options.ranks - 1;
    p->info.received_rows = bench.tokens - o->rows;
    p->info.key_bytes = 8 * keys;
    p->info.sum_bytes = 16 * options.ranks * keys;
    p->info.forward_workspace_bytes = queries * 4;
    p->info.backward_workspace_bytes = o->workspace_bytes + queries * 4;
}

/* Keys of each further step, on a stream of their own, two steps' at a time. */
static void ring_fetch(struct rank *r, int v, bool is_backward, int32_t step)
{
    struct others *o = r->plans[v].others;
    const int32_t owner = owner_at(r->rank, step);
    const ffa_stream stream = gpu_stream_handle(o->streams[COPY]);
    const size_t bytes = (size_t)key_elements(o) * 2;
    void *const *peer = o->reached[owner];
    ffa_error err;

    if (step > 2)
        must(gpu_event_wait(o->computed[step - 2], stream, &err), "event", &err);
    others_word(o, stream, others_word_of(o, r->rank, is_backward, READY, owner),
                o->calls[is_backward], true);
    must(gpu_copy_batch(o->gpu, stream, o->keys[step % 2],
                        (const void *[]){ peer[REACH_K], peer[REACH_V] },
                        (size_t[]){ bytes, bytes }, 2, &err),
         "pull", &err);
    must(gpu_event_record(o->arrived[step], stream, &err), "event", &err);
}

static void ring_step(struct rank *r, int v, bool is_backward, int32_t step)
{
    const struct rank_plan *p = &r->plans[v];
    struct others *o = p->others;
    const int64_t keys = key_elements(o);
    void *const k = step ? o->keys[step % 2][0] : p->rows[K];
    void *const value = step ? o->keys[step % 2][1] : p->rows[V];
    ffa_forward_args f = FFA_FORWARD_ARGS_INIT;
    ffa_backward_args b = FFA_BACKWARD_ARGS_INIT;
    ffa_error err;

    f.heads_q = b.heads_q = bench.c->heads_q;
    f.heads_kv = b.heads_kv = bench.c->heads_kv;
    f.q.data = b.q.data = p->rows[Q];
    f.k.data = b.k.data = k;
    f.v.data = b.v.data = value;
    f.out.data = b.out.data = p->rows[OUT];
    f.lse.data = b.lse.data = p->rows[LSE];
    f.partial.data = o->partial;
    b.dout.data = p->rows[DOUT];
    b.dq.data = o->dq;
    b.dk.data = (float *)o->sums[0] + step * keys;
    b.dv.data = (float *)o->sums[1] + step * keys;
    f.workspace = b.workspace = o->workspace;
    f.workspace_bytes = b.workspace_bytes = o->workspace_bytes;
    if (is_backward)
        must(ffa_backward(o->kernels, o->plans[step], &b, r->stream, &err), "a step", &err);
    else
        must(ffa_forward(o->kernels, o->plans[step], &f, r->stream, &err), "a step", &err);
}

/* Gradients of the rank's own keys come home from who worked on them in this step. */
static void ring_home(struct rank *r, int v, int32_t step)
{
    struct others *o = r->plans[v].others;
    const int32_t from = (r->rank + step) % options.ranks;
    const ffa_stream stream = gpu_stream_handle(o->streams[SUMS]);
    void *const *peer = o->reached[from];
    const int64_t keys = key_elements(o);
    const size_t bytes = (size_t)keys * 4;
    ffa_error err;

    others_word(o, stream, others_word_of(o, r->rank, true, BACK_READY, from), o->calls[1], true);
    must(gpu_copy_batch(o->gpu, stream,
                        (void *[]){ (float *)o->in[0] + (step - 1) * keys,
                                    (float *)o->in[1] + (step - 1) * keys },
                        (const void *[]){ (float *)peer[REACH_DK] + step * keys,
                                          (float *)peer[REACH_DV] + step * keys },
                        (size_t[]){ bytes, bytes }, 2, &err),
         "pull", &err);
}

static struct row_reduce_rows sum_rows(const void *own, const void *received, void *out,
                                       int32_t heads)
{
    const int64_t row = (int64_t)heads * HEAD_DIM;

    return (struct row_reduce_rows){ .own = own,
                                     .received = received,
                                     .out = out,
                                     .own_token_stride = row,
                                     .own_head_stride = HEAD_DIM,
                                     .received_token_stride = row,
                                     .received_head_stride = HEAD_DIM,
                                     .out_token_stride = row,
                                     .out_head_stride = HEAD_DIM,
                                     .columns = HEAD_DIM,
                                     .heads = heads };
}

/* Sums of the own keys' gradients, and dq in its dtype. */
static void ring_settle(struct rank *r, int v)
{
    const struct rank_plan *p = &r->plans[v];
    const struct others *o = p->others;
    struct row_reduce_call call = { .count = 2, .rows = o->rows };
    struct row_reduce_call cast = { .count = 1, .rows = o->rows };
    ffa_error err;

    call.tensors[0] = sum_rows(o->sums[0], o->in[0], p->rows[DK], bench.c->heads_kv);
    call.tensors[1] = sum_rows(o->sums[1], o->in[1], p->rows[DV], bench.c->heads_kv);
    if (options.ranks > 1) {
        call.segments = o->segment;
        call.segment_count = 1;
        call.sources = o->sources;
    }
    cast.tensors[0] = sum_rows(o->dq, NULL, p->rows[DQ], bench.c->heads_q);
    must(row_reduce_enqueue(r->kernels, &call, r->stream, &err), "sums", &err);
    must(row_reduce_enqueue(r->kernels, &cast, r->stream, &err), "dq", &err);
}

void ring_pass(struct rank *r, int v, bool is_backward)
{
    struct others *o = r->plans[v].others;
    const uint64_t call = ++o->calls[is_backward];
    const ffa_stream copy = gpu_stream_handle(o->streams[COPY]);
    const ffa_stream sums = gpu_stream_handle(o->streams[SUMS]);
    ffa_error err;

    others_follow(o->begin, r->stream, copy);
    must(gpu_event_wait(o->begin, sums, &err), "event", &err);
    if (is_backward) /* the sums of the call before have gone home */
        others_wait(r, v, true, BACK_TAKEN, call - 1, r->stream);
    others_tell(r, v, is_backward, READY, r->stream);
    for (int32_t t = 0; t < options.ranks; t++) {
        const int32_t owner = owner_at(r->rank, t);

        if (t + 1 < options.ranks)
            ring_fetch(r, v, is_backward, t + 1);
        if (t)
            must(gpu_event_wait(o->arrived[t], r->stream, &err), "event", &err);
        ring_step(r, v, is_backward, t);
        must(gpu_event_record(o->computed[t], r->stream, &err), "event", &err);
        if (is_backward)
            others_word(o, r->stream, others_word_of(o, owner, true, BACK_READY, r->rank), call,
                        false);
    }
    if (!is_backward)
        return;
    for (int32_t t = 1; t < options.ranks; t++)
        ring_home(r, v, t);
    others_tell(r, v, true, BACK_TAKEN, sums);
    others_follow(o->back, sums, r->stream);
    ring_settle(r, v);
}
