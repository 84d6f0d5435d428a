/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward, specialised consumers and pairs: which piece of a block's dQ each warpgroup
 * has, for what makes it (backward_specialised.h, backward_pairs.h), loads its K
 * (backward_cluster.h) and sends it (backward_dq.h).
 */
#ifndef FFA_BACKWARD_PIECES_H
#define FFA_BACKWARD_PIECES_H

#include "backward_layout.h"

namespace {

/* Piece w is that of warpgroup w; a pair's is that of the warpgroup of dQ. r: the CTA's rank.
 *
 *                       panels  CTAs  piece 0                            piece 1
 *     specialised            1     1  -                                  panel 0
 *                            2     1  panel 0                            panel 1
 *                            3     2  half of panel 1, from column 32 r  panel 2 r
 *                            4     2  panel 2 r                          panel 2 r + 1
 *     pair                   2     2  panel r                            -
 *
 * Of three panels the first warpgroups have the halves, as they have the exponentials, too. */
constexpr bool p_has_dq = panels > 1;
constexpr int p_columns = panels == 3 ? 32 : 64;
constexpr int first_piece = is_specialised && !p_has_dq ? 1 : 0;
static_assert(!is_specialised || panels <= 2 * cluster, "a panel for each warpgroup");

/* The panel that piece w is of. */
FFA_DEVICE int piece_panel(int w)
{
    if constexpr (cluster == 1) {
        return w % panels;
    } else if constexpr (is_pair) {
        return (int)cluster_rank();
    } else {
        const int rank = (int)cluster_rank();

        return panels == 4 ? 2 * rank + w : w == 0 ? 1 : 2 * rank;
    }
}

/* The first column of that panel that is the piece's. */
FFA_DEVICE int piece_column(int w)
{
    return panels == 3 && w == 0 ? (int)cluster_rank() * p_columns : 0;
}

FFA_DEVICE piece_shape specialised_shape(int w)
{
    return { 0, piece_panel(w), 64, piece_column(w), w == 0 ? p_columns : 64 };
}

FFA_DEVICE bool is_half_panel(int w)
{
    return p_columns < 64 && w == 0;
}

/* The sender adds half a panel to the workspace: it is one run of each group of rows. */
FFA_DEVICE void half_panel_add(float *to, uint32_t from, int bytes)
{
    constexpr int run = BACKWARD_DQ_ROWS * p_columns * 4;

    for (int at = 0; at < bytes; at += run)
        bulk_reduce_add_f32(to + at / run * BACKWARD_DQ_ROWS * 64, from + at, run);
}

}

#endif
