/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa run: one attention call on files or made-up numbers, compared with the oracle, timed.
 */
#include "cli/cli.h"
#include "cli/file.h"
#include "cli/run_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADS_MAX = 1024,     /* of this command, well below FFA_HEADS_MAX */
    REPEAT_DEFAULT = 10,  /* with --time */
    SAMPLE_MS = 5,        /* about what a sample of --time takes at least */
    CALLS_MAX = 100,      /* calls a sample, at most */
    CHECK_SAMPLES = 2048, /* rows compared where the case is too large for all */
    CHECK_LINES = 512,    /* the same of gradients: rows, and as many keys */
    CHECK_TILE = 128      /* rows around multiples of it are worth a sample */
};

struct run_options {
    const char *mask;
    const char *heads;
    const char *dtype;
    const char *backend;
    const char *files[RUN_TENSORS];
    int64_t head_dim, head_dim_v;
    int64_t seed;
    int64_t repeat;
    int64_t sm_margin;
    int64_t device; /* -1: the first a kernel exists for */
    int64_t sinks;
    double scale;                 /* 0: 1 / sqrt(head_dim) */
    double softcap;               /* 0: none */
    const char *moves;            /* with --ranks: "keys", "queries" or "auto" */
    const char *timeline, *trace; /* files */
    struct run_ranks_options ranks;
    bool wants_check, wants_time, wants_debug, wants_backward, wants_unpacked;
    bool wants_split, wants_whole; /* --split, --no-split */
    bool wants_isolation, wants_determinism, wants_dlse;
};

/* What calls of one pass took. */
struct run_time {
    float ms_first;
    float ms_median; /* of --repeat calls after a warm-up; the first call's without --time */
    float ms_min;
};

/* What a run found out. */
struct run_result {
    struct run_time forward, backward;
    struct oracle_report report;
    struct oracle_tolerance tolerance;
    double max_error; /* largest |got - want| of out */
    struct oracle_backward_report gradients;
    struct oracle_backward_tolerance gradients_tolerance;
    bool is_checked;
    bool is_same_again; /* deterministic: the gradients of a second call */
};

typedef ffa_status (*run_call)(struct run_case *run, int calls, float *ms, ffa_error *err);

/* ---- reading the request ---- */

static int read_heads(const struct cli *cli, const char *text, struct run_shape *shape)
{
    char *end = NULL;
    long q = strtol(text, &end, 10);
    long kv = q;

    if (end != text && *end == ':') {
        const char *second = end + 1;

        kv = strtol(second, &end, 10);
        if (end == second)
            end = NULL;
    }
    if (!end || end == text || *end)
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK, such as 8:2 (query heads : kv heads)",
                             text);
    if (q < 1 || q > HEADS_MAX || kv < 1 || kv > HEADS_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--heads is '%s', not both in [1, %d]", text,
                             HEADS_MAX);
    if (q % kv)
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s': %ld query heads are no multiple of %ld kv heads",
                             text, q, kv);
    shape->heads_q = (int32_t)q;
    shape->heads_kv = (int32_t)kv;
    return CLI_PARSE_GO;
}

static int read_shape(const struct cli *cli, const struct run_options *options,
                      const ffa_mask *mask, struct run_shape *shape)
{
    static const char *const dtypes[] = { "bf16", "fp16", "fp32", "fp64", NULL };
    int dtype = cli_word(options->dtype, dtypes);

    if (dtype < 0)
        return cli_fail_text(cli, FFA_INVALID, "--dtype is '%s', not bf16, fp16, fp32 or fp64",
                             options->dtype);
    shape->dtype = (ffa_dtype)(dtype + FFA_BF16);
    shape->spec_flags = options->wants_debug ? (uint32_t)FFA_SPEC_DEBUG : 0;
    shape->spec_flags |= options->softcap != 0.0 ? (uint32_t)FFA_SPEC_SOFTCAP : 0;
    shape->spec_flags |= options->wants_split ? (uint32_t)FFA_SPEC_SPLIT : 0;
    shape->spec_flags |= options->wants_backward ? (uint32_t)FFA_SPEC_BACKWARD : 0;
    shape->spec_flags |= options->wants_determinism ? (uint32_t)FFA_SPEC_DETERMINISTIC : 0;
    shape->plan_flags = options->wants_isolation ? (uint32_t)FFA_PLAN_ISOLATE : 0;
    shape->sinks = (int32_t)options->sinks;
    shape->has_dlse = options->wants_dlse;
    shape->head_dim = (int32_t)options->head_dim;
    shape->head_dim_v = (int32_t)(options->head_dim_v ? options->head_dim_v : options->head_dim);
    shape->tokens_q = ffa_mask_seqlen_q(mask);
    shape->tokens_k = ffa_mask_seqlen_k(mask);
    shape->pack_heads = options->wants_unpacked ? 0 : FFA_PACK_AUTO;
    shape->split = options->wants_whole ? 0 : FFA_SPLIT_AUTO;
    return read_heads(cli, options->heads, shape);
}

