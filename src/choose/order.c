/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_order_find: a model of a backward pass, in blocks of one query head.
 *
 * The model is the makespan of a queue of items, times what L2 misses cost: those of visits.h, each
 * period of time for itself, but for a share of its visits that device memory serves beside all
 * else. Of a plan with a list of tiles for each kv head nothing is known of L2.
 *
 * With ordered accumulation all tiles go from the last row to the first, and L2 is not simulated:
 *
 *   drift   An item works on several heads one after another, and SMs drift apart: a share for each
 *           further head.
 *   alone   An item of one head waits for each of its tickets; the tickets of several heads come up
 *           while the item works on the others.
 *   misses  Of so many tiles at work together on one head group, as many ends (of documents) are
 *           the share of visits that miss. An SM that is idle misses nothing, and leaves device
 *           memory to others: times the square of the share of SMs that are at work.
 *   waits   In lockstep, tiles wait less in larger L2 groups, as fewer of the tiles at work are of
 *           one head group.
 *   L2      Tiles that cannot go in lockstep miss more in larger L2 groups.
 *
 * docs/lab-notes.md (packed causal documents) has the measured times that the model was made from.
 * The functions only read the plan; any thread may call them.
 */
#include "choose/order.h"

#include "choose/makespan.h"

#include "attention_backward.args.h"

#include <math.h>

enum { SIMULATED_ITEMS = 32, WHOLE_MAX = 32 };
/* What a pass finds in L2 again is as if blocks of rows had this share of it. */
#define L2_SHARE 0.75
/* A partial block takes this much longer than another one. Times of all visits of packed full
 * documents, head_dim 128: 0.27 of tiles across documents, 0.39 of all partial blocks; 0.15 to 0.3
 * choose about as well (docs/lab-notes.md). */
#define PARTIAL_MORE 0.25
/* Lockstep pays while one block of rows of all documents at work, of all heads of a kv head, takes
 * no more than this share of L2: 1/12 gains 1 to 12 %, 1/6 loses 2 to 8 (docs/lab-notes.md). */
enum { LOCKSTEP_L2_SHARE = 8, LOCKSTEP_ROWS = 64 };
/* Pairs of blocks pay that visit no more than this share more, with 32 blocks of rows a tile or
 * more (64 are level or gain a little), while a tile's rows take no more than a share of L2: up to
 * 0.38 they gain 0 to 6 %, 0.55 loses 2, 1.1 loses 6 (docs/lab-notes.md). With ordered accumulation
 * 0.7 of an H200's gains 2 to 10 %, 1.1 loses 3; as many bytes on every device, as the tiles decide
 * the bits of dq. */
#define PAIRS_MORE_VISITED 0.02
#define PAIRS_L2_SHARE 0.4
enum { PAIRS_BLOCKS_MIN = 32, PAIRS_ORDERED_BYTES = 47185920 };
/* A group that is off whole waves by no more than this part of one is as good as whole. */
enum { WAVE_SLACK = 8 };

/* Of tiles that cannot go in lockstep and whose lengths differ more, kv heads that are left whole
 * drift apart more than the model knows. Those of a causal mask have 0.58. */
#define WHOLE_SPREAD_MAX 0.6

/* The model is not exact enough to tell apart what is closer than this. */
#define TIE 0.01

/* Tiles of documents apart have to save this share of the work. Less is as likely to be lost again
 * in L2 groups that are no whole waves: docs/lab-notes.md has both kinds in ten orders each. */
#define APART_WORTH 0.03

static const struct cost_table *table_of(const struct order_query *query)
{
    return query->costs ? query->costs : cost_table_find(NULL);
}

static int64_t l2_bytes_of(const struct order_query *query)
{
    return query->l2_bytes ? query->l2_bytes : table_of(query)->l2_bytes;
}

static bool has_lists(const struct tile_plan *plan)
{
    return plan->list_count > 1;
}

/* The constants of ordered accumulation were fitted without it. */
static double partial_more(const struct tile_plan *plan)
{
    return plan->on_grid ? 0 : PARTIAL_MORE;
}

