/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa run --ranks: one thread a rank, each with its own plan and its own packed rows, on the CPU
 * over the loopback transport or on a GPU (run_gpu_rank.c). Of ranks that are processes, one is
 * here: `ranks` has the ranks of this process, `count` is that of the group. Invariant: ranks see
 * only their own rows and what the transport brings; whole tensors are taken apart before a call
 * and put together after it, outside of what is timed.
 */
#include "cli/run_ranks.h"

#include "cli/cli.h"
#include "cli/clock.h"
#include "cli/file.h"
#include "cli/run_case.h"
#include "cli/run_gpu_rank.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum rank_job { JOB_OPEN, JOB_FORWARD, JOB_BACKWARD };

/* One rank: its plan and its rows, packed. */
struct rank {
    struct run_ranks *all;
    int32_t rank;
    ffa_comm *comm;
    ffa_parallel_plan *plan;
    ffa_parallel_plan_info info;
    void *rows[RUN_TENSORS];
    void *dsink;              /* of sum_dtype */
    struct run_gpu_rank *gpu; /* NULL: on the CPU */
    pthread_t thread;
    bool is_started;
    /* of what the thread does */
    enum rank_job job;
    int calls;
    int64_t us;
    ffa_status status;
    ffa_error err;
};

struct run_ranks {
    const struct run_case *run;
    ffa_dispatch *dispatch;
    int32_t count;
    int32_t here;           /* ranks of this process: all, or one */
    ffa_dtype sum_dtype;    /* of lse, dlse and sinks, here and in the case */
    struct rank *ranks;     /* [here] */
    ffa_context **contexts; /* [context_count], borrowed; 0: on the CPU */
    int32_t context_count;
    struct run_meeting *meeting; /* of ranks on GPUs */
    bool has_processes;          /* the meeting is the caller's */
    int32_t sharing, gpus;       /* as in the options, of threads too */
    int64_t timeout_ms;
    int32_t transport, wire_dtype, per_node;
    const char *nccl;
    bool wants_timeline, keeps_keys;
    struct run_ranks_facts facts;
};

/* ---- rows ---- */

static bool is_key(enum run_tensor tensor)
{
    return tensor == RUN_K || tensor == RUN_V || tensor == RUN_DK || tensor == RUN_DV;
}

static ffa_rows rows_of(const struct rank *r, enum run_tensor tensor)
{
    const struct run_shape *shape = &r->all->run->shape;
    const bool is_sum = tensor == RUN_LSE || tensor == RUN_DLSE;
    const bool is_value =
        tensor == RUN_V || tensor == RUN_OUT || tensor == RUN_DOUT || tensor == RUN_DV;

    return (ffa_rows){ .dispatch = r->all->dispatch,
                       .side = is_key(tensor) ? FFA_SIDE_KEYS : FFA_SIDE_QUERIES,
                       .rank = r->rank,
                       .dtype = is_sum ? (int32_t)r->all->sum_dtype : (int32_t)shape->dtype,
                       .heads = is_key(tensor) ? shape->heads_kv : shape->heads_q,
                       .head_dim = is_sum     ? 1
                                   : is_value ? shape->head_dim_v
                                              : shape->head_dim };
}

static int64_t row_count(const struct rank *r, enum run_tensor tensor)
{
    return is_key(tensor) ? ffa_dispatch_key_rows(r->all->dispatch, r->rank)
                          : ffa_dispatch_query_rows(r->all->dispatch, r->rank);
}

static ffa_status take(const struct rank *r, enum run_tensor tensor, ffa_error *err)
{
    const ffa_rows rows = rows_of(r, tensor);
    const ffa_tensor whole = FFA_TENSOR_INIT(r->all->run->device[tensor]);
    const ffa_tensor local = FFA_TENSOR_INIT(r->rows[tensor]);

    return ffa_rows_dispatch(&rows, &whole, &local, err);
}

static ffa_status give(const struct rank *r, enum run_tensor tensor, ffa_error *err)
{
    const ffa_rows rows = rows_of(r, tensor);
    const ffa_tensor whole = FFA_TENSOR_INIT(r->all->run->device[tensor]);
    const ffa_tensor local = FFA_TENSOR_INIT(r->rows[tensor]);

    return ffa_rows_undispatch(&rows, &local, &whole, err);
}

/* ---- one rank's part of a pass ---- */

