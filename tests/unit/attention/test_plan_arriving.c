/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of keys that arrive in stages, executed in integers: each attended cell once and no other;
 * no sweep and no key tile with keys of two stages; the order of arrival. Stages and groups are
 * found here key by key, without the library's functions. A failure prints the seed.
 */
#include "attention/arriving.h"
#include "attention_backward.args.h"
#include "choose/order.h"
#include "support/coverage.h"
#include "support/mask_cases.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { LISTS = 3, FIRST_MAX = 4, ROUNDS = 1200, PARTS = 4 };

/* ---- kernels, without a device ---- */

/* As a GPU's are: with an image, and a choice between two forward kernels. Nothing is launched. */
static ffa_kernels gpu_kernels(int32_t tile_m, int32_t tile_n, bool is_deterministic)
{
    static char place;
    struct gpu_kernel *const some = (struct gpu_kernel *)(void *)&place;
    const struct device_facts facts = { .sm_count = 132, .l2_bytes = 50 << 20 };

    return (ffa_kernels){
        .device = choose_device_of(&facts),
        .dtype = FFA_BF16,
        .head_dim = 128,
        .head_dim_v = 128,
        .forward = { { .kernel = some, .tile_m = tile_m, .tile_n = tile_n, .cost = { 300, 1 } },
                     { .kernel = some,
                       .tile_m = tile_m,
                       .tile_n = tile_n / 2 + 1,
                       .cost = { 200, 1.05 } } },
        .forward_count = 2,
        .has_backward = true,
        .backward = { { .tile_m = tile_n, .tile_n = tile_m, .cluster = 1 } },
        .backward_count = 1,
        .is_deterministic = is_deterministic,
    };
}

/* ---- a random pass ---- */

struct trial {
    uint64_t seed;
    struct mask_case cases[LISTS];
    ffa_slice_list slices[LISTS];
    struct bands bands[LISTS];
    ffa_mask *mask;
    int64_t ends[TILE_STAGES_MAX];
    int64_t first[FIRST_MAX][2];
    struct arriving_keys keys;
    ffa_kernels kernels;
};

