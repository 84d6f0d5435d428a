/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the emulator share: machine.c (threads and barriers), clock.c (which writes a
 * thread knows of) and engine.c (copies and products).
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
    /* The address of a block's first shared byte (shared_window): a multiple of 16, as CUDA
     * promises, and no more. Of a launch that leaves no kilobyte, where kernels rely on it, behind
     * the kilobyte that the system keeps, as on an SM. */
    SHARED_WINDOW = 1040,
    SHARED_WINDOW_FULL = 1024,
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

/* ---- which writes are known (clock.c) ---- */

/* A vector clock. One with several users is not changed. */
struct clock {
    uint64_t id; /* equal ids mean equal content */
    int users;
    struct clock *next;
    uint32_t at[MAX_CLUSTER_THREADS]; /* epochs */
};

struct knowledge {
    struct clock *seen, *fenced;
};

struct write {
    uint32_t epoch;
    int thread; /* its index in clocks */
};

struct granule {
    char bytes[GRANULE]; /* as the last write left it */
    struct write writes[MAX_WARPGROUPS];
};

/* Adds up, thread by thread, which writes all threads of a warpgroup know to be fenced. Threads
 * with the same clock come in runs, which are combined at once. */
struct fenced_of_threads {
    struct clock *all, *run;
    int run_threads, first;
    uint32_t first_epoch;
};

enum waits_for {
    FOR_SCHEDULER, /* it can run */
    FOR_WARP,
    FOR_NAMED_BARRIER,
    FOR_MBARRIER,
    FOR_WGMMA,
    FOR_CLUSTER,
    FOR_NOTHING /* it has ended */
};

/* A lane's part of an m16n8k16. */
struct mma {
    float *d;
    const uint32_t *a, *b;
};

struct fiber {
    jmp_buf at;
    const void *polled; /* where it polled last, and what it saw */
    uint64_t polled_value;
    char *stack;
    struct block *block;
    int thread;
    int in_clocks; /* its index in clocks: the threads of the cluster's blocks, by rank */
    bool is_started;
    enum waits_for waits_for;
    uint32_t bar, parity;           /* FOR_MBARRIER; FOR_NAMED_BARRIER: its id */
    uint32_t meetings;              /* of its warp, so far */
    uint32_t product;               /* wgmma: products it has issued */
    uint32_t groups;                /* wgmma: commits, and */
    uint32_t group_end[MAX_GROUPS]; /* `product` as of each of the last ones */
    uint32_t needed;                /* FOR_WGMMA: waits for the products below this number */
    uint32_t bulk_groups;           /* commits of bulk reductions */
    struct mma *mma;
    struct knowledge knows;       /* of other threads' writes */
    uint32_t epoch, fenced_epoch; /* of its own writes: the current one, the last fenced one */
    bool has_written;             /* in the current epoch, which ends with a release or a fence */
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
    uint32_t done;   /* products that are done */
    uint32_t waited; /* a thread waits for the products below this number, */
    uint64_t from;   /* which are not done before this turn of the scheduler */
    struct product {
        struct emulator_wgmma op;
        int arrived; /* threads that issued it */
        struct fenced_of_threads threads;
        struct clock *fenced; /* the writes it may read, once all threads have arrived */
        float *d[128];
        uint32_t a[128][4];
    } products[MAX_PRODUCTS];
};

struct block {
    int index;           /* in the grid; -1: no block runs here */
    int rank;            /* in the cluster, whose blocks are adjacent in machine->blocks */
    int alive;           /* threads that have not ended */
    int cluster_arrived; /* in rank 0: threads of all blocks that wait at barrier.cluster */
    struct fiber fibers[MAX_THREADS];
    struct warp warps[MAX_WARPS];
    struct named_barrier bars[NAMED_BARRIERS];
    struct warpgroup warpgroups[MAX_WARPGROUPS];
    int mbarrier_count;
    struct mbarrier_clocks {
        struct knowledge pending, complete; /* of the current phase, of the one before it */
    } mbarriers[MAX_MBARRIERS];
    /* Which warpgroups wrote a granule's present content, a bit each, and in `granules` the first
     * such write of each. Several may have written equal bytes independently; to know the content
     * it is enough to know one of these writes. A copy clears the bits. */
    uint8_t writers[EMULATOR_SHARED_BYTES / GRANULE];
    struct granule granules[EMULATOR_SHARED_BYTES / GRANULE];
    _Alignas(16) char shared[EMULATOR_SHARED_BYTES];
};

