/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator of GPUs on a GPU without kernels: ranks are threads or forked processes, and
 * what a kernel would do is a function in the stream. Every rank makes calls as passes do: it
 * reclaims its window, writes its rows, tells its readers, and fetches the rows of all others.
 */
#include "parallel/device/comm_device.h"

#include "service/context.h"
#include "support/bootstrap.h"
#include "support/fake_gpu.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, WORDS = 512, QUICK_MS = 2000, LONG_MS = 60000 };

struct rank {
    struct bootstrap_end end;
    ffa_context context;
    ffa_comm *comm;
    struct gpu_stream *stream;
    ffa_status status;
    ffa_error err;
    uint64_t result[64]
                   [RANKS]; /* [call], from each rank: the value of its rows, or 0 if they differ */
    int32_t results;
    void *user;
};

struct group {
    struct bootstrap *bootstrap;
    struct rank ranks[RANKS];
    int32_t count;
    int64_t timeout_ms;
    int32_t devices; /* that ranks take in turns; 0: one for all */
    bool leaves_out; /* rank 1 makes no call */
    void (*work)(struct group *group, int32_t rank);
    pthread_t threads[RANKS];
};

/* ---- ranks ---- */

static ffa_status rank_create(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;

    rank->end.all = group->bootstrap;
    rank->end.rank = r;
    rank->context.gpu = fake_gpu(group->devices ? r % group->devices : 0);
    opts.key_bytes = (int64_t)(WORDS * sizeof(uint64_t)) * group->count;
    opts.sum_bytes = r == 1 ? 0 : 4096 * (r + 1);
    opts.timeout_ms = group->timeout_ms;
    rank->status = bootstrap_join(&rank->comm, &rank->context, &rank->end, &opts, &rank->err);
    /* A fault that is armed is for the creation, and hits once. */
    while (rank->status == FFA_OK && !rank->stream)
        (void)gpu_stream_create(&rank->stream, rank->context.gpu, 0, NULL);
    return rank->status;
}

static void rank_destroy(struct rank *rank)
{
    ffa_comm_destroy(rank->comm);
    rank->comm = NULL;
    gpu_stream_destroy(rank->stream);
    rank->stream = NULL;
}

struct start {
    struct group *group;
    int32_t rank;
};

static void *run_rank(void *user)
{
    const struct start start = *(struct start *)user;

    free(user);
    if (rank_create(start.group, start.rank) == FFA_OK && start.group->work)
        start.group->work(start.group, start.rank);
    rank_destroy(&start.group->ranks[start.rank]);
    return NULL;
}

/* Each rank in a thread: creation, work, destruction. */
static void group_run_any(struct group *group)
{
    group->bootstrap = bootstrap_new(group->count);
    for (int32_t r = 0; r < group->count; r++) {
        struct start *start = malloc(sizeof *start);

        *start = (struct start){ group, r };
        ck_assert_int_eq(pthread_create(&group->threads[r], NULL, run_rank, start), 0);
    }
    for (int32_t r = 0; r < group->count; r++)
        pthread_join(group->threads[r], NULL);
    bootstrap_free(group->bootstrap);
}

static void group_run(struct group *group)
{
    group_run_any(group);
    ck_assert_int_eq(fake_gpu_allocated(), 0);
}

static struct group *group_new(int32_t count, int64_t timeout_ms,
                               void (*work)(struct group *group, int32_t rank))
{
    struct group *group = calloc(1, sizeof *group);

    group->count = count;
    group->timeout_ms = timeout_ms;
    group->work = work;
    return group;
}

/* ---- a call ---- */

static uint64_t value_of(int32_t rank, uint64_t call)
{
    return (uint64_t)(rank + 1) << 32 | call;
}

struct kernel {
    struct comm_device *comm;
    struct rank *rank;
    uint64_t call;
};

static void write_rows(void *user)
{
    struct kernel *k = user;
    const int32_t own = k->comm->comm.rank;

    for (int i = 0; i < WORDS; i++)
        fake_gpu_store((uint64_t *)k->comm->windows[WINDOW_ROWS][own] + i, value_of(own, k->call));
    free(k);
}

/* Polls the arrivals of its stages and looks at what arrived. */
static void attend(void *user)
{
    struct kernel *k = user;
    const int32_t own = k->comm->comm.rank, n = k->comm->comm.rank_count;
    const uint64_t *window = k->comm->windows[WINDOW_ROWS][own];

    for (int32_t s = 1; s < n; s++) {
        const int32_t source = (own + s) % n;
        const uint64_t *rows = window + (size_t)s * WORDS;
        uint64_t first;

        while ((int64_t)(fake_gpu_load(&comm_device_own(k->comm)[comm_block_arrivals(n, s)]) -
                         k->call) < 0)
            usleep(50);
        first = fake_gpu_load(rows);
        for (int i = 1; i < WORDS; i++)
            if (fake_gpu_load(rows + i) != first)
                first = 0;
        k->rank->result[k->call % 64][source] = first;
    }
    k->rank->results++;
    free(k);
}

static struct kernel *kernel_new(struct comm_device *comm, struct rank *rank, uint64_t call)
{
    struct kernel *k = malloc(sizeof *k);

    *k = (struct kernel){ comm, rank, call };
    return k;
}

static ffa_status begin_rounds(uint64_t *call, struct comm_device *comm, ffa_stream stream,
                               const char *words, int32_t rounds, ffa_error *err)
{
    const struct comm_opening opening = {
        .stream = stream, .words = words, .name = words, .publishes = "keys", .rounds = rounds
    };

    return comm_device_open(call, comm, &opening, err);
}

static ffa_status begin_call(uint64_t *call, struct comm_device *comm, ffa_stream stream,
                             const char *words, ffa_error *err)
{
    return begin_rounds(call, comm, stream, words, 1, err);
}

static ffa_status reclaim(struct comm_device *comm, uint64_t call, enum comm_window window,
                          ffa_stream stream, ffa_error *err)
{
    struct comm_batch batch, also;
    ffa_status rc;

    comm_batch_init(&batch, comm, stream);
    comm_batch_init(&also, comm, gpu_stream_handle(comm->fetch));
    FFA_TRY(comm_batch_reclaim(&batch, window == WINDOW_ROWS ? &also : NULL, call, window, err));
    FFA_TRY(comm_batch_flush(&batch, err));
    rc = comm_batch_flush(&also, err);
out:
    return rc;
}

