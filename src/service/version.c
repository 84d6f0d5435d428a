/* SPDX-License-Identifier: Apache-2.0
 *
 * What this library was built from, and which libraries of CUDA it finds. Invariant: what is not
 * found is an empty text, never a failure. The commit is compiled into the installed library only.
 */
#include "gpu/gpu.h"
#include "jit/nvrtc.h"

#include <ffa/context.h>
#include <ffa/kernel.h>

#ifdef FFA_HAS_COMMIT
#include "commit.h"
#else
#define FFA_COMMIT "unknown"
#endif

/* To the loader an empty path is the program itself. */
static ffa_status check_path(const char *name, const char *path, ffa_error *err)
{
    return path && !*path
               ? error_fail(err, FFA_INVALID, 0, "%s is empty; NULL is the default", name)
               : FFA_OK;
}

static ffa_status find_runtime(ffa_version_info *now, const char *path, ffa_error *err)
{
    struct gpu_runtime *cuda = NULL;
    ffa_status rc = gpu_runtime_open(&cuda, path, err);

    if (rc == FFA_OK) {
        text_copy(now->cudart_path, "%s", gpu_runtime_path(cuda));
        text_copy(now->cudart_version, "%s", gpu_runtime_version(cuda));
        text_copy(now->driver_version, "%s", gpu_runtime_driver(cuda));
    }
    gpu_runtime_close(cuda);
    return rc == FFA_UNSUPPORTED ? FFA_OK : rc;
}

static ffa_status find_nvrtc(ffa_version_info *now, const char *path, ffa_error *err)
{
    struct nvrtc *nvrtc = NULL;
    ffa_status rc = nvrtc_open(&nvrtc, path, err);

    if (rc == FFA_OK) {
        text_copy(now->nvrtc_path, "%s", nvrtc_path(nvrtc));
        text_copy(now->nvrtc_version, "%s", nvrtc_version(nvrtc));
    }
    nvrtc_close(nvrtc);
    return rc == FFA_UNSUPPORTED ? FFA_OK : rc;
}

ffa_status ffa_version_info_get(ffa_version_info *info, const ffa_context_opts *opts,
                                ffa_error *err)
{
    ffa_version_info now = { 0 };
    ffa_context_opts given;
    ffa_error why; /* a library that is not there is not an error of this call */
    ffa_status rc;

    if (!info)
        return error_fail(err, FFA_INVALID, 0, "info is NULL");
    FFA_TRY(opts_import(&given, sizeof given, opts, err));
    FFA_TRY(check_path("cudart_path", given.cudart_path, err));
    FFA_TRY(check_path("nvrtc_path", given.nvrtc_path, err));
    text_copy(now.version, "%s", ffa_version());
    text_copy(now.commit, "%s", FFA_COMMIT);
    text_copy(now.cuda_built, "%s", FFA_CUDA_BUILD_VERSION);
    ffa_templates_digest(now.templates_digest);
    rc = find_runtime(&now, given.cudart_path, &why);
    if (rc == FFA_OK)
        rc = find_nvrtc(&now, given.nvrtc_path, &why);
    if (rc != FFA_OK) {
        rc = error_fail(err, rc, why.native, "%s", why.message);
        goto out;
    }
    rc = opts_export(info, &now, sizeof now, err);
out:
    return rc;
}
