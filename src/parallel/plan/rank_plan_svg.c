/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a plan, as SVG. Masks are drawn row by row of pixels, each as the keys of one
 * query row: exact where there are as many pixels as rows, a sample where there are more rows. All
 * numbers are integers in hundredths of a pixel, so that no locale gets into them.
 */
#include "mask/mask.h"
#include "parallel/plan/rank_plan.h"

enum {
    MARGIN = 64,
    SIDE = 440, /* of a mask */
    GAP = 96,   /* between the left and the right column */
    TOP = 92,   /* of the masks */
    BARS = 130, /* height of the bars */
    LANE = 20,  /* height of a lane of a timeline */
    WIDTH = MARGIN + SIDE + GAP + SIDE + MARGIN,
    STAGE_COLOURS = 8,
    NOT_HERE = -1,
    PIECES_MAX = 50000, /* of a mask, beyond which its lines become thicker */
    LINES_MIN = 64,
    FEW_RANKS = 16, /* up to which every bar is numbered */
    NARROW = 26     /* pixels: a block too narrow for its number */
};

static const char *const stage_colours[STAGE_COLOURS] = { "#2f7ed8", "#3ba55d", "#e8912d",
                                                          "#c8415c", "#8456ce", "#1aa5a5",
                                                          "#a0762b", "#5b6c8f" };
static const char own_colour[] = "#37414f", other_colour[] = "#dde2e9";

static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#2b3440}.h{font-size:14px;font-weight:600}"
    ".t{font-size:17px;font-weight:600}.s{fill:#6b7583;font-size:11px}.e{text-anchor:end}"
    ".m{text-anchor:middle}.w{fill:#fff;font-size:11px;text-anchor:middle}</style>\n";

/* ---- text ---- */

static void add_px(struct text *text, int64_t hundredths)
{
    if (hundredths % 100 == 0)
        text_add(text, "%lld", (long long)(hundredths / 100));
    else
        text_add(text, "%lld.%02lld", (long long)(hundredths / 100), (long long)(hundredths % 100));
}

/* x, y, width, height in hundredths, as a closed path. */
static void add_box(struct text *path, int64_t x, int64_t y, int64_t width, int64_t height)
{
    text_add(path, "M");
    add_px(path, x);
    text_add(path, " ");
    add_px(path, y);
    text_add(path, "h");
    add_px(path, width);
    text_add(path, "v");
    add_px(path, height);
    text_add(path, "h-");
    add_px(path, width);
    text_add(path, "z");
}

static void add_path(struct text *out, const char *colour, struct text *path)
{
    if (path->bytes > 0)
        text_add(out, "<path fill=\"%s\" d=\"%s\"/>\n", colour, path->at);
    out->failed = out->failed || path->failed;
    text_finish(path);
}

static void add_label(struct text *out, const char *css, int64_t x, int64_t y, const char *text)
{
    text_add(out, "<text class=\"%s\" x=\"%lld\" y=\"%lld\">%s</text>\n", css, (long long)x,
             (long long)y, text);
}

