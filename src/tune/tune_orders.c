/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/tune_orders.h"

#include "tile/tile.h"
#include "tune/tune_race.h"
#include "tune/tune_stats.h"
#include <ffa/mask.h>

#include <math.h>

void tune_orders_finish(struct tune_orders *orders)
{
    for (int32_t i = 0; i < orders->case_count; i++)
        mem_free(orders->cases[i].times);
    mem_free(orders->cases);
    *orders = (struct tune_orders){ 0 };
}

/* ---- cases ---- */

static struct tune_order_case case_of(const struct tune_record *record, int32_t mask)
{
    struct tune_order_case out = { .head_dim = record->head_dim,
                                   .head_dim_v = record->head_dim_v,
                                   .dtype = record->dtype,
                                   .heads_q = record->heads_q,
                                   .heads_kv = record->heads_kv,
                                   .is_deterministic = record->is_deterministic,
                                   .tile_m = record->backward_tile_m,
                                   .tile_n = record->backward_tile_n,
                                   .cluster = record->backward_cluster,
                                   .kept = record->baselines[mask],
                                   .has_lockstep = tune_has_lockstep(record, mask) };

    text_copy(out.mask, "%s", record->masks[mask]);
    return out;
}

/* Shares of the time of one order are not those of another: cases whose baselines differ are apart.
 */
static int compare_cases(const struct tune_order_case *a, const struct tune_order_case *b)
{
    const int32_t by_mask = strcmp(a->mask, b->mask);
    const int32_t rows[][2] = {
        { a->head_dim, b->head_dim },
        { a->head_dim_v, b->head_dim_v },
        { a->dtype, b->dtype },
        { a->heads_q, b->heads_q },
        { a->heads_kv, b->heads_kv },
        { a->is_deterministic, b->is_deterministic },
        { a->tile_m, b->tile_m },
        { a->tile_n, b->tile_n },
        { a->cluster, b->cluster },
        { by_mask, 0 },
        { a->kept.parts, b->kept.parts },
        { a->kept.waves, b->kept.waves },
        { a->kept.whole_heads, b->kept.whole_heads },
        { a->has_lockstep, b->has_lockstep },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i][0] != rows[i][1])
            return rows[i][0] < rows[i][1] ? -1 : 1;
    return 0;
}

static int by_case(const void *a, const void *b)
{
    return compare_cases(a, b);
}

/* The mask of a record that is the case; -1: none. */
static int32_t mask_of(const struct tune_record *record, const struct tune_order_case *of)
{
    for (int32_t m = 0; m < record->mask_count; m++) {
        const struct tune_order_case own = case_of(record, m);

        if (compare_cases(&own, of) == 0)
            return m;
    }
    return -1;
}

/* All cases with a final, sorted, each once. */
static ffa_status find_cases(struct tune_orders *out, const struct tune_record *const *records,
                             int32_t count, ffa_error *err)
{
    int64_t capacity = 0;

    for (int32_t i = 0; i < count; i++)
        for (int32_t m = 0; tune_is_backward(records[i]) && m < records[i]->mask_count; m++) {
            const struct tune_order_case next = case_of(records[i], m);
            int32_t at = 0;

            if (!tune_race_has_final(records[i], m, 0))
                continue;
            while (at < out->case_count && compare_cases(&out->cases[at], &next) != 0)
                at++;
            if (at < out->case_count)
                continue;
            if (!mem_grow((void **)&out->cases, &capacity, at + 1, sizeof *out->cases))
                return error_nomem(err, "the cases of a fit");
            out->cases[out->case_count++] = next;
        }
    if (out->case_count)
        qsort(out->cases, (size_t)out->case_count, sizeof *out->cases, by_case);
    return FFA_OK;
}

/* ---- times ---- */

/* The baseline's time: the geometric mean of the sessions' medians. */
static void pool_baseline(struct tune_order_case *of, const struct tune_record *const *records,
                          int32_t count)
{
    double sum = 0;
    int32_t sessions = 0;

    for (int32_t i = 0; i < count; i++) {
        const int32_t mask = tune_is_backward(records[i]) ? mask_of(records[i], of) : -1;
        struct tune_median median;

        if (mask < 0 || !tune_race_has_final(records[i], mask, 0))
            continue;
        median = tune_median_us(records[i], mask, 0);
        sum += log(median.value);
        of->samples += median.count;
        sessions++;
    }
    of->baseline_us = exp(sum / max32(1, sessions));
}

static bool is_same_order(const struct tune_order *order,
                          const struct tune_configuration *configuration)
{
    return order->of.parts == configuration->parts && order->of.waves == configuration->waves &&
           order->of.whole_heads == configuration->whole_heads &&
           order->is_unlocked == (configuration->is_unlocked != 0);
}

/* Constants are searched with the heats and every second lap of the final; the others judge them.
 */
