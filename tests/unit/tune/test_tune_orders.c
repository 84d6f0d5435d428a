/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward sessions on a device with known costs of orders: which orders race on which mask, that
 * the best one of each mask is found, that a session goes on after a kill, and that two machines'
 * halves are one report. No time is real.
 */
#include "attention/attention.h"
#include "choose/cost_table_json.h"
#include "support/fake_tune.h"
#include "support/rng.h"
#include "support/suite.h"
#include "support/tmpdir.h"
#include "tune/tune_fit.h"
#include "tune/tune_race.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include "tune/tune_space.h"
#include <ffa/tune.h>

#include <check.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

static const char SPEC[] = "head_dim=128,dtype=bf16,heads=64:8,backward";
/* The second has tiles that end at no one row. */
static const char *const masks[] = { "causal:2048", "window:2048,left=700,right=0", "full:1024" };
enum { MASKS = 3 };

static char *folder;
static struct cost_table truth;

static void setup(void)
{
    folder = tmpdir_make();
    truth = *cost_table_find("NVIDIA H200");
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

static struct fake_tune fake_of(void)
{
    return (struct fake_tune){ .costs = &truth,
                               .unit_us = 1,
                               .unlocked = 0.05,
                               .speed = 1,
                               .noise = 0.003,
                               .seed = 1,
                               .recovers = true };
}

/* Run a session in a file of its own, or go on with the one that is there. */
static ffa_status run_record(struct tune_record *record, struct fake_tune *fake, const char *name,
                             bool resumes, ffa_error *err)
{
    char *path = tmpdir_path(folder, name);
    const ffa_status rc = fake_tune_run(record, fake, path, resumes, NULL, err);

    free(path);
    return rc;
}

static void run_whole(struct tune_record *record, struct fake_tune *fake, const char *name)
{
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(run_record(record, fake, name, false, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_ne(record->ended_s, 0);
}

static struct tune_fit fit_of(const struct tune_record *records, int32_t count)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct tune_fit fit;

    ck_assert_msg(tune_fit(&fit, records, count, &err) == FFA_OK, "%s", err.message);
    return fit;
}

static bool has_order(const struct tune_record *record, int32_t parts, int32_t waves, int32_t whole,
                      int32_t is_unlocked)
{
    for (int32_t i = 1; i < record->configuration_count; i++) {
        const struct tune_configuration *of = &record->configurations[i];

        if (of->parts == parts && of->waves == waves && of->whole_heads == whole &&
            of->is_unlocked == is_unlocked)
            return true;
    }
    return false;
}

/* ---- the space ---- */

static const struct {
    const char *spec;
    int32_t count; /* with the baseline */
} spaces[] = {
    /* Four parts, four waves, with lockstep and without, and three parts with 7, 6 and 4 whole. */
    { "head_dim=128,dtype=bf16,heads=64:8,backward", 1 + 2 * 16 + 36 },
    { "head_dim=128,dtype=bf16,heads=16:16,backward", 1 + 2 * 4 },
    { "head_dim=256,dtype=fp16,heads=16:2,backward", 1 + 2 * 16 + 12 },
    /* Tickets follow lockstep. */
    { "head_dim=128,dtype=bf16,heads=64:8,backward,deterministic", 1 + 16 + 36 },
    { "head_dim=128,dtype=bf16,heads=32:1,backward", 1 + 2 * 24 },
    { "head_dim=64,dtype=bf16,heads=384:8,backward", TUNE_CONFIGURATIONS_MAX },
};

START_TEST(the_space_has_all_orders_that_are_chosen_among)
{
    struct tune_record record = fake_tune_backward(1, spaces[_i].spec, masks, MASKS);
    const ffa_attention_spec spec = tune_space_spec(&record, 0);
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };
    const struct choose_device device = choose_device_of(&facts);
    struct ffa_kernels kernels;
    struct kernel_list list;
    ffa_error err = { FFA_OK, 0, "" };

    /* No plan of the session is for a kernel with other tiles, as pairs have. */
    ck_assert_msg(kernels_outline(&kernels, &list, &spec, "sm_90a", &device, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(kernels.backward_count, 1);
    ck_assert_int_eq(kernels.backward[0].tile_n, record.backward_tile_n);
    ck_assert_msg(record.configuration_count == spaces[_i].count, "%s: %d", spaces[_i].spec,
                  record.configuration_count);
    ck_assert(tune_is_baseline(&record.configurations[0]));
    for (int32_t waves = 1; waves <= 4; waves++)
        ck_assert(has_order(&record, 1, waves, 0, 0));
    ck_assert(!has_order(&record, 1, 5, 0, 0));
    ck_assert_int_eq(record.lockstep_masks, 5);
    ck_assert_msg(tune_record_check(&record, &err) == FFA_OK, "%s", err.message);
    tune_record_finish(&record);
}
END_TEST

/* Where no mask has lockstep there is nothing to leave. */
START_TEST(orders_without_lockstep_need_a_mask_that_has_it)
{
    struct tune_record record = fake_tune_backward(1, SPEC, &masks[1], 1);

    ck_assert_int_eq(record.configuration_count, 1 + 16 + 36);
    ck_assert(!has_order(&record, 1, 1, 0, 1));
    tune_record_finish(&record);
}
END_TEST

START_TEST(parts_share_all_orders)
{
    int32_t sum = 0;

    for (int32_t part = 0; part < 3; part++) {
        struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);

        tune_space_keep_part(&record, part, 3);
        ck_assert(tune_is_baseline(&record.configurations[0]));
        sum += record.configuration_count - 1;
        tune_record_finish(&record);
    }
    ck_assert_int_eq(sum, spaces[0].count - 1);
}
END_TEST

/* A plan follows the order that it is given, in its info and in what is uploaded. */
START_TEST(a_plan_has_the_order_that_is_forced)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };
    const struct choose_device device = choose_device_of(&facts);
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    struct kernel_list list;
    ffa_kernels kernels;
    ffa_mask *mask;
    ffa_plan *plan;
    unsigned char *before;

    ck_assert_int_eq(ffa_attention_spec_parse(&spec, SPEC, &err), FFA_OK);
    ck_assert_int_eq(kernels_outline(&kernels, &list, &spec, "sm_90a", &device, &err), FFA_OK);
    ck_assert_int_eq(ffa_mask_parse(&mask, "causal:4096", &err), FFA_OK);
    ck_assert_int_eq(ffa_plan_create(&plan, &kernels, mask, &err), FFA_OK);
    ck_assert_int_eq(ffa_plan_info_get(plan, &info, &err), FFA_OK);
    before = calloc(1, (size_t)plan->image.bytes);
    memcpy(before, plan->image_data, (size_t)plan->image.bytes);
    plan_force_order(plan, (struct backward_order){ 4, 2, 6 }, false);
    ck_assert_int_eq(memcmp(before, plan->image_data, (size_t)plan->image.bytes), 0);
    ck_assert_int_eq(ffa_plan_info_get(plan, &info, &err), FFA_OK);
    ck_assert_int_eq(info.backward_parts, 4);
    ck_assert_int_eq(info.backward_waves, 2);
    ck_assert_int_eq(info.backward_whole_heads, 6);
    plan_force_order(plan, (struct backward_order){ 1, 4, 0 }, true);
    ck_assert_int_ne(memcmp(before, plan->image_data, (size_t)plan->image.bytes), 0);
    ck_assert_int_eq(ffa_plan_info_get(plan, &info, &err), FFA_OK);
    ck_assert_int_eq(info.backward_parts, 1);
    ck_assert_int_eq(info.backward_waves, 4);
    plan_force_order(plan, (struct backward_order){ 8, 3, 7 }, false);
    ck_assert_int_eq(ffa_plan_info_get(plan, &info, &err), FFA_OK);
    ck_assert_int_eq(info.backward_parts, 8);
    ck_assert_int_eq(info.backward_waves, 3);
    ck_assert_int_eq(info.backward_whole_heads, 7);
    ck_assert_int_eq(info.backward_l2_head_groups, 7);
    free(before);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- the race ---- */

/* Every lap has the baseline; what does not differ on a mask does not run with it; the kernels of
 * all orders are compiled once, and each order is checked. */
START_TEST(each_mask_has_its_own_field)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    int32_t finalists[MASKS] = { 0 };

    run_whole(&record, &fake, "s");
    ck_assert_int_eq(fake.calls[FAKE_COMPILE], 1);
    ck_assert_int_eq(fake.calls[FAKE_CHECK], record.configuration_count);
    for (int64_t i = 0; i < record.sample_count; i++) {
        const struct tune_sample *of = &record.samples[i];
        const struct tune_configuration *order = &record.configurations[of->configuration];

        ck_assert_ptr_nonnull(tune_record_find(&record, of->lap, of->mask, 0));
        ck_assert(!order->is_unlocked || tune_has_lockstep(&record, of->mask));
        finalists[of->mask] += of->lap == TUNE_FINAL_LAP;
    }
    for (int32_t m = 0; m < MASKS; m++)
        ck_assert_int_eq(finalists[m], 7);
    ck_assert_int_eq(tune_race_left(&record), 0);
    tune_record_finish(&record);
}
END_TEST

