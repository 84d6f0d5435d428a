/* SPDX-License-Identifier: Apache-2.0
 *
 * group_run: each rank makes its plans, passes and communicator, and its calls.
 */
#include "pass_group.h"

#include "parallel/device/pass.h"
#include "support/rng.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

ffa_context *contexts[DEVICES];
ffa_kernels *group_kernels[DEVICES], *group_staged[DEVICES];
int32_t devices;

static void pause_ms(void)
{
    const struct timespec millisecond = { 0, 1000000 };

    (void)nanosleep(&millisecond, NULL);
}

/* ---- a rank's plan and memory ---- */

static bool is_key(enum tensor t)
{
    return t == K || t == V || t == DK || t == DV;
}

static int64_t tensor_bytes(const struct rank *r, enum tensor t)
{
    const int64_t heads = is_key(t) ? HEADS_KV : HEADS_Q;

    return r->rows[is_key(t)] * heads *
           (t == LSE ? (int64_t)sizeof(float) : HEAD_DIM * (int64_t)sizeof(uint16_t));
}

static ffa_status make_plan(struct rank *r, int set)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;

    opts.forward_stages = opts.backward_stages = STAGES;
    opts.moves = r->group->moves_queries ? FFA_PARALLEL_MOVE_QUERIES : FFA_PARALLEL_MOVE_KEYS;
    opts.stage_rows_min = 1;
    opts.model.launch_ns = STAGE_NS;
    opts.model.heads_q = HEADS_Q;
    opts.model.heads_kv = HEADS_KV;
    opts.model.head_dim = HEAD_DIM;
    opts.model.element_bytes = sizeof(uint16_t);
    return ffa_parallel_plan_create(&r->plans[set], r->group->dispatch, r->group->masks[set],
                                    r->rank, &opts, &r->err);
}

static void add_info(ffa_parallel_pass_info *to, const ffa_parallel_pass_info *more)
{
    int64_t *const most[] = { &to->key_bytes, &to->sum_bytes, &to->forward_workspace_bytes,
                              &to->backward_workspace_bytes, &to->kept_bytes };
    const int64_t bytes[] = { more->key_bytes, more->sum_bytes, more->forward_workspace_bytes,
                              more->backward_workspace_bytes, more->kept_bytes };

    for (int i = 0; i < 5; i++)
        *most[i] = *most[i] > bytes[i] ? *most[i] : bytes[i];
    to->forward_stages =
        to->forward_stages > more->forward_stages ? to->forward_stages : more->forward_stages;
}

/* A device a rank, or one for all. */
static int32_t device_of(const struct rank *r)
{
    return r->group->count > devices ? 0 : r->rank;
}

/* Kernels without FFA_SPEC_STAGED have no partial results. */
static ffa_status be_refused_kernels(struct rank *r, int set)
{
    ffa_parallel_pass *pass = NULL;
    const ffa_status rc =
        ffa_parallel_pass_create(&pass, r->plans[set], group_kernels[device_of(r)], &r->err);

    return rc == FFA_INVALID && !pass && strstr(r->err.message, "the plan moves queries") ? FFA_OK
                                                                                          : FFA_BUG;
}

