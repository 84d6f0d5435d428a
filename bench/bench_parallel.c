/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes on the GPUs of this host, beside the whole mask on one of them. Ranks are
 * processes with a GPU each, which this program starts, or which a launcher does; where there are
 * fewer GPUs, or with --threads, they are threads of this process, which all share one GPU where
 * there are too few. Exit 77 where there is no GPU, 1 where a result differs from that of the
 * whole.
 *
 * Invariant: what is compared is measured in turns, in the same processes, on the same inputs: T1,
 * the whole mask with ordinary kernels on the first GPU (device events around back-to-back calls),
 * and then each plan's T: all ranks meet, enqueue all passes and synchronise once; wall time from
 * the first rank's begin to the last one's end. Figures are medians over rounds. Making plans is
 * timed apart. The efficiency is T1 / (GPUs * T); with the plan, T1 / (GPUs * (T + its time /
 * layers)).
 */
#include "parallel_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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
    QUICK_TOKENS = 1024,
    LAYERS = 32
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
    "  --keep-keys     backward passes take received keys from what forward ones kept\n"
    "  --wire-dtype T  of gradients that ranks sum for others: fp32, or bf16, as the tensors\n"
    "  --calibrate FILE    measure links and kernels, write FILE, and end\n"
    "  --calibration FILE  plans by the rates of FILE\n"
    "  --layers N     that share a plan, whose time is counted in; 32\n"
    "  --threads      ranks are threads, also where each has a GPU\n"
    "  --processes    ranks are processes, also where they share GPUs\n"
    "  --rendezvous DIR  this process is one rank of several, which meet in DIR; FFA_RENDEZVOUS\n"
    "  --rank R       which one it is; without it a launcher (torchrun, mpirun, srun) says so\n";

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
    ffa_error err = { FFA_COMM, 0, "" };

    end_if_lost();
    fflush(stdout);
    (void)snprintf(err.message, sizeof err.message, "%s: %s", what, why);
    if (bench.processes)
        fprintf(stderr, "bench_parallel: rank %d: %s\n", bench.first, err.message);
    else
        fprintf(stderr, "bench_parallel: %s\n", err.message);
    if (bench.processes)
        bench.meeting->give_up(bench.meeting, &err);
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

void gather(int32_t rank, const void *mine, void *all, size_t bytes)
{
    ffa_error err;

    must(bench.meeting->gather(bench.meeting, rank, mine, all, bytes, &err), "meet", &err);
}

