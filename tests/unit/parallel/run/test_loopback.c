/* SPDX-License-Identifier: Apache-2.0
 *
 * The loopback transport by itself: what is pulled, added, discarded and signalled, in which order
 * at most, and that every wait ends.
 */
#include "parallel/run/comm.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <pthread.h>

enum { RANKS = 4, ROWS = 64 };

static ffa_comm *comms[RANKS];

static void create(int64_t timeout_ms)
{
    const ffa_loopback_opts opts = { sizeof opts, 5, 42, timeout_ms };

    ck_assert_int_eq(ffa_loopback_create(comms, RANKS, &opts, NULL), FFA_OK);
}

static void teardown(void)
{
    for (int r = 0; r < RANKS; r++)
        ffa_comm_destroy(comms[r]);
}

static void setup(void)
{
    create(60000);
}

/* Window of the keys of a rank: `value` + row. */
static void fill(int32_t rank, float value)
{
    void *window;

    ck_assert_int_eq(
        comms[rank]->ops->window(&window, comms[rank], WINDOW_ROWS, 0, ROWS * sizeof(float), NULL),
        FFA_OK);
    ck_assert(isnan(((float *)window)[ROWS - 1]));
    for (int i = 0; i < ROWS; i++)
        ((float *)window)[i] = value + (float)i;
}

START_TEST(ranks_and_sizes)
{
    ck_assert_int_eq(ffa_comm_rank(comms[2]), 2);
    ck_assert_int_eq(ffa_comm_rank_count(comms[2]), RANKS);
    ck_assert_int_eq(ffa_comm_rank(NULL), -1);
    ck_assert_int_eq(ffa_comm_rank_count(NULL), 0);
}
END_TEST

START_TEST(ranges_of_several_ranks_are_pulled)
{
    const struct comm_ops *ops = comms[0]->ops;
    const struct comm_range ranges[] = { { 4, 0, 8, 1, 0 },
                                         { 0, 8, 4, 2, 0 },
                                         { 248, 12, 8, 1, 0 } };
    float target[6] = { 0 };
    const struct comm_transfer transfer = { WINDOW_ROWS, 0, ranges, 3, target };
    uint64_t ticket;

    fill(1, 100);
    fill(2, 200);
    ck_assert_int_eq(ops->discard(comms[0], LANE_FETCH, target, sizeof target, NULL), FFA_OK);
    ck_assert_int_eq(ops->pull(comms[0], LANE_FETCH, &transfer, NULL), FFA_OK);
    ticket = ops->record(comms[0], LANE_FETCH);
    ck_assert_int_eq(ops->await(comms[0], LANE_COMPUTE, LANE_FETCH, ticket, NULL), FFA_OK);
    ck_assert(target[0] == 101 && target[1] == 102 && target[2] == 200);
    ck_assert(target[3] == 162 && target[4] == 163);
    ck_assert(isnan(target[5])); /* nobody wrote it */
}
END_TEST

/* 1e8 + 1 - 1e8 is 0 or 1 by the order of the sum: lanes keep theirs, whatever others do. */
START_TEST(reduces_keep_the_order_of_their_lane)
{
    static const float parts[3] = { 1e8f, 1, -1e8f };
    const struct comm_reduce sum = { FFA_FP32, 0 };
    const struct comm_ops *ops = comms[0]->ops;

    for (int round = 0; round < 50; round++) {
        float sums[2] = { 0, 0 };

        for (int32_t r = 1; r < RANKS; r++) {
            void *window;

            ck_assert_int_eq(ops->window(&window, comms[r], WINDOW_SUMS, 1, 8, NULL), FFA_OK);
            ((float *)window)[0] = parts[r - 1];
            ((float *)window)[1] = (float)r;
        }
        for (int32_t r = 1; r < RANKS; r++) {
            const struct comm_range ranges[] = { { 0, 0, 4, r, 0 }, { 4, 4, 4, r, 0 } };
            const struct comm_transfer transfer = { WINDOW_SUMS, 1, ranges, 2, sums };

            ck_assert_int_eq(ops->reduce(comms[0], LANE_REDUCE, &transfer, &sum, NULL), FFA_OK);
        }
        ck_assert_int_eq(ops->drain(comms[0], NULL), FFA_OK);
        ck_assert(sums[0] == 0 && sums[1] == 6);
    }
}
END_TEST

