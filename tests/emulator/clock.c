/* SPDX-License-Identifier: Apache-2.0
 *
 * Which thread knows of whose writes to shared memory: vector clocks, with a word for each thread
 * of the cluster.
 *
 * A thread's writes belong to its current epoch, which ends when the thread releases or fences
 * after a write. A thread has two clocks. It knows the writes of thread w up to epoch seen[w]. Up
 * to epoch fenced[w] it also knows that they are fenced: some thread that knew of them executed
 * fence.proxy.async on the way from the write to here. Both clocks pass from a release to an
 * acquire, and a fence copies `seen` to `fenced`. So an asynchronous operation may read a write
 * exactly if the issuing thread's `fenced` covers it, and no lists of writes are needed.
 *
 * fence.proxy.async.shared::cta covers the shared memory of the executing thread's block. Only the
 * threads of that block write it, so the fence copies the words of these threads.
 *
 * Threads of a warp nearly always know the same of others. So clocks are shared and copied on
 * write, what a thread knows of its own writes is kept outside of them (struct fiber), and results
 * of combining two clocks are memoised: the first lane of a warp computes one, the others find it.
 */
#include "machine_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MEMOS = 256, CHUNK = 64 };

enum combination {
    LATER,
    EARLIER,
    LATER_OF_BLOCK /* + rank: LATER for the words of that block, a's words for all others */
};

struct clock_pool {
    struct clock zero;
    struct clock *unused;
    struct chunk {
        struct chunk *next;
        struct clock clocks[CHUNK];
    } * chunks;
    uint64_t next_id;
    struct memo {
        uint64_t a, b; /* ids */
        enum combination how;
        struct clock *result;
    } memos[MEMOS];
};
#define pool (machine->clocks)

struct clock *clock_use(struct clock *clock)
{
    clock->users++;
    return clock;
}

void clock_drop(struct clock *clock)
{
    if (--clock->users > 0)
        return;
    clock->next = pool->unused;
    pool->unused = clock;
}

static void chunk_unused(struct chunk *chunk)
{
    for (int i = 0; i < CHUNK; i++) {
        chunk->clocks[i].next = pool->unused;
        pool->unused = &chunk->clocks[i];
    }
}

bool clocks_reset(void)
{
    if (!pool)
        pool = calloc(1, sizeof *pool);
    if (!pool)
        return false;
    memset(pool->memos, 0, sizeof pool->memos);
    pool->unused = NULL;
    for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        chunk_unused(chunk);
    pool->zero.users = 1;
    pool->zero.id = pool->next_id = 1;
    return true;
}

struct clock *clock_zero(void)
{
    return clock_use(&pool->zero);
}

static int clock_words(void)
{
    return machine->launch->cluster * machine->launch->threads;
}

static struct clock *fresh(void)
{
    struct clock *clock;

    if (!pool->unused) {
        struct chunk *chunk = malloc(sizeof *chunk);
        if (!chunk)
            emulator_fail("out of memory for clocks");
        chunk->next = pool->chunks;
        pool->chunks = chunk;
        chunk_unused(chunk);
    }
    clock = pool->unused;
    pool->unused = clock->next;
    clock->users = 1;
    clock->id = ++pool->next_id;
    return clock;
}

EMULATOR_VECTORS
static void combine_words(uint32_t *out, const uint32_t *a, const uint32_t *b, int count,
                          enum combination how, uint32_t differs[2])
{
    uint32_t from_a = 0, from_b = 0;

    for (int i = 0; i < count; i++) {
        const uint32_t later = a[i] > b[i] ? a[i] : b[i], earlier = a[i] > b[i] ? b[i] : a[i];
        out[i] = how == LATER ? later : earlier;
        from_a |= out[i] ^ a[i];
        from_b |= out[i] ^ b[i];
    }
    differs[0] = from_a;
    differs[1] = from_b;
}

static void combine_words_of_block(uint32_t *out, const uint32_t *a, const uint32_t *b, int rank,
                                   uint32_t differs[2])
{
    const int threads = machine->launch->threads, from = rank * threads;

    memcpy(out, a, sizeof *out * (size_t)clock_words());
    combine_words(out + from, a + from, b + from, threads, LATER, differs);
    differs[1] = 1;
}

/* Combine two clocks. Takes over the caller's use of a, not that of b. */
static struct clock *combine(struct clock *a, struct clock *b, enum combination how)
{
    struct memo *memo = &pool->memos[(a->id * 31 + b->id * 2 + how) % MEMOS];
    struct clock *result;
    uint32_t differs[2];

