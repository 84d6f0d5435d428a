/* SPDX-License-Identifier: Apache-2.0
 *
 * The time to get a kernel, compared with target figures: a hit in the table and in the store,
 * opening a store of 10,000 kernels, warming the training preset, and eight processes that miss the
 * same kernel. Without a target: a cold compile and the key alone, for each template. Needs NVRTC;
 * with a GPU, loading a kernel from the store is timed too.
 *
 *   bench_cache [--json] [--command FFA] [--repeat N]
 *
 * FFA is the command, by default the one beside this program. Measurements that take seconds are
 * repeated N times, 5 by default. The median is compared with the target; the exit status is 1 if
 * one is missed.
 */
#include "service/context.h"

#include <errno.h>
#include <fcntl.h>
#include <ffa/ffa.h>
#include <ftw.h>
#include <spawn.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { SAMPLES = 200, TABLE_SAMPLES = 20, TABLE_LOOPS = 100000, PROCESSES = 8, MANY = 10000 };

static bool as_json, is_missed;
static char command[4096];
static char folder[] = "/tmp/ffa-bench-XXXXXX";
static int repeats = 5;

static void give_up(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench_cache: %s: %s\n", what, why);
    exit(1);
}

static void must(ffa_status rc, const ffa_error *err)
{
    if (rc != FFA_OK)
        give_up(ffa_status_text(rc), err->message);
}

/* ---- samples ---- */

struct series {
    double at[SAMPLES];
    int count;
};

static void add(struct series *series, double sample)
{
    if (series->count < SAMPLES)
        series->at[series->count++] = sample;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_of(struct series *series)
{
    qsort(series->at, (size_t)series->count, sizeof series->at[0], by_value);
    return series->at[series->count / 2];
}

enum sense { AT_MOST, AT_LEAST, NO_FIGURE };

static void report(const char *what, const char *template_name, const char *unit,
                   struct series *series, enum sense sense, double figure)
{
    double median = median_of(series);
    double best = series->at[sense == AT_LEAST ? series->count - 1 : 0];
    bool is_met = sense == AT_MOST ? median <= figure : median >= figure;

    is_missed = is_missed || (sense != NO_FIGURE && !is_met);
    if (as_json) {
        printf("{\"what\":\"%s\",\"template\":\"%s\",\"unit\":\"%s\",\"samples\":%d,\"best\":%.4f,"
               "\"median\":%.4f",
               what, template_name, unit, series->count, best, median);
        if (sense != NO_FIGURE)
            printf(",\"%s\":%g,\"met\":%s", sense == AT_MOST ? "at_most" : "at_least", figure,
                   is_met ? "true" : "false");
        printf("}\n");
    } else {
        printf("%-34s %-18s %4d samples  best %10.3f  median %10.3f %-9s", what, template_name,
               series->count, best, median, unit);
        if (sense != NO_FIGURE)
            printf(" %s %g: %s", sense == AT_MOST ? "<=" : ">=", figure, is_met ? "met" : "MISSED");
        printf("\n");
    }
    (void)fflush(stdout);
}

static double ms_since(int64_t started_us)
{
    return (double)(clock_us() - started_us) / 1e3;
}

/* ---- files ---- */

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a store that does not exist yet, in a new folder inside `folder`. */
static void fresh_store(char out[128])
{
    char inside[96];

    text_copy(inside, "%s/store-XXXXXX", folder);
    if (!mkdtemp(inside))
        give_up(inside, strerror(errno));
    text_format(out, 128, "%s/kernels.ffadb", inside);
}

/* ---- in this process ---- */

static ffa_context *open_context(const char *store, int device)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *context;
    ffa_error err;

    opts.cache_path = store;
    must(ffa_open(&context, device, &opts, &err), &err);
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

/* From a resolved spec on: the request is part of what a look-up costs. */
static struct resolved resolve(ffa_context *context, const struct jit_spec *spec, ffa_layer want)
{
    struct jit_request request;
    struct resolved found;
    ffa_error err;

    jit_request_init(&request, spec, "sm_90a");
    must(context_resolve(&found, context, &request, NULL, &err), &err);
    jit_request_finish(&request);
    if (found.info.layer != want)
        give_up("answered by another layer", ffa_layer_text(found.info.layer));
    return found;
}

/* NVRTC is opened first, so that only the compile is timed. */
static void bench_compile(const char *template_name)
{
    struct jit_spec spec = spec_of(template_name);
    struct series series = { .count = 0 };
    ffa_context *context;
    ffa_error err;

    for (int i = 0; i < repeats; i++) {
        context = open_context(NULL, FFA_DEVICE_CPU);
        must(ffa_context_open_compiler(context, &err), &err);
        add(&series, (double)resolve(context, &spec, FFA_LAYER_COMPILED).info.compile_us / 1e3);
        ffa_close(context);
    }
    report("cold compile", template_name, "ms", &series, NO_FIGURE, 0);
}

/* A store hit, with a new context each time. NVRTC stays closed. */
static void bench_store(const char *template_name)
{
    struct series open = { .count = 0 }, hit = { .count = 0 };
    struct jit_spec spec = spec_of(template_name);
    char store[128];
    ffa_context *context;

    fresh_store(store);
    context = open_context(store, FFA_DEVICE_CPU);
    (void)resolve(context, &spec, FFA_LAYER_COMPILED);
    ffa_close(context);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t started = clock_us();

        context = open_context(store, FFA_DEVICE_CPU);
        add(&open, ms_since(started));
        started = clock_us();
        (void)resolve(context, &spec, FFA_LAYER_STORE);
        add(&hit, ms_since(started));
        ffa_close(context);
    }
    report("open context", template_name, "ms", &open, NO_FIGURE, 0);
    report("store hit to checked cubin", template_name, "ms", &hit, AT_MOST, 1);
}