static ffa_status fetch(struct comm_device *comm, uint64_t call, ffa_error *err)
{
    const int32_t own = comm->comm.rank, n = comm->comm.rank_count;
    ffa_stream stream = gpu_stream_handle(comm->fetch);
    struct comm_flag done[RANKS];
    ffa_status rc = FFA_OK;

    for (int32_t s = 1; s < n; s++) {
        const int32_t source = (own + s) % n;
        const struct comm_flag ready = { CHANNEL_ROWS_READY, source, 0, 0 };
        void *to = (uint64_t *)comm->windows[WINDOW_ROWS][own] + (size_t)s * WORDS;
        const void *from = comm->windows[WINDOW_ROWS][source];

        FFA_TRY(comm_device_wait(comm, call, stream, &ready, 1, err));
        FFA_TRY(gpu_copy_batch(comm->gpu, stream, &to, &from, &(size_t){ WORDS * sizeof(uint64_t) },
                               1, err));
        FFA_TRY(comm_device_arrive(comm, call, stream, s, err));
        done[s - 1] = (struct comm_flag){ CHANNEL_ROWS_DONE, source, 0, 0 };
    }
    rc = comm_device_signal(comm, call, stream, done, n - 1, err);
out:
    return rc;
}

/* As a forward pass enqueues it. */
static ffa_status enqueue_call(struct rank *rank, ffa_comm *public, const char *words,
                               ffa_error *err)
{
    struct comm_device *comm = comm_device_of(public);
    const int32_t own = comm->comm.rank, n = comm->comm.rank_count;
    ffa_stream stream = gpu_stream_handle(rank->stream);
    struct comm_flag ready[RANKS];
    uint64_t call;
    ffa_status rc;

    FFA_TRY(begin_call(&call, comm, stream, words, err));
    comm_device_spoil(comm, call, (uint64_t *)comm->windows[WINDOW_ROWS][own] + WORDS,
                      (int64_t)(WORDS * sizeof(uint64_t)) * (n - 1));
    FFA_TRY(reclaim(comm, call, WINDOW_ROWS, stream, err));
    fake_gpu_launch(stream, write_rows, kernel_new(comm, rank, call));
    for (int32_t s = 1; s < n; s++)
        ready[s - 1] = (struct comm_flag){ CHANNEL_ROWS_READY, (own + s) % n, 0, 0 };
    FFA_TRY(comm_device_signal(comm, call, stream, ready, n - 1, err));
    FFA_TRY(fetch(comm, call, err));
    fake_gpu_launch(stream, attend, kernel_new(comm, rank, call));
    rc = comm_device_end(comm, call, stream, err);
out:
    return rc;
}

static ffa_status calls(struct rank *rank, int32_t count)
{
    for (int32_t i = 0; i < count && rank->status == FFA_OK; i++)
        rank->status = enqueue_call(rank, rank->comm, "a call", &rank->err);
    return rank->status;
}

/* Wait for the stream, then for the status. */
static ffa_status finish(struct rank *rank)
{
    gpu_stream_synchronize(rank->context.gpu, gpu_stream_handle(rank->stream), NULL);
    if (rank->status == FFA_OK)
        rank->status = ffa_comm_status(rank->comm, &rank->err);
    return rank->status;
}

static void check_results(const struct group *group, uint64_t calls_made)
{
    for (int32_t r = 0; r < group->count; r++) {
        const struct rank *rank = &group->ranks[r];

        ck_assert_msg(rank->status == FFA_OK, "rank %d: %s", r, rank->err.message);
        ck_assert_int_eq(rank->results, (int32_t)calls_made);
        for (uint64_t c = 1; c <= calls_made && c < 64; c++)
            for (int32_t s = 0; s < group->count; s++)
                if (s != r)
                    ck_assert_uint_eq(rank->result[c][s], value_of(s, c));
    }
}

/* The rank failed so, in these words. */
static void check_failure(const struct rank *rank, ffa_status status, const char *says)
{
    ck_assert_msg(rank->status == status && strstr(rank->err.message, says),
                  "status %d, '%s', and not %d, '%s'", rank->status, rank->err.message, status,
                  says);
}

/* ---- what works ---- */

static void look_at_windows(struct group *group, int32_t r)
{
    const struct comm_device *comm = comm_device_of(group->ranks[r].comm);

    ck_assert_int_eq(ffa_comm_rank(group->ranks[r].comm), r);
    ck_assert_int_eq(ffa_comm_rank_count(group->ranks[r].comm), group->count);
    ck_assert_int_eq(ffa_comm_status(group->ranks[r].comm, NULL), FFA_OK);
    /* Queues of the hardware are shared among streams of one priority. */
    ck_assert_int_lt(fake_gpu_priority(comm->watch), fake_gpu_priority(comm->fetch));
    ck_assert_int_lt(fake_gpu_priority(comm->watch), fake_gpu_priority(comm->reduce));
    for (int32_t q = 0; q < group->count; q++) {
        ck_assert_int_eq(comm->window_bytes[WINDOW_ROWS][q],
                         (int64_t)(WORDS * sizeof(uint64_t)) * group->count);
        ck_assert_int_eq(comm->window_bytes[WINDOW_SUMS][q], q == 1 ? 0 : 4096 * (q + 1));
        ck_assert_int_eq(comm->windows[WINDOW_SUMS][q] == NULL, q == 1);
        ck_assert_ptr_eq(comm->blocks_device[q], comm->blocks[q]);
        ck_assert_uint_eq(fake_gpu_load(&comm->blocks[q][comm_block_rows_ready(group->count, r)]),
                          0);
    }
}

START_TEST(ranks_join)
{
    struct group *group = group_new(_i % RANKS + 1, 0, look_at_windows);

    group->devices = _i >= RANKS ? RANKS : 0;
    group_run(group);
    for (int32_t r = 0; r < group->count; r++)
        ck_assert_msg(group->ranks[r].status == FFA_OK, "%s", group->ranks[r].err.message);
    free(group);
}
END_TEST

static void make_calls(struct group *group, int32_t r)
{
    calls(&group->ranks[r], 40);
    finish(&group->ranks[r]);
}

START_TEST(rows_arrive)
{
    struct group *group = group_new(_i + 1, LONG_MS, make_calls);

    group_run(group);
    check_results(group, 40);
    free(group);
}
END_TEST

/* More calls than are looked after, all enqueued before the first goes on. */
static void make_many_calls(struct group *group, int32_t r)
{
    uint64_t gate = 0;
    struct rank *rank = &group->ranks[r];
    ffa_stream stream = gpu_stream_handle(rank->stream);

    gpu_value_batch(NULL, stream, &(struct gpu_value_op){ &gate, 1, true }, 1, NULL);
    calls(rank, 3 * COMM_CALLS_MAX);
    fake_gpu_store(&gate, 1);
    finish(rank);
}

