/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages: the reference's uniform split and costs; the exact cut against every cut, by a timeline
 * of lanes written out here; arguments.
 */
#include "parallel/plan/overlap.h"
#include "support/parallel_cases.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

/* ---- the reference ---- */

START_TEST(uniform_splits_of_the_reference)
{
    json_t *root = parallel_cases_load();
    const json_t *list = json_object_get(root, "overlap_solver");

    ck_assert_uint_eq(json_array_size(list), 4);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *want;
        const json_t *costs = json_object_get(entry, "costs");
        struct overlap_item items[OVERLAP_ITEMS_MAX] = { { 0 } };
        struct overlap_input in = { .items = items,
                                    .count = (int64_t)json_array_size(costs) - 1,
                                    .buffers = 2,
                                    .degree_max = 4 };
        struct overlap_split split, exact;
        const char *degree;

        for (int64_t c = 0; c <= in.count; c++) {
            int64_t pair[2];

            (void)parallel_integers(json_array_get(costs, (size_t)c), pair, 2);
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

/* ---- lanes, each doing one thing after another ---- */

static int64_t sum(const struct overlap_input *in, int64_t begin, int64_t end, size_t field)
{
    int64_t total = 0;

    for (int64_t i = begin; i < end; i++)
        total += *(const int64_t *)((const char *)&in->items[i] + field);
    return total;
}
#define SUM(in, begin, end, name) sum(in, begin, end, offsetof(struct overlap_item, name))

/* When all is done. Every act of every stage, asked again and again until none moves: it begins
 * when all it waits for is done. Acts of stage s are 3 * s + fetch, compute, reduce; stage 0 is the
 * own part. */
enum { FETCH, COMPUTE, REDUCE, ACTS };

static int64_t timeline(const struct overlap_input *in, const int64_t *ends, int32_t count)
{
    int64_t begin[ACTS * (OVERLAP_STAGES_MAX + 1)] = { 0 }, length[ACTS * (OVERLAP_STAGES_MAX + 1)];
    const int64_t b = in->buffers;
    int64_t left = 0, from = 0;
    bool is_moving = true;

    memset(length, 0, sizeof length);
    length[COMPUTE] = in->own;
    for (int32_t s = 1; s <= count; s++) {
        int64_t *act = length + ACTS * s, latency = 0;

        for (int64_t i = from; i < ends[s - 1]; i++)
            latency = max64(latency, in->items[i].latency);
        act[FETCH] = latency + SUM(in, from, ends[s - 1], fetch);
        act[COMPUTE] = in->launch + SUM(in, from, ends[s - 1], compute);
        act[REDUCE] = in->has_reduce ? latency + SUM(in, from, ends[s - 1], reduce) : 0;
        from = ends[s - 1];
    }
    if (in->is_backward && in->own > length[ACTS + FETCH]) {
        length[COMPUTE] = length[ACTS + FETCH];
        left = in->own - length[COMPUTE];
    }
    while (is_moving) {
        is_moving = false;
        for (int64_t s = 1; s <= count; s++) {
            const int64_t at = ACTS * s;
            const struct {
                int64_t act, other;
                bool is_begin; /* waits for the other's begin, not its end */
            } waits[] = {
                { at + FETCH, at - ACTS + FETCH, false },
                { at + FETCH, (s - b + 1 > 0 ? s - b + 1 : 0) * ACTS + COMPUTE, true },
                { at + COMPUTE, at - ACTS + COMPUTE, false },
                { at + COMPUTE, at + FETCH, false },
                { at + COMPUTE, (s - b > 0 ? s - b : 0) * ACTS + REDUCE, false },
                { at + REDUCE, at - ACTS + REDUCE, false },
                { at + REDUCE, at + COMPUTE, false },
            };

            for (size_t w = 0; w < sizeof waits / sizeof *waits; w++) {
                const int64_t other = waits[w].other;
                const int64_t until = begin[other] + (waits[w].is_begin ? 0 : length[other]);

                if (begin[waits[w].act] < until) {
                    begin[waits[w].act] = until;
                    is_moving = true;
                }
            }
        }
    }
    return max64(begin[ACTS * count + COMPUTE] + length[ACTS * count + COMPUTE] + left,
                 begin[ACTS * count + REDUCE] + length[ACTS * count + REDUCE]);
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
    in.buffers = (int32_t)rng_range(&rng, 2, OVERLAP_BUFFERS_MAX);
    in.has_reduce = rng_range(&rng, 0, 3) > 0;
    in.launch = rng_range(&rng, 0, 3);
    in.rows_min = rng_range(&rng, 0, 1) ? 0 : rng_range(&rng, 0, 20);
    in.degree_max = (int32_t)rng_range(&rng, 1, 6);
    in.is_backward = seed % 2;
    for (int64_t i = 0; i < in.count; i++) {
        items[i].fetch = rng_range(&rng, 0, 20);
        items[i].compute = rng_range(&rng, 0, 20);
        items[i].reduce = rng_range(&rng, 0, 20);
        items[i].rows = rng_range(&rng, 0, 10);
        items[i].latency = rng_range(&rng, 0, 5);
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
    ck_assert_int_eq(overlap_cost(&in, &split, NULL), split.cost);
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
    const struct overlap_input in = { .own = 7, .degree_max = 4, .buffers = 2 };
    struct overlap_split split;

    ck_assert_int_eq(overlap_solve(&split, &in, NULL), FFA_OK);
    ck_assert_int_eq(split.count, 0);
    ck_assert_int_eq(split.cost, 7);
    ck_assert_int_eq(overlap_uniform(&split, &in, NULL), FFA_OK);
    ck_assert_int_eq(split.count, 0);
    ck_assert_int_eq(split.cost, 7);
}
END_TEST

static const struct overlap_item fine[] = { { 1, 2, 3, 4, 5 } },
                                 negative[] = { { 1, -2, 3, 4, 5 } };
static const struct overlap_item endless[] = { { INT64_MAX, 2, 3, 4, 5 } };

static const struct {
    struct overlap_input in;
    const char *message;
} bad_rows[] = {
    { { .items = fine, .count = 17, .degree_max = 4, .buffers = 2 },
      "17 items to cut into stages, not in [0, 16]" },
    { { .items = fine, .count = 1, .degree = 17, .degree_max = 4, .buffers = 2 },
      "degree is 17 of at most 4, not in [0, 16]" },
    { { .items = fine, .count = 1, .buffers = 2 }, "degree is 0 of at most 0, not in [0, 16]" },
    { { .items = fine, .count = 1, .degree_max = 4, .buffers = 4 }, "buffers is 4, not in [2, 3]" },
    { { .items = fine, .count = 1, .degree_max = 4, .buffers = 2, .own = -1 }, "a negative time" },
    { { .items = negative, .count = 1, .degree_max = 4, .buffers = 2 },
      "item 0: a negative time or count" },
    { { .items = endless, .count = 1, .degree_max = 4, .buffers = 2 },
      "a time of 9223372036854775807, at most 72057594037927935" },
};

START_TEST(bad_input_is_named)
{
    struct overlap_split split;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(overlap_solve(&split, &bad_rows[_i].in, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, bad_rows[_i].message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlap");
    TCase *tc = tcase_create("overlap");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, uniform_splits_of_the_reference);
    tcase_add_loop_test(tc, the_least_of_all_cuts, 0, 3);
    tcase_add_test(tc, nothing_received);
    tcase_add_loop_test(tc, bad_input_is_named, 0, sizeof bad_rows / sizeof *bad_rows);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
