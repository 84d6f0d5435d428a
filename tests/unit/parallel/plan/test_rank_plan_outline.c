/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans that are only to be read: an outline says what the whole plan says, and the slowest rank
 * needs no second plan to be found.
 */
#include "mask/mask.h"
#include "parallel/plan/rank_plan.h"
#include "support/suite.h"

#include <check.h>

enum { RANKS = 4 };

/* Where rows live and what moves. */
static const struct {
    int64_t queries, keys;
    int32_t key_mode, moves;
    uint32_t flags;
} cases[] = {
    { 8192, 8192, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_KEYS, 0 },
    { 8192, 8192, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_QUERIES, 0 },
    { 1000, 7000, FFA_KEYS_DISPATCHED, FFA_PARALLEL_MOVE_AUTO, 0 },
    { 3000, 2000, FFA_KEYS_REPLICATED, FFA_PARALLEL_MOVE_KEYS, 0 },
    { 5000, 5000, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_KEYS, FFA_PARALLEL_FORWARD_ONLY },
};
enum { CASES = sizeof cases / sizeof *cases };

struct world {
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan_opts opts;
};

static void world_init(struct world *w, int i)
{
    const ffa_mask_shape shape = { cases[i].queries, cases[i].keys };
    const ffa_topology topology = { RANKS, 2 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };

    *w = (struct world){ .opts = FFA_PARALLEL_PLAN_OPTS_INIT };
    opts.keys = cases[i].key_mode;
    w->opts.moves = cases[i].moves;
    w->opts.flags = cases[i].flags;
    ck_assert_int_eq(ffa_mask_causal(&w->mask, &shape, NULL), FFA_OK);
    one.mask = w->mask;
    ck_assert_int_eq(ffa_dispatch_create(&w->dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
}

static void world_finish(struct world *w)
{
    ffa_dispatch_destroy(w->dispatch);
    ffa_mask_destroy(w->mask);
}

static ffa_parallel_plan *plan_of(const struct world *w, int32_t rank, uint32_t flags)
{
    ffa_parallel_plan_opts opts = w->opts;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    opts.flags |= flags;
    ck_assert_msg(!ffa_parallel_plan_create(&plan, w->dispatch, w->mask, rank, &opts, &err), "%s",
                  err.message);
    return plan;
}

static ffa_parallel_plan_info info_of(const ffa_parallel_plan *plan)
{
    ffa_parallel_plan_info info;

    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    return info;
}

static void same_stages(const ffa_parallel_plan *a, const ffa_parallel_plan *b, int32_t is_backward)
{
    for (int32_t s = 0;; s++) {
        ffa_parallel_stage of_a, of_b;
        ffa_status rc;

        memset(&of_a, 0, sizeof of_a);
        memset(&of_b, 0, sizeof of_b);
        of_a.struct_size = of_b.struct_size = (uint32_t)sizeof of_a;
        rc = ffa_parallel_plan_stage_get(a, is_backward, s, &of_a, NULL);
        ck_assert_int_eq(ffa_parallel_plan_stage_get(b, is_backward, s, &of_b, NULL), rc);
        if (rc != FFA_OK)
            return;
        ck_assert_mem_eq(&of_a, &of_b, sizeof of_a);
        ck_assert_int_eq(ffa_parallel_plan_receive_count(a, is_backward, s),
                         ffa_parallel_plan_receive_count(b, is_backward, s));
    }
}

START_TEST(outlines_say_what_plans_say)
{
    struct world w;

    world_init(&w, _i);
    for (int32_t r = 0; r < RANKS; r++) {
        ffa_parallel_plan *whole = plan_of(&w, r, 0),
                          *outline = plan_of(&w, r, FFA_PARALLEL_OUTLINE);
        const ffa_parallel_plan_info of_whole = info_of(whole), of_outline = info_of(outline);

        ck_assert_mem_eq(&of_whole, &of_outline, sizeof of_whole);
        ck_assert_str_eq(ffa_parallel_plan_digest(whole), ffa_parallel_plan_digest(outline));
        same_stages(whole, outline, 0);
        same_stages(whole, outline, 1);
        ck_assert_int_gt(whole->forward.phases[0].tiles.tile_count, 0);
        for (int32_t p = 0; p < outline->forward.phase_count; p++)
            ck_assert_ptr_null(outline->forward.phases[p].tiles.tiles);
        for (int32_t p = 1; p <= outline->backward.stage_count; p++)
            ck_assert_ptr_null(outline->backward.phases[p].key_tiles.tiles);
        ffa_parallel_plan_destroy(whole);
        ffa_parallel_plan_destroy(outline);
    }
    world_finish(&w);
}
END_TEST

/* What is saved is the plan, whole. */
START_TEST(saved_outlines_load_as_plans)
{
    ffa_parallel_plan *outline, *whole, *loaded;
    void *bytes, *of_whole;
    size_t count, whole_count;
    struct world w;

    world_init(&w, 0);
    outline = plan_of(&w, 2, FFA_PARALLEL_OUTLINE);
    whole = plan_of(&w, 2, 0);
    ck_assert_int_eq(ffa_parallel_plan_save(outline, &bytes, &count, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_save(whole, &of_whole, &whole_count, NULL), FFA_OK);
    ck_assert_uint_eq(count, whole_count);
    ck_assert_mem_eq(bytes, of_whole, count);
    ck_assert_int_eq(ffa_parallel_plan_load(&loaded, bytes, count, NULL), FFA_OK);
    ck_assert_int_eq(loaded->forward.phases[0].tiles.tile_count,
                     whole->forward.phases[0].tiles.tile_count);
    ffa_free(bytes);
    ffa_free(of_whole);
    ffa_parallel_plan_destroy(outline);
    ffa_parallel_plan_destroy(whole);
    ffa_parallel_plan_destroy(loaded);
    world_finish(&w);
}
END_TEST

START_TEST(the_slowest_rank_is_found)
{
    ffa_parallel_plan *plan;
    int64_t most = -1;
    int32_t slowest = 0;
    struct world w;

    world_init(&w, _i);
    plan = plan_of(&w, 1, FFA_PARALLEL_SLOWEST_RANK);
    for (int32_t r = 0; r < RANKS; r++) {
        ffa_parallel_plan *of_rank = plan_of(&w, r, 0);
        const ffa_parallel_plan_info info = info_of(of_rank);

        if (info.forward_ns + info.backward_ns > most) {
            most = info.forward_ns + info.backward_ns;
            slowest = r;
        }
        ck_assert_str_eq(ffa_parallel_plan_digest(plan), ffa_parallel_plan_digest(of_rank));
        ffa_parallel_plan_destroy(of_rank);
    }
    {
        ffa_parallel_plan *want = plan_of(&w, slowest, 0);
        const ffa_parallel_plan_info of_want = info_of(want), got = info_of(plan);

        ck_assert_int_eq(got.rank, slowest);
        ck_assert_mem_eq(&of_want, &got, sizeof got);
        same_stages(want, plan, 0);
        same_stages(want, plan, 1);
        ffa_parallel_plan_destroy(want);
    }
    ffa_parallel_plan_destroy(plan);
    world_finish(&w);
}
END_TEST

/* Whoever asks for a plan does not get the outline of one. */
START_TEST(a_cache_keeps_them_apart)
{
    ffa_parallel_plan *whole, *outline;
    ffa_parallel_cache *cache;
    struct world w;

    world_init(&w, 0);
    ck_assert_int_eq(ffa_parallel_cache_create(&cache, 4, NULL), FFA_OK);
    w.opts.flags = FFA_PARALLEL_OUTLINE;
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &outline, w.dispatch, w.mask, 1, &w.opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &whole, w.dispatch, w.mask, 1, NULL, NULL),
                     FFA_OK);
    ck_assert(outline->is_outline);
    ck_assert(!whole->is_outline);
    ffa_parallel_plan_destroy(outline);
    ffa_parallel_plan_destroy(whole);
    ffa_parallel_cache_destroy(cache);
    world_finish(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rank plan outline");
    TCase *tc = tcase_create("rank plan outline");

    tcase_add_loop_test(tc, outlines_say_what_plans_say, 0, CASES);
    tcase_add_test(tc, saved_outlines_load_as_plans);
    tcase_add_loop_test(tc, the_slowest_rank_is_found, 0, CASES);
    tcase_add_test(tc, a_cache_keeps_them_apart);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
