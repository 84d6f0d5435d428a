/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes over GPUs from the host's side: what a call may do while it enqueues, and
 * what becomes of a call whose peer does not come. `ffa run --ranks` compares results with the
 * oracle.
 *
 * Ranks are threads with the GPUs of this host, or shares of one. Nothing is asserted on their
 * threads: they leave what they saw in their rank.
 */
#include "pass_group.h"
#include "support/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tests ---- */

static const struct {
    int32_t ranks;
    bool is_sequential, is_narrow, moves_queries;
} groups[] = { { 1, false, false, false }, { 2, false, false, false }, { 4, false, false, false },
               { 2, true, false, false },  { 4, true, false, false },  { 4, false, true, false },
               { 1, false, false, true },  { 2, true, false, true },   { 4, false, true, true } };

START_TEST(passes_only_enqueue)
{
    struct group group = { .count = groups[_i].ranks,
                           .is_sequential = groups[_i].is_sequential,
                           .is_narrow = groups[_i].is_narrow,
                           .moves_queries = groups[_i].moves_queries,
                           .absent = -1 };

    group_run(&group);
    for (int32_t i = 0; i < group.count; i++) {
        const struct rank *r = &group.ranks[i];

        ck_assert_msg(r->status == FFA_OK, "rank %d: %s", i, r->err.message);
        ck_assert_msg(group.count < 4 || group.is_sequential || r->info.forward_stages > 1,
                      "rank %d: one stage", i);
        printf("rank %d of %d\n", i, group.count);
        cuda_counts_print("forward", &r->forward, CALLS);
        cuda_counts_print("backward", &r->backward, CALLS);
        check_counts(r, CALLS);
        ck_assert_msg(!r->odd_call, "rank %d: other bits in call %d", i, r->odd_call);
    }
}
END_TEST

/* Sums that travel in the tensors' dtype were rounded once more. */
START_TEST(a_wire_dtype_rounds)
{
    struct group wide = { .count = 2, .absent = -1 };
    struct group narrow = { .count = 2, .is_narrow = true, .absent = -1 };
    bool differs = false;

    group_run(&wide);
    group_run(&narrow);
    for (int32_t i = 0; i < wide.count; i++) {
        ck_assert_msg(wide.ranks[i].status == FFA_OK, "rank %d: %s", i, wide.ranks[i].err.message);
        ck_assert_msg(narrow.ranks[i].status == FFA_OK, "rank %d: %s", i,
                      narrow.ranks[i].err.message);
        differs = differs || memcmp(wide.ranks[i].digests, narrow.ranks[i].digests,
                                    sizeof wide.ranks[i].digests) != 0;
    }
    ck_assert_msg(differs, "the same bits as those of fp32 on the wire");
}
END_TEST

static void check_digests(const struct group *group, const struct group *other, int results,
                          const char *whose)
{
    for (int32_t i = 0; i < group->count; i++) {
        const struct rank *a = &group->ranks[i], *b = &other->ranks[i];

        ck_assert_msg(a->status == FFA_OK, "rank %d: %s", i, a->err.message);
        ck_assert_msg(b->status == FFA_OK, "rank %d: %s", i, b->err.message);
        ck_assert_msg(!a->odd_call, "rank %d: other bits in call %d", i, a->odd_call);
        for (int call = 0; call < CALLS; call++)
            for (int t = 0; t < results; t++)
                ck_assert_msg(a->digests[call][t] == b->digests[call][t],
                              "rank %d, call %d, result %d: other bits than those of %s", i, call,
                              t, whose);
    }
}

/* The next calls write other keys to the windows before the backward pass comes. */
static void check_kept(struct group from)
{
    struct group kept = from;

    kept.keeps_keys = true;
    group_run(&from);
    group_run(&kept);
    check_digests(&kept, &from, RESULTS, "ranks that bring keys twice");
    for (int32_t i = 0; i < kept.count; i++)
        check_counts(&kept.ranks[i], CALLS);
}

START_TEST(kept_keys_give_the_same_bits)
{
    check_kept((struct group){ .count = 1 + _i, .is_sequential = _i % 2, .absent = -1 });
}
END_TEST

/* Kernels and streams that wait for the absent rank are released, and the message names it. A group
 * made afterwards works. */
