/* SPDX-License-Identifier: Apache-2.0
 *
 * Visits to blocks of query rows that miss L2: as many as in a pass that is simulated visit by
 * visit, through a list of the blocks used last; and what is known without one: an L2 that holds
 * all, or nothing, plans without tiles, and with too many.
 */
#include "attention_backward.args.h"
#include "choose/makespan.h"
#include "choose/visits.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a mask's backward pass. */
struct pass {
    const char *mask;
    int32_t heads, heads_kv; /* query heads of a kv head; kv heads */
    int32_t parts, waves, whole_heads;
    int32_t at_a_time;
    bool is_unlocked; /* head by head, although it could go in lockstep */
    double item;
};

static ffa_mask *parse(const char *text)
{
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    return mask;
}

/* Destroys the mask. */
static void build_plan(struct tile_plan *plan, ffa_mask *mask)
{
    const struct tile_options opts = { .tile_m = 64, .tile_n = 128 };

    ck_assert_int_eq(tile_build(plan, mask, TILE_OWNS_KEYS, &opts, NULL), FFA_OK);
    ffa_mask_destroy(mask);
}

static struct visit_section section_of(const struct tile_plan *plan, const struct pass *pass,
                                       int32_t copies, int32_t heads)
{
    const struct backward_l2_groups l2 =
        backward_l2_groups_find((int)plan->tile_count, copies, pass->waves, pass->at_a_time);

    return (struct visit_section){ copies, heads, l2.head_groups, l2.waves, l2.wave_items };
}

static struct visit_query query_of(const struct tile_plan *plan, const struct pass *pass)
{
    const int32_t divided = (pass->heads_kv - pass->whole_heads) * pass->parts;
    const int32_t share = pass->heads / pass->parts;
    struct visit_query query = { .at_a_time = pass->at_a_time,
                                 .in_lockstep = plan->lockstep && !pass->is_unlocked,
                                 .item = pass->item };

    if (pass->whole_heads)
        query.sections[0] = section_of(plan, pass, pass->whole_heads, pass->heads);
    query.sections[1] = section_of(plan, pass, divided, share);
    return query;
}

/* ---- a pass, visit by visit ---- */

struct visit {
    double time;
    int32_t number; /* in the order of items, and of each item's visits */
    int32_t block;  /* of one head */
};

struct history {
    const struct tile_plan *plan;
    struct visit *visits;
    int32_t *others; /* blocks visited since the block was; before the first visit, all there are */
    int32_t count, capacity, blocks;
    double last, free_at[64];
};

static double history_take(struct history *history, int32_t places, double time)
{
    int32_t first = 0;
    double begin;

    for (int32_t place = 1; place < places; place++)
        first = history->free_at[place] < history->free_at[first] ? place : first;
    begin = history->free_at[first];
    history->free_at[first] += time;
    history->last = fmax(history->last, history->free_at[first]);
    return begin;
}

/* Blocks of tiles that begin at other rows are one block where they share most of their rows. */
static void history_visit(struct history *history, int32_t head, int32_t row, double time)
{
    const int32_t rows = (int32_t)history->plan->shape.seqlen_q / 64 + 2;
    const int32_t block = head * rows + (row + 32) / 64;

    ck_assert_int_lt(history->count, history->capacity);
    history->visits[history->count] = (struct visit){ time, history->count, block };
    history->count++;
    history->blocks = block + 1 > history->blocks ? block + 1 : history->blocks;
}

/* As templates/backward_visits.h has it, of the heads [first, end). */
static void history_item(struct history *history, int64_t t, int32_t first, int32_t end,
                         int32_t at_once, bool is_descending, double time)
{
    const struct plan_tile *tile = &history->plan->tiles[t];

    for (; first < end; first += at_once)
        for (int32_t i = 0; i < tile->sweep_count; i++) {
            const struct plan_sweep *sweep =
                &history->plan
                     ->sweeps[tile->sweep_begin + (is_descending ? tile->sweep_count - 1 - i : i)];
            const int32_t last = (sweep->end - 1 - sweep->begin) / 64 * 64;

            for (int32_t at = 0; at <= last; at += 64)
                for (int32_t head = first; head < first + at_once; head++)
                    history_visit(history, head, sweep->begin + (is_descending ? last - at : at),
                                  time++);
        }
}

