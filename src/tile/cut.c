/* SPDX-License-Identifier: Apache-2.0
 *
 * cut_build: a shortest path over rows, by beam search. A state is "a tile begins at this row";
 * from it, a tile goes on for tile_size rows, or to one of the last few jumps before that. A tile
 * costs the blocks it visits and one more for starting it. The lowest state is always taken next.
 * All others lie within tile_size rows of it, so that a handful is enough. States at multiples of
 * tile_size are never dropped: the result costs at most what aligned tiles cost. No tile goes on
 * beyond a mark, or beyond the end of a document that is kept apart.
 */
#include "tile/cut.h"

enum {
    BEAM_MAX = 6,
    JUMPS_MAX = 4,
    SCATTERED = 16,
    TILE_COST = 1 /* of starting a tile, in blocks */
};

/* How far to search. The cost of a tile takes longer to find with more intervals a row, or more
 * documents a tile; and with more documents a tile there are more paths that are nearly as good. */
struct cut_effort {
    int32_t beam;  /* states kept, 3 to BEAM_MAX */
    int32_t jumps; /* tried from a state, at most JUMPS_MAX */
};
static const struct cut_effort one_interval = { BEAM_MAX, JUMPS_MAX };
static const struct cut_effort tiny_documents = { 4, 2 };
static const struct cut_effort few_intervals = { 3, 2 };
static const struct cut_effort many_intervals = { 3, 1 };
static const struct cut_effort scattered = { 3, 0 }; /* more than SCATTERED intervals: no cuts */

struct cut_state {
    int64_t cost;
    int64_t node; /* how it was reached */
    int32_t row;
};

struct cut_node {
    int64_t parent; /* -1: none */
    int32_t row;    /* where the tile begins */
};

struct cut_search {
    const struct cut_shape *shape;
    struct sweep_work *work;
    const struct normal *normal; /* of jumps and ends */
    int32_t *jumps;              /* rows, ascending */
    int64_t jump_count, jump_capacity;
    int32_t *ends; /* rows at which tiles must be cut, ascending */
    int64_t end_count, end_capacity;
    struct cut_node *nodes;
    int64_t node_count, node_capacity;
    struct cut_state states[BEAM_MAX + JUMPS_MAX + 1]; /* by row, ascending */
    int32_t state_count;
    int64_t slope; /* cost of the last tile of full height */
};

/* ---- jumps: rows at which a cut may pay ---- */

static bool bound_jumps(int32_t before, int32_t after)
{
    return after != before && after - 1 != before; /* `before` may be INT32_MAX */
}

/* Whether the intervals of segment b do not continue those of a, the segment before it. */
static bool segments_jump(const struct normal *normal, const struct normal_segment *a,
                          const struct normal_segment *b)
{
    const struct normal_interval *from = &normal->intervals[a->interval_begin];
    const struct normal_interval *to = &normal->intervals[b->interval_begin];
    const int32_t last = a->row_end - a->row_begin - 1;

    if (a->interval_count != b->interval_count)
        return true;
    for (int32_t i = 0; i < a->interval_count; i++) {
        const struct normal_interval end = normal_interval_at(&from[i], last);

        if (bound_jumps(end.lo, to[i].lo) || bound_jumps(end.hi, to[i].hi))
            return true;
    }
    return false;
}

static ffa_status add_jump(struct cut_search *search, int32_t row, ffa_error *err)
{
    if (row == 0 || row == search->shape->rows)
        return FFA_OK;
    if (!mem_grow((void **)&search->jumps, &search->jump_capacity, search->jump_count + 1,
                  sizeof *search->jumps))
        return error_nomem(err, "the cuts of a plan");
    search->jumps[search->jump_count++] = row;
    return FFA_OK;
}

static ffa_status find_jumps(struct cut_search *search, ffa_error *err)
{
    const struct normal *normal = search->normal;
    ffa_status rc = FFA_OK;

    for (int64_t s = 0; s < normal->segment_count; s++) {
        const struct normal_segment *segment = &normal->segments[s];
        const struct normal_segment *next = s + 1 < normal->segment_count ? segment + 1 : NULL;

        if (s == 0)
            FFA_TRY(add_jump(search, segment->row_begin, err));
        if (!next || next->row_begin != segment->row_end)
            FFA_TRY(add_jump(search, segment->row_end, err));
        if (next && (next->row_begin != segment->row_end || segments_jump(normal, segment, next)))
            FFA_TRY(add_jump(search, next->row_begin, err));
    }
out:
    return rc;
}

/* ---- ends of documents: rows at which a tile must be cut ---- */

/* Whether the next row attends all of a row's interval [lo, hi) but its first key. *at: the first
 * interval of the next row that may reach lo. */