START_TEST(a_rank_that_does_not_come)
{
    struct group group = { .count = 2, .absent = 1, .timeout_ms = PATIENT_MS };
    struct group next = { .count = 2, .absent = -1 };

    group_run(&group);
    for (int32_t i = 0; i < group.count; i++) {
        const struct rank *r = &group.ranks[i];

        ck_assert_msg(r->status == FFA_TIMEOUT && strstr(r->err.message, "rank 1 has not"),
                      "rank %d: status %d: %s", i, (int)r->status, r->err.message);
    }
    check_counts(&group.ranks[0], CALLS - SETS);
    group_run(&next);
    for (int32_t i = 0; i < next.count; i++)
        ck_assert_msg(next.ranks[i].status == FFA_OK && !next.ranks[i].odd_call, "rank %d: %s", i,
                      next.ranks[i].err.message);
}
END_TEST

/* NCCL takes a GPU a rank. */
static bool can_exchange(int32_t ranks)
{
    if (devices >= ranks)
        return true;
    suite_skip("%d ranks need as many GPUs to exchange over NCCL, here are %d", (int)ranks,
               (int)devices);
    return false;
}

/* In order, ranks have different numbers of stages. */
static const struct {
    int32_t ranks;
    bool is_sequential, is_replicated, is_narrow, moves_queries;
} exchanging[] = {
    { 2, false, false, false, false }, { 3, true, false, false, false },
    { 2, false, true, false, false },  { 3, true, false, true, false },
    { 2, false, true, true, false },   { 3, true, false, false, true },
    { 2, false, false, true, true },
};

/* The same bits as those of ranks that pull. */
START_TEST(exchange_gives_the_same_bits)
{
    struct group pull = { .count = exchanging[_i].ranks,
                          .is_sequential = exchanging[_i].is_sequential,
                          .is_replicated = exchanging[_i].is_replicated,
                          .is_narrow = exchanging[_i].is_narrow,
                          .moves_queries = exchanging[_i].moves_queries,
                          .absent = -1,
                          .transport = FFA_TRANSPORT_PULL };
    struct group exchange = pull;

    exchange.transport = FFA_TRANSPORT_EXCHANGE;
    if (!can_exchange(pull.count))
        return;
    group_run(&pull);
    group_run(&exchange);
    for (int32_t i = 0; i < pull.count; i++) {
        const struct rank *r = &exchange.ranks[i], *other = &pull.ranks[i];

        ck_assert_msg(r->status == FFA_OK, "rank %d: %s", i, r->err.message);
        ck_assert_msg(other->status == FFA_OK, "rank %d: %s", i, other->err.message);
        check_counts(r, CALLS);
        ck_assert_msg(!r->odd_call, "rank %d: other bits in call %d", i, r->odd_call);
        for (int call = 0; call < CALLS; call++)
            ck_assert_msg(memcmp(r->digests[call], other->digests[call], sizeof r->digests[call]) ==
                              0,
                          "rank %d, call %d: other bits than those of ranks that pull", i, call);
    }
}
END_TEST

/* What waits for NCCL waits for all of it: late rows give the same bits. (NCCL itself is as late as
 * it is.) */
static void run_late(struct group *group, void (*run)(struct group *group))
{
    (void)setenv("FFA_EMULATOR_NCCL_DELAY_US", "20000", 1);
    run(group);
    (void)unsetenv("FFA_EMULATOR_NCCL_DELAY_US");
}

START_TEST(late_exchanges_give_the_same_bits)
{
    struct group pull = {
        .count = 2, .is_sequential = true, .absent = -1, .transport = FFA_TRANSPORT_PULL
    };
    struct group late = pull;

    late.transport = FFA_TRANSPORT_EXCHANGE;
    if (!can_exchange(pull.count))
        return;
    group_run(&pull);
    run_late(&late, group_run);
    check_digests(&late, &pull, RESULTS, "ranks that pull");
}
END_TEST

START_TEST(ranks_that_exchange_keep_keys)
{
    if (can_exchange(3))
        check_kept((struct group){
            .count = 3, .is_sequential = true, .absent = -1, .transport = FFA_TRANSPORT_EXCHANGE });
}
END_TEST