/* As work_find of templates/backward_schedule.h has it. */
static void history_pass(struct history *history, const struct pass *pass)
{
    const struct tile_plan *plan = history->plan;
    const int32_t tiles = (int32_t)plan->tile_count, whole_items = tiles * pass->whole_heads;
    const int32_t divided = (pass->heads_kv - pass->whole_heads) * pass->parts;
    const bool in_lockstep = plan->lockstep && !pass->is_unlocked;

    for (int32_t item = 0; item < whole_items + tiles * divided; item++) {
        const bool is_divided = item >= whole_items;
        const int32_t at = is_divided ? item - whole_items : item;
        const int32_t copies = is_divided ? divided : pass->whole_heads;
        const int32_t heads = is_divided ? pass->heads / pass->parts : pass->heads;
        const struct backward_l2_groups l2 =
            backward_l2_groups_find(tiles, copies, pass->waves, pass->at_a_time);
        const int32_t group = at / (tiles * l2.head_groups);
        const int32_t rest = at % (tiles * l2.head_groups), first = group * l2.head_groups;
        const int32_t groups = l2.head_groups < copies - first ? l2.head_groups : copies - first;
        const int32_t copy = first + rest % groups, tile = rest / groups;
        const int32_t head =
            is_divided ? pass->whole_heads * pass->heads + copy * heads : copy * heads;
        const int32_t wave = group * l2.waves + rest / l2.wave_items;
        const double begin =
            history_take(history, pass->at_a_time, plan->block_counts[tile] * heads + pass->item);

        history_item(history, tile, head, head + heads, in_lockstep ? heads : 1,
                     in_lockstep && (wave & 1) != (plan->lockstep == TILE_LOCKSTEP_DESCENDING),
                     begin + pass->item / 2 + 0.5);
    }
}

static int by_time(const void *left, const void *right)
{
    const struct visit *a = left, *b = right;

    if (a->time < b->time || a->time > b->time)
        return a->time < b->time ? -1 : 1;
    return a->number - b->number;
}

static void add(int32_t *sums, int32_t count, int32_t at, int32_t more)
{
    for (at++; at <= count; at += at & -at)
        sums[at] += more;
}

static int32_t sum_to(const int32_t *sums, int32_t at)
{
    int32_t sum = 0;

    for (at++; at > 0; at -= at & -at)
        sum += sums[at];
    return sum;
}

/* Stack distances (Mattson 1970): an L2 of N blocks, the one used least recently leaving, misses
 * where N others or more were visited. A sum tree counts the latest visits of blocks (Fenwick
 * 1994). */
static void history_count(struct history *history)
{
    int32_t *latest = malloc(((size_t)history->blocks + 1) * sizeof *latest);
    int32_t *sums = calloc((size_t)history->count + 2, sizeof *sums);

    ck_assert(latest && sums);
    memset(latest, -1, ((size_t)history->blocks + 1) * sizeof *latest);
    for (int32_t i = 0; i < history->count; i++) {
        int32_t *before = &latest[history->visits[i].block];

        history->others[i] = INT32_MAX;
        if (*before >= 0) {
            history->others[i] = sum_to(sums, i) - sum_to(sums, *before);
            add(sums, history->count + 1, *before, -1);
        }
        add(sums, history->count + 1, i, 1);
        *before = i;
    }
    free(sums);
    free(latest);
}