START_TEST(more_calls_than_records)
{
    struct group *group = group_new(2, LONG_MS, make_many_calls);

    group_run(group);
    for (int32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(group->ranks[r].status, FFA_OK);
        ck_assert_int_eq(group->ranks[r].results, 3 * COMM_CALLS_MAX);
    }
    free(group);
}
END_TEST

/* A call on another stream waits for the end of the one before: nothing of it happens while that is
 * held up. The third one is of the second's stream, and follows it without a wait. */
static void make_calls_on_two_streams(struct group *group, int32_t r)
{
    const struct timespec while_held = { .tv_nsec = 20000000 };
    struct rank *rank = &group->ranks[r];
    struct gpu_stream *first = rank->stream, *second;
    uint64_t gate = 0;

    ck_assert_int_eq(gpu_stream_create(&second, rank->context.gpu, 0, NULL), FFA_OK);
    gpu_value_batch(NULL, gpu_stream_handle(first), &(struct gpu_value_op){ &gate, 1, true }, 1,
                    NULL);
    calls(rank, 1);
    rank->stream = second;
    calls(rank, 2);
    (void)nanosleep(&while_held, NULL);
    ck_assert_int_eq(rank->results, 0);
    fake_gpu_store(&gate, 1);
    finish(rank);
    rank->stream = first;
    finish(rank);
    gpu_stream_destroy(second);
}

START_TEST(calls_follow_each_other_on_any_streams)
{
    struct group *group = group_new(_i + 1, LONG_MS, make_calls_on_two_streams);

    group_run(group);
    check_results(group, 3);
    free(group);
}
END_TEST

/* Sums: the kernel of each reader says that its stage 1 is complete, the owner reads the word. */
static void make_sums(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    const int32_t n = group->count, other = (r + 1) % n, reader = (r + n - 1) % n;
    ffa_stream stream = gpu_stream_handle(rank->stream), reduce = gpu_stream_handle(comm->reduce);
    uint64_t call = 0;

    for (int i = 0; i < 20; i++) {
        const struct comm_flag ready = { CHANNEL_SUMS_READY, reader, 1, 0 },
                               done = { CHANNEL_SUMS_DONE, reader, 0, 0 };

        ck_assert_int_eq(begin_call(&call, comm, stream, "sums", NULL), FFA_OK);
        ck_assert_int_eq(reclaim(comm, call, WINDOW_SUMS, stream, NULL), FFA_OK);
        comm_device_lend_sums(comm, call, other);
        gpu_write_value(comm->gpu, stream, &comm->blocks[other][comm_block_sums_ready(n, r, 1)],
                        call, NULL);
        ck_assert_int_eq(comm_device_wait(comm, call, reduce, &ready, 1, NULL), FFA_OK);
        ck_assert_int_eq(comm_device_signal(comm, call, reduce, &done, 1, NULL), FFA_OK);
        ck_assert_int_eq(comm_device_end(comm, call, stream, NULL), FFA_OK);
    }
    finish(rank);
}

START_TEST(sums_are_lent_and_given_back)
{
    struct group *group = group_new(3, LONG_MS, make_sums);

    group_run(group);
    for (int32_t r = 0; r < 3; r++)
        ck_assert_msg(group->ranks[r].status == FFA_OK, "%s", group->ranks[r].err.message);
    free(group);
}
END_TEST

/* ---- totals ---- */

/* A rank's totals of a call and what it reads of those of all, as fp32 bits in halves of words. */
struct totals {
    struct rank *rank;
    const struct comm_device *comm;
    uint64_t call;
    float *mine;
    const float *all;
};

enum { TOTALS = 2 * WORDS };

static float total_of(int32_t rank, uint64_t call, int i)
{
    return (float)(rank * 1000 + i) + (float)call / 64.0f;
}

static void make_totals(void *user)
{
    const struct totals *t = user;

    for (int i = 0; i < TOTALS; i++)
        t->mine[i] = total_of(t->comm->comm.rank, t->call, i);
}

/* Some ranks are late to read: then the others are as far ahead as they can be. */
static void read_totals(void *user)
{
    struct totals *t = user;
    bool is_right = true;

    if (t->call % (uint64_t)t->comm->comm.rank_count == (uint64_t)t->comm->comm.rank)
        usleep(2000);
    for (int32_t r = 0; r < t->comm->comm.rank_count; r++)
        for (int i = 0; i < TOTALS; i++)
            is_right =
                is_right && t->all[(int64_t)r * COMM_TOTALS_MAX + i] == total_of(r, t->call, i);
    t->rank->results += is_right;
    free(t);
}

static struct totals *totals_new(const struct totals *from)
{
    struct totals *t = malloc(sizeof *t);

    *t = *from;
    return t;
}

/* As a pass enqueues it: the event behind the launch, the reduce stream, the event behind it. */
static ffa_status enqueue_totals(struct rank *rank, struct totals *totals,
                                 struct gpu_event *const events[2], ffa_error *err)
{
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream), reduce = gpu_stream_handle(comm->reduce);
    ffa_status rc;

    FFA_TRY(begin_call(&totals->call, comm, stream, "totals", err));
    if (totals->call % 3 != 0) { /* not all calls have totals */
        fake_gpu_launch(stream, make_totals, totals);
        FFA_TRY(gpu_event_record(events[0], stream, err));
        FFA_TRY(gpu_event_wait(events[0], reduce, err));
        FFA_TRY(comm_device_share_totals(&totals->all, comm, totals->call, reduce, totals->mine,
                                         TOTALS, err));
        FFA_TRY(gpu_event_record(events[1], reduce, err));
        FFA_TRY(gpu_event_wait(events[1], stream, err));
        fake_gpu_launch(stream, read_totals, totals_new(totals));
    }
    rc = comm_device_end(comm, totals->call, stream, err);
out:
    return rc;
}

enum { TOTALS_CALLS = 60 };

static void share_totals(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct totals totals[TOTALS_CALLS] = { 0 };
    float *mine = malloc(TOTALS * sizeof *mine); /* of all calls: one stream after the other */
    struct gpu_event *events[2];

    for (int i = 0; i < 2; i++)
        gpu_event_create(&events[i], rank->context.gpu, false, NULL);
    for (int i = 0; i < (group->leaves_out ? r != 1 : TOTALS_CALLS) && rank->status == FFA_OK;
         i++) {
        totals[i] =
            (struct totals){ .rank = rank, .comm = comm_device_of(rank->comm), .mine = mine };
        rank->status = enqueue_totals(rank, &totals[i], events, &rank->err);
    }
    if (r == 1 && group->leaves_out)
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
    finish(rank);
    gpu_event_destroy(events[0]);
    gpu_event_destroy(events[1]);
    free(mine);
}

