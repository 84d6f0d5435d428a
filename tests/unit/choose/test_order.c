/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a backward pass: its model is the makespan of a queue, simulated here the slow way;
 * L2 groups have the waves they are asked for; what has no tiles, or few, has an order, too.
 */
#include "choose/order.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>

/* SMs that take items, each by the first that is free. */
struct queue {
    double free_at[64], last;
    int32_t sms;
};

static void queue_take(struct queue *queue, double time)
{
    int32_t first = 0;

    for (int32_t sm = 1; sm < queue->sms; sm++)
        first = queue->free_at[sm] < queue->free_at[first] ? sm : first;
    queue->free_at[first] += time;
    queue->last = fmax(queue->last, queue->free_at[first]);
}

/* The items of some head groups, of so many query heads each. */
static void queue_take_all(struct queue *queue, const struct tile_plan *plan, int32_t head_groups,
                           int32_t heads, int32_t waves)
{
    const int32_t wanted = waves * queue->sms / (int32_t)plan->tile_count;
    const int32_t l2_group = wanted < 1 ? 1 : wanted;

    for (int32_t head_group = 0; head_group < head_groups; head_group += l2_group)
        for (int64_t t = 0; t < plan->tile_count; t++)
            for (int32_t copy = 0; copy < l2_group && head_group + copy < head_groups; copy++)
                queue_take(queue, plan->block_counts[t] * heads + 3);
}

static double queue_time(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order)
{
    struct queue queue = { .sms = query->at_a_time };

    queue_take_all(&queue, plan, order.whole_heads, query->group, order.waves);
    queue_take_all(&queue, plan, (query->heads_kv - order.whole_heads) * order.parts,
                   query->group / order.parts, order.waves);
    return queue.last;
}

START_TEST(a_makespan_is_that_of_a_queue)
{
    int32_t blocks[40] = { 0 };
    struct rng rng = { 11 };
    int l2_groups = 0, left_whole = 0;

    for (int round = 0; round < 200; round++) {
        struct tile_plan plan = {
            .tile_m = 64, .tile_n = 128, .list_count = 1, .block_counts = blocks
        };
        const struct order_query query = {
            .group = 12,
            .heads_kv = (int32_t)rng_range(&rng, 1, 4),
            .at_a_time = (int32_t)rng_range(&rng, 24, 64),
            .can_leave_whole = true,
            .row_bytes = 1024,
        };

        plan.tile_count = rng_range(&rng, 1, 40);
        for (int64_t t = 0; t < plan.tile_count; t++)
            plan.block_count += blocks[t] = (int32_t)rng_range(&rng, 0, 50);
        for (int32_t parts = 1; parts <= 12; parts++)
            if (12 % parts == 0 &&
                plan.tile_count * query.heads_kv * parts <= 32 * query.at_a_time) {
                const struct backward_order order = {
                    parts, (int32_t)rng_range(&rng, 1, ORDER_WAVES_MAX),
                    parts > 1 ? (int32_t)rng_range(&rng, 0, query.heads_kv - 1) : 0
                };
                const int64_t l2_group = backward_order_l2_group(&plan, &query, order);

                left_whole += order.whole_heads > 0;
                l2_groups += l2_group < parts * query.heads_kv;
                ck_assert_double_eq_tol(backward_makespan(&plan, &query, order),
                                        queue_time(&plan, &query, order), 1e-9);
            }
    }
    ck_assert_int_gt(l2_groups, 100);
    ck_assert_int_gt(left_whole, 100);
}
END_TEST

/* Where kv heads may be left whole, the order is within 1 % of the best without, and of all that
 * leave all but a power of two of them. One part has no sums, and is taken where it is as close.
 * Never are all of them left whole. */
