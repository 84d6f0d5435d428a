/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator of GPUs whose ranks exchange over NCCL, on a GPU without kernels and with an
 * NCCL without GPUs. Ranks are threads with a device each, which may reach each other's memory or
 * not. In a call each rank sends the value of its rows to all others, into their windows.
 */
#include "parallel/device/comm_device.h"

#include "service/context.h"
#include "support/bootstrap.h"
#include "support/fake_gpu.h"
#include "support/fake_nccl.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <pthread.h>
#include <unistd.h>

enum { RANKS = 4, ROW_BYTES = 4096, CALLS = 20, QUICK_MS = 2000, LONG_MS = 60000 };

struct rank {
    struct bootstrap_end end;
    ffa_context context;
    ffa_comm *comm;
    void *caller; /* of ffa_comm_create_nccl */
    struct gpu_stream *stream;
    struct nccl_move moves[2 * RANKS];
    ffa_status status;
    ffa_error err;
    ffa_transport transport;
    int bad;      /* rows that are not what they should be */
    bool is_late; /* moves its rows once the group is broken */
    pthread_t thread;
};

struct group {
    struct bootstrap *bootstrap;
    struct rank ranks[RANKS];
    int32_t count, transport, ranks_per_node;
    int64_t timeout_ms;
    int caller; /* the key of their communicators; 0: by a bootstrap */
    bool shares_gpu;
    void (*work)(struct group *group, int32_t rank);
};

/* ---- ranks ---- */

static ffa_status create_over_nccl(const struct group *group, struct rank *rank, int32_t r)
{
    ffa_nccl_opts opts = FFA_NCCL_OPTS_INIT;

    rank->caller = fake_nccl_caller(group->caller, rank->context.gpu, r, group->count);
    opts.comm = rank->caller;
    opts.transport = group->transport;
    opts.ranks_per_node = group->ranks_per_node;
    opts.key_bytes = (int64_t)ROW_BYTES * group->count;
    opts.timeout_ms = group->timeout_ms;
    return ffa_comm_create_nccl(&rank->comm, &rank->context, &opts, &rank->err);
}

static ffa_status create_by_bootstrap(const struct group *group, struct rank *rank, int32_t r)
{
    ffa_peer_opts opts = FFA_PEER_OPTS_INIT;

    rank->end.all = group->bootstrap;
    rank->end.rank = r;
    opts.transport = group->transport;
    opts.ranks_per_node = group->ranks_per_node;
    opts.key_bytes = (int64_t)ROW_BYTES * group->count;
    opts.timeout_ms = group->timeout_ms;
    return bootstrap_join(&rank->comm, &rank->context, &rank->end, &opts, &rank->err);
}

/* Of a group's communicators that no other one has. */
static int next_key(void)
{
    static int key = 1 << 20;

    return key += 1000;
}

struct start {
    struct group *group;
    int32_t rank;
};

static void *run_rank(void *user)
{
    const struct start start = *(struct start *)user;
    struct group *group = start.group;
    struct rank *rank = &group->ranks[start.rank];

    free(user);
    rank->context.gpu = fake_gpu(group->shares_gpu ? 0 : start.rank);
    rank->status = group->caller ? create_over_nccl(group, rank, start.rank)
                                 : create_by_bootstrap(group, rank, start.rank);
    rank->transport = ffa_comm_transport(rank->comm);
    if (rank->status == FFA_OK)
        (void)gpu_stream_create(&rank->stream, rank->context.gpu, 0, NULL);
    if (rank->status == FFA_OK && group->work)
        group->work(group, start.rank);
    ffa_comm_destroy(rank->comm);
    gpu_stream_destroy(rank->stream);
    fake_nccl_caller_free(rank->caller);
    return NULL;
}

static void group_run(struct group *group)
{
    if (!group->timeout_ms)
        group->timeout_ms = LONG_MS;
    group->bootstrap = bootstrap_new(group->count);
    for (int32_t r = 0; r < group->count; r++) {
        struct start *start = malloc(sizeof *start);

        *start = (struct start){ group, r };
        ck_assert_int_eq(pthread_create(&group->ranks[r].thread, NULL, run_rank, start), 0);
    }
    for (int32_t r = 0; r < group->count; r++)
        pthread_join(group->ranks[r].thread, NULL);
    bootstrap_free(group->bootstrap);
    ck_assert_int_eq(fake_gpu_allocated(), 0);
}

/* ---- a call ---- */

struct kernel {
    struct rank *rank;
    uint64_t call;
};