static int read_ranks(const struct cli *cli, struct run_options *options)
{
    static const char *const moves[] = { "keys", "queries", "auto", NULL };
    struct run_ranks_options *ranks = &options->ranks;

    if (!ranks->ranks && (ranks->per_node || ranks->stages || ranks->delay || options->moves))
        return cli_fail_text(cli, FFA_INVALID,
                             "--ranks-per-node, --stages, --moves and --delay need --ranks");
    ranks->moves = options->moves ? cli_word(options->moves, moves) : FFA_PARALLEL_MOVE_KEYS;
    ranks->wants_timeline = options->timeline || options->trace;
    if (ranks->wants_timeline && (!ranks->ranks || strcmp(options->backend, "cuda") != 0))
        return cli_fail_text(cli, FFA_INVALID,
                             "--timeline and --trace need --ranks and --backend cuda");
    if (ranks->ranks && options->wants_isolation)
        return cli_fail_text(cli, FFA_UNSUPPORTED,
                             "--isolate is of a plan of one device: not with --ranks");
    if (ranks->ranks && options->wants_determinism && strcmp(options->backend, "cuda") != 0)
        return cli_fail_text(cli, FFA_UNSUPPORTED,
                             "--deterministic with --ranks needs --backend cuda: on the CPU ranks "
                             "give the same bits in any case");
    if (ranks->moves < 0)
        return cli_fail_text(cli, FFA_INVALID, "--moves is '%s', not keys, queries or auto",
                             options->moves);
    ranks->seed = options->seed;
    return CLI_PARSE_GO;
}

/* ---- the backend ---- */

/* Open what --backend asks for. "auto" is the CPU for what only the CPU can do. */
static int open_backend(const struct cli *cli, const struct run_options *options,
                        const struct run_shape *shape, ffa_context **out)
{
    static const char *const backends[] = { "auto", "cuda", "cpu", NULL };
    int backend = cli_word(options->backend, backends);
    bool cpu_only = shape->dtype == FFA_FP32 || shape->dtype == FFA_FP64;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    int device = options->device >= 0 ? (int)options->device : FFA_DEVICE_AUTO;
    int status;

    if (backend < 0)
        return cli_fail_text(cli, FFA_INVALID, "--backend is '%s', not auto, cuda or cpu",
                             options->backend);
    if (backend == 2 && options->device >= 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--backend cpu has no device: --device is %lld, leave one of the two",
                             (long long)options->device);
    if (options->ranks.ranks && options->device >= 0)
        return cli_fail_text(cli, FFA_UNSUPPORTED,
                             "--ranks takes all GPUs in turn, or the CPU: no --device");
    if (backend == 2 || options->ranks.ranks || (backend == 0 && cpu_only && options->device < 0))
        device = FFA_DEVICE_CPU;
    status = cli_open(cli, out, device, 0);
    if (status != CLI_PARSE_GO || backend != 1 || options->ranks.ranks)
        return status;
    (void)ffa_context_info_get(*out, &info, NULL);
    if (info.device >= 0)
        return CLI_PARSE_GO;
    /* No device to pick: ask for the first by name, to hear why. */
    ffa_close(*out);
    status = cli_open(cli, out, 0, 0);
    return status;
}

/* A context for each GPU that ranks run on, for close_gpus. */
static int open_gpus(const struct cli *cli, struct run_ranks_options *ranks)
{
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    int64_t count;
    int status;

    ranks->contexts = calloc((size_t)ranks->ranks, sizeof *ranks->contexts);
    if (!ranks->contexts)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for ranks");
    status = cli_open(cli, &ranks->contexts[0], 0, 0);
    if (status != CLI_PARSE_GO)
        return status;
    (void)ffa_context_info_get(ranks->contexts[0], &info, NULL);
    count = info.device_count < ranks->ranks ? info.device_count : ranks->ranks;
    for (ranks->context_count = 1; ranks->context_count < count; ranks->context_count++) {
        status = cli_open(cli, &ranks->contexts[ranks->context_count], ranks->context_count, 0);
        if (status != CLI_PARSE_GO)
            return status;
    }
    return CLI_PARSE_GO;
}

static void close_gpus(struct run_ranks_options *ranks)
{
    for (int64_t i = 0; ranks->contexts && i < ranks->ranks; i++)
        ffa_close(ranks->contexts[i]);
    free(ranks->contexts);
    *ranks = (struct run_ranks_options){ .ranks = ranks->ranks };
}

/* ---- the work ---- */