void meet(int32_t rank)
{
    const char mine = 0;
    char all[RANKS_MAX];

    gather(rank, &mine, all, sizeof mine);
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
    if (bench.sharing > 1 && calls > least)
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

/* From when to when, by the clock of the host. */
struct period {
    double begin_ms, end_ms;
};

/* Milliseconds of a call, from the first begin to the last end; the same on all ranks. */
static double common_ms(const struct rank *r, const struct period *own, int calls)
{
    struct period all[RANKS_MAX], whole;

    gather(r->rank, own, all, sizeof *own);
    whole = all[0];
    for (int32_t i = 1; i < options.ranks; i++) {
        whole.begin_ms = all[i].begin_ms < whole.begin_ms ? all[i].begin_ms : whole.begin_ms;
        whole.end_ms = most(all[i].end_ms, whole.end_ms);
    }
    return (whole.end_ms - whole.begin_ms) / calls;
}

static void enqueue_pass(struct rank *r, int v, bool is_backward)
{
    const struct rank_plan *p = &r->plans[v];
    ffa_error err;

    if (variants[v].method != METHOD_PLAN)
        others_pass(r, v, is_backward);
    else
        must(is_backward
                 ? ffa_parallel_backward(p->pass, r->kernels, r->comm, &p->args, r->stream, &err)
                 : ffa_parallel_forward(p->pass, r->kernels, r->comm, &p->args, r->stream, &err),
             "a pass", &err);
}

static double plan_series(struct rank *r, int v, bool is_backward, int calls)
{
    struct rank_plan *p = &r->plans[v];
    struct period own;
    double since_ms;
    int64_t since_us;
    ffa_error err;

    must(run_meeting_start(bench.meeting, r->rank, &since_us, &err), "meet", &err);
    own.begin_ms = since_ms = now_ms();
    for (int i = 0; i < calls; i++) {
        enqueue_pass(r, v, is_backward);
        own.end_ms = now_ms();
        if (i < HOST_SAMPLES && p->host_count < ROUNDS_MAX * HOST_SAMPLES)
            p->host_us[p->host_count++] = (own.end_ms - since_ms) * 1e3;
        since_ms = own.end_ms;
    }
    must(ffa_device_stream_synchronize(r->context, r->stream, &err), "synchronise", &err);
    own.end_ms = now_ms();
    must(ffa_comm_status(r->comm, &err), "the group", &err);
    return common_ms(r, &own, calls);
}

/* Calls of a plan's series, by how long the whole takes; on the first rank also of the whole's. */
static int find_calls(const struct rank *r, bool is_backward)
{
    int calls = 0, all[RANKS_MAX];

    if (r->rank == 0) {
        double ms;

        (void)whole_series(r, is_backward, 1);
        ms = whole_series(r, is_backward, 2);
        bench.whole_calls = calls_of(ms);
        bench.calls = calls = calls_of(ms / bench.gpus);
    }
    gather(r->rank, &calls, all, sizeof calls);
    return all[0];
}

/* ---- a case ---- */

static void measure_round(struct rank *r, bool is_backward, int calls, int round)
{
    if (r->rank == 0)
        bench.whole_ms[round] = whole_series(r, is_backward, bench.whole_calls);
    for (int v = 0; v < VARIANTS; v++) {
        double ms;

        if (!others_can(variants[v].method, is_backward))
            continue;
        ms = plan_series(r, v, is_backward, calls);
        if (r->rank == 0)
            bench.plans_ms[v][round] = ms;
    }
}

static void measure(struct rank *r, bool is_backward)
{
    const int calls = find_calls(r, is_backward);
    double whole_ms = 0;

    for (int v = 0; v < VARIANTS; v++) { /* warm up */
        if (!others_can(variants[v].method, is_backward))
            continue;
        (void)plan_series(r, v, is_backward, 2);
        r->plans[v].host_count = 0;
    }
    for (int round = 0; round < options.rounds; round++)
        measure_round(r, is_backward, calls, round);
    if (r->rank == 0)
        whole_ms = median(bench.whole_ms, options.rounds);
    for (int v = 0; v < VARIANTS; v++)
        if (others_can(variants[v].method, is_backward))
            report_plan(r, v, is_backward, whole_ms);
        else if (r->rank == 0)
            printf("%-19s %-8s %-10s not possible on %d ranks\n", bench.name,
                   is_backward ? "backward" : "forward", variants[v].name, options.ranks);
}

/* ---- running ---- */

static void *rank_thread(void *user)
{
    struct rank *r = user;

    rank_create(r);
    if (r->rank == 0) {
        report_begin(r);
        whole_create(&bench.whole, r);
    }
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
    for (int32_t i = bench.first; i < bench.first + bench.here; i++) {
        bench.ranks[i].rank = i;
        bench.ranks[i].context = bench.contexts[i % bench.context_count];
        start(&bench.ranks[i].thread, rank_thread, &bench.ranks[i]);
    }
    for (int32_t i = bench.first; i < bench.first + bench.here; i++)
        (void)pthread_join(bench.ranks[i].thread, NULL);
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

/* GPUs of the host, of which the first that a kernel exists for is `first`; count 0: there is none.
 */
struct gpus {
    int32_t first, count;
};

/* Asked by a process of its own, so that this one, which may only start others, has none open. */
static struct gpus find_gpus(void)
{
    struct gpus found = { 0, 0 };
    int ends[2];
    pid_t child;

    if (pipe(ends) || (child = fork()) < 0)
        fail("fork", "cannot start a process");
    if (child == 0) {
        ffa_context_info info;

        ffa_close(open_context(FFA_DEVICE_AUTO, &info));
        if (info.device != FFA_DEVICE_CPU)
            found = (struct gpus){ info.device, info.device_count };
        _exit(write(ends[1], &found, sizeof found) != (ssize_t)sizeof found);
    }
    (void)close(ends[1]);
    if (read(ends[0], &found, sizeof found) != (ssize_t)sizeof found)
        _exit(1); /* it said why */
    (void)close(ends[0]);
    (void)waitpid(child, NULL, 0);
    return found;
}

/* Ranks are threads. */
static void open_gpus(struct gpus gpus)
{
    ffa_context_info info;

    bench.gpus = bench.context_count = gpus.count < options.ranks ? 1 : options.ranks;
    bench.sharing = options.ranks / bench.gpus;
    for (int32_t i = 0; i < bench.gpus; i++)
        bench.contexts[i] = open_context((gpus.first + i) % gpus.count, &info);
    (void)snprintf(bench.device, sizeof bench.device, "%s", info.device_name);
    bench.here = options.ranks;
    bench.meeting = run_threads_create(options.ranks);
    if (!bench.meeting)
        fail("ranks", "no memory");
}

/* Ranks are processes, of which this is one. */
static void open_gpu(const struct rendezvous_place *place)
{
    ffa_context_info info;
    ffa_error err;

    join_processes(place);
    bench.context_count = 1;
    bench.contexts[0] = open_context(process_meeting_ordinal(NULL, place->local), &info);
    (void)snprintf(bench.device, sizeof bench.device, "%s", info.device_name);
    if (info.device == FFA_DEVICE_CPU)
        fail("open", "no GPU that a kernel exists for");
    must(process_meeting_share_out(bench.processes, place->rank, bench.contexts[0], &bench.gpus,
                                   &bench.sharing, &err),
         "GPUs", &err);
}

static void close_gpus(void)
{
    for (int32_t i = 0; i < bench.context_count; i++)
        ffa_close(bench.contexts[i]);
    if (!bench.processes)
        run_threads_destroy(bench.meeting);
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

static bool read_flag(const char *name)
{
    if (!strcmp(name, "--quick"))
        options.is_quick = true;
    else if (!strcmp(name, "--keep-keys"))
        options.keeps_keys = true;
    else if (!strcmp(name, "--threads"))
        options.kind = RANKS_THREADS;
    else if (!strcmp(name, "--processes"))
        options.kind = RANKS_PROCESSES;
    else
        return false;
    return true;
}

static bool read_wire_dtype(const char *text)
{
    options.wire_dtype = text && !strcmp(text, "bf16") ? FFA_BF16 : FFA_FP32;
    return text && (!strcmp(text, "bf16") || !strcmp(text, "fp32"));
}

static bool read_options(char **argv)
{
    for (; *argv; argv++) {
        const char *name = *argv;
        int64_t n = 0;
        bool is_fine;

        if (read_flag(name))
            continue;
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
        } else if (!strcmp(name, "--wire-dtype")) {
            is_fine = read_wire_dtype(argv[1]);
        } else if (!strcmp(name, "--max-ctas")) {
            is_fine = read_number(argv[1], 1, 64, &n);
            options.max_ctas = (int32_t)n;
        } else if (!strcmp(name, "--ranks-per-node")) {
            is_fine = read_number(argv[1], 1, RANKS_MAX, &n);
            options.ranks_per_node = (int32_t)n;
        } else if (!strcmp(name, "--ranks")) {
            is_fine = read_number(argv[1], 1, RANKS_MAX, &n);
            options.ranks = (int32_t)n;
        } else if (!strcmp(name, "--rendezvous")) {
            is_fine = (options.rendezvous = argv[1]);
        } else if (!strcmp(name, "--rank")) {
            is_fine = read_number(argv[1], 0, RANKS_MAX - 1, &n);
            options.rank = (int32_t)n;
        } else if (!strcmp(name, "--layers")) {
            is_fine = read_number(argv[1], 1, 1000, &n);
            options.layers = (int32_t)n;
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

/* Whether this process is one rank of several: see run_process_find of `ffa run`. */
static bool find_place(struct rendezvous_place *place)
{
    const bool is_asked = options.rendezvous != NULL;
    ffa_error err;
    ffa_status rc;

    if (!is_asked)
        options.rendezvous = getenv("FFA_RENDEZVOUS");
    if (!options.rendezvous) {
        if (options.rank >= 0)
            fail("--rank", "needs --rendezvous DIR, or FFA_RENDEZVOUS");
        return false;
    }
    rc = rendezvous_find(place, options.rank, options.ranks, variable, NULL, &err);
    if (!is_asked && !place->from[0]) /* a variable that is not for this call */
        return false;
    must(rc, "rank", &err);
    if (options.ranks && options.ranks != place->rank_count)
        fail("--ranks", "is another number than the launcher's");
    if (place->rank_count > RANKS_MAX)
        fail("ranks", "are more than 64");
    options.ranks = place->rank_count;
    return true;
}

/* All cases, of the ranks of this process. */
static int run_cases(void)
{
    ffa_error err;

    if (options.calibration)
        must(calibration_read(&bench.calibration, options.calibration, &err), "read", &err);
    if (bench.first == 0 && options.json && !(bench.json = fopen(options.json, "w")))
        fail(options.json, "cannot be written");
    for (size_t i = 0; i < CASES; i++)
        if (is_chosen(&cases[i]))
            run_case(&cases[i]);
    calibration_finish(&bench.calibration);
    if (bench.json && fclose(bench.json))
        fail(options.json, "cannot be written");
    return bench.is_wrong;
}

static int run_process(const struct rendezvous_place *place)
{
    int status;

    open_gpu(place);
    status = leave_processes(run_cases());
    close_gpus();
    return status;
}

static int run_threads(struct gpus gpus)
{
    int status = 0;

    open_gpus(gpus);
    if (options.calibrate)
        calibrate(options.calibrate);
    else
        status = run_cases();
    close_gpus();
    return status;
}

/* What ranks are, and how many. */
static int run_here(char **argv)
{
    const struct gpus gpus = find_gpus();

    if (gpus.count == 0) {
        printf("skipped: no GPU that a kernel exists for\n");
        return 77;
    }
    if (!options.ranks)
        options.ranks = gpus.count > 1 ? gpus.count : 2;
    options.ranks = options.ranks < RANKS_MAX ? options.ranks : RANKS_MAX;
    if (options.kind == RANKS_CHOSEN && options.ranks <= gpus.count)
        options.kind = RANKS_PROCESSES;
    if (options.kind == RANKS_PROCESSES && !options.calibrate)
        return launch_processes(argv, options.ranks);
    return run_threads(gpus);
}

int main(int argc, char **argv)
{
    struct rendezvous_place place;
    bool is_known;

    (void)argc;
    options.rank = -1;
    options.layers = LAYERS;
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
    if (!find_place(&place))
        return run_here(argv);
    if (options.calibrate) {
        fputs("bench_parallel: --calibrate measures by itself: not as one of several processes\n",
              stderr);
        return 2;
    }
    return run_process(&place);
}
