/* SPDX-License-Identifier: Apache-2.0
 *
 * solve_affinity: place, repair, improve; min-heap's solution where that is no worse. Invariant:
 * every rank has floor(chunks / ranks) chunks or one more at every step, so a swap of two chunks
 * keeps the counts, and only loads and traffic are compared. Tricks: a chunk's value for every rank
 * is found in one walk over who else attends its keys; a round number in `seen` says whether an
 * amount is of this round, so nothing is cleared between rounds; ranks (nodes) with a value are a
 * bit each, so that those without, which are most of thousands, are not looked at. All limits are
 * counts of work, never of time.
 */
#include "parallel/dispatch/affinity.h"

/* What a token that crosses the network costs, where one that moves inside a node costs 1: 400 Gb/s
 * beside the 300 to 400 GB/s of NVLink. */
enum { NETWORK_COST = 7 };

/* Limits: entries of wants; pairs of chunks that attend the same key chunk; entries that swaps look
 * at. Dense masks exceed the second: there every rank needs nearly all keys, whoever computes
 * what, and nothing can be gained. */
enum { ENTRIES_MAX = 1 << 22, PAIRS_MAX = 1 << 23, SWAP_WORK_MAX = 1 << 25 };
enum { SWAP_ROUNDS = 4, SWAP_TARGETS = 2 };

struct want {
    int64_t chunk; /* of keys (in wants), of queries (in users) */
    int64_t tokens;
};

/* List c is at[begin[c] .. begin[c + 1]). */
struct wants {
    int64_t *begin;
    struct want *at;
};

/* Of each index, the largest amount of a round, summed over rounds. */
struct score {
    int64_t *sum;
    int64_t *now;  /* the largest amount of round `seen` */
    int64_t *seen; /* the last round with an amount */
    uint64_t *has; /* a bit each: the sum is above 0 */
    int64_t words;
};

struct affinity {
    const struct affinity_input *in;
    struct wants wants, users;
    int32_t *rank_of; /* -1: not placed */
    int32_t nodes;
    struct score by_rank, by_node, by_key;
    int64_t round;
    int64_t *load, *rank_cost, *node_cost;
    int64_t *members; /* [ranks][width] */
    int64_t *place;   /* [chunks]: among its rank's members */
    int64_t *member_count;
    int64_t width;
    int64_t cap, work;
};

static int32_t node_of(const struct affinity *a, int32_t rank)
{
    return rank / a->in->ranks_per_node;
}

/* ---- what chunks attend ---- */

/* List the key chunks that a chunk attends, with the tokens, but for its own; returns how many. at
 * NULL: only count. */
static int64_t each_want(const struct affinity_input *in, int64_t chunk, struct want *at)
{
    int64_t count = 0, last = -1;

    for (int64_t i = in->needs->begin[chunk]; i < in->needs->begin[chunk + 1]; i++) {
        const struct range *range = &in->needs->ranges[i];

        for (int64_t k = parts_find(&in->chunks, range->begin);
             k < in->chunks.count && in->chunks.at[k] < range->end; k++) {
            const int64_t begin = in->chunks.at[k] > range->begin ? in->chunks.at[k] : range->begin;
            const int64_t end =
                in->chunks.at[k + 1] < range->end ? in->chunks.at[k + 1] : range->end;

            if (k == chunk)
                continue;
            if (k != last)
                count++;
            if (at && k != last)
                at[count - 1] = (struct want){ k, 0 };
            if (at)
                at[count - 1].tokens += end - begin;
            last = k;
        }
    }
    return count;
}

/* The same entries by key chunk. */
static void transpose(struct wants *users, const struct wants *wants, int64_t count)
{
    for (int64_t i = 0; i < wants->begin[count]; i++)
        users->begin[wants->at[i].chunk]++;
    begins_from_counts(users->begin, count);
    for (int64_t c = 0; c < count; c++)
        for (int64_t i = wants->begin[c]; i < wants->begin[c + 1]; i++) {
            const struct want *want = &wants->at[i];

            users->at[users->begin[want->chunk]++] = (struct want){ c, want->tokens };
        }
    begins_move_back(users->begin, count);
}

