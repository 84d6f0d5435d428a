/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the emulator: which writes it regards as ordered before an asynchronous operation, and
 * fenced for it.
 *
 * Kernels of a few lines: one warpgroup writes shared memory and another issues an operation that
 * reads it, or one block of a cluster writes and the other reads. Each kernel runs under many
 * schedules. A verdict must be the same under all of them, except where a test says that it is a
 * matter of time.
 */
#include "live.h"
#include "machine_internal.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    THREADS = 256,
    FLOATS = 512, /* each thread of the first warpgroup writes four */
    BYTES = 4 * FLOATS,
    DATA = 240, /* offsets in shared memory, as are those below */
    BAR = 0,
    BAR_BACK = 8,
    BAR_COPY = 16,
    SHARED = 64 * 1024,
    SEEDS = 40
};

static _Alignas(16) float sums[FLOATS], source[FLOATS];

static uint32_t at(uint32_t offset)
{
    return SHARED_WINDOW + offset;
}

static int me(void)
{
    return (int)emulator_thread.x;
}

static bool is_writer(void)
{
    return me() < 128;
}

static bool is_reader(void)
{
    return me() == 128;
}

static void store(uint32_t address, const void *sixteen)
{
    memcpy(emulator_shared_at(address, 16, 16, "a store"), sixteen, 16);
    emulator_shared_written(address, 16);
}

static void write_first_times(float factor)
{
    const float four[4] = { factor * (float)me(), factor, 2 * factor, 3 * factor };

    store(at(DATA + 16 * (uint32_t)me()), four);
}

static void reduce(void)
{
    emulator_reduce_add(sums, at(DATA), BYTES);
    emulator_bulk_commit();
    emulator_bulk_wait(0);
}

static void start(uint32_t arrivals)
{
    if (me() == 0) {
        emulator_mbarrier_init(at(BAR), arrivals);
        emulator_mbarrier_init(at(BAR_BACK), 1);
        emulator_mbarrier_init(at(BAR_COPY), 1);
    }
    emulator_bar_sync(0, THREADS);
}

static bool runs(void (*kernel)(const void *), uint64_t seed, char error[EMULATOR_ERROR_TEXT])
{
    memset(sums, 0, sizeof sums);
    return emulator_run(&(struct emulator_launch){ .entry = kernel,
                                                   .blocks = 2,
                                                   .threads = THREADS,
                                                   .cluster = 1,
                                                   .resident = 2,
                                                   .shared_bytes = SHARED,
                                                   .seed = seed },
                        error);
}

static void check_sums(uint64_t seed)
{
    for (int i = 0; i < FLOATS; i++) {
        const float once = i % 4 == 0 ? (float)(i / 4) : (float)(i % 4);
        ck_assert_msg(sums[i] == 2 * once, "seed %llu: sum %d is %g, not twice %g",
                      (unsigned long long)seed, i, (double)sums[i], (double)once);
    }
}

/* Run a kernel under all seeds. With `text` NULL it must pass, and both blocks must have added what
 * their threads wrote; otherwise it must fail with an error that contains `text`. */
static void check_kernel(void (*kernel)(const void *), const char *name, const char *text)
{
    char error[EMULATOR_ERROR_TEXT];

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const bool is_done = runs(kernel, seed, error);

        ck_assert_msg(is_done == !text, "%s, seed %llu: %s", name, (unsigned long long)seed,
                      is_done ? "it passes" : error);
        if (is_done)
            check_sums(seed);
        else
            ck_assert_msg(text && strstr(error, text), "%s, seed %llu: %s", name,
                          (unsigned long long)seed, error);
    }
}

/* ---- from many writers to a reader, through an mbarrier ---- */

enum {
    WRITERS_FENCE = 1,
    READER_FENCES_EARLY = 2,
    READER_WAITS = 4, /* else it is last in time, which orders nothing */
    READER_FENCES = 8
};

/* Run last under every schedule, without being ordered: only the vector clocks see the difference.
 */
static void come_last(void)
{
    for (int i = 0; i < 1000; i++)
        emulator_yield();
}

static void from_writers_to_reader(int steps)
{
    start(128);
    if (is_writer()) {
        write_first_times(1);
        if (steps & WRITERS_FENCE)
            emulator_fence_proxy_async();
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (is_reader()) {
        if (steps & READER_FENCES_EARLY)
            emulator_fence_proxy_async();
        if (steps & READER_WAITS)
            emulator_mbarrier_wait(at(BAR), 0);
        else
            come_last();
        if (steps & READER_FENCES)
            emulator_fence_proxy_async();
        reduce();
    }
}

static void writers_fence(const void *args)
{
    (void)args;
    from_writers_to_reader(WRITERS_FENCE | READER_WAITS);
}

static void reader_fences(const void *args)
{
    (void)args;
    from_writers_to_reader(READER_WAITS | READER_FENCES);
}

static void nobody_fences(const void *args)
{
    (void)args;
    from_writers_to_reader(READER_WAITS);
}

static void reader_fences_too_early(const void *args)
{
    (void)args;
    from_writers_to_reader(READER_FENCES_EARLY | READER_WAITS);
}

static void reader_does_not_acquire(const void *args)
{
    (void)args;
    from_writers_to_reader(READER_FENCES);
}

static void writers_fence_and_reader_does_not_acquire(const void *args)
{
    (void)args;
    from_writers_to_reader(WRITERS_FENCE);
}

/* Writes in two phases. The reader fences in the first, and in the second if `is_fenced_again`. */
static void write_twice(bool is_fenced_again)
{
    start(128);
    if (is_writer()) {
        write_first_times(2);
        emulator_mbarrier_arrive(at(BAR), 0);
        emulator_mbarrier_wait(at(BAR_BACK), 0);
        write_first_times(1);
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR), 0);
        emulator_fence_proxy_async();
        emulator_mbarrier_arrive(at(BAR_BACK), 0);
        emulator_mbarrier_wait(at(BAR), 1);
        if (is_fenced_again)
            emulator_fence_proxy_async();
        reduce();
    }
}

