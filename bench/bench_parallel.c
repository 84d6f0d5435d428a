/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes on the GPUs of this host, beside the whole mask on one of them. Ranks are
 * threads of this process, one GPU each; where there are fewer GPUs, all ranks share one. Exit
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
    ROUNDS = 5,
    QUICK_ROUNDS = 2,
    QUICK_TOKENS = 1024
};
static const char usage[] =
    "usage: bench_parallel [options]\n"
    "  --ranks N    ranks, 1 to 64; without it one a GPU, and two on a single GPU\n"
    "  --case NAME  one mask (causal) or one case (causal/8:1)\n"
    "  --quick      two cases of few tokens, short series\n"
    "  --tokens N   tokens a rank, in place of the case's\n"
    "  --stages N   that receive, 1 to 12; as many as is best by the model\n"
    "  --rounds N   1 to 100; 5\n"
    "  --json FILE  a line a case, pass and plan\n"
    "  --heads HQ:HK  in place of the case's\n"
    "  --transport T  pull, or over NCCL, a GPU each, without ring and Ulysses: exchange, or "
    "relay\n"
    "  --ranks-per-node N  of plans, and of ranks that relay; all\n"
    "  --max-ctas N   SMs that NCCL takes at most\n"
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
    { "stages", DISPATCH_BEST, false, METHOD_PLAN },
    { "all-gather", DISPATCH_BEST, true, METHOD_PLAN },
    { "zigzag", FFA_DISPATCH_ZIGZAG, false, METHOD_PLAN },
    { "ring", FFA_DISPATCH_ZIGZAG, false, METHOD_RING },
    { "ulysses", FFA_DISPATCH_SEQUENTIAL, false, METHOD_ULYSSES },
};

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
        if (variants[v].method != METHOD_PLAN)
            others_pass(r, v, is_backward);
        else
            must(
                is_backward
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
        if (!others_can(variants[v].method, is_backward))
            continue;
        (void)plan_series(r, v, is_backward, 2);
        r->plans[v].host_count = 0;
    }
}

/* ---- a case ---- */

static void measure(struct rank *r, bool is_backward)
{
    warm_up(r, is_backward);
    for (int round = 0; round < options.rounds; round++) {
        if (r->rank == 0)
            bench.whole_ms[round] = whole_series(r, is_backward, bench.whole_calls);
        for (int v = 0; v < VARIANTS; v++) {
            double ms;

            if (!others_can(variants[v].method, is_backward))
                continue;
            ms = plan_series(r, v, is_backward, bench.calls);
            if (r->rank == 0)
                bench.plans_ms[v][round] = ms;
        }
    }
    if (r->rank == 0) {
        const double whole_ms = median(bench.whole_ms, options.rounds);

        for (int v = 0; v < VARIANTS; v++)
            if (others_can(variants[v].method, is_backward))
                report_plan(v, is_backward, whole_ms);
            else
                printf("%-19s %-8s %-10s not possible on %d ranks\n", bench.name,
                       is_backward ? "backward" : "forward", variants[v].name, options.ranks);
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
    struct bench_case own = *c;

    if (options.heads_q) {
        own.heads_q = options.heads_q;
        own.heads_kv = options.heads_kv;
        (void)snprintf(bench.name, sizeof bench.name, "%s/%d:%d", kind_names[c->kind], own.heads_q,
                       own.heads_kv);
    }
    bench.c = &own;
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
    bench.gpus = info.device_count < options.ranks ? 1 : options.ranks;
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

static bool read_heads(const char *text)
{
    int used = 0;

    return text && sscanf(text, "%d:%d%n", &options.heads_q, &options.heads_kv, &used) == 2 &&
           !text[used] && options.heads_kv >= 1 && options.heads_q >= options.heads_kv &&
           options.heads_q <= 1024 && options.heads_q % options.heads_kv == 0;
}

static bool read_transport(const char *text)
{
    options.transport = text && !strcmp(text, "exchange") ? FFA_TRANSPORT_EXCHANGE
                        : text && !strcmp(text, "relay")  ? FFA_TRANSPORT_RELAY
                                                          : FFA_TRANSPORT_PULL;
    return text && (options.transport != FFA_TRANSPORT_PULL || !strcmp(text, "pull"));
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
        } else if (!strcmp(name, "--heads")) {
            is_fine = read_heads(argv[1]);
        } else if (!strcmp(name, "--calibrate")) {
            is_fine = (options.calibrate = argv[1]);
        } else if (!strcmp(name, "--calibration")) {
            is_fine = (options.calibration = argv[1]);
        } else if (!strcmp(name, "--transport")) {
            is_fine = read_transport(argv[1]);
        } else if (!strcmp(name, "--max-ctas")) {
            is_fine = read_number(argv[1], 1, 64, &n);
            options.max_ctas = (int32_t)n;
        } else if (!strcmp(name, "--ranks-per-node")) {
            is_fine = read_number(argv[1], 1, RANKS_MAX, &n);
            options.ranks_per_node = (int32_t)n;
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
