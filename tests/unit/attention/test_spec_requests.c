/* SPDX-License-Identifier: Apache-2.0
 *
 * Specs as texts, the kernels of a spec, and that ffa_kernels_create looks up those and no others:
 * on a device made up here, whose kernels are "loaded" by a function of this file. The compiler is
 * one that takes no time.
 */
#include "choose/cost_table_json.h"
#include "gpu/gpu_internal.h"
#include "service/context.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *folder, *store;
static struct gpu_device device = { .facts = { .name = "NVIDIA H200", .sm_count = 132 } };

/* In place of the library's (LINKER:--wrap). */
ffa_status __wrap_gpu_kernel_load(struct gpu_kernel **out, struct gpu_device *on,
                                  const struct gpu_kernel_desc *desc, bool *is_refused,
                                  ffa_error *err);
ffa_status __wrap_gpu_kernel_load(struct gpu_kernel **out, struct gpu_device *on,
                                  const struct gpu_kernel_desc *desc, bool *is_refused,
                                  ffa_error *err)
{
    (void)desc;
    (void)err;
    ck_assert_ptr_eq(on, &device);
    *is_refused = false;
    *out = NULL;
    return FFA_OK;
}

static void setup(void)
{
    folder = tmpdir_make();
    store = tmpdir_path(folder, "kernels.ffadb");
}

static void teardown(void)
{
    free(store);
    tmpdir_remove(folder);
}

static ffa_context *open_context(uint32_t flags)
{
    ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, NULL);

    opts.templates_dir = NULL;
    opts.flags = flags;
    return fixture_open(&opts);
}

static ffa_attention_spec parse(const char *text)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(ffa_attention_spec_parse(&spec, text, &err) == FFA_OK, "%s: %s", text,
                  err.message);
    return spec;
}

static ffa_requests *requests_of(const char *text)
{
    const ffa_attention_spec spec = parse(text);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_requests *requests;

    ck_assert_msg(ffa_spec_requests(&requests, &spec, NULL, &err) == FFA_OK, "%s: %s", text,
                  err.message);
    return requests;
}

/* What one family of models or another asks for: each flag, packed, split and padded heads. */
static const char *const specs[] = {
    "head_dim=128,dtype=bf16",
    "head_dim=128,dtype=bf16,pack=8,backward",
    "head_dim=128,dtype=fp16,heads=32:8,backward,deterministic",
    "head_dim=64,dtype=bf16,heads=64:8",
    "head_dim=192:128,dtype=bf16,heads=128:128",
    "head_dim=192:128,dtype=bf16,pack=0,backward,deterministic,parallel,max_logits",
    "head_dim=80,dtype=bf16,backward",
    "head_dim=80,dtype=fp16,heads=8:8",
    "head_dim=96,dtype=bf16,pack=4,split",
    "head_dim=256,dtype=bf16,softcap,backward,heads=16:8",
    "head_dim=256,dtype=bf16,softcap,heads=16:8,split=0",
    "head_dim=128,dtype=bf16,heads=64:8,max_logits,softcap",
    "head_dim=72:40,dtype=bf16,staged,backward,grad_fp32,pack=8",
    "head_dim=128,dtype=bf16,out_fp32,backward,grad_fp32",
    "head_dim=128,dtype=bf16,parallel,pack=8",
    "head_dim=64,dtype=bf16,parallel,backward,debug",
    "head_dim=128,dtype=bf16,tile=128x64,backward_tile=64x128,backward",
    "head_dim=104:64,dtype=bf16,backward_tile=64x256,backward,deterministic",
};
enum { SPECS = sizeof specs / sizeof *specs };

/* ffa_kernels_create on the made-up device, and what it counted. */
static ffa_status create(ffa_context *context, const char *text, ffa_context_stats *stats,
                         ffa_error *err)
{
    const ffa_attention_spec spec = parse(text);
    ffa_kernels *kernels;
    ffa_status rc;

    context->gpu = &device;
    rc = ffa_kernels_create(&kernels, context, &spec, err);
    ffa_kernels_destroy(kernels);
    context->gpu = NULL;
    *stats = (ffa_context_stats)FFA_CONTEXT_STATS_INIT;
    ck_assert_int_eq(ffa_context_stats_get(context, stats, NULL), FFA_OK);
    return rc;
}

