/* SPDX-License-Identifier: Apache-2.0
 *
 * One modelled world: a mask in bands, ranks, and what compute and transfers cost there.
 */
#ifndef FFA_SIMULATE_PRICES_H
#define FFA_SIMULATE_PRICES_H

#include "mask/band.h"
#include "parallel/plan/rank_tiles.h"

#include <ffa/simulate.h>

struct sim {
    const ffa_mask *mask;
    ffa_topology topology;       /* resolved */
    ffa_parallel_plan_opts opts; /* resolved: the plan uses all of it, other methods the model */
    ffa_sim_opts given;          /* resolved but for the model */
    struct bands *lists;         /* [list_count] */
    int32_t list_count;
    int64_t tokens;
    int64_t cells;           /* that one rank alone visits */
    struct rank_tiles whole; /* of all rows; none where they are not looked at */
    int64_t alone_ns[2];     /* of one rank alone: forward, backward */
};

/* Nanoseconds of a rank's compute, with one launch; 0 for no cells. Cells are those visited, and
 * price_begin_cells(). */
int64_t price_compute_ns(const struct sim *sim, int64_t cells, bool is_backward);
/* What tiles cost besides their cells, as cells: of `rows` query rows, or backward of keys. */
int64_t price_begin_cells(const struct sim *sim, int64_t rows, bool is_backward);
/* Of a forward launch over all rows of a rank, what its tiles take beyond the visited cells. */
int64_t price_tiles_ns(const struct sim *sim, const struct rank_tiles *tiles, int64_t visited);
/* The tiles of a rank's rows; none where they are not looked at. */
struct rank_tiles price_tiles(const struct sim *sim, const struct layout *rows, int32_t rank);
/* Nanoseconds of bytes into a rank, over the links of both classes at once. */
int64_t price_wire_ns(const struct sim *sim, int64_t node_bytes, int64_t network_bytes);
/* Nanoseconds before a transfer begins: over the network, or inside a node. */
int64_t price_latency_ns(const struct sim *sim, bool is_network);
/* Bytes of a row of k with its row of v, of `element` bytes an element. */
int64_t price_key_bytes(const struct sim *sim, int64_t element);

/* Fill a result of one pass: its time, its compute, and the efficiency that follows. */
void sim_set_pass(const struct sim *sim, ffa_sim_pass *out, int64_t ns, int64_t compute_ns,
                  bool is_backward);
/* The method cannot be used here: clears the result and keeps the reason. */
void sim_refuse(ffa_sim_result *out, const char *format, ...) FFA_PRINTF(2, 3);

#endif
