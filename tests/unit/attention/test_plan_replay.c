/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans with a capacity, and plans like one: what a launch is made of is the same for all of them,
 * and what cannot be is refused. Nothing is launched here: tests/device/test_replay.c does that.
 */
#include "attention/attention.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <string.h>

enum { CAPACITY = 1 << 16 };

static ffa_context *context;

static void setup(void)
{
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, NULL, NULL), FFA_OK);
}

static void teardown(void)
{
    ffa_close(context);
}

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s", ffa_status_text(rc), err->message);
}

static ffa_mask *parse(const char *text)
{
    ffa_mask *mask = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_mask_parse(&mask, text, &err), &err);
    return mask;
}

/* Kernels that say they are a GPU's, as far as planning looks at them; two of the forward pass, of
 * which a mask chooses one. */
static struct ffa_kernels gpu_kernels(void)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };
    struct ffa_kernels gpu = { .context = context,
                               .device = choose_device_of(&facts),
                               .dtype = FFA_BF16,
                               .head_dim = 128,
                               .head_dim_v = 128,
                               .dq_columns = 128,
                               .pack_heads = 8,
                               .forward_count = 2,
                               .has_backward = true,
                               .backward = { { .tile_m = 64, .tile_n = 128, .cluster = 1 } },
                               .backward_count = 1 };

    gpu.forward[0] = (struct forward_kernel){
        .kernel = (struct gpu_kernel *)(uintptr_t)1, .tile_m = 16, .tile_n = 128, .cost = { 318, 1 }
    };
    gpu.forward[1] = gpu.forward[0];
    gpu.forward[1].tile_n = 80;
    gpu.forward[1].cost = (struct tile_cost){ 208, 1.073 };
    return gpu;
}

static ffa_plan *plan_of(const struct ffa_kernels *gpu, const char *text, int64_t capacity,
                         const ffa_plan *like)
{
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = parse(text);
    ffa_plan *plan = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    opts.capacity_bytes = capacity;
    opts.like = like;
    must(ffa_plan_create_with(&plan, gpu, mask, &opts, &err), &err);
    ffa_mask_destroy(mask);
    return plan;
}

static ffa_plan_info info_of(const ffa_plan *plan)
{
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_plan_info_get(plan, &info, &err), &err);
    return info;
}

START_TEST(capacity_is_what_is_uploaded)
{
    const struct ffa_kernels gpu = gpu_kernels();
    ffa_plan *plain = plan_of(&gpu, "causal:4096", 0, NULL);
    ffa_plan *plan = plan_of(&gpu, "causal:4096", CAPACITY, NULL);
    ffa_plan *other = plan_of(&gpu, "full:4096", 0, plan);
    ffa_plan *exact = plan_of(&gpu, "causal:4096", info_of(plain).image_bytes, NULL);

    ck_assert_int_eq(info_of(plain).capacity_bytes, 0);
    ck_assert_int_eq(info_of(plan).capacity_bytes, CAPACITY);
    ck_assert_int_eq(info_of(plan).upload_bytes, CAPACITY);
    ck_assert_int_eq(info_of(plan).image_bytes, info_of(plain).upload_bytes);
    ck_assert_int_eq(info_of(other).capacity_bytes, CAPACITY);
    ck_assert_int_eq(info_of(other).upload_bytes, CAPACITY);
    ck_assert_int_lt(info_of(other).image_bytes, CAPACITY);
    ck_assert_int_eq(info_of(exact).upload_bytes, info_of(exact).image_bytes);
    ffa_plan_destroy(exact);
    ffa_plan_destroy(other);
    ffa_plan_destroy(plan);
    ffa_plan_destroy(plain);
}
END_TEST

/* Documents that go head by head have the order of that with a capacity, too; plans like it go as
 * it does. */