/* The group breaks; the communicator that it was made over does not. */
START_TEST(a_rank_that_does_not_come_to_exchange)
{
    struct group group = { .count = 2,
                           .absent = 1,
                           .timeout_ms = PATIENT_MS,
                           .transport = FFA_TRANSPORT_EXCHANGE,
                           .has_caller = true };
    struct group next = {
        .count = 2, .absent = -1, .transport = FFA_TRANSPORT_EXCHANGE, .has_caller = true
    };

    if (!can_exchange(2))
        return;
    group_run(&group);
    ck_assert_msg(group.ranks[0].status == FFA_TIMEOUT &&
                      strstr(group.ranks[0].err.message, "rank 1 has not begun call 1"),
                  "status %d: %s", (int)group.ranks[0].status, group.ranks[0].err.message);
    group_run(&next);
    for (int32_t i = 0; i < next.count; i++) {
        ck_assert_msg(next.ranks[i].status == FFA_OK && !next.ranks[i].odd_call, "rank %d: %s", i,
                      next.ranks[i].err.message);
        ck_assert_msg(group.ranks[i].is_alive && next.ranks[i].is_alive,
                      "rank %d: the caller's communicator has ended", i);
    }
}
END_TEST

/* ---- relays ---- */

/* Nodes as if each were a host; on a GPU they are what the group says. */
static void relay_run(struct group *group)
{
    char width[16];

    (void)snprintf(width, sizeof width, "%d", (int)group->ranks_per_node);
    (void)setenv("FFA_EMULATOR_PEERS", width, 1);
    group_run(group);
    (void)unsetenv("FFA_EMULATOR_PEERS");
}

static const struct {
    int32_t ranks, per_node;
    bool is_sequential, is_replicated;
} relaying[] = {
    { 4, 2, false, false }, { 4, 2, true, false },  { 8, 4, false, false },
    { 8, 2, true, false },  { 3, 2, false, false }, { 5, 3, true, false },
    { 4, 1, false, false }, { 4, 4, false, false }, { 4, 2, false, true },
};

static struct group relay_group(int row)
{
    return (struct group){ .count = relaying[row].ranks,
                           .ranks_per_node = relaying[row].per_node,
                           .is_sequential = relaying[row].is_sequential,
                           .is_replicated = relaying[row].is_replicated,
                           .absent = -1,
                           .transport = FFA_TRANSPORT_RELAY };
}

/* Forward the same bits as those of ranks that pull; sums of gradients are added in another order,
 * but always in the same one, also where nothing is. */
START_TEST(relays_give_the_same_bits)
{
    struct group relay = relay_group(_i), again = relay_group(_i), pull = relay_group(_i);
    const bool is_sum = relay.ranks_per_node < relay.count && !relay.is_replicated;

    pull.transport = FFA_TRANSPORT_PULL;
    if (!can_exchange(pull.count))
        return;
    group_run(&pull);
    relay_run(&relay);
    relay_run(&again);
    check_digests(&relay, &pull, is_sum ? FORWARD_RESULTS : RESULTS, "ranks that pull");
    check_digests(&relay, &again, RESULTS, "the first run");
    for (int32_t i = 0; i < relay.count; i++)
        check_counts(&relay.ranks[i], CALLS);
}
END_TEST

/* The network stream brings what the fetch stream hands on: it must wait for it. */
START_TEST(late_relays_give_the_same_bits)
{
    struct group pull = relay_group(0), late = pull;

    pull.transport = FFA_TRANSPORT_PULL;
    if (!can_exchange(pull.count))
        return;
    group_run(&pull);
    run_late(&late, relay_run);
    check_digests(&late, &pull, FORWARD_RESULTS, "ranks that pull");
}
END_TEST

START_TEST(ranks_that_relay_keep_keys)
{
    struct group relay = relay_group(0), kept = relay;

    kept.keeps_keys = true;
    if (!can_exchange(relay.count))
        return;
    relay_run(&relay);
    relay_run(&kept);
    check_digests(&kept, &relay, RESULTS, "ranks that relay keys twice");
}
END_TEST

