/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the emulator's CUDA runtime share: settings, errors, the current device, and
 * kernels.
 */
#ifndef FFA_EMULATOR_RUNTIME_H
#define FFA_EMULATOR_RUNTIME_H

#include "live.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { EMULATOR_DEVICES = 8 }; /* at most */

/* An environment variable; `otherwise` where it is not set. Ends the process where it is no number
 * in [1, most]. */
int64_t runtime_setting(const char *name, int64_t otherwise, int64_t most);
int runtime_sm_count(void);
int runtime_device_count(void);
/* The calling thread's device: 0 where it has none, as the runtime then takes that one. */
int runtime_device(void);
/* Keep an error as the thread's last one. Returns it. */
cudaError_t runtime_done(cudaError_t code);
/* How long something may wait while nothing changes. */
int64_t runtime_timeout_ms(void);
int64_t runtime_now_ns(void);
/* Count something that the process was given, or gave back. */
void runtime_live_add(enum live kind, int64_t count);

/* A library with its only kernel. Serves as cudaLibrary_t and cudaKernel_t. */
struct kernel {
    void *library;
    int file; /* kept open while loaded: the loader distinguishes libraries by this number */
    void (*entry)(const void *args);
    size_t args_bytes;
    int shared_bytes;
    char name[64];
};

struct launch_shape {
    unsigned blocks, threads, cluster;
    size_t shared_bytes;
};

/* Run a launch to its end, on SMs of the device that no other launch has. `number` makes its
 * schedule another than that of other launches. */
cudaError_t kernel_run(const struct kernel *kernel, struct launch_shape shape, const void *args,
                       uint64_t number, int device);

#endif