START_TEST(lockstep_is_settled_before_orders_are)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_plan *plans[4];
    struct backward_order orders[2];

    gpu.heads_q = 64;
    gpu.heads_kv = 8;
    plans[0] = plan_of(&gpu, "varlen-causal:2048*16", 0, NULL);
    plans[1] = plan_of(&gpu, "varlen-causal:2048*16", 4 * CAPACITY, NULL);
    plans[2] = plan_of(&gpu, "varlen-causal:4096*8", 0, plans[1]);
    plans[3] = plan_of(&gpu, "varlen-causal:4096*8", 0, NULL);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(plans[i]->backward.is_unlocked, i < 3);
    for (int i = 0; i < 2; i++) {
        const struct order_query query = plan_order_query(plans[i], gpu.heads_q, gpu.heads_kv);

        orders[i] = plan_order(plans[i], &query);
    }
    ck_assert_int_eq(orders[0].parts, orders[1].parts);
    ck_assert_int_eq(orders[0].waves, orders[1].waves);
    ck_assert_int_eq(orders[0].whole_heads, orders[1].whole_heads);
    for (int i = 3; i >= 0; i--)
        ffa_plan_destroy(plans[i]);
}
END_TEST

/* The second mask would choose the other forward kernel, and another order of the backward pass. */
START_TEST(a_plan_like_another_is_for_its_launches)
{
    static const char *const masks[] = { "causal:4096", "window:4096,left=1023,right=0" };
    const struct ffa_kernels gpu = gpu_kernels();
    struct backward_layout alone[2], layouts[2], again;
    ffa_plan *free_one, *plans[2];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan_info info;

    for (int first = 0; first < 2; first++) {
        plans[0] = plan_of(&gpu, masks[first], 4 * CAPACITY, NULL);
        free_one = plan_of(&gpu, masks[1 - first], 0, NULL);
        plans[1] = plan_of(&gpu, masks[1 - first], 0, plans[0]);
        ck_assert_int_ne(free_one->forward.tile_n, plans[0]->forward.tile_n);
        ck_assert_int_eq(plans[1]->forward.tile_n, plans[0]->forward.tile_n);
        must(backward_layout_make(&alone[first], free_one, &gpu, 8, 1, 132, &err), &err);
        must(backward_layout_make(&layouts[0], plans[0], &gpu, 8, 1, 132, &err), &err);
        must(backward_layout_make(&layouts[1], plans[1], &gpu, 8, 1, 132, &err), &err);
        ck_assert_mem_eq(&layouts[0], &layouts[1], sizeof layouts[0]);

        /* Whichever is asked, with whichever heads before; and without the first one. */
        must(backward_layout_make(&again, plans[1], &gpu, 16, 2, 132, &err), &err);
        must(backward_layout_make(&layouts[0], plans[0], &gpu, 16, 2, 132, &err), &err);
        ck_assert_mem_eq(&layouts[0], &again, sizeof again);
        ffa_plan_destroy(plans[0]);
        must(backward_layout_make(&again, plans[1], &gpu, 8, 1, 132, &err), &err);
        ck_assert_mem_eq(&layouts[1], &again, sizeof again);
        plans[0] = plan_of(&gpu, masks[first], 0, plans[1]); /* and like that one */
        must(backward_layout_make(&again, plans[0], &gpu, 8, 1, 132, &err), &err);
        ck_assert_mem_eq(&layouts[1], &again, sizeof again);
        info = info_of(plans[1]);
        ck_assert_int_eq(info.tile_n, plans[0]->forward.tile_n);
        for (int i = 0; i < 2; i++)
            ffa_plan_destroy(plans[i]);
        ffa_plan_destroy(free_one);
    }
    ck_assert_mem_ne(&alone[0].order, &alone[1].order, sizeof alone[0].order);
}
END_TEST

/* Whatever is asked what the parts are says the same: no more than the plan's maximum, with the
 * bytes of their sums; also of plans like one, whatever their own options say. */
