/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans under a cap of memory: it is obeyed by every rank, every key is received once, in a round
 * whose half of the ring has room for it, every cell is computed once, and a cap that cannot be
 * obeyed names the least that can. What a plan counts for workspaces is enough for the kernels of
 * any spec.
 */
#include "attention/arriving.h"
#include "jit/jit.h"
#include "parallel/device/pass_totals.h"
#include "parallel/plan/rank_plan.h"
#include "parallel/plan/time_model.h"
#include "support/coverage.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { RANKS = 8, TOKENS = 1 << 20 };
#define GIB ((int64_t)1 << 30)

struct world {
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan_opts opts;
};

static void world_init(struct world *w, int64_t tokens, int32_t heads_q, int32_t heads_kv)
{
    const ffa_mask_shape shape = { tokens, tokens };
    const ffa_topology topology = { RANKS, RANKS };
    ffa_dispatch_mask one = { .weight = 1 };

    *w = (struct world){ .opts = FFA_PARALLEL_PLAN_OPTS_INIT };
    w->opts.model.heads_q = heads_q;
    w->opts.model.heads_kv = heads_kv;
    w->opts.model.head_dim = 128;
    w->opts.sms = 132;
    ck_assert_int_eq(ffa_mask_full(&w->mask, &shape, NULL), FFA_OK);
    one.mask = w->mask;
    ck_assert_int_eq(ffa_dispatch_create(&w->dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
}

static void world_finish(struct world *w)
{
    ffa_dispatch_destroy(w->dispatch);
    ffa_mask_destroy(w->mask);
}

static ffa_parallel_plan *plan_of(const struct world *w, int32_t rank, uint32_t flags)
{
    ffa_parallel_plan_opts opts = w->opts;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;

    opts.flags |= flags;
    ck_assert_msg(!ffa_parallel_plan_create(&plan, w->dispatch, w->mask, rank, &opts, &err), "%s",
                  err.message);
    return plan;
}

static ffa_parallel_plan_info info_of(const ffa_parallel_plan *plan)
{
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;

    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    return info;
}

/* Chunks [begin, end) of keys, as tokens, from where the source has them. */
static void mark_received(uint8_t *seen, const struct layout *keys,
                          const struct transfer_copy *copy)
{
    int64_t row = copy->source_row, left = copy->rows, twice = 0;

    for (int64_t i = keys->rank_begin[copy->source]; i < keys->rank_begin[copy->source + 1]; i++) {
        const int64_t chunk = keys->rank_chunks[i];
        const int64_t rows = keys->bounds[chunk + 1] - keys->bounds[chunk];
        const int64_t skip = row - keys->local[chunk];

        if (left == 0 || skip < 0 || skip >= rows)
            continue;
        for (int64_t j = skip; j < rows && left > 0; j++, left--, row++) {
            twice += seen[keys->bounds[chunk] + j];
            seen[keys->bounds[chunk] + j] = 1;
        }
    }
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(twice, 0);
}

/* Every key of another rank comes once, and fits. */
static void check_receives(const ffa_parallel_plan *plan, const struct plan_pass *pass)
{
    uint8_t *seen = calloc(TOKENS, 1);
    int64_t count = 0;

    for (int32_t s = 1; s <= pass->stage_count; s++) {
        const struct plan_phase *phase = &pass->phases[s];

        ck_assert_int_le(phase->rows, pass->half_rows ? pass->half_rows : TOKENS);
        for (int64_t i = 0; i < phase->receives.count; i++)
            mark_received(seen, &plan->keys, &phase->receives.at[i]);
    }
    for (int64_t k = 0; k < TOKENS; k++)
        count += seen[k];
    ck_assert_int_eq(count, TOKENS - plan->keys.rank_tokens[plan->rank]);
    free(seen);
}

/* Every phase computes its rows with all of its keys. */
static void check_cells(const ffa_parallel_plan *plan)
{
    const int64_t rows = plan->queries.rank_tokens[plan->rank];

    for (int32_t p = 0; p < plan->forward.phase_count; p++) {
        const struct plan_phase *phase = &plan->forward.phases[p];
        const ffa_slice all = { 0, rows, 0, phase->rows, FFA_SLICE_FULL, 0 };
        const ffa_slice_list list = { &all, 1 };
        struct coverage_text why;

        ck_assert_msg(coverage_lines(&phase->tiles, &list, &why), "%s", why.at);
    }
}

/* What others sum of a rank's keys in one round fits, too. */
static void check_sums(const ffa_parallel_plan *plan)
{
    for (int32_t s = 0; s < plan->backward.step_count; s++) {
        int64_t rows = 0;

        for (int64_t i = 0; i < plan->backward.sends[s].count; i++)
            rows += plan->backward.sends[s].at[i].rows;
        if (plan->in_rounds)
            ck_assert_int_le(rows, plan->memory.received_sums);
    }
}

static void check_ranks(const struct world *w, bool in_rounds)
{
    int64_t most = 0, said = 0;

    for (int32_t r = 0; r < RANKS; r++) {
        ffa_parallel_plan *plan = plan_of(w, r, FFA_PARALLEL_OUTLINE);
        const ffa_parallel_plan_info info = info_of(plan);

        ck_assert_int_eq(info.rounds > 1, in_rounds);
        ck_assert_int_le(info.memory_bytes, info.memory_most_bytes);
        ck_assert_int_le(info.memory_most_bytes, w->opts.memory_bytes);
        ck_assert_int_eq(info.memory_bytes, info.key_bytes + info.sum_bytes + info.workspace_bytes);
        ck_assert_int_ge(info.forward_ns, info.forward_work_ns / RANKS);
        most = info.memory_bytes > most ? info.memory_bytes : most;
        said = info.memory_most_bytes;
        check_receives(plan, &plan->forward);
        check_receives(plan, &plan->backward);
        check_sums(plan);
        ffa_parallel_plan_destroy(plan);
    }
    ck_assert_int_eq(most, said);
}

START_TEST(a_million_tokens)
{
    struct world w;

    world_init(&w, TOKENS, 64, 8);
    w.opts.memory_bytes = 6 * GIB;
    check_ranks(&w, true);
    world_finish(&w);
    world_init(&w, TOKENS, 8, 1);
    w.opts.memory_bytes = 6 * GIB;
    check_ranks(&w, false);
    w.opts.memory_bytes = GIB;
    check_ranks(&w, true);
    world_finish(&w);
}
END_TEST

START_TEST(every_cell_once)
{
    ffa_parallel_plan *plan;
    struct world w;

    world_init(&w, TOKENS, 8, 1);
    w.opts.memory_bytes = GIB;
    plan = plan_of(&w, 3, 0);
    ck_assert_int_ge(info_of(plan).rounds, 2);
    check_cells(plan);
    ffa_parallel_plan_destroy(plan);
    world_finish(&w);
}
END_TEST

/* The message of a refused cap has the least that is not refused. */
START_TEST(the_least)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan = NULL;
    long long asked, least;
    struct world w;

    world_init(&w, 1 << 16, 8, 1);
    w.opts.memory_bytes = 1 << 20;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, w.dispatch, w.mask, 0, &w.opts, &err),
                     FFA_INVALID);
    ck_assert_int_eq(
        sscanf(err.message, "memory_bytes is %lld, the plan needs %lld", &asked, &least), 2);
    ck_assert_int_eq(asked, 1 << 20);
    w.opts.memory_bytes = least - 1;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, w.dispatch, w.mask, 0, &w.opts, &err),
                     FFA_INVALID);
    w.opts.memory_bytes = least;
    plan = plan_of(&w, 0, 0);
    ck_assert_int_eq(info_of(plan).memory_most_bytes, least);
    ck_assert_int_ge(info_of(plan).rounds, 2);
    ffa_parallel_plan_destroy(plan);
    world_finish(&w);
}
END_TEST

