/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU without kernels: see fake_gpu.h. Device memory is read and written by words with atomic
 * loads and stores, since a GPU takes races that a host program may not have.
 */
#include "support/fake_gpu.h"

#include "gpu/gpu_poll.h"

#include <check.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct gpu_device {
    int ordinal;
};

enum { DEVICES = 4, SHARES = 8, ALIGN = 1 << 12, QUEUE_MAX = 4096 };
#define SHARE_BYTES ((size_t)64 << 20)

static struct gpu_device devices[DEVICES] = { { 0 }, { 1 }, { 2 }, { 3 } };
static char *share;
static size_t share_used;
static pthread_mutex_t share_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long allocated;

struct gpu_device *fake_gpu(int ordinal)
{
    return &devices[ordinal];
}

int gpu_device_ordinal(const struct gpu_device *device)
{
    return device->ordinal;
}

int gpu_device_sm_count(const struct gpu_device *device)
{
    (void)device;
    return 132;
}

const struct device_facts *gpu_device_facts(const struct gpu_device *device)
{
    static const struct device_facts facts = { .name = "fake",
                                               .sm_count = 132,
                                               .l2_bytes = 60 << 20 };

    (void)device;
    return &facts;
}

/* ---- memory ---- */

/* Of shared memory: how often each page is mapped as the first one of an allocation. */
struct mapped {
    atomic_int pages[SHARES * SHARE_BYTES / ALIGN];
    atomic_long freed;
};

static char *shares; /* of all processes */
static struct mapped *mapped;

static atomic_int *mappings_of(const void *memory)
{
    return &mapped->pages[(size_t)((const char *)memory - shares) / ALIGN];
}

long fake_gpu_freed_mapped(void)
{
    return mapped ? atomic_load(&mapped->freed) : 0;
}

