/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_tune.h"

#include "choose/cost_table_json.h"
#include "choose/tile_choice.h"
#include "tile/tile.h"
#include "tune/tune_race.h"
#include "tune/tune_session.h"
#include "tune/tune_space.h"
#include "tune/tune_stats.h"

#include <check.h>
#include <ffa/mask.h>
#include <math.h>
#include <signal.h>

static enum fake_fault fault_of(const struct fake_tune *fake,
                                const struct tune_configuration *configuration)
{
    for (int32_t i = 0; i < fake->fault_count; i++)
        if (fake->faults[i].consumers == configuration->consumers &&
            fake->faults[i].tile_n == configuration->tile_n)
            return fake->faults[i].fault;
    return FAKE_SOUND;
}

static void pass(struct fake_tune *fake, enum fake_stage stage)
{
    if (fake->kill_at == stage && fake->calls[stage] == fake->kill_after)
        (void)raise(SIGKILL);
    fake->calls[stage]++;
    fake->us += 1000;
}

static int64_t now_us(void *user)
{
    return ((struct fake_tune *)user)->us;
}

static ffa_status compile(void *user, const struct tune_record *record, const int32_t *which,
                          int32_t count, const volatile int *stop, tune_compiled_fn done,
                          void *done_user, ffa_error *err)
{
    struct fake_tune *fake = user;

    (void)stop;
    (void)err;
    for (int32_t i = 0; i < count; i++) {
        const enum fake_fault fault = fault_of(fake, &record->configurations[which[i]]);
        struct tune_compiled result = { .registers = 168, .key = "k", .message = "" };

        pass(fake, FAKE_COMPILE);
        result.status = fault == FAKE_WORKER_DIES    ? FFA_GPU
                        : fault == FAKE_WORKER_HANGS ? FFA_TIMEOUT
                        : fault == FAKE_IS_REFUSED   ? FFA_COMPILE
                        : fault == FAKE_NO_COMPILER  ? fake->compile_status
                                                     : FFA_OK;
        result.message = result.status == FFA_OK ? "" : "as was asked for";
        result.spill_bytes = fault == FAKE_SPILLS ? 24 : 0;
        done(done_user, which[i], &result);
    }
    return FFA_OK;
}

static ffa_status prepare(void *user, const struct tune_record *record, int32_t configuration,
                          ffa_error *err)
{
    (void)record;
    (void)configuration;
    (void)err;
    pass(user, FAKE_PREPARE);
    return FFA_OK;
}

static ffa_status give_up(ffa_error *err, ffa_status status, const char *text)
{
    err->status = status;
    text_copy(err->message, "%s", text);
    return status;
}

static ffa_status check(void *user, const struct tune_record *record, int32_t configuration,
                        bool *is_right, char reason[200], ffa_error *err)
{
    const enum fake_fault fault = fault_of(user, &record->configurations[configuration]);

    pass(user, FAKE_CHECK);
    *is_right = fault != FAKE_IS_WRONG;
    text_format(reason, 200, "%s", *is_right ? "" : "row 3 is off");
    if (fault == FAKE_TRAPS)
        return give_up(err, FFA_GPU, "an illegal address");
    return fault == FAKE_HANGS ? give_up(err, FFA_TIMEOUT, "it did not end") : FFA_OK;
}

/* What a tile truly costs; one that the costs do not have is slow. */
static struct tile_cost cost_of(const struct fake_tune *fake, const struct tune_record *record,
                                int32_t consumers, int32_t tile_n)
{
    for (int32_t i = 0; i < fake->costs->tile_count; i++) {
        const struct cost_tile *tile = &fake->costs->tiles[i];

        if (tile->head_dim == record->head_dim && tile->head_dim_v == record->head_dim_v &&
            (tile->packed != 0) == (record->pack_heads > 0) && tile->consumers == consumers &&
            tile->tile_n == tile_n)
            return tile->cost;
    }
    return (struct tile_cost){ 600 + tile_n, 1.6 * consumers };
}

/* The time of a mask by the library's own model, of one kernel, or of those of the baseline with
 * their true costs, one of them chosen by what the library takes for their costs. */