START_TEST(parts_are_at_most_what_the_plan_says)
{
    struct ffa_kernels gpu = gpu_kernels();
    struct backward_layout layouts[3], other;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_plan *plans[3], *like;
    ffa_mask *mask = parse("full:4096");
    ffa_error err = { FFA_OK, 0, "" };

    gpu.heads_q = 8;
    gpu.heads_kv = 1;
    opts.capacity_bytes = CAPACITY;
    for (int max = 0; max < 3; max++) {
        opts.backward_parts_max = max;
        must(ffa_plan_create_with(&plans[max], &gpu, mask, &opts, &err), &err);
        must(backward_layout_make(&layouts[max], plans[max], &gpu, 8, 1, 132, &err), &err);
        ck_assert_int_eq(info_of(plans[max]).backward_parts, layouts[max].order.parts);
    }
    ck_assert_int_gt(layouts[0].order.parts, 2);
    ck_assert_int_eq(layouts[1].order.parts, 1);
    ck_assert_int_eq(layouts[2].order.parts, 2);
    ck_assert_int_eq(layouts[2].bytes - layouts[1].bytes, 2 * 4096 * (128 + 128) * 4);
    ck_assert_int_eq(layouts[0].bytes - layouts[1].bytes,
                     (int64_t)layouts[0].order.parts * 4096 * (128 + 128) * 4);

    opts.backward_parts_max = 2;
    opts.like = plans[1];
    must(ffa_plan_create_with(&like, &gpu, mask, &opts, &err), &err);
    must(backward_layout_make(&other, like, &gpu, 8, 1, 132, &err), &err);
    ck_assert_mem_eq(&other, &layouts[1], sizeof other);
    must(backward_layout_make(&other, like, &gpu, 16, 1, 132, &err), &err); /* asked anew */
    ck_assert_int_eq(other.order.parts, 1);
    ck_assert_int_eq(info_of(like).backward_parts, 1);
    ffa_plan_destroy(like);
    for (int max = 0; max < 3; max++)
        ffa_plan_destroy(plans[max]);
    ffa_mask_destroy(mask);
}
END_TEST

/* As many blocks for any mask, and no fewer work items than any mask has. */
START_TEST(launches_do_not_depend_on_the_mask)
{
    const struct ffa_kernels gpu = gpu_kernels();
    ffa_plan *plain = plan_of(&gpu, "causal:64", 0, NULL);
    ffa_plan *plan = plan_of(&gpu, "causal:64", CAPACITY, NULL);

    ck_assert_int_eq(plan_blocks(plain, 3, 132), 3);
    ck_assert_int_eq(plan_blocks(plain, 300, 132), 132);
    ck_assert_int_eq(plan_blocks(plan, 3, 132), 132);
    ck_assert_int_eq(plan_blocks(plan, 0, 132), 132);
    ck_assert_int_eq(plan_tiles_most(plain, &plain->forward), plain->forward.tile_count);
    ck_assert_int_eq(plan_tiles_most(plan, &plan->forward), 64); /* a tile a row */
    plan->capacity_bytes = 320;
    ck_assert_int_eq(plan_tiles_most(plan, &plan->forward), 10);
    ffa_plan_destroy(plain);
    ffa_plan_destroy(plan);
}
END_TEST

/* Kernels that may split: of 8 heads, not packed. */
static struct ffa_kernels splitting_kernels(void)
{
    struct ffa_kernels gpu = gpu_kernels();

    gpu.has_backward = false;
    gpu.pack_heads = 0;
    gpu.forward_count = 1;
    gpu.forward[0].tile_m = 128;
    gpu.may_split = true;
    gpu.heads_q = gpu.heads_kv = 8;
    gpu.split[0] = gpu.forward[0];
    gpu.split[0].tile_n = 64;
    gpu.split_count = 1;
    return gpu;
}

/* Where tiles would be split without a capacity. */
START_TEST(nothing_is_split_unless_asked)
{
    const struct ffa_kernels gpu = splitting_kernels();
    ffa_plan *plain = plan_of(&gpu, "full:128x65536", 0, NULL);
    ffa_plan *plan = plan_of(&gpu, "full:128x65536", CAPACITY, NULL);

    ck_assert_int_eq(info_of(plain).split_heads, 8);
    ck_assert_int_eq(info_of(plan).split_heads, 0);
    ffa_plan_destroy(plain);
    ffa_plan_destroy(plan);
}
END_TEST

/* Masks of 128 rows and 65536 keys: all that the launches of a split plan are made of is the same,
 * be tiles long, short or without keys. The plan that others are like says for which heads. */
