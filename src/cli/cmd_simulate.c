/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa simulate: how long a mask would take on many ranks, by a model.
 */
#include "cli/cmd_simulate.h"
#include "cli/amount.h"

#include "cli/calibration_file.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct simulate_options {
    const char *mask, *ranks, *heads, *dispatch, *memory, *svg, *calibration;
    int64_t ranks_per_node, head_dim, head_dim_v, element_bytes, chunk;
    /* NAN: not given. */
    double forward_tflops, backward_tflops, node_gb, network_gb, node_us, network_us;
    bool csv;
};

/* ---- reading the request ---- */

static int by_ranks(const void *left, const void *right)
{
    const struct sim_world *a = left, *b = right;

    return (a->ranks > b->ranks) - (a->ranks < b->ranks);
}

static int read_ranks(const struct cli *cli, const char *text, struct sim_study *study)
{
    const char *at = text;

    for (;;) {
        char *end;
        const long ranks = strtol(at, &end, 10);

        if (end == at || (*end && *end != ','))
            return cli_fail_text(cli, FFA_INVALID, "--ranks is '%s', not numbers such as 8,64,1024",
                                 text);
        if (ranks < 1 || ranks > 4096)
            return cli_fail_text(cli, FFA_INVALID, "--ranks has %ld, not in [1, 4096]", ranks);
        if (study->count == SIM_WORLDS_MAX)
            return cli_fail_text(cli, FFA_INVALID, "--ranks has more than %d numbers",
                                 SIM_WORLDS_MAX);
        study->worlds[study->count++].ranks = (int32_t)ranks;
        if (!*end)
            break;
        at = end + 1;
    }
    qsort(study->worlds, (size_t)study->count, sizeof *study->worlds, by_ranks);
    return CLI_PARSE_GO;
}

static int read_heads(const struct cli *cli, const char *text, ffa_parallel_model *model)
{
    int32_t q, kv;

    if (cli_heads(text, &q, &kv) != 2)
        return cli_fail_text(cli, FFA_INVALID, "--heads is '%s', not HQ:HK, such as 64:8", text);
    if (q < 1 || kv < 1 || q % kv)
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s': %d query heads are no multiple of %d kv heads", text,
                             q, kv);
    model->heads_q = q;
    model->heads_kv = kv;
    return CLI_PARSE_GO;
}

struct rate {
    const char *name;
    double value, unit, max;
    int64_t *to;
};

static int read_rates(const struct cli *cli, const struct simulate_options *o,
                      ffa_parallel_model *model)
{
    const struct rate rates[] = {
        { "forward-tflops", o->forward_tflops, 1e3, 1e6, &model->forward_gflops },
        { "backward-tflops", o->backward_tflops, 1e3, 1e6, &model->backward_gflops },
        { "node-gb", o->node_gb, 1e3, 1e6, &model->node_mbytes_s },
        { "network-gb", o->network_gb, 1e3, 1e6, &model->network_mbytes_s },
        { "node-us", o->node_us, 1e3, 1e6, &model->node_latency_ns },
        { "network-us", o->network_us, 1e3, 1e6, &model->network_latency_ns },
    };

    for (int i = 0; i < CLI_COUNT(rates); i++) {
        if (isnan(rates[i].value))
            continue;
        if (!(rates[i].value * rates[i].unit >= 1 && rates[i].value <= rates[i].max))
            return cli_fail_text(cli, FFA_INVALID, "--%s is %g, not in [0.001, %g]", rates[i].name,
                                 rates[i].value, rates[i].max);
        *rates[i].to = (int64_t)(rates[i].value * rates[i].unit);
    }
    return CLI_PARSE_GO;
}

static int read_request(const struct cli *cli, const struct simulate_options *o,
                        struct sim_study *study, ffa_sim_opts *opts)
{
    /* In the order of ffa_dispatch_algorithm, but for the last. */
    static const char *const algorithms[] = { "affinity", "min-heap", "sequential",
                                              "zigzag",   "best",     NULL };
    enum { BEST = 4 };
    const int algorithm = cli_word(o->dispatch, algorithms);
    int status;

