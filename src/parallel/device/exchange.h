/* SPDX-License-Identifier: Apache-2.0
 *
 * An exchange: what ranks do together with rows that are neither keys nor sums of a pass
 * (undispatch, roll, group cast, and the reductions that are their transposes), as tables of one
 * rank, and as a call.
 *
 * A rank copies what it publishes to the begin of its key window, tells its readers, and pulls what
 * it receives behind that, source after source, beginning with the next rank. Then rows of the
 * window are copied to where they belong, or added. Where the output has the rows of a window, they
 * are pulled to where they belong. A row of the window has all heads of a token, and their lse
 * where there is one.
 */
#ifndef FFA_PARALLEL_DEVICE_EXCHANGE_H
#define FFA_PARALLEL_DEVICE_EXCHANGE_H

#include "attention/row_kernels.h"
#include "parallel/device/comm_device.h"
#include "parallel/device/pass_tables.h"

#include <ffa/parallel_rows.h>

/* ---- tables in device memory ---- */

/* Runs of rows for row_copy; `at` is where they are in the buffer of an upload. */
struct run_table {
    struct row_run *runs;
    int64_t count, capacity;
    int64_t rows, at;
};

/* Adds rows [from, +rows) to [to, +rows), joined to the last run where that goes on. */
ffa_status run_table_add(struct run_table *table, int64_t from, int64_t to, int64_t rows,
                         ffa_error *err);
void run_table_finish(struct run_table *table);

/* What is uploaded, being put together: offsets are multiples of 256. */
struct upload {
    unsigned char *bytes; /* NULL while offsets are counted */
    int64_t end;
};

/* Places `bytes` at *at, and copies them there in the second round. */
void upload_add(struct upload *upload, int64_t *at, const void *from, int64_t bytes);
ffa_status upload_runs(struct upload *upload, struct run_table *table, ffa_error *err);

/* ---- tables of one rank ---- */

/* Rows [from, +rows) that `rank` publishes, which belong to rows [to, +rows) here. */
struct row_move {
    int64_t from, to, rows;
    int32_t rank;
    int32_t pad_;
};

struct move_list {
    struct row_move *moves;
    int64_t count, capacity;
};

ffa_status move_list_add(struct move_list *list, const struct row_move *move, ffa_error *err);
void move_list_finish(struct move_list *list);

struct exchange {
    int32_t rank, rank_count;
    int64_t published_rows;   /* of the window, that others pull from */
    int64_t window_rows;      /* with the received ones behind them */
    int64_t output_rows;      /* where rows belong */
    struct pass_copy *copies; /* from other ranks to the own window, by source */
    int64_t copy_count;
    struct pass_copy *direct; /* the same to where rows belong */
    int64_t direct_count;
    struct run_table own; /* rows that are published, to where they belong here */
    int32_t *sources;     /* from the next rank on */
    int32_t source_count;
    int32_t *readers; /* ascending */
    int32_t reader_count;
    struct run_table publish; /* of what is published; no runs: row r is row r */
    struct run_table place;   /* window rows to where they belong */
    /* Where rows are added: to each row of a segment, window rows by ascending rank. */
    struct row_segment *segments;
    int64_t segment_count, segments_at;
    int64_t *added;
    int64_t added_count, added_at;
    int64_t own_row; /* skips_own: window row of rank 0's first row */
    /* Of one call: */
    void **to;
    const void **from;
    size_t *bytes;
    struct gpu_event *published, *fetched;
};

/* What an exchange is made from. */
struct exchange_plan {
    int32_t rank, rank_count;
    int64_t published_rows, output_rows;
    const struct move_list
        *moves;            /* of this rank, by ascending source; of one source in any order */
    const bool *is_reader; /* [rank_count]: ranks that pull from this one; its own is ignored */
    bool is_added;         /* rows are added, else placed: then each row has one source */
    bool skips_own;        /* added: moves of rank 0 are not: they take the place of own rows */
};

