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
    struct pipeline pipeline;
    bool moves_queries;
    void *sums;        /* [tokens][heads_q][head_dim + 1] */
    uint64_t taken_in; /* ticket of LANE_REDUCE */
    float *max_logits; /* [heads_q], of this rank; or NULL */
};

static ffa_status begin(struct forward *f, ffa_error *err)
{
    struct pipeline *p = &f->pipeline;
    const size_t items = (size_t)(p->tokens * p->args.heads_q);
    const int32_t elements = p->args.head_dim + 1;

    f->moves_queries = p->plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    if (f->moves_queries) {
        pipeline_move(p, &p->args.q, p->args.heads_q, p->args.head_dim, p->element);
        p->rows = p->tokens;
        p->result_bytes = p->args.heads_q * elements * p->sum_element;
    } else {
        pipeline_move(p, &p->args.k, p->args.heads_kv, p->args.head_dim, p->element);
        pipeline_move(p, &p->args.v, p->args.heads_kv, p->args.head_dim, p->element);
        p->rows = p->plan->keys.rank_tokens[p->plan->rank];
    }
    f->sums = mem_array(items * (size_t)elements, (size_t)p->sum_element);
    if (p->args.max_logits)
        f->max_logits = mem_array((size_t)p->args.heads_q, sizeof *f->max_logits);
    if (!f->sums || (p->args.max_logits && !f->max_logits))
        return error_nomem(err, "the sums of a pass");
    for (int32_t h = 0; f->max_logits && h < p->args.heads_q; h++)
        f->max_logits[h] = -INFINITY;
    return pipeline_publish(p, err);
}

static struct cpu_forward call_of(const struct forward *f, const struct tile_plan *plan,
                                  const ffa_forward_args *args, void *sums)
{
    const struct pipeline *p = &f->pipeline;

    return (struct cpu_forward){ .plan = plan,
                                 .args = args,
                                 .dtype = (ffa_dtype)p->args.dtype,
                                 .head_dim = p->args.head_dim,
                                 .threads = p->args.threads,
                                 .fp64 = p->fp64,
                                 .lse_dtype = (ffa_dtype)p->args.sum_dtype,
                                 .max_logits = f->max_logits,
                                 .sum_out = sums,
                                 .sum_lse = (char *)sums + p->args.head_dim * p->sum_element,
                                 .sum_stride = p->args.head_dim + 1 };
}

static ffa_status compute(struct forward *f, int32_t at, ffa_error *err)
{
    struct pipeline *p = &f->pipeline;
    const struct plan_phase *phase = &p->pass->phases[at];
    const bool sends_back = f->moves_queries && pipeline_is_stage(p, at);
    ffa_forward_args args = pipeline_args(p);
    struct cpu_forward call;
    void *sums = f->sums;
    ffa_status rc;

    if (sends_back) {
        args.q = pipeline_arrived(p, at, 0);
        args.sink_count = 0; /* sinks enter where the query lives */
        FFA_TRY(pipeline_results(p, at, &sums, err));
    } else if (pipeline_is_stage(p, at)) {
        args.k = pipeline_arrived(p, at, 0);
        args.v = pipeline_arrived(p, at, 1);
    }
    call = call_of(f, &phase->tiles, &args, sums);
    FFA_TRY(cpu_forward(&call, err));
    if (sends_back)
        rc = pipeline_hand_over(p, at, err);
out:
    return rc;
}

/* Write the tiles of own queries that others had a part in. */
static ffa_status settle(struct forward *f, ffa_error *err)
{
    struct pipeline *p = &f->pipeline;
    const ffa_forward_args args = pipeline_args(p);
    struct tile_plan plan = { 0 };
    struct cpu_forward call = call_of(f, &plan, &args, f->sums);
    ffa_status rc;

    FFA_TRY(staged_rest(&plan, &p->pass->phases[0].tiles, err));
    FFA_TRY(p->comm->ops->await(p->comm, LANE_COMPUTE, LANE_REDUCE, f->taken_in, err));
    call.max_logits = NULL;
    rc = cpu_forward(&call, err);
out:
    tile_finish(&plan);
    return rc;
}

/* Results of others come in beside the stages; order is what the sums need, not time. */
static ffa_status run_pass(struct forward *f, ffa_error *err)
{
    struct pipeline *p = &f->pipeline;
    const struct comm_reduce merge = { (ffa_dtype)p->args.sum_dtype, p->args.head_dim + 1 };
    ffa_status rc = FFA_OK;

    for (int32_t phase = 0; phase < p->pass->phase_count; phase++) {
        FFA_TRY(pipeline_advance(p, phase, err));
        FFA_TRY(compute(f, phase, err));
        pipeline_computed(p, phase);
        if (f->moves_queries && phase == 0)
            FFA_TRY(pipeline_take_in(p, f->sums, &merge, &f->taken_in, err));
    }
    if (f->moves_queries)
        rc = settle(f, err);
out:
    return rc;
}

static ffa_status join_max(const struct forward *f, ffa_error *err)
{
    const struct pipeline *p = &f->pipeline;
    const size_t heads = (size_t)p->args.heads_q;
    float *all = mem_array((size_t)p->comm->rank_count * heads, sizeof *all);
    ffa_status rc;

    if (!all)
        return error_nomem(err, "max_logits of all ranks");
    rc = p->comm->ops->gather(p->comm, f->max_logits, all, heads * sizeof *all, err);
    for (size_t h = 0; rc == FFA_OK && h < heads; h++) {
        p->args.max_logits[h] = -INFINITY;
        for (size_t r = 0; r < (size_t)p->comm->rank_count; r++)
            p->args.max_logits[h] = fmaxf(p->args.max_logits[h], all[r * heads + h]);
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
    FFA_TRY(pipeline_open(&f.pipeline, plan, comm, args, false, &failure));
    FFA_TRY(begin(&f, &failure));
    FFA_TRY(run_pass(&f, &failure));
    if (f.max_logits)
        rc = join_max(&f, &failure);
out:
    rc = pipeline_close(&f.pipeline, comm, rc, &failure, err);
    mem_free(f.sums);
    mem_free(f.max_logits);
    return rc;
}