static ffa_status fill_inputs(const struct cli *cli, const struct run_options *options,
                              struct run_case *run, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    static const enum run_tensor inputs[] = { RUN_Q, RUN_K, RUN_V, RUN_DOUT };

    for (size_t n = 0; n < CLI_COUNT(inputs) && rc == FFA_OK; n++) {
        const enum run_tensor i = inputs[n];
        bool rounded = false;

        if (options->files[i])
            rc = run_case_read(run, i, options->files[i], &rounded, err);
        else
            run_case_fill(run, i, (uint64_t)options->seed);
        if (rounded)
            cli_note(cli, "%s: float32, rounded to %s", options->files[i],
                     run_dtype_name(run->shape.dtype));
    }
    run_case_fill(run, RUN_SINK, (uint64_t)options->seed);
    run_case_fill(run, RUN_DLSE, (uint64_t)options->seed);
    return rc;
}

static double largest_error(const struct oracle_case *test, const struct oracle_result *want)
{
    const int64_t heads = test->args->heads_q;
    double largest = 0.0;

    for (int64_t i = 0; i < want->count; i++) {
        int64_t row = test->samples ? test->samples[i].row : i / heads;
        int64_t head = test->samples ? test->samples[i].head : i % heads;
        int64_t at = (row * heads + head) * test->head_dim_v;

        for (int64_t d = 0; d < test->head_dim_v; d++) {
            double error = fabs(run_element(test->args->out.data, test->dtype, at + d) -
                                want->out[i * test->head_dim_v + d]);

            if (!(error <= largest)) /* NaN, too, is an error */
                largest = error;
        }
    }
    return largest;
}

static ffa_status check(struct oracle_case *test, const struct run_options *options,
                        struct run_result *result, ffa_error *err)
{
    struct oracle_sample *samples = NULL;
    struct oracle_result want = { 0 };
    ffa_status rc;

    /* The cells of all query heads decide, as they are what the oracle computes. */
    if (test->sample_count > 0) {
        test->sample_count =
            oracle_samples(test, CHECK_TILE, (uint64_t)options->seed, test->sample_count, &samples);
        test->samples = samples;
        if (test->sample_count == 0) {
            free(samples);
            return err->status = FFA_NOMEM;
        }
    }
    rc = oracle_forward(&want, test, err);
    if (rc == FFA_OK) {
        result->tolerance = oracle_tolerance_of(test->dtype);
        oracle_compare(&result->report, test, &want, &result->tolerance);
        result->max_error = largest_error(test, &want);
        result->is_checked = true;
    }
    oracle_result_finish(&want);
    free(samples);
    return rc;
}

/* Where lines are sampled, from the backend's own out and lse: they were compared, and dsink, a sum
 * over all rows, is not. */
static ffa_status check_gradients(struct oracle_backward_case *test, bool is_large,
                                  const struct run_options *options, struct run_result *result,
                                  ffa_error *err)
{
    struct oracle_sample *rows = NULL, *keys = NULL;
    struct oracle_gradients want = { 0 };
    ffa_status rc = FFA_OK;

    if (is_large) {
        test->use_out = true;
        test->dsink = NULL;
        test->forward.sample_count =
            oracle_samples(&test->forward, CHECK_TILE, (uint64_t)options->seed, CHECK_LINES, &rows);
        test->key_sample_count = oracle_key_samples(&test->forward, CHECK_TILE,
                                                    (uint64_t)options->seed, CHECK_LINES, &keys);
        test->forward.samples = rows;
        test->key_samples = keys;
        if (!test->forward.sample_count || !test->key_sample_count)
            rc = err->status = FFA_NOMEM;
    }
    if (rc == FFA_OK)
        rc = oracle_backward(&want, test, err);
    if (rc == FFA_OK) {
        result->gradients_tolerance =
            oracle_backward_tolerance_of(test->forward.dtype, test->forward.shape.seqlen_k);
        oracle_backward_compare(&result->gradients, test, &want, &result->gradients_tolerance);
    }
    oracle_gradients_finish(&want);
    free(rows);
    free(keys);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;

    return (x > y) - (x < y);
}

/* How many calls a sample takes: between two marks a GPU also waits for the host to launch, which
 * is nothing against SAMPLE_MS of work but much against one short kernel. */
static int calls_a_sample(const struct run_time *time)
{
    if (time->ms_first >= (float)SAMPLE_MS)
        return 1;
    if (time->ms_first * CALLS_MAX <= (float)SAMPLE_MS)
        return CALLS_MAX;
    return (int)((float)SAMPLE_MS / time->ms_first) + 1;
}

/* --repeat samples; what the first call cost (page faults, cold caches) is not among them. */
static ffa_status measure(struct run_case *run, run_call call, int64_t repeat,
                          struct run_time *time, ffa_error *err)
{
    const int calls = calls_a_sample(time);
    float *times = calloc((size_t)repeat, sizeof *times);
    ffa_status rc = times ? FFA_OK : (err->status = FFA_NOMEM);

