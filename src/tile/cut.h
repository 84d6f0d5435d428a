/* SPDX-License-Identifier: Apache-2.0
 *
 * Where query tiles begin: multiples of tile_size, or cut at document starts where that is cheaper.
 *
 * A document ends between two rows where the first attends a key that the second does not, unless
 * both attend the key after it, as inside a sliding window. Tiles that are cut at all document ends
 * keep what is not finite inside its document: rows of a tile share what the tile computes.
 */
#ifndef FFA_TILE_CUT_H
#define FFA_TILE_CUT_H

#include "tile/sweep.h"

struct cut_list {
    int32_t *begins; /* ascending, from 0; a tile ends where the next begins */
    int64_t count;
};

struct cut_shape {
    int32_t rows; /* of the list: seqlen_q */
    int32_t tile_size;
    enum tile_cuts cuts;
};

ffa_status cut_build(struct cut_list *out, struct sweep_work *work, const struct cut_shape *shape,
                     ffa_error *err);
void cut_finish(struct cut_list *rows);

#endif
