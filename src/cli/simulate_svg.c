/* SPDX-License-Identifier: Apache-2.0
 *
 * The chart of ffa simulate: efficiency over ranks, a panel a pass, a line a method. Invariant: a
 * method that cannot be used in a world has no point there, and its line goes on to the next one.
 * The axis of ranks is logarithmic. Each line has its name at its end, moved off other names.
 * Trick: lines that coincide stay visible, because those drawn first are wider and the others are
 * dashed.
 */
#include "cli/cmd_simulate.h"
#include "cli/file.h"
#include "cli/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PANEL_WIDTH = 420,
    PANEL_HEIGHT = 300,
    LEFT = 64,
    TOP = 104,
    GAP = 150, /* has the names of the left panel's lines, and the right one's axis */
    WIDTH = LEFT + 2 * PANEL_WIDTH + GAP + 104,
    HEIGHT = TOP + PANEL_HEIGHT + 62,
    LINE = 15, /* between two names */
    NAME_CHARACTERS = 80
};

/* How a method's line is drawn; in the order of drawing, which is that of the methods. */
static const struct {
    const char *colour, *dashes;
    double width, radius;
} looks[FFA_SIM_METHODS] = {
    { "#1d5fc4", "none", 6, 5.5 }, { "#1fa389", "none", 3, 4 }, { "#c9541b", "none", 2, 3 },
    { "#8a8f99", "7 4", 2, 3 },    { "#7b3fa0", "7 5", 2, 3 },  { "#b8860b", "2 4", 2.5, 3 },
};

struct frame {
    FILE *to;
    const struct sim_study *study;
    double x, low, high; /* left edge; log2 of the fewest and of the most ranks */
    int is_backward;
};

/* The end of a line, and the height at which its name stands. */
struct end {
    int method, world;
    double y, name_y;
};

static double x_of(const struct frame *f, int32_t ranks)
{
    const double span = f->high > f->low ? f->high - f->low : 1;

    return f->x + (log2((double)ranks) - f->low) / span * PANEL_WIDTH;
}

static double y_of(double efficiency)
{
    return TOP + (1 - (efficiency < 1 ? efficiency : 1)) * PANEL_HEIGHT;
}

static const ffa_sim_pass *pass_of(const struct frame *f, int world, int method)
{
    const ffa_sim_result *result = &f->study->worlds[world].results[method];

    if (!result->is_possible)
        return NULL;
    return f->is_backward ? &result->backward : &result->forward;
}

