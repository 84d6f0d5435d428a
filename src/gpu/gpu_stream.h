/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, words of memory that streams wait for and write, batches of copies, and memory
 * that other devices and other processes reach.
 *
 * A communicator uses these between GPUs. What is named _create, _destroy, _open, _close, _enable,
 * _export or _synchronize may block, allocate or wait for the device, and belongs outside a pass.
 * Everything else only enqueues, or asks: it neither blocks the host nor allocates memory of the
 * device. Every call leaves the caller's current device as it was. CUDA's errors become FFA_GPU and
 * name the call. Thread: any, unless a function says otherwise.
 */
#ifndef FFA_GPU_GPU_STREAM_H
#define FFA_GPU_GPU_STREAM_H

#include "gpu/gpu.h"

/* ---- streams ---- */

/* A stream of a device that the legacy default stream does not wait for, nor it for that one. */
struct gpu_stream;

enum { GPU_PRIORITY_GREATEST = -1000 };
/* priority: 0 the default; -1 one step before it, where the device has priorities; the device's
 * greatest where it has fewer. *out: caller's, gpu_stream_destroy() before the device is closed. */
ffa_status gpu_stream_create(struct gpu_stream **out, struct gpu_device *device, int priority,
                             ffa_error *err);
/* Does not wait: work that was enqueued is still done. NULL is allowed. */
void gpu_stream_destroy(struct gpu_stream *stream);
/* Borrowed until the stream is destroyed. */
ffa_stream gpu_stream_handle(const struct gpu_stream *stream);
/* The same of a caller who keeps the handle alone; for gpu_stream_drop. */
ffa_status gpu_stream_make(ffa_stream *out, struct gpu_device *device, ffa_error *err);
void gpu_stream_drop(struct gpu_device *device, ffa_stream stream);
/* FFA_INVALID, naming `what`, while the stream captures a graph. */
ffa_status gpu_stream_refuse_capture(struct gpu_device *device, ffa_stream stream, const char *what,
                                     ffa_error *err);
/* Whether the handle names the legacy default stream: NULL, or cudaStreamLegacy. */
static inline bool gpu_stream_is_legacy(ffa_stream stream)
{
    return (uintptr_t)stream <= 1;
}
/* A number that no other stream of the process ever has, also not one that is made where another
 * was destroyed and has its handle. Enqueues nothing. */
ffa_status gpu_stream_id(struct gpu_device *device, ffa_stream stream, uint64_t *out,
                         ffa_error *err);
/* Block until the work enqueued so far on one stream, ours or the caller's, is done. */
ffa_status gpu_stream_synchronize(struct gpu_device *device, ffa_stream stream, ffa_error *err);

/* ---- events ---- */

struct gpu_event;

/* has_time: gpu_event_elapsed_ms works on it. *out: caller's, gpu_event_destroy() before the device
 * is closed. */
ffa_status gpu_event_create(struct gpu_event **out, struct gpu_device *device, bool has_time,
                            ffa_error *err);
/* Streams that wait for the event still do. NULL is allowed. */
void gpu_event_destroy(struct gpu_event *event);
/* The stream must be of the event's device. An event stands for its last record. */
ffa_status gpu_event_record(struct gpu_event *event, ffa_stream stream, ffa_error *err);
/* What is enqueued on the stream from now on waits until the event has passed. The stream may be of
 * any device; an event that was never recorded has passed. */
ffa_status gpu_event_wait(struct gpu_event *event, ffa_stream stream, ffa_error *err);
/* Never blocks, and leaves the thread's last CUDA error as it was. true for an event that was never
 * recorded. */
ffa_status gpu_event_query(const struct gpu_event *event, bool *is_done, ffa_error *err);
/* From one event's passing to another's, both with has_time and both passed (FFA_GPU otherwise). */
ffa_status gpu_event_elapsed_ms(const struct gpu_event *begin, const struct gpu_event *end,
                                float *ms, ffa_error *err);

/* ---- words that streams wait for and write ----
 *
 * A word is a uint64 in device memory, aligned to 8 bytes: memory of the device itself, of a peer,
 * or of another process. A wait passes when (int64_t)(word - value) >= 0, so words may count
 * beyond 2^64. A write is seen by others only after everything that was enqueued on the stream
 * before it is done and visible. */

struct gpu_value_op {
    uint64_t *at;
    uint64_t value;
    bool is_wait; /* else it writes */
};

ffa_status gpu_wait_value(struct gpu_device *device, ffa_stream stream, const uint64_t *at,
                          uint64_t value, ffa_error *err);
ffa_status gpu_write_value(struct gpu_device *device, ffa_stream stream, uint64_t *at,
                           uint64_t value, ffa_error *err);
/* Waits and writes in the order of the array, in one call where there are at most
 * GPU_VALUE_BATCH_MAX. The array is not needed after the call. count 0: nothing is done. */
enum { GPU_VALUE_BATCH_MAX = 64 };
ffa_status gpu_value_batch(struct gpu_device *device, ffa_stream stream,
                           const struct gpu_value_op *ops, int count, ffa_error *err);

/* ---- copies ---- */

/* Copy `count` ranges of device memory, in any order among themselves, but all of them in stream
 * order. bytes[i] > 0; ranges do not overlap. The arrays are not needed after the call. `stream` is
 * one of our own or the caller's, but not NULL: the driver takes no batch on the legacy default
 * stream. count 0: nothing is done. Where the driver is older than 12.8 the copies are enqueued one
 * by one. */
ffa_status gpu_copy_batch(struct gpu_device *device, ffa_stream stream, void *const *dst,
                          const void *const *src, const size_t *bytes, int64_t count,
                          ffa_error *err);

/* ---- other devices, other processes (gpu_peer.c) ---- */

/* Sixteen bytes that tell a device from every other one, in all processes. */
ffa_status gpu_device_identity(const struct gpu_device *device, unsigned char uuid[16],
                               ffa_error *err);

/* Whether the device can reach the memory of another one. true for the device itself. */
ffa_status gpu_can_peer(const struct gpu_device *device, int other, bool *can, ffa_error *err);
/* Let the device reach the memory of another one; it stays so. Nothing is done for the device
 * itself, or where it was enabled before. FFA_UNSUPPORTED where it cannot. */
ffa_status gpu_peer_enable(struct gpu_device *device, int other, ffa_error *err);

enum { GPU_IPC_BYTES = 64 };
/* What another process opens memory with. `memory` is what gpu_alloc gave, not an address within
 * it, and must stay allocated until the last process has closed it. */
ffa_status gpu_ipc_export(struct gpu_device *device, void *memory,
                          unsigned char handle[GPU_IPC_BYTES], ffa_error *err);
/* The memory, in this process's addresses; *out: caller's, gpu_ipc_close() before the device is
 * closed. Enables peer access where the memory is another device's. Fails with FFA_GPU in the
 * process that exported it. A handle is opened once in a process. */
ffa_status gpu_ipc_open(struct gpu_device *device, const unsigned char handle[GPU_IPC_BYTES],
                        void **out, ffa_error *err);
/* Work that uses the memory must be done. NULL is allowed. */
void gpu_ipc_close(struct gpu_device *device, void *memory);

#endif
