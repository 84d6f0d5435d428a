/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_dispatch_report_get: what a dispatch costs, rank by rank, over all its masks. It stands
 * beside plans and not beside dispatches because received rows are counted by a walk over all
 * pieces.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/transfer.h"

/* ffa_dispatch_load is int64_t throughout: sums and maxima go over its fields as an array. */
enum { LOAD_FIELDS = sizeof(ffa_dispatch_load) / sizeof(int64_t) };

static void gather(ffa_dispatch_report *out, const ffa_dispatch_load *ranks, int32_t rank_count)
{
    for (int32_t r = 0; r < rank_count; r++) {
        int64_t from[LOAD_FIELDS], total[LOAD_FIELDS], most[LOAD_FIELDS];

        memcpy(from, &ranks[r], sizeof from);
        memcpy(total, &out->total, sizeof total);
        memcpy(most, &out->most, sizeof most);
        for (int i = 0; i < LOAD_FIELDS; i++) {
            total[i] += from[i];
            most[i] = from[i] > most[i] ? from[i] : most[i];
        }
        memcpy(&out->total, total, sizeof total);
        memcpy(&out->most, most, sizeof most);
    }
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

    memset(ranks, 0, (size_t)d->topology.rank_count * sizeof *ranks);
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
    ffa_dispatch_load *made = NULL;
    ffa_dispatch_report out = { 0 };
    ffa_status rc;

    if (!dispatch || !report)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", dispatch ? "report" : "dispatch");
    if (!ranks) {
        ranks = made = mem_array((size_t)dispatch->topology.rank_count, sizeof *made);
        if (!made)
            return error_nomem(err, "a report");
    }
    FFA_TRY(measure(dispatch, ranks, err));
    gather(&out, ranks, dispatch->topology.rank_count);
    out.algorithm = dispatch->algorithm;
    out.chunk_count = dispatch->layout.count;
    out.load_imbalance = imbalance(out.most.load, out.total.load, dispatch->topology.rank_count);
    out.visited_imbalance =
        imbalance(out.most.visited, out.total.visited, dispatch->topology.rank_count);
    out.swap_gain = dispatch->swap_gain;
    rc = opts_export(report, &out, sizeof out, err);
out:
    mem_free(made);
    return rc;
}
