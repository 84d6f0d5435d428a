/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages by branch and bound. Invariant: a stage's times follow from those of the stages before
 * it, so the search keeps one timeline and rewrites its end. A branch is cut off by a lower bound:
 * the rest of the fetches, of the computes and of the reduces, each without waiting for the others.
 * Ties keep fewer stages, then smaller first ones. At most 2^(items - 1) cuts.
 */
#include "parallel/plan/overlap.h"

/* A timeline that is searched adds up at most 3 * OVERLAP_ITEMS_MAX + 4 of these. */
#define TIME_MAX (INT64_MAX / 128)
#define NEVER INT64_MAX

/* ---- the timeline ---- */

/* A line begins with stages that end at 0 and hold nothing up, one for each buffer: then every
 * stage has the stages before it that its times depend on. */
enum { BEFORE = OVERLAP_BUFFERS_MAX };

struct line {
    struct overlap_times at[OVERLAP_STAGES_MAX + 1 + BEFORE]; /* stage s at [BEFORE + s] */
    int64_t tail; /* of the own part, behind the last stage */
};

/* The sums of a stage's items, with its latency and launch. */
struct stage {
    int64_t fetch, compute, reduce, rows, latency;
};

static void stage_add(struct stage *stage, const struct overlap_item *item)
{
    stage->fetch += item->fetch;
    stage->compute += item->compute;
    stage->reduce += item->reduce;
    stage->rows += item->rows;
    stage->latency = max64(stage->latency, item->latency);
}

static void line_start(struct line *line, const struct overlap_input *in, int64_t first_fetch)
{
    const int64_t before = in->is_backward ? min64(in->own, first_fetch) : in->own;

    memset(line->at, 0, (BEFORE + 1) * sizeof *line->at);
    line->at[BEFORE].compute_end = line->at[BEFORE].reduce_begin = before;
    line->at[BEFORE].reduce_end = before;
    line->tail = in->own - before;
}

/* Stage s >= 1 behind those before it. */
static void line_add(struct line *line, const struct overlap_input *in, int32_t s,
                     const struct stage *stage)
{
    const struct overlap_times *last = &line->at[BEFORE + s - 1];
    struct overlap_times *now = &line->at[BEFORE + s];

    if (s == 1)
        line_start(line, in, stage->fetch + stage->latency);
    now->fetch_begin = max64(last->fetch_end, line->at[BEFORE + s - in->buffers + 1].compute_begin);
    now->fetch_end = now->fetch_begin + stage->fetch + stage->latency;
    now->compute_begin = max64(max64(last->compute_end, now->fetch_end),
                               s > in->buffers ? line->at[BEFORE + s - in->buffers].reduce_end : 0);
    now->compute_end = now->compute_begin + stage->compute + in->launch;
    now->reduce_begin = max64(s > 1 ? last->reduce_end : 0, now->compute_end);
    now->reduce_end = now->reduce_begin + (in->has_reduce ? stage->reduce + stage->latency : 0);
}

static int64_t line_end(const struct line *line, int32_t stages)
{
    const struct overlap_times *last = &line->at[BEFORE + stages];

    return max64(last->compute_end + line->tail, last->reduce_end);
}

int64_t overlap_cost(const struct overlap_input *in, const struct overlap_split *split,
                     struct overlap_times *times)
{
    struct line line;

    line_start(&line, in, split->count ? 0 : in->own);
    for (int32_t s = 0; s < split->count; s++) {
        struct stage stage = { 0 };

        for (int64_t i = s ? split->ends[s - 1] : 0; i < split->ends[s]; i++)
            stage_add(&stage, &in->items[i]);
        line_add(&line, in, s + 1, &stage);
    }
    if (times)
        memcpy(times, line.at + BEFORE, ((size_t)split->count + 1) * sizeof *times);
    return line_end(&line, split->count);
}

