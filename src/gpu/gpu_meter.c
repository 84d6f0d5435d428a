/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's functions by their names and their C interface, which is stable: its header is not needed
 * to build. The GPU is found by its UUID, as ordinals differ between NVML and CUDA.
 */
#include "gpu/gpu_meter.h"

#include "gpu/gpu_stream.h"

#include <dlfcn.h>
#include <stdio.h>

enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0, MILLI = 1000 };

struct nvml_memory {
    unsigned long long total, free, used;
};

/* POSIX has functions in the pointers that dlsym returns; ISO C wants them copied. */
static bool find(void *out, const struct gpu_meter *meter, const char *name)
{
    void *symbol = meter->library ? dlsym(meter->library, name) : NULL;

    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void *find_device(const struct gpu_meter *meter, const unsigned char uuid[16])
{
    int (*by_uuid)(const char *text, void **device);
    char text[48] = "GPU-";
    size_t at = 4;
    void *device = NULL;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text[at++] = '-';
        (void)snprintf(text + at, sizeof text - at, "%02x", uuid[i]);
        at += 2;
    }
    if (!find(&by_uuid, meter, "nvmlDeviceGetHandleByUUID") || by_uuid(text, &device) != 0)
        return NULL;
    return device;
}

void gpu_meter_open(struct gpu_meter *meter, const struct gpu_device *device)
{
    unsigned char uuid[16];
    int (*init)(void);

    *meter = (struct gpu_meter){ .library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) };
    if (!meter->library)
        return;
    if (find(&init, meter, "nvmlInit_v2") && init() == 0) {
        if (gpu_device_identity(device, uuid, NULL) == FFA_OK)
            meter->device = find_device(meter, uuid);
        if (meter->device)
            return;
        gpu_meter_close(meter);
        return;
    }
    (void)dlclose(meter->library);
    meter->library = NULL;
}

void gpu_meter_close(struct gpu_meter *meter)
{
    int (*end)(void);

    if (find(&end, meter, "nvmlShutdown"))
        (void)end();
    if (meter->library)
        (void)dlclose(meter->library);
    *meter = (struct gpu_meter){ 0 };
}

/* A number that a function of one device and one result gives; 0: it gives none. */
static int32_t ask(const struct gpu_meter *meter, const char *name)
{
    int (*get)(void *device, unsigned *value);
    unsigned value = 0;

    return find(&get, meter, name) && get(meter->device, &value) == 0 ? (int32_t)value : 0;
}

/* The same with a kind between them. */
static int32_t ask_kind(const struct gpu_meter *meter, const char *name, int kind)
{
    int (*get)(void *device, int kind, unsigned *value);
    unsigned value = 0;

    return find(&get, meter, name) && get(meter->device, kind, &value) == 0 ? (int32_t)value : 0;
}

void gpu_meter_facts(const struct gpu_meter *meter, struct gpu_meter_facts *out)
{
    int (*driver)(char *text, unsigned bytes);
    int (*memory)(void *device, struct nvml_memory *out);
    struct nvml_memory bytes = { 0 };

    *out = (struct gpu_meter_facts){ 0 };
    if (!meter->device)
        return;
    if (find(&driver, meter, "nvmlSystemGetDriverVersion") &&
        driver(out->driver, sizeof out->driver) != 0)
        out->driver[0] = '\0';
    if (find(&memory, meter, "nvmlDeviceGetMemoryInfo") && memory(meter->device, &bytes) == 0)
        out->memory_bytes = (int64_t)bytes.total;
    out->power_limit_w = ask(meter, "nvmlDeviceGetEnforcedPowerLimit") / MILLI;
    out->clock_max_mhz = ask_kind(meter, "nvmlDeviceGetMaxClockInfo", NVML_CLOCK_SM);
}

void gpu_meter_read(const struct gpu_meter *meter, struct gpu_meter_reading *out)
{
    *out = (struct gpu_meter_reading){ 0 };
    if (!meter->device)
        return;
    out->clock_mhz = ask_kind(meter, "nvmlDeviceGetClockInfo", NVML_CLOCK_SM);
    out->power_w = ask(meter, "nvmlDeviceGetPowerUsage") / MILLI;
    out->temperature_c = ask_kind(meter, "nvmlDeviceGetTemperature", NVML_TEMPERATURE_GPU);
}
