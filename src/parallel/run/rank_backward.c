/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass of one rank: own key tiles that cover the first fetch; then the stages, whose
 * partial gradients go back to the owners of their rows while the next stage is computed; then the
 * other own key tiles, which take in what has come from others by then.
 *
 * An own tile that no other rank needs is written once, without sums. One that others need is
 * summed in sum_kv: what is computed early lies there before the first partial gradient is added,
 * and is written at the end; what is computed last adds and writes in one go. Where every rank has
 * all keys, there is nothing to fetch, and every rank adds up the sums of all.
 *
 * dlse is in delta from the start: only the owner of a row reads it.
 *
 * Where queries move, a stage brings q, dout, lse and delta of others' rows; dk and dv are of own
 * keys throughout, summed from phase to phase, and it is dq that goes back to its owner's sums.
 */
#include "parallel/run/rank_pass.h"
#include "tile/staged.h"

enum { ARRIVED_Q, ARRIVED_DOUT, ARRIVED_LSE, ARRIVED_DELTA };

struct backward {
    struct rank_pass common;
    bool moves_queries;
    int64_t row_elements; /* of a row of sum_kv */
    int64_t k_elements;   /* of those, of dk: the others are of dv */
    void *delta;          /* [tokens][heads_q] */
    void *sum_dq;         /* [tokens][heads_q][head_dim] */
    void *sum_kv;         /* [own keys][row_elements]: dk, then dv, each [heads_kv][its columns] */
    uint8_t *row_flags;   /* [phases + 2][row_blocks]: of each phase; then of what is written at the
                           * end, and rows left alone */
    uint8_t *stage_rows;  /* [row blocks of a stage]: where queries move, all continue */
    void *stage_delta;    /* [rows of a stage][heads_q] */
    void *dsink;          /* [sink_count][heads_q], of this rank */
    int64_t row_blocks;
    uint64_t reduced; /* mark of LANE_REDUCE */
};

/* ---- which phase is the first, and the last, of which rows ---- */

/* The rows that the tiles meet: neither first nor last yet. */
static void mark_rows(uint8_t *flags, const struct tile_plan *plan)
{
    for (int64_t t = 0; t < plan->tile_count; t++)
        for (int32_t s = 0; s < plan->tiles[t].sweep_count; s++) {
            const struct plan_sweep *sweep = &plan->sweeps[plan->tiles[t].sweep_begin + s];

            for (int64_t b = sweep->begin / plan->tile_m; b <= (sweep->end - 1) / plan->tile_m; b++)
                flags[b] = PLAN_TILE_MERGES | PLAN_TILE_CONTINUES;
        }
}

/* Rows that attend nothing anywhere are the first phase's: their dq is 0. */
static void flag_rows(struct backward *b)
{
    const struct plan_pass *pass = b->common.pass;

    memset(b->row_flags, CPU_ROWS_UNTOUCHED, (size_t)((pass->phase_count + 2) * b->row_blocks));
    if (b->moves_queries) { /* others add between the first phase and the end */
        mark_rows(b->row_flags + (pass->phase_count - 1) * b->row_blocks,
                  &pass->phases[pass->phase_count - 1].key_tiles);
        memset(b->row_flags, PLAN_TILE_CONTINUES, (size_t)b->row_blocks);
        memset(b->row_flags + pass->phase_count * b->row_blocks, PLAN_TILE_MERGES,
               (size_t)b->row_blocks);
        return;
    }
    for (int32_t p = 0; p < pass->phase_count; p++)
        mark_rows(b->row_flags + p * b->row_blocks, &pass->phases[p].key_tiles);
    for (int64_t i = 0; i < b->row_blocks; i++) {
        int32_t first = -1, last = 0;

        for (int32_t p = 0; p < pass->phase_count; p++)
            if (b->row_flags[p * b->row_blocks + i] != CPU_ROWS_UNTOUCHED) {
                first = first < 0 ? p : first;
                last = p;
            }
        if (first < 0) {
            b->row_flags[i] = 0;
            continue;
        }
        b->row_flags[first * b->row_blocks + i] &= (uint8_t)~PLAN_TILE_MERGES;
        b->row_flags[last * b->row_blocks + i] &= (uint8_t)~PLAN_TILE_CONTINUES;
    }
}

