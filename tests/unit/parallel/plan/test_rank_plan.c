/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: the reference's stage plans and pipelines by cells, delivery and cost; arguments; the
 * model; save and load; what plans say of themselves; allocation faults.
 */
#include "mask/mask.h"
#include "parallel/plan/stages.h"
#include "support/parallel_cases.h"
#include "support/parallel_run.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

static json_t *cases;

static int64_t integer(const json_t *entry, const char *name)
{
    return (int64_t)json_integer_value(json_object_get(entry, name));
}

static ffa_dispatch *min_heap(const ffa_mask *mask, int32_t ranks, int64_t chunk)
{
    const ffa_dispatch_mask one = { mask, 1 };
    const ffa_topology topology = { ranks, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_dispatch *dispatch;

    opts.algorithm = FFA_DISPATCH_MIN_HEAP;
    opts.chunk_tokens = chunk;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    ck_assert_msg(!ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, &err), "%s",
                  err.message);
    return dispatch;
}

static ffa_parallel_plan *plan_of(const ffa_dispatch *dispatch, const ffa_mask *mask, int32_t rank,
                                  const ffa_parallel_plan_opts *opts)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    ck_assert_msg(!ffa_parallel_plan_create(&plan, dispatch, mask, rank, opts, &err), "%s",
                  err.message);
    return plan;
}

static ffa_mask *causal(int64_t tokens)
{
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ tokens, tokens }, NULL), FFA_OK);
    return mask;
}

/* ---- cells, as counts over the whole mask ---- */

struct counts {
    uint8_t *at;
    int64_t tokens;
    const struct parallel_operands *operands;
};

static void count_cell(void *user, int32_t list, int64_t q, int64_t k)
{
    struct counts *c = user;

    if (list != 0) /* an assertion a cell would be slow */
        ck_abort_msg("a cell of list %d", list);
    c->at[c->operands->queries[q] * c->tokens + c->operands->keys[k]]++;
}

/* received, if any: the tokens that arrive, in their order. */
static int64_t run_pass(struct counts *counts, const ffa_parallel_plan *plan, bool is_backward,
                        int64_t *received)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    int64_t rows = 0;

    for (int32_t p = 0; p < pass->phase_count; p++) {
        struct parallel_operands operands;

        parallel_operands_init(&operands, plan, pass, p);
        counts->operands = &operands;
        parallel_each_cell(&pass->phases[p], is_backward, count_cell, counts);
        for (int64_t i = 0; p > 0 && p <= pass->stage_count && i < pass->phases[p].rows; i++)
            received[rows++] = operands.moved[i];
        parallel_operands_finish(&operands);
    }
    return rows;
}

/* ---- stage plans of the reference ---- */

struct keys {
    int64_t at[128]; /* the token of each key row */
    int64_t count;
};

static void add_range(struct keys *keys, int64_t begin, int64_t end)
{
    for (int64_t token = begin; token < end; token++)
        keys->at[keys->count++] = token;
}

/* Cells of the reference's slices [q0, q1, k0, k1, type], local: marked, for it may count one twice
 * where slices of the mask overlap. */
static void mark(struct counts *want, const json_t *slices, const struct keys *queries,
                 const struct keys *keys)
{
    for (size_t i = 0; i < json_array_size(slices); i++) {
        int64_t s[5];
        ffa_slice slice;

        ck_assert_int_eq(parallel_integers(json_array_get(slices, i), s, 5), 5);
        slice = (ffa_slice){ s[0], s[1], s[2], s[3], (int32_t)s[4], 0 };
        for (int64_t q = s[0]; q < s[1]; q++)
            for (int64_t k = s[2]; k < s[3]; k++)
                if (slice_has(&slice, q, k))
                    want->at[queries->at[q] * want->tokens + keys->at[k]] = 1;
    }
}

static void check_stage_plan(const json_t *entry, const json_t *rank_entry, int32_t rank,
                             const ffa_dispatch *dispatch, const ffa_mask *mask)
{
    enum { TOKENS = 64 };
    const json_t *stages = json_object_get(rank_entry, "stages");
    static uint8_t want_at[TOKENS * TOKENS], got_at[TOKENS * TOKENS];
    struct counts want = { want_at, TOKENS, NULL }, got = { got_at, TOKENS, NULL };
    struct keys own = { { 0 }, 0 }, remote = { { 0 }, 0 };
    int64_t chunks[8], received[TOKENS];
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    int64_t count = parallel_integers(json_object_get(rank_entry, "chunks"), chunks, 8);
    ffa_parallel_plan *plan;

    memset(want_at, 0, sizeof want_at);
    for (int64_t i = 0; i < count; i++)
        add_range(&own, chunks[i] * 8, chunks[i] * 8 + 8);
    mark(&want, json_object_get(rank_entry, "host_slices"), &own, &own);
    for (size_t s = 0; s < json_array_size(stages); s++) {
        const json_t *stage = json_array_get(stages, s);
        const json_t *ranges = json_object_get(stage, "remote_k");
        struct keys keys = { { 0 }, 0 };

        for (size_t i = 0; i < json_array_size(ranges); i++) {
            int64_t range[2];

            (void)parallel_integers(json_array_get(ranges, i), range, 2);
            add_range(&keys, range[0], range[1]);
            add_range(&remote, range[0], range[1]);
        }
        mark(&want, json_object_get(stage, "slices"), &own, &keys);
    }
    opts.forward_stages = opts.backward_stages = (int32_t)integer(entry, "degree");
    opts.stage_rows_min = 1;
    plan = plan_of(dispatch, mask, rank, &opts);
    for (int pass = 0; pass < 2; pass++) {
        memset(got_at, 0, sizeof got_at);
        ck_assert_int_eq(run_pass(&got, plan, pass == 1, received), remote.count);
        for (int64_t i = 0; i < remote.count; i++)
            ck_assert_int_eq(received[i], remote.at[i]);
        ck_assert_int_eq(memcmp(want_at, got_at, sizeof got_at), 0);
    }
    ck_assert_int_le(plan->forward.cost_ns, plan->forward.uniform_ns);
    ck_assert_int_le(plan->backward.cost_ns, plan->backward.uniform_ns);
    ffa_parallel_plan_destroy(plan);
}