#define CHECK(trial, claim)                                                                        \
    do {                                                                                           \
        if (!(claim))                                                                              \
            ck_abort_msg("seed %llu: %s", (unsigned long long)(trial)->seed, #claim);              \
    } while (0)

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Ends anywhere: some stages are empty, and now and then the own one. */
static void draw_stages(struct trial *trial, struct rng *rng, int64_t keys)
{
    struct arriving_keys *out = &trial->keys;
    int64_t bounds[2 * FIRST_MAX];

    out->stage_count = (int32_t)rng_range(rng, 1, rng_range(rng, 0, 3) ? 5 : TILE_STAGES_MAX);
    for (int32_t s = 0; s + 1 < out->stage_count; s++)
        trial->ends[s] = rng_range(rng, 0, keys);
    if (out->stage_count > 1 && rng_range(rng, 0, 9) == 0)
        trial->ends[0] = 0;
    trial->ends[out->stage_count - 1] = keys;
    qsort(trial->ends, (size_t)out->stage_count, sizeof *trial->ends, compare);
    out->stage_ends = trial->ends;
    for (int32_t i = 0; i < 2 * FIRST_MAX; i++)
        bounds[i] = rng_range(rng, 0, trial->ends[0]);
    qsort(bounds, 2 * FIRST_MAX, sizeof *bounds, compare);
    for (int32_t i = 0; i < FIRST_MAX; i++)
        if (bounds[2 * i] < bounds[2 * i + 1] && rng_range(rng, 0, 2)) {
            trial->first[out->first_count][0] = bounds[2 * i];
            trial->first[out->first_count++][1] = bounds[2 * i + 1];
        }
    out->first = (const int64_t(*)[2])trial->first;
}

static void trial_init(struct trial *trial, uint64_t seed)
{
    static const int32_t sides[] = { 4, 8, 16, 24, 40, 64, 128 };
    enum { SIDES = sizeof sides / sizeof *sides };
    struct rng rng = { seed };
    const int32_t lists = seed % 5 ? 1 : LISTS;

    *trial = (struct trial){ .seed = seed };
    trial->cases[0] = mask_case_random(&rng, 300, 24);
    for (int32_t l = 0; l < lists; l++) {
        if (l > 0) {
            trial->cases[l] = mask_case_random(&rng, 1, 1);
            trial->cases[l].count = 0;
        }
        trial->slices[l] =
            (ffa_slice_list){ trial->cases[0].slices + (l < trial->cases[0].count ? l : 0),
                              l < trial->cases[0].count ? trial->cases[0].count - l : 0 };
    }
    ck_assert_int_eq(
        ffa_mask_create_per_head(&trial->mask, &trial->cases[0].shape, trial->slices, lists, NULL),
        FFA_OK);
    for (int32_t l = 0; l < lists; l++)
        ck_assert_int_eq(bands_add_normal(&trial->bands[l], &trial->mask->lists[l].normal, NULL),
                         FFA_OK);
    trial->keys = (struct arriving_keys){ .shape = trial->cases[0].shape,
                                          .lists = trial->bands,
                                          .list_count = lists };
    draw_stages(trial, &rng, trial->keys.shape.seqlen_k);
    trial->kernels = gpu_kernels(sides[rng_range(&rng, 0, SIDES - 1)],
                                 sides[rng_range(&rng, 0, SIDES - 1)], rng_range(&rng, 0, 1));
    trial->kernels.pack_heads = rng_range(&rng, 0, 2) ? 0 : 8;
}

static void trial_finish(struct trial *trial)
{
    ffa_mask_destroy(trial->mask);
    for (int32_t l = 0; l < LISTS; l++) {
        bands_finish(&trial->bands[l]);
        free(trial->cases[l].slices);
    }
}

/* ---- what stages and groups are, key by key ---- */

static int32_t stage_of(const struct arriving_keys *keys, int64_t key)
{
    for (int32_t s = 0; s < keys->stage_count; s++)
        if (key >= (s ? keys->stage_ends[s - 1] : 0) && key < keys->stage_ends[s])
            return s;
    ck_abort_msg("key %lld is of no stage", (long long)key);
    return -1;
}

static bool is_first(const struct arriving_keys *keys, int64_t key)
{
    for (int64_t i = 0; i < keys->first_count; i++)
        if (key >= keys->first[i][0] && key < keys->first[i][1])
            return true;
    return false;
}

static int32_t group_of(const struct arriving_keys *keys, int64_t key)
{
    const int32_t stage = stage_of(keys, key);

    return stage > 0 || is_first(keys, key) ? stage : keys->stage_count;
}

/* ---- checks ---- */

static void check_forward(const struct trial *trial, const struct tile_plan *plan)
{
    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];
        int32_t before = 0;

        for (int32_t i = 0; i < tile->sweep_count; i++) {
            const struct plan_sweep *sweep = &plan->sweeps[tile->sweep_begin + i];
            const int32_t stage = stage_of(&trial->keys, sweep->begin);

            CHECK(trial, stage == stage_of(&trial->keys, sweep->end - 1));
            CHECK(trial, stage >= before);
            before = stage;
        }
    }
}

static void check_backward(const struct trial *trial, const ffa_plan *whole)
{
    const struct tile_plan *plan = &whole->backward;
    int64_t tiles[TILE_STAGES_MAX] = { 0 };

    for (int32_t l = 0; l < plan->list_count; l++) {
        int32_t before = 0, work = INT32_MAX;

        for (int64_t t = plan->list_begin[l]; t < plan->list_begin[l + 1]; t++) {
            const struct plan_tile *tile = &plan->tiles[t];
            const int32_t group = group_of(&trial->keys, tile->begin);

            for (int32_t k = tile->begin; k < tile->begin + tile->count; k++)
                CHECK(trial, group_of(&trial->keys, k) == group);
            CHECK(trial, group >= before);
            CHECK(trial, group > before || plan->block_counts[t] <= work);
            before = group;
            work = plan->block_counts[t];
            tiles[stage_of(&trial->keys, tile->begin)]++;
        }
    }
    for (int32_t s = 0; s < TILE_STAGES_MAX; s++)
        CHECK(trial, tiles[s] == whole->arriving.stage_tiles[s]);
}

/* Work items of a backward launch, with own keys divided by tile (own_heads 0) or by kv head: each
 * tile with each kv head once; own ones that are first, stage after stage, the other own ones. */
