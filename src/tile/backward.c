/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_build: the tile plan of the transposed mask (tile_build_transposed), written in the
 * words of backward_plan.h. "Turned" is such a plan: its rows are keys, its keys are query rows.
 */
#include "tile/backward.h"

/* ---- the words of both plans ---- */

static struct backward_tile tile_from(const struct plan_tile *turned)
{
    return (struct backward_tile){ .key_begin = turned->row_begin,
                                   .key_count = turned->row_count,
                                   .sweep_begin = turned->sweep_begin,
                                   .sweep_count = turned->sweep_count,
                                   .band_begin = turned->band_begin,
                                   .band_count = turned->band_count,
                                   .block_count = turned->block_count,
                                   .list = turned->list };
}

static struct plan_tile tile_turn(const struct backward_tile *tile)
{
    return (struct plan_tile){ .row_begin = tile->key_begin,
                               .row_count = tile->key_count,
                               .sweep_begin = tile->sweep_begin,
                               .sweep_count = tile->sweep_count,
                               .band_begin = tile->band_begin,
                               .band_count = tile->band_count,
                               .block_count = tile->block_count,
                               .list = (uint16_t)tile->list };
}

static struct backward_sweep sweep_from(const struct plan_sweep *turned)
{
    return (struct backward_sweep){ .q_begin = turned->k_begin,
                                    .q_end = turned->k_end,
                                    .full_begin = turned->full_begin,
                                    .full_end = turned->full_end,
                                    .band_begin = turned->band_begin,
                                    .band_count = turned->band_count };
}

static struct plan_sweep sweep_turn(const struct backward_sweep *sweep)
{
    return (struct plan_sweep){ .k_begin = sweep->q_begin,
                                .k_end = sweep->q_end,
                                .full_begin = sweep->full_begin,
                                .full_end = sweep->full_end,
                                .band_begin = sweep->band_begin,
                                .band_count = sweep->band_count };
}

static struct backward_band band_from(const struct plan_band *turned)
{
    return (struct backward_band){ .key_begin = turned->row_begin,
                                   .key_end = turned->row_end,
                                   .lo = turned->lo,
                                   .hi = turned->hi,
                                   .lo_step = turned->lo_step,
                                   .hi_step = turned->hi_step };
}

static struct plan_band band_turn(const struct backward_band *band)
{
    return (struct plan_band){ .row_begin = band->key_begin,
                               .row_end = band->key_end,
                               .lo = band->lo,
                               .hi = band->hi,
                               .lo_step = band->lo_step,
                               .hi_step = band->hi_step };
}

/* ---- turns ---- */

/* How often each block of the grid was visited, as pieces of equal numbers: a set bit is a block
 * where a piece starts, and the number is kept there. */
struct visits {
    uint64_t *starts;
    int32_t *numbers;
    int64_t block_count;
};

static bool is_start(const struct visits *visits, int64_t block)
{
    return visits->starts[block / 64] >> (block % 64) & 1;
}

/* The start of the piece that `block` is in. */
static int64_t start_of(const struct visits *visits, int64_t block)
{
    int64_t word = block / 64;
    uint64_t bits = visits->starts[word] << (63 - block % 64) >> (63 - block % 64);

    while (!bits)
        bits = visits->starts[--word];
    return word * 64 + 63 - __builtin_clzll(bits);
}

/* A piece starts at `block`, if there is one. */
static void split_at(struct visits *visits, int64_t block)
{
    if (block == visits->block_count || is_start(visits, block))
        return;
    visits->numbers[block] = visits->numbers[start_of(visits, block)];
    visits->starts[block / 64] |= (uint64_t)1 << (block % 64);
}

/* No piece starts at `block`, where the one before has the same number. */
static void join_at(struct visits *visits, int64_t block)
{
    if (block == 0 || block == visits->block_count ||
        visits->numbers[block] != visits->numbers[start_of(visits, block - 1)])
        return;
    visits->starts[block / 64] &= ~((uint64_t)1 << (block % 64));
}

