/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which one a kernel exists for, what is known of it, and the error adapter of this room.
 *
 * A device is read once, when it is opened, and never changes. The current device of the calling
 * thread is the same after a call as before it: gpu_enter and gpu_leave stand around what needs
 * another one.
 */
#include "gpu/gpu_internal.h"

#include <stdio.h>

enum { SUPPORTED_MAJOR = 9, SUPPORTED_MINOR = 0 };

ffa_status gpu_status(cudaError_t code, const char *doing, ffa_error *err)
{
    if (fault_here(FAULT_GPU))
        code = cudaErrorUnknown;
    if (code == cudaSuccess)
        return FFA_OK;
    (void)cudaGetLastError(); /* clears it, so that the caller's next check does not see it */
    return error_fail(err, code == cudaErrorMemoryAllocation ? FFA_NOMEM : FFA_GPU, (int32_t)code,
                      "cannot %s: %s", doing, cudaGetErrorString(code));
}

ffa_status gpu_enter(const struct gpu_device *device, int *previous, ffa_error *err)
{
    ffa_status rc;

    *previous = device->ordinal;
    FFA_TRY(gpu_status(cudaGetDevice(previous), "read the current device", err));
    if (*previous != device->ordinal)
        FFA_TRY(gpu_status(cudaSetDevice(device->ordinal), "set the device", err));
out:
    return rc;
}

void gpu_leave(const struct gpu_device *device, int previous)
{
    if (previous != device->ordinal)
        (void)cudaSetDevice(previous);
}

static bool device_is_supported(int ordinal)
{
    int major = 0, minor = 0;

    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) ==
               cudaSuccess &&
           major == SUPPORTED_MAJOR && minor == SUPPORTED_MINOR;
}

int gpu_device_pick(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    for (int ordinal = 0; ordinal < count; ordinal++)
        if (device_is_supported(ordinal))
            return ordinal;
    (void)cudaGetLastError();
    return -1;
}

static struct device_facts facts_of(const struct cudaDeviceProp *prop)
{
    struct device_facts facts = { .sm_count = prop->multiProcessorCount,
                                  .shared_bytes_block = (int32_t)prop->sharedMemPerBlockOptin,
                                  .l2_bytes = prop->l2CacheSize };

    text_copy(facts.name, "%s", prop->name);
    return facts;
}

ffa_status gpu_device_open(struct gpu_device **out, int ordinal, ffa_error *err)
{
    struct gpu_device *device = NULL;
    enum cudaDriverEntryPointQueryResult found;
    struct cudaDeviceProp prop;
    void *entry = NULL;
    int count = 0, previous;
    ffa_status rc;

    *out = NULL;
    FFA_TRY(gpu_status(cudaGetDeviceCount(&count), "count the CUDA devices", err));
    if (ordinal < 0 || ordinal >= count) {
        rc = error_fail(err, FFA_INVALID, 0, "device is %d, not in [0, %d)", ordinal, count);
        goto out;
    }
    FFA_TRY(gpu_status(cudaGetDeviceProperties(&prop, ordinal), "read the device", err));
    if (!device_is_supported(ordinal)) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0,
                        "device %d (%s) has compute capability %d.%d, kernels exist for %d.%d",
                        ordinal, prop.name, prop.major, prop.minor, SUPPORTED_MAJOR,
                        SUPPORTED_MINOR);
        goto out;
    }
    device = mem_array(1, sizeof *device);
    if (!device) {
        rc = error_nomem(err, "the device");
        goto out;
    }
    upload_ring_init(&device->uploads);
    device->ordinal = ordinal;
    device->facts = facts_of(&prop);
    text_copy(device->arch, "sm_%d%da", prop.major, prop.minor);

    FFA_TRY(gpu_enter(device, &previous, err));
    rc = gpu_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                     cudaEnableDefault, &found),
                    "find cuTensorMapEncodeTiled in the driver", err);
    gpu_leave(device, previous);
    FFA_TRY(rc);
    if (found != cudaDriverEntryPointSuccess || !entry) {
        rc = error_fail(err, FFA_UNSUPPORTED, (int32_t)found,
                        "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
        goto out;
    }
    /* ISO C has no cast from object to function pointer. */
    memcpy(&device->tensor_map_encode, &entry, sizeof entry);

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
        (void)cudaEventDestroy(device->begin);
    if (device->end)
        (void)cudaEventDestroy(device->end);
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