START_TEST(kv_heads_are_left_whole_where_that_is_best)
{
    static const char *const texts[] = { "full:16384", "causal:16384", "full:8960",
                                         "varlen-causal:900,300,7000,64,2000" };
    const struct order_query query = {
        .group = 8, .heads_kv = 8, .at_a_time = 132, .can_leave_whole = true, .row_bytes = 1024
    };
    struct order_query divided = query;
    int32_t left_whole = 0, one_part = 0;

    divided.can_leave_whole = false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };
        struct backward_order order, other;
        struct tile_plan plan;
        ffa_mask *mask;
        double least, one = INFINITY;

        ck_assert_int_eq(ffa_mask_parse(&mask, texts[i], NULL), FFA_OK);
        ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
        order = backward_order_find(&plan, &query);
        other = backward_order_find(&plan, &divided);
        ck_assert_int_eq(other.whole_heads, 0);
        for (int32_t waves = 1; waves <= ORDER_WAVES_MAX; waves++)
            one = fmin(one,
                       backward_order_time(&plan, &query, (struct backward_order){ 1, waves, 0 }));
        least = fmin(one, backward_order_time(&plan, &query, other));
        for (int32_t parts = 2; parts <= 8; parts *= 2)
            for (int32_t last = 1; last < 8; last *= 2)
                least = fmin(least, backward_order_time(
                                        &plan, &query,
                                        (struct backward_order){ parts, other.waves, 8 - last }));
        ck_assert_double_le(backward_order_time(&plan, &query, order), least * 1.01);
        ck_assert_msg((order.parts == 1) == (one <= least * 1.01), "%s: %d parts", texts[i],
                      order.parts);
        one_part += order.parts == 1;
        if (order.whole_heads) {
            ck_assert_int_gt(order.parts, 1);
            ck_assert_int_lt(order.whole_heads, 8);
            ck_assert_int_eq((8 - order.whole_heads) & (7 - order.whole_heads), 0);
            left_whole++;
        }
        tile_finish(&plan);
        ffa_mask_destroy(mask);
    }
    ck_assert_int_ge(left_whole, 2);
    ck_assert_int_ge(one_part, 1);
}
END_TEST

/* No more parts than are asked for, left whole or not. */
START_TEST(parts_are_no_more_than_asked_for)
{
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };
    struct order_query query = {
        .group = 12, .heads_kv = 4, .at_a_time = 132, .can_leave_whole = true, .row_bytes = 1024
    };
    struct tile_plan plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "full:500", NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ck_assert_int_gt(backward_order_find(&plan, &query).parts, 1);
    for (query.parts_max = 1; query.parts_max <= 4; query.parts_max++) {
        const struct backward_order order = backward_order_find(&plan, &query);

        ck_assert_int_le(order.parts, query.parts_max);
        ck_assert(order.parts > 1 || query.parts_max < 4);
        ck_assert_int_eq(12 % order.parts, 0);
        ck_assert(order.parts > 1 || order.whole_heads == 0);
    }
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* One mask per kv head: the lists stand one after another, and a tile is of one kv head. */
START_TEST(a_makespan_of_lists_takes_each_tile_once)
{
    int32_t blocks[] = { 9, 4, 7 };
    const struct tile_plan plan = {
        .list_count = 2, .block_counts = blocks, .tile_count = 3, .block_count = 20
    };
    const struct order_query query = {
        .group = 2, .heads_kv = 2, .at_a_time = 2, .row_bytes = 1024
    };

    /* 21, and 11 + 17. */
    ck_assert_double_eq_tol(backward_makespan(&plan, &query, (struct backward_order){ 1, 1, 0 }),
                            28, 1e-9);
    /* 12 + 7 + 10 on each. */
    ck_assert_double_eq_tol(backward_makespan(&plan, &query, (struct backward_order){ 2, 1, 0 }),
                            29, 1e-9);
    ck_assert_int_eq(backward_order_l2_group(&plan, &query, (struct backward_order){ 2, 1, 0 }), 4);
}
END_TEST

/* As many head groups as make the tiles of `waves` waves, one at least, and no more than there are.
 */
START_TEST(l2_groups_of_so_many_waves)
{
    static const struct {
        int64_t tiles;
        struct backward_order order;
        int64_t want;
    } rows[] = { { 32, { 1, 1, 0 }, 4 },  { 32, { 4, 2, 0 }, 8 },  { 32, { 4, 3, 0 }, 12 },
                 { 32, { 4, 4, 0 }, 16 }, { 33, { 1, 1, 0 }, 4 },  { 96, { 1, 3, 0 }, 4 },
                 { 128, { 1, 1, 0 }, 1 }, { 128, { 1, 3, 0 }, 3 }, { 133, { 1, 1, 0 }, 1 },
                 { 512, { 8, 4, 0 }, 1 }, { 4, { 1, 4, 0 }, 8 } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct tile_plan plan = { .list_count = 1, .tile_count = rows[i].tiles };

        ck_assert_int_eq(backward_order_l2_group(
                             &plan,
                             &(struct order_query){
                                 .group = 8, .heads_kv = 8, .at_a_time = 132, .row_bytes = 1024 },
                             rows[i].order),
                         rows[i].want);
    }
}
END_TEST

