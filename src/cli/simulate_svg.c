/* SPDX-License-Identifier: Apache-2.0
 *
 * The chart of ffa simulate: efficiency over ranks, a panel a pass, a line a method. Invariant: a
 * method that cannot be used in a world has no point there, and its line goes on to the next one.
 * The axis of ranks is logarithmic; the plan's line is drawn last, over all others.
 */
#include "cli/cmd_simulate.h"
#include "cli/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PANEL_WIDTH = 330,
    PANEL_HEIGHT = 260,
    LEFT = 56,
    TOP = 84,
    GAP = 60,
    WIDTH = LEFT + 2 * PANEL_WIDTH + GAP + 24,
    HEIGHT = TOP + PANEL_HEIGHT + 60
};

static const char *const colours[FFA_SIM_METHODS] = { "#1d5fc4", "#12908e", "#c9541b",
                                                      "#8a8f99", "#7b3fa0", "#b8860b" };

struct frame {
    FILE *to;
    const struct sim_study *study;
    double x, low, high; /* left edge; log2 of the fewest and of the most ranks */
    int is_backward;
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
    (void)fprintf(f->to, "<text class=\"axis\" x=\"%.1f\" y=\"%d\">%s</text>\n", f->x, TOP - 12,
                  f->is_backward ? "backward" : "forward");
    for (int i = 0; i <= 4; i++) {
        (void)fprintf(f->to,
                      "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                      f->x, f->x + PANEL_WIDTH, y_of(i / 4.0), y_of(i / 4.0));
        (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                      f->x - 6, y_of(i / 4.0) + 4, 25 * i);
    }
    for (int w = 0; w < f->study->count; w++)
        (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                      x_of(f, f->study->worlds[w].ranks), TOP + PANEL_HEIGHT + 18,
                      f->study->worlds[w].ranks);
    (void)fprintf(f->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">ranks</text>\n",
                  f->x + PANEL_WIDTH / 2.0, TOP + PANEL_HEIGHT + 36);
}

static void draw_method(const struct frame *f, int method)
{
    (void)fprintf(f->to, "<g stroke=\"%s\" fill=\"%s\"><polyline fill=\"none\" points=\"",
                  colours[method], colours[method]);
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
            (void)fprintf(f->to,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%s, %d ranks: %.1f %% in "
                          "%.1f us</title></circle>",
                          x_of(f, f->study->worlds[w].ranks), y_of(pass->efficiency),
                          ffa_sim_method_text(method), f->study->worlds[w].ranks,
                          100 * pass->efficiency, (double)pass->ns / 1e3);
    }
    (void)fprintf(f->to, "</g>\n");
}

static void draw_legend(FILE *to)
{
    int x = LEFT;

    for (int m = 0; m < FFA_SIM_METHODS; m++) {
        (void)fprintf(to,
                      "<rect x=\"%d\" y=\"42\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                      "<text x=\"%d\" y=\"52\">%s</text>\n",
                      x, colours[m], x + 18, ffa_sim_method_text(m));
        x += 40 + 8 * (int)strlen(ffa_sim_method_text(m));
    }
}

static void put_text(FILE *to, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            (void)fputs("&amp;", to);
            break;
        case '<':
            (void)fputs("&lt;", to);
            break;
        default:
            (void)fputc(*text, to);
        }
}

static void draw(FILE *to, const struct sim_study *study)
{
    const struct sim_world *first = &study->worlds[0], *last = &study->worlds[study->count - 1];

    (void)fprintf(to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\">\n<title>Modelled efficiency of ",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_text(to, study->mask);
    (void)fprintf(
        to,
        "</title>\n<style>\n"
        "text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
        "fill:#5b6472}\n.axis{font-size:13px;fill:#2a303a}\n.grid{stroke:#d5dae1}\n"
        "polyline{stroke-width:2}\n</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
        "<text class=\"axis\" x=\"%d\" y=\"24\">Modelled, not measured: time of one rank alone "
        "/ (ranks x time), ",
        LEFT);
    put_text(to, study->mask);
    (void)fprintf(to, "</text>\n");
    draw_legend(to);
    for (int pass = 0; pass < 2; pass++) {
        const struct frame f = { to,
                                 study,
                                 LEFT + pass * (double)(PANEL_WIDTH + GAP),
                                 log2((double)first->ranks),
                                 log2((double)last->ranks),
                                 pass };

        draw_axes(&f);
        for (int m = FFA_SIM_METHODS - 1; m >= 0; m--) /* the plan on top */
            draw_method(&f, m);
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