static void writers_write_again(const void *args)
{
    (void)args;
    write_twice(false);
}

static void writers_write_again_and_reader_fences_again(const void *args)
{
    (void)args;
    write_twice(true);
}

/* A write after the arrival, which the wait does not cover. */
static void writer_writes_after_it_arrives(const void *args)
{
    (void)args;
    start(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_mbarrier_arrive(at(BAR), 0);
        if (me() == 77)
            write_first_times(3);
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR), 0);
        come_last();
        emulator_fence_proxy_async();
        reduce();
    }
}

/* A third thread fences on the way: it waits for the writers, and the reader waits for it. */
static void another_fences(const void *args)
{
    (void)args;
    start(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (me() == 200) {
        emulator_mbarrier_wait(at(BAR), 0);
        emulator_fence_proxy_async();
        emulator_mbarrier_arrive(at(BAR_BACK), 0);
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR_BACK), 0);
        reduce();
    }
}

/* A third thread fences beside the way: the reader does not wait for it. */
static void another_fences_for_itself(const void *args)
{
    (void)args;
    start(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (me() == 200) {
        emulator_mbarrier_wait(at(BAR), 0);
        emulator_fence_proxy_async();
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR), 0);
        come_last();
        reduce();
    }
}

/* ---- bulk groups ---- */

static _Alignas(16) float group_sums[2][2][FLOATS]; /* [block][group] */
static int later_runs;                              /* waits that left the last group unfinished */

/* Two groups, and a wait for all but the last. */
static void waits_for_all_but_the_last(const void *args)
{
    float(*groups)[FLOATS] = group_sums[emulator_block.x];

    (void)args;
    start(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_fence_proxy_async();
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR), 0);
        memset(groups, 0, sizeof group_sums[0]);
        for (int group = 0; group < 2; group++) {
            emulator_reduce_add(groups[group], at(DATA), BYTES);
            emulator_bulk_commit();
        }
        emulator_bulk_wait(1);
        ck_assert_msg(groups[0][FLOATS - 1] == 3, "a group before the last is not complete");
        later_runs += groups[1][FLOATS - 1] != 3;
        emulator_bulk_wait(0);
        ck_assert_msg(groups[1][FLOATS - 1] == 3, "the last group is not complete");
        reduce();
    }
}

START_TEST(a_wait_leaves_the_last_groups)
{
    later_runs = 0;
    check_kernel(waits_for_all_but_the_last, "all but the last", NULL);
    ck_assert_int_gt(later_runs, 0);
}
END_TEST

START_TEST(fences_at_either_end_of_an_mbarrier)
{
    check_kernel(writers_fence, "writers fence", NULL);
    check_kernel(reader_fences, "the reader fences", NULL);
    check_kernel(another_fences, "another fences on the way", NULL);
    check_kernel(writers_write_again_and_reader_fences_again, "fenced twice", NULL);
}
END_TEST

START_TEST(fences_that_are_not_on_the_way)
{
    check_kernel(nobody_fences, "no fence", "there is no fence.proxy.async between");
    check_kernel(reader_fences_too_early, "a fence before the wait",
                 "there is no fence.proxy.async between");
    check_kernel(writers_write_again, "written again", "there is no fence.proxy.async between");
    check_kernel(another_fences_for_itself, "another's fence",
                 "there is no fence.proxy.async between");
}
END_TEST

START_TEST(reads_that_nothing_orders)
{
    check_kernel(reader_does_not_acquire, "no wait, the reader fences", "nothing makes this later");
    check_kernel(writers_fence_and_reader_does_not_acquire, "no wait, writers fence",
                 "nothing makes this later");
    check_kernel(writer_writes_after_it_arrives, "written after the arrival",
                 "thread 77 wrote shared byte 1472, and nothing makes this later");
}
END_TEST

/* ---- a warp's leader arrives for its lanes: __syncwarp ---- */

static void warps_arrive(bool has_syncwarp, bool has_shuffle)
{
    start(4);
    if (is_writer()) {
        write_first_times(1);
        if (has_syncwarp)
            emulator_syncwarp();
        if (has_shuffle)
            (void)emulator_warp(0, "shfl");
        if (me() % 32 == 0)
            emulator_mbarrier_arrive(at(BAR), 0);
    } else if (is_reader()) {
        emulator_mbarrier_wait(at(BAR), 0);
        emulator_fence_proxy_async();
        reduce();
    }
}

static void leaders_arrive(const void *args)
{
    (void)args;
    warps_arrive(true, false);
}

static void leaders_arrive_without_syncwarp(const void *args)
{
    (void)args;
    warps_arrive(false, false);
}

static void leaders_arrive_after_a_shuffle(const void *args)
{
    (void)args;
    warps_arrive(false, true);
}

