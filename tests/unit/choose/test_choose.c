/* SPDX-License-Identifier: Apache-2.0
 *
 * Choices of a plan, pinned: for some masks, which tiles, splits and orders an H200 gets, and what
 * the same masks get on a device of half the SMs. The numbers were computed by the functions that
 * chose before there was a cost table. Then: packing, tables, and a split that nobody
 * asked for.
 */
#include "choose/makespan.h"
#include "choose/order.h"
#include "choose/tile_choice.h"
#include "support/suite.h"
#include "tile/split.h"

#include <check.h>

/* parts, waves, and head groups of an L2 group. */
struct order_want {
    int32_t parts, waves;
    int64_t l2_group;
};

struct want {
    const char *mask;
    struct {
        int32_t tile_n; /* of two packed kernels, for 8 heads a tile */
        int64_t tile_count;
    } packed;
    int64_t split[2]; /* blocks a part, 8 and 64 heads; 0: none is split */
    /* Heads 64:8, 8:1, and 8:2 with clusters of two; the first two with ordered accumulation. */
    struct order_want orders[5];
};

static const struct want h200[] = {
    { "full:1x65536",
      { 128, 1 },
      { 32, 63 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "full:128x65536",
      { 128, 8 },
      { 32, 63 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "full:4096",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 4 }, { 4, 1, 4 }, { 1, 1, 2 }, { 1, 4, 8 }, { 4, 4, 4 } } },
    { "full:16384",
      { 128, 1024 },
      { 0, 0 },
      { { 8, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 8, 4, 4 }, { 1, 4, 1 } } },
    { "full:8x8192",
      { 128, 1 },
      { 4, 32 },
      { { 1, 1, 2 }, { 2, 1, 2 }, { 1, 1, 1 }, { 1, 4, 8 }, { 2, 4, 2 } } },
    { "full:64x64",
      { 80, 4 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "causal:100",
      { 80, 7 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "causal:1024",
      { 80, 64 },
      { 4, 0 },
      { { 4, 1, 16 }, { 8, 1, 8 }, { 4, 1, 8 }, { 4, 4, 32 }, { 8, 4, 8 } } },
    { "causal:4096",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 4 }, { 8, 1, 4 }, { 2, 1, 2 }, { 4, 4, 16 }, { 8, 4, 8 } } },
    { "causal:16384",
      { 128, 1024 },
      { 0, 0 },
      { { 1, 2, 2 }, { 2, 1, 1 }, { 1, 1, 1 }, { 4, 4, 4 }, { 4, 4, 4 } } },
    { "causal:12288",
      { 128, 768 },
      { 0, 0 },
      { { 1, 3, 4 }, { 8, 3, 4 }, { 2, 3, 2 }, { 4, 4, 5 }, { 4, 4, 4 } } },
    { "causal:6000",
      { 128, 375 },
      { 0, 0 },
      { { 2, 3, 8 }, { 8, 3, 8 }, { 4, 3, 4 }, { 4, 4, 11 }, { 8, 4, 8 } } },
    { "causal:8192",
      { 128, 512 },
      { 0, 0 },
      { { 1, 2, 4 }, { 4, 1, 2 }, { 1, 1, 1 }, { 4, 4, 8 }, { 4, 4, 4 } } },
    { "window:4096,left=1023,right=0",
      { 80, 256 },
      { 0, 0 },
      { { 4, 4, 16 }, { 4, 1, 4 }, { 1, 1, 2 }, { 4, 4, 16 }, { 4, 1, 4 } } },
    { "window:16384,left=4095,right=0",
      { 128, 1024 },
      { 0, 0 },
      { { 2, 1, 1 }, { 8, 4, 4 }, { 2, 4, 2 }, { 4, 1, 1 }, { 8, 4, 4 } } },
    { "window:8192,left=511,right=511",
      { 80, 512 },
      { 0, 0 },
      { { 1, 1, 2 }, { 2, 1, 2 }, { 1, 1, 1 }, { 8, 1, 2 }, { 4, 1, 2 } } },
    { "varlen-full:8*8",
      { 80, 8 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "varlen-full:100,90,130",
      { 80, 22 },
      { 0, 0 },
      { { 8, 2, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 2, 64 }, { 8, 1, 8 } } },
    { "varlen-full:8,0,3,2048",
      { 128, 130 },
      { 0, 0 },
      { { 1, 2, 8 }, { 8, 2, 8 }, { 2, 2, 4 }, { 4, 1, 7 }, { 8, 2, 8 } } },
    { "varlen-causal:4096*1",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 4 }, { 8, 1, 4 }, { 2, 1, 2 }, { 4, 4, 16 }, { 8, 4, 8 } } },
    { "varlen-causal:512*32",
      { 80, 1024 },
      { 0, 0 },
      { { 1, 1, 1 }, { 2, 1, 1 }, { 1, 1, 1 }, { 2, 1, 1 }, { 2, 4, 2 } } },
    { "varlen-causal:2048,1024,4096,512,8192",
      { 128, 992 },
      { 0, 0 },
      { { 4, 4, 4 }, { 4, 4, 4 }, { 1, 4, 2 }, { 4, 4, 4 }, { 4, 4, 4 } } },
    { "varlen-full:8x8192*16",
      { 128, 16 },
      { 21, 125 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "varlen-full:300*9",
      { 80, 171 },
      { 0, 0 },
      { { 1, 1, 5 }, { 8, 1, 5 }, { 2, 1, 2 }, { 2, 4, 16 }, { 8, 4, 8 } } },
    { "block-causal:4096,block=512",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 4 }, { 8, 1, 4 }, { 2, 1, 2 }, { 4, 4, 16 }, { 8, 4, 8 } } },
};