static uint64_t value_of(int32_t rank, uint64_t call)
{
    return (uint64_t)(rank + 1) << 32 | call;
}

static uint64_t *row_of(const struct comm_device *comm, int32_t rank)
{
    return (uint64_t *)comm->windows[WINDOW_ROWS][comm->comm.rank] +
           (size_t)rank * ROW_BYTES / sizeof(uint64_t);
}

static void write_row(void *user)
{
    struct kernel *k = user;
    const struct comm_device *comm = comm_device_of(k->rank->comm);

    for (size_t i = 0; i < ROW_BYTES / sizeof(uint64_t); i++)
        fake_gpu_store(row_of(comm, comm->comm.rank) + i, value_of(comm->comm.rank, k->call));
    free(k);
}

/* Polls the arrival of the only stage. */
static void look(void *user)
{
    struct kernel *k = user;
    const struct comm_device *comm = comm_device_of(k->rank->comm);
    const int32_t n = comm->comm.rank_count;

    while ((int64_t)(fake_gpu_load(&comm_device_own(comm)[comm_block_arrivals(n, 1)]) - k->call) <
           0)
        usleep(50);
    for (int32_t r = 0; r < n; r++)
        for (size_t i = 0; i < ROW_BYTES / sizeof(uint64_t); i++)
            k->rank->bad += fake_gpu_load(row_of(comm, r) + i) != value_of(r, k->call);
    free(k);
}

static void launch(struct rank *rank, void (*kernel)(void *user), uint64_t call)
{
    struct kernel *k = malloc(sizeof *k);

    *k = (struct kernel){ rank, call };
    fake_gpu_launch(gpu_stream_handle(rank->stream), kernel, k);
}

/* Returns once the group is broken. */
static void wait_until_broken(const struct comm_device *comm)
{
    while (comm_device_status(comm, NULL) == FFA_OK)
        usleep(50);
}

/* As a forward pass enqueues it. */
static ffa_status enqueue_call(struct rank *rank, const char *words, int64_t row_bytes)
{
    struct comm_device *comm = comm_device_of(rank->comm);
    const ffa_stream stream = gpu_stream_handle(rank->stream);
    const int32_t own = comm->comm.rank, n = comm->comm.rank_count;
    const struct comm_opening opening = {
        .stream = stream, .words = words, .name = "forward", .publishes = "keys", .rounds = 1
    };
    ffa_error *err = &rank->err;
    int64_t count = 0;
    uint64_t call = 0;
    ffa_status rc;

    FFA_TRY(comm_device_open(&call, comm, &opening, err));
    if (rank->is_late)
        wait_until_broken(comm);
    comm_device_spoil(comm, call, row_of(comm, 0), ROW_BYTES * n);
    FFA_TRY(comm_exchange_reclaim(comm, WINDOW_ROWS, stream, err));
    launch(rank, write_row, call);
    FFA_TRY(comm_exchange_follow(comm, WINDOW_ROWS, stream, err));
    for (int32_t r = 0; r < n; r++) {
        if (r == own)
            continue;
        rank->moves[count++] = (struct nccl_move){ row_of(comm, own), row_bytes, r, true };
        rank->moves[count++] = (struct nccl_move){ row_of(comm, r), ROW_BYTES, r, false };
    }
    FFA_TRY(comm_exchange_moves(comm, WINDOW_ROWS, rank->moves, count, err));
    FFA_TRY(comm_device_arrive(comm, call, gpu_stream_handle(comm->network), 1, err));
    FFA_TRY(comm_exchange_sent(comm, WINDOW_ROWS, err));
    launch(rank, look, call);
    rc = comm_device_end(comm, call, stream, err);
    call = 0;
out:
    if (call)
        comm_device_abandon(comm, call, stream, err);
    return rc;
}

static void finish(struct rank *rank)
{
    (void)gpu_stream_synchronize(rank->context.gpu, gpu_stream_handle(rank->stream), NULL);
    if (rank->status == FFA_OK)
        rank->status = ffa_comm_status(rank->comm, &rank->err);
}

static void make_calls(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    for (int i = 0; i < CALLS && rank->status == FFA_OK; i++)
        rank->status = enqueue_call(rank, "a call", ROW_BYTES);
    finish(rank);
}

static void check_rank(const struct group *group, int32_t r, ffa_status status, const char *says)
{
    const struct rank *rank = &group->ranks[r];

    ck_assert_msg(rank->status == status, "rank %d: status %d, not %d: %s", r, (int)rank->status,
                  (int)status, rank->err.message);
    ck_assert_msg(!says || strstr(rank->err.message, says), "rank %d: '%s', not '%s'", r,
                  rank->err.message, says);
}