static void warm(const ffa_compile_request *requests, int64_t count)
{
    ffa_context *context = open_context(0);
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(ffa_precompile(context, requests, count, NULL, NULL, &err) == FFA_OK, "%s",
                  err.message);
    ffa_close(context);
}

static int count_miss(void *user, const ffa_cache_miss *miss)
{
    ck_assert_uint_eq(strlen(miss->key), 32);
    ++*(int *)user;
    return 0;
}

/* Misses noted in the store. */
static int noted(void)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache;
    int count = 0;

    ck_assert_msg(ffa_cache_open(&cache, store, FFA_CACHE_READONLY, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(ffa_cache_list_misses(cache, count_miss, &count, &err), FFA_OK);
    ffa_cache_close(cache);
    return count;
}

/* Forward kernels of whole tiles, or of parts where all are split: any of them would do. */
static int64_t whole_kernels(const ffa_compile_request *at, int64_t count)
{
    int64_t whole = 0;

    for (int64_t i = 0; i < count; i++) {
        bool is_whole = !strcmp(at[i].template_name, "attention_forward");

        for (int64_t s = 0; s < at[i].setting_count; s++)
            is_whole = is_whole && strcmp(at[i].settings[s], "split=1") != 0;
        whole += is_whole;
    }
    return max64(1, whole);
}

/* The requests are enough, and none of them is there for nothing. */
START_TEST(kernels_are_those_of_the_requests)
{
    ffa_requests *requests = requests_of(specs[_i]);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_stats stats;
    ffa_context *context;
    int64_t count;
    const ffa_compile_request *at = ffa_requests_get(requests, &count);

    warm(at, count);
    context = open_context(FFA_OPEN_NEVER_COMPILE);
    ck_assert_msg(create(context, specs[_i], &stats, &err) == FFA_OK, "%s: %s", specs[_i],
                  err.message);
    ck_assert_uint_eq(stats.misses, 0);
    ck_assert_int_eq((int64_t)stats.hits_store, count);
    ffa_close(context);
    ffa_requests_destroy(requests);
}
END_TEST

/* A job that may not compile fails once no forward kernel is there, and notes all of the spec. */
START_TEST(all_that_is_missing_is_noted)
{
    ffa_requests *requests = requests_of(specs[_i]);
    ffa_context *context = open_context(FFA_OPEN_NEVER_COMPILE);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_stats stats;
    /* Where packing was chosen, heads apart would do, and are looked for. */
    const int fallbacks = strstr(specs[_i], "heads=") && !strstr(specs[_i], "max_logits,par");
    char sentence[80];
    int64_t count;
    const ffa_compile_request *at = ffa_requests_get(requests, &count);

    (void)snprintf(sentence, sizeof sentence, "; %d of the %d kernels of this spec are missing",
                   (int)count, (int)count);
    ck_assert_int_eq(create(context, specs[_i], &stats, &err), FFA_NOT_FOUND);
    ck_assert_msg((strstr(err.message, sentence) != NULL) == (count > 1), "%s", err.message);
    ck_assert_int_eq(noted(), count + fallbacks);
    ck_assert_msg((int64_t)stats.misses == whole_kernels(at, count) + fallbacks, "%s: %d",
                  specs[_i], (int)stats.misses);
    ffa_close(context);

    /* With the first one there, the others are, also those without which the spec gets by. */
    ck_assert_int_eq(unlink(store), 0);
    warm(at, 1);
    context = open_context(FFA_OPEN_NEVER_COMPILE);
    (void)create(context, specs[_i], &stats, &err);
    ck_assert_int_eq(noted(), count - 1);
    ffa_close(context);
    ffa_requests_destroy(requests);
}
END_TEST

/* Kernels without which a spec gets by are noted, too. */
START_TEST(what_is_optional_is_noted)
{
    const char *text = "head_dim=128,dtype=bf16,heads=64:8";
    ffa_requests *requests = requests_of(text);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_stats stats;
    ffa_context *context;
    int64_t count;
    const ffa_compile_request *at = ffa_requests_get(requests, &count);

    ck_assert_int_eq(count, 5); /* two tiles, whole and split, and the kernel that combines */
    warm(at, 1);
    context = open_context(FFA_OPEN_NEVER_COMPILE);
    ck_assert_msg(create(context, text, &stats, &err) == FFA_OK, "%s", err.message);
    ffa_close(context);
    ck_assert_int_eq(noted(), 4);
    ffa_requests_destroy(requests);
}
END_TEST

START_TEST(nothing_is_noted_where_it_is_compiled)
{
    ffa_context *context = open_context(0);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_stats stats;

    ck_assert_msg(create(context, specs[1], &stats, &err) == FFA_OK, "%s", err.message);
    ffa_close(context);
    ck_assert_int_eq(noted(), 0);
}
END_TEST

static bool has_setting(const ffa_requests *requests, const char *setting)
{
    int64_t count;
    const ffa_compile_request *at = ffa_requests_get(requests, &count);

    for (int64_t i = 0; i < count; i++)
        for (int64_t s = 0; s < at[i].setting_count; s++)
            if (!strcmp(at[i].settings[s], setting))
                return true;
    return false;
}

/* Packed kernels are those of the table of the device model. */
START_TEST(requests_follow_the_table_of_a_device)
{
    const ffa_attention_spec spec = parse("head_dim=128,dtype=bf16,heads=64:8,split=0");
    struct cost_table table = *cost_table_find(NULL);
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_requests *default_ones = requests_of("head_dim=128,dtype=bf16,heads=64:8,split=0");
    ffa_requests *requests = NULL;
    ffa_error err = { FFA_OK, 0, "" };
    char *place = tmpdir_make(), *path = tmpdir_path(place, "x1.json"), *text = NULL;
    ffa_context *context;
    int64_t count;

    text_copy(table.device, "X 1");
    table.tile_count = 1;
    table.tiles[0] = (struct cost_tile){ 128, 128, 1, 1, 112, { 100, 1 }, 0 };
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_OK);
    tmpdir_write_text(path, text);
    mem_free(text);
    opts.cost_tables = path;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_OK);
    ck_assert_msg(ffa_spec_requests_on(&requests, context, "X 1", &spec, NULL, &err) == FFA_OK,
                  "%s", err.message);
    (void)ffa_requests_get(requests, &count);
    ck_assert_int_eq(count, 1);
    ck_assert(has_setting(requests, "consumers=1") && has_setting(requests, "tile_n=112"));
    ck_assert(!has_setting(default_ones, "tile_n=112"));
    ffa_requests_destroy(requests);
    for (int i = 0; i < 2; i++) { /* the table of the H200, by name or as the default */
        int64_t want;

        ck_assert_int_eq(ffa_spec_requests_on(&requests, context, i ? NULL : "NVIDIA H200", &spec,
                                              "sm_90a", &err),
                         FFA_OK);
        (void)ffa_requests_get(default_ones, &want);
        (void)ffa_requests_get(requests, &count);
        ck_assert_int_eq(count, want);
        ck_assert(!has_setting(requests, "tile_n=112"));
        ffa_requests_destroy(requests);
    }
    ck_assert_int_eq(ffa_spec_requests_on(&requests, context, "X 2", &spec, NULL, &err),
                     FFA_NOT_FOUND);
    ck_assert_ptr_null(requests);
    ck_assert_int_eq(ffa_spec_requests_on(&requests, NULL, "X 1", &spec, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_spec_requests_on(&requests, context, "X 1", NULL, NULL, &err),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_spec_requests_on(NULL, context, "X 1", &spec, NULL, &err), FFA_INVALID);
    ffa_close(context);
    ffa_requests_destroy(default_ones);
    tmpdir_remove(place);
    free(path);
}
END_TEST

