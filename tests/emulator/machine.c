/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads: their fibers, the scheduler, and what they wait for: warps, named barriers, mbarriers,
 * clusters.
 *
 * The scheduler picks a random warp with ready lanes, lets each of these run until it waits, and
 * now and then has the engine do a pending operation. All choices come from one generator, so a
 * seed is a schedule. Where no lane is ready and nothing is pending, the launch fails and names who
 * waits for what.
 */
#include "live.h"
#include "machine_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    STACK_BYTES = 128 * 1024,
    /* Turns without progress, in which threads only polled: about ten seconds. */
    MAX_IDLE_TURNS = 20000000,
    /* Turns without progress after which a launch that polls memory outside lets go of the host. */
    POLL_TURNS = 512
};

EMULATOR_THREAD struct machine *machine;
EMULATOR_THREAD struct emulator_dim emulator_thread, emulator_block, emulator_threads,
    emulator_blocks;

uint32_t machine_random(uint32_t below)
{
    machine->random ^= machine->random << 13;
    machine->random ^= machine->random >> 7;
    machine->random ^= machine->random << 17;
    return (uint32_t)((machine->random >> 32) * below >> 32);
}

void emulator_fail(const char *format, ...)
{
    va_list args;
    int at = 0;

    if (machine->self)
        at = snprintf(machine->error, EMULATOR_ERROR_TEXT,
                      "block %d, thread %d: ", machine->self->block->index, machine->self->thread);
    va_start(args, format);
    (void)vsnprintf(machine->error + at, (size_t)(EMULATOR_ERROR_TEXT - at), format, args);
    va_end(args);
    _longjmp(machine->top, 1);
}

/* ---- fibers ---- */

static void cluster_try_release(struct block *first);

/* From a fiber back to the scheduler. */
static void leave(void)
{
    if (_setjmp(machine->self->at) == 0)
        _longjmp(machine->home, 1);
}

static void fiber_main(void)
{
    machine->launch->entry(machine->launch->args);
    machine->self->waits_for = FOR_NOTHING;
    machine->self->block->alive--;
    machine->idle_turns = 0;
    cluster_try_release(machine->self->block - machine->self->block->rank);
    _longjmp(machine->home, 1);
}

static void switch_to(struct fiber *fiber)
{
    machine->self = fiber;
    emulator_thread.x = (unsigned)fiber->thread;
    emulator_block.x = (unsigned)fiber->block->index;
    if (_setjmp(machine->home) == 0) {
        if (fiber->is_started)
            _longjmp(fiber->at, 1);
        fiber->is_started = true;
        (void)getcontext(&machine->start);
        machine->start.uc_stack.ss_sp = fiber->stack;
        machine->start.uc_stack.ss_size = STACK_BYTES;
        machine->start.uc_link = NULL;
        makecontext(&machine->start, fiber_main, 0);
        (void)setcontext(&machine->start);
    }
    machine->self = NULL;
}

static struct warp *warp_of(const struct fiber *fiber)
{
    return &fiber->block->warps[fiber->thread / 32];
}

void machine_wake(struct fiber *fiber)
{
    fiber->waits_for = FOR_SCHEDULER;
    warp_of(fiber)->ready |= 1u << fiber->thread % 32;
    machine->idle_turns = 0;
}

void machine_wait(enum waits_for what)
{
    machine->self->waits_for = what;
    leave();
}

void emulator_yield(void)
{
    warp_of(machine->self)->ready |= 1u << machine->self->thread % 32;
    leave();
}

uint64_t emulator_poll(const uint64_t *at)
{
    struct fiber *self = machine->self;
    uint64_t value;

    emulator_yield();
    value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (self->polled != at || self->polled_value != value) {
        self->polled = at;
        self->polled_value = value;
        machine->idle_turns = 0;
    }
    machine->polls++;
    return value;
}

