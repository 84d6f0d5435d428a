/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuning sessions on a device with known costs: the session finds what is fastest, keeps what the
 * library chooses where nothing is, goes on after a kill at any stage, and survives configurations
 * that fail in every way. No time is real.
 */
#include "choose/cost_table_json.h"
#include "support/fake_tune.h"
#include "support/suite.h"
#include "support/tmpdir.h"
#include "tune/tune_fit.h"
#include "tune/tune_race.h"
#include "tune/tune_session.h"
#include "tune/tune_space.h"
#include <ffa/tune.h>

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const masks[] = { "causal:2048", "varlen-causal:300*8", "full:1024",
                                     "full:4096" };
enum { MASKS = 4 };

static char *folder, *path;
static struct cost_table truth;

static void setup(void)
{
    folder = tmpdir_make();
    path = tmpdir_path(folder, "session.ffatune");
    truth = *cost_table_find("NVIDIA H200");
}

static void teardown(void)
{
    free(path);
    tmpdir_remove(folder);
}

static struct fake_tune fake_of(void)
{
    return (struct fake_tune){
        .costs = &truth, .unit_us = 0.01, .speed = 1, .noise = 0.005, .seed = 1, .recovers = true
    };
}

/* A key of the tile of 128 x 128 takes three quarters of what the library believes. */
static void make_other_faster(void)
{
    fake_tune_tile(&truth, 128, 128, 2, 128)->cost = (struct tile_cost){ 318, 0.75 };
}

static ffa_status run_record(struct tune_record *record, struct fake_tune *fake, bool resumes,
                             bool *must_restart, ffa_error *err)
{
    return fake_tune_run(record, fake, path, resumes, must_restart, err);
}

static void run_whole(struct tune_record *record, struct fake_tune *fake)
{
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(run_record(record, fake, false, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_ne(record->ended_s, 0);
}

static struct tune_fit fit_of(const struct tune_record *records, int32_t count)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct tune_fit fit;

    ck_assert_msg(tune_fit(&fit, records, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(fit.group_count, 1);
    return fit;
}

static int32_t index_of(const struct tune_record *record, int32_t consumers, int32_t tile_n)
{
    for (int32_t i = 0; i < record->configuration_count; i++)
        if (record->configurations[i].consumers == consumers &&
            record->configurations[i].tile_n == tile_n)
            return i;
    ck_abort_msg("no tile %d x %d", 64 * consumers, tile_n);
    return -1;
}

/* ---- the space ---- */

START_TEST(the_space_has_every_tile_that_fits)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);

    ck_assert(tune_is_baseline(&record.configurations[0]));
    ck_assert_int_eq(record.pack_heads, 8);
    (void)index_of(&record, 3, 80);
    (void)index_of(&record, 2, 128);
    (void)index_of(&record, 1, 64);
    for (int32_t i = 1; i < record.configuration_count; i++) {
        ck_assert_int_le(record.configurations[i].shared_bytes, 232448);
        /* A thread of three warpgroups has 160 registers at most. */
        ck_assert(record.configurations[i].consumers < 3 || record.configurations[i].tile_n < 128);
        ck_assert_int_gt(record.configurations[i].kv_slots, 0);
    }
    tune_record_finish(&record);
}
END_TEST

/* Each field that a session refuses. */
static const struct {
    const char *text, *want;
} bad_specs[] = {
    { "head_dim=128,dtype=fp32,heads=8:1", "dtype is 3" },
    { "head_dim=128,dtype=bf16,heads=8:1,tile=128x128", "tile_m is 128" },
    { "head_dim=128,dtype=bf16,heads=8:1,softcap", "flags is 2" },
    { "head_dim=128,dtype=bf16", "heads are 0:0" },
    { "head_dim=100,dtype=bf16,heads=8:1", "head_dim" },
};

START_TEST(a_spec_that_cannot_be_tuned_is_refused)
{
    const struct device_facts facts = { .name = "NVIDIA H200", .sm_count = 132 };
    const struct choose_device device = choose_device_of(&facts);
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct tune_record record = { 0 };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_attention_spec_parse(&spec, bad_specs[_i].text, &err), FFA_OK);
    ck_assert_int_eq(tune_space_build(&record, &spec, "sm_90a", &device, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, bad_specs[_i].want), "%s", err.message);
    tune_record_finish(&record);
}
END_TEST

/* ---- what is found ---- */

