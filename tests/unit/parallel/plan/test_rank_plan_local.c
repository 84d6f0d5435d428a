/* SPDX-License-Identifier: Apache-2.0
 *
 * The cells of a rank in its key window, of plans small enough to be written down. (Random plans
 * of many ranks: tests/property/test_rank_plan_properties.c.)
 */
#include "mask/mask.h"
#include "parallel/plan/rank_plan_local.h"
#include "support/suite.h"

#include <check.h>

/* A causal mask of 16 tokens on two ranks, in chunks of 4: rank 0 has [0, 8), rank 1 [8, 16). */
struct world {
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
};

static void world_init(struct world *w, int32_t rank, int32_t moves, uint32_t flags)
{
    const ffa_mask_shape shape = { 16, 16 };
    const ffa_topology topology = { 2, 2 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_opts dispatch_opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };
    ffa_error err = { FFA_OK, 0, "" };

    dispatch_opts.chunk_tokens = 4;
    dispatch_opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    dispatch_opts.algorithm = FFA_DISPATCH_SEQUENTIAL;
    opts.moves = moves;
    opts.flags = flags;
    opts.backward_n = 4;
    opts.forward_stages = opts.backward_stages = 1;
    opts.stage_rows_min = 1;
    ck_assert_int_eq(ffa_mask_causal(&w->mask, &shape, NULL), FFA_OK);
    one.mask = w->mask;
    ck_assert_msg(!ffa_dispatch_create(&w->dispatch, &one, 1, &topology, &dispatch_opts, &err),
                  "%s", err.message);
    ck_assert_msg(!ffa_parallel_plan_create(&w->plan, w->dispatch, w->mask, rank, &opts, &err),
                  "%s", err.message);
}

static void world_finish(struct world *w)
{
    ffa_parallel_plan_destroy(w->plan);
    ffa_dispatch_destroy(w->dispatch);
    ffa_mask_destroy(w->mask);
}

/* Whether a band of list 0 has the cell. */
static int cells_at(const struct rank_local *local, int64_t q, int64_t k)
{
    int cells = 0;

    for (int64_t i = 0; i < local->lists[0].count; i++) {
        const struct band *band = &local->lists[0].at[i];

        cells += q >= band->q_begin && q < band->q_end && k >= band->k_begin && k < band->k_end &&
                 k - q >= band->lo && k - q <= band->hi;
    }
    return cells;
}

/* Rank 0 attends its own keys only. */
START_TEST(a_rank_that_receives_nothing)
{
    struct rank_local local;
    struct world w;

    world_init(&w, 0, FFA_PARALLEL_MOVE_KEYS, 0);
    ck_assert_int_eq(rank_plan_local(&local, w.plan, _i, NULL), FFA_OK);
    ck_assert_int_eq(local.shape.seqlen_q, 8);
    ck_assert_int_eq(local.shape.seqlen_k, 8);
    ck_assert_int_eq(local.stage_count, 1);
    ck_assert_int_eq(local.stage_ends[0], 8);
    for (int64_t q = 0; q < 8; q++)
        for (int64_t k = 0; k < 8; k++)
            ck_assert_int_eq(cells_at(&local, q, k), k <= q);
    ck_assert_int_eq(local.first_count, _i); /* no fetch is waited for: all come first */
    if (_i) {
        ck_assert_int_eq(local.first[0][0], 0);
        ck_assert_int_eq(local.first[0][1], 8);
    }
    rank_local_finish(&local);
    world_finish(&w);
}
END_TEST