/* Where there is one tile for heads apart it is the architecture's, whatever the device: a kernel
 * that was warmed without a GPU is the one that is asked for. A table may have others. */
START_TEST(heads_apart_follow_the_table)
{
    static const struct {
        const char *spec;
        int64_t without, count; /* without and with the table */
        const char *setting;
    } cases[] = { { "head_dim=128,dtype=bf16,pack=0,split=0", 1, 2, "tile_n=144" },
                  { "head_dim=128,dtype=bf16,heads=16:16,pack=0,split=0", 1, 2, "tile_n=144" },
                  { "head_dim=128,dtype=bf16,pack=0,staged", 1, 1, "tile_n=128" },
                  { "head_dim=192:128,dtype=bf16,pack=0,split=0", 1, 1, "tile_n=96" },
                  { "head_dim=192:128,dtype=bf16,heads=32:32,split=0", 2, 3, "tile_n=80" } };
    struct cost_table table = *cost_table_find(NULL);
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    char *place = tmpdir_make(), *path = tmpdir_path(place, "x1.json"), *text = NULL;
    ffa_context *context;

    text_copy(table.device, "X 1");
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 128, { 100, 1 }, 0 };
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 144, { 100, 1 }, 0 };
    table.tiles[table.tile_count++] = (struct cost_tile){ 192, 128, 0, 2, 96, { 100, 1 }, 0 };
    table.tiles[table.tile_count++] = (struct cost_tile){ 192, 128, 1, 2, 80, { 100, 1 }, 0 };
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_OK);
    tmpdir_write_text(path, text);
    mem_free(text);
    opts.cost_tables = path;
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ffa_attention_spec spec = parse(cases[i].spec);
        ffa_requests *requests, *default_ones = requests_of(cases[i].spec);
        int64_t count;

        ck_assert_msg(ffa_spec_requests_on(&requests, context, "X 1", &spec, NULL, &err) == FFA_OK,
                      "%s", err.message);
        (void)ffa_requests_get(requests, &count);
        ck_assert_msg(count == cases[i].count, "%s: %d", cases[i].spec, (int)count);
        ck_assert_msg(has_setting(requests, cases[i].setting), "%s", cases[i].spec);
        (void)ffa_requests_get(default_ones, &count);
        ck_assert_int_eq(count, cases[i].without);
        ck_assert(!has_setting(default_ones, cases[i].setting));
        ffa_requests_destroy(requests);
        ffa_requests_destroy(default_ones);
    }
    ffa_close(context);
    tmpdir_remove(place);
    free(path);
}
END_TEST