START_TEST(the_fastest_is_found_and_published)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    const struct cost_tile *first = NULL;
    struct tune_fit fit;

    make_other_faster();
    run_whole(&record, &fake);
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.groups[0].is_published, "%s", fit.groups[0].reason);
    ck_assert(fit.groups[0].gain > 0.02);
    for (int32_t i = 0; i < fit.table.tile_count && !first; i++)
        if (fit.table.tiles[i].head_dim == 128)
            first = &fit.table.tiles[i];
    ck_assert_ptr_nonnull(first);
    ck_assert_int_eq(first->consumers, 2);
    ck_assert_int_eq(first->tile_n, 128);
    /* Its key costs 1, the unit, which takes 0.75 of what it took. */
    ck_assert(fabs(first->cost.key - 1) < 1e-9);
    ck_assert_msg(fabs(first->unit_us / 0.0075 - 1) < 0.02, "%g", first->unit_us);
    ck_assert_msg(fabs(first->cost.begin - 318 / 0.75) < 25, "%g", first->cost.begin);
    ck_assert(fit.groups[0].kernels[0].residual < 0.01);
    /* Other head_dims stay. */
    ck_assert_int_eq(fit.table.tiles[0].head_dim, 64);
    ck_assert_str_eq(fit.table.templates, record.templates_digest);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* Of heads apart the table had no tiles, and gets the session's; of a head_dim of v that is another
 * one it had some, which the session's replace. Those of others stay. */
START_TEST(every_group_is_fitted)
{
    static const struct {
        const char *spec;
        struct cost_tile fast;
    } cases[] = {
        { "head_dim=128,dtype=bf16,heads=16:16,pack=0", { 128, 128, 0, 2, 144, { 330, 0.8 }, 0 } },
        { "head_dim=192:128,dtype=bf16,heads=32:32", { 192, 128, 1, 2, 96, { 300, 0.7 }, 0 } },
        { "head_dim=192:128,dtype=bf16,heads=32:32,pack=0",
          { 192, 128, 0, 2, 96, { 300, 0.7 }, 0 } },
    };
    const struct cost_table *library = cost_table_find("NVIDIA H200");
    struct tune_record record = fake_tune_record_of(1, cases[_i].spec, masks, MASKS);
    struct fake_tune fake = fake_of();
    const struct cost_tile *tiles[COST_TILES_MAX], *was[COST_TILES_MAX], *fast = &cases[_i].fast;
    struct tune_fit fit;
    int32_t count;

    truth.tiles[truth.tile_count++] = *fast;
    run_whole(&record, &fake);
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.groups[0].is_published, "%s", fit.groups[0].reason);
    ck_assert_int_eq(fit.groups[0].head_dim_v, fast->head_dim_v);
    ck_assert_int_eq(fit.groups[0].is_packed, fast->packed);
    count = choose_cost_tiles(tiles, &fit.table, fast->head_dim, fast->head_dim_v, fast->packed);
    ck_assert_int_eq(
        count - choose_cost_tiles(was, library, fast->head_dim, fast->head_dim_v, fast->packed),
        fit.table.tile_count - library->tile_count);
    ck_assert_int_eq(tiles[0]->tile_n, fast->tile_n);
    ck_assert_int_eq(tiles[0]->consumers, fast->consumers);
    ck_assert_msg(fit.groups[0].kernels[0].residual < 0.01, "%g",
                  fit.groups[0].kernels[0].residual);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* Of all sets, not only of those with the kernel that is fastest by itself. That has 64 keys here,
 * but long masks are 2 % faster with 128, which plans do not choose beside 64, as that is less than
 * `worth`, and short ones are faster with 96 than with either. */
START_TEST(a_set_may_lack_the_fastest_kernel)
{
    struct tune_record record =
        fake_tune_record_of(1, "head_dim=192:128,dtype=bf16,heads=32:32", masks, MASKS);
    const struct cost_tile *tiles[COST_TILES_MAX];
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    fake.noise = 0.001;
    fake_tune_tile(&truth, 192, 128, 2, 128)->cost = (struct tile_cost){ 275, 0.968 };
    fake_tune_tile(&truth, 192, 128, 2, 64)->cost = (struct tile_cost){ 240, 1 };
    truth.tiles[truth.tile_count++] = (struct cost_tile){ 192, 128, 1, 2, 96, { 20, 1.25 }, 0 };
    run_whole(&record, &fake);
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.groups[0].is_published, "%s", fit.groups[0].reason);
    ck_assert_int_eq(fit.groups[0].kernels[0].tile_n, 64);
    ck_assert_int_eq(choose_cost_tiles(tiles, &fit.table, 192, 128, true), 2);
    ck_assert_int_eq(tiles[0]->tile_n, 128);
    ck_assert_int_eq(tiles[1]->tile_n, 96);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* A session whose final is there: the baseline, and a kernel that takes 0.9 of its time. */