/* The reverse: the leader waits for its warp. */
static void leader_waits(const void *args)
{
    (void)args;
    start(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (me() < 160) {
        if (me() == 131)
            emulator_mbarrier_wait(at(BAR), 0);
        emulator_syncwarp();
        emulator_fence_proxy_async();
        if (is_reader())
            reduce();
    }
}

START_TEST(lanes_meet_at_syncwarp_only)
{
    check_kernel(leaders_arrive, "syncwarp", NULL);
    check_kernel(leader_waits, "syncwarp after the wait", NULL);
    check_kernel(leaders_arrive_without_syncwarp, "no syncwarp", "nothing makes this later");
    check_kernel(leaders_arrive_after_a_shuffle, "a shuffle", "nothing makes this later");
}
END_TEST

/* ---- bar.sync ---- */

static void all_meet(int bar, int threads)
{
    start(1);
    if (is_writer())
        write_first_times(1);
    if (me() < threads)
        emulator_bar_sync(bar, threads);
    if (me() == 0 || is_reader())
        emulator_fence_proxy_async();
}

static void bar_sync_of_all(const void *args)
{
    (void)args;
    all_meet(0, THREADS);
    if (is_reader())
        reduce();
}

static void bar_sync_of_writers(const void *args)
{
    (void)args;
    all_meet(3, 128);
    if (me() == 0)
        reduce();
}

static void bar_sync_of_others(const void *args)
{
    (void)args;
    all_meet(3, 128);
    for (int i = 0; is_reader() && i < 1000; i++)
        emulator_yield();
    if (is_reader()) {
        emulator_fence_proxy_async();
        reduce();
    }
}

START_TEST(who_meets_at_a_named_barrier)
{
    check_kernel(bar_sync_of_all, "all meet", NULL);
    check_kernel(bar_sync_of_writers, "writers meet", NULL);
    check_kernel(bar_sync_of_others, "others meet", "nothing makes this later");
}
END_TEST

/* ---- copies into what threads wrote ---- */

static void copy_over(bool has_fence, bool is_late)
{
    start(1);
    if (is_writer() && !is_late)
        write_first_times(5);
    if (has_fence)
        emulator_fence_proxy_async();
    emulator_bar_sync(0, THREADS);
    if (is_reader()) {
        emulator_mbarrier_arrive(at(BAR_COPY), BYTES);
        emulator_copy(at(DATA), source, at(BAR_COPY), BYTES);
    }
    emulator_bar_sync(0, THREADS);
    if (me() == 5 && is_late) {
        write_first_times(5);
        emulator_fence_proxy_async();
    }
    if (is_reader()) {
        emulator_mbarrier_wait(at(BAR_COPY), 0);
        reduce();
    }
}

static void copy_over_fenced(const void *args)
{
    (void)args;
    copy_over(true, false);
}

static void copy_over_unfenced(const void *args)
{
    (void)args;
    copy_over(false, false);
}

/* A write while a copy to the same place is under way: wrong in every schedule, whichever is first.
 */
static void copy_under_a_write(const void *args)
{
    (void)args;
    copy_over(true, true);
}

START_TEST(copies_over_what_threads_wrote)
{
    for (int i = 0; i < FLOATS; i++)
        source[i] = i % 4 == 0 ? (float)(i / 4) : (float)(i % 4);
    check_kernel(copy_over_fenced, "a fence before the copy", NULL);
    check_kernel(copy_over_unfenced, "no fence before the copy",
                 "there is no fence.proxy.async between");
    check_kernel(copy_under_a_write, "a write under way", "thread 5 wrote shared byte 320");
}
END_TEST

/* ---- wgmma: A and B of ones, written by the first warpgroup; the second multiplies ---- */

enum {
    A_AT = 1024 - SHARED_WINDOW % 1024, /* at a multiple of 1024, as swizzled operands are */
    B_AT = A_AT + 64 * 128,
    ONE_TWICE = 0x3f803f80 /* two bf16 */
};

static float products[THREADS][4]; /* of the second warpgroup's threads, n is 8 */

static void issue(void)
{
    const struct emulator_wgmma op = { .n = 8,
                                       .dtype = 1,
                                       .a_major = EMULATOR_K_MAJOR,
                                       .b_major = EMULATOR_K_MAJOR,
                                       .a = at(A_AT) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62,
                                       .b = at(B_AT) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62 };

    emulator_wgmma_issue(&op, products[me()], NULL);
    emulator_wgmma_commit();
}

static void multiply(void)
{
    issue();
    emulator_wgmma_wait(0);
}

static void write_ones(void)
{
    const uint32_t ones[4] = { ONE_TWICE, ONE_TWICE, ONE_TWICE, ONE_TWICE };

    for (uint32_t i = (uint32_t)me(); i < 72 * 8; i += 128)
        store(at(A_AT + 16 * i), ones);
}

/* In the second warpgroup, threads [first_fence, last_fence) fence, and threads below `waits` wait.
 */
static void product_of_written(int first_fence, int last_fence, int waits)
{
    start(128);
    if (is_writer()) {
        write_ones();
        emulator_mbarrier_arrive(at(BAR), 0);
        return;
    }
    if (me() < waits)
        emulator_mbarrier_wait(at(BAR), 0);
    else
        come_last();
    if (first_fence <= me() && me() < last_fence)
        emulator_fence_proxy_async();
    multiply();
}

static void product_fenced(const void *args)
{
    (void)args;
    product_of_written(128, 256, 256);
}

static void product_unfenced(const void *args)
{
    (void)args;
    product_of_written(0, 0, 256);
}

static void product_unfenced_by_a_thread(const void *args)
{
    (void)args;
    product_of_written(129, 256, 256);
}

static void product_without_a_wait(const void *args)
{
    (void)args;
    product_of_written(128, 256, 250);
}

/* Both warpgroups write the same bytes, not ordered with each other, and each fences and
 * multiplies. */
static void product_of_the_same_twice(const void *args)
{
    (void)args;
    start(1);
    for (uint32_t i = (uint32_t)me() % 128; i < 72 * 8; i += 128) {
        const uint32_t ones[4] = { ONE_TWICE, ONE_TWICE, ONE_TWICE, ONE_TWICE };
        store(at(A_AT + 16 * i), ones);
    }
    emulator_fence_proxy_async();
    emulator_bar_sync(1 + me() / 128, 128);
    multiply();
}

/* The leaders arrive when the product is only issued, as if B had been read. Some schedules show
 * it. */
static void product_released_too_early(const void *args)
{
    (void)args;
    start(4);
    if (is_writer()) {
        write_ones();
        emulator_fence_proxy_async();
    }
    emulator_bar_sync(0, THREADS);
    if (is_writer()) {
        const uint32_t zeros[4] = { 0 };
        emulator_mbarrier_wait(at(BAR), 0);
        if (me() < 64)
            store(at(B_AT + 16 * (uint32_t)me()), zeros);
        return;
    }
    issue();
    emulator_syncwarp();
    if (me() % 32 == 0)
        emulator_mbarrier_arrive(at(BAR), 0);
    emulator_wgmma_wait(0);
}

START_TEST(products_are_late_now_and_then)
{
    char error[EMULATOR_ERROR_TEXT];
    int count = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        ck_assert_msg(runs(product_released_too_early, seed, error), "seed %llu: %s",
                      (unsigned long long)seed, error);
        count += isnan(products[128][0]) != 0;
    }
    ck_assert_msg(0 < count && count < SEEDS / 2, "%d of %d schedules show it", count, SEEDS);
}
END_TEST

