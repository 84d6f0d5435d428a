/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_precompile: in parallel, until a deadline, with an account of it. The compiler is one that
 * sleeps, so that times are known, or is held at a gate.
 */
#include "base/base.h"
#include "service/context.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { COUNT = 12 };

static char *folder, *store;
static const char *settings[COUNT][3]; /* twelve kernels */
static ffa_compile_request requests[COUNT];

static void setup(void)
{
    folder = tmpdir_make();
    store = tmpdir_path(folder, "kernels.ffadb");
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_LOG"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_MS"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FAIL"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_DO"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_GATE"), 0);
    ck_assert_int_eq(unsetenv("FAKE_NVRTC_FREE"), 0);
    for (int i = 0; i < COUNT; i++) {
        settings[i][0] = i % 2 ? "head_dim=64" : "head_dim=128";
        settings[i][1] = i / 2 % 2 ? "dtype=bf16" : "dtype=fp16";
        settings[i][2] = i / 4 == 0 ? "debug=0" : i / 4 == 1 ? "softcap=1" : "out_fp32=1";
        requests[i] = (ffa_compile_request)FFA_COMPILE_REQUEST_INIT;
        requests[i].template_name = "attention_forward";
        requests[i].settings = settings[i];
        requests[i].setting_count = 3;
    }
}

static void teardown(void)
{
    free(store);
    tmpdir_remove(folder);
}

static ffa_context *open_context(void)
{
    const ffa_context_opts opts = fixture_opts(store, FFA_TEST_SLOW_NVRTC, NULL);

    return fixture_open(&opts);
}

struct seen {
    int calls, failed;
};

static void see(void *user, int64_t index, ffa_status status, const ffa_kernel_info *info,
                const char *message)
{
    struct seen *seen = user;

    ck_assert(index >= 0 && index < COUNT);
    ck_assert_int_eq(status == FFA_OK, info != NULL);
    ck_assert_int_eq(status == FFA_OK, message[0] == '\0');
    seen->calls++;
    seen->failed += status != FFA_OK;
}

START_TEST(all_are_compiled_in_parallel)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    struct seen seen = { 0 };
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "100", 1), 0);
    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "meet", 1), 0); /* not one after the other */
    opts.threads = 6;
    opts.deadline_ms = 60000;
    opts.progress = see;
    opts.user = &seen;
    ck_assert_msg(ffa_precompile(context, requests, COUNT, &opts, &report, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(report.requested, COUNT);
    ck_assert_int_eq(report.compiled, COUNT);
    ck_assert_int_eq(report.hit + report.failed + report.unfinished, 0);
    ck_assert_int_eq(report.first_failed, -1);
    ck_assert_int_ge(report.spent_us, COUNT * 100000);
    ck_assert_int_ge(report.wall_us, COUNT / 6 * 100000);
    ck_assert_int_eq(report.saved_us, 0);
    ck_assert_int_eq(seen.calls, COUNT);

    /* Again, from the table; and in another context, from the store. No options: all defaults. */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ffa_precompile(context, requests, COUNT, NULL, &report, &err), FFA_OK);
        ck_assert_int_eq(report.hit, COUNT);
        ck_assert_int_eq(report.compiled + report.failed, 0);
        ck_assert_int_ge(report.saved_us, COUNT * 100000);
        ck_assert_int_eq(report.spent_us, 0);
        ffa_close(context);
        context = open_context();
    }
    ffa_close(context);
}
END_TEST

struct gate {
    const char *path;
    atomic_bool is_open;
};

static void *open_later(void *user)
{
    struct gate *gate = user;

    (void)usleep(200000);
    atomic_store(&gate->is_open, true);
    tmpdir_write_text(gate->path, "open");
    return NULL;
}

/* The call returns in time; what was finished stays, what was under way is finished and stays. Two
 * compiles end before the deadline, and the next not before the call has returned. */