START_TEST(totals_come_to_all_ranks)
{
    struct group *group = group_new(_i + 1, LONG_MS, share_totals);

    group_run(group);
    for (int32_t r = 0; r < group->count; r++) {
        ck_assert_msg(group->ranks[r].status == FFA_OK, "%s", group->ranks[r].err.message);
        ck_assert_int_eq(group->ranks[r].results, TOTALS_CALLS - TOTALS_CALLS / 3);
    }
    free(group);
}
END_TEST

START_TEST(rank_without_totals_is_named)
{
    struct group *group = group_new(3, QUICK_MS, share_totals);

    group->leaves_out = true;
    group_run(group);
    for (int32_t r = 0; r < group->count; r++)
        check_failure(&group->ranks[r], FFA_TIMEOUT,
                      "rank 1 has not sent its totals (call 1) within 2000 ms; rank ");
    free(group);
}
END_TEST

static void sleep_in_stream(void *user)
{
    (void)user;
    usleep(200000);
}

/* Rank 1 fetches late; the others leave as soon as their own call is enqueued. */
static void leave_early(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    if (r == 1)
        fake_gpu_launch(gpu_stream_handle(comm_device_of(rank->comm)->fetch), sleep_in_stream,
                        NULL);
    calls(rank, 1);
    if (r == 1)
        finish(rank);
}

START_TEST(who_leaves_waits_for_readers)
{
    struct group *group = group_new(3, LONG_MS, leave_early);

    group_run(group);
    check_results(group, 1);
    free(group);
}
END_TEST

/* ---- windows grow ---- */

static void reserve_and_call(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    const struct comm_device *comm = comm_device_of(rank->comm);
    const int64_t keys = comm->window_bytes[WINDOW_ROWS][r];
    const void *other = comm->windows[WINDOW_ROWS][(r + 1) % group->count];

    calls(rank, 3);
    finish(rank);
    rank->status = ffa_comm_reserve(rank->comm, keys, 0, &rank->err);
    ck_assert_int_eq(rank->status, FFA_OK);
    ck_assert_ptr_eq(comm->windows[WINDOW_ROWS][(r + 1) % group->count], other);
    rank->status =
        ffa_comm_reserve(rank->comm, r == 1 ? 1 << 20 : 0, r == 2 ? 1 << 21 : 0, &rank->err);
    ck_assert_int_eq(rank->status, FFA_OK);
    for (int32_t q = 0; q < group->count; q++) {
        ck_assert_int_eq(comm->window_bytes[WINDOW_ROWS][q], q == 1 ? 1 << 20 : keys);
        ck_assert_int_eq(comm->window_bytes[WINDOW_SUMS][q], q == 1   ? 0
                                                             : q == 2 ? 1 << 21
                                                                      : 4096 * (q + 1));
    }
    calls(rank, 3);
    finish(rank);
}

START_TEST(windows_grow)
{
    struct group *group = group_new(3, LONG_MS, reserve_and_call);

    group_run(group);
    check_results(group, 6);
    free(group);
}
END_TEST

/* Rank 1 asks for what cannot be; the group goes on with its old windows. */
static void reserve_too_much(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    const struct comm_device *comm = comm_device_of(rank->comm);
    const int64_t keys = comm->window_bytes[WINDOW_ROWS][r];

    calls(rank, 2);
    finish(rank);
    rank->status =
        ffa_comm_reserve(rank->comm, r == 1 ? (int64_t)1 << 47 : 2 * keys, 0, &rank->err);
    check_failure(rank, r == 1 ? FFA_INVALID : FFA_COMM,
                  r == 1 ? "key_bytes is" : "rank 1 failed: key_bytes is");
    rank->status =
        ffa_comm_reserve(rank->comm, r == 1 ? (int64_t)1 << 46 : 2 * keys, 0, &rank->err);
    check_failure(rank, r == 1 ? FFA_NOMEM : FFA_COMM,
                  r == 1 ? "cannot allocate" : "rank 1 failed: cannot allocate");
    for (int32_t q = 0; q < group->count; q++)
        ck_assert_int_eq(comm->window_bytes[WINDOW_ROWS][q], keys);
    rank->status = FFA_OK;
    calls(rank, 2);
    finish(rank);
}

START_TEST(windows_grow_on_all_ranks_or_none)
{
    struct group *group;

    fake_gpu_share(0);
    group = group_new(3, LONG_MS, reserve_too_much);
    group_run(group);
    check_results(group, 4);
    free(group);
}
END_TEST

/* ---- what breaks a group ---- */

/* Every rank but 1 makes two calls, which rank 1 does not. */
static void skip_a_call(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    uint64_t call;

    calls(rank, 1);
    finish(rank);
    if (r != 1) {
        calls(rank, 2);
        finish(rank);
        ck_assert_int_eq(begin_call(&call, comm_device_of(rank->comm),
                                    gpu_stream_handle(rank->stream), "a call", NULL),
                         rank->status);
    } else {
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
    }
}

START_TEST(rank_that_skips_a_call_is_named)
{
    struct group *group = group_new(3, QUICK_MS, skip_a_call);

    group_run(group);
    for (int32_t r = 0; r < 3; r++) {
        check_failure(&group->ranks[r], FFA_TIMEOUT,
                      "rank 1 has not published its keys (call 2, a call) within 2000 ms; rank ");
        if (r != 1)
            ck_assert_uint_eq(group->ranks[r].result[2][1], UINT64_MAX);
    }
    group->work = make_calls;
    memset(group->ranks, 0, sizeof group->ranks);
    group_run(group);
    check_results(group, 40);
    free(group);
}
END_TEST

/* The host is ahead until the driver makes it wait; that must not keep the watchdog from its work.
 */
static void run_ahead(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    if (r == 0)
        calls(rank, INT32_MAX);
    else
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
}

START_TEST(host_that_runs_ahead_is_released)
{
    struct group *group = group_new(2, 3000, run_ahead);

    group_run(group);
    for (int32_t r = 0; r < 2; r++)
        check_failure(&group->ranks[r], FFA_TIMEOUT,
                      "rank 1 has not published its keys (call 1, a call)");
    free(group);
}
END_TEST

/* Rank 0 waits for rank 1, which comes later, waits for rank 2, and publishes behind that. */
static void wait_in_a_row(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);
    const struct comm_flag ready = { CHANNEL_ROWS_READY, r + 1, 0, 0 },
                           mine = { CHANNEL_ROWS_READY, 0, 0, 0 };
    uint64_t call;

    if (r == 2) {
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
        return;
    }
    if (r == 1)
        usleep(300000);
    ck_assert_int_eq(begin_call(&call, comm, stream, "a call", NULL), FFA_OK);
    ck_assert_int_eq(comm_device_wait(comm, call, stream, &ready, 1, NULL), FFA_OK);
    if (r == 1)
        ck_assert_int_eq(comm_device_signal(comm, call, stream, &mine, 1, NULL), FFA_OK);
    ck_assert_int_eq(comm_device_end(comm, call, stream, NULL), FFA_OK);
    finish(rank);
}