static void draw_axes(const struct frame *f)
{
    (void)fprintf(f->to, "<text class=\"h\" x=\"%.1f\" y=\"%d\">%s</text>\n", f->x, TOP - 14,
                  f->is_backward ? "Backward" : "Forward");
    for (int i = 0; i <= 4; i++) {
        (void)fprintf(f->to,
                      "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                      f->x, f->x + PANEL_WIDTH, y_of(i / 4.0), y_of(i / 4.0));
        (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                      f->x - 8, y_of(i / 4.0) + 4, 25 * i);
    }
    for (int w = 0; w < f->study->count; w++)
        (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                      x_of(f, f->study->worlds[w].ranks), TOP + PANEL_HEIGHT + 20,
                      f->study->worlds[w].ranks);
    (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">ranks</text>\n",
                  f->x + PANEL_WIDTH / 2.0, TOP + PANEL_HEIGHT + 38);
}

static void draw_method(const struct frame *f, int method)
{
    (void)fprintf(f->to,
                  "<g stroke=\"%s\" fill=\"%s\"><polyline fill=\"none\" stroke-width=\"%.1f\" "
                  "stroke-dasharray=\"%s\" points=\"",
                  looks[method].colour, looks[method].colour, looks[method].width,
                  looks[method].dashes);
    for (int w = 0; w < f->study->count; w++) {
        const ffa_sim_pass *pass = pass_of(f, w, method);

        if (pass)
            (void)fprintf(f->to, "%.1f,%.1f ", x_of(f, f->study->worlds[w].ranks),
                          y_of(pass->efficiency));
    }
    (void)fprintf(f->to, "\"/>");
    for (int w = 0; w < f->study->count; w++) {
        const ffa_sim_pass *pass = pass_of(f, w, method);

        if (pass)
            (void)fprintf(
                f->to,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>%s, %d ranks: %.1f %% in "
                "%.1f us</title></circle>",
                x_of(f, f->study->worlds[w].ranks), y_of(pass->efficiency), looks[method].radius,
                ffa_sim_method_text(method), f->study->worlds[w].ranks, 100 * pass->efficiency,
                (double)pass->ns / 1e3);
    }
    (void)fprintf(f->to, "</g>\n");
}

/* ---- names at the ends ---- */

/* By where a line ends: what stands side by side is together, from the top down. */
static int end_compare(const void *left, const void *right)
{
    const struct end *a = left, *b = right;

    if (a->world != b->world)
        return a->world < b->world ? -1 : 1;
    if (a->y < b->y || a->y > b->y)
        return a->y < b->y ? -1 : 1;
    return a->method - b->method;
}

/* The ends of all lines, sorted; how many there are. */
static int find_ends(const struct frame *f, struct end ends[FFA_SIM_METHODS])
{
    int count = 0;

    for (int m = 0; m < FFA_SIM_METHODS; m++)
        for (int w = f->study->count; w-- > 0;) {
            const ffa_sim_pass *pass = pass_of(f, w, m);

            if (!pass)
                continue;
            ends[count++] = (struct end){ m, w, y_of(pass->efficiency), 0 };
            break;
        }
    qsort(ends, (size_t)count, sizeof *ends, end_compare);
    return count;
}

/* Names of one world stand a line apart: each goes down as far as it must, and all go up again by
 * what hangs below the panel. */
static void place_names(struct end *ends, int count, int last_world)
{
    for (int i = 0; i < count; i++) {
        const bool is_first = i == 0 || ends[i - 1].world != ends[i].world;
        /* A line that ends inside the panel has its name below the end. */
        const double wanted = ends[i].y + (ends[i].world == last_world ? 4 : 24);
        const double least = is_first ? wanted : ends[i - 1].name_y + LINE;

        ends[i].name_y = wanted > least ? wanted : least;
    }
    for (int i = count; i-- > 0;) {
        const bool is_last = i == count - 1 || ends[i + 1].world != ends[i].world;
        const double most = is_last ? TOP + PANEL_HEIGHT + 4 : ends[i + 1].name_y - LINE;

        ends[i].name_y = ends[i].name_y < most ? ends[i].name_y : most;
    }
}

static void draw_names(const struct frame *f)
{
    struct end ends[FFA_SIM_METHODS];
    const int count = find_ends(f, ends), last_world = f->study->count - 1;

    place_names(ends, count, last_world);
    for (int i = 0; i < count; i++) {
        const struct end *end = &ends[i];
        const bool is_inside = end->world < last_world;
        const double x = x_of(f, f->study->worlds[end->world].ranks);

        if (!is_inside)
            (void)fprintf(f->to,
                          "<path class=\"lead\" stroke=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n",
                          looks[end->method].colour, x + 7, end->y, x + 19, end->name_y - 4);
        (void)fprintf(f->to, "<text class=\"n\" fill=\"%s\" x=\"%.1f\" y=\"%.1f\"%s>%s",
                      looks[end->method].colour, is_inside ? x : x + 22, end->name_y,
                      is_inside ? " text-anchor=\"middle\"" : "", ffa_sim_method_text(end->method));
        if (is_inside)
            (void)fprintf(f->to, ", up to %d ranks", f->study->worlds[end->world].ranks);
        (void)fprintf(f->to, "</text>\n");
    }
}

/* ---- the whole ---- */

static void put_name(FILE *to, const char *mask)
{
    struct svg name = { 0 };

    svg_add_text(&name, mask, NAME_CHARACTERS);
    (void)fputs(name.at && !name.failed ? name.at : "", to);
    svg_finish(&name);
}

static void draw_head(FILE *to, const struct sim_study *study)
{
    (void)fprintf(to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\">\n<title>Modelled efficiency of ",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_name(to, study->mask);
    (void)fprintf(
        to, "</title>\n<style>\n"
            "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}\n"
            "text:not(.n){fill:#566170}\ntext.h{font-size:15px;font-weight:600;fill:#2b3440}\n"
            "text.t{font-size:21px;font-weight:600;fill:#2b3440}\n"
            "text.n{font-weight:600;stroke:#fff;stroke-width:3px;paint-order:stroke}\n"
            ".grid{stroke:#d5dae1}\n.lead{stroke-width:1;fill:none}\n</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    (void)fprintf(to, "<text class=\"t\" x=\"%d\" y=\"36\">", LEFT);
    put_name(to, study->mask);
    (void)fprintf(to,
                  ": efficiency over ranks</text>\n<text x=\"%d\" y=\"57\">modelled, not measured: "
                  "the time of one rank alone, divided by ranks x time; %d ranks a node",
                  LEFT, study->ranks_per_node);
    for (int m = 0; m < FFA_SIM_METHODS; m++) {
        bool is_possible = false;

        for (int w = 0; w < study->count; w++)
            is_possible = is_possible || study->worlds[w].results[m].is_possible;
        if (!is_possible)
            (void)fprintf(to, "; %s is not possible", ffa_sim_method_text(m));
    }
    (void)fprintf(to, "</text>\n");
}

static void draw(FILE *to, const struct sim_study *study)
{
    const struct sim_world *first = &study->worlds[0], *last = &study->worlds[study->count - 1];

    draw_head(to, study);
    for (int pass = 0; pass < 2; pass++) {
        const struct frame f = { to,
                                 study,
                                 LEFT + pass * (double)(PANEL_WIDTH + GAP),
                                 log2((double)first->ranks),
                                 log2((double)last->ranks),
                                 pass };

        draw_axes(&f);
        for (int m = 0; m < FFA_SIM_METHODS; m++)
            draw_method(&f, m);
        draw_names(&f);
    }
    (void)fprintf(to, "</svg>\n");
}

ffa_status simulate_svg(const struct sim_study *study, const char *path, ffa_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ffa_status rc;

    if (!to)
        return cli_error(err, FFA_NOMEM, 0, "no memory for a picture");
    draw(to, study);
    if (fclose(to) != 0)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for a picture");
    else
        rc = file_write(path, text, bytes, err);
    free(text);
    return rc;
}
