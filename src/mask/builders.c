/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders of masks over one document: full, causal, and windows with or without global tokens.
 * Slices are disjoint, so that `ffa mask check` has nothing to warn of.
 */
#include "mask/slices.h"

static ffa_status one_slice(ffa_mask **out, const ffa_mask_shape *shape, ffa_slice_type type,
                            ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    rc = ffa_mask_create(out, shape,
                         &(ffa_slice){ 0, shape->seqlen_q, 0, shape->seqlen_k, (int32_t)type, 0 },
                         1, err);
out:
    return rc;
}

ffa_status ffa_mask_full(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err)
{
    return one_slice(out, shape, FFA_SLICE_FULL, err);
}

ffa_status ffa_mask_causal(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err)
{
    return one_slice(out, shape, FFA_SLICE_CAUSAL, err);
}

ffa_status ffa_mask_window(ffa_mask **out, const ffa_mask_shape *shape, const ffa_window *window,
                           ffa_error *err)
{
    return ffa_mask_global_window(out, shape, window, 0, err);
}

/* Three regions that do not meet: global rows, global keys of the rows below, and the window over
 * the rest. Only the last one has a left bound. */
ffa_status ffa_mask_global_window(ffa_mask **out, const ffa_mask_shape *shape,
                                  const ffa_window *window, int64_t global_tokens, ffa_error *err)
{
    struct slices slices = { 0 };
    struct region rest, rows, keys;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    FFA_TRY(window_check(window, err));
    FFA_TRY(count_check(global_tokens, 0, "global_tokens", err));

    rest = region_of_window(&(ffa_slice){ 0, shape->seqlen_q, 0, shape->seqlen_k, 0, 0 }, window);
    rows = keys = rest;
    rows.first = keys.first = -REGION_FAR;
    rows.q_end = rest.q_begin = keys.q_begin = min64(global_tokens, shape->seqlen_q);
    keys.k_end = rest.k_begin = min64(global_tokens, shape->seqlen_k);
    FFA_TRY(region_add(&slices, &rows, err));
    FFA_TRY(region_add(&slices, &keys, err));
    FFA_TRY(region_add(&slices, &rest, err));
out:
    return slices_to_mask(out, shape, &slices, rc, err);
}
