/* SPDX-License-Identifier: Apache-2.0
 *
 * The model against arithmetic done by hand where a method's time has a closed form, against the
 * planner's own figures, and against what must hold of any model.
 */
#include "base/base.h"
#include "support/suite.h"

#include <ffa/ffa.h>

#include <check.h>
#include <math.h>
#include <stdio.h>

enum { TOKENS = 8192, HEADS = 8, DIM = 128 };

/* Full, `ranks` in nodes of `width`; 8:8 heads, or the model given. */
static void simulate(ffa_sim_result *out, const char *text, int32_t ranks, int32_t width,
                     const ffa_parallel_model *model)
{
    const ffa_topology topology = { ranks, width };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    if (model)
        opts.model = *model;
    else
        opts.model.heads_kv = HEADS;
    ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    ck_assert_msg(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, &err) == FFA_OK,
                  "%s", err.message);
    ffa_mask_destroy(mask);
}

/* Nanoseconds at the header's defaults. */
static double compute(double cells, int backward)
{
    return cells * (backward ? 10 : 4) * DIM * HEADS / (backward ? 500e3 : 600e3) + 5000;
}

static double node_wire(double bytes)
{
    return 13000 + bytes / 250e9 * 1e9;
}

static double network_wire(double bytes)
{
    return 30000 + bytes / 45e9 * 1e9;
}

static void expect(int64_t got, double want, const char *what)
{
    ck_assert_msg(fabs((double)got - want) <= 0.005 * want + 20, "%s is %lld ns, not %.0f", what,
                  (long long)got, want);
}

/* A full mask in `_i` nodes of 4: every rank has the same work in every step. */
START_TEST(closed_forms)
{
    const int32_t nodes = _i, ranks = 4 * nodes;
    const double all = (double)TOKENS * TOKENS, key = 2.0 * HEADS * DIM;
    const double rows = (double)TOKENS / ranks, keys = rows * key * 2;
    const double step = nodes > 1 ? network_wire(keys) : node_wire(keys);
    const double home = nodes > 1 ? network_wire(keys) : node_wire(2 * keys);
    const double part = all / ranks / ranks;
    const double node = (TOKENS * key * 2 * (ranks - 1)) / ranks;
    const double network = TOKENS * key * 2 * (nodes - 1) / nodes / 4;
    const double gather = (nodes > 1 ? fmax(network / 45, (node - network) / 250) : node / 250) +
                          (nodes - 1) * 30000.0 + 3 * 13000.0;
    const double row = (double)DIM * 2 * TOKENS, heads = (double)HEADS / ranks;
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    double forward, backward;

    simulate(out, "full:8192", ranks, 4, NULL);
    forward = (ranks - 1) * fmax(compute(part, 0), step) + compute(part, 0);
    expect(out[FFA_SIM_RING].forward.ns, forward, "ring");
    expect(out[FFA_SIM_ZIGZAG].forward.ns, forward, "zigzag");
    backward = fmax(compute(part, 1), step) + (ranks - 2) * fmax(compute(part, 1), step + home) +
               fmax(compute(part, 1), home) + home;
    expect(out[FFA_SIM_RING].backward.ns, backward, "ring, backward");
    expect(out[FFA_SIM_ALL_GATHER].forward.ns, gather + compute(all / ranks, 0), "all-gather");
    if (ranks <= HEADS) {
        const double near = row * heads / ranks * 3;
        const double far = nodes > 1 ? row * heads / ranks * 4 : 0;
        const double latency = nodes > 1 ? 30000 : 13000;

        expect(out[FFA_SIM_ULYSSES].forward.ns,
               2 * latency + fmax(3 * near / 250, 3 * far / 45) + fmax(near / 250, far / 45) +
                   compute(all / ranks, 0),
               "ulysses");
    } else {
        ck_assert_int_eq(out[FFA_SIM_ULYSSES].is_possible, 0);
        ck_assert_str_eq(out[FFA_SIM_ULYSSES].why_not, "8:8 heads do not spread over 12 ranks");
    }
}
END_TEST

