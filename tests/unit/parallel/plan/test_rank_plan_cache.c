/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of dispatches and plans: content, the least recent use, threads.
 */
#include "parallel/plan/rank_plan.h"
#include "support/suite.h"

#include <check.h>
#include <pthread.h>

static ffa_mask *causal(int64_t tokens)
{
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ tokens, tokens }, NULL), FFA_OK);
    return mask;
}

START_TEST(the_cache_knows_content)
{
    const ffa_topology topology = { 4, 0 };
    ffa_mask *mask = causal(1024), *same = causal(1024), *other = causal(1000);
    ffa_dispatch_mask one = { mask, 1 }, twin = { same, 1 }, third = { other, 1 };
    ffa_dispatch *a, *b, *c;
    ffa_parallel_plan *p, *q, *r;
    ffa_parallel_cache *cache, *none;
    ffa_parallel_cache_counts counts = FFA_PARALLEL_CACHE_COUNTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_parallel_cache_create(&cache, 3, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_cache_dispatch(cache, &a, &one, 1, &topology, NULL, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_parallel_cache_dispatch(cache, &b, &twin, 1, &topology, NULL, NULL),
                     FFA_OK);
    ck_assert_ptr_eq(a, b);
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &p, a, mask, 1, NULL, NULL), FFA_OK);
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &q, b, same, 1, NULL, NULL), FFA_OK);
    ck_assert_ptr_eq(p, q);
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &r, a, mask, 2, NULL, NULL), FFA_OK);
    ck_assert_ptr_ne(p, r);
    ck_assert_int_eq(ffa_parallel_cache_counts_get(cache, &counts, NULL), FFA_OK);
    ck_assert_int_eq(counts.hits, 2);
    ck_assert_int_eq(counts.misses, 3);
    ck_assert_int_eq(counts.entries, 3);
    /* Full: the dispatch is the oldest use, and goes; the plans stay. */
    ck_assert_int_eq(ffa_parallel_cache_dispatch(cache, &c, &third, 1, &topology, NULL, NULL),
                     FFA_OK);
    ck_assert_ptr_ne(c, a);
    ffa_parallel_plan_destroy(q);
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &q, a, mask, 1, NULL, NULL), FFA_OK);
    ck_assert_ptr_eq(p, q);
    ck_assert_int_eq(ffa_parallel_cache_counts_get(cache, &counts, NULL), FFA_OK);
    ck_assert_int_eq(counts.evictions, 1);
    ck_assert_int_eq(counts.entries, 3);
    /* Errors are those of the functions it stands for, and leave nothing behind. */
    ck_assert_int_eq(ffa_parallel_cache_plan(cache, &q, a, other, 1, NULL, &err), FFA_INVALID);
    ck_assert_ptr_null(q);
    ck_assert_int_eq(ffa_parallel_cache_dispatch(cache, &b, NULL, 1, &topology, NULL, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "masks is NULL");
    ck_assert_int_eq(ffa_parallel_cache_create(&none, -1, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "entries_max is -1, not in [0, 65536]");
    ck_assert_ptr_null(none);
    ffa_parallel_cache_destroy(cache);
    ffa_parallel_plan_destroy(p);
    ffa_parallel_plan_destroy(p); /* handed out twice more: q twice, one of them given back */
    ffa_parallel_plan_destroy(r);
    ffa_dispatch_destroy(a);
    ffa_dispatch_destroy(a);
    ffa_dispatch_destroy(c);
    ffa_mask_destroy(mask);
    ffa_mask_destroy(same);
    ffa_mask_destroy(other);
}
END_TEST

/* The best dispatch is kept by the model it is the best of, apart from those by an algorithm. */
START_TEST(the_best_dispatch_is_kept_by_its_model)
{
    const ffa_topology topology = { 8, 0 };
    ffa_mask *mask = causal(65536);
    const ffa_dispatch_mask one = { mask, 1 };
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_dispatch *made, *a, *b, *c, *plain;
    ffa_parallel_cache *cache;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_parallel_cache_create(&cache, 0, NULL), FFA_OK);
    opts.sms = 132;
    ck_assert_int_eq(ffa_dispatch_create_best(&made, &one, 1, &topology, NULL, &opts, NULL),
                     FFA_OK);
    ck_assert_int_eq(ffa_parallel_cache_best(cache, &a, &one, 1, &topology, NULL, &opts, NULL),
                     FFA_OK);
    ck_assert_str_eq(ffa_dispatch_digest(a), ffa_dispatch_digest(made));
    ck_assert_int_eq(ffa_parallel_cache_best(cache, &b, &one, 1, &topology, NULL, &opts, NULL),
                     FFA_OK);
    ck_assert_ptr_eq(a, b);
    opts.backward_begin_rows = 439;
    ck_assert_int_eq(ffa_parallel_cache_best(cache, &c, &one, 1, &topology, NULL, &opts, NULL),
                     FFA_OK);
    ck_assert_ptr_ne(a, c);
    ck_assert_int_eq(ffa_parallel_cache_dispatch(cache, &plain, &one, 1, &topology, NULL, NULL),
                     FFA_OK);
    ck_assert_ptr_ne(a, plain);
    ffa_dispatch_destroy(made);
    ffa_dispatch_destroy(a);
    ffa_dispatch_destroy(b);
    ffa_dispatch_destroy(c);
    ffa_dispatch_destroy(plain);
    opts.sms = -1;
    ck_assert_int_eq(ffa_parallel_cache_best(cache, &a, &one, 1, &topology, NULL, &opts, &err),
                     FFA_INVALID);
    ck_assert_str_eq(err.message, "sms is -1, not in [0, 4096]");
    ck_assert_ptr_null(a);
    ck_assert_int_eq(ffa_parallel_cache_best(cache, NULL, &one, 1, &topology, NULL, NULL, &err),
                     FFA_INVALID);
    ffa_parallel_cache_destroy(cache);
    ffa_mask_destroy(mask);
}
END_TEST