static ffa_parallel_args args_of(const struct rank *r)
{
    const struct run_case *run = r->all->run;
    ffa_parallel_args args = FFA_PARALLEL_ARGS_INIT;

    args.heads_q = run->shape.heads_q;
    args.heads_kv = run->shape.heads_kv;
    args.head_dim = run->shape.head_dim;
    args.head_dim_v = run->shape.head_dim_v;
    args.dtype = run->shape.dtype;
    args.softmax_scale = run->args.softmax_scale;
    args.softcap = run->args.softcap;
    args.sink = run->args.sink;
    args.sink_count = run->args.sink_count;
    args.q.data = r->rows[RUN_Q];
    args.k.data = r->rows[RUN_K];
    args.v.data = r->rows[RUN_V];
    args.out.data = r->rows[RUN_OUT];
    args.lse.data = r->rows[RUN_LSE];
    args.dout.data = r->rows[RUN_DOUT];
    args.dq.data = r->rows[RUN_DQ];
    args.dk.data = r->rows[RUN_DK];
    args.dv.data = r->rows[RUN_DV];
    args.dsink = r->dsink;
    args.dlse.data = r->rows[RUN_DLSE];
    return args;
}

static ffa_status run_calls_host(struct rank *r, bool is_backward)
{
    const ffa_parallel_args args = args_of(r);
    const int64_t since_us = cli_clock_us();
    ffa_status rc = FFA_OK;

    for (int i = 0; i < r->calls && rc == FFA_OK; i++)
        rc = is_backward ? ffa_parallel_backward_host(r->plan, r->comm, &args, &r->err)
                         : ffa_parallel_forward_host(r->plan, r->comm, &args, &r->err);
    r->us = cli_clock_us() - since_us;
    return rc;
}

static ffa_status run_calls(struct rank *r)
{
    const bool is_backward = r->job == JOB_BACKWARD;

    if (r->gpu)
        return run_gpu_rank_pass(r->gpu, r->rows, is_backward, r->calls, &r->us, &r->err);
    return run_calls_host(r, is_backward);
}

static ffa_status run_rank(struct rank *r)
{
    static const enum run_tensor forward[] = { RUN_Q, RUN_K, RUN_V };
    static const enum run_tensor backward[] = { RUN_DQ, RUN_DK, RUN_DV };
    const bool is_backward = r->job == JOB_BACKWARD;
    ffa_status rc = FFA_OK;

    if (is_backward)
        rc = take(r, RUN_DOUT, &r->err);
    if (rc == FFA_OK && is_backward && r->rows[RUN_DLSE])
        rc = take(r, RUN_DLSE, &r->err);
    for (int i = 0; i < 3 && rc == FFA_OK && !is_backward; i++)
        rc = take(r, forward[i], &r->err);
    if (rc == FFA_OK)
        rc = run_calls(r);
    for (int i = 0; i < 3 && rc == FFA_OK && is_backward; i++)
        rc = give(r, backward[i], &r->err);
    if (rc == FFA_OK && !is_backward)
        rc = give(r, RUN_OUT, &r->err);
    if (rc == FFA_OK && !is_backward)
        rc = give(r, RUN_LSE, &r->err);
    if (rc == FFA_OK && is_backward && r->dsink && r->rank == 0)
        memcpy(r->all->run->device[RUN_DSINK], r->dsink,
               (size_t)(r->all->run->shape.sinks * r->all->run->shape.heads_q) *
                   ffa_dtype_bytes(r->all->sum_dtype));
    return rc;
}

/* Its kernels, pass and communicator on a GPU. */
static ffa_status open_gpu(struct rank *r)
{
    const struct run_ranks *all = r->all;
    struct run_gpu_rank_opts opts = {
        .rank = r->rank,
        .ranks = all->count,
        .context = all->contexts[r->rank % all->context_count],
        .sharing = all->sharing,
        .timeout_ms = all->timeout_ms,
        .transport = all->transport,
        .wire_dtype = all->wire_dtype,
        .per_node = all->per_node,
        .nccl = all->nccl,
        .shape = &all->run->shape,
        .softmax_scale = all->run->args.softmax_scale,
        .softcap = all->run->args.softcap,
        .sink = all->run->host[RUN_SINK],
        .dsink = r->dsink,
        .plan = r->plan,
        .is_staged = r->info.rounds > 1 || r->info.moves == FFA_PARALLEL_MOVE_QUERIES,
        .keeps_keys = all->keeps_keys,
        .meeting = all->meeting,
        .wants_spans = all->wants_timeline,
    };

    for (int i = 0; i < RUN_TENSORS; i++)
        opts.rows[i] = r->rows[i] ? row_count(r, (enum run_tensor)i) : 0;
    return run_gpu_rank_create(&r->gpu, &opts, &r->err);
}

