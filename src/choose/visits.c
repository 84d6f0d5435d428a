/* SPDX-License-Identifier: Apache-2.0 */
#include "choose/visits.h"

#include "choose/makespan.h"

#include <math.h>

/* Visits that are looked at, about; rows of heads, at least and at most. */
enum { SAMPLE = 500, SAMPLED_ROWS_MIN = 32, SAMPLED_ROWS_MAX = 2048 };
/* Gaps in bins of a quarter octave from a sixteenth of a block on: below; bins; and no visit
 * before. */
enum { BINS = 120, FIRST_EXPONENT = -4 };
/* Items of one visit each, one after the other, keep a place no more than this busy. */
#define BUSY_MAX 1.2

static const double quarters[] = { 1, 1.189207115002721, 1.4142135623730951, 1.6817928305074290 };

/* Bin 0: to a sixteenth. */
static int32_t bin_of(double gap)
{
    int exponent;
    const double mantissa = 2 * frexp(gap, &exponent); /* gap = mantissa * 2^(exponent - 1) */
    int32_t quarter = 3;

    if (gap <= 0.0625)
        return 0;
    while (mantissa < quarters[quarter])
        quarter--;
    return min32(1 + 4 * (exponent - 1 - FIRST_EXPONENT) + quarter, BINS - 2);
}

/* Where bin `bin` ends. */
static double bin_end(int32_t bin)
{
    return ldexp(quarters[bin % 4], FIRST_EXPONENT + bin / 4);
}

struct simulation {
    const struct tile_plan *plan;
    const struct visit_query *query;
    struct makespan queue;
    int64_t item_count, work; /* simulated: items, and blocks of one head */
    /* Of each copy one after the other, of each of its tiles. */
    double begin[VISIT_ITEMS_MAX];
    bool is_descending[VISIT_ITEMS_MAX];
    int32_t copies[2]; /* simulated ones of each section */
    double visits[VISIT_PERIODS], gaps[VISIT_PERIODS][BINS];
    double times[VISIT_ITEMS_MAX]; /* when tiles visit a block of rows of one head */
};

static void simulate_section(struct simulation *sim, int32_t which, int64_t most)
{
    const struct tile_plan *plan = sim->plan;
    const struct visit_section *section = &sim->query->sections[which];
    const bool ends_first = plan->lockstep == TILE_LOCKSTEP_DESCENDING;

    for (int32_t first = 0, l2 = 0; first < section->copies; first += section->l2_group, l2++) {
        const int32_t group = min32(section->l2_group, section->copies - first);
        const int64_t base = sim->item_count;

        if (base + plan->tile_count * group > most)
            return;
        for (int64_t i = 0; i < plan->tile_count * group; i++) {
            const int64_t tile = i / group, at = base + i % group * plan->tile_count + tile;
            const int64_t wave = (int64_t)l2 * section->waves + i / section->wave_items;

            sim->begin[at] = sim->queue.free_at[0];
            sim->is_descending[at] = sim->query->in_lockstep && (wave % 2 == 1) != ends_first;
            makespan_take(&sim->queue, tile_time(plan, tile, sim->query->partial) * section->heads +
                                           sim->query->item);
        }
        sim->item_count += plan->tile_count * group;
        sim->work += plan->block_count * section->heads * group;
        sim->copies[which] += group;
    }
}

/* Shell's sort. */
static void sort(double *x, int32_t count)
{
    static const int32_t gaps[] = { 1750, 701, 301, 132, 57, 23, 10, 4, 1 }; /* Ciura 2001 */

    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (int32_t i = gaps[g]; i < count; i++) {
            const double value = x[i];
            int32_t at = i;

            for (; at >= gaps[g] && x[at - gaps[g]] > value; at -= gaps[g])
                x[at] = x[at - gaps[g]];
            x[at] = value;
        }
}

/* `count` visits to one block of rows of one head. */
static void count_gaps(struct simulation *sim, int32_t count, double weight)
{
    double *times = sim->times;

    sort(times, count);
    for (int32_t i = 0; i < count; i++) {
        const int32_t period =
            min32(VISIT_PERIODS - 1, (int32_t)(VISIT_PERIODS * times[i] / sim->queue.last));

        sim->visits[period] += weight;
        sim->gaps[period][i ? bin_of(times[i] - times[i - 1]) : BINS - 1] += weight;
    }
}

/* Head `head` of the head group whose items are those from `at` on. A tile's blocks are as far
 * apart in time between its first row and its last, although it may pass over some. */