/* What no session writes, and nothing could be timed with. */
START_TEST(orders_that_are_none_are_refused)
{
    static const struct tune_configuration rows[] = {
        { .parts = 1, .waves = 1, .is_unlocked = 1 }, /* of a deterministic pass */
        { .parts = 2, .waves = 1, .whole_heads = INT32_MIN },
        { .parts = 2, .waves = 1, .whole_heads = 8 },
        { .parts = 0, .waves = 1 },
        { .parts = 2, .waves = 0 },
        { .parts = 2, .waves = 5 },
        { .parts = 2, .waves = -1 },
    };
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    ffa_error err = { FFA_OK, 0, "" };

    record.is_deterministic = _i == 0;
    record.configuration_count = 2;
    record.configurations[1] = rows[_i];
    ck_assert(tune_record_check(&record, &err) != FFA_OK);
    record.is_deterministic = 0;
    record.configurations[1] =
        (struct tune_configuration){ .parts = 1, .waves = 1, .is_unlocked = 1 };
    for (int32_t waves = 1; waves <= 4; waves++) {
        record.configurations[1].waves = waves;
        ck_assert_msg(tune_record_check(&record, &err) == FFA_OK, "%s", err.message);
    }
    tune_record_finish(&record);
}
END_TEST

/* Kernels of a backward session are one set: all of its orders have its key. */
START_TEST(all_orders_have_the_key)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();

    run_whole(&record, &fake, "s");
    ck_assert_str_ne(record.configurations[0].key, "");
    for (int32_t i = 1; i < record.configuration_count; i++)
        ck_assert_str_eq(record.configurations[i].key, record.configurations[0].key);
    tune_record_finish(&record);
}
END_TEST

