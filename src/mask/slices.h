/* SPDX-License-Identifier: Apache-2.0
 *
 * What builders of masks share: a growing list of slices, regions, and checks of arguments.
 */
#ifndef FFA_MASK_SLICES_H
#define FFA_MASK_SLICES_H

#include "mask/mask.h"

struct slices {
    ffa_slice *at;
    int64_t count, capacity;
};

/* Append one slice, unless it has no rows or no keys. FFA_INVALID beyond SLICES_MAX, FFA_NOMEM. */
ffa_status slices_add(struct slices *slices, ffa_slice slice, ffa_error *err);
/* Refuse `more` slices behind those there before they are built: FFA_INVALID where they are too
 * many, FFA_NOMEM where a mask of them cannot fit. Makes room for them. */
ffa_status slices_expect(struct slices *slices, int64_t more, ffa_error *err);
/* The mask of `slices`, unless rc is a failure already; frees them. */
ffa_status slices_to_mask(ffa_mask **out, const ffa_mask_shape *shape, struct slices *slices,
                          ffa_status rc, ffa_error *err);

/* One list a kv head, or one list for all. */
struct slice_lists {
    struct slices *at; /* [heads] */
    int32_t heads;
};

ffa_status slice_lists_init(struct slice_lists *lists, int32_t heads, ffa_error *err);
/* As slices_to_mask. */
ffa_status slice_lists_to_mask(ffa_mask **out, const ffa_mask_shape *shape,
                               struct slice_lists *lists, ffa_status rc, ffa_error *err);

/* Row r of [q_begin, q_end) attends the keys of [k_begin, k_end) that are in
 * [r + first, r + last]; a bound that does not exist is -REGION_FAR or REGION_FAR. */
struct region {
    int64_t q_begin, q_end;
    int64_t k_begin, k_end;
    int64_t first, last;
};

/* Beyond any diagonal of a mask, with room to add rows. */
#define REGION_FAR ((int64_t)1 << 40)

/* Append the slices of a region: at most three. */
ffa_status region_add(struct slices *out, const struct region *region, ffa_error *err);
/* The cells of a slice; they are the region's. */
struct region region_from_slice(const ffa_slice *slice);

/* ---- arguments ---- */

ffa_status out_clear(ffa_mask **out, ffa_error *err);
ffa_status window_check(const ffa_window *window, ffa_error *err);
ffa_status count_check(int64_t value, int64_t least, const char *name, ffa_error *err);
/* The window over the rows and keys of `box`, bottom-right aligned. */
struct region region_of_window(const ffa_slice *box, const ffa_window *window);

/* Boundaries of 64 or of 32 bits: one pointer is set. */
struct boundaries {
    const int64_t *wide;
    const int32_t *narrow;
};

static inline int64_t boundary_at(const struct boundaries *cu, int64_t index)
{
    return cu->wide ? cu->wide[index] : cu->narrow[index];
}

/* Boundaries of `count` ranges: from 0, non-decreasing, to at most 2^31 - 1. */
ffa_status boundaries_check(const struct boundaries *cu, int64_t count, const char *name,
                            const char *count_name, ffa_error *err);

#endif
