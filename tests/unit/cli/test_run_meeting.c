/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads: what all have brought is read by all, also where one gives up right
 * after.
 */
#include "cli/run_meeting.h"
#include "support/suite.h"

#include <check.h>
#include <pthread.h>

enum { RANKS = 3, ROUNDS = 300 };

struct rank {
    struct run_meeting *meeting;
    int32_t rank;
    ffa_status first, second;
    int32_t sum;
};

/* Rank 0 gives up behind the first gather, as one whose verdict was bad does. */
static void *run(void *user)
{
    struct rank *r = user;
    const int32_t mine = 1 << r->rank;
    ffa_error err = { FFA_OK, 0, "" };
    int32_t all[RANKS];

    r->first = r->meeting->gather(r->meeting, r->rank, &mine, all, sizeof mine, &err);
    for (int32_t i = 0; r->first == FFA_OK && i < RANKS; i++)
        r->sum += all[i];
    if (r->rank == 0)
        r->meeting->give_up(r->meeting, &err);
    r->second = r->meeting->gather(r->meeting, r->rank, &mine, all, sizeof mine, &err);
    return NULL;
}

START_TEST(a_round_that_all_have_come_to_is_read_by_all)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct run_meeting *meeting = run_threads_create(RANKS);
        struct rank ranks[RANKS];
        pthread_t threads[RANKS];

        ck_assert_ptr_nonnull(meeting);
        for (int32_t i = 0; i < RANKS; i++) {
            ranks[i] = (struct rank){ .meeting = meeting, .rank = i };
            ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
        }
        for (int32_t i = 0; i < RANKS; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int32_t i = 0; i < RANKS; i++) {
            ck_assert_int_eq(ranks[i].first, FFA_OK);
            ck_assert_int_eq(ranks[i].sum, (1 << RANKS) - 1);
            ck_assert_int_eq(ranks[i].second, FFA_COMM);
        }
        run_threads_destroy(meeting);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run_meeting");
    TCase *all = tcase_create("threads");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, a_round_that_all_have_come_to_is_read_by_all);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