/* Items of two outputs and an lse: weights by e^lse, -inf weighs nothing and is not looked at. */
START_TEST(pairs_merge_by_their_lse)
{
    const double parts[4][3] = {
        { 1, 2, 0 }, { 5, 10, log(3) }, { NAN, NAN, -INFINITY }, { 7, 8, 1 }
    };
    double sums[4][3] = {
        { 3, 6, log(2) }, { NAN, NAN, -INFINITY }, { 4, 5, 6 }, { 0, 0, -INFINITY }
    };
    const struct comm_reduce merge = { FFA_FP64, 3 };
    const struct comm_ops *ops = comms[0]->ops;
    const struct comm_range ranges[] = { { 0, 0, 24, 1, 0 }, { 24, 24, 72, 1, 0 } };
    const struct comm_transfer transfer = { WINDOW_SUMS, 0, ranges, 2, sums };
    void *window;

    ck_assert_int_eq(ops->window(&window, comms[1], WINDOW_SUMS, 0, sizeof parts, NULL), FFA_OK);
    memcpy(window, parts, sizeof parts);
    sums[1][0] = sums[1][1] = 0; /* what an empty row holds */
    ck_assert_int_eq(ops->reduce(comms[0], LANE_REDUCE, &transfer, &merge, NULL), FFA_OK);
    ck_assert_int_eq(ops->drain(comms[0], NULL), FFA_OK);
    ck_assert_double_eq_tol(sums[0][0], (2 * 3 + 1) / 3.0, 1e-15);
    ck_assert_double_eq_tol(sums[0][1], (2 * 6 + 2) / 3.0, 1e-15);
    ck_assert_double_eq_tol(sums[0][2], log(3), 1e-15);
    ck_assert(sums[1][0] == 5 && sums[1][1] == 10 && sums[1][2] == log(3));
    ck_assert(sums[2][0] == 4 && sums[2][1] == 5 && sums[2][2] == 6);
    ck_assert(sums[3][0] == 7 && sums[3][1] == 8 && sums[3][2] == 1);
}
END_TEST

START_TEST(lanes_wait_for_flags_and_tickets)
{
    const struct comm_ops *ops = comms[0]->ops;
    const struct comm_range range = { 0, 0, 4, 3, 0 };
    float target = 7;
    const struct comm_transfer transfer = { WINDOW_ROWS, 0, &range, 1, &target };
    uint64_t ticket;

    ck_assert_int_eq(ops->wait(comms[0], LANE_FETCH, 3, CHANNEL_ROWS_READY, 5, NULL), FFA_OK);
    ck_assert_int_eq(ops->pull(comms[0], LANE_FETCH, &transfer, NULL), FFA_OK);
    ck_assert_int_eq(ops->signal(comms[0], LANE_FETCH, 3, CHANNEL_ROWS_DONE, 5, NULL), FFA_OK);
    ticket = ops->record(comms[0], LANE_FETCH);
    ck_assert_int_eq(ops->await(comms[0], LANE_REDUCE, LANE_FETCH, ticket, NULL), FFA_OK);
    ck_assert_int_eq(ops->signal(comms[0], LANE_REDUCE, 2, CHANNEL_SUMS_DONE, 1, NULL), FFA_OK);
    ck_assert_int_eq(ops->signal(comms[3], LANE_COMPUTE, 0, CHANNEL_ROWS_READY, 4, NULL), FFA_OK);
    ck_assert(target == 7); /* 4 is less than 5 */
    fill(3, 50);
    comm_lend(comms[3], WINDOW_ROWS, 0, 0, 5);
    ck_assert_int_eq(ops->signal(comms[3], LANE_COMPUTE, 0, CHANNEL_ROWS_READY, 5, NULL), FFA_OK);
    ck_assert_int_eq(comm_reclaim(comms[3], WINDOW_ROWS, 0, NULL), FFA_OK);
    ck_assert(target == 50); /* read before it was given back */
    ck_assert_int_eq(ops->wait(comms[2], LANE_COMPUTE, 0, CHANNEL_SUMS_DONE, 1, NULL), FFA_OK);
}
END_TEST

START_TEST(a_wait_for_a_flag_ends_with_the_deadline)
{
    const struct comm_ops *ops;
    ffa_error err = { FFA_OK, 0, "" };

    teardown();
    create(400);
    ops = comms[0]->ops;
    if (_i == 0) {
        ck_assert_int_eq(ops->wait(comms[1], LANE_COMPUTE, 3, CHANNEL_SUMS_READY, 1, &err),
                         FFA_TIMEOUT);
    } else {
        ck_assert_int_eq(ops->wait(comms[1], LANE_FETCH, 3, CHANNEL_SUMS_READY, 1, NULL), FFA_OK);
        ck_assert_int_eq(ops->drain(comms[1], &err), FFA_TIMEOUT);
    }
    ck_assert_str_eq(err.message, "rank 1 waited 400 ms for rank 3: its partial results");
    ck_assert_int_eq(ops->gather(comms[2], NULL, NULL, 0, &err), FFA_TIMEOUT); /* all hear it */
}
END_TEST