/* In lockstep, tiles of a causal mask are paired, the longest with the shortest: 4k on 132 SMs
 * takes no longer than its blocks do, of which two a tile are partial, and needs no parts. One kv
 * head has too few. */
START_TEST(an_order_of_few_tiles)
{
    const struct order_query query = {
        .group = 8, .heads_kv = 8, .at_a_time = 132, .row_bytes = 1024
    };
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };
    struct tile_plan plan;
    struct backward_order order;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:4096", NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    order = backward_order_find(&plan, &query);
    ck_assert_int_eq(order.parts, 1);
    ck_assert_int_eq(order.waves, 1);
    ck_assert_double_eq_tol(backward_makespan(&plan, &query, order), (64 + 4 * 0.25) * 8 + 2 * 3,
                            1e-9);
    order = backward_order_find(
        &plan,
        &(struct order_query){ .group = 8, .heads_kv = 1, .at_a_time = 132, .row_bytes = 1024 });
    ck_assert_int_gt(order.parts, 1);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Keys that nobody attends: an item each, of no blocks. No mean, no spread. */
START_TEST(an_order_of_an_empty_mask)
{
    int32_t blocks[3] = { 0 };
    const struct tile_plan plan = { .shape = { 0, 300 },
                                    .tile_m = 64,
                                    .tile_n = 128,
                                    .list_count = 1,
                                    .block_counts = blocks,
                                    .tile_count = 3 };

    ck_assert_int_eq(
        backward_order_find(
            &plan,
            &(struct order_query){ .group = 8, .heads_kv = 8, .at_a_time = 132, .row_bytes = 1024 })
            .parts,
        1);
    ck_assert_int_eq(backward_order_find(&plan, &(struct order_query){ .group = 8,
                                                                       .heads_kv = 8,
                                                                       .at_a_time = 2000,
                                                                       .row_bytes = 1024 })
                         .parts,
                     1);
}
END_TEST

/* Beyond that many items, what an SM has on average and half an item: no SM waits longer. */
START_TEST(a_makespan_of_many_items_is_near_that_of_a_queue)
{
    int32_t blocks[256] = { 0 };
    struct tile_plan plan = { .list_count = 1, .block_counts = blocks, .tile_count = 256 };
    const struct order_query query = {
        .group = 8, .heads_kv = 8, .at_a_time = 64, .row_bytes = 1024
    };

    for (int t = 0; t < 256; t++)
        plan.block_count += blocks[t] = 2 * (256 - t);
    for (int32_t whole = 0; whole < 8; whole += 7) {
        const struct backward_order order = { 8, 1, whole };

        ck_assert_double_eq_tol(
            backward_makespan(&plan, &query, order) / queue_time(&plan, &query, order), 1, 0.02);
    }
}
END_TEST

static const struct {
    int32_t own_tiles, heads_kv, at_a_time;
    double first_share;
    int32_t heads;
} own_rows[] = {
    { 64, 8, 132, 0.5, 4 },  /* two heads a wave: two waves of four */
    { 128, 8, 132, 0.5, 4 }, /* one head a wave */
    { 128, 8, 132, 0.6, 6 }, /* five would be odd */
    { 128, 3, 132, 0.5, 2 }, /* two of three waves */
    { 512, 2, 132, 0.5, 1 }, /* a head of four waves */
    { 32, 4, 132, 0.5, 2 },  /* less than a wave: half of its heads */
    { 32, 3, 132, 0.5, 2 },  /* the smaller half would not do */
    { 3, 2, 132, 0.9, 2 },   /* all come first */
    { 128, 8, 132, 1, 8 },   /* the same */
    { 128, 8, 132, 0, 2 },   /* some do in any case */
    { 128, 1, 132, 0.5, 1 },
};