/* On a GPU: from the request to a kernel that can be launched. */
static void bench_load(void)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    struct series series = { .count = 0 };
    ffa_context *context;
    char store[128];
    ffa_error err;

    spec.dtype = FFA_BF16;
    spec.head_dim = 128;
    fresh_store(store);
    for (int i = 0; i < 52; i++) {
        ffa_kernels *kernels;
        int64_t started;

        context = open_context(store, FFA_DEVICE_AUTO);
        must(ffa_context_info_get(context, &info, &err), &err);
        if (info.device == FFA_DEVICE_CPU) {
            ffa_close(context);
            return;
        }
        started = clock_us();
        must(ffa_kernels_create(&kernels, context, &spec, &err), &err);
        if (i) /* the first was compiled */
            add(&series, ms_since(started));
        ffa_kernels_destroy(kernels);
        ffa_close(context);
    }
    report("store hit to loaded kernel", info.device_name, "ms", &series, AT_MOST, 1);
}

static void bench_table(const char *template_name)
{
    struct series table = { .count = 0 }, key = { .count = 0 };
    struct jit_spec spec = spec_of(template_name);
    ffa_context *context = open_context(NULL, FFA_DEVICE_CPU);
    struct jit_request request;
    ffa_error err;

    (void)resolve(context, &spec, FFA_LAYER_COMPILED);
    for (int i = 0; i < TABLE_SAMPLES; i++) {
        int64_t started = clock_us();

        for (int j = 0; j < TABLE_LOOPS; j++)
            (void)resolve(context, &spec, FFA_LAYER_TABLE);
        add(&table, (double)(clock_us() - started) / TABLE_LOOPS);
    }
    for (int i = 0; i < SAMPLES; i++) {
        int64_t started = clock_us();

        jit_request_init(&request, &spec, "sm_90a");
        must(jit_request_complete(&request, context->jit, &err), &err);
        add(&key, (double)(clock_us() - started));
        jit_request_finish(&request);
    }
    report("in-process hit", template_name, "us", &table, AT_MOST, 0.2);
    report("key", template_name, "us", &key, NO_FIGURE, 0);
    ffa_close(context);
}

/* ---- a store of 10,000 ---- */