START_TEST(deadline_is_kept)
{
    char *path = tmpdir_path(folder, "gate");
    struct gate gate = { .path = path };
    pthread_t opener;
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };
    struct seen seen = { 0 };
    ffa_cache *cache;
    int64_t started = clock_us();
    int calls;

    ck_assert_int_eq(setenv("FAKE_NVRTC_GATE", path, 1), 0);
    ck_assert_int_eq(setenv("FAKE_NVRTC_FREE", "2", 1), 0);
    opts.threads = 2;
    opts.deadline_ms = 5000;
    opts.progress = see;
    opts.user = &seen;
    ck_assert_int_eq(ffa_precompile(context, requests, COUNT, &opts, &report, &err), FFA_TIMEOUT);
    ck_assert_int_ge(clock_us() - started, 5000000);
    ck_assert_int_lt(clock_us() - started, 30000000);
    ck_assert_int_eq(report.compiled, 2);
    ck_assert_int_eq(report.unfinished, COUNT - 2);
    ck_assert_msg(strstr(err.message, "10 of 12 kernels were not finished within 5000 ms"), "%s",
                  err.message);
    calls = seen.calls;
    ck_assert_int_eq(pthread_create(&opener, NULL, open_later, &gate), 0);
    ffa_close(context); /* waits for the two that are under way */
    ck_assert(atomic_load(&gate.is_open));
    ck_assert_int_eq(pthread_join(opener, NULL), 0);
    ck_assert_int_eq(seen.calls, calls);
    ck_assert_int_eq(ffa_cache_open(&cache, store, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ck_assert_int_eq(stats.kernels, 4);
    ffa_cache_close(cache);

    context = open_context(); /* resumed: the gate stays open */
    ck_assert_int_eq(ffa_precompile(context, requests, COUNT, NULL, &report, &err), FFA_OK);
    ck_assert_int_eq(report.hit, 4);
    ck_assert_int_eq(report.compiled, COUNT - 4);
    ffa_close(context);
    free(path);
}
END_TEST

struct stopper {
    volatile int stop;
    int done, ticks;
    int32_t busy_max;
    const char *gate;
};

/* Opens the gate after some ticks, when two requests are under way. Drains at the first that is
 * done. */
static void drain(void *user, const ffa_precompile_event *event)
{
    struct stopper *stopper = user;

    ck_assert_int_eq(event->worker, 0);
    ck_assert_int_eq(event->worker_status, -1);
    stopper->ticks += event->index < 0;
    stopper->done += event->index >= 0;
    stopper->busy_max = event->busy > stopper->busy_max ? event->busy : stopper->busy_max;
    if (event->index < 0 && stopper->ticks >= 3 && stopper->busy_max >= 2)
        tmpdir_write_text(stopper->gate, "open");
    if (event->index >= 0)
        stopper->stop = FFA_PRECOMPILE_DRAIN;
}

/* What is under way is finished, and told of; nothing more is begun. */
START_TEST(drain_begins_no_more)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    char *gate = tmpdir_path(folder, "gate");
    struct stopper stopper = { .gate = gate };
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(setenv("FAKE_NVRTC_GATE", gate, 1), 0);
    opts.threads = 3;
    opts.stop = &stopper.stop;
    opts.event = drain;
    opts.user = &stopper;
    opts.tick_ms = 20;
    ck_assert_int_eq(ffa_precompile(context, requests, COUNT, &opts, &report, &err), FFA_TIMEOUT);
    ck_assert_msg(strstr(err.message, "stopped with"), "%s", err.message);
    ck_assert_int_ge(report.compiled, 1);
    ck_assert_int_le(report.compiled, 3);
    ck_assert_int_eq(report.compiled, stopper.done);
    ck_assert_int_eq(report.unfinished, COUNT - report.compiled);
    ck_assert_int_ge(stopper.ticks, 3);
    ck_assert_int_ge(stopper.busy_max, 2);
    ffa_close(context);
    free(gate);
}
END_TEST

/* Set before the call: nothing is begun. */
START_TEST(stopped_before_it_began)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    struct stopper stopper = { .stop = FFA_PRECOMPILE_CUT };
    ffa_context *context = open_context();

    opts.stop = &stopper.stop;
    ck_assert_int_eq(ffa_precompile(context, requests, COUNT, &opts, &report, NULL), FFA_TIMEOUT);
    ck_assert_int_eq(report.unfinished, COUNT);
    ck_assert_int_eq(report.compiled + report.failed + report.hit, 0);
    ffa_close(context);
}
END_TEST

START_TEST(failures_are_told)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };
    struct seen seen = { 0 };

    opts.progress = see;
    opts.user = &seen;
    ck_assert_int_eq(ffa_precompile(context, requests, 3, NULL, &report, &err), FFA_OK);
    ck_assert_int_eq(setenv("FAKE_NVRTC_FAIL", "1", 1), 0);
    ck_assert_int_eq(ffa_precompile(context, requests, 8, &opts, &report, &err), FFA_COMPILE);
    ck_assert_int_eq(report.hit, 3);
    ck_assert_int_eq(report.failed, 5);
    ck_assert_int_eq(report.first_failed, 3);
    ck_assert_int_eq(seen.failed, 5);
    ck_assert_msg(strstr(err.message, "5 of 8 kernels failed; requests[3]: "), "%s", err.message);
    ffa_close(context);
}
END_TEST