static int64_t own_keys(const struct backward *b)
{
    return b->common.plan->keys.rank_tokens[b->common.plan->rank];
}

static bool is_replicated(const struct backward *b)
{
    return b->common.plan->keys.is_replicated && b->common.comm->rank_count > 1;
}

static ffa_status allocate(struct backward *b, ffa_error *err)
{
    const struct rank_pass *p = &b->common;
    const struct plan_pass *pass = p->pass;
    const int32_t tile_m = p->plan->opts.backward_m;
    const size_t rows = (size_t)(p->tokens * p->args.heads_q), element = (size_t)p->sum_element;
    const size_t keys = (size_t)own_keys(b), dim = (size_t)p->args.head_dim;

    b->row_blocks = (p->tokens + tile_m - 1) / tile_m;
    b->k_elements = (int64_t)p->args.heads_kv * p->args.head_dim;
    b->row_elements = b->k_elements + (int64_t)p->args.heads_kv * p->args.head_dim_v;
    b->delta = mem_array(rows, element);
    b->sum_dq = mem_array(rows * dim, element);
    b->sum_kv = mem_array(keys * (size_t)b->row_elements, element);
    b->row_flags = mem_array((size_t)(b->row_blocks * (pass->phase_count + 2)), 1);
    b->stage_rows = mem_array((size_t)(pass->buffer_rows / tile_m + 1), 1);
    b->stage_delta = mem_array((size_t)(pass->buffer_rows * p->args.heads_q), element);
    if (p->args.dsink)
        b->dsink = mem_array((size_t)(p->args.sink_count * p->args.heads_q), element);
    if (!b->delta || !b->sum_dq || !b->sum_kv || !b->row_flags || !b->stage_rows ||
        !b->stage_delta || (p->args.dsink && !b->dsink))
        return error_nomem(err, "the sums of a pass");
    memset(b->stage_rows, PLAN_TILE_CONTINUES, (size_t)(pass->buffer_rows / tile_m + 1));
    return FFA_OK;
}

/* ---- computing ---- */

static struct cpu_backward call_of(struct backward *b, const struct tile_plan *plan)
{
    const struct rank_pass *p = &b->common;
    void *sum_kv = b->sum_kv;

    return (struct cpu_backward){ .plan = plan,
                                  .args = rank_pass_cpu_args(p),
                                  .dout = CPU_TENSOR(p->args.dout),
                                  .dlse = CPU_TENSOR(p->args.dlse),
                                  .dq = CPU_TENSOR(p->args.dq),
                                  .dk = CPU_TENSOR(p->args.dk),
                                  .dv = CPU_TENSOR(p->args.dv),
                                  .dtype = (ffa_dtype)p->args.dtype,
                                  .grad_dtype = (ffa_dtype)p->args.dtype,
                                  .head_dim = p->args.head_dim,
                                  .head_dim_v = p->args.head_dim_v,
                                  .threads = p->args.threads,
                                  .fp64 = p->fp64,
                                  .lse_dtype = (ffa_dtype)p->args.sum_dtype,
                                  .delta = b->delta,
                                  .sum_dk = sum_kv,
                                  .sum_dv = (char *)sum_kv + b->k_elements * p->sum_element,
                                  .sum_stride = b->row_elements,
                                  .row_flags = b->row_flags,
                                  .sum_dq = b->sum_dq };
}

/* The last own tiles wait here, before they add their sums, for the last partial gradients. */
static bool wait_for_reduces(void *user)
{
    const struct backward *b = user;
    ffa_comm *comm = b->common.comm;

    return comm->ops->await(comm, LANE_COMPUTE, LANE_REDUCE, b->reduced, NULL) == FFA_OK;
}

static ffa_status compute_own(struct backward *b, int32_t at, ffa_error *err)
{
    struct cpu_backward call = call_of(b, &b->common.pass->phases[at].key_tiles);

    call.row_flags = b->row_flags + at * b->row_blocks;
    if (at == 0) {
        call.dsink = b->dsink;
    } else {
        call.wait = wait_for_reduces;
        call.user = b;
        call.waits_for_rows = b->moves_queries;
    }
    return cpu_backward(&call, err);
}