int32_t backward_own_heads(int32_t own_tiles, int32_t head_groups, int32_t at_a_time,
                           double first_share)
{
    struct backward_l2_groups l2 = backward_l2_groups_find(own_tiles, head_groups, 1, at_a_time);
    int32_t groups = (head_groups + l2.head_groups - 1) / l2.head_groups, first;
    const bool has_waves = groups > 1;

    if (!has_waves) { /* heads of less than a wave */
        groups = head_groups;
        l2.head_groups = 1;
    }
    first = max32(1, min32(groups, (int32_t)ceil(groups * first_share)));
    if (has_waves && first * l2.waves % 2 && first + 1 < groups)
        first++;
    return min32(head_groups, first * l2.head_groups);
}

/* The head groups that are divided; is_whole: those that are not, if there are any. */
static struct visit_section section_of(const struct tile_plan *plan,
                                       const struct order_query *query, struct backward_order order,
                                       bool is_whole)
{
    const int32_t heads_kv = is_whole ? order.whole_heads : query->heads_kv - order.whole_heads;
    const int32_t parts = is_whole ? 1 : order.parts;
    struct backward_l2_groups l2;

    if (heads_kv == 0)
        return (struct visit_section){ 0 };
    if (has_lists(plan)) /* each list is one kv head's */
        return (struct visit_section){ .copies = parts,
                                       .heads = query->group / parts,
                                       .l2_group = parts };
    l2 = backward_l2_groups_find((int)plan->tile_count, heads_kv * parts, order.waves,
                                 query->at_a_time);
    return (struct visit_section){ heads_kv * parts, query->group / parts, max32(1, l2.head_groups),
                                   l2.waves, l2.wave_items };
}

/* To begin and end an item. */
static double item_blocks(const struct tile_plan *plan, const struct order_query *query)
{
    const struct order_costs *costs = &table_of(query)->order;

    return plan->on_grid ? costs->item_blocks_ordered : costs->item_blocks;
}

static double section_sum(const struct tile_plan *plan, const struct visit_section *section,
                          double item)
{
    const double time =
        (double)plan->block_count + partial_more(plan) * (double)plan->partial_blocks;

    return (time * section->heads + item * (double)plan->tile_count) * (double)section->copies;
}

static void section_take(struct makespan *makespan, const struct tile_plan *plan,
                         const struct visit_section *section, double item)
{
    const double partial = partial_more(plan);

    for (int64_t first = 0; first < section->copies; first += section->l2_group)
        for (int64_t i = 0; i < plan->tile_count; i++)
            for (int64_t copy = first; copy < section->copies && copy < first + section->l2_group;
                 copy++)
                makespan_take(makespan, tile_time(plan, i, partial) * section->heads + item);
}

int64_t backward_order_l2_group(const struct tile_plan *plan, const struct order_query *query,
                                struct backward_order order)
{
    if (has_lists(plan))
        return (int64_t)query->heads_kv * order.parts;
    return section_of(plan, query, order, order.whole_heads > 0).l2_group;
}

/* With so many blocks to begin and end an item. */
static double find_makespan(const struct tile_plan *plan, const struct order_query *query,
                            struct backward_order order, double item)
{
    const struct visit_section whole = section_of(plan, query, order, true);
    const struct visit_section divided = section_of(plan, query, order, false);
    const double places = query->at_a_time, tiles = (double)plan->tile_count;
    const double first = section_sum(plan, &whole, item);
    const double last = section_sum(plan, &divided, item);
    struct makespan makespan = { .places = query->at_a_time };

    if (query->at_a_time > MAKESPAN_PLACES_MAX ||
        tiles * ((double)divided.copies + whole.copies) > SIMULATED_ITEMS * places)
        return fmax((first + last) / places + last / (tiles * divided.copies) / 2,
                    whole.copies ? first / places + first / (tiles * whole.copies) / 2 : 0);
    section_take(&makespan, plan, &whole, item);
    section_take(&makespan, plan, &divided, item);
    return makespan.last;
}

/* ---- what tiles at work together share ---- */

/* Different numbers, by open addressing. */
enum { SET_BITS = 12, SET_PLACES = 1 << SET_BITS };
_Static_assert(SET_PLACES >= 4 * MAKESPAN_PLACES_MAX, "a quarter full at most");
struct number_set {
    int32_t number[SET_PLACES];
    int32_t round[SET_PLACES]; /* a number is there in this round */
};

static bool set_add(struct number_set *set, int32_t number, int32_t round)
{
    uint32_t place = (uint32_t)number * 2654435761u >> (32 - SET_BITS);

    while (set->round[place] == round && set->number[place] != number)
        place = (place + 1) % SET_PLACES;
    if (set->round[place] == round)
        return false;
    set->number[place] = number;
    set->round[place] = round;
    return true;
}

