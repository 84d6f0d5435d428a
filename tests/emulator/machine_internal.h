/* SPDX-License-Identifier: Apache-2.0
 *
 * What machine.c (threads), clock.c (what they know of each other's writes) and engine.c (copies
 * and products) share.
 */
#ifndef FFA_EMULATOR_MACHINE_INTERNAL_H
#define FFA_EMULATOR_MACHINE_INTERNAL_H

#include "machine.h"

#include <setjmp.h>
#include <ucontext.h>

enum {
    MAX_THREADS = 512,
    MAX_WARPS = MAX_THREADS / 32,
    MAX_WARPGROUPS = MAX_THREADS / 128,
    MAX_CLUSTER_THREADS = EMULATOR_CLUSTER * MAX_THREADS,
    NAMED_BARRIERS = 16,
    /* Where a block's shared memory begins in the window: aligned no better than promised. */
    SHARED_WINDOW = 1040,
    GRANULE = 16,
    MAX_MBARRIERS = 256, /* of a block */
    MAX_PRODUCTS = 256,  /* of a warpgroup, issued and not done */
    MAX_GROUPS = 8,
    MAX_PENDING = 4096 /* copies, reductions and asynchronous stores */
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EMULATOR_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EMULATOR_VECTORS
#endif

/* ---- what is known of writes (clock.c) ---- */

/* Not changed while it has more users than one. */
struct clock {
    uint64_t id; /* of its content */
    int users;
    struct clock *next;
    uint32_t at[MAX_CLUSTER_THREADS]; /* epochs */
};

struct knowledge {
    struct clock *seen, *fenced;
};

struct write {
    uint32_t epoch;
    int thread; /* in clocks */
};

struct granule {
    char bytes[GRANULE]; /* as the last write left it */
    struct write writes[MAX_WARPGROUPS];
};

/* The threads of a warpgroup, added one by one: what all of them know fenced. */
struct fenced_of_threads {
    struct clock *all, *run;
    int run_threads, first;
    uint32_t first_epoch;
};

enum waits_for {
    FOR_ITS_TURN,
    FOR_WARP,
    FOR_NAMED_BARRIER,
    FOR_MBARRIER,
    FOR_WGMMA,
    FOR_CLUSTER,
    FOR_NOTHING_ANY_MORE
};

/* A lane's part of an m16n8k16. */
struct mma {
    float *d;
    const uint32_t *a, *b;
};

struct fiber {
    jmp_buf at;
    char *stack;
    struct block *block;
    int thread;
    int in_clocks; /* its index there: threads of the cluster's blocks in order of their ranks */
    bool is_started;
    enum waits_for waits_for;
    uint32_t bar, parity; /* FOR_MBARRIER; FOR_NAMED_BARRIER: its id */
    uint32_t meetings;    /* of its warp */
    uint32_t product;     /* wgmma: issued, and as of each commit; FOR_WGMMA: needed */
    uint32_t groups, group_end[MAX_GROUPS];
    uint32_t needed;
    uint32_t bulk_groups; /* commits of bulk reductions */
    struct mma *mma;
    struct knowledge knows;       /* of other threads */
    uint32_t epoch, fenced_epoch; /* of its own writes: the last, the last fenced */
    bool has_written;             /* in this epoch, which ends with a release or a fence */
};

struct warp {
    uint32_t ready; /* lanes that can run */
    int arrived;
    const char *what;
    uint64_t words[2][32];
};

struct named_barrier {
    int arrived, threads;
};

/* Products of a warpgroup, numbered from 0; slot: number % MAX_PRODUCTS. */
struct warpgroup {
    uint32_t done;
    uint32_t waited; /* up to this number somebody waits: done from this turn on */
    uint64_t from;
    struct product {
        struct emulator_wgmma op;
        int arrived; /* threads that issued it */
        struct fenced_of_threads threads;
        struct clock *fenced; /* what it may read, once all have arrived */
        float *d[128];
        uint32_t a[128][4];
    } products[MAX_PRODUCTS];
};

struct block {
    int index;           /* in the grid; -1: none */
    int rank;            /* in the cluster, whose blocks lie side by side */
    int alive;           /* threads */
    int cluster_arrived; /* rank 0: threads that wait for those of all blocks */
    struct fiber fibers[MAX_THREADS];
    struct warp warps[MAX_WARPS];
    struct named_barrier bars[NAMED_BARRIERS];
    struct warpgroup warpgroups[MAX_WARPGROUPS];
    int mbarrier_count;
    struct mbarrier_clocks {
        struct knowledge pending, complete; /* of the phase under way, of the one before it */
    } mbarriers[MAX_MBARRIERS];
    /* What threads wrote to a granule, unless a copy came later: a bit for each warpgroup that
     * wrote what is there now, and its first thread to do so. Who knows one of these writes knows
     * what is there: warpgroups may write the same without regard to each other. */
    uint8_t writers[EMULATOR_SHARED_BYTES / GRANULE];
    struct granule granules[EMULATOR_SHARED_BYTES / GRANULE];
    _Alignas(16) char shared[EMULATOR_SHARED_BYTES];
};

/* A copy, reduction or asynchronous store issued and not done. */
struct pending {
    enum { COPY_TENSOR, COPY_BYTES, COPY_SHARED, REDUCE, STORE } kind;
    struct block *block; /* whose shared memory it is about; COPY_SHARED: where it goes */
    const struct fiber *owner;
    uint32_t shared, bar, bytes;
    uint32_t word; /* STORE */
    struct {
        uint32_t shared;      /* of the owner's block */
        struct clock *fenced; /* what it may read */
    } source;                 /* COPY_SHARED */
    const void *from;         /* a tensor map or memory */
    float *to;
    int at[3];
    struct clock *fenced; /* REDUCE: what it may read */
    float *terms;         /* REDUCE: what it has read; NULL: nothing yet */
    uint32_t group;       /* the commit it is of, by the owner's count from 1; 0: of none yet */
};

struct machine {
    const struct emulator_launch *launch;
    int resident; /* the launch's, in whole clusters */
    char *error;
    struct block *blocks;
    struct fiber *self; /* NULL: the scheduler */
    jmp_buf home, top;
    ucontext_t start;
    uint64_t random;
    uint32_t patience; /* turns between two things that the engine does unasked */
    uint64_t turns;
    int idle_turns; /* since anybody got anywhere */
    struct pending pending[MAX_PENDING];
    int pending_count;
};
extern struct machine machine;

uint32_t machine_random(uint32_t below);
void machine_wait(enum waits_for what);
void machine_wake(struct fiber *fiber);
/* Now and then lets others run. */
void machine_stir(void);
/* A meeting of a warp's lanes: true to the last one, which then lets the others go on. */
bool machine_warp_arrive(const char *what);
void machine_warp_release(void);
void *machine_shared_at(struct block *block, uint32_t address, uint32_t bytes, uint32_t alignment,
                        const char *what);
void machine_mbarrier_bytes(struct block *block, uint32_t bar, uint32_t bytes);
/* The block of that rank in the caller's cluster, for `what`: it has not ended. */
struct block *machine_cluster_block(uint32_t rank, const char *what);

struct clock *clock_use(struct clock *clock);
void clock_drop(struct clock *clock);
struct clock *clock_zero(void);
/* A launch begins: no clock is in use. */
void clocks_reset(void);
void knowledge_start(struct knowledge *knowledge);
void knowledge_end(struct knowledge *knowledge);
void knowledge_release(struct fiber *from, struct knowledge *to);
void knowledge_acquire(struct fiber *to, const struct knowledge *from);
/* Each of them releases, then each acquires. */
void knowledge_meet(struct fiber *const *fibers, int count);
void knowledge_fence(struct fiber *fiber);
/* What asynchronous operations that it issues may read: the caller drops it. */
struct clock *fenced_of_thread(const struct fiber *fiber);
void fenced_of_threads_add(struct fenced_of_threads *all, const struct fiber *fiber);
struct clock *fenced_of_threads_end(struct fenced_of_threads *all);

/* Does one thing that is pending, at random; false: nothing is. */
bool machine_engine_step(void);
void machine_warpgroup_reset(struct warpgroup *warpgroup);
/* All threads of the block have ended. */
void machine_block_done(struct block *block);

#endif