/* Keys of one node that ranks of another one attend, found from the mask. */
static int64_t keys_needed(const struct group *group, int set, int32_t from, int32_t to)
{
    const int32_t width = group->ranks_per_node;
    int64_t count = 0;

    for (int32_t key = 0; key < TOKENS; key++) {
        bool is_needed = false;

        for (int32_t q = 0; q < TOKENS && !is_needed && group->owners[key] / width == from; q++)
            is_needed = group->owners[q] / width == to && group_attends(set, q, key);
        count += is_needed;
    }
    return count;
}

/* Bytes of rows that the emulated NCCL has carried between two nodes; hellos are shorter. */
static int64_t bytes_sent(const struct group *group, int64_t (*sent)(int from, int to),
                          int32_t from, int32_t to)
{
    const int32_t width = group->ranks_per_node;
    int64_t sum = 0;

    for (int32_t a = 0; a < group->count; a++)
        for (int32_t b = 0; b < group->count; b++)
            sum += a / width == from && b / width == to ? sent(a, b) : 0;
    return sum;
}

START_TEST(rows_cross_once_a_node)
{
    const int64_t row_bytes = (int64_t)2 * HEADS_KV * HEAD_DIM * (int64_t)sizeof(uint16_t);
    const int64_t sum_bytes = (int64_t)2 * HEADS_KV * HEAD_DIM * (int64_t)sizeof(float);
    struct group group = relay_group(_i);
    const int32_t nodes = (group.count - 1) / group.ranks_per_node + 1;
    int64_t (*sent)(int from, int to), before[RANKS][RANKS] = { { 0 } };

    *(void **)&sent = dlsym(RTLD_DEFAULT, "emulator_nccl_sent");
    if (!sent) {
        suite_skip("NCCL itself does not count what it sends");
        return;
    }
    if (!can_exchange(group.count))
        return;
    for (int32_t from = 0; from < nodes; from++)
        for (int32_t to = 0; to < nodes; to++)
            before[from][to] = bytes_sent(&group, sent, from, to);
    relay_run(&group);
    for (int32_t i = 0; i < group.count; i++)
        ck_assert_msg(group.ranks[i].status == FFA_OK, "rank %d: %s", i,
                      group.ranks[i].err.message);
    for (int32_t from = 0; from < nodes; from++)
        for (int32_t to = 0; to < nodes; to++) {
            int64_t bytes = 0;

            /* Of each call keys there forward and backward, and sums of keys from there. */
            for (int call = 0; call < CALLS && from != to; call++)
                bytes += 2 * row_bytes * keys_needed(&group, call % SETS, from, to) +
                         sum_bytes * keys_needed(&group, call % SETS, to, from);
            ck_assert_int_eq(bytes_sent(&group, sent, from, to) - before[from][to], bytes);
        }
}
END_TEST

/* Who relays follows from the plan, so its nodes are those of the communicator. */
START_TEST(nodes_of_plans_are_those_of_the_communicator)
{
    struct group group = relay_group(0);

    group.other_ranks_per_node = 1;
    if (!can_exchange(group.count))
        return;
    relay_run(&group);
    for (int32_t i = 0; i < group.count; i++)
        ck_assert_str_eq(group.ranks[i].err.message,
                         "the plan has 2 ranks a node, the communicator, which relays, has 1");
}
END_TEST

/* Relays add sums of keys, in fp32. */
START_TEST(what_relays_refuse)
{
    struct group queries = relay_group(0), narrow = relay_group(0);

    queries.moves_queries = narrow.is_narrow = true;
    if (!can_exchange(narrow.count))
        return;
    relay_run(&queries);
    relay_run(&narrow);
    for (int32_t i = 0; i < narrow.count; i++) {
        ck_assert_str_eq(queries.ranks[i].err.message,
                         "the plan moves queries; ranks relay keys only");
        ck_assert_str_eq(narrow.ranks[i].err.message,
                         "wire_dtype is 1, not fp32 (3), in which ranks that relay add sums");
    }
}
END_TEST

