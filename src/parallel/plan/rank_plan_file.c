/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan in bytes: a signature, then numbers of 64 bits, little-endian, then the digest as text.
 * Invariant: nothing in a file is trusted. Every number is read within its bounds, and what is
 * stored is what the plan was made from: loading plans again and compares digests, so a plan of
 * another planner is noticed.
 */
#include "mask/mask.h"
#include "parallel/plan/parallel_opts.h"
#include "parallel/plan/rank_plan.h"

static const char signature[8] = "FFAPLAN";
/* VERSION is of plans whose head_dim_v is head_dim; VERSION_V has head_dim_v behind the others,
 * VERSION_SMS head_dim_v and sms, VERSION_MEMORY these and memory_bytes, and VERSION_TILES all. */
enum {
    VERSION = 1,
    VERSION_V = 2,
    VERSION_SMS = 3,
    VERSION_MEMORY = 4,
    VERSION_TILES = 5,
    OPTION_COUNT = 22
};

/* The fields of resolved options, in the order of the file. */
static void options_list(int64_t out[OPTION_COUNT], const ffa_parallel_plan_opts *o)
{
    const int64_t list[OPTION_COUNT] = {
        o->tile_m,
        o->tile_n,
        o->backward_m,
        o->backward_n,
        o->forward_stages,
        o->backward_stages,
        o->stages_max,
        o->buffers,
        o->flags,
        o->moves,
        o->stage_rows_min,
        o->model.heads_q,
        o->model.heads_kv,
        o->model.head_dim,
        o->model.element_bytes,
        o->model.forward_gflops,
        o->model.backward_gflops,
        o->model.node_mbytes_s,
        o->model.network_mbytes_s,
        o->model.node_latency_ns,
        o->model.network_latency_ns,
        o->model.launch_ns,
    };

    memcpy(out, list, sizeof list);
}

static ffa_parallel_plan_opts options_from(const int64_t list[OPTION_COUNT])
{
    ffa_parallel_plan_opts o = FFA_PARALLEL_PLAN_OPTS_INIT;

    o.tile_m = (int32_t)list[0];
    o.tile_n = (int32_t)list[1];
    o.backward_m = (int32_t)list[2];
    o.backward_n = (int32_t)list[3];
    o.forward_stages = (int32_t)list[4];
    o.backward_stages = (int32_t)list[5];
    o.stages_max = (int32_t)list[6];
    o.buffers = (int32_t)list[7];
    o.flags = (uint32_t)list[8];
    o.moves = (int32_t)list[9];
    o.stage_rows_min = list[10];
    o.model.heads_q = (int32_t)list[11];
    o.model.heads_kv = (int32_t)list[12];
    o.model.head_dim = (int32_t)list[13];
    o.model.element_bytes = (int32_t)list[14];
    o.model.forward_gflops = list[15];
    o.model.backward_gflops = list[16];
    o.model.node_mbytes_s = list[17];
    o.model.network_mbytes_s = list[18];
    o.model.node_latency_ns = list[19];
    o.model.network_latency_ns = list[20];
    o.model.launch_ns = list[21];
    return o;
}

/* ---- write ---- */

static void put(struct text *out, int64_t number)
{
    char bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(unsigned char)((uint64_t)number >> (8 * i));
    text_add_bytes(out, bytes, sizeof bytes);
}

static void put_layout(struct text *out, const struct layout *layout)
{
    put(out, layout->is_replicated);
    put(out, layout->count);
    for (int64_t c = 1; c <= layout->count; c++)
        put(out, layout->bounds[c]);
    for (int64_t c = 0; c < layout->count; c++)
        put(out, layout->rank_of[c]);
}

static void put_normal(struct text *out, const struct normal *normal)
{
    put(out, normal->segment_count);
    for (int64_t s = 0; s < normal->segment_count; s++) {
        const struct normal_segment *segment = &normal->segments[s];

        put(out, segment->row_begin);
        put(out, segment->row_end);
        put(out, segment->interval_count);
        for (int32_t i = 0; i < segment->interval_count; i++) {
            const struct normal_interval *at = &normal->intervals[segment->interval_begin + i];

            put(out, at->lo);
            put(out, at->hi);
            put(out, at->lo_step + 2 * at->hi_step);
        }
    }
}

