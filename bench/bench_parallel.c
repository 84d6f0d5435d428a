/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes on the GPUs of this host, beside the whole mask on one of them. Ranks are
 * threads of this process, one GPU each; where there are fewer GPUs, several ranks share one. Exit
 * 77 where there is no GPU, 1 where a result differs from that of the whole.
 *
 * Invariant: what is compared is measured in turns, in one process, on the same inputs: T1, the
 * whole mask with ordinary kernels on the first GPU (device events around back-to-back calls), and
 * then each plan's T: all ranks meet, enqueue all passes and synchronise once; wall time from the
 * first rank's begin to the last one's end. Figures are medians over rounds. Making plans is timed
 * apart. The efficiency is T1 / (GPUs * T).
 */
#include "parallel_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SERIES_MS = 200,       /* a series is of CALLS_LEAST calls and takes so long, or more, */
    SERIES_MS_MOST = 2000, /* but not much longer than this with more than CALLS_FEW */
    QUICK_SERIES_MS = 20,
    CALLS_LEAST = 20,
    CALLS_MOST = 1000,
    CALLS_FEW = 5,
    CHECKED_ROWS = 32, /* of each tensor and rank */
    ROUNDS = 5,
    QUICK_ROUNDS = 2,
    QUICK_TOKENS = 1024
};
static const double limit_out = 2e-2;  /* of the difference of an element of out, */
static const double limit_share = 0.1; /* and, of each tensor, as a share of its largest one */

static const char usage[] =
    "usage: bench_parallel [options]\n"
    "  --ranks N    ranks, 1 to 64; without it one a GPU, and two on a single GPU\n"
    "  --case NAME  one mask (causal) or one case (causal/8:1)\n"
    "  --quick      two cases of few tokens, short series\n"
    "  --tokens N   tokens a rank, in place of the case's\n"
    "  --stages N   that receive, 1 to 12; as many as is best by the model\n"
    "  --rounds N   1 to 100; 5\n"
    "  --json FILE  a line a case, pass and plan\n"
    "  --calibrate FILE    measure links and kernels, write FILE, and end\n"
    "  --calibration FILE  plans by the rates of FILE\n";

/* ---- cases ---- */

static const char *const kind_names[] = { "full",          "causal",       "packed-full",
                                          "packed-causal", "block-causal", "window" };

static const struct bench_case cases[] = {
    { FULL, 64, 8, 8192, false },         { CAUSAL, 64, 8, 8192, true },
    { PACKED_FULL, 64, 8, 8192, false },  { PACKED_CAUSAL, 64, 8, 8192, true },
    { BLOCK_CAUSAL, 64, 8, 8192, false }, { WINDOW, 64, 8, 8192, false },
    { FULL, 8, 1, 65536, false },         { CAUSAL, 8, 1, 65536, false },
    { PACKED_FULL, 8, 1, 65536, false },  { PACKED_CAUSAL, 8, 1, 65536, false },
    { BLOCK_CAUSAL, 8, 1, 65536, false }, { WINDOW, 8, 1, 65536, false },
};

enum { CASES = sizeof cases / sizeof *cases };

const struct variant variants[VARIANTS] = {
    { "stages", DISPATCH_BEST, false },
    { "all-gather", DISPATCH_BEST, true },
    { "zigzag", FFA_DISPATCH_ZIGZAG, false },
};

static const char *const tensor_names[] = { "q", "k", "v", "dout", "out", "dq", "dk", "dv", "lse" };

struct options options = { 0 };
struct bench bench;

/* ---- helpers ---- */

_Noreturn void fail(const char *what, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "bench_parallel: %s: %s\n", what, why);
    _exit(1);
}

void must(ffa_status rc, const char *what, const ffa_error *err)
{
    if (rc != FFA_OK)
        fail(what, err->message);
}

void *memory(size_t bytes)
{
    void *at = malloc(bytes + 1);

    if (!at)
        fail("malloc", "no memory");
    return at;
}

double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

double median(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, compare);
    return count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

void start(pthread_t *thread, void *(*run)(void *user), void *user)
{
    if (pthread_create(thread, NULL, run, user))
        fail("pthread_create", "cannot start a thread");
}

void meet(void)
{
    (void)pthread_barrier_wait(&bench.meeting);
}

/* ---- measuring: on every rank's thread; the first rank's also measures the whole ---- */

