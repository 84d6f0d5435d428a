/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of a pass in stages: each cell of each stage computed once, tiles that are the same in all
 * stages, flags that say what comes before and after; masks and bands give the same plans.
 */
#include "support/coverage.h"
#include "support/stage_case.h"
#include "support/suite.h"
#include "tile/staged.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 200, ROWS_MAX = 90, LISTS = 2 };

/* ---- a pass ---- */

/* A random pass in stages, with one list or LISTS: the second has every other slice of the first.
 */
struct pass {
    struct stage_case masks;
    int32_t count, list_count;
    ffa_slice_list lists[STAGE_CASE_MAX][LISTS];
    ffa_slice slices[STAGE_CASE_MAX][STAGE_CASE_SLICES];
    ffa_mask *made[STAGE_CASE_MAX];
    struct stage_cells cells[STAGE_CASE_MAX];
    struct bands bands[STAGE_CASE_MAX][LISTS];
    struct staged_plan plans[STAGE_CASE_MAX];
};

static void pass_init(struct pass *pass, uint64_t seed)
{
    struct rng rng = { seed };

    *pass = (struct pass){ .list_count = seed % 3 ? 1 : LISTS };
    stage_case_init(&pass->masks, &rng, ROWS_MAX);
    pass->count = pass->masks.count;
    for (int32_t s = 0; s < pass->count; s++) {
        const ffa_mask_shape shape = { ffa_mask_seqlen_q(pass->masks.masks[s]),
                                       ffa_mask_seqlen_k(pass->masks.masks[s]) };
        const ffa_slice_list all = ffa_mask_slices(pass->masks.masks[s], 0);
        int64_t count = 0;

        for (int64_t i = 0; i < all.count; i += 2)
            pass->slices[s][count++] = all.slices[i];
        pass->lists[s][0] = all;
        pass->lists[s][1] = (ffa_slice_list){ pass->slices[s], count };
        ck_assert_int_eq(ffa_mask_create_per_head(&pass->made[s], &shape, pass->lists[s],
                                                  pass->list_count, NULL),
                         FFA_OK);
        pass->cells[s].mask = pass->made[s];
    }
}

/* The same cells as bands. */
static void pass_to_bands(struct pass *pass)
{
    for (int32_t s = 0; s < pass->count; s++) {
        for (int32_t l = 0; l < pass->list_count; l++)
            ck_assert_int_eq(
                bands_add_normal(&pass->bands[s][l], &pass->made[s]->lists[l].normal, NULL),
                FFA_OK);
        pass->cells[s] =
            (struct stage_cells){ .shape = pass->made[s]->shape, .lists = pass->bands[s] };
    }
}

static void pass_finish(struct pass *pass)
{
    staged_finish(pass->plans, pass->count);
    for (int32_t s = 0; s < pass->count; s++) {
        ffa_mask_destroy(pass->made[s]);
        for (int32_t l = 0; l < LISTS; l++)
            bands_finish(&pass->bands[s][l]);
    }
    stage_case_finish(&pass->masks);
}

/* ---- checks ---- */

/* How often the plan computes each cell of a list, by its bands. */
static void count_cells(const struct tile_plan *plan, int32_t list, uint8_t *cells)
{
    memset(cells, 0, (size_t)(plan->shape.seqlen_q * plan->shape.seqlen_k));
    for (int64_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++)
        for (int32_t b = 0; b < plan->tiles[t].band_count; b++) {
            const struct plan_band *band = &plan->bands[plan->tiles[t].band_begin + b];

            for (int32_t row = band->begin; row < band->end; row++)
                for (int32_t k = band->lo + band->lo_step * (row - band->begin);
                     k < band->hi + band->hi_step * (row - band->begin); k++)
                    cells[row * plan->shape.seqlen_k + k]++;
        }
}

/* Each attended cell of each stage once, and no other. */
static void check_cells(const struct pass *pass, uint64_t seed)
{
    uint8_t cells[ROWS_MAX * ROWS_MAX];

    for (int32_t s = 0; s < pass->count; s++)
        for (int32_t l = 0; l < pass->list_count; l++) {
            const struct tile_plan *plan = &pass->plans[s].forward;

            count_cells(plan, l, cells);
            for (int64_t row = 0; row < plan->shape.seqlen_q; row++)
                for (int64_t k = 0; k < plan->shape.seqlen_k; k++) {
                    uint8_t want = 0;

                    for (int64_t i = 0; i < pass->lists[s][l].count; i++)
                        want |= slice_has(&pass->lists[s][l].slices[i], row, k);
                    ck_assert_msg(cells[row * plan->shape.seqlen_k + k] == want,
                                  "seed %llu, stage %d, list %d: cell (%lld, %lld)",
                                  (unsigned long long)seed, s, l, (long long)row, (long long)k);
                }
        }
}

