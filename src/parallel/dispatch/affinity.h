/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks to ranks so that ranks receive few keys, the largest load staying under a cap.
 *
 * Traffic is modelled on the grid of chunks: what a chunk attends of each key chunk, in tokens; a
 * rank receives of a key chunk it does not own what the greediest of its chunks attends. That is
 * exact where the wants of a rank's chunks nest. A token that crosses the network counts
 * NETWORK_COST times one that moves inside a node, once a node.
 *
 * Chunks are placed longest first, each on the rank (then the node) that holds most of what it
 * attends, as long as the rank's remaining chunks still fit under the cap; swaps then repair the
 * loads, and further swaps lower the traffic. Everything is bounded by counts, nothing by a clock,
 * so that every rank computes the same.
 */
#ifndef FFA_PARALLEL_DISPATCH_AFFINITY_H
#define FFA_PARALLEL_DISPATCH_AFFINITY_H

#include "parallel/dispatch/needs.h"
#include "parallel/dispatch/solve.h"

struct affinity_input {
    struct solve_input solve;
    struct parts chunks;       /* of queries and keys */
    const struct needs *needs; /* of chunks */
    int32_t ranks_per_node;
    int32_t slack_permille;
    int64_t swap_max;
};

struct affinity_result {
    bool is_min_heap; /* nothing better was found, or the mask is too dense to gain */
    double swap_gain; /* share of the modelled traffic that swaps removed */
};

ffa_status solve_affinity(int32_t *rank_of, struct affinity_result *result,
                          const struct affinity_input *in, ffa_error *err);

#endif
