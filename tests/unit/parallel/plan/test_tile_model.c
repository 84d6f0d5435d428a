/* SPDX-License-Identifier: Apache-2.0
 *
 * What tiles cost in the model of time: forward tiles of a rank against a count cell by cell, times
 * against arithmetic done by hand, and a plan that remembers its options.
 */
#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/rank_tiles.h"
#include "support/suite.h"

#include "mask/mask.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <string.h>

/* ---- tiles ---- */

static const struct {
    const char *mask;
    int32_t ranks, chunk, tile_m;
} tilings[] = {
    { "full:1000", 3, 100, 128 },
    { "causal:1024", 2, 128, 128 },
    { "causal:1000", 2, 90, 64 },
    { "window:700/left=50,right=3", 2, 64, 96 },
    { "varlen-full:5*60", 2, 33, 64 },
    { "varlen-causal:100,7,300,64,129", 3, 50, 128 },
    { "block-causal:900/block=100", 2, 75, 80 },
};

/* Keys that any row of the tile attends. */
static int64_t keys_of(const struct bands *bands, const int64_t *rows, int64_t count, int64_t keys)
{
    int64_t attended = 0;

    for (int64_t k = 0; k < keys; k++) {
        bool is_attended = false;

        for (int64_t r = 0; r < count && !is_attended; r++)
            for (int64_t b = 0; b < bands->count && !is_attended; b++) {
                const struct band *band = &bands->at[b];

                is_attended = band->q_begin <= rows[r] && rows[r] < band->q_end &&
                              band->k_begin <= k && k < band->k_end && band->lo <= k - rows[r] &&
                              k - rows[r] <= band->hi;
            }
        attended += is_attended;
    }
    return attended;
}

