/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_order_find: a model of a pass, in the time of a block of one query head.
 */
#include "choose/order.h"

#include <math.h>

/* To begin and end an item takes as long as this many blocks; in turns, an item waits for others,
 * too. */
static const double ITEM_BLOCKS = 3.0, ITEM_BLOCKS_IN_TURNS = 4.0;
/* An item walks several heads: for each further one this share of the time, measured of up to 8
 * heads. Where tiles are of different lengths, and heads come one after another, the SMs drift
 * apart and miss each other's blocks in L2; then it is times the spread of lengths (their standard
 * deviation over their mean). In step there is little of that. In turns it is both: all go from the
 * last row to the first, which keeps tiles together that end at one row. */
static const double DRIFT = 0.045, DRIFT_IN_STEP = 0.003;
static const double DRIFT_IN_TURNS = 0.1, DRIFT_IN_TURNS_AND_STEP = 0.035;
static const double DRIFT_HEADS = 7;
/* In turns, an item of one head waits for its turns at blocks that come one after another; the
 * turns of several heads come by while it is at work on the others. Times the spread. */
static const double ALONE_IN_TURNS = 0.2;
/* What a section of 1, 2 and 4 rounds takes longer for its misses in L2; in turns and step, for
 * tiles that wait as more of them are of one stream. */
static const double SECTION_MISSES[] = { 0, 0.008, 0.02 };
static const double SECTION_TURNS[] = { 0.02, 0.01, 0 };
/* One key of a sum of dk and dv, written and read, against a block of 64 rows x 128 keys on one of
 * 132 SMs. Both grow with head_dim. */
static const double SUM_BLOCKS = 2e-4;
/* More parts are more memory: they have to save this share of the time. */
static const double WORTH = 0.005;

enum { SIMULATED_ITEMS = 32, SM_MAX = 1024 };

static bool has_lists(const struct tile_plan *plan)
{
    return plan->list_count > 1;
}

int64_t backward_order_section(const struct tile_plan *plan, const struct order_query *query,
                               struct backward_order order)
{
    const int64_t streams = (int64_t)query->heads_kv * order.parts;
    const int64_t section =
        plan->tile_count > 0 ? (int64_t)order.rounds * query->at_a_time / plan->tile_count : 1;

    if (has_lists(plan) || section > streams)
        return streams;
    return section < 1 ? 1 : section;
}

/* The least time of the heap's root goes up to `at`. */
static void heap_replace_least(double *heap, int32_t count, double at)
{
    int32_t hole = 0;

    for (int32_t child = 1; child < count; child = 2 * hole + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= at)
            break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = at;
}

double backward_makespan(const struct tile_plan *plan, const struct order_query *query,
                         struct backward_order order)
{
    const double heads = query->group / order.parts;
    const double item = plan->on_grid ? ITEM_BLOCKS_IN_TURNS : ITEM_BLOCKS;
    const int64_t copies = has_lists(plan) ? order.parts : (int64_t)order.parts * query->heads_kv;
    const int64_t section = backward_order_section(plan, query, order);
    const double tiles = (double)plan->tile_count;
    const double sum = ((double)plan->block_count * heads + item * tiles) * (double)copies;
    const double items = tiles * (double)copies;
    double done[SM_MAX] = { 0 }, last = 0;

    if (query->at_a_time > SM_MAX || items > (double)SIMULATED_ITEMS * query->at_a_time)
        return sum / query->at_a_time + sum / items / 2;
    for (int64_t first = 0; first < copies; first += section)
        for (int64_t i = 0; i < plan->tile_count; i++)
            for (int64_t copy = first; copy < copies && copy < first + section; copy++) {
                const double at = done[0] + plan->block_counts[i] * heads + item;

                heap_replace_least(done, query->at_a_time, at);
                last = fmax(last, at);
            }
    return last;
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

static bool turns_in_step(const struct tile_plan *plan)
{
    return plan->on_grid && plan->lockstep == TILE_LOCKSTEP_DESCENDING;
}

static double drift_of(const struct tile_plan *plan)
{
    if (turns_in_step(plan))
        return DRIFT_IN_TURNS_AND_STEP * spread_of(plan);
    if (plan->on_grid)
        return DRIFT_IN_TURNS;
    return plan->lockstep == TILE_LOCKSTEP_NONE ? DRIFT * spread_of(plan) : DRIFT_IN_STEP;
}

struct backward_order backward_order_find(const struct tile_plan *plan,
                                          const struct order_query *query)
{
    const double drift = drift_of(plan);
    const double *misses = turns_in_step(plan) ? SECTION_TURNS : SECTION_MISSES;
    const double sum_blocks = SUM_BLOCKS * (double)plan->shape.seqlen_k * query->heads_kv *
                              (64.0 * 128.0) / ((double)plan->tile_m * plan->tile_n) /
                              query->at_a_time * 132.0;
    struct backward_order best = { 1, 1 };
    const double alone = plan->on_grid ? ALONE_IN_TURNS * spread_of(plan) : 0;
    double least = INFINITY;

    for (int32_t parts = 1; parts <= query->group; parts++) {
        if (query->group % parts)
            continue;
        const double sums = parts > 1 ? sum_blocks * parts : 0;
        const int32_t heads = query->group / parts;
        const double drifts = 1 + (heads > 1 ? drift * fmin(heads - 1, DRIFT_HEADS) : alone);
        double least_of_parts = INFINITY;
        struct backward_order order = { parts, 1 }, best_of_parts = order;

        for (int step = 0; step < 3; step++) {
            order.rounds = 1 << step;
            const double time = backward_makespan(plan, query, order) * (drifts + misses[step]);
            if (time < least_of_parts) {
                least_of_parts = time;
                best_of_parts = order;
            }
        }
        if (least_of_parts + sums < least * (1 - WORTH)) {
            least = least_of_parts + sums;
            best = best_of_parts;
        }
    }
    return best;
}