static void history_init(struct history *history, const struct tile_plan *plan,
                         const struct pass *pass)
{
    *history = (struct history){ .plan = plan };
    history->capacity = (int32_t)plan->block_count * pass->heads * pass->heads_kv;
    history->visits = malloc((size_t)history->capacity * sizeof *history->visits + 1);
    history->others = malloc((size_t)history->capacity * sizeof *history->others + 1);
    ck_assert(history->visits && history->others);
    history_pass(history, pass);
    ck_assert_int_eq(history->count, history->capacity);
    qsort(history->visits, (size_t)history->count, sizeof *history->visits, by_time);
    history_count(history);
}

static void history_finish(struct history *history)
{
    free(history->visits);
    free(history->others);
}

/* The share of visits that miss. */
static double history_misses(const struct history *history, double l2_blocks)
{
    double count = 0;

    for (int32_t i = 0; i < history->count; i++)
        count += history->others[i] >= l2_blocks;
    return count / history->count;
}

/* ---- against it ---- */

/* The share of all visits that missed_visits_find says. */
static double share_of(const struct missed_visits *found, int32_t places, double visits)
{
    double sum = 0;

    for (int32_t period = 0; period < VISIT_PERIODS; period++)
        sum += found->missed[period];
    return sum * found->last / VISIT_PERIODS * places / visits;
}

/* No period has more misses than that. */
#define MOST 1.2

static bool is_cut(const struct missed_visits *found)
{
    for (int32_t period = 0; period < VISIT_PERIODS; period++)
        if (found->missed[period] >= MOST - 1e-9)
            return true;
    return false;
}

/* Orders: kv heads whole or in parts, in L2 groups of one wave or more, one query head an item. */
#define PASSES(mask)                                                                               \
    { mask, 8, 4, 1, 1, 0, 24, false, 3 }, { mask, 8, 4, 1, 1, 0, 24, true, 3 },                   \
        { mask, 8, 4, 2, 2, 0, 24, false, 3 }, { mask, 8, 4, 2, 2, 0, 24, true, 3 },               \
        { mask, 8, 4, 4, 3, 2, 24, false, 3 }, { mask, 8, 4, 4, 3, 2, 24, true, 3 },               \
        { mask, 8, 4, 8, 1, 3, 32, false, 0 },                                                     \
    {                                                                                              \
        mask, 1, 8, 1, 1, 0, 24, false, 3                                                          \
    }

static const struct pass passes[] = {
    PASSES("full:2048"),
    PASSES("causal:2048"),
    PASSES("causal:3072"),
    PASSES("varlen-causal:1024*3"),
    PASSES("varlen-causal:512*6"),
    PASSES("varlen-causal:1700,300,64,900,128,16,513"),
    PASSES("varlen-full:700,300,1000,200"),
    PASSES("window:4096,left=512,right=0"),
    PASSES("window:2048,left=256,right=256"),
    PASSES("full:1024x4096"),
    PASSES("full:2048x1024"),
};
enum { PASS_COUNT = sizeof passes / sizeof *passes };

/* Blocks for each place. A kernel has some three. */
static const double sizes[] = { 0.5, 1, 3, 10, 40 };
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes };

static void build_pass(struct tile_plan *plan, struct visit_query *query, const struct pass *pass)
{
    build_plan(plan, parse(pass->mask));
    *query = query_of(plan, pass);
}

/* The share of misses falls in steps as L2 grows, so that where a step is matters more than how
 * many visits are sampled (500: 0.02 is their standard error): it has to be one of an L2 a quarter
 * larger to one of a quarter smaller, within TOLERANCE, and near the one asked for on average. */
#define SIZE_TOLERANCE 1.25
#define TOLERANCE 0.15
#define MEAN_TOLERANCE 0.03

