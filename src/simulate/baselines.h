/* SPDX-License-Identifier: Apache-2.0
 *
 * What others do on the same mask: each fills one result, or says why it cannot be used.
 */
#ifndef FFA_SIMULATE_BASELINES_H
#define FFA_SIMULATE_BASELINES_H

#include "simulate/prices.h"

/* Every rank gathers all keys, then computes. (Llama 3, 2024) */
ffa_status sim_all_gather(ffa_sim_result *out, const struct sim *sim, ffa_error *err);
/* Keys go round the ranks, one step a part of the keys; zigzag: a rank has one part from the front
 * and one from the back. (Ring attention, Liu et al. 2023) */
ffa_status sim_ring(ffa_sim_result *out, const struct sim *sim, bool is_zigzag, ffa_error *err);
/* Ranks exchange tokens for heads, compute whole heads, and exchange back. (DeepSpeed-Ulysses,
 * Jacobs et al. 2023) */
ffa_status sim_ulysses(ffa_sim_result *out, const struct sim *sim, ffa_error *err);

#endif
