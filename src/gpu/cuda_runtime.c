/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA runtime is opened, not linked, so that masks, plans and warming need none, and a process
 * with a framework's runtime has one. Invariant: a runtime that is handed out has every function of
 * the table, is not older than 12.8, the first with cudaLibraryLoadData, and not of a later major
 * version than the driver, which would refuse every call.
 */
#include "gpu/cuda_runtime.h"

#include "base/cuda_library.h"
#include "gpu/gpu.h"

#include <dlfcn.h>

enum { OLDEST = 12080 };

/* CUDA's versions are major * 1000 + minor * 10. */
#define VERSION(number) (number) / 1000, (number) % 1000 / 10

static bool bind(struct gpu_runtime *cuda, void *library, const char *name, struct text *tried)
{
#define X(function)                                                                                \
    *(void **)&cuda->function = dlsym(library, #function);                                         \
    if (!cuda->function) {                                                                         \
        text_add(tried, "; '%s' lacks %s", name, #function);                                       \
        return false;                                                                              \
    }
    CUDA_FUNCTIONS(X)
#undef X
    return true;
}

/* The driver's version; 0: there is none. */
static int ask_driver(struct gpu_runtime *cuda)
{
    int version = 0;

    cuda->driver[0] = '\0';
    if (cuda->cudaDriverGetVersion(&version) != cudaSuccess) {
        (void)cuda->cudaGetLastError();
        version = 0;
    }
    if (version > 0)
        text_copy(cuda->driver, "%d.%d", VERSION(version));
    return version;
}

static bool accept(void *taker, void *library, const char *name, struct text *tried)
{
    struct gpu_runtime *cuda = taker;
    int version = 0, driver;

    *(void **)&cuda->cudaRuntimeGetVersion = dlsym(library, "cudaRuntimeGetVersion");
    if (!cuda->cudaRuntimeGetVersion || cuda->cudaRuntimeGetVersion(&version) != cudaSuccess) {
        text_add(tried, "; '%s' does not tell its version", name);
        return false;
    }
    cuda_library_file(cuda->path, sizeof cuda->path, *(void **)&cuda->cudaRuntimeGetVersion, name);
    if (version < OLDEST) {
        text_add(tried, "; '%s' is %d.%d, older than %d.%d", cuda->path, VERSION(version),
                 VERSION(OLDEST));
        return false;
    }
    if (!bind(cuda, library, name, tried))
        return false;
    driver = ask_driver(cuda);
    if (driver > 0 && driver / 1000 < version / 1000) {
        /* It has been at work in this thread, so its code must stay when it is closed. */
        (void)dlopen(cuda->path, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
        text_add(tried, "; '%s' is %d.%d, the driver is of %s", cuda->path, VERSION(version),
                 cuda->driver);
        return false;
    }
    text_copy(cuda->version, "%d.%d", VERSION(version));
    return true;
}

ffa_status gpu_runtime_open(struct gpu_runtime **out, const char *path, ffa_error *err)
{
    struct gpu_runtime *cuda = mem_array(1, sizeof *cuda);
    const struct cuda_library wanted = { .stem = "libcudart",
                                         .wheel_12 = "cuda_runtime",
                                         .fault = FAULT_GPU,
                                         .accept = accept,
                                         .taker = cuda };
    struct text tried = { 0 };
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!cuda) {
        rc = error_nomem(err, "the CUDA runtime's table of functions");
        goto out;
    }
    if (!cuda_library_open(&wanted, path, &tried)) {
        rc = tried.failed
                 ? error_nomem(err, "the search for the CUDA runtime")
                 : error_fail(err, FFA_UNSUPPORTED, 0,
                              "no CUDA runtime >= %d.%d (option cudart_path names one): %s",
                              VERSION(OLDEST), tried.at ? tried.at + 2 : "none found");
        goto out;
    }
    *out = cuda;
    cuda = NULL;
out:
    text_finish(&tried);
    mem_free(cuda);
    return rc;
}

void gpu_runtime_close(struct gpu_runtime *cuda)
{
    mem_free(cuda);
}

const char *gpu_runtime_path(const struct gpu_runtime *cuda)
{
    return cuda->path;
}

const char *gpu_runtime_version(const struct gpu_runtime *cuda)
{
    return cuda->version;
}

const char *gpu_runtime_driver(const struct gpu_runtime *cuda)
{
    return cuda->driver;
}