void machine_maybe_yield(void)
{
    if (machine_random(16) == 0) {
        machine->idle_turns = 0;
        emulator_yield();
    }
}

/* ---- shared memory ---- */

/* What cuda_on_host.h makes of the kernel's `extern __shared__ char shared_bytes[]`. */
char (*emulator_shared_bytes(void))[]
{
    return (char(*)[])machine->self->block->shared;
}

uint32_t emulator_shared_address(const void *pointer)
{
    return (uint32_t)((const char *)pointer - machine->self->block->shared) + shared_window();
}

void *machine_shared_at(struct block *block, uint32_t address, uint32_t bytes, uint32_t alignment,
                        const char *what)
{
    const uint32_t size = (uint32_t)machine->launch->shared_bytes;
    const uint32_t offset = address - shared_window();

    if (address % alignment)
        emulator_fail("%s: shared address %u is not a multiple of %u", what, address, alignment);
    if (address < shared_window() || offset > size || bytes > size - offset)
        emulator_fail("%s: shared bytes [%d, %d) lie outside the block's %u", what, (int)offset,
                      (int)(offset + bytes), size);
    return block->shared + offset;
}

void *emulator_shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what)
{
    return machine_shared_at(machine->self->block, address, bytes, alignment, what);
}

void emulator_shared_written(uint32_t address, uint32_t bytes)
{
    struct fiber *self = machine->self;
    const uint32_t offset = address - shared_window();
    const int warpgroup = self->thread / 128;

    if (!self->has_written) {
        self->has_written = true;
        self->epoch++;
    }
    for (uint32_t g = offset / GRANULE; g <= (offset + bytes - 1) / GRANULE; g++) {
        struct granule *granule = &self->block->granules[g];
        uint8_t *writers = &self->block->writers[g];
        const char *now = self->block->shared + (size_t)g * GRANULE;

        if (memcmp(granule->bytes, now, GRANULE) != 0) {
            memcpy(granule->bytes, now, GRANULE);
            *writers = 0;
        }
        if (*writers >> warpgroup & 1)
            continue;
        *writers |= (uint8_t)(1 << warpgroup);
        granule->writes[warpgroup] = (struct write){ self->epoch, self->in_clocks };
    }
}

void emulator_fence_proxy_async(void)
{
    knowledge_fence(machine->self);
}

/* ---- warps ---- */

bool machine_warp_arrive(const char *what)
{
    struct warp *warp = warp_of(machine->self);

    if (warp->arrived == 0)
        warp->what = what;
    else if (warp->what != what && strcmp(warp->what, what) != 0)
        emulator_fail("%s, while other lanes of the warp are at %s", what, warp->what);
    if (++warp->arrived == 32)
        return true;
    machine_wait(FOR_WARP);
    return false;
}

void machine_warp_release(void)
{
    struct fiber *self = machine->self;

    warp_of(self)->arrived = 0;
    for (int lane = 0; lane < 32; lane++) {
        struct fiber *fiber = &self->block->fibers[self->thread / 32 * 32 + lane];
        if (fiber != self)
            machine_wake(fiber);
    }
}

const uint64_t *emulator_warp(uint64_t word, const char *what)
{
    struct fiber *self = machine->self;
    uint64_t *words = warp_of(self)->words[self->meetings++ % 2];

    words[self->thread % 32] = word;
    if (machine_warp_arrive(what))
        machine_warp_release();
    return words;
}

void emulator_syncwarp(void)
{
    const struct fiber *self = machine->self;
    struct fiber *lanes[32];

    if (!machine_warp_arrive("syncwarp"))
        return;
    for (int lane = 0; lane < 32; lane++)
        lanes[lane] = &self->block->fibers[self->thread / 32 * 32 + lane];
    knowledge_meet(lanes, 32);
    machine_warp_release();
}

/* ---- named barriers ---- */