static void sql(const char *store, const char *text)
{
    sqlite3 *db = NULL;

    if (sqlite3_open(store, &db) != SQLITE_OK ||
        sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        give_up("SQLite", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

/* One real kernel; the others are made up and have its size. */
static void bench_many(void)
{
    struct jit_spec spec = spec_of("attention_forward");
    struct series open = { .count = 0 }, first = { .count = 0 };
    char store[128], text[1024];
    ffa_context *context;
    size_t bytes;

    fresh_store(store);
    context = open_context(store, FFA_DEVICE_CPU);
    bytes = resolve(context, &spec, FFA_LAYER_COMPILED).cubin_bytes;
    ffa_close(context);
    text_copy(text,
              "PRAGMA synchronous=OFF; BEGIN; "
              "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
              "INSERT INTO blob (id, digest, bytes, data) SELECT i, printf('%%032x', i), %zu, "
              "zeroblob(%zu) FROM n; "
              "INSERT INTO kernel SELECT b.id, b.digest, k.toolchain, b.id, k.seal, k.template, "
              "k.arch, k.record, 1, 1, 0, 0, 1, 1, k.created_s, k.used_s - b.id FROM kernel k, "
              "blob b WHERE b.id > 1; COMMIT",
              MANY, bytes, bytes);
    sql(store, text);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t started = clock_us();

        context = open_context(store, FFA_DEVICE_CPU);
        add(&open, ms_since(started));
        (void)resolve(context, &spec, FFA_LAYER_STORE);
        add(&first, ms_since(started));
        ffa_close(context);
    }
    (void)unlink(store);
    report("open a store of 10,000 kernels", "attention_forward", "ms", &open, AT_MOST, 5);
    report("... with a first hit", "attention_forward", "ms", &first, NO_FIGURE, 0);
}

/* ---- processes ---- */

/* Start the command with its output to `output`. */
static pid_t start(char *const *args, const char *output)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int code;

    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output,
                                           O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    code = posix_spawn(&pid, command, &actions, NULL, args, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (code != 0)
        give_up(command, strerror(code));
    return pid;
}

static void wait_for(pid_t pid)
{
    int status;

    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        give_up(command, "did not exit with 0");
}

static long number_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[256], wanted[64];
    long number = -1;

    text_copy(wanted, "\"%s\":", name);
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, wanted);

        if (at && number < 0)
            number = strtol(at + strlen(wanted), NULL, 10);
    }
    if (file)
        (void)fclose(file);
    return number;
}

/* Warm the training preset with two workers, in a new store, and again when all are there. The time
 * is that of the whole process. */
static void bench_warm(void)
{
    struct series rate = { .count = 0 }, again = { .count = 0 };
    char store[128], output[96];
    char *args[] = { "ffa", "warm",    "--preset", "training", "--arch", "sm_90a", "--jobs",
                     "2",   "--shard", "0/1",      "--store",  store,    "--json", NULL };

    text_copy(output, "%s/out", folder);
    for (int i = 0; i < repeats; i++) {
        int64_t started = clock_us();
        double ms;

        fresh_store(store);
        started = clock_us();
        wait_for(start(args, output));
        ms = ms_since(started);
        if (number_in(output, "built") < 1 || number_in(output, "failed") != 0)
            give_up("ffa warm", "did not build the preset");
        add(&rate, (double)number_in(output, "built") / (ms / 1e3));
        started = clock_us();
        wait_for(start(args, output));
        add(&again, ms_since(started) / 1e3);
        if (number_in(output, "built") != 0 || number_in(output, "hit") < 1)
            give_up("ffa warm", "did not hit the second time");
    }
    report("warm training, 2 workers, cold", "", "kernels/s", &rate, AT_LEAST, 1.5);
    report("warm training, second time", "", "s", &again, AT_MOST, 0.1);
}