static ffa_status make_pass(struct rank *r, int set)
{
    ffa_parallel_pass_info info = FFA_PARALLEL_PASS_INFO_INIT;
    ffa_status rc = make_plan(r, set);

    if (rc == FFA_OK && r->group->moves_queries)
        rc = be_refused_kernels(r, set);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_create(&r->passes[set], r->plans[set], r->kernels, &r->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_info_get(r->passes[set], r->kernels, HEADS_Q, HEADS_KV, &info,
                                        &r->err);
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&r->uploads[set], r->context, info.upload_bytes, &r->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_pass_upload(r->passes[set], r->kernels, r->uploads[set], r->stream,
                                      &r->err);
    add_info(&r->info, &info);
    r->stages[set][0] = info.forward_stages;
    r->stages[set][1] = info.backward_stages;
    return rc;
}

static ffa_status make_passes(struct rank *r)
{
    ffa_status rc = ffa_device_stream_create(&r->stream, r->context, &r->err);

    for (int set = 0; set < SETS && rc == FFA_OK; set++)
        rc = make_pass(r, set);
    if (rc == FFA_OK)
        rc = ffa_device_alloc(&r->workspace, r->context,
                              r->info.forward_workspace_bytes + r->info.backward_workspace_bytes,
                              &r->err);
    return rc;
}

/* Small numbers of both signs, in bf16. */
static ffa_status make_input(struct rank *r, int set, enum tensor t)
{
    const int64_t bytes = tensor_bytes(r, t);
    struct rng rng = { (uint64_t)((r->rank * SETS + set) * TENSORS + (int)t + 1) };
    uint16_t *host = malloc((size_t)bytes + 1);
    ffa_status rc;

    for (int64_t i = 0; host && i < bytes / 2; i++)
        host[i] = (uint16_t)(0x3e00 | (rng_next(&rng) & 0x81ff));
    rc = host ? ffa_device_alloc(&r->inputs[set][t], r->context, bytes, &r->err) : FFA_NOMEM;
    if (rc == FFA_OK && bytes > 0)
        rc = ffa_device_copy(r->context, r->inputs[set][t], host, bytes, FFA_TO_DEVICE, &r->err);
    free(host);
    return rc;
}

static ffa_status make_kept(struct rank *r, int call)
{
    const int64_t bytes = r->info.kept_bytes + 1;
    ffa_status rc = ffa_device_alloc(&r->kept[call], r->context, bytes, &r->err);

    return rc == FFA_OK ? ffa_device_fill(r->context, r->kept[call], 255, bytes, &r->err) : rc;
}

static ffa_status make_tensors(struct rank *r)
{
    ffa_status rc = FFA_OK;

    r->rows[0] = ffa_dispatch_query_rows(r->group->dispatch, r->rank);
    r->rows[1] = ffa_dispatch_key_rows(r->group->dispatch, r->rank);
    for (int set = 0; set < SETS; set++)
        for (enum tensor t = Q; t < TENSORS && rc == FFA_OK; t++)
            if (t <= V || t == DOUT)
                rc = make_input(r, set, t);
    for (int call = 0; call < CALLS; call++)
        for (enum tensor t = Q; t < TENSORS && rc == FFA_OK; t++)
            if (!r->inputs[0][t])
                rc = ffa_device_alloc(&r->outputs[call][t], r->context, tensor_bytes(r, t) + 1,
                                      &r->err);
    for (int call = 0; call < CALLS && r->group->keeps_keys && rc == FFA_OK; call++)
        rc = make_kept(r, call);
    return rc;
}

/* As a program has one that uses NCCL for other things, too. */
static ffa_status make_caller(struct rank *r)
{
    struct nccl_id mine = { { 0 } }, ids[RANKS];
    ffa_status rc = nccl_open(&r->nccl, NULL, NULL, &r->err);

    if (rc == FFA_OK && r->rank == 0)
        rc = nccl_id_make((unsigned char *)mine.bytes, r->nccl, &r->err);
    if (bootstrap_allgather(&r->end, &mine, ids, sizeof mine) != 0)
        return error_fail(&r->err, FFA_COMM, 0, "another rank has made no communicator");
    (void)cudaSetDevice(device_of(r));
    if (rc == FFA_OK && r->nccl->ncclCommInitRankConfig(&r->caller, r->group->count, ids[0],
                                                        r->rank, NULL) != NCCL_SUCCESS)
        rc = FFA_GPU;
    return rc;
}

static ffa_status make_comm_over_caller(struct rank *r)
{
    ffa_nccl_opts opts = FFA_NCCL_OPTS_INIT;
    ffa_status rc = make_caller(r);

    opts.comm = r->caller;
    opts.transport = (int32_t)r->group->transport;
    opts.ranks_per_node =
        r->group->other_ranks_per_node ? r->group->other_ranks_per_node : r->group->ranks_per_node;
    opts.key_bytes = r->info.key_bytes;
    opts.sum_bytes = r->info.sum_bytes;
    opts.timeout_ms = r->group->timeout_ms;
    return rc == FFA_OK ? ffa_comm_create_nccl(&r->comm, r->context, &opts, &r->err) : rc;
}

/* Every rank gathers a byte over the caller's communicator. */
static void look_at_caller(struct rank *r)
{
    const char mine = (char)(r->rank + 1);
    char all[RANKS] = { 0 };
    void *memory = NULL;

    if (!r->caller || ffa_device_alloc(&memory, r->context, RANKS + 1, NULL) != FFA_OK)
        return;
    (void)ffa_device_copy(r->context, (char *)memory + RANKS, &mine, 1, FFA_TO_DEVICE, NULL);
    r->is_alive = r->nccl->ncclAllGather((char *)memory + RANKS, memory, 1, NCCL_INT8, r->caller,
                                         (cudaStream_t)r->stream) == NCCL_SUCCESS &&
                  ffa_device_stream_synchronize(r->context, r->stream, NULL) == FFA_OK &&
                  ffa_device_copy(r->context, all, memory, RANKS, FFA_FROM_DEVICE, NULL) == FFA_OK;
    for (int32_t i = 0; i < r->group->count; i++)
        r->is_alive = r->is_alive && all[i] == (char)(i + 1);
    ffa_device_free(r->context, memory);
    (void)r->nccl->ncclCommDestroy(r->caller);
}

static ffa_status make_comm(struct rank *r)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;

    if (r->group->has_caller)
        return make_comm_over_caller(r);
    opts.key_bytes = r->info.key_bytes;
    opts.sum_bytes = r->info.sum_bytes;
    opts.timeout_ms = r->group->timeout_ms;
    opts.transport = (int32_t)r->group->transport;
    opts.ranks_per_node =
        r->group->other_ranks_per_node ? r->group->other_ranks_per_node : r->group->ranks_per_node;
    return bootstrap_join(&r->comm, r->context, &r->end, &opts, &r->err);
}