/* By row: its tile is the same in every stage; the first does not merge, all others do; the last
 * does not continue, all others do. A row without cells is in stage 0, unmarked. */
static void check_flags(const struct pass *pass, uint64_t seed)
{
    const int64_t rows = pass->masks.shape.seqlen_q;
    int32_t owners[ROWS_MAX];
    bool begun[ROWS_MAX], ended[ROWS_MAX];

    for (int32_t l = 0; l < pass->list_count; l++) {
        memset(begun, 0, sizeof begun);
        memset(ended, 0, sizeof ended);
        for (int32_t s = 0; s < pass->count; s++) {
            const struct tile_plan *plan = &pass->plans[s].forward;

            for (int64_t t = plan->list_begin[l]; t < plan->list_begin[l + 1]; t++) {
                const struct plan_tile *tile = &plan->tiles[t];

                ck_assert_int_eq(tile->list, l);
                ck_assert(tile->sweep_count > 0 || (s == 0 && tile->flags == 0));
                for (int32_t r = tile->begin; r < tile->begin + tile->count; r++) {
                    ck_assert_msg(begun[r] == !!(tile->flags & PLAN_TILE_MERGES) && !ended[r],
                                  "seed %llu, stage %d, list %d: row %d", (unsigned long long)seed,
                                  s, l, r);
                    ck_assert(!begun[r] || owners[r] == tile->begin);
                    begun[r] = true;
                    ended[r] = !(tile->flags & PLAN_TILE_CONTINUES);
                    owners[r] = tile->begin;
                }
            }
        }
        for (int64_t r = 0; r < rows; r++)
            ck_assert_msg(begun[r] && ended[r], "seed %llu, list %d: row %lld",
                          (unsigned long long)seed, l, (long long)r);
    }
}

static void build(struct pass *pass, const struct staged_options *opts)
{
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(staged_build(pass->plans, pass->cells, pass->count, opts, &err) == FFA_OK, "%s",
                  err.message);
}

static const struct tile_options tiles[] = {
    { .tile_m = 16, .tile_n = 16 },
    { .tile_m = 8, .tile_n = 24, .cuts = TILE_CUTS_ISOLATE },
    { .tile_m = 16, .tile_n = 8, .cuts = TILE_CUTS_NONE },
};
enum { TILES = sizeof tiles / sizeof *tiles };
static const struct tile_options key_tiles = { .tile_m = 8, .tile_n = 16, .on_grid = true };

START_TEST(stages_have_each_cell_once)
{
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        struct coverage_text why = { "" };
        struct pass pass;

        pass_init(&pass, seed);
        build(&pass, &(struct staged_options){ .list_count = pass.list_count,
                                               .forward = &tiles[_i],
                                               .backward = &key_tiles });
        check_cells(&pass, seed);
        check_flags(&pass, seed);
        for (int32_t s = 0; s < pass.count; s++) {
            const struct tile_plan *backward = &pass.plans[s].backward;

            ck_assert_int_eq(tile_check(&pass.plans[s].forward, NULL), FFA_OK);
            ck_assert_int_eq(tile_check(backward, NULL), FFA_OK);
            ck_assert_msg(coverage_lines(backward, pass.lists[s], &why), "seed %llu, stage %d: %s",
                          (unsigned long long)seed, s, why.at);
            for (int64_t t = 0; t < backward->tile_count; t++)
                ck_assert_int_eq(backward->tiles[t].flags, 0);
        }
        pass_finish(&pass);
    }
}
END_TEST

