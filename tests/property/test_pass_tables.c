/* SPDX-License-Identifier: Apache-2.0
 *
 * What passes over GPUs move and add, on random masks and any number of ranks, executed in
 * integers: every copy brings the key that the rank's plan counts on, every sum of a key that
 * another rank made is added to its owner's once and by ascending rank, and ranks agree about who
 * reads from whom. A failure prints the seed.
 */
#include "parallel/device/pass_tables.h"
#include "support/parallel_cases.h"
#include "support/parallel_run.h"
#include "support/suite.h"

#include <check.h>

enum { TOKENS_HERE = 160, RANKS_HERE = 9, MASKS = 3000, WINDOW = 2 * TOKENS_HERE };

struct trial {
    uint64_t seed;
    int32_t ranks;
    ffa_parallel_plan *plans[RANKS_HERE];
    struct pass_moves moves[RANKS_HERE];
    int64_t windows[RANKS_HERE][WINDOW]; /* the token of each row; -1: none yet */
};

#define CHECK(trial, claim)                                                                        \
    do {                                                                                           \
        if (!(claim))                                                                              \
            ck_abort_msg("seed %llu: %s", (unsigned long long)(trial)->seed, #claim);              \
    } while (0)

static void draw(struct trial *trial, uint64_t seed)
{
    struct rng rng = { seed };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    const int64_t tokens = rng_range(&rng, RANKS_HERE, TOKENS_HERE);
    ffa_topology topology = { 0 };
    ffa_dispatch_mask weighted = { .weight = 1 };
    ffa_dispatch *dispatch;
    ffa_mask *mask = parallel_random_mask(&rng, tokens, 6);

    *trial = (struct trial){ .seed = seed, .ranks = (int32_t)rng_range(&rng, 1, RANKS_HERE) };
    topology.rank_count = trial->ranks;
    weighted.mask = mask;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.chunk_tokens = rng_range(&rng, 1, tokens / trial->ranks);
    plan_opts.forward_stages = (int32_t)rng_range(&rng, -1, 6);
    plan_opts.backward_stages = (int32_t)rng_range(&rng, -1, 6);
    plan_opts.stage_rows_min = rng_range(&rng, 1, 6);
    plan_opts.model.launch_ns = 1;
    plan_opts.sms = (int32_t)rng_range(&rng, 0, 4);
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &weighted, 1, &topology, &opts, NULL), FFA_OK);
    for (int32_t r = 0; r < trial->ranks; r++)
        ck_assert_int_eq(
            ffa_parallel_plan_create(&trial->plans[r], dispatch, mask, r, &plan_opts, NULL),
            FFA_OK);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}

static void finish(struct trial *trial)
{
    for (int32_t r = 0; r < trial->ranks; r++)
        ffa_parallel_plan_destroy(trial->plans[r]);
}

/* ---- keys ---- */

/* Every window as the copies make it: own rows, then what each copy brings. */
static void fill_windows(struct trial *trial)
{
    for (int32_t r = 0; r < trial->ranks; r++) {
        const ffa_parallel_plan *plan = trial->plans[r];

        CHECK(trial, trial->moves[r].own_rows == plan->keys.rank_tokens[r]);
        CHECK(trial, trial->moves[r].window_rows <= WINDOW);
        for (int64_t row = 0; row < WINDOW; row++)
            trial->windows[r][row] =
                row < trial->moves[r].own_rows ? parallel_token(&plan->keys, r, row) : -1;
    }
    for (int32_t r = 0; r < trial->ranks; r++) {
        const struct pass_moves *moves = &trial->moves[r];

        for (int64_t i = 0; i < moves->copy_begin[moves->stage_count]; i++) {
            const struct pass_copy *copy = &moves->copies[i];

            CHECK(trial, copy->rank != r && copy->rows > 0 && copy->from >= 0);
            CHECK(trial, copy->from + copy->rows <= trial->moves[copy->rank].own_rows);
            for (int64_t j = 0; j < copy->rows; j++) {
                CHECK(trial, trial->windows[r][copy->to + j] == -1);
                trial->windows[r][copy->to + j] = trial->windows[copy->rank][copy->from + j];
            }
        }
    }
}

/* The stages of the plan have the rows and tokens that the windows got. */
static void check_stages(const struct trial *trial, int32_t rank, bool is_backward)
{
    const ffa_parallel_plan *plan = trial->plans[rank];
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    int64_t begin = trial->moves[rank].own_rows;

    for (int32_t s = 1; s <= pass->stage_count; s++) {
        const struct transfer_copies *receives = &pass->phases[s].receives;

        for (int64_t i = 0; i < receives->count; i++)
            for (int64_t j = 0; j < receives->at[i].rows; j++)
                CHECK(trial, trial->windows[rank][begin + receives->at[i].row + j] ==
                                 parallel_token(&plan->keys, receives->at[i].source,
                                                receives->at[i].source_row + j));
        begin += pass->phases[s].rows;
    }
    CHECK(trial, begin == trial->moves[rank].window_rows);
    for (int64_t row = 0; row < begin; row++)
        CHECK(trial, trial->windows[rank][row] >= 0);
}