START_TEST(splits_do_not_depend_on_the_mask)
{
    static const struct {
        int count;
        ffa_slice slices[2];
    } masks[] = {
        { 1, { { 0, 128, 0, 65536, FFA_SLICE_FULL, 0 } } },
        { 1, { { 0, 128, 0, 10, FFA_SLICE_FULL, 0 } } },
        { 0, { { 0 } } },
        { 2, { { 0, 1, 0, 65536, FFA_SLICE_FULL, 0 }, { 1, 128, 7, 9, FFA_SLICE_FULL, 0 } } },
        { 1, { { 0, 100, 0, 65536, FFA_SLICE_CAUSAL, 0 } } },
    };
    const ffa_mask_shape shape = { 128, 65536 };
    const struct ffa_kernels gpu = splitting_kernels();
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_plan *first = NULL, *plan = NULL;
    int64_t bytes, needed;
    ffa_error err = { FFA_OK, 0, "" };

    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        ffa_mask *mask = NULL;

        must(ffa_mask_create(&mask, &shape, masks[i].slices, masks[i].count, &err), &err);
        opts.capacity_bytes = first ? 0 : CAPACITY;
        opts.heads_q = first ? 0 : 8;
        opts.like = first;
        must(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), &err);
        if (!first)
            first = plan;
        ck_assert_int_eq(info_of(plan).split_heads, 8);
        ck_assert_int_eq(info_of(plan).tile_n, 64);
        ck_assert_int_eq(plan->split_parts_max, 16); /* 132 SMs for 8 heads, in one wave */
        ck_assert_int_eq(plan->forward.split_count, 128);
        ck_assert_int_eq(plan->image.splits_at, first->image.splits_at);
        ck_assert_int_eq(plan_tiles_most(plan, &plan->forward), CAPACITY / 32);
        must(ffa_workspace_bytes(&gpu, plan, &bytes, &err), &err);
        must(ffa_workspace_bytes(&gpu, first, &needed, &err), &err);
        ck_assert_int_eq(bytes, needed);
        ck_assert_int_gt(needed, 128 * 16 * 8 * (128 + 1) * 4);
        ck_assert_int_eq(info_of(plan).split_tiles, info_of(plan).tile_count);
        if (i == 0) /* one tile, as many parts as there is room for */
            ck_assert_int_eq(info_of(plan).split_tiles, 16);
        if (plan != first)
            ffa_plan_destroy(plan);
        ffa_mask_destroy(mask);
    }
    ffa_plan_destroy(first);
}
END_TEST

/* A tile of so many heads that one part of each fills the device stays whole. */
START_TEST(one_part_is_no_split)
{
    struct ffa_kernels gpu = splitting_kernels();
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = parse("full:128x65536");
    ffa_error err = { FFA_OK, 0, "" };

    opts.capacity_bytes = CAPACITY;
    for (int32_t heads = 66; heads <= 67; heads++) {
        ffa_plan *plan = NULL;

        opts.heads_q = gpu.heads_q = gpu.heads_kv = heads;
        must(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), &err);
        ck_assert_int_eq(info_of(plan).split_heads, heads == 66 ? 66 : 0);
        ck_assert_int_eq(info_of(plan).tile_count, heads == 66 ? 2 : 1);
        ck_assert_int_eq(info_of(plan).tile_n, heads == 66 ? 64 : 128);
        ffa_plan_destroy(plan);
    }
    ffa_mask_destroy(mask);
}
END_TEST

/* Kernels that cannot take it are refused. Those of the capture may have none for splits at all:
 * then tiles stay whole. */