static void rank_finish(struct rank *r)
{
    ffa_comm_destroy(r->comm);
    /* To free memory waits for the device, which may wait for a rank that gathers already. */
    atomic_fetch_add(&r->group->left, 1);
    while (atomic_load(&r->group->left) < r->group->count)
        pause_ms();
    look_at_caller(r);
    for (int set = 0; set < SETS; set++) {
        ffa_parallel_pass_destroy(r->passes[set]);
        ffa_parallel_plan_destroy(r->plans[set]);
        ffa_device_free(r->context, r->uploads[set]);
    }
    for (int t = 0; t < TENSORS; t++) {
        for (int set = 0; set < SETS; set++)
            ffa_device_free(r->context, r->inputs[set][t]);
        for (int call = 0; call < CALLS; call++)
            ffa_device_free(r->context, r->outputs[call][t]);
    }
    for (int call = 0; call < CALLS; call++)
        ffa_device_free(r->context, r->kept[call]);
    ffa_device_free(r->context, r->workspace);
    ffa_device_stream_destroy(r->context, r->stream);
}

/* ---- its calls ---- */

static ffa_parallel_args args_of(const struct rank *r, int call)
{
    const int32_t sharing = r->group->count > devices ? r->group->count : 1;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;

    (void)ffa_context_info_get(r->context, &info, NULL);
    args.heads_q = HEADS_Q;
    args.heads_kv = HEADS_KV;
    args.head_dim = HEAD_DIM;
    args.dtype = FFA_BF16;
    args.q.data = r->inputs[call % SETS][Q];
    args.k.data = r->inputs[call % SETS][K];
    args.v.data = r->inputs[call % SETS][V];
    args.dout.data = r->inputs[call % SETS][DOUT];
    args.out.data = r->outputs[call][OUT];
    args.lse.data = r->outputs[call][LSE];
    args.dq.data = r->outputs[call][DQ];
    args.dk.data = r->outputs[call][DK];
    args.dv.data = r->outputs[call][DV];
    args.sm_margin = sharing > 1 ? info.sm_count - (info.sm_count - SMS_FREE) / sharing : 0;
    args.wire_dtype = r->group->is_narrow ? FFA_BF16 : 0;
    args.kept_keys = r->kept[call];
    args.kept_bytes = r->info.kept_bytes;
    args.workspace = r->workspace;
    args.workspace_bytes = r->info.forward_workspace_bytes + r->info.backward_workspace_bytes;
    return args;
}

/* Pulls of sums: of one reader and stage each. */
static int pulls_of(const struct pass_sums *sums)
{
    int pulls = 0;

    for (int64_t i = 0; i < sums->copy_count; i++)
        pulls += i == 0 || sums->copies[i].rank != sums->copies[i - 1].rank ||
                 sums->copies[i].stage != sums->copies[i - 1].stage;
    return pulls;
}

/* What a pass that pulls enqueues at most, but for a fill, where tiles are split. Forward: the
 * begin, which the fetch stream waits for, and the end (the call before is of the same stream); the
 * credits of the key window, two launches, the readers told; for each stage words and a copy; the
 * sources told. Backward three launches more; the reduce stream waits for the begin; for each pull
 * of sums words and a copy; the summers told, and what the caller's stream waits for. Keys that are
 * kept take a launch, and backward words. Where queries move: for each stage also a wait for its
 * rows, a launch (backward three), and its owners told; results are brought in both passes; a
 * launch merges them, and backward another one casts. */