static void check_items(const struct trial *trial, const ffa_plan *plan, int heads, int own_heads)
{
    static struct attention_backward_args args;
    const int tiles = (int)plan->backward.tile_count, last = plan->arriving.count;
    const int32_t *ends = plan->arriving.group_end;
    unsigned char *seen = calloc((size_t)tiles * (size_t)heads, 1);
    int before = 0;

    ck_assert_ptr_nonnull(seen);
    args.group_count = plan->arriving.group_count;
    args.own_heads = own_heads;
    memcpy(args.group_end, ends, sizeof args.group_end);
    for (int item = 0; item < tiles * heads; item++) {
        const struct backward_group g = backward_group_find(&args, heads, item);
        const int rest = item - g.item_begin, at = rest / g.head_count;
        const int tile = g.tile_begin + at + (at >= g.skip_at ? g.skip : 0);
        const int head = g.head_begin + rest % g.head_count;
        const bool is_own = tile < ends[0] || tile >= ends[last - 1];
        int group = own_heads ? (head < own_heads ? 0 : last) : tile < ends[0] ? 0 : last;

        CHECK(trial, at >= 0 && at < g.tile_count && tile < tiles && head < heads);
        for (int s = 1; s < last && !is_own; s++)
            if (tile >= ends[s - 1] && tile < ends[s])
                group = s;
        CHECK(trial, group >= before && !seen[tile * heads + head]++);
        before = group;
    }
    free(seen);
}

/* One sum of each tile, and groups of tiles that end where the list says: the kernel takes all
 * heads of a group before the next one. */
static void check_order(const struct trial *trial, const ffa_plan *plan)
{
    const bool has_groups =
        plan->backward.list_count == 1 && plan->backward.tile_count && plan->arriving.count > 1;

    for (int32_t heads_kv = 1; heads_kv <= 64 && plan->backward.tile_count; heads_kv *= 4) {
        const struct order_query query = {
            .group = 8, .heads_kv = heads_kv, .at_a_time = 132, .row_bytes = 1024
        };
        const struct order_query odd = {
            .group = 3, .heads_kv = heads_kv, .at_a_time = 132, .row_bytes = 1024
        };
        const struct order_query few = {
            .group = 8, .heads_kv = heads_kv, .at_a_time = 132, .parts_max = 2, .row_bytes = 1024
        };

        /* The sum of two parts has the same bits in either order: the better one of one and two,
         * not the answer for any number cut down. */
        CHECK(trial, plan_order(plan, &query).parts <= 2);
        CHECK(trial,
              plan_order(plan, &query).parts == backward_order_find(&plan->backward, &few).parts);
        CHECK(trial, plan_order(plan, &odd).parts == 1);
    }
    CHECK(trial, plan->arriving.group_count == (has_groups ? plan->arriving.count + 1 : 0));
    for (int32_t g = 0; g < plan->arriving.group_count; g++) {
        const int32_t begin = g ? plan->arriving.group_end[g - 1] : 0;

        for (int32_t t = begin; t < plan->arriving.group_end[g]; t++)
            CHECK(trial, group_of(&trial->keys, plan->backward.tiles[t].begin) == g);
        CHECK(trial, begin <= plan->arriving.group_end[g]);
    }
    if (!has_groups)
        return;
    CHECK(trial, plan->arriving.group_end[plan->arriving.count] == plan->backward.tile_count);
    for (int heads = 1; heads <= 5; heads += 2)
        for (int own_heads = 0; own_heads < heads; own_heads++)
            check_items(trial, plan, heads, own_heads);
}

/* In the image tiles stand as the host has them; of several lists backward, by group, then by list.
 */
static void check_image(const struct trial *trial, const ffa_plan *plan, bool is_backward)
{
    const struct tile_plan *tiles = is_backward ? &plan->backward : &plan->forward;
    const struct plan_image_pass *pass = is_backward ? &plan->image.backward : &plan->image.forward;
    const struct plan_tile *at = plan_image_tiles(pass, plan->image_data);
    int64_t next[LISTS], before = -1;

    for (int32_t l = 0; l < tiles->list_count; l++)
        next[l] = tiles->list_begin[l];
    for (int64_t i = 0; i < tiles->tile_count; i++) {
        const int64_t group = is_backward ? group_of(&trial->keys, at[i].begin) : 0;

        CHECK(trial, !memcmp(&at[i], &tiles->tiles[next[at[i].list]++], sizeof at[i]));
        CHECK(trial, group * LISTS + at[i].list >= before);
        before = group * LISTS + at[i].list;
    }
    for (int32_t l = 0; l < tiles->list_count; l++)
        CHECK(trial, next[l] == tiles->list_begin[l + 1]);
}

