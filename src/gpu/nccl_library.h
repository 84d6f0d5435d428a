/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's functions, as NCCL 2.18 and all later releases of its second version have them. These are
 * our own statements of a public interface: no header of NCCL is needed to build.
 */
#ifndef FFA_GPU_NCCL_LIBRARY_H
#define FFA_GPU_NCCL_LIBRARY_H

#include "gpu/gpu_internal.h"
#include "gpu/nccl.h"

enum nccl_result { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0, NCCL_UNDEFINED = INT32_MIN };

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* The fields of 2.18: newer libraries give the others their defaults, by `version`. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_cluster_size;
    int min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

typedef void *nccl_handle;

#define NCCL_FUNCTIONS(X)                                                                          \
    X(int, ncclGetVersion, (int *))                                                                \
    X(int, ncclGetUniqueId, (struct nccl_id *))                                                    \
    X(int, ncclCommInitRankConfig,                                                                 \
      (nccl_handle *, int, struct nccl_id, int, struct nccl_config *))                             \
    X(int, ncclCommSplit, (nccl_handle, int, int, nccl_handle *, struct nccl_config *))            \
    X(int, ncclCommDestroy, (nccl_handle))                                                         \
    X(int, ncclCommAbort, (nccl_handle))                                                           \
    X(int, ncclCommGetAsyncError, (nccl_handle, int *))                                            \
    X(int, ncclCommCount, (nccl_handle, int *))                                                    \
    X(int, ncclCommCuDevice, (nccl_handle, int *))                                                 \
    X(int, ncclCommUserRank, (nccl_handle, int *))                                                 \
    X(const char *, ncclGetErrorString, (int))                                                     \
    X(const char *, ncclGetLastError, (nccl_handle))                                               \
    X(int, ncclGroupStart, (void))                                                                 \
    X(int, ncclGroupEnd, (void))                                                                   \
    X(int, ncclSend, (const void *, size_t, int, int, nccl_handle, cudaStream_t))                  \
    X(int, ncclRecv, (void *, size_t, int, int, nccl_handle, cudaStream_t))                        \
    X(int, ncclAllGather, (const void *, void *, size_t, int, nccl_handle, cudaStream_t))

struct nccl {
    struct nccl *next;
#define X(type, name, arguments) type(*name) arguments;
    NCCL_FUNCTIONS(X)
#undef X
    char path[512];
    int version;
};

#endif
