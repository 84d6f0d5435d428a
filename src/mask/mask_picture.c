/* SPDX-License-Identifier: Apache-2.0
 *
 * The picture of a mask as SVG.
 *
 * It fills the intervals of the normal form: as staircases where a cell is large enough to
 * see, as trapezoids where not. Where there are too many of them it fills the slices, and where
 * there are too many of those, a grid of shades; so no mask makes a file of more than about 3 MB.
 * Slices too small to be seen are drawn with a line around them, and a few of them again, large,
 * beside the picture. All numbers are integers in hundredths of a pixel, so that no locale gets
 * into them.
 */
#include "mask/mask_picture.h"

#include <stdio.h>

enum {
    SIZE_DEFAULT = 640,
    SIZE_MIN = 64,
    SIZE_MAX_PX = 8192,
    POLYGONS_MAX = 8192, /* intervals, else slices, drawn as such */
    STEPS_MAX = 65536,   /* rows * intervals drawn as staircases */
    STEP_PX = 3,         /* the smallest cell drawn as a step */
    OUTLINES_MAX = 2000,
    OUTLINE_PX = 5,   /* the smallest box worth an outline */
    LEFT = 92,        /* pixels left of a plot */
    SMALL_MIN = 32,   /* slices smaller than OUTLINE_PX that make a close-up, */
    NEAR_SLICES = 12, /* and about how many it has */
    SHORT_PX = 300,   /* an axis too short for many labels */
    GRID_SIDE = 320,
    SHADES = 8,
    FAINTEST = 350 /* thousandths: what is hardly attended must still be seen */
};

ffa_status picture_check(const ffa_mask *mask, int32_t head, ffa_error *err)
{
    if (!mask)
        return error_fail(err, FFA_INVALID, 0, "mask is NULL");
    if (head < 0 || head >= mask->head_count)
        return error_fail(err, FFA_INVALID, 0, "head is %d, not in [0, %d]", head,
                          mask->head_count - 1);
    return FFA_OK;
}

/* ---- numbers ---- */

/* 1234567 as 1,234,567. */
static void add_grouped(struct text *text, int64_t value)
{
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%lld", (long long)value);

    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            text_add(text, ",");
        text_add(text, "%c", digits[i]);
    }
}

static void add_percent(struct text *text, const ffa_mask_shape *shape, int64_t area)
{
    double share = (double)area / ((double)shape->seqlen_q * (double)shape->seqlen_k);
    int64_t hundredths = (int64_t)(share * 10000 + 0.5);

    if (hundredths == 0 && area > 0)
        text_add(text, "less than 0.01 %%");
    else
        text_add(text, "%lld.%02lld %%", (long long)(hundredths / 100),
                 (long long)(hundredths % 100));
}

/* ---- the canvas: tokens to pixels ---- */

struct canvas {
    struct text text;
    const ffa_mask *mask;
    const struct mask_list *list;
    int32_t head;
    int64_t first_q, first_k; /* the tokens where the axes begin */
    int32_t left, top;        /* of the plot, pixels */
    int32_t width, height;    /* of the plot, pixels */
    bool is_thin;             /* most slices are too small to be seen without a line around */
};

/* Pixels in hundredths, without trailing zeros. */
static void add_px(struct text *text, int64_t hundredths)
{
    const char *sign = hundredths < 0 ? "-" : "";
    long long whole = (hundredths < 0 ? -hundredths : hundredths) / 100;
    long long rest = (hundredths < 0 ? -hundredths : hundredths) % 100;

    if (rest == 0)
        text_add(text, "%s%lld", sign, whole);
    else if (rest % 10 == 0)
        text_add(text, "%s%lld.%lld", sign, whole, rest / 10);
    else
        text_add(text, "%s%lld.%02lld", sign, whole, rest);
}