enum { THREADS = 4, ROUNDS = 200, MASKS = 6 };

struct shared {
    ffa_parallel_cache *cache;
    ffa_mask *masks[MASKS];
};

static void *use_cache(void *user)
{
    struct shared *s = user;
    const ffa_topology topology = { 2, 0 };

    for (int i = 0; i < ROUNDS; i++) {
        const ffa_dispatch_mask one = { s->masks[i % MASKS], 1 };
        ffa_dispatch *dispatch = NULL;
        ffa_parallel_plan *plan = NULL;

        if (ffa_parallel_cache_dispatch(s->cache, &dispatch, &one, 1, &topology, NULL, NULL) ||
            ffa_parallel_cache_plan(s->cache, &plan, dispatch, one.mask, i % 2, NULL, NULL) ||
            plan->shape.seqlen_q != s->masks[i % MASKS]->shape.seqlen_q || plan->rank != i % 2)
            return s;
        ffa_parallel_plan_destroy(plan);
        ffa_dispatch_destroy(dispatch);
    }
    return NULL;
}

START_TEST(threads_share_a_cache)
{
    struct shared shared;
    pthread_t threads[THREADS];

    for (int m = 0; m < MASKS; m++)
        shared.masks[m] = causal(64 + m);
    ck_assert_int_eq(ffa_parallel_cache_create(&shared.cache, 5, NULL), FFA_OK);
    for (int t = 0; t < THREADS; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, use_cache, &shared), 0);
    for (int t = 0; t < THREADS; t++) {
        void *failed;

        ck_assert_int_eq(pthread_join(threads[t], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ffa_parallel_cache_destroy(shared.cache);
    for (int m = 0; m < MASKS; m++)
        ffa_mask_destroy(shared.masks[m]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan cache");
    TCase *tc = tcase_create("plan cache");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_cache_knows_content);
    tcase_add_test(tc, the_best_dispatch_is_kept_by_its_model);
    tcase_add_test(tc, threads_share_a_cache);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