static bool goes_on(int32_t lo, int32_t hi, const struct normal_interval *next, int32_t count,
                    int32_t *at)
{
    while (*at < count && next[*at].hi <= lo)
        ++*at;
    for (int32_t i = *at; lo < hi; i++) {
        const int32_t covered = i < count ? next[i].lo : INT32_MAX;

        if (covered > lo && (covered >= hi || covered - lo > 1))
            return false;
        lo = next[i].hi;
    }
    return true;
}

static bool document_ends(const struct normal *normal, const struct normal_segment *a,
                          const struct normal_segment *b)
{
    const struct normal_interval *from = &normal->intervals[a->interval_begin];
    const struct normal_interval *to = &normal->intervals[b->interval_begin];
    const int32_t last = a->row_end - a->row_begin - 1;
    int32_t at = 0;

    for (int32_t i = 0; i < a->interval_count; i++) {
        const struct normal_interval end = normal_interval_at(&from[i], last);

        if (!goes_on(end.lo, end.hi, to, b->interval_count, &at))
            return true;
    }
    return false;
}

/* A diagonal one key wide: each of its rows is a document. */
static bool rows_are_documents(const struct normal *normal, const struct normal_segment *segment)
{
    const struct normal_interval *of = &normal->intervals[segment->interval_begin];

    for (int32_t i = 0; i < segment->interval_count; i++)
        if (of[i].lo_step && of[i].hi_step && of[i].hi - of[i].lo == 1)
            return true;
    return false;
}

static ffa_status add_end(struct cut_search *search, int32_t row, ffa_error *err)
{
    if (!mem_grow((void **)&search->ends, &search->end_capacity, search->end_count + 1,
                  sizeof *search->ends))
        return error_nomem(err, "the documents of a plan");
    search->ends[search->end_count++] = row;
    return FFA_OK;
}

static ffa_status find_ends(struct cut_search *search, ffa_error *err)
{
    const struct normal *normal = search->normal;
    ffa_status rc = FFA_OK;

    for (int64_t s = 0; s < normal->segment_count; s++) {
        const struct normal_segment *segment = &normal->segments[s];

        if (s > 0 && document_ends(normal, segment - 1, segment))
            FFA_TRY(add_end(search, segment->row_begin, err));
        for (int32_t row = segment->row_begin + 1;
             row < segment->row_end && rows_are_documents(normal, segment); row++)
            FFA_TRY(add_end(search, row, err));
    }
out:
    return rc;
}

/* ---- the beam ---- */

static ffa_status add_node(struct cut_search *search, const struct cut_state *state, int64_t *node,
                           ffa_error *err)
{
    if (!mem_grow((void **)&search->nodes, &search->node_capacity, search->node_count + 1,
                  sizeof *search->nodes))
        return error_nomem(err, "the cuts of a plan");
    search->nodes[search->node_count] = (struct cut_node){ state->node, state->row };
    *node = search->node_count++;
    return FFA_OK;
}

/* Insert by row; of two states at one row the cheaper stays, of equals the first. */
static void add_state(struct cut_search *search, const struct cut_state *state)
{
    int32_t at = search->state_count;

    while (at > 0 && search->states[at - 1].row > state->row)
        at--;
    if (at > 0 && search->states[at - 1].row == state->row) {
        if (state->cost < search->states[at - 1].cost)
            search->states[at - 1] = *state;
        return;
    }
    memmove(&search->states[at + 1], &search->states[at],
            (size_t)(search->state_count - at) * sizeof *search->states);
    search->states[at] = *state;
    search->state_count++;
}

/* Drop states until `beam` are left: those that paid most for being ahead of the lowest. */
static void trim_states(struct cut_search *search, int32_t beam)
{
    const int32_t tile_size = search->shape->tile_size;

    while (search->state_count > beam) {
        int64_t worst_score = INT64_MIN;
        int32_t worst = -1;

        for (int32_t i = 0; i < search->state_count; i++) {
            const struct cut_state *state = &search->states[i];
            const int64_t score = (state->cost - search->states[0].cost) * tile_size -
                                  (state->row - search->states[0].row) * search->slope;

            if (state->row % tile_size && state->row != search->shape->rows &&
                score > worst_score) {
                worst = i;
                worst_score = score;
            }
        }
        assert(worst >= 0);
        search->state_count--;
        memmove(&search->states[worst], &search->states[worst + 1],
                (size_t)(search->state_count - worst) * sizeof *search->states);
    }
}

static struct cut_effort effort_at(const struct normal *normal, int64_t segment, int64_t jumps)
{
    const int32_t intervals =
        segment < normal->segment_count ? normal->segments[segment].interval_count : 1;

    if (intervals > SCATTERED)
        return scattered;
    if (intervals > 3)
        return many_intervals;
    if (intervals > 1)
        return few_intervals;
    return jumps > JUMPS_MAX ? tiny_documents : one_interval;
}

/* Take the lowest state, and add the states that a tile from it leads to, up to row `stop`. jump
 * and segment: the first after the state's row. */
