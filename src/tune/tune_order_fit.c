/* SPDX-License-Identifier: Apache-2.0
 *
 * The constants of backward orders from measured times. The time of a case is a step function of
 * them: that of the order which they make backward_order_find choose. So they are searched, on a
 * grid of powers of the square root of two around those of before, one constant at a time and from
 * several places; whatever brings nothing goes back. What is found is judged by laps that were not
 * searched, where luck is as likely to be bad as good. The time of the order that the baseline was
 * is the baseline's. A case whose choice stays adds neither gain nor noise.
 */
#include "tune/tune_orders.h"

#include "tile/tile.h"

#include <math.h>

enum { STARTS = 8, PASSES_MAX = 40, STEP_MAX = 11 /* of the grid, each way */, LOSS_WEIGHT = 4 };
static const double NOISES_MIN =
    2; /* noise is two standard errors; four, as many fits are judged */
static const double STEP_MIN = 0.0005; /* what a constant has to bring not to go back */

#define CONSTANT(member, most, is_ordered)                                                         \
    {                                                                                              \
#member, offsetof(struct order_costs, member), most, is_ordered                            \
    }
/* clang-format off */
static const struct tune_order_constant constants[] = {
    CONSTANT(item_blocks,            1e3, false),
    CONSTANT(miss_cost,              10,  false),
    CONSTANT(miss_free,              1,   false),
    CONSTANT(item_blocks_ordered,    1e3, true),
    CONSTANT(drift_ordered,          10,  true),
    CONSTANT(drift_ordered_lockstep, 10,  true),
    CONSTANT(drift_heads,            1e3, true),
    CONSTANT(alone_ordered,          10,  true),
    CONSTANT(misses,                 10,  true),
    CONSTANT(l2_misses[0],           10,  true),
    CONSTANT(l2_misses[1],           10,  true),
    CONSTANT(l2_misses[2],           10,  true),
    CONSTANT(l2_misses[3],           10,  true),
    CONSTANT(l2_waits[0],            10,  true),
    CONSTANT(l2_waits[1],            10,  true),
    CONSTANT(l2_waits[2],            10,  true),
    CONSTANT(l2_waits[3],            10,  true),
    CONSTANT(sum_blocks,             1,   false),
    CONSTANT(worth,                  0.5, false),
};
/* clang-format on */
enum { CONSTANTS = sizeof constants / sizeof *constants };

const struct tune_order_constant *tune_order_constant_at(int32_t index)
{
    return index >= 0 && index < CONSTANTS ? &constants[index] : NULL;
}

double tune_order_constant(const struct order_costs *costs, int32_t index)
{
    double value;

    memcpy(&value, (const char *)costs + constants[index].offset, sizeof value);
    return value;
}

/* ---- the time of a choice ---- */

struct search {
    struct tune_orders *orders;
    int32_t sm_count;
    bool has_ordered; /* cases of deterministic passes */
    struct cost_table before, tried;
    struct tile_plan *tiles;  /* [case_count] */
    struct order_memo *memos; /* [case_count] */
    double *gains; /* [case_count] of the choice by the constants of before, at least 0 */
};

/* Of an order with a case: the logarithm of the baseline's time as a share of its own. */
struct known {
    double gain, noise;
};

/* In the laps that judge, or in those that constants are searched with. An order that heats have
 * dropped is not faster than the slowest of the final, whatever its few samples say; one that was
 * never timed is as slow as the slowest. */
static struct known look_up(const struct tune_order_case *of, struct backward_order order,
                            bool judges)
{
    double slowest_final = 0, slowest = 0;

    if (of->kept.parts && order_is_same(order, of->chosen))
        return (struct known){ 0, 0 };
    for (int32_t i = 0; i < of->time_count; i++) {
        const double gain = log(1 + (judges ? of->times[i].judged : of->times[i].searched));

        slowest = fmin(slowest, gain);
        if (of->times[i].is_final)
            slowest_final = fmin(slowest_final, gain);
    }
    for (int32_t i = 0; i < of->time_count; i++) {
        const struct tune_order_time *time = &of->times[i];
        const double gain = log(1 + (judges ? time->judged : time->searched));

        if (order_is_same(order, time->order.of) && time->order.is_unlocked == of->is_unlocked)
            return (struct known){ time->is_final ? gain : fmin(gain, slowest_final),
                                   time->judged_noise };
    }
    return (struct known){ slowest, 0 };
}