static void same(const struct tile_plan *a, const struct tile_plan *b)
{
    ck_assert_int_eq(a->tile_count, b->tile_count);
    ck_assert_int_eq(a->sweep_count, b->sweep_count);
    ck_assert_int_eq(a->band_count, b->band_count);
    ck_assert_int_eq(a->ticket_count, b->ticket_count);
    ck_assert_int_eq(a->area, b->area);
    if (a->tile_count)
        ck_assert_mem_eq(a->tiles, b->tiles, (size_t)a->tile_count * sizeof *a->tiles);
    if (a->sweep_count)
        ck_assert_mem_eq(a->sweeps, b->sweeps, (size_t)a->sweep_count * sizeof *a->sweeps);
    for (int64_t i = 0; i < a->band_count; i++) {
        const struct plan_band *x = &a->bands[i], *y = &b->bands[i];

        ck_assert_int_eq(x->begin, y->begin);
        ck_assert_int_eq(x->end, y->end);
        ck_assert_int_eq(x->lo, y->lo);
        ck_assert_int_eq(x->hi, y->hi);
        if (x->end - x->begin == 1) /* then steps say nothing */
            continue;
        ck_assert_int_eq(x->lo_step, y->lo_step);
        ck_assert_int_eq(x->hi_step, y->hi_step);
    }
}

static void same_counts(const struct tile_plan *counted, const struct tile_plan *whole)
{
    ck_assert_int_eq(counted->block_count, whole->block_count);
    ck_assert_int_eq(counted->partial_blocks, whole->partial_blocks);
    ck_assert_int_eq(counted->area, whole->area);
    ck_assert_int_eq(counted->tile_count + counted->sweep_count + counted->band_count, 0);
    ck_assert_ptr_null(counted->tiles);
    ck_assert_ptr_null(counted->tickets);
}

START_TEST(masks_and_bands_give_the_same_plans)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 2; seed++) {
        struct staged_plan of_masks[STAGE_CASE_MAX];
        struct pass pass;
        struct staged_options opts;

        pass_init(&pass, seed);
        opts = (struct staged_options){ .list_count = pass.list_count,
                                        .forward = &tiles[_i],
                                        .backward = &key_tiles };
        build(&pass, &opts);
        memcpy(of_masks, pass.plans, sizeof of_masks);
        pass_to_bands(&pass);
        build(&pass, &opts);
        for (int32_t s = 0; s < pass.count; s++) {
            same(&pass.plans[s].forward, &of_masks[s].forward);
            same(&pass.plans[s].backward, &of_masks[s].backward);
        }
        staged_finish(of_masks, pass.count);
        pass_finish(&pass);
    }
}
END_TEST

/* ---- which tiles ---- */

START_TEST(only_the_passes_that_are_wanted)
{
    struct pass pass;

    pass_init(&pass, 1);
    build(&pass, &(struct staged_options){ .list_count = pass.list_count, .forward = tiles });
    for (int32_t s = 0; s < pass.count; s++) {
        ck_assert_ptr_nonnull(pass.plans[s].forward.tiles);
        ck_assert_ptr_null(pass.plans[s].backward.list_begin);
    }
    staged_finish(pass.plans, pass.count);
    build(&pass, &(struct staged_options){ .list_count = pass.list_count, .backward = &key_tiles });
    for (int32_t s = 0; s < pass.count; s++) {
        ck_assert_ptr_null(pass.plans[s].forward.list_begin);
        ck_assert_ptr_nonnull(pass.plans[s].backward.tiles);
    }
    pass_finish(&pass);
}
END_TEST

START_TEST(tiles_begin_where_given_cuts_do)
{
    int32_t begins[LISTS][ROWS_MAX];
    struct cut_list cuts[LISTS];

    for (uint64_t seed = 1; seed <= ROUNDS / 4; seed++) {
        struct pass pass;

        pass_init(&pass, seed);
        for (int32_t l = 0; l < LISTS; l++) {
            cuts[l] = (struct cut_list){ begins[l], 0 };
            for (int32_t row = 0; row < pass.masks.shape.seqlen_q; row += 5 + 6 * l)
                begins[l][cuts[l].count++] = row;
        }
        build(&pass, &(struct staged_options){
                         .list_count = pass.list_count, .forward = tiles, .cuts = cuts });
        check_cells(&pass, seed);
        check_flags(&pass, seed);
        for (int32_t s = 0; s < pass.count; s++)
            for (int64_t t = 0; t < pass.plans[s].forward.tile_count; t++) {
                const struct plan_tile *tile = &pass.plans[s].forward.tiles[t];

                ck_assert_int_eq(tile->begin % (5 + 6 * tile->list), 0);
                ck_assert_int_le(tile->count, 5 + 6 * tile->list);
            }
        pass_finish(&pass);
    }
}
END_TEST