static void *run_thread(void *user)
{
    struct rank *r = user;

    r->status = r->job == JOB_OPEN ? open_gpu(r) : run_rank(r);
    return NULL;
}

/* The rank that failed knows more than those that were released. */
static ffa_status worst(const struct run_ranks *all, ffa_error *err)
{
    const struct rank *said = NULL;

    for (int32_t i = 0; i < all->here; i++)
        if (all->ranks[i].status != FFA_OK && (!said || said->status == FFA_COMM))
            said = &all->ranks[i];
    if (!said)
        return FFA_OK;
    return cli_error(err, said->status, 0, "rank %d: %s", said->rank, said->err.message);
}

/* A thread a rank, until all are done. */
static ffa_status run_job(struct run_ranks *all, enum rank_job job, int calls, ffa_error *err)
{
    for (int32_t i = 0; i < all->here; i++) {
        struct rank *r = &all->ranks[i];

        r->job = job;
        r->calls = calls;
        r->status = FFA_OK;
        r->is_started = !pthread_create(&r->thread, NULL, run_thread, r);
        if (!r->is_started) {
            r->status = cli_error(&r->err, FFA_NOMEM, 0, "cannot start a thread");
            if (all->meeting)
                all->meeting->give_up(all->meeting, &r->err);
            if (r->comm)
                ffa_comm_cancel(r->comm, "cannot start a thread");
        }
    }
    for (int32_t i = 0; i < all->here; i++)
        if (all->ranks[i].is_started)
            pthread_join(all->ranks[i].thread, NULL);
    return worst(all, err);
}

ffa_status run_ranks_pass(struct run_ranks *all, bool is_backward, int calls, float *ms,
                          ffa_error *err)
{
    const ffa_status rc = run_job(all, is_backward ? JOB_BACKWARD : JOB_FORWARD, calls, err);
    int64_t most = 0;

    for (int32_t i = 0; i < all->here; i++)
        most = all->ranks[i].us > most ? all->ranks[i].us : most;
    *ms = (float)most / 1e3f / (float)calls;
    return rc;
}

/* ---- making it ---- */

static ffa_parallel_plan_opts plan_opts_of(const struct run_ranks *all,
                                           const struct run_ranks_options *options)
{
    const struct run_shape *shape = &all->run->shape;
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;

    opts.forward_stages = opts.backward_stages = (int32_t)options->stages;
    opts.stage_rows_min = options->stages > 0 ? 1 : 0; /* who asks for stages gets them */
    if (all->context_count)
        opts.sms = run_gpu_rank_sms(all->contexts[0], all->sharing);
    opts.moves = (int32_t)options->moves;
    opts.memory_bytes = options->memory;
    opts.model.heads_q = shape->heads_q;
    opts.model.heads_kv = shape->heads_kv;
    opts.model.head_dim = shape->head_dim;
    opts.head_dim_v = shape->head_dim_v;
    opts.model.element_bytes = (int32_t)ffa_dtype_bytes(shape->dtype);
    /* What can be wrong with it was found when it was read. */
    (void)calibration_apply(&options->calibration, &opts, shape->tokens_k, options->ranks, 0, NULL);
    if (!all->context_count)
        opts.sms = 0; /* a launch a stage */
    return opts;
}

static ffa_status make_dispatch(struct run_ranks *all, const struct run_ranks_options *options,
                                ffa_error *err)
{
    const struct run_shape *shape = &all->run->shape;
    const ffa_dispatch_mask mask = { all->run->mask, 1 };
    const ffa_topology topology = { all->count, (int32_t)options->per_node };
    const ffa_parallel_plan_opts plan_opts = plan_opts_of(all, options);
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;

    if (shape->tokens_q != shape->tokens_k) {
        opts.keys = FFA_KEYS_DISPATCHED;
        return ffa_dispatch_create(&all->dispatch, &mask, 1, &topology, &opts, err);
    }
    return ffa_dispatch_create_best(&all->dispatch, &mask, 1, &topology, &opts, &plan_opts, err);
}