static struct backward_order choice_of(struct search *search, int32_t c,
                                       const struct cost_table *table)
{
    struct order_query query = tune_order_query(&search->orders->cases[c], search->sm_count, table);

    query.memo = &search->memos[c];
    return backward_order_find(&search->tiles[c], &query);
}

/* The mean over the cases of the logarithm of the time of what is chosen, as a share of that of the
 * choice by the constants of before. What becomes slower weighs more than what becomes faster. */
static double score_of(struct search *search, const struct order_costs *costs)
{
    double sum = 0;

    search->tried.order = *costs;
    for (int32_t c = 0; c < search->orders->case_count; c++) {
        const struct backward_order order = choice_of(search, c, &search->tried);
        const double gain =
            look_up(&search->orders->cases[c], order, false).gain - search->gains[c];

        sum -= gain < 0 ? LOSS_WEIGHT * gain : gain;
    }
    return sum / search->orders->case_count;
}

/* ---- the search ---- */

/* A place of the grid: the powers that constants are off by. */
struct place {
    int32_t step[CONSTANTS];
    double score;
};

/* Rounded to three digits, so that the last bits of a power decide nothing. */
static double round_value(double value)
{
    const double unit = value > 0 ? pow(10, floor(log10(value)) - 2) : 1;

    return round(value / unit) * unit;
}

static struct order_costs costs_at(const struct search *search, const struct place *place)
{
    struct order_costs out = search->before.order;

    for (int32_t i = 0; i < CONSTANTS; i++) {
        const double value = tune_order_constant(&out, i) * pow(2, place->step[i] / 2.0);
        const double rounded = fmin(constants[i].most, round_value(value));

        if (place->step[i])
            memcpy((char *)&out + constants[i].offset, &rounded, sizeof rounded);
    }
    return out;
}

static void look(struct search *search, struct place *place)
{
    const struct order_costs costs = costs_at(search, place);

    place->score = score_of(search, &costs);
}

/* Whether a constant may change: one that is 0 has no powers, and those of deterministic passes are
 * of no effect on others. */
static bool is_free(const struct search *search, int32_t constant)
{
    return tune_order_constant(&search->before.order, constant) > 0 &&
           (search->has_ordered || !constants[constant].is_ordered);
}

/* The best place with another value of one constant, wherever that is: small steps change no
 * choice. False: none is better. */
static bool step_from(struct search *search, struct place *place)
{
    struct place best = *place;

    for (int32_t i = 0; i < CONSTANTS; i++)
        for (int32_t step = -STEP_MAX; step <= STEP_MAX && is_free(search, i); step++) {
            struct place next = *place;

            next.step[i] = step;
            look(search, &next);
            if (next.score < best.score - 1e-9)
                best = next;
        }
    if (best.score >= place->score - 1e-9)
        return false;
    *place = best;
    return true;
}

/* Constants go back, wholly or a step, while that costs next to nothing in all. */
static void give_back(struct search *search, struct place *place)
{
    const double most = place->score + STEP_MIN;
    bool is_moving = true;

    while (is_moving) {
        is_moving = false;
        for (int32_t i = 0; i < CONSTANTS; i++) {
            struct place next = *place;

            if (!place->step[i])
                continue;
            next.step[i] = 0;
            look(search, &next);
            if (next.score > most) {
                next.step[i] = place->step[i] - (place->step[i] > 0 ? 1 : -1);
                look(search, &next);
            }
            if (next.score <= (next.step[i] ? place->score + 1e-9 : most)) {
                *place = next;
                is_moving = true;
            }
        }
    }
}

/* splitmix64 (Steele et al. 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Those of before, and places drawn around them: the same in each run. */
static struct place start_at(struct search *search, int32_t index, uint64_t *state)
{
    struct place out = { .score = 0 };

