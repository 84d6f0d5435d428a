/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: a cubin loaded on a device, its launches, and the tensor maps that its arguments hold.
 *
 * A cubin is loaded as a library of its own, whose code is independent of contexts, with its shared
 * memory limit raised once at load. A launch passes one struct, and names a cluster dimension only
 * where the kernel has clusters.
 */
#include "gpu/gpu_internal.h"
#include "tensor_map.h"

_Static_assert(sizeof(struct tensor_map) == sizeof(CUtensorMap), "opaque tensor map");

struct gpu_kernel {
    struct gpu_device *device; /* not owned */
    cudaLibrary_t library;
    cudaKernel_t entry;
    int32_t threads, shared_bytes, cluster;
};

/* Whether a failed load says something of the cubin, not of the device or the process. */
static bool is_of_cubin(cudaError_t code)
{
    switch (code) {
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidSource:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorSymbolNotFound:
        return true;
    default:
        return false;
    }
}

/* The driver looks at the code here, or, where it loads lazily, when the entry is looked up or
 * first used. */
static cudaError_t library_load(struct gpu_kernel *kernel, const struct gpu_kernel_desc *desc)
{
    const struct gpu_runtime *cuda = kernel->device->cuda;
    cudaError_t code = fault_here(FAULT_LOAD)
                           ? cudaErrorNoKernelImageForDevice
                           : cuda->cudaLibraryLoadData(&kernel->library, desc->cubin, NULL, NULL, 0,
                                                       NULL, NULL, 0);

    return code == cudaSuccess
               ? cuda->cudaLibraryGetKernel(&kernel->entry, kernel->library, desc->entry)
               : code;
}

ffa_status gpu_kernel_load(struct gpu_kernel **out, struct gpu_device *device,
                           const struct gpu_kernel_desc *desc, bool *is_refused, ffa_error *err)
{
    struct gpu_kernel *kernel = NULL;
    bool is_pushed = false;
    cudaError_t code;
    ffa_status rc;

    *out = NULL;
    *is_refused = false;
    if (desc->shared_bytes > device->facts.shared_bytes_block)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "%s needs %d bytes of shared memory, a block of the device has %d",
                          desc->entry, (int)desc->shared_bytes,
                          (int)device->facts.shared_bytes_block);
    kernel = mem_array(1, sizeof *kernel);
    if (!kernel) {
        rc = error_nomem(err, "the kernel");
        goto out;
    }
    kernel->device = device;
    kernel->threads = desc->threads;
    kernel->shared_bytes = desc->shared_bytes;
    kernel->cluster = desc->cluster;
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    code = library_load(kernel, desc);
    *is_refused = is_of_cubin(code);
    FFA_TRY(gpu_status(device->cuda, code, "load the module", err));
    code = fault_here(FAULT_LOAD)
               ? cudaErrorInvalidDeviceFunction
               : device->cuda->cudaFuncSetAttribute((const void *)kernel->entry,
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    desc->shared_bytes);
    *is_refused = is_of_cubin(code);
    FFA_TRY(gpu_status(device->cuda, code, "reserve the kernel's shared memory", err));
    *out = kernel;
    kernel = NULL;
out:
    gpu_leave(device, is_pushed);
    gpu_kernel_unload(kernel);
    return rc;
}

void gpu_kernel_unload(struct gpu_kernel *kernel)
{
    bool is_pushed = false;

    if (!kernel)
        return;
    if (kernel->library) {
        (void)gpu_enter(kernel->device, &is_pushed, NULL);
        (void)kernel->device->cuda->cudaLibraryUnload(kernel->library);
        gpu_leave(kernel->device, is_pushed);
    }
    mem_free(kernel);
}

ffa_status gpu_kernel_enqueue(const struct gpu_kernel *kernel, int32_t blocks, const void *args,
                              ffa_stream stream, ffa_error *err)
{
    void *params[] = { (void *)(uintptr_t)args };
    const unsigned cluster = (unsigned)kernel->cluster;
    const unsigned clusters = (unsigned)blocks < cluster ? 1 : (unsigned)blocks / cluster;
    cudaLaunchAttribute attribute = { .id = cudaLaunchAttributeClusterDimension,
                                      .val.clusterDim = { cluster, 1, 1 } };
    cudaLaunchConfig_t config = {
        .gridDim = { clusters * cluster, 1, 1 },
        .blockDim = { (unsigned)kernel->threads, 1, 1 },
        .dynamicSmemBytes = (size_t)kernel->shared_bytes,
        .stream = stream,
        .attrs = &attribute,
        .numAttrs = cluster > 1,
    };
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(kernel->device, &is_pushed, err));
    GPU_TRY(kernel->device, cudaLaunchKernelExC(&config, (const void *)kernel->entry, params),
            "launch the kernel", err);
out:
    gpu_leave(kernel->device, is_pushed);
    return rc;
}

ffa_status gpu_tensor_map(struct tensor_map *out, const struct gpu_device *device,
                          const struct gpu_tensor *tensor, ffa_error *err)
{
    static const CUtensorMapDataType types[] = {
        [GPU_BF16] = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        [GPU_FP16] = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    const cuuint32_t steps[3] = { 1, 1, 1 };
    cuuint64_t dims[3], strides[2];
    cuuint32_t box[3];
    bool is_pushed = false;
    CUtensorMap map;
    CUresult code;
    ffa_status rc;

    for (int i = 0; i < 3; i++) {
        dims[i] = (cuuint64_t)tensor->dims[i];
        box[i] = (cuuint32_t)tensor->box[i];
    }
    for (int i = 0; i < 2; i++)
        strides[i] = (cuuint64_t)tensor->strides[i] * 2;
    FFA_TRY(gpu_enter(device, &is_pushed, err)); /* the driver wants a context */
    code = device->driver.cuTensorMapEncodeTiled(
        &map, types[tensor->element], 3, (void *)(uintptr_t)tensor->data, dims, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS || fault_here(FAULT_GPU)) {
        rc = error_fail(err, FFA_GPU, (int32_t)code,
                        "the driver refuses %s as a tensor map: data %p, %lld x %lld x %lld "
                        "elements, strides %lld and %lld (code %d)",
                        tensor->name, tensor->data, (long long)tensor->dims[0],
                        (long long)tensor->dims[1], (long long)tensor->dims[2],
                        (long long)tensor->strides[0], (long long)tensor->strides[1], (int)code);
        goto out;
    }
    memcpy(out, &map, sizeof map);
out:
    gpu_leave(device, is_pushed);
    return rc;
}