static struct tune_record made_record(int id, const char *spec, int32_t tile_n)
{
    static char texts[TUNE_MASKS_MAX][16];
    const char *many[TUNE_MASKS_MAX];
    struct tune_record record;
    int32_t fast;

    for (int32_t m = 0; m < TUNE_MASKS_MAX; m++) {
        text_copy(texts[m], "full:%d", 64 * (m + 1));
        many[m] = texts[m];
    }
    record = fake_tune_record_of(id, spec, many, TUNE_MASKS_MAX);
    fast = index_of(&record, 2, tile_n);
    for (int32_t lap = TUNE_FINAL_LAP; lap < TUNE_FINAL_LAP + TUNE_FINAL_LAPS_MIN; lap++)
        for (int32_t m = 0; m < TUNE_MASKS_MAX; m++)
            for (int32_t k = 0; k <= fast; k += fast) {
                const struct tune_sample sample = { .lap = lap,
                                                    .mask = m,
                                                    .configuration = k,
                                                    .calls = 1,
                                                    .us = (m + 1) * (k ? 9.0 : 10.0) };

                ck_assert(tune_record_add(&record, &sample));
            }
    return record;
}

/* As if the session had begun with a table that has no other tile of 192:128. */
static void begin_with_one_tile(struct tune_record *record, int32_t consumers, int32_t tile_n)
{
    struct cost_table table;
    int32_t kept = 0;

    ck_assert_int_eq(cost_table_read(&table, record->base_table, strlen(record->base_table),
                                     "of the session", NULL),
                     FFA_OK);
    for (int32_t i = 0; i < table.tile_count; i++) {
        const struct cost_tile tile = table.tiles[i];

        if (tile.head_dim != 192 || tile.head_dim_v != 128 ||
            (tile.consumers == consumers && tile.tile_n == tile_n))
            table.tiles[kept++] = tile;
    }
    table.tile_count = kept;
    ffa_free(record->base_table);
    ck_assert_int_eq(cost_table_write(&table, &record->base_table, NULL), FFA_OK);
}

/* Where the table that a session began with has one tile, the baseline is that tile's kernel, and
 * may be of a set even if it was not among the tiles that the session was told to time. */