/* Documents among so many tiles from tile `first` on. round: another one for each call with a set.
 */
static int32_t count_documents(const struct tile_plan *plan, int64_t first, int64_t count,
                               struct number_set *set, int32_t round)
{
    int32_t documents = 0;

    for (int64_t t = first; t < first + count; t++)
        documents += set_add(set, tile_document(plan, t), round);
    return documents;
}

/* Of so many tiles at work together: the share of visits that miss. */
static double find_misses_of(const struct tile_plan *plan, int64_t at_work)
{
    struct number_set set = { { 0 }, { 0 } };
    int32_t round = 0;
    double misses = 0;

    for (int64_t first = 0; first < plan->tile_count; first += at_work) {
        const int64_t count = min64(at_work, plan->tile_count - first);
        const int32_t documents = count_documents(plan, first, count, &set, ++round);
        int64_t blocks = 0;

        for (int64_t t = first; t < first + count; t++)
            blocks += plan->block_counts[t];
        misses += (double)blocks * documents / (double)count;
    }
    return plan->block_count ? misses / (double)plan->block_count : 0;
}

static double misses_of_section(const struct tile_plan *plan, const struct order_query *query,
                                const struct visit_section *section)
{
    const int64_t groups = max64(1, min64(section->l2_group, section->copies));
    const int64_t at_work =
        max64(1, min64((query->at_a_time + groups - 1) / groups, (int64_t)MAKESPAN_PLACES_MAX));
    struct order_sharing *memo = query->sharing;
    const int64_t place = at_work % ORDER_SHARING_PLACES;
    double misses;

    if (memo && memo->at[place].at_work == at_work)
        return memo->at[place].misses;
    misses = find_misses_of(plan, at_work);
    if (memo) {
        memo->at[place].at_work = at_work;
        memo->at[place].misses = misses;
    }
    return misses;
}

bool backward_keeps_lockstep(const struct tile_plan *plan, const struct order_query *query)
{
    const int64_t wave = min64(query->at_a_time, MAKESPAN_PLACES_MAX);
    struct number_set set = { { 0 }, { 0 } };
    int64_t documents;

    if (plan->lockstep == TILE_LOCKSTEP_NONE || plan->on_grid ||
        plan->tile_count <= wave + wave / WAVE_SLACK)
        return true;
    documents = count_documents(plan, 0, wave, &set, 1);
    return documents * query->group * query->row_bytes * LOCKSTEP_ROWS <=
           l2_bytes_of(query) / LOCKSTEP_L2_SHARE;
}

bool backward_may_want_pairs(const struct tile_plan *alone)
{
    for (int64_t t = 0; t < alone->tile_count; t++)
        if (alone->block_counts[t] >= PAIRS_BLOCKS_MIN / 2)
            return true;
    return false;
}

bool backward_wants_pairs(const struct tile_plan *alone, const struct tile_plan *pairs,
                          const struct order_query *query)
{
    const double visited_alone = (double)alone->block_count * alone->tile_n;
    const double visited = (double)pairs->block_count * pairs->tile_n;
    const double bytes_most =
        pairs->on_grid ? PAIRS_ORDERED_BYTES : PAIRS_L2_SHARE * (double)l2_bytes_of(query);
    double squares = 0, blocks; /* of a tile, in the mean over all blocks */

    for (int64_t t = 0; t < pairs->tile_count; t++)
        squares += (double)pairs->block_counts[t] * pairs->block_counts[t];
    blocks = pairs->block_count ? squares / (double)pairs->block_count : 0;
    return visited <= (1 + PAIRS_MORE_VISITED) * visited_alone && blocks >= PAIRS_BLOCKS_MIN &&
           blocks * pairs->tile_m * (double)query->row_bytes <= bytes_most;
}

/* Places of the memo where an order may be. With half of all places taken, hardly any finds none.
 */
enum { MEMO_TRIES = 16 };

/* The first of them. */
static int32_t memo_place(struct backward_order order, double item)
{
    const uint32_t of_order =
        ((uint32_t)order.parts * 61 + (uint32_t)order.waves) * 61 + (uint32_t)order.whole_heads;

    return (int32_t)((of_order * 61 + (uint32_t)(item * 64)) % ORDER_MEMO_PLACES);
}

/* A pass in an order, without the sums of its parts. */
struct pass {
    double makespan;
    float missed[VISIT_PERIODS]; /* zero with ordered accumulation */
};

