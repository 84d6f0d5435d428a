/* SPDX-License-Identifier: Apache-2.0
 *
 * Cubins on a device, their launches, and the tensor maps they take.
 */
#include "attention_forward.args.h"
#include "gpu/gpu_internal.h"

_Static_assert(sizeof(struct tensor_map) == sizeof(CUtensorMap), "opaque tensor map");

struct gpu_kernel {
    struct gpu_device *device; /* not owned */
    cudaLibrary_t library;
    cudaKernel_t entry;
    int32_t threads, shared_bytes;
};

ffa_status gpu_kernel_load(struct gpu_kernel **out, struct gpu_device *device,
                           const struct gpu_kernel_desc *desc, ffa_error *err)
{
    struct gpu_kernel *kernel = NULL;
    int previous = device->ordinal;
    ffa_status rc;

    *out = NULL;
    kernel = mem_array(1, sizeof *kernel);
    if (!kernel) {
        rc = error_nomem(err, "the kernel");
        goto out;
    }
    kernel->device = device;
    kernel->threads = desc->threads;
    kernel->shared_bytes = desc->shared_bytes;
    FFA_TRY(gpu_enter(device, &previous, err));
    FFA_TRY(
        gpu_status(cudaLibraryLoadData(&kernel->library, desc->cubin, NULL, NULL, 0, NULL, NULL, 0),
                   "load the module", err));
    FFA_TRY(gpu_status(cudaLibraryGetKernel(&kernel->entry, kernel->library, desc->entry),
                       "find the kernel's entry", err));
    FFA_TRY(gpu_status(cudaFuncSetAttribute((const void *)kernel->entry,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            desc->shared_bytes),
                       "reserve the kernel's shared memory", err));
    *out = kernel;
    kernel = NULL;
out:
    gpu_leave(device, previous);
    gpu_kernel_unload(kernel);
    return rc;
}

void gpu_kernel_unload(struct gpu_kernel *kernel)
{
    if (!kernel)
        return;
    if (kernel->library)
        (void)cudaLibraryUnload(kernel->library);
    mem_free(kernel);
}

ffa_status gpu_kernel_enqueue(const struct gpu_kernel *kernel, int32_t blocks, const void *args,
                              ffa_stream stream, ffa_error *err)
{
    void *params[] = { (void *)(uintptr_t)args };
    cudaLaunchConfig_t config = {
        .gridDim = { (unsigned)blocks, 1, 1 },
        .blockDim = { (unsigned)kernel->threads, 1, 1 },
        .dynamicSmemBytes = (size_t)kernel->shared_bytes,
        .stream = stream,
    };
    int previous = kernel->device->ordinal;
    ffa_status rc;

    FFA_TRY(gpu_enter(kernel->device, &previous, err));
    FFA_TRY(gpu_status(cudaLaunchKernelExC(&config, (const void *)kernel->entry, params),
                       "launch the kernel", err));
out:
    gpu_leave(kernel->device, previous);
    return rc;
}

ffa_status gpu_tensor_map(struct tensor_map *out, const struct gpu_device *device,
                          const struct gpu_tensor *tensor, ffa_error *err)
{
    const cuuint64_t dims[3] = { (cuuint64_t)tensor->head_dim, (cuuint64_t)tensor->heads,
                                 (cuuint64_t)tensor->tokens };
    const cuuint64_t strides[2] = { (cuuint64_t)tensor->head_stride * 2,
                                    (cuuint64_t)tensor->token_stride * 2 };
    const cuuint32_t box[3] = { 64, 1, (cuuint32_t)tensor->box_rows };
    const cuuint32_t steps[3] = { 1, 1, 1 };
    CUtensorMap map;
    CUresult code;

    code = device->tensor_map_encode(
        &map, tensor->is_fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        3, (void *)(uintptr_t)tensor->data, dims, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS || fault_here(FAULT_GPU))
        return error_fail(
            err, FFA_GPU, (int32_t)code,
            "the driver refuses %s as a tensor map: data %p, %lld tokens, %lld heads, "
            "strides %lld and %lld elements (code %d)",
            tensor->name, tensor->data, (long long)tensor->tokens, (long long)tensor->heads,
            (long long)tensor->token_stride, (long long)tensor->head_stride, (int)code);
    memcpy(out, &map, sizeof map);
    return FFA_OK;
}