/* One rank needs nobody. */
START_TEST(one_rank_is_as_fast_as_one_rank)
{
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };

    simulate(out, "varlen-causal:3000,5192", 1, 8, NULL);
    for (int m = 0; m < FFA_SIM_METHODS; m++) {
        ck_assert_int_eq(out[m].method, m);
        ck_assert_int_eq(out[m].is_possible, 1);
        ck_assert_int_eq(out[m].node_bytes + out[m].network_bytes, 0);
        ck_assert_double_eq_tol(out[m].forward.efficiency, 1, 0.06);
        ck_assert_double_eq_tol(out[m].backward.efficiency, 1, 0.06);
    }
}
END_TEST

static const char *const masks[] = { "causal:65536", "varlen-causal:9000,20000,300,36236",
                                     "shared-question:4096,30000,31440",
                                     "window:65536,left=4096,right=0",
                                     "block-causal:40000,25536/block=2048" };

/* The timeline of a plan is the planner's own, but for waiting where many want the same. */
START_TEST(the_plan_is_the_planners)
{
    const ffa_topology topology = { 8, 0 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    int64_t compute_ns = 0;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    ffa_dispatch_mask one;

    opts.model.heads_kv = HEADS;
    ck_assert_int_eq(ffa_mask_parse(&mask, masks[_i], NULL), FFA_OK);
    one = (ffa_dispatch_mask){ mask, 1 };
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    for (int32_t r = 0; r < 8; r++) {
        ffa_parallel_plan *plan;

        ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, r, &opts, NULL), FFA_OK);
        ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
        compute_ns = info.forward_compute_ns > compute_ns ? info.forward_compute_ns : compute_ns;
        ffa_parallel_plan_destroy(plan);
    }
    simulate(out, masks[_i], 8, 0, NULL);
    ck_assert_int_eq(out[FFA_SIM_PLAN].forward.compute_ns, compute_ns);
    ck_assert_int_ge(out[FFA_SIM_PLAN].forward.ns, info.forward_slowest_ns);
    ck_assert_int_ge(out[FFA_SIM_PLAN].backward.ns, info.backward_slowest_ns);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Bytes are those of the dispatch's own report. */
START_TEST(bytes_are_those_of_the_dispatch)
{
    const ffa_topology topology = { 24, 4 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch_load ranks[24] = { FFA_DISPATCH_LOAD_INIT };
    const int64_t key_bytes = 2 * HEADS * DIM * 2;
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    int64_t crossed = 0;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    ffa_dispatch_mask one;

    ck_assert_int_eq(ffa_mask_parse(&mask, masks[_i], NULL), FFA_OK);
    one = (ffa_dispatch_mask){ mask, 1 };
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, ranks, NULL), FFA_OK);
    simulate(out, masks[_i], 24, 4, NULL);
    ck_assert_int_eq(out[FFA_SIM_PLAN].node_bytes, report.most.received_node * key_bytes);
    ck_assert_int_eq(out[FFA_SIM_PLAN].network_bytes, report.most.received_network * key_bytes);
    for (int r = 0; r < 24; r++) {
        const int64_t tokens = ranks[r].received_network - ranks[r].received_relayed;

        crossed = tokens > crossed ? tokens : crossed;
    }
    ck_assert_int_eq(out[FFA_SIM_RELAYED].network_bytes, crossed * key_bytes);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Work is conserved, and better links never hurt what does not plan by them. */
START_TEST(what_holds_of_any_model)
{
    ffa_parallel_model better = { .heads_kv = HEADS,
                                  .node_mbytes_s = 500000,
                                  .network_mbytes_s = 90000,
                                  .network_latency_ns = 15000,
                                  .node_latency_ns = 6500 };
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_result fast[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };

    simulate(out, masks[_i], 32, 8, NULL);
    simulate(fast, masks[_i], 32, 8, &better);
    for (int m = 0; m < FFA_SIM_ULYSSES; m++) {
        ck_assert_int_eq(out[m].is_possible, 1);
        ck_assert_int_ge(out[m].forward.ns, out[m].forward.compute_ns);
        ck_assert_int_ge(out[m].backward.ns, out[m].backward.compute_ns);
        ck_assert_double_gt(out[m].forward.efficiency, 0);
        ck_assert_double_lt(out[m].forward.efficiency, 1.08); /* what tiles waste differs by cut */
        if (m >= FFA_SIM_ALL_GATHER) {
            ck_assert_int_le(fast[m].forward.ns, out[m].forward.ns);
            ck_assert_int_le(fast[m].backward.ns, out[m].backward.ns);
        }
    }
}
END_TEST