static struct pass find_pass(const struct tile_plan *plan, const struct order_query *query,
                             struct backward_order order, double item)
{
    const int64_t l2_bytes = l2_bytes_of(query);
    const struct visit_query visits = {
        .sections = { section_of(plan, query, order, true), section_of(plan, query, order, false) },
        .at_a_time = query->at_a_time,
        .in_lockstep = plan->lockstep != TILE_LOCKSTEP_NONE && !plan->is_unlocked,
        .item = item,
        .partial = partial_more(plan),
        .l2_blocks =
            L2_SHARE * (double)l2_bytes / fmax(1, (double)plan->tile_m * (double)query->row_bytes)
    };
    struct pass pass = { 0 };

    if (!plan->on_grid && !has_lists(plan) && query->at_a_time <= MAKESPAN_PLACES_MAX) {
        const struct missed_visits found = missed_visits_find(plan, &visits);

        for (int32_t period = 0; period < VISIT_PERIODS; period++)
            pass.missed[period] = (float)found.missed[period];
        if (found.is_whole) {
            pass.makespan = found.last;
            return pass;
        }
    }
    pass.makespan = find_makespan(plan, query, order, item);
    return pass;
}

static bool is_known(const struct order_known *known, struct backward_order order, double item)
{
    return order_is_same(known->order, order) && known->item >= item && known->item <= item;
}

/* Its place in the memo: the first of a few that has it or is free, or else the first, whose order
 * is forgotten. */
static struct order_known *memo_find(struct order_memo *memo, struct backward_order order,
                                     double item)
{
    const int32_t first = memo_place(order, item);

    for (int32_t i = 0; i < MEMO_TRIES; i++) {
        struct order_known *known = &memo->at[(first + i) % ORDER_MEMO_PLACES];

        if (!known->order.parts || is_known(known, order, item))
            return known;
    }
    return &memo->at[first];
}

static struct pass pass_of(const struct tile_plan *plan, const struct order_query *query,
                           struct backward_order order)
{
    const double item = item_blocks(plan, query);
    struct order_known *known = query->memo ? memo_find(query->memo, order, item) : NULL;
    struct pass pass;

    if (known && is_known(known, order, item)) {
        pass.makespan = known->makespan;
        memcpy(pass.missed, known->missed, sizeof pass.missed);
        return pass;
    }
    pass = find_pass(plan, query, order, item);
    if (known) {
        *known = (struct order_known){ order, item, pass.makespan, { 0 } };
        memcpy(known->missed, pass.missed, sizeof known->missed);
    }
    return pass;
}

double backward_makespan(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order)
{
    return find_makespan(plan, query, order, item_blocks(plan, query));
}

/* ---- tiles ---- */

/* The work of a kv head, in blocks, with items of `group` heads, by the default costs. */
static double work_of(const struct tile_plan *plan, int32_t group)
{
    return section_sum(plan, &(struct visit_section){ .copies = 1, .heads = group },
                       cost_table_find(NULL)->order.item_blocks);
}

ffa_status backward_tiles_build(struct tile_plan *out, const ffa_mask *mask,
                                const struct tile_options *opts, int32_t group, ffa_error *err)
{
    struct tile_options apart_opts = *opts;
    struct tile_plan apart = { 0 }, across;
    ffa_status rc;

    FFA_TRY(tile_build(out, mask, TILE_OWNS_KEYS, opts, err));
    /* Hardly any tiles save more than what partial blocks take longer. */
    if (opts->cuts != TILE_CUTS_CHEAP || opts->on_grid || !group || has_lists(out) ||
        PARTIAL_MORE * (double)out->partial_blocks < APART_WORTH * (double)out->block_count)
        goto out;
    apart_opts.cuts = TILE_CUTS_ISOLATE;
    rc = tile_build(&apart, mask, TILE_OWNS_KEYS, &apart_opts, err);
    if (rc != FFA_OK) {
        tile_finish(out);
        goto out;
    }
    if (work_of(&apart, group) <= (1 - APART_WORTH) * work_of(out, group)) {
        across = *out;
        *out = apart;
        apart = across;
    }
out:
    tile_finish(&apart);
    return rc;
}

/* ---- the time of an order ---- */

/* The spread of the tiles' lengths. */
static double spread_of(const struct tile_plan *plan)
{
    const double mean = (double)plan->block_count / (double)plan->tile_count;
    double squares = 0;

    if (plan->block_count == 0)
        return 0;
    for (int64_t i = 0; i < plan->tile_count; i++) {
        const double off = plan->block_counts[i] - mean;

        squares += off * off;
    }
    return sqrt(squares / (double)plan->tile_count) / mean;
}