START_TEST(refused)
{
    const struct {
        int32_t buffers, moves;
        int64_t bytes;
        const char *message;
    } bad[] = {
        { 3, FFA_PARALLEL_MOVE_KEYS, GIB, "memory_bytes is given with buffers 3" },
        { 0, FFA_PARALLEL_MOVE_QUERIES, GIB, "memory_bytes is given with queries that move" },
        { 0, FFA_PARALLEL_MOVE_KEYS, -1, "memory_bytes is -1, not in [0, " },
    };
    struct world w;

    world_init(&w, 4096, 8, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_parallel_plan *plan;

        w.opts.buffers = bad[i].buffers;
        w.opts.moves = bad[i].moves;
        w.opts.memory_bytes = bad[i].bytes;
        ck_assert_int_eq(ffa_parallel_plan_create(&plan, w.dispatch, w.mask, 0, &w.opts, &err),
                         FFA_INVALID);
        ck_assert_msg(!strncmp(err.message, bad[i].message, strlen(bad[i].message)), "%s",
                      err.message);
    }
    world_finish(&w);
}
END_TEST

/* A saved plan has its cap, and a cap is in the digest. */
START_TEST(saved)
{
    ffa_parallel_plan *plan, *uncapped, *loaded;
    struct world w;
    size_t count;
    void *bytes;

    world_init(&w, 1 << 16, 8, 1);
    uncapped = plan_of(&w, 2, 0);
    w.opts.memory_bytes = info_of(uncapped).memory_bytes - 1;
    plan = plan_of(&w, 2, 0);
    ck_assert_int_ge(info_of(plan).rounds, 2);
    ck_assert_str_ne(ffa_parallel_plan_digest(plan), ffa_parallel_plan_digest(uncapped));
    ck_assert_int_eq(ffa_parallel_plan_save(plan, &bytes, &count, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_load(&loaded, bytes, count, NULL), FFA_OK);
    ck_assert_int_eq(info_of(loaded).memory_bytes, info_of(plan).memory_bytes);
    ffa_free(bytes);
    ffa_parallel_plan_destroy(loaded);
    ffa_parallel_plan_destroy(plan);
    ffa_parallel_plan_destroy(uncapped);
    world_finish(&w);
}
END_TEST

/* The least cap of the world's plan. */
static int64_t least_of(struct world *w)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan;
    long long least = 0;

    w->opts.memory_bytes = 1;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, w->dispatch, w->mask, 0, &w->opts, &err),
                     FFA_INVALID);
    ck_assert_int_eq(sscanf(err.message, "memory_bytes is 1, the plan needs %lld", &least), 1);
    return least;
}

