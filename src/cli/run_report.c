/* SPDX-License-Identifier: Apache-2.0
 *
 * The report of `ffa run`: an object with --json, lines otherwise. A check that failed is also said
 * on stderr.
 */
#include "cli/run_report.h"

#include <inttypes.h>
#include <stdio.h>

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

static const char *transport_name(int32_t transport)
{
    return transport == FFA_TRANSPORT_PULL       ? "pull"
           : transport == FFA_TRANSPORT_EXCHANGE ? "exchange"
           : transport == FFA_TRANSPORT_RELAY    ? "relay"
                                                 : "loopback";
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
    cli_set_int(object, "rounds", facts.rounds);
    cli_set_text(object, "transport", transport_name(facts.transport));
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
        cli_set_int(object, "backward_whole_heads", plan.backward_whole_heads);
        cli_set_int(object, "backward_waves", plan.backward_waves);
        cli_set_int(object, "backward_l2_head_groups", plan.backward_l2_head_groups);
    }
    cli_set_text(object, "cost_table", plan.cost_table);
    cli_set_text(object, "cost_digest", plan.cost_digest);
    cli_set_text(object, "cost_source", ffa_cost_source_text((ffa_cost_source)plan.cost_source));
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
    if (facts.rounds > 1)
        (void)printf("         %d rounds a pass, at most\n", facts.rounds);
    if (facts.gpus)
        (void)printf("         windows %.1f MiB and workspace %.1f MiB of a rank, at most\n",
                     (double)facts.window_bytes / 1048576, (double)facts.workspace_bytes / 1048576);
}

static void print_gpus(struct run_ranks_facts facts, const struct run_options *options)
{
    (void)printf("backend  cuda: %d GPU%s", facts.gpus, facts.gpus == 1 ? "" : "s");
    if (options->place.rank_count)
        (void)printf(", %d processes", options->place.rank_count);
    if (facts.transport == FFA_TRANSPORT_EXCHANGE)
        (void)printf(", over NCCL");
    else if (facts.transport == FFA_TRANSPORT_RELAY)
        (void)printf(", over NCCL between nodes");
    (void)printf("\n");
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
        print_gpus(run_ranks_facts_get(run->ranks), options);
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

int run_report(const struct cli *cli, const struct run_case *run, const struct run_options *options,
               const struct run_result *result)
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
