/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of a group cast, and of the reduce that is its transpose.
 */
#ifndef FFA_PARALLEL_RUN_GROUP_H
#define FFA_PARALLEL_RUN_GROUP_H

#include "base/base.h"

#include <ffa/group.h>

enum { GROUP_RANKS_MAX = 4096 };

struct group_table {
    int64_t *begin; /* [ranks + 1] */
    ffa_group_copy *copies;
    int64_t count, capacity;
};

struct ffa_group {
    int32_t rank_count;
    ffa_group_size *sizes;              /* [ranks] */
    struct group_table receives, sends; /* by rank */
};

#endif