START_TEST(splits_need_their_kernels)
{
    struct ffa_kernels gpu = splitting_kernels();
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = parse("full:128x65536");
    ffa_plan *split = NULL, *whole = NULL, *other = NULL, *none = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    opts.capacity_bytes = CAPACITY;
    opts.heads_q = 8;
    must(ffa_plan_create_with(&split, &gpu, mask, &opts, &err), &err);
    gpu.split_count = 0;
    must(ffa_plan_create_with(&whole, &gpu, mask, &opts, &err), &err);
    ck_assert_int_eq(info_of(whole).split_heads, 0);
    ck_assert_int_eq(info_of(whole).tile_count, 1);
    opts.like = split;
    ck_assert_int_eq(ffa_plan_create_with(&none, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "they have kernels for splits that these have not"));
    opts.heads_q = 16;
    ck_assert_int_eq(ffa_plan_create_with(&none, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "heads_q is 16, `like` was split for 8"));
    opts.heads_q = 8; /* one that stayed whole has others stay whole, too */
    opts.like = whole;
    gpu.split_count = 1;
    must(ffa_plan_create_with(&other, &gpu, mask, &opts, &err), &err);
    ck_assert_int_eq(info_of(other).split_heads, 0);
    ck_assert_int_eq(info_of(other).tile_n, 128);
    gpu.split_count = 0;
    opts.like = NULL;
    opts.heads_q = 12;
    ck_assert_int_eq(ffa_plan_create_with(&none, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(
        strstr(err.message, "heads_q is 12, the kernels were made for heads_q 8"));
    gpu.may_split = false;
    ck_assert_int_eq(ffa_plan_create_with(&none, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "heads_q is 12, the kernels were made without"));
    ck_assert_ptr_null(none);
    ffa_plan_destroy(split);
    ffa_plan_destroy(whole);
    ffa_plan_destroy(other);
    ffa_mask_destroy(mask);
}
END_TEST

/* A split is compared with the whole time of the table's one tile as with that of the better one of
 * two: by its costs. The architecture's tile, without costs, has no such time. */
START_TEST(splits_do_not_depend_on_how_many_tiles_there_are)
{
    struct ffa_kernels gpu = gpu_kernels();
    int32_t split = 0;
    ffa_plan *plan;

    gpu.pack_heads = 0;
    gpu.may_split = true;
    gpu.heads_q = gpu.heads_kv = 8;
    gpu.forward[0].tile_m = gpu.forward[1].tile_m = 128;
    gpu.forward[0].cost = (struct tile_cost){ 20, 1 };
    gpu.forward[1].cost = (struct tile_cost){ 20, 9 }; /* never chosen */
    gpu.split[0] = gpu.forward[0];
    gpu.split_count = 1;
    for (int keys = 256; keys <= 8192; keys += 256) {
        ffa_plan *plans[2];
        char text[32];

        text_copy(text, "full:128x%d", keys);
        for (int i = 0; i < 2; i++) {
            gpu.forward_count = 1 + i;
            plans[i] = plan_of(&gpu, text, 0, NULL);
        }
        ck_assert_msg(info_of(plans[0]).split_heads == info_of(plans[1]).split_heads,
                      "%s: of one tile %d heads are split, of two %d", text,
                      info_of(plans[0]).split_heads, info_of(plans[1]).split_heads);
        split += info_of(plans[0]).split_heads > 0;
        for (int i = 0; i < 2; i++)
            ffa_plan_destroy(plans[i]);
    }
    ck_assert(split > 0 && split < 32);
    gpu.forward_count = 1;
    gpu.forward[0].cost = (struct tile_cost){ 0, 1 };
    plan = plan_of(&gpu, "full:128x256", 0, NULL);
    ck_assert_double_eq(plan->choice.tiles.time, 0);
    ffa_plan_destroy(plan);
}
END_TEST

/* Isolation goes with the plan that others are like. */
START_TEST(isolation_is_taken_over)
{
    const struct ffa_kernels gpu = gpu_kernels();
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = parse("varlen-causal:300,41,100");
    ffa_plan *plan = NULL, *other;
    ffa_error err = { FFA_OK, 0, "" };

    opts.flags = FFA_PLAN_ISOLATE;
    opts.capacity_bytes = CAPACITY;
    must(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), &err);
    other = plan_of(&gpu, "varlen-causal:200,141,100", CAPACITY, plan);
    ck_assert_int_eq(info_of(other).is_isolated, 1);
    ffa_plan_destroy(other);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- refusals ---- */

enum change {
    SAME,
    OTHER_TILES,
    OTHER_BACKWARD,
    NO_BACKWARD,
    DETERMINISTIC,
    OTHER_PACK,
    OTHER_HEADS,
    OF_THE_CPU
};

static const struct {
    const char *mask; /* that of `like` is causal:4096 */
    int64_t capacity; /* of the plan; `like` has CAPACITY, or none */
    bool has_like, like_has_capacity;
    enum change change;
    const char *says;
} refusals[] = {
    { "causal:4096", -1, false, false, SAME, "capacity_bytes is -1, not in [0, 34359738368]" },
    { "causal:4096", ((int64_t)1 << 35) + 1, false, false, SAME,
      "capacity_bytes is 34359738369, not in [0, 34359738368]" },
    { "causal:4096", 100, false, false, SAME, "bytes, capacity_bytes is 100" },
    { "varlen-causal:2*2048", 0, true, true, SAME, "bytes, capacity_bytes is 65536" },
    { "causal:4096", 0, true, false, SAME, "`like` was made without capacity_bytes" },
    { "causal:4096", CAPACITY + 16, true, true, SAME,
      "capacity_bytes is 65552, that of `like` 65536" },
    { "causal:4095", 0, true, true, SAME,
      "the mask has 4095 x 4095 tokens and 1 lists, that of `like` 4096 x 4096 and 1" },
    { "causal:4096x4097", 0, true, true, SAME, "4096 x 4097 tokens" },
    { "causal:4096", 0, true, true, OTHER_TILES, "they have forward tiles that these have not" },
    { "causal:4096", 0, true, true, OTHER_BACKWARD, "backward tiles" },
    { "causal:4096", 0, true, true, NO_BACKWARD, "passes" },
    { "causal:4096", 0, true, true, DETERMINISTIC, "backward tiles" },
    { "causal:4096", 0, true, true, OTHER_PACK, "heads" },
    { "causal:4096", 0, true, true, OTHER_HEADS, "heads" },
    { "causal:4096", 0, true, true, OF_THE_CPU, "a backend" },
};

static void change(struct ffa_kernels *gpu, enum change what)
{
    gpu->forward_count = what == OTHER_TILES ? 1 : 2;
    gpu->forward[0].tile_m = what == OTHER_TILES ? 32 : 16;
    gpu->backward[0].tile_n = what == OTHER_BACKWARD ? 64 : 128;
    gpu->has_backward = what != NO_BACKWARD;
    gpu->is_deterministic = what == DETERMINISTIC;
    gpu->pack_heads = what == OTHER_PACK ? 4 : 8;
    gpu->heads_q = what == OTHER_HEADS ? 64 : 0;
    gpu->heads_kv = gpu->heads_q / 8;
    if (what == OF_THE_CPU)
        gpu->forward[0].kernel = NULL;
}

START_TEST(what_cannot_be_is_refused)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_plan *like =
        plan_of(&gpu, "causal:4096", refusals[_i].like_has_capacity ? CAPACITY : 0, NULL);
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = parse(refusals[_i].mask);
    ffa_plan *plan = like;
    ffa_error err = { FFA_OK, 0, "" };

    change(&gpu, refusals[_i].change);
    opts.capacity_bytes = refusals[_i].capacity;
    opts.like = refusals[_i].has_like ? like : NULL;
    ck_assert_int_eq(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_ptr_null(plan);
    ck_assert_msg(strstr(err.message, refusals[_i].says), "%s", err.message);
    ffa_plan_destroy(like);
    ffa_mask_destroy(mask);
}
END_TEST

/* A list for each kv head where `like` has one list. */
START_TEST(other_lists_are_refused)
{
    const struct ffa_kernels gpu = gpu_kernels();
    const ffa_slice slice = { 0, 64, 0, 64, FFA_SLICE_FULL, 0 };
    const ffa_slice_list lists[] = { { &slice, 1 }, { NULL, 0 } };
    const ffa_mask_shape shape = { 64, 64 };
    ffa_plan *like = plan_of(&gpu, "causal:64", CAPACITY, NULL), *plan = NULL;
    ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
    ffa_mask *mask = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    must(ffa_mask_create_per_head(&mask, &shape, lists, 2, &err), &err);
    opts.like = like;
    ck_assert_int_eq(ffa_plan_create_with(&plan, &gpu, mask, &opts, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "64 x 64 tokens and 2 lists, that of `like` 64 x 64 and 1"),
                  "%s", err.message);
    ffa_mask_destroy(mask);
    ffa_plan_destroy(like);
}
END_TEST

START_TEST(stages_have_no_capacity)
{
    struct ffa_kernels gpu = gpu_kernels();
    ffa_plan *like = plan_of(&gpu, "causal:64", CAPACITY, NULL), *plans[1] = { NULL };
    ffa_mask *mask = parse("causal:64");
    const ffa_mask *masks[] = { mask };
    ffa_error err = { FFA_OK, 0, "" };

    gpu.is_staged = true;
    for (int i = 0; i < 2; i++) {
        ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;

        opts.capacity_bytes = i ? 0 : CAPACITY;
        opts.like = i ? like : NULL;
        ck_assert_int_eq(ffa_plan_create_stages(plans, &gpu, masks, 1, &opts, &err), FFA_INVALID);
        ck_assert_msg(strstr(err.message, i ? "like is given" : "capacity_bytes is given"), "%s",
                      err.message);
    }
    ffa_mask_destroy(mask);
    ffa_plan_destroy(like);
}
END_TEST

/* The CPU backend reads plans where they are: a capacity is checked, and of no effect. */
START_TEST(the_cpu_takes_no_notice)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_kernels *kernels = NULL;
    ffa_plan *plan, *other;
    ffa_error err = { FFA_OK, 0, "" };

    spec.dtype = FFA_FP32;
    spec.head_dim = 16;
    spec.flags = FFA_SPEC_BACKWARD;
    must(ffa_kernels_create(&kernels, context, &spec, &err), &err);
    plan = plan_of(kernels, "causal:64", 1, NULL);
    other = plan_of(kernels, "full:64", 0, plan);
    ck_assert_int_eq(info_of(other).upload_bytes, 0);
    ck_assert_int_eq(info_of(other).capacity_bytes, 1);
    must(ffa_plan_upload(other, kernels, NULL, NULL, &err), &err);
    ffa_plan_destroy(plan);
    ffa_plan_destroy(other);
    ffa_kernels_destroy(kernels);
}
END_TEST

START_TEST(each_allocation_may_fail)
{
    const struct ffa_kernels gpu = gpu_kernels();
    ffa_mask *mask = parse("varlen-causal:300,41,100");
    ffa_plan *like = plan_of(&gpu, "causal:441", CAPACITY, NULL);
    ffa_error err = { FFA_OK, 0, "" };

    for (int i = 0; i < 2; i++) {
        long nth = 1;

        for (;; nth++) {
            ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;
            ffa_plan *plan = NULL;
            ffa_status rc;

            opts.capacity_bytes = CAPACITY;
            opts.like = i ? like : NULL;
            fault_arm(FAULT_ALLOC, nth);
            rc = ffa_plan_create_with(&plan, &gpu, mask, &opts, &err);
            ffa_plan_destroy(plan);
            if (!fault_fired())
                break;
            ck_assert_int_eq(rc, FFA_NOMEM);
        }
        fault_arm(FAULT_ALLOC, 0);
        ck_assert_int_gt(nth, 10);
    }
    ck_assert_int_eq(atomic_load(&like->reference->owners), 1);
    ffa_plan_destroy(like);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replay");
    TCase *tc = tcase_create("replay");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, capacity_is_what_is_uploaded);
    tcase_add_test(tc, lockstep_is_settled_before_orders_are);
    tcase_add_test(tc, a_plan_like_another_is_for_its_launches);
    tcase_add_test(tc, parts_are_at_most_what_the_plan_says);
    tcase_add_test(tc, launches_do_not_depend_on_the_mask);
    tcase_add_test(tc, nothing_is_split_unless_asked);
    tcase_add_test(tc, splits_do_not_depend_on_the_mask);
    tcase_add_test(tc, one_part_is_no_split);
    tcase_add_test(tc, splits_need_their_kernels);
    tcase_add_test(tc, splits_do_not_depend_on_how_many_tiles_there_are);
    tcase_add_test(tc, isolation_is_taken_over);
    tcase_add_loop_test(tc, what_cannot_be_is_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(tc, other_lists_are_refused);
    tcase_add_test(tc, stages_have_no_capacity);
    tcase_add_test(tc, the_cpu_takes_no_notice);
    tcase_add_test(tc, each_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