static ffa_status check_input(const struct overlap_input *in, ffa_error *err)
{
    int64_t most = max64(in->own, in->launch);

    if (in->count < 0 || in->count > OVERLAP_ITEMS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%lld items to cut into stages, not in [0, %d]",
                          (long long)in->count, OVERLAP_ITEMS_MAX);
    if (in->degree < 0 || in->degree > OVERLAP_DEGREE_MAX || in->degree_max < 1 ||
        in->degree_max > OVERLAP_DEGREE_MAX)
        return error_fail(err, FFA_INVALID, 0, "degree is %d of at most %d, not in [0, %d]",
                          in->degree, in->degree_max, OVERLAP_DEGREE_MAX);
    if (in->buffers < 2 || in->buffers > OVERLAP_BUFFERS_MAX)
        return error_fail(err, FFA_INVALID, 0, "buffers is %d, not in [2, %d]", in->buffers,
                          OVERLAP_BUFFERS_MAX);
    if (in->own < 0 || in->launch < 0)
        return error_fail(err, FFA_INVALID, 0, "a negative time");
    for (int64_t i = 0; i < in->count; i++) {
        const struct overlap_item *item = &in->items[i];

        if (item->fetch < 0 || item->compute < 0 || item->reduce < 0 || item->rows < 0 ||
            item->latency < 0)
            return error_fail(err, FFA_INVALID, 0, "item %lld: a negative time or count",
                              (long long)i);
        most = max64(most,
                     max64(max64(item->fetch, item->latency), max64(item->compute, item->reduce)));
    }
    if (most > TIME_MAX)
        return error_fail(err, FFA_INVALID, 0, "a time of %lld, at most %lld", (long long)most,
                          (long long)TIME_MAX);
    return FFA_OK;
}

/* ---- the least of all cuts ---- */

struct search {
    const struct overlap_input *in;
    struct line line;
    struct stage stage[OVERLAP_DEGREE_MAX + 1]; /* stage s, as far as it has grown */
    int64_t ends[OVERLAP_DEGREE_MAX + 1];       /* ends[0] is 0 */
    struct stage rest[OVERLAP_ITEMS_MAX + 1];   /* of the items from i on */
    int32_t degree;                             /* all stages, or 0: any number up to degree_max */
};

/* A lower bound of the cost of every cut that begins with the first s stages. */
static int64_t bound(const struct search *search, int32_t s)
{
    const struct overlap_input *in = search->in;
    const struct overlap_times *last = &search->line.at[BEFORE + s];
    const struct stage *rest = &search->rest[search->ends[s]];
    const bool is_done = search->ends[s] == in->count;
    const int64_t compute =
        last->compute_end + rest->compute + (is_done ? 0 : in->launch) + search->line.tail;
    const int64_t fetch = is_done ? 0 : last->fetch_end + rest->fetch;
    const int64_t reduce = last->reduce_end + (in->has_reduce ? rest->reduce : 0);

    return max64(max64(compute, fetch), reduce);
}

static bool is_allowed(const struct search *search, int32_t s)
{
    const int64_t count = search->in->count, rows_min = search->in->rows_min;
    const int64_t left = count - search->ends[s];

    if (search->degree && (left < search->degree - s || (left > 0) != (s < search->degree)))
        return false;
    if (left == 0)
        return s == 1 || search->stage[s].rows >= rows_min;
    return search->stage[s].rows >= rows_min && search->rest[search->ends[s]].rows >= rows_min;
}

/* Depth first, ends ascending: of equal cuts the one with smaller first stages is met first. */
static void search_run(struct overlap_split *best, struct search *search)
{
    const struct overlap_input *in = search->in;
    const int32_t depth = search->degree ? search->degree : in->degree_max;
    int32_t s = 1;

    best->cost = NEVER;
    best->count = OVERLAP_DEGREE_MAX;
    search->ends[0] = search->ends[1] = 0;
    search->stage[1] = (struct stage){ 0 };
    while (s > 0) {
        int64_t least;

        if (search->ends[s] == in->count) {
            s--;
            continue;
        }
        stage_add(&search->stage[s], &in->items[search->ends[s]++]);
        if (!is_allowed(search, s))
            continue;
        line_add(&search->line, in, s, &search->stage[s]);
        least = bound(search, s);
        if (search->ends[s] < in->count) {
            const int32_t stages = s + 1;

            if (s == depth || least > best->cost || (least == best->cost && stages >= best->count))
                continue;
            s++;
            search->ends[s] = search->ends[s - 1];
            search->stage[s] = (struct stage){ 0 };
            continue;
        }
        least = line_end(&search->line, s);
        if (least < best->cost || (least == best->cost && s < best->count)) {
            best->cost = least;
            best->count = s;
            memcpy(best->ends, search->ends + 1, (size_t)s * sizeof *best->ends);
        }
    }
}

ffa_status overlap_solve(struct overlap_split *out, const struct overlap_input *in, ffa_error *err)
{
    struct search search = { .in = in, .degree = (int32_t)min64(in->degree, in->count) };
    ffa_status rc;

    *out = (struct overlap_split){ .cost = in->own };
    FFA_TRY(check_input(in, err));
    if (in->count == 0)
        goto out;
    for (int64_t i = in->count; i-- > 0;) {
        search.rest[i] = search.rest[i + 1];
        stage_add(&search.rest[i], &in->items[i]);
    }
    do /* one stage is always allowed */
        search_run(out, &search);
    while (out->cost == NEVER && --search.degree > 0);
out:
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
    out->cost = overlap_cost(in, out, NULL);
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