/* *dense: beyond the limits, nothing was built. */
static ffa_status wants_build(struct affinity *a, bool *dense, ffa_error *err)
{
    const int64_t count = a->in->solve.count;
    int64_t entries = 0, pairs = 0;

    a->wants.begin = mem_array((size_t)count + 1, sizeof *a->wants.begin);
    a->users.begin = mem_array((size_t)count + 1, sizeof *a->users.begin);
    if (!a->wants.begin || !a->users.begin)
        return error_nomem(err, "what chunks attend");
    for (int64_t c = 0; c < count; c++) {
        entries += each_want(a->in, c, NULL);
        a->wants.begin[c + 1] = entries;
        if ((*dense = entries > ENTRIES_MAX))
            return FFA_OK;
    }
    a->wants.at = mem_array((size_t)entries, sizeof *a->wants.at);
    a->users.at = mem_array((size_t)entries, sizeof *a->users.at);
    if (!a->wants.at || !a->users.at)
        return error_nomem(err, "what chunks attend");
    for (int64_t c = 0; c < count; c++)
        (void)each_want(a->in, c, a->wants.at + a->wants.begin[c]);
    transpose(&a->users, &a->wants, count);
    for (int64_t k = 0; k < count; k++) {
        const int64_t users = a->users.begin[k + 1] - a->users.begin[k];

        pairs += users * users;
    }
    *dense = pairs > PAIRS_MAX;
    return FFA_OK;
}

/* ---- how much of what a chunk attends each rank and node holds ---- */

static ffa_status score_init(struct score *score, int64_t count, ffa_error *err)
{
    score->sum = mem_array((size_t)count, sizeof *score->sum);
    score->now = mem_array((size_t)count, sizeof *score->now);
    score->seen = mem_array((size_t)count, sizeof *score->seen);
    score->words = (count + 63) / 64;
    score->has = mem_array((size_t)score->words, sizeof *score->has);
    return score->sum && score->now && score->seen && score->has ? FFA_OK
                                                                 : error_nomem(err, "affinities");
}

static void score_finish(struct score *score)
{
    mem_free(score->sum);
    mem_free(score->now);
    mem_free(score->seen);
    mem_free(score->has);
}

/* The first index from `from` on whose sum is above 0; -1: none. */
static int64_t score_next(const struct score *score, int64_t from)
{
    for (int64_t w = from / 64; w < score->words; w++) {
        const uint64_t bits = score->has[w] >> (w == from / 64 ? from % 64 : 0);

        if (bits)
            return (w == from / 64 ? from : w * 64) + __builtin_ctzll(bits);
    }
    return -1;
}

static void score_clear(struct score *score)
{
    for (int64_t i = score_next(score, 0); i >= 0; i = score_next(score, i + 1))
        score->sum[i] = 0;
    memset(score->has, 0, (size_t)score->words * sizeof *score->has);
}

static void score_raise(struct score *score, int64_t index, int64_t tokens, int64_t round)
{
    if (score->seen[index] != round) {
        score->seen[index] = round;
        score->now[index] = 0;
    }
    if (tokens <= score->now[index])
        return;
    score->sum[index] += tokens - score->now[index];
    score->now[index] = tokens;
    score->has[index / 64] |= UINT64_C(1) << (index % 64);
}

static void hold(struct affinity *a, int64_t chunk, int64_t tokens)
{
    const int32_t rank = a->rank_of[chunk];

    if (rank < 0)
        return;
    score_raise(&a->by_rank, rank, tokens, a->round);
    score_raise(&a->by_node, node_of(a, rank), tokens, a->round);
}

/* Fill the sums of by_rank and by_node for a chunk that is not placed: the tokens that need not be
 * moved if this rank (node) takes the chunk, because it has them, or receives them anyway, or
 * attends the chunk's own keys. */
static void score_chunk(struct affinity *a, int64_t chunk)
{
    score_clear(&a->by_rank);
    score_clear(&a->by_node);
    for (int64_t i = a->wants.begin[chunk]; i < a->wants.begin[chunk + 1]; i++) {
        const struct want *want = &a->wants.at[i];

        a->round++;
        hold(a, want->chunk, want->tokens);
        for (int64_t u = a->users.begin[want->chunk]; u < a->users.begin[want->chunk + 1]; u++) {
            const struct want *user = &a->users.at[u];

            hold(a, user->chunk, user->tokens < want->tokens ? user->tokens : want->tokens);
        }
        a->work += a->users.begin[want->chunk + 1] - a->users.begin[want->chunk];
    }
    a->round++;
    for (int64_t u = a->users.begin[chunk]; u < a->users.begin[chunk + 1]; u++)
        hold(a, a->users.at[u].chunk, a->users.at[u].tokens);
}

