/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's functions between devices: words that streams wait for and write, batches of copies,
 * the identity of the device. Like all calls of this runtime they are done when they return: a wait
 * holds up the calling host thread, so whoever writes the word must be another host thread or
 * process. A wait that nothing ends fails after FFA_EMULATOR_TIMEOUT_MS (60000).
 */
#include "words.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

CUresult words_wait(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    const struct timespec pause = { .tv_nsec = 50000 };
    const char *text = getenv("FFA_EMULATOR_TIMEOUT_MS");
    const int64_t limit = text && atoll(text) > 0 ? atoll(text) : 60000;
    const uint64_t *word = (const uint64_t *)(uintptr_t)at;
    const int64_t from = now_ms();

    (void)stream;
    if (at == 0 || at % 8 || flags != CU_STREAM_WAIT_VALUE_GEQ)
        return CUDA_ERROR_INVALID_VALUE;
    while ((int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
        if (now_ms() - from > limit)
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        (void)nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

CUresult words_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    (void)stream;
    if (at == 0 || at % 8 || flags != CU_STREAM_WRITE_VALUE_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_store_n((uint64_t *)(uintptr_t)at, value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult words_batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
    CUresult code = flags || count == 0 || count > 256 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

    for (unsigned i = 0; i < count && code == CUDA_SUCCESS; i++)
        if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            code = words_wait(stream, ops[i].waitValue.address, ops[i].waitValue.value64,
                              ops[i].waitValue.flags);
        else if (ops[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            code = words_write(stream, ops[i].writeValue.address, ops[i].writeValue.value64,
                               ops[i].writeValue.flags);
        else
            code = CUDA_ERROR_INVALID_VALUE;
    return code;
}

CUresult words_copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                          size_t *failed, CUstream stream)
{
    *failed = SIZE_MAX;
    if (!stream || count == 0 || attribute_count != 1 || indices[0] != 0 ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!to[i] || !from[i] || !bytes[i]) {
            *failed = i;
            return CUDA_ERROR_INVALID_VALUE;
        }
        memcpy((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], bytes[i]);
    }
    return CUDA_SUCCESS;
}

CUresult words_uuid(CUuuid *uuid, CUdevice device)
{
    static const char bytes[16] = "emulator of a GP";

    memcpy(uuid, bytes, sizeof bytes);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
