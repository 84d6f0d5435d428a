/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_dispatch_create_best: min-heap's dispatch and affinity's are both planned as far as tables
 * and stages, and the one whose slowest ranks are done first is kept. Invariant: only tables that
 * all ranks compute alike decide, so all ranks keep the same dispatch. Ties go to affinity's, which
 * moves fewer rows.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/plan_tables.h"

/* Where sums of times end. */
#define TIME_MAX (INT64_MAX / 2)

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

ffa_status ffa_dispatch_create_best(ffa_dispatch **out, const ffa_dispatch_mask *masks,
                                    int32_t mask_count, const ffa_topology *topology,
                                    const ffa_dispatch_opts *opts_in,
                                    const ffa_parallel_plan_opts *plan_opts_in, ffa_error *err)
{
    ffa_dispatch *heap = NULL, *affine = NULL;
    ffa_dispatch_opts opts;
    ffa_parallel_plan_opts plan_opts;
    int64_t heap_ns, affine_ns;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(opts_import(&opts, sizeof opts, opts_in, err));
    FFA_TRY(parallel_opts_resolve(&plan_opts, plan_opts_in, err));
    opts.struct_size = (uint32_t)sizeof opts;
    opts.algorithm = FFA_DISPATCH_AFFINITY;
    FFA_TRY(ffa_dispatch_create(&affine, masks, mask_count, topology, &opts, err));
    if (affine->algorithm == FFA_DISPATCH_AFFINITY) { /* not min-heap's solution anyway */
        opts.algorithm = FFA_DISPATCH_MIN_HEAP;
        FFA_TRY(ffa_dispatch_create(&heap, masks, mask_count, topology, &opts, err));
        FFA_TRY(time_of(&affine_ns, affine, masks, mask_count, &plan_opts, err));
        FFA_TRY(time_of(&heap_ns, heap, masks, mask_count, &plan_opts, err));
    }
    if (heap && heap_ns < affine_ns) {
        *out = heap;
        heap = NULL;
    } else {
        *out = affine;
        affine = NULL;
    }
out:
    ffa_dispatch_destroy(heap);
    ffa_dispatch_destroy(affine);
    return rc;
}
