/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa run: one attention call on files or made-up numbers, compared with the oracle, timed.
 */
#include "cli/amount.h"
#include "cli/cli.h"
#include "cli/file.h"
#include "cli/run_case.h"
#include "cli/run_files.h"
#include "cli/run_meeting.h"
#include "cli/run_process.h"
#include "cli/run_report.h"

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
    CHECK_TILE = 128,     /* rows around multiples of it are worth a sample */
    TIMEOUT_S_MAX = 86400
};

typedef ffa_status (*run_call)(struct run_case *run, int calls, float *ms, ffa_error *err);

/* ---- reading the request ---- */

static int read_heads(const struct cli *cli, const char *text, struct run_shape *shape)
{
    int32_t q, kv;

    if (!cli_heads(text, &q, &kv))
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK, such as 8:2 (query heads : kv heads)",
                             text);
    if (q < 1 || q > HEADS_MAX || kv < 1 || kv > HEADS_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--heads is '%s', not both in [1, %d]", text,
                             HEADS_MAX);
    if (q % kv)
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s': %d query heads are no multiple of %d kv heads", text,
                             q, kv);
    shape->heads_q = q;
    shape->heads_kv = kv;
    return CLI_PARSE_GO;
}

/* NULL: chosen. */
static int read_backward_tile(const struct cli *cli, const char *text, struct run_shape *shape)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    char item[64];

    if (!text)
        return CLI_PARSE_GO;
    if (snprintf(item, sizeof item, "backward_tile=%s", text) >= (int)sizeof item ||
        strchr(text, ',') || ffa_attention_spec_parse(&spec, item, NULL) != FFA_OK)
        return cli_fail_text(cli, FFA_INVALID,
                             "--backward-tile is '%s', not MxN, such as 64x256 (query rows a "
                             "block, keys a tile)",
                             text);
    shape->backward_tile_m = spec.backward_tile_m;
    shape->backward_tile_n = spec.backward_tile_n;
    return CLI_PARSE_GO;
}

static int read_shape(const struct cli *cli, const struct run_options *options,
                      const ffa_mask *mask, struct run_shape *shape)
{
    static const char *const dtypes[] = { "bf16", "fp16", "fp32", "fp64", NULL };
    int dtype = cli_word(options->dtype, dtypes), status;

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
    shape->parts_max = (int32_t)options->parts_max;
    shape->sinks = (int32_t)options->sinks;
    shape->has_dlse = options->wants_dlse;
    shape->head_dim = (int32_t)options->head_dim;
    shape->head_dim_v = (int32_t)(options->head_dim_v ? options->head_dim_v : options->head_dim);
    shape->tokens_q = ffa_mask_seqlen_q(mask);
    shape->tokens_k = ffa_mask_seqlen_k(mask);
    shape->pack_heads = options->wants_unpacked ? 0 : FFA_PACK_AUTO;
    shape->split = options->wants_whole ? 0 : FFA_SPLIT_AUTO;
    status = read_backward_tile(cli, options->backward_tile, shape);
    return status == CLI_PARSE_GO ? read_heads(cli, options->heads, shape) : status;
}

/* NAN: it is not given. */
static int read_timeout(const struct cli *cli, const struct run_options *options, int64_t *ms)
{
    if (isnan(options->timeout_s))
        return CLI_PARSE_GO;
    if (options->timeout_s <= 0 || options->timeout_s > TIMEOUT_S_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--timeout is %g, not in (0, %d] seconds",
                             options->timeout_s, TIMEOUT_S_MAX);
    if (!options->ranks.ranks || strcmp(options->backend, "cuda") != 0)
        return cli_fail_text(cli, FFA_INVALID, "--timeout needs --ranks and --backend cuda");
    *ms = (int64_t)ceil(options->timeout_s * 1e3); /* 0 would be the library's */
    return CLI_PARSE_GO;
}

