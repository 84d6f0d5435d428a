/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: loading them, and launches.
 *
 * A library is a shared object of nvrtc.c, loaded from memory. A launch is checked when it is
 * enqueued, and is one run of the machine when its stream comes to it. FFA_EMULATOR_SEED and the
 * launch's number choose the schedule, FFA_EMULATOR_SMS how many
 * SMs a device has. Each SM has one block at a time. A launch keeps the SMs that were free when it
 * began.
 */
#include "machine.h"
#include "stream_calls.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The size of the file: it ends with its section table. */
static size_t image_bytes(const void *image)
{
    Elf64_Ehdr head;

    memcpy(&head, image, sizeof head);
    return memcmp(head.e_ident, ELFMAG, SELFMAG) != 0
               ? 0
               : (size_t)head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
}

static Elf64_Half host_machine(void)
{
#if defined(__x86_64__)
    return EM_X86_64;
#elif defined(__aarch64__)
    return EM_AARCH64;
#else
#error "the emulator does not know this machine's ELF"
#endif
}

/* Load a shared object of nvrtc.c, which says CUDA in its ELF header: the loader needs the host's
 * machine there. */
static bool load(struct kernel *kernel, const void *image)
{
    const size_t bytes = image_bytes(image);
    const Elf64_Half machine = host_machine();
    char path[32];

    kernel->file = memfd_create("kernel", MFD_CLOEXEC);
    if (bytes == 0 || kernel->file < 0 || write(kernel->file, image, bytes) != (ssize_t)bytes ||
        pwrite(kernel->file, &machine, sizeof machine, offsetof(Elf64_Ehdr, e_machine)) !=
            (ssize_t)sizeof machine)
        return false;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", kernel->file);
    kernel->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!kernel->library)
        fprintf(stderr, "emulator: %s\n", dlerror());
    return kernel->library != NULL;
}

static void unload(struct kernel *kernel)
{
    if (kernel->library)
        (void)dlclose(kernel->library);
    if (kernel->file >= 0)
        (void)close(kernel->file);
    free(kernel);
}

EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *image,
                                       enum cudaJitOption *jit, void **jit_values, unsigned jits,
                                       enum cudaLibraryOption *options, void **values,
                                       unsigned count)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);

    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    if (!kernel)
        return runtime_done(cudaErrorMemoryAllocation);
    if (!load(kernel, image)) {
        unload(kernel);
        return runtime_done(cudaErrorInvalidKernelImage);
    }
    *out = (cudaLibrary_t)kernel;
    runtime_live_add(LIVE_LIBRARIES, 1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)streams_finish(-1);
    unload((struct kernel *)library);
    runtime_live_add(LIVE_LIBRARIES, -1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t library, const char *name)
{
    struct kernel *kernel = (struct kernel *)library;
    void *symbol;
    const size_t *bytes;
    char entry[96];

    (void)snprintf(entry, sizeof entry, "emulated_%s", name);
    symbol = dlsym(kernel->library, entry);
    bytes = dlsym(kernel->library, "emulated_args_bytes");
    if (!symbol || !bytes)
        return runtime_done(cudaErrorSymbolNotFound);
    memcpy(&kernel->entry, &symbol, sizeof symbol);
    kernel->args_bytes = *bytes;
    (void)snprintf(kernel->name, sizeof kernel->name, "%s", name);
    *out = (cudaKernel_t)kernel;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute,
                                        int value)
{
    struct kernel *kernel = (struct kernel *)(uintptr_t)function;

    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > EMULATOR_SHARED_BYTES)
        return runtime_done(cudaErrorInvalidValue);
    kernel->shared_bytes = value;
    return cudaSuccess;
}

/* ---- SMs, each with a block at a time ---- */

static int busy_sms[EMULATOR_DEVICES];

/* Take up to `wanted` of the SMs that are free now, in whole clusters, one cluster at least where
 * none is busy. Returns how many; 0: not even a cluster of them is free. */