static const struct want half[] = {
    { "full:1x65536",
      { 128, 1 },
      { 32, 497 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "full:128x65536",
      { 128, 8 },
      { 32, 497 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "full:4096",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 2 }, { 2, 1, 2 }, { 1, 1, 1 }, { 1, 4, 8 }, { 2, 4, 2 } } },
    { "full:16384",
      { 128, 1024 },
      { 0, 0 },
      { { 4, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 4, 4, 2 }, { 1, 4, 1 } } },
    { "full:8x8192",
      { 128, 1 },
      { 8, 63 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 4 }, { 1, 4, 1 } } },
    { "full:64x64",
      { 80, 4 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "causal:100",
      { 80, 7 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "causal:1024",
      { 80, 64 },
      { 4, 0 },
      { { 2, 1, 8 }, { 8, 1, 8 }, { 4, 1, 4 }, { 2, 4, 16 }, { 8, 4, 8 } } },
    { "causal:4096",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 2 }, { 4, 1, 2 }, { 1, 1, 1 }, { 4, 4, 8 }, { 4, 4, 4 } } },
    { "causal:16384",
      { 128, 1024 },
      { 0, 0 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 4, 4, 2 }, { 4, 4, 2 } } },
    { "causal:12288",
      { 128, 768 },
      { 0, 0 },
      { { 1, 3, 2 }, { 4, 3, 2 }, { 1, 1, 1 }, { 4, 4, 2 }, { 4, 4, 2 } } },
    { "causal:6000",
      { 128, 375 },
      { 0, 0 },
      { { 1, 3, 4 }, { 8, 3, 4 }, { 2, 3, 2 }, { 4, 4, 5 }, { 4, 4, 4 } } },
    { "causal:8192",
      { 128, 512 },
      { 0, 0 },
      { { 1, 2, 2 }, { 2, 1, 1 }, { 1, 1, 1 }, { 4, 4, 4 }, { 4, 4, 4 } } },
    { "window:4096,left=1023,right=0",
      { 80, 256 },
      { 0, 0 },
      { { 2, 4, 8 }, { 2, 1, 2 }, { 1, 1, 1 }, { 4, 1, 2 }, { 4, 1, 2 } } },
    { "window:16384,left=4095,right=0",
      { 128, 1024 },
      { 0, 0 },
      { { 2, 4, 2 }, { 4, 4, 2 }, { 1, 1, 1 }, { 4, 1, 1 }, { 4, 4, 2 } } },
    { "window:8192,left=511,right=511",
      { 80, 512 },
      { 0, 0 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 4, 1, 1 }, { 8, 1, 1 } } },
    { "varlen-full:8*8",
      { 80, 8 },
      { 0, 0 },
      { { 8, 1, 64 }, { 8, 1, 8 }, { 4, 1, 8 }, { 8, 1, 64 }, { 8, 1, 8 } } },
    { "varlen-full:100,90,130",
      { 80, 22 },
      { 0, 0 },
      { { 4, 2, 32 }, { 8, 1, 8 }, { 4, 1, 8 }, { 4, 2, 32 }, { 8, 1, 8 } } },
    { "varlen-full:8,0,3,2048",
      { 128, 130 },
      { 0, 0 },
      { { 1, 3, 8 }, { 4, 2, 4 }, { 1, 1, 1 }, { 4, 1, 3 }, { 4, 2, 4 } } },
    { "varlen-causal:4096*1",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 2 }, { 4, 1, 2 }, { 1, 1, 1 }, { 4, 4, 8 }, { 4, 4, 4 } } },
    { "varlen-causal:512*32",
      { 80, 1024 },
      { 0, 0 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 2, 3, 1 }, { 1, 4, 1 } } },
    { "varlen-causal:2048,1024,4096,512,8192",
      { 128, 992 },
      { 0, 0 },
      { { 2, 4, 2 }, { 2, 4, 2 }, { 1, 1, 1 }, { 4, 4, 2 }, { 4, 4, 2 } } },
    { "varlen-full:8x8192*16",
      { 128, 16 },
      { 32, 993 },
      { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 4, 1 }, { 1, 4, 1 } } },
    { "varlen-full:300*9",
      { 80, 171 },
      { 0, 0 },
      { { 2, 1, 2 }, { 4, 1, 2 }, { 1, 1, 1 }, { 2, 4, 11 }, { 4, 4, 4 } } },
    { "block-causal:4096,block=512",
      { 128, 256 },
      { 0, 0 },
      { { 1, 1, 2 }, { 4, 1, 2 }, { 1, 1, 1 }, { 4, 4, 8 }, { 4, 4, 4 } } },
};