static int64_t value_of(const struct affinity *a, int32_t rank)
{
    const int64_t node = a->nodes > 1 ? a->by_node.sum[node_of(a, rank)] : 0;

    return a->by_rank.sum[rank] + NETWORK_COST * node;
}

/* The first rank from `from` on that may have a value; the number of ranks: none. What a rank holds
 * its node holds, too. */
static int32_t next_valued(const struct affinity *a, int32_t from)
{
    const int32_t ranks = a->in->solve.ranks, width = a->in->ranks_per_node;
    int64_t next;

    if (from >= ranks)
        return ranks;
    if (a->nodes == 1) {
        next = score_next(&a->by_rank, from);
        return next < 0 ? ranks : (int32_t)next;
    }
    next = score_next(&a->by_node, from / width);
    if (next < 0)
        return ranks;
    return next == from / width ? from : (int32_t)next * width;
}

/* ---- placing ---- */

/* The rank of the largest value that can take the chunk and stay under the cap, even with the least
 * that it must take besides; the least loaded rank where no rank has a value. least[n]: the n
 * smallest loads together. */
static int32_t choose(const struct affinity *a, const struct rank_heap *heap, int64_t load,
                      const int64_t *least)
{
    int32_t best = heap->heap[0];
    int64_t most = 0;

    for (int32_t r = next_valued(a, 0); r < heap->ranks; r = next_valued(a, r + 1)) {
        const int64_t value = value_of(a, r);

        if (value == 0 || value < most || heap->at[r] < 0)
            continue;
        if (heap->load[r] + load + least[rank_heap_room(heap, r) - 1] > a->cap)
            continue;
        if (value > most || heap->load[r] < heap->load[best])
            best = r;
        most = value;
    }
    return best;
}

static ffa_status place_all(struct affinity *a, ffa_error *err)
{
    const struct solve_input *in = &a->in->solve;
    struct rank_heap heap = { 0 };
    int64_t *order = mem_array((size_t)in->count, sizeof *order);
    int64_t *least = mem_array((size_t)in->count + 1, sizeof *least);
    ffa_status rc;

    if (!order || !least) {
        rc = error_nomem(err, "the order of chunks");
        goto out;
    }
    FFA_TRY(rank_heap_init(&heap, in, err));
    solve_order(order, in);
    for (int64_t i = 0; i < in->count; i++)
        least[i + 1] = least[i] + in->loads[order[in->count - 1 - i]];
    for (int64_t c = 0; c < in->count; c++)
        a->rank_of[c] = -1;
    for (int64_t i = 0; i < in->count; i++) {
        const int64_t chunk = order[i], load = in->loads[chunk];
        int32_t rank;

        score_chunk(a, chunk);
        rank = choose(a, &heap, load, least);
        a->rank_of[chunk] = rank;
        rank_heap_take(&heap, rank, load);
    }
out:
    rank_heap_finish(&heap);
    mem_free(order);
    mem_free(least);
    return rc;
}

/* ---- the modelled traffic ---- */

/* What a chunk's wants add to the tokens that `group` (a rank, or a node) receives. */
static int64_t add_wants(struct affinity *a, int64_t chunk, int32_t group, bool is_node)
{
    int64_t before = 0, after = 0;

    for (int64_t i = a->wants.begin[chunk]; i < a->wants.begin[chunk + 1]; i++) {
        const struct want *want = &a->wants.at[i];
        const int32_t owner = a->rank_of[want->chunk];

        if ((is_node ? node_of(a, owner) : owner) == group)
            continue;
        if (a->by_key.seen[want->chunk] == a->round)
            before += a->by_key.now[want->chunk];
        score_raise(&a->by_key, want->chunk, want->tokens, a->round);
        after += a->by_key.now[want->chunk];
    }
    a->work += a->wants.begin[chunk + 1] - a->wants.begin[chunk];
    return after - before;
}

static int64_t cost_of_rank(struct affinity *a, int32_t rank)
{
    int64_t cost = 0;

    a->round++;
    for (int64_t i = 0; i < a->member_count[rank]; i++)
        cost += add_wants(a, a->members[rank * a->width + i], rank, false);
    return cost;
}