static bool is_ordered_lockstep(const struct tile_plan *plan)
{
    return plan->on_grid && plan->lockstep == TILE_LOCKSTEP_DESCENDING;
}

/* With ordered accumulation: the share of its makespan that a pass takes longer, with so many
 * heads an item. */
static double slowdown(const struct tile_plan *plan, const struct order_query *query, double heads)
{
    const struct order_costs *costs = &table_of(query)->order;
    const double further = fmin(heads - 1, costs->drift_heads);

    if (heads <= 1)
        return costs->alone_ordered * spread_of(plan);
    return further * (is_ordered_lockstep(plan) ? costs->drift_ordered_lockstep * spread_of(plan)
                                                : costs->drift_ordered);
}

/* What L2 misses, waiting and drift cost with ordered accumulation, as a share of the makespan. */
static double ordered_of(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order, double makespan)
{
    const struct order_costs *costs = &table_of(query)->order;
    const struct visit_section whole = section_of(plan, query, order, true);
    const struct visit_section divided = section_of(plan, query, order, false);
    const double share = order.whole_heads / (double)query->heads_kv;
    const double blocks = (double)plan->block_count * query->group * query->heads_kv;
    const double busy = makespan > 0 ? blocks / query->at_a_time / makespan : 0;
    double cost = (1 - share) * slowdown(plan, query, divided.heads), misses;

    if (order.whole_heads)
        cost += share * slowdown(plan, query, whole.heads);
    if (plan->lockstep == TILE_LOCKSTEP_NONE)
        return cost + costs->l2_misses[order.waves - 1];
    misses = (1 - share) * misses_of_section(plan, query, &divided);
    if (order.whole_heads)
        misses += share * misses_of_section(plan, query, &whole);
    return cost + costs->misses * busy * busy * misses +
           (is_ordered_lockstep(plan) ? costs->l2_waits[order.waves - 1] : 0);
}

/* What L2 misses cost, as a share of the makespan. */
static double miss_cost(const struct order_costs *costs, const struct pass *pass)
{
    double sum = 0;

    for (int32_t period = 0; period < VISIT_PERIODS; period++)
        sum += fmax(0, pass->missed[period] - costs->miss_free);
    return costs->miss_cost * sum / VISIT_PERIODS;
}

/* The time of a pass without the sums of its parts. */
static double time_of_items(const struct tile_plan *plan, const struct order_query *query,
                            struct backward_order order)
{
    const struct pass pass = pass_of(plan, query, order);

    return pass.makespan * (1 + (plan->on_grid ? ordered_of(plan, query, order, pass.makespan)
                                               : miss_cost(&table_of(query)->order, &pass)));
}

/* What the sums of dk and dv take, of the kv heads that are divided. A block's time grows with
 * head_dim as they do. */
static double time_of_sums(const struct tile_plan *plan, const struct order_query *query,
                           struct backward_order order)
{
    const struct cost_table *table = table_of(query);
    const double heads = query->heads_kv - order.whole_heads;

    if (order.parts == 1)
        return 0;
    return table->order.sum_blocks * (double)plan->shape.seqlen_k * heads * order.parts *
           (64.0 * 128.0) / ((double)plan->tile_m * plan->tile_n) / query->at_a_time *
           table->sm_count;
}

double backward_order_time(const struct tile_plan *plan, const struct order_query *query,
                           struct backward_order order)
{
    return time_of_items(plan, query, order) + time_of_sums(plan, query, order);
}

/* No pass takes less: its work, evenly. */
static double least_time(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order)
{
    const double item = item_blocks(plan, query);
    const struct visit_section whole = section_of(plan, query, order, true);
    const struct visit_section divided = section_of(plan, query, order, false);

    return (section_sum(plan, &whole, item) + section_sum(plan, &divided, item)) /
               query->at_a_time +
           time_of_sums(plan, query, order);
}

/* The time with order->parts in the best L2 groups, which *order receives; INFINITY where it cannot
 * be `enough`. Without ordered accumulation L2 groups of one size are one order, whatever they are
 * called. */