static void check_plan(const struct trial *trial, bool is_backward)
{
    struct coverage_text why = { "" };
    const struct tile_plan *tiles, *other;
    ffa_plan *plan;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(!plan_create_arriving(&plan, &trial->kernels, &trial->keys, is_backward, &err),
                  "seed %llu: %s", (unsigned long long)trial->seed, err.message);
    tiles = is_backward ? &plan->backward : &plan->forward;
    other = is_backward ? &plan->forward : &plan->backward;
    CHECK(trial, !other->tile_count && !other->tile_m);
    CHECK(trial, plan->image_data && plan->arriving.count == trial->keys.stage_count);
    for (int32_t s = 0; s < trial->keys.stage_count; s++)
        CHECK(trial, plan->arriving.stage_end[s] == trial->ends[s]);
    ck_assert_msg(!tile_check(tiles, &err), "seed %llu: %s", (unsigned long long)trial->seed,
                  err.message);
    ck_assert_msg(coverage_lines(tiles, trial->slices, &why) &&
                      coverage_cells(tiles, trial->slices, &why),
                  "seed %llu: %s", (unsigned long long)trial->seed, why.at);
    check_image(trial, plan, is_backward);
    if (is_backward) {
        check_backward(trial, plan);
        check_order(trial, plan);
        if (trial->kernels.is_deterministic)
            ck_assert_msg(coverage_tickets(tiles, &why), "seed %llu: %s",
                          (unsigned long long)trial->seed, why.at);
    } else {
        check_forward(trial, tiles);
    }
    ffa_plan_destroy(plan);
}

START_TEST(random_keys_in_stages)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= ROUNDS; seed += PARTS) {
        struct trial trial;

        trial_init(&trial, seed);
        check_plan(&trial, false);
        check_plan(&trial, true);
        trial_finish(&trial);
    }
}
END_TEST

/* ---- one stage: the plan of one GPU ---- */

static void same_tiles(const struct trial *trial, const struct tile_plan *a,
                       const struct tile_plan *b)
{
    CHECK(trial, a->tile_m == b->tile_m && a->tile_n == b->tile_n);
    CHECK(trial, a->tile_count == b->tile_count && a->sweep_count == b->sweep_count);
    CHECK(trial, a->band_count == b->band_count && a->ticket_count == b->ticket_count);
    CHECK(trial, a->block_count == b->block_count && a->partial_blocks == b->partial_blocks);
    CHECK(trial, a->area == b->area && a->lockstep == b->lockstep);
    for (int64_t i = 0; i < a->tile_count; i++)
        CHECK(trial, !memcmp(&a->tiles[i], &b->tiles[i], sizeof *a->tiles));
    for (int64_t i = 0; i < a->sweep_count; i++)
        CHECK(trial, !memcmp(&a->sweeps[i], &b->sweeps[i], sizeof *a->sweeps));
    for (int64_t i = 0; i < a->ticket_count; i++)
        CHECK(trial, !memcmp(&a->tickets[i], &b->tickets[i], sizeof *a->tickets));
    for (int64_t i = 0; i < a->band_count; i++) {
        struct plan_band x = a->bands[i];
        const struct plan_band *y = &b->bands[i];

        if (x.end - x.begin == 1) { /* then steps say nothing */
            x.lo_step = y->lo_step;
            x.hi_step = y->hi_step;
        }
        CHECK(trial, !memcmp(&x, y, sizeof x));
    }
}

