/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU that runs kernels on the host: what kernels compiled for it call (C++, kernel/), and what
 * its CUDA runtime calls (runtime.c). See README.md for what it models.
 *
 * Every CUDA thread is a fiber of the one host thread that launches. A fiber runs until it has to
 * wait; a seeded scheduler picks the next warp. Asynchronous work (copies of the copy engine,
 * wgmma) is done as late or as early as the rules allow, at random. What a kernel must not do ends
 * the launch with a message that names block and thread.
 */
#ifndef FFA_EMULATOR_MACHINE_H
#define FFA_EMULATOR_MACHINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define EMULATOR_NORETURN [[noreturn]]
#else
#include <stdbool.h>
#define EMULATOR_NORETURN _Noreturn
#endif

/* ---- a launch ---- */

enum {
    EMULATOR_ERROR_TEXT = 512,
    EMULATOR_SHARED_BYTES = 227 * 1024,
    EMULATOR_BLOCKS = 16,
    EMULATOR_CLUSTER = 2 /* blocks, at most */
};

struct emulator_launch {
    void (*entry)(const void *args); /* one thread of the kernel */
    const void *args;
    int blocks, threads; /* one-dimensional; threads a multiple of 32 */
    int cluster;         /* blocks of a cluster, of which `blocks` is a multiple */
    int resident;        /* blocks at a time, at most EMULATOR_BLOCKS: whole clusters of these */
    int shared_bytes;    /* dynamic */
    uint64_t seed;
};

/* Runs the kernel to its end. false: it broke a rule or cannot go on; `error` says which. One
 * launch at a time. */
bool emulator_run(const struct emulator_launch *launch, char error[EMULATOR_ERROR_TEXT]);

/* ---- the thread that calls ---- */

struct emulator_dim {
    unsigned x, y, z;
};

extern struct emulator_dim emulator_thread, emulator_block, emulator_threads, emulator_blocks;

/* End the launch. */
EMULATOR_NORETURN void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Let others run. */
void emulator_yield(void);

/* ---- shared memory: dynamic, in bytes from the window's start ---- */

char (*emulator_shared_bytes(void))[];
uint32_t emulator_shared_address(const void *pointer);
/* `bytes` there, which `what` accesses at a multiple of `alignment`. */
void *emulator_shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what);
/* The calling thread has written there: the copy engine and wgmma may read it if there is a fence
 * on the way from here to the thread that issues the operation. */
void emulator_shared_written(uint32_t address, uint32_t bytes);
void emulator_fence_proxy_async(void);

/* ---- warps ---- */

/* All 32 lanes meet and leave a word each; the answer has everyone's, in lane order, until the
 * second next meeting. `what` must be the same for all. Orders no memory. */
const uint64_t *emulator_warp(uint64_t word, const char *what);
void emulator_syncwarp(void);
void emulator_ldmatrix_x4(uint32_t words[4], uint32_t address);
void emulator_stmatrix_x4(uint32_t address, const uint32_t words[4]);
void emulator_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], int dtype);

/* ---- barriers ---- */

void emulator_bar_sync(int id, int threads);
void emulator_mbarrier_init(uint32_t bar, uint32_t count);
void emulator_mbarrier_arrive(uint32_t bar, uint32_t expect_bytes);
/* Returns when the phase of that parity is complete. */
void emulator_mbarrier_wait(uint32_t bar, uint32_t parity);
bool emulator_mbarrier_test(uint32_t bar, uint32_t parity);

/* ---- clusters: shared addresses are of the block `rank`, and the same in all ---- */

uint32_t emulator_cluster_rank(void);
/* All threads of the cluster meet, but for those that have ended. */
void emulator_cluster_sync(void);
void emulator_mbarrier_arrive_at(uint32_t bar, uint32_t rank);
/* Some time later `value` is there, and four bytes complete on `bar` there. */
void emulator_store_async(uint32_t address, uint32_t value, uint32_t bar, uint32_t rank);
/* Some time later the caller's shared bytes are at `to` there, and complete on `bar` there. */
void emulator_copy_at(uint32_t to, uint32_t from, uint32_t bar, uint32_t bytes, uint32_t rank);

/* ---- the copy engine ---- */

/* What a tensor map of this machine holds, 128 bytes at most: 16-bit elements, three dimensions,
 * 128-byte swizzle, zeros outside. */
struct emulator_tensor {
    uint64_t magic;
    const char *data;
    uint64_t dims[3];
    uint64_t strides[2]; /* bytes, of dimensions 1 and 2 */
    uint32_t box[3];
};
#define EMULATOR_TENSOR_MAGIC 0x70616d2d726f7473ull

void emulator_copy_tensor(uint32_t to, const void *map, uint32_t bar, int column, int head,
                          int row);
/* To each block of the cluster whose bit is set, completing on the mbarrier there. */
void emulator_copy_tensor_to(uint32_t to, const void *map, uint32_t bar, int column, int head,
                             int row, uint32_t blocks);
void emulator_copy(uint32_t to, const void *from, uint32_t bar, uint32_t bytes);
void emulator_reduce_add(float *to, uint32_t from, int bytes);
void emulator_bulk_commit(void);
/* The thread's reductions, but for those of its last `left` commits, have read shared memory; or
 * have added. */
void emulator_bulk_wait_read(int left);
void emulator_bulk_wait(int left);

/* ---- wgmma: 64 x n, k = 16 ---- */

enum emulator_major { EMULATOR_K_MAJOR, EMULATOR_MN_MAJOR, EMULATOR_REGISTERS };

struct emulator_wgmma {
    int n, dtype, accumulate;
    enum emulator_major a_major, b_major;
    uint64_t a, b; /* descriptors */
};

/* The thread's n / 2 accumulators and, where A is in registers, its four words. */
void emulator_wgmma_issue(const struct emulator_wgmma *op, float *d, const uint32_t a[4]);
void emulator_wgmma_commit(void);
void emulator_wgmma_wait(int pending);

/* ---- 16-bit floats: dtype 1 bf16, 2 fp16 ---- */

float emulator_from_half(uint32_t bits, int dtype);
uint32_t emulator_to_half(float value, int dtype);

#ifdef __cplusplus
}
#endif
#endif