START_TEST(as_many_visits_miss_as_in_a_pass_visit_by_visit)
{
    double off = 0;
    int in_lockstep = 0;

    for (size_t i = 0; i < PASS_COUNT; i++) {
        const struct pass *pass = &passes[i];
        struct tile_plan plan;
        struct visit_query query;
        struct history history;

        build_pass(&plan, &query, pass);
        history_init(&history, &plan, pass);
        in_lockstep += query.in_lockstep;
        for (size_t size = 0; size < SIZE_COUNT; size++) {
            const double l2_blocks = sizes[size] * pass->at_a_time;
            const double least = history_misses(&history, l2_blocks * SIZE_TOLERANCE);
            const double most = history_misses(&history, l2_blocks / SIZE_TOLERANCE);
            const double want = history_misses(&history, l2_blocks);
            struct missed_visits found;
            double share;

            query.l2_blocks = l2_blocks;
            found = missed_visits_find(&plan, &query);
            ck_assert(found.is_whole);
            share = share_of(&found, pass->at_a_time, history.count);
            ck_assert_msg(share > least - TOLERANCE && share < most + TOLERANCE,
                          "%s of %d heads, %dx%d+%d%s, L2 of %g: %.3f, not %.3f (%.3f to %.3f)",
                          pass->mask, pass->heads, pass->parts, pass->waves, pass->whole_heads,
                          pass->is_unlocked ? "u" : "", l2_blocks, share, want, least, most);
            off += fabs(share - want);
        }
        history_finish(&history);
        tile_finish(&plan);
    }
    ck_assert_double_lt(off / (PASS_COUNT * SIZE_COUNT), MEAN_TOLERANCE);
    ck_assert_int_gt(in_lockstep, PASS_COUNT / 3);
    ck_assert_int_lt(in_lockstep, PASS_COUNT * 2 / 3);
}
END_TEST

/* An L2 that keeps all blocks misses the first visits only; one that keeps none misses all, but for
 * what is cut where a period seems to have more visits than there can be. */
START_TEST(an_l2_that_holds_all_or_nothing)
{
    int uncut = 0;

    for (size_t i = 0; i < PASS_COUNT; i += 3) { /* of each mask, other orders */
        const struct pass *pass = &passes[i];
        struct missed_visits found, all;
        struct tile_plan plan;
        struct visit_query query;
        struct history history;
        double first;

        build_pass(&plan, &query, pass);
        history_init(&history, &plan, pass);
        first = history_misses(&history, INT32_MAX);
        query.l2_blocks = 1e15;
        found = missed_visits_find(&plan, &query);
        query.l2_blocks = 0;
        all = missed_visits_find(&plan, &query);
        if (!is_cut(&all)) {
            const bool is_full = strncmp(pass->mask, "full", 4) == 0;

            uncut++;
            ck_assert_double_eq_tol(share_of(&all, pass->at_a_time, history.count), 1, 1e-9);
            ck_assert_double_eq_tol(share_of(&found, pass->at_a_time, history.count), first,
                                    is_full ? 1e-9 : 0.02);
        }
        for (int32_t period = 0; period < VISIT_PERIODS; period++) {
            ck_assert_double_ge(found.missed[period], 0);
            ck_assert_double_le(found.missed[period], all.missed[period]);
            ck_assert_double_le(all.missed[period], MOST + 1e-9);
        }
        history_finish(&history);
        tile_finish(&plan);
    }
    ck_assert_int_gt(uncut, 5);
}
END_TEST

/* ---- the queue ---- */

/* Blocks with a row that not all keys of the tile attend. */
static int32_t count_partial(const struct tile_plan *plan, int64_t tile)
{
    const struct plan_tile *of = &plan->tiles[tile];
    int32_t partial = 0;

    for (int32_t i = of->sweep_begin; i < of->sweep_begin + of->sweep_count; i++) {
        const struct plan_sweep *sweep = &plan->sweeps[i];

        for (int32_t row = sweep->begin; row < sweep->end; row += 64)
            partial += row < sweep->full_begin || row + 64 > sweep->full_end;
    }
    return partial;
}

