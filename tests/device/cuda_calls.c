/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime is opened as the library opens it, and its file is loaded already by then, so
 * RTLD_NOLOAD gives the very same one.
 */
#include "device/cuda_calls.h"

#include "gpu/gpu.h"

#include <check.h>
#include <dlfcn.h>

const struct cuda_calls *cuda_calls(void)
{
    static struct cuda_calls calls;
    struct gpu_runtime *cuda = NULL;
    void *library;
    ffa_error err;

    ck_assert_msg(gpu_runtime_open(&cuda, NULL, &err) == FFA_OK, "%s", err.message);
    library = dlopen(gpu_runtime_path(cuda), RTLD_NOW | RTLD_NOLOAD);
    gpu_runtime_close(cuda);
    ck_assert_ptr_nonnull(library);
#define X(name)                                                                                    \
    *(void **)&calls.name = dlsym(library, #name);                                                 \
    ck_assert_msg(calls.name != NULL, "%s", #name);
    CUDA_CALLS(X)
#undef X
    return &calls;
}