static int most_calls(const ffa_parallel_pass *pass, bool is_backward, bool keeps_keys)
{
    const struct pass_moves *moves = is_backward ? &pass->backward_moves : &pass->forward_moves;
    const struct pass_sums *sums = is_backward ? &pass->sums : &pass->forward_sums;
    const int stages = moves->stage_count - 1;
    int most = 8 + 2 * stages + (keeps_keys ? 2 : 0);

    if (is_backward || pass->moves_queries)
        most += (is_backward ? 7 : 4) + 2 * pulls_of(sums);
    if (pass->moves_queries)
        most += (is_backward ? 5 : 3) * stages + 1;
    return most;
}

static ffa_status enqueue_pass(struct rank *r, int call, bool is_backward)
{
    const ffa_parallel_args args = args_of(r, call);
    ffa_parallel_pass *pass = r->passes[call % SETS];
    struct cuda_counts counts;
    ffa_status rc;

    cuda_calls_begin();
    rc = is_backward ? ffa_parallel_backward(pass, r->kernels, r->comm, &args, r->stream, &r->err)
                     : ffa_parallel_forward(pass, r->kernels, r->comm, &args, r->stream, &r->err);
    counts = cuda_calls_end();
    r->most_calls[is_backward] += most_calls(pass, is_backward, r->group->keeps_keys);
    cuda_counts_add(is_backward ? &r->backward : &r->forward, &counts);
    return rc;
}

/* A call with a bad argument is refused before other ranks hear of it: the calls after it work. */
static bool is_refused(struct rank *r, const ffa_parallel_args *args, bool is_backward,
                       ffa_status status, const char *why)
{
    const ffa_status rc =
        is_backward
            ? ffa_parallel_backward(r->passes[0], r->kernels, r->comm, args, r->stream, &r->err)
            : ffa_parallel_forward(r->passes[0], r->kernels, r->comm, args, r->stream, &r->err);

    return rc == status && strstr(r->err.message, why);
}

static ffa_status be_refused(struct rank *r, bool is_backward)
{
    const bool moves_queries = r->group->moves_queries;
    ffa_parallel_args stride = args_of(r, 0), dtype = stride, kept = stride;

    stride.out.token_stride = -8;
    dtype.wire_dtype = FFA_FP16;
    kept.kept_keys = r->workspace;
    kept.kept_bytes = -1;
    return is_refused(r, &stride, is_backward, FFA_INVALID, "out: token_stride is -8") &&
                   is_refused(r, &dtype, is_backward, FFA_INVALID,
                              "wire_dtype is 2, not that of sums, fp32 (3)") &&
                   is_refused(r, &kept, is_backward, moves_queries ? FFA_UNSUPPORTED : FFA_INVALID,
                              moves_queries ? "kept_keys is given, the plan moves queries"
                                            : "kept_bytes is -1, the pass keeps ")
               ? FFA_OK
               : FFA_BUG;
}

/* All forward passes come first, as nothing but credits keeps one off what others still read. */
static ffa_status enqueue(struct rank *r, int first, int last)
{
    ffa_status rc = be_refused(r, false);

    if (rc == FFA_OK)
        rc = be_refused(r, true);
    for (int call = first; call < last && rc == FFA_OK; call++)
        rc = enqueue_pass(r, call, false);
    for (int call = first; call < last && rc == FFA_OK; call++)
        rc = enqueue_pass(r, call, true);
    return rc;
}

static ffa_status look(struct rank *r, int call, enum tensor t, void *host)
{
    return ffa_device_copy(r->context, host, r->outputs[call][t], tensor_bytes(r, t),
                           FFA_FROM_DEVICE, &r->err);
}

/* Out, lse, dk and dv, whose bits are the same in every run. */
static const enum tensor same[RESULTS] = { OUT, LSE, DK, DV };

/* FNV-1a */
static uint64_t digest(const char *bytes, size_t count)
{
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return sum;
}

static ffa_status take_digests(struct rank *r)
{
    ffa_status rc = FFA_OK;

    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < RESULTS && rc == FFA_OK && tensor_bytes(r, same[i]) > 0; i++) {
            const size_t bytes = (size_t)tensor_bytes(r, same[i]);
            char *host = malloc(bytes);

            rc = host ? look(r, call, same[i], host) : FFA_NOMEM;
            if (rc == FFA_OK)
                r->digests[call][i] = digest(host, bytes);
            free(host);
        }
    return rc;
}