START_TEST(the_baseline_is_a_kernel)
{
    struct tune_record record = made_record(1, "head_dim=192:128,dtype=bf16,heads=8:8", 96);
    struct tune_fit fit;
    const struct tune_group *of = &fit.groups[0];

    begin_with_one_tile(&record, 2, 128);
    fit = fit_of(&record, 1);
    ck_assert_int_eq(of->kernel_count, 2);
    ck_assert_int_eq(of->kernels[0].tile_n, 96);
    ck_assert(fabs(of->kernels[0].relative - 0.9) < 1e-9);
    ck_assert_int_eq(of->kernels[1].consumers, 2);
    ck_assert_int_eq(of->kernels[1].tile_n, 128);
    ck_assert(of->kernels[1].relative == 1);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* A kernel that is faster in every second lap of the final alone, and in the median of all: the
 * laps that it is found by are not those that judge it. */
START_TEST(luck_is_not_published)
{
    struct tune_record record =
        fake_tune_record_of(1, "head_dim=192:128,dtype=bf16,heads=32:32", masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;
    int32_t lucky;

    truth.tiles[truth.tile_count++] = (struct cost_tile){ 192, 128, 1, 2, 96, { 300, 0.7 }, 0 };
    run_whole(&record, &fake);
    lucky = index_of(&record, 2, 96);
    for (int64_t i = 0; i < record.sample_count; i++) {
        struct tune_sample *sample = &record.samples[i];

        if (sample->configuration == lucky && sample->lap >= TUNE_FINAL_LAP && sample->lap % 2)
            sample->us *= 2;
    }
    fit = fit_of(&record, 1);
    ck_assert(!fit.groups[0].is_published);
    ck_assert_msg(fit.groups[0].gain < -0.1, "%g", fit.groups[0].gain);
    ck_assert_str_eq(fit.groups[0].cases[0].mask, "causal:2048");
    ck_assert_msg(fit.groups[0].cases[0].gain > 0.1, "%g", fit.groups[0].cases[0].gain);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* Both halves find the kernel and see it gain 20 and 0.2 %, but the median of all laps is 0.2. */
START_TEST(all_laps_have_to_say_so_too)
{
    static const double gains[] = { 0.5, 0.002, -0.1 };
    struct tune_record record = made_record(1, "head_dim=192:128,dtype=bf16,heads=8:8", 96);
    struct tune_fit fit;

    begin_with_one_tile(&record, 2, 128);
    for (int64_t i = 0; i < record.sample_count; i++) {
        struct tune_sample *sample = &record.samples[i];

        sample->us = 1000 / (sample->configuration ? 1 + gains[sample->lap - TUNE_FINAL_LAP] : 1);
    }
    fit = fit_of(&record, 1);
    ck_assert(!fit.groups[0].is_published);
    ck_assert(fit.groups[0].gain > fit.groups[0].noise);
    ck_assert_str_eq(fit.groups[0].reason, "by all laps, what is chosen is not faster by 0.3 %");
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* Three laps of one half alone judge nothing: they are no final yet. */
START_TEST(a_final_has_laps_of_both_halves)
{
    struct tune_record record = made_record(1, "head_dim=192:128,dtype=bf16,heads=8:8", 96);
    struct tune_fit fit;

    for (int64_t i = 0; i < record.sample_count; i++)
        record.samples[i].lap = TUNE_FINAL_LAP + 2 * (record.samples[i].lap - TUNE_FINAL_LAP);
    fit = fit_of(&record, 1);
    ck_assert_int_eq(fit.groups[0].kernel_count, 0);
    ck_assert_msg(strstr(fit.groups[0].reason, "no session has measured enough"), "%s",
                  fit.groups[0].reason);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* There were 256 once, and those beyond were dropped without a word. */
START_TEST(no_case_is_dropped)
{
    static const char *const specs[] = {
        "head_dim=128,dtype=bf16,heads=8:8",   "head_dim=128,dtype=bf16,heads=16:16",
        "head_dim=128,dtype=bf16,heads=24:24", "head_dim=128,dtype=bf16,heads=32:32",
        "head_dim=128,dtype=bf16,heads=40:40",
    };
    struct tune_record records[5];
    struct tune_fit fit;

    for (int i = 0; i < 5; i++)
        records[i] = made_record(i + 1, specs[i], 128);
    fit = fit_of(records, 5);
    ck_assert_int_eq(fit.groups[0].case_count, 5 * TUNE_MASKS_MAX);
    tune_fit_finish(&fit);
    for (int i = 0; i < 5; i++)
        tune_record_finish(&records[i]);
}
END_TEST

/* Times that get less with more keys say nothing of what a key takes; a table that could not be
 * read was made of them once. */
START_TEST(what_is_fitted_reads_back)
{
    struct tune_record record = made_record(1, "head_dim=128,dtype=bf16,heads=8:8", 128);
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table read;
    struct tune_fit fit;
    char *text;

    for (int64_t i = 0; i < record.sample_count; i++)
        record.samples[i].us =
            (record.samples[i].configuration ? 1e6 : 2e6) * (1 - 1e-3 * record.samples[i].mask);
    fit = fit_of(&record, 1);
    ck_assert(fit.groups[0].is_published);
    ck_assert_int_eq(cost_table_write(&fit.table, &text, &err), FFA_OK);
    ck_assert_msg(cost_table_read(&read, text, strlen(text), "of the fit", &err) == FFA_OK, "%s",
                  err.message);
    ffa_free(text);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* The time of a launch is no tile's. */
START_TEST(what_a_call_takes_is_kept_apart)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    fake.call_us = 20;
    fake.noise = 0.001;
    run_whole(&record, &fake);
    fit = fit_of(&record, 1);
    for (int32_t k = 0; k < fit.groups[0].kernel_count; k++) {
        const struct tune_kernel *kernel = &fit.groups[0].kernels[k];

        ck_assert_msg(fabs(kernel->call_us - 20) < 2, "%g", kernel->call_us);
        ck_assert_msg(kernel->residual < 0.005, "%g", kernel->residual);
        if (kernel->consumers == 2 && kernel->tile_n == 128)
            ck_assert_msg(fabs(kernel->begin_us / kernel->key_us - 318) < 40, "%g",
                          kernel->begin_us / kernel->key_us);
    }
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

START_TEST(what_the_library_chooses_stays_within_noise)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    char before[DIGEST_TEXT], after[DIGEST_TEXT];
    struct tune_fit fit;

    /* A spec has three kernels: that the fourth of the table is slow is as it believes. */
    fake_tune_tile(&truth, 128, 128, 2, 80)->cost = (struct tile_cost){ 600, 1.6 };
    run_whole(&record, &fake);
    fit = fit_of(&record, 1);
    ck_assert_msg(!fit.groups[0].is_published, "gain %g +- %g: %d x %d", fit.groups[0].gain,
                  fit.groups[0].noise, fit.groups[0].kernels[0].consumers,
                  fit.groups[0].kernels[0].tile_n);
    ck_assert_msg(strstr(fit.groups[0].reason, "not above its noise"), "%s", fit.groups[0].reason);
    cost_table_digest(cost_table_find("NVIDIA H200"), before);
    cost_table_digest(&fit.table, after);
    ck_assert_str_eq(before, after);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* In each lap of a mask the baseline runs, too, and no two laps begin with the same one. */
START_TEST(laps_are_interleaved_and_turn)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    int32_t first[2] = { -1, -1 };

    run_whole(&record, &fake);
    for (int64_t i = 0; i < record.sample_count; i++) {
        const struct tune_sample *of = &record.samples[i];

        ck_assert_ptr_nonnull(tune_record_find(&record, of->lap, of->mask, 0));
        if (of->lap >= TUNE_FINAL_LAP && of->lap < TUNE_FINAL_LAP + 2 && of->mask == 0 &&
            of->place == 0)
            first[of->lap - TUNE_FINAL_LAP] = of->configuration;
    }
    ck_assert_int_ge(first[0], 0);
    ck_assert_int_ge(first[1], 0);
    ck_assert_int_ne(first[0], first[1]);
    tune_record_finish(&record);
}
END_TEST

START_TEST(the_slower_half_leaves)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    int32_t in_first = 0, in_final = 0;

    run_whole(&record, &fake);
    for (int32_t k = 0; k < record.configuration_count; k++) {
        in_first += tune_record_find(&record, 0, 0, k) != NULL;
        in_final += tune_record_find(&record, TUNE_FINAL_LAP, 0, k) != NULL;
    }
    ck_assert_int_eq(in_first, record.configuration_count);
    ck_assert_int_le(in_final, in_first / 2);
    ck_assert_ptr_nonnull(tune_record_find(&record, TUNE_FINAL_LAP, 0, index_of(&record, 3, 80)));
    tune_record_finish(&record);
}
END_TEST

START_TEST(the_budget_ends_the_race)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_fit fit;

    record.budget_us = 10000;
    run_whole(&record, &fake);
    ck_assert_int_ge(record.spent_us, 10000);
    ck_assert_int_lt(record.sample_count, 2 * record.configuration_count);
    fit = fit_of(&record, 1);
    ck_assert(!fit.groups[0].is_published);
    ck_assert_msg(strstr(fit.groups[0].reason, "measured enough"), "%s", fit.groups[0].reason);
    tune_fit_finish(&fit);
    tune_record_finish(&record);
}
END_TEST

/* ---- configurations that fail ---- */

static const struct fake_fault_of faults[] = {
    { 1, 64, FAKE_SPILLS },      { 1, 80, FAKE_WORKER_DIES },    { 1, 96, FAKE_WORKER_HANGS },
    { 1, 112, FAKE_IS_REFUSED }, { 2, 64, FAKE_IS_WRONG },       { 2, 80, FAKE_TRAPS },
    { 2, 96, FAKE_HANGS },       { 2, 112, FAKE_TRAPS_IN_RACE },
};
static const enum tune_state fault_states[] = { TUNE_SPILLED, TUNE_DIED, TUNE_HUNG, TUNE_REFUSED,
                                                TUNE_WRONG,   TUNE_DIED, TUNE_HUNG, TUNE_DIED };
enum { FAULTS = 8, LOST = 3 /* of these, the ones that take the device down */ };

static void check_faults(const struct tune_record *record)
{
    for (int i = 0; i < FAULTS; i++) {
        const struct tune_configuration *of =
            &record->configurations[index_of(record, faults[i].consumers, faults[i].tile_n)];

        ck_assert_msg(of->state == fault_states[i], "%d x %d is %s", 64 * of->consumers, of->tile_n,
                      tune_state_text(of->state));
        ck_assert_str_ne(of->reason, "");
    }
    ck_assert_int_eq(record->configurations[index_of(record, 3, 80)].state, TUNE_CHECKED);
}

START_TEST(configurations_that_fail_are_left_out)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();

    fake.faults = faults;
    fake.fault_count = FAULTS;
    run_whole(&record, &fake);
    check_faults(&record);
    tune_record_finish(&record);
}
END_TEST

/* A device that is lost with the process: each process leaves one configuration out. */
START_TEST(a_device_that_is_lost_takes_a_new_process)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    bool must_restart = true;
    int processes = 0;

    fake.faults = faults;
    fake.fault_count = FAULTS;
    fake.recovers = false;
    while (must_restart) {
        const ffa_status rc = run_record(&record, &fake, processes++ > 0, &must_restart, &err);

        ck_assert_int_eq(rc == FFA_OK, !must_restart);
        ck_assert_int_le(processes, LOST + 1);
    }
    ck_assert_int_eq(processes, LOST + 1);
    check_faults(&record);
    tune_record_finish(&record);
}
END_TEST

static const ffa_status no_compiler[] = { FFA_NOT_FOUND, FFA_UNSUPPORTED, FFA_IO };

/* Where a tile, or the baseline, cannot be compiled now, nothing is said of it: the session ends,
 * and goes on when it can be. */
START_TEST(a_compiler_that_is_not_there_settles_nothing)
{
    static const struct fake_fault_of of[] = { { 2, 80, FAKE_NO_COMPILER },
                                               { 0, 0, FAKE_NO_COMPILER } };

    for (int i = 0; i < 2; i++) {
        struct tune_record record = fake_tune_record(1, masks, MASKS);
        struct fake_tune fake = fake_of();
        ffa_error err = { FFA_OK, 0, "" };

        (void)remove(path);
        fake.faults = &of[i];
        fake.fault_count = 1;
        fake.compile_status = no_compiler[_i];
        ck_assert_int_eq(run_record(&record, &fake, false, NULL, &err), no_compiler[_i]);
        ck_assert_msg(strstr(err.message, "as was asked for"), "%s", err.message);
        fake.fault_count = 0;
        ck_assert_msg(run_record(&record, &fake, true, NULL, &err) == FFA_OK, "%s", err.message);
        for (int32_t k = 0; k < record.configuration_count; k++)
            ck_assert_int_eq(record.configurations[k].state, TUNE_CHECKED);
        tune_record_finish(&record);
    }
}
END_TEST

START_TEST(a_baseline_that_fails_ends_the_session)
{
    static const struct fake_fault_of of_baseline[] = { { 0, 0, FAKE_IS_WRONG } };
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    fake.faults = of_baseline;
    fake.fault_count = 1;
    ck_assert_int_eq(run_record(&record, &fake, false, NULL, &err), FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "the baseline is wrong"), "%s", err.message);
    tune_record_finish(&record);
}
END_TEST