/* Parts of tiles, and passes in stages, have one kernel: that whose rows take the least a key. More
 * rows than 128 do not even out as well. */
START_TEST(one_kernel_has_the_cheapest_rows)
{
    static const struct {
        const char *spec, *consumers, *tile_n;
        int64_t count; /* of kernels, with the one that combines parts */
    } cases[] = {
        { "head_dim=192:128,dtype=bf16,heads=32:32,split", "consumers=2", "tile_n=128", 2 },
        { "head_dim=192:128,dtype=bf16,heads=32:32,staged", "consumers=2", "tile_n=128", 1 },
        { "head_dim=128,dtype=bf16,heads=64:8,split", "consumers=2", "tile_n=128", 2 },
        { "head_dim=96,dtype=bf16,heads=64:8,split", "consumers=3", "tile_n=80", 2 },
        { "head_dim=192,dtype=bf16,heads=64:8,split", "consumers=2", "tile_n=64", 2 },
        /* Of those that are not too large. */
        { "head_dim=128,dtype=bf16,heads=64:8,staged", "consumers=2", "tile_n=128", 1 },
        { "head_dim=64,dtype=bf16,heads=64:8,staged", "consumers=3", "tile_n=96", 1 },
    };
    ffa_requests *requests = requests_of(cases[_i].spec);
    int64_t count;

    (void)ffa_requests_get(requests, &count);
    ck_assert_int_eq(count, cases[_i].count);
    ck_assert(has_setting(requests, cases[_i].consumers));
    ck_assert(has_setting(requests, cases[_i].tile_n));
    ffa_requests_destroy(requests);
}
END_TEST

