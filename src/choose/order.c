/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_order_find: a model of a backward pass; all candidates are tried. Times are in blocks of
 * one query head.
 *
 * The model is the makespan of a queue of items, times what depends on how the SMs share L2:
 *
 *   drift   An item works on several heads one after another. Where tiles are of different lengths,
 *           the SMs drift apart and miss each other's blocks in L2: times the spread of lengths
 *           (their standard deviation over their mean). In lockstep there is little of that. With
 *           ordered accumulation all tiles go from the last row to the first, which keeps tiles
 *           together that end at one row.
 *   alone   With ordered accumulation an item of one head waits for each of its tickets; the
 *           tickets of several heads come up while the item works on the others.
 *   L2      Larger L2 groups miss more. With ordered accumulation in lockstep they wait less, as
 *           fewer of the tiles at work are of one head group.
 *
 * The functions only read the plan; any thread may call them.
 */
#include "choose/order.h"

#include "choose/makespan.h"

#include "attention_backward.args.h"

#include <math.h>

enum { SIMULATED_ITEMS = 32, GROUP_SIZES = 3 };

static const struct cost_table *table_of(const struct order_query *query)
{
    return query->costs ? query->costs : cost_table_find(NULL);
}

static bool has_lists(const struct tile_plan *plan)
{
    return plan->list_count > 1;
}

int64_t backward_order_l2_group(const struct tile_plan *plan, const struct order_query *query,
                                struct backward_order order)
{
    const int head_groups = query->heads_kv * order.parts;

    return has_lists(plan) ? head_groups
                           : backward_l2_groups_find((int)plan->tile_count, head_groups,
                                                     order.waves, query->at_a_time)
                                 .head_groups;
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

double backward_makespan(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order)
{
    const struct order_costs *costs = &table_of(query)->order;
    const double heads = query->group / order.parts;
    const double item = plan->on_grid ? costs->item_blocks_ordered : costs->item_blocks;
    const int64_t copies = has_lists(plan) ? order.parts : (int64_t)order.parts * query->heads_kv;
    const int64_t group = backward_order_l2_group(plan, query, order);
    const double tiles = (double)plan->tile_count;
    const double sum = ((double)plan->block_count * heads + item * tiles) * (double)copies;
    const double items = tiles * (double)copies;
    struct makespan makespan = { .places = query->at_a_time };

    if (query->at_a_time > MAKESPAN_PLACES_MAX ||
        items > (double)SIMULATED_ITEMS * query->at_a_time)
        return sum / query->at_a_time + sum / items / 2;
    for (int64_t first = 0; first < copies; first += group)
        for (int64_t i = 0; i < plan->tile_count; i++)
            for (int64_t copy = first; copy < copies && copy < first + group; copy++)
                makespan_take(&makespan, plan->block_counts[i] * heads + item);
    return makespan.last;
}

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

static double drift_of(const struct tile_plan *plan, const struct order_costs *costs)
{
    if (is_ordered_lockstep(plan))
        return costs->drift_ordered_lockstep * spread_of(plan);
    if (plan->on_grid)
        return costs->drift_ordered;
    return plan->lockstep == TILE_LOCKSTEP_NONE ? costs->drift * spread_of(plan)
                                                : costs->drift_lockstep;
}

/* The share of its makespan that a pass takes longer, with so many heads an item. */
static double slowdown(const struct tile_plan *plan, const struct order_costs *costs, int32_t heads)
{
    if (heads > 1)
        return drift_of(plan, costs) * fmin(heads - 1, costs->drift_heads);
    return plan->on_grid ? costs->alone_ordered * spread_of(plan) : 0;
}

/* The time of a pass without the sums of its parts, in L2 groups of 1 << size waves. */
static double time_of_items(const struct tile_plan *plan, const struct order_query *query,
                            int32_t parts, int32_t size)
{
    const struct order_costs *costs = &table_of(query)->order;
    const double *misses = is_ordered_lockstep(plan) ? costs->l2_waits : costs->l2_misses;
    const struct backward_order order = { parts, 1 << size };

    return backward_makespan(plan, query, order) *
           (1 + slowdown(plan, costs, query->group / parts) + misses[size]);
}

/* The time with order->parts in the best L2 groups, which *order receives. */
static double find_waves(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order *order)
{
    struct backward_order tried = *order;
    double least = INFINITY;

    for (int32_t i = 0; i < GROUP_SIZES; i++) {
        const double time = time_of_items(plan, query, tried.parts, i);

        tried.waves = 1 << i;
        if (time < least) {
            least = time;
            *order = tried;
        }
    }
    return least;
}

/* What the sums of dk and dv of a part take, of several. A block's time grows with head_dim as they
 * do. */
static double sum_of_part(const struct tile_plan *plan, const struct order_query *query)
{
    const struct cost_table *table = table_of(query);

    return table->order.sum_blocks * (double)plan->shape.seqlen_k * query->heads_kv *
           (64.0 * 128.0) / ((double)plan->tile_m * plan->tile_n) / query->at_a_time *
           table->sm_count;
}

double backward_order_time(const struct tile_plan *plan, const struct order_query *query,
                           struct backward_order order)
{
    const int32_t size = order.waves == 4 ? 2 : order.waves - 1;
    const double sums = order.parts > 1 ? sum_of_part(plan, query) * order.parts : 0;

    return time_of_items(plan, query, order.parts, size) + sums;
}

struct backward_order backward_order_find(const struct tile_plan *plan,
                                          const struct order_query *query)
{
    const double sum_blocks = sum_of_part(plan, query), worth = table_of(query)->order.worth;
    struct backward_order best = { 1, 1 };
    double least = INFINITY;

    for (int32_t parts = 1; parts <= query->group; parts++) {
        struct backward_order order = { parts, 1 };
        double time;

        if (query->group % parts)
            continue;
        time = find_waves(plan, query, &order) + (parts > 1 ? sum_blocks * parts : 0);
        if (time < least * (1 - worth)) {
            least = time;
            best = order;
        }
    }
    return best;
}
