/* SPDX-License-Identifier: Apache-2.0
 *
 * bands_normal and band_mask_init. A band whose bounds bend inside its box is at most three slices,
 * one for each stretch of rows in which every bound either moves or stays; the normal form of the
 * slices is that of the bands. The mask lives in its owner's memory and never leaves the library,
 * so that it needs no slices to show.
 */
#include "mask/band_mask.h"

/* At most three slices: each bound moves with the rows, or does not. */
static int32_t slices_of(ffa_slice out[3], const struct band *band)
{
    const int64_t lo_turn = band->k_begin - band->lo;   /* from here on the lower bound moves */
    const int64_t hi_turn = band->k_end - band->hi - 1; /* from here on the upper one does not */
    const int64_t first = min64(lo_turn, hi_turn), second = max64(lo_turn, hi_turn);
    const int64_t rows[4] = { band->q_begin, min64(max64(first, band->q_begin), band->q_end),
                              min64(max64(second, band->q_begin), band->q_end), band->q_end };
    int32_t count = 0;

    for (int i = 0; i < 3; i++) {
        const bool lo_moves = rows[i] >= lo_turn, hi_moves = rows[i] < hi_turn;

        if (rows[i] == rows[i + 1])
            continue;
        out[count++] = (ffa_slice){
            .q_begin = rows[i],
            .q_end = rows[i + 1],
            .k_begin = lo_moves ? rows[i] + band->lo : band->k_begin,
            .k_end = hi_moves ? rows[i + 1] + band->hi : band->k_end,
            .type = (lo_moves ? FFA_SLICE_INVCAUSAL : 0) | (hi_moves ? FFA_SLICE_CAUSAL : 0),
        };
    }
    return count;
}

ffa_status bands_normal(struct normal *out, const struct bands *bands, ffa_error *err)
{
    ffa_slice *slices = mem_array((size_t)bands->count * 3, sizeof *slices);
    int64_t count = 0;
    ffa_status rc;

    *out = (struct normal){ 0 };
    if (!slices)
        return error_nomem(err, "the slices of bands");
    for (int64_t i = 0; i < bands->count; i++)
        count += slices_of(slices + count, &bands->at[i]);
    rc = normal_build(out, slices, count, err);
    mem_free(slices);
    return rc;
}

ffa_status band_mask_init(ffa_mask *out, const ffa_mask_shape *shape, const struct bands *lists,
                          int32_t list_count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    assert(list_count > 0);
    *out = (ffa_mask){
        .shape = *shape,
        .head_count = list_count,
        .lists = mem_array((size_t)list_count, sizeof *out->lists),
    };
    if (!out->lists)
        return error_nomem(err, "a mask of bands");
    for (int32_t l = 0; l < list_count; l++)
        FFA_TRY(bands_normal(&out->lists[l].normal, &lists[l], err));
out:
    return rc;
}

void band_mask_finish(ffa_mask *mask)
{
    for (int32_t l = 0; mask->lists && l < mask->head_count; l++)
        normal_finish(&mask->lists[l].normal);
    mem_free(mask->lists);
    *mask = (ffa_mask){ 0 };
}
