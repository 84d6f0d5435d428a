/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass of one rank: its own part while the first stage arrives, then stage after stage.
 *
 * Where keys move, a tile's (out, lse) is kept in sums from its first phase to its last. Where
 * queries move, what a stage computes goes back to the owner of the query, is merged into its sums,
 * and written when all is there. An item of the sums is one row of one head: out, then lse.
 */
#include "parallel/run/rank_pass.h"
#include "tile/staged.h"

#include <math.h>

struct forward {
    struct rank_pass common;
    bool moves_queries;
    void *sums;       /* [tokens][heads_q][head_dim_v + 1] */
    uint64_t reduced; /* mark of LANE_REDUCE */
    void *max_logits; /* [heads_q], of this rank; or NULL */
};

static ffa_status begin(struct forward *f, ffa_error *err)
{
    struct rank_pass *p = &f->common;
    const size_t items = (size_t)(p->tokens * p->args.heads_q);
    const int32_t elements = p->args.head_dim_v + 1;

    f->moves_queries = p->plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    if (f->moves_queries) {
        rank_pass_move(p, &p->args.q, p->args.heads_q, p->args.head_dim, p->element);
        p->rows = p->tokens;
        p->result_bytes = p->args.heads_q * elements * p->sum_element;
    } else {
        rank_pass_move(p, &p->args.k, p->args.heads_kv, p->args.head_dim, p->element);
        rank_pass_move(p, &p->args.v, p->args.heads_kv, p->args.head_dim_v, p->element);
        p->rows = p->plan->keys.rank_tokens[p->plan->rank];
    }
    f->sums = mem_array(items * (size_t)elements, (size_t)p->sum_element);
    if (p->args.max_logits)
        f->max_logits = mem_array((size_t)p->args.heads_q, (size_t)p->sum_element);
    if (!f->sums || (p->args.max_logits && !f->max_logits))
        return error_nomem(err, "the sums of a pass");
    if (f->max_logits)
        cpu_max_logits_init(f->max_logits, (ffa_dtype)p->args.sum_dtype, p->args.heads_q);
    return rank_pass_publish(p, err);
}

static struct cpu_forward call_of(const struct forward *f, const struct tile_plan *plan, void *sums)
{
    const struct rank_pass *p = &f->common;

    return (struct cpu_forward){ .plan = plan,
                                 .args = rank_pass_cpu_args(p),
                                 .dtype = (ffa_dtype)p->args.dtype,
                                 .head_dim = p->args.head_dim,
                                 .head_dim_v = p->args.head_dim_v,
                                 .threads = p->args.threads,
                                 .fp64 = p->fp64,
                                 .lse_dtype = (ffa_dtype)p->args.sum_dtype,
                                 .max_logits = f->max_logits,
                                 .sum_out = sums,
                                 .sum_lse = (char *)sums + p->args.head_dim_v * p->sum_element,
                                 .sum_stride = p->args.head_dim_v + 1 };
}

static ffa_status compute(struct forward *f, int32_t at, ffa_error *err)
{
    struct rank_pass *p = &f->common;
    const struct plan_phase *phase = &p->pass->phases[at];
    const bool sends_back = f->moves_queries && rank_pass_is_stage(p, at);
    struct cpu_forward call;
    void *sums = f->sums;
    ffa_status rc;

    if (sends_back)
        FFA_TRY(rank_pass_results(p, at, &sums, err));
    call = call_of(f, &phase->tiles, sums);
    if (sends_back) {
        call.args.q = rank_pass_arrived(p, at, 0);
        call.args.sink_count = 0; /* sinks enter where the query lives */
    } else if (rank_pass_is_stage(p, at)) {
        call.args.k = rank_pass_arrived(p, at, 0);
        call.args.v = rank_pass_arrived(p, at, 1);
    }
    FFA_TRY(cpu_forward(&call, err));
    if (sends_back)
        rc = rank_pass_signal_results(p, at, err);
out:
    return rc;
}

/* Write the tiles of own queries to which others have added. */
static ffa_status write_rest(struct forward *f, ffa_error *err)
{
    struct rank_pass *p = &f->common;
    struct tile_plan plan = { 0 };
    struct cpu_forward call = call_of(f, &plan, f->sums);
    ffa_status rc;

    FFA_TRY(staged_rest(&plan, &p->pass->phases[0].tiles, err));
    FFA_TRY(p->comm->ops->await(p->comm, LANE_COMPUTE, LANE_REDUCE, f->reduced, err));
    call.max_logits = NULL;
    rc = cpu_forward(&call, err);
out:
    tile_finish(&plan);
    return rc;
}

/* Partial results of others are added while stages are computed. Lanes keep their order, so every
 * sum has the same order whatever the timing. */
static ffa_status run_pass(struct forward *f, ffa_error *err)
{
    struct rank_pass *p = &f->common;
    const struct comm_reduce merge = { (ffa_dtype)p->args.sum_dtype, p->args.head_dim_v + 1 };
    ffa_status rc = FFA_OK;

    for (int32_t phase = 0; phase < p->pass->phase_count; phase++) {
        FFA_TRY(rank_pass_advance(p, phase, err));
        FFA_TRY(compute(f, phase, err));
        rank_pass_computed(p, phase);
        if (f->moves_queries && phase == 0)
            FFA_TRY(rank_pass_reduce(p, f->sums, &merge, &f->reduced, err));
    }
    if (f->moves_queries)
        rc = write_rest(f, err);
out:
    return rc;
}

static ffa_status join_max(const struct forward *f, ffa_error *err)
{
    const struct rank_pass *p = &f->common;
    const size_t heads = (size_t)p->args.heads_q;
    void *all = mem_array((size_t)p->comm->rank_count * heads, (size_t)p->sum_element);
    ffa_status rc;

    if (!all)
        return error_nomem(err, "max_logits of all ranks");
    rc = p->comm->ops->gather(p->comm, f->max_logits, all, heads * (size_t)p->sum_element, err);
    for (size_t h = 0; rc == FFA_OK && h < heads; h++) {
        double top = -(double)INFINITY;

        for (size_t r = 0; r < (size_t)p->comm->rank_count; r++)
            top = fmax(top, rank_pass_sum_read(p, all, r * heads + h));
        rank_pass_sum_write(p, p->args.max_logits, h, top);
    }
    mem_free(all);
    return rc;
}

ffa_status ffa_parallel_forward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                     const ffa_parallel_args *args, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct forward f = { 0 };
    ffa_status rc;

    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    FFA_TRY(rank_pass_open(&f.common, plan, comm, args, false, &failure));
    FFA_TRY(begin(&f, &failure));
    FFA_TRY(run_pass(&f, &failure));
    if (f.max_logits)
        rc = join_max(&f, &failure);
out:
    rc = rank_pass_close(&f.common, comm, rc, &failure, err);
    mem_free(f.sums);
    mem_free(f.max_logits);
    return rc;
}
