/* SPDX-License-Identifier: Apache-2.0
 *
 * Kv heads of a forward L2 group: the share of SMs at work and the fastest group of masks that an
 * H200 was measured with; the queue, and keys that are read again, as found item by item; and what
 * nothing depends on.
 */
#include "choose/l2_heads.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 6 };

static const struct device_facts h200_facts = {
    .name = "NVIDIA H200", .sm_count = 132, .shared_bytes_block = 232448, .l2_bytes = 62914560
};

/* A forward pass. */
struct pass {
    const char *mask;
    int32_t heads_q, heads_kv, head_dim, head_dim_v;
    int32_t rows, tile_n; /* of the kernel */
    struct tile_cost cost;
};

#define PACKED_16K "varlen-causal:13033,60,172,1775,430,637,55,131,3,22,58,4,3,1"

static const struct pass measured[] = {
    { "full:4096", 32, 32, 192, 128, 128, 128, { 241, 1 } },
    { "causal:4096", 32, 32, 192, 128, 128, 128, { 241, 1 } },
    { "causal:16384", 32, 32, 192, 128, 128, 128, { 241, 1 } },
    { "full:4096", 16, 16, 128, 128, 192, 80, { 420, 1.4 } },
    { "causal:8192", 16, 16, 128, 128, 192, 80, { 420, 1.4 } },
    { "full:4096", 64, 8, 128, 128, 192, 80, { 420, 1.4 } },
    { "causal:4096", 64, 8, 128, 128, 192, 80, { 420, 1.4 } },
    { PACKED_16K, 64, 8, 128, 128, 192, 80, { 420, 1.4 } },
    { "full:4096", 16, 16, 256, 256, 128, 80, { 179, 1 } },
    { "full:16384", 64, 8, 128, 128, 192, 80, { 420, 1.4 } },
};

/* Of each, what was measured with 1, 2, 4, ... kv heads in an L2 group, one H200, 2026-11-27
 * (bench/results/h200/l2_groups.txt, docs/lab-notes.md): the share of SMs at work, of ncu's
 * sm__cycles_active and sm__cycles_elapsed, and TFLOP/s. 0: not measured. */
static const double at_work[][GROUPS_MAX] = {
    { 0.956, 0.955, 0.953, 0.952, 0.960, 0.956 },
    { 0.874, 0.894, 0.967, 0.966, 0.967, 0.970 },
    { 0.990, 0.990, 0.986, 0.993 },
    { 0.944, 0.945, 0.947, 0.946, 0.943 },
    { 0.832, 0.868, 0.927, 0.959, 0.974 },
    { 0.935, 0.935, 0.936, 0.934 },
    { 0.961, 0.973, 0.976, 0.971 },
    { 0.994, 0.994, 0.995, 0.995 },
    { 0.950, 0.950, 0.955, 0.950, 0.951 },
    { 0.984, 0.984, 0.984, 0.984 },
};
static const double tflops[][GROUPS_MAX] = {
    { 688, 684, 667, 643, 630, 616 }, { 587, 590, 602, 599, 595, 566 }, { 703, 703, 700, 683 },
    { 650, 650, 652, 645, 604 },      { 596, 617, 648, 658, 638 },      { 689, 674, 681, 672 },
    { 661, 656, 665, 649 },           { 710, 713, 713, 690 },           { 676, 679, 675, 661, 639 },
    { 737, 737, 723, 708 },
};

static struct tile_plan plan_of(const struct pass *pass)
{
    const int32_t pack = pass->heads_q / pass->heads_kv;
    const struct tile_options opts = { .tile_m = pass->rows / pack,
                                       .tile_n = pass->tile_n,
                                       .cuts = pack > 1 ? TILE_CUTS_ISOLATE : TILE_CUTS_CHEAP };
    struct tile_plan plan = { 0 };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, pass->mask, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    ffa_mask_destroy(mask);
    return plan;
}

static struct l2_query query_of(const struct pass *pass)
{
    return (struct l2_query){ .heads_kv = pass->heads_kv,
                              .tile_heads = 1,
                              .tile_rows = pass->rows,
                              .key_bytes = 2 * (pass->head_dim + pass->head_dim_v),
                              .cost = pass->cost };
}

/* Without bytes, reading costs nothing: what is left is the queue. */
static double queue_time(const struct tile_plan *plan, struct l2_query query,
                         const struct choose_device *device, int32_t heads)
{
    query.key_bytes = 0;
    return l2_heads_time(plan, &query, device, heads);
}