/* Tiles that take for ever to begin, forward in each round: a round takes its longest time, and a
 * plan of one launch is made. */
START_TEST(slow_begins)
{
    ffa_parallel_plan_info info;
    ffa_parallel_plan *plan;
    struct world w;

    world_init(&w, TOKENS, 1024, 1);
    w.opts.model.head_dim = 1024;
    w.opts.model.forward_gflops = w.opts.model.backward_gflops = 1;
    w.opts.forward_begin_keys = w.opts.backward_begin_rows = 65536;
    w.opts.memory_bytes = least_of(&w);
    plan = plan_of(&w, 0, FFA_PARALLEL_OUTLINE);
    info = info_of(plan);
    ck_assert_int_ge(info.rounds, 64);
    ck_assert_int_lt(info.forward_ns, (int64_t)info.rounds * (MODEL_NS_MAX / 4));
    ck_assert_int_lt(info.backward_ns, (int64_t)info.rounds * (MODEL_NS_MAX / 4));
    ffa_parallel_plan_destroy(plan);
    w.opts.memory_bytes = 0;
    plan = plan_of(&w, 0, FFA_PARALLEL_OUTLINE);
    ck_assert_int_eq(info_of(plan).rounds, 1);
    ffa_parallel_plan_destroy(plan);
    world_finish(&w);
}
END_TEST

/* ---- workspaces ---- */

/* Kernels of a spec as a device would have them, without code: nothing is launched. */
static void kernels_of(struct ffa_kernels *out, struct kernel_list *list,
                       const ffa_attention_spec *spec)
{
    static char place;
    const struct device_facts facts = { .sm_count = 132, .l2_bytes = 50 << 20 };
    const struct choose_device device = choose_device_of(&facts);
    const struct jit_arch *arch;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(jit_arch_find(&arch, JIT_ARCH_DEFAULT, &err), FFA_OK);
    ck_assert_msg(kernels_outline(out, list, spec, arch->name, &device, &err) == FFA_OK, "%s",
                  err.message);
    out->forward[0].kernel = (struct gpu_kernel *)(void *)&place;
}

/* The plan of a pass of `rows` query rows over as many keys as a tile has. */
static ffa_plan *launch_of(const struct ffa_kernels *kernels, int64_t rows, bool is_backward)
{
    enum { KEYS = 128 };
    const int64_t end = KEYS;
    struct band all = { 0, rows, 0, KEYS, BAND_LO_NONE, BAND_HI_NONE };
    const struct bands list = { &all, band_shrink(&all), 0 };
    const struct arriving_keys keys = { .shape = { rows, KEYS },
                                        .lists = &list,
                                        .list_count = 1,
                                        .stage_count = 1,
                                        .stage_ends = &end };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_plan *plan;

    ck_assert_msg(plan_create_arriving(&plan, kernels, &keys, is_backward, &err) == FFA_OK, "%s",
                  err.message);
    return plan;
}