static void check_product(void (*kernel)(const void *), const char *name, int first, bool is_read)
{
    char error[EMULATOR_ERROR_TEXT];

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        memset(products, 0, sizeof products);
        ck_assert_msg(runs(kernel, seed, error), "%s, seed %llu: %s", name,
                      (unsigned long long)seed, error);
        for (int t = first; t < THREADS; t++)
            for (int i = 0; i < 4; i++)
                ck_assert_msg(is_read ? products[t][i] == 16 : isnan(products[t][i]),
                              "%s, seed %llu: thread %d has %g", name, (unsigned long long)seed, t,
                              (double)products[t][i]);
    }
}

START_TEST(products_of_what_threads_wrote)
{
    check_product(product_fenced, "readers fence", 128, true);
    check_product(product_of_the_same_twice, "the same written twice", 0, true);
    check_product(product_unfenced, "no fence", 128, false);
    check_product(product_unfenced_by_a_thread, "no fence of thread 128", 128, false);
    check_product(product_without_a_wait, "no wait of threads from 250", 128, false);
}
END_TEST

/* ---- clusters: each block fetches half of a slot for both ---- */

enum {
    CLUSTERS = 3,
    ROWS = 8, /* of a half, 128 bytes each */
    HALF = ROWS * 128,
    SLOT = A_AT,
    WORD = 224,
    USES = 5 /* of the slot */
};

static uint16_t numbered[2 * ROWS + USES][64]; /* each element is the number of its row */
static const struct emulator_tensor numbered_tensor = { .magic = EMULATOR_TENSOR_MAGIC,
                                                        .data = (const char *)numbered,
                                                        .dims = { 64, 1, 2 * ROWS + USES },
                                                        .strides = { 128, 128 },
                                                        .box = { 64, 1, ROWS } };
static int wrong;         /* reads of wrong values */
static int met[CLUSTERS]; /* threads that have come to barrier.cluster */

static uint32_t rank(void)
{
    return emulator_cluster_rank();
}

static void start_cluster(uint32_t arrivals)
{
    start(arrivals);
    emulator_cluster_sync();
}

/* Copy ROWS rows from `row` on to `blocks`, to the half of the slot that is the caller's. */
static void fetch(int row, uint32_t blocks)
{
    emulator_copy_tensor_to(at(SLOT + rank() * HALF), &numbered_tensor, at(BAR_COPY), 0, 0, row,
                            blocks);
}

/* Check the caller's eight bytes of the slot, which holds both halves from `row` on. */
static void check_slot(int row)
{
    const uint32_t number = (uint32_t)(row + me() / 16) * 0x10001;
    uint32_t words[2];

    memcpy(words, emulator_shared_at(at(SLOT + 8 * (uint32_t)me()), 8, 8, "a load"), 8);
    wrong += words[0] != number || words[1] != number;
}

static bool runs_in_clusters(void (*kernel)(const void *), uint64_t seed,
                             char error[EMULATOR_ERROR_TEXT])
{
    wrong = 0;
    memset(met, 0, sizeof met);
    for (int i = 0; i < 2 * ROWS + USES; i++)
        for (int column = 0; column < 64; column++)
            numbered[i][column] = (uint16_t)i;
    return emulator_run(&(struct emulator_launch){ .entry = kernel,
                                                   .blocks = 2 * CLUSTERS,
                                                   .threads = THREADS,
                                                   .cluster = 2,
                                                   .resident = 1 + (int)(seed % 6),
                                                   .shared_bytes = SHARED,
                                                   .seed = seed },
                        error);
}

/* Run a kernel in clusters under all seeds. With `text` NULL it must pass without a wrong read;
 * otherwise it must fail with an error that contains `text`. */
static void check_clusters(void (*kernel)(const void *), const char *name, const char *text)
{
    char error[EMULATOR_ERROR_TEXT];

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const bool is_done = runs_in_clusters(kernel, seed, error);

        ck_assert_msg(is_done == !text, "%s, seed %llu: %s", name, (unsigned long long)seed,
                      is_done ? "it passes" : error);
        ck_assert_msg(!is_done || wrong == 0, "%s, seed %llu: %d threads read something else", name,
                      (unsigned long long)seed, wrong);
        ck_assert_msg(is_done || (text && strstr(error, text)), "%s, seed %llu: %s", name,
                      (unsigned long long)seed, error);
    }
}

static void halves(const void *args)
{
    (void)args;
    start_cluster(1);
    if (me() == 0) {
        emulator_mbarrier_arrive(at(BAR_COPY), 2 * HALF);
        fetch((int)rank() * ROWS, 3);
    }
    emulator_mbarrier_wait(at(BAR_COPY), 0);
    check_slot(0);
}

/* A slot that is filled again once `readers` blocks have read it. */
static void reuse_slot(uint32_t readers)
{
    start_cluster(readers);
    for (int i = 0; i < USES; i++) {
        if (me() == 0) {
            if (i > 0)
                emulator_mbarrier_wait(at(BAR), (uint32_t)(i - 1) % 2);
            emulator_mbarrier_arrive(at(BAR_COPY), 2 * HALF);
            fetch(i + (int)rank() * ROWS, 3);
        }
        emulator_mbarrier_wait(at(BAR_COPY), (uint32_t)i % 2);
        check_slot(i);
        emulator_bar_sync(0, THREADS);
        for (uint32_t to = 0; me() == 77 && to < 2; to++)
            if (to == rank() || readers == 2)
                emulator_mbarrier_arrive_at(at(BAR), to);
    }
    emulator_cluster_sync();
}