    for (int64_t i = 0; i < repeat && rc == FFA_OK; i++)
        rc = call(run, calls, &times[i], err);
    if (rc == FFA_OK) {
        qsort(times, (size_t)repeat, sizeof *times, by_value);
        time->ms_min = times[0];
        time->ms_median =
            repeat % 2 ? times[repeat / 2] : (times[repeat / 2 - 1] + times[repeat / 2]) / 2.0f;
    }
    free(times);
    return rc;
}

static ffa_status first_call(struct run_case *run, run_call call, struct run_time *time,
                             ffa_error *err)
{
    ffa_status rc = call(run, 1, &time->ms_first, err);

    time->ms_median = time->ms_min = time->ms_first;
    return rc;
}

static ffa_status work(const struct cli *cli, const struct run_options *options,
                       struct run_case *run, struct run_result *result, ffa_error *err)
{
    static const enum run_tensor outputs[] = { RUN_OUT, RUN_LSE, RUN_DQ, RUN_DK, RUN_DV };
    ffa_slice_list lists[HEADS_MAX];
    ffa_forward_args host_args;
    struct oracle_backward_case test = run_case_oracle_backward(run, &host_args, lists);
    bool is_large = run_case_cells(run) > (double)ORACLE_CELLS_MAX;
    struct oracle_case forward = test.forward;
    ffa_status rc = fill_inputs(cli, options, run, err);

    forward.sample_count = is_large ? CHECK_SAMPLES : 0;
    oracle_poison(&forward);
    if (options->wants_backward)
        oracle_backward_poison(&test);
    if (rc == FFA_OK)
        rc = run_case_upload(run, err);
    if (rc == FFA_OK)
        rc = first_call(run, run_case_forward, &result->forward, err);
    if (rc == FFA_OK && options->wants_backward)
        rc = first_call(run, run_case_backward, &result->backward, err);
    if (rc == FFA_OK)
        rc = run_case_download(run, err);
    for (size_t i = 0; i < CLI_COUNT(outputs) && rc == FFA_OK; i++)
        if (options->files[outputs[i]])
            rc = run_case_write(run, outputs[i], options->files[outputs[i]], err);
    if (rc == FFA_OK && options->wants_check)
        rc = check(&forward, options, result, err);
    if (rc == FFA_OK && options->wants_check && options->wants_backward)
        rc = check_gradients(&test, is_large, options, result, err);
    if (rc == FFA_OK && options->wants_check && options->wants_determinism)
        rc = run_case_backward_again(run, &result->is_same_again, err);
    if (rc == FFA_OK && options->wants_time)
        rc = measure(run, run_case_forward, options->repeat, &result->forward, err);
    if (rc == FFA_OK && options->wants_time && options->wants_backward)
        rc = measure(run, run_case_backward, options->repeat, &result->backward, err);
    return rc;
}

/* ---- reporting ---- */

static json_t *kernel_object(const ffa_kernel_info *kernel)
{
    json_t *object = json_object();

    cli_set_text(object, "key", kernel->key);
    cli_set_text(object, "arch", kernel->arch);
    cli_set_text(object, "layer", ffa_layer_text(kernel->layer));
    cli_set_int(object, "registers", kernel->registers);
    cli_set_real(object, "resolve_ms", (double)kernel->resolve_us / 1e3);
    return object;
}

static void add_check(json_t *object, const struct run_result *result)
{
    cli_set_real(object, "max_error", result->max_error);
    cli_set_real(object, "relative_error", result->report.out);
    cli_set_real(object, "row_error", result->report.row);
    cli_set_real(object, "lse_error", result->report.lse);
    cli_set_real(object, "relative_limit", result->tolerance.out);
    cli_set_real(object, "row_limit", result->tolerance.row);
    cli_set_real(object, "lse_limit", result->tolerance.lse);
    cli_set_int(object, "compared_rows", result->report.compared);
    (void)json_object_set_new(object, "passed", json_boolean(result->report.passed));
}

static void add_time(json_t *object, const struct run_time *time, double flops)
{
    cli_set_real(object, "milliseconds", (double)time->ms_median);
    cli_set_real(object, "milliseconds_min", (double)time->ms_min);
    cli_set_real(object, "milliseconds_first", (double)time->ms_first);
    cli_set_real(object, "tflops", flops / ((double)time->ms_median * 1e9));
}

