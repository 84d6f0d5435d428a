/* SPDX-License-Identifier: Apache-2.0
 *
 * ticket_build: visits of each block are counted tile by tile, in the order of the plan. Counts are
 * kept as runs of blocks with equal numbers, so that a sweep takes one ticket a run it meets, and
 * not one a block.
 */
#include "tile/ticket.h"

/* ---- runs of equal counts ---- */

/* How often each block of the grid was visited, as runs of equal numbers: a set bit is a block
 * where a run starts, and the number is kept there. */
struct visits {
    uint64_t *starts;
    int32_t *numbers;
    int64_t block_count;
};

static bool is_start(const struct visits *visits, int64_t block)
{
    return visits->starts[block / 64] >> (block % 64) & 1;
}

/* The start of the run that `block` is in. */
static int64_t start_of(const struct visits *visits, int64_t block)
{
    int64_t word = block / 64;
    uint64_t bits = visits->starts[word] << (63 - block % 64) >> (63 - block % 64);

    while (!bits)
        bits = visits->starts[--word];
    return word * 64 + 63 - __builtin_clzll(bits);
}

/* Have a run start at `block`, if there is such a block. */
static void split_at(struct visits *visits, int64_t block)
{
    if (block == visits->block_count || is_start(visits, block))
        return;
    visits->numbers[block] = visits->numbers[start_of(visits, block)];
    visits->starts[block / 64] |= (uint64_t)1 << (block % 64);
}

/* Join the run that starts at `block` to the one before, where both have the same number. */
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
    const size_t blocks = (size_t)max64(block_count, 1); /* a stage may have no query rows */

    *visits = (struct visits){ .block_count = block_count };
    visits->starts = mem_array((blocks + 63) / 64, sizeof *visits->starts);
    visits->numbers = mem_array(blocks, sizeof *visits->numbers);
    if (!visits->starts || !visits->numbers)
        return error_nomem(err, "the tickets of a plan");
    return FFA_OK;
}

static void visits_finish(struct visits *visits)
{
    mem_free(visits->starts);
    mem_free(visits->numbers);
}

/* Append the sweep's tickets, and count its visits. */
static ffa_status add_tickets(struct tile_plan *plan, int64_t *capacity, struct visits *visits,
                              struct plan_sweep *sweep, ffa_error *err)
{
    const int64_t first = sweep->begin / plan->tile_m;
    const int64_t end = (sweep->end - 1) / plan->tile_m + 1;
    int64_t block = end;

    sweep->ticket_begin = (int)plan->ticket_count;
    split_at(visits, first);
    split_at(visits, end);
    while (block > first) {
        block = start_of(visits, block - 1);
        if (plan->ticket_count == INT32_MAX)
            return error_fail(err, FFA_INVALID, 0, "plan has more than %d tickets", INT32_MAX);
        if (!mem_grow((void **)&plan->tickets, capacity, plan->ticket_count + 1,
                      sizeof *plan->tickets))
            return error_nomem(err, "the tickets of a plan");
        plan->tickets[plan->ticket_count++] = (struct plan_ticket){
            .row = (int)(block * plan->tile_m),
            .before = visits->numbers[block]++,
        };
    }
    join_at(visits, first);
    join_at(visits, end);
    sweep->ticket_count = (int)(plan->ticket_count - sweep->ticket_begin);
    return FFA_OK;
}

ffa_status ticket_build(struct tile_plan *plan, ffa_error *err)
{
    struct visits visits;
    int64_t capacity = 0;
    ffa_status rc;

    FFA_TRY(visits_init(&visits, ticket_grid_blocks(plan), err));
    for (int32_t list = 0; list < plan->list_count; list++) {
        visits_clear(&visits);
        for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const struct plan_tile *tile = &plan->tiles[t];

            for (int32_t s = tile->sweep_count - 1; s >= 0; s--)
                FFA_TRY(add_tickets(plan, &capacity, &visits, &plan->sweeps[tile->sweep_begin + s],
                                    err));
        }
    }
out:
    visits_finish(&visits);
    return rc;
}

int64_t ticket_grid_blocks(const struct tile_plan *plan)
{
    return (plan->shape.seqlen_q + plan->tile_m - 1) / plan->tile_m;
}

/* ---- check ---- */

struct ticket_walk {
    const struct tile_plan *plan;
    int32_t *visits; /* [blocks of the grid] */
    int64_t tickets; /* of the sweeps before */
};

/* Visit the sweep's blocks as a kernel does; false: its tickets are not those of these visits, or
 * not as few as they could be. */
static bool tickets_match(struct ticket_walk *check, const struct plan_sweep *sweep)
{
    const struct tile_plan *plan = check->plan;
    const int64_t m = plan->tile_m;
    const struct plan_ticket *ticket = &plan->tickets[check->tickets];
    const struct plan_ticket *end = ticket + sweep->ticket_count;

    if (sweep->ticket_begin != check->tickets || sweep->ticket_count < 1 ||
        sweep->ticket_count > plan->ticket_count - check->tickets)
        return false;
    check->tickets += sweep->ticket_count;
    for (int64_t row = (sweep->end - 1) / m * m; row > sweep->begin - m; row -= m) {
        const bool is_next = row < ticket->row;

        if (is_next && (++ticket == end || ticket->before == ticket[-1].before))
            return false;
        if (row < ticket->row || ticket->before != check->visits[row / m]++)
            return false;
        if (row - m < ticket->row && row != ticket->row)
            return false;
    }
    return ticket + 1 == end && ticket->row == sweep->begin / m * m;
}

ffa_status ticket_check(const struct tile_plan *plan, ffa_error *err)
{
    const int64_t blocks = ticket_grid_blocks(plan);
    struct ticket_walk check = { .plan = plan };
    ffa_status rc = FFA_OK;

    check.visits = mem_array((size_t)blocks, sizeof *check.visits);
    if (!check.visits)
        return error_nomem(err, "the check of a plan");
    for (int32_t list = 0; list < plan->list_count; list++) {
        memset(check.visits, 0, (size_t)blocks * sizeof *check.visits);
        for (int32_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const struct plan_tile *tile = &plan->tiles[t];

            for (int32_t s = tile->sweep_count - 1; s >= 0; s--)
                if (!tickets_match(&check, &plan->sweeps[tile->sweep_begin + s])) {
                    rc = error_fail(err, FFA_BUG, 0,
                                    "tile %d (keys from %d): the tickets of sweep %d are not its "
                                    "visits",
                                    t, tile->begin, s);
                    goto out;
                }
        }
    }
    if (check.tickets != plan->ticket_count)
        rc = error_fail(err, FFA_BUG, 0, "plan has tickets of no sweep");
out:
    mem_free(check.visits);
    return rc;
}