/* What launches of a rank with `rows` query rows ask for, but for sums that it receives. */
static int64_t asked_bytes(const struct ffa_kernels *kernels, int64_t rows, int32_t heads_q,
                           int32_t heads_kv, bool is_backward)
{
    struct ffa_parallel_pass pass = {
        .rank_count = RANKS, .tokens_q = rows, .in_rounds = true, .forward = { .count = 2 }
    };
    ffa_plan *plan = launch_of(kernels, rows, is_backward);
    struct backward_layout layout = { .bytes = 0 };
    ffa_error err = { FFA_OK, 0, "" };
    int64_t bytes;

    ck_assert_int_eq(ffa_workspace_bytes(kernels, plan, &bytes, &err), FFA_OK);
    if (is_backward)
        ck_assert_int_eq(backward_layout_make(&layout, plan, kernels, heads_q, heads_kv, 132, &err),
                         FFA_OK);
    ffa_plan_destroy(plan);
    return max64(bytes, layout.bytes) + pass_totals_bytes(&pass, kernels, is_backward, heads_q) +
           pass_fp32_bytes(&pass, kernels, heads_q, heads_kv, is_backward);
}

/* What a plan counts for them. */
static int64_t counted_bytes(const struct ffa_kernels *kernels, int64_t rows, int32_t heads_q,
                             int32_t heads_kv, bool is_backward)
{
    const struct layout layout = { .rank_tokens = &rows };
    const ffa_parallel_plan_opts opts = { .flags = is_backward ? 0 : FFA_PARALLEL_FORWARD_ONLY,
                                          .model = { .heads_q = heads_q,
                                                     .heads_kv = heads_kv,
                                                     .head_dim = kernels->head_dim,
                                                     .element_bytes = 2 },
                                          .head_dim_v = kernels->head_dim_v };
    const struct rounds_input in = { .queries = &layout, .keys = &layout, .opts = &opts };

    /* (Not in rounds the forward pass has less than the backward one.) */
    return rounds_memory(&in, 0, 0, 0, !is_backward).workspace_bytes;
}

static const int32_t dims[] = { 8, 64, 72, 96, 104, 128, 136, 192, 200, 256 };
enum { DIMS = sizeof dims / sizeof *dims };

static void check_workspaces(const ffa_attention_spec *spec)
{
    /* Of many rows semaphores are more than what the row statistics of few have to spare. */
    static const int64_t rows[] = { 0, 1, 7, 64, 65, 129, 1 << 15 };
    static const int32_t heads[][2] = { { 1, 1 }, { 12, 2 }, { 64, 8 } };
    struct kernel_list list;
    struct ffa_kernels kernels;

    kernels_of(&kernels, &list, spec);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            for (int backward = 0; backward <= 1; backward++) {
                const int64_t asked =
                    asked_bytes(&kernels, rows[i], heads[h][0], heads[h][1], backward);
                const int64_t counted =
                    counted_bytes(&kernels, rows[i], heads[h][0], heads[h][1], backward);

                ck_assert_msg(counted >= asked,
                              "head_dim %d and %d, dtype %d, flags 0x%x, %lld rows, heads %d and "
                              "%d, backward %d: %lld bytes, launches ask for %lld",
                              spec->head_dim, spec->head_dim_v, (int)spec->dtype, spec->flags,
                              (long long)rows[i], heads[h][0], heads[h][1], backward,
                              (long long)counted, (long long)asked);
            }
}

/* The formulas of rounds.c are at least what kernels ask for, whatever their spec. */
START_TEST(workspaces_are_enough)
{
    static const uint32_t flags[] = { 0, FFA_SPEC_DETERMINISTIC, FFA_SPEC_SOFTCAP };

    for (int v = 0; v < DIMS; v++)
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            for (int dtype = FFA_BF16; dtype <= FFA_FP16; dtype++) {
                ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

                spec.head_dim = dims[_i];
                spec.head_dim_v = dims[v];
                spec.dtype = (ffa_dtype)dtype;
                spec.flags = FFA_SPEC_BACKWARD | FFA_SPEC_PARALLEL | FFA_SPEC_STAGED |
                             FFA_SPEC_MAX_LOGITS | flags[f];
                check_workspaces(&spec);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rounds");
    TCase *tc = tcase_create("rounds");

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_million_tokens);
    tcase_add_test(tc, every_cell_once);
    tcase_add_test(tc, the_least);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, saved);
    tcase_add_test(tc, slow_begins);
    tcase_add_loop_test(tc, workspaces_are_enough, 0, DIMS);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