/* ---- kills ---- */

/* Run in a child that is killed at a stage. */
static void run_killed(enum fake_stage stage, int32_t after, bool resumes)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    int status;
    const pid_t child = fork();

    ck_assert_int_ge(child, 0);
    fake.kill_at = stage;
    fake.kill_after = after;
    if (child == 0) {
        (void)run_record(&record, &fake, resumes, NULL, &err);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    tune_record_finish(&record);
}

static const struct {
    enum fake_stage stage;
    int32_t after;
} kills[] = { { FAKE_COMPILE, 0 }, { FAKE_COMPILE, 5 }, { FAKE_PREPARE, 3 }, { FAKE_CHECK, 0 },
              { FAKE_CHECK, 7 },   { FAKE_RUN, 0 },     { FAKE_RUN, 11 },    { FAKE_RUN, 150 } };

/* After a kill nothing is done twice, but for the lap that was interrupted, and what is in the file
 * is what was measured. */
START_TEST(a_killed_session_goes_on)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS), read = { 0 };
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };
    char one[DIGEST_TEXT], other[DIGEST_TEXT];
    struct tune_store *store;
    struct tune_fit fit;

    make_other_faster();
    run_killed(kills[_i].stage, kills[_i].after, false);
    ck_assert_msg(run_record(&record, &fake, true, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(fake.calls[FAKE_COMPILE], kills[_i].stage == FAKE_COMPILE
                                                   ? record.configuration_count - kills[_i].after
                                                   : 0);
    if (kills[_i].stage == FAKE_RUN)
        fake_tune_check_resumed(&record, &fake, kills[_i].after);
    for (int32_t i = 0; i < record.configuration_count; i++)
        ck_assert_int_eq(record.configurations[i].state, TUNE_CHECKED);
    fit = fit_of(&record, 1);
    ck_assert_msg(fit.groups[0].is_published, "%s", fit.groups[0].reason);
    cost_table_digest(&fit.table, one);
    tune_fit_finish(&fit);

    ck_assert_int_eq(tune_store_open(&store, path, TUNE_STORE_READ, &err), FFA_OK);
    fake_tune_load(&read, store);
    tune_store_close(store);
    fit = fit_of(&read, 1);
    cost_table_digest(&fit.table, other);
    ck_assert_str_eq(one, other);
    tune_fit_finish(&fit);
    tune_record_finish(&read);
    tune_record_finish(&record);
}
END_TEST

/* What a session of one process finds that has all the time it wants. */
static void run_reference(struct tune_record *record)
{
    char *own = tmpdir_path(folder, "reference");
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(fake_tune_run(record, &fake, own, false, NULL, &err), FFA_OK);
    free(own);
}

/* The clock of the process that goes on with a session is another one. With more budget the heats
 * go on, and the final has others, which are compared with the baseline of this process. */
START_TEST(samples_are_compared_within_a_process)
{
    struct tune_record begun = fake_tune_record(1, masks, MASKS), record = { 0 };
    struct tune_record reference = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of(), later = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    run_reference(&reference);
    fake.noise = 0.02; /* who is in the final is luck, too */
    later.speed = 1.25;
    begun.budget_us = 250000; /* it cuts the heats short */
    run_whole(&begun, &fake);
    later.budget_us = reference.budget_us;
    ck_assert_msg(run_record(&record, &later, true, NULL, &err) == FFA_OK, "%s", err.message);
    fake_tune_check_gains(&record, &begun, &reference);
    tune_record_finish(&reference);
    tune_record_finish(&begun);
    tune_record_finish(&record);
}
END_TEST

/* Gone on with and with nothing to be done, a session keeps when it ended, whatever the clock says;
 * with a larger budget it ends again. */
START_TEST(one_that_is_over_keeps_its_end)
{
    enum { LONG_AGO = 1000 };
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    struct tune_store *store;
    ffa_error err = { FFA_OK, 0, "" };
    int64_t samples;

    record.budget_us = 250000; /* it cuts the heats short */
    run_whole(&record, &fake);
    samples = record.sample_count;
    record.ended_s = LONG_AGO;
    ck_assert_int_eq(tune_store_open(&store, path, TUNE_STORE_WRITE, &err), FFA_OK);
    ck_assert_int_eq(tune_store_put_times(store, &record, &err), FFA_OK);
    tune_store_close(store);
    ck_assert_int_eq(run_record(&record, &fake, true, NULL, &err), FFA_OK);
    ck_assert_int_eq(record.sample_count, samples);
    ck_assert_int_eq(record.ended_s, LONG_AGO);
    fake.budget_us = 10 * record.budget_us;
    ck_assert_int_eq(run_record(&record, &fake, true, NULL, &err), FFA_OK);
    ck_assert_int_gt(record.sample_count, samples);
    ck_assert_int_gt(record.ended_s, LONG_AGO);
    tune_record_finish(&record);
}
END_TEST

/* The configuration on which two processes ended is left out. */
START_TEST(two_kills_on_one_configuration_leave_it_out)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    run_killed(FAKE_CHECK, 3, false);
    run_killed(FAKE_CHECK, 0, true);
    ck_assert_msg(run_record(&record, &fake, true, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(record.configurations[3].state, TUNE_DIED);
    ck_assert_str_eq(record.configurations[3].reason, "two processes in a row ended while it ran");
    ck_assert_int_eq(record.configurations[4].state, TUNE_CHECKED);
    tune_record_finish(&record);
}
END_TEST

/* One that ran between two kills is not at fault. */
START_TEST(kills_at_different_times_leave_nothing_out)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    /* The baseline begins with mask 0, and is the last one with mask 1. */
    run_killed(FAKE_RUN, 0, false);
    run_killed(FAKE_RUN, 2 * record.configuration_count - 1, true);
    ck_assert_msg(run_record(&record, &fake, true, NULL, &err) == FFA_OK, "%s", err.message);
    for (int32_t i = 0; i < record.configuration_count; i++) {
        ck_assert_int_eq(record.configurations[i].state, TUNE_CHECKED);
        ck_assert_int_eq(record.configurations[i].tries, 0);
    }
    tune_record_finish(&record);
}
END_TEST

/* A failure that is not the configuration's own is no process that ended while it ran. */
START_TEST(a_lack_of_memory_leaves_nothing_out)
{
    static const struct fake_fault_of of_baseline[] = { { 0, 0, FAKE_HAS_NO_MEMORY } };
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    ffa_error err = { FFA_OK, 0, "" };

    fake.faults = of_baseline;
    fake.fault_count = 1;
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(run_record(&record, &fake, i > 0, NULL, &err) == FFA_NOMEM, "%d: %s", i,
                      err.message);
        ck_assert_int_eq(record.trying, -1);
    }
    fake.fault_count = 0;
    ck_assert_msg(run_record(&record, &fake, true, NULL, &err) == FFA_OK, "%s", err.message);
    tune_record_finish(&record);
}
END_TEST