ffa_status ffa_parallel_plan_save(const ffa_parallel_plan *plan, void **bytes, size_t *count,
                                  ffa_error *err)
{
    struct text out = { 0 };
    int64_t options[OPTION_COUNT];
    bool has_v;
    int version;

    if (bytes)
        *bytes = NULL;
    if (!plan || !bytes || !count)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL",
                          !plan    ? "plan"
                          : !bytes ? "bytes"
                                   : "count");
    has_v = plan->opts.head_dim_v != plan->opts.model.head_dim;
    version = parallel_opts_have_tiles(&plan->opts) ? VERSION_TILES
              : plan->opts.memory_bytes             ? VERSION_MEMORY
              : plan->opts.sms                      ? VERSION_SMS
              : has_v                               ? VERSION_V
                                                    : VERSION;
    text_add_bytes(&out, signature, sizeof signature);
    put(&out, version);
    put(&out, plan->topology.rank_count);
    put(&out, plan->topology.ranks_per_node);
    put(&out, plan->rank);
    options_list(options, &plan->opts);
    for (int i = 0; i < OPTION_COUNT; i++)
        put(&out, options[i]);
    if (version >= VERSION_V)
        put(&out, plan->opts.head_dim_v);
    if (version >= VERSION_SMS)
        put(&out, plan->opts.sms);
    if (version >= VERSION_MEMORY)
        put(&out, plan->opts.memory_bytes);
    if (version >= VERSION_TILES) {
        put(&out, plan->opts.forward_begin_keys);
        put(&out, plan->opts.backward_begin_rows);
        put(&out, plan->opts.window_mbytes_s);
    }
    put(&out, plan->shape.seqlen_q);
    put(&out, plan->shape.seqlen_k);
    put_layout(&out, &plan->queries);
    put_layout(&out, &plan->keys);
    put(&out, plan->list_count);
    for (int32_t l = 0; l < plan->list_count; l++)
        put_normal(&out, &plan->normals[l]);
    text_add_bytes(&out, plan->digest, DIGEST_TEXT - 1);
    *count = out.bytes;
    *bytes = text_take(&out);
    return *bytes ? FFA_OK : error_nomem(err, "the bytes of a plan");
}

/* ---- read ---- */

struct reader {
    const unsigned char *at;
    size_t left;
    ffa_error *err;
};

static ffa_status get(int64_t *out, struct reader *in, const char *name, int64_t min, int64_t max)
{
    uint64_t number = 0;

    if (in->left < 8)
        return error_fail(in->err, FFA_INVALID, 0, "a saved plan ends before %s", name);
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)in->at[i] << (8 * i);
    in->at += 8;
    in->left -= 8;
    memcpy(out, &number, sizeof *out);
    if (*out < min || *out > max)
        return error_fail(in->err, FFA_INVALID, 0, "a saved plan: %s is %lld, not in [%lld, %lld]",
                          name, (long long)*out, (long long)min, (long long)max);
    return FFA_OK;
}

/* A count of things of `numbers` numbers each: no more than the bytes that are left can hold. */
static ffa_status get_count(int64_t *out, struct reader *in, const char *name, int64_t min,
                            int64_t max, int64_t numbers)
{
    const int64_t fit = (int64_t)(in->left / 8) / numbers;

    return get(out, in, name, min, fit < max ? fit : max);
}

static ffa_status get_layout(struct layout *out, struct reader *in, int64_t tokens, int32_t ranks)
{
    int64_t is_replicated, count, *bounds = NULL, rank;
    struct parts parts = { 0 };
    ffa_status rc;

    FFA_TRY(get(&is_replicated, in, "is_replicated", 0, 1));
    FFA_TRY(get_count(&count, in, "the number of chunks", 1, is_replicated ? 1 : CHUNKS_MAX, 2));
    bounds = mem_array((size_t)count + 1, sizeof *bounds);
    if (!bounds) {
        rc = error_nomem(in->err, "chunks");
        goto out;
    }
    for (int64_t c = 1; c <= count; c++)
        FFA_TRY(get(&bounds[c], in, "the end of a chunk", c == count ? tokens : bounds[c - 1] + 1,
                    c == count ? tokens : tokens - 1));
    parts = (struct parts){ bounds, count };
    FFA_TRY(layout_init(out, &parts, ranks, in->err));
    out->is_replicated = is_replicated;
    for (int64_t c = 0; c < count; c++) {
        FFA_TRY(get(&rank, in, "the rank of a chunk", 0, is_replicated ? 0 : ranks - 1));
        out->rank_of[c] = (int32_t)rank;
    }
    layout_index(out);
out:
    mem_free(bounds);
    return rc;
}

