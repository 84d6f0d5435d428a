/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel costs before it runs: a cold compile of each template, a hit in the store, a hit in
 * the table, the key alone. Needs NVRTC, no GPU. Usage: bench_jit [--json]
 */
#include "api/context.h"

#include <ffa/ffa.h>
#include <stdio.h>
#include <unistd.h>

enum { SAMPLES = 200, TABLE_LOOPS = 100000 };

static bool as_json;

/* Samples in microseconds. */
struct series {
    double us[SAMPLES];
    int count;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print(const char *what, const char *template_name, struct series *series)
{
    qsort(series->us, (size_t)series->count, sizeof series->us[0], by_value);
    printf(as_json ? "{\"what\":\"%s\",\"template\":\"%s\",\"samples\":%d,\"min_us\":%.3f,"
                     "\"median_us\":%.3f,\"p90_us\":%.3f}\n"
                   : "%-14s %-20s %4d samples   min %12.3f   median %12.3f   p90 %12.3f us\n",
           what, template_name, series->count, series->us[0], series->us[series->count / 2],
           series->us[series->count * 9 / 10]);
    (void)fflush(stdout);
}

static void must(ffa_status rc, const ffa_error *err)
{
    if (rc == FFA_OK)
        return;
    (void)fprintf(stderr, "bench_jit: %s\n", err->message);
    exit(1);
}

static ffa_context *open_context(const char *store)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    must(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), &err);
    return context;
}

static struct jit_spec spec_of(const char *template_name)
{
    struct jit_spec spec;
    ffa_error err;

    must(jit_spec_init(&spec, template_name, &err), &err);
    must(jit_spec_resolve(&spec, "sm_90a", &err), &err);
    return spec;
}

static struct resolved resolve(ffa_context *context, const struct jit_spec *spec, ffa_layer want)
{
    struct resolved found;
    ffa_error err;

    must(context_resolve(&found, context, spec, "sm_90a", NULL, &err), &err);
    if (found.info.layer != want) {
        (void)fprintf(stderr, "bench_jit: answered by %s, not %s\n",
                      ffa_layer_text(found.info.layer), ffa_layer_text(want));
        exit(1);
    }
    return found;
}

/* NVRTC is open by then: what is timed is the compile. */
static void bench_compile(const char *template_name)
{
    struct series series = { .count = 5 };
    struct jit_spec spec = spec_of(template_name);
    ffa_context *context;
    ffa_error err;

    for (int i = 0; i < series.count; i++) {
        context = open_context(NULL);
        must(ffa_context_open_compiler(context, &err), &err);
        series.us[i] = (double)resolve(context, &spec, FFA_LAYER_COMPILED).info.compile_us;
        ffa_close(context);
    }
    print("compile", template_name, &series);
}

/* Opening the store is in; NVRTC stays closed. */
static void bench_store(const char *template_name, const char *store)
{
    struct series open = { .count = SAMPLES }, hit = { .count = SAMPLES };
    struct jit_spec spec = spec_of(template_name);
    ffa_context *context = open_context(store);

    (void)resolve(context, &spec, FFA_LAYER_COMPILED);
    ffa_close(context);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t started = clock_us();

        context = open_context(store);
        open.us[i] = (double)(clock_us() - started);
        started = clock_us();
        (void)resolve(context, &spec, FFA_LAYER_STORE);
        hit.us[i] = (double)(clock_us() - started);
        ffa_close(context);
    }
    print("open context", template_name, &open);
    print("store hit", template_name, &hit);
}

static void bench_table(const char *template_name)
{
    struct series table = { .count = 20 }, key = { .count = SAMPLES };
    struct jit_spec spec = spec_of(template_name);
    ffa_context *context = open_context(NULL);
    char text[33], *record;
    ffa_error err;

    (void)resolve(context, &spec, FFA_LAYER_COMPILED);
    for (int i = 0; i < table.count; i++) {
        int64_t started = clock_us();

        for (int j = 0; j < TABLE_LOOPS; j++)
            (void)resolve(context, &spec, FFA_LAYER_TABLE);
        table.us[i] = (double)(clock_us() - started) / TABLE_LOOPS;
    }
    for (int i = 0; i < key.count; i++) {
        int64_t started = clock_us();

        must(jit_key(context->jit, &spec, "sm_90a", text, &record, &err), &err);
        key.us[i] = (double)(clock_us() - started);
        free(record);
    }
    print("table hit", template_name, &table);
    print("key", template_name, &key);
    ffa_close(context);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/ffa-bench-XXXXXX";
    char store[64], journal[80];
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context;
    ffa_error err;

    as_json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !as_json) {
        (void)fprintf(stderr, "usage: bench_jit [--json]\n");
        return 2;
    }
    if (!mkdtemp(folder))
        return 1;
    text_copy(store, "%s/kernels.ffadb", folder);
    text_copy(journal, "%s-journal", store);
    context = open_context(NULL);
    must(ffa_context_open_compiler(context, &err), &err);
    must(ffa_context_info_get(context, &info, &err), &err);
    printf(as_json ? "{\"ffa\":\"%s\",\"nvrtc\":\"%s\",\"arch\":\"%s\"}\n"
                   : "libffa %s, NVRTC %s, %s\n",
           ffa_version(), info.nvrtc_version, info.arch);
    for (int32_t i = 0; i < ffa_template_count(); i++) {
        bench_compile(ffa_template_name(i));
        bench_store(ffa_template_name(i), store);
        bench_table(ffa_template_name(i));
        (void)unlink(store);
    }
    ffa_close(context);
    (void)unlink(journal);
    return rmdir(folder) ? 1 : 0;
}