static ffa_status make_plan(struct rank *r, const struct run_ranks_options *options, ffa_error *err)
{
    const ffa_parallel_plan_opts opts = plan_opts_of(r->all, options);
    ffa_status rc;

    rc = ffa_parallel_plan_create(&r->plan, r->all->dispatch, r->all->run->mask, r->rank, &opts,
                                  err);
    r->info = (ffa_parallel_plan_info)FFA_PARALLEL_PLAN_INFO_INIT;
    return rc == FFA_OK ? ffa_parallel_plan_info_get(r->plan, &r->info, err) : rc;
}

static ffa_status make_rows(struct rank *r, ffa_error *err)
{
    const struct run_shape *shape = &r->all->run->shape;
    const bool has_backward = shape->spec_flags & FFA_SPEC_BACKWARD;

    for (int i = 0; i < RUN_TENSORS; i++) {
        const enum run_tensor tensor = (enum run_tensor)i;
        const ffa_rows rows = rows_of(r, tensor);
        const size_t element = ffa_dtype_bytes((ffa_dtype)rows.dtype);
        const size_t elements = (size_t)(row_count(r, tensor) * rows.heads) * (size_t)rows.head_dim;

        if (tensor == RUN_SINK || tensor == RUN_DSINK || (tensor >= RUN_DOUT && !has_backward) ||
            (tensor == RUN_DLSE && !shape->has_dlse))
            continue;
        r->rows[i] = malloc(elements * element + 1);
        if (!r->rows[i])
            return cli_error(err, FFA_NOMEM, 0, "no memory for the rows of a rank");
    }
    if (has_backward && shape->sinks)
        r->dsink =
            malloc((size_t)(shape->sinks * shape->heads_q) * ffa_dtype_bytes(r->all->sum_dtype));
    if (has_backward && shape->sinks && !r->dsink)
        return cli_error(err, FFA_NOMEM, 0, "no memory for the rows of a rank");
    return FFA_OK;
}

static ffa_status make_group(struct run_ranks *all, const struct run_ranks_options *options,
                             ffa_error *err)
{
    ffa_loopback_opts opts = FFA_LOOPBACK_OPTS_INIT;
    ffa_comm **comms;
    ffa_status rc;

    all->meeting = options->meeting;
    if (all->meeting)
        return FFA_OK;
    if (all->context_count) { /* each rank makes its end, on its thread */
        all->meeting = run_threads_create(all->count);
        return all->meeting ? FFA_OK : cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    }
    comms = calloc((size_t)all->count, sizeof *comms);
    if (!comms)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    opts.seed = (uint64_t)options->seed;
    opts.delay = (int32_t)options->delay;
    opts.timeout_ms = options->timeout_ms;
    rc = ffa_loopback_create(comms, all->count, &opts, err);
    for (int32_t i = 0; i < all->here; i++)
        all->ranks[i].comm = comms[i];
    free(comms);
    return rc;
}

static void add_gpu_facts(struct run_ranks_facts *facts, ffa_parallel_pass_info info)
{
    const int64_t windows = info.key_bytes + info.sum_bytes;
    const int64_t workspace = info.forward_workspace_bytes > info.backward_workspace_bytes
                                  ? info.forward_workspace_bytes
                                  : info.backward_workspace_bytes;

    if (windows > facts->window_bytes)
        facts->window_bytes = windows;
    if (workspace > facts->workspace_bytes)
        facts->workspace_bytes = workspace;
}

/* The most of each number. */
static void add_facts(struct run_ranks_facts *facts, const struct run_ranks_facts *other)
{
    if (other->forward_stages > facts->forward_stages)
        facts->forward_stages = other->forward_stages;
    if (other->backward_stages > facts->backward_stages)
        facts->backward_stages = other->backward_stages;
    if (other->rounds > facts->rounds)
        facts->rounds = other->rounds;
    if (other->received_rows > facts->received_rows)
        facts->received_rows = other->received_rows;
    if (other->window_bytes > facts->window_bytes)
        facts->window_bytes = other->window_bytes;
    if (other->workspace_bytes > facts->workspace_bytes)
        facts->workspace_bytes = other->workspace_bytes;
}

