/* SPDX-License-Identifier: Apache-2.0
 *
 * Bands: what a plan over many ranks cuts, shifts and counts.
 *
 * A band is a box with a diagonal strip: the cells (q, k) with q in [q_begin, q_end), k in
 * [k_begin, k_end) and lo <= k - q <= hi, both included. Every slice type is a band, and whatever
 * is cut out of a band in queries or keys, or moved, is a band again; its area takes O(1).
 * (MagiAttention's dynamic solver names a rectangle with a diagonal range; the closed form of the
 * area is ours.)
 *
 * A band is tight when no bound can move inwards without losing a cell. All functions here that
 * make a band make it tight, and say false where no cell is left. Units: tokens, up to 2^31 - 1.
 */
#ifndef FFA_MASK_BAND_H
#define FFA_MASK_BAND_H

#include "mask/normal.h"

struct band {
    int64_t q_begin, q_end;
    int64_t k_begin, k_end;
    int64_t lo, hi; /* of k - q, both included */
};

/* No bound of the diagonal; band_shrink makes it one. */
#define BAND_LO_NONE (-((int64_t)1 << 40))
#define BAND_HI_NONE ((int64_t)1 << 40)

/* Tighten in place; false: no cell, and *band is unspecified. */
bool band_shrink(struct band *band);
bool band_from_slice(struct band *out, const ffa_slice *slice);
/* The part with queries (keys) in [begin, end). out may be in. */
bool band_cut_q(struct band *out, const struct band *in, int64_t begin, int64_t end);
bool band_cut_k(struct band *out, const struct band *in, int64_t begin, int64_t end);
/* The same cells, q rows and k keys further on. */
struct band band_translate(const struct band *band, int64_t q, int64_t k);
/* Cells, exact. Any band, tight or not. */
int64_t band_area(const struct band *band);

struct bands {
    struct band *at;
    int64_t count;
    int64_t capacity;
};

/* Append one band. FFA_NOMEM leaves the list as it was. */
ffa_status bands_add(struct bands *bands, const struct band *band, ffa_error *err);
/* Append the disjoint bands of a normal form: by q_begin, then k_begin; bands overlap in queries
 * only where they have the same ones. The keys that a band's rows attend, any consecutive ones of
 * them, are one interval without a gap. On failure the list may hold some of them. */
ffa_status bands_add_normal(struct bands *bands, const struct normal *normal, ffa_error *err);
void bands_finish(struct bands *bands);
/* Of bands as bands_add_normal makes them: the first that ends behind the query row. */
int64_t bands_find(const struct bands *bands, int64_t row);

#endif