static json_t *backward_object(const struct run_case *run, const struct run_options *options,
                               const struct run_result *result)
{
    const struct oracle_backward_report *report = &result->gradients;
    json_t *object = json_object();

    cli_set_int(object, "workspace_bytes", run->workspace_bytes);
    add_time(object, &result->backward, run_case_backward_flops(run));
    if (!result->is_checked)
        return object;
    cli_set_real(object, "dq_error", report->dq);
    cli_set_real(object, "dk_error", report->dk);
    cli_set_real(object, "dv_error", report->dv);
    cli_set_real(object, "dsink_error", report->dsink);
    cli_set_real(object, "head_error", report->head);
    cli_set_real(object, "row_error", report->row);
    cli_set_real(object, "key_error", report->key);
    cli_set_real(object, "relative_limit", result->gradients_tolerance.whole);
    cli_set_real(object, "head_limit", result->gradients_tolerance.head);
    cli_set_real(object, "line_limit", result->gradients_tolerance.line);
    cli_set_int(object, "compared_lines", report->compared);
    if (options->wants_determinism)
        (void)json_object_set_new(object, "same_bits_again", json_boolean(result->is_same_again));
    (void)json_object_set_new(object, "passed", json_boolean(report->passed));
    return object;
}

static json_t *ranks_object(struct run_ranks_facts facts)
{
    json_t *object = json_object();

    cli_set_int(object, "count", facts.ranks);
    cli_set_int(object, "forward_stages", facts.forward_stages);
    cli_set_int(object, "backward_stages", facts.backward_stages);
    cli_set_text(object, "moves", facts.moves_queries ? "queries" : "keys");
    cli_set_int(object, "received_rows", facts.received_rows);
    cli_set_int(object, "gpus", facts.gpus);
    cli_set_int(object, "window_bytes", facts.window_bytes);
    cli_set_int(object, "workspace_bytes", facts.workspace_bytes);
    return object;
}

/* What the library chose for the mask, on this backend. Ranks have plans of their own. */
static json_t *plan_object(const struct run_case *run, const ffa_context_info *info)
{
    ffa_plan_info plan = FFA_PLAN_INFO_INIT;
    json_t *object = json_object();

    (void)ffa_plan_info_get(run->plan, &plan, NULL);
    cli_set_int(object, "tile_m", plan.tile_m);
    cli_set_int(object, "tile_n", plan.tile_n);
    cli_set_int(object, "tiles", plan.tile_count);
    cli_set_int(object, "pack_heads", plan.pack_heads);
    (void)json_object_set_new(object, "isolated", json_boolean(plan.is_isolated));
    (void)json_object_set_new(object, "split", json_boolean(plan.split_heads > 0));
    cli_set_int(object, "split_tiles", plan.split_tiles);
    if (info->device < 0)
        return object;
    cli_set_int(object, "l2_heads_kv", plan.l2_heads_kv);
    if (plan.backward_parts) {
        cli_set_int(object, "backward_parts", plan.backward_parts);
        cli_set_int(object, "backward_waves", plan.backward_waves);
        cli_set_int(object, "backward_l2_head_groups", plan.backward_l2_head_groups);
    }
    cli_set_text(object, "cost_table", plan.cost_table);
    return object;
}

static json_t *as_object(const struct run_case *run, const ffa_context_info *info,
                         const ffa_kernel_info *kernel, const struct run_options *options,
                         const struct run_result *result)
{
    json_t *object = json_object();

    cli_set_text(object, "backend", info->device >= 0 ? "cuda" : "cpu");
    cli_set_text(object, "device", info->device_name);
    cli_set_text(object, "mask", options->mask);
    cli_set_text(object, "dtype", run_dtype_name(run->shape.dtype));
    cli_set_int(object, "head_dim", run->shape.head_dim);
    cli_set_int(object, "head_dim_v", run->shape.head_dim_v);
    cli_set_int(object, "heads_q", run->shape.heads_q);
    cli_set_int(object, "heads_kv", run->shape.heads_kv);
    cli_set_int(object, "seqlen_q", run->shape.tokens_q);
    cli_set_int(object, "seqlen_k", run->shape.tokens_k);
    cli_set_int(object, "area", ffa_mask_area(run->mask, -1));
    cli_set_int(object, "seed", options->seed);
    (void)json_object_set_new(object, "kernel",
                              info->device >= 0 ? kernel_object(kernel) : json_null());
    (void)json_object_set_new(object, "plan", run->ranks ? json_null() : plan_object(run, info));
    if (run->ranks)
        (void)json_object_set_new(object, "ranks", ranks_object(run_ranks_facts_get(run->ranks)));
    add_time(object, &result->forward, run_case_flops(run));
    if (result->is_checked)
        add_check(object, result);
    if (options->timeline)
        cli_set_text(object, "timeline", options->timeline);
    if (options->trace)
        cli_set_text(object, "trace", options->trace);
    if (options->wants_backward)
        (void)json_object_set_new(object, "backward", backward_object(run, options, result));
    return object;
}

static void print_time(const char *name, const struct run_time *time, double flops,
                       const struct run_options *options)
{
    (void)printf("%-8s %.3f ms, %.3g TFLOP/s", name, (double)time->ms_median,
                 flops / ((double)time->ms_median * 1e9));
    if (options->wants_time)
        (void)printf(" (median of %" PRId64 "; %.3f ms at best)", options->repeat,
                     (double)time->ms_min);
    (void)printf("\n");
}

