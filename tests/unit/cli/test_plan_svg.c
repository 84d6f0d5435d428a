/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures of plans: whole, small, of any mask and way to move, and refused where memory runs out.
 */
#include "cli/plan_svg.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ffa_parallel_plan *plan_of(const ffa_dispatch *dispatch, const ffa_mask *mask, int32_t rank,
                                  const ffa_parallel_plan_opts *opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    ck_assert_msg(!ffa_parallel_plan_create(&plan, dispatch, mask, rank, opts, &err), "%s",
                  err.message);
    return plan;
}

static ffa_mask *causal(int64_t tokens)
{
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ tokens, tokens }, NULL), FFA_OK);
    return mask;
}

/* ---- memory that runs out: the linker sends every realloc here ---- */

static long realloc_left = -1; /* calls until one fails; -1: none does */

void *__real_realloc(void *at, size_t bytes); /* NOLINT: the linker's names */
void *__wrap_realloc(void *at, size_t bytes);

void *__wrap_realloc(void *at, size_t bytes)
{
    if (realloc_left == 0)
        return NULL;
    realloc_left -= realloc_left > 0;
    return __real_realloc(at, bytes);
}

/* ---- pictures ---- */

/* One open tag for each close, numbers that are numbers, and no more than 4 MB. */
static void check_picture(const ffa_mask *mask, int32_t ranks, int32_t keys, int32_t moves)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { ranks, 8 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    struct plan_picture picture;
    int64_t tags = 0, ends = 0;
    char *svg;

    opts.keys = keys;
    plan_opts.moves = moves;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    plan = plan_of(dispatch, mask, ranks - 1, &plan_opts);
    picture = (struct plan_picture){ "a<&>b", mask, dispatch, plan, ranks < 8 ? ranks : 8, false };
    ck_assert_msg(!plan_svg(&svg, &picture, &err), "%s", err.message);
    for (const char *at = svg; *at; at++) {
        if (*at != '\n' && (*at < ' ' || *at > '~'))
            ck_abort_msg("character %d", *at);
        tags += *at == '<';
        ends += *at == '>';
    }
    ck_assert_int_eq(tags, ends);
    ck_assert_ptr_nonnull(strstr(svg, ">a&lt;&amp;&gt;b on "));
    ck_assert(!strstr(svg, " ms<") || !strstr(svg, " us<"));
    ck_assert_ptr_nonnull(strstr(svg, "<path fill=\"#"));
    ck_assert_str_eq(svg + strlen(svg) - 7, "</svg>\n");
    ck_assert_uint_lt(strlen(svg), 4 << 20);
    free(svg);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
}

START_TEST(pictures_are_whole_and_small)
{
    const ffa_mask_shape large = { 1 << 17, 1 << 17 }, cross = { 1000, 5000 };
    const ffa_block_size block = { 1024, 64 };
    uint8_t *keep = calloc(128 * 2048, 1);
    struct rng rng = { 5 };
    ffa_mask *mask;

    for (int64_t i = 0; i < (int64_t)128 * 2048; i++)
        keep[i] = rng_range(&rng, 0, 1) == 0;
    ck_assert_int_eq(ffa_mask_block_sparse(&mask, &large, &block, keep, NULL), FFA_OK);
    check_picture(mask, 64, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_KEYS);
    ffa_mask_destroy(mask);
    ck_assert_int_eq(ffa_mask_full(&mask, &cross, NULL), FFA_OK);
    check_picture(mask, 3, FFA_KEYS_DISPATCHED, FFA_PARALLEL_MOVE_QUERIES);
    check_picture(mask, 3, FFA_KEYS_DISPATCHED, FFA_PARALLEL_MOVE_KEYS);
    check_picture(mask, 3, FFA_KEYS_REPLICATED, FFA_PARALLEL_MOVE_KEYS);
    ffa_mask_destroy(mask);
    mask = causal(1 << 18); /* 2048 chunks: a received piece is far less than a pixel */
    check_picture(mask, 256, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_KEYS);
    check_picture(mask, 256, FFA_KEYS_DISPATCHED, FFA_PARALLEL_MOVE_QUERIES);
    ffa_mask_destroy(mask);
    mask = causal(1);
    check_picture(mask, 1, FFA_KEYS_WITH_QUERIES, FFA_PARALLEL_MOVE_KEYS);
    ffa_mask_destroy(mask);
    free(keep);
}
END_TEST

