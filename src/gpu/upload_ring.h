/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned host memory of a device for uploads that are under way.
 */
#ifndef FFA_GPU_UPLOAD_RING_H
#define FFA_GPU_UPLOAD_RING_H

#include "gpu/cuda_runtime.h"
#include "gpu/gpu.h"

#include <pthread.h>

enum { UPLOAD_SLOTS = 16 };

struct upload_slot {
    void *memory;     /* pinned; NULL: none yet */
    int64_t bytes;    /* of it: a power of two */
    cudaEvent_t done; /* passes when the device has read the memory; NULL: none yet */
    bool is_busy;     /* `done` was not seen to pass since it was recorded */
    int64_t turn;     /* when it was used last */
};

struct upload_ring {
    const struct gpu_runtime *cuda; /* not owned */
    pthread_mutex_t lock;
    struct upload_slot slots[UPLOAD_SLOTS];
    int64_t turn; /* uploads so far */
};

void upload_ring_init(struct upload_ring *ring, const struct gpu_runtime *cuda);
/* Waits for uploads under way. Called with the device current. */
void upload_ring_finish(struct upload_ring *ring);
/* Copy `src` to a slot and enqueue the copy from there to the device. `src` is not needed after the
 * call. Waits only where no slot is free, for the oldest that is large enough, or else for the
 * oldest. Called with the device current. Fails with FFA_NOMEM and FFA_GPU. */
ffa_status upload_ring_enqueue(struct upload_ring *ring, void *dst, const void *src, int64_t bytes,
                               ffa_stream stream, ffa_error *err);

#endif
