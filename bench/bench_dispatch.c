/* SPDX-License-Identifier: Apache-2.0
 *
 * Planning of context parallelism: the time of a dispatch and of one rank's plan, and the load and
 * traffic that the dispatch leads to. One thread, no GPU.
 *
 *   bench_dispatch [--json]
 *
 * Exit 1 where a median is above its limit. The solver with swaps has no limit, because a count
 * bounds its search.
 *
 * Packed causal documents come from a seeded generator. Nodes have 8 ranks. Times are the least and
 * the median of several runs; a run starts from the mask object.
 */
#include "base/base.h"

#include <ffa/parallel_plan.h>

#include <stdio.h>

enum { RUNS = 15, DOCUMENTS_MAX = 1 << 16 };

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int compare_i64(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void must(ffa_status rc, const ffa_error *err)
{
    if (rc == FFA_OK)
        return;
    fprintf(stderr, "bench_dispatch: %s\n", err->message);
    exit(1);
}

/* Documents of 64 to 32768 tokens, short ones more often. */
static ffa_mask *documents(int64_t tokens)
{
    int64_t *cu = calloc(DOCUMENTS_MAX, sizeof *cu), count = 0;
    uint64_t state = 1;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    while (cu[count] < tokens) {
        int64_t length = 64 + (int64_t)(draw(&state) % 193);

        length <<= draw(&state) % 8;
        cu[count + 1] = cu[count] + length < tokens ? cu[count] + length : tokens;
        count++;
    }
    must(ffa_mask_varlen_causal(&mask, &(ffa_documents){ .cu_q = cu, .document_count = count },
                                &err),
         &err);
    free(cu);
    return mask;
}

static ffa_mask *causal(int64_t tokens)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    must(ffa_mask_causal(&mask, &(ffa_mask_shape){ tokens, tokens }, &err), &err);
    return mask;
}

static const struct {
    const char *mask;
    ffa_mask *(*make)(int64_t tokens);
    int64_t tokens;
    int32_t ranks;
    int64_t limit_us; /* of the dispatch, without swaps, plus one rank's plan */
} masks[] = {
    { "varlen_causal", documents, 65536, 8, 1000 },
    { "causal", causal, 65536, 8, 1000 },
    { "varlen_causal", documents, 1048576, 64, 10000 },
    { "causal", causal, 1048576, 64, 10000 },
};

static const struct {
    const char *name;
    int32_t algorithm;
    int64_t swap_max;
} solvers[] = {
    { "min_heap", FFA_DISPATCH_MIN_HEAP, -1 },
    { "zigzag", FFA_DISPATCH_ZIGZAG, -1 },
    { "affinity", FFA_DISPATCH_AFFINITY, -1 },
    { "affinity+swaps", FFA_DISPATCH_AFFINITY, 0 },
};

static bool is_late; /* some median is above its limit */

static void report(size_t m, size_t s, const ffa_mask *mask, bool json)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { masks[m].ranks, 8 };
    int64_t times[RUNS], plans[RUNS];
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_report out = FFA_DISPATCH_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.algorithm = solvers[s].algorithm;
    opts.swap_max = solvers[s].swap_max;
    for (int32_t r = 0; r < RUNS; r++) {
        ffa_parallel_plan *plan;
        ffa_dispatch *d;
        const int64_t begin = clock_us();
        int64_t middle;

        must(ffa_dispatch_create(&d, &one, 1, &topology, &opts, &err), &err);
        middle = clock_us();
        must(ffa_parallel_plan_create(&plan, d, mask, topology.rank_count / 2, NULL, &err), &err);
        times[r] = clock_us() - begin;
        plans[r] = clock_us() - middle;
        if (r == 0)
            must(ffa_dispatch_report_get(d, &out, NULL, &err), &err);
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(d);
    }
    qsort(times, RUNS, sizeof *times, compare_i64);
    qsort(plans, RUNS, sizeof *plans, compare_i64);
    is_late = is_late || (opts.swap_max != 0 && times[RUNS / 2] > masks[m].limit_us);
    printf(json ? "{\"bench\":\"parallel\",\"mask\":\"%s\",\"tokens\":%lld,\"ranks\":%d,\"solver\":"
                  "\"%s\","
                  "\"min_us\":%lld,\"median_us\":%lld,\"plan_us\":%lld,\"limit_us\":%lld,"
                  "\"imbalance\":%.4f,\"received\":%lld,\"network_once\":%lld}\n"
                : "%-14s %8lld tokens %3d ranks %-15s min %6lld  median %6lld us (one rank's plan "
                  "%5lld)  "
                  "limit %5lld  imbalance %.4f  received %9lld  network, once a node %9lld\n",
           masks[m].mask, (long long)masks[m].tokens, masks[m].ranks, solvers[s].name,
           (long long)times[0], (long long)times[RUNS / 2], (long long)plans[RUNS / 2],
           (long long)masks[m].limit_us, out.load_imbalance,
           (long long)(out.total.received_node + out.total.received_network),
           (long long)(out.total.received_network - out.total.received_relayed));
}

/* A dispatch and a plan that are found in the cache, for a mask object that it has seen. */
static void report_cached(size_t m, const ffa_mask *mask, bool json)
{
    enum { LOOKUPS = 20000 };
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { masks[m].ranks, 8 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_cache *cache;
    ffa_dispatch *d;
    ffa_parallel_plan *plan;
    int64_t begin, middle, end;

    must(ffa_parallel_cache_create(&cache, 0, &err), &err);
    must(ffa_parallel_cache_dispatch(cache, &d, &one, 1, &topology, NULL, &err), &err);
    must(ffa_parallel_cache_plan(cache, &plan, d, mask, 0, NULL, &err), &err);
    begin = clock_us();
    for (int i = 0; i < LOOKUPS; i++) {
        ffa_dispatch *again;

        must(ffa_parallel_cache_dispatch(cache, &again, &one, 1, &topology, NULL, &err), &err);
        ffa_dispatch_destroy(again);
    }
    middle = clock_us();
    for (int i = 0; i < LOOKUPS; i++) {
        ffa_parallel_plan *again;

        must(ffa_parallel_cache_plan(cache, &again, d, mask, 0, NULL, &err), &err);
        ffa_parallel_plan_destroy(again);
    }
    end = clock_us();
    is_late = is_late || middle - begin > LOOKUPS || end - middle > LOOKUPS; /* 1 us each */
    printf(
        json ? "{\"bench\":\"plan_cached\",\"mask\":\"%s\",\"tokens\":%lld,\"ranks\":%d,"
               "\"dispatch_ns\":%lld,\"plan_ns\":%lld,\"limit_ns\":1000}\n"
             : "%-14s %8lld tokens %3d ranks cached: dispatch %lld ns, plan %lld ns, limit 1000\n",
        masks[m].mask, (long long)masks[m].tokens, masks[m].ranks,
        (long long)((middle - begin) * 1000 / LOOKUPS),
        (long long)((end - middle) * 1000 / LOOKUPS));
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(d);
    ffa_parallel_cache_destroy(cache);
}

int main(int argc, char **argv)
{
    const bool json = argc == 2 && !strcmp(argv[1], "--json");

    if (argc > 1 && !json) {
        fprintf(stderr, "usage: bench_dispatch [--json]\n");
        return 2;
    }
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
        ffa_mask *mask = masks[m].make(masks[m].tokens);

        for (size_t s = 0; s < sizeof solvers / sizeof *solvers; s++)
            report(m, s, mask, json);
        report_cached(m, mask, json);
        ffa_mask_destroy(mask);
    }
    return is_late;
}
