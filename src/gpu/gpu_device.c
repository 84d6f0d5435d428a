/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which one a kernel exists for, what is known of it, and the error adapter of this room.
 *
 * A device is read once, when it is opened, and never changes. The current device of the calling
 * thread is the same after a call as before it: gpu_enter and gpu_leave stand around what needs
 * another one.
 */
#include "gpu/gpu_internal.h"

enum { SUPPORTED_MAJOR = 9, SUPPORTED_MINOR = 0 };

ffa_status gpu_status(const struct gpu_runtime *cuda, cudaError_t code, const char *doing,
                      ffa_error *err)
{
    if (fault_here(FAULT_GPU))
        code = cudaErrorUnknown;
    if (code == cudaSuccess)
        return FFA_OK;
    (void)cuda->cudaGetLastError(); /* clears it, so that the caller's next check does not see it */
    return error_fail(err, code == cudaErrorMemoryAllocation ? FFA_NOMEM : FFA_GPU, (int32_t)code,
                      "cannot %s: %s", doing, cuda->cudaGetErrorString(code));
}

/* A thread that has called nothing of CUDA's has a current device, but no context. The runtime
 * makes one current when it needs one; the driver does not. */
static bool has_context(const struct gpu_device *device)
{
    CUcontext context = NULL;

    return !device->context_current ||
           (device->context_current(&context) == CUDA_SUCCESS && context);
}

ffa_status gpu_enter(const struct gpu_device *device, int *previous, ffa_error *err)
{
    ffa_status rc;

    *previous = device->ordinal;
    GPU_TRY(device, cudaGetDevice(previous), "read the current device", err);
    if (*previous != device->ordinal || !has_context(device))
        GPU_TRY(device, cudaSetDevice(device->ordinal), "set the device", err);
out:
    return rc;
}

void gpu_leave(const struct gpu_device *device, int previous)
{
    if (previous != device->ordinal)
        (void)device->cuda->cudaSetDevice(previous);
}

/* ---- what is known of a device ---- */

struct attributes {
    int major, minor, sm_count, shared_bytes_block, l2_bytes;
};

static cudaError_t read_attributes(const struct gpu_runtime *cuda, int ordinal,
                                   struct attributes *out)
{
    const struct {
        int *to;
        enum cudaDeviceAttr attribute;
    } rows[] = {
        { &out->major, cudaDevAttrComputeCapabilityMajor },
        { &out->minor, cudaDevAttrComputeCapabilityMinor },
        { &out->sm_count, cudaDevAttrMultiProcessorCount },
        { &out->shared_bytes_block, cudaDevAttrMaxSharedMemoryPerBlockOptin },
        { &out->l2_bytes, cudaDevAttrL2CacheSize },
    };
    cudaError_t code = cudaSuccess;

    for (size_t i = 0; i < sizeof rows / sizeof *rows && code == cudaSuccess; i++)
        code = cuda->cudaDeviceGetAttribute(rows[i].to, rows[i].attribute, ordinal);
    return code;
}

static bool is_supported(const struct attributes *attributes)
{
    return attributes->major == SUPPORTED_MAJOR && attributes->minor == SUPPORTED_MINOR;
}

int gpu_device_pick(const struct gpu_runtime *cuda)
{
    struct attributes attributes;
    int count = 0;
    int picked = -1;
    bool has_failed = cuda->cudaGetDeviceCount(&count) != cudaSuccess;

    for (int ordinal = 0; picked < 0 && ordinal < count; ordinal++) {
        if (read_attributes(cuda, ordinal, &attributes) != cudaSuccess)
            has_failed = true;
        else if (is_supported(&attributes))
            picked = ordinal;
    }
    if (has_failed) /* else the last error is the caller's */
        (void)cuda->cudaGetLastError();
    return picked;
}

/* A function of the driver, at `out`, as it was in `version`; NULL where the driver has none. The
 * runtime is asked, because libcuda is not linked. */
static cudaError_t find_in_driver(const struct gpu_runtime *cuda, const char *name,
                                  unsigned version, void *out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
    cudaError_t code =
        cuda->cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);

    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess)
        entry = NULL;
    /* ISO C has no cast from object to function pointer. */
    memcpy(out, &entry, sizeof entry);
    return code;
}

