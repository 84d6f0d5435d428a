/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_dispatch_create_best: the dispatches of affinity, of min-heap and, with two chunks a rank, of
 * zigzag are planned as far as tables and stages, and the one whose slowest ranks are done first is
 * kept. Invariant: only tables that all ranks compute alike decide, so all ranks keep the same
 * dispatch.
 *
 * Trick: what the model does not price decides where times are near each other. Affinity's dispatch
 * moves few rows, so it comes before min-heap's. Zigzag's was slower on GPUs than modelled beside
 * the others, but for backward passes over causal masks, where min-heap's was (docs/figures.md). So
 * zigzag has to win by a margin, unless balance counts, where min-heap beats affinity, and there
 * are both passes: then ties are zigzag's.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/plan_tables.h"

#include "mask/mask.h"

/* Where sums of times end. */
#define TIME_MAX (INT64_MAX / 2)
enum {
    CHUNK_TILE = 128,
    TIES = 4096, /* times that differ by less than a TIES-th are the same */
    MARGIN = 16  /* a MARGIN-th of the time: what zigzag takes longer than modelled */
};

/* Of the slowest ranks, over all masks by their weights. */
static ffa_status time_of(int64_t *out, const ffa_dispatch *dispatch,
                          const ffa_dispatch_mask *masks, int32_t mask_count,
                          const ffa_parallel_plan_opts *opts, ffa_error *err)
{
    struct plan_tables_input in = { .topology = dispatch->topology,
                                    .queries = &dispatch->layout,
                                    .keys = dispatch_key_layout(dispatch),
                                    .opts = opts };
    ffa_status rc = FFA_OK;

    *out = 0;
    for (int32_t m = 0; m < mask_count; m++) {
        const int64_t weight = masks[m].weight ? masks[m].weight : 1;
        struct plan_tables tables = { 0 };
        int64_t ns = 0;

        in.mask = masks[m].mask;
        rc = plan_tables_build(&tables, &in, &ns, err);
        plan_tables_finish(&tables);
        if (rc != FFA_OK)
            goto out;
        if (__builtin_mul_overflow(ns, weight, &ns) || __builtin_add_overflow(*out, ns, out) ||
            *out > TIME_MAX)
            *out = TIME_MAX;
    }
out:
    return rc;
}

/* ---- the candidates ---- */

struct candidate {
    ffa_dispatch *dispatch;
    int64_t ns;
};

/* Two chunks a rank: the ith, and the ith from the end. Their tokens: as few as give every rank
 * both, in whole tiles where that leaves the same number of chunks. */
static int64_t zigzag_tokens(int64_t tokens, int32_t ranks)
{
    const int64_t chunks = 2 * (int64_t)ranks;
    const int64_t least = (tokens + chunks - 1) / chunks;
    const int64_t whole = (least + CHUNK_TILE - 1) / CHUNK_TILE * CHUNK_TILE;

    return (tokens + whole - 1) / whole == (tokens + least - 1) / least ? whole : least;
}

/* A caller who says how long chunks are gets them in zigzag, too. */
static void zigzag_opts(ffa_dispatch_opts *opts, int64_t tokens, int32_t ranks)
{
    opts->algorithm = FFA_DISPATCH_ZIGZAG;
    if (opts->cu_chunks || opts->chunk_tokens)
        return;
    opts->flags |= FFA_DISPATCH_CHUNK_EXACT;
    opts->chunk_tokens = zigzag_tokens(tokens, ranks);
}

/* Make a candidate, and keep it if it takes less time than *best, by more than `margin` ns: a
 * negative one wins ties. */
static ffa_status compete(struct candidate *best, const ffa_dispatch_opts *opts,
                          const ffa_dispatch_mask *masks, int32_t mask_count,
                          const ffa_parallel_plan_opts *plan_opts, int64_t margin, ffa_error *err)
{
    const ffa_topology topology = best->dispatch->topology;
    struct candidate other = { 0 };
    ffa_status rc;

    FFA_TRY(ffa_dispatch_create(&other.dispatch, masks, mask_count, &topology, opts, err));
    FFA_TRY(time_of(&other.ns, other.dispatch, masks, mask_count, plan_opts, err));
    if (other.ns < best->ns - margin) {
        const struct candidate loser = *best;

        *best = other;
        other = loser;
    }
out:
    ffa_dispatch_destroy(other.dispatch);
    return rc;
}

ffa_status ffa_dispatch_create_best(ffa_dispatch **out, const ffa_dispatch_mask *masks,
                                    int32_t mask_count, const ffa_topology *topology,
                                    const ffa_dispatch_opts *opts_in,
                                    const ffa_parallel_plan_opts *plan_opts_in, ffa_error *err)
{
    struct candidate best = { 0 };
    ffa_dispatch_opts opts;
    ffa_parallel_plan_opts plan_opts;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(opts_import(&opts, sizeof opts, opts_in, err));
    FFA_TRY(parallel_opts_resolve(&plan_opts, plan_opts_in, err));
    opts.struct_size = (uint32_t)sizeof opts;
    opts.algorithm = FFA_DISPATCH_AFFINITY;
    FFA_TRY(ffa_dispatch_create(&best.dispatch, masks, mask_count, topology, &opts, err));
    if (best.dispatch->algorithm == FFA_DISPATCH_AFFINITY) { /* not min-heap's solution anyway */
        int64_t margin, affinity_ns;

        FFA_TRY(time_of(&best.ns, best.dispatch, masks, mask_count, &plan_opts, err));
        affinity_ns = best.ns;
        opts.algorithm = FFA_DISPATCH_MIN_HEAP;
        FFA_TRY(compete(&best, &opts, masks, mask_count, &plan_opts, 0, err));
        margin = best.ns / MARGIN;
        if (affinity_ns - best.ns > best.ns / TIES &&
            !(plan_opts.flags & FFA_PARALLEL_FORWARD_ONLY))
            margin = -(best.ns / TIES + 1);
        zigzag_opts(&opts, masks[0].mask->shape.seqlen_q, best.dispatch->topology.rank_count);
        FFA_TRY(compete(&best, &opts, masks, mask_count, &plan_opts, margin, err));
    }
    *out = best.dispatch;
    best.dispatch = NULL;
out:
    ffa_dispatch_destroy(best.dispatch);
    return rc;
}