static ffa_status expand(struct cut_search *search, int64_t jump, int64_t segment, int32_t stop,
                         ffa_error *err)
{
    const struct cut_state state = search->states[0];
    const struct sweep_rows rows = { state.row, 0, segment };
    int32_t ends[JUMPS_MAX + 1];
    int64_t blocks[JUMPS_MAX + 1] = { 0 };
    struct cut_effort effort;
    int64_t node = -1, last = jump;
    int32_t count = 0;
    ffa_status rc;

    search->state_count--;
    memmove(search->states, search->states + 1,
            (size_t)search->state_count * sizeof *search->states);
    FFA_TRY(add_node(search, &state, &node, err));

    while (last < search->jump_count && search->jumps[last] < stop)
        last++;
    effort = effort_at(search->work->normal, segment, last - jump);
    for (int64_t j = last - jump > effort.jumps ? last - effort.jumps : jump; j < last; j++)
        ends[count++] = search->jumps[j];
    ends[count++] = stop;
    if (search->state_count || count > 1) { /* the only path needs no cost */
        FFA_TRY(sweep_cost(search->work, &rows, ends, count, blocks, err));
        search->slope = blocks[count - 1] + TILE_COST;
    }
    for (int32_t i = count - 1; i >= 0; i--)
        add_state(search, &(struct cut_state){ .cost = state.cost + blocks[i] + TILE_COST,
                                               .node = node,
                                               .row = ends[i] });
    trim_states(search, effort.beam);
out:
    return rc;
}

static ffa_status search_run(struct cut_search *search, ffa_error *err)
{
    const struct normal *normal = search->work->normal;
    const int32_t tile_size = search->shape->tile_size;
    int64_t jump = 0, segment = 0, end = 0, mark = 0;
    ffa_status rc = FFA_OK;

    search->states[0] = (struct cut_state){ .node = -1 };
    search->state_count = 1;
    while (search->states[0].row < search->shape->rows) {
        const int32_t row = search->states[0].row;
        int32_t stop = search->shape->rows;

        while (segment < normal->segment_count && normal->segments[segment].row_end <= row)
            segment++;
        while (jump < search->jump_count && search->jumps[jump] <= row)
            jump++;
        while (end < search->end_count && search->ends[end] <= row)
            end++;
        while (mark < search->shape->mark_count && search->shape->marks[mark] <= row)
            mark++;
        if (end < search->end_count)
            stop = search->ends[end];
        if (mark < search->shape->mark_count)
            stop = min32(stop, search->shape->marks[mark]);
        FFA_TRY(
            expand(search, jump, segment, stop - row > tile_size ? row + tile_size : stop, err));
    }
out:
    return rc;
}

/* ---- results ---- */

static ffa_status take_path(struct cut_list *out, const struct cut_search *search, ffa_error *err)
{
    int64_t count = 0;

    for (int64_t n = search->states[0].node; n >= 0; n = search->nodes[n].parent)
        count++;
    out->begins = mem_array((size_t)count, sizeof *out->begins);
    if (!out->begins)
        return error_nomem(err, "the tiles of a plan");
    out->count = count;
    for (int64_t n = search->states[0].node; n >= 0; n = search->nodes[n].parent)
        out->begins[--count] = search->nodes[n].row;
    return FFA_OK;
}

static ffa_status aligned(struct cut_list *out, const struct cut_shape *shape, ffa_error *err)
{
    const int64_t count = ((int64_t)shape->rows + shape->tile_size - 1) / shape->tile_size;

    out->begins = mem_array((size_t)count, sizeof *out->begins);
    if (!out->begins)
        return error_nomem(err, "the tiles of a plan");
    out->count = count;
    for (int64_t i = 0; i < count; i++)
        out->begins[i] = (int32_t)(i * shape->tile_size);
    return FFA_OK;
}

ffa_status cut_build(struct cut_list *out, struct sweep_work *work, const struct cut_shape *shape,
                     ffa_error *err)
{
    struct cut_search search = { .shape = shape,
                                 .work = work,
                                 .normal = shape->normal ? shape->normal : work->normal };
    ffa_status rc = FFA_OK;

    *out = (struct cut_list){ 0 };
    if (shape->cuts != TILE_CUTS_NONE)
        FFA_TRY(find_jumps(&search, err));
    if (shape->cuts == TILE_CUTS_ISOLATE)
        FFA_TRY(find_ends(&search, err));
    if (!search.jump_count && !search.end_count && !shape->mark_count) {
        rc = aligned(out, shape, err);
        goto out;
    }
    FFA_TRY(search_run(&search, err));
    FFA_TRY(take_path(out, &search, err));
out:
    mem_free(search.jumps);
    mem_free(search.ends);
    mem_free(search.nodes);
    return rc;
}

void cut_finish(struct cut_list *cuts)
{
    mem_free(cuts->begins);
    *cuts = (struct cut_list){ 0 };
}
