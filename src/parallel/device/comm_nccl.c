/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_comm_create_nccl: a group of the ranks of the caller's communicator of NCCL, which serves as
 * the bootstrap. Invariant: nothing is done to that communicator but to gather over it, while ranks
 * are in a collective function, and to split it.
 */
#include "parallel/device/comm_device.h"

#include "gpu/gpu_poll.h"
#include "service/context.h"

enum { BOOTSTRAP_TIMEOUT_MS = 60000 };

struct comm_bootstrap {
    const struct nccl *nccl;
    struct nccl_comm *comm;
    struct gpu_device *gpu;
    struct gpu_stream *stream;
    unsigned char *memory; /* [bytes], of the device */
    int64_t bytes, timeout_ms;
};

const struct nccl *comm_bootstrap_nccl(const struct comm_bootstrap *bootstrap)
{
    return bootstrap->nccl;
}

struct nccl_comm *comm_bootstrap_comm(const struct comm_bootstrap *bootstrap)
{
    return bootstrap->comm;
}

void comm_bootstrap_finish(struct comm_bootstrap *bootstrap, bool is_idle)
{
    if (!bootstrap)
        return;
    (void)nccl_comm_free(bootstrap->comm, 0);
    gpu_stream_destroy(bootstrap->stream);
    if (is_idle)
        gpu_free(bootstrap->gpu, bootstrap->memory);
    mem_free(bootstrap);
}

/* ---- gathering ---- */

static ffa_status grow(struct comm_bootstrap *b, int64_t bytes, ffa_error *err)
{
    void *memory = NULL;
    ffa_status rc = FFA_OK;

    if (bytes <= b->bytes)
        return FFA_OK;
    gpu_free(b->gpu, b->memory);
    b->memory = NULL;
    b->bytes = 0;
    FFA_TRY(gpu_alloc(b->gpu, &memory, bytes, err));
    b->memory = memory;
    b->bytes = bytes;
out:
    return rc;
}

/* Device memory: what all gave, and behind it what this rank gives. */
static ffa_status gather_over(struct comm_bootstrap *b, const void *mine, void *all, int64_t bytes,
                              ffa_error *err)
{
    const ffa_stream stream = gpu_stream_handle(b->stream);
    const int64_t sum = nccl_comm_rank_count(b->comm) * bytes;
    const int64_t at = (sum + 255) / 256 * 256;
    ffa_status rc;

    FFA_TRY(grow(b, at + bytes, err));
    FFA_TRY(gpu_send(b->gpu, stream, b->memory + at, mine, bytes, err));
    FFA_TRY(nccl_gather(b->comm, stream, b->memory + at, b->memory, bytes, err));
    FFA_TRY(nccl_comm_finish(b->comm, stream, b->timeout_ms, err));
    rc = gpu_read(b->gpu, stream, all, b->memory, sum, err);
out:
    return rc;
}

/* An ffa_comm_allgather. */
static int gather(void *user, const void *mine, void *all, size_t bytes)
{
    return gather_over(user, mine, all, (int64_t)bytes, NULL) != FFA_OK;
}

/* ---- creation ---- */

static ffa_status make_bootstrap(struct comm_bootstrap **out, const struct ffa_context *context,
                                 const ffa_nccl_opts *opts, ffa_error *err)
{
    struct comm_bootstrap *b = mem_array(1, sizeof *b);
    ffa_status rc;

    *out = b;
    if (!b)
        return error_nomem(err, "a communicator");
    b->gpu = context->gpu;
    b->timeout_ms = opts->timeout_ms ? opts->timeout_ms : BOOTSTRAP_TIMEOUT_MS;
    FFA_TRY(nccl_open(&b->nccl, opts->nccl_path, opts->comm, err));
    FFA_TRY(nccl_comm_borrow(&b->comm, b->nccl, b->gpu, opts->comm, err));
    rc = gpu_stream_create(&b->stream, b->gpu, 0, err);
out:
    return rc;
}

static ffa_status check(const ffa_context *context, const ffa_nccl_opts *opts, ffa_error *err)
{
    if (!context)
        return error_fail(err, FFA_INVALID, 0, "context is NULL");
    if (!opts->comm)
        return error_fail(err, FFA_INVALID, 0, "comm is NULL");
    if (!context->gpu)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "the context has no GPU: ranks on the CPU join by ffa_loopback_create");
    return FFA_OK;
}

ffa_status ffa_comm_create_nccl(ffa_comm **out, ffa_context *context, const ffa_nccl_opts *opts_in,
                                ffa_error *err)
{
    struct comm_bootstrap *bootstrap = NULL;
    ffa_peer_opts peer = FFA_PEER_OPTS_INIT;
    ffa_nccl_opts opts;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_comm_create_nccl: out is NULL");
    *out = NULL;
    FFA_TRY(opts_import(&opts, sizeof opts, opts_in, err));
    FFA_TRY(check(context, &opts, err));
    FFA_TRY(make_bootstrap(&bootstrap, context, &opts, err));
    peer.rank = nccl_comm_rank(bootstrap->comm);
    peer.rank_count = nccl_comm_rank_count(bootstrap->comm);
    peer.allgather = gather;
    peer.user = bootstrap;
    peer.key_bytes = opts.key_bytes;
    peer.sum_bytes = opts.sum_bytes;
    peer.timeout_ms = opts.timeout_ms;
    peer.transport = opts.transport;
    peer.max_ctas = opts.max_ctas;
    peer.ranks_per_node = opts.ranks_per_node;
    peer.nccl_path = opts.nccl_path;
    rc = comm_device_create(out, context, &peer, bootstrap, err);
    bootstrap = NULL;
out:
    comm_bootstrap_finish(bootstrap, true);
    return rc;
}