static void take_section(struct makespan *makespan, const struct tile_plan *plan,
                         const struct visit_section *section, const struct visit_query *query)
{
    for (int32_t first = 0; first < section->copies; first += section->l2_group)
        for (int64_t tile = 0; tile < plan->tile_count; tile++)
            for (int32_t copy = first; copy < section->copies && copy < first + section->l2_group;
                 copy++)
                makespan_take(makespan, (plan->block_counts[tile] +
                                         query->partial * count_partial(plan, tile)) *
                                                section->heads +
                                            query->item);
}

static double makespan_of(const struct tile_plan *plan, const struct visit_query *query)
{
    struct makespan makespan = { .places = query->at_a_time };

    for (int which = 0; which < 2; which++)
        take_section(&makespan, plan, &query->sections[which], query);
    return makespan.last;
}

START_TEST(the_last_item_is_done_at_the_makespan)
{
    for (size_t i = 0; i < PASS_COUNT; i++) {
        struct tile_plan plan;
        struct visit_query query;
        struct missed_visits found;

        build_pass(&plan, &query, &passes[i]);
        query.l2_blocks = 100;
        for (int round = 0; round < 2; round++) {
            query.partial = round * 0.25;
            found = missed_visits_find(&plan, &query);
            ck_assert(found.is_whole);
            ck_assert_double_eq_tol(found.last, makespan_of(&plan, &query), 1e-9);
        }
        tile_finish(&plan);
    }
}
END_TEST

/* 64 tiles of 64 head groups are 4096 items, of 72 are more than VISIT_ITEMS_MAX: those of the
 * first 68 stand for all, in L2 groups of four; of two sections, of the first 34. */
START_TEST(the_first_l2_groups_stand_for_more_items)
{
    static const struct {
        int32_t copies[2];
        bool is_whole;
        int32_t simulated[2];
    } rows[] = {
        { { 0, 64 }, true, { 0, 64 } },    { { 0, 68 }, true, { 0, 68 } },
        { { 0, 72 }, false, { 0, 68 } },   { { 32, 36 }, true, { 32, 36 } },
        { { 32, 40 }, false, { 32, 36 } }, { { 80, 4 }, false, { 32, 4 } },
    };
    const struct pass pass = { "full:1024x8192", 2, 1, 1, 1, 0, 256, true, 3 };
    struct tile_plan plan;
    struct visit_query query;

    build_pass(&plan, &query, &pass);
    ck_assert_int_eq(plan.tile_count, 64);
    query.l2_blocks = 1e15;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct missed_visits found;
        int32_t simulated = 0;
        double last, share;

        for (int which = 0; which < 2; which++) {
            query.sections[which] =
                (struct visit_section){ rows[i].simulated[which], 2, 4, 1, 256 };
            simulated += rows[i].simulated[which];
        }
        last = makespan_of(&plan, &query);
        for (int which = 0; which < 2; which++)
            query.sections[which].copies = rows[i].copies[which];
        found = missed_visits_find(&plan, &query);
        ck_assert_int_eq(found.is_whole, rows[i].is_whole);
        ck_assert_double_eq_tol(found.last, last, 1e-9);
        share = share_of(&found, query.at_a_time, (double)plan.block_count * 2 * simulated);
        ck_assert_double_eq_tol(share, 1.0 / 64, 0.005);
    }
    tile_finish(&plan);
}
END_TEST

static void ck_no_misses(const struct missed_visits *found)
{
    for (int32_t period = 0; period < VISIT_PERIODS; period++)
        ck_assert_double_eq(found->missed[period], 0);
}