START_TEST(rank_that_others_wait_for_in_a_row_is_named)
{
    struct group *group = group_new(3, 3000, wait_in_a_row);

    group_run(group);
    for (int32_t r = 0; r < 3; r++) { /* rank 1 may be the first to find out, if 0 is slow */
        check_failure(&group->ranks[r], FFA_TIMEOUT,
                      "has not published its keys (call 1, a call) within");
        ck_assert_msg(strncmp(group->ranks[r].err.message, "rank 2 ", 7) == 0, "%s",
                      group->ranks[r].err.message);
    }
    free(group);
}
END_TEST

/* On the fetch stream: it gets here when the group is broken, and not before. */
static void note_status(void *user)
{
    struct rank *rank = user;

    rank->results = comm_device_status(comm_device_of(rank->comm), NULL) == FFA_OK ? 1 : 2;
}

/* Rank 1 does not read what it was told of. What is fetched would overwrite it. */
static void read_nothing(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);
    const struct comm_flag ready = { CHANNEL_ROWS_READY, 1, 0, 0 };
    uint64_t call;

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(begin_call(&call, comm, stream, "a call", NULL), FFA_OK);
        ck_assert_int_eq(reclaim(comm, call, WINDOW_ROWS, stream, NULL), FFA_OK);
        if (i == 1 && r == 0)
            fake_gpu_launch(gpu_stream_handle(comm->fetch), note_status, rank);
        if (r == 0)
            ck_assert_int_eq(comm_device_signal(comm, call, stream, &ready, 1, NULL), FFA_OK);
        ck_assert_int_eq(comm_device_end(comm, call, stream, NULL), FFA_OK);
    }
    if (r == 0)
        finish(rank);
    else
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
}

START_TEST(reader_that_does_not_read_is_named)
{
    struct group *group = group_new(2, QUICK_MS, read_nothing);

    group_run(group);
    for (int32_t r = 0; r < 2; r++)
        check_failure(
            &group->ranks[r], FFA_TIMEOUT,
            "rank 1 has not read what call 1 published, for call 2, a call within 2000 ms");
    ck_assert_int_eq(group->ranks[0].results, 2);
    free(group);
}
END_TEST

/* Ends the call whose begin returned rank->status. A begin fails where the watchdog of another rank
 * has broken the group before. */
static void wait_and_end(struct rank *rank, uint64_t call, const struct comm_flag *ready)
{
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);

    if (rank->status == FFA_OK) {
        ck_assert_int_eq(comm_device_wait(comm, call, stream, ready, 1, NULL), FFA_OK);
        ck_assert_int_eq(comm_device_end(comm, call, stream, NULL), FFA_OK);
    }
    finish(rank);
}

static void call_otherwise(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);
    const struct comm_flag ready = { CHANNEL_ROWS_READY, (r + 1) % group->count, 0, 0 };
    uint64_t call;

    rank->status = begin_call(&call, comm, stream, r == 2 ? "backward" : "forward", &rank->err);
    wait_and_end(rank, call, &ready);
}

START_TEST(ranks_in_different_calls_are_named)
{
    struct group *group = group_new(3, LONG_MS, call_otherwise);
    const int64_t begin_us = clock_us();

    group_run(group);
    ck_assert_int_lt(clock_us() - begin_us, LONG_MS * 1000 / 2);
    for (int32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(group->ranks[r].status, FFA_COMM);
        ck_assert_msg(strstr(group->ranks[r].err.message, "runs another call: call 1 of rank"),
                      "%s", group->ranks[r].err.message);
        ck_assert_ptr_nonnull(strstr(group->ranks[r].err.message, "rank 2"));
    }
    free(group);
}
END_TEST

/* So their numbers of the call differ: that is not what keeps them apart. */
static void call_in_other_rounds(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);
    const struct comm_flag ready = { CHANNEL_ROWS_READY, (r + 1) % group->count, 0, 0 };
    uint64_t call;

    rank->status = begin_rounds(&call, comm, stream, r == 2 ? "4 rounds" : "3 rounds",
                                r == 2 ? 4 : 3, &rank->err);
    wait_and_end(rank, call, &ready);
}

START_TEST(ranks_in_other_rounds_are_named)
{
    struct group *group = group_new(3, LONG_MS, call_in_other_rounds);
    const int64_t begin_us = clock_us();

    group_run(group);
    ck_assert_int_lt(clock_us() - begin_us, LONG_MS * 1000 / 2);
    for (int32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(group->ranks[r].status, FFA_COMM);
        ck_assert_msg(strstr(group->ranks[r].err.message, "runs another call: call ") &&
                          strstr(group->ranks[r].err.message, "rank 2"),
                      "%s", group->ranks[r].err.message);
    }
    free(group);
}
END_TEST

static void cancel_one(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    if (r == 1) {
        usleep(50000);
        ffa_comm_cancel(rank->comm, "enough");
        rank->status = ffa_comm_status(rank->comm, &rank->err);
    } else {
        calls(rank, 1);
        finish(rank);
    }
}

START_TEST(cancel_releases_all)
{
    struct group *group = group_new(3, LONG_MS, cancel_one);
    const int64_t begin_us = clock_us();

    group_run(group);
    ck_assert_int_lt(clock_us() - begin_us, LONG_MS * 1000 / 2);
    for (int32_t r = 0; r < 3; r++)
        check_failure(&group->ranks[r], FFA_COMM, "cancelled at rank 1: enough");
    free(group);
}
END_TEST

static void leave_one(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    calls(rank, 1);
    finish(rank);
    if (r == 1)
        return;
    while (comm_device_of(rank->comm)->comm.call < 1000 && calls(rank, 1) == FFA_OK &&
           finish(rank) == FFA_OK)
        ;
}

START_TEST(rank_that_left_is_named)
{
    struct group *group = group_new(3, LONG_MS, leave_one);
    const int64_t begin_us = clock_us();

    group_run(group);
    ck_assert_int_lt(clock_us() - begin_us, LONG_MS * 1000 / 2);
    ck_assert_int_eq(group->ranks[1].status, FFA_OK);
    check_failure(&group->ranks[0], FFA_COMM, "rank 1 has left");
    check_failure(&group->ranks[2], FFA_COMM, "rank 1 has left");
    free(group);
}
END_TEST

