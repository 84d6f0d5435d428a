/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages: the reference's uniform split and costs; the exact cut against every cut, by a timeline
 * of streams written out here; arguments, faults.
 */
#include "dist/overlap.h"
#include "support/dist_cases.h"

#include <check.h>
#include <stdio.h>

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- the reference ---- */

START_TEST(uniform_splits_of_the_reference)
{
    json_t *root = dist_cases_load();
    const json_t *list = json_object_get(root, "overlap_solver");

    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *want;
        const json_t *costs = json_object_get(entry, "costs");
        struct overlap_item items[OVERLAP_ITEMS_MAX] = { { 0 } };
        struct overlap_input in = { .items = items,
                                    .count = (int64_t)json_array_size(costs) - 1,
                                    .degree_max = 4 };
        struct overlap_split split, exact;
        const char *degree;

        for (int64_t c = 0; c <= in.count; c++) {
            int64_t pair[2];

            (void)dist_integers(json_array_get(costs, (size_t)c), pair, 2);
            if (c == 0)
                in.own = pair[1];
            else
                items[c - 1] = (struct overlap_item){ .fetch = pair[0], .compute = pair[1] };
        }
        json_object_foreach(json_object_get(entry, "per_degree"), degree, want)
        {
            const json_t *parts = json_array_get(want, 1);
            int64_t end = -1;

            in.degree = (int32_t)strtol(degree, NULL, 10);
            ck_assert_int_eq(overlap_uniform(&split, &in, NULL), FFA_OK);
            ck_assert_int_eq(split.cost, (int64_t)json_number_value(json_array_get(want, 0)));
            for (size_t p = 0; p < json_array_size(parts); p++) { /* item 0 is the own part */
                end += (int64_t)json_array_size(json_array_get(parts, p));
                if ((int32_t)p < split.count)
                    ck_assert_int_eq(split.ends[p], end);
            }
            ck_assert_int_eq(end, in.count);
        }
        in.degree = 0;
        ck_assert_int_eq(overlap_uniform(&split, &in, NULL), FFA_OK);
        ck_assert_int_eq(split.cost,
                         (int64_t)json_number_value(json_object_get(entry, "best_cost")));
        ck_assert_int_eq(max64(split.count, 1),
                         json_integer_value(json_object_get(entry, "best_degree")));
        ck_assert_int_eq(overlap_solve(&exact, &in, NULL), FFA_OK);
        ck_assert_int_le(exact.cost, split.cost);
    }
    json_decref(root);
}
END_TEST

/* ---- streams, each doing one thing after another ---- */

static int64_t sum(const struct overlap_input *in, int64_t begin, int64_t end, size_t field)
{
    int64_t total = 0;

    for (int64_t i = begin; i < end; i++)
        total += *(const int64_t *)((const char *)&in->items[i] + field);
    return total;
}
#define SUM(in, begin, end, name) sum(in, begin, end, offsetof(struct overlap_item, name))

/* When all is done. Two buffers: a fetch begins with the compute of the stage before it; a stage
 * computes when it has arrived, the stage before it is computed, and, backward, the gradients of
 * the one before that have left their buffer. */
static int64_t timeline(const struct overlap_input *in, const int64_t *ends, int32_t count)
{
    int64_t begin = 0, compute = 0, reduce = 0, left = in->own;

    for (int32_t s = 0; s < count; s++) {
        const int64_t fetched = compute + in->latency + SUM(in, begin, ends[s], fetch);
        const int64_t now = SUM(in, begin, ends[s], compute) + in->launch;
        int64_t start = fetched;

        if (s == 0 && in->is_backward) /* as much of the own part as fits beside the fetch */
            left -= left < fetched ? left : fetched;
        else if (s == 0)
            start = max64(fetched, in->own);
        else
            start = max64(fetched,
                          compute + SUM(in, s > 1 ? ends[s - 2] : 0, begin, compute) + in->launch);
        if (s > 1 && in->is_backward)
            start = max64(start, reduce);
        if (s > 0 && in->is_backward) /* of the stage that has just been computed */
            reduce = start + in->latency + SUM(in, s > 1 ? ends[s - 2] : 0, begin, reduce);
        compute = start;
        if (s + 1 == count) {
            compute = max64(start + now, reduce);
            if (in->is_backward)
                compute += max64(left, in->latency + SUM(in, begin, ends[s], reduce));
        }
        begin = ends[s];
    }
    return compute;
}

struct every {
    const struct overlap_input *in;
    int64_t ends[OVERLAP_STAGES_MAX];
    int64_t least[OVERLAP_STAGES_MAX + 1]; /* by stages */
};

static void try_all(struct every *e, int32_t count, int64_t begin)
{
    for (int64_t end = begin + 1; end <= e->in->count; end++) {
        if (SUM(e->in, begin, end, rows) < e->in->rows_min && end - begin < e->in->count)
            continue;
        e->ends[count] = end;
        if (end == e->in->count) {
            const int64_t cost = timeline(e->in, e->ends, count + 1);

            if (cost < e->least[count + 1])
                e->least[count + 1] = cost;
        } else if (count + 1 < e->in->degree_max) {
            try_all(e, count + 1, end);
        }
    }
}