static int64_t cost_of_node(struct affinity *a, int32_t node)
{
    const int32_t begin = node * a->in->ranks_per_node;
    int64_t cost = 0;

    if (a->nodes == 1)
        return 0;
    a->round++;
    for (int32_t r = begin; r < begin + a->in->ranks_per_node && r < a->in->solve.ranks; r++)
        for (int64_t i = 0; i < a->member_count[r]; i++)
            cost += add_wants(a, a->members[r * a->width + i], node, true);
    return cost * NETWORK_COST;
}

/* Find members, loads and costs from rank_of; returns the whole cost. */
static int64_t recount(struct affinity *a)
{
    int64_t cost = 0;

    memset(a->member_count, 0, (size_t)a->in->solve.ranks * sizeof *a->member_count);
    for (int64_t c = 0; c < a->in->solve.count; c++) {
        const int32_t rank = a->rank_of[c];

        a->place[c] = a->member_count[rank];
        a->members[rank * a->width + a->member_count[rank]++] = c;
    }
    (void)solve_largest_load(a->rank_of, &a->in->solve, a->load);
    for (int32_t r = 0; r < a->in->solve.ranks; r++)
        cost += a->rank_cost[r] = cost_of_rank(a, r);
    for (int32_t n = 0; n < a->nodes; n++)
        cost += a->node_cost[n] = cost_of_node(a, n);
    return cost;
}

/* ---- swaps ---- */

struct swap {
    int32_t rank[2];
    int64_t place[2]; /* in members */
};

static void swap_apply(struct affinity *a, const struct swap *s)
{
    int64_t *first = &a->members[s->rank[0] * a->width + s->place[0]];
    int64_t *second = &a->members[s->rank[1] * a->width + s->place[1]];
    const int64_t chunk = *first;
    const int64_t more = a->in->solve.loads[*second] - a->in->solve.loads[chunk];

    *first = *second;
    *second = chunk;
    a->place[*first] = s->place[0];
    a->place[*second] = s->place[1];
    a->rank_of[*first] = s->rank[0];
    a->rank_of[*second] = s->rank[1];
    a->load[s->rank[0]] += more;
    a->load[s->rank[1]] -= more;
}

/* Costs of the swap's ranks and nodes, as things stand. */
struct swap_cost {
    int64_t rank[2], node[2];
};

static struct swap_cost swap_costs(struct affinity *a, const struct swap *s)
{
    const int32_t n0 = node_of(a, s->rank[0]), n1 = node_of(a, s->rank[1]);
    struct swap_cost cost = { { cost_of_rank(a, s->rank[0]), cost_of_rank(a, s->rank[1]) },
                              { a->node_cost[n0], a->node_cost[n1] } };

    if (n0 != n1) {
        cost.node[0] = cost_of_node(a, n0);
        cost.node[1] = cost_of_node(a, n1);
    }
    return cost;
}

static int64_t swap_gain(struct affinity *a, const struct swap *s)
{
    const int32_t n0 = node_of(a, s->rank[0]), n1 = node_of(a, s->rank[1]);
    struct swap_cost cost;

    swap_apply(a, s);
    cost = swap_costs(a, s);
    swap_apply(a, s);
    return a->rank_cost[s->rank[0]] + a->rank_cost[s->rank[1]] + a->node_cost[n0] +
           a->node_cost[n1] - cost.rank[0] - cost.rank[1] - cost.node[0] - cost.node[1];
}

static void swap_keep(struct affinity *a, const struct swap *s)
{
    struct swap_cost cost;

    swap_apply(a, s);
    cost = swap_costs(a, s);
    for (int i = 0; i < 2; i++) {
        a->rank_cost[s->rank[i]] = cost.rank[i];
        a->node_cost[node_of(a, s->rank[i])] = cost.node[i];
    }
}

static int32_t most_loaded(const struct affinity *a)
{
    int32_t most = 0;

    for (int32_t r = 1; r < a->in->solve.ranks; r++)
        if (a->load[r] > a->load[most])
            most = r;
    return most;
}

/* The best swap of a chunk of `heavy` for a lighter one of another rank: the one after which the
 * larger load of the two ranks is least. Any that brings both under the cap ends the search. False:
 * none lowers the load of `heavy`. */
