/* SPDX-License-Identifier: Apache-2.0
 *
 * An ffa_comm_allgather for ranks that are threads of this process, or processes that it forks.
 */
#ifndef TESTS_BOOTSTRAP_H
#define TESTS_BOOTSTRAP_H

#include <ffa/comm.h>
#include <stddef.h>
#include <stdint.h>

enum { BOOTSTRAP_RANKS = 16, BOOTSTRAP_BYTES = 4096 };

struct bootstrap; /* in memory that forked processes share */

/* One rank's end: `user` of bootstrap_allgather. */
struct bootstrap_end {
    struct bootstrap *all;
    int32_t rank;
    uint64_t turn;  /* 0 at first */
    int fails_from; /* the gather, from 1, from which on it fails; 0: never */
};

struct bootstrap *bootstrap_new(int32_t rank_count);
void bootstrap_free(struct bootstrap *all);
/* The rank gathers no more, ever: nobody waits for it from now on. */
void bootstrap_leave(const struct bootstrap_end *end);
/* Where it fails the rank has left. It fails at once where another rank has left, and after 40 s
 * where one does not come. */
int bootstrap_allgather(void *user, const void *mine, void *all, size_t bytes);
/* ffa_comm_create_peer with this rank, this gather, and as many ranks as it has. Where it fails the
 * rank has left. */
ffa_status bootstrap_join(ffa_comm **out, ffa_context *context, struct bootstrap_end *end,
                          ffa_peer_opts *opts, ffa_error *err);

#endif