START_TEST(options_come_back_resolved)
{
    const ffa_topology topology = { 16, 8 };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT, resolved = FFA_SIM_OPTS_INIT;
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:1000", NULL), FFA_OK);
    opts.chunk_tokens = 30;
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, &resolved, mask, &topology, &opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(resolved.chunk_tokens, 30);
    ck_assert_int_eq(resolved.model.heads_q, 8);
    ck_assert_int_eq(resolved.model.network_mbytes_s, 45000);
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, &resolved, mask, &topology, NULL, NULL),
                     FFA_OK);
    ck_assert_int_eq(resolved.chunk_tokens, 8); /* 1000 / (8 * 16), rounded up */
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(bad_arguments)
{
    const ffa_topology topology = { 4, 0 }, none = { 0, 0 }, many = { 64, 8 };
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask, *cross, *empty, *tiny;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:64", NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_parse(&cross, "full:64x32", NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_parse(&tiny, "full:40", NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&empty, &(ffa_mask_shape){ 8, 8 }, NULL, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_simulate(NULL, FFA_SIM_METHODS, NULL, mask, &topology, NULL, &err),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, NULL, &topology, NULL, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "mask is NULL");
    ck_assert_int_eq(ffa_simulate(out, 7, NULL, mask, &topology, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "count is 7, not in [1, 6]");
    out[0].struct_size = 0;
    ck_assert_int_eq(ffa_simulate(out, 6, NULL, mask, &topology, NULL, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "struct_size is 0"));
    out[0].struct_size = (uint32_t)sizeof *out;
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &none, NULL, &err),
                     FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "rank_count is 0"));
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, cross, &topology, NULL, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message,
                     "mask has 64 queries and 32 keys: self-attention is what is modelled");
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, empty, &topology, NULL, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "mask attends nothing");
    opts.model.node_mbytes_s = -1;
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, &err),
                     FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "model.node_mbytes_s is -1"));
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, tiny, &many, NULL, &err), FFA_OK);
    ck_assert_str_eq(out[FFA_SIM_PLAN].why_not, "64 ranks for 40 tokens");
    ck_assert_str_eq(out[FFA_SIM_ZIGZAG].why_not, "128 parts for 40 tokens");
    ck_assert_ptr_null(ffa_sim_method_text(FFA_SIM_METHODS));
    ffa_mask_destroy(mask);
    ffa_mask_destroy(cross);
    ffa_mask_destroy(empty);
    ffa_mask_destroy(tiny);
}
END_TEST

/* Times of many grains sum up to more than the model can say: a rank's still are twelve items. */
START_TEST(slow_models_keep_to_their_items)
{
    const ffa_topology topology = { 4, 0 };
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:1073741824", NULL), FFA_OK);
    opts.algorithm = FFA_DISPATCH_ZIGZAG;
    opts.chunk_tokens = 1 << 14;
    opts.model.forward_gflops = opts.model.backward_gflops = 1;
    opts.model.heads_q = opts.model.heads_kv = 1024;
    opts.model.head_dim = 1024;
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, NULL),
                     FFA_OK);
    ck_assert_int_gt(out[FFA_SIM_PLAN].forward.ns, (int64_t)1 << 55);
    ck_assert_int_le(out[FFA_SIM_PLAN].stages, 12);
    ffa_mask_destroy(mask);
}
END_TEST

/* Full, one list a kv head: the cells of all lists pass 2^63, which is refused. */
START_TEST(more_cells_than_can_be_said)
{
    enum { LISTS = 4 };
    const int64_t tokens = INT32_MAX;
    const ffa_mask_shape shape = { tokens, tokens };
    const ffa_slice all = { 0, tokens, 0, tokens, FFA_SLICE_FULL, 0 };
    const ffa_slice_list lists[LISTS] = { { &all, 1 }, { &all, 1 }, { &all, 1 }, { &all, 1 } };
    const ffa_topology topology = { 2, 0 };
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, LISTS, NULL), FFA_OK);
    opts.model.heads_kv = LISTS;
    opts.chunk_tokens = 1 << 28;
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, &err),
                     FFA_UNSUPPORTED);
    ck_assert_str_eq(err.message, "the area of all masks is a load above 2^62");
    ffa_mask_destroy(mask);
}
END_TEST