/* The budget ends the heats at two thirds of it, and the final begins with the best so far. */
START_TEST(a_short_budget_leaves_a_final)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;
    bool has_third_heat = false;

    record.budget_us = 800000; /* less than half of what the whole race takes */
    run_whole(&record, &fake, "s");
    for (int64_t i = 0; i < record.sample_count; i++)
        has_third_heat |= record.samples[i].lap == 2;
    ck_assert(!has_third_heat);
    fit = fit_of(&record, 1);
    ck_assert_int_eq(fit.orders.case_count, MASKS);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* A mask whose calls are so long that its heat would take all that is left has a final, too. */
START_TEST(a_long_mask_leaves_a_final)
{
    static const char *const long_last[] = { "causal:2048", "full:1024", "causal:32768" };
    struct tune_record record = fake_tune_backward(1, SPEC, long_last, MASKS);
    struct fake_tune fake = fake_of();

    record.budget_us = 6000000;
    run_whole(&record, &fake, "s");
    for (int32_t m = 0; m < MASKS; m++)
        ck_assert_msg(tune_record_find(&record, TUNE_FINAL_LAP, m, 0) != NULL, "%s",
                      record.masks[m]);
    tune_record_finish(&record);
}
END_TEST

/* A mask that no order has run with when the heats end is in no final. */
START_TEST(a_mask_without_a_heat_has_no_final)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();

    record.budget_us = 150000; /* heats end in the first mask's */
    run_whole(&record, &fake, "s");
    for (int32_t m = 0; m < MASKS; m++)
        ck_assert_int_eq(tune_record_find(&record, TUNE_FINAL_LAP, m, 0) != NULL, m < 1);
    tune_record_finish(&record);
}
END_TEST

/* ---- what is found ---- */

static void make_sums_dear(void)
{
    truth.order.sum_blocks = 4e-3;
    truth.order.item_blocks = 12;
}

/* The best order by the true costs, in the unit of the fake device. */
static double least_time(const struct tune_record *record, const char *mask)
{
    double least = INFINITY;

    for (int32_t i = 1; i < record->configuration_count; i++) {
        const struct tune_configuration *of = &record->configurations[i];
        const struct backward_order order = { of->parts, of->waves, of->whole_heads };

        if (!of->is_unlocked)
            least = fmin(least, fake_tune_order_time(record, mask, order, &truth));
    }
    return least;
}

START_TEST(the_best_order_of_each_mask_is_found)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    make_sums_dear();
    run_whole(&record, &fake, "s");
    fit = fit_of(&record, 1);
    ck_assert_int_eq(fit.group_count, 0);
    ck_assert_int_eq(fit.orders.session_count, 1);
    ck_assert_int_eq(fit.orders.case_count, MASKS);
    for (int32_t c = 0; c < MASKS; c++) {
        const struct tune_order_case *of = &fit.orders.cases[c];
        const double least = least_time(&record, of->mask);

        ck_assert(of->times[0].is_final);
        ck_assert_msg(fake_tune_order_time(&record, of->mask, of->times[0].order.of, &truth) <
                          least * 1.003,
                      "%s: %d x %d + %d", of->mask, of->times[0].order.of.parts,
                      of->times[0].order.of.waves, of->times[0].order.of.whole_heads);
        ck_assert_msg(fabs(of->times[0].gain -
                           (fake_tune_order_time(&record, of->mask,
                                                 fake_tune_choice(&record, of->mask), &truth) /
                                least -
                            1)) < 0.004 * (1 + of->times[0].gain),
                      "%s: %g", of->mask, of->times[0].gain);
    }
    ck_assert_msg(fit.orders.best_gain > 0.02, "%g", fit.orders.best_gain);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* ---- the constants of the table ---- */