static const struct device_facts h200_facts = {
    .name = "NVIDIA H200", .sm_count = 132, .shared_bytes_block = 232448, .l2_bytes = 62914560
};

static ffa_mask *parse(const char *text)
{
    ffa_error err;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s: %s", text, err.message);
    return mask;
}

static void check_packed(const struct want *want, const ffa_mask *mask,
                         const struct choose_device *device)
{
    const struct tile_candidate both[] = { { 16, 128, { 318, 1 } }, { 16, 80, { 208, 1.073 } } };
    const struct tile_query query = {
        .candidates = both, .candidate_count = 2, .cuts = TILE_CUTS_CHEAP, .is_packed = true
    };
    struct tile_choice choice;
    struct tile_plan plan = { 0 };

    ck_assert_int_eq(choose_tiles(&plan, &choice, mask, &query, device, NULL), FFA_OK);
    ck_assert_int_eq(plan.tile_n, both[choice.candidate].tile_n);
    ck_assert_msg(plan.tile_n == want->packed.tile_n && plan.tile_count == want->packed.tile_count,
                  "%s: %lld tiles of %d keys", want->mask, (long long)plan.tile_count, plan.tile_n);
    tile_finish(&plan);
}

static void check_split(const struct want *want, const ffa_mask *mask,
                        const struct choose_device *device)
{
    const struct tile_options opts = { .tile_m = 128, .tile_n = 128 };
    const int32_t heads[] = { 8, 64 };
    struct tile_plan plan;

    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    for (int i = 0; i < 2; i++) {
        const struct split_query query = { heads[i], device->facts.sm_count, true, 0, 0 };
        const int64_t most = choose_split(&plan, &query, device->costs);

        ck_assert_msg((most == INT64_MAX ? 0 : most) == want->split[i], "%s, %d heads: %lld",
                      want->mask, heads[i], (long long)most);
    }
    tile_finish(&plan);
}