static ffa_status compare(struct rank *r)
{
    ffa_status rc = FFA_OK;

    for (int call = SETS; call < CALLS; call++)
        for (int i = 0; i < RESULTS && rc == FFA_OK && tensor_bytes(r, same[i]) > 0; i++) {
            const size_t bytes = (size_t)tensor_bytes(r, same[i]);
            char *first = malloc(bytes), *other = malloc(bytes);

            rc = first && other ? look(r, call % SETS, same[i], first) : FFA_NOMEM;
            if (rc == FFA_OK)
                rc = look(r, call, same[i], other);
            if (rc == FFA_OK && memcmp(first, other, bytes) != 0 && !r->odd_call)
                r->odd_call = call;
            free(first);
            free(other);
        }
    return rc;
}

/* Until all ranks have ended so many parts. */
static ffa_status end_part(struct rank *r, int part, ffa_status rc)
{
    const ffa_status status =
        ffa_device_stream_synchronize(r->context, r->stream, rc == FFA_OK ? &r->err : NULL);

    atomic_fetch_add(&r->group->ended, 1);
    while (atomic_load(&r->group->ended) < part * r->group->count)
        pause_ms();
    if (rc == FFA_OK)
        rc = status;
    return rc == FFA_OK ? ffa_comm_status(r->comm, &r->err) : rc;
}

/* The first call of each set of inputs has the ranks to itself. The other calls are enqueued all at
 * once: by rank 0 before another rank has enqueued one, and so on. So nobody's calls may wait for
 * somebody else's, and each overwrites what the one before, of other inputs, has left behind. */
static ffa_status run_calls(struct rank *r)
{
    const bool is_absent = r->rank == r->group->absent;
    ffa_status rc = FFA_OK;

    for (int call = 0; call < SETS; call++) {
        if (rc == FFA_OK && r->group->absent < 0)
            rc = enqueue(r, call, call + 1);
        rc = end_part(r, call + 1, rc);
    }
    while (atomic_load(&r->group->enqueued) < r->rank)
        pause_ms();
    for (int i = 0; i < HEAD_START_MS && r->rank > 0; i++)
        pause_ms();
    if (rc == FFA_OK && !is_absent)
        rc = enqueue(r, SETS, CALLS);
    atomic_fetch_add(&r->group->enqueued, 1);
    rc = end_part(r, SETS + 1, rc);
    while (is_absent && rc == FFA_OK) { /* it waits for nobody, and is told in time */
        pause_ms();
        rc = ffa_comm_status(r->comm, &r->err);
    }
    return rc;
}

static void *run_rank(void *data)
{
    struct rank *r = data;
    ffa_status rc;

    r->end.all = r->group->bootstrap;
    r->end.rank = r->rank;
    rc = make_passes(r);
    if (rc == FFA_OK)
        rc = make_tensors(r);
    if (rc == FFA_OK) /* collective: fails everywhere if it does */
        rc = make_comm(r);
    if (rc == FFA_OK)
        rc = run_calls(r);
    if (rc == FFA_OK)
        rc = compare(r);
    if (rc == FFA_OK)
        rc = take_digests(r);
    if (rc != FFA_OK)
        bootstrap_leave(&r->end);
    r->status = rc;
    rank_finish(r);
    return NULL;
}

bool group_attends(int set, int32_t query, int32_t key)
{
    return key <= query && (set == 0 || query < TOKENS / 2 || key >= TOKENS / 4);
}

static void find_owners(struct group *group)
{
    ffa_dispatch_chunk chunk = FFA_DISPATCH_CHUNK_INIT;

    for (int64_t c = 0; c < ffa_dispatch_chunk_count(group->dispatch); c++) {
        ck_assert_int_eq(ffa_dispatch_chunk_get(group->dispatch, c, &chunk, NULL), FFA_OK);
        for (int64_t t = chunk.begin; t < chunk.end; t++)
            group->owners[t] = chunk.rank;
    }
}

