/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the CUDA runtime: which one is taken, which is refused and in what words, and what a
 * context does without one.
 */
#include "gpu/gpu.h"
#include "support/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <ffa/ffa.h>

static const struct {
    const char *name, *path, *says;
} refused[] = {
    { "not there", "/nowhere/libcudart.so.13", "'/nowhere/libcudart.so.13' not there" },
    { "another library", FFA_TEST_FAKE_NVRTC, "does not tell its version" },
    { "too old", FFA_TEST_OLD_CUDART, "is 12.6, older than 12.8" },
    { "newer than the driver", FFA_TEST_NEWER_CUDART, "is 13.0, the driver is of 12.8" },
    { "not whole", FFA_TEST_LACKING_CUDART, "lacks cudaDeviceCanAccessPeer" },
};

START_TEST(runtime_that_will_not_do_is_named)
{
    struct gpu_runtime *cuda = (struct gpu_runtime *)&refused;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(gpu_runtime_open(&cuda, refused[_i].path, &err), FFA_UNSUPPORTED);
    ck_assert_ptr_null(cuda);
    ck_assert_msg(strstr(err.message, refused[_i].says) != NULL, "%s: %s", refused[_i].name,
                  err.message);
    ck_assert_ptr_nonnull(strstr(err.message, "cudart_path"));
}
END_TEST

START_TEST(named_runtime_is_taken)
{
    struct gpu_runtime *cuda;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_msg(gpu_runtime_open(&cuda, FFA_TEST_CUDART, &err) == FFA_OK, "%s", err.message);
    ck_assert_str_eq(gpu_runtime_path(cuda), FFA_TEST_CUDART);
    ck_assert_str_eq(gpu_runtime_version(cuda), "13.0");
    ck_assert_str_eq(gpu_runtime_driver(cuda), "13.0");
    gpu_runtime_close(cuda);
}
END_TEST

/* As a framework does: by its path, and for itself only. The soname is what it is found by. */
START_TEST(loaded_runtime_comes_first)
{
    void *framework = dlopen(FFA_TEST_CUDART, RTLD_NOW | RTLD_LOCAL);
    struct gpu_runtime *cuda;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_ptr_nonnull(framework);
    ck_assert_msg(gpu_runtime_open(&cuda, NULL, &err) == FFA_OK, "%s", err.message);
    ck_assert_str_eq(gpu_runtime_path(cuda), FFA_TEST_CUDART);
    gpu_runtime_close(cuda);
}
END_TEST

START_TEST(every_failure_is_clean)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_GPU };
    ffa_error err;

    for (long nth = 1; nth < 1000; nth++) {
        struct gpu_runtime *cuda;
        ffa_status rc;

        fault_arm(kinds[_i], nth);
        rc = gpu_runtime_open(&cuda, FFA_TEST_OLD_CUDART, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, kinds[_i] == FAULT_ALLOC ? FFA_NOMEM : FFA_UNSUPPORTED);
        ck_assert_ptr_null(cuda);
        ck_assert_int_lt(nth, 999);
    }
    fault_arm(FAULT_ALLOC, 0);
}
END_TEST

/* ---- contexts ---- */

static ffa_context_info open_and_ask(int device, const char *path, ffa_error *err)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context;

    opts.cudart_path = path;
    if (ffa_open(&context, device, &opts, err) == FFA_OK)
        ck_assert_int_eq(ffa_context_info_get(context, &info, NULL), FFA_OK);
    ffa_close(context);
    return info;
}

START_TEST(auto_without_a_runtime_is_the_cpu)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_info info = open_and_ask(FFA_DEVICE_AUTO, "/nowhere", &err);

    ck_assert_int_eq(err.status, FFA_OK);
    ck_assert_int_eq(info.device, FFA_DEVICE_CPU);
    ck_assert_str_eq(info.device_name, "cpu");
    ck_assert_str_eq(info.cudart_path, "");
}
END_TEST