static void visits_clear(struct visits *visits)
{
    memset(visits->starts, 0, (size_t)(visits->block_count + 63) / 64 * sizeof *visits->starts);
    visits->starts[0] = 1;
    visits->numbers[0] = 0;
}

static ffa_status visits_init(struct visits *visits, int64_t block_count, ffa_error *err)
{
    *visits = (struct visits){ .block_count = block_count };
    visits->starts = mem_array((size_t)(block_count + 63) / 64, sizeof *visits->starts);
    visits->numbers = mem_array((size_t)block_count, sizeof *visits->numbers);
    if (!visits->starts || !visits->numbers)
        return error_nomem(err, "the turns of a backward plan");
    return FFA_OK;
}

static void visits_finish(struct visits *visits)
{
    mem_free(visits->starts);
    mem_free(visits->numbers);
}

/* The sweep's turns, and its visits counted. */
static ffa_status take_turns(struct backward_plan *plan, int64_t *capacity, struct visits *visits,
                             struct backward_sweep *sweep, ffa_error *err)
{
    const int64_t first = sweep->q_begin / plan->tile_m;
    const int64_t end = (sweep->q_end - 1) / plan->tile_m + 1;
    int64_t block = end;

    sweep->turn_begin = (int)plan->turn_count;
    split_at(visits, first);
    split_at(visits, end);
    while (block > first) {
        block = start_of(visits, block - 1);
        if (plan->turn_count == INT32_MAX)
            return error_fail(err, FFA_INVALID, 0, "plan has more than %d turns", INT32_MAX);
        if (!mem_grow((void **)&plan->turns, capacity, plan->turn_count + 1, sizeof *plan->turns))
            return error_nomem(err, "the turns of a backward plan");
        plan->turns[plan->turn_count++] = (struct backward_turn){
            .row = (int)(block * plan->tile_m),
            .before = visits->numbers[block]++,
        };
    }
    join_at(visits, first);
    join_at(visits, end);
    sweep->turn_count = (int)(plan->turn_count - sweep->turn_begin);
    return FFA_OK;
}

static ffa_status turns_build(struct backward_plan *plan, ffa_error *err)
{
    struct visits visits;
    int64_t capacity = 0;
    ffa_status rc;

    FFA_TRY(visits_init(&visits, backward_grid_blocks(plan), err));
    for (int32_t list = 0; list < plan->list_count; list++) {
        visits_clear(&visits);
        for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const struct backward_tile *tile = &plan->tiles[t];

            for (int32_t s = tile->sweep_count - 1; s >= 0; s--)
                FFA_TRY(take_turns(plan, &capacity, &visits, &plan->sweeps[tile->sweep_begin + s],
                                   err));
        }
    }
out:
    visits_finish(&visits);
    return rc;
}

int64_t backward_grid_blocks(const struct backward_plan *plan)
{
    return (plan->shape.seqlen_q + plan->tile_m - 1) / plan->tile_m;
}

/* ---- step ---- */

/* The block of rows where a tile ends, or begins, if `first`; -1 of one that has none. */
static int64_t end_of(const struct backward_plan *plan, const struct backward_tile *tile,
                      bool first)
{
    const struct backward_sweep *sweeps = &plan->sweeps[tile->sweep_begin];

    if (tile->sweep_count == 0)
        return -1;
    return (first ? sweeps[0].q_begin : sweeps[tile->sweep_count - 1].q_end - 1) / plan->tile_m;
}

/* Whether tiles that have nine in ten blocks end, or begin, where the longest does: the first. */
static bool most_end_together(const struct backward_plan *plan, bool first)
{
    const int64_t end = end_of(plan, plan->tiles, first);
    int64_t blocks = 0;

    for (int64_t t = 0; t < plan->tile_count; t++)
        if (end_of(plan, &plan->tiles[t], first) == end)
            blocks += plan->tiles[t].block_count;
    return blocks >= plan->block_count - plan->block_count / 10;
}

