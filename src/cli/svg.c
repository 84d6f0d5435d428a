/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of SVG. Invariant: text is whole or `failed` is set, so callers add without looking and
 * ask once at the end. All memory of the charts comes from svg_grow.
 */
#include "cli/svg.h"

#include "base/printable.h"

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

void svg_add_text(struct svg *svg, const char *text, size_t most)
{
    char printable[1024];
    const char *at = printable;
    size_t count = 0;

    text_printable(printable, sizeof printable, text, "");
    for (; *at && count < most; count++) {
        uint32_t character;
        const size_t bytes = utf8_take(at, &character);

        if (*at == '<' || *at == '>' || *at == '&')
            svg_add(svg, "%s", *at == '<' ? "&lt;" : *at == '>' ? "&gt;" : "&amp;");
        else
            svg_add(svg, "%.*s", (int)bytes, at);
        at += bytes;
    }
    if (*at)
        svg_add(svg, "...");
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

struct svg_unit svg_unit_of(int64_t longest_ns)
{
    if (longest_ns < 1000000)
        return (struct svg_unit){ "us", 1000, 1 };
    return (struct svg_unit){ "ms", 1000000, longest_ns < 10000000 ? 2 : 1 };
}

void svg_name_time(char out[32], int64_t ns, const struct svg_unit *unit)
{
    const int64_t scale = unit->decimals == 2 ? 100 : 10;

    (void)snprintf(out, 32, "%lld.%0*lld %s", (long long)(ns / unit->ns), unit->decimals,
                   (long long)(ns % unit->ns * scale / unit->ns), unit->name);
}