/* Isolated, a row where a tile of some stage's own plan begins is one where tiles of all begin. */
START_TEST(documents_of_every_stage_are_kept_apart)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 4; seed++) {
        struct tile_plan own;
        struct pass pass;

        pass_init(&pass, 3 * seed + 1); /* one list */
        build(&pass, &(struct staged_options){ .list_count = 1, .forward = &tiles[1] });
        for (int32_t s = 0; s < pass.count; s++) {
            ck_assert_int_eq(tile_build(&own, pass.made[s], TILE_OWNS_QUERIES, &tiles[1], NULL),
                             FFA_OK);
            for (int64_t i = 0; i < own.tile_count; i++)
                for (int32_t of = 0; of < pass.count; of++)
                    for (int64_t t = 0; t < pass.plans[of].forward.tile_count; t++) {
                        const struct plan_tile *tile = &pass.plans[of].forward.tiles[t];

                        ck_assert(own.tiles[i].begin <= tile->begin ||
                                  own.tiles[i].begin >= tile->begin + tile->count);
                    }
            tile_finish(&own);
        }
        pass_finish(&pass);
    }
}
END_TEST

START_TEST(stages_with_rows_of_their_own)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 4; seed++) {
        struct tile_plan own;
        struct pass pass;

        pass_init(&pass, seed);
        build(&pass, &(struct staged_options){
                         .list_count = pass.list_count, .forward = tiles, .has_own_rows = true });
        for (int32_t s = 0; s < pass.count; s++) {
            ck_assert_int_eq(tile_build(&own, pass.made[s], TILE_OWNS_QUERIES, tiles, NULL),
                             FFA_OK);
            same(&pass.plans[s].forward, &own);
            ck_assert(!pass.plans[s].forward.is_stage);
            tile_finish(&own);
        }
        pass_finish(&pass);
    }
}
END_TEST

/* A rank that has no keys, or nothing to do in a stage. */
START_TEST(a_stage_without_keys)
{
    const struct bands none = { 0 };
    const struct stage_cells stages[] = { { .shape = { 40, 0 }, .lists = &none },
                                          { .shape = { 40, 7 }, .lists = &none } };
    struct staged_plan plans[2];

    ck_assert_int_eq(staged_build(plans, stages, 2,
                                  &(struct staged_options){
                                      .list_count = 1, .forward = tiles, .backward = &key_tiles },
                                  NULL),
                     FFA_OK);
    ck_assert_int_eq(plans[0].forward.tile_count, 3); /* written as empty */
    for (int t = 0; t < 3; t++)
        ck_assert_int_eq(plans[0].forward.tiles[t].flags, 0);
    ck_assert_int_eq(plans[1].forward.tile_count, 0);
    ck_assert_int_eq(plans[0].backward.tile_count, 0);
    ck_assert_int_eq(plans[0].backward.list_begin[1], 0);
    ck_assert_int_eq(plans[1].backward.tile_count, 1); /* gradients are 0 */
    for (int s = 0; s < 2; s++) {
        ck_assert_int_eq(tile_check(&plans[s].forward, NULL), FFA_OK);
        ck_assert_int_eq(tile_check(&plans[s].backward, NULL), FFA_OK);
    }
    staged_finish(plans, 2);
}
END_TEST

/* A rank that has keys, and no query rows. */
START_TEST(a_stage_without_rows)
{
    const struct bands none = { 0 };
    const struct stage_cells stages[] = { { .shape = { 0, 40 }, .lists = &none },
                                          { .shape = { 0, 7 }, .lists = &none } };
    struct staged_plan plans[2];

    ck_assert_int_eq(staged_build(plans, stages, 2,
                                  &(struct staged_options){
                                      .list_count = 1, .forward = tiles, .backward = &key_tiles },
                                  NULL),
                     FFA_OK);
    for (int s = 0; s < 2; s++) {
        ck_assert_int_eq(plans[s].forward.tile_count, 0);
        ck_assert_int_eq(plans[s].backward.ticket_count, 0);
        ck_assert_int_eq(tile_check(&plans[s].forward, NULL), FFA_OK);
        ck_assert_int_eq(tile_check(&plans[s].backward, NULL), FFA_OK);
    }
    ck_assert_int_eq(plans[0].backward.tile_count, 3); /* gradients are 0 */
    ck_assert_int_eq(plans[1].backward.tile_count, 1);
    staged_finish(plans, 2);
}
END_TEST