static void sample_row(struct simulation *sim, const struct visit_section *section, int64_t at,
                       int32_t head, int64_t row, double weight)
{
    const struct tile_plan *plan = sim->plan;
    int32_t count = 0;

    for (int64_t tile = 0; tile < plan->tile_count; tile++) {
        const struct tile_rows rows = plan->rows[tile];
        const double blocks = tile_time(plan, tile, sim->query->partial);
        double place;

        if (row < rows.begin || row >= rows.end)
            continue;
        place = (double)(row - rows.begin) / (rows.end - rows.begin);
        if (sim->is_descending[at + tile])
            place = 1 - place;
        place *= blocks;
        sim->times[count++] =
            sim->begin[at + tile] + sim->query->item / 2 +
            (sim->query->in_lockstep ? place * section->heads : place + head * blocks);
    }
    count_gaps(sim, count, weight);
}

/* The place of sample `index` of `count` things in dimension `which` of three: a sequence that
 * spreads evenly over all three, however many samples are taken (powers of the inverse of the real
 * root of x^4 = x + 1; Roberts 2018). */
static int64_t spread(int64_t index, int32_t which, int64_t count)
{
    static const double steps[] = { 0.8191725133961645, 0.6710436067037893, 0.5497004779019703 };
    const double turn = 0.5 + steps[which] * (double)index;

    return (int64_t)((turn - floor(turn)) * (double)count);
}

static void sample(struct simulation *sim)
{
    const struct tile_plan *plan = sim->plan;
    const int64_t length = tile_swept_length(plan);
    const int64_t copies = sim->copies[0] + sim->copies[1];
    const int64_t count =
        max64(SAMPLED_ROWS_MIN, min64(SAMPLED_ROWS_MAX, SAMPLE * (length / tile_block_size(plan)) /
                                                            max64(1, plan->block_count)));

    for (int64_t i = 0; i < count; i++) {
        const int64_t copy = spread(i, 0, copies);
        const int32_t which = copy >= sim->copies[0];
        const struct visit_section *section = &sim->query->sections[which];

        sample_row(sim, section, copy * plan->tile_count, (int32_t)spread(i, 1, section->heads),
                   spread(i, 2, length),
                   (double)section->heads * section->copies / sim->copies[which]);
    }
}

/* Of visits that come at `rate` blocks in the time of one: the share whose block has left L2. */
static double miss_share(const double *gaps, double visits, double rate, double l2_blocks)
{
    double tail = 1, held = 0, begin = 0;

    for (int32_t bin = 0; bin < BINS - 1; bin++) {
        const double share = gaps[bin] / visits, end = bin_end(bin);
        const double more = rate * (tail - share / 2) * (end - begin);

        if (held + more >= l2_blocks)
            return tail - share * (l2_blocks - held) / more;
        held += more;
        tail -= share;
        begin = end;
    }
    return fmax(0, tail);
}

static struct missed_visits missed_of(const struct simulation *sim)
{
    struct missed_visits out = { .last = sim->queue.last,
                                 .is_whole = sim->copies[0] == sim->query->sections[0].copies &&
                                             sim->copies[1] == sim->query->sections[1].copies };
    double all = 0;

    for (int32_t period = 0; period < VISIT_PERIODS; period++)
        all += sim->visits[period];
    for (int32_t period = 0; all > 0 && period < VISIT_PERIODS; period++) {
        const double rate =
            sim->visits[period] / all * (double)sim->work / (sim->queue.last / VISIT_PERIODS);

        if (sim->visits[period] > 0)
            out.missed[period] =
                fmin(BUSY_MAX, rate / sim->query->at_a_time) *
                miss_share(sim->gaps[period], sim->visits[period], rate, sim->query->l2_blocks);
    }
    return out;
}

struct missed_visits missed_visits_find(const struct tile_plan *plan,
                                        const struct visit_query *query)
{
    struct simulation sim; /* its lists are written before they are read */

    sim.plan = plan;
    sim.query = query;
    sim.queue = (struct makespan){ .places = query->at_a_time };
    sim.item_count = sim.work = 0;
    memset(sim.copies, 0, sizeof sim.copies);
    memset(sim.visits, 0, sizeof sim.visits);
    memset(sim.gaps, 0, sizeof sim.gaps);
    simulate_section(&sim, 0, query->sections[1].copies ? VISIT_ITEMS_MAX / 2 : VISIT_ITEMS_MAX);
    simulate_section(&sim, 1, VISIT_ITEMS_MAX);
    for (int32_t which = 0; which < 2; which++)
        if (!sim.copies[which] && query->sections[which].copies)
            return (struct missed_visits){ 0 };
    if (sim.work)
        sample(&sim);
    return missed_of(&sim);
}
