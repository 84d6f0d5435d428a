/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch, undispatch, roll, their gradients, group cast and group reduce, by ranks that are
 * threads with the GPUs of this host, or shares of one: the cases of tests/support/exchange_*.c
 * with the kernels themselves. Exit 77 where there is no GPU. FFA_TEST_STORE=PATH is a store for
 * the kernels.
 */
#include "support/exchange_ranks.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 8 };

static ffa_context *contexts[DEVICES];
static int32_t devices;

/* ---- what exchange_ranks.h asks for ---- */

ffa_context *env_context(int32_t rank)
{
    return contexts[rank % devices];
}

ffa_status env_alloc(ffa_context *context, void **out, int64_t bytes, ffa_error *err)
{
    return ffa_device_alloc(out, context, bytes, err);
}

void env_free(ffa_context *context, void *memory)
{
    ffa_device_free(context, memory);
}

ffa_status env_copy(ffa_context *context, void *to, const void *from, int64_t bytes,
                    ffa_copy_direction direction, ffa_error *err)
{
    return ffa_device_copy(context, to, from, bytes, direction, err);
}

ffa_status env_stream(ffa_context *context, ffa_stream *out, ffa_error *err)
{
    return ffa_device_stream_create(out, context, err);
}

void env_stream_free(ffa_context *context, ffa_stream stream)
{
    ffa_device_stream_destroy(context, stream);
}

ffa_status env_synchronize(ffa_context *context, ffa_stream stream, ffa_error *err)
{
    return ffa_device_stream_synchronize(context, stream, err);
}

/* ---- tests ---- */

enum {
    ALL = FFA_ROW_KERNELS_SUM | FFA_ROW_KERNELS_AVG | FFA_ROW_KERNELS_LSE,
    QUICK = 8,
    CASES = 60
};

static const struct exchange_types types[] = {
    { FFA_FP32, 0, ALL },
    { FFA_FP32, FFA_BF16, ALL },
    { FFA_BF16, 0, FFA_ROW_KERNELS_SUM },
};
enum { TYPES = sizeof types / sizeof *types };

START_TEST(rows)
{
    rows_case((uint64_t)_i + 101, &types[_i % TYPES]);
}
END_TEST

START_TEST(groups)
{
    group_case((uint64_t)_i + 101, &types[_i % TYPES]);
}
END_TEST

/* Ranks that relay pull where all of them are in one node, rows as keys. */
START_TEST(ranks_that_relay_in_one_node)
{
    if (devices < EXCHANGE_RANKS) {
        suite_skip("%d ranks need as many GPUs to relay over NCCL, here are %d", EXCHANGE_RANKS,
                   (int)devices);
        return;
    }
    exchange_transport = FFA_TRANSPORT_RELAY;
    if (_i % 2)
        group_case((uint64_t)_i + 501, &types[0]);
    else
        rows_case((uint64_t)_i + 501, &types[0]);
    exchange_transport = FFA_TRANSPORT_AUTO;
}
END_TEST

START_TEST(bad_calls_are_refused)
{
    group_refusals();
}
END_TEST

START_TEST(a_rank_that_does_not_call)
{
    group_absent();
}
END_TEST

static ffa_status open_devices(ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_status rc;

    opts.cache_path = getenv("FFA_TEST_STORE"); /* NULL: in memory */
    rc = ffa_open(&contexts[0], 0, &opts, err);
    for (devices = rc == FFA_OK; rc == FFA_OK && devices < DEVICES; devices++)
        if (ffa_open(&contexts[devices], devices, &opts, NULL) != FFA_OK)
            break;
    while (devices > 1 && devices < EXCHANGE_RANKS) /* a GPU a rank, or one for all */
        ffa_close(contexts[--devices]);
    return rc;
}

int main(void)
{
    const char *const level = getenv("FFA_TEST_LEVEL");
    const int cases = level && strcmp(level, "0") == 0 ? QUICK : CASES;
    Suite *suite = suite_create("exchange");
    TCase *of_rows = tcase_create("rows"), *of_groups = tcase_create("groups"),
          *relay = tcase_create("relay");
    ffa_error err = { FFA_OK, 0, "" };
    int rc;

    /* Streams of ranks that share a GPU wait for each other: none may stand behind another. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (open_devices(&err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        return 77;
    }
    printf("%d devices\n", (int)devices);
    tcase_set_timeout(of_rows, 600);
    tcase_set_timeout(of_groups, 600);
    tcase_add_loop_test(of_rows, rows, 0, cases);
    tcase_add_loop_test(of_groups, groups, 0, cases);
    tcase_add_test(of_groups, bad_calls_are_refused);
    tcase_add_test(of_groups, a_rank_that_does_not_call);
    suite_add_tcase(suite, of_rows);
    suite_add_tcase(suite, of_groups);
    tcase_set_timeout(relay, 600);
    tcase_add_loop_test(relay, ranks_that_relay_in_one_node, 0, QUICK);
    suite_add_tcase(suite, relay);
    rc = suite_run_here(suite);
    kernels_free();
    for (int32_t i = 0; i < devices; i++)
        ffa_close(contexts[i]);
    return rc;
}