START_TEST(tiles_visit_the_keys_of_their_rows)
{
    const ffa_topology topology = { tilings[_i].ranks, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { NULL, 1 };
    struct bands bands = { 0 };
    ffa_dispatch *dispatch;
    ffa_mask *mask;

    opts.chunk_tokens = tilings[_i].chunk;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    ck_assert_int_eq(ffa_mask_parse(&mask, tilings[_i].mask, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    ck_assert_int_eq(bands_add_normal(&bands, &mask->lists[0].normal, NULL), FFA_OK);
    for (int32_t rank = 0; rank < tilings[_i].ranks; rank++) {
        const struct layout *layout = &dispatch->layout;
        struct rank_tiles got = { 0 }, want = { 0 };
        int64_t rows[1024], count = 0;

        for (int64_t i = layout->rank_begin[rank]; i < layout->rank_begin[rank + 1]; i++) {
            const int64_t chunk = layout->rank_chunks[i];

            for (int64_t row = layout->bounds[chunk]; row < layout->bounds[chunk + 1]; row++)
                rows[count++] = row;
        }
        for (int64_t at = 0; at < count; at += tilings[_i].tile_m) {
            const int64_t left = min64(tilings[_i].tile_m, count - at);
            const int64_t cells =
                tilings[_i].tile_m * keys_of(&bands, rows + at, left, mask->shape.seqlen_k);

            want.cells += cells;
            want.least = want.count++ ? min64(want.least, cells) : cells;
        }
        rank_tiles_add(&got, &bands, layout, rank, tilings[_i].tile_m);
        ck_assert_msg(got.count == want.count && got.cells == want.cells && got.least == want.least,
                      "%s, rank %d: %lld tiles, %lld cells, least %lld, not %lld, %lld, %lld",
                      tilings[_i].mask, rank, (long long)got.count, (long long)got.cells,
                      (long long)got.least, (long long)want.count, (long long)want.cells,
                      (long long)want.least);
    }
    bands_finish(&bands);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- times ---- */

enum { TOKENS = 1024, HEADS = 8, DIM = 128, LAUNCH = 7, BEGIN_KEYS = 100, BEGIN_ROWS = 300 };

/* One ns a cell of all heads in both passes, links that take next to nothing. */
static ffa_parallel_plan_opts fast_links(void)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;

    opts.model = (ffa_parallel_model){ .heads_q = HEADS,
                                       .heads_kv = 1,
                                       .head_dim = DIM,
                                       .forward_gflops = 4 * DIM * HEADS,
                                       .backward_gflops = 10 * DIM * HEADS,
                                       .node_mbytes_s = 1000000000,
                                       .node_latency_ns = 1,
                                       .launch_ns = LAUNCH };
    opts.forward_begin_keys = BEGIN_KEYS;
    opts.backward_begin_rows = BEGIN_ROWS;
    return opts;
}

/* Full, in equal chunks. */
static ffa_parallel_plan_info info_of(const ffa_parallel_plan_opts *opts, int32_t ranks)
{
    const ffa_mask_shape shape = { TOKENS, TOKENS };
    const ffa_topology topology = { ranks, 0 };
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_dispatch_mask one = { NULL, 1 };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    return info;
}

START_TEST(one_rank_pays_cells_and_begins)
{
    ffa_parallel_plan_opts opts = fast_links();
    ffa_parallel_plan_info info = info_of(&opts, 1);

    ck_assert_int_eq(info.forward_ns, TOKENS * TOKENS + BEGIN_KEYS * TOKENS);
    ck_assert_int_eq(info.forward_work_ns, info.forward_ns);
    ck_assert_int_eq(info.backward_ns, TOKENS * TOKENS + BEGIN_ROWS * TOKENS);
    ck_assert_int_eq(info.backward_work_ns, info.backward_ns);
    opts.forward_begin_keys = opts.backward_begin_rows = 0;
    info = info_of(&opts, 1);
    ck_assert_int_eq(info.forward_ns, TOKENS * TOKENS);
    ck_assert_int_eq(info.backward_ns, TOKENS * TOKENS);
}
END_TEST

/* 64 work items, each of 128 rows of one head, on 30 SMs: 26 of them idle in the third wave. */
START_TEST(the_last_wave_of_a_launch)
{
    const int64_t tile = 128 * (TOKENS + BEGIN_KEYS);
    ffa_parallel_plan_opts opts = fast_links();
    ffa_parallel_plan_info info;

    opts.sms = 30;
    info = info_of(&opts, 1);
    ck_assert_int_eq(info.forward_ns, 8 * tile + tile * 26 / HEADS);
    ck_assert_int_eq(info.forward_work_ns, 8 * tile);
    ck_assert_int_eq(info.backward_ns, TOKENS * TOKENS + BEGIN_ROWS * TOKENS);
    opts.sms = 32;
    info = info_of(&opts, 1);
    ck_assert_int_eq(info.forward_ns, 8 * tile);
    /* Without begins the model is the one of before, and has no such wave. */
    opts.sms = 30;
    opts.forward_begin_keys = 0;
    info = info_of(&opts, 1);
    ck_assert_int_eq(info.forward_ns, TOKENS * TOKENS);
}
END_TEST

/* Backward, each rank has tiles of all keys; forward, of its own rows, once a launch. */
START_TEST(ranks_pay_for_the_tiles_they_have)
{
    const int64_t half = TOKENS / 2;
    ffa_parallel_plan_opts opts = fast_links();
    ffa_parallel_plan_info info;

    opts.forward_stages = 1;
    info = info_of(&opts, 2);
    ck_assert_int_eq(info.forward_work_most_ns, half * TOKENS + BEGIN_KEYS * half);
    ck_assert_int_eq(info.backward_work_most_ns, half * TOKENS + BEGIN_ROWS * TOKENS);
    ck_assert_int_eq(info.forward_ns, half * TOKENS + 2 * BEGIN_KEYS * half + LAUNCH);
    opts.sms = 32; /* one launch: one begin, and a stage's own 500 ns once */
    info = info_of(&opts, 2);
    ck_assert_int_eq(info.forward_ns, half * TOKENS + BEGIN_KEYS * half + 500);
}
END_TEST

START_TEST(own_keys_are_copied_into_the_window)
{
    const int64_t bytes = TOKENS / 2 * 2 * DIM * 2;
    ffa_parallel_plan_opts opts = fast_links();
    ffa_parallel_plan_info with, without;

    opts.sms = 32;
    without = info_of(&opts, 2);
    opts.window_mbytes_s = 1000;
    with = info_of(&opts, 2);
    ck_assert_int_eq(with.forward_ns - without.forward_ns, bytes + LAUNCH);
    ck_assert_int_eq(with.backward_ns - without.backward_ns, bytes + LAUNCH);
    with = info_of(&opts, 1); /* nobody to pull from it */
    opts.window_mbytes_s = 0;
    without = info_of(&opts, 1);
    ck_assert_int_eq(with.forward_ns, without.forward_ns);
}
END_TEST

/* What was fitted to H200s, where SMs are given and nothing is said of compute; a rate or a begin
 * of the caller's stands alone. */
START_TEST(passes_over_gpus_have_the_constants_of_h200s)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT, given;
    ffa_parallel_plan_info info = info_of(&opts, 2), same;

    ck_assert_int_eq(info.model.forward_gflops, 600000);
    opts.sms = 132;
    info = info_of(&opts, 2);
    ck_assert_int_eq(info.model.forward_gflops, 700000);
    ck_assert_int_eq(info.model.backward_gflops, 617000);
    given = opts;
    given.model.forward_gflops = 700000;
    given.model.backward_gflops = 617000;
    same = info_of(&given, 2);
    ck_assert_int_lt(same.forward_ns, info.forward_ns);
    given.forward_begin_keys = 140;
    given.backward_begin_rows = 439;
    given.window_mbytes_s = 2000000;
    same = info_of(&given, 2);
    ck_assert_int_eq(same.forward_ns, info.forward_ns);
    ck_assert_int_eq(same.backward_ns, info.backward_ns);
    opts.forward_begin_keys = 1;
    info = info_of(&opts, 2);
    ck_assert_int_eq(info.model.forward_gflops, 600000);
}
END_TEST

/* ---- the simulator ---- */

START_TEST(methods_pay_for_their_tiles)
{
    const ffa_mask_shape shape = { TOKENS, TOKENS };
    const ffa_topology topology = { 2, 0 };
    const int64_t half = TOKENS / 2;
    const ffa_parallel_plan_opts plan = fast_links();
    ffa_sim_result out[FFA_SIM_METHODS] = { FFA_SIM_RESULT_INIT };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_mask *mask;

    opts.model = plan.model;
    opts.forward_begin_keys = BEGIN_KEYS;
    opts.backward_begin_rows = BEGIN_ROWS;
    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    ck_assert_int_eq(ffa_simulate(out, FFA_SIM_METHODS, NULL, mask, &topology, &opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(out[FFA_SIM_ALL_GATHER].forward.compute_ns,
                     half * TOKENS + BEGIN_KEYS * half + LAUNCH);
    ck_assert_int_eq(out[FFA_SIM_ALL_GATHER].backward.compute_ns,
                     half * TOKENS + BEGIN_ROWS * TOKENS + LAUNCH);
    /* Two steps, each of half the keys and a launch over all rows. */
    ck_assert_int_eq(out[FFA_SIM_RING].forward.ns, 2 * (half * half + BEGIN_KEYS * half + LAUNCH));
    ck_assert_int_eq(out[FFA_SIM_ULYSSES].forward.compute_ns,
                     half * TOKENS + BEGIN_KEYS * half + LAUNCH);
    ck_assert_int_eq(out[FFA_SIM_ULYSSES].backward.compute_ns,
                     half * TOKENS + BEGIN_ROWS * half + LAUNCH);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- plans ---- */

/* They are in the digest and in the bytes of a plan, which of options without them are as before.
 */
START_TEST(plans_remember_begins)
{
    const ffa_mask_shape shape = { TOKENS, TOKENS };
    const ffa_topology topology = { 2, 0 };
    ffa_parallel_plan_opts opts = fast_links();
    ffa_parallel_plan *plan, *loaded;
    ffa_dispatch_mask one = { NULL, 1 };
    ffa_dispatch *dispatch;
    char digests[4][40];
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    for (int i = 0; i < 4; i++) {
        void *bytes;
        size_t count;

        opts.forward_begin_keys = i == 1;
        opts.backward_begin_rows = i == 2;
        opts.window_mbytes_s = i == 3;
        ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 1, &opts, NULL), FFA_OK);
        (void)snprintf(digests[i], sizeof digests[i], "%s", ffa_parallel_plan_digest(plan));
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(digests[i], digests[j]);
        ck_assert_int_eq(ffa_parallel_plan_save(plan, &bytes, &count, NULL), FFA_OK);
        ck_assert_int_eq(((const char *)bytes)[8], i ? 5 : 1);
        ck_assert_int_eq(ffa_parallel_plan_load(&loaded, bytes, count, NULL), FFA_OK);
        ck_assert_str_eq(ffa_parallel_plan_digest(loaded), digests[i]);
        ffa_parallel_plan_destroy(loaded);
        ffa_free(bytes);
        ffa_parallel_plan_destroy(plan);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

static const struct {
    int32_t keys, rows;
    int64_t window;
    const char *says;
} refused[] = {
    { -1, 0, 0, "forward_begin_keys is -1, not in [0, 65536]" },
    { 0, 65537, 0, "backward_begin_rows is 65537, not in [0, 65536]" },
    { 0, 0, -5, "window_mbytes_s is -5, not in [0, 1000000000]" },
};

START_TEST(begins_out_of_range_are_refused)
{
    const ffa_mask_shape shape = { 64, 64 };
    const ffa_topology topology = { 2, 0 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_mask one = { NULL, 1 };
    ffa_parallel_plan *plan;
    ffa_dispatch *dispatch;
    ffa_mask *mask;
    ffa_error err;

    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    opts.forward_begin_keys = refused[_i].keys;
    opts.backward_begin_rows = refused[_i].rows;
    opts.window_mbytes_s = refused[_i].window;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, refused[_i].says);
    ck_assert_ptr_null(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile_model");
    TCase *tc = tcase_create("tile_model");

    tcase_add_loop_test(tc, tiles_visit_the_keys_of_their_rows, 0,
                        sizeof tilings / sizeof *tilings);
    tcase_add_test(tc, one_rank_pays_cells_and_begins);
    tcase_add_test(tc, the_last_wave_of_a_launch);
    tcase_add_test(tc, ranks_pay_for_the_tiles_they_have);
    tcase_add_test(tc, own_keys_are_copied_into_the_window);
    tcase_add_test(tc, passes_over_gpus_have_the_constants_of_h200s);
    tcase_add_test(tc, methods_pay_for_their_tiles);
    tcase_add_test(tc, plans_remember_begins);
    tcase_add_loop_test(tc, begins_out_of_range_are_refused, 0, sizeof refused / sizeof *refused);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
