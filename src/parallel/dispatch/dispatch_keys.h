/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of keys that live apart from queries (FFA_KEYS_DISPATCHED): chunks of their own, each on a
 * rank that attends much of it.
 */
#ifndef FFA_PARALLEL_DISPATCH_DISPATCH_KEYS_H
#define FFA_PARALLEL_DISPATCH_DISPATCH_KEYS_H

#include "parallel/dispatch/layout.h"

struct key_dispatch {
    const struct layout *queries; /* solved */
    const struct needs *needs;    /* of the query chunks */
    int64_t key_tokens;
    int64_t chunk_tokens; /* of a key chunk; 0: chosen */
};

/* *out is to be freed by layout_finish whether or not this succeeds. Fails with FFA_UNSUPPORTED:
 * more than CHUNKS_MAX chunks; FFA_NOMEM. */
ffa_status key_dispatch_solve(struct layout *out, const struct key_dispatch *in, ffa_error *err);

#endif
