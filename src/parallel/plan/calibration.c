/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_model_calibrate: measured rates become the model that plans and the simulator take.
 *
 * Invariant: integers only, and every number is checked before any is used, so that all ranks get
 * the same model from the same file. Plans do not know of calibrations, so their digests depend on
 * the numbers alone.
 */
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/time_model.h"

#include <ffa/calibration.h>
#include <stdlib.h>

enum { RATES_MAX = 4096, TILE_MAX = 1024, RATE_MAX = 1000000000, TIME_MAX = 1000000000 };
#define RANGE_BYTES_MAX ((int64_t)1 << 46)

/* ---- checks ---- */

static ffa_status check_links(const ffa_calibration *c, ffa_error *err)
{
    char names[2][48];
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < c->link_count; i++) {
        text_copy(names[0], "links[%d].range_bytes", i);
        text_copy(names[1], "links[%d].mbytes_s", i);
        const struct bounded fields[] = {
            { names[0], c->links[i].range_bytes, i ? c->links[i - 1].range_bytes + 1 : 1,
              RANGE_BYTES_MAX },
            { names[1], c->links[i].mbytes_s, 1, RATE_MAX },
        };

        FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    }
out:
    return rc;
}

static ffa_status check_kernel(const ffa_kernel_rate *k, int32_t index, ffa_error *err)
{
    static const char *const fields[] = { "is_backward", "head_dim", "head_dim_v",  "tile_m",
                                          "tile_n",      "gflops",   "begin_tokens" };
    const int64_t values[] = { k->is_backward, k->head_dim, k->head_dim_v,  k->tile_m,
                               k->tile_n,      k->gflops,   k->begin_tokens };
    const int64_t most[] = {
        1,        PARALLEL_HEAD_DIM_MAX, PARALLEL_HEAD_DIM_MAX, TILE_MAX, TILE_MAX,
        RATE_MAX, PARALLEL_BEGIN_MAX
    };
    enum { BEGIN = 6 }; /* may be 0 */
    ffa_status rc = FFA_OK;

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char name[48];
        struct bounded field = { name, values[i], i > 0 && i < BEGIN, most[i] };

        text_copy(name, "kernels[%d].%s", index, fields[i]);
        FFA_TRY(check_bounded(&field, 1, err));
    }
out:
    return rc;
}

static ffa_status check(const ffa_calibration *c, const ffa_parallel_model *m, int32_t head_dim_v,
                        int64_t range_rows, ffa_error *err)
{
    const struct bounded fields[] = {
        { "link_count", c->link_count, 0, RATES_MAX },
        { "kernel_count", c->kernel_count, 0, RATES_MAX },
        { "node_latency_ns", c->node_latency_ns, 0, TIME_MAX },
        { "launch_ns", c->launch_ns, 0, TIME_MAX },
        { "window_mbytes_s", c->window_mbytes_s, 0, RATE_MAX },
        { "sms", c->sms, 0, PARALLEL_SMS_MAX },
        { "model.heads_kv", m->heads_kv, 0, PARALLEL_HEADS_MAX },
        { "model.head_dim", m->head_dim, 0, PARALLEL_HEAD_DIM_MAX },
        { "model.element_bytes", m->element_bytes, 0, 8 },
        { "head_dim_v", head_dim_v, 0, PARALLEL_HEAD_DIM_MAX },
        { "range_rows", range_rows, 1, INT32_MAX },
    };
    ffa_status rc;

    FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    if ((c->link_count && !c->links) || (c->kernel_count && !c->kernels)) {
        rc = error_fail(err, FFA_INVALID, 0, "%s is NULL",
                        c->link_count && !c->links ? "links" : "kernels");
        goto out;
    }
    FFA_TRY(check_links(c, err));
    for (int32_t i = 0; i < c->kernel_count; i++)
        FFA_TRY(check_kernel(&c->kernels[i], i, err));
out:
    return rc;
}

/* ---- rates ---- */

/* Between the two lengths beside it by a straight line; beyond the ends that of the end. */
static int64_t link_rate(const ffa_calibration *c, int64_t bytes)
{
    const ffa_link_rate *to = c->links, *end = c->links + c->link_count, *from;
    int64_t step;

    while (to < end && to->range_bytes < bytes)
        to++;
    if (to == end)
        return c->link_count ? end[-1].mbytes_s : 0;
    if (to == c->links || to->range_bytes == bytes)
        return to->mbytes_s;
    from = to - 1;
    step = model_scaled(bytes - from->range_bytes, llabs(to->mbytes_s - from->mbytes_s),
                        to->range_bytes - from->range_bytes);
    return to->mbytes_s > from->mbytes_s ? from->mbytes_s + step : from->mbytes_s - step;
}