static ffa_status get_interval(struct normal_writer *writer, struct reader *in, int64_t row,
                               int64_t rows, int64_t keys)
{
    int64_t lo, hi, steps;
    struct normal_interval interval;
    ffa_status rc;

    FFA_TRY(get(&lo, in, "the first key of a row", 0, keys - 1));
    FFA_TRY(get(&hi, in, "the last key of a row", lo + 1, keys));
    FFA_TRY(get(&steps, in, "how keys move", 0, 3));
    interval = (struct normal_interval){ (int32_t)lo, (int32_t)hi, (int32_t)(steps & 1),
                                         (int32_t)(steps >> 1) };
    if (hi + interval.hi_step * (rows - 1) > keys ||
        lo + interval.lo_step * (rows - 1) >= hi + interval.hi_step * (rows - 1)) {
        rc = error_fail(in->err, FFA_INVALID, 0, "a saved plan: keys of row %lld leave [0, %lld)",
                        (long long)row, (long long)keys);
        goto out;
    }
    rc = normal_add_interval(writer, &interval, row, in->err);
out:
    return rc;
}

static ffa_status get_normal(struct normal *out, struct reader *in, const ffa_mask_shape *shape)
{
    struct normal_writer writer = { .out = out };
    int64_t segments, row = 0;
    ffa_status rc;

    FFA_TRY(get_count(&segments, in, "the number of segments", 0, INT32_MAX, 3));
    for (int64_t s = 0; s < segments; s++) {
        const int64_t first = out->interval_count;
        int64_t begin, end, intervals;

        FFA_TRY(get(&begin, in, "the first row of a segment", row, shape->seqlen_q - 1));
        FFA_TRY(get(&end, in, "the last row of a segment", begin + 1, shape->seqlen_q));
        FFA_TRY(get_count(&intervals, in, "the number of intervals", 1, INT32_MAX, 3));
        for (int64_t i = 0; i < intervals; i++)
            FFA_TRY(get_interval(&writer, in, begin, end - begin, shape->seqlen_k));
        FFA_TRY(normal_add_segment(&writer, begin, end, first, in->err));
        row = end;
    }
    normal_complete(out);
    if (normal_check(out, shape, in->err) != FFA_OK)
        rc = error_fail(in->err, FFA_INVALID, 0, "a saved plan: keys of a row are not apart");
out:
    return rc;
}

static ffa_status get_mask(ffa_mask *out, struct reader *in)
{
    int64_t lists;
    ffa_status rc;

    FFA_TRY(get_count(&lists, in, "the number of lists", 1, HEADS_KV_MAX, 1));
    out->lists = mem_array((size_t)lists, sizeof *out->lists);
    if (!out->lists) {
        rc = error_nomem(in->err, "the mask of a plan");
        goto out;
    }
    out->head_count = (int32_t)lists;
    for (int32_t l = 0; l < out->head_count; l++)
        FFA_TRY(get_normal(&out->lists[l].normal, in, &out->shape));
out:
    return rc;
}

/* Behind the options that every version has. */
static ffa_status get_more(ffa_parallel_plan_opts *opts, int64_t version, struct reader *in)
{
    int64_t head_dim_v = 0, sms = 0, keys = 0, rows = 0;
    ffa_status rc = FFA_OK;

    if (version >= VERSION_V)
        FFA_TRY(get(&head_dim_v, in, "head_dim_v", 1, PARALLEL_HEAD_DIM_MAX));
    if (version >= VERSION_SMS)
        FFA_TRY(get(&sms, in, "sms", version == VERSION_SMS, INT32_MAX));
    if (version >= VERSION_MEMORY)
        FFA_TRY(get(&opts->memory_bytes, in, "memory_bytes", version == VERSION_MEMORY, INT64_MAX));
    if (version >= VERSION_TILES) {
        FFA_TRY(get(&keys, in, "forward_begin_keys", 0, PARALLEL_BEGIN_MAX));
        FFA_TRY(get(&rows, in, "backward_begin_rows", 0, PARALLEL_BEGIN_MAX));
        FFA_TRY(get(&opts->window_mbytes_s, in, "window_mbytes_s", 0, INT64_MAX));
    }
    opts->head_dim_v = (int32_t)head_dim_v;
    opts->sms = (int32_t)sms;
    opts->forward_begin_keys = (int32_t)keys;
    opts->backward_begin_rows = (int32_t)rows;
out:
    return rc;
}

