/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other devices and other processes reach: peer access, IPC handles, and the identity
 * by which processes agree on which device is which.
 *
 * Ordinals differ between processes (CUDA_VISIBLE_DEVICES), so between processes a device is its
 * UUID. To enable peer access twice is no error, because the process's other libraries do so, too.
 */
#include "gpu/gpu_internal.h"
#include "gpu/gpu_stream.h"

_Static_assert(sizeof(cudaIpcMemHandle_t) == GPU_IPC_BYTES, "an IPC handle has 64 bytes");
_Static_assert(sizeof(CUuuid) == 16, "a UUID has 16 bytes");

ffa_status gpu_device_identity(const struct gpu_device *device, unsigned char uuid[16],
                               ffa_error *err)
{
    CUuuid found = { { 0 } };
    ffa_status rc;

    if (!device->driver.cuDeviceGetUuid) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "the driver has no cuDeviceGetUuid of CUDA 11.4");
        goto out;
    }
    GPU_TRY_DRIVER(device, cuDeviceGetUuid, (&found, device->handle), "identify the device", err);
out:
    memcpy(uuid, &found, sizeof found);
    return rc;
}

ffa_status gpu_can_peer(const struct gpu_device *device, int other, bool *can, ffa_error *err)
{
    int answer = 1;
    ffa_status rc = FFA_OK;

    *can = false;
    if (other != device->ordinal)
        GPU_TRY(device, cudaDeviceCanAccessPeer(&answer, device->ordinal, other),
                "ask for access between devices (cudaDeviceCanAccessPeer)", err);
    *can = answer != 0;
out:
    return rc;
}

ffa_status gpu_peer_enable(struct gpu_device *device, int other, ffa_error *err)
{
    bool is_pushed = false, can;
    cudaError_t code;
    ffa_status rc = FFA_OK;

    if (other == device->ordinal)
        goto out;
    FFA_TRY(gpu_can_peer(device, other, &can, err));
    if (!can) {
        rc = error_fail(err, FFA_UNSUPPORTED, 0, "device %d cannot reach the memory of device %d",
                        device->ordinal, other);
        goto out;
    }
    FFA_TRY(gpu_enter(device, &is_pushed, err));
    code = device->cuda->cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        (void)device->cuda->cudaGetLastError();
        code = cudaSuccess;
    }
    rc = gpu_status(device->cuda, code,
                    "enable access between devices (cudaDeviceEnablePeerAccess)", err);
out:
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_ipc_export(struct gpu_device *device, void *memory,
                          unsigned char handle[GPU_IPC_BYTES], ffa_error *err)
{
    cudaIpcMemHandle_t exported = { { 0 } };
    bool is_pushed = false;
    ffa_status rc;

    FFA_TRY(gpu_enter(device, &is_pushed, err));
    GPU_TRY(device, cudaIpcGetMemHandle(&exported, memory),
            "export memory to other processes (cudaIpcGetMemHandle)", err);
out:
    memcpy(handle, &exported, sizeof exported);
    gpu_leave(device, is_pushed);
    return rc;
}

ffa_status gpu_ipc_open(struct gpu_device *device, const unsigned char handle[GPU_IPC_BYTES],
                        void **out, ffa_error *err)
{
    cudaIpcMemHandle_t exported;

    *out = NULL;
    memcpy(&exported, handle, sizeof exported);
    GPU_ON_DEVICE(device, cudaIpcOpenMemHandle(out, exported, cudaIpcMemLazyEnablePeerAccess),
                  "open another process's memory (cudaIpcOpenMemHandle)", err);
}

void gpu_ipc_close(struct gpu_device *device, void *memory)
{
    bool is_pushed = false;

    if (!memory)
        return;
    (void)gpu_enter(device, &is_pushed, NULL);
    (void)device->cuda->cudaIpcCloseMemHandle(memory);
    gpu_leave(device, is_pushed);
}
