/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench_parallel prints: a line a pass and plan, and the difference from the whole's results.
 * Invariant: only the first rank is here, while the others wait, so it reads what is theirs.
 */
#include "parallel_case.h"

#include <math.h>
#include <stdlib.h>

enum { CHECKED_ROWS = 32 /* of each tensor and rank */ };
static const double limit_out = 2e-2;  /* of the difference of an element of out, */
static const double limit_share = 0.1; /* and, of each tensor, as a share of its largest one */

static const char *const tensor_names[] = { "q", "k", "v", "dout", "out", "dq", "dk", "dv", "lse" };

static double most(double a, double b)
{
    return a > b ? a : b;
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
    double dispatch_ms, plan_ms, pass_ms, made_ms, host_us, model_ms, share;
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
        f.share = most(p->share[is_backward], f.share);
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

static const char *transport_name(void)
{
    return options.transport == FFA_TRANSPORT_EXCHANGE ? "exchange"
           : options.transport == FFA_TRANSPORT_RELAY  ? "relay"
                                                       : "pull";
}

void print_head(void)
{
    printf("%d ranks on %d x %s, %s; times of a call, medians of %d rounds and their spread\n"
           "%-19s %-8s %-10s %9s %5s %9s %5s %9s %9s  %10s  %7s  %7s %8s  %6s %8s %7s %9s  %s\n",
           options.ranks, bench.gpus, bench.device, transport_name(), options.rounds, "case",
           "pass", "plan", "T1 ms", "", "T ms", "", "model ms", "exposed", "efficiency", "TFLOP/s",
           "host us", "made ms", "stages", "rows", "win MB", "work MB", "difference");
    fflush(stdout);
}

void report_plan(int v, bool is_backward, double whole_ms)
{
    const struct facts f = facts_of(v, is_backward);
    const double ms = median(bench.plans_ms[v], options.rounds);
    const double flops = (is_backward ? 10.0 : 4.0) * (double)ffa_mask_area(bench.mask, 0) *
                         bench.c->heads_q * HEAD_DIM;
    const double efficiency = whole_ms / (bench.gpus * ms);
    const double tflops = flops / (bench.gpus * ms * 1e9);
    const double difference = check_pass(v, is_backward);
    /* What a GPU does not compute in: transfers that nothing hides, launches, tails. Of ranks that
     * share GPUs, all that a GPU has computes in turns. */
    const double exposed_ms = ms - whole_ms * f.share * options.ranks / bench.gpus;
    const char *pass = is_backward ? "backward" : "forward";

    printf("%-19s %-8s %-10s %9.3f %4.1f%% %9.3f %4.1f%% %9.3f %9.3f  %10.3f  %7.1f  %7.1f %8.2f  "
           "%6d %8lld "
           "%7.1f %9.1f  %.2g\n",
           bench.name, pass, variants[v].name, whole_ms, 100 * spread(bench.whole_ms), ms,
           100 * spread(bench.plans_ms[v]), f.model_ms, exposed_ms, efficiency, tflops, f.host_us,
           f.made_ms, f.stages, (long long)f.rows, (double)f.window_bytes / 1e6,
           (double)f.workspace_bytes / 1e6, difference);
    fflush(stdout);
    if (!bench.json)
        return;
    fprintf(bench.json,
            "{\"device\":\"%s\",\"gpus\":%d,\"ranks\":%d,\"transport\":\"%s\",\"case\":\"%s\","
            "\"tokens\":%lld,"
            "\"pass\":\"%s\",\"plan\":\"%s\",\"t1_ms\":%.5f,\"t1_spread\":%.4f,\"t_ms\":%.5f,"
            "\"t_spread\":%.4f,\"model_ms\":%.5f,\"exposed_ms\":%.5f,\"efficiency\":%.4f,"
            "\"tflops\":%.1f,\"host_us\":%.2f,"
            "\"dispatch_ms\":%.3f,\"plan_ms\":%.3f,\"pass_ms\":%.3f,\"stages\":%d,"
            "\"received_rows\":%lld,\"window_bytes\":%lld,\"workspace_bytes\":%lld,"
            "\"difference\":%g,\"rounds\":%d,\"calls\":%d}\n",
            bench.device, bench.gpus, options.ranks, transport_name(), bench.name,
            (long long)bench.tokens, pass, variants[v].name, whole_ms, spread(bench.whole_ms), ms,
            spread(bench.plans_ms[v]), f.model_ms, exposed_ms, efficiency, tflops, f.host_us,
            f.dispatch_ms, f.plan_ms, f.pass_ms, f.stages, (long long)f.rows,
            (long long)f.window_bytes, (long long)f.workspace_bytes,
            isfinite(difference) ? difference : -1.0, options.rounds, bench.calls);
    fflush(bench.json);
}
