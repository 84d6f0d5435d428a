/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of passes of cross-attention over GPUs, whose keys are dispatched or replicated, of
 * all ranks of a group together: what one rank receives another one has, and the sums of each own
 * key are those of all ranks that had it, by ascending rank. (tests/property has self-attention.)
 */
#include "parallel/device/pass_tables.h"

#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdlib.h>

enum { RANKS = 4 };

struct group_case {
    const char *mask;
    int32_t keys; /* ffa_dispatch_keys */
    int32_t stages;
    int32_t moves;   /* ffa_parallel_moves: where queries move, their rows are "keys" here */
    bool is_forward; /* the tables of that pass, where queries move */
};
static const struct group_case cases[] = {
    { "varlen-causal:200,57,130", FFA_KEYS_WITH_QUERIES, 3, FFA_PARALLEL_MOVE_KEYS, false },
    { "full:256x384", FFA_KEYS_DISPATCHED, 2, FFA_PARALLEL_MOVE_KEYS, false },
    { "causal:256x384", FFA_KEYS_DISPATCHED, 3, FFA_PARALLEL_MOVE_KEYS, false },
    { "full:256x384", FFA_KEYS_REPLICATED, 2, FFA_PARALLEL_MOVE_KEYS, false },
    { "causal:200x90", FFA_KEYS_REPLICATED, 1, FFA_PARALLEL_MOVE_KEYS, false },
    { "varlen-causal:200,57,130", FFA_KEYS_WITH_QUERIES, 3, FFA_PARALLEL_MOVE_QUERIES, true },
    { "causal:100x384", FFA_KEYS_DISPATCHED, 3, FFA_PARALLEL_MOVE_QUERIES, true },
    { "causal:100x384", FFA_KEYS_DISPATCHED, 2, FFA_PARALLEL_MOVE_QUERIES, false },
};

struct group {
    int32_t count;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plans[RANKS];
    struct pass_moves moves[RANKS];
    struct pass_sums sums[RANKS];
};

