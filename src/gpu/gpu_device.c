/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which one a kernel exists for, what is known of it, and the error adapter of this room.
 *
 * A device is read once, when it is opened, and never changes. The calling thread has the same
 * context after a call as before it, or again none: gpu_enter and gpu_leave stand around what needs
 * another one. So a call on one device never creates a context on another.
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

/* Whether a context of the device is current: the primary one, or the caller's own, whose streams
 * work in it alone. Without any, to ask for its device is an error, which compute-sanitizer
 * reports. */
static bool is_current(const struct gpu_device *device)
{
    const struct gpu_driver *driver = &device->driver;
    CUcontext context = NULL;
    CUdevice of;

    if (driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return false;
    return context == device->context ||
           (driver->cuCtxGetDevice(&of) == CUDA_SUCCESS && of == device->handle);
}

/* The context is pushed, and popped by gpu_leave. cudaSetDevice would do for the call, but not for
 * its end: in a thread without a context, to set the device that was is to create its context. */
ffa_status gpu_enter(const struct gpu_device *device, bool *is_pushed, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    if (is_current(device))
        goto out;
    GPU_TRY_DRIVER(device, cuCtxPushCurrent, (device->context), "set the device", err);
    *is_pushed = true;
out:
    return rc;
}

void gpu_leave(const struct gpu_device *device, bool is_pushed)
{
    CUcontext popped;

    if (is_pushed)
        (void)device->driver.cuCtxPopCurrent(&popped);
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

/* The runtime gives a name only within cudaDeviceProp, whose layout depends on its version. */
static void read_name(const struct gpu_device *device, char *name, int bytes)
{
    if (!device->driver.cuDeviceGetName ||
        device->driver.cuDeviceGetName(name, bytes, device->handle) != CUDA_SUCCESS)
        text_format(name, (size_t)bytes, "a CUDA device without a name");
}

static ffa_status read_device(struct gpu_device *device, ffa_error *err)
{
    struct attributes attributes = { 0 };
    ffa_status rc;

    FFA_TRY(gpu_status(device->cuda, read_attributes(device->cuda, device->ordinal, &attributes),
                       "read the device", err));
    FFA_TRY(gpu_driver_find(&device->driver, device->cuda, err));
    GPU_TRY_DRIVER(device, cuDeviceGet, (&device->handle, device->ordinal), "find the device", err);
    read_name(device, device->facts.name, (int)sizeof device->facts.name);
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
    GPU_TRY_DRIVER(device, cuDevicePrimaryCtxRetain, (&device->context, device->handle),
                   "create the device's context", err);
    *out = device;
    device = NULL;
out:
    gpu_device_close(device);
    return rc;
}

void gpu_device_close(struct gpu_device *device)
{
    bool is_pushed = false;

    if (!device)
        return;
    if (device->context)
        (void)gpu_enter(device, &is_pushed, NULL);
    upload_ring_finish(&device->uploads);
    if (device->begin)
        (void)device->cuda->cudaEventDestroy(device->begin);
    if (device->end)
        (void)device->cuda->cudaEventDestroy(device->end);
    gpu_leave(device, is_pushed);
    mem_free(device);
}

int gpu_device_count(const struct gpu_device *device)
{
    int count = 0;

    return device->cuda->cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
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