START_TEST(heads_of_own_keys_that_come_first)
{
    const int32_t got = backward_own_heads(own_rows[_i].own_tiles, own_rows[_i].heads_kv,
                                           own_rows[_i].at_a_time, own_rows[_i].first_share);

    ck_assert_int_eq(got, own_rows[_i].heads);
}
END_TEST

START_TEST(as_many_heads_come_first_as_have_to)
{
    struct rng rng = { 5 };

    for (int i = 0; i < 20000; i++) {
        const int32_t heads = (int32_t)rng_range(&rng, 1, 40);
        const double share = (double)rng_range(&rng, 0, 1000) / 1000;
        const int32_t got = backward_own_heads((int32_t)rng_range(&rng, 1, 600), heads,
                                               (int32_t)rng_range(&rng, 1, 140), share);

        ck_assert_int_ge(got, 1);
        ck_assert_int_le(got, heads);
        ck_assert_double_ge(got + 1e-9, share * heads);
    }
}
END_TEST

static void build_plan(struct tile_plan *plan, const char *text, bool on_grid)
{
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128, .on_grid = on_grid };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ffa_mask_destroy(mask);
}

/* What is remembered changes no answer, whatever costs are asked for in between. */
START_TEST(a_memo_changes_nothing)
{
    struct cost_table costs = *cost_table_find(NULL);
    struct order_memo *memo = calloc(1, sizeof *memo);
    struct rng rng = { 7 };
    struct tile_plan plan;

    ck_assert_ptr_nonnull(memo);
    build_plan(&plan, "varlen-causal:1500,300,900", false);
    for (int round = 0; round < 300; round++) {
        struct order_query query = { .group = 12,
                                     .heads_kv = 8,
                                     .at_a_time = 40,
                                     .costs = &costs,
                                     .can_leave_whole = true,
                                     .row_bytes = 1024 };
        struct backward_order plain, other;

        costs.order.item_blocks = (double)rng_range(&rng, 1, 40) / 4;
        costs.order.sum_blocks = (double)rng_range(&rng, 0, 40) * 1e-4;
        costs.order.miss_cost = (double)rng_range(&rng, 0, 8) / 4;
        costs.order.miss_free = (double)rng_range(&rng, 0, 8) / 16;
        plain = backward_order_find(&plan, &query);
        query.memo = memo;
        other = backward_order_find(&plan, &query);
        ck_assert_int_eq(plain.parts, other.parts);
        ck_assert_int_eq(plain.waves, other.waves);
        ck_assert_int_eq(plain.whole_heads, other.whole_heads);
    }
    tile_finish(&plan);
    free(memo);
}
END_TEST

/* More parts that would have to save all of the time are none, and one part has its best waves. */
START_TEST(one_part_where_no_more_are_worth_it)
{
    struct cost_table costs = *cost_table_find(NULL);
    struct order_query query = {
        .heads_kv = 8, .at_a_time = 132, .costs = &costs, .row_bytes = 1024
    };
    struct tile_plan plan;

    costs.order.worth = 1;
    build_plan(&plan, "causal:3000", true);
    for (query.group = 1; query.group <= 8; query.group *= 8) {
        const struct backward_order order = backward_order_find(&plan, &query);

        ck_assert_int_eq(order.parts, 1);
        for (int32_t waves = 1; waves <= 4; waves++)
            ck_assert_double_le(
                backward_order_time(&plan, &query, order),
                backward_order_time(&plan, &query, (struct backward_order){ 1, waves, 0 }) *
                    1.0001);
    }
    tile_finish(&plan);
}
END_TEST

/* ---- packed documents ---- */

/* Which way was faster on an H100 (docs/lab-notes.md, packed causal documents). l2_bytes of the
 * built-in table is a little more. */
static const struct {
    const char *mask;
    int32_t group, head_dim;
    bool keeps;
} steps[] = {
    { "varlen-causal:1024*8", 8, 128, true },
    { "varlen-causal:1024*16", 8, 128, true }, /* all tiles begin in one wave */
    { "varlen-causal:2048*8", 8, 128, true },
    { "varlen-causal:4096*8", 8, 128, true },
    { "varlen-causal:2048*16", 8, 128, false },
    { "varlen-causal:2048*16", 4, 128, true },
    { "varlen-causal:2048*16", 8, 64, true },
    { "varlen-causal:1024*32", 4, 128, false },
    { "varlen-causal:1024*32", 8, 64, false },
    { "varlen-causal:512*64", 8, 128, false },
    { "varlen-causal:9134,1929,7925,1159,2902,3671,4956,796,136,64,16,79,1", 8, 128, true },
    { "causal:65536", 8, 128, true },
    { "window:65536,left=1024,right=0", 8, 128, true }, /* it cannot: nothing to leave */
};

