/* SPDX-License-Identifier: Apache-2.0 */
#include "dist/overlap.h"

/* Costs are sums of at most OVERLAP_ITEMS_MAX + 2 of these. */
#define TIME_MAX (INT64_MAX / 64)
#define NEVER INT64_MAX

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Sums over the items [begin, end), as a stage; all 0 for an empty one. */
struct stage {
    int64_t fetch, compute, reduce, rows;
};

static struct stage stage_of(const struct overlap_input *in, int64_t begin, int64_t end)
{
    struct stage stage = { 0 };

    if (begin >= end)
        return stage;
    stage = (struct stage){ .fetch = in->latency, .compute = in->launch, .reduce = in->latency };
    for (int64_t i = begin; i < end; i++) {
        stage.fetch += in->items[i].fetch;
        stage.compute += in->items[i].compute;
        stage.reduce += in->items[i].reduce;
        stage.rows += in->items[i].rows;
    }
    return stage;
}

/* The slot before the first stage computes. */
static int64_t opening(const struct overlap_input *in, int64_t fetch)
{
    return in->is_backward ? fetch : max64(in->own, fetch);
}

/* What is left of the own part after the last stage. */
static int64_t tail_of(const struct overlap_input *in, int64_t fetch)
{
    return in->is_backward ? in->own - min64(in->own, fetch) : 0;
}

int64_t overlap_cost(const struct overlap_input *in, const struct overlap_split *split)
{
    struct stage before = { 0 }, now, next;
    int64_t cost, tail;

    if (split->count == 0)
        return in->own;
    now = stage_of(in, 0, split->ends[0]);
    cost = opening(in, now.fetch);
    tail = tail_of(in, now.fetch);
    for (int32_t s = 0; s < split->count; s++) {
        next = s + 1 < split->count ? stage_of(in, split->ends[s], split->ends[s + 1])
                                    : (struct stage){ 0 };
        cost += max64(now.compute, max64(next.fetch, in->is_backward ? before.reduce : 0));
        before = now;
        now = next;
    }
    return cost + (in->is_backward ? max64(tail, before.reduce) : 0);
}

static ffa_status check_input(const struct overlap_input *in, ffa_error *err)
{
    int64_t most = max64(in->own, max64(in->latency, in->launch));

    if (in->count < 0 || in->count > OVERLAP_ITEMS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%lld items to cut into stages, not in [0, %d]",
                          (long long)in->count, OVERLAP_ITEMS_MAX);
    if (in->degree < 0 || in->degree > OVERLAP_STAGES_MAX || in->degree_max < 1 ||
        in->degree_max > OVERLAP_STAGES_MAX)
        return error_fail(err, FFA_INVALID, 0, "degree is %d of at most %d, not in [0, %d]",
                          in->degree, in->degree_max, OVERLAP_STAGES_MAX);
    if (in->own < 0 || in->latency < 0 || in->launch < 0)
        return error_fail(err, FFA_INVALID, 0, "a negative time");
    for (int64_t i = 0; i < in->count; i++) {
        const struct overlap_item *item = &in->items[i];

        if (item->fetch < 0 || item->compute < 0 || item->reduce < 0 || item->rows < 0)
            return error_fail(err, FFA_INVALID, 0, "item %lld: a negative time or count",
                              (long long)i);
        most = max64(most, max64(item->fetch, max64(item->compute, item->reduce)));
    }
    if (most > TIME_MAX)
        return error_fail(err, FFA_INVALID, 0, "a time of %lld, at most %lld", (long long)most,
                          (long long)TIME_MAX);
    return FFA_OK;
}

/* ---- the least of all cuts ---- */

enum { SIDE = OVERLAP_ITEMS_MAX + 1, STATES = SIDE * SIDE * SIDE };

/* least[k][z][a][b]: from the moment stage [a, b) computes, stage [z, a) being reduced and k stages
 * to follow; next: where the first of these ends. */
struct table {
    const struct overlap_input *in;
    struct stage stages[SIDE][SIDE];
    int64_t *least;
    uint8_t *next;
};

static int64_t state(int64_t k, int64_t z, int64_t a, int64_t b)
{
    return k * STATES + (z * SIDE + a) * SIDE + b;
}

static bool is_allowed(const struct table *t, int64_t begin, int64_t end)
{
    return t->stages[begin][end].rows >= t->in->rows_min || (begin == 0 && end == t->in->count);
}

static int64_t slot(const struct table *t, int64_t z, int64_t a, int64_t b, int64_t next_fetch)
{
    const int64_t busy = max64(t->stages[a][b].compute, next_fetch);

    return t->in->is_backward ? max64(busy, t->stages[z][a].reduce) : busy;
}

/* The last stage, with the slot behind it. */
static void fill_last(struct table *t, int64_t tail)
{
    const int64_t end = t->in->count;

    for (int64_t z = 0; z < end; z++)
        for (int64_t a = z; a < end; a++) {
            int64_t cost = slot(t, z, a, end, 0);

            if (t->in->is_backward)
                cost += max64(tail, t->stages[a][end].reduce);
            t->least[state(0, z, a, end)] = is_allowed(t, a, end) ? cost : NEVER;
        }
}

