/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_dispatch_report_get: what a dispatch costs, rank by rank, over all its masks. It stands
 * beside plans and not beside dispatches because received rows are counted by a walk over all
 * pieces.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/transfer.h"

/* Sums and maxima go over the figures of an ffa_dispatch_load, which are int64_t throughout. */
enum {
    LOAD_BEGIN = offsetof(ffa_dispatch_load, tokens),
    LOAD_FIELDS = (sizeof(ffa_dispatch_load) - LOAD_BEGIN) / sizeof(int64_t)
};

static void figures_get(int64_t out[LOAD_FIELDS], const ffa_dispatch_load *load)
{
    memcpy(out, (const char *)load + LOAD_BEGIN, LOAD_FIELDS * sizeof *out);
}

static void figures_set(ffa_dispatch_load *load, const int64_t figures[LOAD_FIELDS])
{
    load->struct_size = (uint32_t)sizeof *load;
    memcpy((char *)load + LOAD_BEGIN, figures, LOAD_FIELDS * sizeof *figures);
}

static void gather(ffa_dispatch_report *out, const ffa_dispatch_load *ranks, int32_t rank_count)
{
    int64_t from[LOAD_FIELDS], total[LOAD_FIELDS] = { 0 }, most[LOAD_FIELDS] = { 0 };

    for (int32_t r = 0; r < rank_count; r++) {
        figures_get(from, &ranks[r]);
        for (int i = 0; i < LOAD_FIELDS; i++) {
            total[i] += from[i];
            most[i] = from[i] > most[i] ? from[i] : most[i];
        }
    }
    figures_set(&out->total, total);
    figures_set(&out->most, most);
}

static double imbalance(int64_t most, int64_t total, int32_t ranks)
{
    return total > 0 ? (double)most * ranks / (double)total - 1 : 0;
}

static ffa_status measure(const ffa_dispatch *d, ffa_dispatch_load *ranks, ffa_error *err)
{
    const struct layout *keys = dispatch_key_layout(d);
    const struct rank_needs_input in = { &d->layout, keys, &d->needs, d->topology };
    struct rank_needs needs = { 0 };
    ffa_status rc;

    for (int64_t c = 0; c < d->layout.count; c++) {
        ffa_dispatch_load *rank = &ranks[d->layout.rank_of[c]];

        rank->load += d->load[c];
        rank->area += d->area[c];
        rank->visited += d->visited[c];
    }
    FFA_TRY(rank_needs_build(&needs, &in, err));
    rc = transfer_measure(&needs, ranks, err);
out:
    rank_needs_finish(&needs);
    return rc;
}

ffa_status ffa_dispatch_report_get(const ffa_dispatch *dispatch, ffa_dispatch_report *report,
                                   ffa_dispatch_load *ranks, ffa_error *err)
{
    ffa_dispatch_load *loads;
    ffa_dispatch_report out = { 0 };
    int32_t rank_count;
    ffa_status rc;

    if (!dispatch || !report)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", dispatch ? "report" : "dispatch");
    rank_count = dispatch->topology.rank_count;
    loads = mem_array((size_t)rank_count, sizeof *loads);
    if (!loads)
        return error_nomem(err, "a report");
    FFA_TRY(measure(dispatch, loads, err));
    gather(&out, loads, rank_count);
    out.algorithm = dispatch->algorithm;
    out.chunk_count = dispatch->layout.count;
    out.load_imbalance = imbalance(out.most.load, out.total.load, rank_count);
    out.visited_imbalance = imbalance(out.most.visited, out.total.visited, rank_count);
    out.swap_gain = dispatch->swap_gain;
    if (ranks)
        FFA_TRY(opts_export_all(ranks, rank_count, loads, sizeof *loads, err));
    rc = opts_export(report, &out, sizeof out, err);
out:
    mem_free(loads);
    return rc;
}