START_TEST(lockstep_is_kept_while_documents_fit_l2)
{
    const struct order_query query = {
        .group = steps[_i].group,
        .heads_kv = 8,
        .at_a_time = 132,
        .row_bytes = order_row_bytes(steps[_i].head_dim, steps[_i].head_dim, FFA_BF16),
    };

    for (int grid = 0; grid < 2; grid++) {
        struct tile_plan plan;

        build_plan(&plan, steps[_i].mask, grid);
        ck_assert_msg(backward_keeps_lockstep(&plan, &query) == (grid || steps[_i].keeps), "%s",
                      steps[_i].mask);
        tile_finish(&plan);
    }
}
END_TEST

/* Measured on an H200, 2026-11-26, head_dim 128, 64:8 heads, in us: what is chosen is within 4 % of
 * the fastest of all orders that raced (bench/results/h200/orders.jsonl). */
static const struct {
    const char *mask;
    double least; /* of 52 orders, or 69 */
    struct {
        struct backward_order order;
        double us;
    } near[4];
} measured[] = {
    { "varlen-causal:1024*8",
      945,
      { { { 1, 1, 0 }, 945 }, { { 2, 1, 4 }, 971 }, { { 4, 1, 7 }, 980 }, { { 4, 2, 7 }, 980 } } },
    { "varlen-causal:4096*4",
      5098,
      { { { 1, 1, 0 }, 5098 },
        { { 1, 2, 0 }, 5130 },
        { { 1, 3, 0 }, 5207 },
        { { 4, 2, 7 }, 5235 } } },
    { "varlen-causal:2048*16",
      6324,
      { { { 2, 3, 0 }, 6360 }, { { 2, 1, 0 }, 6400 }, { { 2, 4, 0 }, 6430 } } },
    { "varlen-causal:1024*32",
      4065,
      { { { 1, 3, 0 }, 4065 },
        { { 2, 1, 0 }, 4075 },
        { { 2, 2, 0 }, 4076 },
        { { 1, 1, 0 }, 4206 } } },
    { "varlen-causal:3717,1033,1038,2187,87,52,44,18,11,2,1,2",
      1902,
      { { { 2, 4, 4 }, 1902 },
        { { 4, 4, 6 }, 1935 },
        { { 4, 4, 4 }, 1939 },
        { { 4, 3, 4 }, 1966 } } },
    { "varlen-causal:5000,4000,3000,2000,1000,1000,384",
      4839,
      { { { 4, 2, 6 }, 4807 },
        { { 2, 2, 6 }, 4839 },
        { { 2, 2, 0 }, 4862 },
        { { 2, 4, 6 }, 4880 } } },
    { "varlen-causal:7777,3333,1111",
      5597,
      { { { 4, 3, 0 }, 5597 }, { { 4, 2, 4 }, 5700 }, { { 4, 2, 0 }, 5763 } } },
    { "varlen-causal:300*20,2192",
      1036,
      { { { 4, 4, 6 }, 1036 },
        { { 8, 4, 6 }, 1037 },
        { { 4, 4, 4 }, 1037 },
        { { 2, 4, 6 }, 1040 } } },
    { "causal:12288",
      10360,
      { { { 8, 4, 7 }, 10360 },
        { { 4, 3, 0 }, 10389 },
        { { 1, 3, 0 }, 10395 },
        { { 2, 3, 0 }, 10418 } } },
};

