/* SPDX-License-Identifier: Apache-2.0
 *
 * Many threads on one CPU context: shared kernels and plan, each its own outputs; ffa_attention,
 * which makes and keeps kernels on the way; plans and masks read by all. For ThreadSanitizer.
 */
#include "support/attention_case.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/ffa.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 3, TOKENS = 60, SPECS = 3 };

static const struct attention_shape shape = {
    { TOKENS, TOKENS }, FFA_BF16, 4, 2, 16, LAYOUT_TOKENS,
};
static const size_t out_bytes = (size_t)TOKENS * 4 * 16 * 2, lse_bytes = (size_t)TOKENS * 4 * 4;

struct crowd {
    ffa_context *context;
    ffa_mask *mask;
    ffa_kernels *kernels;
    ffa_plan *plan;
    struct attention_case first; /* its inputs are everyone's, its outputs what all must find */
    pthread_barrier_t start;
    atomic_int next;
    atomic_int right;
};

static void must(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s: %s", ffa_status_text(rc), err->message);
}

static void crowd_init(struct crowd *crowd)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct rng rng = { 17 };
    ffa_error err = { FFA_OK, 0, "" };

    *crowd = (struct crowd){ 0 };
    opts.cpu_threads = 2; /* of each call */
    must(ffa_open(&crowd->context, FFA_DEVICE_CPU, &opts, &err), &err);
    must(ffa_mask_parse(&crowd->mask, "varlen-causal:13,40,7", &err), &err);
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.tile_m = spec.tile_n = 16;
    must(ffa_kernels_create(&crowd->kernels, crowd->context, &spec, &err), &err);
    must(ffa_plan_create(&crowd->plan, crowd->kernels, crowd->mask, &err), &err);
    attention_case_init(&crowd->first, &shape, &rng);
    must(ffa_forward(crowd->kernels, crowd->plan, &crowd->first.args, NULL, &err), &err);
    ck_assert_int_eq(pthread_barrier_init(&crowd->start, NULL, THREADS), 0);
}

static void crowd_finish(struct crowd *crowd)
{
    (void)pthread_barrier_destroy(&crowd->start);
    attention_case_finish(&crowd->first);
    ffa_plan_destroy(crowd->plan);
    ffa_kernels_destroy(crowd->kernels);
    ffa_mask_destroy(crowd->mask);
    ffa_close(crowd->context);
}

static void crowd_run(struct crowd *crowd, void *(*run)(void *))
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, crowd), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

/* The shared inputs, and outputs of one's own. */
static ffa_forward_args own_args(const struct crowd *crowd, void **out, float **lse)
{
    ffa_forward_args args = crowd->first.args;

    args.out.data = *out = malloc(out_bytes);
    args.lse.data = *lse = malloc(lse_bytes);
    return args;
}

static bool is_right(const struct crowd *crowd, const void *out, const float *lse)
{
    return !memcmp(out, crowd->first.memory[3], out_bytes) &&
           !memcmp(lse, crowd->first.memory[4], lse_bytes);
}

static void *run_forward(void *argument)
{
    struct crowd *crowd = argument;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    void *out;
    float *lse;
    const ffa_forward_args args = own_args(crowd, &out, &lse);

    (void)pthread_barrier_wait(&crowd->start);
    for (int i = 0; i < ROUNDS; i++) {
        memset(out, 0xff, out_bytes);
        memset(lse, 0xff, lse_bytes);
        if (ffa_plan_upload(crowd->plan, crowd->kernels, NULL, NULL, NULL) == FFA_OK &&
            ffa_forward(crowd->kernels, crowd->plan, &args, NULL, NULL) == FFA_OK &&
            ffa_plan_info_get(crowd->plan, &info, NULL) == FFA_OK && is_right(crowd, out, lse))
            atomic_fetch_add(&crowd->right, 1);
    }
    free(out);
    free(lse);
    return NULL;
}

START_TEST(threads_share_kernels_and_plan)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    struct crowd crowd;

    crowd_init(&crowd);
    crowd_run(&crowd, run_forward);
    ck_assert_int_eq(crowd.right, THREADS * ROUNDS);
    ck_assert_int_eq(ffa_context_stats_get(crowd.context, &stats, NULL), FFA_OK);
    ck_assert_uint_eq(stats.forward_calls, THREADS * ROUNDS + 1);
    crowd_finish(&crowd);
}
END_TEST

/* Specs differ in a way that leaves the answer what it is, so that kernels are made and found at
 * once; the tiles are the first call's. */
static void *run_attention(void *argument)
{
    struct crowd *crowd = argument;
    const int id = atomic_fetch_add(&crowd->next, 1);
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    void *out;
    float *lse;
    const ffa_forward_args args = own_args(crowd, &out, &lse);

    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.tile_n = 16;
    (void)pthread_barrier_wait(&crowd->start);
    for (int i = 0; i < ROUNDS; i++) {
        spec.tile_m = 16 << (id + i) % SPECS;
        spec.flags = id % 2 ? FFA_SPEC_DEBUG : 0;
        if (ffa_attention(crowd->context, crowd->mask, &spec, &args, NULL, NULL) == FFA_OK &&
            ffa_context_stats_get(crowd->context, &stats, NULL) == FFA_OK &&
            ffa_context_info_get(crowd->context, &info, NULL) == FFA_OK &&
            (spec.tile_m != 16 || is_right(crowd, out, lse)))
            atomic_fetch_add(&crowd->right, 1);
    }
    free(out);
    free(lse);
    return NULL;
}

START_TEST(threads_attend_at_once)
{
    ffa_context_stats stats = FFA_CONTEXT_STATS_INIT;
    struct crowd crowd;

    crowd_init(&crowd);
    crowd_run(&crowd, run_attention);
    ck_assert_int_eq(crowd.right, THREADS * ROUNDS);
    ck_assert_int_eq(ffa_context_stats_get(crowd.context, &stats, NULL), FFA_OK);
    ck_assert_uint_eq(stats.forward_calls, THREADS * ROUNDS + 1);
    crowd_finish(&crowd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("threads");
    TCase *tc = tcase_create("threads");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, threads_share_kernels_and_plan);
    tcase_add_test(tc, threads_attend_at_once);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