/* Of a token bound in halves, kept inside the plot. */
static int64_t px_of(int64_t halves, int64_t tokens, int32_t px)
{
    if (halves < 0)
        halves = 0;
    if (halves > 2 * tokens)
        halves = 2 * tokens;
    return (halves * px * 100 + tokens) / (2 * tokens);
}

static int64_t x_of(const struct canvas *c, int64_t halves)
{
    return px_of(halves, c->mask->shape.seqlen_k, c->width);
}

static int64_t y_of(const struct canvas *c, int64_t halves)
{
    return px_of(halves, c->mask->shape.seqlen_q, c->height);
}

/* One path command: M or L with two numbers, H or V with one. */
static void path_to(struct canvas *c, char command, int64_t x, int64_t y)
{
    text_add(&c->text, "%c", command);
    if (command != 'V')
        add_px(&c->text, x);
    if (command == 'M' || command == 'L')
        text_add(&c->text, " ");
    if (command != 'H')
        add_px(&c->text, y);
}

/* ---- attended cells ---- */

/* The middle line of a staircase of steps; straight down where the line does not move. */
static void draw_trapezoid(struct canvas *c, const struct normal_segment *segment,
                           const struct normal_interval *at)
{
    int64_t rows = segment->row_end - segment->row_begin;
    int64_t top = y_of(c, 2 * (int64_t)segment->row_begin);
    int64_t bottom = y_of(c, 2 * (int64_t)segment->row_end);
    int64_t lo = 2 * (int64_t)at->lo - at->lo_step, hi = 2 * (int64_t)at->hi - at->hi_step;

    path_to(c, 'M', x_of(c, lo), top);
    path_to(c, 'H', x_of(c, hi), top);
    path_to(c, 'L', x_of(c, hi + 2 * at->hi_step * rows), bottom);
    path_to(c, 'H', x_of(c, lo + 2 * at->lo_step * rows), bottom);
    text_add(&c->text, "Z");
}

static void draw_staircase(struct canvas *c, const struct normal_segment *segment,
                           const struct normal_interval *at)
{
    int32_t rows = segment->row_end - segment->row_begin;

    path_to(c, 'M', x_of(c, 2 * (int64_t)at->lo), y_of(c, 2 * (int64_t)segment->row_begin));
    for (int32_t i = 0; i < rows; i++) {
        if (i == 0 || at->hi_step)
            path_to(c, 'H', x_of(c, 2 * ((int64_t)at->hi + at->hi_step * i)), 0);
        if (i == rows - 1 || at->hi_step)
            path_to(c, 'V', 0, y_of(c, 2 * ((int64_t)segment->row_begin + i + 1)));
    }
    for (int32_t i = rows - 1; i > 0; i--)
        if (i == rows - 1 || at->lo_step) {
            path_to(c, 'H', x_of(c, 2 * ((int64_t)at->lo + at->lo_step * i)), 0);
            if (at->lo_step)
                path_to(c, 'V', 0, y_of(c, 2 * ((int64_t)segment->row_begin + i)));
        }
    path_to(c, 'H', x_of(c, 2 * (int64_t)at->lo), 0);
    text_add(&c->text, "Z");
}

/* Whether the rows of all intervals are few and large enough to be seen one by one. */
static bool is_fine(const struct canvas *c)
{
    const struct normal *normal = &c->list->normal;
    const ffa_mask_shape *shape = &c->mask->shape;
    int64_t steps = 0;

    for (int64_t i = 0; i < normal->segment_count; i++)
        steps += (int64_t)normal->segments[i].interval_count *
                 (normal->segments[i].row_end - normal->segments[i].row_begin);
    return c->width >= STEP_PX * shape->seqlen_k && c->height >= STEP_PX * shape->seqlen_q &&
           steps <= STEPS_MAX;
}

static void draw_normal(struct canvas *c, const struct normal *normal, bool in_steps)
{
    for (int64_t i = 0; i < normal->segment_count; i++) {
        const struct normal_segment *segment = &normal->segments[i];

        for (int32_t j = 0; j < segment->interval_count; j++) {
            const struct normal_interval *at = &normal->intervals[segment->interval_begin + j];

            if (in_steps)
                draw_staircase(c, segment, at);
            else
                draw_trapezoid(c, segment, at);
        }
    }
}