static void print_gradients(const struct run_result *result)
{
    const struct oracle_backward_report *report = &result->gradients;
    const struct oracle_backward_tolerance *limit = &result->gradients_tolerance;

    (void)printf("dq dk dv %s: %" PRId64 " rows and keys\n", report->passed ? "passed" : "failed",
                 report->compared);
    (void)printf("         dq %.2e, dk %.2e, dv %.2e, dsink %.2e of %.0e relative\n", report->dq,
                 report->dk, report->dv, report->dsink, limit->whole);
    (void)printf("         head %.2e of %.0e, row %.2e and key %.2e of %.0e\n", report->head,
                 limit->head, report->row, report->key, limit->line);
}

static void print_ranks(struct run_ranks_facts facts, const struct run_options *options)
{
    (void)printf("ranks    %d: %d stages forward", facts.ranks, facts.forward_stages);
    if (options->wants_backward)
        (void)printf(", %d backward", facts.backward_stages);
    (void)printf(", %" PRId64 " rows of %s received, at most\n", facts.received_rows,
                 facts.moves_queries ? "queries" : "keys");
    if (facts.gpus)
        (void)printf("         windows %.1f MiB and workspace %.1f MiB of a rank, at most\n",
                     (double)facts.window_bytes / 1048576, (double)facts.workspace_bytes / 1048576);
}

static void print_result(const struct run_case *run, const ffa_context_info *info,
                         const ffa_kernel_info *kernel, const struct run_options *options,
                         const struct run_result *result)
{
    const struct run_shape *shape = &run->shape;

    if (info->device >= 0)
        (void)printf("backend  cuda: %s, kernel %s from %s\n", info->device_name, kernel->key,
                     ffa_layer_text(kernel->layer));
    else if (!options->ranks.contexts)
        (void)printf("backend  cpu: %d threads\n", info->cpu_threads);
    else
        (void)printf("backend  cuda: %d GPU%s\n", options->ranks.context_count,
                     options->ranks.context_count == 1 ? "" : "s");
    (void)printf("case     %" PRId64 " x %" PRId64 " tokens, heads %d:%d, head_dim %d",
                 shape->tokens_q, shape->tokens_k, shape->heads_q, shape->heads_kv,
                 shape->head_dim);
    if (shape->head_dim_v != shape->head_dim)
        (void)printf(":%d", shape->head_dim_v);
    (void)printf(", %s, %" PRId64 " cells\n", run_dtype_name(shape->dtype),
                 ffa_mask_area(run->mask, -1));
    if (run->ranks)
        print_ranks(run_ranks_facts_get(run->ranks), options);
    print_time("time", &result->forward, run_case_flops(run), options);
    if (options->wants_backward)
        print_time("backward", &result->backward, run_case_backward_flops(run), options);
    if (!result->is_checked)
        return;
    (void)printf("check    %s: %" PRId64 " rows\n", result->report.passed ? "passed" : "failed",
                 result->report.compared);
    (void)printf("         out %.2e of %.0e relative, row %.2e of %.0e, lse %.2e of %.0e\n",
                 result->report.out, result->tolerance.out, result->report.row,
                 result->tolerance.row, result->report.lse, result->tolerance.lse);
    if (options->wants_backward)
        print_gradients(result);
    if (options->wants_determinism)
        (void)printf("         %s in a second call\n",
                     result->is_same_again ? "the same bits" : "OTHER BITS");
}

static int report(const struct cli *cli, const struct run_case *run,
                  const struct run_options *options, const struct run_result *result)
{
    ffa_kernel_info kernel = FFA_KERNEL_INFO_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    bool is_bad = result->is_checked && !result->report.passed;
    bool is_worse = result->is_checked && options->wants_backward && !result->gradients.passed;

    (void)ffa_context_info_get(run->context, &info, NULL);
    (void)ffa_plan_kernel(run->plan, run->kernels, &kernel, NULL);
    if (is_bad)
        cli_note(cli, "check failed: %s", result->report.reason);
    if (is_worse)
        cli_note(cli, "check of gradients failed: %s", result->gradients.reason);
    is_bad |= is_worse;
    if (result->is_checked && options->wants_determinism && !result->is_same_again) {
        cli_note(cli, "check failed: the gradients of two calls have other bits");
        is_bad = true;
    }
    if (cli->json)
        return cli_print_json(cli, as_object(run, &info, &kernel, options, result),
                              is_bad ? CLI_FAILED : CLI_DONE);
    print_result(run, &info, &kernel, options, result);
    return is_bad ? CLI_FAILED : CLI_DONE;
}

