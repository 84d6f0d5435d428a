/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own passes in a modelled world.
 */
#ifndef FFA_SIMULATE_SIMULATE_PLAN_H
#define FFA_SIMULATE_SIMULATE_PLAN_H

#include "simulate/prices.h"

/* plan: every receiver takes rows from their owner; relayed: rows cross the network once a node.
 * Sets sim->given.chunk_tokens to the largest chunk. */
ffa_status sim_plan(ffa_sim_result *plan, ffa_sim_result *relayed, struct sim *sim, ffa_error *err);

#endif