/* The same kernel twice is one compile. */
START_TEST(duplicates_are_one)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_context *context = open_context();

    ck_assert_int_eq(setenv("FAKE_NVRTC_MS", "50", 1), 0);
    for (int i = 0; i < COUNT; i++)
        requests[i].settings = settings[i % 3];
    opts.threads = 8;
    ck_assert_int_eq(ffa_precompile(context, requests, COUNT, &opts, &report, NULL), FFA_OK);
    ck_assert_int_eq(report.compiled, 3);
    ck_assert_int_eq(report.hit, COUNT - 3);
    ck_assert_int_eq(ffa_context_stats_get(context, &stats, NULL), FFA_OK);
    ck_assert_uint_eq(stats.compiles, 3);
    ffa_close(context);
}
END_TEST

/* A newer caller's requests are longer: the size tag is the stride. */
START_TEST(size_tag_is_the_stride)
{
    struct {
        ffa_compile_request request;
        uint64_t newer;
    } longer[3];
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };

    memset(longer, 0, sizeof longer);
    for (int i = 0; i < 3; i++) {
        longer[i].request = requests[i];
        longer[i].request.struct_size = (uint32_t)sizeof longer[i];
    }
    ck_assert_msg(ffa_precompile(context, &longer[0].request, 3, NULL, &report, &err) == FFA_OK,
                  "%s", err.message);
    ck_assert_int_eq(report.compiled, 3);
    longer[2].newer = 1;
    ck_assert_int_eq(ffa_precompile(context, &longer[0].request, 3, NULL, &report, &err),
                     FFA_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, "requests[2]: "), "%s", err.message);
    ffa_close(context);
}
END_TEST