static void check_all(const struct group *group, ffa_status status, const char *says)
{
    for (int32_t r = 0; r < group->count; r++)
        check_rank(group, r, status, says);
}

/* ---- what works ---- */

/* Rows come, in all ways in which a group is made. */
START_TEST(rows_arrive)
{
    struct group group = { .count = 2 + _i % 3,
                           .transport = FFA_TRANSPORT_EXCHANGE,
                           .caller = _i % 2 ? next_key() : 0,
                           .work = make_calls };
    const long aborted = fake_nccl_aborted();

    fake_gpu_apart(_i >= 6);
    group_run(&group);
    fake_gpu_apart(false);
    check_all(&group, FFA_OK, NULL);
    for (int32_t r = 0; r < group.count; r++) {
        ck_assert_int_eq(group.ranks[r].transport, FFA_TRANSPORT_EXCHANGE);
        ck_assert_int_eq(group.ranks[r].bad, 0);
    }
    ck_assert_int_eq(fake_nccl_aborted(), aborted);
}
END_TEST

static const struct {
    int32_t transport;
    bool is_apart, has_nccl, shares_gpu, has_caller;
    ffa_transport becomes;
    ffa_status status;
    const char *says;
} choices[] = {
    { FFA_TRANSPORT_AUTO, false, true, false, false, FFA_TRANSPORT_PULL, FFA_OK, NULL },
    { FFA_TRANSPORT_AUTO, false, false, true, false, FFA_TRANSPORT_PULL, FFA_OK, NULL },
    { FFA_TRANSPORT_AUTO, false, true, false, true, FFA_TRANSPORT_PULL, FFA_OK, NULL },
    { FFA_TRANSPORT_AUTO, true, true, false, false, FFA_TRANSPORT_EXCHANGE, FFA_OK, NULL },
    { FFA_TRANSPORT_AUTO, true, true, false, true, FFA_TRANSPORT_EXCHANGE, FFA_OK, NULL },
    { FFA_TRANSPORT_AUTO, true, false, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no access to device" },
    { FFA_TRANSPORT_AUTO, true, false, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no NCCL >= 2.18.0" },
    { FFA_TRANSPORT_PULL, true, true, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no access to device" },
    { FFA_TRANSPORT_EXCHANGE, false, false, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no NCCL >= 2.18.0" },
    { FFA_TRANSPORT_EXCHANGE, false, true, true, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "ranks 0 and 1 share a GPU: NCCL takes one rank a GPU" },
    { FFA_TRANSPORT_RELAY, false, true, false, false, FFA_TRANSPORT_RELAY, FFA_OK, NULL },
    { FFA_TRANSPORT_RELAY, false, true, false, true, FFA_TRANSPORT_RELAY, FFA_OK, NULL },
    { FFA_TRANSPORT_RELAY, true, true, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no access to device" },
    { FFA_TRANSPORT_RELAY, false, false, false, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "no NCCL >= 2.18.0" },
    { FFA_TRANSPORT_RELAY, false, true, true, false, FFA_TRANSPORT_AUTO, FFA_UNSUPPORTED,
      "ranks 0 and 1 share a GPU: NCCL takes one rank a GPU" },
};

START_TEST(transport_is_chosen)
{
    struct group group = { .count = 2,
                           .transport = choices[_i].transport,
                           .caller = choices[_i].has_caller ? next_key() : 0,
                           .shares_gpu = choices[_i].shares_gpu };

    fake_gpu_apart(choices[_i].is_apart);
    fake_nccl_there(choices[_i].has_nccl);
    group_run(&group);
    fake_gpu_apart(false);
    fake_nccl_there(true);
    for (int32_t r = 0; r < group.count; r++) {
        const ffa_status status =
            r > 0 && choices[_i].status != FFA_OK ? FFA_COMM : choices[_i].status;

        check_rank(&group, r, status, choices[_i].says);
    }
    for (int32_t r = 0; r < group.count; r++)
        ck_assert_int_eq(group.ranks[r].transport, choices[_i].becomes);
}
END_TEST

/* ---- nodes ---- */

/* Ranks of a node map each other's memory, and no other one's; who makes them does not matter. */
static void look_at_memory(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];
    const struct comm_device *comm = comm_device_of(rank->comm);

    for (int32_t other = 0; other < group->count; other++)
        rank->bad += (other / group->ranks_per_node == r / group->ranks_per_node) !=
                     (comm->blocks[other] != NULL && comm->windows[WINDOW_ROWS][other] != NULL);
    make_calls(group, r); /* over NCCL, from and to all */
}

START_TEST(ranks_of_a_node_reach_each_other)
{
    struct group group = { .count = 2 + _i / 4,
                           .transport = FFA_TRANSPORT_RELAY,
                           .ranks_per_node = 1 + _i % 2,
                           .caller = _i % 4 < 2 ? next_key() : 0,
                           .work = look_at_memory };

    fake_gpu_node(group.ranks_per_node);
    group_run(&group);
    fake_gpu_node(RANKS);
    check_all(&group, FFA_OK, NULL);
    for (int32_t r = 0; r < group.count; r++) {
        ck_assert_int_eq(group.ranks[r].transport, FFA_TRANSPORT_RELAY);
        ck_assert_int_eq(group.ranks[r].bad, 0);
    }
}
END_TEST

/* Hosts are letters. */
static const struct {
    const char *hosts;
    int32_t given, node_ranks;
    const char *says;
} hosts[] = {
    { "a", 0, 1, NULL },
    { "aaaa", 0, 4, NULL },
    { "aaaa", 2, 2, NULL },
    { "aaaa", 8, 4, NULL },
    { "aabb", 0, 2, NULL },
    { "aabb", 1, 1, NULL },
    { "aaabb", 0, 3, NULL },
    { "abcd", 0, 1, NULL },
    { "a--a", 0, 4, NULL },
    { "aabb", 3, 0, "ranks 1 and 2 run on two hosts, and with 3 ranks a node both are of node 0" },
    { "aabbb", 0, 0,
      "ranks 3 and 4 run on one host, and with 2 ranks a node, as on the first host, they are of "
      "two: give ranks_per_node" },
    { "aabcc", 0, 0,
      "ranks 2 and 3 run on two hosts, and with 2 ranks a node, as on the first host, both are of "
      "node 1" },
};

START_TEST(nodes_are_hosts_or_parts_of_them)
{
    const int32_t n = (int32_t)strlen(hosts[_i].hosts);
    char names[8][2] = { { 0 } };
    const char *at[8];
    ffa_error err = { FFA_OK, 0, "" };
    int32_t width;
    ffa_status rc;

    for (int32_t r = 0; r < n; r++) {
        names[r][0] = hosts[_i].hosts[r] == '-' ? '\0' : hosts[_i].hosts[r];
        at[r] = names[r];
    }
    rc = comm_peer_nodes(&width, at, n, hosts[_i].given, &err);
    ck_assert_int_eq(rc, hosts[_i].says ? FFA_INVALID : FFA_OK);
    ck_assert_str_eq(err.message, hosts[_i].says ? hosts[_i].says : "");
    if (rc == FFA_OK)
        ck_assert_int_eq(width, hosts[_i].node_ranks);
}
END_TEST

/* ---- what does not ---- */

/* Rank 1 makes no call. The others are released, and told; only communicators of ours end. */
static void all_but_one(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    for (int i = 0; i < 3 && r != 1 && rank->status == FFA_OK; i++)
        rank->status = enqueue_call(rank, "a call", ROW_BYTES);
    for (int i = 0; r == 1 && i < 3 * QUICK_MS / 10; i++)
        usleep(10000);
    finish(rank);
}

START_TEST(a_rank_that_does_not_come)
{
    struct group group = { .count = 3,
                           .transport = FFA_TRANSPORT_EXCHANGE,
                           .timeout_ms = QUICK_MS,
                           .caller = next_key(),
                           .work = all_but_one };
    const bool is_apart = _i == 1;
    const long aborted = fake_nccl_aborted(), destroyed = fake_nccl_destroyed();

    fake_gpu_apart(is_apart);
    group_run(&group);
    fake_gpu_apart(false);
    for (int32_t r = 0; r < 3; r += 2) {
        const struct rank *rank = &group.ranks[r];

        ck_assert_msg(rank->status == FFA_TIMEOUT &&
                          strstr(rank->err.message, "rank 1 has not begun call 1"),
                      "rank %d: status %d: %s", r, (int)rank->status, rank->err.message);
    }
    /* Rank 1, which waits for nobody, hears of it where words reach it. */
    check_rank(&group, 1, is_apart ? FFA_OK : FFA_TIMEOUT, NULL);
    ck_assert_int_eq(fake_nccl_aborted() - aborted, is_apart ? 4 : 6);
    ck_assert_int_eq(fake_nccl_destroyed() - destroyed, is_apart ? 2 : 0);
}
END_TEST

/* No row moves: what differs is seen before. */
static void make_another_call(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    rank->status = enqueue_call(rank, r == 1 ? "another call" : "a call", ROW_BYTES);
    finish(rank);
}

START_TEST(ranks_in_different_calls)
{
    struct group group = { .count = 2,
                           .transport = FFA_TRANSPORT_EXCHANGE,
                           .ranks[0].is_late = _i >= 2,
                           .work = make_another_call };

    fake_gpu_apart(_i % 2 == 1);
    group_run(&group);
    fake_gpu_apart(false);
    check_all(&group, FFA_COMM, "runs another call: call 1 of rank");
}
END_TEST

/* What NCCL itself finds out later. */
static void make_a_short_send(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    rank->status = enqueue_call(rank, "a call", r == 1 ? ROW_BYTES / 2 : ROW_BYTES);
    finish(rank);
}

START_TEST(failures_of_nccl)
{
    struct group group = { .count = 2,
                           .transport = FFA_TRANSPORT_EXCHANGE,
                           .work = make_a_short_send };

    fake_gpu_apart(true);
    group_run(&group);
    fake_gpu_apart(false);
    check_rank(&group, 0, FFA_GPU, "NCCL fails: sizes differ"); /* rank 1 may have what it needs */
}
END_TEST

static void cancel_one(struct group *group, int32_t r)
{
    struct rank *rank = &group->ranks[r];

    if (r == 1)
        ffa_comm_cancel(rank->comm, "enough");
    else
        rank->status = enqueue_call(rank, "a call", ROW_BYTES);
    finish(rank);
}

START_TEST(a_rank_that_is_cancelled)
{
    struct group group = {
        .count = 2, .transport = FFA_TRANSPORT_EXCHANGE, .timeout_ms = QUICK_MS, .work = cancel_one
    };
    const bool is_apart = _i == 1;

    fake_gpu_apart(is_apart);
    group_run(&group);
    fake_gpu_apart(false);
    ck_assert_int_eq(group.ranks[1].status, FFA_COMM);
    ck_assert_msg(group.ranks[0].status == (is_apart ? FFA_TIMEOUT : FFA_COMM), "%s",
                  group.ranks[0].err.message);
}
END_TEST

/* ---- options ---- */

START_TEST(wrong_options_are_refused)
{
    ffa_context context = { .gpu = fake_gpu(0) }, cpu = { .gpu = NULL };
    void *caller = fake_nccl_caller(1, fake_gpu(1), 0, 1);
    ffa_nccl_opts opts = FFA_NCCL_OPTS_INIT;
    ffa_comm *comm = (ffa_comm *)&context;
    ffa_error err;

    ck_assert_int_eq(ffa_comm_create_nccl(&comm, &context, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "comm is NULL");
    ck_assert_ptr_null(comm);
    opts.comm = caller;
    ck_assert_int_eq(ffa_comm_create_nccl(&comm, &context, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "comm is of device 1, the context of device 0");
    ck_assert_int_eq(ffa_comm_create_nccl(&comm, &cpu, &opts, &err), FFA_UNSUPPORTED);
    ck_assert_int_eq(ffa_comm_create_nccl(&comm, NULL, &opts, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_comm_create_nccl(NULL, &context, &opts, &err), FFA_INVALID);
    context.gpu = fake_gpu(1);
    opts.transport = 4;
    ck_assert_int_eq(ffa_comm_create_nccl(&comm, &context, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "transport is 4, not in [0, 3]");
    fake_nccl_caller_free(caller);
    ck_assert_int_eq(fake_gpu_allocated(), 0);
}
END_TEST

static Suite *exchange_suite(void)
{
    Suite *suite = suite_create("comm_exchange");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 180);
    tcase_add_loop_test(all, rows_arrive, 0, 12);
    tcase_add_loop_test(all, transport_is_chosen, 0, sizeof choices / sizeof *choices);
    tcase_add_loop_test(all, ranks_of_a_node_reach_each_other, 0, 12);
    tcase_add_loop_test(all, nodes_are_hosts_or_parts_of_them, 0, sizeof hosts / sizeof *hosts);
    tcase_add_loop_test(all, a_rank_that_does_not_come, 0, 2);
    tcase_add_loop_test(all, ranks_in_different_calls, 0, 4);
    tcase_add_test(all, failures_of_nccl);
    tcase_add_loop_test(all, a_rank_that_is_cancelled, 0, 2);
    tcase_add_test(all, wrong_options_are_refused);
    suite_add_tcase(suite, all);
    return suite;
}

int main(void)
{
    return suite_run(exchange_suite());
}