static bool find_relief(const struct affinity *a, int32_t heavy, struct swap *best)
{
    const int64_t *loads = a->in->solve.loads;
    int64_t least = a->load[heavy];

    for (int32_t r = 0; r < a->in->solve.ranks && least > a->cap; r++)
        for (int64_t i = 0; r != heavy && i < a->member_count[heavy]; i++)
            for (int64_t j = 0; j < a->member_count[r]; j++) {
                const int64_t less =
                    loads[a->members[heavy * a->width + i]] - loads[a->members[r * a->width + j]];
                const int64_t here = a->load[heavy] - less, there = a->load[r] + less;
                const int64_t larger = here > there ? here : there;

                if (less <= 0 || larger >= least)
                    continue;
                least = larger;
                *best = (struct swap){ { heavy, r }, { i, j } };
            }
    return least < a->load[heavy];
}

/* Lower the largest load until it is under the cap or nothing helps. */
static void repair(struct affinity *a)
{
    for (int64_t step = 0; step < a->in->solve.count; step++) {
        const int32_t heavy = most_loaded(a);
        struct swap swap;

        if (a->load[heavy] <= a->cap || !find_relief(a, heavy, &swap))
            return;
        swap_apply(a, &swap);
    }
}

/* The ranks of the largest values for a chunk that is placed, above that of its own rank. */
static int32_t find_targets(struct affinity *a, int64_t chunk, int32_t targets[SWAP_TARGETS])
{
    const int32_t home = a->rank_of[chunk];
    int32_t count = 0;

    a->rank_of[chunk] = -1;
    score_chunk(a, chunk);
    a->rank_of[chunk] = home;
    for (int32_t r = next_valued(a, 0); r < a->in->solve.ranks; r = next_valued(a, r + 1)) {
        int32_t at = count;

        if (r == home || value_of(a, r) <= value_of(a, home))
            continue;
        while (at > 0 && value_of(a, targets[at - 1]) < value_of(a, r))
            at--;
        if (at == SWAP_TARGETS)
            continue;
        count += count < SWAP_TARGETS;
        for (int32_t i = count - 1; i > at; i--)
            targets[i] = targets[i - 1];
        targets[at] = r;
    }
    return count;
}

static bool fits(const struct affinity *a, const struct swap *s)
{
    const int64_t *loads = a->in->solve.loads;
    const int64_t more = loads[a->members[s->rank[1] * a->width + s->place[1]]] -
                         loads[a->members[s->rank[0] * a->width + s->place[0]]];

    return a->load[s->rank[0]] + more <= a->cap && a->load[s->rank[1]] - more <= a->cap;
}

/* Make the swap of this chunk that saves most traffic, if any saves some. */
static bool improve_chunk(struct affinity *a, int64_t chunk, int64_t *swaps_left)
{
    int32_t targets[SWAP_TARGETS];
    const int32_t home = a->rank_of[chunk], count = find_targets(a, chunk, targets);
    struct swap swap = { { home, 0 }, { a->place[chunk], 0 } }, best = swap;
    int64_t most = 0;

    for (int32_t t = 0; t < count; t++) {
        swap.rank[1] = targets[t];
        for (swap.place[1] = 0; swap.place[1] < a->member_count[targets[t]]; swap.place[1]++) {
            int64_t gain;

            if (*swaps_left <= 0 || a->work > SWAP_WORK_MAX)
                break;
            if (!fits(a, &swap))
                continue;
            (*swaps_left)--;
            gain = swap_gain(a, &swap);
            if (gain <= most)
                continue;
            most = gain;
            best = swap;
        }
    }
    if (most > 0)
        swap_keep(a, &best);
    return most > 0;
}

static void improve(struct affinity *a)
{
    int64_t swaps_left = a->in->swap_max;
    bool is_better = swaps_left > 0;

    a->work = 0;
    for (int round = 0; round < SWAP_ROUNDS && is_better; round++) {
        is_better = false;
        for (int64_t c = 0; c < a->in->solve.count; c++)
            if (swaps_left > 0 && a->work <= SWAP_WORK_MAX && improve_chunk(a, c, &swaps_left))
                is_better = true;
    }
}

/* ---- all of it ---- */