/* The ranks of the other nodes are released, too, and name it. */
START_TEST(a_rank_that_does_not_come_to_relay)
{
    struct group group = relay_group(0), next = relay_group(0);

    group.absent = 3;
    group.timeout_ms = PATIENT_MS;
    group.has_caller = next.has_caller = true;
    if (!can_exchange(group.count))
        return;
    relay_run(&group);
    for (int32_t i = 0; i < 3; i++)
        ck_assert_msg(group.ranks[i].status == FFA_TIMEOUT &&
                          strstr(group.ranks[i].err.message, "rank 3 has not begun call 1"),
                      "rank %d: status %d: %s", i, (int)group.ranks[i].status,
                      group.ranks[i].err.message);
    relay_run(&next);
    for (int32_t i = 0; i < next.count; i++)
        ck_assert_msg(next.ranks[i].status == FFA_OK && next.ranks[i].is_alive &&
                          group.ranks[i].is_alive,
                      "rank %d: %s", i, next.ranks[i].err.message);
}
END_TEST

/* ---- the suite ---- */

static ffa_status open_device(int32_t device, const ffa_context_opts *opts, ffa_error *err)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_status rc = ffa_open(&contexts[device], device, opts, err);

    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    spec.flags = FFA_SPEC_PARALLEL | FFA_SPEC_BACKWARD;
    if (rc == FFA_OK)
        rc = ffa_kernels_create(&group_kernels[device], contexts[device], &spec, err);
    spec.flags |= FFA_SPEC_STAGED;
    if (rc == FFA_OK)
        rc = ffa_kernels_create(&group_staged[device], contexts[device], &spec, err);
    if (rc == FFA_OK)
        cuda_calls_watch(contexts[device]);
    return rc;
}

/* All devices that are like device 0. */
static ffa_status open_devices(ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_status rc;

    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    rc = open_device(0, &opts, err);
    for (devices = rc == FFA_OK; rc == FFA_OK && devices < DEVICES; devices++)
        if (open_device(devices, &opts, NULL) != FFA_OK)
            break;
    return rc;
}

static Suite *device_suite(void)
{
    Suite *suite = suite_create("device_passes");
    TCase *quick = tcase_create("quick"), *exchange = tcase_create("exchange"),
          *relay = tcase_create("relay");

    tcase_set_timeout(quick, 300);
    tcase_add_loop_test(quick, passes_only_enqueue, 0, sizeof groups / sizeof *groups);
    tcase_add_test(quick, a_wire_dtype_rounds);
    tcase_add_loop_test(quick, kept_keys_give_the_same_bits, 0, 4);
    tcase_add_test(quick, a_rank_that_does_not_come);
    suite_add_tcase(suite, quick);
    tcase_set_timeout(exchange, 300);
    tcase_add_loop_test(exchange, exchange_gives_the_same_bits, 0,
                        sizeof exchanging / sizeof *exchanging);
    tcase_add_test(exchange, late_exchanges_give_the_same_bits);
    tcase_add_test(exchange, ranks_that_exchange_keep_keys);
    tcase_add_test(exchange, a_rank_that_does_not_come_to_exchange);
    suite_add_tcase(suite, exchange);
    tcase_set_timeout(relay, 300);
    tcase_add_loop_test(relay, relays_give_the_same_bits, 0, sizeof relaying / sizeof *relaying);
    tcase_add_test(relay, late_relays_give_the_same_bits);
    tcase_add_loop_test(relay, rows_cross_once_a_node, 0, 7); /* all that have several nodes */
    tcase_add_test(relay, nodes_of_plans_are_those_of_the_communicator);
    tcase_add_test(relay, ranks_that_relay_keep_keys);
    tcase_add_test(relay, what_relays_refuse);
    tcase_add_test(relay, a_rank_that_does_not_come_to_relay);
    suite_add_tcase(suite, relay);
    return suite;
}

int main(void)
{
    ffa_error err = { 0 };
    ffa_status status;
    int rc = 77;

    /* Streams of ranks that share a GPU wait for each other: none may stand behind another. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    status = open_devices(&err);
    if (status == FFA_OK) {
        printf("%d devices\n", (int)devices);
        rc = suite_run_here(device_suite()); /* one CUDA context for all */
    } else {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
    }
    for (int32_t i = 0; i < DEVICES; i++) {
        ffa_kernels_destroy(group_kernels[i]);
        ffa_kernels_destroy(group_staged[i]);
        ffa_close(contexts[i]);
    }
    return rc;
}