static void abandon_one(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_error why = { FFA_INVALID, 0, "heads_q is 7" };
    uint64_t call;

    if (r == 1) {
        ck_assert_int_eq(begin_call(&call, comm, gpu_stream_handle(rank->stream), "a call", NULL),
                         FFA_OK);
        comm_device_abandon(comm, call, gpu_stream_handle(rank->stream), &why);
    } else {
        calls(rank, 1);
    }
    finish(rank);
}

START_TEST(rank_that_fails_is_named)
{
    struct group *group = group_new(3, LONG_MS, abandon_one);

    group_run(group);
    for (int32_t r = 0; r < 3; r++)
        check_failure(&group->ranks[r], FFA_COMM, "rank 1 failed: heads_q is 7");
    free(group);
}
END_TEST

/* Two communicators, used in one order by rank 0 and in the other by rank 1. */
static void call_two(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_comm *second, *order[2];

    opts.key_bytes = (int64_t)(WORDS * sizeof(uint64_t)) * group->count;
    opts.timeout_ms = group->timeout_ms;
    ck_assert_int_eq(bootstrap_join(&second, &rank->context, &rank->end, &opts, NULL), FFA_OK);
    for (int i = 0; i < 2; i++)
        order[i] = (r + i) % 2 ? second : rank->comm;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(enqueue_call(rank, order[i], "a call", &rank->err), FFA_OK);
    gpu_stream_synchronize(rank->context.gpu, gpu_stream_handle(rank->stream), NULL);
    rank->status = ffa_comm_status(order[0], &rank->err);
    if (rank->status == FFA_OK)
        rank->status = ffa_comm_status(order[1], &rank->err);
    ffa_comm_destroy(second);
}

START_TEST(two_communicators_have_one_order)
{
    struct group *group = group_new(2, LONG_MS, call_two);
    const int64_t begin_us = clock_us();

    group_run(group);
    ck_assert_int_lt(clock_us() - begin_us, LONG_MS * 1000 / 2);
    for (int32_t r = 0; r < 2; r++)
        check_failure(&group->ranks[r], FFA_COMM, "in another order than rank");
    free(group);
}
END_TEST

/* Rank 0 waits for rank 1, and has read the words of one call and what the next one comes after. */
static void read_between(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    ffa_stream stream = gpu_stream_handle(rank->stream);
    const struct comm_flag ready = { CHANNEL_ROWS_READY, 1 - r, 0, 0 };
    uint64_t call;

    ck_assert_int_eq(begin_call(&call, comm, stream, "a call", NULL), FFA_OK);
    if (r == 0) {
        ck_assert_int_eq(comm_device_wait(comm, call, stream, &ready, 1, NULL), FFA_OK);
    } else {
        gpu_stream_synchronize(rank->context.gpu, gpu_stream_handle(comm->fetch), NULL);
        fake_gpu_store(&comm->blocks[0][comm_block_after(2, 1)],
                       (uint64_t)2 << COMM_DIGEST_BITS | 12345);
        usleep(1300000);
        gpu_write_value(comm->gpu, stream, &comm->blocks[0][comm_block_rows_ready(2, 1)], call,
                        NULL);
    }
    ck_assert_int_eq(comm_device_end(comm, call, stream, NULL), FFA_OK);
    finish(rank);
}

START_TEST(words_of_two_calls_are_told_apart)
{
    struct group *group = group_new(2, LONG_MS, read_between);

    group_run(group);
    for (int32_t r = 0; r < 2; r++)
        ck_assert_msg(group->ranks[r].status == FFA_OK, "%s", group->ranks[r].err.message);
    free(group);
}
END_TEST

/* The legacy default stream, by both of its names. */
static void take_legacy_stream(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    struct comm_device *comm = comm_device_of(rank->comm);
    uint64_t call = 7;

    for (uintptr_t handle = 0; handle < 2 && !group->devices; handle++) {
        rank->status = begin_call(&call, comm, (ffa_stream)handle, "a call", &rank->err);
        check_failure(rank, FFA_INVALID, "stream is the legacy default stream, which rank ");
        ck_assert_uint_eq(call, 0);
    }
    ck_assert_int_eq(comm->neighbour, group->devices ? -1 : r == 0);
    rank->status = FFA_OK;
    calls(rank, 1);
    finish(rank);
}

START_TEST(ranks_of_a_device_share_no_stream)
{
    struct group *group = group_new(2, LONG_MS, take_legacy_stream);

    group_run(group);
    check_results(group, 1);
    memset(group->ranks, 0, sizeof group->ranks);
    group->devices = RANKS;
    group_run(group);
    check_results(group, 1);
    free(group);
}
END_TEST

/* ---- processes ---- */

enum { PROCESSES = 3 };

/* Makes calls until something ends it: exit 0 if rank 1 was named, or all 200 calls were made. */
static int run_process(struct group *group, int32_t r, bool is_killed)
{
    struct rank *rank = &group->ranks[r];
    const int32_t count = is_killed ? 1000000 : 200;
    bool is_named;

    fake_gpu_share(r + 1);
    if (rank_create(group, r) != FFA_OK)
        return 2;
    for (int32_t i = 0; i < count && calls(rank, 1) == FFA_OK && finish(rank) == FFA_OK; i++)
        if (is_killed && r == 1 && i == 20)
            raise(SIGKILL);
    is_named = strstr(rank->err.message, "rank 1") != NULL;
    if (!is_killed && rank->results != count)
        return 3;
    if (is_killed && (rank->status == FFA_OK || !is_named))
        return 4;
    rank_destroy(rank);
    return 0;
}

static void run_processes(bool is_killed)
{
    struct group *group = group_new(PROCESSES, is_killed ? QUICK_MS : LONG_MS, NULL);
    pid_t children[PROCESSES];
    int status;

    fake_gpu_share(0);
    group->bootstrap = bootstrap_new(PROCESSES);
    for (int32_t r = 0; r < PROCESSES; r++) {
        children[r] = fork();
        ck_assert_int_ge(children[r], 0);
        if (children[r] == 0)
            _exit(run_process(group, r, is_killed));
    }
    for (int32_t r = 0; r < PROCESSES; r++) {
        ck_assert_int_eq(waitpid(children[r], &status, 0), children[r]);
        if (is_killed && r == 1)
            ck_assert(WIFSIGNALED(status));
        else
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status %x", r,
                          (unsigned)status);
    }
    bootstrap_free(group->bootstrap);
    free(group);
}

START_TEST(processes_join)
{
    run_processes(false);
}
END_TEST

START_TEST(process_that_is_killed_is_named)
{
    run_processes(true);
}
END_TEST

