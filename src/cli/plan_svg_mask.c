/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask of a plan, twice: by the rank that computes a cell, and by the forward stage in which
 * one rank computes it. A mask is drawn line by line of pixels, each line as the keys of one query
 * row: exact where there are as many lines as rows, a sample where there are more rows. Trick: all
 * slices are visited once, and each adds its keys to the sampled rows it has; nothing looks at
 * cells.
 */
#include "cli/plan_svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NOT_HERE = -1,
    PIECES_MAX = 50000, /* of a mask, beyond which its lines become thicker */
    LINES_MIN = 64
};

/* ---- who has which tokens ---- */

/* The chunks of queries or of keys, and which of them each rank has. */
struct side {
    ffa_dispatch_chunk *at; /* [count] */
    int64_t *by_rank;       /* [count]: chunks by rank, ascending */
    int64_t *rank_begin;    /* [ranks + 1]: into by_rank */
    int64_t count;
    bool is_replicated; /* one chunk, which every rank has */
};

static void side_finish(struct side *side)
{
    free(side->at);
    free(side->by_rank);
    free(side->rank_begin);
}

/* by_rank and rank_begin, from the chunks' ranks: count, then fill from the last chunk down. */
static void side_index(struct side *side, int32_t ranks)
{
    memset(side->rank_begin, 0, ((size_t)ranks + 1) * sizeof *side->rank_begin);
    for (int64_t c = 0; c < side->count; c++)
        side->rank_begin[side->at[c].rank]++;
    for (int32_t r = 0; r < ranks; r++)
        side->rank_begin[r + 1] += side->rank_begin[r];
    for (int64_t c = side->count; c-- > 0;)
        side->by_rank[--side->rank_begin[side->at[c].rank]] = c;
}

static bool side_init(struct side *out, const ffa_dispatch *dispatch, bool is_keys, int32_t ranks)
{
    int64_t chunks = 0, indexed = 0, begins = 0;

    out->count =
        is_keys ? ffa_dispatch_key_chunk_count(dispatch) : ffa_dispatch_chunk_count(dispatch);
    if (!svg_grow((void **)&out->at, &chunks, out->count, sizeof *out->at) ||
        !svg_grow((void **)&out->by_rank, &indexed, out->count, sizeof *out->by_rank) ||
        !svg_grow((void **)&out->rank_begin, &begins, ranks + 1, sizeof *out->rank_begin))
        return false;
    for (int64_t c = 0; c < out->count; c++) {
        out->at[c] = (ffa_dispatch_chunk)FFA_DISPATCH_CHUNK_INIT;
        (void)(is_keys ? ffa_dispatch_key_chunk_get(dispatch, c, &out->at[c], NULL)
                       : ffa_dispatch_chunk_get(dispatch, c, &out->at[c], NULL));
    }
    out->is_replicated = out->at[0].rank < 0;
    if (!out->is_replicated)
        side_index(out, ranks);
    return true;
}

