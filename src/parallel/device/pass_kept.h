/* SPDX-License-Identifier: Apache-2.0
 *
 * Received keys that a rank keeps from a forward pass for the backward one of the same layer, which
 * then brings none. They lie as in the forward pass's key window, behind own keys.
 */
#ifndef FFA_PARALLEL_DEVICE_PASS_KEPT_H
#define FFA_PARALLEL_DEVICE_PASS_KEPT_H

#include "parallel/device/pass_tables.h"
#include "row_copy.args.h"

struct pass_kept {
    int64_t rows;         /* that are kept */
    struct row_run *runs; /* from kept rows to all received rows of the backward key window */
    int32_t run_count;
    int64_t runs_at; /* in the buffer of the pass */
};

/* Of passes that are not in rounds. For pass_kept_finish, whether or not it succeeds. FFA_NOMEM,
 * FFA_UNSUPPORTED. */
ffa_status pass_kept_build(struct pass_kept *out, const struct pass_moves *forward,
                           const struct pass_moves *backward, ffa_error *err);
void pass_kept_finish(struct pass_kept *kept);

#endif