static double time_of(const struct fake_tune *fake, const struct tune_record *record,
                      const struct tune_configuration *configuration, const char *text)
{
    static const struct cost_tile by_architecture = { .consumers = 2,
                                                      .tile_n = 128,
                                                      .cost = { 0, 1 } };
    const struct cost_table *library = cost_table_find("NVIDIA H200");
    const struct cost_tile *tiles[COST_TILES_MAX + 1];
    struct tile_candidate candidates[COST_TILES_MAX];
    struct choose_device device = { .facts = record->facts, .costs = library };
    const int32_t pack = max32(1, record->pack_heads);
    struct tile_query query = { .candidates = candidates,
                                .candidate_count = 1,
                                .heads = record->heads_q / pack,
                                .is_packed = record->pack_heads > 0 };
    struct tile_plan plan = { 0 };
    struct tile_choice choice;
    int32_t consumers = configuration->consumers, tile_n = configuration->tile_n;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    if (tune_is_baseline(configuration)) {
        query.candidate_count =
            min32(3, choose_cost_tiles(tiles, library, record->head_dim, record->head_dim_v,
                                       record->pack_heads > 0));
        tiles[query.candidate_count] = &by_architecture;
        query.candidate_count = max32(1, query.candidate_count);
        for (int32_t i = 0; i < query.candidate_count; i++)
            candidates[i] = (struct tile_candidate){ 64 * tiles[i]->consumers / pack,
                                                     tiles[i]->tile_n, tiles[i]->cost };
        ck_assert_int_eq(choose_tiles(&plan, &choice, mask, &query, &device, NULL), FFA_OK);
        consumers = tiles[choice.candidate]->consumers;
        tile_n = tiles[choice.candidate]->tile_n;
        tile_finish(&plan);
        query.candidate_count = 1;
    }
    candidates[0] = (struct tile_candidate){ 64 * consumers / pack, tile_n,
                                             cost_of(fake, record, consumers, tile_n) };
    ck_assert_int_eq(choose_tiles(&plan, &choice, mask, &query, &device, NULL), FFA_OK);
    choice.time = choose_tiles_time(&plan, &candidates[0], &query, &device);
    tile_finish(&plan);
    ffa_mask_destroy(mask);
    return (fake->call_us + choice.time * fake->unit_us) / fake->speed;
}

/* The tiles of a backward pass, tile_finish(), and what is asked of them. */
static struct order_query ask(struct tile_plan *tiles, const struct tune_record *record,
                              const char *text)
{
    const struct tile_options options = { .tile_m = record->backward_tile_m,
                                          .tile_n = record->backward_tile_n,
                                          .on_grid = record->is_deterministic != 0 };
    struct order_query query;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, text, NULL), FFA_OK);
    ck_assert_int_eq(
        backward_tiles_build(tiles, mask, &options, record->heads_q / record->heads_kv, NULL),
        FFA_OK);
    ffa_mask_destroy(mask);
    query = (struct order_query){
        .group = record->heads_q / record->heads_kv,
        .heads_kv = record->heads_kv,
        .at_a_time = record->facts.sm_count / record->backward_cluster,
        .costs = cost_table_find("NVIDIA H200"),
        .can_leave_whole = true,
        .row_bytes =
            order_row_bytes(record->head_dim, record->head_dim_v, (ffa_dtype)record->dtype),
    };
    tiles->is_unlocked = !backward_keeps_lockstep(tiles, &query);
    return query;
}

struct backward_order fake_tune_choice(const struct tune_record *record, const char *mask)
{
    struct tile_plan tiles;
    const struct order_query query = ask(&tiles, record, mask);
    const struct backward_order order = backward_order_find(&tiles, &query);

    tile_finish(&tiles);
    return order;
}

double fake_tune_order_time(const struct tune_record *record, const char *mask,
                            struct backward_order order, const struct cost_table *costs)
{
    struct tile_plan tiles;
    struct order_query query = ask(&tiles, record, mask);
    double time;

    query.costs = costs;
    time = backward_order_time(&tiles, &query, order);
    tile_finish(&tiles);
    return time;
}

