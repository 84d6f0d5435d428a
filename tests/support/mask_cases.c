/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks for tests: those of tests/data/masks.json, and random unions of slices.
 *
 * A random union has one of several styles, so that packed documents, bands and grids are drawn as
 * often as slices without any structure. The same generator state gives the same mask everywhere.
 */
#include "support/mask_cases.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ---- */

static int64_t integer(const json_t *value)
{
    if (!json_is_integer(value)) {
        fprintf(stderr, "masks.json: an integer is missing\n");
        abort();
    }
    return (int64_t)json_integer_value(value);
}

static void read_case(struct mask_case *out, const json_t *entry)
{
    const json_t *mask = json_object_get(entry, "mask");
    const json_t *slices = json_object_get(mask, "slices");

    snprintf(out->name, sizeof out->name, "%s", json_string_value(json_object_get(entry, "name")));
    out->area = integer(json_object_get(entry, "area"));
    out->shape.seqlen_q = integer(json_object_get(mask, "seqlen_q"));
    out->shape.seqlen_k = integer(json_object_get(mask, "seqlen_k"));
    out->count = (int64_t)json_array_size(slices);
    out->slices = calloc((size_t)out->count, sizeof *out->slices);
    for (int64_t i = 0; i < out->count; i++) {
        const json_t *slice = json_array_get(slices, (size_t)i);

        out->slices[i] = (ffa_slice){ .q_begin = integer(json_array_get(slice, 0)),
                                      .q_end = integer(json_array_get(slice, 1)),
                                      .k_begin = integer(json_array_get(slice, 2)),
                                      .k_end = integer(json_array_get(slice, 3)),
                                      .type = (int32_t)integer(json_array_get(slice, 4)) };
    }
}

struct mask_cases mask_cases_load(void)
{
    struct mask_cases cases = { 0 };
    json_error_t error;
    json_t *root = json_load_file(FFA_TEST_SOURCE_DIR "/tests/data/masks.json", 0, &error);
    const json_t *list = json_object_get(root, "cases");

    if (!json_is_array(list)) {
        fprintf(stderr, "masks.json: no cases: %s\n", root ? "" : error.text);
        abort();
    }
    cases.count = (int64_t)json_array_size(list);
    cases.at = calloc((size_t)cases.count, sizeof *cases.at);
    for (int64_t i = 0; i < cases.count; i++)
        read_case(&cases.at[i], json_array_get(list, (size_t)i));
    json_decref(root);
    return cases;
}

void mask_cases_free(struct mask_cases *cases)
{
    for (int64_t i = 0; i < cases->count; i++)
        free(cases->at[i].slices);
    free(cases->at);
    *cases = (struct mask_cases){ 0 };
}

const struct mask_case *mask_cases_find(const struct mask_cases *cases, const char *name)
{
    for (int64_t i = 0; i < cases->count; i++)
        if (!strcmp(cases->at[i].name, name))
            return &cases->at[i];
    return NULL;
}

/* ---- random unions ---- */

enum style { ANY, DOCUMENTS, GRID, BANDS, SHORT, STYLE_COUNT };

/* A range inside [0, tokens) of at most `longest` tokens, whose bounds are multiples of `grid`. */
static void draw_range(struct rng *rng, int64_t tokens, int64_t longest, int64_t grid,
                       int64_t *begin, int64_t *end)
{
    const int64_t length = rng_range(rng, 0, longest < tokens ? longest : tokens);

    *begin = rng_range(rng, 0, tokens - length) / grid * grid;
    *end = *begin + (length + grid - 1) / grid * grid;
    *end = *end > tokens ? tokens : *end;
}

static void draw_documents(struct rng *rng, struct mask_case *mask, int64_t slices_max)
{
    const int64_t longest = rng_range(rng, 1, mask->shape.seqlen_q);
    const int32_t type = (int32_t)rng_range(rng, 0, 3);
    int64_t q = 0, k = 0;

    while (q < mask->shape.seqlen_q && mask->count < slices_max) {
        const int64_t rows = rng_range(rng, 1, longest);
        const int64_t keys = rng_range(rng, 0, 3) ? rows : rng_range(rng, 0, longest);
        ffa_slice *slice = &mask->slices[mask->count++];

        *slice = (ffa_slice){ .q_begin = q, .q_end = q + rows, .k_begin = k, .k_end = k + keys };
        slice->type = rng_range(rng, 0, 3) ? type : (int32_t)rng_range(rng, 0, 3);
        if (slice->q_end > mask->shape.seqlen_q)
            slice->q_end = mask->shape.seqlen_q;
        if (slice->k_end > mask->shape.seqlen_k)
            slice->k_end = mask->shape.seqlen_k;
        if (slice->k_begin > slice->k_end)
            slice->k_begin = slice->k_end;
        q = slice->q_end + (rng_range(rng, 0, 9) ? 0 : rng_range(rng, 0, longest));
        k = slice->k_end + (rng_range(rng, 0, 9) ? 0 : rng_range(rng, 0, longest));
    }
}

struct mask_case mask_case_random(struct rng *rng, int64_t tokens_max, int64_t slices_max)
{
    struct mask_case mask = { .name = "random" };
    const enum style style = (enum style)rng_range(rng, 0, STYLE_COUNT - 1);
    const int64_t tokens = rng_range(rng, 0, 3) ? tokens_max : 1 + tokens_max / 8;
    const int64_t grid = style == GRID ? (int64_t)1 << rng_range(rng, 0, 5) : 1;
    int64_t longest = tokens, count;

    mask.shape.seqlen_q = rng_range(rng, 1, tokens);
    mask.shape.seqlen_k = rng_range(rng, 1, tokens);
    mask.slices = calloc((size_t)slices_max, sizeof *mask.slices);
    if (style == DOCUMENTS) {
        mask.shape.seqlen_k = rng_range(rng, 0, 3) ? mask.shape.seqlen_q : mask.shape.seqlen_k;
        draw_documents(rng, &mask, slices_max);
        return mask;
    }
    if (style == SHORT)
        longest = 1 + tokens / 8;
    count = rng_range(rng, 0, rng_range(rng, 0, 2) ? 1 + slices_max / 8 : slices_max);
    for (; mask.count < count; mask.count++) {
        ffa_slice *slice = &mask.slices[mask.count];

        draw_range(rng, mask.shape.seqlen_q, longest, grid, &slice->q_begin, &slice->q_end);
        draw_range(rng, mask.shape.seqlen_k, longest, grid, &slice->k_begin, &slice->k_end);
        slice->type = style == BANDS  ? FFA_SLICE_BICAUSAL
                      : style == GRID ? FFA_SLICE_FULL
                                      : (int32_t)rng_range(rng, 0, 3);
    }
    return mask;
}