static void reuse_what_both_have_read(const void *args)
{
    (void)args;
    reuse_slot(2);
}

static void reuse_what_one_has_read(const void *args)
{
    (void)args;
    reuse_slot(1);
}

START_TEST(halves_for_both_blocks)
{
    char error[EMULATOR_ERROR_TEXT];
    int count = 0;

    check_clusters(halves, "halves", NULL);
    check_clusters(reuse_what_both_have_read, "a slot reused", NULL);
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        count += !runs_in_clusters(reuse_what_one_has_read, seed, error) || wrong > 0;
    ck_assert_msg(count > SEEDS / 2, "%d of %d schedules show a slot reused early", count, SEEDS);
}
END_TEST

/* ---- a multicast over what the threads of the other block wrote ---- */

enum { PEER_FENCES = 1, ISSUER_WAITS = 2, ISSUER_FENCES = 4, ALL_MEET = 8 };

static void over_what_the_peer_wrote(int steps)
{
    start_cluster(128);
    if (rank() == 1 && is_writer()) {
        const float four[4] = { 1, 2, 3, 4 };
        store(at(SLOT + 16 * (uint32_t)me()), four);
        if (steps & PEER_FENCES)
            emulator_fence_proxy_async();
        emulator_mbarrier_arrive_at(at(BAR), 0);
    }
    if (steps & ALL_MEET)
        emulator_cluster_sync();
    if (is_reader())
        emulator_mbarrier_arrive(at(BAR_COPY), HALF);
    if (rank() == 0 && is_reader()) {
        if (steps & ISSUER_WAITS)
            emulator_mbarrier_wait(at(BAR), 0);
        else if (!(steps & ALL_MEET))
            come_last();
        if (steps & ISSUER_FENCES)
            emulator_fence_proxy_async();
        fetch(0, 3);
    }
    if (me() >= 64 && is_writer())
        return; /* the second half is not fetched */
    emulator_mbarrier_wait(at(BAR_COPY), 0);
    if (me() < 64)
        check_slot(0);
}

static void peer_fences(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(PEER_FENCES | ISSUER_WAITS);
}

static void peer_fences_and_all_meet(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(PEER_FENCES | ALL_MEET);
}

static void nobody_fences_in_the_cluster(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(ISSUER_WAITS);
}

static void all_meet_and_nobody_fences(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(ALL_MEET);
}

static void issuer_fences(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(ISSUER_WAITS | ISSUER_FENCES);
}

static void issuer_does_not_wait(const void *args)
{
    (void)args;
    over_what_the_peer_wrote(PEER_FENCES);
}

START_TEST(multicast_over_what_the_peer_wrote)
{
    check_clusters(peer_fences, "the peer fences", NULL);
    check_clusters(peer_fences_and_all_meet, "the peer fences and all meet", NULL);
    check_clusters(nobody_fences_in_the_cluster, "no fence",
                   "wrote its shared byte 1008, and there is no fence.proxy.async between");
    check_clusters(all_meet_and_nobody_fences, "no fence and all meet",
                   "there is no fence.proxy.async between");
    check_clusters(issuer_fences, "a fence of another block's memory",
                   "there is no fence.proxy.async between");
    check_clusters(issuer_does_not_wait, "no wait", "nothing makes this later");
}
END_TEST

/* ---- words sent to the other block ---- */

static int late_words;

static void words(const void *args)
{
    const uint32_t other = 1 - rank();
    uint32_t word;

    (void)args;
    start_cluster(1);
    if (me() == 5) {
        emulator_mbarrier_arrive(at(BAR_COPY), 4);
        emulator_store_async(at(WORD + 4), 1000 + rank(), at(BAR_COPY), other);
    }
    emulator_cluster_sync();
    memcpy(&word, emulator_shared_at(at(WORD + 4), 4, 4, "a load"), 4);
    late_words += word == UINT32_MAX;
    wrong += word != UINT32_MAX && word != 1000 + other;
    emulator_mbarrier_wait(at(BAR_COPY), 0);
    memcpy(&word, emulator_shared_at(at(WORD + 4), 4, 4, "a load"), 4);
    wrong += word != 1000 + other;
}

START_TEST(words_for_the_other_block)
{
    late_words = 0;
    check_clusters(words, "words", NULL);
    ck_assert_int_gt(late_words, 0);
    ck_assert_int_lt(late_words, SEEDS * CLUSTERS * 2 * THREADS);
}
END_TEST

/* ---- blocks that have ended, and ranks without a block ---- */

static bool comes_after_the_others_end(void)
{
    start_cluster(1);
    if (rank() != 0 || me() != 0)
        return false;
    come_last();
    return true;
}

static void copies_to_an_ended_block(const void *args)
{
    (void)args;
    if (comes_after_the_others_end())
        fetch(0, 2);
}

static void arrives_at_an_ended_block(const void *args)
{
    (void)args;
    if (comes_after_the_others_end())
        emulator_mbarrier_arrive_at(at(BAR), 1);
}

static void sends_to_an_ended_block(const void *args)
{
    (void)args;
    if (comes_after_the_others_end())
        emulator_store_async(at(WORD), 1, at(BAR), 1);
}

static void ends_while_a_copy_is_under_way(const void *args)
{
    (void)args;
    start_cluster(1);
    if (rank() == 0 && me() == 0)
        for (int i = 0; i < 64; i++)
            emulator_store_async(at(WORD), 1, at(BAR), 1);
}

static void arrives_at_no_block(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_mbarrier_arrive_at(at(BAR), 2);
}

static void copies_to_no_block(const void *args)
{
    (void)args;
    start_cluster(1);
    fetch(0, 5);
}