START_TEST(one_stage_is_an_ordinary_plan)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct trial trial;
        ffa_plan *want, *got[2];

        trial_init(&trial, seed);
        trial.keys.stage_count = 1;
        trial.ends[0] = trial.keys.shape.seqlen_k;
        trial.first[0][0] = 0;
        trial.first[0][1] = trial.ends[0];
        trial.keys.first_count = seed % 2; /* all of them first, or none */
        ck_assert_int_eq(ffa_plan_create(&want, &trial.kernels, trial.mask, NULL), FFA_OK);
        for (int b = 0; b < 2; b++)
            ck_assert_int_eq(
                plan_create_arriving(&got[b], &trial.kernels, &trial.keys, b == 1, NULL), FFA_OK);
        same_tiles(&trial, &got[0]->forward, &want->forward);
        same_tiles(&trial, &got[1]->backward, &want->backward);
        for (int b = 0; b < 2; b++)
            ffa_plan_destroy(got[b]);
        ffa_plan_destroy(want);
        trial_finish(&trial);
    }
}
END_TEST

/* ---- sizes of 0 ---- */

static const struct {
    const char *name;
    ffa_mask_shape shape;
    int32_t stage_count;
    int64_t ends[3];
    bool has_cells;
    int64_t tiles[2], stage_tiles[3]; /* forward and backward; backward of each stage */
} edges[] = {
    { "no rows", { 0, 20 }, 2, { 8, 20 }, false, { 0, 3 }, { 1, 2 } },
    { "no keys", { 20, 0 }, 2, { 0, 0 }, false, { 3, 0 }, { 0 } },
    { "nothing", { 0, 0 }, 1, { 0 }, false, { 0, 0 }, { 0 } },
    { "no cells", { 20, 20 }, 3, { 8, 9, 20 }, false, { 3, 4 }, { 1, 1, 2 } },
    { "no own keys", { 20, 20 }, 3, { 0, 5, 20 }, true, { 3, 3 }, { 0, 1, 2 } },
    { "an empty stage", { 20, 20 }, 3, { 5, 5, 20 }, true, { 3, 3 }, { 1, 0, 2 } },
    { "nothing received", { 20, 20 }, 3, { 20, 20, 20 }, true, { 3, 3 }, { 3, 0, 0 } },
};
enum { EDGES = sizeof edges / sizeof *edges };

START_TEST(sides_and_stages_may_be_empty)
{
    const struct band all = {
        0, edges[_i].shape.seqlen_q, 0, edges[_i].shape.seqlen_k, BAND_LO_NONE, BAND_HI_NONE
    };
    struct bands bands = { 0 };
    const struct arriving_keys keys = { .shape = edges[_i].shape,
                                        .lists = &bands,
                                        .list_count = 1,
                                        .stage_count = edges[_i].stage_count,
                                        .stage_ends = edges[_i].ends };

    if (edges[_i].has_cells) {
        struct band tight = all;

        ck_assert(band_shrink(&tight));
        ck_assert_int_eq(bands_add(&bands, &tight, NULL), FFA_OK);
    }
    for (int b = 0; b < 4; b++) {
        const ffa_kernels kernels = gpu_kernels(8, 16, b / 2);
        const bool is_backward = b % 2;
        const struct tile_plan *tiles;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_plan *plan;

        ck_assert_msg(!plan_create_arriving(&plan, &kernels, &keys, is_backward, &err), "%s: %s",
                      edges[_i].name, err.message);
        tiles = is_backward ? &plan->backward : &plan->forward;
        ck_assert_int_eq(tile_check(tiles, NULL), FFA_OK);
        ck_assert_int_eq(tiles->area, edges[_i].has_cells ? all.q_end * all.k_end : (int64_t)0);
        ck_assert_msg(tiles->tile_count == edges[_i].tiles[is_backward], "%s: %lld tiles",
                      edges[_i].name, (long long)tiles->tile_count);
        for (int32_t s = 0; s < 3; s++)
            ck_assert_int_eq(plan->arriving.stage_tiles[s],
                             is_backward ? edges[_i].stage_tiles[s] : 0);
        ffa_plan_destroy(plan);
    }
    bands_finish(&bands);
}
END_TEST

/* ---- a plan in full ---- */