/* ---- what is left for later ---- */

START_TEST(the_rest_is_what_continues)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 4; seed++) {
        struct pass pass;

        pass_init(&pass, seed);
        build(&pass, &(struct staged_options){ .list_count = pass.list_count, .forward = tiles });
        for (int32_t s = 0; s < pass.count; s++) {
            const struct tile_plan *from = &pass.plans[s].forward;
            struct tile_plan rest;
            int64_t at = 0;

            ck_assert_int_eq(staged_rest(&rest, from, NULL), FFA_OK);
            for (int64_t t = 0; t < from->tile_count; t++) {
                if (!(from->tiles[t].flags & PLAN_TILE_CONTINUES))
                    continue;
                ck_assert_int_lt(at, rest.tile_count);
                ck_assert_int_eq(rest.tiles[at].begin, from->tiles[t].begin);
                ck_assert_int_eq(rest.tiles[at].count, from->tiles[t].count);
                ck_assert_int_eq(rest.tiles[at].list, from->tiles[t].list);
                ck_assert_int_eq(rest.tiles[at].sweep_count, 0);
                ck_assert_int_eq(rest.tiles[at].flags, PLAN_TILE_MERGES);
                ck_assert_int_ge(at, rest.list_begin[from->tiles[t].list]);
                ck_assert_int_lt(at, rest.list_begin[from->tiles[t].list + 1]);
                at++;
            }
            ck_assert_int_eq(at, rest.tile_count);
            tile_finish(&rest);
        }
        pass_finish(&pass);
    }
}
END_TEST

/* The same cells with tiles, and counted only. */
START_TEST(counts_are_those_of_the_tiles)
{
    for (uint64_t seed = 1; seed <= ROUNDS / 2; seed++) {
        struct staged_plan whole[STAGE_CASE_MAX];
        struct pass pass;
        struct staged_options opts;

        pass_init(&pass, seed);
        opts = (struct staged_options){ .list_count = pass.list_count,
                                        .forward = &tiles[_i],
                                        .backward = &key_tiles };
        build(&pass, &opts);
        memcpy(whole, pass.plans, sizeof whole);
        opts.counts_only = true;
        build(&pass, &opts);
        for (int32_t s = 0; s < pass.count; s++) {
            same_counts(&pass.plans[s].forward, &whole[s].forward);
            same_counts(&pass.plans[s].backward, &whole[s].backward);
        }
        staged_finish(whole, pass.count);
        pass_finish(&pass);
    }
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    const uint64_t seed = 3; /* LISTS */
    struct tile_plan rest = { 0 };
    struct pass pass;
    ffa_status rc;
    long nth;

    pass_init(&pass, seed);
    pass_to_bands(&pass);
    for (nth = 1;; nth++) {
        const struct staged_options opts = { .list_count = pass.list_count,
                                             .forward = &tiles[_i],
                                             .backward = &key_tiles };
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        rc = staged_build(pass.plans, pass.cells, pass.count, &opts, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
        for (int32_t s = 0; s < pass.count; s++) {
            ck_assert_ptr_null(pass.plans[s].forward.list_begin);
            ck_assert_ptr_null(pass.plans[s].backward.list_begin);
        }
    }
    ck_assert_int_eq(rc, FFA_OK);
    ck_assert_int_gt(nth, 20);
    for (nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = staged_rest(&rest, &pass.plans[0].forward, NULL);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(rest.tiles);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(nth, 4);
    tile_finish(&rest);
    pass_finish(&pass);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("staged");
    TCase *tc = tcase_create("staged");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, stages_have_each_cell_once, 0, TILES);
    tcase_add_loop_test(tc, masks_and_bands_give_the_same_plans, 0, TILES);
    tcase_add_test(tc, only_the_passes_that_are_wanted);
    tcase_add_test(tc, tiles_begin_where_given_cuts_do);
    tcase_add_test(tc, documents_of_every_stage_are_kept_apart);
    tcase_add_test(tc, stages_with_rows_of_their_own);
    tcase_add_test(tc, a_stage_without_keys);
    tcase_add_test(tc, a_stage_without_rows);
    tcase_add_test(tc, the_rest_is_what_continues);
    tcase_add_loop_test(tc, counts_are_those_of_the_tiles, 0, TILES);
    tcase_add_loop_test(tc, any_allocation_may_fail, 0, TILES);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
