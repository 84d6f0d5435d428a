/* SPDX-License-Identifier: Apache-2.0
 *
 * The dispatch object: masks as bands, chunks, and the rank of each chunk.
 */
#ifndef FFA_PARALLEL_DISPATCH_DISPATCH_H
#define FFA_PARALLEL_DISPATCH_DISPATCH_H

#include "base/digest.h"
#include "parallel/dispatch/layout.h"

#include <ffa/parallel_dispatch.h>

/* Limits: ranks, masks of one dispatch; cells of all chunks together (INT64_MAX / 2). */
enum { RANKS_MAX = 4096, DISPATCH_MASKS_MAX = 64 };
/* Rows and keys of the tiles that `visited` counts in. */
enum { VISITED_TILE = 128 };

struct ffa_dispatch {
    ffa_topology topology; /* ranks_per_node resolved */
    struct layout layout;  /* of the queries, and of the keys that live with them */
    struct layout keys;    /* of other keys */
    int32_t key_mode;      /* ffa_dispatch_keys */
    int32_t pad_;
    struct bands *lists; /* [list_count]: one a mask and head */
    int64_t list_count;
    struct needs needs; /* keys each chunk attends, over all lists */
    int64_t *area;      /* [chunks] */
    int64_t *visited;   /* [chunks] */
    int64_t *load;      /* area or visited */
    int32_t algorithm;  /* that made it */
    double swap_gain;
    char digest[DIGEST_TEXT];
    int32_t references; /* atomic operations only */
};

/* FFA_INVALID, naming the field; ranks_per_node becomes rank_count where it is 0 or more. */
ffa_status topology_resolve(ffa_topology *out, const ffa_topology *topology, ffa_error *err);
/* Where keys live. */
const struct layout *dispatch_key_layout(const ffa_dispatch *dispatch);

#endif