static ffa_status write_text(const struct cli *cli, const char *path,
                             ffa_status (*make)(char **out, const struct timeline *timeline,
                                                ffa_error *err),
                             const struct timeline *timeline, ffa_error *err)
{
    char *text;
    ffa_status rc;

    if (!path)
        return FFA_OK;
    rc = make(&text, timeline, err);
    if (rc == FFA_OK)
        rc = file_write(path, text, strlen(text), err);
    if (rc == FFA_OK && !cli->json)
        cli_note(cli, "wrote %s", path);
    free(text);
    return rc;
}

/* What --timeline and --trace ask for. */
static ffa_status write_timeline(const struct cli *cli, const struct run_options *options,
                                 const struct run_case *run, ffa_error *err)
{
    struct timeline timeline;
    ffa_status rc;

    if (!options->ranks.wants_timeline)
        return FFA_OK;
    rc = run_ranks_timeline(run->ranks, &timeline, err);
    if (rc == FFA_OK)
        rc = write_text(cli, options->timeline, timeline_svg, &timeline, err);
    if (rc == FFA_OK)
        rc = write_text(cli, options->trace, timeline_trace, &timeline, err);
    free((void *)timeline.ranks);
    return rc;
}

static int run_one(const struct cli *cli, const struct run_options *options, ffa_context *context,
                   const ffa_mask *mask, const struct run_shape *shape)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct run_result result = { 0 };
    struct run_case run;
    ffa_status rc = run_case_init(&run, context, mask, shape, options->ranks.ranks > 0, &err);
    int status;

    run.args.softmax_scale = options->scale;
    run.args.softcap = options->softcap;
    run.args.sm_margin = (int32_t)options->sm_margin;
    if (rc == FFA_OK && options->ranks.ranks)
        rc = run_ranks_create(&run.ranks, &run, &options->ranks, &err);
    if (rc == FFA_OK)
        rc = work(cli, options, &run, &result, &err);
    if (rc == FFA_OK)
        rc = write_timeline(cli, options, &run, &err);
    status = rc == FFA_OK ? report(cli, &run, options, &result) : cli_fail(cli, &err);
    run_case_finish(&run);
    return status;
}

/* What one option alone cannot tell is wrong. */
static int check_options(const struct cli *cli, struct run_options *options)
{
    if (options->repeat)
        options->wants_time = true;
    else
        options->repeat = REPEAT_DEFAULT;
    for (int i = RUN_DOUT; i <= RUN_DV; i++)
        if (options->files[i] && !options->wants_backward)
            return cli_fail_text(cli, FFA_INVALID, "--%s is given without --backward",
                                 run_tensor_name((enum run_tensor)i));
    if (options->wants_split && options->wants_whole)
        return cli_fail_text(cli, FFA_INVALID, "--split is given with --no-split");
    if (options->wants_determinism && !options->wants_backward)
        return cli_fail_text(cli, FFA_INVALID, "--deterministic is given without --backward");
    if (options->wants_dlse && !options->wants_backward)
        return cli_fail_text(cli, FFA_INVALID, "--dlse is given without --backward");
    if (!options->mask)
        return cli_fail_text(cli, FFA_INVALID, "--mask is missing, such as --mask causal:4096");
    return read_ranks(cli, options);
}

/* The options are in order: open what they name, and run. */
static int run_on_mask(const struct cli *cli, struct run_options *options)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct run_shape shape = { 0 };
    ffa_context *context = NULL;
    ffa_mask *mask = NULL;
    int status;

    if (ffa_mask_parse(&mask, options->mask, &err) != FFA_OK)
        return cli_fail(cli, &err);
    status = read_shape(cli, options, mask, &shape);
    if (status == CLI_PARSE_GO)
        status = open_backend(cli, options, &shape, &context);
    if (status == CLI_PARSE_GO && options->ranks.ranks && strcmp(options->backend, "cuda") == 0)
        status = open_gpus(cli, &options->ranks);
    if (status == CLI_PARSE_GO)
        status = run_one(cli, options, context, mask, &shape);
    close_gpus(&options->ranks);
    ffa_close(context);
    ffa_mask_destroy(mask);
    return status;
}