START_TEST(misuse_is_refused)
{
    ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
    ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_precompile(NULL, requests, 1, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_precompile(context, NULL, 1, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_precompile(context, requests, -1, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_precompile(context, NULL, 0, NULL, &report, &err), FFA_OK);
    ck_assert_int_eq(report.requested + report.compiled, 0);
    opts.threads = 1025;
    ck_assert_int_eq(ffa_precompile(context, requests, 1, &opts, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "threads is 1025, not in [0, 1024]"), "%s", err.message);
    opts.threads = 0;
    opts.deadline_ms = -1;
    ck_assert_int_eq(ffa_precompile(context, requests, 1, &opts, NULL, &err), FFA_INVALID);
    opts.deadline_ms = 0;
    opts.tick_ms = -1;
    ck_assert_int_eq(ffa_precompile(context, requests, 1, &opts, NULL, &err), FFA_INVALID);
    opts.tick_ms = 0;
    opts.flags = 1;
    ck_assert_int_eq(ffa_precompile(context, requests, 1, &opts, NULL, &err), FFA_UNSUPPORTED);
    requests[1].flags = FFA_COMPILE_FORCE;
    ck_assert_int_eq(ffa_precompile(context, requests, 2, NULL, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "requests[1]: flags is 0x1, not 0"), "%s", err.message);
    requests[1].flags = 0;
    settings[2][0] = "head_dim=7";
    ck_assert_int_eq(ffa_precompile(context, requests, 3, NULL, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, "requests[2]: "), "%s", err.message);
    requests[0].struct_size = 0;
    ck_assert_int_eq(ffa_precompile(context, requests, 1, NULL, NULL, &err), FFA_INVALID);
    ffa_close(context);
}
END_TEST

START_TEST(every_failure_is_clean)
{
    ffa_context *context = open_context();
    long nth;

    for (nth = 1; nth < 500; nth++) {
        ffa_precompile_report report = FFA_PRECOMPILE_REPORT_INIT;
        ffa_precompile_opts opts = FFA_PRECOMPILE_OPTS_INIT;
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;
        bool fired;

        opts.threads = 1;
        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_precompile(context, requests, 2, &opts, &report, &err);
        fired = fault_fired();
        fault_arm(FAULT_ALLOC, 0);
        ck_assert_msg(rc == FFA_OK || (fired && rc == FFA_NOMEM), "%s", err.message);
        ck_assert_int_eq(rc == FFA_OK, err.message[0] == '\0');
        if (!fired)
            break;
    }
    ck_assert_int_gt(nth, 3);
    ck_assert_int_lt(nth, 500);
    ffa_close(context);
}
END_TEST

/* ---- begun, and not waited for ---- */

static struct jit_request imported(ffa_context *context, int index)
{
    struct jit_request request;
    ffa_error err = { FFA_OK, 0, "" };
    uint32_t flags;

    ck_assert_msg(context_import_request(&request, &flags, context, &requests[index], &err) ==
                      FFA_OK,
                  "%s", err.message);
    return request;
}

static int kernels_in_store(void)
{
    ffa_cache_stats stats = FFA_CACHE_STATS_INIT;
    ffa_cache *cache;

    ck_assert_int_eq(ffa_cache_open(&cache, store, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_cache_stats_get(cache, &stats, NULL), FFA_OK);
    ffa_cache_close(cache);
    return (int)stats.kernels;
}

/* The caller compiles one beside those that it began: each is compiled once, none alone. */
START_TEST(begun_ones_are_found)
{
    struct jit_request kernels[3];
    const struct jit_spec *specs[3];
    struct precompile *rest;
    ffa_context *context = open_context();
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(setenv("FAKE_NVRTC_DO", "meet", 1), 0);
    for (int i = 0; i < 3; i++) {
        kernels[i] = imported(context, i);
        specs[i] = &kernels[i].spec;
        ck_assert(context_lacks(context, specs[i], context->arch));
    }
    context_precompile_begin(&rest, context, specs + 1, 2, context->arch);
    ck_assert_ptr_nonnull(rest);
    for (int i = 0; i < 3; i++) {
        struct resolved found;
        ck_assert_msg(context_resolve(&found, context, &kernels[i], NULL, &err) == FFA_OK, "%s",
                      err.message);
        ck_assert(!context_lacks(context, specs[i], context->arch));
        jit_request_finish(&kernels[i]);
    }
    context_precompile_end(rest);
    ffa_close(context);
    ck_assert_int_eq(kernels_in_store(), 3);
}
END_TEST

/* Ended at once: what was begun is finished, and closing waits for it. */
START_TEST(begun_ones_may_be_left)
{
    struct jit_request kernels[COUNT];
    const struct jit_spec *specs[COUNT];
    struct precompile *rest;
    char *gate = tmpdir_path(folder, "gate");
    ffa_context *context = open_context();

    ck_assert_int_eq(setenv("FAKE_NVRTC_GATE", gate, 1), 0);
    for (int i = 0; i < COUNT; i++) {
        kernels[i] = imported(context, i);
        specs[i] = &kernels[i].spec;
    }
    context_precompile_begin(&rest, context, specs, COUNT, context->arch);
    context_precompile_end(rest);
    context_precompile_end(NULL);
    tmpdir_write_text(gate, "open");
    ffa_close(context);
    ck_assert_int_lt(kernels_in_store(), COUNT);
    free(gate);
}
END_TEST

/* No memory, or no thread: nobody is told, as whoever needs a kernel compiles it. */
START_TEST(what_cannot_begin_is_left)
{
    ffa_context *context = open_context();
    struct jit_request kernel = imported(context, 0);
    const struct jit_spec *spec = &kernel.spec;

    for (long nth = 1; nth <= 3; nth++) { /* the job, its requests, its thread */
        struct precompile *rest;

        fault_arm(FAULT_ALLOC, nth);
        context_precompile_begin(&rest, context, &spec, 1, context->arch);
        ck_assert(fault_fired());
        fault_arm(FAULT_ALLOC, 0);
        ck_assert_ptr_null(rest);
    }
    jit_request_finish(&kernel);
    ffa_close(context);
    ck_assert_int_eq(kernels_in_store(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("precompile");
    TCase *tc = tcase_create("precompile");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_are_compiled_in_parallel);
    tcase_add_test(tc, deadline_is_kept);
    tcase_add_test(tc, drain_begins_no_more);
    tcase_add_test(tc, stopped_before_it_began);
    tcase_add_test(tc, failures_are_told);
    tcase_add_test(tc, duplicates_are_one);
    tcase_add_test(tc, size_tag_is_the_stride);
    tcase_add_test(tc, misuse_is_refused);
    tcase_add_test(tc, every_failure_is_clean);
    tcase_add_test(tc, begun_ones_are_found);
    tcase_add_test(tc, begun_ones_may_be_left);
    tcase_add_test(tc, what_cannot_begin_is_left);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