/* On GPUs that ranks share, a full queue of one rank would keep the others out. */
int calls_of(double ms)
{
    const double least_ms = options.is_quick ? QUICK_SERIES_MS : SERIES_MS;
    const double least = options.is_quick ? CALLS_FEW : CALLS_LEAST;
    double calls;

    if (!(ms > 0)) /* a device without a clock: the emulator */
        return (int)least;
    calls = most(ceil(least_ms / ms), least);
    if (calls * ms > SERIES_MS_MOST)
        calls = most(floor(SERIES_MS_MOST / ms), CALLS_FEW);
    if (options.ranks > bench.gpus && calls > least)
        calls = least;
    return calls > CALLS_MOST ? CALLS_MOST : (int)calls;
}

double whole_series(const struct rank *r, bool is_backward, int calls)
{
    const struct whole *w = &bench.whole;
    ffa_error err;
    float ms;

    must(ffa_device_time_begin(r->context, r->stream, &err), "time", &err);
    for (int i = 0; i < calls; i++)
        must(is_backward ? ffa_backward(w->kernels, w->plan, &w->backward, r->stream, &err)
                         : ffa_forward(w->kernels, w->plan, &w->forward, r->stream, &err),
             "the whole", &err);
    must(ffa_device_time_end(r->context, r->stream, &ms, &err), "time", &err);
    return (double)ms / calls;
}

/* Milliseconds of a call, on the first rank; 0 on the others. */
static double plan_series(struct rank *r, int v, bool is_backward, int calls)
{
    struct rank_plan *p = &r->plans[v];
    double since_ms, begin_ms, end_ms;
    ffa_error err;

    meet();
    r->begin_ms = since_ms = now_ms();
    for (int i = 0; i < calls; i++) {
        must(is_backward
                 ? ffa_parallel_backward(p->pass, r->kernels, r->comm, &p->args, r->stream, &err)
                 : ffa_parallel_forward(p->pass, r->kernels, r->comm, &p->args, r->stream, &err),
             "a pass", &err);
        end_ms = now_ms();
        if (i < HOST_SAMPLES && p->host_count < ROUNDS_MAX * HOST_SAMPLES)
            p->host_us[p->host_count++] = (end_ms - since_ms) * 1e3;
        since_ms = end_ms;
    }
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), "synchronise", &err);
    r->end_ms = now_ms();
    must(ffa_comm_status(r->comm, &err), "the group", &err);
    meet();
    if (r->rank > 0)
        return 0;
    begin_ms = r->begin_ms;
    end_ms = r->end_ms;
    for (int32_t i = 1; i < options.ranks; i++) {
        begin_ms = bench.ranks[i].begin_ms < begin_ms ? bench.ranks[i].begin_ms : begin_ms;
        end_ms = most(bench.ranks[i].end_ms, end_ms);
    }
    return (end_ms - begin_ms) / calls;
}

static void warm_up(struct rank *r, bool is_backward)
{
    if (r->rank == 0) {
        double ms;

        (void)whole_series(r, is_backward, 1);
        ms = whole_series(r, is_backward, 2);
        bench.whole_calls = calls_of(ms);
        bench.calls = calls_of(ms / bench.gpus);
    }
    for (int v = 0; v < VARIANTS; v++) {
        (void)plan_series(r, v, is_backward, 2);
        r->plans[v].host_count = 0;
    }
}

/* ---- checking: by the first rank, while the others wait ---- */

struct difference {
    double largest_value, largest;
};

static void compare_rows(struct difference *d, const struct rank *r, int v, enum tensor t,
                         const int64_t *ids, int64_t rows)
{
    const size_t bytes = (size_t)row_bytes(t);
    uint16_t *whole = memory(bytes), *own = memory(bytes);
    ffa_error err;

    for (int64_t i = 0; i < CHECKED_ROWS && i < rows; i++) {
        const int64_t row = rows <= CHECKED_ROWS ? i : i * (rows - 1) / (CHECKED_ROWS - 1);

        must(ffa_device_copy(bench.ranks[0].context, whole,
                             (char *)bench.whole.rows[t] + ids[row] * (int64_t)bytes,
                             (int64_t)bytes, FFA_FROM_DEVICE, &err),
             "copy", &err);
        must(ffa_device_copy(r->context, own, (char *)r->plans[v].rows[t] + row * (int64_t)bytes,
                             (int64_t)bytes, FFA_FROM_DEVICE, &err),
             "copy", &err);
        for (int64_t j = 0; j < columns(t); j++) {
            const double want = from_bf16(whole[j]), far = fabs(from_bf16(own[j]) - want);

            d->largest_value = most(fabs(want), d->largest_value);
            d->largest = isnan(far) ? INFINITY : most(far, d->largest);
        }
    }
    free(whole);
    free(own);
}