/* 1234567 as 1,234,567. */
static void group_digits(char out[32], int64_t value)
{
    char digits[24];
    int count, at = 0;

    text_copy(digits, "%lld", (long long)value);
    count = (int)strlen(digits);
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* "12.3 ms" or "45.6 us" */
static void name_time(char out[32], int64_t ns)
{
    const int64_t unit = ns >= 1000000 ? 1000000 : 1000;

    text_format(out, 32, "%lld.%lld %s", (long long)(ns / unit), (long long)(ns % unit * 10 / unit),
                unit == 1000 ? "us" : "ms");
}

/* Ranks around the colour circle, neighbours of different lightness. */
static void rank_colour(char out[8], int32_t rank, int32_t ranks)
{
    const int32_t hue = (int32_t)((int64_t)rank * 1530 / ranks); /* six edges of 255 steps */
    const int32_t edge = hue / 255, rise = hue % 255, fall = 255 - rise;
    const int32_t r[6] = { 255, fall, 0, 0, rise, 255 }, g[6] = { rise, 255, 255, fall, 0, 0 };
    const int32_t b[6] = { 0, 0, rise, 255, 255, fall };
    const int32_t low = rank % 2 ? 96 : 32, high = rank % 2 ? 232 : 196;

    text_format(out, 8, "#%02x%02x%02x", (unsigned)(low + r[edge] * (high - low) / 255),
                (unsigned)(low + g[edge] * (high - low) / 255),
                (unsigned)(low + b[edge] * (high - low) / 255));
}

/* ---- tokens of the rank, by phase ---- */

struct zone {
    int64_t begin, end; /* tokens */
    int32_t phase;      /* 0: own */
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

/* Rows [row, row + rows) of a rank's buffer. */
static bool add_rows(struct zones *zones, const struct layout *layout, int32_t rank, int64_t row,
                     int64_t rows, int32_t phase)
{
    for (int64_t i = layout->rank_begin[rank]; i < layout->rank_begin[rank + 1]; i++) {
        const int64_t chunk = layout->rank_chunks[i];
        const int64_t first = layout->local[chunk], shift = layout->bounds[chunk] - first;
        const int64_t last = first + layout->bounds[chunk + 1] - layout->bounds[chunk];
        const int64_t begin = row > first ? row : first;
        const int64_t end = row + rows < last ? row + rows : last;

        if (begin >= end)
            continue;
        if (!mem_grow((void **)&zones->at, &zones->capacity, zones->count + 1, sizeof *zones->at))
            return false;
        zones->at[zones->count++] = (struct zone){ begin + shift, end + shift, phase };
    }
    return true;
}

/* Neighbours of one phase, whoever sent them, are one zone. */
static void zones_join(struct zones *zones)
{
    int64_t kept = 0;

    for (int64_t z = 0; z < zones->count; z++) {
        struct zone *last = kept > 0 ? &zones->at[kept - 1] : NULL;

        if (last && last->end == zones->at[z].begin && last->phase == zones->at[z].phase)
            last->end = zones->at[z].end;
        else
            zones->at[kept++] = zones->at[z];
    }
    zones->count = kept;
}

/* What moves: the rank's own tokens and those each forward stage receives. */
static ffa_status find_zones(struct zones *zones, const ffa_parallel_plan *plan, ffa_error *err)
{
    const struct layout *layout =
        plan->moves == FFA_PARALLEL_MOVE_QUERIES ? &plan->queries : &plan->keys;
    bool is_well = true;

    if (layout->is_replicated) {
        is_well = mem_grow((void **)&zones->at, &zones->capacity, 1, sizeof *zones->at);
        if (is_well)
            zones->at[zones->count++] = (struct zone){ 0, layout->bounds[layout->count], 0 };
    } else {
        is_well = add_rows(zones, layout, plan->rank, 0, layout->rank_tokens[plan->rank], 0);
    }
    for (int32_t p = 1; p < plan->forward.phase_count; p++)
        for (int64_t c = 0; c < plan->forward.phases[p].receives.count && is_well; c++) {
            const struct transfer_copy *copy = &plan->forward.phases[p].receives.at[c];

            is_well = add_rows(zones, layout, copy->source, copy->source_row, copy->rows, p);
        }
    if (!is_well)
        return error_nomem(err, "a picture");
    if (zones->count > 0)
        qsort(zones->at, (size_t)zones->count, sizeof *zones->at, zone_compare);
    zones_join(zones);
    return FFA_OK;
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

static int32_t phase_of(const struct zones *zones, int64_t token)
{
    const int64_t z = zone_from(zones, token);

    return z < zones->count && zones->at[z].begin <= token ? zones->at[z].phase : NOT_HERE;
}

/* ---- masks ---- */

struct view {
    const ffa_parallel_plan *plan;
    struct text *paths; /* by rank, or by phase with one more for all else */
    const struct zones *zones, *own_keys;
    int32_t others; /* index of the path for all else */
    bool is_packed; /* rows of the rank's buffer, not of the sequence */
    int64_t pieces; /* a row may fall into, by zones or owners */
    int64_t x, y;   /* of the mask, pixels */
};

static int64_t x_of(const struct view *view, int64_t key)
{
    return view->x * 100 + key * SIDE * 100 / view->plan->shape.seqlen_k;
}

static void add_keys(const struct view *view, int32_t path, int64_t begin, int64_t end, int64_t y,
                     int64_t height)
{
    const int64_t x = x_of(view, begin), width = x_of(view, end) - x;

    add_box(&view->paths[path], x, y, width > 30 ? width : 30, height);
}

/* Keys [begin, end) of a row: by the zones of the keys, or, where queries move, of the row. */
static void add_by_stage(const struct view *view, int64_t row, int64_t begin, int64_t end,
                         int64_t y, int64_t height)
{
    const bool moves_queries = view->plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    static const struct zones none;
    const struct zones *zones = moves_queries ? view->own_keys : view->zones;
    const int32_t phase = moves_queries ? phase_of(view->zones, row) : 0;
    const int64_t least = view->plan->shape.seqlen_k / (2 * SIDE); /* keys worth a piece */
    int64_t at = begin;

    if (phase == NOT_HERE)
        zones = &none;
    for (int64_t z = zone_from(zones, begin); z < zones->count && zones->at[z].begin < end; z++) {
        const int64_t from = zones->at[z].begin > begin ? zones->at[z].begin : begin;
        const int64_t to = zones->at[z].end < end ? zones->at[z].end : end;

        if (at < from)
            add_keys(view, view->others, at, from, y, height);
        if (to <= at || (from <= at && to - at < least && to < end))
            continue; /* the next one shows */
        add_keys(view, moves_queries ? phase : zones->at[z].phase, at < from ? from : at, to, y,
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
    const struct layout *keys = &view->plan->keys;
    const struct parts chunks = layout_parts(keys);
    const int64_t least = view->plan->shape.seqlen_k / (2 * SIDE);

    for (int64_t c = parts_find(&chunks, begin); c < keys->count && keys->bounds[c] < end; c++) {
        const int64_t to = keys->bounds[c + 1] < end ? keys->bounds[c + 1] : end;

        if (to - begin < least && to < end)
            continue; /* the next one shows */
        add_keys(view, keys->rank_of[c], begin, to, y, height);
        begin = to;
    }
}

static void add_interval(const struct view *view, int64_t row, int64_t begin, int64_t end,
                         int64_t y, int64_t height)
{
    const struct parts chunks = layout_parts(&view->plan->queries);
    const int32_t rank = view->plan->queries.rank_of[parts_find(&chunks, row)];

    if (!view->zones && view->plan->moves == FFA_PARALLEL_MOVE_QUERIES)
        add_by_owner(view, begin, end, y, height);
    else if (!view->zones)
        add_keys(view, rank, begin, end, y, height);
    else if (view->plan->moves == FFA_PARALLEL_MOVE_KEYS && rank != view->plan->rank)
        add_keys(view, view->others, begin, end, y, height);
    else
        add_by_stage(view, row, begin, end, y, height);
}

/* Intervals too near each other to be seen apart are drawn as one. */
static void add_row(const struct view *view, int64_t row, const struct normal_segment *segment,
                    int64_t y, int64_t height)
{
    const int64_t skip = row - segment->row_begin;
    const int64_t gap = view->plan->shape.seqlen_k / (2 * SIDE);
    int64_t begin = 0, end = 0;

    for (int32_t i = 0; i < segment->interval_count; i++) {
        const struct normal_interval *at =
            &view->plan->normals[0].intervals[segment->interval_begin + i];
        const int64_t lo = at->lo + at->lo_step * skip;

        if (i > 0 && lo - end > gap)
            add_interval(view, row, begin, end, y, height);
        if (i == 0 || lo - end > gap)
            begin = lo;
        end = at->hi + at->hi_step * skip;
    }
    add_interval(view, row, begin, end, y, height);
}

/* The last segment that begins at or before the row, if it holds it. */
static const struct normal_segment *segment_at(const struct normal *normal, int64_t row)
{
    int64_t low = 0, high = normal->segment_count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (normal->segments[middle].row_end <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < normal->segment_count && normal->segments[low].row_begin <= row
               ? &normal->segments[low]
               : NULL;
}

/* The token of a row that is drawn: of the sequence, or of the rank's own. */
static int64_t token_of(const struct view *view, int64_t row)
{
    const struct layout *layout = &view->plan->queries;
    int64_t i = layout->rank_begin[view->plan->rank];

    if (!view->is_packed)
        return row;
    while (layout->local[layout->rank_chunks[i]] + layout->bounds[layout->rank_chunks[i] + 1] -
               layout->bounds[layout->rank_chunks[i]] <=
           row)
        i++;
    return layout->bounds[layout->rank_chunks[i]] + row - layout->local[layout->rank_chunks[i]];
}

static int64_t rows_of(const struct view *view)
{
    return view->is_packed ? view->plan->queries.rank_tokens[view->plan->rank]
                           : view->plan->shape.seqlen_q;
}

static void add_mask(const struct view *view)
{
    const int64_t rows = rows_of(view), fit = PIECES_MAX / (view->pieces + 1);
    const int64_t most = fit < LINES_MIN ? LINES_MIN : fit < SIDE ? fit : SIDE;
    const int64_t lines = rows < most ? rows : most;

    for (int64_t line = 0; line < lines; line++) {
        const int64_t token = token_of(view, (2 * line + 1) * rows / (2 * lines));
        const int64_t y = line * SIDE * 100 / lines, next = (line + 1) * SIDE * 100 / lines;
        const struct normal_segment *segment = segment_at(&view->plan->normals[0], token);

        if (segment)
            add_row(view, token, segment, view->y * 100 + y, next - y);
    }
}

static void add_frame(struct text *out, const struct view *view, const char *title)
{
    char end[32];

    add_label(out, "h", view->x, view->y - 26, title);
    text_add(out,
             "<rect x=\"%lld\" y=\"%lld\" width=\"%d\" height=\"%d\" fill=\"none\" "
             "stroke=\"#9aa3b0\"/>\n",
             (long long)view->x, (long long)view->y, SIDE, SIDE);
    group_digits(end, view->plan->shape.seqlen_k);
    add_label(out, "s", view->x, view->y - 8, "keys, 0");
    add_label(out, "s e", view->x + SIDE, view->y - 8, end);
    group_digits(end, rows_of(view));
    add_label(out, "s e", view->x - 6, view->y + 10, "0");
    add_label(out, "s e", view->x - 6, view->y + SIDE, end);
}

static ffa_status draw_ranks(struct text *out, const ffa_parallel_plan *plan, ffa_error *err)
{
    const int32_t ranks = plan->topology.rank_count;
    struct view view = { .plan = plan, .x = MARGIN, .y = TOP };

    view.pieces = plan->moves == FFA_PARALLEL_MOVE_QUERIES ? plan->keys.count : 0;
    view.paths = mem_array((size_t)ranks, sizeof *view.paths);
    if (!view.paths)
        return error_nomem(err, "a picture");
    add_mask(&view);
    text_add(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f6f8fa\"/>\n", MARGIN,
             TOP, SIDE, SIDE);
    for (int32_t r = 0; r < ranks; r++) {
        char colour[8];

        rank_colour(colour, r, ranks);
        add_path(out, colour, &view.paths[r]);
    }
    mem_free(view.paths);
    add_frame(out, &view, "Cells by the rank that computes them");
    return FFA_OK;
}

static const char *phase_colour(const ffa_parallel_plan *plan, int32_t phase)
{
    if (phase == plan->forward.phase_count)
        return other_colour;
    return phase == 0 ? own_colour : stage_colours[(phase - 1) % STAGE_COLOURS];
}

static ffa_status draw_stages(struct text *out, const ffa_parallel_plan *plan, ffa_error *err)
{
    const int32_t phases = plan->forward.phase_count;
    struct zones zones = { 0 }, own_keys = { 0 };
    struct view view = { .plan = plan,
                         .zones = &zones,
                         .own_keys = &own_keys,
                         .others = phases,
                         .is_packed = plan->moves == FFA_PARALLEL_MOVE_KEYS,
                         .x = MARGIN + SIDE + GAP,
                         .y = TOP };
    char title[96];
    ffa_status rc;

    view.paths = mem_array((size_t)phases + 1, sizeof *view.paths);
    if (!view.paths) {
        rc = error_nomem(err, "a picture");
        goto out;
    }
    FFA_TRY(find_zones(&zones, plan, err));
    view.pieces = zones.count;
    if (plan->moves == FFA_PARALLEL_MOVE_QUERIES &&
        !add_rows(&own_keys, &plan->keys, plan->rank, 0, plan->keys.rank_tokens[plan->rank], 0)) {
        rc = error_nomem(err, "a picture");
        goto out;
    }
    add_mask(&view);
    text_add(out, "<rect x=\"%lld\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
             (long long)view.x, TOP, SIDE, SIDE);
    for (int32_t p = phases; p >= 0; p--) /* the rank's cells over all others */
        add_path(out, phase_colour(plan, p), &view.paths[p]);
    for (int64_t i = plan->queries.rank_begin[plan->rank] + 1;
         view.is_packed && i < plan->queries.rank_begin[plan->rank + 1]; i++)
        text_add(out, "<path stroke=\"#fff\" d=\"M%lld %lldh%d\"/>\n", (long long)view.x,
                 (long long)(view.y + plan->queries.local[plan->queries.rank_chunks[i]] * SIDE /
                                          rows_of(&view)),
                 SIDE);
    text_copy(title,
              view.is_packed ? "Rank %d: its rows, one below the other, by forward stage"
                             : "Rank %d: its keys, by forward stage of the query",
              plan->rank);
    add_frame(out, &view, title);
out:
    for (int32_t p = 0; view.paths && p <= phases; p++)
        text_finish(&view.paths[p]);
    mem_free(view.paths);
    mem_free(zones.at);
    mem_free(own_keys.at);
    return rc;
}

/* value / most of `px` pixels, in hundredths; value <= most. */
static int64_t share(int64_t value, int64_t most, int64_t px)
{
    while (most > (int64_t)1 << 40) {
        value /= 2;
        most /= 2;
    }
    return value * px * 100 / most;
}

/* ---- bars ---- */

struct bars {
    const char *title, *unit;
    int64_t x, y; /* pixels */
    int64_t most, mean;
    bool is_time;
};

/* Of a rank: what is drawn full, and what its outline reaches. */
static int64_t bar_of(const ffa_parallel_plan *plan, const struct bars *bars, int32_t rank,
                      bool is_outline)
{
    if (!bars->is_time)
        return plan->ranks[rank].received_rows;
    return is_outline ? plan->ranks[rank].forward_ns + plan->ranks[rank].backward_ns
                      : plan->ranks[rank].forward_work_ns + plan->ranks[rank].backward_work_ns;
}

static void draw_bars(struct text *out, const ffa_parallel_plan *plan, struct bars *bars)
{
    const int32_t ranks = plan->topology.rank_count;
    const int64_t bottom = bars->y + BARS;
    char label[96], number[32];
    int64_t sum = 0;

    for (int32_t r = 0; r < ranks; r++) {
        for (int outline = 0; outline < 2; outline++) {
            const int64_t height = bar_of(plan, bars, r, outline);

            bars->most = height > bars->most ? height : bars->most;
        }
        sum = area_add(sum, bar_of(plan, bars, r, false));
    }
    bars->most = bars->most > 0 ? bars->most : 1;
    bars->mean = sum / ranks;
    add_label(out, "h", bars->x, bars->y - 12, bars->title);
    for (int32_t r = 0; r < ranks; r++) {
        const int64_t x = bars->x * 100 + (int64_t)r * SIDE * 100 / ranks;
        const int64_t width = SIDE * 100 / ranks * 17 / 20;
        const int64_t full = share(bar_of(plan, bars, r, false), bars->most, BARS);
        const int64_t outline = share(bar_of(plan, bars, r, true), bars->most, BARS);
        struct text path = { 0 };
        char colour[8];

        rank_colour(colour, r, ranks);
        if (outline > full) {
            add_box(&path, x, bottom * 100 - outline, width, outline);
            add_path(out, r == plan->rank ? "#b9c1cc" : other_colour, &path);
        }
        add_box(&path, x, bottom * 100 - full, width, full);
        add_path(out, colour, &path);
        if (ranks <= FEW_RANKS || r % (ranks / 8) == 0 || r == plan->rank) {
            text_copy(number, "%d", r);
            add_label(out, r == plan->rank ? "m h" : "s m", (x + width / 2) / 100,
                      r == plan->rank && ranks > FEW_RANKS ? bottom + 27 : bottom + 14, number);
        }
    }
    text_add(out, "<path stroke=\"#2b3440\" stroke-dasharray=\"4 3\" d=\"M%lld %lldh%d\"/>\n",
             (long long)bars->x, (long long)(bottom - share(bars->mean, bars->most, BARS) / 100),
             SIDE);
    if (bars->is_time) {
        name_time(number, bars->most);
        text_copy(label, "top %s", number);
    } else {
        group_digits(number, bars->most);
        text_copy(label, "top %s", number);
    }
    add_label(out, "s e", bars->x + SIDE, bars->y - 12, label);
}

/* ---- timelines ---- */

static void add_block(struct text *out, const char *colour, int64_t x, int64_t y, int64_t width,
                      const char *name)
{
    text_add(out, "<rect x=\"");
    add_px(out, x);
    text_add(out, "\" y=\"%lld\" width=\"", (long long)y);
    add_px(out, width > 50 ? width : 50);
    text_add(out, "\" height=\"%d\" fill=\"%s\" stroke=\"#fff\" stroke-width=\".6\"/>\n", LANE - 3,
             colour);
    if (width >= NARROW * 100)
        add_label(out, "w", (x + width / 2) / 100, y + 13, name);
}

static void draw_timeline(struct text *out, const ffa_parallel_plan *plan, bool is_backward,
                          int64_t y, int64_t longest)
{
    const struct plan_pass *pass = is_backward ? &plan->backward : &plan->forward;
    const int64_t left = MARGIN + 60, width = WIDTH - MARGIN - left;
    static const char *const lanes[] = { "fetch", "compute", "reduce" };
    struct overlap_times times[OVERLAP_STAGES_MAX + 2];
    char title[160], total[32], work[32];

    name_time(total, pass->cost_ns);
    name_time(work, is_backward ? plan->ranks[plan->rank].backward_work_ns
                                : plan->ranks[plan->rank].forward_work_ns);
    text_copy(title, "%s: %s, of which %s computing; %d stage%s",
              is_backward ? "Backward" : "Forward", total, work, pass->stage_count,
              pass->stage_count == 1 ? "" : "s");
    add_label(out, "h", MARGIN, y - 8, title);
    for (int lane = 0; lane < 3; lane++) {
        add_label(out, "s", MARGIN, y + lane * LANE + 13, lanes[lane]);
        text_add(out,
                 "<rect x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%d\" fill=\"#f6f8fa\"/>\n",
                 (long long)left, (long long)(y + lane * LANE), (long long)width, LANE - 3);
    }
    rank_plan_times(times, plan, is_backward);
    for (int32_t p = 0; p < pass->phase_count; p++) {
        const bool is_own = p == 0 || p > pass->stage_count;
        const int64_t begins[] = { times[p].fetch_begin, times[p].compute_begin,
                                   times[p].reduce_begin };
        const int64_t ends[] = { times[p].fetch_end, times[p].compute_end, times[p].reduce_end };
        char name[16];

        text_copy(name, is_own ? "own" : "%d", p);
        for (int lane = 0; lane < 3; lane++) {
            const int64_t from = share(begins[lane], longest, width);
            const int64_t to = share(ends[lane], longest, width);

            if (ends[lane] > begins[lane])
                add_block(out, is_own ? own_colour : stage_colours[(p - 1) % STAGE_COLOURS],
                          left * 100 + from, y + lane * LANE, to - from, name);
        }
    }
}

static void draw_axis(struct text *out, int64_t y, int64_t longest)
{
    const int64_t left = MARGIN + 60, width = WIDTH - MARGIN - left;
    char label[32];

    for (int i = 0; i <= 4; i++) {
        name_time(label, longest / 4 * i + longest % 4 * i / 4);
        add_label(out, i == 4 ? "s e" : i == 0 ? "s" : "s m", left + width * i / 4, y, label);
    }
}

/* ---- all of it ---- */

static void draw_legend(struct text *out, const ffa_parallel_plan *plan, int64_t y)
{
    int64_t x = MARGIN + SIDE + GAP;

    for (int32_t p = 0; p < plan->forward.phase_count; p++) {
        char name[24];

        text_copy(name, p == 0 ? "own" : "stage %d", p);
        text_add(out, "<rect x=\"%lld\" y=\"%lld\" width=\"11\" height=\"11\" fill=\"%s\"/>\n",
                 (long long)x, (long long)y - 10, phase_colour(plan, p));
        add_label(out, "s", x + 15, y, name);
        x += p == 0 ? 50 : 66;
        if (x > WIDTH - MARGIN - 60) {
            x = MARGIN + SIDE + GAP;
            y += 16;
        }
    }
}

static void draw_head(struct text *out, const ffa_parallel_plan *plan, int64_t height)
{
    char line[256], tokens[32], keys[32], area[32];

    text_add(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%lld\" "
             "viewBox=\"0 0 %d %lld\">\n%s<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
             WIDTH, (long long)height, WIDTH, (long long)height, style);
    group_digits(tokens, plan->shape.seqlen_q);
    group_digits(area, plan->area);
    group_digits(keys, plan->shape.seqlen_k);
    text_copy(line, "%s%s%s tokens on %d rank%s, %d a node", tokens,
              plan->shape.seqlen_q == plan->shape.seqlen_k ? "" : " x ",
              plan->shape.seqlen_q == plan->shape.seqlen_k ? "" : keys, plan->topology.rank_count,
              plan->topology.rank_count == 1 ? "" : "s", plan->topology.ranks_per_node);
    add_label(out, "t", MARGIN, 28, line);
    text_copy(
        line,
        "times are modelled: %d:%d heads of %d%s; %s move; rank %d computes %s cells; plan %s",
        plan->opts.model.heads_q, plan->opts.model.heads_kv, plan->opts.model.head_dim,
        plan->list_count > 1 ? ", list 0 drawn" : "",
        plan->moves == FFA_PARALLEL_MOVE_QUERIES ? "queries" : "keys", plan->rank, area,
        plan->digest);
    add_label(out, "s", MARGIN, 46, line);
}

ffa_status ffa_parallel_plan_svg(const ffa_parallel_plan *plan, char **out, ffa_error *err)
{
    const int64_t legend = TOP + SIDE + 20, bars_y = legend + 62, forward = bars_y + BARS + 70;
    const int64_t backward = forward + 3 * LANE + 34;
    struct bars time = { .title = "Modelled time by rank; grey: not computing",
                         .x = MARGIN,
                         .y = bars_y,
                         .is_time = true };
    struct bars rows = { .title = "Rows received by rank", .x = MARGIN + SIDE + GAP, .y = bars_y };
    struct text text = { 0 };
    bool has_backward;
    int64_t longest;
    ffa_status rc;

    if (!plan || !out)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", plan ? "out" : "plan");
    *out = NULL;
    has_backward = plan->backward.phase_count > 0;
    longest = plan->forward.cost_ns > plan->backward.cost_ns ? plan->forward.cost_ns
                                                             : plan->backward.cost_ns;
    longest = longest > 0 ? longest : 1;
    draw_head(&text, plan, (has_backward ? backward : forward) + 3 * LANE + 34);
    FFA_TRY(draw_ranks(&text, plan, err));
    FFA_TRY(draw_stages(&text, plan, err));
    draw_legend(&text, plan, legend);
    draw_bars(&text, plan, &time);
    draw_bars(&text, plan, &rows);
    draw_timeline(&text, plan, false, forward, longest);
    if (has_backward)
        draw_timeline(&text, plan, true, backward, longest);
    draw_axis(&text, (has_backward ? backward : forward) + 3 * LANE + 12, longest);
    text_add(&text, "</svg>\n");
    *out = text_take(&text);
    if (!*out)
        rc = error_nomem(err, "a picture");
out:
    text_finish(&text);
    return rc;
}
