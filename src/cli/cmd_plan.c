/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa plan: who computes and receives what for a mask on so many ranks, and the stages of one rank,
 * as text, JSON or a picture. The slowest rank is shown unless one is named: it decides when a pass
 * is done. All times are modelled.
 */
#include "cli/amount.h"
#include "cli/calibration_file.h"
#include "cli/cli.h"
#include "cli/file.h"
#include "cli/fits.h"
#include "cli/plan_svg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 4096, HEADS_MAX = 1024 };

/* In the order of ffa_dispatch_algorithm, but for the last. */
static const char *const algorithms[] = { "affinity", "min-heap", "sequential", "zigzag",
                                          "exact",    "best",     NULL };
static const char *const key_modes[] = { "with-queries", "replicated", "dispatched", NULL };
static const char *const move_modes[] = { "keys", "queries", "auto", NULL };

struct plan_options {
    const char *mask, *svg, *heads, *algorithm, *keys, *moves, *memory, *calibration;
    int64_t ranks, width, rank, chunk, stages, buffers, head_dim, head_dim_v;
};

/* What is shown: the mask's dispatch, and the plan of one rank. */
struct shown {
    const struct plan_options *options;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_dispatch_report report;
    ffa_parallel_plan_info info;
};

/* ---- options ---- */

static int read_word(const struct cli *cli, const char *name, const char *text,
                     const char *const *words, int32_t *out)
{
    char all[96] = "";
    const int index = text ? cli_word(text, words) : 0;

    if (index >= 0) {
        *out = index;
        return CLI_PARSE_GO;
    }
    for (int i = 0; words[i]; i++)
        (void)snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
                       words[i]);
    return cli_fail_text(cli, FFA_INVALID, "--%s is '%s', not one of %s", name, text, all);
}

/* That a mask with a list a kv head has as many as there are. */
static int check_lists(const struct cli *cli, const ffa_mask *mask, int32_t heads_kv)
{
    const int32_t lists = ffa_mask_head_count(mask);

    if (lists == 1 || lists == heads_kv)
        return CLI_PARSE_GO;
    return cli_fail_text(cli, FFA_INVALID, "heads_kv is %d, the mask has %d lists", heads_kv,
                         lists);
}