/* Passes of ranks choose among the table's kernels, as those of one device do. */
START_TEST(ranks_have_all_kernels)
{
    ffa_requests *requests = requests_of("head_dim=192:128,dtype=bf16,heads=32:32,parallel");

    ck_assert(has_setting(requests, "tile_n=64"));
    ck_assert(has_setting(requests, "tile_n=128"));
    ffa_requests_destroy(requests);
}
END_TEST

/* A store that was warmed without the table has the architecture's tile: where nothing may be
 * compiled, heads apart get by with it, as with any one of the table's. */
START_TEST(heads_apart_get_by_with_one_tile)
{
    static const struct {
        const char *text;
        int32_t tile_m, tile_n; /* the one that is there; 0: the architecture's */
    } rows[] = { { "head_dim=128,dtype=bf16,pack=0,split=0", 0, 0 },
                 { "head_dim=128,dtype=bf16,pack=0,split=0", 128, 112 },
                 { "head_dim=128,dtype=bf16,pack=0,split=0", 128, 144 },
                 { "head_dim=128,dtype=bf16,pack=0,staged", 0, 0 },
                 { "head_dim=128,dtype=bf16,heads=16:16,pack=0", 0, 0 } };
    struct cost_table table = *cost_table_find(NULL);
    char *path = tmpdir_path(folder, "x1.json"), *text = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    text_copy(table.device, "X 1");
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 112, { 100, 1 }, 0 };
    table.tiles[table.tile_count++] = (struct cost_tile){ 128, 128, 0, 2, 144, { 100, 1 }, 0 };
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_OK);
    tmpdir_write_text(path, text);
    mem_free(text);
    text_copy(device.facts.name, "X 1");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, NULL);
        ffa_requests *requests;
        ffa_context_stats stats;
        ffa_context *context;
        char there[96];
        int64_t count;

        text_copy(there, "%s", rows[i].text);
        if (rows[i].tile_m)
            (void)snprintf(there, sizeof there, "%s,tile=%dx%d", rows[i].text, rows[i].tile_m,
                           rows[i].tile_n);
        requests = requests_of(there);
        warm(ffa_requests_get(requests, &count), 1);
        opts.templates_dir = NULL;
        opts.cost_tables = path;
        opts.flags = FFA_OPEN_NEVER_COMPILE;
        context = fixture_open(&opts);
        ck_assert_msg(create(context, rows[i].text, &stats, &err) == FFA_OK, "row %d: %s", (int)i,
                      err.message);
        ck_assert_int_eq((int64_t)stats.hits_store, 1);
        ffa_close(context);
        ck_assert_int_eq(unlink(store), 0);

        /* Of none the first one's is the error. */
        context = fixture_open(&opts);
        ck_assert_int_eq(create(context, rows[i].text, &stats, &err), FFA_NOT_FOUND);
        ck_assert_msg(strstr(err.message, "tile_n=112") != NULL, "%s", err.message);
        ffa_close(context);
        ck_assert_int_eq(unlink(store), 0);
        ffa_requests_destroy(requests);
    }
    text_copy(device.facts.name, "NVIDIA H200");
    free(path);
}
END_TEST

/* Keys of a backward tile that there is no kernel for. */
static const struct {
    const char *text;
    ffa_status want;
    const char *says;
} backward_tiles[] = {
    { "head_dim=96,dtype=bf16,backward,backward_tile=64x256", FFA_INVALID,
      "spec: backward_tile_n is 256, not 0 or 128" },
    { "head_dim=128,dtype=bf16,backward,backward_tile=64x384", FFA_INVALID,
      "spec: backward_tile_n is 384, not 0, 128 or 256" },
    { "head_dim=256,dtype=bf16,backward,backward_tile=64x64", FFA_INVALID,
      "spec: backward_tile_n is 64, not 0 or 128" },
    { "head_dim=128,dtype=bf16,backward,parallel,backward_tile=64x256", FFA_UNSUPPORTED,
      "spec: backward_tile_n is 256, with FFA_SPEC_PARALLEL it must be 0 or 128" },
};

