/* SPDX-License-Identifier: Apache-2.0
 *
 * Where tiles begin: at multiples of the tile's size, or at document starts where that visits fewer
 * blocks. Rows and keys here are those of a forward plan; a backward plan is cut by the transposed
 * normal form, with keys as rows.
 *
 * A document ends between two rows where the first attends a key that the second does not, unless
 * both attend the key after it, as inside a sliding window. Rows of a tile share what the tile
 * computes, so that an infinity or a NaN of one row reaches the others. Tiles that are cut at all
 * document ends keep it inside its document.
 */
#ifndef FFA_TILE_CUT_H
#define FFA_TILE_CUT_H

#include "tile/sweep.h"

struct cut_list {
    int32_t *begins; /* ascending, from 0; a tile ends where the next begins */
    int64_t count;
};

struct cut_shape {
    int32_t rows; /* of the list: the owned axis; 0 gives no tiles */
    int32_t tile_size;
    enum tile_cuts cuts;
    const struct normal *normal; /* where documents end; NULL: work->normal, which may be cut at
                                  * the ends of stages */
    const int32_t *marks;        /* [mark_count] rows that are cut at in any case, ascending */
    int64_t mark_count;
};

/* The cuts for work->normal, for cut_finish. work has the size of blocks, and scratch. Fails with
 * FFA_NOMEM. */
ffa_status cut_build(struct cut_list *out, struct sweep_work *work, const struct cut_shape *shape,
                     ffa_error *err);
void cut_finish(struct cut_list *cuts);

#endif
