/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of a plan, resolved.
 */
#ifndef FFA_PARALLEL_PLAN_PARALLEL_OPTS_H
#define FFA_PARALLEL_PLAN_PARALLEL_OPTS_H

#include "base/base.h"

#include <ffa/parallel_plan.h>

/* What plans and passes take of a model. */
enum {
    PARALLEL_HEADS_MAX = 1024,
    PARALLEL_HEAD_DIM_MAX = 1024,
    PARALLEL_BEGIN_MAX = 65536,
    PARALLEL_SMS_MAX = 4096
};
/* The flags that ranks must agree about, and that are saved with a plan: the others say which rank
 * is planned, and how much of its plan is kept. */
enum { PARALLEL_FLAGS_OF_PLAN = FFA_PARALLEL_FORWARD_ONLY };

/* Whether the model of time knows more than `model`. */
static inline bool parallel_opts_have_tiles(const ffa_parallel_plan_opts *opts)
{
    return opts->forward_begin_keys || opts->backward_begin_rows || opts->window_mbytes_s;
}

/* Defaults filled in, numbers checked; opts may be NULL. Fails with FFA_INVALID and FFA_UNSUPPORTED
 * as ffa_parallel_plan_create. */
ffa_status parallel_opts_resolve(ffa_parallel_plan_opts *out, const ffa_parallel_plan_opts *opts,
                                 ffa_error *err);

#endif
