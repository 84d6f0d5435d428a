/* SPDX-License-Identifier: Apache-2.0
 *
 * A bootstrap in shared memory: see bootstrap.h. Two places take turns. A rank writes to a place
 * again only after all ranks have entered the gather in between, when nobody reads it any more.
 */
#include "support/bootstrap.h"

#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* 40 s at least: ranks may share a busy machine. Less than the time of any test. */
enum { WAIT_US = 200, WAITS = 40 * 1000000 / WAIT_US };

struct bootstrap {
    int32_t rank_count;
    _Atomic uint64_t turn[BOOTSTRAP_RANKS];
    _Atomic uint64_t left[BOOTSTRAP_RANKS]; /* the first gather that a rank is not in; 0: none */
    char places[2][BOOTSTRAP_RANKS][BOOTSTRAP_BYTES];
};

struct bootstrap *bootstrap_new(int32_t rank_count)
{
    struct bootstrap *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(all, MAP_FAILED);
    ck_assert_int_le(rank_count, BOOTSTRAP_RANKS);
    all->rank_count = rank_count;
    return all;
}

void bootstrap_free(struct bootstrap *all)
{
    munmap(all, sizeof *all);
}

void bootstrap_leave(const struct bootstrap_end *end)
{
    atomic_store(&end->all->left[end->rank], end->turn + 1);
}

int bootstrap_allgather(void *user, const void *mine, void *out, size_t bytes)
{
    struct bootstrap_end *end = user;
    struct bootstrap *all = end->all;
    const uint64_t place = end->turn & 1;

    if (bytes > BOOTSTRAP_BYTES ||
        (end->fails_from && end->turn + 1 >= (uint64_t)end->fails_from)) {
        bootstrap_leave(end);
        return 1;
    }
    memcpy(all->places[place][end->rank], mine, bytes);
    atomic_store(&all->turn[end->rank], ++end->turn);
    for (int32_t r = 0; r < all->rank_count; r++) {
        for (int waited = 0; atomic_load(&all->turn[r]) < end->turn; waited++) {
            const uint64_t left = atomic_load(&all->left[r]);

            if (waited > WAITS || (left && left <= end->turn)) {
                bootstrap_leave(end);
                return 1;
            }
            usleep(WAIT_US);
        }
        memcpy((char *)out + (size_t)r * bytes, all->places[place][r], bytes);
    }
    return 0;
}

ffa_status bootstrap_join(ffa_comm **out, ffa_context *context, struct bootstrap_end *end,
                          ffa_peer_opts *opts, ffa_error *err)
{
    ffa_status rc;

    opts->rank = end->rank;
    opts->rank_count = end->all->rank_count;
    opts->allgather = bootstrap_allgather;
    opts->user = end;
    rc = ffa_comm_create_peer(out, context, opts, err);
    if (rc != FFA_OK)
        bootstrap_leave(end);
    return rc;
}