/* Of a pass of even tiles the model says nothing: all are idle together with any group. */
START_TEST(sms_at_work_are_those_of_a_device)
{
    const struct pass *pass = &measured[_i];
    const struct choose_device device = choose_device_of(&h200_facts);
    const struct l2_query query = query_of(pass);
    struct tile_plan plan = plan_of(pass);

    for (int32_t i = 0; i < GROUPS_MAX && at_work[_i][i] > 0; i++) {
        const double time = queue_time(&plan, query, &device, 1 << i);

        if (!strncmp(pass->mask, "full:", 5))
            ck_assert_double_eq(time, 1);
        else /* begin and end of the launch take some 0.01 */
            ck_assert_msg(fabs(1 / time - 0.01 - at_work[_i][i]) < 0.02,
                          "%s, %d heads: %.3f at work, measured %.3f", pass->mask, 1 << i, 1 / time,
                          at_work[_i][i]);
    }
    tile_finish(&plan);
}
END_TEST

/* But for the spread over rounds, up to 3.4 % of a figure. */
START_TEST(the_group_is_as_fast_as_the_fastest)
{
    const struct pass *pass = &measured[_i];
    const struct choose_device device = choose_device_of(&h200_facts);
    const struct l2_query query = query_of(pass);
    struct tile_plan plan = plan_of(pass);
    const int32_t heads = choose_l2_heads(&plan, &query, &device);
    double best = 0;
    int32_t at = 0;

    for (int32_t i = 0; i < GROUPS_MAX; i++)
        best = fmax(best, tflops[_i][i]);
    while (1 << at < heads)
        at++;
    ck_assert_int_eq(1 << at, heads);
    ck_assert_int_lt(at, GROUPS_MAX);
    ck_assert_msg(tflops[_i][at] >= 0.97 * best, "%s: %d heads, %.0f of %.0f TFLOP/s", pass->mask,
                  heads, tflops[_i][at], best);
    tile_finish(&plan);
}
END_TEST

/* Tiles of documents of one length take turns in the plan, and share what they read with others
 * than their neighbours there. With all heads in a group every wave reads all documents again.
 * Measured: 544 TFLOP/s with two heads, 419 with 32. */
START_TEST(documents_take_turns)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    struct pass pass = measured[1];
    struct l2_query query;
    struct tile_plan plan;

    pass.mask = "varlen-causal:2048*6";
    plan = plan_of(&pass);
    query = query_of(&pass);
    ck_assert_int_le(choose_l2_heads(&plan, &query, &device), 4);
    ck_assert_double_gt(l2_heads_time(&plan, &query, &device, 32),
                        1.3 * l2_heads_time(&plan, &query, &device, 2));
    tile_finish(&plan);
}
END_TEST

/* ---- the queue ---- */

/* Some tiles, heads and places. */
static const struct {
    const char *mask;
    int32_t heads_kv, tile_heads, places;
} queues[] = {
    { "causal:1500", 6, 1, 5 },
    { "causal:1500", 5, 3, 4 },
    { "varlen-full:700,300,90", 7, 2, 3 },
    { "causal:900", 32, 1, 64 },
    { "causal:20000", 12, 1, 16 }, /* more than are simulated */
};

/* What an item's time differs by, as l2_heads.c has it. */
static double unevenness(uint64_t item)
{
    item = (item ^ item >> 33) * 0xff51afd7ed558ccdu;
    item = (item ^ item >> 33) * 0xc4ceb9fe1a85ec53u;
    return 0.087 * ((double)(item >> 11) * 0x1p-52 - 1);
}

/* All work items of the pass, each of its own time, taken in turn by the place that is free first:
 * the same, but where only the last ones are simulated. */
START_TEST(the_queue_is_that_of_its_items)
{
    enum { TILE = 64 };
    const struct device_facts facts = { .name = "NVIDIA H200",
                                        .sm_count = queues[_i].places,
                                        .l2_bytes = 62914560 };
    const struct choose_device device = choose_device_of(&facts);
    const int32_t heads_kv = queues[_i].heads_kv, each = queues[_i].tile_heads;
    const struct pass pass = {
        .mask = queues[_i].mask, .heads_q = 1, .heads_kv = 1, .rows = TILE, .tile_n = TILE
    };
    const struct l2_query query = { heads_kv, each, TILE, 0, { 100, 1 }, 0 };
    struct tile_plan plan = plan_of(&pass);

    for (int32_t heads = 1; heads <= heads_kv; heads++) {
        double *free_at = calloc((size_t)queues[_i].places, sizeof *free_at);
        double sum = 0, even = 0, last = 0, longest = 0, want, time;
        uint64_t items = 0;

        ck_assert_ptr_nonnull(free_at);
        for (int32_t first = 0; first < heads_kv; first += heads)
            for (int64_t t = 0; t < plan.tile_count; t++)
                for (int32_t h = 0; h < min32(heads, heads_kv - first) * each; h++) {
                    const double work = 100 + (double)plan.block_counts[t] * TILE;
                    const double item = work * (1 + unevenness(items++));
                    int32_t least = 0;

                    for (int32_t p = 1; p < queues[_i].places; p++)
                        if (free_at[p] < free_at[least])
                            least = p;
                    free_at[least] += item;
                    last = fmax(last, free_at[least]);
                    longest = fmax(longest, item);
                    sum += item;
                    even += work;
                }
        time = queue_time(&plan, query, &device, heads);
        want = 1 + (last * queues[_i].places - sum) / even;
        ck_assert_msg(
            fabs(time - want) <= (items <= 1024 ? 1e-9 : longest * queues[_i].places / even),
            "%s, %d of %d heads: %.4f, item by item %.4f", pass.mask, heads, heads_kv, time, want);
        free(free_at);
    }
    tile_finish(&plan);
}
END_TEST

