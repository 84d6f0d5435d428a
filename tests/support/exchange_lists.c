/* SPDX-License-Identifier: Apache-2.0
 *
 * Random lists of groups: see exchange_ranks.h.
 */
#include "support/exchange_ranks.h"

#include <check.h>

static void draw_input(struct rank_lists *lists, struct rng *rng, int32_t count)
{
    lists->input_count = rng_range(rng, 0, 3) ? rng_range(rng, 1, PIECES) : 0;
    for (int64_t i = 0; i < lists->input_count; i++) {
        int64_t at = lists->dst_begin[i];

        lists->input_rows[i] = rng_range(rng, 0, 4) ? rng_range(rng, 1, PIECE_ROWS) : 0;
        for (int32_t r = 0; r < count; r++)
            if (rng_range(rng, 0, 1))
                lists->dst[at++] = r;
        lists->dst_begin[i + 1] = at;
    }
}

int64_t rows_between(const struct rank_lists *from, int32_t to)
{
    int64_t rows = 0;

    for (int64_t i = 0; i < from->input_count; i++)
        for (int64_t d = from->dst_begin[i]; d < from->dst_begin[i + 1]; d++)
            rows += from->dst[d] == to ? from->input_rows[i] : 0;
    return rows;
}

/* What every rank sends, in pieces of its own, in any order of ranks. */
static void draw_output(struct rank_lists *all_lists, struct rng *rng, int32_t count, int32_t rank)
{
    struct rank_lists *lists = &all_lists[rank];
    int64_t left[EXCHANGE_RANKS], all = 0;

    for (int32_t r = 0; r < count; r++)
        all += left[r] = rows_between(&all_lists[r], rank);
    while (all > 0) {
        const int32_t r = (int32_t)rng_range(rng, 0, count - 1);
        const int64_t rows = left[r] ? rng_range(rng, 1, left[r]) : 0;

        if (rows == 0)
            continue;
        lists->src[lists->output_count] = r;
        lists->output_rows[lists->output_count++] = rows;
        left[r] -= rows;
        all -= rows;
    }
}

ffa_group *lists_group(struct rank_lists *lists, struct rng *rng, int32_t count)
{
    ffa_group_lists at[EXCHANGE_RANKS];
    ffa_error err = { FFA_OK, 0, "" };
    ffa_group *group;

    for (int32_t r = 0; r < count; r++)
        draw_input(&lists[r], rng, count);
    for (int32_t r = 0; r < count; r++) {
        struct rank_lists *l = &lists[r];

        draw_output(lists, rng, count, r);
        at[r] = (ffa_group_lists){ l->input_rows, l->dst_begin,   l->dst,         l->output_rows,
                                   l->src,        l->input_count, l->output_count };
    }
    ck_assert_msg(ffa_group_create(&group, at, count, &err) == FFA_OK, "%s", err.message);
    return group;
}
