/* SPDX-License-Identifier: Apache-2.0
 *
 * The only user of the CUDA runtime: devices, modules, launches, tensor maps.
 * Nothing here synchronises but gpu_device_open.
 */
#ifndef FFA_GPU_GPU_H
#define FFA_GPU_GPU_H

#include "base/base.h"

struct gpu_device;

/* The ordinal of the first device a kernel exists for (compute capability 9.0), or -1. */
int gpu_device_pick(void);
/* FFA_GPU without a driver, FFA_INVALID for an ordinal out of range, FFA_UNSUPPORTED for a device
 * no kernel exists for. */
ffa_status gpu_device_open(struct gpu_device **out, int ordinal, ffa_error *err);
void gpu_device_close(struct gpu_device *device);
int gpu_device_ordinal(const struct gpu_device *device);
const char *gpu_device_name(const struct gpu_device *device);
const char *gpu_device_arch(const struct gpu_device *device); /* "sm_90a" */
int gpu_device_sm_count(const struct gpu_device *device);

#endif