void emulator_bar_sync(int id, int threads)
{
    struct fiber *self = machine->self, *here[MAX_THREADS];
    struct named_barrier *bar = &self->block->bars[id];
    int count = 0;

    if (id < 0 || id >= NAMED_BARRIERS || threads % 32 || threads < 32 ||
        threads > machine->launch->threads)
        emulator_fail("bar.sync %d, %d", id, threads);
    if (bar->arrived > 0 && bar->threads != threads)
        emulator_fail("bar.sync %d: %d threads, others say %d", id, threads, bar->threads);
    bar->threads = threads;
    self->bar = (uint32_t)id;
    if (++bar->arrived < threads) {
        machine_wait(FOR_NAMED_BARRIER);
        return;
    }
    bar->arrived = 0;
    here[count++] = self;
    for (int i = 0; i < machine->launch->threads; i++) {
        struct fiber *fiber = &self->block->fibers[i];
        if (fiber->waits_for == FOR_NAMED_BARRIER && fiber->bar == (uint32_t)id) {
            here[count++] = fiber;
            machine_wake(fiber);
        }
    }
    knowledge_meet(here, count);
}

/* ---- mbarriers: eight bytes of shared memory each ---- */

struct mbarrier {
    uint32_t expected : 11, pending : 11, phase : 1, magic : 9;
    uint32_t number : 8; /* index of its clocks */
    uint32_t bytes : 24; /* expected and not yet complete; negative (modulo 2^24) while copies
                          * complete before they are expected */
};
enum { MBARRIER_MAGIC = 0x1a5, MBARRIER_BYTES = 0xffffff };
_Static_assert(MAX_MBARRIERS == 1 << 8, "a number has eight bits");
_Static_assert(sizeof(struct mbarrier) == 8, "an mbarrier has eight bytes");

static struct mbarrier *mbarrier_at(struct block *block, uint32_t bar, const char *what)
{
    struct mbarrier *at = machine_shared_at(block, bar, 8, 8, what);

    if (at->magic != MBARRIER_MAGIC)
        emulator_fail("%s: there is no mbarrier at shared byte %d", what,
                      (int)(bar - shared_window()));
    return at;
}

static struct mbarrier_clocks *mbarrier_clocks(struct block *block, const struct mbarrier *at)
{
    return &block->mbarriers[at->number];
}

/* Complete the phase if all arrivals and bytes are there, and wake the threads that wait for it. */
static void mbarrier_try_complete(struct block *block, uint32_t bar, struct mbarrier *at)
{
    struct mbarrier_clocks *clocks = mbarrier_clocks(block, at);

    if (at->pending > 0 || at->bytes != 0)
        return;
    at->pending = at->expected;
    at->phase ^= 1;
    knowledge_end(&clocks->complete);
    clocks->complete = clocks->pending;
    knowledge_start(&clocks->pending);
    for (int i = 0; i < machine->launch->threads; i++) {
        struct fiber *fiber = &block->fibers[i];
        if (fiber->waits_for == FOR_MBARRIER && fiber->bar == bar && at->phase != fiber->parity)
            machine_wake(fiber);
    }
}

void emulator_mbarrier_init(uint32_t bar, uint32_t count)
{
    struct mbarrier *at = emulator_shared_at(bar, 8, 8, "mbarrier.init");
    struct block *block = machine->self->block;

    if (count < 1 || count > 1024)
        emulator_fail("mbarrier.init: count %u", count);
    if (block->mbarrier_count == MAX_MBARRIERS)
        emulator_fail("mbarrier.init: more than %d mbarriers in a block", MAX_MBARRIERS);
    *at = (struct mbarrier){ .expected = count & 0x7ff,
                             .pending = count & 0x7ff,
                             .magic = MBARRIER_MAGIC,
                             .number = (uint32_t)block->mbarrier_count & 0xff };
    knowledge_start(&block->mbarriers[block->mbarrier_count].pending);
    knowledge_start(&block->mbarriers[block->mbarrier_count].complete);
    block->mbarrier_count++;
}