static int sms_try(int device, int wanted, int cluster)
{
    int busy = __atomic_load_n(&busy_sms[device], __ATOMIC_ACQUIRE), taken;

    do {
        const int free_sms = runtime_sm_count() - busy;

        taken = (wanted < free_sms ? wanted : free_sms) / cluster * cluster;
        if (taken <= 0)
            taken = busy == 0 ? cluster : 0;
    } while (!__atomic_compare_exchange_n(&busy_sms[device], &busy, busy + taken, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return taken;
}

/* The same, once there are some. 0: none became free in time, or there was a failure meanwhile. */
static int sms_take(int device, int wanted, int cluster)
{
    const struct timespec pause = { .tv_nsec = 50000 };
    const int64_t from_ns = runtime_now_ns(), limit_ms = runtime_timeout_ms();
    int taken;

    while ((taken = sms_try(device, wanted, cluster)) == 0) {
        if (streams_failure() != cudaSuccess || runtime_now_ns() - from_ns > limit_ms * 1000000)
            return 0;
        (void)nanosleep(&pause, NULL);
    }
    return taken;
}

static void sms_give(int device, int taken)
{
    (void)__atomic_sub_fetch(&busy_sms[device], taken, __ATOMIC_ACQ_REL);
}

cudaError_t kernel_run(const struct kernel *kernel, struct launch_shape shape, const void *args,
                       uint64_t number, int device)
{
    const int sms = sms_take(device, (int)shape.blocks, (int)shape.cluster);
    char error[EMULATOR_ERROR_TEXT] = "other launches keep all SMs";
    const bool is_done =
        sms > 0 &&
        emulator_run(
            &(struct emulator_launch){
                .entry = kernel->entry,
                .args = args,
                .blocks = (int)shape.blocks,
                .threads = (int)shape.threads,
                .cluster = (int)shape.cluster,
                .resident = sms,
                .shared_bytes = (int)shape.shared_bytes,
                .seed = (uint64_t)runtime_setting("FFA_EMULATOR_SEED", 1, INT32_MAX) << 32 | number,
            },
            error);

    if (is_done) /* after a failure the device runs nothing any more */
        sms_give(device, sms);
    else
        fprintf(stderr, "emulator: %s, launch %llu: %s\n", kernel->name, (unsigned long long)number,
                error);
    return is_done ? cudaSuccess : cudaErrorLaunchFailure;
}

/* ---- launches ---- */

/* Blocks of a cluster, which all lie in x; 0 where the launch asks for other clusters. */
static unsigned cluster_of(const cudaLaunchConfig_t *config)
{
    unsigned cluster = 1;

    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id != cudaLaunchAttributeClusterDimension)
            continue;
        if (attribute->val.clusterDim.y != 1 || attribute->val.clusterDim.z != 1)
            return 0;
        cluster = attribute->val.clusterDim.x;
    }
    return cluster;
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                       void **args)
{
    const struct kernel *kernel = function;
    const struct work work = { .kind = WORK_LAUNCH,
                               .kernel = kernel,
                               .shape = { .blocks = config->gridDim.x,
                                          .threads = config->blockDim.x,
                                          .cluster = cluster_of(config),
                                          .shared_bytes = config->dynamicSmemBytes },
                               .args = args[0],
                               .args_bytes = kernel->args_bytes };

    if (work.shape.cluster < 1 || work.shape.cluster > EMULATOR_CLUSTER ||
        work.shape.blocks % work.shape.cluster) {
        fprintf(stderr, "emulator: %s: no launch of %u blocks in clusters of %u\n", kernel->name,
                work.shape.blocks, work.shape.cluster);
        return runtime_done(cudaErrorInvalidValue);
    }
    if (work.shape.shared_bytes > (size_t)kernel->shared_bytes)
        return runtime_done(cudaErrorInvalidValue);
    return stream_call(config->stream, &work);
}
