/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of SVG, as text that grows. Coordinates are integers: pixels, or hundredths of a pixel
 * where a name says so, so that no locale gets into the file.
 */
#ifndef FFA_CLI_SVG_H
#define FFA_CLI_SVG_H

#include <ffa/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts as all zero. Where memory runs out, `failed` is set and nothing more is added. */
struct svg {
    char *at; /* terminated; NULL: nothing was added */
    size_t bytes, capacity;
    bool failed;
};

void svg_add(struct svg *svg, const char *format, ...) FFA_PRINTF(2, 3);
void svg_finish(struct svg *svg);

/* Add a number of pixels, given in hundredths. */
void svg_add_px(struct svg *svg, int64_t hundredths);
/* Add a closed path around a box: x, y, width and height in hundredths. */
void svg_add_box(struct svg *path, int64_t x, int64_t y, int64_t width, int64_t height);
/* Move a path, if it has anything, into a filled <path>; frees it. */
void svg_add_path(struct svg *svg, const char *colour, struct svg *path);
/* Add text from elsewhere: made printable, with what XML reserves escaped; cut, with "...", behind
 * `most` characters, at most 200. */
void svg_add_text(struct svg *svg, const char *text, size_t most);
/* text: without <, > and &. */
void svg_add_label(struct svg *svg, const char *css, int64_t x, int64_t y, const char *text);

/* Grow *at (count elements used, *capacity allocated) so that `need` fit; false: no memory, and *at
 * is unchanged. */
bool svg_grow(void **at, int64_t *capacity, int64_t need, size_t size);

/* value / most of `px` pixels, in hundredths; 0 <= value <= most, 0 < most. */
int64_t svg_share(int64_t value, int64_t most, int64_t px);

/* 1234567 as 1,234,567. */
void svg_group_digits(char out[32], int64_t value);

/* All times of a picture have one unit, which fits the longest. */
struct svg_unit {
    const char *name; /* "ms" or "us" */
    int64_t ns;
    int decimals;
};

struct svg_unit svg_unit_of(int64_t longest_ns);
/* "1.23 ms" or "45.6 us", cut, not rounded. */
void svg_name_time(char out[32], int64_t ns, const struct svg_unit *unit);

#endif
