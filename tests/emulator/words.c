/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's functions between devices: words that streams wait for and write, batches of copies,
 * the identity of the device. All of it is work of the stream; arguments are checked at once. A
 * wait that nothing ends fails after FFA_EMULATOR_TIMEOUT_MS (60000).
 */
#include "words.h"

#include "stream_calls.h"

#include <string.h>

/* The driver's codes have the runtime's numbers. */
static CUresult call(CUstream stream, const struct work *work)
{
    return (CUresult)stream_call(stream, work);
}

static bool is_word(CUdeviceptr at)
{
    return at != 0 && at % 8 == 0;
}

CUresult words_wait(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    if (!is_word(at) || flags != CU_STREAM_WAIT_VALUE_GEQ)
        return CUDA_ERROR_INVALID_VALUE;
    return call(stream, &(struct work){
                            .kind = WORK_WORD_WAIT, .to = (void *)(uintptr_t)at, .value = value });
}

CUresult words_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    if (!is_word(at) || flags != CU_STREAM_WRITE_VALUE_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    return call(stream, &(struct work){
                            .kind = WORK_WORD_WRITE, .to = (void *)(uintptr_t)at, .value = value });
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
    CUresult code = CUDA_SUCCESS;

    *failed = SIZE_MAX;
    if (!stream || count == 0 || attribute_count != 1 || indices[0] != 0 ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++) {
        const struct work copy = { .kind = WORK_COPY,
                                   .to = (void *)(uintptr_t)to[i],
                                   .from = (const void *)(uintptr_t)from[i],
                                   .bytes = bytes[i] };

        code = to[i] && from[i] && bytes[i] ? call(stream, &copy) : CUDA_ERROR_INVALID_VALUE;
        if (code != CUDA_SUCCESS)
            *failed = i;
    }
    return code;
}

CUresult words_uuid(CUuuid *uuid, CUdevice device)
{
    static const char bytes[16] = "emulator of a GP";

    if (device < 0 || device >= runtime_device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid, bytes, sizeof bytes);
    uuid->bytes[15] = (char)(bytes[15] + device);
    return CUDA_SUCCESS;
}
