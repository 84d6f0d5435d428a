/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that libffa and its tests call, over the emulator.
 *
 * The library is called libcudart.so.13 and is loaded with the process (LD_PRELOAD), so libffa
 * takes it for the process's own CUDA runtime. Device memory is host memory, every call is complete
 * when it returns, and a graph is a list of launches and copies. One stream at a time may be late
 * instead: behind a host function, what is enqueued is kept until somebody waits for it. A copy
 * from pageable memory then has its bytes already, one from pinned memory reads them when it is
 * done, as on a GPU. The environment variables FFA_EMULATOR_SEED and FFA_EMULATOR_SMS choose the
 * schedule and how many blocks run at a time.
 */
#include "machine.h"
#include "words.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { DEFAULT_SMS = 3, WARP = 32, EMULATOR_L2_BYTES = 60 << 20 };

static int64_t setting(const char *name, int64_t otherwise, int64_t most)
{
    const char *text = getenv(name);
    const int64_t value = text ? strtoll(text, NULL, 10) : otherwise;

    return value < 1 ? 1 : value > most ? most : value;
}

static int sm_count(void)
{
    return (int)setting("FFA_EMULATOR_SMS", DEFAULT_SMS, EMULATOR_BLOCKS);
}

static _Thread_local cudaError_t last_error;

static cudaError_t done(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

/* ---- the device ---- */

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* Whether the thread has a context. Only this call gives it one here, so that a thread of which
 * nobody took care is seen at once. */
static _Thread_local bool has_context;

EXPORT cudaError_t cudaSetDevice(int device)
{
    has_context = has_context || device == 0;
    return done(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (device != 0)
        return done(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = sm_count();
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = EMULATOR_SHARED_BYTES;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = EMULATOR_L2_BYTES;
        return cudaSuccess;
    default:
        return done(cudaErrorInvalidValue);
    }
}

/* The version whose headers the library was compiled with. */
EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last_error;

    last_error = cudaSuccess;
    return code;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorInvalidKernelImage:
        return "device kernel image is invalid";
    case cudaErrorSymbolNotFound:
        return "named symbol not found";
    default:
        return "an error of the emulator";
    }
}

/* ---- memory ---- */

EXPORT cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    enum { ALIGNMENT = 256 };

    if (posix_memalign(memory, ALIGNMENT, bytes ? bytes : 1) != 0) {
        *memory = NULL;
        return done(cudaErrorMemoryAllocation);
    }
    memset(*memory, 0xff, bytes); /* memory nobody wrote reads as NaN */
    return cudaSuccess;
}

EXPORT cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return cudaMalloc(memory, bytes);
}

EXPORT cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    (void)stream;
    return cudaFree(memory);
}

/* ---- kernels ---- */

/* A library with its only kernel. Serves as cudaLibrary_t and cudaKernel_t. */
struct kernel {
    void *library;
    int file; /* kept open while loaded: the loader distinguishes libraries by this number */
    void (*entry)(const void *args);
    size_t args_bytes;
    int shared_bytes;
    char name[64];
};

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
        return done(cudaErrorMemoryAllocation);
    if (!load(kernel, image)) {
        unload(kernel);
        return done(cudaErrorInvalidKernelImage);
    }
    *out = (cudaLibrary_t)kernel;
    return cudaSuccess;
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
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
        return done(cudaErrorSymbolNotFound);
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
        return done(cudaErrorInvalidValue);
    kernel->shared_bytes = value;
    return cudaSuccess;
}

struct shape {
    unsigned blocks, threads, cluster;
    size_t shared_bytes;
};

