/* SPDX-License-Identifier: Apache-2.0
 *
 * The normal form against the union counted cell by cell, on seeded random slices.
 *
 * A failure prints its seed; FFA_MASK_SEED in the environment replays that one case.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { SIDE_MAX = 200, SLICES_DRAWN = 200 };

static const ffa_error no_error = { FFA_OK, 0, "" };

struct problem {
    ffa_mask_shape shape;
    ffa_slice slices[SLICES_DRAWN];
    int64_t count;
};

/* How slices are drawn: each style provokes another kind of meeting. */
enum style {
    STYLE_ANY,   /* any ranges, any types */
    STYLE_LARGE, /* each covers most of the mask */
    STYLE_SMALL, /* a few rows and keys each */
    STYLE_GRID,  /* bounds on multiples of 4: many ties and touching edges */
    STYLE_THIN,  /* few keys a slice: links and gaps */
    STYLE_COUNT
};

static void range_draw(struct rng *rng, enum style style, int64_t tokens, int64_t *begin,
                       int64_t *end)
{
    int64_t longest = style == STYLE_SMALL ? 8 : tokens;
    int64_t shortest = style == STYLE_LARGE ? tokens / 2 : 0;

    if (longest > tokens)
        longest = tokens;
    *end = rng_range(rng, shortest, longest);
    *begin = rng_range(rng, 0, tokens - *end);
    *end += *begin;
    if (style == STYLE_GRID) {
        *begin = *begin / 4 * 4;
        *end = *end / 4 * 4;
    }
}

static void problem_draw(struct problem *out, uint64_t seed)
{
    struct rng rng = { seed };
    enum style style = (enum style)(seed % STYLE_COUNT);
    int64_t side = rng_range(&rng, 0, 9) == 0 ? SIDE_MAX : 40;

    out->shape.seqlen_q = rng_range(&rng, 1, side);
    out->shape.seqlen_k = rng_range(&rng, 1, side);
    out->count = rng_range(&rng, 0, rng_range(&rng, 0, 9) == 0 ? SLICES_DRAWN : 12);
    for (int64_t i = 0; i < out->count; i++) {
        ffa_slice *slice = &out->slices[i];

        *slice = (ffa_slice){ .type = (int32_t)rng_range(&rng, 0, 3) };
        range_draw(&rng, style, out->shape.seqlen_q, &slice->q_begin, &slice->q_end);
        range_draw(&rng, style, out->shape.seqlen_k, &slice->k_begin, &slice->k_end);
        if (style == STYLE_THIN && slice->k_end - slice->k_begin > 5)
            slice->k_end = slice->k_begin + rng_range(&rng, 1, 5);
    }
}

/* covered[row][key]: how many slices attend the cell, by the rule of ffa/mask.h, written out. */
static void problem_count(const struct problem *p, uint16_t covered[SIDE_MAX][SIDE_MAX])
{
    memset(covered, 0, sizeof(uint16_t[SIDE_MAX][SIDE_MAX]));
    for (int64_t n = 0; n < p->count; n++) {
        const ffa_slice *s = &p->slices[n];
        int64_t sq = s->q_end - s->q_begin, sk = s->k_end - s->k_begin;

        for (int64_t i = 0; i < sq; i++)
            for (int64_t j = 0; j < sk; j++) {
                bool below = j <= i + sk - sq; /* the diagonal through the last corner */
                bool above = j >= i;           /* the diagonal through the first corner */
                bool attends = s->type == FFA_SLICE_FULL        ? true
                               : s->type == FFA_SLICE_CAUSAL    ? below
                               : s->type == FFA_SLICE_INVCAUSAL ? above
                                                                : below && above;
                if (attends)
                    covered[s->q_begin + i][s->k_begin + j]++;
            }
    }
}

static void normal_count(const struct normal *normal, uint16_t covered[SIDE_MAX][SIDE_MAX])
{
    memset(covered, 0, sizeof(uint16_t[SIDE_MAX][SIDE_MAX]));
    for (int64_t n = 0; n < normal->segment_count; n++) {
        const struct normal_segment *s = &normal->segments[n];

        for (int32_t i = 0; i < s->row_end - s->row_begin; i++)
            for (int32_t j = 0; j < s->interval_count; j++) {
                const struct normal_interval *at = &normal->intervals[s->interval_begin + j];

                for (int32_t key = at->lo + i * at->lo_step; key < at->hi + i * at->hi_step; key++)
                    covered[s->row_begin + i][key]++;
            }
    }
}