/* Sources come once, with the first stage that needs them, and know their readers. */
static void check_sources(const struct trial *trial, int32_t rank)
{
    const struct pass_moves *moves = &trial->moves[rank];
    bool is_known[RANKS_HERE] = { false };

    for (int32_t s = 0; s < moves->stage_count; s++) {
        for (int32_t i = moves->source_begin[s]; i < moves->source_begin[s + 1]; i++) {
            CHECK(trial, !is_known[moves->sources[i]]);
            is_known[moves->sources[i]] = true;
        }
        for (int64_t i = moves->copy_begin[s]; i < moves->copy_begin[s + 1]; i++)
            CHECK(trial, is_known[moves->copies[i].rank] && moves->copies[i].stage == s);
    }
    for (int32_t q = 0; q < trial->ranks; q++) {
        bool is_reader = false;

        for (int32_t i = 0; i < trial->moves[q].reader_count; i++)
            is_reader = is_reader || trial->moves[q].readers[i] == rank;
        CHECK(trial, is_reader == is_known[q]);
    }
}

/* ---- sums ---- */

/* What is added to an own row: the ranks and rows of sum windows, in order. */
static void check_row(const struct trial *trial, int32_t rank, const struct pass_sums *sums,
                      const struct row_segment *segment, int64_t row)
{
    const int64_t token = trial->windows[rank][row];
    int32_t last = -1, others = 0;

    for (int32_t i = 0; i < segment->count; i++) {
        const int64_t at = sums->received[segment->first + i] + row - segment->row;
        const struct pass_copy *copy = NULL;

        for (int64_t c = 0; c < sums->copy_count; c++)
            if (at >= sums->copies[c].to && at < sums->copies[c].to + sums->copies[c].rows)
                copy = &sums->copies[c];
        CHECK(trial, copy && copy->rank > last);
        last = copy->rank;
        CHECK(trial, trial->windows[copy->rank][copy->from + at - copy->to] == token);
        CHECK(trial, copy->from >= trial->moves[copy->rank].own_rows);
    }
    for (int32_t q = 0; q < trial->ranks; q++)
        for (int64_t i = trial->moves[q].own_rows; i < trial->moves[q].window_rows; i++)
            others += trial->windows[q][i] == token;
    CHECK(trial, others == segment->count);
}

static void check_sums(const struct trial *trial, int32_t rank)
{
    struct pass_sums sums;
    int64_t row = 0, received = 0;

    ck_assert_int_eq(pass_sums_build(&sums, trial->plans[rank], &trial->moves[rank], NULL), FFA_OK);
    for (int64_t s = 0; s < sums.segment_count; s++) {
        CHECK(trial, sums.segments[s].row == row && sums.segments[s].rows > 0);
        for (int32_t j = 0; j < sums.segments[s].rows; j++)
            check_row(trial, rank, &sums, &sums.segments[s], row + j);
        row += sums.segments[s].rows;
    }
    CHECK(trial, row == trial->moves[rank].own_rows);
    for (int64_t i = 0; i < sums.copy_count; i++) {
        CHECK(trial, sums.copies[i].to == received && sums.copies[i].stage > 0);
        received += sums.copies[i].rows;
    }
    CHECK(trial, received == sums.received_rows);
    pass_sums_finish(&sums);
}

/* A stage's owners are the ranks its keys came from. */
static void check_owners(const struct trial *trial, int32_t rank)
{
    const struct pass_moves *moves = &trial->moves[rank];
    struct pass_sums sums;

    ck_assert_int_eq(pass_sums_build(&sums, trial->plans[rank], moves, NULL), FFA_OK);
    for (int32_t s = 0; s < moves->stage_count; s++)
        for (int32_t q = 0; q < trial->ranks; q++) {
            bool is_source = false, is_owner = false;

            for (int64_t i = moves->copy_begin[s]; i < moves->copy_begin[s + 1]; i++)
                is_source = is_source || moves->copies[i].rank == q;
            for (int32_t i = sums.owner_begin[s]; i < sums.owner_begin[s + 1]; i++)
                is_owner = is_owner || sums.owners[i] == q;
            CHECK(trial, is_source == is_owner);
        }
    pass_sums_finish(&sums);
}

/* ---- all ---- */

static void check_pass(struct trial *trial, bool is_backward)
{
    for (int32_t r = 0; r < trial->ranks; r++)
        ck_assert_int_eq(pass_moves_build(&trial->moves[r], trial->plans[r], is_backward, NULL),
                         FFA_OK);
    fill_windows(trial);
    for (int32_t r = 0; r < trial->ranks; r++) {
        check_stages(trial, r, is_backward);
        check_sources(trial, r);
        if (is_backward) {
            check_sums(trial, r);
            check_owners(trial, r);
        }
    }
    for (int32_t r = 0; r < trial->ranks; r++)
        pass_moves_finish(&trial->moves[r]);
}

START_TEST(random_masks)
{
    for (uint64_t seed = 0; seed < MASKS; seed++) {
        struct trial trial;

        draw(&trial, seed);
        check_pass(&trial, false);
        check_pass(&trial, true);
        finish(&trial);
    }
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    struct trial trial;

    draw(&trial, 3);
    for (long nth = 1;; nth++) {
        struct pass_moves moves;
        struct pass_sums sums = { 0 };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = pass_moves_build(&moves, trial.plans[0], true, NULL);
        if (rc == FFA_OK)
            rc = pass_sums_build(&sums, trial.plans[0], &moves, NULL);
        pass_sums_finish(&sums);
        pass_moves_finish(&moves);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    finish(&trial);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pass_tables");
    TCase *tc = tcase_create("pass_tables");

    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, random_masks);
    tcase_add_test(tc, any_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