/* 12 rows, causal over own keys [0, 4) at row 8, stages [4, 8) and [8, 12) for all rows. */
START_TEST(tiles_and_sweeps_of_a_small_plan)
{
    struct band own = { 0, 12, 0, 4, BAND_LO_NONE, 0 },
                rest = { 0, 12, 4, 12, BAND_LO_NONE, BAND_HI_NONE };
    const int64_t ends[] = { 4, 8, 12 }, first[][2] = { { 2, 4 } };
    const ffa_kernels kernels = gpu_kernels(12, 4, false);
    const int32_t sweeps[][2] = { { 0, 4 }, { 4, 8 }, { 8, 12 } };
    const int32_t tiles[][2] = { { 2, 2 }, { 4, 4 }, { 8, 4 }, { 0, 2 } };
    struct bands bands = { 0 };
    const struct arriving_keys keys = { .shape = { 12, 12 },
                                        .lists = &bands,
                                        .list_count = 1,
                                        .stage_count = 3,
                                        .stage_ends = ends,
                                        .first = first,
                                        .first_count = 1 };
    ffa_plan *plan;

    ck_assert(band_shrink(&own) && band_shrink(&rest));
    ck_assert_int_eq(bands_add(&bands, &own, NULL), FFA_OK);
    ck_assert_int_eq(bands_add(&bands, &rest, NULL), FFA_OK);
    ck_assert_int_eq(plan_create_arriving(&plan, &kernels, &keys, false, NULL), FFA_OK);
    ck_assert_int_eq(plan->forward.tile_count, 1);
    ck_assert_int_eq(plan->forward.sweep_count, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(plan->forward.sweeps[i].begin, sweeps[i][0]);
        ck_assert_int_eq(plan->forward.sweeps[i].end, sweeps[i][1]);
    }
    ffa_plan_destroy(plan);
    ck_assert_int_eq(plan_create_arriving(&plan, &kernels, &keys, true, NULL), FFA_OK);
    ck_assert_int_eq(plan->backward.tile_count, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(plan->backward.tiles[i].begin, tiles[i][0]);
        ck_assert_int_eq(plan->backward.tiles[i].count, tiles[i][1]);
    }
    ck_assert_int_eq(plan->arriving.stage_tiles[0], 2);
    ck_assert_int_eq(plan->arriving.stage_tiles[1], 1);
    ck_assert_int_eq(plan->arriving.stage_tiles[2], 1);
    ffa_plan_destroy(plan);
    bands_finish(&bands);
}
END_TEST

/* ---- what is noticed ---- */

/* tile_check of the plan with one end moved; ends [2]. */
static ffa_status check_moved(struct tile_plan *tiles, int32_t stage, int32_t by)
{
    ffa_status rc;

    tiles->stages.ends[stage] += by;
    rc = tile_check(tiles, NULL);
    tiles->stages.ends[stage] -= by;
    return rc;
}

START_TEST(moved_ends_and_groups_are_noticed)
{
    struct band all = { 0, 32, 0, 32, BAND_LO_NONE, BAND_HI_NONE };
    const int64_t ends[] = { 12, 20, 32 }, first[][2] = { { 4, 8 } };
    const ffa_kernels kernels = gpu_kernels(4, 4, _i);
    struct bands bands = { 0 };
    const struct arriving_keys keys = { .shape = { 32, 32 },
                                        .lists = &bands,
                                        .list_count = 1,
                                        .stage_count = 3,
                                        .stage_ends = ends,
                                        .first = first,
                                        .first_count = 1 };
    struct tile_range *range;
    ffa_plan *plan;

    ck_assert(band_shrink(&all));
    ck_assert_int_eq(bands_add(&bands, &all, NULL), FFA_OK);
    for (int b = 0; b < 2; b++) {
        struct tile_plan *tiles;

        ck_assert_int_eq(plan_create_arriving(&plan, &kernels, &keys, b == 1, NULL), FFA_OK);
        tiles = b ? &plan->backward : &plan->forward;
        for (int32_t s = 0; s < 2; s++) {
            ck_assert_int_eq(check_moved(tiles, s, 0), FFA_OK);
            ck_assert_int_eq(check_moved(tiles, s, 1), FFA_BUG);
            ck_assert_int_eq(check_moved(tiles, s, -1), FFA_BUG);
        }
        ck_assert_int_eq(check_moved(tiles, 2, 1), FFA_BUG);
        if (b) { /* tiles whose group changes, and one with keys of two */
            range = (struct tile_range *)(void *)tiles->stages.first;
            *range = (struct tile_range){ 0, 4 };
            ck_assert_int_eq(tile_check(tiles, NULL), FFA_BUG);
            *range = (struct tile_range){ 4, 7 };
            ck_assert_int_eq(tile_check(tiles, NULL), FFA_BUG);
            *range = (struct tile_range){ 5, 8 };
            ck_assert_int_eq(tile_check(tiles, NULL), FFA_BUG);
            *range = (struct tile_range){ 4, 8 };
            ck_assert_int_eq(tile_check(tiles, NULL), FFA_OK);
        }
        ffa_plan_destroy(plan);
    }
    bands_finish(&bands);
}
END_TEST

