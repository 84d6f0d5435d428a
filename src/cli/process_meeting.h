/* SPDX-License-Identifier: Apache-2.0
 *
 * A meeting of ranks that are processes: over a rendezvous in a folder. `ffa run` and the
 * benchmark of passes use it.
 */
#ifndef FFA_CLI_PROCESS_MEETING_H
#define FFA_CLI_PROCESS_MEETING_H

#include "cli/rendezvous.h"
#include "cli/run_meeting.h"

struct process_meeting {
    struct run_meeting meeting; /* first */
    struct rendezvous *rendezvous;
    int (*code_of)(ffa_status status); /* what rendezvous_end says of a rank that gives up */
};

/* Meet the other processes: blocks until all have come, or for timeout_ms, which later gathers take
 * as well. Fails as rendezvous_open. *out: caller's, process_meeting_close(). */
ffa_status process_meeting_open(struct process_meeting **out, const char *folder,
                                const struct rendezvous_place *place, int64_t timeout_ms,
                                int (*code_of)(ffa_status status), ffa_error *err);
/* The last call; needs no other rank. NULL is allowed. */
void process_meeting_close(struct process_meeting *meeting);

/* The GPU of a local rank: that ordinal, modulo the number of GPUs. It is tried first, as to open
 * another one only to count them costs memory there. 0 where nothing can be opened: who opens it
 * hears why. cudart: the file of the CUDA runtime, or NULL. */
int process_meeting_ordinal(const char *cudart, int32_t local);

/* How ranks share GPUs, whatever names processes know them by: *gpus there are of all ranks, and
 * *sharing, the most ranks of one. Each rank gives the context of its own GPU, all call it. */
ffa_status process_meeting_share_out(struct process_meeting *meeting, int32_t rank,
                                     ffa_context *context, int32_t *gpus, int32_t *sharing,
                                     ffa_error *err);

#endif
