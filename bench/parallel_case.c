/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench_parallel measures: the mask of a case, its inputs on the host, the whole on one GPU,
 * and the ranks, each with its plans, passes and rows. Invariant: every rank makes all of its own,
 * by itself: rows of inputs follow from their numbers.
 */
#include "parallel_case.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHARED_SMS_FREE = 4, /* of a GPU that ranks share: for copies between them */
    SHARED_BYTES = 2 << 20,
    BLOCK = 1048573,  /* random elements that inputs repeat; prime, so that rows differ */
    INPUT_ROWS = 1024 /* that go to a GPU at a time */
};

/* Of ffa_peer_opts: who fails says so after the call. */
static int allgather(void *user, const void *mine, void *all, size_t bytes)
{
    const struct rank *r = user;

    return bench.meeting->gather(bench.meeting, r->rank, mine, all, bytes, NULL) != FFA_OK;
}

int64_t shared_bytes(int64_t bytes)
{
    return bench.processes ? (bytes + SHARED_BYTES - 1) / SHARED_BYTES * SHARED_BYTES : bytes;
}

static void *device_memory(ffa_context *context, int64_t bytes)
{
    ffa_error err;
    void *at;

    must(ffa_device_alloc(&at, context, bytes, &err), "allocate", &err);
    return at;
}

/* ---- masks and inputs ---- */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Documents of 64 tokens to a quarter of all, short ones more often. */
static ffa_status make_packed(ffa_mask **out, int64_t tokens, bool is_causal, ffa_error *err)
{
    int64_t *cu = memory(((size_t)tokens / 64 + 2) * sizeof *cu), count = 0;
    uint64_t state = 0x9e3779b97f4a7c15u;
    ffa_documents documents = { .cu_q = cu };
    ffa_status rc;

    for (cu[0] = 0; cu[count] < tokens; count++) {
        int64_t length = 64 + (int64_t)(draw(&state) % 193);

        length <<= draw(&state) % 8;
        length = length > tokens / 4 && tokens >= 256 ? tokens / 4 : length;
        cu[count + 1] = cu[count] + length < tokens ? cu[count] + length : tokens;
    }
    documents.document_count = count;
    rc = is_causal ? ffa_mask_varlen_causal(out, &documents, err)
                   : ffa_mask_varlen_full(out, &documents, err);
    free(cu);
    return rc;
}

static void make_mask(void)
{
    static const struct {
        const char *before, *after; /* the tokens */
    } texts[] = { [FULL] = { "full:", "" },
                  [CAUSAL] = { "causal:", "" },
                  [BLOCK_CAUSAL] = { "block-causal:", "/block=2048" },
                  [WINDOW] = { "window:", ",left=1024,right=0" } };
    const enum kind kind = bench.c->kind;
    char text[64];
    ffa_error err;

    if (kind == PACKED_FULL || kind == PACKED_CAUSAL) {
        must(make_packed(&bench.mask, bench.tokens, kind == PACKED_CAUSAL, &err), "mask", &err);
        return;
    }
    if (kind == DOCUMENTS) {
        (void)snprintf(text, sizeof text, "varlen-full:%lld*%lld", (long long)bench.document,
                       (long long)(bench.tokens / bench.document));
        must(ffa_mask_parse(&bench.mask, text, &err), "mask", &err);
        return;
    }
    (void)snprintf(text, sizeof text, "%s%lld%s", texts[kind].before, (long long)bench.tokens,
                   texts[kind].after);
    must(ffa_mask_parse(&bench.mask, text, &err), "mask", &err);
}

bool is_key(enum tensor t)
{
    return t == K || t == V || t == DK || t == DV;
}

int64_t columns(enum tensor t)
{
    return t == LSE ? bench.c->heads_q
                    : (is_key(t) ? bench.c->heads_kv : bench.c->heads_q) * (int64_t)HEAD_DIM;
}

int64_t row_bytes(enum tensor t)
{
    return columns(t) * (t == LSE ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t));
}

