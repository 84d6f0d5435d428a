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

/* A cap under what rank 0 needs, or none where nothing so small will do. */
static void draw_memory(struct rng *rng, const ffa_dispatch *dispatch, const ffa_mask *mask,
                        ffa_parallel_plan_opts *opts)
{
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_plan *plan;

    opts->model.heads_kv = opts->model.heads_q = 8;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    opts->memory_bytes = info.memory_bytes * rng_range(rng, 60, 105) / 100;
    if (ffa_parallel_plan_create(&plan, dispatch, mask, 0, opts, NULL) != FFA_OK)
        opts->memory_bytes = 0;
    else
        ffa_parallel_plan_destroy(plan);
}

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
    if (seed % 3 == 0)
        draw_memory(&rng, dispatch, mask, &plan_opts);
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

/* The rows of the window that a step is about: all that are received, or those of a round. */
static void step_rows(const struct trial *trial, int32_t rank, int32_t step, int64_t *begin,
                      int64_t *end)
{
    const struct pass_moves *moves = &trial->moves[rank];

    *begin = moves->own_rows;
    *end = moves->window_rows;
    if (!moves->in_rounds)
        return;
    *end = *begin;
    if (step + 1 >= moves->stage_count)
        return;
    *begin = *end = moves->stage_rows[step + 1];
    for (int64_t i = moves->copy_begin[step + 1]; i < moves->copy_begin[step + 2]; i++)
        *end += moves->copies[i].rows;
}

static void fill_own(struct trial *trial)
{
    for (int32_t r = 0; r < trial->ranks; r++) {
        const ffa_parallel_plan *plan = trial->plans[r];

        CHECK(trial, trial->moves[r].own_rows == plan->keys.rank_tokens[r]);
        CHECK(trial, trial->moves[r].window_rows <= WINDOW);
        CHECK(trial, trial->moves[r].in_rounds == plan->in_rounds);
        CHECK(trial, trial->moves[r].round_most == trial->moves[0].round_most);
        for (int64_t row = 0; row < WINDOW; row++)
            trial->windows[r][row] =
                row < trial->moves[r].own_rows ? parallel_token(&plan->keys, r, row) : -1;
    }
}