static ffa_status get_head(struct rank_plan_source *out, ffa_mask_shape *shape, struct reader *in)
{
    int64_t version, ranks, width, rank, options[OPTION_COUNT];
    ffa_parallel_plan_opts opts;
    ffa_status rc;

    if (in->left < sizeof signature || memcmp(in->at, signature, sizeof signature) != 0) {
        rc = error_fail(in->err, FFA_INVALID, 0, "no saved plan: it does not begin with %s",
                        signature);
        goto out;
    }
    in->at += sizeof signature;
    in->left -= sizeof signature;
    FFA_TRY(get(&version, in, "the version", VERSION, VERSION_TILES));
    FFA_TRY(get(&ranks, in, "rank_count", 1, RANKS_MAX));
    FFA_TRY(get(&width, in, "ranks_per_node", 1, ranks));
    FFA_TRY(get(&rank, in, "rank", 0, ranks - 1));
    out->topology = (ffa_topology){ (int32_t)ranks, (int32_t)width };
    out->rank = (int32_t)rank;
    for (int i = 0; i < OPTION_COUNT; i++)
        FFA_TRY(get(&options[i], in, "an option", i < 10 ? INT32_MIN : 0, INT32_MAX));
    opts = options_from(options);
    FFA_TRY(get_more(&opts, version, in));
    FFA_TRY(parallel_opts_resolve(&out->opts, &opts, in->err));
    FFA_TRY(get(&shape->seqlen_q, in, "seqlen_q", 1, TOKENS_MAX));
    rc = get(&shape->seqlen_k, in, "seqlen_k", 1, TOKENS_MAX);
out:
    return rc;
}

/* Queries are never replicated, and every rank has some. */
static ffa_status check_layouts(const struct layout *queries, struct reader *in)
{
    for (int32_t r = 0; r < queries->ranks; r++)
        if (queries->is_replicated || queries->rank_tokens[r] == 0)
            return error_fail(in->err, FFA_INVALID, 0, "a saved plan: rank %d has no queries", r);
    return FFA_OK;
}

ffa_status ffa_parallel_plan_load(ffa_parallel_plan **out, const void *bytes, size_t count,
                                  ffa_error *err)
{
    struct reader in = { bytes, count, err };
    struct layout queries = { 0 }, keys = { 0 };
    ffa_mask mask = { 0 };
    struct rank_plan_source source = { .queries = &queries, .keys = &keys, .mask = &mask };
    ffa_parallel_plan *plan = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!bytes)
        return error_fail(err, FFA_INVALID, 0, "bytes is NULL");
    FFA_TRY(get_head(&source, &mask.shape, &in));
    FFA_TRY(get_layout(&queries, &in, mask.shape.seqlen_q, source.topology.rank_count));
    FFA_TRY(check_layouts(&queries, &in));
    FFA_TRY(get_layout(&keys, &in, mask.shape.seqlen_k, source.topology.rank_count));
    FFA_TRY(get_mask(&mask, &in));
    if (in.left != DIGEST_TEXT - 1) {
        rc = error_fail(err, FFA_INVALID, 0, "a saved plan: %zu bytes behind the mask, not %d",
                        in.left, DIGEST_TEXT - 1);
        goto out;
    }
    FFA_TRY(rank_plan_make(&plan, &source, err));
    if (memcmp(plan->digest, in.at, DIGEST_TEXT - 1) != 0) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "a saved plan: its digest is %.32s, the same planned here %s",
                        (const char *)in.at, plan->digest);
        goto out;
    }
    *out = plan;
    plan = NULL;
out:
    ffa_parallel_plan_destroy(plan);
    layout_finish(&queries);
    layout_finish(&keys);
    for (int32_t l = 0; l < mask.head_count; l++)
        normal_finish(&mask.lists[l].normal);
    mem_free(mask.lists);
    return rc;
}