static void problem_print(const struct problem *p, uint64_t seed)
{
    fprintf(stderr, "FFA_MASK_SEED=%llu {\"seqlen_q\":%lld,\"seqlen_k\":%lld,\"slices\":[",
            (unsigned long long)seed, (long long)p->shape.seqlen_q, (long long)p->shape.seqlen_k);
    for (int64_t i = 0; i < p->count; i++)
        fprintf(stderr, "%s[%lld,%lld,%lld,%lld,%d]", i ? "," : "", (long long)p->slices[i].q_begin,
                (long long)p->slices[i].q_end, (long long)p->slices[i].k_begin,
                (long long)p->slices[i].k_end, p->slices[i].type);
    fprintf(stderr, "]}\n");
}

/* NULL, or what is wrong. work_max below 0: thin the slices whenever it might help. */
static const char *normal_fault_within(const struct problem *p, int64_t work_max)
{
    static uint16_t want[SIDE_MAX][SIDE_MAX], got[SIDE_MAX][SIDE_MAX];
    static char message[600];
    struct normal normal;
    ffa_error err = no_error;
    const char *fault = NULL;
    int64_t area = 0;

    if (normal_build_within(&normal, p->slices, p->count, work_max, &err) != FFA_OK)
        return "normal_build failed";
    problem_count(p, want);
    if (normal_check(&normal, &p->shape, &err) != FFA_OK) {
        (void)snprintf(message, sizeof message, "%s", err.message);
        fault = message;
    } else {
        normal_count(&normal, got);
    }
    for (int64_t row = 0; !fault && row < p->shape.seqlen_q; row++)
        for (int64_t key = 0; key < p->shape.seqlen_k; key++) {
            area += want[row][key] > 0;
            if (got[row][key] != (want[row][key] > 0)) {
                (void)snprintf(message, sizeof message,
                               "cell (%lld, %lld): %d slices, %d intervals", (long long)row,
                               (long long)key, want[row][key], got[row][key]);
                fault = message;
            }
        }
    if (!fault && area != normal.area)
        fault = "the area is wrong";
    normal_finish(&normal);
    return fault;
}

static const char *normal_fault(const struct problem *p)
{
    const char *fault = normal_fault_within(p, INT64_MAX);

    return fault ? fault : normal_fault_within(p, -INT32_MAX);
}

static void problem_drop(struct problem *p, int64_t index)
{
    memmove(&p->slices[index], &p->slices[index + 1],
            (size_t)(p->count - index - 1) * sizeof *p->slices);
    p->count--;
}

/* Leave out slices as long as the failure stays. */
static void problem_shrink(struct problem *p)
{
    for (int64_t i = 0; i < p->count;) {
        struct problem less = *p;

        problem_drop(&less, i);
        if (normal_fault(&less))
            *p = less;
        else
            i++;
    }
}

static void seed_check(uint64_t seed)
{
    struct problem p;
    const char *fault;

    problem_draw(&p, seed);
    fault = normal_fault(&p);
    if (!fault)
        return;
    problem_shrink(&p);
    problem_print(&p, seed);
    ck_abort_msg("seed %llu: %s", (unsigned long long)seed, normal_fault(&p));
}

START_TEST(normal_form_is_the_union)
{
    const char *replay = getenv("FFA_MASK_SEED");

    if (replay) {
        seed_check(strtoull(replay, NULL, 10));
        return;
    }
    for (uint64_t seed = 0; seed < 15000; seed++)
        seed_check(seed);
}
END_TEST

/* ---- the order of the slices ---- */

static void shuffle(struct rng *rng, ffa_slice *slices, int64_t count)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = rng_range(rng, 0, i);
        ffa_slice swap = slices[i];

        slices[i] = slices[j];
        slices[j] = swap;
    }
}

static bool same_normal(const struct normal *a, const struct normal *b)
{
    if (a->segment_count != b->segment_count || a->interval_count != b->interval_count)
        return false;
    return a->segment_count == 0 ||
           (!memcmp(a->segments, b->segments, (size_t)a->segment_count * sizeof *a->segments) &&
            !memcmp(a->intervals, b->intervals, (size_t)a->interval_count * sizeof *a->intervals));
}

START_TEST(normal_form_ignores_the_order_of_slices)
{
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct rng rng = { ~seed };
        struct problem p;
        struct normal a, b;

        problem_draw(&p, seed);
        ck_assert_int_eq(normal_build(&a, p.slices, p.count, NULL), FFA_OK);
        shuffle(&rng, p.slices, p.count);
        ck_assert_int_eq(normal_build(&b, p.slices, p.count, NULL), FFA_OK);
        ck_assert_msg(same_normal(&a, &b), "seed %llu", (unsigned long long)seed);
        normal_finish(&a);
        normal_finish(&b);
    }
}
END_TEST