/* Write the sums of an own phase's key tiles; rows: which set of row_flags says what of dq. */
static ffa_status write_tiles(struct backward *b, int32_t at, int32_t rows, ffa_error *err)
{
    struct tile_plan plan = { 0 };
    struct cpu_backward call = call_of(b, &plan);
    ffa_status rc;

    FFA_TRY(staged_rest(&plan, &b->common.pass->phases[at].key_tiles, err));
    call.row_flags = b->row_flags + rows * b->row_blocks;
    rc = cpu_backward(&call, err);
out:
    tile_finish(&plan);
    return rc;
}

/* What the phases left for later: see rank_plan.h and flag_rows. */
static ffa_status write_rest(struct backward *b, ffa_error *err)
{
    const int32_t phases = b->common.pass->phase_count;
    ffa_status rc;

    if (!wait_for_reduces(b))
        return b->common.comm->ops->drain(b->common.comm, err);
    FFA_TRY(write_tiles(b, 0, phases, err));
    if (b->moves_queries)
        rc = write_tiles(b, phases - 1, phases + 1, err);
out:
    return rc;
}

/* ---- stages ---- */

/* delta of a stage's rows, packed as the backend reads it. */
static void take_delta(struct backward *b, int32_t stage)
{
    const struct rank_pass *p = &b->common;
    const struct cpu_tensor from = rank_pass_arrived(p, stage, ARRIVED_DELTA);
    const size_t bytes = (size_t)(p->args.heads_q * p->sum_element);

    for (int64_t row = 0; row < p->pass->phases[stage].rows; row++)
        memcpy((char *)b->stage_delta + (size_t)row * bytes,
               (const char *)from.data + row * from.token_stride * p->sum_element, bytes);
}

static ffa_status compute_stage(struct backward *b, int32_t stage, ffa_error *err)
{
    struct rank_pass *p = &b->common;
    const struct plan_phase *phase = &p->pass->phases[stage];
    struct cpu_backward call = call_of(b, &phase->key_tiles);
    void *results;
    ffa_status rc;

    FFA_TRY(rank_pass_results(p, stage, &results, err));
    if (b->moves_queries) {
        call.args.q = rank_pass_arrived(p, stage, ARRIVED_Q);
        call.args.lse = rank_pass_arrived(p, stage, ARRIVED_LSE);
        call.dout = rank_pass_arrived(p, stage, ARRIVED_DOUT);
        take_delta(b, stage);
        call.delta = b->stage_delta;
        call.row_flags = b->stage_rows;
        call.sum_dq = results;
    } else {
        call.args.k = rank_pass_arrived(p, stage, 0);
        call.args.v = rank_pass_arrived(p, stage, 1);
        call.row_flags = b->row_flags + stage * b->row_blocks;
        call.sum_dk = results;
        call.sum_dv = (char *)results + b->k_elements * p->sum_element;
    }
    FFA_TRY(cpu_backward(&call, err));
    rc = rank_pass_signal_results(p, stage, err);
out:
    return rc;
}

static void add_sums(const struct backward *b, const void *from, int64_t count)
{
    for (int64_t i = 0; i < count && b->common.fp64; i++)
        ((double *)b->sum_kv)[i] += ((const double *)from)[i];
    for (int64_t i = 0; i < count && !b->common.fp64; i++)
        ((float *)b->sum_kv)[i] += ((const float *)from)[i];
}

/* Every rank has all keys: the sums of all, by ascending rank. */
static ffa_status join_sums(struct backward *b, ffa_error *err)
{
    const struct rank_pass *p = &b->common;
    const int64_t count = own_keys(b) * b->row_elements;
    const size_t bytes = (size_t)(count * p->sum_element);
    char *all = mem_array((size_t)p->comm->rank_count, bytes);
    ffa_status rc;

    assert(p->pass->stage_count == 0);
    if (!all)
        return error_nomem(err, "the gradients of all ranks");
    rc = p->comm->ops->gather(p->comm, b->sum_kv, all, bytes, err);
    if (rc == FFA_OK)
        memset(b->sum_kv, 0, bytes);
    for (int32_t r = 0; rc == FFA_OK && r < p->comm->rank_count; r++)
        add_sums(b, all + (size_t)r * bytes, count);
    mem_free(all);
    return rc;
}