float from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Numbers in [-1, 1). */
static uint16_t *make_block(void)
{
    uint16_t *block = memory(BLOCK * sizeof *block);
    uint64_t state = 1;

    for (int i = 0; i < BLOCK; i++) {
        const float x = (float)(int64_t)(draw(&state) >> 40) / (float)(1 << 23) - 1.0f;
        uint32_t bits;

        memcpy(&bits, &x, sizeof bits);
        block[i] = (uint16_t)(bits >> 16);
    }
    return block;
}

/* Row `row` of the whole tensor: its elements are those of the block, over and over. */
static void input_row(uint16_t *to, enum tensor t, int64_t row)
{
    const size_t count = (size_t)columns(t);
    size_t at = ((size_t)t * (BLOCK / INPUTS) + (size_t)row * count) % BLOCK;

    for (size_t i = 0, run; i < count; i += run, at = 0) {
        run = count - i < BLOCK - at ? count - i : BLOCK - at;
        memcpy(to + i, bench.block + at, run * sizeof *to);
    }
}

/* Rows ids [count] of the whole tensor, or the first `count` where ids is NULL. */
static void input_rows(const struct rank *r, void *to, enum tensor t, const int64_t *ids,
                       int64_t count)
{
    const int64_t bytes = row_bytes(t);
    uint16_t *rows = memory((size_t)(INPUT_ROWS * bytes));
    ffa_error err;

    for (int64_t from = 0; from < count; from += INPUT_ROWS) {
        const int64_t now = count - from < INPUT_ROWS ? count - from : INPUT_ROWS;

        for (int64_t i = 0; i < now; i++)
            input_row(rows + i * columns(t), t, ids ? ids[from + i] : from + i);
        must(ffa_device_copy(r->context, (char *)to + from * bytes, rows, now * bytes,
                             FFA_TO_DEVICE, &err),
             "copy", &err);
    }
    free(rows);
}

void case_init(void)
{
    make_mask();
    bench.block = make_block();
}

void case_finish(void)
{
    free(bench.block);
    ffa_mask_destroy(bench.mask);
}

/* ---- making the whole ---- */

static ffa_kernels *make_kernels(ffa_context *context, uint32_t flags)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *kernels;
    ffa_error err;

    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    spec.heads_q = bench.c->heads_q;
    spec.heads_kv = bench.c->heads_kv;
    spec.flags = flags;
    if (!(flags & FFA_SPEC_PARALLEL)) {
        spec.tile_m = bench.tiles.m;
        spec.tile_n = bench.tiles.n;
        spec.backward_tile_m = bench.tiles.backward_m;
        spec.backward_tile_n = bench.tiles.backward_n;
    }
    must(ffa_kernels_create(&kernels, context, &spec, &err), "kernels", &err);
    return kernels;
}

static void make_rows(ffa_context *context, void *rows[TENSORS], int64_t tokens)
{
    ffa_error err;

    for (int t = 0; t < TENSORS; t++) {
        const int64_t bytes = tokens * row_bytes((enum tensor)t);

        /* The ring's peers pull from k and v as they are. */
        rows[t] = device_memory(context, is_key((enum tensor)t) ? shared_bytes(bytes) : bytes);
        if (t >= INPUTS)
            must(ffa_device_fill(context, rows[t], 255, bytes, &err), "fill", &err);
    }
}

static void whole_args(struct whole *w)
{
    w->forward = (ffa_forward_args)FFA_FORWARD_ARGS_INIT;
    w->backward = (ffa_backward_args)FFA_BACKWARD_ARGS_INIT;
    w->forward.heads_q = w->backward.heads_q = bench.c->heads_q;
    w->forward.heads_kv = w->backward.heads_kv = bench.c->heads_kv;
    w->forward.q.data = w->backward.q.data = w->rows[Q];
    w->forward.k.data = w->backward.k.data = w->rows[K];
    w->forward.v.data = w->backward.v.data = w->rows[V];
    w->forward.out.data = w->backward.out.data = w->rows[OUT];
    w->forward.lse.data = w->backward.lse.data = w->rows[LSE];
    w->backward.dout.data = w->rows[DOUT];
    w->backward.dq.data = w->rows[DQ];
    w->backward.dk.data = w->rows[DK];
    w->backward.dv.data = w->rows[DV];
}