/* The largest difference of what the pass wrote, on the first rank and the last one. */
static double check_pass(int v, bool is_backward)
{
    const enum tensor begin = is_backward ? DQ : OUT, end = is_backward ? LSE : DQ;
    const int32_t step = options.ranks > 1 ? options.ranks - 1 : 1;
    double largest = 0;
    ffa_error err;

    for (enum tensor t = begin; t < end; t++) {
        struct difference d = { 0, 0 };

        for (int32_t i = 0; i < options.ranks; i += step) {
            const struct rank *r = &bench.ranks[i];
            const struct rank_plan *p = &r->plans[v];
            const ffa_rows rows = rows_of(p, r, t);
            const int64_t count = ffa_dispatch_query_rows(p->dispatch, i);
            int64_t *ids = memory((size_t)count * sizeof *ids);

            must(ffa_rows_position_ids(&rows, ids, &err), "rows", &err);
            compare_rows(&d, r, v, t, ids, count);
            free(ids);
        }
        if (d.largest > limit_share * d.largest_value || (t == OUT && d.largest > limit_out)) {
            bench.is_wrong = true;
            fprintf(stderr,
                    "bench_parallel: %s, %s: %s differs by %g from the whole's, at most %g\n",
                    bench.name, variants[v].name, tensor_names[t], d.largest, d.largest_value);
        }
        largest = most(d.largest, largest);
    }
    return largest;
}

/* ---- reporting ---- */

/* Of one plan: the rank that has most, or takes longest. */
struct facts {
    double dispatch_ms, plan_ms, pass_ms, made_ms, host_us, model_ms;
    int32_t stages;
    int64_t rows, window_bytes, workspace_bytes;
};

static int64_t most64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct facts facts_of(int v, bool is_backward)
{
    struct facts f = { 0 };

    for (int32_t i = 0; i < options.ranks; i++) {
        struct rank_plan *p = &bench.ranks[i].plans[v];
        const ffa_parallel_pass_info *info = &p->info;

        f.dispatch_ms = most(p->dispatch_ms, f.dispatch_ms);
        f.plan_ms = most(p->plan_ms, f.plan_ms);
        f.pass_ms = most(p->pass_ms, f.pass_ms);
        f.made_ms = most(p->dispatch_ms + p->plan_ms + p->pass_ms, f.made_ms);
        f.model_ms = most(p->model_ms[is_backward], f.model_ms);
        f.host_us = most(median(p->host_us, p->host_count), f.host_us);
        f.stages =
            (int32_t)most64(is_backward ? info->backward_stages : info->forward_stages, f.stages);
        f.rows = most64(info->received_rows, f.rows);
        f.window_bytes =
            most64(info->key_bytes + (is_backward ? info->sum_bytes : 0), f.window_bytes);
        f.workspace_bytes =
            most64(is_backward ? info->backward_workspace_bytes : info->forward_workspace_bytes,
                   f.workspace_bytes);
    }
    return f;
}

/* Of sorted samples. */
static double spread(const double *ms)
{
    const double middle = ms[options.rounds / 2];

    return middle > 0 ? (ms[options.rounds - 1] - ms[0]) / middle : 0;
}

static void print_head(void)
{
    printf("%d ranks on %d x %s; times of a call, medians of %d rounds and their spread\n"
           "%-19s %-8s %-10s %9s %5s %9s %5s %9s  %10s  %7s  %7s %8s  %6s %8s %7s %9s  %s\n",
           options.ranks, bench.gpus, bench.device, options.rounds, "case", "pass", "plan", "T1 ms",
           "", "T ms", "", "model ms", "efficiency", "TFLOP/s", "host us", "made ms", "stages",
           "rows", "win MB", "work MB", "difference");
    fflush(stdout);
}

