/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of one launch that find each other through a folder, and hand bytes to each other: the
 * bootstrap of a communicator (ffa_comm_allgather) without a store, MPI or a port.
 */
#ifndef FFA_CLI_RENDEZVOUS_H
#define FFA_CLI_RENDEZVOUS_H

#include <ffa/comm.h>
#include <stdbool.h>

enum { RENDEZVOUS_RANKS_MAX = 256, RENDEZVOUS_ID_BYTES = 96 };

/* Which process of a launch this is. */
struct rendezvous_place {
    int32_t rank, rank_count;
    int32_t local;                /* among the processes of its host: its GPU */
    char id[RENDEZVOUS_ID_BYTES]; /* of the launch, for names of files; "": not known */
    char from[64];                /* "--rank", "RANK, WORLD_SIZE", ... */
};

/* The value of a variable, or NULL. */
typedef const char *(*rendezvous_variable)(void *user, const char *name);

/* The variables in which a launcher says which process this is. The id is one or two of them. */
struct launcher {
    const char *rank, *count;
    const char *local, *local_count; /* the same among the processes of its host */
    const char *id, *more;
};
/* The innermost launcher of which rank and count are set: torchrun, mpirun, PMI, srun. Where none
 * is, one of which either is, as a batch script has a rank; else NULL. Empty is not set. */
const struct launcher *rendezvous_launcher(rendezvous_variable get, void *user);
/* Of rank and count the one that is set, and the one that is not; *unset NULL: both are set. */
void rendezvous_half(const struct launcher *launcher, rendezvous_variable get, void *user,
                     const char **set, const char **unset);

/*
 * rank, rank_count: as given, rank -1: not given. Then the variables of the innermost launcher:
 * torchrun, mpirun, PMI, srun; the local rank is theirs, too, or the rank. Fails with FFA_INVALID
 * where a rank is not below its count, a variable is no number, or not both are said. On failure,
 * too, out->from is set where a launcher has set both variables: run_process_find relies on it.
 */
ffa_status rendezvous_find(struct rendezvous_place *out, int32_t rank, int32_t rank_count,
                           rendezvous_variable get, void *user, ffa_error *err);

struct rendezvous;

/*
 * Meet the other ranks in a folder, which is created where it is missing. Blocks until all have
 * come, or for timeout_ms: FFA_TIMEOUT, naming who is missing. What an earlier launch left there is
 * never taken for this one. At one time one launch may use a folder, or several with different ids.
 * Also fails with FFA_IO, FFA_INVALID (too long a path) and FFA_NOMEM. *out: caller's,
 * rendezvous_close().
 */
ffa_status rendezvous_open(struct rendezvous **out, const char *folder,
                           const struct rendezvous_place *place, int64_t timeout_ms,
                           ffa_error *err);
/* The last call; needs no other rank. Rank 0 waits for the others a little, to remove all files. */
void rendezvous_close(struct rendezvous *meeting);

/* An ffa_comm_allgather; user: the struct rendezvous. Anything but 0: rendezvous_error says why, as
 * with rendezvous_open. */
int rendezvous_allgather(void *user, const void *mine, void *all, size_t bytes);
/* The same with bytes [rank_count] of each rank, into at [rank_count]; where at is NULL, this rank
 * needs them not, and waits for them. All ranks give the same bytes. */
int rendezvous_gather(struct rendezvous *meeting, const void *mine, void *const *at,
                      const size_t *bytes);
const ffa_error *rendezvous_error(const struct rendezvous *meeting);

/*
 * Say how this rank ended: by a code of the caller, 0: well, and why (NULL: nothing to say). Who
 * waits for it in a gather, or comes to one later, then fails with its status and "rank R gave up:
 * ...". Only the first call counts.
 */
void rendezvous_end(struct rendezvous *meeting, int32_t code, const ffa_error *why);
/*
 * rendezvous_end(*code, NULL), then wait until all ranks have said how they ended, for as long as
 * they run. *code: the same on all ranks, 0 or that of the lowest rank that failed; of one whose
 * group was broken (FFA_COMM) only where no other one failed. FFA_COMM: a rank died, *code is that
 * of the rest.
 */
ffa_status rendezvous_agree(struct rendezvous *meeting, int32_t *code, ffa_error *err);

/* The lowest other rank that has died, or that has said that it failed; *err: which, and why. -1:
 * none. Never blocks. Thread: any, between open and close. */
int32_t rendezvous_lost(const struct rendezvous *meeting, ffa_error *err);

#endif