    if (!o->mask)
        return cli_fail_text(cli, FFA_INVALID,
                             "--mask is missing, such as --mask varlen-causal:8192*64");
    if (algorithm < 0)
        return cli_fail_text(
            cli, FFA_INVALID,
            "--dispatch is '%s', not affinity, min-heap, sequential, zigzag or best", o->dispatch);
    if (o->head_dim % 8 != 0)
        return cli_fail_text(cli, FFA_INVALID, "--head-dim is %d, not a multiple of 8 in [8, 256]",
                             (int)o->head_dim);
    if (o->head_dim_v % 8 != 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--head-dim-v is %d, not a multiple of 8 in [8, 256]",
                             (int)o->head_dim_v);
    if (cli->json && o->csv)
        return cli_fail_text(cli, FFA_INVALID, "--json and --csv exclude each other");
    opts->algorithm = algorithm == BEST ? FFA_SIM_BEST : algorithm;
    opts->chunk_tokens = o->chunk;
    opts->model.head_dim = (int32_t)o->head_dim;
    opts->head_dim_v = (int32_t)o->head_dim_v;
    opts->model.element_bytes = (int32_t)o->element_bytes;
    if (o->memory && !amount_read_size(o->memory, &opts->memory_bytes))
        return cli_fail_text(cli, FFA_INVALID,
                             "--memory is '%s', not a size such as 500000, 512M or 4G", o->memory);
    status = read_ranks(cli, o->ranks, study);
    if (status == CLI_PARSE_GO)
        status = read_heads(cli, o->heads, &opts->model);
    if (status == CLI_PARSE_GO)
        status = read_rates(cli, o, &opts->model);
    return status;
}

/* ---- reporting ---- */

static json_t *model_object(const struct sim_study *study)
{
    const ffa_parallel_model *m = &study->worlds[0].opts.model;
    json_t *object = json_object();

    cli_set_text(object, "kind", "alpha-beta");
    (void)json_object_set_new(object, "is_measured", json_boolean(study->calibration.gpus > 0));
    cli_set_int(object, "ranks_per_node", study->ranks_per_node);
    cli_set_int(object, "heads_q", m->heads_q);
    cli_set_int(object, "heads_kv", m->heads_kv);
    cli_set_int(object, "head_dim", m->head_dim);
    cli_set_int(object, "head_dim_v", study->worlds[0].opts.head_dim_v);
    cli_set_int(object, "element_bytes", m->element_bytes);
    cli_set_int(object, "forward_gflops", m->forward_gflops);
    cli_set_int(object, "backward_gflops", m->backward_gflops);
    cli_set_int(object, "node_mbytes_s", m->node_mbytes_s);
    cli_set_int(object, "network_mbytes_s", m->network_mbytes_s);
    cli_set_int(object, "node_latency_ns", m->node_latency_ns);
    cli_set_int(object, "network_latency_ns", m->network_latency_ns);
    cli_set_int(object, "launch_ns", m->launch_ns);
    cli_set_int(object, "forward_begin_keys", study->worlds[0].opts.forward_begin_keys);
    cli_set_int(object, "backward_begin_rows", study->worlds[0].opts.backward_begin_rows);
    cli_set_int(object, "window_mbytes_s", study->worlds[0].opts.window_mbytes_s);
    cli_set_int(object, "sms", study->worlds[0].opts.sms);
    return object;
}

static json_t *pass_object(const ffa_sim_pass *pass)
{
    json_t *object = json_object();

    cli_set_int(object, "ns", pass->ns);
    cli_set_int(object, "compute_ns", pass->compute_ns);
    cli_set_real(object, "efficiency", pass->efficiency);
    return object;
}

static json_t *method_object(const ffa_sim_result *result)
{
    json_t *object = json_object();

    cli_set_text(object, "method", ffa_sim_method_text(result->method));
    (void)json_object_set_new(object, "is_possible", json_boolean(result->is_possible));
    if (!result->is_possible) {
        cli_set_text(object, "why_not", result->why_not);
        return object;
    }
    (void)json_object_set_new(object, "forward", pass_object(&result->forward));
    (void)json_object_set_new(object, "backward", pass_object(&result->backward));
    cli_set_int(object, "node_bytes", result->node_bytes);
    cli_set_int(object, "network_bytes", result->network_bytes);
    cli_set_int(object, "stages", result->stages);
    return object;
}

static json_t *as_object(const struct sim_study *study)
{
    json_t *object = json_object(), *worlds = json_array();

    cli_set_text(object, "mask", study->mask);
    cli_set_int(object, "tokens", study->tokens);
    cli_set_int(object, "area", study->area);
    (void)json_object_set_new(object, "model", model_object(study));
    for (int w = 0; w < study->count; w++) {
        json_t *world = json_object(), *methods = json_array();

        cli_set_int(world, "ranks", study->worlds[w].ranks);
        cli_set_int(world, "nodes", study->worlds[w].nodes);
        cli_set_int(world, "chunk_tokens", study->worlds[w].opts.chunk_tokens);
        for (int m = 0; m < FFA_SIM_METHODS; m++)
            (void)json_array_append_new(methods, method_object(&study->worlds[w].results[m]));
        (void)json_object_set_new(world, "methods", methods);
        (void)json_array_append_new(worlds, world);
    }
    (void)json_object_set_new(object, "worlds", worlds);
    return object;
}