    for (int32_t i = 0; index && i < CONSTANTS; i++)
        if (is_free(search, i))
            out.step[i] = (int32_t)(draw(state) % 9) - 4;
    look(search, &out);
    return out;
}

static struct place find_place(struct search *search)
{
    struct place best = { .score = HUGE_VAL };
    uint64_t state = 1;

    for (int32_t i = 0; i < STARTS; i++) {
        struct place place = start_at(search, i, &state);

        for (int32_t pass = 0; pass < PASSES_MAX && step_from(search, &place); pass++)
            continue;
        give_back(search, &place);
        if (place.score < best.score - 1e-9)
            best = place;
    }
    return best;
}

/* ---- all ---- */

/* The gain over the baseline, or where this library chooses another order by the constants of
 * before that is faster, over that. None where the choice stays. */
static void fill_case(struct search *search, int32_t c)
{
    struct tune_order_case *of = &search->orders->cases[c];
    const struct backward_order was = choice_of(search, c, &search->before);
    const struct known before = look_up(of, was, true);
    struct known known;

    of->fitted = choice_of(search, c, &search->tried);
    known = look_up(of, of->fitted, true);
    of->fitted_us = of->baseline_us / exp(known.gain);
    of->fitted_gain = exp(known.gain - fmax(before.gain, 0)) - 1;
    of->fitted_noise = hypot(known.noise, before.gain > 0 ? before.noise : 0);
    if (order_is_same(was, of->fitted))
        of->fitted_gain = of->fitted_noise = 0;
}

static void fill_cases(struct search *search, const struct order_costs *costs)
{
    struct tune_orders *orders = search->orders;
    double logs = 0, squares = 0;

    search->tried.order = *costs;
    for (int32_t c = 0; c < orders->case_count; c++) {
        const struct tune_order_case *of = &orders->cases[c];

        fill_case(search, c);
        logs -= log(1 + of->fitted_gain);
        squares += of->fitted_noise * of->fitted_noise;
    }
    orders->gain = exp(-logs / orders->case_count) - 1;
    orders->noise = sqrt(squares) / orders->case_count;
}

static ffa_status search_make(struct search *search, ffa_error *err)
{
    const int32_t count = search->orders->case_count;
    ffa_status rc = FFA_OK;

    search->tiles = mem_array((size_t)count, sizeof *search->tiles);
    search->memos = mem_array((size_t)count, sizeof *search->memos);
    search->gains = mem_array((size_t)count, sizeof *search->gains);
    if (!search->tiles || !search->memos || !search->gains)
        return error_nomem(err, "a fit");
    for (int32_t c = 0; c < count && rc == FFA_OK; c++) {
        search->has_ordered |= search->orders->cases[c].is_deterministic != 0;
        rc = tune_order_tiles(&search->tiles[c], &search->orders->cases[c], err);
    }
    for (int32_t c = 0; c < count && rc == FFA_OK; c++) {
        const struct backward_order was = choice_of(search, c, &search->before);

        search->gains[c] = fmax(look_up(&search->orders->cases[c], was, false).gain, 0);
    }
    return rc;
}

ffa_status tune_order_costs_fit(struct tune_orders *orders, int32_t sm_count,
                                struct cost_table *table, ffa_error *err)
{
    struct search search = {
        .orders = orders, .sm_count = sm_count, .before = *table, .tried = *table
    };
    struct place place;
    ffa_status rc;

    FFA_TRY(search_make(&search, err));
    place = find_place(&search);
    orders->costs = costs_at(&search, &place);
    fill_cases(&search, &orders->costs);
    orders->is_published = orders->gain > fmax(NOISES_MIN * orders->noise, TUNE_GAIN_MIN);
    if (orders->is_published)
        table->order = orders->costs;
    else
        text_copy(orders->reason,
                  "the gain of %.2f %% is not above twice its noise of %.2f %%, or %.1f %%",
                  100 * orders->gain, 100 * orders->noise, 100 * TUNE_GAIN_MIN);
out:
    for (int32_t c = 0; search.tiles && c < orders->case_count; c++)
        tile_finish(&search.tiles[c]);
    mem_free(search.tiles);
    mem_free(search.memos);
    mem_free(search.gains);
    return rc;
}