static void check_orders(const struct want *want, const ffa_mask *mask,
                         const struct choose_device *device)
{
    const int32_t sms = device->facts.sm_count;
    const struct order_query queries[] = {
        { .group = 8, .heads_kv = 8, .at_a_time = sms, .costs = device->costs, .row_bytes = 1024 },
        { .group = 8, .heads_kv = 1, .at_a_time = sms, .costs = device->costs, .row_bytes = 1024 },
        { .group = 4,
          .heads_kv = 2,
          .at_a_time = sms / 2,
          .costs = device->costs,
          .row_bytes = 1024 },
        { .group = 8, .heads_kv = 8, .at_a_time = sms, .costs = device->costs, .row_bytes = 1024 },
        { .group = 8, .heads_kv = 1, .at_a_time = sms, .costs = device->costs, .row_bytes = 1024 }
    };
    struct tile_plan plans[2];

    for (int grid = 0; grid < 2; grid++) {
        const struct tile_options opts = { .tile_m = 64, .tile_n = 128, .on_grid = grid };

        ck_assert_int_eq(tile_build(&plans[grid], mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    }
    for (int i = 0; i < 5; i++) {
        const struct tile_plan *plan = &plans[i > 2];
        const struct backward_order order = backward_order_find(plan, &queries[i]);
        const int64_t group = backward_order_l2_group(plan, &queries[i], order);

        ck_assert_msg(order.parts == want->orders[i].parts &&
                          order.waves == want->orders[i].waves && group == want->orders[i].l2_group,
                      "%s, order %d: %d parts, %d waves, L2 group of %lld", want->mask, i,
                      order.parts, order.waves, (long long)group);
    }
    tile_finish(&plans[0]);
    tile_finish(&plans[1]);
}

static void check_choices(const struct want *want, const struct choose_device *device)
{
    ffa_mask *mask = parse(want->mask);

    check_packed(want, mask, device);
    check_split(want, mask, device);
    check_orders(want, mask, device);
    ffa_mask_destroy(mask);
}

START_TEST(choices_on_an_h200)
{
    const struct choose_device device = choose_device_of(&h200_facts);

    check_choices(&h200[_i], &device);
}
END_TEST

/* No table is of this device: the default's constants, with this device's facts. */
START_TEST(choices_follow_the_facts)
{
    struct device_facts facts = h200_facts;
    struct choose_device device;

    facts.sm_count = 66;
    text_copy(facts.name, "half of one");
    device = choose_device_of(&facts);
    check_choices(&half[_i], &device);
}
END_TEST

/* ---- splits ---- */

static const struct {
    const char *mask;
    int32_t heads, places;
    int64_t least, most; /* parts and tiles of one head afterwards */
} splits[] = {
    { "full:1x65536", 1, 132, 100, 512 },  /* one tile: a part for nearly every place */
    { "full:128x65536", 8, 132, 16, 128 }, /* 8 items */
    { "full:16384", 64, 132, 128, 128 },   /* 8192 items: nothing is gained */
    { "full:128x1024", 132, 132, 1, 1 },   /* an item a place */
    { "causal:4096", 4, 132, 33, 160 },    /* 128 items, the longest twice a share */
    { "full:1x256", 1, 132, 1, 1 },        /* too short to split */
};

START_TEST(splits_fill_the_device)
{
    const struct tile_options opts = { 128, 128, TILE_CUTS_CHEAP, false };
    const struct split_query query = { splits[_i].heads, splits[_i].places, true, 0, 0 };
    struct tile_plan plan;
    ffa_mask *mask;
    int64_t most;

    ck_assert_int_eq(ffa_mask_parse(&mask, splits[_i].mask, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    most = choose_split(&plan, &query, cost_table_find(NULL));
    if (most < INT64_MAX)
        ck_assert_int_eq(tile_split(&plan, most, NULL), FFA_OK);
    ck_assert_msg(plan.tile_count >= splits[_i].least && plan.tile_count <= splits[_i].most,
                  "%s: %lld tiles and parts", splits[_i].mask, (long long)plan.tile_count);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Nobody asked: a split has to save a tenth of the time, in keys, with 320 a whole tile and 576 a
 * part besides their own. On an H200 causal:4096 took 1.28 times as long split as whole (heads 4:1,
 * packed), causal:1024 0.87. */
static const struct {
    const char *mask;
    int32_t heads, places;
    bool asked, on_its_own;
} worth[] = {
    { "full:1x65536", 1, 132, true, true },
    { "full:128x65536", 8, 132, true, true },
    { "full:16384", 64, 132, false, false },
    { "full:1x640", 1, 132, true, false },    /* 960 keys, or 960 */
    { "full:1x1024", 1, 132, true, true },    /* 1344, or 1088 */
    { "causal:1024", 8, 132, true, true },    /* the same */
    { "causal:4096", 4, 132, true, false },   /* 4416, or 2 rounds of 2624 */
    { "full:1x65536", 100, 132, true, true }, /* 65856, or 57920 */
    { "full:1x65536", 120, 132, true, false },
};

START_TEST(splits_on_their_own_save_time)
{
    const struct tile_options opts = { .tile_m = 128, .tile_n = 128 };
    struct split_query query = { worth[_i].heads, worth[_i].places, true, 0, 0 };
    ffa_mask *mask = parse(worth[_i].mask);
    struct tile_plan plan;
    int64_t asked, own;

    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    asked = choose_split(&plan, &query, cost_table_find(NULL));
    query.is_asked = false;
    own = choose_split(&plan, &query, cost_table_find(NULL));
    ck_assert_msg((asked < INT64_MAX) == worth[_i].asked &&
                      (own < INT64_MAX) == worth[_i].on_its_own,
                  "%s: %lld, %lld", worth[_i].mask, (long long)asked, (long long)own);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* Keys are counted at what the kernel of the parts takes for them, beside the whole tiles' time. */
START_TEST(parts_cost_what_their_kernel_does)
{
    const struct tile_options opts = { .tile_m = 128, .tile_n = 128 };
    struct split_query query = { 4, 132, false, 4416, 0.75 };
    ffa_mask *mask = parse("causal:4096");
    struct tile_plan plan;
    struct split_times times;

    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    times = choose_split_times(&plan, &query, cost_table_find(NULL));
    /* Three rounds of parts of 8 blocks, 576 each besides; whole ones of 32 and 320. */
    ck_assert(times.parts == 3 * (8 * 128 * 0.75 + 576));
    ck_assert(times.whole == 32 * 128 * 0.75 + 320);
    query.key = 2;
    times = choose_split_times(&plan, &query, cost_table_find(NULL));
    ck_assert(times.whole == 4416);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- packing ---- */

START_TEST(packs_fill_a_tile)
{
    /* 128 rows hold 42 x 3 and 9 x 13, but 115 are wanted of 23 x 5, too; 24 x 5 is 120. */
    static const int32_t packed[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32, 40, 60, 64 };
    static const int32_t apart[] = { 0, -1, 45, 50, 65, 128 };
    const struct cost_table *costs = cost_table_find(NULL);

    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        ck_assert_int_eq(choose_pack_heads(costs, packed[i]), packed[i]);
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        ck_assert_int_eq(choose_pack_heads(costs, apart[i]), 0);
}
END_TEST

START_TEST(tiles_are_by_columns_and_packing)
{
    const struct cost_tile *tiles[COST_TILES_MAX];
    const struct cost_table *costs = cost_table_find(NULL);

    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 64, 64, true), 2);
    ck_assert_int_eq(tiles[0]->tile_n, 128);
    ck_assert_int_eq(tiles[1]->tile_n, 96);
    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 96, 96, true), 2);
    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 192, 128, true), 2);
    ck_assert_int_eq(tiles[0]->tile_n, 64);
    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 192, 192, true), 2);
    ck_assert_int_eq(tiles[0]->tile_n, 64);
    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 192, 128, false), 0);
    ck_assert_int_eq(choose_cost_tiles(tiles, costs, 64, 64, false), 0);
}
END_TEST