static void print_csv(const struct sim_study *study)
{
    (void)printf("ranks,nodes,method,forward_us,forward_efficiency,backward_us,"
                 "backward_efficiency,node_mb,network_mb,stages\n");
    for (int w = 0; w < study->count; w++)
        for (int m = 0; m < FFA_SIM_METHODS; m++) {
            const struct sim_world *world = &study->worlds[w];
            const ffa_sim_result *r = &world->results[m];

            if (r->is_possible)
                (void)printf("%d,%d,%s,%.3f,%.4f,%.3f,%.4f,%.3f,%.3f,%d\n", world->ranks,
                             world->nodes, ffa_sim_method_text(m), (double)r->forward.ns / 1e3,
                             r->forward.efficiency, (double)r->backward.ns / 1e3,
                             r->backward.efficiency, (double)r->node_bytes / 1e6,
                             (double)r->network_bytes / 1e6, r->stages);
        }
}

static void print_result(const ffa_sim_result *r, int32_t ranks)
{
    if (!r->is_possible)
        (void)printf("%6d  %-10s  not possible: %s\n", ranks, ffa_sim_method_text(r->method),
                     r->why_not);
    else
        (void)printf("%6d  %-10s  %12.1f %5.1f %%  %12.1f %5.1f %%  %9.1f  %9.1f\n", ranks,
                     ffa_sim_method_text(r->method), (double)r->forward.ns / 1e3,
                     100 * r->forward.efficiency, (double)r->backward.ns / 1e3,
                     100 * r->backward.efficiency, (double)r->node_bytes / 1e6,
                     (double)r->network_bytes / 1e6);
}

static void print_study(const struct sim_study *study)
{
    const ffa_parallel_model *m = &study->worlds[0].opts.model;
    const int32_t head_dim_v = study->worlds[0].opts.head_dim_v;

    (void)printf("case     %" PRId64 " tokens, %" PRId64 " cells, heads %d:%d x %d", study->tokens,
                 study->area, m->heads_q, m->heads_kv, m->head_dim);
    if (head_dim_v != m->head_dim)
        (void)printf(":%d", head_dim_v);
    (void)printf(", %d bytes\n", m->element_bytes);
    (void)printf(
        "model    alpha-beta, %s: %g and %g TFLOP/s a rank; into a rank, in "
        "a node\n         of %d %g GB/s after %g us, over the network %g GB/s after %g us\n",
        study->calibration.gpus ? "calibrated" : "nothing measured",
        (double)m->forward_gflops / 1e3, (double)m->backward_gflops / 1e3, study->ranks_per_node,
        (double)m->node_mbytes_s / 1e3, (double)m->node_latency_ns / 1e3,
        (double)m->network_mbytes_s / 1e3, (double)m->network_latency_ns / 1e3);
    (void)printf(" ranks  method        forward us   eff.   backward us   eff.    node MB  "
                 "network MB\n");
    for (int w = 0; w < study->count; w++)
        for (int i = 0; i < FFA_SIM_METHODS; i++)
            print_result(&study->worlds[w].results[i], study->worlds[w].ranks);
}