/* One SM is never idle before the end. */
START_TEST(one_place_has_no_end)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 1 };
    const struct choose_device device = choose_device_of(&facts);
    struct tile_plan plan = plan_of(&measured[1]);

    for (int32_t heads = 1; heads <= 32; heads *= 2)
        ck_assert_double_eq_tol(queue_time(&plan, query_of(&measured[1]), &device, heads), 1, 1e-9);
    tile_finish(&plan);
}
END_TEST

/* ---- L2 ---- */

/* Of a full mask each wave reads all keys of the group's heads once more, where these are more than
 * L2 keeps; where they are few, nothing is read again. */
START_TEST(keys_are_read_again_by_each_wave)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    const struct pass *pass = &measured[9]; /* 683 tiles, 8 heads of 8.4 MB */
    const struct l2_query query = query_of(pass);
    struct tile_plan plan = plan_of(pass);
    const double waves = ceil(683 / floor(132 / 8.0));
    const double cells = 683.0 * 192 * 205 * 80; /* of a head */
    const double again = 0.75 * 132 * (waves - 1) * 16384 / cells;

    ck_assert_double_eq_tol(l2_heads_time(&plan, &query, &device, 8), 1 + again + 0.02, 2e-4);
    ck_assert_double_lt(l2_heads_time(&plan, &query, &device, 1), 1.01);
    tile_finish(&plan);
}
END_TEST

/* The first keys and a window: what lies between is not read. */
START_TEST(gaps_are_not_read)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    struct pass pass = measured[9];
    struct tile_plan with, without;
    struct l2_query query = query_of(&pass);

    pass.mask = "window:16384,left=511,right=0";
    without = plan_of(&pass);
    pass.mask = "varlen-window:16384/left=511,right=0,global=128";
    with = plan_of(&pass);
    query.cost = (struct tile_cost){ 1e9, 1 }; /* tiles all alike: reading alone */
    ck_assert_double_lt(l2_heads_time(&with, &query, &device, 8),
                        l2_heads_time(&without, &query, &device, 8) + 0.05);
    tile_finish(&with);
    tile_finish(&without);
}
END_TEST

/* A device with a quarter of the L2 keeps fewer heads. */
START_TEST(groups_follow_the_cache)
{
    struct device_facts facts = h200_facts;
    const struct l2_query query = query_of(&measured[4]);
    struct tile_plan plan = plan_of(&measured[4]);
    struct choose_device device = choose_device_of(&facts);
    const double whole = l2_heads_time(&plan, &query, &device, 4);

    facts.l2_bytes /= 4;
    device = choose_device_of(&facts);
    ck_assert_double_gt(l2_heads_time(&plan, &query, &device, 4), whole + 0.01);
    facts.l2_bytes = 0; /* not known: the table's */
    device = choose_device_of(&facts);
    ck_assert_double_eq(l2_heads_time(&plan, &query, &device, 4), whole);
    facts = (struct device_facts){ .name = "NVIDIA H200" }; /* nothing is known */
    device = choose_device_of(&facts);
    ck_assert_double_eq(l2_heads_time(&plan, &query, &device, 4), whole);
    tile_finish(&plan);
}
END_TEST

/* SMs left free for others are as if they were not there, whether the device says how many it has
 * or its table does; one is left in any case. */
START_TEST(groups_follow_the_sms)
{
    struct device_facts facts = h200_facts;
    struct l2_query query = query_of(&measured[4]);
    struct tile_plan plan = plan_of(&measured[4]);
    struct choose_device device = choose_device_of(&facts);
    const double all = l2_heads_time(&plan, &query, &device, 4);
    double want;

    facts.sm_count -= 24;
    device = choose_device_of(&facts);
    want = l2_heads_time(&plan, &query, &device, 4);
    ck_assert_double_gt(fabs(want - all), 1e-3);
    query.sm_margin = 24;
    device = choose_device_of(&h200_facts);
    ck_assert_double_eq(l2_heads_time(&plan, &query, &device, 4), want);
    facts = (struct device_facts){ .name = "NVIDIA H200" };
    device = choose_device_of(&facts);
    ck_assert_double_eq(l2_heads_time(&plan, &query, &device, 4), want);
    query.sm_margin = 1000;
    ck_assert_double_ge(l2_heads_time(&plan, &query, &device, 4), 1);
    tile_finish(&plan);
}
END_TEST