static void fill(struct table *t, int64_t k)
{
    const int64_t end = t->in->count;

    for (int64_t z = 0; z < end; z++)
        for (int64_t a = z; a < end; a++)
            for (int64_t b = a + 1; b < end; b++) {
                int64_t least = NEVER;
                uint8_t next = 0;

                for (int64_t c = b + 1; c <= end && is_allowed(t, a, b); c++) {
                    const int64_t rest = c == end && k > 1   ? NEVER
                                         : c < end && k == 1 ? NEVER
                                                             : t->least[state(k - 1, a, b, c)];
                    int64_t cost;

                    if (rest == NEVER)
                        continue;
                    cost = slot(t, z, a, b, t->stages[b][c].fetch) + rest;
                    if (cost < least) {
                        least = cost;
                        next = (uint8_t)c;
                    }
                }
                t->least[state(k, z, a, b)] = least;
                t->next[state(k, z, a, b)] = next;
            }
}

/* The stages that begin with [0, first) and k more. */
static void read_split(struct overlap_split *out, const struct table *t, int64_t first, int64_t k)
{
    int64_t z = 0, a = 0, b = first;

    out->count = 0;
    out->ends[out->count++] = first;
    for (; k > 0; k--) {
        const int64_t c = t->next[state(k, z, a, b)];

        out->ends[out->count++] = c;
        z = a;
        a = b;
        b = c;
    }
}

/* Every first stage in turn: it alone decides what of the own part is left for the end. At best
 * `stages` stages, all counts up to it where any_count. */
static void search(struct overlap_split *best, struct table *t, int64_t stages, bool any_count)
{
    const int64_t end = t->in->count;

    best->cost = NEVER;
    for (int64_t first = 1; first <= end; first++) {
        const int64_t fetch = t->stages[0][first].fetch;

        if (first == 1 || t->in->is_backward) {
            fill_last(t, tail_of(t->in, fetch));
            for (int64_t k = 1; k < stages; k++)
                fill(t, k);
        }
        for (int64_t k = any_count ? 0 : stages - 1; k < stages; k++) {
            int64_t cost;

            if ((k == 0) != (first == end) || !is_allowed(t, 0, first))
                continue;
            cost = t->least[state(k, 0, 0, first)];
            if (cost == NEVER)
                continue;
            cost += opening(t->in, fetch);
            if (cost > best->cost || (cost == best->cost && k + 1 >= best->count))
                continue;
            read_split(best, t, first, k);
            best->cost = cost;
        }
    }
}

ffa_status overlap_solve(struct overlap_split *out, const struct overlap_input *in, ffa_error *err)
{
    const int32_t wanted = in->degree ? in->degree : in->degree_max;
    int64_t stages = min64(wanted, in->count);
    struct table t = { .in = in };
    ffa_status rc;

    *out = (struct overlap_split){ .cost = in->own };
    FFA_TRY(check_input(in, err));
    if (in->count == 0)
        goto out;
    t.least = mem_array((size_t)stages * STATES, sizeof *t.least);
    t.next = mem_array((size_t)stages * STATES, sizeof *t.next);
    if (!t.least || !t.next) {
        rc = error_nomem(err, "the cuts into stages");
        goto out;
    }
    for (int64_t a = 0; a <= in->count; a++)
        for (int64_t b = a; b <= in->count; b++)
            t.stages[a][b] = stage_of(in, a, b);
    do /* one stage is always allowed */
        search(out, &t, stages, in->degree == 0);
    while (out->cost == NEVER && --stages > 0);
out:
    mem_free(t.least);
    mem_free(t.next);
    return rc;
}

/* ---- the reference's uniform split ---- */

static void cut_evenly(struct overlap_split *out, const struct overlap_input *in, int32_t degree)
{
    const int64_t parts = min64(degree, in->count), all = in->count + 1; /* with the own part */
    int64_t end = -1;

    out->count = 0;
    for (int64_t p = 0; p < parts; p++) {
        end += all / parts + (p < all % parts);
        out->ends[out->count++] = end;
    }
    out->cost = overlap_cost(in, out);
}

ffa_status overlap_uniform(struct overlap_split *out, const struct overlap_input *in,
                           ffa_error *err)
{
    const int32_t from = in->degree ? in->degree : 1;
    const int32_t to = in->degree ? in->degree : in->degree_max;
    ffa_status rc;

    *out = (struct overlap_split){ .cost = NEVER };
    FFA_TRY(check_input(in, err));
    for (int32_t degree = from; degree <= to; degree++) {
        struct overlap_split split = { 0 };

        cut_evenly(&split, in, degree);
        if (split.cost < out->cost)
            *out = split;
    }
out:
    return rc;
}