enum { SEARCHED = TUNE_LAPS_HEATS | TUNE_LAPS_EVEN, JUDGED = TUNE_LAPS_ODD };

/* The noise of a median of `count` laps of an order of the final with a mask: a few laps of one
 * order do not tell how much they scatter, those of all orders do. */
static double judged_noise(const struct tune_record *record, int32_t mask, int32_t count)
{
    double differences[TUNE_CONFIGURATIONS_MAX * TUNE_FINAL_LAPS];
    struct tune_gain gains[TUNE_LAPS_MAX];
    int32_t found = 0;

    for (int32_t k = 1; k < record->configuration_count; k++) {
        const int32_t all = tune_race_has_final(record, mask, k)
                                ? tune_gains(record, mask, k, TUNE_FINAL_LAP_END, gains)
                                : 0;

        for (int32_t i = 1; i < all; i++)
            if (gains[i - 1].lap >= TUNE_FINAL_LAP)
                differences[found++] = gains[i].value - gains[i - 1].value;
    }
    return tune_noise_of(differences, found, count);
}

/* Sums over the sessions that have an order with a case. */
struct pool {
    double logs, squares;
    double searched, judged, judged_squares; /* of the final */
    int32_t sessions;
};

static void pool_add(struct pool *pool, const struct tune_record *record, int32_t mask,
                     int32_t configuration, bool is_final)
{
    const struct tune_median gain = tune_median_gain(record, mask, configuration, INT32_MAX);

    if (!gain.count)
        return;
    pool->logs += log(1 + gain.value);
    pool->squares += gain.noise * gain.noise;
    pool->sessions++;
    if (is_final) {
        const struct tune_median judged = tune_race_gain(record, mask, configuration, JUDGED);
        const double noise = judged_noise(record, mask, judged.count);

        pool->searched += log(1 + tune_race_gain(record, mask, configuration, SEARCHED).value);
        pool->judged += log(1 + judged.value);
        pool->judged_squares += noise * noise;
    }
}

/* The time of an order with a case: of the sessions whose final it was in; where it was in none, of
 * those whose heats it was in. sessions 0: of none. */
static struct pool pool_order(const struct tune_order_case *of, const struct tune_order *order,
                              bool is_final, const struct tune_record *const *records,
                              int32_t count)
{
    struct pool pool = { 0 };

    for (int32_t i = 0; i < count; i++) {
        const int32_t mask = tune_is_backward(records[i]) ? mask_of(records[i], of) : -1;

        for (int32_t k = 1; mask >= 0 && k < records[i]->configuration_count; k++)
            if (is_same_order(order, &records[i]->configurations[k]) &&
                tune_race_has_final(records[i], mask, k) == is_final)
                pool_add(&pool, records[i], mask, k, is_final);
    }
    return pool;
}

static ffa_status add_time(struct tune_order_case *of, int64_t *capacity,
                           const struct tune_order *order, const struct tune_record *const *records,
                           int32_t count, ffa_error *err)
{
    struct tune_order_time time = { .order = *order, .is_final = true };
    struct pool pool = pool_order(of, order, true, records, count);

    if (!pool.sessions) {
        time.is_final = false;
        pool = pool_order(of, order, false, records, count);
    }
    if (!pool.sessions)
        return FFA_OK;
    time.gain = exp(pool.logs / pool.sessions) - 1;
    time.noise = sqrt(pool.squares) / pool.sessions;
    time.us = of->baseline_us / (1 + time.gain);
    time.searched = time.is_final ? exp(pool.searched / pool.sessions) - 1 : time.gain;
    time.judged = time.is_final ? exp(pool.judged / pool.sessions) - 1 : time.gain;
    time.judged_noise = time.is_final ? sqrt(pool.judged_squares) / pool.sessions : time.noise;
    if (!mem_grow((void **)&of->times, capacity, of->time_count + 1, sizeof *of->times))
        return error_nomem(err, "the orders of a fit");
    of->times[of->time_count++] = time;
    return FFA_OK;
}

static bool has_order(const struct tune_order_case *of, const struct tune_configuration *order)
{
    for (int32_t i = 0; i < of->time_count; i++)
        if (is_same_order(&of->times[i].order, order))
            return true;
    return false;
}

/* Of the final first, the fastest first; then in a fixed order. */
static int by_time(const void *a, const void *b)
{
    const struct tune_order_time *x = a, *y = b;
    const struct backward_order *p = &x->order.of, *q = &y->order.of;

    if (x->is_final != y->is_final)
        return x->is_final ? -1 : 1;
    if (x->us != y->us)
        return x->us < y->us ? -1 : 1;
    if (p->parts != q->parts)
        return p->parts - q->parts;
    if (p->waves != q->waves)
        return p->waves - q->waves;
    if (p->whole_heads != q->whole_heads)
        return p->whole_heads - q->whole_heads;
    return x->order.is_unlocked - y->order.is_unlocked;
}