/* Start `count` processes that miss the same kernel in a new store; the ms until all have it. */
static double cold_ms(int count)
{
    char store[128], output[PROCESSES][96];
    char *args[] = { "ffa",    "compile", "attention_forward", "head_dim=128",
                     "--arch", "sm_90a",  "--store",           store,
                     "--json", NULL };
    pid_t pids[PROCESSES];
    int64_t started;
    double ms;
    int compiled = 0;

    fresh_store(store);
    started = clock_us();
    for (int i = 0; i < count; i++) {
        text_copy(output[i], "%s/out%d", folder, i);
        pids[i] = start(args, output[i]);
    }
    for (int i = 0; i < count; i++)
        wait_for(pids[i]);
    ms = ms_since(started);
    for (int i = 0; i < count; i++) {
        char line[256];
        FILE *file = fopen(output[i], "re");

        while (file && fgets(line, sizeof line, file))
            compiled += strstr(line, "\"layer\": \"compiled\"") != NULL;
        if (file)
            (void)fclose(file);
    }
    if (compiled != 1)
        give_up("single flight", "not exactly one compiled");
    return ms;
}

/* Measure one and eight processes alternately, so that a change of the machine's load affects both.
 */
static void bench_eight(void)
{
    struct series one = { .count = 0 }, eight = { .count = 0 }, ratio = { .count = 0 };

    for (int i = 0; i < repeats; i++) {
        double alone = cold_ms(1), together = cold_ms(PROCESSES);

        add(&one, alone);
        add(&eight, together);
        add(&ratio, together / alone);
    }
    report("one cold process", "attention_forward", "ms", &one, NO_FIGURE, 0);
    report("eight cold processes, one key", "attention_forward", "ms", &eight, NO_FIGURE, 0);
    report("... as a multiple of one", "attention_forward", "", &ratio, AT_MOST, 1.1);
}

/* ---- main ---- */

/* What was measured, where and when. */
static void print_head(const ffa_context_info *info)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256], cpu[128] = "unknown CPU", day[16] = "";
    double load = 0; /* of the machine, before the measurements */
    time_t now = (time_t)clock_unix_s();
    struct tm utc;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n]", cpu) == 1)
            break;
    if (file)
        (void)fclose(file);
    if (gmtime_r(&now, &utc))
        (void)strftime(day, sizeof day, "%Y-%m-%d", &utc);
    (void)getloadavg(&load, 1);
    printf(as_json
               ? "{\"ffa\":\"%s\",\"nvrtc\":\"%s\",\"arch\":\"%s\",\"cpu\":\"%s\","
                 "\"cpus\":%ld,\"load\":%.1f,\"date\":\"%s\",\"command\":\"bench_cache --repeat "
                 "%d\"}\n"
               : "libffa %s, NVRTC %s, %s; %s, %ld CPUs, load %.1f; %s; bench_cache --repeat %d\n",
           ffa_version(), info->nvrtc_version, info->arch, cpu, sysconf(_SC_NPROCESSORS_ONLN), load,
           day, repeats);
}

static void find_command(const char *program)
{
    const char *slash = strrchr(program, '/');

    if (!command[0])
        text_copy(command, "%.*sffa", slash ? (int)(slash + 1 - program) : 0, program);
    if (access(command, X_OK) != 0)
        give_up(command, strerror(errno));
}

static bool read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else if (strcmp(argv[i], "--command") == 0 && i + 1 < argc)
            text_copy(command, "%s", argv[++i]);
        else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc)
            repeats = (int)strtol(argv[++i], NULL, 10);
        else
            return false;
    }
    return repeats >= 1 && repeats <= SAMPLES;
}

int main(int argc, char **argv)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context;
    ffa_error err;

    if (!read_options(argc, argv)) {
        (void)fprintf(stderr, "usage: bench_cache [--json] [--command FFA] [--repeat N]\n");
        return 2;
    }
    find_command(argv[0]);
    if (!mkdtemp(folder))
        give_up(folder, strerror(errno));
    context = open_context(NULL, FFA_DEVICE_CPU);
    must(ffa_context_open_compiler(context, &err), &err);
    must(ffa_context_info_get(context, &info, &err), &err);
    ffa_close(context);
    print_head(&info);
    for (int32_t i = 0; i < ffa_template_count(); i++) {
        bench_table(ffa_template_name(i));
        bench_store(ffa_template_name(i));
        bench_compile(ffa_template_name(i));
    }
    bench_load();
    bench_many();
    bench_warm();
    bench_eight();
    remove_folder(folder);
    return is_missed ? 1 : 0;
}