START_TEST(backward_tiles_are_checked)
{
    const ffa_attention_spec spec = parse(backward_tiles[_i].text);
    ffa_requests *requests;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_spec_requests(&requests, &spec, "sm_90a", &err), backward_tiles[_i].want);
    ck_assert_str_eq(err.message, backward_tiles[_i].says);
}
END_TEST

START_TEST(requests_are_refused)
{
    ffa_attention_spec spec = parse("head_dim=128,dtype=bf16");
    ffa_requests *requests = (void *)&spec;
    ffa_error err = { FFA_OK, 0, "" };
    int64_t count = 1;

    ck_assert_int_eq(ffa_spec_requests(NULL, &spec, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_spec_requests(&requests, NULL, NULL, &err), FFA_INVALID);
    ck_assert_ptr_null(requests);
    ck_assert_int_eq(ffa_spec_requests(&requests, &spec, "sm_80", &err), FFA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "sm_80"));
    spec.head_dim = 100;
    ck_assert_int_eq(ffa_spec_requests(&requests, &spec, "sm_90a", &err), FFA_INVALID);
    spec.head_dim = 128;
    spec.dtype = FFA_FP32;
    ck_assert_int_eq(ffa_spec_requests(&requests, &spec, "sm_90a", &err), FFA_UNSUPPORTED);
    ck_assert_ptr_null(ffa_requests_get(NULL, &count));
    ck_assert_int_eq(count, 0);
    ffa_requests_destroy(NULL);
}
END_TEST

START_TEST(every_failure_is_clean)
{
    const ffa_attention_spec spec = parse(specs[1]);
    ffa_requests *requests;
    ffa_error err;

    fault_arm(FAULT_ALLOC, 1);
    ck_assert_int_eq(ffa_spec_requests(&requests, &spec, NULL, &err), FFA_NOMEM);
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_ptr_null(requests);
}
END_TEST

/* ---- texts ---- */

START_TEST(texts_set_what_they_name)
{
    ffa_attention_spec spec = parse("head_dim=192:128,dtype=fp16,pack=3,heads=6:2,tile=128x64");

    ck_assert_int_eq(spec.head_dim, 192);
    ck_assert_int_eq(spec.head_dim_v, 128);
    ck_assert_int_eq(spec.dtype, FFA_FP16);
    ck_assert_int_eq(spec.pack_heads, 3);
    ck_assert(spec.heads_q == 6 && spec.heads_kv == 2 && spec.tile_m == 128 && spec.tile_n == 64);
    ck_assert_int_eq(spec.split, FFA_SPLIT_AUTO);
    ck_assert_uint_eq(spec.flags, 0);

    /* What is not named stays. */
    ck_assert_int_eq(ffa_attention_spec_parse(&spec, "head_dim=64,backward,softcap=1,split", NULL),
                     FFA_OK);
    ck_assert(spec.head_dim == 64 && spec.head_dim_v == 0 && spec.pack_heads == 3);
    ck_assert_uint_eq(spec.flags, FFA_SPEC_BACKWARD | FFA_SPEC_SOFTCAP | FFA_SPEC_SPLIT);
    ck_assert_int_eq(spec.split, 0);
    ck_assert_int_eq(ffa_attention_spec_parse(&spec, "backward=0,pack=auto,split=auto", NULL),
                     FFA_OK);
    ck_assert_uint_eq(spec.flags, FFA_SPEC_SOFTCAP);
    ck_assert(spec.pack_heads == FFA_PACK_AUTO && spec.split == FFA_SPLIT_AUTO);
    spec = parse("backward_tile=64x128,split=0,debug,staged,parallel,max_logits,out_fp32,grad_fp32,"
                 "deterministic");
    ck_assert(spec.backward_tile_m == 64 && spec.backward_tile_n == 128 && spec.split == 0);
    ck_assert_uint_eq(spec.flags, FFA_SPEC_DEBUG | FFA_SPEC_STAGED | FFA_SPEC_PARALLEL |
                                      FFA_SPEC_MAX_LOGITS | FFA_SPEC_OUT_FP32 | FFA_SPEC_GRAD_FP32 |
                                      FFA_SPEC_DETERMINISTIC);
}
END_TEST