void whole_create(struct whole *w, const struct rank *r)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    int64_t forward_bytes, backward_bytes, bytes;
    ffa_error err;

    w->kernels = make_kernels(r->context, FFA_SPEC_BACKWARD);
    must(ffa_plan_create(&w->plan, w->kernels, bench.mask, &err), "plan", &err);
    must(ffa_plan_info_get(w->plan, &info, &err), "plan info", &err);
    must(ffa_workspace_bytes(w->kernels, w->plan, &forward_bytes, &err), "workspace", &err);
    must(ffa_backward_workspace_bytes(w->kernels, w->plan, bench.c->heads_q, bench.c->heads_kv,
                                      &backward_bytes, &err),
         "workspace", &err);
    bytes = forward_bytes > backward_bytes ? forward_bytes : backward_bytes;
    w->upload = device_memory(r->context, info.upload_bytes);
    make_rows(r->context, w->rows, bench.tokens);
    for (int t = 0; t < INPUTS; t++)
        input_rows(r, w->rows[t], (enum tensor)t, NULL, bench.tokens);
    must(ffa_plan_upload(w->plan, w->kernels, w->upload, r->stream, &err), "upload", &err);
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), "upload", &err);
    whole_args(w);
    w->forward.workspace = w->backward.workspace = device_memory(r->context, bytes);
    w->forward.workspace_bytes = w->backward.workspace_bytes = bytes;
}

void whole_destroy(struct whole *w, ffa_context *context)
{
    for (int t = 0; t < TENSORS; t++)
        ffa_device_free(context, w->rows[t]);
    ffa_device_free(context, w->upload);
    ffa_device_free(context, w->forward.workspace);
    ffa_plan_destroy(w->plan);
    ffa_kernels_destroy(w->kernels);
}

/* ---- making a rank ---- */

/* SMs that a rank computes on: ranks of one GPU share them out. */
static int32_t sms_of(const struct rank *r, int32_t *margin)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    int32_t sms;
    ffa_error err;

    must(ffa_context_info_get(r->context, &info, &err), "info", &err);
    sms = bench.sharing > 1 ? (info.sm_count - SHARED_SMS_FREE) / bench.sharing : info.sm_count;
    *margin = info.sm_count - sms;
    return sms;
}