/* For exchange_finish, whether or not it succeeds. FFA_NOMEM, FFA_UNSUPPORTED: too many rows. */
ffa_status exchange_build(struct exchange *out, const struct exchange_plan *plan, ffa_error *err);
/* The rest, for a device. */
ffa_status exchange_prepare(struct exchange *exchange, struct gpu_device *gpu, ffa_error *err);
void exchange_finish(struct exchange *exchange);
/* Tables of the exchange, in both rounds of an upload. */
ffa_status exchange_upload(struct exchange *exchange, struct upload *upload, ffa_error *err);

/* ---- rows of the window ---- */

struct wire {
    int32_t heads, element_bytes; /* of tensors */
    int64_t columns;              /* of a head */
    int32_t wire_bytes;           /* of an element in the window */
    bool has_lse;
    int64_t lse_at, row_bytes;
};

void wire_init(struct wire *wire, int32_t heads, int64_t columns, int32_t element_bytes,
               int32_t wire_bytes, bool has_lse);

/* A call's part of the window: behind the rows stand those in fp32, where they travel in less, and
 * a copy of the accumulators' lse. */
struct wire_room {
    int64_t wide_at, lse_at, bytes;
};

/* Whether rows can be pulled to a tensor of the strides. */
bool wire_is_direct(const struct wire *wire, const ffa_tensor *to);
/* What is published alone. */
struct wire_room wire_room_direct(const struct wire *wire, const struct exchange *exchange);
/* For rows that are added or not. */
struct wire_room wire_room_of(const struct wire *wire, const struct exchange *exchange,
                              bool is_added);

/* ---- a call (exchange_run.c) ---- */

/* One launch: a copy or a reduction. */
struct row_launch {
    bool is_reduce;
    union {
        struct row_copy_call copy;
        struct row_reduce_call reduce;
    } as;
};

enum { EXCHANGE_LAUNCHES = 3 };

struct exchange_call {
    struct exchange *exchange;
    const ffa_row_kernels *kernels;
    struct comm_device *comm;
    ffa_stream stream;
    const struct wire *wire;
    struct wire_room room;
    const unsigned char *buffer; /* of the tables, on the device */
    unsigned char *window;       /* the own one; NULL where it has no bytes */
    const char *words;           /* what the call is, in all ranks */
    const char *name;            /* the same for messages */
    /* Launches: before rows are pulled, beside that, and after it. */
    struct row_launch publish[EXCHANGE_LAUNCHES], own[EXCHANGE_LAUNCHES], take[EXCHANGE_LAUNCHES];
    int publish_count, own_count, take_count;
    unsigned char *direct; /* what rows are pulled to, in rows of the window; NULL: the window */
    uint64_t call;
    struct comm_batch fetch; /* words of the fetch stream */
};

/* The communicator of GPUs behind a public one, of the exchange's rank, with a window of at least
 * the room. The rest of the call but launches is set. FFA_INVALID. */
ffa_status exchange_open(struct exchange_call *call, ffa_comm *comm, ffa_error *err);
/* Checks and enqueues all of it. What is refused leaves the group whole; what fails later breaks
 * it.
 */
ffa_status exchange_run(struct exchange_call *call, ffa_error *err);

/* ---- the launches of a call (exchange_rows.c) ----
 *
 * Tensors have checked strides; lse is [rows][heads], packed, or NULL where the wire has none. */

/* A copy of rows between tensors, by runs or all of them. */
struct row_copy_call row_copy_of(const struct wire *wire, const ffa_tensor *from,
                                 const ffa_tensor *to, const unsigned char *buffer,
                                 const struct run_table *runs);

void exchange_publish(struct exchange_call *call, const ffa_tensor *from, const float *lse);
/* from: what was published. */
void exchange_place(struct exchange_call *call, const ffa_tensor *from, const ffa_tensor *to,
                    float *lse);
/* Rows of `to` are set to one element. */
void exchange_fill(struct exchange_call *call, const ffa_tensor *to, const struct run_table *runs,
                   uint64_t fill);
/* own: what is added to; NULL: the rows of rank 0. It may be `to`. */
void exchange_add(struct exchange_call *call, ffa_reduce_op op, const ffa_tensor *own,
                  const ffa_tensor *to, float *lse);

#endif
