/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of the sequence that lie packed in a buffer: what a phase works on.
 */
#ifndef FFA_PARALLEL_PLAN_SPANS_H
#define FFA_PARALLEL_PLAN_SPANS_H

#include "mask/band.h"

/* Keys [begin, end) of the sequence, in a buffer that holds them from `row` on. */
struct span {
    int64_t begin, end, row;
};

/* Ascending and apart, and packed: rows go on from one span to the next. */
struct spans {
    struct span *at;
    int64_t count;
};

/* Append, with room for one more; keys next to each other in the sequence are one span. */
void spans_add(struct spans *spans, struct span span);
/* Append the parts of the band whose keys lie in spans, keys moved to their rows. The keys that
 * every row attends are one part, however many spans they are in. */
ffa_status spans_cut(struct bands *out, const struct band *band, const struct spans *spans,
                     ffa_error *err);

#endif
