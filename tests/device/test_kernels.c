/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading kernels on a device whose driver refuses a cubin, which a fault point makes up: needed
 * and optional kernels of a spec.
 */
#include "attention/kernels.h"
#include "base/base.h"
#include "support/suite.h"
#include "support/watch.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static struct watch watch;

static ffa_context *open_context(uint32_t flags)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context *context;
    ffa_error err = { FFA_OK, 0, "" };

    watch = (struct watch){ .warning = "" };
    opts.flags = flags;
    opts.cache_path = getenv("FFA_TEST_STORE");
    opts.log = watch_line;
    opts.log_user = &watch;
    ck_assert_msg(ffa_open(&context, 0, &opts, &err) == FFA_OK, "%s", err.message);
    return context;
}

static ffa_attention_spec small_spec(void)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

    spec.dtype = FFA_BF16;
    spec.head_dim = 64;
    return spec;
}

/* When it is loaded, or when it is used first. */
START_TEST(a_refused_kernel_is_compiled_here)
{
    ffa_context *context = open_context(0);
    const ffa_attention_spec spec = small_spec();
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_kernels *kernels;
    ffa_error err = { FFA_OK, 0, "" };

    /* In the store, wherever it came from. */
    ck_assert_msg(ffa_kernels_create(&kernels, context, &spec, &err) == FFA_OK, "%s", err.message);
    ffa_kernels_destroy(kernels);
    ffa_close(context);
    context = open_context(0);
    fault_arm(FAULT_LOAD, 1 + _i);
    ck_assert_msg(ffa_kernels_create(&kernels, context, &spec, &err) == FFA_OK, "%s", err.message);
    ck_assert(fault_fired());
    fault_arm(FAULT_LOAD, 0);
    ck_assert_int_eq(ffa_kernels_info(kernels, &info, &err), FFA_OK);
    ck_assert_int_ne(info.layer, FFA_LAYER_TABLE);
    ck_assert_int_eq(watch.lines[FFA_LOG_WARNING], 1);
    ck_assert_msg(strstr(watch.warning, "event=kernel_refused"), "%s", watch.warning);
    ffa_kernels_destroy(kernels);
    ffa_close(context);
}
END_TEST

START_TEST(where_all_are_refused_it_is_said)
{
    ffa_context *context = open_context(FFA_OPEN_NEVER_COMPILE);
    const ffa_attention_spec spec = small_spec();
    ffa_kernels *kernels;
    ffa_error err = { FFA_OK, 0, "" };

    fault_arm_first(FAULT_LOAD, 100);
    ck_assert_int_eq(ffa_kernels_create(&kernels, context, &spec, &err), FFA_NOT_FOUND);
    fault_arm_first(FAULT_LOAD, 0);
    ck_assert_msg(strstr(err.message, "the driver refuses kernel "), "%s", err.message);
    ck_assert_ptr_null(kernels);
    ffa_close(context);
}
END_TEST

/* The kernels of heads packed and of splits that were not asked for: a spec does without. */
START_TEST(refused_optional_kernels_are_done_without)
{
    ffa_attention_spec spec = small_spec();
    ffa_context *context = open_context(0);
    ffa_kernels *kernels;
    ffa_error err = { FFA_OK, 0, "" };
    int loads;

    spec.heads_q = 2;
    spec.heads_kv = 2;
    spec.pack_heads = 0;
    ck_assert_msg(ffa_kernels_create(&kernels, context, &spec, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_gt(kernels->split_count, 0);
    ffa_kernels_destroy(kernels);
    ffa_close(context);
    /* With a compiler forbidden, the first kernel loads, in two steps that may be refused, and one
     * of the others does not. */
    context = open_context(FFA_OPEN_NEVER_COMPILE);
    for (loads = 3; loads <= 6; loads++) {
        fault_arm(FAULT_LOAD, loads);
        ck_assert_msg(ffa_kernels_create(&kernels, context, &spec, &err) == FFA_OK, "%s",
                      err.message);
        ck_assert(fault_fired());
        ck_assert_int_eq(kernels->split_count, 0);
        ck_assert_ptr_null(kernels->combine);
        ffa_kernels_destroy(kernels);
        ffa_close(context);
        context = open_context(FFA_OPEN_NEVER_COMPILE);
    }
    fault_arm(FAULT_LOAD, 0);
    ffa_close(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels");
    TCase *refused = tcase_create("refused");
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    if (ffa_open(&context, 0, &opts, &err) != FFA_OK) {
        printf("skipped: no GPU that a kernel exists for: %s\n", err.message);
        return 77;
    }
    ffa_close(context);
    tcase_set_timeout(refused, 300);
    tcase_add_loop_test(refused, a_refused_kernel_is_compiled_here, 0, 2);
    tcase_add_test(refused, where_all_are_refused_it_is_said);
    tcase_add_test(refused, refused_optional_kernels_are_done_without);
    suite_add_tcase(suite, refused);
    return suite_run_here(suite);
}