START_TEST(stage_plans_of_the_reference)
{
    const json_t *list = json_object_get(cases, "stage_plans");

    ck_assert_uint_eq(json_array_size(list), 6);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *ranks = json_object_get(entry, "ranks");
        ffa_mask *mask = parallel_case_mask(entry, 64);
        ffa_dispatch *dispatch =
            min_heap(mask, (int32_t)integer(entry, "cp"), integer(entry, "chunk"));

        for (size_t r = 0; r < json_array_size(ranks); r++)
            check_stage_plan(entry, json_array_get(ranks, r), (int32_t)r, dispatch, mask);
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* ---- pipelines of the reference: areas and delivery of plans; cells of the small ones ---- */

static void check_pipeline(const json_t *entry, const json_t *want, int32_t ranks,
                           const ffa_mask *mask)
{
    const int64_t tokens = integer(entry, "seqlen");
    const bool is_small = tokens <= 1100;
    struct counts counts = { NULL, tokens, NULL };
    ffa_dispatch *dispatch = min_heap(mask, ranks, integer(entry, "chunk"));
    int64_t area[16], received[16], sent[16];
    int64_t *rows = calloc((size_t)tokens, sizeof *rows), sum = 0;

    ck_assert_int_eq(parallel_integers(json_object_get(want, "area"), area, 16), ranks);
    ck_assert_int_eq(parallel_integers(json_object_get(want, "recv_tokens"), received, 16), ranks);
    ck_assert_int_eq(parallel_integers(json_object_get(want, "send_tokens"), sent, 16), ranks);
    for (int pass = 0; pass < (is_small ? 2 : 1); pass++) {
        if (is_small)
            counts.at = calloc((size_t)(tokens * tokens), 1);
        for (int32_t r = 0; r < ranks; r++) {
            ffa_parallel_plan *plan = plan_of(dispatch, mask, r, NULL);
            int64_t tiles = 0;

            ck_assert_int_eq(plan->area, area[r]);
            ck_assert_int_eq(plan->received_rows, received[r]);
            ck_assert_int_eq(plan->sent_rows, sent[r]);
            for (int32_t p = 0; p < plan->forward.phase_count; p++)
                tiles += plan->forward.phases[p].tiles.area;
            ck_assert_int_eq(tiles, area[r]);
            if (is_small)
                ck_assert_int_eq(run_pass(&counts, plan, pass == 1, rows), received[r]);
            ffa_parallel_plan_destroy(plan);
            sum += area[r];
        }
        for (int64_t q = 0; is_small && q < tokens; q++) {
            const ffa_slice_list slices = ffa_mask_slices(mask, 0);

            for (int64_t k = 0; k < tokens; k++) {
                bool attends = false;

                for (int64_t i = 0; i < slices.count && !attends; i++)
                    attends = slice_has(&slices.slices[i], q, k);
                if (counts.at[q * tokens + k] != attends)
                    ck_abort_msg("row %lld, key %lld: computed %d times", (long long)q,
                                 (long long)k, counts.at[q * tokens + k]);
            }
        }
        free(counts.at);
    }
    ck_assert_int_eq(sum, integer(entry, "areas_sum") * (is_small ? 2 : 1));
    free(rows);
    ffa_dispatch_destroy(dispatch);
}

START_TEST(pipelines_of_the_reference)
{
    const json_t *entry = json_array_get(json_object_get(cases, "pipeline"), (size_t)_i), *want;
    ffa_mask *mask = parallel_case_mask(entry, 0);
    const char *ranks;

    json_object_foreach(json_object_get(entry, "cp"), ranks, want)
        check_pipeline(entry, want, (int32_t)strtol(ranks, NULL, 10), mask);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- arguments ---- */

static const struct {
    const char *name;
    ffa_parallel_plan_opts opts;
    int32_t rank;
    ffa_status status;
    const char *message;
} bad_rows[] = {
    { "rank", { .struct_size = 0 }, 4, FFA_INVALID, "rank is 4, not in [0, 4)" },
    { "negative rank", { .struct_size = 0 }, -1, FFA_INVALID, "rank is -1, not in [0, 4)" },
    { "tile_m", { .tile_m = -1 }, 0, FFA_INVALID, "tile_m is -1, not in [1, 1024]" },
    { "tile_n", { .tile_n = 1025 }, 0, FFA_INVALID, "tile_n is 1025, not in [1, 1024]" },
    { "backward_m", { .backward_m = -3 }, 0, FFA_INVALID, "backward_m is -3, not in [1, 1024]" },
    { "backward_n", { .backward_n = -3 }, 0, FFA_INVALID, "backward_n is -3, not in [1, 1024]" },
    { "forward_stages",
      { .forward_stages = 17 },
      0,
      FFA_INVALID,
      "forward_stages is 17, not in [-1, 12]" },
    { "backward_stages",
      { .backward_stages = -2 },
      0,
      FFA_INVALID,
      "backward_stages is -2, not in [-1, 12]" },
    { "stages_max", { .stages_max = 17 }, 0, FFA_INVALID, "stages_max is 17, not in [1, 12]" },
    { "buffers", { .buffers = 4 }, 0, FFA_INVALID, "buffers is 4, not in [2, 3]" },
    { "moves", { .moves = 3 }, 0, FFA_INVALID, "moves is 3, not in [0, 2]" },
    { "rows",
      { .stage_rows_min = -1 },
      0,
      FFA_INVALID,
      "stage_rows_min is -1, not in [0, 2147483647]" },
    { "flags", { .flags = 8 }, 0, FFA_UNSUPPORTED, "flags is 0x8, known are 0x7" },
    { "heads",
      { .model = { .heads_q = 8, .heads_kv = 3 } },
      0,
      FFA_INVALID,
      "model.heads_q is 8, not a multiple of heads_kv = 3 in [1, 1024]" },
    { "head_dim",
      { .model = { .head_dim = -1 } },
      0,
      FFA_INVALID,
      "model.head_dim is -1, not in [1, 1024]" },
    { "gflops",
      { .model = { .forward_gflops = -1 } },
      0,
      FFA_INVALID,
      "model.forward_gflops is -1, not in [1, 1000000000]" },
    { "latency",
      { .model = { .node_latency_ns = -1 } },
      0,
      FFA_INVALID,
      "model.node_latency_ns is -1, not in [0, 1000000000]" },
};

START_TEST(bad_options_are_named)
{
    ffa_mask *mask = causal(64);
    ffa_dispatch *dispatch = min_heap(mask, 4, 8);
    ffa_parallel_plan_opts opts = bad_rows[_i].opts;
    ffa_parallel_plan *plan = (ffa_parallel_plan *)1;
    ffa_error err = { FFA_OK, 0, "" };

    opts.struct_size = (uint32_t)sizeof opts;
    ck_assert_int_eq(
        ffa_parallel_plan_create(&plan, dispatch, mask, bad_rows[_i].rank, &opts, &err),
        bad_rows[_i].status);
    ck_assert_str_eq(err.message, bad_rows[_i].message);
    ck_assert_ptr_null(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(bad_arguments_are_named)
{
    ffa_mask *mask = causal(64), *longer = causal(65);
    ffa_dispatch *dispatch = min_heap(mask, 4, 8);
    ffa_parallel_plan *plan;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_parallel_plan_create(NULL, dispatch, mask, 0, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "out is NULL");
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, NULL, mask, 0, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "dispatch is NULL");
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, NULL, 0, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "mask is NULL");
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, longer, 0, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "mask has 65 queries and 65 keys, the dispatch 64 and 64");
    ck_assert_int_eq(ffa_parallel_plan_info_get(NULL, &info, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "plan is NULL");
    ck_assert_str_eq(ffa_parallel_plan_digest(NULL), "");
    ffa_parallel_plan_destroy(NULL);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(longer);
}
END_TEST

/* A new mask on a dispatch may attend nothing; masks, options and dispatches that differ show in
 * the digest. */
START_TEST(digests_tell_inputs_apart)
{
    const ffa_mask_shape shape = { 64, 64 };
    ffa_mask *mask = causal(64), *nothing, *other;
    ffa_dispatch *dispatch = min_heap(mask, 4, 8), *coarse = min_heap(mask, 4, 16);
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_plan *plans[6];

    ck_assert_int_eq(ffa_mask_create(&nothing, &shape, NULL, 0, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_window(&other, &shape, &(ffa_window){ 62, 0 }, NULL), FFA_OK);
    plans[0] = plan_of(dispatch, mask, 0, NULL);
    plans[1] = plan_of(dispatch, nothing, 0, NULL);
    plans[2] = plan_of(dispatch, other, 0, NULL); /* one cell less */
    plans[3] = plan_of(coarse, mask, 0, NULL);
    opts.model.launch_ns = 5001;
    plans[4] = plan_of(dispatch, mask, 0, &opts);
    opts.model.launch_ns = 0;
    plans[5] = plan_of(dispatch, mask, 3, &opts); /* the same: another rank, defaults */
    for (int i = 1; i < 5; i++)
        ck_assert_str_ne(ffa_parallel_plan_digest(plans[i]), ffa_parallel_plan_digest(plans[0]));
    ck_assert_str_eq(ffa_parallel_plan_digest(plans[5]), ffa_parallel_plan_digest(plans[0]));
    ck_assert_int_eq(ffa_parallel_plan_info_get(plans[1], &info, NULL), FFA_OK);
    ck_assert_int_eq(info.area + info.received_rows + info.sent_rows + info.forward_stages, 0);
    ck_assert_int_eq(info.tokens_q, 16);
    ck_assert_int_gt(plans[1]->forward.phases[0].tiles.tile_count, 0);
    for (int64_t t = 0; t < plans[1]->forward.phases[0].tiles.tile_count; t++)
        ck_assert_int_eq(plans[1]->forward.phases[0].tiles.tiles[t].flags, 0);
    for (int i = 0; i < 6; i++)
        ffa_parallel_plan_destroy(plans[i]);
    ffa_dispatch_destroy(dispatch);
    ffa_dispatch_destroy(coarse);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(nothing);
    ffa_mask_destroy(other);
}
END_TEST

/* ---- the model ---- */

/* 64k tokens, 8 ranks: what hides is hidden, and no fixed number of stages beats a free choice. */
START_TEST(a_free_choice_is_the_best)
{
    ffa_mask *mask = causal(65536);
    ffa_dispatch *dispatch = min_heap(mask, 8, 1024);
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan *best = plan_of(dispatch, mask, 5, NULL);

    for (int32_t stages = 1; stages <= 8; stages++) {
        ffa_parallel_plan *plan;

        opts.forward_stages = opts.backward_stages = stages;
        plan = plan_of(dispatch, mask, 5, &opts);
        ck_assert_int_eq(plan->forward.stage_count, stages);
        ck_assert_int_eq(plan->backward.stage_count, stages);
        ck_assert_int_ge(plan->forward.cost_ns, best->forward.cost_ns);
        ck_assert_int_ge(plan->backward.cost_ns, best->backward.cost_ns);
        ffa_parallel_plan_destroy(plan);
    }
    ck_assert_int_le(best->forward.cost_ns, best->forward.uniform_ns);
    ck_assert_int_le(best->backward.cost_ns, best->backward.uniform_ns);
    opts = (ffa_parallel_plan_opts)FFA_PARALLEL_PLAN_OPTS_INIT;
    opts.buffers = 3; /* a third buffer never harms */
    {
        ffa_parallel_plan *plan = plan_of(dispatch, mask, 5, &opts);

        ck_assert_int_le(plan->forward.cost_ns, best->forward.cost_ns);
        ck_assert_int_le(plan->backward.cost_ns, best->backward.cost_ns);
        ffa_parallel_plan_destroy(plan);
    }
    ffa_parallel_plan_destroy(best);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* The largest heads on the slowest machine: times end somewhere, and nothing overflows. */
START_TEST(times_end_somewhere)
{
    const ffa_topology topology = { 8, 2 };
    ffa_mask *mask = causal(65536);
    const ffa_dispatch_mask one = { mask, 1 << 29 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;

    opts.model =
        (ffa_parallel_model){ 1024, 1024, 1024, 8, 1, 1, 1, 1, 1000000000, 1000000000, 1000000000 };
    opts.moves = FFA_PARALLEL_MOVE_AUTO;
    ck_assert_int_eq(ffa_dispatch_create_best(&dispatch, &one, 1, &topology, NULL, &opts, NULL),
                     FFA_OK);
    plan = plan_of(dispatch, mask, 7, &opts);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ck_assert_int_gt(info.forward_ns, (int64_t)1 << 40);
    ck_assert_int_gt(info.backward_ns, (int64_t)1 << 40);
    ck_assert_int_gt(info.forward_work_ns, 0);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

static int64_t slowest_of(const ffa_dispatch *dispatch, const ffa_mask *mask, int32_t ranks)
{
    ffa_parallel_plan *plan = plan_of(dispatch, mask, 0, NULL);
    int64_t most = 0;

    for (int32_t r = 0; r < ranks; r++) {
        ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;

        ck_assert_int_eq(ffa_parallel_plan_rank_get(plan, r, &rank, NULL), FFA_OK);
        most =
            rank.forward_ns + rank.backward_ns > most ? rank.forward_ns + rank.backward_ns : most;
    }
    ffa_parallel_plan_destroy(plan);
    return most;
}

static int32_t best_algorithm(const ffa_mask *mask, int32_t ranks, int64_t chunk_tokens,
                              uint32_t plan_flags, int64_t *chunks)
{
    const ffa_topology topology = { ranks, 0 };
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch *dispatch;

    opts.chunk_tokens = chunk_tokens;
    plan_opts.flags = plan_flags;
    plan_opts.model.heads_q = 64;
    plan_opts.model.heads_kv = 8;
    ck_assert_int_eq(
        ffa_dispatch_create_best(&dispatch, &one, 1, &topology, &opts, &plan_opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, NULL, NULL), FFA_OK);
    *chunks = ffa_dispatch_chunk_count(dispatch);
    ffa_dispatch_destroy(dispatch);
    return report.algorithm;
}

/* Plain causal masks: zigzag, where there is a backward pass. Full ones: as before. */
START_TEST(the_best_dispatch_of_causal_masks_is_zigzag)
{
    for (int32_t ranks = 2; ranks <= 32; ranks *= 2) {
        const int64_t tokens = (int64_t)8192 * ranks;
        const ffa_mask_shape shape = { tokens, tokens };
        ffa_mask *mask = causal(tokens), *all;
        int64_t chunks;

        ck_assert_int_eq(best_algorithm(mask, ranks, 0, 0, &chunks), FFA_DISPATCH_ZIGZAG);
        ck_assert_int_eq(chunks, 2 * ranks);
        ck_assert_int_eq(best_algorithm(mask, ranks, 0, FFA_PARALLEL_FORWARD_ONLY, &chunks),
                         FFA_DISPATCH_MIN_HEAP);
        ck_assert_int_eq(chunks, 8 * ranks);
        (void)best_algorithm(mask, ranks, 512, 0, &chunks); /* the caller's chunks stay */
        ck_assert_int_eq(chunks, 16 * ranks);
        ck_assert_int_eq(ffa_mask_full(&all, &shape, NULL), FFA_OK);
        ck_assert_int_eq(best_algorithm(all, ranks, 0, 0, &chunks), FFA_DISPATCH_MIN_HEAP);
        ffa_mask_destroy(all);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* The best dispatch takes the least time of all; with several masks their sum counts. */
START_TEST(the_best_dispatch_is_done_first)
{
    enum { RANKS = 4, ZIGZAG = 2, BEST = 3 };
    const ffa_topology topology = { RANKS, 2 };
    int64_t differ = 0, zigzags = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rng rng = { seed };
        ffa_mask *a = parallel_random_mask(&rng, 4000, 8), *b = causal(4000);
        const ffa_dispatch_mask masks[] = { { a, rng_range(&rng, 1, 3) }, { b, 1 } };
        int64_t times[BEST + 1], least;
        ffa_dispatch *d;
        ffa_error err = { FFA_OK, 0, "" };

        for (int i = 0; i <= BEST; i++) {
            ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;

            opts.algorithm = i == 1 ? FFA_DISPATCH_MIN_HEAP : FFA_DISPATCH_AFFINITY;
            if (i == ZIGZAG) { /* 4000 tokens: eight chunks of four tiles */
                opts.algorithm = FFA_DISPATCH_ZIGZAG;
                opts.flags = FFA_DISPATCH_CHUNK_EXACT;
                opts.chunk_tokens = 512;
            }
            ck_assert_msg(
                !(i == BEST ? ffa_dispatch_create_best(&d, masks, 2, &topology, NULL, NULL, &err)
                            : ffa_dispatch_create(&d, masks, 2, &topology, &opts, &err)),
                "%s", err.message);
            times[i] = masks[0].weight * slowest_of(d, a, RANKS) + slowest_of(d, b, RANKS);
            ffa_dispatch_destroy(d);
        }
        least = times[0] < times[1] ? times[0] : times[1];
        ck_assert(times[BEST] == least || times[BEST] == times[ZIGZAG]);
        /* Zigzag where it takes a sixteenth less; a tie is not to the nanosecond. */
        ck_assert_int_le(times[BEST], times[ZIGZAG] + least / 15);
        ck_assert_int_le(times[BEST], least + least / 4096 + 1);
        differ += times[0] != times[1];
        zigzags += times[BEST] < least;
        ffa_mask_destroy(a);
        ffa_mask_destroy(b);
    }
    ck_assert_int_ge(differ, 10);
    ck_assert_int_ge(zigzags, 1);
    {
        ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
        ffa_dispatch *d = (ffa_dispatch *)1;
        ffa_error err = { FFA_OK, 0, "" };

        opts.buffers = 9;
        ck_assert_int_eq(ffa_dispatch_create_best(&d, NULL, 1, &topology, NULL, &opts, &err),
                         FFA_INVALID);
        ck_assert_str_eq(err.message, "buffers is 9, not in [2, 3]");
        ck_assert_ptr_null(d);
        ck_assert_int_eq(ffa_dispatch_create_best(&d, NULL, 1, &topology, NULL, NULL, &err),
                         FFA_INVALID);
        ck_assert_str_eq(err.message, "masks is NULL");
    }
}
END_TEST

/* Sixteen queries of many keys: their rows are cheaper to move than the keys. */
START_TEST(few_queries_move)
{
    const ffa_topology topology = { 4, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_full(&mask, &(ffa_mask_shape){ 16, 65536 }, NULL), FFA_OK);
    one.mask = mask;
    opts.keys = FFA_KEYS_DISPATCHED;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    plan_opts.moves = FFA_PARALLEL_MOVE_AUTO;
    plan = plan_of(dispatch, mask, 1, &plan_opts);
    ck_assert_int_eq(plan->moves, FFA_PARALLEL_MOVE_QUERIES);
    ck_assert_int_eq(plan->received_rows, 12);
    ffa_parallel_plan_destroy(plan);
    plan_opts.moves = FFA_PARALLEL_MOVE_KEYS;
    plan = plan_of(dispatch, mask, 1, &plan_opts);
    ck_assert_int_eq(plan->received_rows, 65536 / 4 * 3);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    mask = causal(8192); /* as many queries as keys: keys move */
    dispatch = min_heap(mask, 4, 512);
    plan_opts.moves = FFA_PARALLEL_MOVE_AUTO;
    plan = plan_of(dispatch, mask, 1, &plan_opts);
    ck_assert_int_eq(plan->moves, FFA_PARALLEL_MOVE_KEYS);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Keys that one rank alone attends are its own: nothing is received. */
START_TEST(keys_go_where_they_are_attended)
{
    const int64_t cu_q[] = { 0, 16, 32, 48, 64 }, cu_k[] = { 0, 40, 80, 120, 160 };
    const ffa_topology topology = { 4, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };
    ffa_dispatch *dispatch;
    ffa_mask *mask;

    ck_assert_int_eq(
        ffa_mask_varlen_full(
            &mask, &(ffa_documents){ .cu_q = cu_q, .cu_k = cu_k, .document_count = 4 }, NULL),
        FFA_OK);
    one.mask = mask;
    opts.algorithm = FFA_DISPATCH_MIN_HEAP; /* documents from the last rank to the first */
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.chunk_tokens = 16;
    opts.keys = FFA_KEYS_DISPATCHED;
    opts.key_chunk_tokens = 20;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    for (int32_t r = 0; r < 4; r++) {
        ffa_parallel_plan *plan = plan_of(dispatch, mask, r, NULL);

        ck_assert_int_eq(ffa_dispatch_key_rows(dispatch, r), 40);
        ck_assert_int_eq(plan->received_rows + plan->sent_rows, 0);
        ck_assert_int_eq(plan->area, 16 * 40);
        ffa_parallel_plan_destroy(plan);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* A chunk goes to the rank that attends most of it. */
START_TEST(keys_go_where_most_are_attended)
{
    static const ffa_slice slices[] = {
        { 0, 8, 0, 2, FFA_SLICE_FULL, 0 },   /* of the first chunk: 2 tokens by one rank, */
        { 8, 16, 2, 10, FFA_SLICE_FULL, 0 }, /* 8 by the other */
        { 0, 8, 10, 19, FFA_SLICE_FULL, 0 }, /* of the second: 9 */
        { 8, 16, 19, 20, FFA_SLICE_FULL, 0 },
    };
    const ffa_topology topology = { 2, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch_mask one = { 0 };
    ffa_dispatch_report report = FFA_DISPATCH_REPORT_INIT;
    ffa_dispatch *dispatch;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_create(&mask, &(ffa_mask_shape){ 16, 20 }, slices, 4, NULL), FFA_OK);
    one.mask = mask;
    opts.algorithm = FFA_DISPATCH_SEQUENTIAL;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.chunk_tokens = 8;
    opts.keys = FFA_KEYS_DISPATCHED;
    opts.key_chunk_tokens = 10;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_dispatch_report_get(dispatch, &report, NULL, NULL), FFA_OK);
    ck_assert_int_eq(report.total.received_node, 3);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* One stage: the latency of its farthest rows, and 512 bytes a row over each link. */
START_TEST(a_stage_waits_for_its_farthest_rows)
{
    ffa_mask *mask;
    const ffa_mask_shape shape = { 64, 64 };

    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    for (int32_t width = 2; width <= 4; width += 2) {
        const ffa_topology topology = { 4, width };
        const ffa_dispatch_mask one = { mask, 1 };
        ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
        ffa_dispatch *dispatch;
        ffa_parallel_plan *plan;

        ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
        plan = plan_of(dispatch, mask, 0, NULL);
        ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 0, 1, &stage, NULL), FFA_OK);
        ck_assert_int_eq(stage.rows, 48);
        if (width == 4) /* 48 rows in the node at 250 GB/s */
            ck_assert_int_le(llabs(stage.fetch_end_ns - 13000 - 48 * 512 / 250), 16);
        else /* 16 of them, and 32 at 45 GB/s */
            ck_assert_int_le(llabs(stage.fetch_end_ns - 30000 - 16 * 512 / 250 - 32 * 512 / 45),
                             16);
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
    }
    ffa_mask_destroy(mask);
}
END_TEST

/* What is computed first covers the first fetch, and ends with the tile that does. */
START_TEST(early_tiles_cover_the_first_fetch)
{
    ffa_mask *mask = causal(65536);
    ffa_dispatch *dispatch = min_heap(mask, 8, 1024);
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;

    opts.backward_stages = 4;
    for (int32_t r = 0; r < 8; r++) {
        ffa_parallel_plan *plan = plan_of(dispatch, mask, r, &opts);
        const struct plan_pass *pass = &plan->backward;
        const struct tile_plan *early = &pass->phases[0].key_tiles;
        int64_t sum = 0, last = 0;

        for (int64_t t = 0; t < early->tile_count; t++) {
            const int64_t cells = (int64_t)early->block_counts[t] * early->tile_m * early->tile_n;
            const int64_t ns = model_compute_ns(&plan->opts, 1, cells, true);

            last = ns > last ? ns : last;
            sum += ns;
        }
        ck_assert_int_gt(pass->phases[pass->phase_count - 1].key_tiles.tile_count, 0);
        ck_assert_int_ge(sum, pass->phases[1].fetch_ns);
        ck_assert_int_lt(sum - last, pass->phases[1].fetch_ns);
        ffa_parallel_plan_destroy(plan);
    }
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* A stage is cut for the first wave of a pass that is one launch, which hides little: more stages
 * than where the whole own part hides a fetch, and the first ones smaller. */
START_TEST(one_launch_gets_more_stages)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info staged = FFA_PARALLEL_PLAN_INFO_INIT, whole = staged;
    ffa_parallel_stage first = FFA_PARALLEL_STAGE_INIT, last = FFA_PARALLEL_STAGE_INIT;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plan;
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "full:65536", NULL), FFA_OK);
    dispatch = min_heap(mask, 8, 0);
    opts.model.heads_q = 64;
    opts.model.heads_kv = 8;
    opts.model.forward_gflops = 600000;
    opts.model.backward_gflops = 500000;
    plan = plan_of(dispatch, mask, 0, &opts);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &staged, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    opts.sms = 132;
    plan = plan_of(dispatch, mask, 0, &opts);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &whole, NULL), FFA_OK);
    ck_assert_int_gt(whole.forward_stages, staged.forward_stages);
    ck_assert_int_gt(whole.forward_stages, 3);
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 0, 1, &first, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 0, whole.forward_stages, &last, NULL),
                     FFA_OK);
    ck_assert_int_lt(first.rows, whole.received_rows / 3);
    ck_assert_int_lt(last.rows, whole.received_rows / 3);
    ffa_parallel_plan_destroy(plan);
    opts.sms = 4097;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, &opts, NULL), FFA_INVALID);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- save and load ---- */

static ffa_parallel_plan *drawn(uint64_t seed, ffa_dispatch **dispatch, ffa_mask **mask)
{
    struct rng rng = { seed };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    const int64_t tokens = rng_range(&rng, 20, 64);

    *mask = parallel_random_mask(&rng, tokens, 6);
    while (ffa_mask_area(*mask, 0) == 0) {
        ffa_mask_destroy(*mask);
        *mask = parallel_random_mask(&rng, tokens, 6);
    }
    *dispatch = min_heap(*mask, 3, 4);
    opts.tile_m = (int32_t)rng_range(&rng, 1, 16);
    opts.stage_rows_min = rng_range(&rng, 1, 8);
    opts.moves = (int32_t)rng_range(&rng, 0, 2);
    opts.sms = seed % 3 ? 0 : (int32_t)rng_range(&rng, 1, 8);
    return plan_of(*dispatch, *mask, (int32_t)rng_range(&rng, 0, 2), &opts);
}

static void check_same(const ffa_parallel_plan *a, const ffa_parallel_plan *b)
{
    ffa_parallel_plan_info x = FFA_PARALLEL_PLAN_INFO_INIT, y = FFA_PARALLEL_PLAN_INFO_INIT;

    ck_assert_str_eq(ffa_parallel_plan_digest(a), ffa_parallel_plan_digest(b));
    ck_assert_int_eq(ffa_parallel_plan_info_get(a, &x, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_info_get(b, &y, NULL), FFA_OK);
    ck_assert_int_eq(memcmp(&x, &y, sizeof x), 0);
}

START_TEST(saved_plans_load)
{
    ffa_error err = { FFA_OK, 0, "" };

    for (uint64_t seed = 1; seed <= 40; seed++) {
        ffa_dispatch *dispatch;
        ffa_mask *mask;
        ffa_parallel_plan *plan = drawn(seed, &dispatch, &mask), *loaded;
        void *bytes, *again;
        size_t count, count_again;

        ck_assert_int_eq(ffa_parallel_plan_save(plan, &bytes, &count, &err), FFA_OK);
        ck_assert_msg(!ffa_parallel_plan_load(&loaded, bytes, count, &err), "%s", err.message);
        check_same(plan, loaded);
        ck_assert_int_eq(ffa_parallel_plan_save(loaded, &again, &count_again, &err), FFA_OK);
        ck_assert_uint_eq(count, count_again);
        ck_assert_int_eq(memcmp(bytes, again, count), 0);
        ffa_parallel_plan_destroy(loaded);
        for (size_t cut = 0; cut < count && seed <= 10; cut++) {
            ck_assert_int_eq(ffa_parallel_plan_load(&loaded, bytes, cut, &err), FFA_INVALID);
            ck_assert_ptr_null(loaded);
        }
        for (size_t flip = 0; flip < count && seed <= 2; flip++) {
            ffa_status rc;

            ((unsigned char *)bytes)[flip] ^= (unsigned char)(1 + seed);
            rc = ffa_parallel_plan_load(&loaded, bytes, count, &err);
            ck_assert(rc == FFA_INVALID || rc == FFA_UNSUPPORTED || rc == FFA_OK);
            if (rc == FFA_OK) /* the rank: no part of the digest, which all ranks share */
                ck_assert_str_eq(ffa_parallel_plan_digest(loaded), ffa_parallel_plan_digest(plan));
            ffa_parallel_plan_destroy(loaded);
            ((unsigned char *)bytes)[flip] ^= (unsigned char)(1 + seed);
        }
        ffa_free(bytes);
        ffa_free(again);
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
    {
        ffa_parallel_plan *plan;

        ck_assert_int_eq(ffa_parallel_plan_load(&plan, "something else", 14, &err), FFA_INVALID);
        ck_assert_str_eq(err.message, "no saved plan: it does not begin with FFAPLAN");
    }
}
END_TEST

/* ---- what a plan says of itself ---- */

START_TEST(timelines_end_with_the_pass)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        ffa_dispatch *dispatch;
        ffa_mask *mask;
        ffa_parallel_plan *plan = drawn(seed, &dispatch, &mask);
        ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;

        ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
        for (int32_t pass = 0; pass < 2; pass++) {
            const int32_t stages = pass ? info.backward_stages : info.forward_stages;
            int64_t end = 0, rows = 0;
            ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;

            for (int32_t i = 0; i <= stages + pass; i++) {
                ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, pass, i, &stage, NULL), FFA_OK);
                ck_assert_int_le(stage.fetch_begin_ns, stage.fetch_end_ns);
                ck_assert_int_le(stage.fetch_end_ns, stage.compute_begin_ns);
                ck_assert_int_le(stage.compute_begin_ns, stage.compute_end_ns);
                ck_assert_int_le(stage.compute_end_ns, stage.reduce_begin_ns);
                ck_assert_int_le(stage.reduce_begin_ns, stage.reduce_end_ns);
                end = stage.compute_end_ns > end ? stage.compute_end_ns : end;
                end = stage.reduce_end_ns > end ? stage.reduce_end_ns : end;
                rows += stage.rows;
            }
            ck_assert_int_eq(
                ffa_parallel_plan_stage_get(plan, pass, stages + pass + 1, &stage, NULL),
                FFA_INVALID);
            ck_assert_int_eq(rows, info.received_rows);
            ck_assert_msg(end == (pass ? info.backward_ns : info.forward_ns),
                          "seed %llu: the stages end at %lld, the pass at %lld",
                          (unsigned long long)seed, (long long)end,
                          (long long)(pass ? info.backward_ns : info.forward_ns));
        }
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(forward_only_plans_have_no_backward)
{
    ffa_mask *mask = causal(64);
    ffa_dispatch *dispatch = min_heap(mask, 4, 8);
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_plan *plan;
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    ffa_parallel_rank rank = FFA_PARALLEL_RANK_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.flags = FFA_PARALLEL_FORWARD_ONLY;
    plan = plan_of(dispatch, mask, 2, &opts);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ck_assert_int_eq(info.backward_stages + info.backward_ns + info.backward_bytes, 0);
    ck_assert_int_gt(info.forward_ns, 0);
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 1, 0, &stage, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "stage is 0, not in [0, 0)");
    ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, 2, 0, &stage, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "is_backward is 2, not 0 or 1");
    ck_assert_int_eq(ffa_parallel_plan_rank_get(plan, 4, &rank, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "rank is 4, not in [0, 4)");
    ck_assert_int_eq(ffa_parallel_plan_receive_count(plan, 1, 1), 0);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* Every stage's receive buffer is filled once, in order, from rows that their owners have. */
START_TEST(stages_say_what_they_receive)
{
    ffa_mask *mask = causal(8192);
    ffa_dispatch *dispatch = min_heap(mask, 4, 256);
    ffa_parallel_plan *plan = plan_of(dispatch, mask, 3, NULL);
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_stage stage = FFA_PARALLEL_STAGE_INIT;
    ffa_parallel_receive none = FFA_PARALLEL_RECEIVE_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    int64_t rows = 0;

    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ck_assert_int_gt(info.forward_stages, 0);
    for (int back = 0; back < 2; back++)
        for (int32_t s = 1; s <= (back ? info.backward_stages : info.forward_stages); s++) {
            const int64_t count = ffa_parallel_plan_receive_count(plan, back, s);
            int64_t row = 0;

            ck_assert_int_gt(count, 0);
            for (int64_t i = 0; i < count; i++) {
                ffa_parallel_receive got = FFA_PARALLEL_RECEIVE_INIT;

                ck_assert_int_eq(ffa_parallel_plan_receive_get(plan, back, s, i, &got, NULL),
                                 FFA_OK);
                ck_assert_int_eq(got.row, row);
                ck_assert_int_ne(got.source, info.rank);
                ck_assert_int_ge(got.source_row, 0);
                ck_assert_int_le(got.source_row + got.rows,
                                 ffa_dispatch_key_rows(dispatch, got.source));
                row += got.rows;
            }
            ck_assert_int_eq(ffa_parallel_plan_receive_get(plan, back, s, count, &none, &err),
                             FFA_INVALID);
            ck_assert_ptr_nonnull(strstr(err.message, "runs of rows"));
            ck_assert_int_eq(ffa_parallel_plan_stage_get(plan, back, s, &stage, NULL), FFA_OK);
            ck_assert_int_eq(stage.rows, row);
            rows += back ? 0 : row;
        }
    ck_assert_int_eq(rows, info.received_rows);
    ck_assert_int_eq(ffa_parallel_plan_receive_count(plan, 0, 0), 0);
    ck_assert_int_eq(ffa_parallel_plan_receive_count(plan, 0, info.forward_stages + 1), 0);
    ck_assert_int_eq(ffa_parallel_plan_receive_count(NULL, 0, 1), 0);
    ck_assert_int_eq(ffa_parallel_plan_receive_get(plan, 0, 1, -1, &none, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_parallel_plan_receive_get(NULL, 0, 1, 0, &none, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "plan is NULL");
    none.struct_size = 0;
    ck_assert_int_eq(ffa_parallel_plan_receive_get(plan, 0, 1, 0, &none, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "struct_size is 0"));
    ck_assert_int_eq(info.model.heads_q, 8);
    ck_assert_int_eq(info.model.head_dim, 128);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- growth ---- */

/* Causal tokens in chunks of 128 on 8 ranks: the bands of the middle rank's phases, and its copies.
 * Rows of a chunk attend nearly all keys before them, which lie in as many spans as there are
 * chunks: a band for each would be quadratic. */
static int64_t parts_of_plan(int64_t chunks, char digest[40])
{
    ffa_mask *mask = causal(chunks * 128);
    ffa_dispatch *dispatch = min_heap(mask, 8, 128);
    ffa_parallel_plan *plan = plan_of(dispatch, mask, 4, NULL);
    int64_t parts = 0;

    for (int back = 0; back < 2; back++) {
        const struct plan_pass *pass = back ? &plan->backward : &plan->forward;

        for (int32_t p = 0; p < pass->phase_count; p++)
            parts += pass->phases[p].lists[0].count + pass->phases[p].receives.count;
        for (int32_t s = 0; s < pass->step_count; s++)
            parts += pass->sends[s].count;
    }
    (void)snprintf(digest, 40, "%s", ffa_parallel_plan_digest(plan));
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
    return parts;
}

/* Digests are those of the planner that had a table of pairs of piece and receiver. */
START_TEST(plans_grow_with_chunks)
{
    char small[40], large[40];
    const int64_t before = parts_of_plan(2048, small), after = parts_of_plan(16384, large);

    printf("2048 chunks: %lld bands and copies, 16384: %lld\n", (long long)before,
           (long long)after);
    ck_assert_int_le(after, 9 * before);
    ck_assert_str_eq(small, "e9486909c14662fb783cc08531217fe3");
    ck_assert_str_eq(large, "1bb6898f0fd39d82110c17f080a25f69");
}
END_TEST

/* A chunk a key and a rank a few chunks: as dense as it gets is refused before it is built. */
START_TEST(too_many_receives_are_named)
{
    const ffa_topology topology = { 4096, 8 };
    ffa_mask *mask = causal(1 << 20);
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;
    ffa_dispatch *dispatch;

    opts.algorithm = FFA_DISPATCH_ZIGZAG;
    opts.chunk_tokens = 1;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, dispatch, mask, 0, NULL, &err),
                     FFA_UNSUPPORTED);
    ck_assert_ptr_null(plan);
    ck_assert_ptr_nonnull(strstr(err.message, "1048576 chunks of keys on 4096 ranks: "));
    ck_assert_ptr_nonnull(strstr(err.message, "at most 268435456: choose larger chunks"));
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- allocation faults ---- */

START_TEST(every_allocation_may_fail)
{
    const ffa_topology topology = { 3, 2 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_mask *mask, *square = causal(60);
    ffa_dispatch_mask one = { 0 };
    ffa_parallel_cache *cache;
    int64_t failures = 0;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ 40, 50 }, NULL), FFA_OK);
    one.mask = mask;
    opts.keys = FFA_KEYS_DISPATCHED;
    plan_opts.moves = FFA_PARALLEL_MOVE_AUTO;
    plan_opts.stage_rows_min = 1;
    ck_assert_int_eq(ffa_parallel_cache_create(&cache, 4, NULL), FFA_OK);
    for (long nth = 1;; nth++) {
        ffa_dispatch *dispatch = NULL, *best = NULL;
        ffa_parallel_plan *plan = NULL, *loaded = NULL;
        ffa_parallel_cache *fresh = NULL;
        ffa_error err = { FFA_OK, 0, "" };
        void *bytes = NULL;
        size_t count = 0;
        ffa_status rc;
        bool has_fired;

        fault_arm(FAULT_ALLOC, nth);
        rc = ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, &err);
        if (rc == FFA_OK)
            rc = ffa_parallel_plan_create(&plan, dispatch, mask, 1, &plan_opts, &err);
        if (rc == FFA_OK)
            rc = ffa_parallel_plan_save(plan, &bytes, &count, &err);
        if (rc == FFA_OK)
            rc = ffa_parallel_plan_load(&loaded, bytes, count, &err);
        if (rc == FFA_OK) {
            const ffa_dispatch_mask two = { square, 1 };

            rc = ffa_dispatch_create_best(&best, &two, 1, &topology, NULL, NULL, &err);
        }
        if (rc == FFA_OK)
            rc = ffa_parallel_cache_create(&fresh, 4, &err);
        has_fired = fault_fired();
        fault_arm(FAULT_ALLOC, 0);
        ck_assert_int_eq(rc, has_fired ? FFA_NOMEM : FFA_OK);
        ck_assert(!has_fired || !strncmp(err.message, "no memory for ", 14));
        failures += has_fired;
        ffa_parallel_cache_destroy(fresh);
        ffa_parallel_plan_destroy(loaded);
        ffa_dispatch_destroy(best);
        ffa_free(bytes);
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
        if (!has_fired)
            break;
    }
    ck_assert_int_ge(failures, 100);
    ffa_parallel_cache_destroy(cache);
    ffa_mask_destroy(square);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rank plan");
    TCase *tc = tcase_create("rank plan");
    int failed;

    cases = parallel_cases_load();
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, stage_plans_of_the_reference);
    tcase_add_loop_test(tc, pipelines_of_the_reference, 0,
                        (int)json_array_size(json_object_get(cases, "pipeline")));
    tcase_add_loop_test(tc, bad_options_are_named, 0, sizeof bad_rows / sizeof *bad_rows);
    tcase_add_test(tc, bad_arguments_are_named);
    tcase_add_test(tc, digests_tell_inputs_apart);
    tcase_add_test(tc, a_free_choice_is_the_best);
    tcase_add_test(tc, times_end_somewhere);
    tcase_add_test(tc, the_best_dispatch_is_done_first);
    tcase_add_test(tc, the_best_dispatch_of_causal_masks_is_zigzag);
    tcase_add_test(tc, few_queries_move);
    tcase_add_test(tc, keys_go_where_they_are_attended);
    tcase_add_test(tc, keys_go_where_most_are_attended);
    tcase_add_test(tc, a_stage_waits_for_its_farthest_rows);
    tcase_add_test(tc, early_tiles_cover_the_first_fetch);
    tcase_add_test(tc, one_launch_gets_more_stages);
    tcase_add_test(tc, saved_plans_load);
    tcase_add_test(tc, timelines_end_with_the_pass);
    tcase_add_test(tc, forward_only_plans_have_no_backward);
    tcase_add_test(tc, stages_say_what_they_receive);
    tcase_add_test(tc, plans_grow_with_chunks);
    tcase_add_test(tc, too_many_receives_are_named);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    failed = suite_run(suite);
    json_decref(cases);
    return failed;
}