START_TEST(a_device_without_a_runtime_is_unsupported)
{
    ffa_error err = { FFA_OK, 0, "" };

    (void)open_and_ask(0, "/nowhere", &err);
    ck_assert_int_eq(err.status, FFA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "'/nowhere' not there"));
}
END_TEST

START_TEST(path_is_not_empty)
{
    ffa_error err = { FFA_OK, 0, "" };

    (void)open_and_ask(FFA_DEVICE_CPU, "", &err);
    ck_assert_int_eq(err.status, FFA_INVALID);
    ck_assert_str_eq(err.message, "cudart_path is empty; NULL is the default");
}
END_TEST

/* Whatever was named: a path that cannot be opened would be a warning at the least. */
START_TEST(the_cpu_opens_none)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_info info = open_and_ask(FFA_DEVICE_CPU, FFA_TEST_CUDART, &err);

    ck_assert_int_eq(err.status, FFA_OK);
    ck_assert_str_eq(info.cudart_path, "");
    ck_assert_str_eq(info.driver_version, "");
}
END_TEST

START_TEST(context_says_what_it_opened)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_version_info version = FFA_VERSION_INFO_INIT;

    opts.cudart_path = FFA_TEST_CUDART;
    opts.nvrtc_path = "/nowhere";
    ck_assert_msg(ffa_version_info_get(&version, &opts, &err) == FFA_OK, "%s", err.message);
    ck_assert_str_eq(version.version, ffa_version());
    ck_assert_str_eq(version.commit, "unknown"); /* of the tests' library, which is not installed */
    ck_assert_uint_eq(strlen(version.templates_digest), 32);
    ck_assert_str_ne(version.cuda_built, "");
    ck_assert_str_eq(version.cudart_path, FFA_TEST_CUDART);
    ck_assert_str_eq(version.cudart_version, "13.0");
    ck_assert_str_eq(version.driver_version, "13.0");
    ck_assert_str_eq(version.nvrtc_path, "");
    ck_assert_str_eq(version.nvrtc_version, "");
}
END_TEST

START_TEST(version_without_any_library)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_version_info version = FFA_VERSION_INFO_INIT;

    opts.cudart_path = opts.nvrtc_path = "/nowhere";
    ck_assert_int_eq(ffa_version_info_get(&version, &opts, &err), FFA_OK);
    ck_assert_str_eq(version.cudart_path, "");
    ck_assert_str_eq(version.driver_version, "");
    ck_assert_int_eq(err.status, FFA_OK);
    opts.nvrtc_path = "";
    ck_assert_int_eq(ffa_version_info_get(&version, &opts, &err), FFA_INVALID);
    opts.nvrtc_path = "/nowhere";
    ck_assert_int_eq(ffa_version_info_get(NULL, NULL, &err), FFA_INVALID);
    version.struct_size = 0;
    ck_assert_int_eq(ffa_version_info_get(&version, &opts, &err), FFA_INVALID);
    fault_arm(FAULT_ALLOC, 1);
    version = (ffa_version_info)FFA_VERSION_INFO_INIT;
    ck_assert_int_eq(ffa_version_info_get(&version, &opts, &err), FFA_NOMEM);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_runtime");
    TCase *opening = tcase_create("opening");
    TCase *contexts = tcase_create("contexts");

    tcase_add_loop_test(opening, runtime_that_will_not_do_is_named, 0,
                        (int)(sizeof refused / sizeof *refused));
    tcase_add_test(opening, named_runtime_is_taken);
    tcase_add_test(opening, loaded_runtime_comes_first);
    tcase_add_loop_test(opening, every_failure_is_clean, 0, 2);
    tcase_add_test(contexts, auto_without_a_runtime_is_the_cpu);
    tcase_add_test(contexts, a_device_without_a_runtime_is_unsupported);
    tcase_add_test(contexts, path_is_not_empty);
    tcase_add_test(contexts, the_cpu_opens_none);
    tcase_add_test(contexts, context_says_what_it_opened);
    tcase_add_test(contexts, version_without_any_library);
    suite_add_tcase(suite, opening);
    suite_add_tcase(suite, contexts);
    return suite_run(suite);
}