static int read_heads(const struct cli *cli, const char *text, ffa_parallel_model *model)
{
    int32_t q, kv;

    if (!text)
        return CLI_PARSE_GO;
    if (!cli_heads(text, &q, &kv) || q < 1 || q > HEADS_MAX || kv < 1 || kv > q || q % kv != 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK in [1, %d], such as 64:8 (query heads, a "
                             "multiple of the kv heads)",
                             text, HEADS_MAX);
    model->heads_q = q;
    model->heads_kv = kv;
    return CLI_PARSE_GO;
}

static bool wants_best(const struct plan_options *options)
{
    return !options->algorithm || strcmp(options->algorithm, "best") == 0;
}

static int read_options(const struct cli *cli, const struct plan_options *options,
                        const ffa_mask *mask, ffa_dispatch_opts *dispatch,
                        ffa_parallel_plan_opts *plan)
{
    int status = CLI_PARSE_GO;

    if (options->head_dim % 8 != 0)
        return cli_fail_text(cli, FFA_INVALID, "--head-dim is %d, not a multiple of 8 in [8, 256]",
                             (int)options->head_dim);
    if (options->head_dim_v % 8 != 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--head-dim-v is %d, not a multiple of 8 in [8, 256]",
                             (int)options->head_dim_v);
    status = read_word(cli, "algorithm", options->algorithm, algorithms, &dispatch->algorithm);
    if (status == CLI_PARSE_GO)
        status = read_word(cli, "keys", options->keys, key_modes, &dispatch->keys);
    if (status == CLI_PARSE_GO)
        status = read_word(cli, "moves", options->moves, move_modes, &plan->moves);
    if (status == CLI_PARSE_GO)
        status = read_heads(cli, options->heads, &plan->model);
    if (status == CLI_PARSE_GO)
        status = check_lists(cli, mask, plan->model.heads_kv ? plan->model.heads_kv : 1);
    if (!options->keys && ffa_mask_seqlen_q(mask) != ffa_mask_seqlen_k(mask))
        dispatch->keys = FFA_KEYS_DISPATCHED;
    dispatch->chunk_tokens = options->chunk;
    plan->model.head_dim = (int32_t)options->head_dim;
    plan->head_dim_v = (int32_t)options->head_dim_v;
    plan->forward_stages = plan->backward_stages = (int32_t)options->stages;
    plan->buffers = (int32_t)options->buffers;
    if (status == CLI_PARSE_GO && options->memory &&
        !amount_read_size(options->memory, &plan->memory_bytes))
        return cli_fail_text(cli, FFA_INVALID,
                             "--memory is '%s', not a size such as 500000, 512M or 4G",
                             options->memory);
    return status;
}

static int read_calibration(const struct cli *cli, const struct plan_options *options,
                            const ffa_mask *mask, ffa_parallel_plan_opts *plan)
{
    struct calibration calibration = { .links = NULL };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc = FFA_OK;

    if (options->calibration)
        rc = calibration_read(&calibration, options->calibration, &err);
    if (rc == FFA_OK)
        rc = calibration_apply(&calibration, plan, ffa_mask_seqlen_k(mask), options->ranks,
                               options->chunk, &err);
    calibration_finish(&calibration);
    return rc == FFA_OK ? CLI_PARSE_GO : cli_fail(cli, &err);
}

/* ---- the work ---- */

/* What a plan takes depends on who attends whom, but something of every chunk is kept. Chunks of
 * the plan's own choice are few; more than CHUNKS_MAX are made longer. */
static ffa_status chunks_fit(const struct shown *s, ffa_error *err)
{
    enum { CHUNK_BYTES = 400, CHUNKS_MAX = 1 << 20 }; /* as causal attention on 8 ranks takes */
    const int64_t tokens = ffa_mask_seqlen_q(s->mask), chunk = s->options->chunk;
    const int64_t chunks = chunk > 0 ? (tokens + chunk - 1) / chunk : 0;

    return cli_fits((chunks < CHUNKS_MAX ? chunks : CHUNKS_MAX) * CHUNK_BYTES,
                    "the chunks of the plan", err);
}

static ffa_status make(struct shown *s, const ffa_dispatch_opts *dispatch_opts,
                       ffa_parallel_plan_opts *plan_opts, ffa_error *err)
{
    const ffa_topology topology = { (int32_t)s->options->ranks, (int32_t)s->options->width };
    const ffa_dispatch_mask one = { s->mask, 1 };
    const bool is_chosen = s->options->rank >= 0;
    ffa_status rc;

    plan_opts->flags = FFA_PARALLEL_OUTLINE | (is_chosen ? 0 : FFA_PARALLEL_SLOWEST_RANK);
    rc = wants_best(s->options)
             ? ffa_dispatch_create_best(&s->dispatch, &one, 1, &topology, dispatch_opts, plan_opts,
                                        err)
             : ffa_dispatch_create(&s->dispatch, &one, 1, &topology, dispatch_opts, err);
    if (rc == FFA_OK)
        rc = ffa_dispatch_report_get(s->dispatch, &s->report, NULL, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_plan_create(&s->plan, s->dispatch, s->mask,
                                      is_chosen ? (int32_t)s->options->rank : 0, plan_opts, err);
    if (rc == FFA_OK)
        rc = ffa_parallel_plan_info_get(s->plan, &s->info, err);
    return rc;
}

/* ---- what is printed ---- */

/* Compute of all ranks over the time of as many as slow as the slowest, in 1/1000. */
static int64_t efficiency(int64_t work, int64_t slowest, int64_t ranks)
{
    return slowest > 0 ? work / ranks * 1000 / slowest : 1000;
}

static int64_t received_rows(const struct shown *s)
{
    int64_t sum = 0;

    for (int32_t r = 0; r < s->info.rank_count; r++) {
        ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;

        if (ffa_parallel_plan_rank_get(s->plan, r, &rank, NULL) == FFA_OK)
            sum += rank.received_rows;
    }
    return sum;
}

static json_t *pass_object(const struct shown *s, int32_t is_backward)
{
    const ffa_parallel_plan_info *info = &s->info;
    const int32_t stages = is_backward ? info->backward_stages : info->forward_stages;
    json_t *object = json_object(), *list = json_array();

    cli_set_int(object, "ns", is_backward ? info->backward_ns : info->forward_ns);
    cli_set_int(object, "slowest_ns",
                is_backward ? info->backward_slowest_ns : info->forward_slowest_ns);
    cli_set_int(object, "even_stages_ns",
                is_backward ? info->backward_uniform_ns : info->forward_uniform_ns);
    cli_set_int(object, "work_ns", is_backward ? info->backward_work_ns : info->forward_work_ns);
    cli_set_int(object, "efficiency_permille",
                efficiency(is_backward ? info->backward_work_ns : info->forward_work_ns,
                           is_backward ? info->backward_slowest_ns : info->forward_slowest_ns,
                           info->rank_count));
    cli_set_int(object, "bytes", is_backward ? info->backward_bytes : info->forward_bytes);
    for (int32_t i = 0; i <= stages + is_backward; i++) {
        ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
        json_t *row = json_object();

        if (ffa_parallel_plan_stage_get(s->plan, is_backward, i, &stage, NULL) != FFA_OK)
            continue;
        cli_set_text(row, "what", i > 0 && i <= stages ? "received" : "own");
        cli_set_int(row, "rows", stage.rows);
        cli_set_int(row, "blocks", stage.blocks);
        cli_set_int(row, "fetch_begin_ns", stage.fetch_begin_ns);
        cli_set_int(row, "fetch_end_ns", stage.fetch_end_ns);
        cli_set_int(row, "compute_begin_ns", stage.compute_begin_ns);
        cli_set_int(row, "compute_end_ns", stage.compute_end_ns);
        cli_set_int(row, "reduce_begin_ns", stage.reduce_begin_ns);
        cli_set_int(row, "reduce_end_ns", stage.reduce_end_ns);
        (void)json_array_append_new(list, row);
    }
    (void)json_object_set_new(object, "stages", list);
    return object;
}

static json_t *rank_object(const struct shown *s, int32_t r)
{
    ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;
    json_t *object = json_object();

    if (ffa_parallel_plan_rank_get(s->plan, r, &rank, NULL) != FFA_OK)
        return object;
    cli_set_int(object, "rank", r);
    cli_set_int(object, "tokens_q", rank.tokens_q);
    cli_set_int(object, "tokens_k", rank.tokens_k);
    cli_set_int(object, "received_rows", rank.received_rows);
    cli_set_int(object, "forward_stages", rank.forward_stages);
    cli_set_int(object, "backward_stages", rank.backward_stages);
    cli_set_int(object, "forward_ns", rank.forward_ns);
    cli_set_int(object, "backward_ns", rank.backward_ns);
    cli_set_int(object, "forward_work_ns", rank.forward_work_ns);
    cli_set_int(object, "backward_work_ns", rank.backward_work_ns);
    return object;
}

/* Of the rank's passes over GPUs. */
static json_t *memory_object(const ffa_parallel_plan_info *info)
{
    json_t *object = json_object();

    cli_set_int(object, "rounds", info->rounds);
    cli_set_int(object, "key_bytes", info->key_bytes);
    cli_set_int(object, "sum_bytes", info->sum_bytes);
    cli_set_int(object, "received_sum_bytes", info->received_sum_bytes);
    cli_set_int(object, "workspace_bytes", info->workspace_bytes);
    cli_set_int(object, "bytes", info->memory_bytes);
    cli_set_int(object, "most_bytes", info->memory_most_bytes);
    return object;
}

static int print_object(const struct cli *cli, const struct shown *s)
{
    json_t *object = json_object(), *ranks = json_array();

    cli_set_text(object, "mask", s->options->mask);
    cli_set_int(object, "seqlen_q", ffa_mask_seqlen_q(s->mask));
    cli_set_int(object, "seqlen_k", ffa_mask_seqlen_k(s->mask));
    cli_set_int(object, "area", ffa_mask_area(s->mask, -1));
    cli_set_int(object, "rank_count", s->info.rank_count);
    cli_set_text(object, "algorithm", algorithms[s->report.algorithm]);
    cli_set_int(object, "chunks", s->report.chunk_count);
    cli_set_text(object, "moves", move_modes[s->info.moves]);
    cli_set_int(object, "received_rows", received_rows(s));
    if (s->info.moves == FFA_PARALLEL_MOVE_KEYS)
        cli_set_int(object, "received_network", s->report.total.received_network);
    cli_set_real(object, "load_imbalance", s->report.load_imbalance);
    cli_set_text(object, "digest", ffa_parallel_plan_digest(s->plan));
    for (int32_t r = 0; r < s->info.rank_count; r++)
        (void)json_array_append_new(ranks, rank_object(s, r));
    (void)json_object_set_new(object, "ranks", ranks);
    cli_set_int(object, "rank", s->info.rank);
    cli_set_int(object, "rank_area", s->info.area);
    (void)json_object_set_new(object, "forward", pass_object(s, 0));
    (void)json_object_set_new(object, "backward", pass_object(s, 1));
    if (s->options->memory)
        (void)json_object_set_new(object, "memory", memory_object(&s->info));
    if (s->options->svg)
        cli_set_text(object, "svg", s->options->svg);
    return cli_print_json(cli, object, CLI_DONE);
}

/* Microseconds with a tenth, from nanoseconds. */
static void print_us(int64_t ns)
{
    (void)printf(" %9" PRId64 ".%" PRId64, ns / 1000, ns % 1000 / 100);
}

static void print_ranks(const struct shown *s)
{
    (void)printf("\n rank    tokens  received  stages  forward us   backward us\n");
    for (int32_t r = 0; r < s->info.rank_count; r++) {
        ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;

        if (ffa_parallel_plan_rank_get(s->plan, r, &rank, NULL) != FFA_OK)
            continue;
        (void)printf("%5d%c %8" PRId64 "  %8" PRId64 "  %2d, %2d", r, r == s->info.rank ? '*' : ' ',
                     rank.tokens_q, rank.received_rows, rank.forward_stages, rank.backward_stages);
        print_us(rank.forward_ns);
        (void)printf("  ");
        print_us(rank.backward_ns);
        (void)printf("\n");
    }
}

static void print_pass(const struct shown *s, int32_t is_backward)
{
    const ffa_parallel_plan_info *info = &s->info;
    const int32_t stages = is_backward ? info->backward_stages : info->forward_stages;
    const int64_t work = is_backward ? info->backward_work_ns : info->forward_work_ns;
    const int64_t slowest = is_backward ? info->backward_slowest_ns : info->forward_slowest_ns;
    const bool has_reduce = is_backward || info->moves == FFA_PARALLEL_MOVE_QUERIES;
    const int64_t share = efficiency(work, slowest, info->rank_count);

    (void)printf("\n%s of rank %d, efficiency of all ranks %" PRId64 ".%" PRId64 " %%\n"
                 "            rows    blocks    fetch us             compute us%s\n",
                 is_backward ? "backward" : "forward", s->info.rank, share / 10, share % 10,
                 has_reduce ? "           reduce us" : "");
    for (int32_t i = 0; i <= stages + is_backward; i++) {
        ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;

        if (ffa_parallel_plan_stage_get(s->plan, is_backward, i, &stage, NULL) != FFA_OK)
            continue;
        if (i > 0 && i <= stages)
            (void)printf("stage %-2d %7" PRId64 "  %8" PRId64, i, stage.rows, stage.blocks);
        else
            (void)printf("own              %9" PRId64, stage.blocks);
        (void)printf("  %8" PRId64 " -%8" PRId64 "   %8" PRId64 " -%8" PRId64,
                     stage.fetch_begin_ns / 1000, stage.fetch_end_ns / 1000,
                     stage.compute_begin_ns / 1000, stage.compute_end_ns / 1000);
        if (has_reduce)
            (void)printf("   %8" PRId64 " -%8" PRId64, stage.reduce_begin_ns / 1000,
                         stage.reduce_end_ns / 1000);
        (void)printf("\n");
    }
}

static int print_text(const struct shown *s)
{
    const int64_t tenths = (int64_t)(s->report.load_imbalance * 1000 + 0.5);

    cli_line(stdout, "mask        %s", s->options->mask);
    (void)printf("tokens      %" PRId64 " x %" PRId64 ", %" PRId64 " cells attended\n",
                 ffa_mask_seqlen_q(s->mask), ffa_mask_seqlen_k(s->mask),
                 ffa_mask_area(s->mask, -1));
    (void)printf("dispatch    %s, %" PRId64 " chunks on %d rank%s, loads within %" PRId64
                 ".%" PRId64 " %% of the mean\n",
                 algorithms[s->report.algorithm], s->report.chunk_count, s->info.rank_count,
                 s->info.rank_count == 1 ? "" : "s", tenths / 10, tenths % 10);
    (void)printf("received    %" PRId64 " rows of %s", received_rows(s), move_modes[s->info.moves]);
    if (s->info.moves == FFA_PARALLEL_MOVE_KEYS && s->report.total.received_network > 0)
        (void)printf(", %" PRId64 " of them between nodes", s->report.total.received_network);
    (void)printf("\n");
    (void)printf("digest      %s\n", ffa_parallel_plan_digest(s->plan));
    if (s->options->memory)
        (void)printf(
            "memory      %.1f MiB of windows, %.1f MiB of workspace; a rank with most %.1f "
            "MiB, %d round%s\n",
            (double)(s->info.key_bytes + s->info.sum_bytes) / 1048576,
            (double)s->info.workspace_bytes / 1048576, (double)s->info.memory_most_bytes / 1048576,
            s->info.rounds, s->info.rounds == 1 ? "" : "s");
    (void)printf("times are modelled\n");
    print_ranks(s);
    print_pass(s, 0);
    print_pass(s, 1);
    return CLI_DONE;
}

static ffa_status write_svg(const struct shown *s, ffa_error *err)
{
    const int64_t width = s->options->width, ranks = s->info.rank_count;
    const struct plan_picture picture = { .name = s->options->mask,
                                          .mask = s->mask,
                                          .dispatch = s->dispatch,
                                          .plan = s->plan,
                                          .ranks_per_node =
                                              (int32_t)(width > 0 && width < ranks ? width : ranks),
                                          .is_slowest = s->options->rank < 0 && ranks > 1 };
    char *svg;
    ffa_status rc = plan_svg(&svg, &picture, err);

    if (rc == FFA_OK)
        rc = file_write(s->options->svg, svg, strlen(svg), err);
    free(svg);
    return rc;
}

static int show(const struct cli *cli, const struct shown *s)
{
    ffa_error err = { FFA_OK, 0, "" };
    int status = CLI_DONE;

    if (s->options->svg && write_svg(s, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    else if (cli->json)
        status = print_object(cli, s);
    else if (s->options->svg)
        cli_note(cli, "wrote %s", s->options->svg);
    else
        status = print_text(s);
    return status;
}

int cmd_plan(struct cli *cli)
{
    struct plan_options o = { .rank = -1 };
    struct shown s = { .options = &o,
                       .report = FFA_DISPATCH_REPORT_INIT,
                       .info = FFA_PARALLEL_PLAN_INFO_INIT };
    ffa_dispatch_opts dispatch_opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    const struct cli_option options[] = {
        { "mask", CLI_TEXT, &o.mask, "SPEC", "the mask", 0, 0 },
        { "ranks", CLI_INT, &o.ranks, "N", "how many ranks", 1, RANKS_MAX },
        { "ranks-per-node", CLI_INT, &o.width, "N", "ranks that share a node; all unless given", 1,
          RANKS_MAX },
        { "rank", CLI_INT, &o.rank, "R",
          "the rank whose stages are shown; the slowest unless given", 0, RANKS_MAX - 1 },
        { "svg", CLI_TEXT, &o.svg, "FILE", "write a picture to FILE instead", 0, 0 },
        { "heads", CLI_TEXT, &o.heads, "HQ:HK", "query and kv heads of the model; 8:1", 0, 0 },
        { "head-dim", CLI_INT, &o.head_dim, "D", "their size, a multiple of 8; 128", 8, 256 },
        { "head-dim-v", CLI_INT, &o.head_dim_v, "D", "of v and the output; as --head-dim", 8, 256 },
        { "algorithm", CLI_TEXT, &o.algorithm, "NAME",
          "affinity, min-heap, sequential, zigzag, exact, or best: affinity, min-heap or zigzag, "
          "by the model; best",
          0, 0 },
        { "chunk", CLI_INT, &o.chunk, "TOKENS", "tokens of a chunk, at most", 1, INT32_MAX },
        { "stages", CLI_INT, &o.stages, "N", "stages that receive; as many as is best unless given",
          1, 12 },
        { "buffers", CLI_INT, &o.buffers, "N", "receive buffers, 2 or 3; 2", 2, 3 },
        { "memory", CLI_TEXT, &o.memory, "SIZE",
          "memory of a rank's windows and workspace, at most: 4G; passes then have rounds", 0, 0 },
        { "keys", CLI_TEXT, &o.keys, "MODE", "with-queries, replicated or dispatched", 0, 0 },
        { "moves", CLI_TEXT, &o.moves, "MODE", "what travels: keys, queries or auto", 0, 0 },
        { "calibration", CLI_TEXT, &o.calibration, "FILE",
          "rates of the model, as bench_parallel --calibrate measured them", 0, 0 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 0, 0);

    if (status == CLI_PARSE_GO && (!o.mask || !o.ranks))
        status =
            cli_fail_text(cli, FFA_INVALID, "--%s is missing: say %s", o.mask ? "ranks" : "mask",
                          o.mask ? "how many ranks" : "which mask, such as causal:65536");
    if (status == CLI_PARSE_GO)
        cli_bound_memory();
    if (status == CLI_PARSE_GO && ffa_mask_parse(&s.mask, o.mask, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    if (status == CLI_PARSE_GO)
        status = read_options(cli, &o, s.mask, &dispatch_opts, &plan_opts);
    if (status == CLI_PARSE_GO)
        status = read_calibration(cli, &o, s.mask, &plan_opts);
    if (status == CLI_PARSE_GO)
        status =
            chunks_fit(&s, &err) == FFA_OK && make(&s, &dispatch_opts, &plan_opts, &err) == FFA_OK
                ? show(cli, &s)
                : cli_fail(cli, &err);
    ffa_parallel_plan_destroy(s.plan);
    ffa_dispatch_destroy(s.dispatch);
    ffa_mask_destroy(s.mask);
    return status;
}
