/* SPDX-License-Identifier: Apache-2.0
 *
 * parallel_opts_resolve: options of a plan as every part of it reads them, with defaults filled in
 * and every number checked. Invariant: the result depends on the options alone, so ranks that are
 * given the same options plan the same. All defaults and limits of ffa_parallel_plan_opts stand
 * here.
 */
#include "parallel/plan/parallel_opts.h"

#include "parallel/plan/stages.h"

enum {
    KNOWN_FLAGS = FFA_PARALLEL_FORWARD_ONLY | FFA_PARALLEL_OUTLINE | FFA_PARALLEL_SLOWEST_RANK,
    TILE_MAX = 1024,
    STAGES_DEFAULT = 8,
    ROWS_MIN_DEFAULT = 512
};

#define MEMORY_MAX ((int64_t)1 << 60)

static int32_t or_else(int32_t value, int32_t otherwise)
{
    return value ? value : otherwise;
}

static int64_t or_else64(int64_t value, int64_t otherwise)
{
    return value ? value : otherwise;
}

static ffa_status resolve_model(ffa_parallel_model *m, ffa_error *err)
{
    ffa_status rc;

    m->heads_q = or_else(m->heads_q, 8);
    m->heads_kv = or_else(m->heads_kv, 1);
    m->head_dim = or_else(m->head_dim, 128);
    m->element_bytes = or_else(m->element_bytes, 2);
    m->forward_gflops = or_else64(m->forward_gflops, 600000);
    m->backward_gflops = or_else64(m->backward_gflops, 500000);
    m->node_mbytes_s = or_else64(m->node_mbytes_s, 250000);
    m->network_mbytes_s = or_else64(m->network_mbytes_s, 45000);
    m->node_latency_ns = or_else64(m->node_latency_ns, 13000);
    m->network_latency_ns = or_else64(m->network_latency_ns, 30000);
    m->launch_ns = or_else64(m->launch_ns, 5000);
    FFA_TRY(check_heads("model.", m->heads_q, m->heads_kv, PARALLEL_HEADS_MAX, err));
    {
        const int64_t rate_max = 1000000000, time_max = 1000000000;
        const struct bounded fields[] = {
            { "model.head_dim", m->head_dim, 1, PARALLEL_HEAD_DIM_MAX },
            { "model.element_bytes", m->element_bytes, 1, 8 },
            { "model.forward_gflops", m->forward_gflops, 1, rate_max },
            { "model.backward_gflops", m->backward_gflops, 1, rate_max },
            { "model.node_mbytes_s", m->node_mbytes_s, 1, rate_max },
            { "model.network_mbytes_s", m->network_mbytes_s, 1, rate_max },
            { "model.node_latency_ns", m->node_latency_ns, 0, time_max },
            { "model.network_latency_ns", m->network_latency_ns, 0, time_max },
            { "model.launch_ns", m->launch_ns, 0, time_max },
        };

        rc = check_bounded(fields, sizeof fields / sizeof *fields, err);
    }
out:
    return rc;
}

/* Of passes over GPUs, where nothing is said of compute: what was fitted to passes of H200s.
 * Whoever gives a rate or a begin gives all of them. */
static void resolve_tiles(ffa_parallel_plan_opts *o)
{
    if (!o->sms || o->model.forward_gflops || o->model.backward_gflops ||
        parallel_opts_have_tiles(o))
        return;
    o->model.forward_gflops = 700000;
    o->model.backward_gflops = 617000;
    o->forward_begin_keys = 140;
    o->backward_begin_rows = 439;
    o->window_mbytes_s = 2000000;
}

ffa_status parallel_opts_resolve(ffa_parallel_plan_opts *out, const ffa_parallel_plan_opts *opts,
                                 ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(opts_import(out, sizeof *out, opts, err));
    if (out->flags & ~(uint32_t)KNOWN_FLAGS) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "flags is 0x%x, known are 0x%x", out->flags,
                        (unsigned)KNOWN_FLAGS);
        goto out;
    }
    out->struct_size = (uint32_t)sizeof *out;
    out->pad_end_ = 0;
    out->tile_m = or_else(out->tile_m, 128);
    out->tile_n = or_else(out->tile_n, 128);
    out->backward_m = or_else(out->backward_m, 64);
    out->backward_n = or_else(out->backward_n, 128);
    out->stages_max = or_else(out->stages_max, STAGES_DEFAULT);
    out->buffers = or_else(out->buffers, 2);
    out->stage_rows_min = or_else64(out->stage_rows_min, ROWS_MIN_DEFAULT);
    {
        const struct bounded fields[] = {
            { "tile_m", out->tile_m, 1, TILE_MAX },
            { "tile_n", out->tile_n, 1, TILE_MAX },
            { "backward_m", out->backward_m, 1, TILE_MAX },
            { "backward_n", out->backward_n, 1, TILE_MAX },
            { "forward_stages", out->forward_stages, -1, RANK_STAGES_MAX },
            { "backward_stages", out->backward_stages, -1, RANK_STAGES_MAX },
            { "stages_max", out->stages_max, 1, RANK_STAGES_MAX },
            { "buffers", out->buffers, 2, OVERLAP_BUFFERS_MAX },
            { "moves", out->moves, FFA_PARALLEL_MOVE_KEYS, FFA_PARALLEL_MOVE_AUTO },
            { "stage_rows_min", out->stage_rows_min, 0, INT32_MAX },
            { "sms", out->sms, 0, PARALLEL_SMS_MAX },
            { "memory_bytes", out->memory_bytes, 0, MEMORY_MAX },
            { "forward_begin_keys", out->forward_begin_keys, 0, PARALLEL_BEGIN_MAX },
            { "backward_begin_rows", out->backward_begin_rows, 0, PARALLEL_BEGIN_MAX },
            { "window_mbytes_s", out->window_mbytes_s, 0, 1000000000 },
        };

        FFA_TRY(check_bounded(fields, sizeof fields / sizeof *fields, err));
    }
    if (out->memory_bytes && (out->buffers != 2 || out->moves == FFA_PARALLEL_MOVE_QUERIES)) {
        rc = error_fail(err, FFA_INVALID, 0, "memory_bytes is given with %s",
                        out->buffers != 2 ? "buffers 3: rounds take 2 in turn"
                                          : "queries that move: it is for passes that move keys");
        goto out;
    }
    resolve_tiles(out);
    FFA_TRY(resolve_model(&out->model, err));
    out->head_dim_v = or_else(out->head_dim_v, out->model.head_dim);
    {
        const struct bounded value = { "head_dim_v", out->head_dim_v, 1, PARALLEL_HEAD_DIM_MAX };

        rc = check_bounded(&value, 1, err);
    }
out:
    return rc;
}