/* All orders that some session has timed with the case. */
static ffa_status find_times(struct tune_order_case *of, const struct tune_record *const *records,
                             int32_t count, ffa_error *err)
{
    int64_t capacity = 0;
    ffa_status rc = FFA_OK;

    pool_baseline(of, records, count);
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 1; tune_is_backward(records[i]) && mask_of(records[i], of) >= 0 &&
                            k < records[i]->configuration_count && rc == FFA_OK;
             k++) {
            const struct tune_configuration *at = &records[i]->configurations[k];
            const struct tune_order order = { { at->parts, at->waves, at->whole_heads },
                                              at->is_unlocked != 0 };

            if (!has_order(of, at))
                rc = add_time(of, &capacity, &order, records, count, err);
        }
    if (of->time_count)
        qsort(of->times, (size_t)of->time_count, sizeof *of->times, by_time);
    return rc;
}

/* ---- what is chosen ---- */

/* The kernels of a session store gradients in its dtype, all in one pass: they can leave kv heads
 * whole. */
struct order_query tune_order_query(const struct tune_order_case *of, int32_t sm_count,
                                    const struct cost_table *costs)
{
    return (struct order_query){ .group = of->heads_q / of->heads_kv,
                                 .heads_kv = of->heads_kv,
                                 .at_a_time = max32(1, sm_count / of->cluster),
                                 .costs = costs,
                                 .can_leave_whole = true,
                                 .row_bytes = order_row_bytes(of->head_dim, of->head_dim_v,
                                                              (ffa_dtype)of->dtype) };
}

ffa_status tune_order_tiles(struct tile_plan *out, const struct tune_order_case *of, ffa_error *err)
{
    const struct tile_options options = { .tile_m = of->tile_m,
                                          .tile_n = of->tile_n,
                                          .on_grid = of->is_deterministic != 0 };
    ffa_mask *mask = NULL;
    ffa_status rc;

    FFA_TRY(ffa_mask_parse(&mask, of->mask, err));
    FFA_TRY(backward_tiles_build(out, mask, &options, of->heads_q / of->heads_kv, err));
    out->is_unlocked = out->lockstep != TILE_LOCKSTEP_NONE && !options.on_grid &&
                       (!of->has_lockstep || of->is_unlocked);
out:
    ffa_mask_destroy(mask);
    return rc;
}

/* Whether what is chosen goes in lockstep, and which order the baseline was: as kept, or, in a file
 * that did not keep it, what this library chooses. */
static ffa_status find_chosen(struct tune_order_case *of, int32_t sm_count,
                              const struct cost_table *table, ffa_error *err)
{
    const struct order_query query = tune_order_query(of, sm_count, table);
    struct tile_plan tiles = { 0 };
    ffa_status rc;

    rc = tune_order_tiles(&tiles, of, err);
    if (rc != FFA_OK)
        return rc;
    of->is_unlocked = of->has_lockstep && !backward_keeps_lockstep(&tiles, &query);
    tiles.is_unlocked |= of->is_unlocked;
    of->chosen = (struct backward_order){ of->kept.parts, of->kept.waves, of->kept.whole_heads };
    if (!of->chosen.parts)
        of->chosen = backward_order_find(&tiles, &query);
    tile_finish(&tiles);
    return FFA_OK;
}

/* ---- all ---- */

/* Of the fastest order that a plan can choose, the one that it does choose among them. */
static double best_of(const struct tune_order_case *of)
{
    double gain = 0;

    for (int32_t i = 0; i < of->time_count; i++)
        if (of->times[i].is_final && of->times[i].order.is_unlocked == of->is_unlocked)
            gain = fmax(gain, of->times[i].gain);
    return gain;
}

static double best_gain(const struct tune_orders *orders)
{
    double sum = 0;

    for (int32_t c = 0; c < orders->case_count; c++)
        sum += log(1 + best_of(&orders->cases[c]));
    return exp(sum / max32(1, orders->case_count)) - 1;
}

ffa_status tune_orders_fit(struct tune_orders *out, const struct tune_record *const *records,
                           int32_t count, struct cost_table *table, ffa_error *err)
{
    ffa_status rc;

    *out = (struct tune_orders){ 0 };
    for (int32_t i = 0; i < count; i++)
        out->session_count += tune_is_backward(records[i]);
    FFA_TRY(find_cases(out, records, count, err));
    for (int32_t c = 0; c < out->case_count; c++) {
        FFA_TRY(find_times(&out->cases[c], records, count, err));
        FFA_TRY(find_chosen(&out->cases[c], records[0]->facts.sm_count, table, err));
    }
    out->best_gain = best_gain(out);
    out->before = out->costs = table->order;
    if (out->session_count && !out->case_count)
        text_copy(out->reason, "no session has measured enough: a larger budget goes on");
    else if (out->case_count)
        rc = tune_order_costs_fit(out, records[0]->facts.sm_count, table, err);
out:
    return rc;
}
