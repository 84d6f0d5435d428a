/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the ranks of `ffa run` meet: threads of one process, or processes that share a folder. The
 * bootstrap of their communicator, and how they start and take time together.
 */
#ifndef FFA_CLI_RUN_MEETING_H
#define FFA_CLI_RUN_MEETING_H

#include <ffa/ffa.h>

struct run_meeting {
    int32_t rank_count; /* at most 256 */
    int64_t lag_us;     /* between the first and the last rank that a gather returns to, at most */
    /* all [ranks][bytes], in the order of ranks, on every rank. Fails once a rank has given up. */
    ffa_status (*gather)(struct run_meeting *meeting, int32_t rank, const void *mine, void *all,
                         size_t bytes, ffa_error *err);
    /* What each rank gives into at [ranks], of bytes [ranks]; NULL: not read here. All ranks call
     * it. NULL of threads, whose ranks see each other's memory. */
    ffa_status (*give)(struct run_meeting *meeting, int32_t rank, const void *mine, void *const *at,
                       const size_t *bytes, ffa_error *err);
    /* Nobody waits for this rank any longer, and who comes learns why. */
    void (*give_up)(struct run_meeting *meeting, const ffa_error *why);
};

/* Of threads of this process; NULL: no memory. */
struct run_meeting *run_threads_create(int32_t ranks);
void run_threads_destroy(struct run_meeting *meeting);

/* All ranks return at one time, which is *since_us of cli_clock_us. */
ffa_status run_meeting_start(struct run_meeting *meeting, int32_t rank, int64_t *since_us,
                             ffa_error *err);
/* *value: the largest of all ranks'. */
ffa_status run_meeting_most(struct run_meeting *meeting, int32_t rank, int64_t *value,
                            ffa_error *err);

#endif