int cmd_run(struct cli *cli)
{
    struct run_options options = {
        .heads = "8:8", .dtype = "bf16", .backend = "auto", .head_dim = 128, .device = -1
    };
    const struct cli_option rows[] = {
        { "mask", CLI_TEXT, &options.mask, "SPEC", "the mask: causal:4096, @mask.json, ...", 0, 0 },
        { "heads", CLI_TEXT, &options.heads, "HQ:HK", "query and kv heads; 8:8", 0, 0 },
        { "head-dim", CLI_INT, &options.head_dim, "D", "elements a head; 128", 1, 1024 },
        { "head-dim-v", CLI_INT, &options.head_dim_v, "D", "of v and the output; as --head-dim", 1,
          1024 },
        { "dtype", CLI_TEXT, &options.dtype, "T", "bf16, fp16; on the CPU fp32, fp64, too; bf16", 0,
          0 },
        { "backend", CLI_TEXT, &options.backend, "B", "auto, cuda or cpu; auto", 0, 0 },
        { "device", CLI_INT, &options.device, "N", "the CUDA device; the first that fits", 0,
          1023 },
        { "seed", CLI_INT, &options.seed, "N", "of inputs that are not read; 0", 0, INT64_MAX },
        { "q", CLI_TEXT, &options.files[RUN_Q], "FILE", "read q, .npy [tokens][heads][head_dim]", 0,
          0 },
        { "k", CLI_TEXT, &options.files[RUN_K], "FILE", "read k", 0, 0 },
        { "v", CLI_TEXT, &options.files[RUN_V], "FILE", "read v", 0, 0 },
        { "out", CLI_TEXT, &options.files[RUN_OUT], "FILE", "write the output", 0, 0 },
        { "lse", CLI_TEXT, &options.files[RUN_LSE], "FILE", "write lse, [tokens][heads]", 0, 0 },
        { "scale", CLI_REAL, &options.scale, "X", "softmax scale; 1 / sqrt(head-dim)", 0, 0 },
        { "softcap", CLI_REAL, &options.softcap, "X", "cap scores at +-X, softly; none", 0, 0 },
        { "sinks", CLI_INT, &options.sinks, "N", "sink logits a head, made up; 0", 0, 8 },
        { "sm-margin", CLI_INT, &options.sm_margin, "N", "SMs left free for others; 0", 0, 1023 },
        { "ranks", CLI_INT, &options.ranks.ranks, "N",
          "run on N ranks, threads of this process, by a distributed plan; --backend cuda: on GPUs",
          1, 256 },
        { "ranks-per-node", CLI_INT, &options.ranks.per_node, "N",
          "ranks of a node, as the plan sees them; all", 1, 256 },
        { "stages", CLI_INT, &options.ranks.stages, "N",
          "stages that ranks receive rows in; -1: all first; chosen", -1, 12 },
        { "moves", CLI_TEXT, &options.moves, "W",
          "what travels between ranks: keys, queries or auto; keys", 0, 0 },
        { "delay", CLI_INT, &options.ranks.delay, "N",
          "times a transfer between ranks may be passed over by others; 0", 0, 1000 },
        { "timeline", CLI_TEXT, &options.timeline, "FILE",
          "write a picture of what each rank's last passes did, and when (GPUs)", 0, 0 },
        { "trace", CLI_TEXT, &options.trace, "FILE",
          "write the same in Chrome's trace event format", 0, 0 },
        { "backward", CLI_FLAG, &options.wants_backward, NULL, "run the backward pass, too", 0, 0 },
        { "deterministic", CLI_FLAG, &options.wants_determinism, NULL,
          "dq, too, has the same bits in every run", 0, 0 },
        { "dout", CLI_TEXT, &options.files[RUN_DOUT], "FILE", "read dout, as q", 0, 0 },
        { "dlse", CLI_FLAG, &options.wants_dlse, NULL,
          "lse has a gradient, too, made up; otherwise the loss does not read it", 0, 0 },
        { "dq", CLI_TEXT, &options.files[RUN_DQ], "FILE", "write dq", 0, 0 },
        { "dk", CLI_TEXT, &options.files[RUN_DK], "FILE", "write dk", 0, 0 },
        { "dv", CLI_TEXT, &options.files[RUN_DV], "FILE", "write dv", 0, 0 },
        { "check", CLI_FLAG, &options.wants_check, NULL,
          "compare with the fp64 oracle; exit 1 beyond its tolerance", 0, 0 },
        { "time", CLI_FLAG, &options.wants_time, NULL, "time calls after a warm-up", 0, 0 },
        { "split", CLI_FLAG, &options.wants_split, NULL,
          "split tiles over their keys for any gain; otherwise for a good one", 0, 0 },
        { "no-split", CLI_FLAG, &options.wants_whole, NULL, "split no tile over its keys", 0, 0 },
        { "unpacked", CLI_FLAG, &options.wants_unpacked, NULL,
          "each query head has tiles of its own; otherwise those of a kv head may share", 0, 0 },
        { "isolate", CLI_FLAG, &options.wants_isolation, NULL,
          "no tile has tokens of two documents: NaN and Inf stay in theirs", 0, 0 },
        { "debug", CLI_FLAG, &options.wants_debug, NULL,
          "a GPU kernel whose barriers trap instead of hanging, and name themselves", 0, 0 },
        { "repeat", CLI_INT, &options.repeat, "N", "samples with --time; 10", 1, 1000000 },
        CLI_BUNDLE_OPTION(cli),
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status != CLI_PARSE_GO)
        return status;
    status = check_options(cli, &options);
    return status == CLI_PARSE_GO ? run_on_mask(cli, &options) : status;
}
