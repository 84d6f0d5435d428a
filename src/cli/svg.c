/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of SVG. Invariant: text is whole or `failed` is set, so callers add without looking and
 * ask once at the end. All memory of the charts comes from svg_grow.
 */
#include "cli/svg.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool svg_grow(void **at, int64_t *capacity, int64_t need, size_t size)
{
    int64_t more = *capacity > 0 ? *capacity : 16;
    void *grown;

    if (need <= *capacity)
        return true;
    while (more < need)
        more *= 2;
    grown = realloc(*at, (size_t)more * size);
    if (!grown)
        return false;
    *at = grown;
    *capacity = more;
    return true;
}

void svg_add(struct svg *svg, const char *format, ...)
{
    int64_t capacity = (int64_t)svg->capacity;
    void *at = svg->at;
    va_list args, again;
    int bytes;

    va_start(args, format);
    va_copy(again, args);
    bytes = vsnprintf(NULL, 0, format, args);
    svg->failed =
        svg->failed || bytes < 0 || !svg_grow(&at, &capacity, (int64_t)svg->bytes + bytes + 1, 1);
    if (!svg->failed) {
        svg->at = at;
        svg->capacity = (size_t)capacity;
        svg->bytes += (size_t)vsnprintf(svg->at + svg->bytes, (size_t)bytes + 1, format, again);
    }
    va_end(again);
    va_end(args);
}

void svg_finish(struct svg *svg)
{
    free(svg->at);
    *svg = (struct svg){ 0 };
}

void svg_add_px(struct svg *svg, int64_t hundredths)
{
    if (hundredths % 100 == 0)
        svg_add(svg, "%lld", (long long)(hundredths / 100));
    else
        svg_add(svg, "%lld.%02lld", (long long)(hundredths / 100), (long long)(hundredths % 100));
}

void svg_add_box(struct svg *path, int64_t x, int64_t y, int64_t width, int64_t height)
{
    svg_add(path, "M");
    svg_add_px(path, x);
    svg_add(path, " ");
    svg_add_px(path, y);
    svg_add(path, "h");
    svg_add_px(path, width);
    svg_add(path, "v");
    svg_add_px(path, height);
    svg_add(path, "h-");
    svg_add_px(path, width);
    svg_add(path, "z");
}

void svg_add_path(struct svg *svg, const char *colour, struct svg *path)
{
    if (path->bytes > 0)
        svg_add(svg, "<path fill=\"%s\" d=\"%s\"/>\n", colour, path->at);
    svg->failed = svg->failed || path->failed;
    svg_finish(path);
}

void svg_add_label(struct svg *svg, const char *css, int64_t x, int64_t y, const char *text)
{
    svg_add(svg, "<text class=\"%s\" x=\"%lld\" y=\"%lld\">%s</text>\n", css, (long long)x,
            (long long)y, text);
}

/* Both numbers are halved until the product cannot overflow. */
int64_t svg_share(int64_t value, int64_t most, int64_t px)
{
    while (most > (int64_t)1 << 40) {
        value /= 2;
        most /= 2;
    }
    return value * px * 100 / most;
}

void svg_group_digits(char out[32], int64_t value)
{
    char digits[24];
    const int count = snprintf(digits, sizeof digits, "%lld", (long long)value);
    int at = 0;

    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

void svg_name_time(char out[32], int64_t ns)
{
    const int64_t unit = ns >= 1000000 ? 1000000 : 1000;

    (void)snprintf(out, 32, "%lld.%lld %s", (long long)(ns / unit),
                   (long long)(ns % unit * 10 / unit), unit == 1000 ? "us" : "ms");
}