START_TEST(texts_are_refused)
{
    static const char *const texts[] = {
        "",
        "head_dim",
        "head_dim=",
        "head_dim=-8",
        "head_dim=8:",
        "head_dim=8:8:8",
        "head_dim=99999999999",
        "dtype=int8",
        "dtype",
        "pack=many",
        "pack=1:2",
        "pack=000000000000000000000016", /* of which 23 characters are 1 */
        "heads=8",
        "heads=8x8",
        "tile=128",
        "tile=128:128",
        "split=2",
        "backward=yes",
        "backward,",
        ",backward",
        "backward,backward=0",
        "Backward",
        "head_dim =8",
        "deterministic=",
        "head_dim=8,head_dim=8",
    };
    const ffa_attention_spec before = FFA_ATTENTION_SPEC_INIT;
    ffa_attention_spec spec = before;
    ffa_error err = { FFA_OK, 0, "" };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ck_assert_msg(ffa_attention_spec_parse(&spec, texts[i], &err) == FFA_INVALID, "%s",
                      texts[i]);
        ck_assert_msg(!strncmp(err.message, "spec: '", 7), "%s", err.message);
        ck_assert(!memcmp(&spec, &before, sizeof spec));
    }
    ck_assert_int_eq(ffa_attention_spec_parse(NULL, "backward", &err), FFA_INVALID);
    ck_assert_int_eq(ffa_attention_spec_parse(&spec, NULL, &err), FFA_INVALID);
}
END_TEST

/* A caller's struct that ends earlier is written as far as it goes. */
START_TEST(shorter_structs_are_written_within)
{
    struct {
        unsigned char spec[offsetof(ffa_attention_spec, heads_q)];
        unsigned char after[8];
    } old = { { 0 }, { 1, 2, 3 } };
    const uint32_t bytes = sizeof old.spec;
    ffa_attention_spec spec = { 0 };

    memcpy(old.spec, &bytes, sizeof bytes);
    ck_assert_int_eq(
        ffa_attention_spec_parse((void *)old.spec, "head_dim=64,heads=8:8,dtype=bf16", NULL),
        FFA_OK);
    memcpy(&spec, old.spec, sizeof old.spec);
    ck_assert(spec.struct_size == bytes && spec.head_dim == 64 && spec.dtype == FFA_BF16);
    ck_assert(old.after[0] == 1 && old.after[1] == 2 && old.after[2] == 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spec_requests");
    TCase *tcase = tcase_create("spec_requests");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, kernels_are_those_of_the_requests, 0, SPECS);
    tcase_add_loop_test(tcase, all_that_is_missing_is_noted, 0, SPECS);
    tcase_add_test(tcase, what_is_optional_is_noted);
    tcase_add_test(tcase, nothing_is_noted_where_it_is_compiled);
    tcase_add_test(tcase, requests_follow_the_table_of_a_device);
    tcase_add_test(tcase, heads_apart_follow_the_table);
    tcase_add_loop_test(tcase, one_kernel_has_the_cheapest_rows, 0, 7);
    tcase_add_test(tcase, ranks_have_all_kernels);
    tcase_add_test(tcase, heads_apart_get_by_with_one_tile);
    tcase_add_test(tcase, requests_are_refused);
    tcase_add_loop_test(tcase, backward_tiles_are_checked, 0,
                        (int)(sizeof backward_tiles / sizeof *backward_tiles));
    tcase_add_test(tcase, every_failure_is_clean);
    tcase_add_test(tcase, texts_set_what_they_name);
    tcase_add_test(tcase, texts_are_refused);
    tcase_add_test(tcase, shorter_structs_are_written_within);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