static void report_plan(int v, bool is_backward, double whole_ms)
{
    const struct facts f = facts_of(v, is_backward);
    const double ms = median(bench.plans_ms[v], options.rounds);
    const double flops = (is_backward ? 10.0 : 4.0) * (double)ffa_mask_area(bench.mask, 0) *
                         bench.c->heads_q * HEAD_DIM;
    const double efficiency = whole_ms / (bench.gpus * ms);
    const double tflops = flops / (bench.gpus * ms * 1e9);
    const double difference = check_pass(v, is_backward);
    const char *pass = is_backward ? "backward" : "forward";

    printf(
        "%-19s %-8s %-10s %9.3f %4.1f%% %9.3f %4.1f%% %9.3f  %10.3f  %7.1f  %7.1f %8.2f  %6d %8lld "
        "%7.1f %9.1f  %.2g\n",
        bench.name, pass, variants[v].name, whole_ms, 100 * spread(bench.whole_ms), ms,
        100 * spread(bench.plans_ms[v]), f.model_ms, efficiency, tflops, f.host_us, f.made_ms,
        f.stages, (long long)f.rows, (double)f.window_bytes / 1e6, (double)f.workspace_bytes / 1e6,
        difference);
    fflush(stdout);
    if (!bench.json)
        return;
    fprintf(
        bench.json,
        "{\"device\":\"%s\",\"gpus\":%d,\"ranks\":%d,\"case\":\"%s\",\"tokens\":%lld,"
        "\"pass\":\"%s\",\"plan\":\"%s\",\"t1_ms\":%.5f,\"t1_spread\":%.4f,\"t_ms\":%.5f,"
        "\"t_spread\":%.4f,\"model_ms\":%.5f,\"efficiency\":%.4f,\"tflops\":%.1f,\"host_us\":%.2f,"
        "\"dispatch_ms\":%.3f,\"plan_ms\":%.3f,\"pass_ms\":%.3f,\"stages\":%d,"
        "\"received_rows\":%lld,\"window_bytes\":%lld,\"workspace_bytes\":%lld,"
        "\"difference\":%g,\"rounds\":%d,\"calls\":%d}\n",
        bench.device, bench.gpus, options.ranks, bench.name, (long long)bench.tokens, pass,
        variants[v].name, whole_ms, spread(bench.whole_ms), ms, spread(bench.plans_ms[v]),
        f.model_ms, efficiency, tflops, f.host_us, f.dispatch_ms, f.plan_ms, f.pass_ms, f.stages,
        (long long)f.rows, (long long)f.window_bytes, (long long)f.workspace_bytes,
        isfinite(difference) ? difference : -1.0, options.rounds, bench.calls);
    fflush(bench.json);
}

static void measure(struct rank *r, bool is_backward)
{
    warm_up(r, is_backward);
    for (int round = 0; round < options.rounds; round++) {
        if (r->rank == 0)
            bench.whole_ms[round] = whole_series(r, is_backward, bench.whole_calls);
        for (int v = 0; v < VARIANTS; v++) {
            const double ms = plan_series(r, v, is_backward, bench.calls);

            if (r->rank == 0)
                bench.plans_ms[v][round] = ms;
        }
    }
    if (r->rank == 0) {
        const double whole_ms = median(bench.whole_ms, options.rounds);

        for (int v = 0; v < VARIANTS; v++)
            report_plan(v, is_backward, whole_ms);
    }
    meet();
}

/* ---- running ---- */

static void *rank_thread(void *user)
{
    struct rank *r = user;

    rank_create(r);
    if (r->rank == 0)
        whole_create(&bench.whole, r);
    meet();
    measure(r, false);
    measure(r, true);
    if (r->rank == 0)
        whole_destroy(&bench.whole, r->context);
    rank_destroy(r);
    return NULL;
}

static void run_case(const struct bench_case *c)
{
    bench.c = c;
    bench.tokens = options.ranks * (options.tokens     ? options.tokens
                                    : options.is_quick ? QUICK_TOKENS
                                                       : c->tokens);
    case_init();
    memset(bench.ranks, 0, sizeof bench.ranks);
    if (pthread_barrier_init(&bench.meeting, NULL, (unsigned)options.ranks))
        fail("pthread_barrier_init", "no memory");
    for (int32_t i = 0; i < options.ranks; i++) {
        bench.ranks[i].rank = i;
        bench.ranks[i].context = bench.contexts[i % bench.gpus];
    }
    for (int32_t i = 0; i < options.ranks; i++)
        start(&bench.ranks[i].thread, rank_thread, &bench.ranks[i]);
    for (int32_t i = 0; i < options.ranks; i++)
        (void)pthread_join(bench.ranks[i].thread, NULL);
    (void)pthread_barrier_destroy(&bench.meeting);
    case_finish();
}

/* Whether the options ask for it; its name. */
static bool is_chosen(const struct bench_case *c)
{
    const char *kind = kind_names[c->kind];

    (void)snprintf(bench.name, sizeof bench.name, "%s/%d:%d", kind, c->heads_q, c->heads_kv);
    if (options.name)
        return !strcmp(options.name, kind) || !strcmp(options.name, bench.name);
    return !options.is_quick || c->is_quick;
}