/* Each of 512 steps takes the longest time there is. */
START_TEST(more_steps_than_can_be_said)
{
    const ffa_topology topology = { 512, 8 };
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "full:1073741824", NULL), FFA_OK);
    opts.model.forward_gflops = opts.model.backward_gflops = 1;
    opts.model.heads_q = opts.model.heads_kv = 1024;
    opts.model.head_dim = 1024;
    ck_assert_msg(!ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, &err), "%s",
                  err.message);
    ck_assert_int_eq(out[FFA_SIM_RING].forward.ns, INT64_MAX);
    ck_assert_int_eq(out[FFA_SIM_ZIGZAG].backward.ns, INT64_MAX);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    const ffa_topology topology = { 6, 2 };
    ffa_mask *mask;
    long nth = 1;

    ck_assert_int_eq(ffa_mask_parse(&mask, "varlen-causal:700,300", NULL), FFA_OK);
    for (;; nth++) {
        ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, NULL, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_int_eq(out[FFA_SIM_RING].is_possible, 0);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 20);
    ffa_mask_destroy(mask);
}
END_TEST

/* The dispatch of the simulated plan is the one that ffa_dispatch_create_best makes of the same
 * model, which on a causal mask is not affinity's. */
START_TEST(the_best_dispatch_is_simulated)
{
    const ffa_topology topology = { 8, 0 };
    ffa_sim_result best[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_result zigzag[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_result affinity[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_dispatch_mask one = { NULL, 1 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch *dispatch;
    ffa_error err;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:65536", NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create_best(&dispatch, &one, 1, &topology, NULL, NULL, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, NULL, NULL), FFA_OK);
    ck_assert_int_eq(report.algorithm, FFA_DISPATCH_ZIGZAG);
    ck_assert_int_eq(ffa_simulate(affinity, FFA_SIM_METHODS, NULL, mask, &topology, &opts, NULL),
                     FFA_OK);
    opts.algorithm = FFA_SIM_BEST;
    ck_assert_int_eq(ffa_simulate(best, FFA_SIM_METHODS, &opts, mask, &topology, &opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(opts.algorithm, FFA_SIM_BEST);
    ck_assert_int_eq(opts.chunk_tokens, 4096);
    opts.algorithm = FFA_DISPATCH_ZIGZAG;
    ck_assert_int_eq(ffa_simulate(zigzag, FFA_SIM_METHODS, NULL, mask, &topology, &opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(best[FFA_SIM_PLAN].forward.ns, zigzag[FFA_SIM_PLAN].forward.ns);
    ck_assert_int_eq(best[FFA_SIM_PLAN].backward.ns, zigzag[FFA_SIM_PLAN].backward.ns);
    ck_assert_int_lt(best[FFA_SIM_PLAN].forward.ns, affinity[FFA_SIM_PLAN].forward.ns);
    opts.algorithm = -2;
    ck_assert_int_eq(ffa_simulate(best, FFA_SIM_METHODS, NULL, mask, &topology, &opts, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "algorithm is -2, not in [0, 4]");
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    const int count = (int)(sizeof masks / sizeof *masks);
    Suite *suite = suite_create("simulate");
    TCase *tc = tcase_create("simulate");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, closed_forms, 1, 4);
    tcase_add_test(tc, one_rank_is_as_fast_as_one_rank);
    tcase_add_loop_test(tc, the_plan_is_the_planners, 0, count);
    tcase_add_loop_test(tc, bytes_are_those_of_the_dispatch, 0, count);
    tcase_add_loop_test(tc, what_holds_of_any_model, 0, count);
    tcase_add_test(tc, options_come_back_resolved);
    tcase_add_test(tc, bad_arguments);
    tcase_add_test(tc, slow_models_keep_to_their_items);
    tcase_add_test(tc, more_cells_than_can_be_said);
    tcase_add_test(tc, more_steps_than_can_be_said);
    tcase_add_test(tc, any_allocation_may_fail);
    tcase_add_test(tc, the_best_dispatch_is_simulated);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