START_TEST(orders_of_packed_documents_are_those_that_were_fast)
{
    struct order_query query = { .group = 8,
                                 .heads_kv = 8,
                                 .at_a_time = 132,
                                 .can_leave_whole = true,
                                 .row_bytes = order_row_bytes(128, 128, FFA_BF16) };
    struct tile_plan plan;
    struct backward_order order;
    double us = INFINITY;

    build_plan(&plan, measured[_i].mask, false);
    plan.is_unlocked = !backward_keeps_lockstep(&plan, &query);
    order = backward_order_find(&plan, &query);
    for (size_t i = 0; i < sizeof measured->near / sizeof *measured->near; i++)
        if (measured[_i].near[i].us > 0 && measured[_i].near[i].order.parts == order.parts &&
            measured[_i].near[i].order.waves == order.waves &&
            measured[_i].near[i].order.whole_heads == order.whole_heads)
            us = measured[_i].near[i].us;
    ck_assert_msg(us < 1.04 * measured[_i].least, "%s: %dx%d+%d", measured[_i].mask, order.parts,
                  order.waves, order.whole_heads);
    tile_finish(&plan);
}
END_TEST

/* 96 tiles by four head groups are 2.9 waves of 132 SMs; by one, two and five 0.7, 1.5 and 3.6.
 * Simulated, the last SM ends at 1.01 of the blocks alone in L2 groups of three waves, and at 1.15,
 * 1.08 and 1.03 in those of one, two and four (bench/simulate_l2.py --documents 12288). */
START_TEST(three_waves_where_others_are_not_whole)
{
    struct order_query query = { .group = 8,
                                 .heads_kv = 8,
                                 .at_a_time = 132,
                                 .row_bytes = order_row_bytes(128, 128, FFA_BF16) };
    struct tile_plan plan;

    build_plan(&plan, "causal:12288", false);
    for (int whole = 0; whole < 2; whole++) {
        const struct backward_order order = { 1, 3, 0 };
        struct backward_order found;

        query.can_leave_whole = whole;
        found = backward_order_find(&plan, &query);
        ck_assert_mem_eq(&found, &order, sizeof order);
        ck_assert_int_eq(backward_order_l2_group(&plan, &query, order), 4);
        for (int32_t waves = 1; waves <= ORDER_WAVES_MAX; waves++)
            ck_assert(waves == 3 ||
                      backward_order_time(&plan, &query, (struct backward_order){ 1, waves, 0 }) >
                          backward_order_time(&plan, &query, order));
    }
    tile_finish(&plan);
}
END_TEST

/* Head by head, heads that are left whole would drift apart: all are divided alike. */
START_TEST(none_is_left_whole_without_lockstep)
{
    const struct order_query query = {
        .group = 8, .heads_kv = 8, .at_a_time = 132, .can_leave_whole = true, .row_bytes = 1024
    };
    struct tile_plan plan;

    build_plan(&plan, "varlen-causal:300*20,2192", false);
    ck_assert_int_gt(backward_order_find(&plan, &query).whole_heads, 0);
    plan.is_unlocked = true;
    ck_assert_int_eq(backward_order_find(&plan, &query).whole_heads, 0);
    tile_finish(&plan);
}
END_TEST

/* Tiles have keys of one document each where that saves work: of a tile across documents all blocks
 * are partial. Times of one H100, 2026-11-27 (docs/lab-notes.md): the first four are 4 to 14 %
 * faster, and twelve documents in 8,192 tokens would be 5 to 8 % slower. */
static const struct {
    const char *mask;
    int32_t group;
    enum tile_cuts cuts;
    bool on_grid;
    bool is_apart;
    int64_t tiles;
} key_tiles[] = {
    { "varlen-full:1033*8", 8, TILE_CUTS_CHEAP, false, true, 72 },
    { "varlen-full:300*40", 8, TILE_CUTS_CHEAP, false, true, 120 },
    { "varlen-full:400*30", 8, TILE_CUTS_CHEAP, false, true, 120 },
    { "varlen-causal:330*40", 8, TILE_CUTS_CHEAP, false, true, 120 },
    { "varlen-full:300*40", 4, TILE_CUTS_CHEAP, false, true, 120 },
    { "varlen-full:300*40", 1, TILE_CUTS_CHEAP, false, false, 100 }, /* more items to begin */
    { "varlen-full:300*40", 0, TILE_CUTS_CHEAP, false, false, 100 }, /* heads are not known */
    { "varlen-full:300*40", 8, TILE_CUTS_CHEAP, true, false, 0 },    /* ordered accumulation */
    { "varlen-full:300*40", 8, TILE_CUTS_NONE, false, false, 94 },
    { "varlen-full:300*40", 1, TILE_CUTS_ISOLATE, false, true, 120 },
    { "varlen-full:3717,1033,1038,2187,87,52,44,18,11,2,1,2", 8, TILE_CUTS_CHEAP, false, false,
      64 },
    { "varlen-causal:300*20,2192", 8, TILE_CUTS_CHEAP, false, false, 77 },
    { "varlen-full:1024*8", 8, TILE_CUTS_CHEAP, false, false, 64 },
    { "causal:1024", 8, TILE_CUTS_CHEAP, false, false, 8 },
};