static ffa_status join_dsink(const struct backward *b, ffa_error *err)
{
    const struct rank_pass *p = &b->common;
    const size_t count = (size_t)(p->args.sink_count * p->args.heads_q);
    const size_t element = (size_t)p->sum_element;
    void *all = mem_array((size_t)p->comm->rank_count * count, element);
    ffa_status rc;

    if (!all)
        return error_nomem(err, "dsink of all ranks");
    rc = p->comm->ops->gather(p->comm, b->dsink, all, count * element, err);
    for (size_t i = 0; rc == FFA_OK && i < count; i++) {
        double sum = 0;

        for (size_t r = 0; r < (size_t)p->comm->rank_count; r++)
            sum += rank_pass_sum_read(p, all, r * count + i);
        rank_pass_sum_write(p, p->args.dsink, i, sum);
    }
    mem_free(all);
    return rc;
}

/* ---- the pass ---- */

/* Say what moves, and compute delta: before the rows are published where delta moves, too, else
 * while they travel. */
static ffa_status begin(struct backward *b, ffa_error *err)
{
    struct rank_pass *p = &b->common;
    const ffa_parallel_args *a = &p->args;
    const ffa_tensor delta = { .data = b->delta, .token_stride = a->heads_q, .head_stride = 1 };
    struct cpu_backward call;
    ffa_status rc;

    flag_rows(b);
    call = call_of(b, &p->pass->phases[0].key_tiles);
    if (b->moves_queries) {
        rank_pass_move(p, &a->q, a->heads_q, a->head_dim, p->element);
        rank_pass_move(p, &a->dout, a->heads_q, a->head_dim_v, p->element);
        rank_pass_move(p, &a->lse, a->heads_q, 1, p->sum_element);
        rank_pass_move(p, &delta, a->heads_q, 1, p->sum_element);
        p->rows = p->tokens;
        p->result_bytes = (int64_t)a->heads_q * a->head_dim * p->sum_element;
        FFA_TRY(cpu_backward_delta(&call, b->delta, err));
    } else {
        rank_pass_move(p, &a->k, a->heads_kv, a->head_dim, p->element);
        rank_pass_move(p, &a->v, a->heads_kv, a->head_dim_v, p->element);
        p->rows = p->plan->keys.rank_tokens[p->plan->rank];
        p->result_bytes = b->row_elements * p->sum_element;
    }
    FFA_TRY(rank_pass_publish(p, err));
    FFA_TRY(rank_pass_advance(p, 0, err));
    if (!b->moves_queries)
        rc = cpu_backward_delta(&call, b->delta, err);
out:
    return rc;
}

static ffa_status run_pass(struct backward *b, ffa_error *err)
{
    struct rank_pass *p = &b->common;
    const struct comm_reduce sum = { (ffa_dtype)p->args.sum_dtype, 0 };
    const int32_t stages = p->pass->stage_count;
    ffa_status rc;

    FFA_TRY(begin(b, err));
    FFA_TRY(compute_own(b, 0, err));
    rank_pass_computed(p, 0);
    FFA_TRY(rank_pass_reduce(p, b->moves_queries ? b->sum_dq : b->sum_kv, &sum, &b->reduced, err));
    for (int32_t s = 1; s <= stages; s++) {
        FFA_TRY(rank_pass_advance(p, s, err));
        FFA_TRY(compute_stage(b, s, err));
        rank_pass_computed(p, s);
    }
    FFA_TRY(compute_own(b, stages + 1, err));
    if (is_replicated(b))
        FFA_TRY(join_sums(b, err));
    FFA_TRY(write_rest(b, err));
    if (b->dsink)
        rc = join_dsink(b, err);
out:
    return rc;
}

ffa_status ffa_parallel_backward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                      const ffa_parallel_args *args, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct backward b = { 0 };
    ffa_status rc;

    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    FFA_TRY(rank_pass_open(&b.common, plan, comm, args, true, &failure));
    b.moves_queries = plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    FFA_TRY(allocate(&b, &failure));
    rc = run_pass(&b, &failure);
out:
    rc = rank_pass_close(&b.common, comm, rc, &failure, err);
    mem_free(b.delta);
    mem_free(b.sum_dq);
    mem_free(b.sum_kv);
    mem_free(b.row_flags);
    mem_free(b.stage_rows);
    mem_free(b.stage_delta);
    mem_free(b.dsink);
    return rc;
}