/* ---- what is refused ---- */

static const struct {
    const char *name;
    int32_t stage_count;
    int64_t seqlen_q, ends[3], first[2];
    bool is_staged, is_split, has_backward;
    ffa_status want;
    const char *words;
} refusals[] = {
    { "fine", 3, 8, { 2, 4, 8 }, { 0, 2 }, false, false, true, FFA_OK, "" },
    { "no stage", 0, 8, { 2, 4, 8 }, { 0, 2 }, false, false, true, FFA_INVALID, "0 stages" },
    { "too many", 17, 8, { 2, 4, 8 }, { 0, 2 }, false, false, true, FFA_INVALID, "17 stages" },
    { "falling", 3, 8, { 4, 2, 8 }, { 0, 2 }, false, false, true, FFA_INVALID, "do not ascend" },
    { "not all", 3, 8, { 2, 4, 7 }, { 0, 2 }, false, false, true, FFA_INVALID, "do not ascend" },
    { "below 0", 3, 8, { -1, 4, 8 }, { 0, 2 }, false, false, true, FFA_INVALID, "do not ascend" },
    { "beyond 2^32",
      3,
      8,
      { 2, 4, 8 + ((int64_t)1 << 32) },
      { 0, 2 },
      false,
      false,
      true,
      FFA_INVALID,
      "do not ascend" },
    { "first not own",
      3,
      8,
      { 2, 4, 8 },
      { 0, 3 },
      false,
      false,
      true,
      FFA_INVALID,
      "do not ascend" },
    { "first empty",
      3,
      8,
      { 2, 4, 8 },
      { 1, 1 },
      false,
      false,
      true,
      FFA_INVALID,
      "do not ascend" },
    { "long",
      3,
      (int64_t)1 << 31,
      { 2, 4, 8 },
      { 0, 2 },
      false,
      false,
      true,
      FFA_UNSUPPORTED,
      "2147483648 rows" },
    { "long for a GPU",
      3,
      INT32_MAX,
      { 2, 4, 8 },
      { 0, 2 },
      false,
      false,
      true,
      FFA_UNSUPPORTED,
      "GPU kernels" },
    { "staged", 3, 8, { 2, 4, 8 }, { 0, 2 }, true, false, true, FFA_OK, "" },
    { "split", 3, 8, { 2, 4, 8 }, { 0, 2 }, false, true, true, FFA_INVALID, "FFA_SPEC_SPLIT" },
    { "forward only",
      3,
      8,
      { 2, 4, 8 },
      { 0, 2 },
      false,
      false,
      false,
      FFA_INVALID,
      "FFA_SPEC_BACKWARD" },
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(what_is_no_plan_is_refused)
{
    const struct bands none = { 0 };
    const struct arriving_keys keys = { .shape = { refusals[_i].seqlen_q, 8 },
                                        .lists = &none,
                                        .list_count = 1,
                                        .stage_count = refusals[_i].stage_count,
                                        .stage_ends = refusals[_i].ends,
                                        .first = &refusals[_i].first,
                                        .first_count = 1 };
    ffa_kernels kernels = gpu_kernels(8, 8, false);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *plan = (ffa_plan *)(void *)&err;

    kernels.is_staged = refusals[_i].is_staged;
    kernels.is_split = refusals[_i].is_split;
    kernels.has_backward = refusals[_i].has_backward;
    ck_assert_msg(plan_create_arriving(&plan, &kernels, &keys, true, &err) == refusals[_i].want,
                  "%s: %s", refusals[_i].name, err.message);
    ck_assert((plan != NULL) == (refusals[_i].want == FFA_OK));
    ck_assert_msg(strstr(err.message, refusals[_i].words), "%s: %s", refusals[_i].name,
                  err.message);
    ffa_plan_destroy(plan);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct trial trial;
    ffa_plan *plan;

    trial_init(&trial, 5); /* several lists */
    for (int b = 0; b < 2; b++)
        for (long nth = 1;; nth++) {
            ffa_status rc;

            fault_arm(FAULT_ALLOC, nth);
            rc = plan_create_arriving(&plan, &trial.kernels, &trial.keys, b == 1, &err);
            if (!fault_fired()) {
                ck_assert_int_eq(rc, FFA_OK);
                ck_assert_int_gt(nth, 10);
                ffa_plan_destroy(plan);
                break;
            }
            ck_assert_int_eq(rc, FFA_NOMEM);
            ck_assert_ptr_null(plan);
            ck_assert(err.message[0]);
        }
    fault_arm(FAULT_ALLOC, 0);
    trial_finish(&trial);
}
END_TEST

/* Where queries move every forward tile leaves fp32 results, of rows of its own launch; max_logits
 * is set by the first launch, and raised by the others. Backward plans are as any. */
START_TEST(launches_of_moved_queries_are_partial)
{
    const struct bands none = { 0 };
    const int64_t end = 8;
    const struct arriving_keys launches[] = {
        { .shape = { 20, 8 },
          .lists = &none,
          .list_count = 1,
          .stage_count = 1,
          .stage_ends = &end },
        { .shape = { 5, 8 },
          .lists = &none,
          .list_count = 1,
          .stage_count = 1,
          .stage_ends = &end },
    };
    const bool is_backward = _i == 1;
    ffa_kernels kernels = gpu_kernels(8, 8, false);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *plans[2];
    long nth = 1;

    ck_assert_int_eq(plan_create_moved(plans, &kernels, launches, 2, is_backward, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "queries move: the kernels were made without FFA_SPEC_STAGED");
    kernels.is_staged = true;
    for (;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = plan_create_moved(plans, &kernels, launches, 2, is_backward, NULL);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert(!plans[0] && !plans[1]);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_gt(nth, 10);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(plans[i]->stage, is_backward ? 0 : i);
        ck_assert_int_eq(plans[i]->stage_count, is_backward ? 1 : 2);
        ck_assert_int_eq(plans[i]->forward.tile_count, is_backward ? 0 : i ? 1 : 3);
        ck_assert_int_eq(plans[i]->backward.tile_count, is_backward ? 1 : 0);
        for (int64_t t = 0; t < plans[i]->forward.tile_count; t++)
            ck_assert_int_eq(plans[i]->forward.tiles[t].flags &
                                 (PLAN_TILE_MERGES | PLAN_TILE_CONTINUES),
                             PLAN_TILE_CONTINUES);
        ffa_plan_destroy(plans[i]);
    }
}
END_TEST

/* A plan for the CPU has no image, and the same tiles. */
START_TEST(on_the_cpu_a_plan_has_no_image)
{
    const struct bands none = { 0 };
    const int64_t ends[] = { 2, 8 };
    const struct arriving_keys keys = {
        .shape = { 8, 8 }, .lists = &none, .list_count = 1, .stage_count = 2, .stage_ends = ends
    };
    ffa_kernels kernels = gpu_kernels(8, 8, false);
    ffa_plan *plan;

    kernels.forward[0].kernel = kernels.forward[1].kernel = NULL;
    ck_assert_int_eq(plan_create_arriving(&plan, &kernels, &keys, true, NULL), FFA_OK);
    ck_assert_ptr_null(plan->image_data);
    ck_assert_int_eq(plan->backward.tile_count, 2);
    ffa_plan_destroy(plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plans of arriving keys");
    TCase *tc = tcase_create("plans of arriving keys");

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, random_keys_in_stages, 0, PARTS);
    tcase_add_test(tc, one_stage_is_an_ordinary_plan);
    tcase_add_loop_test(tc, sides_and_stages_may_be_empty, 0, EDGES);
    tcase_add_test(tc, tiles_and_sweeps_of_a_small_plan);
    tcase_add_loop_test(tc, moved_ends_and_groups_are_noticed, 0, 2);
    tcase_add_loop_test(tc, what_is_no_plan_is_refused, 0, REFUSALS);
    tcase_add_test(tc, every_allocation_may_fail);
    tcase_add_loop_test(tc, launches_of_moved_queries_are_partial, 0, 2);
    tcase_add_test(tc, on_the_cpu_a_plan_has_no_image);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
