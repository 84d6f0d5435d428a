/* SPDX-License-Identifier: Apache-2.0
 *
 * What the modelled methods share: the mask in bands, and the prices.
 */
#ifndef FFA_SIMULATE_SIMULATE_H
#define FFA_SIMULATE_SIMULATE_H

#include "parallel/plan/stages.h"

#include <ffa/simulate.h>

struct sim {
    const ffa_mask *mask;
    ffa_topology topology;       /* resolved */
    ffa_parallel_plan_opts opts; /* resolved: the model is what is used of it, but by the plan */
    ffa_sim_opts given;          /* resolved but for the model */
    struct bands *lists;         /* [list_count] */
    int32_t list_count;
    int64_t tokens;
    int64_t cells; /* visited by one rank alone */
};

/* Times of a pass; `backward` prices it. */
int64_t sim_compute_ns(const struct sim *sim, int64_t cells, bool is_backward);
/* Bytes over the links of both classes at once. */
int64_t sim_wire_ns(const struct sim *sim, int64_t node_bytes, int64_t network_bytes);
/* Of a transfer that crosses the network, or not. */
int64_t sim_latency_ns(const struct sim *sim, bool is_network);
/* Bytes of a key with its value, of `element` bytes an element. */
int64_t sim_key_bytes(const struct sim *sim, int64_t element);
/* Efficiency, too. */
void sim_set_pass(const struct sim *sim, ffa_sim_pass *out, int64_t ns, int64_t compute_ns,
                  bool is_backward);
void sim_refuse(ffa_sim_result *out, const char *format, ...) FFA_PRINTF(2, 3);

ffa_status sim_plan(ffa_sim_result *plan, ffa_sim_result *relayed, struct sim *sim, ffa_error *err);
ffa_status sim_all_gather(ffa_sim_result *out, const struct sim *sim, ffa_error *err);
ffa_status sim_ring(ffa_sim_result *out, const struct sim *sim, bool is_zigzag, ffa_error *err);
ffa_status sim_ulysses(ffa_sim_result *out, const struct sim *sim, ffa_error *err);

#endif
