/* SPDX-License-Identifier: Apache-2.0
 *
 * What the driver's management library (NVML) says of a device: clock, power, temperature, and the
 * facts that the CUDA runtime does not have. It is opened on first use; where it is not there, or
 * knows a value not, the value is 0 or "". Thread: one at a time a meter.
 */
#ifndef FFA_GPU_GPU_METER_H
#define FFA_GPU_GPU_METER_H

#include "gpu/gpu.h"

struct gpu_meter {
    void *library; /* NULL: there is none */
    void *device;  /* its handle */
};

struct gpu_meter_facts {
    char driver[32];
    int32_t power_limit_w, clock_max_mhz;
    int64_t memory_bytes;
};

struct gpu_meter_reading {
    int32_t clock_mhz, power_w, temperature_c;
};

/* Never fails: a meter without a library reads zeros. */
void gpu_meter_open(struct gpu_meter *meter, const struct gpu_device *device);
void gpu_meter_close(struct gpu_meter *meter);
void gpu_meter_facts(const struct gpu_meter *meter, struct gpu_meter_facts *out);
void gpu_meter_read(const struct gpu_meter *meter, struct gpu_meter_reading *out);

#endif
