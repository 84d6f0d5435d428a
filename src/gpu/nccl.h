/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL, which is opened at run time: its library, communicators, and what is enqueued on them.
 *
 * A communicator here is the caller's, borrowed, or our own. The caller's is asked, gathered over,
 * and split; it is never aborted or destroyed. Only our own ones can be closed.
 *
 * Thread: any, one call of a communicator at a time, but for nccl_comm_status and nccl_comm_close,
 * which a watchdog may call at any time. Every call leaves the caller's current device as it was.
 */
#ifndef FFA_GPU_NCCL_H
#define FFA_GPU_NCCL_H

#include "gpu/gpu_stream.h"

/* ---- the library (nccl.c) ---- */

struct nccl;

/*
 * Find and open NCCL 2.18 or newer: `path` and no other, if it is not NULL; else what the process
 * has loaded, then the loader's path and Python wheels. It stays open until the process ends, and
 * every later call with the same outcome gives the same *out.
 *
 * foreign  a communicator that was made by somebody else in the process, or NULL. Its library must
 *          be the one that is opened, so it must have been loaded before, and be the only one or be
 *          named by `path`.
 *
 * Fails with FFA_UNSUPPORTED, which says what was tried; FFA_INVALID: two libraries; FFA_NOMEM.
 */
ffa_status nccl_open(const struct nccl **out, const char *path, const void *foreign,
                     ffa_error *err);
const char *nccl_path(const struct nccl *nccl);

/* ---- communicators (nccl_comm.c) ---- */

enum { NCCL_ID_BYTES = 128 };

struct nccl_comm;

/* How our own communicators are made. */
struct nccl_comm_opts {
    int32_t max_ctas;   /* thread blocks, each on an SM, that one operation takes at most */
    int64_t timeout_ms; /* that making one may take, where NCCL can be interrupted */
};

/* The caller's communicator, ncclComm_t. *out: nccl_comm_free(). FFA_INVALID where it is of another
 * device; FFA_GPU. */
ffa_status nccl_comm_borrow(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, void *foreign, ffa_error *err);
int32_t nccl_comm_rank(const struct nccl_comm *comm);
int32_t nccl_comm_rank_count(const struct nccl_comm *comm);

/* What one rank makes, and all pass to nccl_comm_create. */
ffa_status nccl_id_make(unsigned char id[NCCL_ID_BYTES], const struct nccl *nccl, ffa_error *err);
/* Both collective, and they block; *out: nccl_comm_close(), nccl_comm_free(). The split has the
 * same ranks as `from`. */
ffa_status nccl_comm_create(struct nccl_comm **out, const struct nccl *nccl,
                            struct gpu_device *device, const unsigned char id[NCCL_ID_BYTES],
                            int32_t rank, int32_t rank_count, const struct nccl_comm_opts *opts,
                            ffa_error *err);
ffa_status nccl_comm_split(struct nccl_comm **out, struct nccl_comm *from,
                           const struct nccl_comm_opts *opts, ffa_error *err);

/* A failure of NCCL that came after a call had returned; FFA_OK where it is closed. Does not block,
 * and says FFA_OK while another thread is in a call. */
ffa_status nccl_comm_status(struct nccl_comm *comm, ffa_error *err);

/*
 * End our own communicator, in a thread of its own, as NCCL may wait there: for the device, and for
 * streams that wait for something else. aborts: what is under way on the GPU ends without its data;
 * else it must be over on this rank. No call of the communicator succeeds any more. A second close
 * does nothing, and so does one of a borrowed communicator.
 */
void nccl_comm_close(struct nccl_comm *comm, bool aborts);
/* After the close: waits for its thread, at most so long. false: it is still at it, and the object
 * stays allocated for it. NULL is allowed. */
bool nccl_comm_free(struct nccl_comm *comm, int64_t timeout_ms);

/* ---- what is enqueued ---- */

/* bytes of device memory, > 0, to or from another rank. */
struct nccl_move {
    void *at;
    int64_t bytes;
    int32_t rank;
    bool is_send;
};

/* One group of sends and receives: those of a pair of ranks match in their order. count 0: nothing
 * is done. Enqueues; NCCL blocks only where very many operations are under way. */
ffa_status nccl_exchange(struct nccl_comm *comm, ffa_stream stream, const struct nccl_move *moves,
                         int64_t count, ffa_error *err);
/* all [ranks][bytes], device memory, as mine [bytes]. */
ffa_status nccl_gather(struct nccl_comm *comm, ffa_stream stream, const void *mine, void *all,
                       int64_t bytes, ffa_error *err);
/* Block until the stream has done all that was enqueued, at most so long: FFA_TIMEOUT. */
ffa_status nccl_comm_finish(struct nccl_comm *comm, ffa_stream stream, int64_t timeout_ms,
                            ffa_error *err);

#endif
