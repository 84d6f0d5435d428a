/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench_parallel prints: a line a pass and plan, and the difference from the whole's results.
 * All ranks bring what they know and some rows of what they computed; the first one compares and
 * prints.
 */
#include "parallel_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of each tensor: rows that are compared, about, and of one rank, at least and at most. */
enum { CHECKED_ROWS = 128, CHECKED_LEAST = 4, CHECKED_MOST = 32 };
static const double limit_out = 2e-2;  /* of the difference of an element of out, */
static const double limit_share = 0.1; /* and, of each tensor, as a share of its largest one */

static const char *const tensor_names[] = { "q", "k", "v", "dout", "out", "dq", "dk", "dv", "lse" };

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- checking ---- */

struct difference {
    double largest_value, largest;
};

static int64_t checked_rows(void)
{
    const int64_t rows = CHECKED_ROWS / options.ranks;

    return rows < CHECKED_LEAST ? CHECKED_LEAST : rows > CHECKED_MOST ? CHECKED_MOST : rows;
}

/* Of the nth of the rows that a rank brings. */
static size_t sample_bytes(enum tensor t)
{
    return sizeof(int64_t) + (size_t)row_bytes(t);
}

/* Some rows of a rank, each behind its token; -1: the rank has no more. */
static void take_sample(const struct rank *r, int v, enum tensor t, unsigned char *sample)
{
    const struct rank_plan *p = &r->plans[v];
    const ffa_rows rows = rows_of(p, r, t);
    const int64_t count = ffa_dispatch_query_rows(p->dispatch, r->rank), wanted = checked_rows();
    int64_t *ids = memory((size_t)count * sizeof *ids);
    ffa_error err;

    must(ffa_rows_position_ids(&rows, ids, &err), "rows", &err);
    for (int64_t i = 0; i < wanted; i++, sample += sample_bytes(t)) {
        const int64_t row = count <= wanted ? i : i * (count - 1) / (wanted - 1);
        const int64_t id = row < count ? ids[row] : -1;

        memcpy(sample, &id, sizeof id);
        if (id >= 0)
            must(ffa_device_copy(r->context, sample + sizeof id,
                                 (char *)p->rows[t] + row * row_bytes(t), row_bytes(t),
                                 FFA_FROM_DEVICE, &err),
                 "copy", &err);
    }
    free(ids);
}

/* With the whole's rows, on the first rank. */
static void compare_sample(struct difference *d, const struct rank *r, enum tensor t,
                           const unsigned char *sample, uint16_t *whole)
{
    ffa_error err;
    int64_t id;

    memcpy(&id, sample, sizeof id);
    if (id < 0)
        return;
    must(ffa_device_copy(r->context, whole, (char *)bench.whole.rows[t] + id * row_bytes(t),
                         row_bytes(t), FFA_FROM_DEVICE, &err),
         "copy", &err);
    for (int64_t i = 0; i < columns(t); i++) {
        uint16_t own;
        double want, far;

        memcpy(&own, sample + sizeof id + (size_t)i * sizeof own, sizeof own);
        want = from_bf16(whole[i]);
        far = fabs(from_bf16(own) - want);
        d->largest_value = most(fabs(want), d->largest_value);
        d->largest = isnan(far) ? INFINITY : most(far, d->largest);
    }
}

static struct difference compare_tensor(const struct rank *r, int v, enum tensor t)
{
    const size_t rows = (size_t)checked_rows(), bytes = rows * sample_bytes(t);
    unsigned char *own = memory(bytes), *all = memory((size_t)options.ranks * bytes);
    uint16_t *whole = memory((size_t)row_bytes(t));
    struct difference d = { 0, 0 };

    memset(own, 0, bytes);
    take_sample(r, v, t, own);
    gather(r->rank, own, all, bytes);
    for (size_t i = 0; i < rows * (size_t)options.ranks && r->rank == 0; i++)
        compare_sample(&d, r, t, all + i * sample_bytes(t), whole);
    free(whole);
    free(all);
    free(own);
    return d;
}