/* Few slices may have very many intervals. All polygons turn the same way, so what several of them
 * cover is filled once. */
static ffa_status draw_slices(struct canvas *c, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t i = 0; i < c->list->count; i++) {
        struct normal one;

        FFA_TRY(normal_build(&one, &c->list->slices[i], 1, err));
        draw_normal(c, &one, false);
        normal_finish(&one);
    }
out:
    return rc;
}

/* One path for all polygons, so that the edges they share leave no seam. */
static ffa_status draw_polygons(struct canvas *c, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    text_add(&c->text, "<path class=\"on%s\" d=\"", c->is_thin ? " thin" : "");
    if (c->list->normal.interval_count <= POLYGONS_MAX)
        draw_normal(c, &c->list->normal, is_fine(c));
    else
        rc = draw_slices(c, err);
    text_add(&c->text, "\"/>\n");
    return rc;
}

/* 0: nothing attended, SHADES: everything. */
static int32_t shade_of(const struct canvas *c, const struct grid *grid, int32_t row,
                        int32_t column)
{
    int64_t count = grid->cells[(int64_t)row * grid->columns + column];
    double share =
        (double)count / (double)grid_cell_size(grid, &c->mask->shape, row, column) * SHADES;

    return count == 0 ? 0 : share <= 1 ? 1 : (int32_t)(share + 0.5);
}

static void draw_shade(struct canvas *c, const struct grid *grid, int32_t shade)
{
    const ffa_mask_shape *shape = &c->mask->shape;

    text_add(&c->text, "<path class=\"on\" fill-opacity=\".%03d\" d=\"",
             FAINTEST + (999 - FAINTEST) * (shade - 1) / (SHADES - 1));
    for (int32_t row = 0; row < grid->rows; row++)
        for (int32_t column = 0; column < grid->columns; column++) {
            int32_t first = column;

            while (column < grid->columns && shade_of(c, grid, row, column) == shade)
                column++;
            if (column == first)
                continue;
            path_to(c, 'M', x_of(c, 2 * grid_bound(shape->seqlen_k, grid->columns, first)),
                    y_of(c, 2 * grid_bound(shape->seqlen_q, grid->rows, row)));
            path_to(c, 'H', x_of(c, 2 * grid_bound(shape->seqlen_k, grid->columns, column)), 0);
            path_to(c, 'V', 0, y_of(c, 2 * grid_bound(shape->seqlen_q, grid->rows, row + 1)));
            path_to(c, 'H', x_of(c, 2 * grid_bound(shape->seqlen_k, grid->columns, first)), 0);
            text_add(&c->text, "Z");
        }
    text_add(&c->text, "\"/>\n");
}

static int32_t at_most(int64_t value, int32_t limit)
{
    return value < limit ? (int32_t)value : limit;
}

static ffa_status draw_shades(struct canvas *c, ffa_error *err)
{
    struct grid grid = { at_most(c->mask->shape.seqlen_q, GRID_SIDE),
                         at_most(c->mask->shape.seqlen_k, GRID_SIDE), NULL };
    ffa_status rc;

    FFA_TRY(grid_build(&grid, c->mask, c->head, err));
    for (int32_t shade = 1; shade <= SHADES; shade++)
        draw_shade(c, &grid, shade);
out:
    grid_finish(&grid);
    return rc;
}

/* ---- slices, axes, caption ---- */