/* By how much less time the pass takes, by the true costs, than by those of the library. */
static double true_gain(const struct tune_record *record, const struct tune_fit *fit)
{
    double sum = 0;

    for (int32_t c = 0; c < fit->orders.case_count; c++) {
        const struct tune_order_case *of = &fit->orders.cases[c];

        sum += log(fake_tune_order_time(record, of->mask, of->chosen, &truth) /
                   fake_tune_order_time(record, of->mask, of->fitted, &truth));
    }
    return exp(sum / fit->orders.case_count) - 1;
}

/* Constants are found with which plans choose what is fast, and the table has them; others, and
 * the tiles, stay. */
START_TEST(constants_that_choose_better_are_published)
{
    const struct cost_table *library = cost_table_find("NVIDIA H200");
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table read;
    struct tune_fit fit;
    char *text;

    make_sums_dear();
    run_whole(&record, &fake, "s");
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.orders.is_published, "%s", fit.orders.reason);
    ck_assert_msg(fit.orders.gain > 0.02, "%g", fit.orders.gain);
    ck_assert_msg(fabs(true_gain(&record, &fit) - fit.orders.gain) < 0.004, "%g, not %g",
                  fit.orders.gain, true_gain(&record, &fit));
    ck_assert(memcmp(&fit.table.order, &library->order, sizeof library->order) != 0);
    ck_assert(memcmp(&fit.table.order, &fit.orders.costs, sizeof library->order) == 0);
    ck_assert_double_eq(fit.table.order.alone_ordered, library->order.alone_ordered);
    ck_assert_double_eq(fit.table.order.item_blocks_ordered, library->order.item_blocks_ordered);
    ck_assert_int_eq(fit.table.tile_count, library->tile_count);
    ck_assert_str_eq(fit.table.templates, record.templates_digest);
    ck_assert_int_eq(cost_table_write(&fit.table, &text, &err), FFA_OK);
    ck_assert_msg(cost_table_read(&read, text, strlen(text), "of the fit", &err) == FFA_OK, "%s",
                  err.message);
    ffa_free(text);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* Two sessions with one mask, in which two parts take less time and more: what is gained by the one
 * has to be four times what the other loses. */
static const struct {
    double gain, loss;
    bool is_slow; /* the baseline of the second, eight parts: what is chosen now is 10 % faster */
    bool changes;
} losses[] = { { 0.05, 0.01, false, true },
               { 0.05, 0.02, false, false },
               { 0.05, 0, false, true },
               { 0.05, -0.058, true, false } };

static struct tune_order_case case_of(double gain, struct tune_order_time times[3])
{
    static const struct backward_order one = { 1, 1, 0 }, two = { 2, 1, 0 }, eight = { 8, 1, 0 };
    struct tune_order_case out = { .head_dim = 128,
                                   .head_dim_v = 128,
                                   .dtype = FFA_BF16,
                                   .heads_q = 64,
                                   .heads_kv = 8,
                                   .tile_m = 64,
                                   .tile_n = 128,
                                   .cluster = 1,
                                   .baseline_us = 1000,
                                   .has_lockstep = true,
                                   .kept = { 1, 1, 0 },
                                   .chosen = one,
                                   .fitted = one,
                                   .time_count = 3,
                                   .times = times };

    memcpy(out.mask, "varlen-causal:1024*8", sizeof "varlen-causal:1024*8");
    times[0] = (struct tune_order_time){ .order = { two, false },
                                         .gain = gain,
                                         .searched = gain,
                                         .judged = gain,
                                         .judged_noise = 0.001,
                                         .is_final = true };
    times[1] = (struct tune_order_time){ .order = { one, false }, .is_final = true };
    times[2] = (struct tune_order_time){
        .order = { eight, false }, .gain = -0.2, .searched = -0.2, .judged = -0.2, .is_final = true
    };
    return out;
}