START_TEST(a_stop_keeps_what_was_measured)
{
    struct tune_record record = fake_tune_record(1, masks, MASKS);
    struct fake_tune fake = fake_of();
    const struct tune_device device = fake_tune_device(&fake);
    volatile int stop = 1;
    struct tune_session session = { .record = &record, .device = &device, .stop = &stop };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(tune_store_open(&session.store, path, TUNE_STORE_CREATE, &err), FFA_OK);
    ck_assert_int_eq(tune_store_add(session.store, &record, 1, &err), FFA_OK);
    ck_assert_int_eq(tune_session_run(&session, &err), FFA_TIMEOUT);
    ck_assert_msg(strstr(err.message, "stopped"), "%s", err.message);
    ck_assert(!session.must_restart);
    stop = 0;
    ck_assert_int_eq(tune_session_run(&session, &err), FFA_OK);
    ck_assert_int_eq(fake.calls[FAKE_COMPILE], record.configuration_count);
    tune_store_close(session.store);
    tune_record_finish(&record);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tune");
    TCase *all = tcase_create("sessions");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, the_space_has_every_tile_that_fits);
    tcase_add_loop_test(all, a_spec_that_cannot_be_tuned_is_refused, 0,
                        sizeof bad_specs / sizeof *bad_specs);
    tcase_add_test(all, the_fastest_is_found_and_published);
    tcase_add_test(all, what_a_call_takes_is_kept_apart);
    tcase_add_loop_test(all, every_group_is_fitted, 0, 3);
    tcase_add_test(all, a_set_may_lack_the_fastest_kernel);
    tcase_add_test(all, the_baseline_is_a_kernel);
    tcase_add_test(all, luck_is_not_published);
    tcase_add_test(all, all_laps_have_to_say_so_too);
    tcase_add_test(all, a_final_has_laps_of_both_halves);
    tcase_add_test(all, no_case_is_dropped);
    tcase_add_test(all, what_is_fitted_reads_back);
    tcase_add_test(all, what_the_library_chooses_stays_within_noise);
    tcase_add_test(all, laps_are_interleaved_and_turn);
    tcase_add_test(all, the_slower_half_leaves);
    tcase_add_test(all, the_budget_ends_the_race);
    tcase_add_test(all, configurations_that_fail_are_left_out);
    tcase_add_test(all, a_device_that_is_lost_takes_a_new_process);
    tcase_add_loop_test(all, a_compiler_that_is_not_there_settles_nothing, 0,
                        sizeof no_compiler / sizeof *no_compiler);
    tcase_add_test(all, a_baseline_that_fails_ends_the_session);
    tcase_add_loop_test(all, a_killed_session_goes_on, 0, sizeof kills / sizeof *kills);
    tcase_add_test(all, samples_are_compared_within_a_process);
    tcase_add_test(all, one_that_is_over_keeps_its_end);
    tcase_add_test(all, two_kills_on_one_configuration_leave_it_out);
    tcase_add_test(all, kills_at_different_times_leave_nothing_out);
    tcase_add_test(all, a_lack_of_memory_leaves_nothing_out);
    tcase_add_test(all, a_stop_keeps_what_was_measured);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
