/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's functions between devices, with the types of cuStreamWaitValue64,
 * cuStreamWriteValue64, cuStreamBatchMemOp, cuMemcpyBatchAsync (of CUDA 12.8) and cuDeviceGetUuid.
 * Thread: any.
 */
#ifndef FFA_EMULATOR_WORDS_H
#define FFA_EMULATOR_WORDS_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

CUresult words_wait(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
CUresult words_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
CUresult words_batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops,
                     unsigned flags);
CUresult words_copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                          size_t *failed, CUstream stream);
CUresult words_uuid(CUuuid *uuid, CUdevice device);

#endif