/* The largest difference of what the pass wrote, on some rows of all ranks. */
static double check_pass(const struct rank *r, int v, bool is_backward)
{
    const enum tensor begin = is_backward ? DQ : OUT, end = is_backward ? LSE : DQ;
    double largest = 0;

    for (enum tensor t = begin; t < end; t++) {
        const struct difference d = compare_tensor(r, v, t);

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

static struct facts own_facts(struct rank *r, int v, bool is_backward)
{
    struct rank_plan *p = &r->plans[v];
    const ffa_parallel_pass_info *info = &p->info;

    return (struct facts){
        .dispatch_ms = p->dispatch_ms,
        .plan_ms = p->plan_ms,
        .pass_ms = p->pass_ms,
        .made_ms = p->dispatch_ms + p->plan_ms + p->pass_ms,
        .host_us = median(p->host_us, p->host_count),
        .model_ms = p->model_ms[is_backward],
        .share = p->share[is_backward],
        .stages = is_backward ? info->backward_stages : info->forward_stages,
        .rows = info->received_rows,
        .window_bytes = info->key_bytes + (is_backward ? info->sum_bytes : 0),
        .workspace_bytes =
            is_backward ? info->backward_workspace_bytes : info->forward_workspace_bytes,
    };
}

static struct facts facts_of(struct rank *r, int v, bool is_backward)
{
    struct facts own = own_facts(r, v, is_backward), all[RANKS_MAX], f = { 0 };

    gather(r->rank, &own, all, sizeof own);
    for (int32_t i = 0; i < options.ranks; i++) {
        f.dispatch_ms = most(all[i].dispatch_ms, f.dispatch_ms);
        f.plan_ms = most(all[i].plan_ms, f.plan_ms);
        f.pass_ms = most(all[i].pass_ms, f.pass_ms);
        f.made_ms = most(all[i].made_ms, f.made_ms);
        f.host_us = most(all[i].host_us, f.host_us);
        f.model_ms = most(all[i].model_ms, f.model_ms);
        f.share = most(all[i].share, f.share);
        f.stages = (int32_t)most64(all[i].stages, f.stages);
        f.rows = most64(all[i].rows, f.rows);
        f.window_bytes = most64(all[i].window_bytes, f.window_bytes);
        f.workspace_bytes = most64(all[i].workspace_bytes, f.workspace_bytes);
    }
    return f;
}

/* Of sorted samples. */
static double spread(const double *ms)
{
    const double middle = ms[options.rounds / 2];

    return middle > 0 ? (ms[options.rounds - 1] - ms[0]) / middle : 0;
}

/* What the group has, whatever was asked for; the methods of others pull. */
static const char *transport_name(const struct rank *r, int v)
{
    const ffa_transport used =
        variants[v].method == METHOD_PLAN ? ffa_comm_transport(r->comm) : FFA_TRANSPORT_PULL;

    return used == FFA_TRANSPORT_EXCHANGE ? "exchange"
           : used == FFA_TRANSPORT_RELAY  ? "relay"
                                          : "pull";
}

static const char *ranks_name(void)
{
    return bench.processes ? "processes" : "threads";
}

static const char *wire_name(void)
{
    return options.wire_dtype == FFA_BF16 ? "bf16" : "fp32";
}

void report_begin(const struct rank *r)
{
    static bool is_printed;

    if (is_printed)
        return;
    is_printed = true;
    printf("%d ranks, %s, on %d x %s, %s, sums of %s%s; times of a call, medians of %d rounds and "
           "their spread; "
           "`planned`: with a %dth of made ms\n"
           "%-19s %-8s %-10s %9s %5s %9s %5s %9s %9s  %10s  %7s  %7s  %7s %8s  %6s %8s %7s %9s  "
           "%s\n",
           options.ranks, ranks_name(), bench.gpus, bench.device, transport_name(r, 0), wire_name(),
           options.keeps_keys ? ", keys kept" : "", options.rounds, options.layers, "case", "pass",
           "plan", "T1 ms", "", "T ms", "", "model ms", "exposed", "efficiency", "planned",
           "TFLOP/s", "host us", "made ms", "stages", "rows", "win MB", "work MB", "difference");
    fflush(stdout);
}

/* What is measured of a plan. */
struct line {
    double whole_ms, ms, exposed_ms, efficiency, planned, tflops, difference;
};

static void print_line(const struct facts *f, const struct line *l, int v, bool is_backward)
{
    printf("%-19s %-8s %-10s %9.3f %4.1f%% %9.3f %4.1f%% %9.3f %9.3f  %10.3f  %7.3f  %7.1f  %7.1f "
           "%8.2f  %6d %8lld %7.1f %9.1f  %.2g\n",
           bench.name, is_backward ? "backward" : "forward", variants[v].name, l->whole_ms,
           100 * spread(bench.whole_ms), l->ms, 100 * spread(bench.plans_ms[v]), f->model_ms,
           l->exposed_ms, l->efficiency, l->planned, l->tflops, f->host_us, f->made_ms, f->stages,
           (long long)f->rows, (double)f->window_bytes / 1e6, (double)f->workspace_bytes / 1e6,
           l->difference);
    fflush(stdout);
}

static void print_json(const struct rank *r, const struct facts *f, const struct line *l, int v,
                       bool is_backward)
{
    fprintf(bench.json,
            "{\"device\":\"%s\",\"gpus\":%d,\"ranks\":%d,\"rank_kind\":\"%s\","
            "\"transport\":\"%s\",\"wire_dtype\":\"%s\",\"keys_kept\":%s,\"case\":\"%s\","
            "\"tokens\":%lld,"
            "\"pass\":\"%s\",\"plan\":\"%s\",\"t1_ms\":%.5f,\"t1_spread\":%.4f,\"t_ms\":%.5f,"
            "\"t_spread\":%.4f,\"model_ms\":%.5f,\"exposed_ms\":%.5f,\"efficiency\":%.4f,"
            "\"layers\":%d,\"efficiency_planned\":%.4f,"
            "\"tflops\":%.1f,\"host_us\":%.2f,"
            "\"dispatch_ms\":%.3f,\"plan_ms\":%.3f,\"pass_ms\":%.3f,\"stages\":%d,"
            "\"received_rows\":%lld,\"window_bytes\":%lld,\"workspace_bytes\":%lld,"
            "\"difference\":%g,\"rounds\":%d,\"calls\":%d}\n",
            bench.device, bench.gpus, options.ranks, ranks_name(), transport_name(r, v),
            wire_name(), options.keeps_keys ? "true" : "false", bench.name, (long long)bench.tokens,
            is_backward ? "backward" : "forward", variants[v].name, l->whole_ms,
            spread(bench.whole_ms), l->ms, spread(bench.plans_ms[v]), f->model_ms, l->exposed_ms,
            l->efficiency, options.layers, l->planned, l->tflops, f->host_us, f->dispatch_ms,
            f->plan_ms, f->pass_ms, f->stages, (long long)f->rows, (long long)f->window_bytes,
            (long long)f->workspace_bytes, isfinite(l->difference) ? l->difference : -1.0,
            options.rounds, bench.calls);
    fflush(bench.json);
}

void report_plan(struct rank *r, int v, bool is_backward, double whole_ms)
{
    const struct facts f = facts_of(r, v, is_backward);
    const double flops = (is_backward ? 10.0 : 4.0) * (double)ffa_mask_area(bench.mask, 0) *
                         bench.c->heads_q * HEAD_DIM;
    struct line l = { .whole_ms = whole_ms, .difference = check_pass(r, v, is_backward) };

    if (r->rank != 0)
        return;
    l.ms = median(bench.plans_ms[v], options.rounds);
    l.efficiency = whole_ms / (bench.gpus * l.ms);
    l.planned = whole_ms / (bench.gpus * (l.ms + f.made_ms / options.layers));
    l.tflops = flops / (bench.gpus * l.ms * 1e9);
    /* What a GPU does not compute in: transfers that nothing hides, launches, tails. Of ranks that
     * share GPUs, all that a GPU has computes in turns. */
    l.exposed_ms = l.ms - whole_ms * f.share * options.ranks / bench.gpus;
    print_line(&f, &l, v, is_backward);
    if (bench.json)
        print_json(r, &f, &l, v, is_backward);
}
