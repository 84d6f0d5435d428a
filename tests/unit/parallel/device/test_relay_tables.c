/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of passes that relay, of all ranks of a group together: rows are moved and sums added
 * as the tables say, on the host. Every rank has the keys that its plan asks for, each row has
 * crossed to a node once, every own key has the sums of all its readers once, and what one rank
 * waits for another one tells it.
 */
#include "parallel/device/relay_tables.h"

#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdlib.h>

enum { RANKS = 8 };

struct group_case {
    const char *mask;
    int32_t keys; /* ffa_dispatch_keys */
    int32_t stages;
    int32_t count, per_node;
    ffa_dispatch_algorithm algorithm;
};
static const struct group_case cases[] = {
    { "causal:700", FFA_KEYS_WITH_QUERIES, 3, 4, 2, FFA_DISPATCH_AFFINITY },
    { "causal:700", FFA_KEYS_WITH_QUERIES, 3, 4, 2, FFA_DISPATCH_SEQUENTIAL },
    { "full:640", FFA_KEYS_WITH_QUERIES, 1, 8, 4, FFA_DISPATCH_AFFINITY },
    { "full:900", FFA_KEYS_WITH_QUERIES, 3, 8, 2, FFA_DISPATCH_AFFINITY },
    { "causal:900", FFA_KEYS_WITH_QUERIES, 4, 8, 3, FFA_DISPATCH_AFFINITY },
    { "varlen-causal:300,200,77,400", FFA_KEYS_WITH_QUERIES, 3, 8, 4, FFA_DISPATCH_AFFINITY },
    { "varlen-causal:300,200,77,400", FFA_KEYS_WITH_QUERIES, 3, 5, 2, FFA_DISPATCH_SEQUENTIAL },
    { "window:800,left=300,right=0", FFA_KEYS_WITH_QUERIES, 2, 6, 2, FFA_DISPATCH_SEQUENTIAL },
    { "full:256x600", FFA_KEYS_DISPATCHED, 2, 3, 2, FFA_DISPATCH_AFFINITY },
    { "causal:256x600", FFA_KEYS_DISPATCHED, 3, 6, 3, FFA_DISPATCH_AFFINITY },
    { "full:500x40", FFA_KEYS_DISPATCHED, 1, 8, 4, FFA_DISPATCH_AFFINITY },
    { "causal:400", FFA_KEYS_WITH_QUERIES, 2, 4, 1, FFA_DISPATCH_AFFINITY },
};

struct rank {
    ffa_parallel_plan *plan;
    struct pass_moves moves[2]; /* forward, backward */
    struct relay_moves relays[2];
    struct pass_sums flat;
    struct relay_sums sums;
    int64_t *keys;      /* [window rows]: owner and row of what is there; -1: nothing */
    uint32_t *summed;   /* [window rows]: ranks whose sums are in the row */
    uint32_t *received; /* [received rows] */
};

struct group {
    int32_t count, width;
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    struct rank ranks[RANKS];
    int64_t most; /* rows of any window */
};