/* Which of the first three, by rows of a tile of packed heads 8:1: measured one after the other on
 * an H200. */
static const struct {
    const char *mask;
    int32_t heads, rows; /* kv heads; what is to be chosen */
} by_rows[] = {
    { "causal:1024", 1, 8 },   { "full:1024", 1, 8 },
    { "causal:2048", 1, 8 },   { "full:2048", 1, 16 },
    { "causal:4096", 1, 16 },  { "full:4096", 1, 16 },
    { "causal:16384", 1, 24 }, { "full:512", 8, 16 },
    { "causal:1024", 8, 24 },  { "causal:2048", 8, 24 },
    { "full:2048", 8, 16 },    { "full:8192", 8, 24 },
    { "causal:65536", 8, 24 }, { "varlen-causal:460*9", 8, 24 },
    { "full:1024", 0, 24 }, /* of unknown heads: the one for all masks */
};

START_TEST(few_items_choose_rows)
{
    const struct choose_device device = choose_device_of(&h200_facts);
    const struct cost_tile *tiles[COST_TILES_MAX];
    struct tile_candidate all[COST_TILES_MAX];
    const int32_t count = choose_cost_tiles(tiles, device.costs, 128, 128, true);
    const struct tile_query query = { .candidates = all,
                                      .candidate_count = min32(count, 3), /* that a spec makes */
                                      .heads = by_rows[_i].heads,
                                      .cuts = TILE_CUTS_CHEAP,
                                      .is_packed = true };
    ffa_mask *mask = parse(by_rows[_i].mask);
    struct tile_choice choice;
    struct tile_plan plan = { 0 };

    for (int32_t i = 0; i < query.candidate_count; i++)
        all[i] =
            (struct tile_candidate){ tiles[i]->consumers * 8, tiles[i]->tile_n, tiles[i]->cost };
    ck_assert_int_eq(choose_tiles(&plan, &choice, mask, &query, &device, NULL), FFA_OK);
    ck_assert_int_eq(plan.tile_m, all[choice.candidate].tile_m);
    ck_assert_msg(plan.tile_m == by_rows[_i].rows, "%s, %d heads: tiles of %d rows",
                  by_rows[_i].mask, by_rows[_i].heads, plan.tile_m);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(a_makespan_is_that_of_a_queue)
{
    static const double times[] = { 5, 4, 3, 3, 3 };
    struct makespan two = { .places = 2 };
    struct makespan one = { .places = 1 };

    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        makespan_take(&two, times[i]);
        makespan_take(&one, times[i]);
    }
    ck_assert_double_eq(two.last, 10); /* 5, 3 and 4, 3, 3 */
    ck_assert_double_eq(one.last, 18);
}
END_TEST