static int read_ranks(const struct cli *cli, struct run_options *options)
{
    static const char *const moves[] = { "keys", "queries", "auto", NULL };
    static const char *const transports[] = { "auto", "pull", "exchange", "relay", NULL };
    static const char *const wires[] = { "bf16", "fp16", "fp32", NULL };
    struct run_ranks_options *ranks = &options->ranks;

    if (!ranks->ranks && (ranks->per_node || ranks->stages || ranks->delay || options->moves ||
                          options->memory || options->calibration))
        return cli_fail_text(
            cli, FFA_INVALID,
            "--ranks-per-node, --stages, --memory, --moves, --delay and --calibration need "
            "--ranks");
    ranks->transport = options->transport ? cli_word(options->transport, transports) : 0;
    ranks->nccl = cli_find_nccl(options->nccl);
    if (ranks->transport < 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--transport is '%s', not auto, pull, exchange or relay",
                             options->transport);
    if (options->wire_dtype && cli_word(options->wire_dtype, wires) < 0)
        return cli_fail_text(cli, FFA_INVALID, "--wire-dtype is '%s', not fp32, or as --dtype",
                             options->wire_dtype);
    ranks->wire_dtype = options->wire_dtype ? cli_word(options->wire_dtype, wires) + FFA_BF16 : 0;
    if ((options->transport || options->nccl || options->wire_dtype || ranks->keeps_keys) &&
        (!ranks->ranks || strcmp(options->backend, "cuda") != 0))
        return cli_fail_text(
            cli, FFA_INVALID,
            "--transport, --nccl, --wire-dtype and --keep-keys need --ranks and --backend cuda");
    if (ranks->keeps_keys && !options->wants_backward)
        return cli_fail_text(cli, FFA_INVALID, "--keep-keys needs --backward");
    if (options->memory && !amount_read_size(options->memory, &ranks->memory))
        return cli_fail_text(cli, FFA_INVALID,
                             "--memory is '%s', not a size such as 500000, 512M or 4G",
                             options->memory);
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
    return read_timeout(cli, options, &ranks->timeout_ms);
}

/* Whether this process is one rank of several. */
static int read_process(const struct cli *cli, struct run_options *options)
{
    struct rendezvous_place *place = &options->place;
    const int status =
        run_process_find(cli, &options->process, options->ranks.ranks, place, &options->rendezvous);

    if (status != CLI_PARSE_GO || place->rank_count == 0)
        return status;
    if (strcmp(options->backend, "cpu") == 0)
        return cli_fail_text(cli, FFA_UNSUPPORTED,
                             "--backend cpu runs ranks as threads of one process: not with the "
                             "processes of --rendezvous");
    if (strcmp(options->backend, "auto") == 0)
        options->backend = "cuda";
    options->ranks.ranks = place->rank_count;
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
                             "--ranks takes a GPU a rank, or the CPU: no --device");
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

/* A context for each GPU that ranks run on, for close_gpus: one a rank, or one for all. */
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
    count = info.device_count < ranks->ranks ? 1 : ranks->ranks;
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
    calibration_finish(&ranks->calibration);
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
        if (rounded && options->place.rank == 0)
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

/* What --timeline and --trace ask for, of all ranks; of several processes, rank 0 writes it. */
static ffa_status write_timeline(const struct cli *cli, const struct run_options *options,
                                 const struct run_case *run, ffa_error *err)
{
    struct timeline_rank *ranks;
    struct timeline timeline;
    ffa_status rc;

    if (!options->ranks.wants_timeline)
        return FFA_OK;
    rc = run_ranks_timeline(run->ranks, &ranks, err);
    timeline = (struct timeline){ ranks, (int32_t)options->ranks.ranks };
    if (rc == FFA_OK && options->place.rank == 0)
        rc = write_text(cli, options->timeline, timeline_svg, &timeline, err);
    if (rc == FFA_OK && options->place.rank == 0)
        rc = write_text(cli, options->trace, timeline_trace, &timeline, err);
    free(ranks);
    return rc;
}

/* Whether somebody looks at them. */
static bool wants_outputs(const struct run_options *options)
{
    bool wants = options->wants_check;

    for (int i = 0; i < RUN_TENSORS; i++)
        wants = wants || options->files[i];
    return wants;
}