void group_run(struct group *group)
{
    const ffa_mask_shape shape = { TOKENS, TOKENS };
    const ffa_slice slices[SETS][2] = {
        { { 0, TOKENS, 0, TOKENS, FFA_SLICE_CAUSAL, 0 } },
        { { 0, TOKENS / 2, 0, TOKENS / 2, FFA_SLICE_CAUSAL, 0 },
          { TOKENS / 2, TOKENS, TOKENS / 4, TOKENS, FFA_SLICE_CAUSAL, 0 } },
    };
    const ffa_topology topology = { group->count, group->ranks_per_node };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask masks[SETS];
    ffa_error err = { 0 };

    group->bootstrap = bootstrap_new(group->count);
    for (int set = 0; set < SETS; set++) {
        ck_assert_int_eq(ffa_mask_create(&group->masks[set], &shape, slices[set], 1 + set, &err),
                         FFA_OK);
        masks[set] = (ffa_dispatch_mask){ group->masks[set], 1 };
    }
    opts.algorithm = group->is_sequential ? FFA_DISPATCH_SEQUENTIAL : FFA_DISPATCH_AFFINITY;
    opts.keys = group->is_replicated ? FFA_KEYS_REPLICATED : opts.keys;
    ck_assert_int_eq(ffa_dispatch_create(&group->dispatch, masks, SETS, &topology, &opts, &err),
                     FFA_OK);
    find_owners(group);
    for (int32_t i = 0; i < group->count; i++) {
        struct rank *r = &group->ranks[i];

        r->group = group;
        r->rank = i;
        r->context = contexts[device_of(r)];
        r->kernels = (group->moves_queries ? group_staged : group_kernels)[device_of(r)];
        ck_assert_int_eq(pthread_create(&r->thread, NULL, run_rank, r), 0);
    }
    for (int32_t i = 0; i < group->count; i++)
        (void)pthread_join(group->ranks[i].thread, NULL);
    ffa_dispatch_destroy(group->dispatch);
    for (int set = 0; set < SETS; set++)
        ffa_mask_destroy(group->masks[set]);
    bootstrap_free(group->bootstrap);
}

/* Of the calls of both sets. Where queries move there is an attention launch for own rows and for
 * each stage. Beside them forward copies rows into the window, and merges; backward copies them,
 * prepares and finishes dq for each launch, casts dk and dv, and sums up dq. Keys that are kept, if
 * any, are copied by a launch. */
static int launches_of(const struct rank *r, bool is_backward, int calls)
{
    int stages = 0, kept = 0;

    for (int set = 0; set < SETS; set++) {
        stages += r->stages[set][is_backward] * (calls / SETS);
        kept += r->group->keeps_keys && r->stages[set][is_backward] > 0 ? calls / SETS : 0;
    }
    if (!r->group->moves_queries)
        return (is_backward ? 5 : 2) * calls + kept;
    return is_backward ? 6 * calls + 3 * stages : 3 * calls + stages;
}

/* A pass is one attention launch. Beside it forward copies the rank's keys into its window;
 * backward does so, prepares, finishes dq, and sums up dk and dv. Relays add what their nodes
 * summed: a launch for each other rank of theirs and stage, at most. NCCL makes calls of its own.
 */
void check_counts(const struct rank *r, int calls)
{
    const struct group *group = r->group;
    const int relayed =
        group->transport == FFA_TRANSPORT_RELAY ? calls * (group->ranks_per_node - 1) * STAGES : 0;
    const struct {
        const char *name;
        struct cuda_counts counts;
        int launches, more;
    } rows[] = { { "forward", r->forward, launches_of(r, false, calls), 0 },
                 { "backward", r->backward, launches_of(r, true, calls), relayed } };
    const bool pulls =
        group->transport == FFA_TRANSPORT_AUTO || group->transport == FFA_TRANSPORT_PULL;

    for (int i = 0; i < 2; i++) {
        const int launches = rows[i].counts.calls[CALL_cudaLaunchKernelExC];
        const int fills = rows[i].counts.calls[CALL_cudaMemsetAsync];
        const int enqueued = cuda_counts_enqueued(&rows[i].counts) - fills;

        ck_assert_msg(!pulls || enqueued <= r->most_calls[i],
                      "rank %d, %s: %d calls in %d passes, not at most %d", r->rank, rows[i].name,
                      enqueued, calls, r->most_calls[i]);
        /* Of a workspace, and of sums, for a launch at the most. */
        ck_assert_msg(fills <= 2 * rows[i].launches, "rank %d, %s: %d fills in %d launches",
                      r->rank, rows[i].name, fills, rows[i].launches);
        ck_assert_msg(rows[i].counts.blocking == 0, "rank %d, %s: %d calls that may block, as %s",
                      r->rank, rows[i].name, rows[i].counts.blocking, rows[i].counts.first);
        ck_assert_msg(launches >= rows[i].launches && launches <= rows[i].launches + rows[i].more,
                      "rank %d, %s: %d launches, not %d and up to %d more", r->rank, rows[i].name,
                      launches, rows[i].launches, rows[i].more);
    }
}