/* The nth operation on the GPU fails in rank 0; every rank tells whether its creation failed. */
static int join_process(struct group *group, int32_t r, long nth)
{
    ffa_status status;

    fake_gpu_share(r + 1);
    if (r == 0)
        fault_arm(FAULT_GPU, nth);
    status = rank_create(group, r);
    if (r == 0 && !fault_fired())
        return 3;
    fault_arm(FAULT_GPU, 0);
    rank_destroy(&group->ranks[r]);
    return status == FFA_OK ? 2 : 0;
}

/* The exit of rank 0. */
static int join_processes(long nth)
{
    struct group *group = group_new(2, LONG_MS, NULL);
    pid_t children[2];
    int status, first = 0;

    group->bootstrap = bootstrap_new(2);
    for (int32_t r = 0; r < 2; r++) {
        children[r] = fork();
        ck_assert_int_ge(children[r], 0);
        if (children[r] == 0)
            _exit(join_process(group, r, nth));
    }
    for (int32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(waitpid(children[r], &status, 0), children[r]);
        ck_assert_msg(WIFEXITED(status), "rank %d: status %x", r, (unsigned)status);
        first = r == 0 ? WEXITSTATUS(status) : first;
    }
    bootstrap_free(group->bootstrap);
    free(group);
    return first;
}

START_TEST(join_that_fails_frees_what_nobody_has_mapped)
{
    int failed = 0;

    fake_gpu_share(0);
    for (long nth = 1; join_processes(nth) == 0; nth++, failed++)
        ck_assert_msg(fake_gpu_freed_mapped() == 0,
                      "fault %ld: memory was freed while it was mapped", nth);
    ck_assert_int_gt(failed, 10);
}
END_TEST

/* ---- failures of creation ---- */

START_TEST(ranks_share_one_device_or_none)
{
    struct group *group = group_new(3, QUICK_MS, NULL);

    group->devices = 2;
    group_run_any(group);
    for (int32_t r = 0; r < 3; r++) {
        ck_assert_int_eq(group->ranks[r].status, r ? FFA_COMM : FFA_UNSUPPORTED);
        ck_assert_msg(strstr(group->ranks[r].err.message,
                             "ranks 0 and 2 share a GPU, and rank 1 has another one") != NULL,
                      "%s", group->ranks[r].err.message);
    }
    free(group);
}
END_TEST

START_TEST(creation_is_of_all_or_none)
{
    const enum fault_kind kind = _i ? FAULT_GPU : FAULT_ALLOC;
    struct group *group = group_new(3, QUICK_MS, NULL);
    int failures = 0;

    fake_gpu_share(0); /* what is left allocated stays there */

    group->devices = RANKS;
    for (long nth = 1; nth < 2000; nth += 7) {
        const long allocated = fake_gpu_allocated();
        int failed = 0;

        memset(group->ranks, 0, sizeof group->ranks);
        fault_arm(kind, nth);
        group_run_any(group);
        if (!fault_fired())
            break;
        for (int32_t r = 0; r < 3; r++)
            failed += group->ranks[r].status != FFA_OK;
        ck_assert_msg(failed == 0 || failed == 3, "%d of 3 failed at fault %ld: %s", failed, nth,
                      group->ranks[0].err.message);
        /* A fault after the creation may leave memory that a peer could still touch. */
        ck_assert_msg(failed == 0 || fake_gpu_allocated() == allocated,
                      "fault %ld: %ld allocations are left: %s; %s; %s", nth,
                      fake_gpu_allocated() - allocated, group->ranks[0].err.message,
                      group->ranks[1].err.message, group->ranks[2].err.message);
        failures += failed > 0;
    }
    fault_arm(kind, 0);
    ck_assert_int_gt(failures, 0);
    free(group);
}
END_TEST

static const struct {
    ffa_peer_opts opts;
    const char *says;
    ffa_status status;
} wrong[] = {
    { { sizeof(ffa_peer_opts), 0, 0, 0, bootstrap_allgather, NULL, 0, 0, 0, 0, 0, NULL },
      "rank_count is 0, not in [1, 256]",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 2, 2, 0, bootstrap_allgather, NULL, 0, 0, 0, 0, 0, NULL },
      "rank is 2, not in [0, 1]",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 0, bootstrap_allgather, NULL, -1, 0, 0, 0, 0, NULL },
      "key_bytes is -1",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 0, bootstrap_allgather, NULL, 0, 0, -1, 0, 0, NULL },
      "timeout_ms is -1",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 0, NULL, NULL, 0, 0, 0, 0, 0, NULL },
      "allgather is NULL",
      FFA_INVALID },
    { { 2, 0, 1, 0, bootstrap_allgather, NULL, 0, 0, 0, 0, 0, NULL },
      "struct_size is 2",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 0, bootstrap_allgather, NULL, 0, 0, 0, 4, 0, NULL },
      "transport is 4, not in [0, 3]",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 0, bootstrap_allgather, NULL, 0, 0, 0, 0, 65, NULL },
      "max_ctas is 65, not in [0, 64]",
      FFA_INVALID },
    { { sizeof(ffa_peer_opts), 0, 1, 257, bootstrap_allgather, NULL, 0, 0, 0, 3, 0, NULL },
      "ranks_per_node is 257, not in [0, 256]",
      FFA_INVALID },
};

START_TEST(wrong_options_are_refused)
{
    ffa_context context = { .gpu = fake_gpu(0) };
    ffa_comm *comm = (ffa_comm *)&context;
    ffa_error err;

    ck_assert_int_eq(ffa_comm_create_peer(&comm, &context, &wrong[_i].opts, &err),
                     wrong[_i].status);
    ck_assert_ptr_null(comm);
    ck_assert_msg(strstr(err.message, wrong[_i].says) != NULL, "%s", err.message);
}
END_TEST

START_TEST(context_without_gpu_is_refused)
{
    struct bootstrap_end end = { .all = bootstrap_new(1) };
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;
    ffa_context context = { .gpu = NULL };
    ffa_comm *comm;
    ffa_error err;

    opts.rank_count = 1;
    opts.allgather = bootstrap_allgather;
    opts.user = &end;
    ck_assert_int_eq(ffa_comm_create_peer(&comm, &context, &opts, &err), FFA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "has no GPU"));
    ck_assert_int_eq(ffa_comm_create_peer(&comm, NULL, &opts, &err), FFA_INVALID);
    ck_assert_ptr_null(comm);
    bootstrap_free(end.all);
}
END_TEST

static void lose_bootstrap(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    rank->end.fails_from = r == 0 ? 1 : 0;
    if (r == 0)
        rank->status = ffa_comm_reserve(rank->comm, 1 << 22, 0, &rank->err);
    else
        while ((rank->status = ffa_comm_status(rank->comm, &rank->err)) == FFA_OK)
            usleep(1000);
}