START_TEST(key_tiles_are_of_one_document_where_that_saves_work)
{
    const struct tile_options opts = {
        .tile_m = 64, .tile_n = 128, .cuts = key_tiles[_i].cuts, .on_grid = key_tiles[_i].on_grid
    };
    struct tile_plan plan, want;
    struct tile_options of = opts;
    ffa_mask *mask;

    if (key_tiles[_i].is_apart)
        of.cuts = TILE_CUTS_ISOLATE;
    ck_assert_int_eq(ffa_mask_parse(&mask, key_tiles[_i].mask, NULL), FFA_OK);
    ck_assert_int_eq(backward_tiles_build(&plan, mask, &opts, key_tiles[_i].group, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&want, mask, TILE_OWNS_KEYS, &of, NULL), FFA_OK);
    ck_assert_int_eq(plan.cuts, of.cuts);
    ck_assert_int_eq(plan.tile_count, want.tile_count);
    if (!key_tiles[_i].on_grid)
        ck_assert_int_eq(plan.tile_count, key_tiles[_i].tiles);
    for (int64_t t = 0; t < plan.tile_count; t++)
        ck_assert_mem_eq(&plan.tiles[t], &want.tiles[t], sizeof *plan.tiles);
    tile_finish(&plan);
    tile_finish(&want);
    ffa_mask_destroy(mask);
}
END_TEST

/* Memory may end in the first tiles, in those of documents apart, or nowhere. */
START_TEST(key_tiles_of_which_memory_ends)
{
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };
    int failed = 0;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "varlen-full:300*40", NULL), FFA_OK);
    for (int nth = 1;; nth++) {
        struct tile_plan plan;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = backward_tiles_build(&plan, mask, &opts, 8, &err);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            ck_assert_int_eq(plan.tile_count, 120);
            tile_finish(&plan);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_int_eq(plan.tile_count, 0);
        ck_assert_ptr_null(plan.tiles);
        failed++;
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(failed, 10);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("order");
    TCase *tc = tcase_create("order");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_makespan_is_that_of_a_queue);
    tcase_add_test(tc, kv_heads_are_left_whole_where_that_is_best);
    tcase_add_test(tc, parts_are_no_more_than_asked_for);
    tcase_add_test(tc, a_makespan_of_lists_takes_each_tile_once);
    tcase_add_test(tc, l2_groups_of_so_many_waves);
    tcase_add_test(tc, an_order_of_few_tiles);
    tcase_add_test(tc, an_order_of_an_empty_mask);
    tcase_add_test(tc, a_makespan_of_many_items_is_near_that_of_a_queue);
    tcase_add_loop_test(tc, heads_of_own_keys_that_come_first, 0,
                        sizeof own_rows / sizeof *own_rows);
    tcase_add_test(tc, as_many_heads_come_first_as_have_to);
    tcase_add_test(tc, a_memo_changes_nothing);
    tcase_add_test(tc, one_part_where_no_more_are_worth_it);
    tcase_add_loop_test(tc, lockstep_is_kept_while_documents_fit_l2, 0,
                        sizeof steps / sizeof *steps);
    tcase_add_loop_test(tc, orders_of_packed_documents_are_those_that_were_fast, 0,
                        sizeof measured / sizeof *measured);
    tcase_add_test(tc, three_waves_where_others_are_not_whole);
    tcase_add_test(tc, none_is_left_whole_without_lockstep);
    tcase_add_loop_test(tc, key_tiles_are_of_one_document_where_that_saves_work, 0,
                        sizeof key_tiles / sizeof *key_tiles);
    tcase_add_test(tc, key_tiles_of_which_memory_ends);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