/* Tiles of several lists are no one's stream. */
static enum backward_step step_of(const struct backward_plan *plan)
{
    if (plan->list_count > 1 || plan->block_count == 0)
        return BACKWARD_APART;
    if (most_end_together(plan, false))
        return BACKWARD_FROM_LAST;
    return most_end_together(plan, true) ? BACKWARD_FROM_FIRST : BACKWARD_APART;
}

/* ---- build ---- */

ffa_status backward_build(struct backward_plan *out, const ffa_mask *mask,
                          const struct tile_options *opts, ffa_error *err)
{
    const struct tile_options turned_opts = {
        .tile_m = opts->tile_n, .tile_n = opts->tile_m, .cuts = opts->cuts, .on_grid = opts->on_grid
    };
    struct tile_plan turned = { 0 };
    struct backward_plan plan = { .shape = mask->shape,
                                  .tile_m = opts->tile_m,
                                  .tile_n = opts->tile_n,
                                  .in_turns = opts->on_grid,
                                  .list_count = mask->head_count };
    ffa_status rc;

    *out = (struct backward_plan){ 0 };
    FFA_TRY(tile_build_transposed(&turned, mask, &turned_opts, err));
    plan.tile_count = turned.tile_count;
    plan.sweep_count = turned.sweep_count;
    plan.band_count = turned.band_count;
    plan.block_count = turned.block_count;
    plan.partial_blocks = turned.partial_blocks;
    plan.area = turned.area;
    plan.tiles = mem_array((size_t)plan.tile_count, sizeof *plan.tiles);
    plan.sweeps = mem_array((size_t)plan.sweep_count, sizeof *plan.sweeps);
    plan.bands = mem_array((size_t)plan.band_count, sizeof *plan.bands);
    if (!plan.tiles || !plan.sweeps || !plan.bands) {
        rc = error_nomem(err, "the tiles of a backward plan");
        goto out;
    }
    for (int64_t i = 0; i < plan.tile_count; i++)
        plan.tiles[i] = tile_from(&turned.tiles[i]);
    for (int64_t i = 0; i < plan.sweep_count; i++)
        plan.sweeps[i] = sweep_from(&turned.sweeps[i]);
    for (int64_t i = 0; i < plan.band_count; i++)
        plan.bands[i] = band_from(&turned.bands[i]);
    plan.list_begin = turned.list_begin;
    turned.list_begin = NULL;
    if (plan.in_turns)
        FFA_TRY(turns_build(&plan, err));
    plan.in_step = step_of(&plan);
    *out = plan;
    plan = (struct backward_plan){ 0 };
out:
    tile_finish(&turned);
    backward_finish(&plan);
    return rc;
}

void backward_finish(struct backward_plan *plan)
{
    if (!plan)
        return;
    mem_free(plan->list_begin);
    mem_free(plan->tiles);
    mem_free(plan->sweeps);
    mem_free(plan->bands);
    mem_free(plan->turns);
    *plan = (struct backward_plan){ 0 };
}

/* ---- check ---- */

static bool nothing_between(const struct backward_plan *plan)
{
    for (int64_t i = 0; !plan->in_turns && i < plan->sweep_count; i++)
        if (plan->sweeps[i].turn_begin || plan->sweeps[i].turn_count)
            return false;
    for (int64_t i = 0; i < plan->band_count; i++)
        if (plan->bands[i].pad_[0] || plan->bands[i].pad_[1])
            return false;
    return true;
}

struct turn_check {
    const struct backward_plan *plan;
    int32_t *visits; /* [blocks of the grid] */
    int64_t turns;   /* of the sweeps before */
};

/* Visit the sweep's blocks as a kernel does; false: its turns are not these visits, in the fewest
 * words. */
