/* SPDX-License-Identifier: Apache-2.0
 *
 * rounds_find: the most rows a stage may have, the same for all ranks. Invariant: ranks find the
 * same, from tables that all of them have. What a rank sums up in a round follows from what the
 * others receive in it, so that is counted for each number of rows that is tried; the least is
 * tried first, and the answer lies between two that were.
 */
#include "parallel/plan/rounds.h"

#include <ffa/kernel.h>

enum {
    ROWS_STEP = 128,   /* rows of a stage are multiples, but where fewer are allowed */
    PART_BYTES = 256,  /* parts of a workspace are */
    STATS_ROWS = 131,  /* row statistics behind the last row, at most */
    COLUMNS_STEP = 64, /* of dq in fp32 */
    TILE_M_MIN = 64,   /* of the backward kernels */
    CLUSTER_MAX = 2
};

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* ---- bytes ---- */

/* What passes take of a workspace, for any kernels: at least backward_layout_make and
 * pass_totals_bytes, as test_rounds.c checks. */
static int64_t forward_workspace(const ffa_parallel_plan_opts *o, int64_t rows, bool in_rounds)
{
    const int64_t heads = o->model.heads_q;
    const int64_t partial = in_rounds ? rows * heads * o->head_dim_v * 4 : 0;

    return PART_BYTES + round_up(heads * 4, PART_BYTES) + round_up(partial, PART_BYTES);
}

static int64_t backward_workspace(const ffa_parallel_plan_opts *o, int64_t rows)
{
    const int64_t heads = o->model.heads_q;
    const int64_t columns =
        round_up(max64(o->model.head_dim, o->head_dim_v > 64 ? o->head_dim_v : 0), COLUMNS_STEP);
    const int64_t semaphores = (rows / TILE_M_MIN + 1) * heads * CLUSTER_MAX * 4;

    return PART_BYTES + round_up(semaphores, PART_BYTES) +
           round_up((rows + STATS_ROWS) * heads * 8, PART_BYTES) +
           round_up(round_up(rows, 8) * heads * columns * 4, PART_BYTES) +
           round_up(FFA_SINKS_MAX * heads * 4, PART_BYTES);
}

struct rank_memory rounds_memory(const struct rounds_input *in, int32_t rank, int64_t received_rows,
                                 int64_t received_sums, bool in_rounds)
{
    const ffa_parallel_plan_opts *o = in->opts;
    const bool has_backward = !(o->flags & FFA_PARALLEL_FORWARD_ONLY);
    const int64_t columns = ((int64_t)o->model.head_dim + o->head_dim_v) * o->model.heads_kv;
    const int64_t rows = in->queries->rank_tokens[rank];
    const int64_t own =
        in->keys->is_replicated ? in->keys->bounds[in->keys->count] : in->keys->rank_tokens[rank];
    struct rank_memory out = { .window_rows = own + received_rows,
                               .workspace_bytes = forward_workspace(o, rows, in_rounds) };

    out.key_bytes = out.window_rows * columns * o->model.element_bytes;
    if (!has_backward)
        return out;
    out.received_sums = received_sums;
    out.sum_bytes = out.window_rows * columns * 4;
    out.received_sum_bytes = received_sums * columns * 4;
    out.workspace_bytes =
        max64(out.workspace_bytes, backward_workspace(o, rows) + out.received_sum_bytes);
    return out;
}

/* ---- one number of rows ---- */

static int64_t step_of(const ffa_parallel_plan_opts *opts)
{
    return max64(1, min64(opts->stage_rows_min, ROWS_STEP));
}

struct rank_rounds rounds_of(const struct rounds *rounds, const struct rounds_input *in,
                             int32_t rank)
{
    const int64_t rows = in->needs->rows[rank];
    const int64_t count = (rows + rounds->stage_rows - 1) / rounds->stage_rows;
    struct rank_rounds out = { 0 };

    if (rows == 0)
        return out;
    out.half_rows = round_up((rows + count - 1) / count, step_of(in->opts));
    out.count = (int32_t)((rows + out.half_rows - 1) / out.half_rows);
    out.first = (int32_t)(rounds->first_rows[rank] / out.half_rows);
    return out;
}

struct search {
    const struct rounds_input *in;
    struct rounds rounds;          /* what was tried last */
    int64_t *sums;                 /* [ranks][ROUNDS_MAX]: rows that others sum in each round */
    struct rank_receives receives; /* of one rank */
    int32_t largest;               /* the rank that needs most */
};

/* Add what a rank receives to what its owners have summed. */
static ffa_status add_rank(struct search *s, int32_t rank, ffa_error *err)
{
    const struct rank_rounds rounds = rounds_of(&s->rounds, s->in, rank);
    ffa_status rc;

    s->receives.count = 0;
    FFA_TRY(rank_receives_build(&s->receives, s->in->needs, rank, err));
    for (int64_t i = 0; i < s->receives.count; i++) {
        const struct rank_receive *receive = &s->receives.at[i];
        const int64_t end = receive->row + receive->end - receive->begin;

        for (int64_t row = receive->row, next; row < end; row = next) {
            const int32_t stage = rank_rounds_stage(&rounds, row, &next);

            next = min64(end, next);
            s->sums[(int64_t)receive->owner * ROUNDS_MAX + stage] += next - row;
        }
    }
out:
    return rc;
}

static int64_t most_of(const int64_t *sums)
{
    int64_t most = 0;

    for (int32_t r = 0; r < ROUNDS_MAX; r++)
        most = max64(most, sums[r]);
    return most;
}