static void ok(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

static void group_make(struct group *group, const struct group_case *from, int32_t count)
{
    const ffa_topology topology = { count, 0 };
    ffa_dispatch_opts dispatch = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    group->count = count;
    dispatch.keys = from->keys;
    opts.forward_stages = opts.backward_stages = from->stages;
    opts.stage_rows_min = 1;
    opts.moves = from->moves;
    ok(ffa_mask_parse(&group->mask, from->mask, &err), &err);
    ok(ffa_dispatch_create(&group->dispatch, &(ffa_dispatch_mask){ group->mask, 1 }, 1, &topology,
                           &dispatch, &err),
       &err);
    for (int32_t r = 0; r < count; r++) {
        ok(ffa_parallel_plan_create(&group->plans[r], group->dispatch, group->mask, r, &opts, &err),
           &err);
        ok(pass_moves_build(&group->moves[r], group->plans[r], !from->is_forward, &err), &err);
        ok(pass_sums_build(&group->sums[r], group->plans[r], &group->moves[r], !from->is_forward,
                           &err),
           &err);
    }
}

static void group_free(struct group *group)
{
    for (int32_t r = 0; r < group->count; r++) {
        pass_sums_finish(&group->sums[r]);
        pass_moves_finish(&group->moves[r]);
        ffa_parallel_plan_destroy(group->plans[r]);
    }
    ffa_dispatch_destroy(group->dispatch);
    ffa_mask_destroy(group->mask);
}

/* The row of the sum window of `reader` that has the sums of own key `row` of `owner`; -1: it did
 * not receive the key. *stage: its stage. */
static int64_t row_at(const struct group *group, int32_t reader, int32_t owner, int64_t row,
                      int32_t *stage)
{
    const struct pass_moves *moves = &group->moves[reader];

    for (int64_t i = 0; i < moves->copy_begin[moves->stage_count]; i++) {
        const struct pass_copy *copy = &moves->copies[i];

        *stage = copy->stage;
        if (copy->rank == owner && row >= copy->from && row < copy->from + copy->rows)
            return copy->to + row - copy->from;
    }
    return -1;
}

/* Whose sums the received row is, and of which of its rows. */
static const struct pass_copy *copy_of(const struct pass_sums *sums, int64_t received, int64_t *row)
{
    for (int64_t i = 0; i < sums->copy_count; i++) {
        const struct pass_copy *copy = &sums->copies[i];

        *row = sums->kept_rows[copy->rank] + copy->from + received - copy->to;
        if (received >= copy->to && received < copy->to + copy->rows)
            return copy;
    }
    return NULL;
}

/* The next received part of a key is what `reader` made of it. */
static void check_part(const struct group *group, int32_t owner, int32_t reader, int64_t key,
                       int64_t received)
{
    const struct pass_sums *sums = &group->sums[owner];
    int32_t stage = 0;
    int64_t row;
    const struct pass_copy *copy = copy_of(sums, received, &row);

    ck_assert_ptr_nonnull(copy);
    ck_assert_int_eq(copy->rank, reader);
    if (sums->is_replicated) {
        ck_assert_int_eq(row, key);
        ck_assert_int_eq(copy->stage, 0);
    } else {
        ck_assert_int_eq(row, row_at(group, reader, owner, key, &stage));
        ck_assert_int_eq(copy->stage, stage);
    }
}

static void check_segment(const struct group *group, int32_t owner,
                          const struct row_segment *segment)
{
    const struct pass_sums *sums = &group->sums[owner];

    for (int64_t key = segment->row; key < segment->row + segment->rows; key++) {
        const int64_t at = key - segment->row;
        int32_t next = 0, stage;

        for (int32_t reader = 0; reader < group->count; reader++) {
            const bool is_part =
                sums->is_replicated || row_at(group, reader, owner, key, &stage) >= 0;

            if (is_part) {
                ck_assert_int_lt(next, segment->count);
                check_part(group, owner, reader, key, sums->received[segment->first + next++] + at);
            }
        }
        ck_assert_int_eq(next, segment->count);
    }
}

START_TEST(sums_are_of_all_readers_by_rank)
{
    const struct group_case *from = &cases[_i / RANKS];
    struct group group = { .count = 0 };

    group_make(&group, from, _i % RANKS + 1);
    for (int32_t r = 0; r < group.count; r++) {
        const struct pass_sums *sums = &group.sums[r];
        int64_t end = 0;

        for (int64_t s = 0; s < sums->segment_count; s++) {
            ck_assert_int_eq(sums->segments[s].row, end);
            end += sums->segments[s].rows;
            check_segment(&group, r, &sums->segments[s]);
        }
        ck_assert_int_eq(end, group.moves[r].own_rows);
        ck_assert_int_eq(sums->is_replicated, from->keys == FFA_KEYS_REPLICATED && group.count > 1);
        ck_assert_int_eq(sums->peer_count, sums->is_replicated ? group.count - 1 : 0);
    }
    group_free(&group);
}
END_TEST

START_TEST(memory_may_run_out)
{
    struct group group = { .count = 0 };

    group_make(&group, &cases[3], 3);
    for (long nth = 1;; nth++) {
        struct pass_sums sums = { 0 };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = pass_sums_build(&sums, group.plans[0], &group.moves[0], true, NULL);
        pass_sums_finish(&sums);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    group_free(&group);
}
END_TEST

static bool has(const int32_t *ranks, int32_t count, int32_t rank)
{
    for (int32_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

/* A rank is told of keys exactly if it fetches them, or one of the two would wait for ever. */
START_TEST(readers_are_those_that_fetch)
{
    struct group group = { .count = 0 };

    group_make(&group, &cases[_i / RANKS], _i % RANKS + 1);
    for (int32_t r = 0; r < group.count; r++)
        for (int32_t q = 0; q < group.count; q++) {
            const struct pass_moves *reader = &group.moves[q], *owner = &group.moves[r];

            ck_assert_int_eq(has(owner->readers, owner->reader_count, q),
                             has(reader->sources, reader->source_begin[reader->stage_count], r));
            ck_assert(!has(owner->readers, owner->reader_count, r));
        }
    group_free(&group);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pass_cross");
    TCase *tc = tcase_create("pass_cross");
    const int count = (int)(sizeof cases / sizeof *cases) * RANKS;

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, sums_are_of_all_readers_by_rank, 0, count);
    tcase_add_loop_test(tc, readers_are_those_that_fetch, 0, count);
    tcase_add_test(tc, memory_may_run_out);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