/* A copy, reduction or asynchronous store issued and not done. */
struct pending {
    enum { COPY_TENSOR, COPY_BYTES, COPY_SHARED, REDUCE, STORE } kind;
    struct block *block; /* whose shared memory it reads or writes; COPY_SHARED: writes */
    const struct fiber *owner;
    uint32_t shared, bar, bytes;
    uint32_t word; /* STORE */
    struct {
        uint32_t shared;      /* of the owner's block */
        struct clock *fenced; /* the writes it may read */
    } source;                 /* COPY_SHARED */
    const void *from;         /* a tensor map or memory */
    float *to;
    int at[3];
    struct clock *fenced; /* the writes it may meet in shared memory */
    float *terms;         /* REDUCE: what it has read; NULL: nothing yet */
    uint32_t group;       /* the owner's commit it belongs to, from 1; 0: none yet */
};

struct machine {
    const struct emulator_launch *launch;
    int resident; /* the launch's, in whole clusters */
    char *error;
    struct block *blocks;
    struct fiber *self; /* the running fiber; NULL: the scheduler runs */
    jmp_buf home, top;
    ucontext_t start;
    uint64_t random;
    uint32_t patience; /* average turns between two operations that the engine does by itself */
    uint64_t turns;    /* a turn: the scheduler lets the ready threads of one warp run */
    int idle_turns;    /* since the last progress of any thread or operation */
    struct pending pending[MAX_PENDING];
    int pending_count;
    struct clock_pool *clocks;
    uint32_t polls;       /* of memory outside, since the last progress */
    int64_t idle_from_ms; /* when the machine was first seen to do nothing but poll; 0: not now */
    struct machine *next; /* of those that run no launch */
};
/* The machine of the launch that this host thread runs. */
extern EMULATOR_THREAD struct machine *machine;

static inline uint32_t shared_window(void)
{
    return machine->launch->shared_bytes > EMULATOR_SHARED_BYTES - 1024 ? SHARED_WINDOW_FULL
                                                                        : SHARED_WINDOW;
}

uint32_t machine_random(uint32_t below);
void machine_wait(enum waits_for what);
void machine_wake(struct fiber *fiber);
/* Let other threads run, at random times. */
void machine_maybe_yield(void);
/* A meeting of a warp's lanes. Returns true to the last lane, which then calls
 * machine_warp_release; the other lanes wait for that. */
bool machine_warp_arrive(const char *what);
void machine_warp_release(void);
void *machine_shared_at(struct block *block, uint32_t address, uint32_t bytes, uint32_t alignment,
                        const char *what);
void machine_mbarrier_bytes(struct block *block, uint32_t bar, uint32_t bytes);
/* The block of that rank in the caller's cluster, for an access named `what`. The launch fails
 * where there is none or it has ended. */
struct block *machine_cluster_block(uint32_t rank, const char *what);

struct clock *clock_use(struct clock *clock);
void clock_drop(struct clock *clock);
struct clock *clock_zero(void);
/* Release all clocks of the machine, before a launch. Returns false without memory. */
bool clocks_reset(void);
void knowledge_start(struct knowledge *knowledge);
void knowledge_end(struct knowledge *knowledge);
void knowledge_release(struct fiber *from, struct knowledge *to);
void knowledge_acquire(struct fiber *to, const struct knowledge *from);
/* Each of the threads releases, then each acquires. */
void knowledge_meet(struct fiber *const *fibers, int count);
void knowledge_fence(struct fiber *fiber);
/* The writes that an operation issued by this thread may read. The caller drops the clock. */
struct clock *fenced_of_thread(const struct fiber *fiber);
void fenced_of_threads_add(struct fenced_of_threads *all, const struct fiber *fiber);
struct clock *fenced_of_threads_end(struct fenced_of_threads *all);

/* Do one pending operation, chosen at random. Returns false where nothing is pending. */
bool machine_engine_step(void);
void machine_warpgroup_reset(struct warpgroup *warpgroup);
/* Called when all threads of a block have ended. Fails the launch where work is in flight. */
void machine_block_done(struct block *block);

#endif