static double find_waves(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order *order, double enough)
{
    struct backward_order tried = *order;
    int64_t divided_before = 0, whole_before = 0;
    double least = INFINITY;

    if (least_time(plan, query, tried) > enough)
        return INFINITY;
    for (tried.waves = 1; tried.waves <= ORDER_WAVES_MAX; tried.waves++) {
        const int64_t divided = section_of(plan, query, tried, false).l2_group;
        const int64_t whole = section_of(plan, query, tried, true).l2_group;
        double time;

        if (!plan->on_grid && divided == divided_before && whole == whole_before)
            continue;
        divided_before = divided;
        whole_before = whole;
        time = time_of_items(plan, query, tried);
        if (time < least) {
            least = time;
            order->waves = tried.waves;
        }
    }
    return least + time_of_sums(plan, query, *order);
}

/* Parts of kv heads that have sums. */
static int64_t sums_of(const struct order_query *query, struct backward_order order)
{
    return order.parts > 1 ? (int64_t)order.parts * (query->heads_kv - order.whole_heads) : 0;
}

static int32_t most_parts(const struct order_query *query)
{
    return query->parts_max ? min32(query->parts_max, query->group) : query->group;
}

static bool may_leave_whole(const struct tile_plan *plan, const struct order_query *query)
{
    return query->can_leave_whole && !has_lists(plan) && !plan->is_unlocked &&
           (plan->lockstep != TILE_LOCKSTEP_NONE || spread_of(plan) < WHOLE_SPREAD_MAX);
}

double backward_parts_worth(const struct tile_plan *plan, const struct order_query *query)
{
    return may_leave_whole(plan, query) ? TIE : table_of(query)->order.worth;
}

/* An order of which the time is known. */
struct timed_order {
    struct backward_order order;
    double time;
};

/* The orders that leave all but a power of two of the kv heads whole, each in its best L2 groups.
 * WHOLE_MAX bounds the list, which is compared one by one: where there are more (groups with many
 * divisors over many kv heads), it has those of the fewest parts. */
static int32_t list_whole(struct timed_order *out, const struct tile_plan *plan,
                          const struct order_query *query, double least)
{
    int32_t count = 0;

    for (int32_t parts = 2; parts <= most_parts(query); parts++)
        for (int32_t divided = 1;
             query->group % parts == 0 && divided < query->heads_kv && count < WHOLE_MAX;
             divided *= 2) {
            struct timed_order *order = &out[count++];

            order->order = (struct backward_order){ parts, 1, query->heads_kv - divided };
            order->time = find_waves(plan, query, &order->order, least * (1 + TIE));
            least = fmin(least, order->time);
        }
    return count;
}

/* Of the best order of one part, the one found with all kv heads divided alike, and those that
 * leave some whole: the one with the fewest sums of those that take as long as the best, within
 * TIE. */
static struct backward_order find_whole(const struct tile_plan *plan,
                                        const struct order_query *query, struct timed_order one,
                                        struct timed_order found)
{
    struct timed_order list[WHOLE_MAX + 2] = { one, found };
    const int32_t count = 2 + list_whole(&list[2], plan, query, fmin(one.time, found.time));
    double least = INFINITY;
    int32_t best = -1;

    for (int32_t i = 0; i < count; i++)
        least = fmin(least, list[i].time);
    for (int32_t i = 0; i < count; i++)
        if (list[i].time <= least * (1 + TIE) &&
            (best < 0 || sums_of(query, list[i].order) < sums_of(query, list[best].order)))
            best = i;
    return list[best].order;
}

static struct backward_order find(const struct tile_plan *plan, const struct order_query *query)
{
    const double worth = table_of(query)->order.worth;
    struct timed_order best = { { 1, 1, 0 }, INFINITY }, one = best;

    for (int32_t parts = 1; parts <= most_parts(query); parts++) {
        struct timed_order tried = { { parts, 1, 0 }, 0 };

        if (query->group % parts)
            continue;
        tried.time =
            find_waves(plan, query, &tried.order, parts > 1 ? best.time * (1 - worth) : INFINITY);
        if (parts == 1)
            best = one = tried;
        else if (tried.time < best.time * (1 - worth))
            best = tried;
    }
    return may_leave_whole(plan, query) ? find_whole(plan, query, one, best) : best.order;
}

struct backward_order backward_order_find(const struct tile_plan *plan,
                                          const struct order_query *query)
{
    struct order_sharing memo = { 0 };
    struct order_query asked = *query;

    asked.sharing = query->memo ? &query->memo->sharing : &memo;
    return find(plan, &asked);
}