static cudaError_t launch(const struct kernel *kernel, struct shape shape, const void *args)
{
    static uint64_t launches;
    const uint64_t number = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    char error[EMULATOR_ERROR_TEXT];
    bool is_done;

    if (shape.shared_bytes > (size_t)kernel->shared_bytes)
        return done(cudaErrorInvalidValue);
    is_done = emulator_run(
        &(struct emulator_launch){
            .entry = kernel->entry,
            .args = args,
            .blocks = (int)shape.blocks,
            .threads = (int)shape.threads,
            .cluster = (int)shape.cluster,
            .resident = sm_count(),
            .shared_bytes = (int)shape.shared_bytes,
            .seed = (uint64_t)setting("FFA_EMULATOR_SEED", 1, INT32_MAX) << 32 | number,
        },
        error);
    if (!is_done)
        fprintf(stderr, "emulator: %s, launch %llu: %s\n", kernel->name,
                (unsigned long long)number, error);
    return done(is_done ? cudaSuccess : cudaErrorLaunchFailure);
}

/* ---- streams and graphs ---- */

struct node {
    struct node *next;
    const struct kernel *kernel; /* NULL: one of the others */
    struct shape shape;
    void (*host)(void *data); /* a host function and its argument, `to` */
    struct event *event;      /* an event that passes */
    void *to;
    const void *from; /* NULL: a fill */
    int byte;
    size_t bytes;
    _Alignas(64) char args[]; /* of a kernel, or what a copy from pageable memory has read */
};

struct graph {
    struct node *first, **end;
};

struct event {
    bool is_pending; /* recorded behind work that is kept */
};

/* The stream that is capturing, and the graph it fills; NULL: none is. */
static cudaStream_t capturing;
static struct graph *capture;

/* The stream that is late, and what it has yet to do; NULL: none is. */
static cudaStream_t late;
static struct graph *kept_work;

static cudaError_t run_node(const struct node *node, const void *args)
{
    if (node->kernel)
        return launch(node->kernel, node->shape, args);
    if (node->host)
        node->host(node->to);
    else if (node->event)
        node->event->is_pending = false;
    else if (node->from)
        memcpy(node->to, node->from, node->bytes);
    else
        memset(node->to, node->byte, node->bytes);
    return cudaSuccess;
}

static struct graph *graph_create(void)
{
    struct graph *graph = calloc(1, sizeof *graph);

    if (graph)
        graph->end = &graph->first;
    return graph;
}

static cudaError_t graph_run(const struct graph *graph)
{
    cudaError_t code = cudaSuccess;

    for (const struct node *node = graph->first; node && code == cudaSuccess; node = node->next)
        code = run_node(node, node->args);
    return code;
}

static void graph_destroy(struct graph *graph)
{
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    free(graph);
}

/* args: of a kernel, or the bytes of a copy from pageable memory. */
static cudaError_t append(struct graph *graph, const struct node *node, const void *args,
                          size_t args_bytes)
{
    struct node *kept = aligned_alloc(64, (sizeof *kept + args_bytes + 63) / 64 * 64);

    if (!kept)
        return done(cudaErrorMemoryAllocation);
    memcpy(kept, node, sizeof *node);
    if (args && args_bytes)
        memcpy(kept->args, args, args_bytes);
    if (!kept->kernel && args_bytes)
        kept->from = kept->args;
    kept->next = NULL;
    *graph->end = kept;
    graph->end = &kept->next;
    return cudaSuccess;
}

/* Do what the late stream has yet to do; it is a stream like the others then. */
static cudaError_t catch_up(void)
{
    struct graph *work = kept_work;
    cudaError_t code;

    if (!work)
        return cudaSuccess;
    kept_work = NULL;
    code = graph_run(work);
    graph_destroy(work);
    return code;
}

static bool is_late(cudaStream_t stream)
{
    return kept_work && stream == late;
}