static void draw_outlines(struct canvas *c)
{
    int64_t drawn = 0;

    for (int64_t i = 0; i < c->list->count && drawn < OUTLINES_MAX; i++) {
        const ffa_slice *s = &c->list->slices[i];
        int64_t x = x_of(c, 2 * s->k_begin), width = x_of(c, 2 * s->k_end) - x;
        int64_t y = y_of(c, 2 * s->q_begin), height = y_of(c, 2 * s->q_end) - y;

        if (width < OUTLINE_PX * 100 || height < OUTLINE_PX * 100)
            continue;
        drawn++;
        text_add(&c->text, "<path class=\"t%d\" d=\"", s->type);
        path_to(c, 'M', x, y);
        path_to(c, 'H', x + width, 0);
        path_to(c, 'V', 0, y + height);
        path_to(c, 'H', x, 0);
        text_add(&c->text, "Z\"/>\n");
    }
}

/* Quarters where they are whole numbers, else 1, 2 or 5 times a power of ten; a short axis has room
 * for its ends only. */
static int64_t tick_step(int64_t tokens, int32_t px)
{
    int64_t step = 1;

    if (px < SHORT_PX)
        return tokens;
    if (tokens % 4 == 0)
        return tokens / 4;
    for (int64_t ten = 1;; ten *= 10)
        for (int i = 0; i < 3; i++) {
            step = ten * (i == 0 ? 1 : i == 1 ? 2 : 5);
            if (tokens / step <= 5)
                return step;
        }
}

static void draw_ticks(struct canvas *c)
{
    const ffa_mask_shape *shape = &c->mask->shape;

    for (int64_t at = 0; at <= shape->seqlen_k; at += tick_step(shape->seqlen_k, c->width)) {
        text_add(&c->text, "<text text-anchor=\"middle\" y=\"-7\" x=\"");
        add_px(&c->text, x_of(c, 2 * at));
        text_add(&c->text, "\">");
        add_grouped(&c->text, c->first_k + at);
        text_add(&c->text, "</text><path class=\"tick\" d=\"");
        path_to(c, 'M', x_of(c, 2 * at), -400);
        path_to(c, 'V', 0, 0);
        text_add(&c->text, "\"/>\n");
    }
    for (int64_t at = 0; at <= shape->seqlen_q; at += tick_step(shape->seqlen_q, c->height)) {
        text_add(&c->text, "<text text-anchor=\"end\" x=\"-7\" y=\"");
        add_px(&c->text, y_of(c, 2 * at) + 400);
        text_add(&c->text, "\">");
        add_grouped(&c->text, c->first_q + at);
        text_add(&c->text, "</text><path class=\"tick\" d=\"");
        path_to(c, 'M', -400, y_of(c, 2 * at));
        path_to(c, 'H', 0, 0);
        text_add(&c->text, "\"/>\n");
    }
    text_add(&c->text,
             "<text class=\"axis\" text-anchor=\"middle\" x=\"%d\" y=\"-27\">keys</text>\n"
             "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(-%d %d) "
             "rotate(-90)\">queries</text>\n",
             c->width / 2, LEFT - 18, c->height / 2);
}

static void add_summary(struct canvas *c)
{
    add_grouped(&c->text, c->mask->shape.seqlen_q);
    text_add(&c->text, " queries × ");
    add_grouped(&c->text, c->mask->shape.seqlen_k);
    text_add(&c->text, " keys, ");
    add_grouped(&c->text, c->list->normal.area);
    text_add(&c->text, " attended (");
    add_percent(&c->text, &c->mask->shape, c->list->normal.area);
    text_add(&c->text, ")");
}

static void draw_caption(struct canvas *c)
{
    int64_t count[4] = { 0 };

    for (int64_t i = 0; i < c->list->count; i++)
        count[c->list->slices[i].type]++;
    text_add(&c->text, "<text class=\"axis\" y=\"%d\">", c->height + 24);
    add_summary(c);
    text_add(&c->text, "</text>\n<text y=\"%d\">", c->height + 42);
    add_grouped(&c->text, c->list->count);
    text_add(&c->text, c->list->count == 1 ? " slice" : " slices");
    for (int32_t type = 0; type < 4; type++)
        if (count[type] > 0) {
            text_add(&c->text, " · <tspan class=\"n%d\">", type);
            add_grouped(&c->text, count[type]);
            text_add(&c->text, " %s</tspan>", slice_type_name(type));
        }
    if (c->mask->head_count > 1)
        text_add(&c->text, " · kv head %d of %d", c->head, c->mask->head_count);
    text_add(&c->text, "</text>\n");
}