static void mbarrier_arrive(struct block *block, uint32_t bar, uint32_t expect_bytes)
{
    struct mbarrier *at = mbarrier_at(block, bar, "mbarrier.arrive");

    if (at->pending == 0)
        emulator_fail("mbarrier.arrive: more than %d arrivals in a phase, at shared byte %d",
                      (int)at->expected, (int)(bar - shared_window()));
    at->pending--;
    at->bytes = (at->bytes + expect_bytes) & MBARRIER_BYTES;
    knowledge_release(machine->self, &mbarrier_clocks(block, at)->pending);
    mbarrier_try_complete(block, bar, at);
    machine_maybe_yield();
}

void emulator_mbarrier_arrive(uint32_t bar, uint32_t expect_bytes)
{
    mbarrier_arrive(machine->self->block, bar, expect_bytes);
}

void emulator_mbarrier_arrive_at(uint32_t bar, uint32_t rank)
{
    mbarrier_arrive(machine_cluster_block(rank, "mbarrier.arrive"), bar, 0);
}

void machine_mbarrier_bytes(struct block *block, uint32_t bar, uint32_t bytes)
{
    struct mbarrier *at = mbarrier_at(block, bar, "complete_tx");

    at->bytes = (at->bytes - bytes) & MBARRIER_BYTES;
    mbarrier_try_complete(block, bar, at);
}

void emulator_mbarrier_wait(uint32_t bar, uint32_t parity)
{
    struct fiber *self = machine->self;

    if (parity > 1)
        emulator_fail("mbarrier.try_wait: parity %u", parity);
    while (mbarrier_at(self->block, bar, "mbarrier.try_wait")->phase == parity) {
        self->bar = bar;
        self->parity = parity;
        machine_wait(FOR_MBARRIER);
    }
    knowledge_acquire(
        self, &mbarrier_clocks(self->block, mbarrier_at(self->block, bar, "mbarrier.try_wait"))
                   ->complete);
}

bool emulator_mbarrier_test(uint32_t bar, uint32_t parity)
{
    if (parity > 1)
        emulator_fail("mbarrier.test_wait: parity %u", parity);
    if (mbarrier_at(machine->self->block, bar, "mbarrier.test_wait")->phase == parity)
        return false;
    emulator_mbarrier_wait(bar, parity);
    return true;
}

/* ---- clusters ---- */

uint32_t emulator_cluster_rank(void)
{
    return (uint32_t)machine->self->block->rank;
}

struct block *machine_cluster_block(uint32_t rank, const char *what)
{
    struct block *self = machine->self->block;

    if (rank >= (uint32_t)machine->launch->cluster)
        emulator_fail("%s: there is no block of rank %u in a cluster of %d", what, rank,
                      machine->launch->cluster);
    if (self[(int)rank - self->rank].alive == 0)
        emulator_fail("%s: shared memory of block %d, which has ended", what,
                      self[(int)rank - self->rank].index);
    return &self[(int)rank - self->rank];
}

/* Release the threads at barrier.cluster once all threads that have not ended wait there. */
static void cluster_try_release(struct block *first)
{
    struct fiber *here[MAX_CLUSTER_THREADS];
    int alive = 0, count = 0;

    for (int rank = 0; rank < machine->launch->cluster; rank++)
        alive += first[rank].alive;
    if (first->cluster_arrived == 0 || first->cluster_arrived < alive)
        return;
    first->cluster_arrived = 0;
    for (int rank = 0; rank < machine->launch->cluster; rank++)
        for (int i = 0; i < machine->launch->threads; i++) {
            struct fiber *fiber = &first[rank].fibers[i];
            if (fiber->waits_for == FOR_CLUSTER) {
                here[count++] = fiber;
                machine_wake(fiber);
            }
        }
    knowledge_meet(here, count);
}

