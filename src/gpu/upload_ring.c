/* SPDX-License-Identifier: Apache-2.0
 *
 * Uploads that do not wait for their stream: the bytes are put aside in pinned memory, from which
 * the device copies them when the stream gets there. A copy from pageable memory would do so for
 * small sizes only.
 *
 * Invariant: a slot that is busy has an event that was recorded behind its last copy, and is not
 * written until that has passed. Slots are allocated as uploads need them and kept until the device
 * is closed: to free pinned memory, CUDA may wait for the whole device. So a slot is replaced by a
 * larger one only when all slots are there and none of the free ones is large enough.
 */
#include "gpu/upload_ring.h"

#include "gpu/gpu_internal.h"

/* Plans are mostly smaller, so that slots serve all of them. */
#define SLOT_BYTES_LEAST ((int64_t)64 << 10)

void upload_ring_init(struct upload_ring *ring, const struct gpu_runtime *cuda)
{
    *ring = (struct upload_ring){ .cuda = cuda };
    (void)pthread_mutex_init(&ring->lock, NULL);
}

static ffa_status slot_wait(const struct gpu_runtime *cuda, struct upload_slot *slot,
                            ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (slot->is_busy)
        FFA_TRY(
            gpu_status(cuda, cuda->cudaEventSynchronize(slot->done), "wait for an upload", err));
    slot->is_busy = false;
out:
    return rc;
}

static void slot_free(const struct gpu_runtime *cuda, struct upload_slot *slot)
{
    if (slot->memory)
        (void)cuda->cudaFreeHost(slot->memory);
    slot->memory = NULL;
    slot->bytes = 0;
}

void upload_ring_finish(struct upload_ring *ring)
{
    const struct gpu_runtime *cuda = ring->cuda;

    for (int i = 0; i < UPLOAD_SLOTS; i++) {
        struct upload_slot *slot = &ring->slots[i];

        (void)slot_wait(cuda, slot, NULL);
        slot_free(cuda, slot);
        if (slot->done)
            (void)cuda->cudaEventDestroy(slot->done);
    }
    (void)pthread_mutex_destroy(&ring->lock);
}

/* See which slots the device has done with. To ask is to leave "not ready" as the thread's last
 * error, which is cleared. Where the caller has yet to look at an error of its own, nothing is
 * asked: the slots stay busy, and the error stays. */
static void slots_poll(struct upload_ring *ring)
{
    const struct gpu_runtime *cuda = ring->cuda;
    bool is_clear = true;

    if (cuda->cudaPeekAtLastError() != cudaSuccess)
        return;
    for (int i = 0; i < UPLOAD_SLOTS; i++) {
        struct upload_slot *slot = &ring->slots[i];

        if (!slot->is_busy)
            continue;
        slot->is_busy = cuda->cudaEventQuery(slot->done) != cudaSuccess;
        is_clear = is_clear && !slot->is_busy;
    }
    if (!is_clear)
        (void)cuda->cudaGetLastError();
}

/* Whether slot a is the better one for so many bytes. A free one comes first, then one that is not
 * allocated yet, then a busy one. Of these it is the smallest that is free, the oldest that is
 * busy, and one that is large enough in any case. */
static int rank_of(const struct upload_slot *slot, int64_t bytes)
{
    const bool fits = slot->bytes >= bytes;

    if (!slot->memory)
        return 1;
    return slot->is_busy ? (fits ? 3 : 4) : (fits ? 0 : 2);
}

static bool is_better(const struct upload_slot *a, const struct upload_slot *b, int64_t bytes)
{
    const int rank_a = rank_of(a, bytes), rank_b = rank_of(b, bytes);

    if (rank_a != rank_b)
        return rank_a < rank_b;
    return a->is_busy ? a->turn < b->turn : a->bytes < b->bytes;
}

static struct upload_slot *slot_choose(struct upload_ring *ring, int64_t bytes)
{
    struct upload_slot *best = &ring->slots[0];

    for (int i = 1; i < UPLOAD_SLOTS; i++)
        if (is_better(&ring->slots[i], best, bytes))
            best = &ring->slots[i];
    return best;
}

/* Make a slot ready to be written: nothing reads it, and it is large enough. */
static ffa_status slot_take(const struct gpu_runtime *cuda, struct upload_slot *slot, int64_t bytes,
                            ffa_error *err)
{
    int64_t size = SLOT_BYTES_LEAST;
    ffa_status rc;

    FFA_TRY(slot_wait(cuda, slot, err));
    if (!slot->done)
        FFA_TRY(gpu_status(cuda,
                           cuda->cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming),
                           "create an event", err));
    if (slot->bytes >= bytes)
        goto out;
    while (size < bytes)
        size *= 2;
    slot_free(cuda, slot);
    FFA_TRY(gpu_status(cuda, cuda->cudaHostAlloc(&slot->memory, (size_t)size, cudaHostAllocDefault),
                       "allocate pinned host memory", err));
    slot->bytes = size;
out:
    return rc;
}

static ffa_status enqueue(struct upload_ring *ring, void *dst, const void *src, int64_t bytes,
                          ffa_stream stream, ffa_error *err)
{
    const struct gpu_runtime *cuda = ring->cuda;
    struct upload_slot *slot;
    ffa_status rc;

    slots_poll(ring);
    slot = slot_choose(ring, bytes);
    FFA_TRY(slot_take(cuda, slot, bytes, err));
    memcpy(slot->memory, src, (size_t)bytes);
    FFA_TRY(gpu_status(
        cuda,
        cuda->cudaMemcpyAsync(dst, slot->memory, (size_t)bytes, cudaMemcpyHostToDevice, stream),
        "upload", err));
    slot->turn = ++ring->turn;
    rc = gpu_status(cuda, cuda->cudaEventRecord(slot->done, stream), "record an event", err);
    if (rc == FFA_OK)
        slot->is_busy = true;
    else /* nothing says when the slot is free */
        (void)cuda->cudaStreamSynchronize(stream);
out:
    return rc;
}

ffa_status upload_ring_enqueue(struct upload_ring *ring, void *dst, const void *src, int64_t bytes,
                               ffa_stream stream, ffa_error *err)
{
    /* A capture of another stream may forbid this thread to allocate and to query events, which the
     * graph has nothing to do with. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const struct gpu_runtime *cuda = ring->cuda;
    ffa_status rc;

    FFA_TRY(gpu_status(cuda, cuda->cudaThreadExchangeStreamCaptureMode(&mode),
                       "set the capture mode", err));
    (void)pthread_mutex_lock(&ring->lock);
    rc = enqueue(ring, dst, src, bytes, stream, err);
    (void)pthread_mutex_unlock(&ring->lock);
    (void)cuda->cudaThreadExchangeStreamCaptureMode(&mode);
out:
    return rc;
}