/* The time of a method that has no plan, by the model. */
static void simulate(struct rank_plan *p, const struct variant *v,
                     const ffa_parallel_plan_opts *plan)
{
    const int method = v->method == METHOD_RING ? FFA_SIM_ZIGZAG : FFA_SIM_ULYSSES;
    const ffa_topology topology = { options.ranks, options.ranks_per_node };
    ffa_sim_result results[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err;

    opts.model = plan->model;
    opts.head_dim_v = plan->head_dim_v;
    opts.sms = plan->sms;
    opts.forward_begin_keys = plan->forward_begin_keys;
    opts.backward_begin_rows = plan->backward_begin_rows;
    opts.window_mbytes_s = plan->window_mbytes_s;
    must(ffa_simulate(results, FFA_SIM_METHODS, NULL, bench.mask, &topology, &opts, &err),
         "simulate", &err);
    p->model_ms[0] = (double)results[method].forward.ns / 1e6;
    p->model_ms[1] = (double)results[method].backward.ns / 1e6;
    p->share[0] = p->share[1] = 1.0 / options.ranks;
    if (v->method == METHOD_RING) {
        must(ffa_dispatch_report_get(p->dispatch, &report, NULL, &err), "report", &err);
        p->share[0] = p->share[1] = (double)report.most.area / (double)report.total.area;
    }
}

/* Its dispatch, plan and pass, as a rank of several hosts makes them: each its own. */
static void plan_build(struct rank_plan *p, const struct rank *r, const struct variant *v)
{
    const ffa_dispatch_mask mask = { bench.mask, 1 };
    const ffa_topology topology = { options.ranks, options.ranks_per_node };
    ffa_dispatch_opts dispatch = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    double times[4] = { now_ms() };
    int32_t margin;
    int64_t chunks;
    ffa_error err;

    opts.forward_stages = opts.backward_stages = options.stages;
    opts.stage_rows_min = options.stages > 0 ? 1 : 0;
    opts.sms = sms_of(r, &margin);
    opts.model.heads_q = bench.c->heads_q;
    opts.model.heads_kv = bench.c->heads_kv;
    opts.model.head_dim = opts.head_dim_v = HEAD_DIM;
    opts.model.element_bytes = sizeof(uint16_t);
    must(calibration_apply(&bench.calibration, &opts, bench.tokens, options.ranks, 0, &err),
         "calibration", &err);
    if (v->algorithm == DISPATCH_BEST) {
        must(ffa_dispatch_create_best(&p->dispatch, &mask, 1, &topology, NULL, &opts, &err),
             "dispatch", &err);
    } else { /* two chunks a rank, i and the i-th from the end, or one */
        dispatch.algorithm = v->algorithm;
        dispatch.flags = FFA_DISPATCH_CHUNK_EXACT;
        chunks = v->algorithm == FFA_DISPATCH_ZIGZAG ? 2 * options.ranks : options.ranks;
        dispatch.chunk_tokens = (bench.tokens + chunks - 1) / chunks;
        must(ffa_dispatch_create(&p->dispatch, &mask, 1, &topology, &dispatch, &err), "dispatch",
             &err);
    }
    times[1] = now_ms();
    p->dispatch_ms = times[1] - times[0];
    if (v->method != METHOD_PLAN) {
        simulate(p, v, &opts);
        return;
    }
    if (v->is_gathered)
        opts.forward_stages = opts.backward_stages = -1;
    must(ffa_parallel_plan_create(&p->plan, p->dispatch, bench.mask, r->rank, &opts, &err), "plan",
         &err);
    times[2] = now_ms();
    must(ffa_parallel_plan_info_get(p->plan, &info, &err), "plan info", &err);
    p->model_ms[0] = (double)info.forward_slowest_ns / 1e6;
    p->model_ms[1] = (double)info.backward_slowest_ns / 1e6;
    p->share[0] = (double)info.forward_work_most_ns / (double)info.forward_work_ns;
    p->share[1] = (double)info.backward_work_most_ns / (double)info.backward_work_ns;
    must(ffa_parallel_pass_create(&p->pass, p->plan, r->kernels, &err), "pass", &err);
    times[3] = now_ms();
    p->plan_ms = times[2] - times[1];
    p->pass_ms = times[3] - times[2];
}

ffa_rows rows_of(const struct rank_plan *p, const struct rank *r, enum tensor t)
{
    return (ffa_rows){ .dispatch = p->dispatch,
                       .side = is_key(t) ? FFA_SIDE_KEYS : FFA_SIDE_QUERIES,
                       .rank = r->rank,
                       .dtype = FFA_BF16,
                       .heads = is_key(t) ? bench.c->heads_kv : bench.c->heads_q,
                       .head_dim = HEAD_DIM };
}

static void plan_rows(struct rank_plan *p, const struct rank *r)
{
    const int64_t tokens = ffa_dispatch_query_rows(p->dispatch, r->rank);
    int64_t *ids = memory((size_t)tokens * sizeof *ids);
    ffa_error err;

    make_rows(r->context, p->rows, tokens);
    for (int t = 0; t < INPUTS; t++) {
        const ffa_rows rows = rows_of(p, r, (enum tensor)t);

        must(ffa_rows_position_ids(&rows, ids, &err), "rows", &err);
        input_rows(r, p->rows[t], (enum tensor)t, ids, tokens);
    }
    free(ids);
}

static void plan_args(struct rank_plan *p, const struct rank *r)
{
    ffa_parallel_args *args = &p->args;

    *args = (ffa_parallel_args)FFA_PARALLEL_ARGS_INIT;
    args->heads_q = bench.c->heads_q;
    args->heads_kv = bench.c->heads_kv;
    args->head_dim = HEAD_DIM;
    args->dtype = FFA_BF16;
    args->q.data = p->rows[Q];
    args->k.data = p->rows[K];
    args->v.data = p->rows[V];
    args->out.data = p->rows[OUT];
    args->lse.data = p->rows[LSE];
    args->dout.data = p->rows[DOUT];
    args->dq.data = p->rows[DQ];
    args->dk.data = p->rows[DK];
    args->dv.data = p->rows[DV];
    args->wire_dtype = options.wire_dtype;
    args->kept_bytes = options.keeps_keys ? p->info.kept_bytes + 1 : 0;
    (void)sms_of(r, &args->sm_margin);
    args->workspace_bytes = p->info.forward_workspace_bytes > p->info.backward_workspace_bytes
                                ? p->info.forward_workspace_bytes
                                : p->info.backward_workspace_bytes;
}

static void plan_create(struct rank_plan *p, const struct rank *r, const struct variant *v)
{
    ffa_error err;

    plan_build(p, r, v);
    p->info = (ffa_parallel_pass_info)FFA_PARALLEL_PASS_INFO_INIT;
    if (v->method != METHOD_PLAN) {
        plan_rows(p, r);
        return;
    }
    must(ffa_parallel_pass_info_get(p->pass, r->kernels, bench.c->heads_q, bench.c->heads_kv,
                                    &p->info, &err),
         "pass info", &err);
    p->upload = device_memory(r->context, p->info.upload_bytes);
    must(ffa_parallel_pass_upload(p->pass, r->kernels, p->upload, r->stream, &err), "upload", &err);
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), "upload", &err);
    plan_rows(p, r);
    plan_args(p, r);
    p->args.workspace = device_memory(r->context, p->args.workspace_bytes);
    if (options.keeps_keys)
        p->args.kept_keys = device_memory(r->context, p->args.kept_bytes);
}