static const char *variable(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

static ffa_context *open_context(int device, ffa_context_info *info)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment;
    ffa_context *context;
    ffa_error err;

    must(ffa_context_opts_from_environment(&opts, &environment, variable, NULL, &err),
         "environment", &err);
    must(ffa_open(&context, device, &opts, &err), "open", &err);
    ffa_environment_destroy(environment);
    *info = (ffa_context_info)FFA_CONTEXT_INFO_INIT;
    must(ffa_context_info_get(context, info, &err), "info", &err);
    return context;
}

/* False where there is no GPU. */
static bool open_gpus(void)
{
    ffa_context_info info;
    int first;

    bench.contexts[0] = open_context(FFA_DEVICE_AUTO, &info);
    if (info.device == FFA_DEVICE_CPU)
        return false;
    first = info.device;
    (void)snprintf(bench.device, sizeof bench.device, "%s", info.device_name);
    if (!options.ranks)
        options.ranks = info.device_count > 1 ? info.device_count : 2;
    options.ranks = options.ranks < RANKS_MAX ? options.ranks : RANKS_MAX;
    bench.gpus = info.device_count < options.ranks ? info.device_count : options.ranks;
    for (int32_t i = 1; i < bench.gpus; i++)
        bench.contexts[i] = open_context((first + i) % info.device_count, &info);
    return true;
}

static void close_gpus(void)
{
    for (int32_t i = 0; i < bench.gpus; i++)
        ffa_close(bench.contexts[i]);
}

static bool read_number(const char *text, int64_t least, int64_t limit, int64_t *out)
{
    char *end;

    *out = text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && *out >= least && *out <= limit;
}

static bool read_options(char **argv)
{
    for (; *argv; argv++) {
        const char *name = *argv;
        int64_t n = 0;
        bool is_fine;

        if (!strcmp(name, "--quick")) {
            options.is_quick = true;
            continue;
        }
        if (!strcmp(name, "--case")) {
            is_fine = (options.name = argv[1]);
        } else if (!strcmp(name, "--json")) {
            is_fine = (options.json = argv[1]);
        } else if (!strcmp(name, "--calibrate")) {
            is_fine = (options.calibrate = argv[1]);
        } else if (!strcmp(name, "--calibration")) {
            is_fine = (options.calibration = argv[1]);
        } else if (!strcmp(name, "--ranks")) {
            is_fine = read_number(argv[1], 1, RANKS_MAX, &n);
            options.ranks = (int32_t)n;
        } else if (!strcmp(name, "--stages")) {
            is_fine = read_number(argv[1], 0, 12, &n);
            options.stages = (int32_t)n;
        } else if (!strcmp(name, "--rounds")) {
            is_fine = read_number(argv[1], 1, ROUNDS_MAX, &n);
            options.rounds = (int32_t)n;
        } else {
            is_fine = !strcmp(name, "--tokens") && read_number(argv[1], 64, 1 << 24, &n);
            options.tokens = n;
        }
        if (!is_fine)
            return false;
        argv++;
    }
    if (!options.rounds)
        options.rounds = options.is_quick ? QUICK_ROUNDS : ROUNDS;
    return true;
}

int main(int argc, char **argv)
{
    bool is_known = false;
    ffa_error err;

    (void)argc;
    is_known = read_options(argv + 1);
    if (is_known) {
        is_known = false;
        for (size_t i = 0; i < CASES; i++)
            is_known = is_known || is_chosen(&cases[i]);
    }
    if (!is_known) {
        fputs(usage, stderr);
        return 2;
    }
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* ranks of one GPU share no queue */
    if (!open_gpus()) {
        printf("skipped: no GPU that a kernel exists for\n");
        ffa_close(bench.contexts[0]);
        return 77;
    }
    if (options.calibration)
        must(calibration_read(&bench.calibration, options.calibration, &err), "read", &err);
    if (options.json && !(bench.json = fopen(options.json, "w")))
        fail(options.json, "cannot be written");
    if (options.calibrate) {
        calibrate(options.calibrate);
        close_gpus();
        return 0;
    }
    print_head();
    for (size_t i = 0; i < CASES; i++)
        if (is_chosen(&cases[i]))
            run_case(&cases[i]);
    close_gpus();
    calibration_finish(&bench.calibration);
    if (bench.json && fclose(bench.json))
        fail(options.json, "cannot be written");
    return bench.is_wrong;
}