/* Rank 1 attends all keys of rank 0, which lie behind its own. */
START_TEST(received_keys_lie_behind_own_ones)
{
    struct rank_local local;
    struct world w;

    world_init(&w, 1, FFA_PARALLEL_MOVE_KEYS, 0);
    ck_assert_int_eq(rank_plan_local(&local, w.plan, _i, NULL), FFA_OK);
    ck_assert_int_eq(local.shape.seqlen_k, 16);
    ck_assert_int_eq(local.stage_count, 2);
    ck_assert_int_eq(local.stage_ends[0], 8);
    ck_assert_int_eq(local.stage_ends[1], 16);
    for (int64_t q = 0; q < 8; q++)
        for (int64_t k = 0; k < 16; k++)
            ck_assert_int_eq(cells_at(&local, q, k), k <= q || k >= 8);
    rank_local_finish(&local);
    ck_assert_ptr_null(local.lists);
    world_finish(&w);
}
END_TEST

START_TEST(passes_without_a_key_window_are_refused)
{
    struct rank_local local;
    struct world w;
    ffa_error err = { FFA_OK, 0, "" };

    world_init(&w, 1, FFA_PARALLEL_MOVE_QUERIES, 0);
    ck_assert_int_eq(rank_plan_local(&local, w.plan, false, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan moves queries, not keys");
    ck_assert_ptr_null(local.lists);
    world_finish(&w);
    world_init(&w, 1, FFA_PARALLEL_MOVE_KEYS, FFA_PARALLEL_FORWARD_ONLY);
    ck_assert_int_eq(rank_plan_local(&local, w.plan, true, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "the plan has no backward pass");
    ck_assert_int_eq(rank_plan_local(&local, w.plan, false, &err), FFA_OK);
    rank_local_finish(&local);
    world_finish(&w);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct rank_local local;
    struct world w;

    world_init(&w, 1, FFA_PARALLEL_MOVE_KEYS, 0);
    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = rank_plan_local(&local, w.plan, true, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert(!local.lists && !local.first && !local.shape.seqlen_k);
    }
    fault_arm(FAULT_ALLOC, 0);
    rank_local_finish(&local);
    world_finish(&w);
}
END_TEST

/* Of a causal mask rank 0 receives all queries of rank 1, which attend all of its keys; rank 1
 * receives none. */
START_TEST(queries_that_move_meet_own_keys)
{
    struct rank_local local;
    struct world w;

    for (int32_t rank = 0; rank < 2; rank++) {
        world_init(&w, rank, FFA_PARALLEL_MOVE_QUERIES, 0);
        for (int32_t phase = 0; phase < 2 - rank; phase++) {
            ck_assert_int_eq(rank_plan_moved(&local, w.plan, _i, phase, NULL), FFA_OK);
            ck_assert_int_eq(local.shape.seqlen_q, 8);
            ck_assert_int_eq(local.shape.seqlen_k, 8);
            ck_assert_int_eq(local.stage_count, 1);
            ck_assert_int_eq(local.stage_ends[0], 8);
            ck_assert_int_eq(local.first_count, 0);
            for (int64_t q = 0; q < 8; q++)
                for (int64_t k = 0; k < 8; k++)
                    ck_assert_int_eq(cells_at(&local, q, k), phase || k <= q);
            rank_local_finish(&local);
        }
        world_finish(&w);
    }
}
END_TEST

START_TEST(every_allocation_may_fail_where_queries_move)
{
    struct rank_local local;
    struct world w;
    long nth = 1;

    world_init(&w, 0, FFA_PARALLEL_MOVE_QUERIES, 0);
    for (;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = rank_plan_moved(&local, w.plan, true, 1, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert(!local.lists && !local.shape.seqlen_k);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 1);
    rank_local_finish(&local);
    world_finish(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a rank's key window");
    TCase *tc = tcase_create("a rank's key window");

    tcase_add_loop_test(tc, a_rank_that_receives_nothing, 0, 2);
    tcase_add_loop_test(tc, received_keys_lie_behind_own_ones, 0, 2);
    tcase_add_test(tc, passes_without_a_key_window_are_refused);
    tcase_add_test(tc, every_allocation_may_fail);
    tcase_add_loop_test(tc, queries_that_move_meet_own_keys, 0, 2);
    tcase_add_test(tc, every_allocation_may_fail_where_queries_move);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