/* ---- tables ---- */

START_TEST(a_device_has_its_table)
{
    const struct cost_table *initial = cost_table_find(NULL);
    const struct device_facts unknown = { .name = "something newer", .sm_count = 200 };
    const struct choose_device device = choose_device_of(&unknown);

    ck_assert_str_eq(initial->device, "NVIDIA H200");
    ck_assert_ptr_eq(cost_table_find("NVIDIA H200"), initial);
    ck_assert_ptr_eq(cost_table_find(""), initial);
    ck_assert_ptr_eq(device.costs, initial);
    ck_assert_int_eq(device.facts.sm_count, 200);
    ck_assert_int_le(initial->tile_count, COST_TILES_MAX);
}
END_TEST

/* Another table, another choice: the constants are read from it and nowhere else. */
START_TEST(choices_follow_the_table)
{
    struct cost_table dear = *cost_table_find(NULL);
    struct order_query query = { .group = 8, .heads_kv = 1, .at_a_time = 132, .row_bytes = 1024 };
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };
    const struct split_query split = { 1, 132, false, 0, 0 };
    ffa_mask *mask = parse("causal:4096"), *row = parse("full:1x65536");
    struct tile_plan plan, one;

    ck_assert_int_eq(tile_build(&plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&one, row, TILE_OWNS_QUERIES, &opts, NULL), FFA_OK);
    ck_assert_int_eq(backward_order_find(&plan, &query).parts, 8);
    ck_assert_int_lt(choose_split(&one, &split, &dear), INT64_MAX);
    dear.order.sum_blocks = 1;
    dear.split.part_keys = 1 << 20;
    dear.packed_rows_min = 128;
    query.costs = &dear;
    ck_assert_int_eq(backward_order_find(&plan, &query).parts, 1);
    ck_assert_int_eq(choose_split(&one, &split, &dear), INT64_MAX);
    ck_assert_int_eq(choose_pack_heads(&dear, 8), 8);
    ck_assert_int_eq(choose_pack_heads(&dear, 3), 0);
    tile_finish(&plan);
    tile_finish(&one);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(row);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("choose");
    TCase *tc = tcase_create("choose");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, choices_on_an_h200, 0, sizeof h200 / sizeof *h200);
    tcase_add_loop_test(tc, choices_follow_the_facts, 0, sizeof half / sizeof *half);
    tcase_add_loop_test(tc, splits_fill_the_device, 0, sizeof splits / sizeof *splits);
    tcase_add_test(tc, parts_cost_what_their_kernel_does);
    tcase_add_loop_test(tc, splits_on_their_own_save_time, 0, sizeof worth / sizeof *worth);
    tcase_add_test(tc, packs_fill_a_tile);
    tcase_add_test(tc, tiles_are_by_columns_and_packing);
    tcase_add_loop_test(tc, few_items_choose_rows, 0, sizeof by_rows / sizeof *by_rows);
    tcase_add_test(tc, a_makespan_is_that_of_a_queue);
    tcase_add_test(tc, a_device_has_its_table);
    tcase_add_test(tc, choices_follow_the_table);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