static void check_least(uint64_t seed)
{
    struct rng rng = { seed };
    struct overlap_item items[8];
    struct overlap_input in = { .items = items };
    struct every every = { .in = &in };
    struct overlap_split split;
    int64_t least = INT64_MAX;
    int32_t stages = 0;

    in.count = rng_range(&rng, 1, 8);
    in.own = rng_range(&rng, 0, 60);
    in.latency = rng_range(&rng, 0, 5);
    in.launch = rng_range(&rng, 0, 3);
    in.rows_min = rng_range(&rng, 0, 1) ? 0 : rng_range(&rng, 0, 20);
    in.degree_max = (int32_t)rng_range(&rng, 1, 6);
    in.is_backward = seed % 2;
    for (int64_t i = 0; i < in.count; i++) {
        items[i].fetch = rng_range(&rng, 0, 20);
        items[i].compute = rng_range(&rng, 0, 20);
        items[i].reduce = rng_range(&rng, 0, 20);
        items[i].rows = rng_range(&rng, 0, 10);
    }
    for (int32_t s = 0; s <= OVERLAP_STAGES_MAX; s++)
        every.least[s] = INT64_MAX;
    try_all(&every, 0, 0);
    for (int32_t s = 1; s <= in.degree_max; s++)
        if (every.least[s] < least) {
            least = every.least[s];
            stages = s;
        }

    ck_assert_int_eq(overlap_solve(&split, &in, NULL), FFA_OK);
    ck_assert_msg(split.cost == least && split.count == stages,
                  "seed %llu: %lld in %d stages, the least is %lld in %d", (unsigned long long)seed,
                  (long long)split.cost, split.count, (long long)least, stages);
    ck_assert_int_eq(split.ends[split.count - 1], in.count);
    ck_assert_int_eq(overlap_cost(&in, &split), split.cost);
    ck_assert_int_eq(timeline(&in, split.ends, split.count), split.cost);

    for (in.degree = 1; in.degree <= in.degree_max; in.degree++) { /* or the next below it */
        int32_t degree = in.degree;

        while (every.least[degree] == INT64_MAX)
            degree--;
        ck_assert_int_eq(overlap_solve(&split, &in, NULL), FFA_OK);
        ck_assert_msg(split.cost == every.least[degree] && split.count == degree,
                      "seed %llu: degree %d: %lld in %d stages, not %lld", (unsigned long long)seed,
                      degree, (long long)split.cost, split.count, (long long)every.least[degree]);
    }
}

START_TEST(the_least_of_all_cuts)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= 600; seed += 3)
        check_least(seed);
}
END_TEST

/* ---- edges ---- */

START_TEST(nothing_received)
{
    const struct overlap_input in = { .own = 7, .degree_max = 4 };
    struct overlap_split split;

    ck_assert_int_eq(overlap_solve(&split, &in, NULL), FFA_OK);
    ck_assert_int_eq(split.count, 0);
    ck_assert_int_eq(split.cost, 7);
    ck_assert_int_eq(overlap_uniform(&split, &in, NULL), FFA_OK);
    ck_assert_int_eq(split.count, 0);
    ck_assert_int_eq(split.cost, 7);
}
END_TEST

static const struct overlap_item fine[] = { { 1, 2, 3, 4 } }, negative[] = { { 1, -2, 3, 4 } };
static const struct overlap_item endless[] = { { INT64_MAX, 2, 3, 4 } };

static const struct {
    struct overlap_input in;
    const char *message;
} bad_rows[] = {
    { { .items = fine, .count = 25, .degree_max = 4 },
      "25 items to cut into stages, not in [0, 24]" },
    { { .items = fine, .count = 1, .degree = 17, .degree_max = 4 },
      "degree is 17 of at most 4, not in [0, 16]" },
    { { .items = fine, .count = 1 }, "degree is 0 of at most 0, not in [0, 16]" },
    { { .items = fine, .count = 1, .degree_max = 4, .own = -1 }, "a negative time" },
    { { .items = negative, .count = 1, .degree_max = 4 }, "item 0: a negative time or count" },
    { { .items = endless, .count = 1, .degree_max = 4 },
      "a time of 9223372036854775807, at most 144115188075855871" },
};

START_TEST(bad_input_is_named)
{
    struct overlap_split split;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(overlap_solve(&split, &bad_rows[_i].in, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, bad_rows[_i].message);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    const struct overlap_input in = { .items = fine, .count = 1, .degree_max = 4 };
    struct overlap_split split;
    ffa_error err = { FFA_OK, 0, "" };
    long nth;

    for (nth = 1;; nth++) {
        fault_arm(FAULT_ALLOC, nth);
        if (overlap_solve(&split, &in, &err) == FFA_OK)
            break;
        ck_assert_str_eq(err.message, "no memory for the cuts into stages");
    }
    ck_assert_int_eq(nth, 3);
    fault_arm(FAULT_ALLOC, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlap");
    TCase *tc = tcase_create("overlap");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, uniform_splits_of_the_reference);
    tcase_add_loop_test(tc, the_least_of_all_cuts, 0, 3);
    tcase_add_test(tc, nothing_received);
    tcase_add_loop_test(tc, bad_input_is_named, 0, sizeof bad_rows / sizeof *bad_rows);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