/* The chunk that holds the token. */
static int64_t side_find(const struct side *side, int64_t token)
{
    int64_t low = 0, high = side->count;

    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;

        if (side->at[middle].begin <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- tokens of the rank, by stage ---- */

struct zone {
    int64_t begin, end; /* tokens */
    int32_t stage;      /* 0: own */
};

struct zones {
    struct zone *at;
    int64_t count, capacity;
};

static int zone_compare(const void *left, const void *right)
{
    const struct zone *a = left, *b = right;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

static bool add_zone(struct zones *zones, int64_t begin, int64_t end, int32_t stage)
{
    if (!svg_grow((void **)&zones->at, &zones->capacity, zones->count + 1, sizeof *zones->at))
        return false;
    zones->at[zones->count++] = (struct zone){ begin, end, stage };
    return true;
}

/* The tokens of rows [row, row + rows) of a rank's buffer. */
static bool add_rows(struct zones *zones, const struct side *side, int32_t rank, int64_t row,
                     int64_t rows, int32_t stage)
{
    for (int64_t i = side->rank_begin[rank]; i < side->rank_begin[rank + 1]; i++) {
        const ffa_dispatch_chunk *chunk = &side->at[side->by_rank[i]];
        const int64_t first = chunk->local_begin, last = first + chunk->end - chunk->begin;
        const int64_t begin = row > first ? row : first;
        const int64_t end = row + rows < last ? row + rows : last;

        if (begin < end &&
            !add_zone(zones, begin + chunk->begin - first, end + chunk->begin - first, stage))
            return false;
    }
    return true;
}

static bool add_own(struct zones *zones, const struct side *side, int32_t rank)
{
    if (side->is_replicated)
        return add_zone(zones, 0, side->at[0].end, 0);
    for (int64_t i = side->rank_begin[rank]; i < side->rank_begin[rank + 1]; i++) {
        const ffa_dispatch_chunk *chunk = &side->at[side->by_rank[i]];

        if (!add_zone(zones, chunk->begin, chunk->end, 0))
            return false;
    }
    return true;
}

/* Neighbours of one stage, whoever sent them, are one zone. */
static void zones_join(struct zones *zones)
{
    int64_t kept = 0;

    for (int64_t z = 0; z < zones->count; z++) {
        struct zone *last = kept > 0 ? &zones->at[kept - 1] : NULL;

        if (last && last->end == zones->at[z].begin && last->stage == zones->at[z].stage)
            last->end = zones->at[z].end;
        else
            zones->at[kept++] = zones->at[z];
    }
    zones->count = kept;
}

/* What moves: the rank's own tokens and those each forward stage receives. */
static bool find_zones(struct zones *zones, const struct plan_picture *picture,
                       const ffa_parallel_plan_info *info, const struct side *moving)
{
    if (!add_own(zones, moving, info->rank))
        return false;
    for (int32_t s = 1; s <= info->forward_stages; s++) {
        const int64_t count = ffa_parallel_plan_receive_count(picture->plan, 0, s);

        for (int64_t i = 0; i < count; i++) {
            ffa_parallel_receive rows = FFA_PARALLEL_RECEIVE_INIT;

            (void)ffa_parallel_plan_receive_get(picture->plan, 0, s, i, &rows, NULL);
            if (!add_rows(zones, moving, rows.source, rows.source_row, rows.rows, s))
                return false;
        }
    }
    if (zones->count > 0)
        qsort(zones->at, (size_t)zones->count, sizeof *zones->at, zone_compare);
    zones_join(zones);
    return true;
}

/* The first zone that ends behind the token. */
static int64_t zone_from(const struct zones *zones, int64_t token)
{
    int64_t low = 0, high = zones->count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (zones->at[middle].end <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int32_t stage_of(const struct zones *zones, int64_t token)
{
    const int64_t z = zone_from(zones, token);

    return z < zones->count && zones->at[z].begin <= token ? zones->at[z].stage : NOT_HERE;
}

/* ---- the keys of sampled rows ---- */

/* Keys [begin, end) of the line'th sampled row. */
struct run {
    int64_t begin, end;
    int32_t line;
};

struct runs {
    struct run *at;
    int64_t count, capacity;
};

static int run_compare(const void *left, const void *right)
{
    const struct run *a = left, *b = right;

    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The first of the ascending tokens that is not below `token`. */
static int32_t line_from(const int64_t *tokens, int32_t lines, int64_t token)
{
    int32_t low = 0, high = lines;

    while (low < high) {
        const int32_t middle = low + (high - low) / 2;

        if (tokens[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* By line, then by first key; runs of a line may overlap where slices do. */
static bool find_runs(struct runs *out, const ffa_mask *mask, const int64_t *tokens, int32_t lines)
{
    const ffa_slice_list list = ffa_mask_slices(mask, 0);

    for (int64_t i = 0; i < list.count; i++) {
        const ffa_slice *slice = &list.slices[i];

        for (int32_t l = line_from(tokens, lines, slice->q_begin);
             l < lines && tokens[l] < slice->q_end; l++) {
            const int64_t lo = slice->type & FFA_SLICE_INVCAUSAL ? tokens[l] - slice->q_begin : 0;
            const int64_t hi = slice->type & FFA_SLICE_CAUSAL ? slice->q_end - 1 - tokens[l] : 0;

            if (slice->k_begin + lo >= slice->k_end - hi)
                continue;
            if (!svg_grow((void **)&out->at, &out->capacity, out->count + 1, sizeof *out->at))
                return false;
            out->at[out->count++] = (struct run){ slice->k_begin + lo, slice->k_end - hi, l };
        }
    }
    if (out->count > 0)
        qsort(out->at, (size_t)out->count, sizeof *out->at, run_compare);
    return true;
}

/* ---- one mask ---- */

struct view {
    const struct plan_picture *picture;
    const ffa_parallel_plan_info *info;
    const struct side *queries, *keys;
    struct svg *paths;                    /* by rank, or by stage with one more for all else */
    const struct zones *zones, *own_keys; /* NULL: by rank */
    int32_t others;                       /* index of the path for all else */
    bool is_packed;                       /* rows of the rank's buffer, not of the sequence */
    int64_t pieces;                       /* a row may fall into, by zones or owners */
    int64_t seqlen_k;
    int64_t x, y; /* of the mask, pixels */
};

static int64_t x_of(const struct view *view, int64_t key)
{
    return view->x * 100 + key * PLAN_SVG_SIDE * 100 / view->seqlen_k;
}

static void add_keys(const struct view *view, int32_t path, int64_t begin, int64_t end, int64_t y,
                     int64_t height)
{
    const int64_t x = x_of(view, begin), width = x_of(view, end) - x;

    svg_add_box(&view->paths[path], x, y, width > 30 ? width : 30, height);
}

/* Keys [begin, end) of a row: by the zones of the keys, or, where queries move, of the row. */
static void add_by_stage(const struct view *view, int64_t row, int64_t begin, int64_t end,
                         int64_t y, int64_t height)
{
    const bool moves_queries = view->info->moves == FFA_PARALLEL_MOVE_QUERIES;
    static const struct zones none;
    const struct zones *zones = moves_queries ? view->own_keys : view->zones;
    const int32_t stage = moves_queries ? stage_of(view->zones, row) : 0;
    const int64_t least = view->seqlen_k / (2 * PLAN_SVG_SIDE); /* keys worth a piece */
    int64_t at = begin;

    if (stage == NOT_HERE)
        zones = &none;
    for (int64_t z = zone_from(zones, begin); z < zones->count && zones->at[z].begin < end; z++) {
        const int64_t from = zones->at[z].begin > begin ? zones->at[z].begin : begin;
        const int64_t to = zones->at[z].end < end ? zones->at[z].end : end;

        if (at < from)
            add_keys(view, view->others, at, from, y, height);
        if (to <= at || (from <= at && to - at < least && to < end))
            continue; /* too narrow to be seen: the next zone is drawn from here */
        add_keys(view, moves_queries ? stage : zones->at[z].stage, at < from ? from : at, to, y,
                 height);
        at = to;
    }
    if (at < end)
        add_keys(view, view->others, at, end, y, height);
}

/* Where queries move, the rank of the key computes. */
static void add_by_owner(const struct view *view, int64_t begin, int64_t end, int64_t y,
                         int64_t height)
{
    const struct side *keys = view->keys;
    const int64_t least = view->seqlen_k / (2 * PLAN_SVG_SIDE);

    for (int64_t c = side_find(keys, begin); c < keys->count && keys->at[c].begin < end; c++) {
        const int64_t to = keys->at[c].end < end ? keys->at[c].end : end;

        if (to - begin < least && to < end)
            continue; /* too narrow to be seen: the next chunk is drawn from here */
        add_keys(view, keys->at[c].rank, begin, to, y, height);
        begin = to;
    }
}

static void add_interval(const struct view *view, int64_t row, int64_t begin, int64_t end,
                         int64_t y, int64_t height)
{
    const int32_t rank = view->queries->at[side_find(view->queries, row)].rank;
    const bool moves_queries = view->info->moves == FFA_PARALLEL_MOVE_QUERIES;

    if (!view->zones && moves_queries)
        add_by_owner(view, begin, end, y, height);
    else if (!view->zones)
        add_keys(view, rank, begin, end, y, height);
    else if (!moves_queries && rank != view->info->rank)
        add_keys(view, view->others, begin, end, y, height);
    else
        add_by_stage(view, row, begin, end, y, height);
}

/* One line: runs [count] of the row, ascending. Those too near each other to be seen apart are
 * drawn as one. */
static void add_line(const struct view *view, int64_t row, const struct run *runs, int64_t count,
                     int64_t y, int64_t height)
{
    const int64_t gap = view->seqlen_k / (2 * PLAN_SVG_SIDE);
    int64_t begin = runs[0].begin, end = runs[0].end;

    for (int64_t i = 1; i < count; i++) {
        if (runs[i].begin - end > gap) {
            add_interval(view, row, begin, end, y, height);
            begin = runs[i].begin;
        }
        end = runs[i].end > end ? runs[i].end : end;
    }
    add_interval(view, row, begin, end, y, height);
}

static int64_t rows_of(const struct view *view)
{
    return view->is_packed ? view->info->tokens_q : ffa_mask_seqlen_q(view->picture->mask);
}

/* The token of a row that is drawn: of the sequence, or of the rank's own. */
static int64_t token_of(const struct view *view, int64_t row)
{
    const struct side *queries = view->queries;
    const ffa_dispatch_chunk *chunk;
    int64_t i = queries->rank_begin[view->info->rank];

    if (!view->is_packed)
        return row;
    do {
        chunk = &queries->at[queries->by_rank[i++]];
    } while (chunk->local_begin + chunk->end - chunk->begin <= row);
    return chunk->begin + row - chunk->local_begin;
}

static bool add_mask(const struct view *view)
{
    const int64_t rows = rows_of(view), fit = PIECES_MAX / (view->pieces + 1);
    const int64_t most = fit < LINES_MIN ? LINES_MIN : fit < PLAN_SVG_SIDE ? fit : PLAN_SVG_SIDE;
    const int32_t lines = (int32_t)(rows < most ? rows : most);
    int64_t tokens[PLAN_SVG_SIDE];
    struct runs runs = { 0 };
    bool has_memory;

    for (int32_t l = 0; l < lines; l++)
        tokens[l] = token_of(view, (2 * l + 1) * rows / (2 * lines));
    has_memory = find_runs(&runs, view->picture->mask, tokens, lines);
    for (int64_t i = 0, next; has_memory && i < runs.count; i = next) {
        const int64_t line = runs.at[i].line;
        const int64_t y = line * PLAN_SVG_SIDE * 100 / lines;

        for (next = i + 1; next < runs.count && runs.at[next].line == line;)
            next++;
        add_line(view, tokens[line], runs.at + i, next - i, view->y * 100 + y,
                 (line + 1) * PLAN_SVG_SIDE * 100 / lines - y);
    }
    free(runs.at);
    return has_memory;
}

/* "keys" and "queries" stand between the two ends of their axes. */
static void add_frame(struct svg *out, const struct view *view, const char *title)
{
    const int64_t middle_x = view->x + PLAN_SVG_SIDE / 2, middle_y = view->y + PLAN_SVG_SIDE / 2;
    char end[32];

    svg_add_label(out, "h", view->x, view->y - 26, title);
    svg_add(out,
            "<rect x=\"%lld\" y=\"%lld\" width=\"%d\" height=\"%d\" fill=\"none\" "
            "stroke=\"#9aa3b0\"/>\n",
            (long long)view->x, (long long)view->y, PLAN_SVG_SIDE, PLAN_SVG_SIDE);
    svg_group_digits(end, view->seqlen_k);
    svg_add_label(out, "s", view->x, view->y - 7, "0");
    svg_add_label(out, "s m", middle_x, view->y - 7, "keys");
    svg_add_label(out, "s e", view->x + PLAN_SVG_SIDE, view->y - 7, end);
    svg_group_digits(end, rows_of(view));
    svg_add_label(out, "s e", view->x - 6, view->y + 10, "0");
    svg_add(out, "<text class=\"s m\" transform=\"translate(%lld %lld) rotate(-90)\">%s</text>\n",
            (long long)view->x - 10, (long long)middle_y, view->is_packed ? "its rows" : "queries");
    svg_add_label(out, "s e", view->x - 6, view->y + PLAN_SVG_SIDE, end);
}

static void add_ground(struct svg *out, const struct view *view)
{
    svg_add(out, "<rect x=\"%lld\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
            (long long)view->x, PLAN_SVG_TOP, PLAN_SVG_SIDE, PLAN_SVG_SIDE);
}

/* [count] empty paths; NULL: no memory. */
static struct svg *paths_make(int32_t count)
{
    struct svg *paths = NULL;
    int64_t capacity = 0;

    if (!svg_grow((void **)&paths, &capacity, count, sizeof *paths))
        return NULL;
    memset(paths, 0, (size_t)count * sizeof *paths);
    return paths;
}

/* ---- both masks ---- */

/* The plan's rank comes last, over its neighbours. */
static void add_rank_paths(struct svg *out, const struct view *view)
{
    const int32_t ranks = view->info->rank_count, own = view->info->rank;
    const int32_t each = plan_svg_ranks_a_colour(view->picture, view->info);

    for (int32_t r = 0; r < ranks; r++)
        if (r != own)
            svg_add_path(out, plan_svg_rank_colour(r, each, own), &view->paths[r]);
    svg_add_path(out, plan_svg_rank_colour(own, each, own), &view->paths[own]);
}

static bool draw_ranks(struct svg *out, struct view view)
{
    bool has_memory;

    view.x = PLAN_SVG_MARGIN;
    view.pieces = view.info->moves == FFA_PARALLEL_MOVE_QUERIES ? view.keys->count : 0;
    view.paths = paths_make(view.info->rank_count);
    if (!view.paths)
        return false;
    has_memory = add_mask(&view);
    add_ground(out, &view);
    add_rank_paths(out, &view);
    free(view.paths);
    add_frame(out, &view, "Which rank computes what");
    return has_memory;
}

/* White lines between the rank's chunks. */
static void add_chunk_lines(struct svg *out, const struct view *view)
{
    const struct side *queries = view->queries;
    const int32_t rank = view->info->rank;

    for (int64_t i = queries->rank_begin[rank] + 1; i < queries->rank_begin[rank + 1]; i++) {
        const int64_t row = queries->at[queries->by_rank[i]].local_begin;

        svg_add(out, "<path stroke=\"#fff\" d=\"M%lld %lldh%d\"/>\n", (long long)view->x,
                (long long)(view->y + row * PLAN_SVG_SIDE / rows_of(view)), PLAN_SVG_SIDE);
    }
}

static bool draw_stages(struct svg *out, struct view view, const struct zones *zones,
                        const struct zones *own_keys)
{
    const int32_t others = view.info->forward_stages + 1;
    char title[96], colour[8];
    bool has_memory;

    view.x = PLAN_SVG_STAGES_LEFT;
    view.zones = zones;
    view.own_keys = own_keys;
    view.others = others;
    view.is_packed = view.info->moves == FFA_PARALLEL_MOVE_KEYS;
    view.pieces = zones->count;
    view.paths = paths_make(others + 1);
    if (!view.paths)
        return false;
    has_memory = add_mask(&view);
    add_ground(out, &view);
    for (int32_t s = others; s >= 0; s--) { /* the rank's cells over all others */
        plan_svg_stage_colour(colour, s, plan_svg_stages(view.info));
        svg_add_path(out, s == others ? plan_svg_other_colour : colour, &view.paths[s]);
    }
    free(view.paths);
    if (view.is_packed)
        add_chunk_lines(out, &view);
    (void)snprintf(title, sizeof title,
                   view.is_packed ? "Rank %d: when the keys of its rows arrive"
                                  : "Rank %d: when the queries of its keys arrive",
                   view.info->rank);
    add_frame(out, &view, title);
    return has_memory;
}

bool plan_svg_masks(struct svg *out, const struct plan_picture *picture,
                    const ffa_parallel_plan_info *info)
{
    const bool moves_queries = info->moves == FFA_PARALLEL_MOVE_QUERIES;
    struct side queries = { 0 }, keys = { 0 };
    struct zones zones = { 0 }, own_keys = { 0 };
    const struct view view = { .picture = picture,
                               .info = info,
                               .queries = &queries,
                               .keys = &keys,
                               .seqlen_k = ffa_mask_seqlen_k(picture->mask),
                               .y = PLAN_SVG_TOP };
    const bool has_memory = side_init(&queries, picture->dispatch, false, info->rank_count) &&
                            side_init(&keys, picture->dispatch, true, info->rank_count) &&
                            find_zones(&zones, picture, info, moves_queries ? &queries : &keys) &&
                            (!moves_queries || add_own(&own_keys, &keys, info->rank)) &&
                            draw_ranks(out, view) && draw_stages(out, view, &zones, &own_keys);

    side_finish(&queries);
    side_finish(&keys);
    free(zones.at);
    free(own_keys.at);
    return has_memory;
}