static ffa_status work(const struct cli *cli, const struct run_options *options,
                       struct run_case *run, struct run_result *result, ffa_error *err)
{
    static const enum run_tensor outputs[] = { RUN_OUT, RUN_LSE, RUN_DQ, RUN_DK, RUN_DV };
    ffa_slice_list lists[HEADS_MAX];
    ffa_forward_args host_args;
    struct oracle_backward_case test = run_case_oracle_backward(run, &host_args, lists);
    bool is_large = run_case_cells(run) > (double)ORACLE_CELLS_MAX;
    const bool is_first = options->place.rank == 0; /* of several processes */
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
    if (rc == FFA_OK && run->ranks && wants_outputs(options))
        rc = run_ranks_collect(run->ranks, false, err);
    if (rc == FFA_OK && run->ranks && options->wants_backward && wants_outputs(options))
        rc = run_ranks_collect(run->ranks, true, err);
    if (rc == FFA_OK)
        rc = run_case_download(run, err);
    if (rc == FFA_OK && options->wants_check && options->wants_determinism)
        rc = run_case_backward_again(run, &result->is_same_again, err);
    if (rc == FFA_OK && options->wants_time)
        rc = measure(run, run_case_forward, options->repeat, &result->forward, err);
    if (rc == FFA_OK && options->wants_time && options->wants_backward)
        rc = measure(run, run_case_backward, options->repeat, &result->backward, err);
    if (rc == FFA_OK)
        rc = write_timeline(cli, options, run, err);
    if (rc == FFA_OK && run->ranks) /* what follows is work of one rank, and may take long */
        run_ranks_leave(run->ranks);
    for (size_t i = 0; i < CLI_COUNT(outputs) && rc == FFA_OK && is_first; i++)
        if (options->files[outputs[i]])
            rc = run_case_write(run, outputs[i], options->files[outputs[i]], err);
    if (rc == FFA_OK && options->wants_check && is_first)
        rc = check(&forward, options, result, err);
    if (rc == FFA_OK && options->wants_check && options->wants_backward && is_first)
        rc = check_gradients(&test, is_large, options, result, err);
    return rc;
}

/* Say what came of it: of several processes, rank 0 does. */
static int finish(const struct cli *cli, const struct run_case *run,
                  const struct run_options *options, const struct run_result *result)
{
    return options->place.rank == 0 ? run_report(cli, run, options, result) : CLI_DONE;
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
    if (rc != FFA_OK && options->ranks.meeting)
        options->ranks.meeting->give_up(options->ranks.meeting, &err);
    status = rc == FFA_OK ? finish(cli, &run, options, &result) : cli_fail(cli, &err);
    run_case_finish(&run);
    return status;
}

/* What one option alone cannot tell is wrong. */
static int check_options(const struct cli *cli, struct run_options *options)
{
    int status;

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
    if (options->parts_max && (!options->wants_backward || options->ranks.ranks))
        return cli_fail_text(cli, FFA_INVALID,
                             "--parts-max is of the backward pass of one device: it needs "
                             "--backward, and no --ranks");
    if (options->backward_tile && (!options->wants_backward || options->ranks.ranks))
        return cli_fail_text(cli, FFA_INVALID,
                             "--backward-tile is of the backward pass of one device: it needs "
                             "--backward, and no --ranks");
    if (options->wants_dlse && !options->wants_backward)
        return cli_fail_text(cli, FFA_INVALID, "--dlse is given without --backward");
    if (!options->mask)
        return cli_fail_text(cli, FFA_INVALID, "--mask is missing, such as --mask causal:4096");
    status = run_files_check(cli, options);
    if (status == CLI_PARSE_GO)
        status = read_process(cli, options);
    return status == CLI_PARSE_GO ? read_ranks(cli, options) : status;
}