/* Rows of overlapping slices are drawn as their union, so as one slice that has all their cells. */
START_TEST(overlapping_slices_are_drawn_once)
{
    const ffa_mask_shape shape = { 512, 512 };
    const ffa_slice one[] = { { 0, 512, 0, 512, FFA_SLICE_CAUSAL, 0 } };
    const ffa_slice many[] = { { 256, 512, 0, 256, FFA_SLICE_FULL, 0 },
                               { 0, 512, 0, 512, FFA_SLICE_CAUSAL, 0 },
                               { 300, 400, 100, 200, FFA_SLICE_BICAUSAL, 0 },
                               { 0, 256, 0, 256, FFA_SLICE_CAUSAL, 0 } };
    const ffa_topology topology = { 2, 0 };
    ffa_mask *masks[2];
    char *svgs[2];

    ck_assert_int_eq(ffa_mask_create(&masks[0], &shape, one, 1, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_create(&masks[1], &shape, many, 4, NULL), FFA_OK);
    for (int m = 0; m < 2; m++) {
        const ffa_dispatch_mask weighed = { masks[m], 1 };
        ffa_dispatch *dispatch;
        ffa_parallel_plan *plan;
        struct plan_picture picture;

        ck_assert_int_eq(ffa_dispatch_create(&dispatch, &weighed, 1, &topology, NULL, NULL),
                         FFA_OK);
        plan = plan_of(dispatch, masks[m], 1, NULL);
        picture = (struct plan_picture){ "causal", masks[m], dispatch, plan, 2, false };
        ck_assert_int_eq(plan_svg(&svgs[m], &picture, NULL), FFA_OK);
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
    }
    ck_assert_str_eq(strstr(svgs[0], "<path"), strstr(svgs[1], "<path"));
    for (int m = 0; m < 2; m++) {
        free(svgs[m]);
        ffa_mask_destroy(masks[m]);
    }
}
END_TEST

/* A plan of a forward pass has one timeline; times that fill 60 bits still have a picture. */
START_TEST(pictures_of_odd_plans)
{
    const ffa_topology topology = { 8, 2 };
    ffa_mask *mask = causal(65536);
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    struct plan_picture picture;
    char *svg;

    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    opts.flags = FFA_PARALLEL_FORWARD_ONLY;
    plan = plan_of(dispatch, mask, 2, &opts);
    picture = (struct plan_picture){ "causal", mask, dispatch, plan, 2, true };
    ck_assert_int_eq(plan_svg(&svg, &picture, NULL), FFA_OK);
    ck_assert_ptr_nonnull(strstr(svg, ">Forward: "));
    ck_assert_ptr_null(strstr(svg, ">Backward: "));
    free(svg);
    ffa_parallel_plan_destroy(plan);

    opts.flags = 0;
    opts.moves = FFA_PARALLEL_MOVE_AUTO;
    opts.model =
        (ffa_parallel_model){ 1024, 1024, 1024, 8, 1, 1, 1, 1, 1000000000, 1000000000, 1000000000 };
    plan = plan_of(dispatch, mask, 7, &opts);
    picture.plan = plan;
    ck_assert_int_eq(plan_svg(&svg, &picture, NULL), FFA_OK);
    ck_assert_str_eq(svg + strlen(svg) - 7, "</svg>\n");
    free(svg);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

static void colour_at(int32_t rgb[3], const char *colour)
{
    unsigned r, g, b;

    ck_assert_int_eq(sscanf(colour, "#%2x%2x%2x", &r, &g, &b), 3);
    rgb[0] = (int32_t)r, rgb[1] = (int32_t)g, rgb[2] = (int32_t)b;
}

static int32_t apart(const char *one, const char *other)
{
    int32_t a[3], b[3], sum = 0;

    colour_at(a, one);
    colour_at(b, other);
    for (int c = 0; c < 3; c++)
        sum += abs(a[c] - b[c]);
    return sum;
}

/* No colour of a rank is near one of a stage, however many stages there are. */
START_TEST(ranks_and_stages_have_other_colours)
{
    char stage[8], next[8];

    for (int32_t stages = 1; stages <= 12; stages++)
        for (int32_t s = 0; s <= stages; s++) {
            plan_svg_stage_colour(stage, s, stages);
            for (int32_t r = 0; r < 16; r++)
                ck_assert_int_gt(apart(plan_svg_rank_colour(r, 1, 0), stage), 60);
            plan_svg_stage_colour(next, s + 1, stages);
            if (s < stages)
                ck_assert_int_gt(apart(stage, next), 15);
        }
    for (int32_t r = 0; r < 16; r++)
        for (int32_t other = 0; other < r; other++)
            ck_assert_int_gt(
                apart(plan_svg_rank_colour(r, 1, 0), plan_svg_rank_colour(other, 1, 0)), 60);
}
END_TEST

/* Many ranks share colours, whole nodes where there are several; the plan's has one of its own. */
START_TEST(many_ranks_share_colours)
{
    static const struct {
        int32_t ranks, node, each;
    } rows[] = { { 1, 1, 1 },   { 16, 8, 1 },  { 17, 17, 3 },  { 24, 8, 8 }, { 64, 8, 8 },
                 { 64, 64, 8 }, { 72, 8, 16 }, { 256, 8, 32 }, { 20, 3, 3 }, { 4096, 1, 512 } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct plan_picture picture = { .ranks_per_node = rows[i].node };
        const ffa_parallel_plan_info info = { .rank_count = rows[i].ranks };

        ck_assert_int_eq(plan_svg_ranks_a_colour(&picture, &info), rows[i].each);
    }
    ck_assert_str_ne(plan_svg_rank_colour(9, 8, 9), plan_svg_rank_colour(10, 8, 9));
    ck_assert_str_eq(plan_svg_rank_colour(8, 8, 9), plan_svg_rank_colour(10, 8, 9));
}
END_TEST

/* What is longer than a head has room for is cut at a character, and nothing of it is markup. */
START_TEST(names_are_text)
{
    struct svg svg = { 0 };

    svg_add_text(&svg, "varlen:1,2 <b>&\x1b[0m", 40);
    ck_assert_str_eq(svg.at, "varlen:1,2 &lt;b&gt;&amp;\\x1b[0m");
    svg_finish(&svg);
    svg_add_text(&svg,
                 "a\xc3\xa4"
                 "b\xc3\xa4",
                 2);
    ck_assert_str_eq(svg.at, "a\xc3\xa4...");
    svg_finish(&svg);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    const ffa_topology topology = { 3, 2 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    long nth;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ 400, 500 }, NULL), FFA_OK);
    one.mask = mask;
    opts.keys = FFA_KEYS_DISPATCHED;
    plan_opts.moves = FFA_PARALLEL_MOVE_QUERIES;
    plan_opts.stage_rows_min = 1;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    plan = plan_of(dispatch, mask, 1, &plan_opts);
    for (nth = 0;; nth++) {
        const struct plan_picture picture = { "causal", mask, dispatch, plan, 2, false };
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        char *svg;
        bool has_failed;

        realloc_left = nth;
        rc = plan_svg(&svg, &picture, &err);
        has_failed = realloc_left == 0;
        realloc_left = -1;
        if (rc == FFA_OK) {
            free(svg);
            break;
        }
        ck_assert(has_failed);
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(svg);
        ck_assert_str_eq(err.message, "no memory for a picture");
    }
    ck_assert_int_gt(nth, 20);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan svg");
    TCase *tc = tcase_create("plan svg");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, pictures_are_whole_and_small);
    tcase_add_test(tc, overlapping_slices_are_drawn_once);
    tcase_add_test(tc, pictures_of_odd_plans);
    tcase_add_test(tc, ranks_and_stages_have_other_colours);
    tcase_add_test(tc, many_ranks_share_colours);
    tcase_add_test(tc, names_are_text);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
