/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of all ranks on random masks (one list or several, self- and cross-attention, keys or
 * queries moving), executed in integers: forward and backward, every attended
 * cell is computed once, by a rank that has its row, in a phase that has its key; every row
 * received is used there and received once; what ranks send is what others receive; flags say
 * first and last; own key tiles are computed once; every rank finds the same digest. The same for
 * the cells of each rank in its key window. A failure prints the seed.
 */
#include "mask/band_mask.h"
#include "parallel/plan/rank_plan_local.h"
#include "support/parallel_run.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { TOKENS_HERE = 96, RANKS_HERE = 9, LISTS_HERE = 3, RANDOM_MASKS = 2000, PARTS = 4 };

struct trial {
    uint64_t seed;
    int64_t tokens_q, tokens_k;
    int32_t ranks, lists;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    ffa_parallel_plan *plans[RANKS_HERE];
    bool attends[LISTS_HERE][TOKENS_HERE][TOKENS_HERE];
    uint8_t cells[LISTS_HERE][TOKENS_HERE][TOKENS_HERE]; /* computed so far */
};

#define CHECK(trial, claim)                                                                        \
    do {                                                                                           \
        if (!(claim))                                                                              \
            ck_abort_msg("seed %llu: %s", (unsigned long long)(trial)->seed, #claim);              \
    } while (0)

static void draw_options(struct rng *rng, ffa_parallel_plan_opts *opts)
{
    opts->tile_m = (int32_t)rng_range(rng, 1, 24);
    opts->tile_n = (int32_t)rng_range(rng, 1, 24);
    opts->backward_m = (int32_t)rng_range(rng, 1, 24);
    opts->backward_n = (int32_t)rng_range(rng, 1, 24);
    opts->forward_stages = (int32_t)rng_range(rng, -1, 5);
    opts->backward_stages = (int32_t)rng_range(rng, -1, 5);
    opts->stages_max = (int32_t)rng_range(rng, 1, 8);
    opts->buffers = (int32_t)rng_range(rng, 2, 3);
    opts->stage_rows_min = rng_range(rng, 1, 6);
    opts->model.node_latency_ns = rng_range(rng, 1, 20);
    opts->model.network_latency_ns = rng_range(rng, 1, 40);
    opts->model.launch_ns = rng_range(rng, 1, 10);
    opts->model.heads_q = 64;
    opts->model.heads_kv = 64;
    opts->model.backward_gflops = rng_range(rng, 1, 300) * rng_range(rng, 1, 300);
    opts->moves = (int32_t)rng_range(rng, FFA_PARALLEL_MOVE_KEYS, FFA_PARALLEL_MOVE_AUTO);
    opts->model.forward_gflops = rng_range(rng, 1, 1000) * 1000;
    opts->sms = rng_range(rng, 0, 2) ? 0 : (int32_t)rng_range(rng, 1, 9);
}

static ffa_mask *random_mask(struct trial *trial, struct rng *rng)
{
    const ffa_mask_shape shape = { trial->tokens_q, trial->tokens_k };
    ffa_slice slices[LISTS_HERE][12] = { { { 0 } } };
    ffa_slice_list lists[LISTS_HERE];
    ffa_mask *mask;

    for (int32_t l = 0; l < trial->lists; l++) {
        lists[l] = (ffa_slice_list){ slices[l], rng_range(rng, 0, 12) };
        for (int64_t i = 0; i < lists[l].count; i++) {
            ffa_slice *slice = &slices[l][i];

            slice->q_begin = rng_range(rng, 0, trial->tokens_q);
            slice->q_end = rng_range(rng, slice->q_begin, trial->tokens_q);
            slice->k_begin = rng_range(rng, 0, trial->tokens_k);
            slice->k_end = rng_range(rng, slice->k_begin, trial->tokens_k);
            slice->type = (int32_t)rng_range(rng, 0, 3);
        }
    }
    ck_assert_int_eq(ffa_mask_create_per_head(&mask, &shape, lists, trial->lists, NULL), FFA_OK);
    return mask;
}

/* A cap under what the ranks need together, or none where nothing so small will do. */
static void draw_memory(struct trial *trial, struct rng *rng, ffa_parallel_plan_opts *opts)
{
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;
    ffa_parallel_plan *plan;

    opts->buffers = 2;
    opts->moves = FFA_PARALLEL_MOVE_KEYS;
    ck_assert_int_eq(ffa_parallel_plan_create(&plan, trial->dispatch, trial->mask, 0, opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    ffa_parallel_plan_destroy(plan);
    opts->memory_bytes = info.memory_bytes * rng_range(rng, 60, 105) / 100;
    if (ffa_parallel_plan_create(&plan, trial->dispatch, trial->mask, 0, opts, NULL) != FFA_OK)
        opts->memory_bytes = 0;
    else
        ffa_parallel_plan_destroy(plan);
}

static void draw(struct trial *trial, uint64_t seed)
{
    struct rng rng = { seed };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts plan_opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_topology topology;
    ffa_dispatch_mask one = { 0 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *full;

    memset(trial, 0, sizeof *trial);
    trial->seed = seed;
    trial->tokens_q = trial->tokens_k = rng_range(&rng, 1, TOKENS_HERE);
    opts.chunk_tokens = rng_range(&rng, 1, 9);
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.algorithm = (int32_t)rng_range(&rng, 0, 3);
    opts.keys = seed % 2 ? FFA_KEYS_WITH_QUERIES
                         : (int32_t)rng_range(&rng, FFA_KEYS_REPLICATED, FFA_KEYS_DISPATCHED);
    if (opts.keys != FFA_KEYS_WITH_QUERIES)
        trial->tokens_k = rng_range(&rng, 1, TOKENS_HERE);
    if (opts.keys == FFA_KEYS_DISPATCHED)
        opts.key_chunk_tokens = rng_range(&rng, 0, 9);
    {
        const int64_t chunks = (trial->tokens_q + opts.chunk_tokens - 1) / opts.chunk_tokens;

        trial->ranks = (int32_t)rng_range(&rng, 1, chunks < RANKS_HERE ? chunks : RANKS_HERE);
    }
    topology = (ffa_topology){ trial->ranks, (int32_t)rng_range(&rng, 0, trial->ranks) };
    trial->lists = seed % 5 ? 1 : (int32_t)rng_range(&rng, 2, LISTS_HERE);
    trial->mask = random_mask(trial, &rng);
    ck_assert_int_eq(
        ffa_mask_full(&full, &(ffa_mask_shape){ trial->tokens_q, trial->tokens_k }, NULL), FFA_OK);
    /* Some plans are for a mask other than the dispatch's, as in a model with several. */
    one.mask = seed % 7 && ffa_mask_area(trial->mask, -1) > 0 ? trial->mask : full;
    ck_assert_msg(!ffa_dispatch_create(&trial->dispatch, &one, 1, &topology, &opts, &err),
                  "seed %llu: %s", (unsigned long long)seed, err.message);
    draw_options(&rng, &plan_opts);
    if (seed % 3 == 0)
        draw_memory(trial, &rng, &plan_opts);
    for (int32_t r = 0; r < trial->ranks; r++) {
        ck_assert_msg(!ffa_parallel_plan_create(&trial->plans[r], trial->dispatch, trial->mask, r,
                                                &plan_opts, &err),
                      "seed %llu: %s", (unsigned long long)seed, err.message);
        CHECK(trial, !strcmp(ffa_parallel_plan_digest(trial->plans[r]),
                             ffa_parallel_plan_digest(trial->plans[0])));
    }
    ffa_mask_destroy(full);
}

static void find_cells(struct trial *trial)
{
    for (int32_t l = 0; l < trial->lists; l++) {
        const ffa_slice_list list = ffa_mask_slices(trial->mask, l);

        for (int64_t q = 0; q < trial->tokens_q; q++)
            for (int64_t k = 0; k < trial->tokens_k; k++)
                for (int64_t i = 0; i < list.count && !trial->attends[l][q][k]; i++)
                    trial->attends[l][q][k] = slice_has(&list.slices[i], q, k);
    }
}

struct computing {
    struct trial *trial;
    const struct parallel_operands *operands;
    bool used[TOKENS_HERE]; /* rows that moved */
    bool moves_queries;
};

static void compute(void *user, int32_t list, int64_t q, int64_t k)
{
    struct computing *c = user;

    c->trial->cells[list][c->operands->queries[q]][c->operands->keys[k]]++;
    c->used[c->moves_queries ? q : k] = true;
}

/* By row: the first phase does not merge, all others do, the last does not continue; a row without
 * work is written by the own phase. Where queries move, no tile merges, and all continue but those
 * of own rows that go nowhere. */
static void check_flags(const struct trial *trial, const ffa_parallel_plan *plan)
{
    uint8_t begun[LISTS_HERE][TOKENS_HERE] = { { 0 } }, ended[LISTS_HERE][TOKENS_HERE] = { { 0 } };
    const bool moves_queries = plan->moves == FFA_PARALLEL_MOVE_QUERIES;

    for (int32_t p = 0; p < plan->forward.phase_count; p++) {
        const struct plan_phase *phase = &plan->forward.phases[p];

        for (int64_t t = 0; t < phase->tiles.tile_count; t++) {
            const struct plan_tile *tile = &phase->tiles.tiles[t];
            const bool merges = tile->flags & PLAN_TILE_MERGES;
            const bool continues = tile->flags & PLAN_TILE_CONTINUES;
            const int32_t end = tile->begin + tile->count;

            CHECK(trial, !(tile->flags & ~(PLAN_TILE_MERGES | PLAN_TILE_CONTINUES)));
            if (moves_queries) {
                CHECK(trial, !merges);
                CHECK(trial, p == 0 || continues);
            } else {
                CHECK(trial, tile->sweep_count > 0 || (p == 0 && tile->flags == 0));
            }
            for (int32_t q = tile->begin; q < end && (!moves_queries || p == 0); q++) {
                CHECK(trial, begun[tile->list][q] == merges);
                CHECK(trial, !ended[tile->list][q]);
                begun[tile->list][q] = 1;
                ended[tile->list][q] = !continues;
            }
        }
    }
    for (int32_t s = 0; moves_queries && s < plan->forward.step_count; s++)
        for (int64_t c = 0; c < plan->forward.sends[s].count; c++) {
            const struct transfer_copy *copy = &plan->forward.sends[s].at[c];

            for (int64_t i = 0; i < copy->rows; i++)
                for (int32_t l = 0; l < trial->lists; l++) {
                    CHECK(trial,
                          !ended[l][copy->source_row + i] || ended[l][copy->source_row + i] == 2);
                    ended[l][copy->source_row + i] = 2;
                }
        }
    for (int64_t q = 0; q < plan->queries.rank_tokens[plan->rank]; q++)
        for (int32_t l = 0; l < trial->lists; l++)
            CHECK(trial, begun[l][q] && (ended[l][q] || moves_queries));
}

/* Own key tiles stand in the first or in the last phase; a stage's are all its keys. */
static void check_key_tiles(const struct trial *trial, const ffa_parallel_plan *plan)
{
    const struct plan_pass *pass = &plan->backward;
    uint8_t own[LISTS_HERE][TOKENS_HERE] = { { 0 } };
    ffa_error err = { FFA_OK, 0, "" };

    for (int32_t p = 0; p < pass->phase_count; p++) {
        const struct plan_phase *phase = &pass->phases[p];

        if (p > 0 && p <= pass->stage_count) {
            ck_assert_msg(!tile_check(&phase->key_tiles, &err), "%s", err.message);
            continue;
        }
        for (int64_t t = 0; t < phase->key_tiles.tile_count; t++) {
            const struct plan_tile *tile = &phase->key_tiles.tiles[t];

            for (int32_t k = tile->begin; k < tile->begin + tile->count; k++)
                own[tile->list][k]++;
        }
    }
    for (int64_t k = 0; k < plan->keys.rank_tokens[plan->rank]; k++)
        for (int32_t l = 0; l < trial->lists; l++)
            CHECK(trial, own[l][k] == 1);
}

/* Gradients of keys that other ranks attend come in between the first phase and the last; a stage's
 * go to their owner. Where queries move, own keys are summed throughout. */
static void check_key_flags(const struct trial *trial, const ffa_parallel_plan *plan)
{
    const struct plan_pass *pass = &plan->backward;
    uint8_t needed[TOKENS_HERE] = { 0 };

    for (int32_t s = 0; s < pass->step_count; s++)
        for (int64_t c = 0; c < pass->sends[s].count; c++)
            memset(needed + pass->sends[s].at[c].source_row, 1, (size_t)pass->sends[s].at[c].rows);
    if (plan->keys.is_replicated && trial->ranks > 1)
        memset(needed, 1, sizeof needed);
    for (int32_t p = 0; p < pass->phase_count; p++)
        for (int64_t t = 0; t < pass->phases[p].key_tiles.tile_count; t++) {
            const struct plan_tile *tile = &pass->phases[p].key_tiles.tiles[t];
            const bool is_stage = p > 0 && p <= pass->stage_count;

            if (plan->moves == FFA_PARALLEL_MOVE_QUERIES)
                CHECK(trial, tile->flags == (PLAN_TILE_MERGES | PLAN_TILE_CONTINUES));
            else if (is_stage)
                CHECK(trial, tile->flags == PLAN_TILE_CONTINUES);
            else if (!memchr(needed + tile->begin, 1, (size_t)tile->count))
                CHECK(trial, tile->flags == 0);
            else
                CHECK(trial, tile->flags == (p == 0 ? PLAN_TILE_CONTINUES : PLAN_TILE_MERGES));
        }
}

/* Own tiles that another rank needs are computed first only where all others are, too. */
static void check_early(const struct trial *trial, const ffa_parallel_plan *plan)
{
    const struct plan_pass *pass = &plan->backward;
    const int32_t phases[] = { 0, pass->phase_count - 1 };
    bool needed[TOKENS_HERE] = { false };
    int64_t early_needed = 0, late_free = 0;

    if (plan->moves == FFA_PARALLEL_MOVE_QUERIES)
        return;
    for (int32_t s = 0; s < pass->step_count; s++)
        for (int64_t c = 0; c < pass->sends[s].count; c++)
            for (int64_t i = 0; i < pass->sends[s].at[c].rows; i++)
                needed[pass->sends[s].at[c].source_row + i] = true;
    for (int p = 0; p < 2; p++) {
        const struct tile_plan *tiles = &pass->phases[phases[p]].key_tiles;

        for (int64_t t = 0; t < tiles->tile_count; t++) {
            const struct plan_tile *tile = &tiles->tiles[t];
            const bool is_needed = memchr(needed + tile->begin, true, (size_t)tile->count);

            early_needed += p == 0 && is_needed;
            late_free += p == 1 && !is_needed;
        }
    }
    CHECK(trial, early_needed == 0 || late_free == 0);
}

static void check_pass(struct trial *trial, bool is_backward)
{
    memset(trial->cells, 0, sizeof trial->cells);
    for (int32_t r = 0; r < trial->ranks; r++) {
        const ffa_parallel_plan *plan = trial->plans[r];
        const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
        bool received[TOKENS_HERE] = { false };
        int64_t rows = 0;

        CHECK(trial, pass->phase_count == pass->stage_count + (is_backward ? 2 : 1));
        for (int32_t p = 0; p < pass->phase_count; p++) {
            struct parallel_operands operands;
            struct computing c = {
                trial, &operands, { false }, plan->moves == FFA_PARALLEL_MOVE_QUERIES
            };

            if (!is_backward)
                ck_assert_int_eq(tile_check(&pass->phases[p].tiles, NULL), FFA_OK);
            parallel_operands_init(&operands, plan, pass, p);
            parallel_each_cell(&pass->phases[p], is_backward, compute, &c);
            for (int64_t k = 0; k < pass->phases[p].rows && p > 0 && p <= pass->stage_count; k++) {
                CHECK(trial, c.used[k] && !received[operands.moved[k]]);
                received[operands.moved[k]] = true;
                rows++;
            }
            parallel_operands_finish(&operands);
        }
        CHECK(trial, rows == plan->received_rows);
    }
    for (int32_t l = 0; l < trial->lists; l++)
        for (int64_t q = 0; q < trial->tokens_q; q++)
            for (int64_t k = 0; k < trial->tokens_k; k++)
                CHECK(trial, trial->cells[l][q][k] == trial->attends[l][q][k]);
}

/* ---- the key window ---- */

/* The token in each row of the round's keys, and that stages end where phases do. */
static void find_window(const struct trial *trial, const ffa_parallel_plan *plan,
                        const struct plan_pass *pass, const struct rank_local *local, int32_t round,
                        int64_t *tokens)
{
    const bool in_rounds = plan->in_rounds && pass->stage_count > 0;
    const int32_t last = in_rounds ? round + 1 : pass->stage_count;
    int64_t row = 0;

    CHECK(trial, local->stage_count == (in_rounds ? 2 : pass->stage_count + 1));
    CHECK(trial, round == 0 || local->stage_ends[0] == 0);
    for (int32_t p = round ? last : 0; p <= last; p++) {
        struct parallel_operands operands;

        parallel_operands_init(&operands, plan, pass, p);
        for (int64_t k = 0; k < pass->phases[p].rows; k++)
            tokens[row++] = operands.keys[k];
        parallel_operands_finish(&operands);
        CHECK(trial, local->stage_ends[round ? 1 : p] == row);
    }
    CHECK(trial, local->shape.seqlen_k == row);
    CHECK(trial, local->shape.seqlen_q == plan->queries.rank_tokens[plan->rank]);
}

/* Whether the keys of a tile are first: all of them (1), none (0), or some (-1). */
static int is_first(const uint8_t *first, const struct plan_tile *tile)
{
    int count = 0;

    for (int32_t k = tile->begin; k < tile->begin + tile->count; k++)
        count += first[k];
    return count == tile->count ? 1 : count ? -1 : 0;
}

/* First keys are those of the longest own tiles: at least as much work as the first phase has. */
static void check_first(const struct trial *trial, const struct plan_pass *pass,
                        const struct rank_local *local, bool is_backward)
{
    const struct tile_plan *own[] = { &pass->phases[0].key_tiles,
                                      &pass->phases[pass->phase_count - 1].key_tiles };
    int64_t end = -1, all = 0, early = 0, chosen = 0, shortest = INT32_MAX, longest = 0;
    uint8_t first[TOKENS_HERE] = { 0 };

    CHECK(trial, is_backward || local->first_count == 0);
    for (int64_t i = 0; i < local->first_count; i++) {
        CHECK(trial, local->first[i][0] > end && local->first[i][0] < local->first[i][1]);
        end = local->first[i][1];
        CHECK(trial, end <= local->stage_ends[0]);
        memset(first + local->first[i][0], 1, (size_t)(end - local->first[i][0]));
    }
    for (int p = 0; is_backward && p < 2; p++)
        for (int64_t t = 0; t < own[p]->tile_count; t++) {
            const int64_t blocks = own[p]->block_counts[t];
            const int is = is_first(first, &own[p]->tiles[t]);

            all += blocks;
            early += p == 0 ? blocks : 0;
            chosen += is > 0 ? blocks : 0;
            if (is > 0 && blocks < shortest)
                shortest = blocks;
            if (is == 0 && blocks > longest)
                longest = blocks;
            CHECK(trial, is >= 0 || local->list_count > 1); /* a tile of another list */
        }
    CHECK(trial, chosen >= early);
    CHECK(trial, local->list_count > 1 || shortest >= longest);
    CHECK(trial, local->first_share >= (is_backward ? 0.5 : 0) && local->first_share <= 1);
    CHECK(trial, !is_backward || (double)early <= local->first_share * (double)all + 0.5);
}

/* Tiles of the key window, of one launch: tile_check looks at them where they are built. */
static void check_arriving(const struct trial *trial, const struct rank_local *local,
                           bool is_backward)
{
    const struct tile_options opts = { .tile_m = 1 + (int32_t)(trial->seed % 16),
                                       .tile_n = 1 + (int32_t)(trial->seed % 13),
                                       .on_grid = is_backward && trial->seed % 2 };
    struct tile_range first[TOKENS_HERE];
    struct tile_stages stages = { .count = local->stage_count,
                                  .first = first,
                                  .first_count = local->first_count };
    struct tile_plan tiles;
    ffa_mask mask;
    int64_t area = 0;

    for (int32_t s = 0; s < stages.count; s++)
        stages.ends[s] = (int32_t)local->stage_ends[s];
    for (int64_t i = 0; i < stages.first_count; i++)
        first[i] = (struct tile_range){ (int32_t)local->first[i][0], (int32_t)local->first[i][1] };
    for (int32_t l = 0; l < local->list_count; l++)
        for (int64_t i = 0; i < local->lists[l].count; i++)
            area += band_area(&local->lists[l].at[i]);
    ck_assert_int_eq(band_mask_init(&mask, &local->shape, local->lists, local->list_count, NULL),
                     FFA_OK);
    ck_assert_int_eq(tile_build_arriving(&tiles, &mask,
                                         is_backward ? TILE_OWNS_KEYS : TILE_OWNS_QUERIES, &opts,
                                         &stages, NULL),
                     FFA_OK);
    ck_assert_int_eq(tile_check(&tiles, NULL), FFA_OK);
    CHECK(trial, tiles.area == area);
    tile_finish(&tiles);
    band_mask_finish(&mask);
}

/* An outline has the same key window. */
static void check_outline(const struct trial *trial, int32_t rank, const struct rank_local *want,
                          bool is_backward, int32_t round)
{
    ffa_parallel_plan_opts opts = trial->plans[rank]->opts;
    struct rank_local got;
    ffa_parallel_plan *plan;

    opts.flags |= FFA_PARALLEL_OUTLINE;
    ck_assert_int_eq(
        ffa_parallel_plan_create(&plan, trial->dispatch, trial->mask, rank, &opts, NULL), FFA_OK);
    ck_assert_int_eq(rank_plan_round(&got, plan, is_backward, round, NULL), FFA_OK);
    CHECK(trial, got.stage_count == want->stage_count && got.first_count == want->first_count);
    CHECK(trial, !memcmp(got.stage_ends, want->stage_ends, sizeof got.stage_ends));
    for (int64_t i = 0; i < got.first_count; i++)
        CHECK(trial, !memcmp(&got.first[i], &want->first[i], sizeof *got.first));
    for (int32_t l = 0; l < got.list_count; l++) {
        CHECK(trial, got.lists[l].count == want->lists[l].count);
        for (int64_t i = 0; i < got.lists[l].count; i++)
            CHECK(trial,
                  !memcmp(&got.lists[l].at[i], &want->lists[l].at[i], sizeof *got.lists[l].at));
    }
    rank_local_finish(&got);
    ffa_parallel_plan_destroy(plan);
}

static void count_local(struct trial *trial, const ffa_parallel_plan *plan,
                        const struct rank_local *local, const int64_t *tokens)
{
    for (int32_t l = 0; l < local->list_count; l++)
        for (int64_t i = 0; i < local->lists[l].count; i++) {
            const struct band *band = &local->lists[l].at[i];

            for (int64_t q = band->q_begin; q < band->q_end; q++)
                for (int64_t k = band->k_begin; k < band->k_end; k++)
                    if (band->lo <= k - q && k - q <= band->hi)
                        trial->cells[l][parallel_token(&plan->queries, plan->rank, q)][tokens[k]]++;
        }
}

static void check_round(struct trial *trial, int32_t rank, bool is_backward, int32_t round)
{
    const ffa_parallel_plan *plan = trial->plans[rank];
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    int64_t tokens[2 * TOKENS_HERE];
    struct rank_local local;

    ck_assert_int_eq(rank_plan_round(&local, plan, is_backward, round, NULL), FFA_OK);
    find_window(trial, plan, pass, &local, round, tokens);
    if (round == 0)
        check_first(trial, pass, &local, is_backward);
    check_arriving(trial, &local, is_backward);
    if (trial->seed % 8 == 0)
        check_outline(trial, rank, &local, is_backward, round);
    count_local(trial, plan, &local, tokens);
    rank_local_finish(&local);
}

/* The cells of all ranks in their key windows are those of the mask, each once. */
static void check_local(struct trial *trial, bool is_backward)
{
    const bool moves_queries = trial->plans[0]->moves == FFA_PARALLEL_MOVE_QUERIES;

    memset(trial->cells, 0, sizeof trial->cells);
    for (int32_t r = 0; r < trial->ranks; r++) {
        const int32_t rounds = rank_plan_rounds(trial->plans[r], is_backward);
        struct rank_local local;

        if (moves_queries || rounds > 1)
            ck_assert_int_eq(rank_plan_local(&local, trial->plans[r], is_backward, NULL),
                             FFA_INVALID);
        for (int32_t round = 0; round < rounds && !moves_queries; round++)
            check_round(trial, r, is_backward, round);
    }
    if (moves_queries)
        return;
    for (int32_t l = 0; l < trial->lists; l++)
        for (int64_t q = 0; q < trial->tokens_q; q++)
            for (int64_t k = 0; k < trial->tokens_k; k++)
                CHECK(trial, trial->cells[l][q][k] == trial->attends[l][q][k]);
}

/* ---- rounds ---- */

/* A cap is obeyed, and a stage is never longer than its half of the ring. */
static void check_memory(const struct trial *trial, const ffa_parallel_plan *plan)
{
    const struct plan_pass *passes[] = { &plan->forward, &plan->backward };
    ffa_parallel_plan_info info = FFA_PARALLEL_PLAN_INFO_INIT;

    ck_assert_int_eq(ffa_parallel_plan_info_get(plan, &info, NULL), FFA_OK);
    if (!plan->opts.memory_bytes)
        return;
    CHECK(trial, info.memory_bytes <= info.memory_most_bytes);
    CHECK(trial, info.memory_most_bytes <= plan->opts.memory_bytes);
    for (int p = 0; p < 2 && plan->in_rounds; p++)
        CHECK(trial, passes[p]->buffer_rows <= passes[p]->half_rows);
    if (!plan->in_rounds)
        CHECK(trial, plan->memory.window_rows ==
                             plan->keys.rank_tokens[plan->rank] + plan->received_rows ||
                         plan->keys.is_replicated);
}

/* ---- what is received is what is sent ---- */

/* Row by row, what a rank receives at a stage is what its owner sends at that step. */
static void check_transpose(const struct trial *trial, bool is_backward)
{
    for (int32_t r = 0; r < trial->ranks; r++) {
        const struct plan_pass *to =
            is_backward ? &trial->plans[r]->backward : &trial->plans[r]->forward;

        CHECK(trial, to->step_count >= to->stage_count);
        for (int32_t s = 0; s < to->step_count; s++) {
            int64_t source[TOKENS_HERE], row_of[TOKENS_HERE], rows = 0;
            const bool is_here = s < to->stage_count;

            for (int64_t i = 0; i < TOKENS_HERE; i++)
                source[i] = -1;
            for (int32_t o = 0; o < trial->ranks; o++) {
                const struct plan_pass *from =
                    is_backward ? &trial->plans[o]->backward : &trial->plans[o]->forward;

                CHECK(trial, from->step_count == to->step_count);
                for (int64_t c = 0; c < from->sends[s].count; c++) {
                    const struct transfer_copy *copy = &from->sends[s].at[c];

                    CHECK(trial, c == 0 || copy[-1].source <= copy->source);
                    if (copy->source != r)
                        continue;
                    for (int64_t i = 0; i < copy->rows; i++, rows++) {
                        CHECK(trial, is_here && source[copy->row + i] == -1);
                        source[copy->row + i] = o;
                        row_of[copy->row + i] = copy->source_row + i;
                    }
                }
            }
            if (!is_here)
                continue;
            CHECK(trial, rows == to->phases[s + 1].rows);
            for (int64_t c = 0; c < to->phases[s + 1].receives.count; c++) {
                const struct transfer_copy *copy = &to->phases[s + 1].receives.at[c];

                for (int64_t i = 0; i < copy->rows; i++)
                    CHECK(trial, source[copy->row + i] == copy->source &&
                                     row_of[copy->row + i] == copy->source_row + i);
            }
        }
    }
}

/* Keys that live apart from queries: as many chunks for each rank as for the others, within one. */
static void check_key_chunks(const struct trial *trial)
{
    const struct layout *keys = dispatch_key_layout(trial->dispatch);
    int64_t extra = 0;

    if (trial->dispatch->key_mode != FFA_KEYS_DISPATCHED)
        return;
    for (int32_t r = 0; r < trial->ranks; r++) {
        const int64_t more =
            keys->rank_begin[r + 1] - keys->rank_begin[r] - keys->count / trial->ranks;

        CHECK(trial, more == 0 || more == 1);
        extra += more;
    }
    CHECK(trial, extra == keys->count % trial->ranks);
}

START_TEST(random_masks)
{
    static struct trial trial;
    int64_t with_queries = 0, staged = 0, in_rounds = 0;

    for (uint64_t seed = 1 + (uint64_t)_i; seed <= RANDOM_MASKS; seed += PARTS) {
        draw(&trial, seed);
        find_cells(&trial);
        check_key_chunks(&trial);
        check_pass(&trial, false);
        check_pass(&trial, true);
        check_local(&trial, false);
        check_local(&trial, true);
        check_transpose(&trial, false);
        check_transpose(&trial, true);
        with_queries += trial.plans[0]->moves == FFA_PARALLEL_MOVE_QUERIES;
        staged += trial.plans[0]->forward.step_count > 1 || trial.plans[0]->backward.step_count > 1;
        in_rounds += rank_plan_rounds(trial.plans[0], true) > 1;
        for (int32_t r = 0; r < trial.ranks; r++) {
            check_memory(&trial, trial.plans[r]);
            check_flags(&trial, trial.plans[r]);
            check_key_tiles(&trial, trial.plans[r]);
            check_key_flags(&trial, trial.plans[r]);
            check_early(&trial, trial.plans[r]);
            ffa_parallel_plan_destroy(trial.plans[r]);
        }
        ffa_dispatch_destroy(trial.dispatch);
        ffa_mask_destroy(trial.mask);
    }
    ck_assert_int_ge(with_queries, RANDOM_MASKS / PARTS / 10); /* the draw has not dried up */
    ck_assert_int_ge(staged, RANDOM_MASKS / PARTS / 10);
    ck_assert_int_ge(in_rounds, RANDOM_MASKS / PARTS / 40);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist plan properties");
    TCase *tc = tcase_create("dist plan properties");

    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, random_masks, 0, PARTS);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