/* Of the nearest dims, the fastest; NULL: there is none. */
static const ffa_kernel_rate *kernel_rate(const ffa_calibration *c, bool is_backward,
                                          int32_t head_dim, int32_t head_dim_v)
{
    const ffa_kernel_rate *found = NULL;
    int32_t nearest = INT32_MAX;

    for (int32_t i = 0; i < c->kernel_count; i++) {
        const ffa_kernel_rate *k = &c->kernels[i];
        const int32_t far = abs(k->head_dim - head_dim) + abs(k->head_dim_v - head_dim_v);

        if ((k->is_backward != 0) != is_backward || far > nearest)
            continue;
        if (far < nearest || k->gflops > found->gflops)
            found = k;
        nearest = far;
    }
    return found;
}

static void set(int64_t *field, int64_t value)
{
    if (*field == 0)
        *field = value;
}

/* A rate and, unless NULL, the begin that was measured with it. */
static void set_rate(int64_t *gflops, int32_t *begin_tokens, const ffa_kernel_rate *rate)
{
    if (*gflops != 0 || !rate)
        return;
    *gflops = rate->gflops;
    if (begin_tokens && *begin_tokens == 0)
        *begin_tokens = rate->begin_tokens;
}

/* opts: NULL, or what has the model. */
static ffa_status calibrate(ffa_parallel_model *model, ffa_parallel_plan_opts *opts,
                            const ffa_calibration *calibration, int32_t head_dim_v,
                            int64_t range_rows, ffa_error *err)
{
    ffa_parallel_plan_opts defaults;
    ffa_parallel_model *const d = &defaults.model;
    ffa_calibration c;
    ffa_status rc;

    FFA_TRY(opts_import(&c, sizeof c, calibration, err));
    FFA_TRY(check(&c, model, head_dim_v, range_rows, err));
    FFA_TRY(parallel_opts_resolve(&defaults, NULL, err));
    d->heads_kv = model->heads_kv ? model->heads_kv : d->heads_kv;
    d->head_dim = model->head_dim ? model->head_dim : d->head_dim;
    d->element_bytes = model->element_bytes ? model->element_bytes : d->element_bytes;
    head_dim_v = head_dim_v ? head_dim_v : d->head_dim;
    set_rate(&model->forward_gflops, opts ? &opts->forward_begin_keys : NULL,
             kernel_rate(&c, false, d->head_dim, head_dim_v));
    set_rate(&model->backward_gflops, opts ? &opts->backward_begin_rows : NULL,
             kernel_rate(&c, true, d->head_dim, head_dim_v));
    set(&model->node_mbytes_s,
        link_rate(&c, range_rows * d->heads_kv * (d->head_dim + head_dim_v) * d->element_bytes));
    set(&model->node_latency_ns, c.node_latency_ns);
    set(&model->launch_ns, c.launch_ns);
    if (opts) {
        set(&opts->window_mbytes_s, c.window_mbytes_s);
        opts->sms = opts->sms ? opts->sms : c.sms;
    }
out:
    return rc;
}

ffa_status ffa_parallel_model_calibrate(ffa_parallel_model *model,
                                        const ffa_calibration *calibration, int32_t head_dim_v,
                                        int64_t range_rows, ffa_error *err)
{
    if (!model || !calibration)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", model ? "calibration" : "model");
    return calibrate(model, NULL, calibration, head_dim_v, range_rows, err);
}

ffa_status ffa_parallel_plan_opts_calibrate(ffa_parallel_plan_opts *opts,
                                            const ffa_calibration *calibration, int64_t range_rows,
                                            ffa_error *err)
{
    ffa_parallel_plan_opts all;
    ffa_status rc;

    if (!opts || !calibration)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", opts ? "calibration" : "opts");
    FFA_TRY(opts_import(&all, sizeof all, opts, err));
    FFA_TRY(calibrate(&all.model, &all, calibration, all.head_dim_v, range_rows, err));
    rc = opts_export(opts, &all, sizeof all, err);
out:
    return rc;
}
