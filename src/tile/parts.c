/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_parts: a model of a pass, in the time of a block of one query head.
 */
#include "tile/parts.h"

#include <math.h>

/* To begin and end an item takes as long as this many blocks. */
static const double ITEM_BLOCKS = 3.0;
/* Where tiles are of different lengths, and an item walks several heads, the SMs drift apart and
 * miss each other's blocks in L2: for each further head, this share of the time, times the spread
 * of lengths (their standard deviation over their mean). Measured of up to 8 heads; then they have
 * drifted as far apart as they can. */
static const double DRIFT = 0.045;
static const double DRIFT_HEADS = 7;
/* One key of a sum of dk and dv, written and read, against a block of 64 rows x 128 keys on one of
 * 132 SMs. Both grow with head_dim. */
static const double SUM_BLOCKS = 2e-4;
/* More parts are more memory: they have to save this share of the time. */
static const double WORTH = 0.005;

enum { SIMULATED_ITEMS = 32, SM_MAX = 1024 };

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

double backward_makespan(const struct backward_plan *plan, const struct parts_query *query,
                         int32_t parts)
{
    const double heads = query->group / parts;
    const int64_t copies = (int64_t)parts * (plan->list_count > 1 ? 1 : query->heads_kv);
    const double tiles = (double)plan->tile_count;
    const double sum = ((double)plan->block_count * heads + ITEM_BLOCKS * tiles) * (double)copies;
    const double items = tiles * (double)copies;
    double done[SM_MAX] = { 0 }, last = 0;

    if (query->at_a_time > SM_MAX || items > (double)SIMULATED_ITEMS * query->at_a_time)
        return sum / query->at_a_time + sum / items / 2;
    for (int64_t i = 0; i < plan->tile_count; i++)
        for (int64_t copy = 0; copy < copies; copy++) {
            const double at = done[0] + plan->tiles[i].block_count * heads + ITEM_BLOCKS;

            heap_replace_least(done, query->at_a_time, at);
            last = fmax(last, at);
        }
    return last;
}

/* The spread of the tiles' lengths. */
static double spread_of(const struct backward_plan *plan)
{
    const double mean = (double)plan->block_count / (double)plan->tile_count;
    double squares = 0;

    if (plan->block_count == 0)
        return 0;
    for (int64_t i = 0; i < plan->tile_count; i++) {
        const double off = plan->tiles[i].block_count - mean;

        squares += off * off;
    }
    return sqrt(squares / (double)plan->tile_count) / mean;
}

int32_t backward_parts(const struct backward_plan *plan, const struct parts_query *query)
{
    const double spread = spread_of(plan);
    const double sum_blocks = SUM_BLOCKS * (double)plan->shape.seqlen_k * query->heads_kv *
                              (64.0 * 128.0) / ((double)plan->tile_m * plan->tile_n) /
                              query->at_a_time * 132.0;
    double least = INFINITY;
    int32_t best = 1;

    for (int32_t parts = 1; parts <= query->group; parts++) {
        if (query->group % parts)
            continue;
        const double drift = 1 + DRIFT * spread * fmin(query->group / parts - 1, DRIFT_HEADS);
        const double time =
            backward_makespan(plan, query, parts) * drift + (parts > 1 ? sum_blocks * parts : 0);
        if (time < least * (1 - WORTH)) {
            least = time;
            best = parts;
        }
    }
    return best;
}