static int report(const struct cli *cli, const struct simulate_options *options,
                  const struct sim_study *study)
{
    ffa_error err = { FFA_OK, 0, "" };

    if (options->svg && simulate_svg(study, options->svg, &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (options->svg)
        cli_note(cli, "wrote %s", options->svg);
    if (cli->json)
        return cli_print_json(cli, as_object(study), CLI_DONE);
    if (options->csv)
        print_csv(study);
    else
        print_study(study);
    return CLI_DONE;
}

/* Ranges are as long as chunks, so each number of ranks has its own model. */
static ffa_status simulate_world(struct sim_world *world, const struct sim_study *study,
                                 const ffa_mask *mask, const ffa_sim_opts *given, ffa_error *err)
{
    const ffa_topology topology = { world->ranks, study->ranks_per_node };
    ffa_parallel_plan_opts plan = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_sim_opts opts = *given;
    ffa_status rc;

    plan.model = opts.model;
    plan.head_dim_v = opts.head_dim_v;
    rc = calibration_apply(&study->calibration, &plan, study->tokens, world->ranks,
                           opts.chunk_tokens, err);
    opts.model = plan.model;
    opts.sms = plan.sms;
    opts.forward_begin_keys = plan.forward_begin_keys;
    opts.backward_begin_rows = plan.backward_begin_rows;
    opts.window_mbytes_s = plan.window_mbytes_s;
    world->nodes = (world->ranks + study->ranks_per_node - 1) / study->ranks_per_node;
    world->results[0] = (ffa_sim_result)FFA_SIM_RESULT_INIT;
    world->opts = (ffa_sim_opts)FFA_SIM_OPTS_INIT;
    return rc == FFA_OK ? ffa_simulate(world->results, FFA_SIM_METHODS, &world->opts, mask,
                                       &topology, &opts, err)
                        : rc;
}

static int simulate(const struct cli *cli, struct sim_study *study, const ffa_mask *mask,
                    const ffa_sim_opts *opts)
{
    ffa_error err = { FFA_OK, 0, "" };

    study->tokens = ffa_mask_seqlen_q(mask);
    study->area = ffa_mask_area(mask, -1);
    for (int w = 0; w < study->count; w++)
        if (simulate_world(&study->worlds[w], study, mask, opts, &err) != FFA_OK)
            return cli_fail(cli, &err);
    return CLI_PARSE_GO;
}

int cmd_simulate(struct cli *cli)
{
    struct simulate_options options = { .ranks = "8,64,1024",
                                        .heads = "8:1",
                                        .dispatch = "best",
                                        .ranks_per_node = 8,
                                        .head_dim = 128,
                                        .element_bytes = 2,
                                        .forward_tflops = NAN,
                                        .backward_tflops = NAN,
                                        .node_gb = NAN,
                                        .network_gb = NAN,
                                        .node_us = NAN,
                                        .network_us = NAN };
    ffa_sim_opts opts = FFA_SIM_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    struct sim_study study = { 0 };
    ffa_mask *mask = NULL;
    const struct cli_option rows[] = {
        { "mask", CLI_TEXT, &options.mask, "SPEC", "the mask: causal:65536, @mask.json, ...", 0,
          0 },
        { "ranks", CLI_TEXT, &options.ranks, "N,...", "numbers of ranks, 1 to 4096; 8,64,1024", 0,
          0 },
        { "ranks-per-node", CLI_INT, &options.ranks_per_node, "N", "ranks of a node; 8", 1, 4096 },
        { "heads", CLI_TEXT, &options.heads, "HQ:HK", "query and kv heads; 8:1", 0, 0 },
        { "head-dim", CLI_INT, &options.head_dim, "D", "elements a head, a multiple of 8; 128", 8,
          256 },
        { "head-dim-v", CLI_INT, &options.head_dim_v, "D", "of v and the output; as --head-dim", 8,
          256 },
        { "element-bytes", CLI_INT, &options.element_bytes, "N", "of q, k and v; 2", 1, 8 },
        { "dispatch", CLI_TEXT, &options.dispatch, "A",
          "affinity, min-heap, sequential, zigzag, or best: affinity, min-heap or zigzag, by the "
          "model; best",
          0, 0 },
        { "chunk", CLI_INT, &options.chunk, "N", "tokens of a chunk; chosen", 1, INT32_MAX },
        { "memory", CLI_TEXT, &options.memory, "SIZE",
          "memory of a rank's windows and workspace, at most: 4G; the plan then has rounds", 0, 0 },
        { "forward-tflops", CLI_REAL, &options.forward_tflops, "X", "of a rank; 600", 0, 0 },
        { "backward-tflops", CLI_REAL, &options.backward_tflops, "X", "of a rank; 500", 0, 0 },
        { "node-gb", CLI_REAL, &options.node_gb, "X", "GB/s into a rank from its node; 250", 0, 0 },
        { "network-gb", CLI_REAL, &options.network_gb, "X", "GB/s from other nodes; 45", 0, 0 },
        { "node-us", CLI_REAL, &options.node_us, "X", "latency in a node; 13", 0, 0 },
        { "network-us", CLI_REAL, &options.network_us, "X", "latency between nodes; 30", 0, 0 },
        { "calibration", CLI_TEXT, &options.calibration, "FILE",
          "rates of the model, as bench_parallel --calibrate measured them", 0, 0 },
        { "csv", CLI_FLAG, &options.csv, NULL, "print comma-separated values", 0, 0 },
        { "svg", CLI_TEXT, &options.svg, "FILE", "also draw efficiency over ranks", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO)
        status = read_request(cli, &options, &study, &opts);
    if (status != CLI_PARSE_GO)
        return status;
    study.mask = options.mask;
    study.ranks_per_node = (int32_t)options.ranks_per_node;
    if ((options.calibration &&
         calibration_read(&study.calibration, options.calibration, &err) != FFA_OK) ||
        ffa_mask_parse(&mask, options.mask, &err) != FFA_OK) {
        calibration_finish(&study.calibration);
        return cli_fail(cli, &err);
    }
    status = simulate(cli, &study, mask, &opts);
    if (status == CLI_PARSE_GO)
        status = report(cli, &options, &study);
    ffa_mask_destroy(mask);
    calibration_finish(&study.calibration);
    return status;
}