/* The runtime gives a name only within cudaDeviceProp, whose layout depends on its version. */
static void read_name(const struct gpu_runtime *cuda, int ordinal, char *name, int bytes)
{
    CUresult (*get)(CUdevice *, int) = NULL;
    CUresult (*get_name)(char *, int, CUdevice) = NULL;
    CUdevice device;

    if (find_in_driver(cuda, "cuDeviceGet", 2000, &get) != cudaSuccess || !get ||
        find_in_driver(cuda, "cuDeviceGetName", 2000, &get_name) != cudaSuccess || !get_name ||
        get(&device, ordinal) != CUDA_SUCCESS || get_name(name, bytes, device) != CUDA_SUCCESS) {
        (void)cuda->cudaGetLastError();
        text_format(name, (size_t)bytes, "a CUDA device without a name");
    }
}

static ffa_status read_device(struct gpu_device *device, ffa_error *err)
{
    struct attributes attributes = { 0 };
    ffa_status rc;

    FFA_TRY(gpu_status(device->cuda, read_attributes(device->cuda, device->ordinal, &attributes),
                       "read the device", err));
    read_name(device->cuda, device->ordinal, device->facts.name, (int)sizeof device->facts.name);
    if (!is_supported(&attributes)) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "device %d (%s) has compute capability %d.%d, kernels exist for %d.%d",
                        device->ordinal, device->facts.name, attributes.major, attributes.minor,
                        SUPPORTED_MAJOR, SUPPORTED_MINOR);
        goto out;
    }
    device->facts.sm_count = attributes.sm_count;
    device->facts.shared_bytes_block = attributes.shared_bytes_block;
    device->facts.l2_bytes = attributes.l2_bytes;
    text_copy(device->arch, "sm_%d%da", attributes.major, attributes.minor);
out:
    return rc;
}

static ffa_status find_driver_functions(struct gpu_device *device, ffa_error *err)
{
    int previous;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &previous, err));
    rc = gpu_status(
        device->cuda,
        find_in_driver(device->cuda, "cuTensorMapEncodeTiled", 12000, &device->tensor_map_encode),
        "find cuTensorMapEncodeTiled in the driver", err);
    if (rc == FFA_OK)
        rc = gpu_status(
            device->cuda,
            find_in_driver(device->cuda, "cuCtxGetCurrent", 4000, &device->context_current),
            "find cuCtxGetCurrent in the driver", err);
    gpu_leave(device, previous);
    FFA_TRY(rc);
    if (!device->tensor_map_encode)
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
out:
    return rc;
}

ffa_status gpu_device_open(struct gpu_device **out, const struct gpu_runtime *cuda, int ordinal,
                           ffa_error *err)
{
    struct gpu_device *device = NULL;
    int count = 0;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(gpu_status(cuda, cuda->cudaGetDeviceCount(&count), "count the CUDA devices", err));
    if (ordinal < 0 || ordinal >= count) {
        rc = error_fail(err, FFA_INVALID, 0, "device is %d, not in [0, %d)", ordinal, count);
        goto out;
    }
    device = mem_array(1, sizeof *device);
    if (!device) {
        rc = error_nomem(err, "the device");
        goto out;
    }
    device->cuda = cuda;
    upload_ring_init(&device->uploads, cuda);
    device->ordinal = ordinal;
    FFA_TRY(read_device(device, err));
    FFA_TRY(find_driver_functions(device, err));
    *out = device;
    device = NULL;
out:
    gpu_device_close(device);
    return rc;
}

void gpu_device_close(struct gpu_device *device)
{
    int previous;

    if (!device)
        return;
    (void)gpu_enter(device, &previous, NULL);
    upload_ring_finish(&device->uploads);
    if (device->begin)
        (void)device->cuda->cudaEventDestroy(device->begin);
    if (device->end)
        (void)device->cuda->cudaEventDestroy(device->end);
    gpu_leave(device, previous);
    mem_free(device);
}

int gpu_device_ordinal(const struct gpu_device *device)
{
    return device->ordinal;
}

const struct device_facts *gpu_device_facts(const struct gpu_device *device)
{
    return &device->facts;
}

const char *gpu_device_name(const struct gpu_device *device)
{
    return device->facts.name;
}

const char *gpu_device_arch(const struct gpu_device *device)
{
    return device->arch;
}

int gpu_device_sm_count(const struct gpu_device *device)
{
    return device->facts.sm_count;
}
