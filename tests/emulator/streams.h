/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: queues of work, each with a host thread that does it in order. Thread: any.
 *
 * The work of a stream that blocks and that of its device's legacy stream are ordered as they were
 * enqueued. All other streams run at the same time, unless one waits for an event of another or for
 * a word. After a failure, which stays, no stream does anything but pass events.
 */
#ifndef FFA_EMULATOR_STREAMS_H
#define FFA_EMULATOR_STREAMS_H

#include "runtime.h"

struct stream;

/* An event stands for the mark of its last record. */
struct mark;
struct event {
    bool has_time;
    struct mark *mark; /* NULL: never recorded */
};

enum work_kind {
    WORK_LAUNCH,
    WORK_HOST,       /* host(to) */
    WORK_COPY,       /* bytes from `from` to `to` */
    WORK_FILL,       /* bytes of `to` */
    WORK_FREE,       /* memory `to` */
    WORK_PASS,       /* a mark passes */
    WORK_AFTER,      /* goes on when the mark has passed */
    WORK_WORD_WAIT,  /* goes on when the word at `to` has the value or a later one, cyclically */
    WORK_WORD_WRITE, /* the word at `to` */
    WORK_NOTHING
};

struct work {
    enum work_kind kind;
    const struct kernel *kernel;
    struct launch_shape shape;
    uint64_t number; /* of the launch */
    void (*host)(void *data);
    struct mark *mark;
    void *to;
    const void *from;
    int byte;
    size_t bytes;
    uint64_t value;
    /* Copied when the work is enqueued: of a launch, or the source of a copy, which is read then.
     */
    const void *args;
    size_t args_bytes;
};

/* NULL without memory. */
struct stream *stream_create(int device, bool is_blocking);
/* What is enqueued is still done. */
void stream_destroy(struct stream *stream);
/* NULL: the legacy stream of the thread's device. */
struct stream *stream_of(cudaStream_t handle);
/* No other stream ever has it. */
uint64_t stream_id(const struct stream *stream);
cudaError_t stream_enqueue(struct stream *stream, const struct work *work);
/* Wait until all that was enqueued before is done. */
cudaError_t stream_finish(struct stream *stream);
/* The same of all streams of a device; of all devices: -1. */
cudaError_t streams_finish(int device);
cudaError_t streams_failure(void);

cudaError_t event_record(struct event *event, struct stream *stream);
/* What is enqueued on the stream from now on comes after the event's last record. */
cudaError_t event_after(struct event *event, struct stream *stream);
bool event_is_passed(const struct event *event);
void event_finish(const struct event *event);
void event_drop(struct event *event);
/* When both have passed: nanoseconds from one to the other. */
int64_t event_elapsed_ns(const struct event *from, const struct event *to);

#endif