static void never_meets(const void *args)
{
    (void)args;
    start_cluster(1);
    if (rank() == 1 && me() == 0)
        emulator_mbarrier_wait(at(BAR), 0);
    emulator_cluster_sync();
}

/* Threads that have ended are not waited for; threads that end late are. */
static void some_end(const void *args)
{
    const int cluster = (int)emulator_block.x / 2;

    (void)args;
    start_cluster(1);
    if (me() >= 128)
        return;
    if (me() >= 64 && rank() == 1)
        come_last();
    met[cluster]++;
    if (me() >= 64)
        return;
    emulator_cluster_sync();
    wrong += met[cluster] != 2 * 128;
}

START_TEST(accesses_to_ended_and_missing_blocks)
{
    check_clusters(copies_to_an_ended_block, "a copy to an ended block",
                   "multicast: shared memory of block");
    check_clusters(copies_to_an_ended_block, "a copy to an ended block", ", which has ended");
    check_clusters(arrives_at_an_ended_block, "an arrival", ", which has ended");
    check_clusters(sends_to_an_ended_block, "a word", ", which has ended");
    check_clusters(ends_while_a_copy_is_under_way, "a word under way", " ended");
    check_clusters(arrives_at_no_block, "rank 2", "there is no block of rank 2 in a cluster of 2");
    check_clusters(copies_to_no_block, "block 2", "multicast: to blocks 5 of a cluster of 2");
}
END_TEST

START_TEST(threads_that_meet_in_a_cluster)
{
    check_clusters(some_end, "some end", NULL);
    check_clusters(never_meets, "one does not come", "threads 0-255 at barrier.cluster");
}
END_TEST

/* ---- copies to the other block ---- */

enum { THERE = DATA + BYTES, SENT = 64 };

static int late_copies;

/* Whether the caller's 16 bytes at THERE are those that the thread of its index in the other block
 * wrote with `factor`. */
static bool is_there(float factor)
{
    const float four[4] = { factor * (float)me(), factor, 2 * factor, 3 * factor };
    const uint32_t from = at(THERE + 16 * (uint32_t)me());

    return memcmp(emulator_shared_at(from, 16, 16, "a load"), four, 16) == 0;
}

static bool is_nothing_there(void)
{
    uint32_t words[4];

    memcpy(words, emulator_shared_at(at(THERE + 16 * (uint32_t)me()), 16, 16, "a load"), 16);
    return (words[0] & words[1] & words[2] & words[3]) == UINT32_MAX;
}

static void copy_to_other(void)
{
    emulator_copy_at(at(THERE), at(DATA), at(BAR_COPY), BYTES, 1 - rank());
}

/* In each block the writers write, and the reader sends their bytes to the other block. */
static void send(int steps)
{
    const float factor = (float)(1 + rank()), factor_there = (float)(2 - rank());

    start_cluster(128);
    if (is_writer()) {
        write_first_times(factor);
        if (steps & WRITERS_FENCE)
            emulator_fence_proxy_async();
        emulator_mbarrier_arrive(at(BAR), 0);
    } else if (is_reader()) {
        emulator_mbarrier_arrive(at(BAR_COPY), BYTES);
        if (steps & READER_FENCES_EARLY)
            emulator_fence_proxy_async();
        if (steps & READER_WAITS)
            emulator_mbarrier_wait(at(BAR), 0);
        else
            come_last();
        if (steps & READER_FENCES)
            emulator_fence_proxy_async();
        copy_to_other();
    }
    emulator_cluster_sync();
    if (is_writer()) {
        const bool is_late = is_nothing_there();
        late_copies += is_late;
        wrong += !is_late && !is_there(factor_there);
        emulator_mbarrier_wait(at(BAR_COPY), 0);
        wrong += !is_there(factor_there);
    }
    emulator_cluster_sync();
}

static void send_writers_fence(const void *args)
{
    (void)args;
    send(WRITERS_FENCE | READER_WAITS);
}

static void send_reader_fences(const void *args)
{
    (void)args;
    send(READER_WAITS | READER_FENCES);
}

static void send_nobody_fences(const void *args)
{
    (void)args;
    send(READER_WAITS);
}

static void send_reader_fences_early(const void *args)
{
    (void)args;
    send(READER_FENCES_EARLY | READER_WAITS);
}

static void send_reader_does_not_wait(const void *args)
{
    (void)args;
    send(WRITERS_FENCE | READER_FENCES);
}

/* A copy completes on the other block's mbarrier, at its own time. */
START_TEST(copies_to_the_other_block)
{
    late_copies = 0;
    check_clusters(send_writers_fence, "writers fence", NULL);
    check_clusters(send_reader_fences, "the reader fences", NULL);
    ck_assert_int_gt(late_copies, 0);
    ck_assert_int_lt(late_copies, 2 * SEEDS * CLUSTERS * 2 * 128);
    check_clusters(send_nobody_fences, "no fence", "there is no fence.proxy.async between");
    check_clusters(send_reader_fences_early, "a fence before the wait",
                   "there is no fence.proxy.async between");
    check_clusters(send_reader_does_not_wait, "no wait", "nothing makes this later");
}
END_TEST

/* Each block writes and fences the bytes that it will send. */
static void start_sending(void)
{
    start_cluster(128);
    if (is_writer()) {
        write_first_times(1);
        emulator_fence_proxy_async();
    }
    if (is_reader())
        emulator_mbarrier_arrive(at(BAR_COPY), BYTES);
    emulator_bar_sync(0, THREADS);
}

/* Write the source again: once the other block has received it if `has_come`, otherwise at once. */
static void send_and_write_again(bool has_come)
{
    start_sending();
    if (is_reader())
        copy_to_other();
    emulator_bar_sync(0, THREADS);
    if (is_writer()) {
        if (has_come) {
            emulator_mbarrier_wait(at(BAR_COPY), 0);
            emulator_mbarrier_arrive_at(at(BAR), 1 - rank());
            emulator_mbarrier_wait(at(BAR), 0);
        }
        write_first_times(5);
        emulator_mbarrier_wait(at(BAR_COPY), 0);
        wrong += !is_there(1);
    }
    emulator_cluster_sync();
}