/* That of a configuration; of the baseline its own. */
static struct backward_order order_of(const struct fake_tune *fake,
                                      const struct tune_record *record,
                                      const struct tune_configuration *of, const char *mask)
{
    if (of->parts)
        return (struct backward_order){ of->parts, of->waves, of->whole_heads };
    return fake->was.parts ? fake->was : fake_tune_choice(record, mask);
}

/* In [-1, 1]; the same for the same call. */
static double draw(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0x2545f4914f6cdd1du + (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(int64_t)(z >> 40) / (1 << 23) - 1;
}

static ffa_status run(void *user, const struct tune_record *record, int32_t configuration,
                      int32_t mask, struct tune_reading *out, ffa_error *err)
{
    struct fake_tune *fake = user;
    const struct tune_configuration *of = &record->configurations[configuration];

    pass(fake, FAKE_RUN);
    if (fault_of(fake, of) == FAKE_TRAPS_IN_RACE && mask == 1)
        return give_up(err, FFA_GPU, "an illegal address");
    if (fault_of(fake, of) == FAKE_HAS_NO_MEMORY)
        return give_up(err, FFA_NOMEM, "no memory for 5 bytes");
    if (tune_is_backward(record)) {
        const struct backward_order order = order_of(fake, record, of, record->masks[mask]);

        out->order = (struct tune_baseline){ order.parts, order.waves, order.whole_heads };
        out->us =
            (fake->call_us + fake_tune_order_time(record, record->masks[mask], order, fake->costs) *
                                 fake->unit_us * (of->is_unlocked ? 1 + fake->unlocked : 1)) /
            fake->speed;
    } else {
        out->us = time_of(fake, record, of, record->masks[mask]);
    }
    out->us *= 1 + fake->noise * draw(fake->seed, (uint64_t)fake->calls[FAKE_RUN]);
    out->calls = 10;
    out->clock_mhz = 1980;
    fake->us += (int64_t)(10 * out->us);
    return FFA_OK;
}

static bool recover(void *user)
{
    return ((const struct fake_tune *)user)->recovers;
}

struct tune_device fake_tune_device(struct fake_tune *fake)
{
    return (struct tune_device){ .user = fake,
                                 .now_us = now_us,
                                 .compile = compile,
                                 .prepare = prepare,
                                 .check = check,
                                 .run = run,
                                 .recover = recover };
}

/* What all sessions have beside what they measure. */
static void complete(struct tune_record *record, int id, const struct choose_device *device)
{
    ck_assert_int_eq(cost_table_write(device->costs, &record->base_table, NULL), FFA_OK);
    record->facts = device->facts;
    record->budget_us = INT64_C(3600000000);
    record->started_s = 1000 + id;
    ffa_templates_digest(record->templates_digest);
    text_copy(record->library_version, "%s", ffa_version());
    text_copy(record->id, "%032x", (unsigned)id);
}

static void add_masks(struct tune_record *record, const char *const *masks, int32_t mask_count)
{
    record->masks = calloc(TUNE_MASKS_MAX, sizeof *record->masks);
    ck_assert_ptr_nonnull(record->masks);
    for (int32_t i = 0; i < mask_count; i++)
        text_copy(record->masks[record->mask_count++], "%s", masks[i]);
}

static struct tune_record make(int id, const char *text, const char *const *masks,
                               int32_t mask_count, bool is_backward)
{
    const struct device_facts facts = {
        .name = "NVIDIA H200", .sm_count = 132, .shared_bytes_block = 232448, .l2_bytes = 62914560
    };
    const struct choose_device device = choose_device_of(&facts);
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct tune_record record = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    ck_assert_msg(ffa_attention_spec_parse(&spec, text, &err) == FFA_OK, "%s", err.message);
    add_masks(&record, masks, mask_count);
    rc = is_backward ? tune_space_build_orders(&record, &spec, "sm_90a", &device, &err)
                     : tune_space_build(&record, &spec, "sm_90a", &device, &err);
    ck_assert_msg(rc == FFA_OK, "%s", err.message);
    complete(&record, id, &device);
    return record;
}

struct tune_record fake_tune_record_of(int id, const char *spec, const char *const *masks,
                                       int32_t mask_count)
{
    return make(id, spec, masks, mask_count, false);
}

struct tune_record fake_tune_backward(int id, const char *spec, const char *const *masks,
                                      int32_t mask_count)
{
    return make(id, spec, masks, mask_count, true);
}

struct tune_record fake_tune_record(int id, const char *const *masks, int32_t mask_count)
{
    return fake_tune_record_of(id, "head_dim=128,dtype=bf16,heads=64:8", masks, mask_count);
}

void fake_tune_load(struct tune_record *record, struct tune_store *store)
{
    struct tune_record *all;
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count;

    ck_assert_msg(tune_store_load(store, &all, &count, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(count, 1);
    tune_record_finish(record);
    *record = all[0];
    mem_free(all);
}

ffa_status fake_tune_run(struct tune_record *record, struct fake_tune *fake, const char *path,
                         bool resumes, bool *must_restart, ffa_error *err)
{
    const struct tune_device device = fake_tune_device(fake);
    struct tune_session session = { .record = record, .device = &device };
    ffa_status rc;

    ck_assert_int_eq(
        tune_store_open(&session.store, path, resumes ? TUNE_STORE_WRITE : TUNE_STORE_CREATE, err),
        FFA_OK);
    if (resumes) {
        fake_tune_load(record, session.store);
        record->budget_us = fake->budget_us ? fake->budget_us : record->budget_us;
    } else {
        ck_assert_msg(tune_store_add(session.store, record, 1, err) == FFA_OK, "%s", err->message);
    }
    rc = tune_session_run(&session, err);
    tune_store_close(session.store);
    if (must_restart)
        *must_restart = session.must_restart;
    return rc;
}

void fake_tune_check_resumed(const struct tune_record *record, const struct fake_tune *fake,
                             int32_t taken)
{
    int32_t kept = 0;

    for (int64_t i = 0; i < record->sample_count; i++)
        kept += record->samples[i].process < record->process;
    ck_assert_int_le(kept, taken);
    ck_assert_int_gt(kept, taken - record->configuration_count);
    ck_assert_int_eq(fake->calls[FAKE_RUN], record->sample_count - kept);
}

static bool joins(const struct tune_record *record, const struct tune_record *begun, int32_t mask,
                  int32_t configuration)
{
    return tune_record_find(begun, TUNE_FINAL_LAP, mask, 0) &&
           !tune_record_find(begun, TUNE_FINAL_LAP, mask, configuration) &&
           tune_record_find(record, TUNE_FINAL_LAP, mask, configuration);
}

void fake_tune_check_gains(const struct tune_record *record, const struct tune_record *begun,
                           const struct tune_record *reference)
{
    int32_t joined = 0;

    for (int64_t i = 0; i < record->sample_count; i++) {
        const struct tune_sample *own = &record->samples[i];
        const struct tune_sample *other = tune_baseline_of(record, own);
        const struct tune_median gain =
            tune_median_gain(reference, own->mask, own->configuration, INT32_MAX);

        joined += joins(record, begun, own->mask, own->configuration);
        if (other && gain.count)
            ck_assert_msg(fabs(other->us / own->us - 1 - gain.value) < 0.1,
                          "%s, lap %d, %d: %g, not %g", record->masks[own->mask], own->lap,
                          own->configuration, other->us / own->us - 1, gain.value);
    }
    ck_assert_int_gt(joined, 0);
}

struct cost_tile *fake_tune_tile(struct cost_table *table, int32_t head_dim, int32_t head_dim_v,
                                 int32_t consumers, int32_t tile_n)
{
    for (int32_t i = 0; i < table->tile_count; i++) {
        struct cost_tile *tile = &table->tiles[i];

        if (tile->head_dim == head_dim && tile->head_dim_v == head_dim_v && tile->packed &&
            tile->consumers == consumers && tile->tile_n == tile_n)
            return tile;
    }
    ck_abort_msg("no tile %d x %d of %d columns", 64 * consumers, tile_n, head_dim);
    return NULL;
}
