/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: loading them, and launches.
 *
 * A library is a shared object of nvrtc.c, loaded from memory. A launch is checked when it is
 * enqueued, and is one run of the machine when its stream comes to it. FFA_EMULATOR_SEED and the
 * launch's number choose the schedule, FFA_EMULATOR_SMS how many blocks run at a time.
 */
#include "machine.h"
#include "stream_calls.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    return cudaSuccess;
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)streams_finish(-1);
    unload((struct kernel *)library);
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

cudaError_t kernel_run(const struct kernel *kernel, struct launch_shape shape, const void *args,
                       uint64_t number)
{
    char error[EMULATOR_ERROR_TEXT];
    const bool is_done = emulator_run(
        &(struct emulator_launch){
            .entry = kernel->entry,
            .args = args,
            .blocks = (int)shape.blocks,
            .threads = (int)shape.threads,
            .cluster = (int)shape.cluster,
            .resident = runtime_sm_count(),
            .shared_bytes = (int)shape.shared_bytes,
            .seed = (uint64_t)runtime_setting("FFA_EMULATOR_SEED", 1, INT32_MAX) << 32 | number,
        },
        error);

    if (!is_done)
        fprintf(stderr, "emulator: %s, launch %llu: %s\n", kernel->name, (unsigned long long)number,
                error);
    return is_done ? cudaSuccess : cudaErrorLaunchFailure;
}

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