/* So many tiles, or an L2 group of so many items, of either section. */
START_TEST(of_too_many_items_at_first_nothing_is_known)
{
    static const struct visit_section few = { 4, 1, 1, 1, INT32_MAX };
    static const struct visit_section half = { VISIT_ITEMS_MAX / 2 + 1, 1, VISIT_ITEMS_MAX / 2 + 1,
                                               1, INT32_MAX };
    static const struct visit_section many = { VISIT_ITEMS_MAX + 1, 1, VISIT_ITEMS_MAX + 1, 1,
                                               INT32_MAX };
    const struct pass pass = { "window:557184,left=0,right=0", 1, 1, 1, 1, 0, 132, false, 3 };
    struct tile_plan plan;
    struct visit_query query;
    struct missed_visits found;

    build_pass(&plan, &query, &pass);
    ck_assert_int_eq(plan.tile_count, VISIT_ITEMS_MAX + 1);
    found = missed_visits_find(&plan, &query);
    ck_assert(!found.is_whole);
    ck_no_misses(&found);
    tile_finish(&plan);

    build_plan(&plan, parse("full:64x128"));
    ck_assert_int_eq(plan.tile_count, 1);
    for (int which = 0; which < 3; which++) {
        query.sections[0] = which == 0 ? half : few;
        query.sections[1] = which == 1 ? many : few;
        found = missed_visits_find(&plan, &query);
        ck_assert_int_eq(found.is_whole, which == 2);
        if (which < 2)
            ck_no_misses(&found);
    }
    tile_finish(&plan);
}
END_TEST

/* No tiles; or tiles that visit nothing, which are items. */
START_TEST(a_plan_without_visits)
{
    int32_t list_begin[] = { 0, 0 };
    const struct tile_plan none = { .shape = { 300, 0 },
                                    .axis = TILE_OWNS_KEYS,
                                    .tile_m = 64,
                                    .tile_n = 128,
                                    .list_count = 1,
                                    .list_begin = list_begin };
    const struct pass pass = { NULL, 8, 4, 2, 1, 1, 2, false, 3 };
    const ffa_mask_shape shape = { 300, 300 };
    struct visit_query query = query_of(&none, &pass);
    struct missed_visits found = missed_visits_find(&none, &query);
    struct tile_plan plan;
    ffa_mask *mask;

    ck_assert(found.is_whole);
    ck_assert_double_eq(found.last, 0);
    ck_no_misses(&found);
    ck_assert_int_eq(ffa_mask_create(&mask, &shape, NULL, 0, NULL), FFA_OK);
    build_plan(&plan, mask);
    query = query_of(&plan, &pass);
    found = missed_visits_find(&plan, &query);
    ck_assert(found.is_whole);
    ck_assert_double_eq_tol(found.last, makespan_of(&plan, &query), 1e-9);
    ck_assert_double_gt(found.last, 0);
    ck_no_misses(&found);
    tile_finish(&plan);
}
END_TEST

/* Another pass between them leaves other numbers on the stack. */
START_TEST(the_same_bits_twice)
{
    struct tile_plan plans[PASS_COUNT];
    struct visit_query queries[PASS_COUNT];
    struct missed_visits before[PASS_COUNT];

    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < PASS_COUNT; i++) {
            const size_t at = round ? PASS_COUNT - 1 - i : i;
            struct missed_visits found;

            if (round == 0)
                build_pass(&plans[at], &queries[at], &passes[at]);
            queries[at].l2_blocks = 70;
            found = missed_visits_find(&plans[at], &queries[at]);
            if (round == 0) {
                before[at] = found;
                continue;
            }
            ck_assert_mem_eq(&found.last, &before[at].last, sizeof found.last);
            ck_assert_mem_eq(found.missed, before[at].missed, sizeof found.missed);
            ck_assert_int_eq(found.is_whole, before[at].is_whole);
            tile_finish(&plans[at]);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("visits");
    TCase *tc = tcase_create("visits");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, as_many_visits_miss_as_in_a_pass_visit_by_visit);
    tcase_add_test(tc, an_l2_that_holds_all_or_nothing);
    tcase_add_test(tc, the_last_item_is_done_at_the_makespan);
    tcase_add_test(tc, the_first_l2_groups_stand_for_more_items);
    tcase_add_test(tc, of_too_many_items_at_first_nothing_is_known);
    tcase_add_test(tc, a_plan_without_visits);
    tcase_add_test(tc, the_same_bits_twice);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