START_TEST(a_loss_weighs_more_than_a_gain)
{
    struct tune_order_time faster[3], slower[3];
    struct tune_order_case cases[] = { case_of(losses[_i].gain, faster),
                                       case_of(-losses[_i].loss, slower) };
    struct tune_orders orders = { .session_count = 2, .case_count = 2, .cases = cases };
    struct cost_table table = truth;
    ffa_error err = { FFA_OK, 0, "" };

    if (losses[_i].is_slow) {
        cases[1].chosen = slower[2].order.of;
        cases[1].kept = (struct tune_baseline){ 8, 1, 0 };
        slower[1].gain = slower[1].searched = slower[1].judged = 0.1;
        slower[2].gain = slower[2].searched = slower[2].judged = 0;
    }
    orders.before = orders.costs = table.order;
    ck_assert_msg(tune_order_costs_fit(&orders, 132, &table, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(orders.is_published, losses[_i].changes);
    ck_assert_int_eq(cases[0].fitted.parts, losses[_i].changes ? 2 : 1);
}
END_TEST

/* What is chosen takes the time of its own way: of a mask that goes head by head, times in lockstep
 * are those of other passes, and the other way round. A session that knew no lockstep for a mask
 * timed all of its orders head by head. */
START_TEST(times_with_lockstep_and_without_are_apart)
{
    for (int is_unlocked = 0; is_unlocked < 2; is_unlocked++)
        for (int has_lockstep = is_unlocked; has_lockstep < 2; has_lockstep++) {
            struct tune_order_time times[4];
            struct tune_order_case of = case_of(0, times);
            struct tune_orders orders = { .session_count = 1, .case_count = 1, .cases = &of };
            struct cost_table table = truth;
            ffa_error err = { FFA_OK, 0, "" };

            of.has_lockstep = has_lockstep;
            of.is_unlocked = is_unlocked;
            of.kept = (struct tune_baseline){ 8, 1, 0 };
            of.chosen = (struct backward_order){ 8, 1, 0 };
            of.time_count = 4;
            times[0].order.is_unlocked = times[1].order.is_unlocked = is_unlocked;
            times[0].judged = times[0].searched = times[0].gain = 0.2;
            times[1].judged = times[1].searched = times[1].gain = 0.1;
            times[3] = times[0]; /* two parts the other way: no time of what is chosen */
            times[3].order.is_unlocked = !is_unlocked;
            times[3].judged = times[3].searched = times[3].gain = 0.9;
            orders.before = orders.costs = table.order;
            ck_assert_msg(tune_order_costs_fit(&orders, 132, &table, &err) == FFA_OK, "%s",
                          err.message);
            ck_assert_msg(of.fitted_us >= of.baseline_us / 1.21, "%d %d: %g of %g", has_lockstep,
                          is_unlocked, of.fitted_us, of.baseline_us);
        }
}
END_TEST

/* Where the library's constants are the true ones, noise publishes none, whatever its seed. */
START_TEST(constants_stay_within_noise)
{
    const struct cost_table *library = cost_table_find("NVIDIA H200");
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    char name[16];
    struct tune_fit fit;

    fake.seed = (uint64_t)_i + 1;
    text_copy(name, "s%d", _i);
    run_whole(&record, &fake, name);
    fit = fit_of(&record, 1);
    ck_assert_msg(!fit.orders.is_published, "gain %g +- %g", fit.orders.gain, fit.orders.noise);
    ck_assert_msg(strstr(fit.orders.reason, "not above twice its noise"), "%s", fit.orders.reason);
    ck_assert_int_eq(memcmp(&fit.table.order, &library->order, sizeof library->order), 0);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* ---- what is chosen ---- */

/* A window's tiles cannot go in lockstep, the others' can; those of 16 documents of 2,048 tokens do
 * not. */
static const char *const chosen_for[] = { "window:8192,left=1024,right=0", "causal:4096",
                                          "full:2048", "varlen-causal:1024*8",
                                          "varlen-causal:2048*16" };
enum { CHOSEN_FOR = 5 };

/* The fit chooses orders as plans do, or it fits constants to choices that nobody makes. */
START_TEST(a_fit_chooses_as_plans_do)
{
    struct tune_record record = fake_tune_backward(1, "head_dim=128,dtype=bf16,heads=64:8,backward",
                                                   chosen_for, CHOSEN_FOR);

    for (int32_t m = 0; m < CHOSEN_FOR; m++) {
        struct tune_order_case of = { .head_dim = record.head_dim,
                                      .head_dim_v = record.head_dim_v,
                                      .dtype = record.dtype,
                                      .heads_q = record.heads_q,
                                      .heads_kv = record.heads_kv,
                                      .tile_m = record.backward_tile_m,
                                      .tile_n = record.backward_tile_n,
                                      .cluster = record.backward_cluster,
                                      .has_lockstep = tune_has_lockstep(&record, m) };
        const struct order_query query =
            tune_order_query(&of, record.facts.sm_count, cost_table_find("NVIDIA H200"));
        const struct backward_order plans = fake_tune_choice(&record, record.masks[m]);
        struct backward_order found;
        struct tile_plan tiles = { 0 };

        text_copy(of.mask, "%s", record.masks[m]);
        for (int32_t pass = 0; pass < 2; pass++) { /* the second with what the first says */
            tile_finish(&tiles);
            ck_assert_int_eq(tune_order_tiles(&tiles, &of, NULL), FFA_OK);
            of.is_unlocked = of.has_lockstep && !backward_keeps_lockstep(&tiles, &query);
        }
        found = backward_order_find(&tiles, &query);
        ck_assert_msg(order_is_same(found, plans), "%s: %dx%d+%d, plans %dx%d+%d", of.mask,
                      found.parts, found.waves, found.whole_heads, plans.parts, plans.waves,
                      plans.whole_heads);
        tile_finish(&tiles);
    }
    tune_record_finish(&record);
}
END_TEST

/* ---- luck ---- */

/* Masks on which the library divides heads into parts. */
static const char *const divided[] = { "causal:1024", "causal:512", "full:1024", "causal:2048" };
enum { DIVIDED = 4 };

/* A race with so many laps of the final, of orders that take equally long, but for that of one part
 * and one wave, which is faster by a share. Times are off by `noise`. */
static struct tune_record race_of(int32_t mask_count, double gain, double noise, int32_t laps,
                                  uint64_t seed)
{
    struct tune_record record = fake_tune_backward(1, SPEC, divided, mask_count);
    struct rng rng = { seed };
    struct tune_step step;

    for (int32_t i = 0; i < record.configuration_count; i++)
        record.configurations[i].state = TUNE_CHECKED;
    while (tune_race_next(&record, &step) && step.lap < TUNE_FINAL_LAP + laps)
        for (int32_t i = 0; i < step.count; i++) {
            const struct tune_configuration *of = &record.configurations[step.field[i]];
            const bool is_fast = of->parts == 1 && of->waves == 1 && !of->is_unlocked;
            const struct tune_sample sample = {
                .lap = step.lap,
                .mask = step.mask,
                .configuration = step.field[i],
                .calls = 1,
                .us = 100 / (is_fast ? 1 + gain : 1) * exp(noise * rng_normal(&rng)),
            };

            ck_assert(tune_record_add(&record, &sample));
        }
    return record;
}

static const struct {
    int32_t masks;
    double gain, noise;
    int32_t laps, draws;
} luck[] = {
    { 1, 0, 0.008, 5, 40 },
    { 1, 0, 0.03, TUNE_FINAL_LAPS_MIN, 40 },
    { 1, 0, 0.03, 5, 40 },
    { 2, 0, 0.03, 5, 20 },
    { 2, 0, 0.03, TUNE_FINAL_LAPS, 20 },
    { DIVIDED, 0.02, 0.008, TUNE_FINAL_LAPS, 8 },
};

/* Some order has luck in each race, and constants are found that choose it. In laps that were not
 * searched it has none: it loses as often as it gains there, and is not published. What is faster
 * is. */
START_TEST(luck_is_not_published)
{
    int32_t published = 0, lost = 0;

    for (int32_t i = 0; i < luck[_i].draws; i++) {
        struct tune_record record = race_of(luck[_i].masks, luck[_i].gain, luck[_i].noise,
                                            luck[_i].laps, (uint64_t)(1000 * _i + i));
        struct tune_fit fit = fit_of(&record, 1);

        published += fit.orders.is_published;
        lost += fit.orders.gain < 0;
        tune_fit_finish(&fit);
        tune_record_finish(&record);
    }
    ck_assert_int_eq(published, luck[_i].gain > 0 ? luck[_i].draws : 0);
    ck_assert_int_eq(lost > 0, luck[_i].gain <= 0);
}
END_TEST

static const struct backward_order was = { 1, 4, 0 };

/* A session that another library timed, in whose baselines all masks had one order; its text, out
 * and in again. */
static void run_other_library(struct tune_record *record)
{
    struct tune_record before = fake_tune_backward(1, SPEC, masks, MASKS), *read;
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count;
    char *text;

    fake.was = was;
    run_whole(&before, &fake, "other");
    ck_assert_int_eq(tune_samples_text(&before, 1, &text, &err), FFA_OK);
    ck_assert_msg(tune_samples_read(&read, &count, text, strlen(text), &err) == FFA_OK, "%s",
                  err.message);
    mem_free(text);
    *record = *read;
    mem_free(read);
    tune_record_finish(&before);
}

/* Samples are of the order that the baseline had, whatever this library chooses: what it does
 * choose is faster, and nothing is published, as the constants are the true ones. */
START_TEST(the_order_of_the_baseline_is_kept)
{
    struct tune_record record;
    struct tune_fit fit;

    run_other_library(&record);
    fit = fit_of(&record, 1);
    ck_assert_int_eq(fit.orders.case_count, MASKS);
    for (int32_t c = 0; c < MASKS; c++) {
        const struct tune_order_case *of = &fit.orders.cases[c];
        const struct backward_order now = fake_tune_choice(&record, of->mask);

        ck_assert_mem_eq(&of->chosen, &was, sizeof was);
        for (int32_t i = 0; i < of->time_count; i++)
            if (!memcmp(&of->times[i].order.of, &now, sizeof now) && of->times[i].is_final &&
                !of->times[i].order.is_unlocked)
                ck_assert_msg(fabs(log1p(of->times[i].gain) -
                                   log(fake_tune_order_time(&record, of->mask, was, &truth) /
                                       fake_tune_order_time(&record, of->mask, now, &truth))) <
                                  0.004,
                              "%s: %g", of->mask, of->times[i].gain);
    }
    ck_assert_msg(fit.orders.best_gain > 0.02, "%g", fit.orders.best_gain);
    ck_assert_msg(!fit.orders.is_published, "gain %g +- %g", fit.orders.gain, fit.orders.noise);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

START_TEST(a_baseline_that_is_no_order_is_refused)
{
    static const struct tune_baseline rows[] = {
        { 3, 1, 0 }, { 0, 1, 0 }, { -1, 1, 0 }, { 2, 5, 0 }
    };
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS), *read;
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count;
    char *text;

    record.baselines[1] = rows[_i];
    ck_assert_int_eq(tune_samples_text(&record, 1, &text, &err), FFA_OK);
    ck_assert_int_eq(tune_samples_read(&read, &count, text, strlen(text), &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "baselines"), "%s", err.message);
    mem_free(text);
    tune_record_finish(&record);
}
END_TEST

/* One that chooses otherwise does not go on with it. */
START_TEST(a_session_with_another_baseline_does_not_go_on)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    fake.was = was;
    record.budget_us = 700000;
    run_whole(&record, &fake, "s");
    fake.was.waves = 2;
    fake.budget_us = 2000000;
    ck_assert_int_eq(run_record(&record, &fake, "s", true, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "is order 1x4+0, and this library chooses 1x2+0"), "%s",
                  err.message);
    ck_assert_int_eq(record.trying, -1);
    tune_record_finish(&record);
}
END_TEST

/* Sessions whose baselines are not the same are no samples of one case. */
START_TEST(cases_of_other_baselines_are_apart)
{
    struct tune_record records[2];
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    run_other_library(&records[0]);
    records[1] = fake_tune_backward(2, SPEC, masks, MASKS);
    run_whole(&records[1], &fake, "s");
    fit = fit_of(records, 2);
    ck_assert_int_eq(fit.orders.case_count, 2 * MASKS);
    tune_fit_finish(&fit);
    for (int i = 0; i < 2; i++)
        tune_record_finish(&records[i]);
}
END_TEST

/* A table of another device model: a sum takes as long as before, with that model's SMs. */
START_TEST(sums_of_another_model_take_as_long)
{
    const struct cost_table *library = cost_table_find("NVIDIA H200");
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    truth.order.sum_blocks = 1e-6;
    truth.order.item_blocks = 0.1;
    text_copy(record.facts.name, "NVIDIA X");
    record.facts.sm_count = 66;
    run_whole(&record, &fake, "s");
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.orders.is_published, "%s", fit.orders.reason);
    ck_assert_int_eq(fit.table.sm_count, 66);
    ck_assert_double_eq_tol(fit.orders.before.sum_blocks * 66,
                            library->order.sum_blocks * library->sm_count, 1e-9);
    ck_assert(fit.orders.costs.sum_blocks < fit.orders.before.sum_blocks);
    ck_assert_double_eq_tol(fit.table.order.sum_blocks, fit.orders.costs.sum_blocks, 1e-12);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* ---- kills ---- */

static const struct {
    enum fake_stage stage;
    int32_t after;
} kills[] = { { FAKE_COMPILE, 0 }, { FAKE_CHECK, 7 }, { FAKE_RUN, 0 }, { FAKE_RUN, 225 } };

static void run_killed(enum fake_stage stage, int32_t after)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    int status;
    const pid_t child = fork();

    ck_assert_int_ge(child, 0);
    fake.kill_at = stage;
    fake.kill_after = after;
    if (child == 0) {
        (void)run_record(&record, &fake, "s", false, &err);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    tune_record_finish(&record);
}

START_TEST(a_killed_session_goes_on)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    run_killed(kills[_i].stage, kills[_i].after);
    ck_assert_msg(run_record(&record, &fake, "s", true, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(fake.calls[FAKE_COMPILE], kills[_i].stage == FAKE_COMPILE);
    if (kills[_i].stage == FAKE_RUN)
        fake_tune_check_resumed(&record, &fake, kills[_i].after);
    for (int32_t i = 0; i < record.configuration_count; i++)
        ck_assert_int_eq(record.configurations[i].state, TUNE_CHECKED);
    tune_record_finish(&record);
}
END_TEST

/* Wherever it was killed, one that chooses otherwise leaves it as it is. */
static const int32_t kills_in_race[] = { 225, 412, 540, 652 };

START_TEST(a_session_with_another_baseline_stays_as_it_is)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    run_killed(FAKE_RUN, kills_in_race[_i]);
    fake.was = was;
    ck_assert_int_eq(run_record(&record, &fake, "s", true, &err), FFA_INVALID);
    ck_assert_int_eq(record.sample_count, kills_in_race[_i]);
    for (int64_t i = 0; i < record.sample_count; i++)
        ck_assert_int_eq(record.samples[i].process, 0);
    tune_record_finish(&record);
}
END_TEST

/* A made-up file has no number left for another process. */
START_TEST(processes_are_not_without_end)
{
    struct tune_record record = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();
    char *path = tmpdir_path(folder, "s");
    ffa_error err = { FFA_OK, 0, "" };
    sqlite3 *db;

    run_killed(FAKE_RUN, 225);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "UPDATE sample SET process = 1048575", NULL, NULL, NULL),
                     SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(run_record(&record, &fake, "s", true, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "1048576 processes"), "%s", err.message);
    ck_assert_int_eq(record.sample_count, 225);
    tune_record_finish(&record);
    free(path);
}
END_TEST

/* As of forward sessions (test_tune.c). */
START_TEST(samples_are_compared_within_a_process)
{
    struct tune_record begun = fake_tune_backward(1, SPEC, masks, MASKS), record = { 0 };
    struct tune_record reference = fake_tune_backward(1, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of(), later = fake_of(), alone = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    fake.noise = 0.02; /* who is in the final is luck, too */
    run_whole(&reference, &alone, "reference");
    later.speed = 1.25;
    begun.budget_us = 930000; /* it cuts the heats short */
    run_whole(&begun, &fake, "s");
    later.budget_us = reference.budget_us;
    ck_assert_msg(run_record(&record, &later, "s", true, &err) == FFA_OK, "%s", err.message);
    fake_tune_check_gains(&record, &begun, &reference);
    tune_record_finish(&reference);
    tune_record_finish(&begun);
    tune_record_finish(&record);
}
END_TEST

/* ---- several machines ---- */

static void run_half(const char *name, int id, double speed, int32_t part)
{
    struct tune_record record = fake_tune_backward(id, SPEC, masks, MASKS);
    struct fake_tune fake = fake_of();

    fake.speed = speed;
    fake.seed = (uint64_t)id;
    tune_space_keep_part(&record, part, 2);
    run_whole(&record, &fake, name);
    tune_record_finish(&record);
}

/* Two machines that differ in speed have each raced half of the orders; out, and in again. */
START_TEST(two_halves_make_one_report)
{
    char *one = tmpdir_path(folder, "one"), *other = tmpdir_path(folder, "other");
    char *merged = tmpdir_path(folder, "merged"), *again = tmpdir_path(folder, "again");
    const char *const forth[] = { one, other }, *const back[] = { other, one };
    const char *const files[] = { merged }, *const copies[] = { again };
    char *texts[3];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;

    make_sums_dear();
    run_half("one", 1, 1, 0);
    run_half("other", 2, 0.9, 1);
    ck_assert_int_eq(ffa_tune_merge(merged, forth, 2, NULL, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_open(&tune, files, 1, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_SAMPLES, &texts[2], &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_REPORT, &texts[0], &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_int_eq(ffa_tune_open(&tune, back, 2, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_REPORT, &texts[1], &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_str_eq(texts[0], texts[1]);
    ffa_free(texts[1]);
    ck_assert_ptr_nonnull(strstr(texts[0], "\"best_gain\""));
    ck_assert_int_eq(ffa_tune_import(again, texts[2], strlen(texts[2]), NULL, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_open(&tune, copies, 1, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_REPORT, &texts[1], &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_str_eq(texts[0], texts[1]);
    for (int i = 0; i < 3; i++)
        ffa_free(texts[i]);
    free(one);
    free(other);
    free(merged);
    free(again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tune_orders");
    TCase *all = tcase_create("orders");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, the_space_has_all_orders_that_are_chosen_among, 0,
                        sizeof spaces / sizeof *spaces);
    tcase_add_test(all, orders_without_lockstep_need_a_mask_that_has_it);
    tcase_add_test(all, parts_share_all_orders);
    tcase_add_test(all, a_plan_has_the_order_that_is_forced);
    tcase_add_test(all, each_mask_has_its_own_field);
    tcase_add_loop_test(all, orders_that_are_none_are_refused, 0, 7);
    tcase_add_test(all, all_orders_have_the_key);
    tcase_add_test(all, a_short_budget_leaves_a_final);
    tcase_add_test(all, a_long_mask_leaves_a_final);
    tcase_add_test(all, a_mask_without_a_heat_has_no_final);
    tcase_add_test(all, the_best_order_of_each_mask_is_found);
    tcase_add_test(all, constants_that_choose_better_are_published);
    tcase_add_test(all, times_with_lockstep_and_without_are_apart);
    tcase_add_loop_test(all, a_loss_weighs_more_than_a_gain, 0, sizeof losses / sizeof *losses);
    tcase_add_loop_test(all, constants_stay_within_noise, 0, 4);
    tcase_add_test(all, a_fit_chooses_as_plans_do);
    tcase_add_loop_test(all, luck_is_not_published, 0, sizeof luck / sizeof *luck);
    tcase_add_test(all, the_order_of_the_baseline_is_kept);
    tcase_add_loop_test(all, a_baseline_that_is_no_order_is_refused, 0, 4);
    tcase_add_test(all, a_session_with_another_baseline_does_not_go_on);
    tcase_add_test(all, cases_of_other_baselines_are_apart);
    tcase_add_test(all, sums_of_another_model_take_as_long);
    tcase_add_loop_test(all, a_killed_session_goes_on, 0, sizeof kills / sizeof *kills);
    tcase_add_loop_test(all, a_session_with_another_baseline_stays_as_it_is, 0,
                        sizeof kills_in_race / sizeof *kills_in_race);
    tcase_add_test(all, processes_are_not_without_end);
    tcase_add_test(all, samples_are_compared_within_a_process);
    tcase_add_test(all, two_halves_make_one_report);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