static void write_again_when_it_has_come(const void *args)
{
    (void)args;
    send_and_write_again(true);
}

static void write_again_at_once(const void *args)
{
    (void)args;
    send_and_write_again(false);
}

/* Whether writing at once is seen is a matter of time; most schedules show it. */
START_TEST(copies_of_what_is_written_again)
{
    char error[EMULATOR_ERROR_TEXT];
    int count = 0;

    check_clusters(write_again_when_it_has_come, "written when it has come", NULL);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const bool is_done = runs_in_clusters(write_again_at_once, seed, error);
        ck_assert_msg(is_done || strstr(error, "before it was done"), "seed %llu: %s",
                      (unsigned long long)seed, error);
        ck_assert_int_eq(wrong, 0);
        count += !is_done;
    }
    ck_assert_msg(count > SEEDS / 2, "%d of %d schedules show it", count, SEEDS);
}
END_TEST

/* The threads of the second block write where the copy of the first one goes. */
static void send_over_what_is_there(int steps)
{
    const float four[4] = { 7, 7, 7, 7 };

    start_sending();
    if (rank() == 1 && is_writer()) {
        store(at(THERE + 16 * (uint32_t)me()), four);
        if (steps & PEER_FENCES)
            emulator_fence_proxy_async();
        emulator_mbarrier_arrive_at(at(BAR), 0);
    }
    if (rank() == 0 && is_reader()) {
        if (steps & ISSUER_WAITS)
            emulator_mbarrier_wait(at(BAR), 0);
        else
            come_last();
        if (steps & ISSUER_FENCES)
            emulator_fence_proxy_async();
        copy_to_other();
    }
    if (rank() == 1 && is_writer()) {
        emulator_mbarrier_wait(at(BAR_COPY), 0);
        wrong += !is_there(1);
    }
    emulator_cluster_sync();
}

static void there_is_fenced(const void *args)
{
    (void)args;
    send_over_what_is_there(PEER_FENCES | ISSUER_WAITS);
}

static void there_is_not_fenced(const void *args)
{
    (void)args;
    send_over_what_is_there(ISSUER_WAITS);
}

static void there_the_issuer_fences(const void *args)
{
    (void)args;
    send_over_what_is_there(ISSUER_WAITS | ISSUER_FENCES);
}

static void there_is_not_waited_for(const void *args)
{
    (void)args;
    send_over_what_is_there(PEER_FENCES);
}

/* A write while the copy is under way, as in copy_under_a_write. */
static void there_is_written_under_way(const void *args)
{
    (void)args;
    start_sending();
    if (rank() == 0 && is_reader())
        copy_to_other();
    emulator_cluster_sync();
    if (rank() == 1 && me() == 5)
        write_first_times(5); /* beside the destination: allowed */
    if (rank() == 1 && me() == 6) {
        const float four[4] = { 7, 7, 7, 7 };
        store(at(THERE), four);
    }
    if (rank() == 1 && is_writer())
        emulator_mbarrier_wait(at(BAR_COPY), 0);
    emulator_cluster_sync();
}

START_TEST(copies_over_what_the_other_block_wrote)
{
    char error[EMULATOR_ERROR_TEXT];
    int count = 0;

    check_clusters(there_is_fenced, "it fences", NULL);
    check_clusters(there_is_not_fenced, "no fence",
                   "wrote its shared byte 2288, and there is no fence.proxy.async between");
    check_clusters(there_the_issuer_fences, "a fence of another block's memory",
                   "there is no fence.proxy.async between");
    check_clusters(there_is_not_waited_for, "no wait", "nothing makes this later");
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        count += !runs_in_clusters(there_is_written_under_way, seed, error) &&
                 strstr(error, "before it was done");
    ck_assert_msg(count > SEEDS / 4, "%d of %d schedules show a write under way", count, SEEDS);
}
END_TEST

/* The first block ends while copies still read its shared memory. The second one stays until all
 * have arrived. */
static void ends_while_it_is_copied_from(const void *args)
{
    (void)args;
    start_cluster(1);
    if (rank() == 0) {
        for (uint32_t i = 0; me() == 0 && i < SENT; i++)
            emulator_copy_at(at(THERE + 16 * i), at(DATA), at(BAR_COPY), 16, 1);
        return;
    }
    if (me() == 0)
        emulator_mbarrier_arrive(at(BAR_COPY), 16 * SENT);
    emulator_mbarrier_wait(at(BAR_COPY), 0);
}

static void ends_while_it_is_copied_to(const void *args)
{
    (void)args;
    start_cluster(1);
    for (uint32_t i = 0; rank() == 0 && me() == 0 && i < SENT; i++)
        emulator_copy_at(at(THERE + 16 * i), at(DATA), at(BAR_COPY), 16, 1);
    if (rank() == 0)
        come_last();
}

static void sends_bytes_to_an_ended_block(const void *args)
{
    (void)args;
    if (comes_after_the_others_end())
        emulator_copy_at(at(THERE), at(DATA), at(BAR_COPY), 16, 1);
}

static void sends_bytes_to_no_block(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(THERE), at(DATA), at(BAR_COPY), 16, 2);
}

static void sends_to_an_odd_place(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(THERE + 8), at(DATA), at(BAR_COPY), 16, 1);
}

static void sends_from_an_odd_place(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(THERE), at(DATA + 8), at(BAR_COPY), 16, 1);
}

static void sends_odd_bytes(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(THERE), at(DATA), at(BAR_COPY), 24, 1);
}

static void sends_from_beyond_its_memory(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(THERE), at(SHARED - 16), at(BAR_COPY), 32, 1);
}