static void ok(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

static void *zeros(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void rank_make(struct group *group, int32_t r, const ffa_parallel_plan_opts *opts)
{
    struct rank *rank = &group->ranks[r];
    ffa_error err = { FFA_OK, 0, "" };

    ok(ffa_parallel_plan_create(&rank->plan, group->dispatch, group->mask, r, opts, &err), &err);
    for (int b = 0; b < 2; b++) {
        ok(pass_moves_build(&rank->moves[b], rank->plan, b == 1, &err), &err);
        ck_assert_int_eq(relay_tables_wanted(rank->plan), group->width < group->count);
        ok(relay_moves_build(&rank->relays[b], rank->plan, &rank->moves[b], b == 1, &err), &err);
        group->most = max64(group->most, rank->moves[b].window_rows);
    }
    ok(pass_sums_build(&rank->flat, rank->plan, &rank->moves[1], true, &err), &err);
    ok(relay_sums_build(&rank->sums, rank->plan, &rank->moves[1], &rank->flat, &err), &err);
}

static void group_make(struct group *group, const struct group_case *from)
{
    const ffa_topology topology = { from->count, from->per_node };
    ffa_dispatch_opts dispatch = FFA_DISPATCH_OPTS_INIT;
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    *group = (struct group){ .count = from->count, .width = from->per_node };
    dispatch.keys = from->keys;
    dispatch.algorithm = (int32_t)from->algorithm;
    opts.forward_stages = opts.backward_stages = from->stages;
    opts.stage_rows_min = 1;
    ok(ffa_mask_parse(&group->mask, from->mask, &err), &err);
    ok(ffa_dispatch_create(&group->dispatch, &(ffa_dispatch_mask){ group->mask, 1 }, 1, &topology,
                           &dispatch, &err),
       &err);
    for (int32_t r = 0; r < group->count; r++)
        rank_make(group, r, &opts);
    for (int32_t r = 0; r < group->count; r++) {
        struct rank *rank = &group->ranks[r];

        rank->keys = zeros(group->most, sizeof *rank->keys);
        rank->summed = zeros(group->most, sizeof *rank->summed);
        rank->received = zeros(rank->sums.own.received_rows, sizeof *rank->received);
    }
}

static void group_free(struct group *group)
{
    for (int32_t r = 0; r < group->count; r++) {
        struct rank *rank = &group->ranks[r];

        for (int b = 0; b < 2; b++) {
            relay_moves_finish(&rank->relays[b]);
            pass_moves_finish(&rank->moves[b]);
        }
        relay_sums_finish(&rank->sums);
        pass_sums_finish(&rank->flat);
        ffa_parallel_plan_destroy(rank->plan);
        free(rank->keys);
        free(rank->summed);
        free(rank->received);
    }
    ffa_dispatch_destroy(group->dispatch);
    ffa_mask_destroy(group->mask);
}

static bool is_near(const struct group *group, int32_t a, int32_t b)
{
    return a / group->width == b / group->width;
}

static int64_t key_of(int32_t owner, int64_t row)
{
    return (int64_t)owner << 32 | row;
}

/* ---- keys ---- */

static void fill_own(struct group *group, int b)
{
    for (int32_t r = 0; r < group->count; r++)
        for (int64_t i = 0; i < group->most; i++)
            group->ranks[r].keys[i] = i < group->ranks[r].moves[b].own_rows ? key_of(r, i) : -1;
}

/* What goes from one rank to another in a step, in the order of both. */
static void cross(struct group *group, int b, int32_t from, int32_t to, int32_t step)
{
    const struct relay_moves *s = &group->ranks[from].relays[b], *t = &group->ranks[to].relays[b];
    const bool has_stage = step < group->ranks[to].moves[b].stage_count;
    int64_t at = has_stage ? t->receive_begin[step] : 0;
    const int64_t end = has_stage ? t->receive_begin[step + 1] : 0;

    for (int64_t i = s->send_begin[step]; i < s->send_begin[step + 1]; i++) {
        if (s->sends[i].rank != to)
            continue;
        while (at < end && t->receives[at].rank != from)
            at++;
        ck_assert_int_lt(at, end);
        ck_assert_int_eq(s->sends[i].rows, t->receives[at].rows);
        ck_assert_int_eq(s->sends[i].from, t->receives[at].from);
        for (int64_t row = 0; row < s->sends[i].rows; row++) {
            int64_t *key = &group->ranks[to].keys[t->receives[at].to + row];

            ck_assert_int_eq(*key, -1);
            *key = group->ranks[from].keys[s->sends[i].from + row];
        }
        at++;
    }
    while (at < end && t->receives[at].rank != from)
        at++;
    ck_assert_int_eq(at, end);
}

static bool was_awaited(const struct relay_moves *relays, int32_t part, int32_t rank, int32_t stage)
{
    for (int32_t i = 0; i < relays->awaited_begin[part + 1]; i++)
        if (relays->awaited[i].rank == rank && relays->awaited[i].stage == stage)
            return true;
    return false;
}

/* The stage in which the row came to the relay's window; 0: an own one. */
static int32_t stage_of(const struct pass_moves *moves, int64_t row)
{
    for (int32_t s = 1; s < moves->stage_count; s++)
        for (int64_t i = moves->copy_begin[s]; i < moves->copy_begin[s + 1]; i++)
            if (row >= moves->copies[i].to && row < moves->copies[i].to + moves->copies[i].rows)
                return s;
    ck_assert_int_lt(row, moves->own_rows);
    return 0;
}

static void pull(struct group *group, int b, int32_t r, int32_t part)
{
    const struct relay_moves *relays = &group->ranks[r].relays[b];

    for (int64_t i = relays->pull_begin[part]; i < relays->pull_begin[part + 1]; i++) {
        const struct pass_copy *copy = &relays->pulls[i];
        struct rank *source = &group->ranks[copy->rank];

        ck_assert(is_near(group, r, copy->rank));
        ck_assert_int_eq(copy->stage, part / 2);
        for (int64_t row = 0; row < copy->rows; row++) {
            const int32_t stage = stage_of(&source->moves[b], copy->from + row);

            ck_assert_int_eq(stage > 0, part % 2);
            ck_assert(was_awaited(relays, part, copy->rank, stage));
            ck_assert_int_ne(source->keys[copy->from + row], -1);
            ck_assert_int_eq(group->ranks[r].keys[copy->to + row], -1);
            group->ranks[r].keys[copy->to + row] = source->keys[copy->from + row];
        }
    }
}

static int32_t steps_of(const struct group *group, int b)
{
    return group->ranks[0].moves[b].step_count;
}

/* Own receives are awaited, too. */
static void check_arrival(const struct group *group, int b, int32_t r, int32_t stage)
{
    const struct relay_moves *relays = &group->ranks[r].relays[b];

    if (relays->receive_begin[stage + 1] > relays->receive_begin[stage])
        ck_assert(was_awaited(relays, 2 * stage + 1, r, stage));
}

static void check_keys(const struct group *group, int b, int32_t r)
{
    const struct pass_moves *moves = &group->ranks[r].moves[b];

    for (int64_t i = 0; i < moves->copy_begin[moves->stage_count]; i++)
        for (int64_t row = 0; row < moves->copies[i].rows; row++)
            ck_assert_int_eq(group->ranks[r].keys[moves->copies[i].to + row],
                             key_of(moves->copies[i].rank, moves->copies[i].from + row));
}

START_TEST(keys_arrive)
{
    struct group group;

    group_make(&group, &cases[_i / 2]);
    fill_own(&group, _i % 2);
    for (int32_t step = 1; step < steps_of(&group, _i % 2); step++) {
        for (int32_t from = 0; from < group.count; from++)
            for (int32_t to = 0; to < group.count; to++)
                cross(&group, _i % 2, from, to, step);
        for (int32_t r = 0; r < group.count; r++) {
            if (step >= group.ranks[r].moves[_i % 2].stage_count)
                continue;
            pull(&group, _i % 2, r, 2 * step);
            pull(&group, _i % 2, r, 2 * step + 1);
            check_arrival(&group, _i % 2, r, step);
        }
    }
    for (int32_t r = 0; r < group.count; r++)
        check_keys(&group, _i % 2, r);
    group_free(&group);
}
END_TEST

/* Whether a rank of the node receives the owner's row. */
static bool node_needs(const struct group *group, int b, int32_t node, int32_t owner, int64_t row)
{
    for (int32_t r = node * group->width; r < group->count && r < (node + 1) * group->width; r++) {
        const struct pass_moves *moves = &group->ranks[r].moves[b];

        for (int64_t i = 0; i < moves->copy_begin[moves->stage_count]; i++)
            if (moves->copies[i].rank == owner && row >= moves->copies[i].from &&
                row < moves->copies[i].from + moves->copies[i].rows)
                return true;
    }
    return false;
}

static int crossings(const struct group *group, int b, int32_t node, int32_t owner, int64_t row)
{
    const struct relay_moves *relays = &group->ranks[owner].relays[b];
    int count = 0;

    for (int64_t i = 0; i < relays->send_begin[steps_of(group, b)]; i++)
        count += relays->sends[i].rank / group->width == node && row >= relays->sends[i].from &&
                 row < relays->sends[i].from + relays->sends[i].rows;
    return count;
}

START_TEST(rows_cross_once_a_node)
{
    const int b = _i % 2;
    struct group group;
    int64_t crossed = 0;

    group_make(&group, &cases[_i / 2]);
    for (int32_t owner = 0; owner < group.count; owner++)
        for (int32_t node = 0; node * group.width < group.count; node++)
            for (int64_t row = 0; row < group.ranks[owner].moves[b].own_rows; row++) {
                const bool is_needed =
                    node != owner / group.width && node_needs(&group, b, node, owner, row);

                ck_assert_int_eq(crossings(&group, b, node, owner, row), is_needed);
                crossed += is_needed;
            }
    ck_assert_int_gt(crossed, 0);
    group_free(&group);
}
END_TEST

/* Of a full mask in one stage everybody is a relay, of as many rows. */
START_TEST(relays_share_rows)
{
    struct group group;
    int64_t least = INT64_MAX, most = 0;

    group_make(&group, &cases[2]);
    for (int32_t r = 0; r < group.count; r++) {
        const struct relay_moves *relays = &group.ranks[r].relays[0];
        int64_t rows = 0;

        for (int64_t i = 0; i < relays->receive_begin[group.ranks[r].moves[0].stage_count]; i++)
            rows += relays->receives[i].rows;
        least = rows < least ? rows : least;
        most = max64(most, rows);
    }
    ck_assert_msg(most <= 640 / 2 / 4 + 64 && least >= 640 / 2 / 4 - 64, "%lld to %lld",
                  (long long)least, (long long)most);
    group_free(&group);
}
END_TEST

static bool tells(const struct relay_moves *relays, const struct pass_moves *moves, int32_t rank,
                  int32_t stage)
{
    if (stage >= moves->stage_count)
        return false;
    for (int32_t i = relays->told_begin[stage]; i < relays->told_begin[stage + 1]; i++)
        if (relays->told[i].rank == rank && relays->told[i].stage == stage)
            return true;
    return false;
}

static bool has(const int32_t *ranks, int32_t count, int32_t rank)
{
    for (int32_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

/* A rank is told exactly what it waits for, once, and says that it has read whoever told it. */
START_TEST(flags_have_two_ends)
{
    const int b = _i % 2;
    struct group group;

    group_make(&group, &cases[_i / 2]);
    for (int32_t q = 0; q < group.count; q++)
        for (int32_t r = 0; r < group.count; r++) {
            const struct rank *teller = &group.ranks[q], *reader = &group.ranks[r];
            const struct relay_moves *relays = &reader->relays[b];
            bool is_told = false;

            for (int32_t s = 0; s < steps_of(&group, b); s++) {
                const bool told = tells(&teller->relays[b], &teller->moves[b], r, s);
                int awaited = 0;

                for (int32_t i = 0;
                     i < relays->awaited_begin[(ptrdiff_t)2 * reader->moves[b].stage_count]; i++)
                    awaited += relays->awaited[i].rank == q && relays->awaited[i].stage == s;
                ck_assert_int_eq(awaited, told);
                is_told = is_told || told;
            }
            if (q != r)
                ck_assert_int_eq(is_told, has(relays->sources, relays->source_count, q));
            ck_assert(!is_told || is_near(&group, q, r));
        }
    group_free(&group);
}
END_TEST

/* ---- sums ---- */

static bool kernel_tells(const struct group *group, int32_t rank, int32_t stage, int32_t whom)
{
    const struct pass_sums *own = &group->ranks[rank].sums.own;

    return has(own->owners + own->owner_begin[stage],
               own->owner_begin[stage + 1] - own->owner_begin[stage], whom);
}

/* Rows of the sum window of `rank`, which `reader` reads in the step: of that stage. */
static uint32_t read_row(struct group *group, int32_t rank, int64_t row, int32_t step,
                         int32_t reader)
{
    ck_assert_int_eq(stage_of(&group->ranks[rank].moves[1], row), step);
    ck_assert(kernel_tells(group, rank, step, reader));
    ck_assert(has(group->ranks[rank].sums.readers, group->ranks[rank].sums.reader_count, reader));
    ck_assert(has(group->ranks[reader].sums.givers, group->ranks[reader].sums.giver_count, rank));
    return group->ranks[rank].summed[row];
}

static void pull_sums(struct group *group, int32_t r, int32_t step)
{
    struct rank *rank = &group->ranks[r];
    const struct pass_sums *own = &rank->sums.own;

    for (int64_t i = 0; i < own->copy_count; i++) {
        const struct pass_copy *copy = &own->copies[i];

        for (int64_t row = 0;
             copy->stage == step && is_near(group, r, copy->rank) && row < copy->rows; row++) {
            const int64_t from = own->kept_rows[copy->rank] + copy->from + row;

            ck_assert_int_eq(group->ranks[copy->rank].keys[from],
                             key_of(r, own->own_rows[i] + row));
            rank->received[copy->to + row] = read_row(group, copy->rank, from, step, r);
        }
    }
}

static void add_members(struct group *group, int32_t r, int32_t step)
{
    struct rank *rank = &group->ranks[r];
    const struct relay_sums *sums = &rank->sums;

    for (int32_t a = 0; a < sums->addend_count; a++) {
        const struct relay_addend *addend = &sums->addends[a];
        int64_t end = 0;

        for (int64_t s = addend->segment_begin; addend->step == step && s < addend->segment_end;
             s++) {
            const struct row_segment *segment = &sums->segments[s];

            ck_assert_int_ge(segment->row, end);
            ck_assert_int_eq(segment->count, 1);
            end = segment->row + segment->rows;
            for (int32_t i = 0; i < segment->rows; i++) {
                const int64_t to = addend->first_row + segment->row + i;
                const int64_t from = sums->sources[segment->first] + i;
                const uint32_t more = read_row(group, addend->rank, from, step, r);

                ck_assert_int_eq(rank->keys[to], group->ranks[addend->rank].keys[from]);
                ck_assert_uint_eq(rank->summed[to] & more, 0);
                rank->summed[to] |= more;
            }
        }
        ck_assert(addend->step != step || end == addend->rows);
    }
}

/* Ranks of the node that receive the key. */
static uint32_t readers_of(const struct group *group, int32_t node, int64_t key)
{
    uint32_t readers = 0;

    for (int32_t r = node * group->width; r < group->count && r < (node + 1) * group->width; r++)
        for (int64_t i = group->ranks[r].moves[1].own_rows; i < group->most; i++)
            if (group->ranks[r].keys[i] == key)
                readers |= UINT32_C(1) << r;
    return readers;
}

/* From a relay to an owner, in the order of both: sums of the whole node. */
static void cross_back(struct group *group, int32_t from, int32_t to, int32_t step)
{
    struct rank *relay = &group->ranks[from], *owner = &group->ranks[to];
    const struct pass_sums *own = &owner->sums.own;
    int64_t at = 0;

    for (int64_t i = relay->sums.send_begin[step]; i < relay->sums.send_begin[step + 1]; i++) {
        const struct pass_copy *send = &relay->sums.sends[i];

        if (send->rank != to)
            continue;
        while (at < own->copy_count &&
               (own->copies[at].rank != from || own->copies[at].stage != step))
            at++;
        ck_assert_int_lt(at, own->copy_count);
        ck_assert_int_eq(send->rows, own->copies[at].rows);
        for (int64_t row = 0; row < send->rows; row++) {
            const int64_t key = relay->keys[send->from + row];

            ck_assert_int_eq(key, key_of(to, own->own_rows[at] + row));
            ck_assert(
                kernel_tells(group, from, stage_of(&relay->moves[1], send->from + row), from));
            ck_assert_int_le(stage_of(&relay->moves[1], send->from + row), step);
            ck_assert_uint_eq(relay->summed[send->from + row],
                              readers_of(group, from / group->width, key));
            owner->received[own->copies[at].to + row] = relay->summed[send->from + row];
        }
        at++;
    }
    while (at < own->copy_count && (own->copies[at].rank != from || own->copies[at].stage != step))
        at++;
    ck_assert(is_near(group, from, to) || at == own->copy_count);
}

static int32_t rank_of(const struct pass_sums *own, int64_t received)
{
    for (int64_t i = 0; i < own->copy_count; i++)
        if (received >= own->copies[i].to && received < own->copies[i].to + own->copies[i].rows)
            return own->copies[i].rank;
    ck_abort_msg("received row %lld is of no copy", (long long)received);
    return -1;
}

/* Each own key has all its readers once, by ascending rank. */
static void check_sums(struct group *group, int32_t r)
{
    const struct rank *rank = &group->ranks[r];
    const struct pass_sums *own = &rank->sums.own;
    int64_t end = 0;

    for (int64_t s = 0; s < own->segment_count; s++) {
        const struct row_segment *segment = &own->segments[s];

        ck_assert_int_eq(segment->row, end);
        end += segment->rows;
        for (int32_t i = 0; i < segment->rows; i++) {
            uint32_t all = 0, wanted = 0;
            int32_t before = -1;

            for (int32_t c = 0; c < segment->count; c++) {
                const int64_t at = own->received[segment->first + c] + i;

                ck_assert_int_gt(rank_of(own, at), before);
                before = rank_of(own, at);
                ck_assert_uint_eq(all & rank->received[at], 0);
                all |= rank->received[at];
            }
            for (int32_t node = 0; node * group->width < group->count; node++)
                wanted |= readers_of(group, node, key_of(r, segment->row + i));
            ck_assert_uint_eq(all, wanted);
        }
    }
    ck_assert_int_eq(end, rank->moves[1].own_rows);
    ck_assert_int_le(own->received_rows, rank->flat.received_rows);
}

static void place_keys(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    for (int64_t i = 0; i < rank->moves[1].copy_begin[rank->moves[1].stage_count]; i++)
        for (int64_t row = 0; row < rank->moves[1].copies[i].rows; row++) {
            const struct pass_copy *copy = &rank->moves[1].copies[i];

            rank->keys[copy->to + row] = key_of(copy->rank, copy->from + row);
            rank->summed[copy->to + row] = UINT32_C(1) << r;
        }
}

START_TEST(sums_come_home)
{
    struct group group;

    group_make(&group, &cases[_i]);
    fill_own(&group, 1);
    for (int32_t r = 0; r < group.count; r++)
        place_keys(&group, r);
    for (int32_t step = 1; step < steps_of(&group, 1); step++) {
        for (int32_t r = 0; r < group.count; r++)
            pull_sums(&group, r, step);
        for (int32_t r = 0; r < group.count; r++)
            add_members(&group, r, step);
        for (int32_t from = 0; from < group.count; from++)
            for (int32_t to = 0; to < group.count; to++)
                cross_back(&group, from, to, step);
    }
    for (int32_t r = 0; r < group.count; r++)
        check_sums(&group, r);
    for (int32_t p = 0; p < group.count; p++)
        for (int32_t q = 0; q < group.count; q++)
            ck_assert_int_eq(has(group.ranks[p].sums.readers, group.ranks[p].sums.reader_count, q),
                             has(group.ranks[q].sums.givers, group.ranks[q].sums.giver_count, p));
    group_free(&group);
}
END_TEST

/* ---- what has none, and what fails ---- */

START_TEST(plans_without_relays)
{
    const ffa_topology one = { 4, 4 }, two = { 4, 2 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch_opts replicated = FFA_DISPATCH_OPTS_INIT;
    ffa_dispatch *dispatches[2];
    ffa_parallel_plan *plan;
    ffa_mask *mask;
    ffa_error err;

    replicated.keys = FFA_KEYS_REPLICATED;
    ok(ffa_mask_parse(&mask, "causal:4096", &err), &err);
    ok(ffa_dispatch_create(&dispatches[0], &(ffa_dispatch_mask){ mask, 1 }, 1, &one, NULL, &err),
       &err);
    ok(ffa_dispatch_create(&dispatches[1], &(ffa_dispatch_mask){ mask, 1 }, 1, &two,
                           _i == 1 ? &replicated : NULL, &err),
       &err);
    opts.flags = _i == 2 ? FFA_PARALLEL_OUTLINE : 0;
    opts.memory_bytes = _i == 3 ? 9000000 : 0;
    ok(ffa_parallel_plan_create(&plan, dispatches[_i > 0], mask, 1, &opts, &err), &err);
    ck_assert(!relay_tables_wanted(plan));
    ck_assert_int_eq(plan->forward.relays.received.count + plan->backward.relays.own.count, 0);
    if (_i == 3)
        ck_assert(plan->in_rounds);
    ffa_parallel_plan_destroy(plan);
    ffa_dispatch_destroy(dispatches[0]);
    ffa_dispatch_destroy(dispatches[1]);
    ffa_mask_destroy(mask);
}
END_TEST

START_TEST(memory_may_run_out)
{
    struct group group;

    group_make(&group, &cases[0]);
    for (long nth = 1;; nth++) {
        const struct rank *rank = &group.ranks[2];
        struct relay_moves relays;
        struct relay_sums sums;
        ffa_status rc, sums_rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = relay_moves_build(&relays, rank->plan, &rank->moves[1], true, NULL);
        relay_moves_finish(&relays);
        sums_rc = relay_sums_build(&sums, rank->plan, &rank->moves[1], &rank->flat, NULL);
        relay_sums_finish(&sums);
        if (!fault_fired())
            break;
        ck_assert(rc == FFA_NOMEM || sums_rc == FFA_NOMEM);
    }
    fault_arm(FAULT_ALLOC, 0);
    group_free(&group);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("relay_tables");
    TCase *tc = tcase_create("relay_tables");
    const int count = (int)(sizeof cases / sizeof *cases);

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, keys_arrive, 0, 2 * count);
    tcase_add_loop_test(tc, rows_cross_once_a_node, 0, 2 * count);
    tcase_add_test(tc, relays_share_rows);
    tcase_add_loop_test(tc, flags_have_two_ends, 0, 2 * count);
    tcase_add_loop_test(tc, sums_come_home, 0, count);
    tcase_add_loop_test(tc, plans_without_relays, 0, 4);
    tcase_add_test(tc, memory_may_run_out);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
