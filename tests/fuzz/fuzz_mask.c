/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a mask, JSON where they begin with a bracket or a brace, else text.
 *
 * A mask that is accepted must have a valid normal form, survive the way through its own JSON, pass
 * ffa_mask_check, and be drawn. A refusal must be FFA_INVALID with a message of one line. What is
 * read as JSON is JSON to another reader, too.
 */
#include "fuzz/fuzz.h"
#include "mask/mask.h"

#include <jansson.h>
#include <stdio.h>

enum { BYTES_MAX = 4096, TEXT_BYTES_MAX = 96 };

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_mask: %s\n", what);
    abort();
}

static bool is_digit(char c)
{
    return '0' <= c && c <= '9';
}

/* Whether a text names no file and only numbers of few digits, or of more than a number may have,
 * so that no text asks for millions of slices. */
static bool is_small(const char *text)
{
    int stars = 0;

    if (strchr(text, '@'))
        return false;
    for (const char *at = text; *at;) {
        const char *begin = at;

        while (is_digit(*at))
            at++;
        if (at - begin > 3 && at - begin < 11)
            return false;
        if (begin > text && begin[-1] == '*' && at - begin > 2)
            return false;
        if (at == begin)
            stars += *at++ == '*';
    }
    return stars <= 2;
}

static void same_lists(const ffa_mask *a, const ffa_mask *b)
{
    require(a->head_count == b->head_count, "heads changed on the way through JSON");
    for (int32_t i = 0; i < a->head_count; i++) {
        const struct mask_list *x = &a->lists[i], *y = &b->lists[i];

        require(x->count == y->count, "slices were lost on the way through JSON");
        require(!memcmp(x->slices, y->slices, (size_t)x->count * sizeof *x->slices),
                "slices changed on the way through JSON");
        require(x->normal.area == y->normal.area, "the area changed");
    }
}

static void mask_use(const ffa_mask *mask)
{
    ffa_mask_report report = FFA_MASK_REPORT_INIT;
    ffa_mask *again;
    char *text;

    for (int32_t i = 0; i < mask->head_count; i++)
        require(normal_check(&mask->lists[i].normal, &mask->shape, NULL) == FFA_OK,
                "the normal form is not sound");
    require(ffa_mask_check(mask, &report, NULL) == FFA_OK, "the check failed");
    require(report.area == ffa_mask_area(mask, -1), "the areas differ");
    require(ffa_mask_to_json(mask, &text, NULL) == FFA_OK, "no JSON");
    require(ffa_mask_parse_json(&again, text, strlen(text), NULL) == FFA_OK, "its JSON is refused");
    same_lists(mask, again);
    ffa_free(text);
    ffa_mask_destroy(again);
    require(ffa_mask_text_picture(mask, 0, 0, &text, NULL) == FFA_OK, "no text picture");
    ffa_free(text);
    require(ffa_mask_svg(mask, 0, 64, &text, NULL) == FFA_OK, "no SVG");
    ffa_free(text);
}

/* Whether jansson takes it: a second opinion. */
static bool is_json_text(const char *text, size_t bytes)
{
    json_error_t at;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    const bool holds = root != NULL;

    json_decref(root);
    return holds;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char text[BYTES_MAX + 1];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask = NULL;
    ffa_status rc;
    bool is_json = bytes > 0 && (data[0] == '{' || data[0] == '[');

    if (bytes > (is_json ? BYTES_MAX : TEXT_BYTES_MAX))
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (is_json)
        rc = ffa_mask_parse_json(&mask, text, bytes, &err);
    else if (is_small(text))
        rc = ffa_mask_parse(&mask, text, &err);
    else
        return 0;

    require(rc != FFA_OK || !is_json || is_json_text(text, bytes), "what is no JSON was read");
    require((rc == FFA_OK) == (mask != NULL), "status and mask disagree");
    require(rc == FFA_OK || rc == FFA_INVALID, "an odd status");
    require(rc == FFA_OK || err.message[0], "a refusal without a message");
    require(!strpbrk(err.message, "\r\n"), "a message of two lines");
    if (rc == FFA_OK)
        mask_use(mask);
    ffa_mask_destroy(mask);
    return 0;
}