/* Heads whose keys nobody reads twice stay together: decoding. So do those of a list each, and of a
 * plan without tiles. */
START_TEST(all_heads_where_nothing_depends_on_it)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    struct pass pass = measured[0];
    struct tile_plan plan;
    struct l2_query query;

    pass.mask = "varlen-full:1x4000,1x2000,1x1000";
    pass.heads_q = 64;
    pass.heads_kv = 8;
    plan = plan_of(&pass);
    query = query_of(&pass);
    ck_assert_int_eq(choose_l2_heads(&plan, &query, &device), 8);
    query.heads_kv = 1;
    ck_assert_int_eq(choose_l2_heads(&plan, &query, &device), 1);
    tile_finish(&plan);

    plan = plan_of(&measured[0]);
    query = query_of(&measured[0]);
    plan.list_count = 2;
    ck_assert_int_eq(choose_l2_heads(&plan, &query, &device), 32);
    plan.list_count = 1;
    tile_finish(&plan);
    ck_assert_int_eq(choose_l2_heads(&(struct tile_plan){ .list_count = 1 }, &query, &device), 32);
}
END_TEST

/* Where reading costs nothing the queue decides, where it costs much few heads are best (one has
 * two others at work beside it anyway), and what has to save all of the time is not chosen. */
START_TEST(groups_follow_the_table)
{
    static const struct l2_costs tables[] = { { 0.087, 0, 0, 0, 0.003 },
                                              { 0.087, 0, 1e3, 0, 0.003 },
                                              { 0.087, 0, 1e3, 0, 1 } };
    static const int32_t want[] = { 16, 2, 16 };
    struct cost_table table = *cost_table_find(NULL);
    const struct choose_device device = { .facts = h200_facts, .costs = &table };
    const struct l2_query query = query_of(&measured[4]);
    struct tile_plan plan = plan_of(&measured[4]);

    for (int i = 0; i < 3; i++) {
        table.l2 = tables[i];
        ck_assert_int_eq(choose_l2_heads(&plan, &query, &device), want[i]);
    }
    tile_finish(&plan);
}
END_TEST

/* Whatever the heads, the group is one that was compared, no other one saves more than a tie, and
 * the last group is the least smaller. */
START_TEST(no_other_group_is_faster)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    const struct pass *pass = &measured[_i % 2 ? 4 : 6];
    struct l2_query query = query_of(pass);
    struct tile_plan plan = plan_of(pass);
    int32_t heads, groups;

    query.heads_kv = 1 + _i;
    heads = choose_l2_heads(&plan, &query, &device);
    ck_assert_int_ge(heads, 1);
    ck_assert_int_le(heads, query.heads_kv);
    groups = (query.heads_kv + heads - 1) / heads;
    ck_assert_int_eq(heads, (query.heads_kv + groups - 1) / groups);
    for (int32_t most = query.heads_kv, last = 0; !last; most = (most + 1) / 2) {
        const int32_t count = (query.heads_kv + most - 1) / most;
        const double time =
            l2_heads_time(&plan, &query, &device, (query.heads_kv + count - 1) / count);

        ck_assert_double_ge(time, 0.99 * l2_heads_time(&plan, &query, &device, heads));
        last = most == 1;
    }
    tile_finish(&plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("l2_heads");
    TCase *device = tcase_create("device");
    TCase *queue = tcase_create("queue");
    TCase *l2 = tcase_create("l2");
    const int measured_count = sizeof measured / sizeof *measured;

    tcase_add_loop_test(device, sms_at_work_are_those_of_a_device, 0, measured_count);
    tcase_add_loop_test(device, the_group_is_as_fast_as_the_fastest, 0, measured_count);
    tcase_add_test(device, documents_take_turns);
    suite_add_tcase(suite, device);
    tcase_add_loop_test(queue, the_queue_is_that_of_its_items, 0, sizeof queues / sizeof *queues);
    tcase_add_test(queue, one_place_has_no_end);
    suite_add_tcase(suite, queue);
    tcase_add_test(l2, keys_are_read_again_by_each_wave);
    tcase_add_test(l2, gaps_are_not_read);
    tcase_add_test(l2, groups_follow_the_cache);
    tcase_add_test(l2, groups_follow_the_sms);
    tcase_add_test(l2, groups_follow_the_table);
    tcase_add_test(l2, all_heads_where_nothing_depends_on_it);
    tcase_add_loop_test(l2, no_other_group_is_faster, 0, 40);
    suite_add_tcase(suite, l2);
    return suite_run(suite);
}