static bool turns_match(struct turn_check *check, const struct backward_sweep *sweep)
{
    const struct backward_plan *plan = check->plan;
    const int64_t m = plan->tile_m;
    const struct backward_turn *turn = &plan->turns[check->turns];
    const struct backward_turn *end = turn + sweep->turn_count;

    if (sweep->turn_begin != check->turns || sweep->turn_count < 1 ||
        sweep->turn_count > plan->turn_count - check->turns)
        return false;
    check->turns += sweep->turn_count;
    for (int64_t row = (sweep->q_end - 1) / m * m; row > sweep->q_begin - m; row -= m) {
        const bool is_next = row < turn->row;

        if (is_next && (++turn == end || turn->before == turn[-1].before))
            return false;
        if (row < turn->row || turn->before != check->visits[row / m]++)
            return false;
        if (row - m < turn->row && row != turn->row)
            return false;
    }
    return turn + 1 == end && turn->row == sweep->q_begin / m * m;
}

static ffa_status check_turns(const struct backward_plan *plan, ffa_error *err)
{
    const int64_t blocks = backward_grid_blocks(plan);
    struct turn_check check = { .plan = plan };
    ffa_status rc = FFA_OK;

    check.visits = mem_array((size_t)blocks, sizeof *check.visits);
    if (!check.visits)
        return error_nomem(err, "the check of a backward plan");
    for (int32_t list = 0; list < plan->list_count; list++) {
        memset(check.visits, 0, (size_t)blocks * sizeof *check.visits);
        for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const struct backward_tile *tile = &plan->tiles[t];

            for (int32_t s = tile->sweep_count - 1; s >= 0; s--)
                if (!turns_match(&check, &plan->sweeps[tile->sweep_begin + s])) {
                    rc = error_fail(err, FFA_BUG, 0,
                                    "tile %d (keys from %d): the turns of sweep %d are not its "
                                    "visits",
                                    t, tile->key_begin, s);
                    goto out;
                }
        }
    }
    if (check.turns != plan->turn_count)
        rc = error_fail(err, FFA_BUG, 0, "plan has turns of no sweep");
out:
    mem_free(check.visits);
    return rc;
}

ffa_status backward_check(const struct backward_plan *plan, ffa_error *err)
{
    struct tile_plan turned = { .shape = { plan->shape.seqlen_k, plan->shape.seqlen_q },
                                .tile_m = plan->tile_n,
                                .tile_n = plan->tile_m,
                                .on_grid = plan->in_turns,
                                .list_count = plan->list_count,
                                .list_begin = plan->list_begin,
                                .tile_count = plan->tile_count,
                                .sweep_count = plan->sweep_count,
                                .band_count = plan->band_count,
                                .block_count = plan->block_count,
                                .partial_blocks = plan->partial_blocks,
                                .area = plan->area };
    ffa_error found = { FFA_OK, 0, "" };
    ffa_status rc;

    turned.tiles = mem_array((size_t)plan->tile_count, sizeof *turned.tiles);
    turned.sweeps = mem_array((size_t)plan->sweep_count, sizeof *turned.sweeps);
    turned.bands = mem_array((size_t)plan->band_count, sizeof *turned.bands);
    if (!turned.tiles || !turned.sweeps || !turned.bands) {
        rc = error_nomem(err, "the check of a backward plan");
        goto out;
    }
    for (int64_t i = 0; i < plan->tile_count; i++)
        turned.tiles[i] = tile_turn(&plan->tiles[i]);
    for (int64_t i = 0; i < plan->sweep_count; i++)
        turned.sweeps[i] = sweep_turn(&plan->sweeps[i]);
    for (int64_t i = 0; i < plan->band_count; i++)
        turned.bands[i] = band_turn(&plan->bands[i]);
    rc = nothing_between(plan) ? tile_check(&turned, &found)
                               : error_fail(&found, FFA_BUG, 0, "padding is not zero");
    if (rc != FFA_OK)
        error_fail(err, rc, 0, "backward plan, its rows being keys and its keys rows: %s",
                   found.message);
    else if (plan->in_turns)
        rc = check_turns(plan, err);
out:
    mem_free(turned.tiles);
    mem_free(turned.sweeps);
    mem_free(turned.bands);
    return rc;
}
