/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_simulate: the mask as bands, the options resolved, then every method in turn at the same
 * prices. Invariant: a method that cannot be used in a world says why in its result; an error is
 * only what concerns all methods.
 */
#include "mask/mask.h"
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/time_model.h"
#include "simulate/baselines.h"
#include "simulate/simulate_plan.h"

enum { CHUNKS_OF_ALL = 8192 };

const char *ffa_sim_method_text(int32_t method)
{
    static const char *const names[FFA_SIM_METHODS] = { "plan", "relayed", "all-gather",
                                                        "ring", "zigzag",  "ulysses" };

    return method >= 0 && method < FFA_SIM_METHODS ? names[method] : NULL;
}

/* ---- the whole ---- */

static ffa_status check(const ffa_mask *mask, const ffa_topology *topology, struct sim *sim,
                        ffa_error *err)
{
    ffa_status rc;

    if (!mask || !topology)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", mask ? "topology" : "mask");
    FFA_TRY(topology_resolve(&sim->topology, topology, err));
    if (mask->shape.seqlen_q != mask->shape.seqlen_k)
        return error_fail(err, FFA_INVALID, 0,
                          "mask has %lld queries and %lld keys: self-attention "
                          "is what is modelled",
                          (long long)mask->shape.seqlen_q, (long long)mask->shape.seqlen_k);
    FFA_TRY(check_mask_lists("model.", mask->head_count, sim->opts.model.heads_kv, err));
    if (ffa_mask_area(mask, -1) == 0)
        return error_fail(err, FFA_INVALID, 0, "mask attends nothing");
out:
    return rc;
}

static ffa_status take_bands(struct sim *sim, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    sim->lists = mem_array((size_t)sim->mask->head_count, sizeof *sim->lists);
    if (!sim->lists)
        return error_nomem(err, "bands");
    sim->list_count = sim->mask->head_count;
    for (int32_t l = 0; l < sim->list_count; l++) {
        FFA_TRY(bands_add_normal(&sim->lists[l], &sim->mask->lists[l].normal, err));
        for (int64_t b = 0; b < sim->lists[l].count; b++)
            sim->cells = area_add(sim->cells, model_visited(&sim->lists[l].at[b], 0, sim->tokens));
    }
out:
    return rc;
}

static ffa_status price_alone(struct sim *sim, ffa_error *err)
{
    struct layout all = { 0 };
    const ffa_status rc = layout_replicate(&all, sim->tokens, 1, err);

    if (rc == FFA_OK)
        sim->whole = price_tiles(sim, &all, 0);
    for (int is_backward = 0; is_backward < 2; is_backward++)
        sim->alone_ns[is_backward] = price_compute_ns(
            sim, area_add(sim->cells, price_begin_cells(sim, sim->tokens, is_backward)),
            is_backward);
    sim->alone_ns[0] += price_tiles_ns(sim, &sim->whole, sim->cells);
    layout_finish(&all);
    return rc;
}

/* More chunks than needed make the tables of thousands of ranks large, not better. */
static void choose_chunk(struct sim *sim)
{
    const int64_t usual = chunk_tokens_default(sim->tokens, sim->topology.rank_count);
    const int64_t least = (sim->tokens + CHUNKS_OF_ALL - 1) / CHUNKS_OF_ALL;

    if (!sim->given.chunk_tokens && least > usual)
        sim->given.chunk_tokens = least;
}

static ffa_status run_methods(ffa_sim_result out[FFA_SIM_METHODS], struct sim *sim, ffa_error *err)
{
    ffa_status rc;

    for (int32_t m = 0; m < FFA_SIM_METHODS; m++)
        out[m] = (ffa_sim_result){ .method = m, .is_possible = 1 };
    FFA_TRY(sim_plan(&out[FFA_SIM_PLAN], &out[FFA_SIM_RELAYED], sim, err));
    FFA_TRY(sim_all_gather(&out[FFA_SIM_ALL_GATHER], sim, err));
    FFA_TRY(sim_ring(&out[FFA_SIM_RING], sim, false, err));
    FFA_TRY(sim_ring(&out[FFA_SIM_ZIGZAG], sim, true, err));
    rc = sim_ulysses(&out[FFA_SIM_ULYSSES], sim, err);
out:
    return rc;
}

ffa_status ffa_simulate(ffa_sim_result *out, int32_t count, ffa_sim_opts *resolved,
                        const ffa_mask *mask, const ffa_topology *topology,
                        const ffa_sim_opts *opts, ffa_error *err)
{
    ffa_parallel_plan_opts plan = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_sim_result results[FFA_SIM_METHODS] = { { 0 } };
    struct sim sim = { .mask = mask };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    if (count < 1 || count > FFA_SIM_METHODS)
        return error_fail(err, FFA_INVALID, 0, "count is %d, not in [1, %d]", count,
                          FFA_SIM_METHODS);
    FFA_TRY(opts_export_all(out, count, results, sizeof *results, err));
    FFA_TRY(opts_import(&sim.given, sizeof sim.given, opts, err));
    plan.model = sim.given.model;
    plan.head_dim_v = sim.given.head_dim_v;
    plan.memory_bytes = sim.given.memory_bytes;
    plan.sms = sim.given.sms;
    plan.forward_begin_keys = sim.given.forward_begin_keys;
    plan.backward_begin_rows = sim.given.backward_begin_rows;
    plan.window_mbytes_s = sim.given.window_mbytes_s;
    FFA_TRY(parallel_opts_resolve(&sim.opts, &plan, err));
    FFA_TRY(check(mask, topology, &sim, err));
    sim.tokens = mask->shape.seqlen_q;
    choose_chunk(&sim);
    FFA_TRY(take_bands(&sim, err));
    FFA_TRY(price_alone(&sim, err));
    FFA_TRY(run_methods(results, &sim, err));
    sim.given.model = sim.opts.model;
    sim.given.head_dim_v = sim.opts.head_dim_v;
    sim.given.forward_begin_keys = sim.opts.forward_begin_keys;
    sim.given.backward_begin_rows = sim.opts.backward_begin_rows;
    sim.given.window_mbytes_s = sim.opts.window_mbytes_s;
    if (resolved)
        FFA_TRY(opts_export(resolved, &sim.given, sizeof sim.given, err));
    rc = opts_export_all(out, count, results, sizeof *results, err);
out:
    for (int32_t l = 0; sim.lists && l < sim.list_count; l++)
        bands_finish(&sim.lists[l]);
    mem_free(sim.lists);
    return rc;
}