/* What each copy of a step brings. */
static void fill_step(struct trial *trial, int32_t rank, int32_t step)
{
    const struct pass_moves *moves = &trial->moves[rank];
    const int32_t first = moves->in_rounds ? step + 1 : 1;
    const int32_t last = moves->in_rounds ? step + 2 : moves->stage_count;
    int64_t begin, end;

    step_rows(trial, rank, step, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        trial->windows[rank][row] = -1;
    if (first >= moves->stage_count)
        return;
    for (int64_t i = moves->copy_begin[first]; i < moves->copy_begin[last]; i++) {
        const struct pass_copy *copy = &moves->copies[i];

        CHECK(trial, copy->rank != rank && copy->rows > 0 && copy->from >= 0);
        CHECK(trial, copy->from + copy->rows <= trial->moves[copy->rank].own_rows);
        CHECK(trial, copy->to >= begin && copy->to + copy->rows <= end);
        for (int64_t j = 0; j < copy->rows; j++) {
            CHECK(trial, trial->windows[rank][copy->to + j] == -1);
            trial->windows[rank][copy->to + j] = trial->windows[copy->rank][copy->from + j];
        }
    }
}

/* The stages of the plan have the rows and tokens that the windows got. */
static void check_stages(const struct trial *trial, int32_t rank, bool is_backward, int32_t step)
{
    const ffa_parallel_plan *plan = trial->plans[rank];
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const struct pass_moves *moves = &trial->moves[rank];
    int64_t begin, end, rows = 0;

    step_rows(trial, rank, step, &begin, &end);
    CHECK(trial, end <= moves->window_rows);
    for (int32_t s = 1; s <= pass->stage_count; s++) {
        const struct transfer_copies *receives = &pass->phases[s].receives;

        if (moves->in_rounds && s != step + 1)
            continue;
        CHECK(trial, moves->stage_rows[s] == begin + rows);
        for (int64_t i = 0; i < receives->count; i++)
            for (int64_t j = 0; j < receives->at[i].rows; j++)
                CHECK(trial, trial->windows[rank][begin + rows + receives->at[i].row + j] ==
                                 parallel_token(&plan->keys, receives->at[i].source,
                                                receives->at[i].source_row + j));
        rows += pass->phases[s].rows;
    }
    CHECK(trial, begin + rows == end);
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

static int32_t count_others(const struct trial *trial, int32_t step, int64_t token)
{
    int32_t others = 0;

    for (int32_t q = 0; q < trial->ranks; q++) {
        int64_t begin, end;

        step_rows(trial, q, step, &begin, &end);
        for (int64_t i = begin; i < end; i++)
            others += trial->windows[q][i] == token;
    }
    return others;
}

/* What is added to an own row: the ranks and rows of sum windows, in order. */
static void check_row(const struct trial *trial, int32_t rank, const struct pass_sums *sums,
                      int32_t step, const struct row_segment *segment, int64_t row)
{
    const int64_t token = trial->windows[rank][row];
    int32_t last = -1;

    for (int32_t i = 0; i < segment->count; i++) {
        const int64_t at = sums->received[segment->first + i] + row - segment->row;
        const struct pass_copy *copy = NULL;

        for (int64_t c = sums->copy_begin[step]; c < sums->copy_begin[step + 1]; c++)
            if (at >= sums->copies[c].to && at < sums->copies[c].to + sums->copies[c].rows)
                copy = &sums->copies[c];
        CHECK(trial, copy && copy->rank > last);
        last = copy->rank;
        CHECK(trial, sums->kept_rows[copy->rank] == trial->moves[copy->rank].own_rows);
        CHECK(trial, copy->from >= 0);
        CHECK(
            trial,
            trial->windows[copy->rank][sums->kept_rows[copy->rank] + copy->from + at - copy->to] ==
                token);
    }
    CHECK(trial, count_others(trial, step, token) == segment->count);
}

static void check_sums(const struct trial *trial, int32_t rank, int32_t step)
{
    const bool in_rounds = trial->moves[rank].in_rounds;
    struct pass_sums sums;
    int64_t row = 0, received = 0;

    ck_assert_int_eq(pass_sums_build(&sums, trial->plans[rank], &trial->moves[rank], true, NULL),
                     FFA_OK);
    CHECK(trial, sums.step_count == trial->moves[rank].round_most);
    for (int64_t s = sums.segment_begin[step]; s < sums.segment_begin[step + 1]; s++) {
        const struct row_segment *segment = &sums.segments[s];

        CHECK(trial, segment->rows > 0 && (in_rounds ? segment->row >= row && segment->count > 0
                                                     : segment->row == row));
        for (; row < segment->row; row++)
            CHECK(trial, count_others(trial, step, trial->windows[rank][row]) == 0);
        for (int32_t j = 0; j < segment->rows; j++)
            check_row(trial, rank, &sums, step, segment, row + j);
        row += segment->rows;
    }
    for (; in_rounds && row < trial->moves[rank].own_rows; row++)
        CHECK(trial, count_others(trial, step, trial->windows[rank][row]) == 0);
    CHECK(trial, row == trial->moves[rank].own_rows);
    for (int64_t i = sums.copy_begin[step]; i < sums.copy_begin[step + 1]; i++) {
        CHECK(trial, sums.copies[i].to == received && sums.copies[i].stage > 0);
        CHECK(trial, !in_rounds || sums.copies[i].stage == step + 1);
        received += sums.copies[i].rows;
    }
    CHECK(trial, in_rounds ? received <= sums.received_rows : received == sums.received_rows);
    pass_sums_finish(&sums);
}

/* A stage's owners are the ranks its keys came from. */
static void check_owners(const struct trial *trial, int32_t rank)
{
    const struct pass_moves *moves = &trial->moves[rank];
    struct pass_sums sums;

    ck_assert_int_eq(pass_sums_build(&sums, trial->plans[rank], moves, true, NULL), FFA_OK);
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
    fill_own(trial);
    for (int32_t t = 0; t < trial->moves[0].round_most; t++) {
        for (int32_t r = 0; r < trial->ranks; r++)
            fill_step(trial, r, t);
        for (int32_t r = 0; r < trial->ranks; r++) {
            check_stages(trial, r, is_backward, t);
            if (is_backward)
                check_sums(trial, r, t);
        }
    }
    for (int32_t r = 0; r < trial->ranks; r++) {
        check_sources(trial, r);
        if (is_backward)
            check_owners(trial, r);
    }
    for (int32_t r = 0; r < trial->ranks; r++)
        pass_moves_finish(&trial->moves[r]);
}

START_TEST(random_masks)
{
    int64_t in_rounds = 0;

    for (uint64_t seed = 0; seed < MASKS; seed++) {
        struct trial trial;

        draw(&trial, seed);
        in_rounds += trial.plans[0]->in_rounds;
        check_pass(&trial, false);
        check_pass(&trial, true);
        finish(&trial);
    }
    ck_assert_int_ge(in_rounds, MASKS / 50); /* the draw has not dried up */
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
            rc = pass_sums_build(&sums, trial.plans[0], &moves, true, NULL);
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
