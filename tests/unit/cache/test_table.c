/* SPDX-License-Identifier: Apache-2.0
 *
 * The in-process table: hits, reservations, failures, growth; and all of it from many threads.
 */
#include "cache/table.h"
#include "support/suite.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { THREADS = 8, MANY = 2000 };

static struct jit_request request_of(int32_t number)
{
    struct jit_spec spec = { .template_index = 0, .row_count = 1, .values = { number } };
    struct jit_request request;

    jit_request_init(&request, &spec, "sm_90a");
    return request;
}

static struct jit_kernel kernel_of(int32_t number)
{
    struct jit_kernel kernel = { .info = { .registers = number }, .cubin_bytes = 4 };

    kernel.cubin = malloc(4);
    memcpy(kernel.cubin, &number, 4);
    kernel.record = strdup("a=b\n");
    return kernel;
}

static struct table *make(void)
{
    struct table *table;

    ck_assert_int_eq(table_create(&table, NULL), FFA_OK);
    return table;
}

static const struct jit_kernel *add(struct table *table, int32_t number)
{
    struct jit_request request = request_of(number);
    struct jit_kernel kernel = kernel_of(number);
    const struct jit_kernel *found;
    struct table_entry *reserved;

    ck_assert_int_eq(table_reserve(table, &request, &found, &reserved, NULL), FFA_OK);
    ck_assert_ptr_null(found);
    ck_assert_ptr_nonnull(reserved);
    ck_assert_ptr_null(table_find(table, &request)); /* reserved only */
    return table_publish(table, reserved, &kernel);
}

START_TEST(published_is_found_and_stays)
{
    struct table *table = make();
    const struct jit_kernel *kept[MANY];
    const struct jit_kernel *found;
    struct table_entry *reserved;
    struct jit_request request;

    for (int32_t i = 0; i < MANY; i++)
        kept[i] = add(table, i);
    for (int32_t i = 0; i < MANY; i++) {
        request = request_of(i);
        ck_assert_ptr_eq(table_find(table, &request), kept[i]);
        ck_assert_int_eq(kept[i]->info.registers, i);
        ck_assert_int_eq(table_reserve(table, &request, &found, &reserved, NULL), FFA_OK);
        ck_assert_ptr_eq(found, kept[i]);
        ck_assert_ptr_null(reserved);
    }
    request = request_of(MANY);
    ck_assert_ptr_null(table_find(table, &request));
    request = request_of(0);
    memcpy(request.arch, "sm_90b", 7);
    ck_assert_ptr_null(table_find(table, &request));
    table_destroy(table);
}
END_TEST

START_TEST(failed_entry_can_be_reserved_again)
{
    struct table *table = make();
    struct jit_request request = request_of(1);
    const struct jit_kernel *found;
    struct table_entry *reserved;
    ffa_error why = { FFA_COMPILE, 6, "no" };

    ck_assert_int_eq(table_reserve(table, &request, &found, &reserved, NULL), FFA_OK);
    table_fail(table, reserved, &why);
    ck_assert_ptr_null(table_find(table, &request));
    (void)add(table, 1);
    ck_assert_ptr_nonnull(table_find(table, &request));
    table_destroy(table);
}
END_TEST

START_TEST(no_memory_is_clean)
{
    struct table *table = NULL;
    struct jit_request request = request_of(1);
    const struct jit_kernel *found;
    struct table_entry *reserved;
    ffa_error err;

    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = table_create(&table, &err);
        if (rc == FFA_OK)
            rc = table_reserve(table, &request, &found, &reserved, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        table_destroy(table);
        table = NULL;
    }
    fault_arm(FAULT_ALLOC, 0);
    table_fail(table, reserved, &(ffa_error){ FFA_NOMEM, 0, "no" });
    table_destroy(table);
}
END_TEST

/* ---- threads ---- */

struct crowd {
    struct table *table;
    pthread_barrier_t start;
    atomic_int makers, fails;
    bool is_bad; /* its maker fails */
};

static void *want_one(void *argument)
{
    struct crowd *crowd = argument;
    struct jit_request request = request_of(7);
    struct jit_kernel kernel = kernel_of(7);
    const struct jit_kernel *found;
    struct table_entry *reserved;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    (void)pthread_barrier_wait(&crowd->start);
    rc = table_reserve(crowd->table, &request, &found, &reserved, &err);
    if (rc == FFA_OK && reserved) {
        atomic_fetch_add(&crowd->makers, 1);
        (void)usleep(20000); /* the others arrive */
        if (crowd->is_bad)
            table_fail(crowd->table, reserved,
                       &(ffa_error){ FFA_COMPILE, 6, "it does not compile" });
        else
            found = table_publish(crowd->table, reserved, &kernel);
    } else if (rc == FFA_COMPILE && strcmp(err.message, "it does not compile") == 0) {
        atomic_fetch_add(&crowd->fails, 1);
    }
    if (found && found->info.registers != 7)
        atomic_fetch_add(&crowd->fails, 100);
    jit_kernel_finish(&kernel);
    return NULL;
}

static void run_crowd(struct crowd *crowd, void *(*body)(void *))
{
    pthread_t threads[THREADS];

    crowd->table = make();
    (void)pthread_barrier_init(&crowd->start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, crowd), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    (void)pthread_barrier_destroy(&crowd->start);
    table_destroy(crowd->table);
}

START_TEST(one_makes_the_rest_wait)
{
    struct crowd crowd = { .is_bad = false };

    run_crowd(&crowd, want_one);
    ck_assert_int_eq(crowd.makers, 1);
    ck_assert_int_eq(crowd.fails, 0);
}
END_TEST

START_TEST(who_waited_gets_the_error)
{
    struct crowd crowd = { .is_bad = true };

    run_crowd(&crowd, want_one);
    ck_assert_int_ge(crowd.makers, 1); /* who came after the failure tried again */
    ck_assert_int_eq(crowd.makers + crowd.fails, THREADS);
}
END_TEST

/* Readers probe while the slots grow under them. */
static void *want_many(void *argument)
{
    struct crowd *crowd = argument;

    (void)pthread_barrier_wait(&crowd->start);
    for (int32_t i = 0; i < MANY; i++) {
        struct jit_request request = request_of(i);
        const struct jit_kernel *found = table_find(crowd->table, &request);
        struct table_entry *reserved = NULL;
        struct jit_kernel kernel;

        if (!found && table_reserve(crowd->table, &request, &found, &reserved, NULL) != FFA_OK)
            atomic_fetch_add(&crowd->fails, 1);
        if (reserved) {
            atomic_fetch_add(&crowd->makers, 1);
            kernel = kernel_of(i);
            found = table_publish(crowd->table, reserved, &kernel);
        }
        if (!found || found->info.registers != i)
            atomic_fetch_add(&crowd->fails, 1);
    }
    return NULL;
}

START_TEST(growth_under_readers)
{
    struct crowd crowd = { .is_bad = false };

    run_crowd(&crowd, want_many);
    ck_assert_int_eq(crowd.makers, MANY);
    ck_assert_int_eq(crowd.fails, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("table");
    TCase *tc = tcase_create("table");

    tcase_add_test(tc, published_is_found_and_stays);
    tcase_add_test(tc, failed_entry_can_be_reserved_again);
    tcase_add_test(tc, no_memory_is_clean);
    tcase_add_test(tc, one_makes_the_rest_wait);
    tcase_add_test(tc, who_waited_gets_the_error);
    tcase_add_test(tc, growth_under_readers);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