void rank_create(struct rank *r)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_error err;

    r->kernels = make_kernels(r->context, FFA_SPEC_BACKWARD | FFA_SPEC_PARALLEL);
    must(ffa_device_stream_create(&r->stream, r->context, &err), "stream", &err);
    for (int v = 0; v < VARIANTS; v++) {
        const ffa_parallel_pass_info *info = &r->plans[v].info;

        plan_create(&r->plans[v], r, &variants[v]);
        opts.key_bytes = info->key_bytes > opts.key_bytes ? info->key_bytes : opts.key_bytes;
        opts.sum_bytes = info->sum_bytes > opts.sum_bytes ? info->sum_bytes : opts.sum_bytes;
    }
    opts.rank = r->rank;
    opts.rank_count = options.ranks;
    opts.allgather = allgather;
    opts.user = r;
    opts.transport = options.transport;
    opts.max_ctas = options.max_ctas;
    opts.ranks_per_node = options.ranks_per_node;
    must(ffa_comm_create_peer(&r->comm, r->context, &opts, &err), "communicator", &err);
    for (int v = 0; v < VARIANTS; v++)
        if (variants[v].method != METHOD_PLAN && others_can(variants[v].method, false))
            others_create(r, v);
}

void rank_destroy(struct rank *r)
{
    ffa_comm_destroy(r->comm);
    for (int v = 0; v < VARIANTS; v++)
        if (r->plans[v].others)
            others_leave(r, v);
    meet(r->rank); /* nobody has this rank's memory mapped any more */
    for (int v = 0; v < VARIANTS; v++) {
        struct rank_plan *p = &r->plans[v];

        if (p->others)
            others_destroy(r, v);
        for (int t = 0; t < TENSORS; t++)
            ffa_device_free(r->context, p->rows[t]);
        ffa_device_free(r->context, p->upload);
        ffa_device_free(r->context, p->args.workspace);
        ffa_device_free(r->context, p->args.kept_keys);
        ffa_parallel_pass_destroy(p->pass);
        ffa_parallel_plan_destroy(p->plan);
        ffa_dispatch_destroy(p->dispatch);
    }
    ffa_device_stream_destroy(r->context, r->stream);
    ffa_kernels_destroy(r->kernels);
}