void fake_gpu_share(int process)
{
    if (!shares) {
        shares = mmap(NULL, SHARES * SHARE_BYTES + sizeof *mapped, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mapped = (struct mapped *)(void *)(shares + SHARES * SHARE_BYTES);
    }
    share = shares + (size_t)process * SHARE_BYTES;
    share_used = 0;
}

long fake_gpu_allocated(void)
{
    return atomic_load(&allocated);
}

ffa_status gpu_alloc(struct gpu_device *device, void **out, int64_t bytes, ffa_error *err)
{
    const size_t size = ((size_t)bytes + ALIGN - 1) / ALIGN * ALIGN;

    (void)device;
    *out = NULL;
    if (fault_here(FAULT_GPU))
        return error_fail(err, FFA_NOMEM, 2, "cannot allocate device memory: out of memory");
    pthread_mutex_lock(&share_lock);
    if (!share) {
        *out = aligned_alloc(ALIGN, size);
    } else if (share_used + size <= SHARE_BYTES) {
        *out = share + share_used;
        share_used += size;
    }
    pthread_mutex_unlock(&share_lock);
    if (!*out)
        return error_fail(err, FFA_NOMEM, 2, "cannot allocate device memory: out of memory");
    atomic_fetch_add(&allocated, 1);
    return FFA_OK;
}

void gpu_free(struct gpu_device *device, void *memory)
{
    (void)device;
    if (!memory)
        return;
    atomic_fetch_sub(&allocated, 1);
    if (!share)
        free(memory);
    else if (atomic_load(mappings_of(memory)) > 0)
        atomic_fetch_add(&mapped->freed, 1);
}

uint64_t fake_gpu_load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

void fake_gpu_store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static void copy_words(void *dst, const void *src, size_t bytes)
{
    uint64_t *to = dst;
    const uint64_t *from = src;

    ck_assert_uint_eq(bytes % sizeof *to, 0);
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        fake_gpu_store(&to[i], fake_gpu_load(&from[i]));
}

/* ---- streams ---- */

enum what { WAIT, WRITE, COPY, FILL, RECORD, AWAIT, LAUNCH };

struct op {
    struct op *next;
    enum what what;
    uint64_t *at;
    uint64_t value;
    void *dst;
    const void *src;
    size_t bytes;
    struct gpu_event *event;
    void (*work)(void *user);
    void *user;
};

struct gpu_stream {
    struct gpu_device *device;
    uint64_t id;
    int priority;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct op *first, **last;
    uint64_t entered, done;
    bool is_closing;
};

struct gpu_event {
    atomic_int owners; /* whoever made it, and operations that stand in queues */
    _Atomic uint64_t recorded, passed;
    _Atomic int64_t passed_ns; /* when it passed last; read once it has */
    bool has_time;
};

/* An event may be destroyed while operations with it stand in queues. */
static void event_release(struct gpu_event *event)
{
    if (atomic_fetch_sub(&event->owners, 1) == 1)
        free(event);
}

static int64_t clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_a_little(void)
{
    usleep(100);
}

static void execute(const struct op *op)
{
    switch (op->what) {
    case WAIT:
        while ((int64_t)(fake_gpu_load(op->at) - op->value) < 0)
            pause_a_little();
        break;
    case WRITE:
        fake_gpu_store(op->at, op->value);
        break;
    case COPY:
        copy_words(op->dst, op->src, op->bytes);
        break;
    case FILL:
        for (size_t i = 0; i < op->bytes / sizeof(uint64_t); i++)
            fake_gpu_store((uint64_t *)op->dst + i, op->value);
        break;
    case RECORD:
        atomic_store(&op->event->passed_ns, clock_ns());
        atomic_store(&op->event->passed, op->value);
        break;
    case AWAIT:
        while (atomic_load(&op->event->passed) < op->value)
            pause_a_little();
        break;
    case LAUNCH:
        op->work(op->user);
        break;
    }
}

static void *run_stream(void *user)
{
    struct gpu_stream *stream = user;

    pthread_mutex_lock(&stream->lock);
    for (;;) {
        struct op *op = stream->first;

        if (!op && stream->is_closing)
            break;
        if (!op) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        pthread_mutex_unlock(&stream->lock);
        execute(op);
        pthread_mutex_lock(&stream->lock);
        if (op->event)
            event_release(op->event);
        stream->first = op->next;
        if (!stream->first)
            stream->last = &stream->first;
        free(op);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static atomic_ullong streams_made;

ffa_status gpu_stream_create(struct gpu_stream **out, struct gpu_device *device, int priority,
                             ffa_error *err)
{
    struct gpu_stream *stream = NULL;

    *out = NULL;
    if (fault_here(FAULT_GPU) || !(stream = calloc(1, sizeof *stream)))
        return error_fail(err, FFA_GPU, 1, "cannot create a stream: fault");
    stream->device = device;
    stream->id = atomic_fetch_add(&streams_made, 1) + 1;
    stream->priority = priority;
    stream->last = &stream->first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    pthread_create(&stream->thread, NULL, run_stream, stream);
    *out = stream;
    return FFA_OK;
}

int fake_gpu_priority(const struct gpu_stream *stream)
{
    return stream->priority;
}

void gpu_stream_destroy(struct gpu_stream *stream)
{
    if (!stream)
        return;
    pthread_mutex_lock(&stream->lock);
    stream->is_closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

ffa_stream gpu_stream_handle(const struct gpu_stream *stream)
{
    return (ffa_stream)(uintptr_t)stream;
}

static struct gpu_stream *stream_of(ffa_stream stream)
{
    return (struct gpu_stream *)(void *)stream;
}

static ffa_status put(ffa_stream to, struct op content, ffa_error *err)
{
    struct gpu_stream *stream = stream_of(to);
    struct op *op = malloc(sizeof *op);

    if (fault_here(FAULT_GPU)) {
        free(op);
        return error_fail(err, FFA_GPU, 1, "cannot enqueue: fault");
    }
    *op = content;
    op->next = NULL;
    if (op->event)
        atomic_fetch_add(&op->event->owners, 1);
    pthread_mutex_lock(&stream->lock);
    while (stream->entered - stream->done >= QUEUE_MAX) /* as a driver's queue */
        pthread_cond_wait(&stream->changed, &stream->lock);
    *stream->last = op;
    stream->last = &op->next;
    stream->entered++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return FFA_OK;
}

ffa_status gpu_stream_refuse_capture(struct gpu_device *device, ffa_stream stream, const char *what,
                                     ffa_error *err)
{
    (void)device;
    (void)stream;
    (void)what;
    (void)err;
    return FFA_OK;
}

ffa_status gpu_stream_id(struct gpu_device *device, ffa_stream stream, uint64_t *out,
                         ffa_error *err)
{
    (void)device;
    (void)err;
    *out = gpu_stream_is_legacy(stream) ? 0 : stream_of(stream)->id;
    return FFA_OK;
}

ffa_status gpu_stream_synchronize(struct gpu_device *device, ffa_stream handle, ffa_error *err)
{
    struct gpu_stream *stream = stream_of(handle);
    uint64_t until;

    (void)device;
    (void)err;
    pthread_mutex_lock(&stream->lock);
    for (until = stream->entered; stream->done < until;)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    return FFA_OK;
}

/* The tests have nothing under way when this is called. */
ffa_status gpu_synchronize(struct gpu_device *device, ffa_error *err)
{
    (void)device;
    return fault_here(FAULT_GPU) ? error_fail(err, FFA_GPU, 1, "cannot finish: fault") : FFA_OK;
}

void fake_gpu_launch(ffa_stream stream, void (*work)(void *user), void *user)
{
    ck_assert_int_eq(put(stream, (struct op){ .what = LAUNCH, .work = work, .user = user }, NULL),
                     FFA_OK);
}

/* ---- events ---- */

ffa_status gpu_event_create(struct gpu_event **out, struct gpu_device *device, bool has_time,
                            ffa_error *err)
{
    (void)device;
    *out = fault_here(FAULT_GPU) ? NULL : calloc(1, sizeof **out);
    if (*out) {
        (*out)->has_time = has_time;
        (*out)->owners = 1;
    }
    return *out ? FFA_OK : error_fail(err, FFA_GPU, 1, "cannot create an event: fault");
}

void gpu_event_destroy(struct gpu_event *event)
{
    if (event)
        event_release(event);
}

ffa_status gpu_event_record(struct gpu_event *event, ffa_stream stream, ffa_error *err)
{
    const uint64_t value = atomic_fetch_add(&event->recorded, 1) + 1;

    return put(stream, (struct op){ .what = RECORD, .event = event, .value = value }, err);
}

ffa_status gpu_event_wait(struct gpu_event *event, ffa_stream stream, ffa_error *err)
{
    const uint64_t value = atomic_load(&event->recorded);

    return put(stream, (struct op){ .what = AWAIT, .event = event, .value = value }, err);
}

ffa_status gpu_event_query(const struct gpu_event *event, bool *is_done, ffa_error *err)
{
    (void)err;
    *is_done = atomic_load(&event->passed) >= atomic_load(&event->recorded);
    return FFA_OK;
}

ffa_status gpu_event_elapsed_ms(const struct gpu_event *begin, const struct gpu_event *end,
                                float *ms, ffa_error *err)
{
    bool has_begun = false, has_ended = false;

    (void)gpu_event_query(begin, &has_begun, NULL);
    (void)gpu_event_query(end, &has_ended, NULL);
    *ms = (float)(atomic_load(&end->passed_ns) - atomic_load(&begin->passed_ns)) / 1e6f;
    return begin->has_time && end->has_time && has_begun && has_ended
               ? FFA_OK
               : error_fail(err, FFA_GPU, 1, "no time between two events");
}

/* ---- words and copies ---- */

ffa_status gpu_write_value(struct gpu_device *device, ffa_stream stream, uint64_t *at,
                           uint64_t value, ffa_error *err)
{
    (void)device;
    return put(stream, (struct op){ .what = WRITE, .at = at, .value = value }, err);
}

ffa_status gpu_value_batch(struct gpu_device *device, ffa_stream stream,
                           const struct gpu_value_op *ops, int count, ffa_error *err)
{
    (void)device;
    ck_assert_int_le(count, GPU_VALUE_BATCH_MAX);
    for (int i = 0; i < count; i++) {
        const struct op op = { .what = ops[i].is_wait ? WAIT : WRITE,
                               .at = ops[i].at,
                               .value = ops[i].value };
        const ffa_status rc = put(stream, op, err);

        if (rc != FFA_OK)
            return rc;
    }
    return FFA_OK;
}

ffa_status gpu_copy_batch(struct gpu_device *device, ffa_stream stream, void *const *dst,
                          const void *const *src, const size_t *bytes, int64_t count,
                          ffa_error *err)
{
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        const struct op op = { .what = COPY, .dst = dst[i], .src = src[i], .bytes = bytes[i] };
        const ffa_status rc = put(stream, op, err);

        if (rc != FFA_OK)
            return rc;
    }
    return FFA_OK;
}

ffa_status gpu_fill_enqueue(struct gpu_device *device, void *dst, int byte, int64_t bytes,
                            ffa_stream stream, ffa_error *err)
{
    (void)device;
    return put(stream,
               (struct op){ .what = FILL,
                            .dst = dst,
                            .bytes = (size_t)bytes,
                            .value = (uint64_t)byte * 0x0101010101010101u },
               err);
}

ffa_status gpu_capture_relax(struct gpu_device *device, ffa_error *err)
{
    (void)device;
    (void)err;
    return FFA_OK;
}

ffa_status gpu_read(struct gpu_device *device, ffa_stream stream, void *host, const void *src,
                    int64_t bytes, ffa_error *err)
{
    const struct op op = { .what = COPY, .dst = host, .src = src, .bytes = (size_t)bytes };
    ffa_status rc;

    FFA_TRY(put(stream, op, err));
    rc = gpu_stream_synchronize(device, stream, err);
out:
    return rc;
}

ffa_status gpu_send(struct gpu_device *device, ffa_stream stream, void *dst, const void *host,
                    int64_t bytes, ffa_error *err)
{
    return gpu_read(device, stream, dst, host, bytes, err);
}

/* ---- peers ---- */

ffa_status gpu_device_identity(const struct gpu_device *device, unsigned char uuid[16],
                               ffa_error *err)
{
    memset(uuid, 0x40 + device->ordinal, 16);
    return fault_here(FAULT_GPU) ? error_fail(err, FFA_GPU, 1, "cannot read the UUID: fault")
                                 : FFA_OK;
}

static atomic_bool is_apart;

void fake_gpu_apart(bool is_so)
{
    atomic_store(&is_apart, is_so);
}

static atomic_int node_devices = DEVICES;

void fake_gpu_node(int width)
{
    atomic_store(&node_devices, width);
}

ffa_status gpu_peer_enable(struct gpu_device *device, int other, ffa_error *err)
{
    const int width = atomic_load(&node_devices);

    return atomic_load(&is_apart) || device->ordinal / width != other / width ||
                   fault_here(FAULT_GPU)
               ? error_fail(err, FFA_UNSUPPORTED, 1, "no access to device %d", other)
               : FFA_OK;
}

ffa_status gpu_ipc_export(struct gpu_device *device, void *memory,
                          unsigned char handle[GPU_IPC_BYTES], ffa_error *err)
{
    (void)device;
    (void)err;
    memset(handle, 0, GPU_IPC_BYTES);
    memcpy(handle, &memory, sizeof memory);
    return FFA_OK;
}

ffa_status gpu_ipc_open(struct gpu_device *device, const unsigned char handle[GPU_IPC_BYTES],
                        void **out, ffa_error *err)
{
    (void)device;
    *out = NULL;
    if (fault_here(FAULT_GPU))
        return error_fail(err, FFA_GPU, 1, "cannot open a handle: fault");
    memcpy(out, handle, sizeof *out);
    atomic_fetch_add(mappings_of(*out), 1);
    return FFA_OK;
}

void gpu_ipc_close(struct gpu_device *device, void *memory)
{
    (void)device;
    if (memory)
        atomic_fetch_sub(mappings_of(memory), 1);
}