static ffa_status affinity_init(struct affinity *a, ffa_error *err)
{
    const size_t ranks = (size_t)a->in->solve.ranks;
    ffa_status rc;

    a->nodes = (a->in->solve.ranks + a->in->ranks_per_node - 1) / a->in->ranks_per_node;
    a->width = a->in->solve.count / a->in->solve.ranks + 1;
    a->load = mem_array(ranks, sizeof *a->load);
    a->rank_cost = mem_array(ranks, sizeof *a->rank_cost);
    a->node_cost = mem_array((size_t)a->nodes, sizeof *a->node_cost);
    a->member_count = mem_array(ranks, sizeof *a->member_count);
    a->members = mem_array(ranks * (size_t)a->width, sizeof *a->members);
    a->place = mem_array((size_t)a->in->solve.count, sizeof *a->place);
    if (!a->load || !a->rank_cost || !a->node_cost || !a->member_count || !a->members ||
        !a->place) {
        rc = error_nomem(err, "the ranks of an affinity dispatch");
        goto out;
    }
    FFA_TRY(score_init(&a->by_rank, a->in->solve.ranks, err));
    FFA_TRY(score_init(&a->by_node, a->nodes, err));
    FFA_TRY(score_init(&a->by_key, a->in->solve.count, err));
out:
    return rc;
}

static void affinity_finish(struct affinity *a)
{
    mem_free(a->wants.begin);
    mem_free(a->wants.at);
    mem_free(a->users.begin);
    mem_free(a->users.at);
    score_finish(&a->by_rank);
    score_finish(&a->by_node);
    score_finish(&a->by_key);
    mem_free(a->load);
    mem_free(a->rank_cost);
    mem_free(a->node_cost);
    mem_free(a->member_count);
    mem_free(a->members);
    mem_free(a->place);
}

/* The mean load with its slack, or what min-heap reaches where that is more. */
static int64_t cap_of(const struct affinity_input *in, int64_t min_heap_load)
{
    int64_t sum = 0, mean, cap;

    for (int64_t c = 0; c < in->solve.count; c++)
        sum += in->solve.loads[c];
    mean = sum / in->solve.ranks;
    cap = mean + mean / 1000 * in->slack_permille + mean % 1000 * in->slack_permille / 1000;
    return cap > min_heap_load ? cap : min_heap_load;
}

/* min_heap: its answer, for the cap and to fall back on. */
static ffa_status solve_with(struct affinity *a, const int32_t *min_heap,
                             struct affinity_result *result, ffa_error *err)
{
    const size_t bytes = (size_t)a->in->solve.count * sizeof *a->rank_of;
    int32_t *from = a->rank_of;
    int64_t least, placed, after;
    ffa_status rc;

    memcpy(from, min_heap, bytes);
    a->cap = cap_of(a->in, solve_largest_load(from, &a->in->solve, a->load));
    least = recount(a);
    FFA_TRY(place_all(a, err));
    (void)recount(a);
    repair(a);
    placed = recount(a);
    result->is_min_heap = placed >= least || a->load[most_loaded(a)] > a->cap;
    if (result->is_min_heap) {
        memcpy(from, min_heap, bytes);
        placed = recount(a);
    }
    improve(a);
    after = recount(a);
    result->swap_gain = placed > 0 ? (double)(placed - after) / (double)placed : 0;
    result->is_min_heap = result->is_min_heap && after == placed;
out:
    return rc;
}

ffa_status solve_affinity(int32_t *rank_of, struct affinity_result *result,
                          const struct affinity_input *in, ffa_error *err)
{
    struct affinity a = { .in = in, .rank_of = rank_of };
    int32_t *min_heap = mem_array((size_t)in->solve.count, sizeof *min_heap);
    bool dense = false;
    ffa_status rc;

    *result = (struct affinity_result){ .is_min_heap = true };
    if (!min_heap) {
        rc = error_nomem(err, "a dispatch");
        goto out;
    }
    FFA_TRY(solve_min_heap(min_heap, &in->solve, err));
    FFA_TRY(wants_build(&a, &dense, err));
    memcpy(rank_of, min_heap, (size_t)in->solve.count * sizeof *rank_of);
    if (dense)
        goto out;
    FFA_TRY(affinity_init(&a, err));
    FFA_TRY(solve_with(&a, min_heap, result, err));
out:
    affinity_finish(&a);
    mem_free(min_heap);
    return rc;
}