static struct run_ranks_facts facts_of(const struct rank *r)
{
    struct run_ranks_facts facts = {
        .ranks = r->all->count,
        .forward_stages = r->info.forward_stages,
        .backward_stages = r->info.backward_stages,
        .rounds = r->info.rounds,
        .received_rows = r->info.received_rows,
        .moves_queries = r->info.moves == FFA_PARALLEL_MOVE_QUERIES,
        .gpus = r->all->gpus,
    };

    if (r->gpu)
        facts.transport = run_gpu_rank_transport(r->gpu);
    if (r->gpu)
        add_gpu_facts(&facts, run_gpu_rank_info(r->gpu));
    return facts;
}

static ffa_status find_facts(struct run_ranks *all, ffa_error *err)
{
    struct run_ranks_facts *others;
    ffa_status rc;

    all->facts = facts_of(&all->ranks[0]);
    for (int32_t i = 1; i < all->here; i++) {
        const struct run_ranks_facts other = facts_of(&all->ranks[i]);

        add_facts(&all->facts, &other);
    }
    if (!all->has_processes)
        return FFA_OK;
    others = calloc((size_t)all->count, sizeof *others);
    if (!others)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    rc = all->meeting->gather(all->meeting, all->ranks[0].rank, &all->facts, others, sizeof *others,
                              err);
    for (int32_t i = 0; i < all->count && rc == FFA_OK; i++)
        add_facts(&all->facts, &others[i]);
    free(others);
    return rc;
}

ffa_status run_ranks_create(struct run_ranks **out, const struct run_case *run,
                            const struct run_ranks_options *options, ffa_error *err)
{
    struct run_ranks *all = calloc(1, sizeof *all);
    ffa_status rc = FFA_OK;

    *out = all;
    if (all)
        all->ranks = calloc((size_t)options->ranks, sizeof *all->ranks);
    if (!all || !all->ranks)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    all->run = run;
    all->count = (int32_t)options->ranks;
    all->has_processes = options->meeting != NULL;
    all->here = all->has_processes ? 1 : all->count;
    all->gpus = all->has_processes ? options->gpus : options->context_count;
    all->sharing = all->has_processes       ? options->sharing
                   : options->context_count ? (all->count - 1) / options->context_count + 1
                                            : 0;
    all->timeout_ms = options->timeout_ms;
    all->transport = options->transport;
    all->wire_dtype = options->wire_dtype;
    all->per_node = (int32_t)options->per_node;
    all->nccl = options->nccl;
    all->sum_dtype = run->shape.dtype == FFA_FP64 ? FFA_FP64 : FFA_FP32;
    all->contexts = options->contexts;
    all->context_count = options->context_count;
    all->wants_timeline = options->wants_timeline;
    all->keeps_keys = options->keeps_keys;
    rc = make_dispatch(all, options, err);
    if (rc == FFA_OK)
        rc = make_group(all, options, err);
    for (int32_t i = 0; i < all->here && rc == FFA_OK; i++) {
        all->ranks[i].all = all;
        all->ranks[i].rank = all->has_processes ? options->rank : i;
        rc = make_plan(&all->ranks[i], options, err);
        if (rc == FFA_OK)
            rc = make_rows(&all->ranks[i], err);
    }
    if (rc == FFA_OK && all->context_count)
        rc = run_job(all, JOB_OPEN, 0, err);
    return rc == FFA_OK ? find_facts(all, err) : rc;
}

/* A rank that leaves waits for those that read its memory: all leave at once. */
static void *close_thread(void *user)
{
    struct rank *r = user;

    run_gpu_rank_destroy(r->gpu);
    return NULL;
}

static void close_gpus(struct run_ranks *all)
{
    for (int32_t i = 0; i < all->here; i++) {
        struct rank *r = &all->ranks[i];

        r->is_started = r->gpu && !pthread_create(&r->thread, NULL, close_thread, r);
    }
    for (int32_t i = 0; i < all->here; i++) {
        if (all->ranks[i].is_started)
            pthread_join(all->ranks[i].thread, NULL);
        else
            run_gpu_rank_destroy(all->ranks[i].gpu);
        all->ranks[i].gpu = NULL;
    }
}

void run_ranks_leave(struct run_ranks *all)
{
    close_gpus(all);
}

