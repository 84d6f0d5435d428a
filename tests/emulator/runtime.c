/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA runtime that libffa and its tests call, over the emulator: devices,
 * memory, tensor maps, and the table of the driver's functions.
 *
 * The library is called libcudart.so.13 and is loaded with the process (LD_PRELOAD), so libffa
 * takes it for the process's own CUDA runtime. Device memory is host memory. A device is a number:
 * its streams, and which thread has it as its current one.
 */
#include "runtime.h"

#include "machine.h"
#include "memory.h"
#include "stream_calls.h"
#include "words.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_SMS = 3, TIMEOUT_MS = 60000, EMULATOR_L2_BYTES = 60 << 20 };
#define EMULATOR_MEMORY_BYTES ((size_t)80 << 30)

int64_t runtime_setting(const char *name, int64_t otherwise, int64_t most)
{
    const char *text = getenv(name);
    char *end = NULL;
    int64_t value;

    if (!text)
        return otherwise;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (*text && !*end && errno == 0 && value >= 1 && value <= most)
        return value;
    fprintf(stderr, "emulator: %s is '%s', not a number in [1, %lld]\n", name, text,
            (long long)most);
    _exit(1);
}

int runtime_sm_count(void)
{
    return (int)runtime_setting("FFA_EMULATOR_SMS", DEFAULT_SMS, EMULATOR_BLOCKS);
}

int runtime_device_count(void)
{
    return (int)runtime_setting("FFA_EMULATOR_DEVICES", 1, EMULATOR_DEVICES);
}

int64_t runtime_timeout_ms(void)
{
    return runtime_setting("FFA_EMULATOR_TIMEOUT_MS", TIMEOUT_MS, INT32_MAX);
}

int64_t runtime_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static atomic_int_fast64_t live[LIVE_KINDS];

void runtime_live_add(enum live kind, int64_t count)
{
    atomic_fetch_add(&live[kind], count);
}

EXPORT void emulator_live(int64_t counts[LIVE_KINDS])
{
    for (int i = 0; i < LIVE_KINDS; i++)
        counts[i] = atomic_load(&live[i]);
}

static _Thread_local cudaError_t last_error;

cudaError_t runtime_done(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

/* ---- the device ---- */

/* The devices whose contexts the thread has pushed. A thread has none until a call gives it one,
 * cudaSetDevice or the driver's, so that a thread of which nobody took care is seen at once. */
enum { CONTEXTS = 16 };
static _Thread_local int pushed[CONTEXTS], pushed_count;

static bool has_context(void)
{
    return pushed_count > 0;
}

int runtime_device(void)
{
    return has_context() ? pushed[pushed_count - 1] : 0;
}

static bool is_device(int device)
{
    return device >= 0 && device < runtime_device_count();
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    *count = runtime_device_count();
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = runtime_device();
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    if (!is_device(device))
        return runtime_done(cudaErrorInvalidDevice);
    pushed_count = has_context() ? pushed_count : 1;
    pushed[pushed_count - 1] = device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (!is_device(device))
        return runtime_done(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = runtime_sm_count();
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = EMULATOR_SHARED_BYTES;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = EMULATOR_L2_BYTES;
        return cudaSuccess;
    default:
        return runtime_done(cudaErrorInvalidValue);
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
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchTimeout:
        return "a wait that nothing ended";
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
    *memory = memory_allocate(bytes);
    if (!*memory)
        return runtime_done(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes); /* memory nobody wrote reads as NaN */
    return cudaSuccess;
}

/* Waits for all devices, as memory may be in use on any of them. */
EXPORT cudaError_t cudaFree(void *memory)
{
    cudaError_t code;

    if (!memory)
        return cudaSuccess;
    code = streams_finish(-1);
    if (!memory_free(memory))
        code = cudaErrorInvalidValue;
    return runtime_done(code);
}

/* Of all devices together. */
EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *bytes)
{
    int64_t counts[LIVE_KINDS];

    emulator_live(counts);
    *bytes = EMULATOR_MEMORY_BYTES;
    *free_bytes = *bytes - (size_t)counts[LIVE_BYTES];
    return cudaSuccess;
}

EXPORT cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    return cudaMalloc(memory, bytes);
}

EXPORT cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    if (!memory_is_own(memory))
        return runtime_done(cudaErrorInvalidValue);
    return stream_call(stream, &(struct work){ .kind = WORK_FREE, .to = memory });
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
    if (!has_context())
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
    *device = runtime_device();
    return has_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* A device's context is its place here. */
static char contexts[EMULATOR_DEVICES];

static CUresult context_get_current(CUcontext *context)
{
    *context = has_context() ? (CUcontext)(void *)&contexts[runtime_device()] : NULL;
    return CUDA_SUCCESS;
}

static CUresult context_push(CUcontext context)
{
    const char *place = (const char *)context;

    if (pushed_count == CONTEXTS || place < contexts || !is_device((int)(place - contexts)))
        return CUDA_ERROR_INVALID_CONTEXT;
    pushed[pushed_count++] = (int)(place - contexts);
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context)
{
    if (!has_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = (CUcontext)(void *)&contexts[pushed[--pushed_count]];
    return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = (CUcontext)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    const cudaError_t failure = streams_failure();

    if (failure != cudaSuccess)
        return (CUresult)failure;
    return event_is_passed((const struct event *)event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* ---- several devices ---- */

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other)
{
    const char *peers = getenv("FFA_EMULATOR_PEERS");
    const int width = peers ? atoi(peers) : EMULATOR_DEVICES; /* devices that reach each other */

    *can = device != other && width > 0 && device / width == other / width;
    return runtime_done(is_device(device) && is_device(other) ? cudaSuccess
                                                              : cudaErrorInvalidDevice);
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags)
{
    static bool is_enabled[EMULATOR_DEVICES][EMULATOR_DEVICES];
    const int device = runtime_device();

    if (!is_device(other) || other == device || flags)
        return runtime_done(cudaErrorInvalidDevice);
    return runtime_done(__atomic_exchange_n(&is_enabled[device][other], true, __ATOMIC_RELAXED)
                            ? cudaErrorPeerAccessAlreadyEnabled
                            : cudaSuccess);
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_get_name(char *name, int bytes, CUdevice device)
{
    (void)snprintf(name, (size_t)bytes, "emulator of sm_90");
    return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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
        { "cuCtxGetCurrent", (void (*)(void))context_get_current },
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
