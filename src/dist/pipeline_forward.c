/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass of one rank: its own keys while the first stage arrives, then stage after stage.
 */
#include "dist/pipeline.h"

#include <math.h>

struct forward {
    struct pipeline pipeline;
    void *sum_out, *sum_lse;
    float *max_logits; /* [heads_q], of this rank; or NULL */
};

static ffa_status allocate(struct forward *f, ffa_error *err)
{
    const struct pipeline *p = &f->pipeline;
    const size_t rows = (size_t)(p->tokens * p->args.heads_q), element = (size_t)p->sum_element;

    f->sum_out = mem_array(rows * (size_t)p->args.head_dim, element);
    f->sum_lse = mem_array(rows, element);
    if (p->args.max_logits)
        f->max_logits = mem_array((size_t)p->args.heads_q, sizeof *f->max_logits);
    if (!f->sum_out || !f->sum_lse || (p->args.max_logits && !f->max_logits))
        return error_nomem(err, "the sums of a pass");
    for (int32_t h = 0; f->max_logits && h < p->args.heads_q; h++)
        f->max_logits[h] = -INFINITY;
    return FFA_OK;
}

static ffa_status compute(const struct forward *f, int32_t at, ffa_error *err)
{
    const struct pipeline *p = &f->pipeline;
    const struct plan_phase *phase = &p->pass->phases[at];
    const ffa_forward_args args = pipeline_args(p, at);
    const struct cpu_forward call = { .plan = &phase->tiles,
                                      .args = &args,
                                      .dtype = (ffa_dtype)p->args.dtype,
                                      .head_dim = p->args.head_dim,
                                      .threads = p->args.threads,
                                      .fp64 = p->fp64,
                                      .lse_dtype = (ffa_dtype)p->args.sum_dtype,
                                      .max_logits = f->max_logits,
                                      .flags = phase->flags,
                                      .sum_out = f->sum_out,
                                      .sum_lse = f->sum_lse };

    return cpu_forward(&call, err);
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

ffa_status ffa_dist_forward_host(const ffa_dist_plan *plan, ffa_comm *comm,
                                 const ffa_dist_args *args, ffa_error *err)
{
    ffa_error failure = { FFA_OK, 0, "" };
    struct forward f = { 0 };
    ffa_status rc;

    if (!comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    FFA_TRY(pipeline_open(&f.pipeline, plan, comm, args, false, &failure));
    FFA_TRY(allocate(&f, &failure));
    FFA_TRY(pipeline_publish(&f.pipeline, &failure));
    for (int32_t phase = 0; phase < f.pipeline.pass->phase_count; phase++) {
        FFA_TRY(pipeline_advance(&f.pipeline, phase, &failure));
        FFA_TRY(compute(&f, phase, &failure));
        pipeline_computed(&f.pipeline, phase);
    }
    if (f.max_logits)
        rc = join_max(&f, &failure);
out:
    rc = pipeline_close(&f.pipeline, comm, rc, &failure, err);
    mem_free(f.sum_out);
    mem_free(f.sum_lse);
    mem_free(f.max_logits);
    return rc;
}