/* The options are in order: open what they name, and run. */
static int run_on_mask(const struct cli *cli, struct run_options *options)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct run_shape shape = { 0 };
    struct process_meeting *process = NULL;
    ffa_context *context = NULL;
    ffa_mask *mask = NULL;
    int status;

    if (ffa_mask_parse(&mask, options->mask, &err) != FFA_OK)
        return cli_fail(cli, &err);
    status = read_shape(cli, options, mask, &shape);
    if (status == CLI_PARSE_GO && options->calibration &&
        calibration_read(&options->ranks.calibration, options->calibration, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    if (status == CLI_PARSE_GO)
        status = open_backend(cli, options, &shape, &context);
    if (status == CLI_PARSE_GO && options->place.rank_count)
        status =
            run_process_open(cli, &options->place, options->rendezvous, &options->ranks, &process);
    else if (status == CLI_PARSE_GO && options->ranks.ranks &&
             strcmp(options->backend, "cuda") == 0)
        status = open_gpus(cli, &options->ranks);
    if (status == CLI_PARSE_GO)
        status = run_one(cli, options, context, mask, &shape);
    close_gpus(&options->ranks);
    ffa_close(context);
    ffa_mask_destroy(mask);
    return run_process_leave(cli, process, status);
}

int cmd_run(struct cli *cli)
{
    struct run_options options = { .heads = "8:8",
                                   .dtype = "bf16",
                                   .backend = "auto",
                                   .head_dim = 128,
                                   .device = -1,
                                   .timeout_s = NAN,
                                   .process = { .rank = -1 } };
    const struct cli_option rows[] = {
        { "mask", CLI_TEXT, &options.mask, "SPEC", "the mask: causal:4096, @mask.json, ...", 0, 0 },
        { "heads", CLI_TEXT, &options.heads, "HQ:HK", "query and kv heads; 8:8", 0, 0 },
        { "head-dim", CLI_INT, &options.head_dim, "D", "elements a head, a multiple of 8; 128", 8,
          256 },
        { "head-dim-v", CLI_INT, &options.head_dim_v, "D", "of v and the output; as --head-dim", 8,
          256 },
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
        { "rendezvous", CLI_TEXT, &options.process.folder, "DIR",
          "ranks are processes with a GPU each, which meet in this folder; FFA_RENDEZVOUS", 0, 0 },
        { "rank", CLI_INT, &options.process.rank, "R",
          "the rank of this process, of --ranks; else as torchrun, mpirun or srun say", 0, 255 },
        { "timeout", CLI_REAL, &options.timeout_s, "SECONDS",
          "that ranks on GPUs wait for each other, and a pass may take; 60", 0, 0 },
        { "ranks-per-node", CLI_INT, &options.ranks.per_node, "N",
          "ranks of a node, as the plan sees them, and where they relay; all", 1, 256 },
        { "stages", CLI_INT, &options.ranks.stages, "N",
          "stages that ranks receive rows in; -1: all first; chosen", -1, 12 },
        { "memory", CLI_TEXT, &options.memory, "SIZE",
          "memory of a rank's windows and workspace, at most: 4G; passes then have rounds", 0, 0 },
        { "moves", CLI_TEXT, &options.moves, "W",
          "what travels between ranks: keys, queries or auto; keys", 0, 0 },
        { "calibration", CLI_TEXT, &options.calibration, "FILE",
          "rates of the model, as bench_parallel --calibrate measured them", 0, 0 },
        { "transport", CLI_TEXT, &options.transport, "T",
          "what moves rows between GPUs: pull (copy engines), exchange (NCCL), relay (both); auto",
          0, 0 },
        { "wire-dtype", CLI_TEXT, &options.wire_dtype, "T",
          "what gradients that ranks sum for others travel as on GPUs: fp32, or as --dtype; fp32",
          0, 0 },
        { "keep-keys", CLI_FLAG, &options.ranks.keeps_keys, NULL,
          "ranks on GPUs keep received keys for the backward pass, which then brings none", 0, 0 },
        { "nccl", CLI_TEXT, &options.nccl, "FILE", "the NCCL to open; FFA_NCCL, or as it is found",
          0, 0 },
        { "delay", CLI_INT, &options.ranks.delay, "N",
          "times a transfer between ranks may be passed over by others; 0", 0, 1000 },
        { "timeline", CLI_TEXT, &options.timeline, "FILE",
          "write a picture of what each rank's last passes did, and when (GPUs)", 0, 0 },
        { "trace", CLI_TEXT, &options.trace, "FILE",
          "write the same in Chrome's trace event format", 0, 0 },
        { "backward", CLI_FLAG, &options.wants_backward, NULL, "run the backward pass, too", 0, 0 },
        { "deterministic", CLI_FLAG, &options.wants_determinism, NULL,
          "dq, too, has the same bits in every run", 0, 0 },
        { "parts-max", CLI_INT, &options.parts_max, "N",
          "divide the query heads of a kv head into N parts at most, backward: fewer take less "
          "memory",
          1, 4096 },
        { "backward-tile", CLI_TEXT, &options.backward_tile, "MxN",
          "query rows a block and keys a tile, backward; 64x256: pairs of blocks; chosen", 0, 0 },
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
