/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU that runs kernels on the host. Kernels compiled for it (C++, kernel/) and its CUDA runtime
 * (runtime.c) call these functions. README.md says what it models.
 *
 * Every CUDA thread is a fiber of the one host thread that runs its launch. A fiber runs until it
 * has to wait; then a seeded scheduler picks the next warp. Asynchronous work (copies of the copy
 * engine, wgmma) is done at a random time, as early or as late as the rules allow. A kernel that
 * breaks a rule ends its launch, with a message that names block and thread.
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
    int resident;        /* blocks at a time, at most EMULATOR_BLOCKS; rounded to whole clusters */
    int shared_bytes;    /* dynamic */
    uint64_t seed;
};

/* Run a kernel to its end. Returns false where it broke a rule or no thread can go on; `error` then
 * says which. Thread: any; launches of several host threads run at the same time. */
bool emulator_run(const struct emulator_launch *launch, char error[EMULATOR_ERROR_TEXT]);

/* ---- the calling CUDA thread ---- */

struct emulator_dim {
    unsigned x, y, z;
};

/* Each host thread runs a launch of its own. The emulator is there when the process starts. */
#define EMULATOR_THREAD __thread __attribute__((tls_model("initial-exec")))
extern EMULATOR_THREAD struct emulator_dim emulator_thread, emulator_block, emulator_threads,
    emulator_blocks;

/* End the launch with this message. */
EMULATOR_NORETURN void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Let other threads run. */
void emulator_yield(void);
/* Read a word of global memory that another launch, a stream or another process may write. Other
 * threads of the launch run; where none of them has anything to do, other host threads do. A launch
 * that only polls, and sees nothing change for FFA_EMULATOR_TIMEOUT_MS (60000), fails. */
uint64_t emulator_poll(const uint64_t *at);

/* ---- shared memory, all of it dynamic. An address is 32 bits, as in PTX ---- */

char (*emulator_shared_bytes(void))[];
uint32_t emulator_shared_address(const void *pointer);
/* The memory at an address, for an access of `bytes`. The launch fails where the address is not a
 * multiple of `alignment` or the access leaves the block's memory; `what` names the access. */
void *emulator_shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what);
/* Record that the calling thread has written there. The copy engine and wgmma may read it if there
 * is a fence between this write and the thread that issues the operation (clock.c). */
void emulator_shared_written(uint32_t address, uint32_t bytes);
void emulator_fence_proxy_async(void);

/* ---- warps ---- */

/* All 32 lanes meet and each leaves a word. The result has the words in lane order; it is valid
 * until the second meeting after this one. `what` must be the same for all lanes. Orders no memory.
 */
const uint64_t *emulator_warp(uint64_t word, const char *what);
void emulator_syncwarp(void);
void emulator_ldmatrix_x4(uint32_t words[4], uint32_t address);
void emulator_stmatrix_x4(uint32_t address, const uint32_t words[4]);
void emulator_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2], int dtype);

/* ---- barriers ---- */

void emulator_bar_sync(int id, int threads);
void emulator_mbarrier_init(uint32_t bar, uint32_t count);
void emulator_mbarrier_arrive(uint32_t bar, uint32_t expect_bytes);
/* Return when the phase of that parity is complete. */
void emulator_mbarrier_wait(uint32_t bar, uint32_t parity);
bool emulator_mbarrier_test(uint32_t bar, uint32_t parity);

/* ---- clusters. `rank` says whose shared memory; an address means the same place in all ---- */

uint32_t emulator_cluster_rank(void);
/* All threads of the cluster meet, except those that have ended. */
void emulator_cluster_sync(void);
void emulator_mbarrier_arrive_at(uint32_t bar, uint32_t rank);
/* Later, at a random time, `value` is stored in block `rank`, and four bytes complete on `bar`
 * there.
 */
void emulator_store_async(uint32_t address, uint32_t value, uint32_t bar, uint32_t rank);
/* Later, at a random time, the caller's bytes at `from` are copied to `to` in block `rank`, and
 * complete on `bar` there. */
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
/* Multicast: to each block of the cluster whose bit in `blocks` is set; completes on `bar` there.
 */
void emulator_copy_tensor_to(uint32_t to, const void *map, uint32_t bar, int column, int head,
                             int row, uint32_t blocks);
void emulator_copy(uint32_t to, const void *from, uint32_t bar, uint32_t bytes);
void emulator_reduce_add(float *to, uint32_t from, int bytes);
void emulator_bulk_commit(void);
/* Wait until the caller's reductions, except those of its last `left` commits, have read shared
 * memory, or have been added. */
void emulator_bulk_wait_read(int left);
void emulator_bulk_wait(int left);

/* ---- wgmma: 64 x n, k = 16 ---- */

enum emulator_major { EMULATOR_K_MAJOR, EMULATOR_MN_MAJOR, EMULATOR_REGISTERS };

struct emulator_wgmma {
    int n, dtype, accumulate;
    enum emulator_major a_major, b_major;
    uint64_t a, b; /* descriptors */
};

/* d: the calling thread's n / 2 accumulators. a: its four words of A, where A is in registers. */
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