/* ---- masks too large to count: rows of them ---- */

struct range {
    int64_t begin, end;
};

static int range_compare(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The keys of one row, merged, straight from the slices. out: [SLICES_DRAWN]. */
static int64_t row_ranges(struct range *out, const struct problem *p, int64_t row)
{
    struct range all[SLICES_DRAWN];
    int64_t count = 0, merged = 0;

    for (int64_t n = 0; n < p->count; n++) {
        const ffa_slice *s = &p->slices[n];
        struct range keys = { s->k_begin, s->k_end };

        if (row < s->q_begin || row >= s->q_end)
            continue;
        if (s->type == FFA_SLICE_CAUSAL || s->type == FFA_SLICE_BICAUSAL)
            keys.end = s->k_end - (s->q_end - 1 - row);
        if (s->type == FFA_SLICE_INVCAUSAL || s->type == FFA_SLICE_BICAUSAL)
            keys.begin = s->k_begin + (row - s->q_begin);
        if (keys.begin < keys.end)
            all[count++] = keys;
    }
    qsort(all, (size_t)count, sizeof *all, range_compare);
    for (int64_t i = 0; i < count; i++) {
        if (merged > 0 && all[i].begin <= out[merged - 1].end) {
            if (all[i].end > out[merged - 1].end)
                out[merged - 1].end = all[i].end;
        } else {
            out[merged++] = all[i];
        }
    }
    return merged;
}

/* Compare row `row`, which is in `segment` or, where that is NULL, in none. */
static void row_check(const struct problem *p, const struct normal *normal,
                      const struct normal_segment *segment, int64_t row, uint64_t seed)
{
    struct range want[SLICES_DRAWN];
    int64_t count = row_ranges(want, p, row);

    ck_assert_msg(count == (segment ? segment->interval_count : 0),
                  "seed %llu, row %lld: %lld intervals", (unsigned long long)seed, (long long)row,
                  (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const struct normal_interval *at = &normal->intervals[segment->interval_begin + i];
        int64_t down = row - segment->row_begin;

        ck_assert_msg(at->lo + at->lo_step * down == want[i].begin &&
                          at->hi + at->hi_step * down == want[i].end,
                      "seed %llu, row %lld, interval %lld", (unsigned long long)seed,
                      (long long)row, (long long)i);
    }
}

/* The first, the last and one more row of every segment, and the row behind it. */
START_TEST(rows_of_large_masks)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct rng rng = { seed };
        struct problem p = { .count = rng_range(&rng, 1, 60) };
        int64_t side = seed % 3 == 0 ? INT32_MAX : seed % 3 == 1 ? 131072 : 5000;
        struct normal normal;

        p.shape = (ffa_mask_shape){ rng_range(&rng, side / 2, side), rng_range(&rng, 1, side) };
        for (int64_t i = 0; i < p.count; i++) {
            enum style style = (enum style)(seed % 2 ? STYLE_ANY : STYLE_LARGE);

            p.slices[i] = (ffa_slice){ .type = (int32_t)rng_range(&rng, 0, 3) };
            range_draw(&rng, style, p.shape.seqlen_q, &p.slices[i].q_begin, &p.slices[i].q_end);
            range_draw(&rng, style, p.shape.seqlen_k, &p.slices[i].k_begin, &p.slices[i].k_end);
        }
        ck_assert_int_eq(normal_build(&normal, p.slices, p.count, NULL), FFA_OK);
        ck_assert_int_eq(normal_check(&normal, &p.shape, NULL), FFA_OK);
        for (int64_t i = 0; i < normal.segment_count; i++) {
            const struct normal_segment *s = &normal.segments[i];
            bool is_last = i + 1 == normal.segment_count;

            row_check(&p, &normal, s, s->row_begin, seed);
            row_check(&p, &normal, s, s->row_end - 1, seed);
            row_check(&p, &normal, s, rng_range(&rng, s->row_begin, s->row_end - 1), seed);
            if ((is_last && s->row_end < p.shape.seqlen_q) ||
                (!is_last && s[1].row_begin > s->row_end))
                row_check(&p, &normal, NULL, s->row_end, seed);
        }
        normal_finish(&normal);
    }
}
END_TEST

