/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of the driver's functions: for each its name, the version of CUDA whose type
 * gpu_driver.h states, and whether a device can do without it. Invariant: after gpu_driver_find a
 * function is callable, or NULL and optional.
 */
#include "gpu/gpu_driver.h"

#include <stddef.h>

static const struct {
    const char *name;
    size_t at;
    unsigned version;
    bool is_optional;
} functions[] = {
#define ROW(name, version, is_optional)                                                            \
    {                                                                                              \
#name, offsetof(struct gpu_driver, name), version, is_optional                             \
    }
    /* clang-format off */
    ROW(cuTensorMapEncodeTiled, 12000, false),
    ROW(cuCtxGetCurrent, 4000, false),
    ROW(cuCtxGetDevice, 2000, false),
    ROW(cuCtxPopCurrent, 4000, false),
    ROW(cuCtxPushCurrent, 4000, false),
    ROW(cuDeviceGet, 2000, false),
    ROW(cuDevicePrimaryCtxRetain, 7000, false),
    ROW(cuEventQuery, 2000, false),
    ROW(cuDeviceGetName, 2000, true),
    ROW(cuDeviceGetUuid, 11040, true),
    ROW(cuMemcpyBatchAsync, 12080, true),
    ROW(cuStreamBatchMemOp, 11070, true),
    ROW(cuStreamWaitValue64, 11070, true),
    ROW(cuStreamWriteValue64, 11070, true),
/* clang-format on */
#undef ROW
};

ffa_status gpu_driver_find(struct gpu_driver *out, const struct gpu_runtime *cuda, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *out = (struct gpu_driver){ 0 };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        void *entry = NULL;
        const cudaError_t code =
            fault_here(FAULT_GPU)
                ? cudaErrorUnknown
                : cuda->cudaGetDriverEntryPointByVersion(
                      functions[i].name, &entry, functions[i].version, cudaEnableDefault, &found);

        if (code == cudaSuccess && found == cudaDriverEntryPointSuccess && entry) {
            /* ISO C has no cast from object to function pointer. */
            memcpy((char *)out + functions[i].at, &entry, sizeof entry);
            continue;
        }
        if (code != cudaSuccess)
            (void)cuda->cudaGetLastError();
        if (functions[i].is_optional)
            continue;
        rc =
            code != cudaSuccess
                ? error_fail(err, FFA_GPU, (int32_t)code, "cannot find %s in the driver: %s",
                             functions[i].name, cuda->cudaGetErrorString(code))
                : error_fail(err, FFA_UNSUPPORTED, 0,
                             "the driver has no %s: it is older than CUDA %u.%u", functions[i].name,
                             functions[i].version / 1000, functions[i].version % 1000 / 10);
        goto out;
    }
out:
    return rc;
}

ffa_status gpu_driver_status(CUresult code, const char *call, const char *doing, ffa_error *err)
{
    if (fault_here(FAULT_GPU))
        code = CUDA_ERROR_UNKNOWN;
    if (code == CUDA_SUCCESS)
        return FFA_OK;
    return error_fail(err, code == CUDA_ERROR_OUT_OF_MEMORY ? FFA_NOMEM : FFA_GPU, (int32_t)code,
                      "cannot %s: %s fails with code %d", doing, call, (int)code);
}
