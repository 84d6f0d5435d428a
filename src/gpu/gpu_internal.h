/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of src/gpu share: the conversion of errors, the device, how it becomes current.
 */
#ifndef FFA_GPU_GPU_INTERNAL_H
#define FFA_GPU_GPU_INTERNAL_H

#include "gpu/gpu_driver.h"
#include "gpu/upload_ring.h"

struct gpu_device {
    const struct gpu_runtime *cuda; /* not owned */
    int ordinal;
    struct device_facts facts;
    char arch[16];
    struct gpu_driver driver;
    CUdevice handle;
    CUcontext context;      /* the primary one, retained for the rest of the process */
    cudaEvent_t begin, end; /* NULL until the stopwatch is used */
    bool is_timing;         /* between a begin and its end */
    struct upload_ring uploads;
};

/* `doing` completes "cannot ...". */
ffa_status gpu_status(const struct gpu_runtime *cuda, cudaError_t code, const char *doing,
                      ffa_error *err);

/* Run one function of the device's CUDA runtime as FFA_TRY does. `call` is written without the
 * runtime: "cudaEventCreate(&event)". */
#define GPU_TRY(device, call, doing, err)                                                          \
    FFA_TRY(gpu_status((device)->cuda, (device)->cuda->call, (doing), (err)))

/* The same for the driver: GPU_TRY_DRIVER(device, cuEventQuery, (event), "query the event", err).
 */
#define GPU_TRY_DRIVER(device, name, arguments, doing, err)                                        \
    FFA_TRY(gpu_driver_status((device)->driver.name arguments, #name, (doing), (err)))

/* Make the device current, with a context. *is_pushed, which the caller sets to false, tells
 * gpu_leave whether there is something to undo; gpu_leave may follow where this has failed. */
ffa_status gpu_enter(const struct gpu_device *device, bool *is_pushed, ffa_error *err);
void gpu_leave(const struct gpu_device *device, bool is_pushed);

/* Run one CUDA call of the runtime on the device, and return its status. */
#define GPU_ON_DEVICE(device, call, doing, err)                                                    \
    do {                                                                                           \
        bool is_pushed = false;                                                                    \
        ffa_status rc = gpu_enter((device), &is_pushed, (err));                                    \
        if (rc == FFA_OK)                                                                          \
            rc = gpu_status((device)->cuda, (device)->cuda->call, (doing), (err));                 \
        gpu_leave((device), is_pushed);                                                            \
        return rc;                                                                                 \
    } while (0)

#endif