static void sends_beyond_the_others_memory(const void *args)
{
    (void)args;
    start_cluster(1);
    emulator_copy_at(at(SHARED - 16), at(DATA), at(BAR_COPY), 32, 1);
}

START_TEST(copies_to_the_other_block_that_may_not_be)
{
    check_clusters(ends_while_it_is_copied_from, "the source ends",
                   " ended with a copy or a reduction in flight");
    check_clusters(ends_while_it_is_copied_to, "the destination ends", " ended");
    check_clusters(sends_bytes_to_an_ended_block, "an ended block", ", which has ended");
    check_clusters(sends_bytes_to_no_block, "rank 2",
                   "there is no block of rank 2 in a cluster of 2");
    check_clusters(sends_to_an_odd_place, "to an odd place", "not all multiples of 16");
    check_clusters(sends_from_an_odd_place, "from an odd place", "not all multiples of 16");
    check_clusters(sends_odd_bytes, "odd bytes", "not all multiples of 16");
    check_clusters(sends_from_beyond_its_memory, "from beyond", "lie outside the block's");
    check_clusters(sends_beyond_the_others_memory, "to beyond", "lie outside the block's");
}
END_TEST

static void check_refused(int blocks, int cluster, const char *text)
{
    char error[EMULATOR_ERROR_TEXT];

    ck_assert(!emulator_run(&(struct emulator_launch){ .entry = halves,
                                                       .blocks = blocks,
                                                       .threads = THREADS,
                                                       .cluster = cluster,
                                                       .resident = 2,
                                                       .shared_bytes = SHARED,
                                                       .seed = 1 },
                            error));
    ck_assert_msg(strstr(error, text) != NULL, "%s", error);
}

START_TEST(launches_that_are_refused)
{
    check_refused(3, 2, "a launch of 3 blocks in clusters of 2");
    check_refused(6, 3, "a launch of 6 blocks in clusters of 3");
    check_refused(2, 0, "a launch of 2 blocks in clusters of 0");
}
END_TEST

/* ---- launches of several host threads ---- */

static uint64_t flag, seen;

static void polls(const void *args)
{
    (void)args;
    if (me() == 0)
        while (emulator_poll(&flag) == 0)
            continue;
    emulator_bar_sync(0, THREADS);
    if (me() == 1)
        __atomic_store_n(&seen, __atomic_load_n(&flag, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

static void raises(const void *args)
{
    (void)args;
    emulator_bar_sync(0, THREADS);
    if (me() == 2)
        __atomic_store_n(&flag, 7, __ATOMIC_RELEASE);
}

static void *run_polls(void *error)
{
    return runs(polls, 3, error) ? error : NULL;
}

START_TEST(a_launch_releases_another_that_polls)
{
    char error[EMULATOR_ERROR_TEXT], other[EMULATOR_ERROR_TEXT];
    pthread_t thread;
    void *result;

    ck_assert_int_eq(pthread_create(&thread, NULL, run_polls, other), 0);
    ck_assert(runs(raises, 1, error));
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_msg(result == other, "%s", other);
    ck_assert_uint_eq(seen, 7);
}
END_TEST

/* What does not poll never stalls; what polls does, again and again. */
START_TEST(a_launch_that_only_polls_stalls)
{
    const struct timespec millisecond = { .tv_nsec = 1000000 };
    char error[EMULATOR_ERROR_TEXT], other[EMULATOR_ERROR_TEXT];
    const int64_t before = emulator_stalls();
    pthread_t thread;
    void *result;

    ck_assert(runs(raises, 1, error));
    ck_assert_int_eq(emulator_stalls(), before);
    __atomic_store_n(&flag, 0, __ATOMIC_RELEASE);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_polls, other), 0);
    while (emulator_stalls() < before + 2)
        (void)nanosleep(&millisecond, NULL);
    __atomic_store_n(&flag, 9, __ATOMIC_RELEASE);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_msg(result == other, "%s", other);
    ck_assert_uint_eq(seen, 9);
}
END_TEST

START_TEST(a_poll_that_nothing_ends_fails)
{
    char error[EMULATOR_ERROR_TEXT];

    ck_assert_int_eq(setenv("FFA_EMULATOR_TIMEOUT_MS", "300", 1), 0);
    ck_assert(!runs(polls, 1, error));
    ck_assert_msg(strstr(error, "no thread can go on") != NULL, "%s", error);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("emulator");
    TCase *tc = tcase_create("emulator");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, fences_at_either_end_of_an_mbarrier);
    tcase_add_test(tc, a_wait_leaves_the_last_groups);
    tcase_add_test(tc, fences_that_are_not_on_the_way);
    tcase_add_test(tc, reads_that_nothing_orders);
    tcase_add_test(tc, lanes_meet_at_syncwarp_only);
    tcase_add_test(tc, who_meets_at_a_named_barrier);
    tcase_add_test(tc, copies_over_what_threads_wrote);
    tcase_add_test(tc, products_of_what_threads_wrote);
    tcase_add_test(tc, products_are_late_now_and_then);
    tcase_add_test(tc, halves_for_both_blocks);
    tcase_add_test(tc, multicast_over_what_the_peer_wrote);
    tcase_add_test(tc, words_for_the_other_block);
    tcase_add_test(tc, accesses_to_ended_and_missing_blocks);
    tcase_add_test(tc, threads_that_meet_in_a_cluster);
    tcase_add_test(tc, copies_to_the_other_block);
    tcase_add_test(tc, copies_of_what_is_written_again);
    tcase_add_test(tc, copies_over_what_the_other_block_wrote);
    tcase_add_test(tc, copies_to_the_other_block_that_may_not_be);
    tcase_add_test(tc, launches_that_are_refused);
    tcase_add_test(tc, a_launch_releases_another_that_polls);
    tcase_add_test(tc, a_launch_that_only_polls_stalls);
    tcase_add_test(tc, a_poll_that_nothing_ends_fails);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