/* What every rank needs, and which needs most: *bytes. stage_rows of all rows: no rounds. */
static ffa_status try_rows(int64_t *bytes, struct search *s, int64_t stage_rows, bool in_rounds,
                           ffa_error *err)
{
    const struct rounds_input *in = s->in;
    const int32_t ranks = in->needs->topology.rank_count;
    const bool is_shared = in->keys->is_replicated && ranks > 1;
    ffa_status rc = FFA_OK;

    s->rounds.stage_rows = stage_rows;
    memset(s->sums, 0, (size_t)ranks * ROUNDS_MAX * sizeof *s->sums);
    for (int32_t r = 0; r < ranks; r++)
        FFA_TRY(add_rank(s, r, err));
    *bytes = -1;
    for (int32_t r = 0; r < ranks; r++) {
        const struct rank_rounds rounds = rounds_of(&s->rounds, in, r);
        const int64_t received = rounds.count > 1 ? 2 * rounds.half_rows : in->needs->rows[r];
        const int64_t sums = is_shared ? in->keys->bounds[in->keys->count] * ranks
                                       : most_of(s->sums + (int64_t)r * ROUNDS_MAX);

        s->rounds.memory[r] = rounds_memory(in, r, received, sums, in_rounds);
        if (rank_memory_bytes(&s->rounds.memory[r]) > *bytes) {
            *bytes = rank_memory_bytes(&s->rounds.memory[r]);
            s->largest = r;
        }
    }
out:
    return rc;
}

/* Where each rank begins: the first row that it receives of the next rank that it needs. */
static ffa_status find_first_rows(struct search *s, ffa_error *err)
{
    const int32_t ranks = s->in->needs->topology.rank_count;
    ffa_status rc = FFA_OK;

    for (int32_t r = 0; r < ranks; r++) {
        int32_t nearest = ranks;

        s->receives.count = 0;
        FFA_TRY(rank_receives_build(&s->receives, s->in->needs, r, err));
        for (int64_t i = 0; i < s->receives.count; i++) {
            const int32_t distance = (s->receives.at[i].owner - r - 1 + ranks) % ranks;

            if (distance >= nearest)
                continue;
            nearest = distance;
            s->rounds.first_rows[r] = s->receives.at[i].row;
        }
    }
out:
    return rc;
}

/* ---- the most rows ---- */

static ffa_status refuse(const struct search *s, int64_t least, int64_t rows, ffa_error *err)
{
    return error_fail(err, FFA_INVALID, 0,
                      "memory_bytes is %lld, the plan needs %lld at least: rank %d has %lld own "
                      "keys, and stages have %lld rows",
                      (long long)s->in->opts->memory_bytes, (long long)least, s->largest,
                      (long long)s->in->keys->rank_tokens[s->largest], (long long)rows);
}

/* s->rounds: the answer. whole: bytes without rounds. */
static ffa_status search_rows(struct search *s, int64_t most_rows, int64_t whole, ffa_error *err)
{
    const int64_t cap = s->in->opts->memory_bytes;
    const int64_t step = step_of(s->in->opts);
    const int64_t fewest =
        max64(max64(s->in->opts->stage_rows_min, 1), (most_rows + ROUNDS_MAX - 1) / ROUNDS_MAX);
    int64_t low = (fewest + step - 1) / step, high = most_rows / step + 1, bytes;
    ffa_status rc;

    FFA_TRY(try_rows(&bytes, s, low * step, true, err));
    if (bytes > cap) {
        rc = refuse(s, min64(bytes, whole), low * step, err);
        goto out;
    }
    while (high - low > 1) { /* low fits */
        const int64_t middle = low + (high - low) / 2;

        FFA_TRY(try_rows(&bytes, s, middle * step, true, err));
        if (bytes > cap)
            high = middle;
        else
            low = middle;
    }
    rc = try_rows(&bytes, s, low * step, true, err);
out:
    return rc;
}

ffa_status rounds_find(struct rounds *out, const struct rounds_input *in, ffa_error *err)
{
    const size_t ranks = (size_t)in->needs->topology.rank_count;
    struct search s = { .in = in };
    int64_t most_rows = 1, bytes;
    ffa_status rc = FFA_OK;

    *out = (struct rounds){ 0 };
    if (!in->opts->memory_bytes)
        goto out;
    s.rounds.memory = mem_array(ranks, sizeof *s.rounds.memory);
    s.rounds.first_rows = mem_array(ranks, sizeof *s.rounds.first_rows);
    s.sums = mem_array(ranks * ROUNDS_MAX, sizeof *s.sums);
    if (!s.rounds.memory || !s.rounds.first_rows || !s.sums) {
        rc = error_nomem(err, "the rounds of ranks");
        goto out;
    }
    for (size_t r = 0; r < ranks; r++)
        most_rows = max64(most_rows, in->needs->rows[r]);
    FFA_TRY(find_first_rows(&s, err));
    FFA_TRY(try_rows(&bytes, &s, most_rows, false, err));
    if (bytes <= in->opts->memory_bytes)
        s.rounds.stage_rows = 0;
    else if (in->needs->begin[ranks] == 0)
        rc = refuse(&s, bytes, 0, err);
    else
        rc = search_rows(&s, most_rows, bytes, err);
    if (rc == FFA_OK) {
        *out = s.rounds;
        s.rounds = (struct rounds){ 0 };
    }
out:
    rounds_finish(&s.rounds);
    mem_free(s.sums);
    rank_receives_finish(&s.receives);
    return rc;
}

void rounds_finish(struct rounds *rounds)
{
    mem_free(rounds->first_rows);
    mem_free(rounds->memory);
    *rounds = (struct rounds){ 0 };
}
