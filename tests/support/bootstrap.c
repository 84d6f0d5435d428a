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

struct bootstrap {
    int32_t rank_count;
    _Atomic uint64_t turn[BOOTSTRAP_RANKS];
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

int bootstrap_allgather(void *user, const void *mine, void *out, size_t bytes)
{
    struct bootstrap_end *end = user;
    struct bootstrap *all = end->all;
    const uint64_t place = end->turn & 1;

    if (bytes > BOOTSTRAP_BYTES || (end->fails_from && end->turn + 1 >= (uint64_t)end->fails_from))
        return 1;
    memcpy(all->places[place][end->rank], mine, bytes);
    atomic_store(&all->turn[end->rank], ++end->turn);
    for (int32_t r = 0; r < all->rank_count; r++) {
        for (int waited = 0; atomic_load(&all->turn[r]) < end->turn; waited++) {
            if (waited > 10000)
                return 1;
            usleep(200);
        }
        memcpy((char *)out + (size_t)r * bytes, all->places[place][r], bytes);
    }
    return 0;
}