START_TEST(bootstrap_that_fails_breaks_the_group)
{
    struct group *group;

    fake_gpu_share(0); /* what a peer may still touch is not freed */
    group = group_new(2, LONG_MS, lose_bootstrap);
    group_run_any(group);
    for (int32_t r = 0; r < 2; r++)
        check_failure(&group->ranks[r], FFA_COMM, "the allgather of rank 0 failed");
    free(group);
}
END_TEST

START_TEST(host_passes_take_another_transport)
{
    struct group *group = group_new(1, LONG_MS, NULL);
    struct rank *rank = &group->ranks[0];
    ffa_comm *loopback;
    ffa_error err;

    group->bootstrap = bootstrap_new(1);
    ck_assert_int_eq(rank_create(group, 0), FFA_OK);
    ck_assert_int_eq(rank->comm->ops->enter(rank->comm, 1, "forward", &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "the communicator is of GPUs"));
    ck_assert_int_eq(ffa_loopback_create(&loopback, 1, NULL, NULL), FFA_OK);
    ck_assert_ptr_null(comm_device_of(loopback));
    ck_assert_ptr_null(comm_device_of(NULL));
    ck_assert_int_eq(ffa_comm_reserve(loopback, 1, 1, NULL), FFA_OK);
    ck_assert_int_eq(ffa_comm_reserve(loopback, -1, 1, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_comm_status(loopback, NULL), FFA_OK);
    ffa_comm_cancel(loopback, NULL);
    ck_assert_int_eq(ffa_comm_status(loopback, &err), FFA_COMM);
    ck_assert_str_eq(err.message, "cancelled at rank 0");
    ffa_comm_destroy(loopback);
    ck_assert_int_eq(ffa_comm_status(NULL, NULL), FFA_INVALID);
    ck_assert_int_eq(ffa_comm_reserve(NULL, 1, 1, NULL), FFA_INVALID);
    rank_destroy(rank);
    bootstrap_free(group->bootstrap);
    free(group);
}
END_TEST

START_TEST(block_words_do_not_overlap)
{
    const int32_t n = _i;
    const struct {
        int64_t begin, count;
    } parts[] = {
        { comm_block_rows_ready(n, 0), n },
        { comm_block_rows_done(n, 0), n },
        { comm_block_sums_ready(n, 0, 0), (int64_t)COMM_STAGES_MAX * n },
        { comm_block_relayed(n, 0, 0), (int64_t)COMM_STAGES_MAX * n },
        { comm_block_sums_done(n, 0), n },
        { comm_block_totals_ready(n, 0), n },
        { comm_block_arrivals(n, 0), COMM_STAGES_MAX },
        { comm_block_words(n, 0), n },
        { comm_block_after(n, 0), n },
        { comm_block_waits(n, 0), n },
        { comm_block_state(n, 0), n },
        { comm_block_reason(n, 0), (int64_t)COMM_REASON_WORDS * n },
        { comm_block_hello(n, 0), (int64_t)COMM_HELLO_WORDS * n },
    };
    int64_t at = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_int_eq(parts[i].begin, at);
        at += parts[i].count;
    }
    ck_assert_int_eq(comm_block_count(n), at);
    ck_assert_int_eq(comm_block_sums_ready(n, n - 1, COMM_STAGES_MAX - 1) + 1,
                     comm_block_relayed(n, 0, 0));
    ck_assert_int_eq(comm_block_relayed(n, n - 1, COMM_STAGES_MAX - 1) + 1,
                     comm_block_sums_done(n, 0));
    ck_assert_int_ge(comm_block_totals(n, 0, 0), at);
    ck_assert_int_eq(comm_block_totals(n, 0, 0) * 8 % 256, 0);
    ck_assert_int_eq(comm_block_totals(n, 0, n), comm_block_totals(n, 1, 0));
    ck_assert_int_eq((comm_block_totals(n, 0, 1) - comm_block_totals(n, 0, 0)) *
                         (int64_t)sizeof(uint64_t),
                     COMM_TOTALS_MAX * (int64_t)sizeof(float));
    ck_assert_int_eq(comm_block_size(n), comm_block_totals(n, COMM_TOTALS_SLOTS - 1, n));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_device");
    TCase *tc = tcase_create("comm_device");

    tcase_set_timeout(tc, 180);
    tcase_add_loop_test(tc, block_words_do_not_overlap, 1, 257);
    tcase_add_loop_test(tc, ranks_join, 0, 2 * RANKS);
    tcase_add_loop_test(tc, rows_arrive, 0, RANKS);
    tcase_add_test(tc, more_calls_than_records);
    tcase_add_loop_test(tc, calls_follow_each_other_on_any_streams, 0, 2);
    tcase_add_test(tc, sums_are_lent_and_given_back);
    tcase_add_loop_test(tc, totals_come_to_all_ranks, 0, RANKS);
    tcase_add_test(tc, rank_without_totals_is_named);
    tcase_add_test(tc, who_leaves_waits_for_readers);
    tcase_add_test(tc, windows_grow);
    tcase_add_test(tc, windows_grow_on_all_ranks_or_none);
    tcase_add_test(tc, rank_that_skips_a_call_is_named);
    tcase_add_test(tc, host_that_runs_ahead_is_released);
    tcase_add_test(tc, rank_that_others_wait_for_in_a_row_is_named);
    tcase_add_test(tc, reader_that_does_not_read_is_named);
    tcase_add_test(tc, ranks_in_different_calls_are_named);
    tcase_add_test(tc, ranks_in_other_rounds_are_named);
    tcase_add_test(tc, cancel_releases_all);
    tcase_add_test(tc, rank_that_left_is_named);
    tcase_add_test(tc, rank_that_fails_is_named);
    tcase_add_test(tc, two_communicators_have_one_order);
    tcase_add_test(tc, processes_join);
    tcase_add_test(tc, process_that_is_killed_is_named);
    tcase_add_test(tc, join_that_fails_frees_what_nobody_has_mapped);
    tcase_add_test(tc, words_of_two_calls_are_told_apart);
    tcase_add_test(tc, ranks_of_a_device_share_no_stream);
    tcase_add_test(tc, bootstrap_that_fails_breaks_the_group);
    tcase_add_test(tc, host_passes_take_another_transport);
    tcase_add_loop_test(tc, creation_is_of_all_or_none, 0, 2);
    tcase_add_test(tc, ranks_share_one_device_or_none);
    tcase_add_loop_test(tc, wrong_options_are_refused, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(tc, context_without_gpu_is_refused);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