void run_ranks_destroy(struct run_ranks *all)
{
    if (all && all->ranks)
        close_gpus(all);
    for (int32_t i = 0; all && all->ranks && i < all->here; i++) {
        struct rank *r = &all->ranks[i];

        for (int t = 0; t < RUN_TENSORS; t++)
            free(r->rows[t]);
        free(r->dsink);
        ffa_parallel_plan_destroy(r->plan);
        ffa_comm_destroy(r->comm);
    }
    if (all) {
        ffa_dispatch_destroy(all->dispatch);
        if (!all->has_processes)
            run_threads_destroy(all->meeting);
        free(all->ranks);
    }
    free(all);
}

struct run_ranks_facts run_ranks_facts_get(const struct run_ranks *all)
{
    return all->facts;
}

/* ---- of processes ---- */

static size_t rows_bytes(const struct rank *r, enum run_tensor tensor)
{
    const ffa_rows rows = rows_of(r, tensor);

    return (size_t)(row_count(r, tensor) * rows.heads * rows.head_dim) *
           ffa_dtype_bytes((ffa_dtype)rows.dtype);
}

/* The rows of this rank to rank 0, which puts those of the others into the whole tensor. */
static ffa_status collect(struct run_ranks *all, enum run_tensor tensor, ffa_error *err)
{
    const struct rank *own = &all->ranks[0];
    struct rank other = *own;
    void **at = calloc((size_t)all->count, sizeof *at);
    size_t *bytes = calloc((size_t)all->count, sizeof *bytes);
    ffa_status rc = at && bytes ? FFA_OK : cli_error(err, FFA_NOMEM, 0, "no memory for ranks");

    for (other.rank = 0; rc == FFA_OK && other.rank < all->count; other.rank++) {
        bytes[other.rank] = rows_bytes(&other, tensor);
        if (own->rank > 0 || other.rank == 0)
            continue;
        at[other.rank] = malloc(bytes[other.rank] + 1);
        if (!at[other.rank])
            rc = cli_error(err, FFA_NOMEM, 0, "no memory for the rows of a rank");
    }
    if (rc == FFA_OK)
        rc = all->meeting->give(all->meeting, own->rank, own->rows[tensor], at, bytes, err);
    for (other.rank = 0; at && other.rank < all->count; other.rank++) {
        other.rows[tensor] = at[other.rank];
        if (rc == FFA_OK && at[other.rank])
            rc = give(&other, tensor, err);
        free(at[other.rank]);
    }
    free(at);
    free(bytes);
    return rc;
}

ffa_status run_ranks_collect(struct run_ranks *all, bool is_backward, ffa_error *err)
{
    static const enum run_tensor forward[] = { RUN_OUT, RUN_LSE };
    static const enum run_tensor backward[] = { RUN_DQ, RUN_DK, RUN_DV };
    ffa_status rc = FFA_OK;

    for (int i = 0; i < (is_backward ? 3 : 2) && rc == FFA_OK && all->has_processes; i++)
        rc = collect(all, is_backward ? backward[i] : forward[i], err);
    return rc;
}

ffa_status run_ranks_timeline(struct run_ranks *all, struct timeline_rank **out, ffa_error *err)
{
    struct timeline_rank *ranks = calloc((size_t)all->count, sizeof *ranks);
    ffa_status rc = ranks ? FFA_OK : cli_error(err, FFA_NOMEM, 0, "no memory for a timeline");

    for (int32_t i = 0; i < all->count && rc == FFA_OK && !all->has_processes; i++)
        ranks[i] = *run_gpu_rank_timeline(all->ranks[i].gpu);
    if (rc == FFA_OK && all->has_processes)
        rc = all->meeting->gather(all->meeting, all->ranks[0].rank,
                                  run_gpu_rank_timeline(all->ranks[0].gpu), ranks, sizeof *ranks,
                                  err);
    if (rc != FFA_OK) {
        free(ranks);
        ranks = NULL;
    }
    *out = ranks;
    return rc;
}

ffa_status run_ranks_all(struct run_ranks *all, bool *is_true, ffa_error *err)
{
    int64_t is_false = !*is_true;
    ffa_status rc;

    if (!all->has_processes)
        return FFA_OK;
    rc = run_meeting_most(all->meeting, all->ranks[0].rank, &is_false, err);
    *is_true = !is_false;
    return rc;
}