static const char svg_style[] =
    "<style>\n"
    "text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#5b6472}\n"
    ".axis{font-size:13px;fill:#2a303a}\n"
    ".on{fill:#4c7fd0}\n"
    ".thin{stroke:#4c7fd0}\n"
    ".near{fill:none;stroke:#2a303a;stroke-width:1.2}\n"
    ".tick{stroke:#9aa3b0;fill:none}\n"
    ".t0,.t1,.t2,.t3{fill:none;stroke-width:.9;stroke-opacity:.75}\n"
    ".t0{stroke:#1d3f7a}.t1{stroke:#b4552d}.t2{stroke:#1f7a4d}.t3{stroke:#7b3fa0}\n"
    ".n0{fill:#1d3f7a}.n1{fill:#b4552d}.n2{fill:#1f7a4d}.n3{fill:#7b3fa0}\n"
    "</style>\n";

/* The plot keeps the mask's proportions, but is never narrower than a quarter of its length. */
static void canvas_place(struct canvas *c, int32_t size_px)
{
    int64_t q = c->mask->shape.seqlen_q, k = c->mask->shape.seqlen_k;
    int64_t longest = q > k ? q : k;

    c->left = LEFT;
    c->top = 50;
    c->width = (int32_t)(size_px * k / longest);
    c->height = (int32_t)(size_px * q / longest);
    if (c->width < size_px / 4)
        c->width = size_px / 4;
    if (c->height < size_px / 4)
        c->height = size_px / 4;
}

/* ---- the close-up: what is too small to be seen ---- */

static bool is_small(const struct canvas *c, const ffa_slice *slice)
{
    const int64_t q = slice->q_end - slice->q_begin, k = slice->k_end - slice->k_begin;

    return q > 0 && k > 0 && q * c->height < OUTLINE_PX * c->mask->shape.seqlen_q &&
           k * c->width < OUTLINE_PX * c->mask->shape.seqlen_k;
}

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A box from the first small slice on that has room for NEAR_SLICES of the mean size. False where
 * less than half of the slices are small, or they are few, or the box is not much smaller than the
 * mask. */
static bool find_near(struct canvas *c, ffa_mask_box *box)
{
    const ffa_mask_shape *shape = &c->mask->shape;
    const ffa_slice *first = NULL;
    int64_t count = 0, sum = 0, side;

    for (int64_t i = 0; i < c->list->count; i++) {
        const ffa_slice *s = &c->list->slices[i];
        const int64_t q = s->q_end - s->q_begin, k = s->k_end - s->k_begin;

        if (!is_small(c, s))
            continue;
        count++;
        sum += q > k ? q : k;
        if (!first || s->q_begin < first->q_begin ||
            (s->q_begin == first->q_begin && s->k_begin < first->k_begin))
            first = s;
    }
    if (!first || count < SMALL_MIN || 2 * count < c->list->count)
        return false;
    c->is_thin = true;
    side = NEAR_SLICES * ((sum + count - 1) / count);
    *box = (ffa_mask_box){ first->q_begin, least_of(first->q_begin + side, shape->seqlen_q),
                           first->k_begin, least_of(first->k_begin + side, shape->seqlen_k) };
    return 3 * side <= least_of(shape->seqlen_q, shape->seqlen_k);
}

/* Where it is in the picture. */
static void draw_near_box(struct canvas *c, const ffa_mask_box *box)
{
    text_add(&c->text, "<path class=\"near\" d=\"");
    path_to(c, 'M', x_of(c, 2 * box->k_begin), y_of(c, 2 * box->q_begin));
    path_to(c, 'H', x_of(c, 2 * box->k_end), 0);
    path_to(c, 'V', 0, y_of(c, 2 * box->q_end));
    path_to(c, 'H', x_of(c, 2 * box->k_begin), 0);
    text_add(&c->text, "Z\"/>\n");
}