void emulator_cluster_sync(void)
{
    struct fiber *self = machine->self;
    struct block *first = self->block - self->block->rank;

    self->waits_for = FOR_CLUSTER;
    first->cluster_arrived++;
    cluster_try_release(first);
    leave();
}

/* ---- blocks ---- */

static void block_start(struct block *block, int index, int rank)
{
    const int threads = machine->launch->threads;

    block->index = index;
    block->rank = rank;
    block->alive = threads;
    block->cluster_arrived = 0;
    /* All ones, so that memory nobody wrote reads as NaN. */
    memset(block->shared, 0xff, EMULATOR_SHARED_BYTES);
    memset(block->writers, 0, sizeof block->writers);
    block->mbarrier_count = 0;
    memset(block->bars, 0, sizeof block->bars);
    memset(block->warps, 0, sizeof block->warps);
    for (int i = 0; i < MAX_WARPGROUPS; i++)
        machine_warpgroup_reset(&block->warpgroups[i]);
    for (int i = 0; i < threads; i++) {
        struct fiber *fiber = &block->fibers[i];
        char *const stack = fiber->stack;
        *fiber = (struct fiber){
            .block = block, .thread = i, .in_clocks = rank * threads + i, .stack = stack
        };
        knowledge_start(&fiber->knows);
        machine_wake(fiber);
    }
}

static void block_finish(struct block *block)
{
    for (int i = 0; i < machine->launch->threads; i++)
        knowledge_end(&block->fibers[i].knows);
    for (int i = 0; i < block->mbarrier_count; i++) {
        knowledge_end(&block->mbarriers[i].pending);
        knowledge_end(&block->mbarriers[i].complete);
    }
    block->index = -1;
}

static void cluster_start(struct block *first, int index)
{
    for (int rank = 0; rank < machine->launch->cluster; rank++)
        block_start(&first[rank], index + rank, rank);
}

/* Called when the last thread of a block has ended. The blocks of a cluster are kept until all have
 * ended, because each may look at the others. */
static void block_end(struct block *block)
{
    struct block *first = block - block->rank;

    machine_block_done(block);
    for (int rank = 0; rank < machine->launch->cluster; rank++)
        if (first[rank].alive > 0)
            return;
    for (int rank = 0; rank < machine->launch->cluster; rank++)
        block_finish(&first[rank]);
}

