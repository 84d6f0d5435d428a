/* SPDX-License-Identifier: Apache-2.0 */
#include "support/parallel_run.h"

#include <stdio.h>

int64_t parallel_token(const struct layout *layout, int32_t rank, int64_t row)
{
    if (layout->is_replicated)
        return row;
    for (int64_t i = layout->rank_begin[rank]; i < layout->rank_begin[rank + 1]; i++) {
        const int64_t chunk = layout->rank_chunks[i];
        const int64_t rows = layout->bounds[chunk + 1] - layout->bounds[chunk];

        if (row < rows)
            return layout->bounds[chunk] + row;
        row -= rows;
    }
    return -1;
}

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "plan: %s\n", what);
    abort();
}

void parallel_operands_init(struct parallel_operands *out, const ffa_parallel_plan *plan,
                            const struct plan_pass *pass, int32_t phase)
{
    const bool moves_queries = plan->moves == FFA_PARALLEL_MOVE_QUERIES;
    const struct layout *moving = moves_queries ? &plan->queries : &plan->keys;
    const struct layout *staying = moves_queries ? &plan->keys : &plan->queries;
    const struct plan_phase *at = &pass->phases[phase];
    const bool is_own = phase == 0 || phase > pass->stage_count;
    int64_t *stayed, row = 0;

    out->moved = calloc((size_t)at->rows + 1, sizeof *out->moved);
    stayed = calloc((size_t)staying->rank_tokens[plan->rank] + 1, sizeof *stayed);
    out->queries = moves_queries ? out->moved : stayed;
    out->keys = moves_queries ? stayed : out->moved;
    for (int64_t i = 0; i < staying->rank_tokens[plan->rank]; i++)
        stayed[i] = parallel_token(staying, plan->rank, i);
    if (is_own) {
        require(at->receives.count == 0, "an own phase receives");
        require(at->rows == moving->rank_tokens[plan->rank], "an own phase of other rows");
        for (row = 0; row < at->rows; row++)
            out->moved[row] = parallel_token(moving, plan->rank, row);
        return;
    }
    require(at->rows > 0 && at->rows <= pass->buffer_rows, "a stage does not fit the buffer");
    for (int64_t c = 0; c < at->receives.count; c++) {
        const struct transfer_copy *copy = &at->receives.at[c];

        require(copy->row == row && copy->rows > 0 && row + copy->rows <= at->rows,
                "receives do not follow each other");
        require(copy->source != plan->rank, "a rank receives from itself");
        for (int64_t i = 0; i < copy->rows; i++) {
            out->moved[row] = parallel_token(moving, copy->source, copy->source_row + i);
            require(out->moved[row++] >= 0, "a receive of rows the source has not");
        }
    }
    require(row == at->rows, "receives do not fill the buffer");
}

void parallel_operands_finish(struct parallel_operands *operands)
{
    free(operands->queries);
    free(operands->keys);
}

static void forward_cells(const struct plan_phase *phase, parallel_cell cell, void *user)
{
    for (int64_t t = 0; t < phase->tiles.tile_count; t++) {
        const struct plan_tile *tile = &phase->tiles.tiles[t];

        for (int32_t b = 0; b < tile->band_count; b++) {
            const struct plan_band *band = &phase->tiles.bands[tile->band_begin + b];

            for (int32_t q = band->begin; q < band->end; q++) {
                const int32_t skip = q - band->begin;

                for (int32_t k = band->lo + band->lo_step * skip;
                     k < band->hi + band->hi_step * skip; k++)
                    cell(user, tile->list, q, k);
            }
        }
    }
}

static void backward_cells(const struct plan_phase *phase, parallel_cell cell, void *user)
{
    const struct tile_plan *tiles = &phase->key_tiles;

    for (int64_t t = 0; t < tiles->tile_count; t++) {
        const struct plan_tile *tile = &tiles->tiles[t];

        for (int32_t b = 0; b < tile->band_count; b++) {
            const struct plan_band *band = &tiles->bands[tile->band_begin + b];

            for (int32_t k = band->begin; k < band->end; k++) {
                const int32_t skip = k - band->begin;

                for (int32_t q = band->lo + band->lo_step * skip;
                     q < band->hi + band->hi_step * skip; q++)
                    cell(user, tile->list, q, k);
            }
        }
    }
}

void parallel_each_cell(const struct plan_phase *phase, bool is_backward, parallel_cell cell,
                        void *user)
{
    (is_backward ? backward_cells : forward_cells)(phase, cell, user);
}
