/* SPDX-License-Identifier: Apache-2.0
 *
 * What launches over keys that arrive have beyond those of whole plans: arrivals and departures,
 * from the plan's stages and the call's addresses. Invariant: a plan of arriving keys runs with an
 * arriving_call only, and an ordinary plan without one. The kernels count a stage's departures by
 * warp, so that the number expected here and the warps of the kernel must agree
 * (backward_arrivals.h).
 */
#include "attention/arriving.h"

#include <limits.h>

_Static_assert((int)TILE_STAGES_MAX == (int)ARRIVAL_STAGES_MAX, "stages of plans and of launches");

ffa_status arriving_check(const ffa_kernels *kernels, const ffa_plan *plan,
                          const struct arriving_call *call, ffa_error *err)
{
    if (!plan->arriving.count != !call)
        return error_fail(err, FFA_INVALID, 0,
                          call ? "the plan is one of keys that are there, the call is for keys "
                                 "that arrive"
                               : "the plan is one of keys that arrive: the pass of context "
                                 "parallelism that it was made for runs it");
    if (!call)
        return FFA_OK;
    if (!kernels->is_parallel)
        return error_fail(err, FFA_INVALID, 0, "the kernels were made without FFA_SPEC_PARALLEL");
    if (!kernels_are_loaded(kernels))
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "keys arrive on a GPU, the kernels are of the CPU backend");
    if (!call->flags && plan->arriving.count > 1)
        return error_fail(err, FFA_INVALID, 0, "flags is NULL, the plan has %d stages",
                          plan->arriving.count);
    return FFA_OK;
}

struct arrivals arrivals_of(const ffa_plan *plan, const struct arriving_call *call)
{
    struct arrivals to = { .flags = NULL };

    if (!call)
        return to;
    to.flags = (const unsigned long long *)(const void *)call->flags;
    to.value = call->value;
    to.count = plan->arriving.count;
    to.patience_ms = call->patience_ms;
    memcpy(to.stage_end, plan->arriving.stage_end, sizeof to.stage_end);
    return to;
}

ffa_status departures_fill(struct departures *out, const ffa_plan *plan,
                           const struct arriving_call *call, int64_t tile_warps, int *counters,
                           ffa_error *err)
{
    *out = (struct departures){
        .counters = counters,
        .blocks = (unsigned long long *const *)(const void *)call->blocks,
        .owners = call->owners,
        .slot = call->slot,
        .value = call->value,
    };
    for (int s = 0; s < plan->arriving.count; s++) {
        const int64_t tiles = plan->arriving.stage_tiles[s];

        out->owner_at[s + 1] = call->owner_at[s + 1];
        if (call->owner_at[s + 1] == call->owner_at[s])
            continue;
        if (tiles < 1 || tiles > INT_MAX / tile_warps)
            return error_fail(err, FFA_INVALID, 0,
                              "stage %d has owners and %lld key tiles x %lld warps, not 1 to 2^31",
                              s, (long long)tiles, (long long)tile_warps);
        out->expected[s] = (int)(tiles * tile_warps);
    }
    return FFA_OK;
}