/* Thousands of slices over the same cells: what normal_build thins by itself. */
START_TEST(thinning_changes_nothing)
{
    static ffa_slice slices[5000];
    struct problem p = { .shape = { 131072, 131072 } };
    struct normal want, got;
    struct rng rng = { 5 };
    ffa_status rc;

    for (int i = 0; i < 5000; i++) {
        slices[i] = (ffa_slice){ .type = (int32_t)rng_range(&rng, 0, 3) };
        range_draw(&rng, STYLE_ANY, p.shape.seqlen_q, &slices[i].q_begin, &slices[i].q_end);
        range_draw(&rng, STYLE_ANY, p.shape.seqlen_k, &slices[i].k_begin, &slices[i].k_end);
    }
    ck_assert_int_eq(normal_build_within(&want, slices, 5000, INT64_MAX, NULL), FFA_OK);
    ck_assert_int_eq(normal_build_within(&got, slices, 5000, 0, NULL), FFA_OK);
    ck_assert_int_eq(normal_check(&got, &p.shape, NULL), FFA_OK);
    ck_assert(same_normal(&want, &got));
    normal_finish(&got);
    normal_finish(&want);

    for (long nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        rc = normal_build_within(&got, slices, 300, -INT32_MAX, NULL);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(got.segments);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    normal_finish(&got);
}
END_TEST

/* ---- areas in closed form ---- */

static int64_t triangle(int64_t n)
{
    return n > 0 ? n * (n + 1) / 2 : 0;
}

/* n rows over n keys, both bounds smaller than n: the square less two corners. */
static int64_t window_area(int64_t n, int64_t left, int64_t right)
{
    return n * n - triangle(n - 1 - left) - triangle(n - 1 - right);
}

START_TEST(areas_in_closed_form)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct rng rng = { seed };
        int64_t n = rng_range(&rng, 2, seed % 2 ? 2000000 : INT32_MAX);
        ffa_mask_shape shape = { n, n };
        ffa_window window = { rng_range(&rng, 0, n - 1), rng_range(&rng, 0, n - 1) };
        int64_t cut = rng_range(&rng, 1, n - 1);
        int64_t cu[] = { 0, cut, n };
        ffa_documents docs = { .cu_q = cu, .document_count = 2 };
        ffa_mask *mask;

        ck_assert_int_eq(ffa_mask_window(&mask, &shape, &window, NULL), FFA_OK);
        ck_assert_msg(ffa_mask_area(mask, 0) == window_area(n, window.left, window.right),
                      "seed %llu", (unsigned long long)seed);
        ffa_mask_destroy(mask);
        ck_assert_int_eq(ffa_mask_varlen_causal(&mask, &docs, NULL), FFA_OK);
        ck_assert_int_eq(ffa_mask_area(mask, 0), triangle(cut) + triangle(n - cut));
        ffa_mask_destroy(mask);
        ck_assert_int_eq(ffa_mask_shared_question(&mask, &docs, NULL), FFA_OK);
        ck_assert_int_eq(ffa_mask_area(mask, 0), n * cut + triangle(n - cut));
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Full attention cut into pieces is one segment of one interval again. */
START_TEST(pieces_grow_together)
{
    static ffa_slice slices[64 * 64];
    struct normal normal;
    int64_t count = 0;

    for (int64_t row = 0; row < 1000; row++) /* causal, row by row */
        slices[count++] = (ffa_slice){ row, row + 1, 0, row + 1, FFA_SLICE_FULL, 0 };
    ck_assert_int_eq(normal_build(&normal, slices, count, NULL), FFA_OK);
    ck_assert_int_eq(normal.segment_count, 1);
    ck_assert_int_eq(normal.intervals[0].hi_step, 1);
    ck_assert_int_eq(normal.area, 500500);
    normal_finish(&normal);

    count = 0;
    for (int64_t i = 0; i < 32; i++) /* causal, in blocks */
        for (int64_t j = 0; j <= i; j++)
            slices[count++] =
                (ffa_slice){ i * 100, i * 100 + 100, j * 100, j * 100 + 100, i == j, 0 };
    ck_assert_int_eq(normal_build(&normal, slices, count, NULL), FFA_OK);
    ck_assert_int_eq(normal.segment_count, 1);
    ck_assert_int_eq(normal.interval_count, 1);
    ck_assert_int_eq(normal.area, triangle(3200));
    normal_finish(&normal);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mask properties");
    TCase *tc = tcase_create("mask properties");

    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, normal_form_is_the_union);
    tcase_add_test(tc, normal_form_ignores_the_order_of_slices);
    tcase_add_test(tc, rows_of_large_masks);
    tcase_add_test(tc, thinning_changes_nothing);
    tcase_add_test(tc, areas_in_closed_form);
    tcase_add_test(tc, pieces_grow_together);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