START_TEST(the_first_reason_stays)
{
    ffa_error err = { FFA_OK, 0, "" };
    uint64_t ticket;

    ffa_comm_cancel(comms[1], NULL);
    ffa_comm_cancel(comms[2], "later");
    ffa_comm_cancel(NULL, "nobody");
    ticket = comms[0]->ops->record(comms[0], LANE_FETCH) + 1;
    ck_assert_int_eq(comms[0]->ops->await(comms[0], LANE_COMPUTE, LANE_FETCH, ticket, &err),
                     FFA_COMM);
    ck_assert_str_eq(err.message, "cancelled at rank 1");
}
END_TEST

static void *gather_often(void *user)
{
    ffa_comm *comm = user;
    intptr_t wrong = 0;

    for (int32_t i = 0; i < 200; i++) {
        const int32_t mine = i * RANKS + comm->rank;
        int32_t all[RANKS];

        if (i % 7 == 0 && comm->ops->gather(comm, NULL, NULL, 0, NULL) != FFA_OK)
            wrong++;
        if (comm->ops->gather(comm, &mine, all, sizeof mine, NULL) != FFA_OK)
            wrong++;
        for (int32_t r = 0; r < RANKS; r++)
            wrong += all[r] != i * RANKS + r;
    }
    return (void *)wrong;
}

START_TEST(gathers_follow_one_another)
{
    pthread_t threads[RANKS];

    for (int r = 0; r < RANKS; r++)
        ck_assert_int_eq(pthread_create(&threads[r], NULL, gather_often, comms[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        void *wrong;

        ck_assert_int_eq(pthread_join(threads[r], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
}
END_TEST

START_TEST(words_are_compared_call_by_call)
{
    const struct comm_ops *ops = comms[0]->ops;
    ffa_error err = { FFA_OK, 0, "" };

    for (int32_t r = 0; r < RANKS; r++) { /* rank 0 is a call ahead */
        ck_assert_int_eq(ops->enter(comms[r], 1, "this", NULL), FFA_OK);
        if (r == 0)
            ck_assert_int_eq(ops->enter(comms[0], 2, "that", NULL), FFA_OK);
    }
    ck_assert_int_eq(ops->enter(comms[1], 2, "that", NULL), FFA_OK);
    ck_assert_int_eq(ops->enter(comms[3], 2, "else", &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "ranks differ: rank 0 calls that, rank 3 else");
}
END_TEST

static const struct {
    int32_t ranks;
    ffa_loopback_opts opts;
    ffa_status status;
    const char *message;
} bad[] = {
    { 0, { sizeof(ffa_loopback_opts), 0, 0, 0 }, FFA_INVALID, "rank_count is 0, not in [1, 256]" },
    { 257,
      { sizeof(ffa_loopback_opts), 0, 0, 0 },
      FFA_INVALID,
      "rank_count is 257, not in [1, 256]" },
    { 2,
      { sizeof(ffa_loopback_opts), 1001, 0, 0 },
      FFA_INVALID,
      "delay is 1001, not in [0, 1000]" },
    { 2,
      { sizeof(ffa_loopback_opts), 0, 0, -1 },
      FFA_INVALID,
      "timeout_ms is -1, not in [1, 1099511627776]" },
};

START_TEST(bad_options)
{
    ffa_comm *out[257] = { 0 };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_loopback_create(out, bad[_i].ranks, &bad[_i].opts, &err), bad[_i].status);
    ck_assert_str_eq(err.message, bad[_i].message);
    ck_assert_ptr_null(out[0]);
    ck_assert_int_eq(ffa_loopback_create(NULL, 2, NULL, &err), FFA_INVALID);
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    for (long nth = 1;; nth++) {
        ffa_comm *out[3];
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_loopback_create(out, 3, NULL, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            for (int r = 0; r < 3; r++)
                ffa_comm_destroy(out[r]);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(out[0]);
    }
    fault_arm(FAULT_ALLOC, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loopback");
    TCase *tc = tcase_create("loopback"), *alone = tcase_create("options");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, ranks_and_sizes);
    tcase_add_test(tc, ranges_of_several_ranks_are_pulled);
    tcase_add_test(tc, reduces_keep_the_order_of_their_lane);
    tcase_add_test(tc, pairs_merge_by_their_lse);
    tcase_add_test(tc, lanes_wait_for_flags_and_tickets);
    tcase_add_loop_test(tc, a_wait_for_a_flag_ends_with_the_deadline, 0, 2);
    tcase_add_test(tc, the_first_reason_stays);
    tcase_add_test(tc, gathers_follow_one_another);
    tcase_add_test(tc, words_are_compared_call_by_call);
    suite_add_tcase(suite, tc);
    tcase_add_loop_test(alone, bad_options, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(alone, any_allocation_may_fail);
    suite_add_tcase(suite, alone);
    return suite_run(suite);
}