/* From here on the canvas is the close-up's, to the right of the picture. */
static void canvas_move(struct canvas *c, const ffa_mask *near, const ffa_mask_box *box,
                        int32_t size_px)
{
    const int32_t left = c->left + c->width + 28;

    c->mask = near;
    c->list = &near->lists[c->head];
    c->first_q = box->q_begin;
    c->first_k = box->k_begin;
    c->is_thin = false;
    canvas_place(c, size_px);
    c->left += left;
}

/* ---- the whole ---- */

/* near_px: of a close-up's longer side; 0: there is none. */
static void draw_head(struct canvas *c, int32_t near_px)
{
    int32_t caption = 400; /* what the caption's lines need */
    int32_t width = c->left + (c->width > caption ? c->width : caption) + 36;
    int32_t height = c->top + c->height + 58;

    if (near_px)
        width = c->left + c->width + 28 + c->left + near_px + 36;
    text_add(&c->text,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>Attention mask: ",
             width, height, width, height);
    add_summary(c);
    text_add(&c->text, "</title>\n%s<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", svg_style,
             width, height);
}

/* A group that the caller closes. */
static ffa_status draw_plot(struct canvas *c, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    text_add(&c->text, "<g transform=\"translate(%d %d)\">\n", c->left, c->top);
    text_add(&c->text, "<rect width=\"%d\" height=\"%d\" fill=\"#f3f5f8\"/>\n", c->width,
             c->height);
    if (c->list->normal.interval_count <= POLYGONS_MAX || c->list->count <= POLYGONS_MAX)
        FFA_TRY(draw_polygons(c, err));
    else
        FFA_TRY(draw_shades(c, err));
    draw_outlines(c);
    text_add(&c->text, "<rect width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#9aa3b0\"/>\n",
             c->width, c->height);
    draw_ticks(c);
out:
    return rc;
}

static ffa_status draw_near(struct canvas *c, const ffa_mask_box *box, int32_t size_px,
                            ffa_error *err)
{
    ffa_mask *near = NULL;
    ffa_status rc;

    FFA_TRY(ffa_mask_crop(&near, c->mask, box, err));
    canvas_move(c, near, box, size_px);
    FFA_TRY(draw_plot(c, err));
    text_add(&c->text,
             "<text class=\"axis\" y=\"%d\">close-up: the small box in the picture</text>\n</g>\n",
             c->height + 24);
out:
    ffa_mask_destroy(near);
    return rc;
}

ffa_status ffa_mask_svg(const ffa_mask *mask, int32_t head, int32_t size_px, char **out,
                        ffa_error *err)
{
    struct canvas c = { .mask = mask, .head = head };
    ffa_mask_box box;
    bool has_near;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(picture_check(mask, head, err));
    size_px = size_px ? size_px : SIZE_DEFAULT;
    if (size_px < SIZE_MIN || size_px > SIZE_MAX_PX)
        return error_fail(err, FFA_INVALID, 0, "size_px is %d, not 0 or in [%d, %d]", size_px,
                          SIZE_MIN, SIZE_MAX_PX);

    c.list = &mask->lists[head];
    canvas_place(&c, size_px);
    has_near = find_near(&c, &box);
    draw_head(&c, has_near ? size_px / 2 : 0);
    FFA_TRY(draw_plot(&c, err));
    draw_caption(&c);
    if (has_near)
        draw_near_box(&c, &box);
    text_add(&c.text, "</g>\n");
    if (has_near)
        FFA_TRY(draw_near(&c, &box, size_px / 2, err));
    text_add(&c.text, "</svg>\n");
    *out = text_take(&c.text);
    if (!*out)
        rc = error_nomem(err, "the picture");
out:
    text_finish(&c.text);
    return rc;
}