    if (a == b)
        return a;
    if (!memo->result || memo->a != a->id || memo->b != b->id || memo->how != how) {
        result = fresh();
        if (how >= LATER_OF_BLOCK)
            combine_words_of_block(result->at, a->at, b->at, (int)(how - LATER_OF_BLOCK), differs);
        else
            combine_words(result->at, a->at, b->at, clock_words(), how, differs);
        if (differs[0] == 0 || differs[1] == 0) { /* equal clocks become the same one */
            clock_drop(result);
            result = clock_use(differs[0] == 0 ? a : b);
        }
        if (memo->result)
            clock_drop(memo->result);
        *memo = (struct memo){ a->id, b->id, how, result };
    }
    result = clock_use(memo->result);
    clock_drop(a);
    return result;
}

/* The clock with the word of `thread` raised to at least `epoch`. Takes over the caller's use. */
static struct clock *with(struct clock *clock, int thread, uint32_t epoch)
{
    if (clock->at[thread] >= epoch)
        return clock;
    if (clock->users > 1) {
        struct clock *own = fresh();
        memcpy(own->at, clock->at, sizeof own->at[0] * (size_t)clock_words());
        clock_drop(clock);
        clock = own;
    } else {
        clock->id = ++pool->next_id; /* memos of the old content stay valid */
    }
    clock->at[thread] = epoch;
    return clock;
}

/* ---- what threads do ---- */

void knowledge_start(struct knowledge *knowledge)
{
    *knowledge = (struct knowledge){ clock_zero(), clock_zero() };
}

void knowledge_end(struct knowledge *knowledge)
{
    clock_drop(knowledge->seen);
    clock_drop(knowledge->fenced);
    *knowledge = (struct knowledge){ NULL, NULL };
}

void knowledge_release(struct fiber *from, struct knowledge *to)
{
    to->seen = combine(to->seen, from->knows.seen, LATER);
    to->seen = with(to->seen, from->in_clocks, from->epoch);
    to->fenced = combine(to->fenced, from->knows.fenced, LATER);
    to->fenced = with(to->fenced, from->in_clocks, from->fenced_epoch);
    from->has_written = false;
}

void knowledge_acquire(struct fiber *to, const struct knowledge *from)
{
    to->knows.seen = combine(to->knows.seen, from->seen, LATER);
    to->knows.fenced = combine(to->knows.fenced, from->fenced, LATER);
}

void knowledge_meet(struct fiber *const *fibers, int count)
{
    struct knowledge all;

    knowledge_start(&all);
    for (int i = 0; i < count; i++) {
        all.seen = combine(all.seen, fibers[i]->knows.seen, LATER);
        all.fenced = combine(all.fenced, fibers[i]->knows.fenced, LATER);
    }
    for (int i = 0; i < count; i++) {
        all.seen = with(all.seen, fibers[i]->in_clocks, fibers[i]->epoch);
        all.fenced = with(all.fenced, fibers[i]->in_clocks, fibers[i]->fenced_epoch);
        fibers[i]->has_written = false;
    }
    for (int i = 0; i < count; i++) {
        knowledge_end(&fibers[i]->knows);
        fibers[i]->knows = (struct knowledge){ clock_use(all.seen), clock_use(all.fenced) };
    }
    knowledge_end(&all);
}

void knowledge_fence(struct fiber *fiber)
{
    if (machine->launch->cluster > 1) {
        fiber->knows.fenced = combine(fiber->knows.fenced, fiber->knows.seen,
                                      (enum combination)(LATER_OF_BLOCK + fiber->block->rank));
    } else {
        clock_drop(fiber->knows.fenced);
        fiber->knows.fenced = clock_use(fiber->knows.seen);
    }
    fiber->fenced_epoch = fiber->epoch;
    fiber->has_written = false;
}

/* ---- what asynchronous operations may read ---- */

struct clock *fenced_of_thread(const struct fiber *fiber)
{
    return with(clock_use(fiber->knows.fenced), fiber->in_clocks, fiber->fenced_epoch);
}

/* Combine a run of threads with the same clock into the result. A thread's fence of its own writes
 * is known to itself alone, so it counts only in a run of one thread. */
static void end_run(struct fenced_of_threads *all)
{
    struct clock *run = all->run;

    if (all->run_threads == 1)
        run = with(run, all->first, all->first_epoch);
    if (all->all) {
        all->all = combine(all->all, run, EARLIER);
        clock_drop(run);
    } else {
        all->all = run;
    }
    all->run = NULL;
}

void fenced_of_threads_add(struct fenced_of_threads *all, const struct fiber *fiber)
{
    if (all->run == fiber->knows.fenced) {
        all->run_threads++;
        return;
    }
    if (all->run)
        end_run(all);
    all->run = clock_use(fiber->knows.fenced);
    all->run_threads = 1;
    all->first = fiber->in_clocks;
    all->first_epoch = fiber->fenced_epoch;
}

struct clock *fenced_of_threads_end(struct fenced_of_threads *all)
{
    struct clock *clock;

    end_run(all);
    clock = all->all;
    all->all = NULL;
    return clock;
}
