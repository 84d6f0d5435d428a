/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensors of a session's calls, and whether results are right: the inputs of a check on the
 * host, and what the fp64 oracle makes of them, once for all configurations. Thread: one at a time.
 */
#ifndef FFA_TUNE_TUNE_CHECK_H
#define FFA_TUNE_TUNE_CHECK_H

#include "cache/tune_store.h"
#include "oracle/oracle_backward.h"
#include <ffa/mask.h>

/* Inputs first. */
enum tune_tensor {
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_DOUT,
    TENSOR_OUT,
    TENSOR_LSE,
    TENSOR_DQ,
    TENSOR_DK,
    TENSOR_DV,
    TENSORS
};

/* Of the calls of a session with a mask; 0: they have no such tensor. */
int64_t tune_tensor_bytes(const struct tune_record *record, const ffa_mask *mask,
                          enum tune_tensor tensor);
/* From one set of tensors to the next: a multiple of 256, so that each is aligned. */
int64_t tune_tensor_stride(const struct tune_record *record, const ffa_mask *mask,
                           enum tune_tensor tensor);
/* Numbers in (-2, 2), of either dtype. */
void tune_tensor_make_up(void *to, int64_t bytes, int32_t dtype, uint64_t seed);

struct tune_reference {
    ffa_mask *mask;
    void *host[TENSORS]; /* [tune_tensor_stride]: inputs, and room for the results */
    struct oracle_result forward;
    struct oracle_gradients backward;
};

/* The small ragged mask that a session's kernels are checked with; in a backward session an order
 * without lockstep gets one that has it. *out: zero, the caller's, tune_reference_finish() whether
 * or not it succeeds. Fails with FFA_NOMEM. */
ffa_status tune_reference_make(struct tune_reference *out, const struct tune_record *record,
                               bool has_lockstep, ffa_error *err);
void tune_reference_finish(struct tune_reference *reference);
/* Whether the results in reference->host are right: out and lse, in a backward session dq, dk and
 * dv. Else `reason` says in what not. */
bool tune_reference_compare(const struct tune_reference *reference,
                            const struct tune_record *record, char reason[200]);

#endif