static bool machine_allocate(void)
{
    const size_t stacks = (size_t)EMULATOR_BLOCKS * MAX_THREADS * STACK_BYTES;
    char *stack;

    if (machine->blocks)
        return true;
    machine->blocks = calloc(EMULATOR_BLOCKS, sizeof *machine->blocks);
    stack = mmap(NULL, stacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (!machine->blocks || stack == MAP_FAILED) {
        free(machine->blocks);
        machine->blocks = NULL;
        return false;
    }
    for (int b = 0; b < EMULATOR_BLOCKS; b++)
        for (int i = 0; i < MAX_THREADS; i++, stack += STACK_BYTES)
            machine->blocks[b].fibers[i].stack = stack;
    return true;
}

/* ---- the scheduler ---- */

static const char *describe(const struct fiber *fiber, char *text, size_t size)
{
    switch (fiber->waits_for) {
    case FOR_SCHEDULER:
        (void)snprintf(text, size, "polls");
        break;
    case FOR_WARP:
        (void)snprintf(text, size, "at %s", warp_of(fiber)->what);
        break;
    case FOR_NAMED_BARRIER:
        (void)snprintf(text, size, "at bar.sync %u", fiber->bar);
        break;
    case FOR_MBARRIER:
        (void)snprintf(text, size, "for phase %u of the mbarrier at shared byte %u", fiber->parity,
                       fiber->bar - shared_window());
        break;
    case FOR_WGMMA:
        (void)snprintf(text, size, "for its warpgroup's wgmma");
        break;
    case FOR_CLUSTER:
        (void)snprintf(text, size, "at barrier.cluster");
        break;
    case FOR_NOTHING:
        (void)snprintf(text, size, "done");
        break;
    }
    return text;
}

/* Fail the launch and say which threads wait for what, as runs of threads in the same state. */
static _Noreturn void fail_stuck(void)
{
    char text[EMULATOR_ERROR_TEXT] = "", now[96], last[96];
    size_t at = 0;

    for (int b = 0; b < machine->resident; b++) {
        const struct block *block = &machine->blocks[b];
        for (int i = 0, first = 0; block->index >= 0 && i < machine->launch->threads; i++) {
            const bool is_end = i + 1 == machine->launch->threads ||
                                strcmp(describe(&block->fibers[i], last, sizeof last),
                                       describe(&block->fibers[i + 1], now, sizeof now)) != 0;
            if (!is_end)
                continue;
            if (block->fibers[i].waits_for != FOR_NOTHING && at < sizeof text)
                at += (size_t)snprintf(text + at, sizeof text - at, "; block %d threads %d-%d %s",
                                       block->index, first, i,
                                       describe(&block->fibers[i], last, sizeof last));
            first = i + 1;
        }
    }
    emulator_fail("no thread can go on%s", text);
}

/* The first warp of [from, to) with a thread that can run; NULL: there is none. */
static struct warp *first_ready(struct block *block, int from, int to)
{
    for (int w = from; w < to; w++)
        if (block->warps[w].ready)
            return &block->warps[w];
    return NULL;
}

/* The first warp with a thread that can run, from a random warp on; NULL: there is none. */
static struct warp *pick(struct block **block)
{
    const int warps = machine->launch->threads / 32;
    const int from = (int)machine_random((uint32_t)(warps * machine->resident));
    const int first = from / warps;
    struct warp *found = NULL;

    /* The first block twice: from the random warp on, and at last up to it. */
    for (int i = 0; i <= machine->resident && !found; i++) {
        const int at = first + i < machine->resident ? first + i : first + i - machine->resident;

        *block = &machine->blocks[at];
        if ((*block)->index >= 0)
            found = first_ready(*block, i == 0 ? from % warps : 0,
                                i == machine->resident ? from % warps : warps);
    }
    return found;
}

/* Let each ready lane of a warp run until it waits. */
static void turn(struct warp *warp, struct block *block)
{
    const uint32_t ready = warp->ready;
    const int first = (int)(warp - block->warps) * 32;

    warp->ready = 0;
    machine->turns++;
    machine->idle_turns++;
    for (int lane = 0; lane < 32; lane++)
        if (ready >> lane & 1)
            switch_to(&block->fibers[first + lane]);
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t timeout_ms(void)
{
    const char *text = getenv("FFA_EMULATOR_TIMEOUT_MS");
    const int64_t ms = text ? strtoll(text, NULL, 10) : 0;

    return ms > 0 ? ms : 60000;
}

static atomic_int_fast64_t stalls;

__attribute__((visibility("default"))) int64_t emulator_stalls(void)
{
    return atomic_load(&stalls);
}

/* Called after a turn. Where threads only poll memory outside, the host does something else for a
 * while; the launch fails when nothing has changed for too long. */
static void look_idle(void)
{
    const struct timespec pause = { .tv_nsec = 50000 };

    if (machine->idle_turns < POLL_TURNS) {
        machine->idle_from_ms = 0;
        machine->polls = 0;
        return;
    }
    if (machine->polls == 0) {
        if (machine->idle_turns > MAX_IDLE_TURNS)
            fail_stuck();
        return;
    }
    if (machine->idle_turns % POLL_TURNS == 0 && machine->pending_count == 0)
        atomic_fetch_add(&stalls, 1);
    if (machine->idle_from_ms == 0)
        machine->idle_from_ms = now_ms();
    if (machine->idle_turns % 8 == 0) {
        if (now_ms() - machine->idle_from_ms > timeout_ms())
            fail_stuck();
        (void)nanosleep(&pause, NULL);
    }
    if (machine->idle_turns > MAX_IDLE_TURNS / 2)
        machine->idle_turns = POLL_TURNS;
}

static void run_all(void)
{
    const struct emulator_launch *launch = machine->launch;
    int next = 0, done = 0;

    for (int b = 0; b < EMULATOR_BLOCKS; b++)
        machine->blocks[b].index = -1;
    while (done < launch->blocks) {
        struct block *block;
        struct warp *warp;

        for (int b = 0; b < machine->resident && next < launch->blocks; b += launch->cluster)
            if (machine->blocks[b].index < 0) {
                cluster_start(&machine->blocks[b], next);
                next += launch->cluster;
            }
        if (machine_random(machine->patience) == 0)
            (void)machine_engine_step();
        warp = pick(&block);
        if (!warp) {
            if (!machine_engine_step())
                fail_stuck();
            continue;
        }
        turn(warp, block);
        if (block->alive == 0) {
            block_end(block);
            done++;
        }
        look_idle();
    }
}

/* ---- machines: one for each launch that runs ---- */

static pthread_mutex_t machines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct machine *machines; /* that run no launch */

/* Make a machine the calling thread's. Returns false without memory. */
static bool machine_take(void)
{
    (void)pthread_mutex_lock(&machines_lock);
    machine = machines;
    if (machine)
        machines = machine->next;
    (void)pthread_mutex_unlock(&machines_lock);
    if (!machine)
        machine = calloc(1, sizeof *machine);
    return machine && machine_allocate() && clocks_reset();
}

static void machine_give(void)
{
    if (!machine)
        return;
    (void)pthread_mutex_lock(&machines_lock);
    machine->next = machines;
    machines = machine;
    machine = NULL;
    (void)pthread_mutex_unlock(&machines_lock);
}

bool emulator_run(const struct emulator_launch *launch, char error[EMULATOR_ERROR_TEXT])
{
    error[0] = '\0';
    if (launch->threads % 32 || launch->threads > MAX_THREADS || launch->resident < 1 ||
        launch->resident > EMULATOR_BLOCKS || launch->shared_bytes > EMULATOR_SHARED_BYTES) {
        (void)snprintf(error, EMULATOR_ERROR_TEXT,
                       "a launch of %d threads, %d blocks at a time, %d bytes of shared memory",
                       launch->threads, launch->resident, launch->shared_bytes);
        return false;
    }
    if (launch->cluster < 1 || launch->cluster > EMULATOR_CLUSTER ||
        launch->blocks % launch->cluster) {
        (void)snprintf(error, EMULATOR_ERROR_TEXT,
                       "a launch of %d blocks in clusters of %d: not a multiple, or more than %d",
                       launch->blocks, launch->cluster, EMULATOR_CLUSTER);
        return false;
    }
    if (!machine_take()) {
        (void)snprintf(error, EMULATOR_ERROR_TEXT, "out of memory");
        machine_give();
        return false;
    }
    machine->launch = launch;
    machine->resident = launch->resident < launch->cluster
                            ? launch->cluster
                            : launch->resident / launch->cluster * launch->cluster;
    machine->error = error;
    machine->random = launch->seed * 0x9e3779b97f4a7c15ull | 1;
    machine->patience = 4u << 3 * machine_random(4);
    machine->idle_turns = 0;
    machine->self = NULL;
    while (machine->pending_count > 0)
        free(machine->pending[--machine->pending_count].terms);
    machine->polls = 0;
    machine->idle_from_ms = 0;
    emulator_threads = (struct emulator_dim){ (unsigned)launch->threads, 1, 1 };
    emulator_blocks = (struct emulator_dim){ (unsigned)launch->blocks, 1, 1 };
    if (_setjmp(machine->top) == 0)
        run_all();
    machine->self = NULL;
    machine_give();
    return error[0] == '\0';
}
