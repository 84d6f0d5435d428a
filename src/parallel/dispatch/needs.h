/* SPDX-License-Identifier: Apache-2.0
 *
 * Which keys each part of the query axis attends: for each part, disjoint ascending ranges.
 */
#ifndef FFA_PARALLEL_DISPATCH_NEEDS_H
#define FFA_PARALLEL_DISPATCH_NEEDS_H

#include "mask/band.h"

struct range {
    int64_t begin, end;
};

/* Part p of the query axis is [at[p], at[p + 1]). */
struct parts {
    const int64_t *at;
    int64_t count;
};

/* Part p attends ranges[begin[p] .. begin[p + 1]), ascending, apart (touching ones are joined). */
struct needs {
    int64_t *begin;
    struct range *ranges;
    int64_t count; /* parts */
};

/* The part that holds `row`. */
int64_t parts_find(const struct parts *parts, int64_t row);

/* From bands as bands_add_normal makes them, one list of bands for each mask and head; the union.
 * lists [list_count]. */
ffa_status needs_build(struct needs *out, const struct bands *lists, int64_t list_count,
                       const struct parts *parts, ffa_error *err);
void needs_finish(struct needs *needs);

/* Add weight times the attended cells of each part; false where a sum exceeds 2^62. */
bool needs_add_area(int64_t *area, const struct bands *bands, const struct parts *parts,
                    int64_t weight);

/* Sort ranges and join those that overlap or touch; how many are left. */
int64_t ranges_join(struct range *ranges, int64_t count);
/* a without b, both ascending and apart, into out [a_count + b_count]; how many. */
int64_t ranges_without(struct range *out, const struct range *a, int64_t a_count,
                       const struct range *b, int64_t b_count);

#endif