/* Run a node now, or append it to the graph that is being captured or to the late stream's work. */
static cudaError_t enqueue(cudaStream_t stream, const struct node *node, const void *args)
{
    const size_t args_bytes = node->kernel ? node->kernel->args_bytes : 0;

    if (capture && stream == capturing)
        return append(capture, node, args, args_bytes);
    return is_late(stream) ? append(kept_work, node, args, args_bytes) : run_node(node, args);
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
    const struct node node = { .kernel = function,
                               .shape = { .blocks = config->gridDim.x,
                                          .threads = config->blockDim.x,
                                          .cluster = cluster_of(config),
                                          .shared_bytes = config->dynamicSmemBytes } };

    if (node.shape.cluster < 1 || node.shape.cluster > EMULATOR_CLUSTER ||
        node.shape.blocks % node.shape.cluster) {
        fprintf(stderr, "emulator: %s: no launch of %u blocks in clusters of %u\n",
                node.kernel->name, node.shape.blocks, node.shape.cluster);
        return done(cudaErrorInvalidValue);
    }
    return enqueue(config->stream, &node, args[0]);
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    return catch_up();
}

/* This is a call of the legacy default stream, which waits for others; a late stream is taken to be
 * one that it does not wait for. */
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

/* ---- pinned memory ---- */

enum { PINNED_MAX = 64 };
static struct {
    char *memory;
    size_t bytes;
} pinned[PINNED_MAX];

EXPORT cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    for (int i = 0; i < PINNED_MAX; i++)
        if (!pinned[i].memory) {
            const cudaError_t code = cudaMalloc(memory, bytes);

            pinned[i].memory = *memory;
            pinned[i].bytes = bytes;
            return code;
        }
    return done(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaFreeHost(void *memory)
{
    for (int i = 0; memory && i < PINNED_MAX; i++)
        if (pinned[i].memory == memory) {
            pinned[i].memory = NULL;
            return cudaFree(memory);
        }
    return done(cudaErrorInvalidValue);
}

static bool is_pinned(const char *memory)
{
    for (int i = 0; i < PINNED_MAX; i++)
        if (pinned[i].memory && memory >= pinned[i].memory &&
            memory < pinned[i].memory + pinned[i].bytes)
            return true;
    return false;
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const struct node node = { .to = to, .from = from, .bytes = bytes };

    if (kind == cudaMemcpyHostToDevice && is_late(stream) && !is_pinned(from))
        return append(kept_work, &node, from, bytes);
    return enqueue(stream, &node, NULL);
}

EXPORT cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    return enqueue(stream, &(struct node){ .to = to, .byte = byte, .bytes = bytes }, NULL);
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = malloc(1); /* an address of its own */
    return done(*stream ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t code = is_late(stream) ? catch_up() : cudaSuccess;

    free(stream);
    return code;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return is_late(stream) ? catch_up() : cudaSuccess;
}

/* The stream is late from here on. The function is called when somebody waits for the stream. */
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    if (!kept_work) {
        kept_work = graph_create();
        late = stream;
    }
    if (!kept_work)
        return done(cudaErrorMemoryAllocation);
    return enqueue(stream, &(struct node){ .host = function, .to = data }, NULL);
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
    const enum cudaStreamCaptureMode before = now;

    now = *mode;
    *mode = before;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = capture && stream == capturing ? cudaStreamCaptureStatusActive
                                             : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (capture)
        return done(cudaErrorStreamCaptureUnsupported);
    capture = graph_create();
    if (!capture)
        return done(cudaErrorMemoryAllocation);
    capturing = stream;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (!capture || stream != capturing)
        return done(cudaErrorStreamCaptureInvalidated);
    *graph = (cudaGraph_t)capture;
    capture = NULL;
    return cudaSuccess;
}

/* The executable graph is the graph, which must outlive it. */
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long flags)
{
    (void)flags;
    *exec = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const struct graph *graph = (const struct graph *)exec;
    cudaError_t code = cudaSuccess;

    for (const struct node *node = graph->first; node && code == cudaSuccess; node = node->next)
        code = enqueue(stream, node, node->args);
    return code;
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    (void)exec;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    graph_destroy((struct graph *)handle);
    return cudaSuccess;
}

/* ---- events: no time passes here, but for a late stream ---- */

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (cudaEvent_t)calloc(1, sizeof(struct event));
    return done(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t code = ((struct event *)event)->is_pending ? catch_up() : cudaSuccess;

    free(event);
    return code;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
    struct event *event = (struct event *)handle;

    event->is_pending = is_late(stream);
    return enqueue(stream, &(struct node){ .event = event }, NULL);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return done(((const struct event *)event)->is_pending ? cudaErrorNotReady : cudaSuccess);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return ((const struct event *)event)->is_pending ? catch_up() : cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    (void)from, (void)to;
    *ms = 0.0f;
    return cudaSuccess;
}

/* ---- tensor maps, with the driver's rules ---- */

static CUresult encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *data,
                       const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill)
{
    const cuuint64_t dim_limit = 1ull << 32, stride_limit = 1ull << 40;
    struct emulator_tensor tensor = { .magic = EMULATOR_TENSOR_MAGIC, .data = data };

    (void)promotion;
    if (!has_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    _Static_assert(sizeof tensor <= sizeof *out, "what a tensor map holds");
    if ((type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16) ||
        rank != 3 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        (uintptr_t)data % 16)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 3; i++) {
        if (dims[i] < 1 || dims[i] > dim_limit || box[i] < 1 || box[i] > 256 || steps[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        tensor.dims[i] = dims[i];
        tensor.box[i] = box[i];
    }
    for (int i = 0; i < 2; i++) {
        if (strides[i] % 16 || strides[i] >= stride_limit)
            return CUDA_ERROR_INVALID_VALUE;
        tensor.strides[i] = strides[i];
    }
    if (box[0] * 2 > 128 || box[0] * 2 % 16)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    memcpy(out, &tensor, sizeof tensor);
    return CUDA_SUCCESS;
}

/* ---- the driver's functions ---- */

static CUresult context_get_device(CUdevice *device)
{
    *device = 0;
    return has_context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult context_push(CUcontext context)
{
    (void)context;
    has_context = true;
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context)
{
    *context = NULL;
    has_context = false;
    return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
    static char any;

    (void)device;
    *context = (CUcontext)(void *)&any;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    return ((const struct event *)event)->is_pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* ---- one device only ---- */

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other)
{
    (void)device, (void)other;
    *can = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags)
{
    (void)other, (void)flags;
    return done(cudaErrorInvalidDevice);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    (void)handle, (void)memory;
    return done(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
    (void)memory, (void)handle, (void)flags;
    return done(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    (void)memory;
    return done(cudaErrorNotSupported);
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_get_name(char *name, int bytes, CUdevice device)
{
    (void)snprintf(name, (size_t)bytes, "emulator of sm_90");
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        void (*entry)(void);
    } rows[] = {
        { "cuTensorMapEncodeTiled", (void (*)(void))encode },
        { "cuCtxGetDevice", (void (*)(void))context_get_device },
        { "cuCtxPopCurrent", (void (*)(void))context_pop },
        { "cuCtxPushCurrent", (void (*)(void))context_push },
        { "cuDevicePrimaryCtxRetain", (void (*)(void))context_retain },
        { "cuEventQuery", (void (*)(void))event_query },
        { "cuStreamWaitValue64", (void (*)(void))words_wait },
        { "cuStreamWriteValue64", (void (*)(void))words_write },
        { "cuStreamBatchMemOp", (void (*)(void))words_batch },
        { "cuMemcpyBatchAsync", (void (*)(void))words_copy_batch },
        { "cuDeviceGetUuid", (void (*)(void))words_uuid },
        { "cuDeviceGet", (void (*)(void))device_get },
        { "cuDeviceGetName", (void (*)(void))device_get_name },
    };

    (void)version, (void)flags;
    *found = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(symbol, rows[i].name) == 0) {
            memcpy(function, &rows[i].entry, sizeof rows[i].entry);
            *found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}
