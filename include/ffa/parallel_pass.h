/* SPDX-License-Identifier: Apache-2.0
 *
 * Context-parallel passes: one rank's forward and backward pass by its plan (parallel_plan.h), over
 * a communicator (comm.h), on GPUs or in host memory.
 *
 * What moves is what the plan says: keys and values, or queries, whose (out, lse) pairs and dq come
 * back.
 *
 * (Stages of group casts behind compute: MagiAttention. First and last writes, credits and the
 * order of the backward pass: ours.)
 */
#ifndef FFA_PARALLEL_PASS_H
#define FFA_PARALLEL_PASS_H

#include <ffa/attention.h>
#include <ffa/comm.h>
#include <ffa/parallel_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Compare the plan's digest on all ranks, and that of the cost table of each rank's device, as what
 * kernels choose must be the same; every rank calls it, once a mask. Fails on every rank with
 * FFA_INVALID, naming two ranks that differ and both digests; the group stays whole. FFA_INVALID
 * for a plan of another rank or group size, FFA_NOMEM: these break the group; or as a broken group
 * does. Blocks: until all ranks have called.
 */
FFA_API ffa_status ffa_parallel_plan_agree(const ffa_parallel_plan *plan, ffa_comm *comm,
                                           ffa_error *err);

/* ---- arguments ---- */

/* What one pass over GPUs did and when: see below. */
typedef struct ffa_parallel_trace ffa_parallel_trace;

/* Tensors are the rank's own rows: its chunks, ascending, packed (parallel_rows.h); shapes, strides
 * and defaults are those of attention.h. They, and sink, max_logits and dsink, are in host memory,
 * or, of passes on GPUs, in memory of the communicator's device. data may be NULL where the rank
 * has no rows. */
typedef struct ffa_parallel_args {
    uint32_t struct_size;
    int32_t heads_q;      /* a multiple of heads_kv; both up to 1024 */
    int32_t heads_kv;     /* the mask's number of lists, if that is not 1 */
    int32_t head_dim;     /* 1 to 1024 */
    int32_t dtype;        /* ffa_dtype of q, k, v, out and of dout, dq, dk, dv */
    int32_t sum_dtype;    /* FFA_FP32 or FFA_FP64: what is summed in, of lse, dlse, sinks, dsink
                           * and max_logits, and, unless wire_dtype says otherwise, of gradients on
                           * the wire; 0: FFA_FP64 for FFA_FP64 tensors, else FFA_FP32 */
    double softmax_scale; /* 0: 1 / sqrt(head_dim) */
    double softcap;       /* 0: none */
    ffa_tensor q, k, v;
    ffa_tensor out, lse; /* written forward, read backward; lse is of sum_dtype */
    const void *sink;    /* [sink_count][heads_q], of sum_dtype, the same on all ranks */
    int32_t sink_count;  /* 0 to FFA_SINKS_MAX */
    int32_t threads;     /* that compute, 1 to 1024; 0: 1; on GPUs of no effect */
    /* Forward, [heads_q], of sum_dtype, NULL on all ranks or on none: the largest score of each
     * head over all ranks' cells, softcap applied, sinks left out; -inf where there is none. */
    void *max_logits;
    ffa_tensor dout;       /* backward: read */
    ffa_tensor dq, dk, dv; /* backward: written */
    void *dsink; /* backward, [sink_count][heads_q], of sum_dtype, NULL on all ranks or on none:
                  * summed over all ranks */
    /* Backward: the gradient of the loss by lse, as in attention.h, of the rank's rows; read, of
     * sum_dtype. data NULL: none; other ranks may have one. */
    ffa_tensor dlse;
    int32_t head_dim_v; /* of v, out, dout and dv, 1 to 1024; 0: head_dim */
    /* On GPUs, as in attention.h: SMs left free for others. Ranks that share a device (several on
     * one GPU, in tests) must leave each other room: a kernel that waits for keys on all SMs would
     * keep out the kernel of the rank that has them. */
    int32_t sm_margin;
    /* On GPUs: of at least the bytes that ffa_parallel_pass_info says, 256-byte aligned; it may
     * hold anything. No other call in flight uses it. */
    void *workspace;
    int64_t workspace_bytes; /* that are there */
    /* On GPUs, NULL: none: receives what the pass does and when, in place of what it had. Of the
     * communicator's device; no other call in flight uses it. Passes on the CPU refuse one. */
    ffa_parallel_trace *trace;
    /* On GPUs, backward, the same on all ranks: what the gradients that one rank sums for another
     * are rounded to, once, before they travel: 0: sum_dtype, or dtype, for half the bytes. They
     * are added in fp32, in the same order, to the owner's own, which are not rounded. An element
     * of dk or dv, or of dq where queries move, is then off by at most u times the sum of the
     * absolute values of the other ranks' parts of it (of replicated keys, of all parts): u is 2^-8
     * for bf16, 2^-11 for fp16; parts beyond the range of fp16 become infinite. Passes on the CPU
     * take 0 or sum_dtype. */
    int32_t wire_dtype;
    int32_t pad_;
    /* On GPUs, NULL on all ranks or on none: the keys (k and v) that the rank receives are copied
     * here behind a forward pass, and taken from here by the backward pass of the same k and v,
     * which then brings none: half as much travels, for kept_bytes of ffa_parallel_pass_info a
     * layer. Device memory, 16-byte aligned, of the caller, untouched between the two calls. Not of
     * plans in rounds or that move queries; passes on the CPU refuse it. */
    void *kept_keys;
    int64_t kept_bytes; /* that are there */
} ffa_parallel_args;
#define FFA_PARALLEL_ARGS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_args), .q = FFA_TENSOR_INIT(NULL),            \
        .k = FFA_TENSOR_INIT(NULL), .v = FFA_TENSOR_INIT(NULL), .out = FFA_TENSOR_INIT(NULL),      \
        .lse = FFA_TENSOR_INIT(NULL), .dout = FFA_TENSOR_INIT(NULL), .dq = FFA_TENSOR_INIT(NULL),  \
        .dk = FFA_TENSOR_INIT(NULL), .dv = FFA_TENSOR_INIT(NULL), .dlse = FFA_TENSOR_INIT(NULL)    \
    }
FFA_API void ffa_parallel_args_init(ffa_parallel_args *args, size_t bytes);

/* ---- passes on GPUs ---- */

/*
 * A rank's plan, made for kernels: built once a mask, used by all layers. One attention launch a
 * pass computes with the rank's own keys and with those that arrive meanwhile; it waits for each
 * stage's keys on the device. (One launch fed by arrival flags: ours.) Of a plan in rounds
 * (memory_bytes of ffa_parallel_plan_opts) a pass has a launch for each stage. Where queries move
 * (FFA_PARALLEL_MOVE_QUERIES), it has one over own query rows and one over those of each stage,
 * whose (out, lse) pairs, or dq, go back to the owners of the rows and are added there.
 *
 * Its communicator has two windows on each rank's device (comm.h): keys that others pull and that
 * arrive, and sums of dk and dv. Both are reserved beforehand, for the pass that needs most. Where
 * queries move, the key window has rows of queries, and the sum window results of them.
 */
typedef struct ffa_parallel_pass ffa_parallel_pass;

/*
 * out      receives the pass; NULL on failure. Owner: caller, ffa_parallel_pass_destroy() when its
 *          calls are over and before the kernels' context is closed. Does not need the plan.
 * plan     of this rank; with FFA_PARALLEL_OUTLINE or not, but where ranks of nodes relay.
 * kernels  made with FFA_SPEC_PARALLEL for the rank's GPU; with FFA_SPEC_BACKWARD for backward
 *          passes, too; with FFA_SPEC_STAGED for a plan in rounds, whether or not this rank has
 *          more than one, and for a plan that moves queries.
 *
 * Replicated keys do not move: each rank's k and v are all keys. Backward, every rank receives what
 * all ranks summed of them, in its workspace, and dk and dv have the same bits on all ranks.
 *
 * Fails with FFA_INVALID, FFA_UNSUPPORTED, FFA_NOMEM, FFA_GPU.
 * Thread: any. Blocks: host work. Needs no other rank.
 */
FFA_API ffa_status ffa_parallel_pass_create(ffa_parallel_pass **out, const ffa_parallel_plan *plan,
                                            const ffa_kernels *kernels, ffa_error *err);
FFA_API void ffa_parallel_pass_destroy(ffa_parallel_pass *pass);

/* What a pass needs, in bytes. Windows: of this rank; ffa_comm_reserve takes what it is told on
 * each rank. */
typedef struct ffa_parallel_pass_info {
    uint32_t struct_size;
    int32_t forward_stages, backward_stages; /* that receive */
    int32_t rounds;        /* in which keys come: 1, or as many as a pass has stages (memory_bytes
                            * of ffa_parallel_plan_opts) */
    int64_t received_rows; /* of keys, or of queries, in each pass */
    int64_t upload_bytes;  /* of ffa_parallel_pass_upload's buffer */
    /* Of the key window: own and received rows of k and v; in rounds, own rows and a ring with
     * those of two stages. Where queries move, of q; backward of q and dout, with lse and delta. */
    int64_t key_bytes;
    /* Of the sum window: the same rows of dk and dv, fp32; where queries move, of out and lse, or
     * of dq. */
    int64_t sum_bytes;
    /* Of a call's workspace. Backward: with what other ranks summed of own keys, in rounds of one
     * round; forward in rounds: with an fp32 out. Where queries move: with what others made of own
     * rows, and backward with fp32 sums of dk and dv of own keys. */
    int64_t forward_workspace_bytes, backward_workspace_bytes;
    int64_t received_sum_bytes; /* of the backward workspace */
    int64_t memory_bytes;       /* both windows, and the larger workspace */
    int64_t kept_bytes;         /* of kept_keys: received rows of k and v; not in memory_bytes */
} ffa_parallel_pass_info;
#define FFA_PARALLEL_PASS_INFO_INIT                                                                \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_pass_info)                                    \
    }
FFA_API void ffa_parallel_pass_info_init(ffa_parallel_pass_info *info, size_t bytes);
/* For calls with these heads. Fails with FFA_INVALID. */
FFA_API ffa_status ffa_parallel_pass_info_get(const ffa_parallel_pass *pass,
                                              const ffa_kernels *kernels, int32_t heads_q,
                                              int32_t heads_kv, ffa_parallel_pass_info *out,
                                              ffa_error *err);

/* Enqueue the copy of the pass to `buffer` (memory of the kernels' device, upload_bytes, 256-byte
 * aligned), which must stay until the last call that uses the pass has finished. Must precede the
 * calls. As ffa_plan_upload. Thread: one at a time per pass. */
FFA_API ffa_status ffa_parallel_pass_upload(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                            void *buffer, ffa_stream stream, ffa_error *err);

/*
 * One pass of one rank, enqueued on `stream`; all ranks of the group call the same passes in the
 * same order, each with its own plan of the same mask. Backward needs what the forward pass left in
 * out and lse.
 *
 * The call only enqueues: no allocation, no synchronisation, no wait of the host. Transfers run on
 * streams of the communicator, joined by events. Where ranks pull no SM is used for them; where
 * they exchange or relay, SMs are left free for NCCL: sm_margin is raised to what it may take. All
 * buffers must live until the call completes. FFA_INVALID while `stream` captures a CUDA graph, and
 * where it is the legacy default stream (NULL) and another rank of this process uses the same GPU:
 * ranks wait for each other, so they take a stream each.
 *
 * out, lse, dk, dv and dsink have the same bits in every run, and so has dq of kernels made with
 * FFA_SPEC_DETERMINISTIC: sums join in a fixed order, of dk and dv the rank's own first, then by
 * ascending rank; where queries move, out, lse and dq in that order, and dk and dv by stage. dsink
 * and max_logits have the same bits on all ranks.
 *
 * A call begins when the communicator's call before it has ended, whatever stream that was on.
 *
 * args     heads, dims and dtype as of the kernels; sum_dtype 0 or FFA_FP32. max_logits is given to
 *          kernels with FFA_SPEC_MAX_LOGITS and only to them; dsink has at most 8192 numbers. Both
 *          are of the pass that writes them, and not looked at by the other.
 *
 * Fails with FFA_INVALID: an argument, named with value and limit, and nothing was enqueued;
 * FFA_UNSUPPORTED, likewise: a plan in rounds where ranks exchange or relay; where they relay, also
 * one that moves queries, and a wire_dtype that is not fp32; kept_keys of plans that keep none;
 * FFA_COMM and FFA_TIMEOUT: the group is broken; FFA_GPU: the group is broken then, too. What goes
 * wrong later (a rank that does not come, ranks whose calls differ) ffa_comm_status tells: results
 * of calls that were under way are then unspecified. Thread: any; one call of a rank, and of a
 * pass, at a time. Blocks: no.
 */
FFA_API ffa_status ffa_parallel_forward(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                        ffa_comm *comm, const ffa_parallel_args *args,
                                        ffa_stream stream, ffa_error *err);
FFA_API ffa_status ffa_parallel_backward(ffa_parallel_pass *pass, const ffa_kernels *kernels,
                                         ffa_comm *comm, const ffa_parallel_args *args,
                                         ffa_stream stream, ffa_error *err);

/* ---- what a pass did, and when ---- */

/*
 * A trace holds the spans of the last pass that was given it (ffa_parallel_args.trace), by timed
 * events in the streams of the pass. Recording neither blocks nor allocates. It costs the streams
 * an event a span, and a pass with a trace is over when its fetch and reduce streams are.
 *
 * The spans of a lane follow each other without gaps from the begin of the pass on.
 *
 *     compute   the caller's stream: wait (until the key window may be written), publish (own keys
 *               are copied there and announced), attention; with kept_keys, keep, forward after
 *               and backward before attention; backward also wait (until the sum
 *               window may be written) before attention, and after it wait (for the sums of other
 *               ranks) and sums. Attention is every launch of the pass: backward, the preparation
 *               and dq, too. Last totals, where the call has some: waited for and joined.
 *     fetch     wait and copy of each stage. The end of a copy is when the attention launch could
 *               begin with the stage. A stage whose sources were all waited for has no wait.
 *     reduce    backward: wait and copy of the sums that one rank made in one of its stages. Last
 *               totals: sent to all ranks, and theirs waited for.
 */
typedef enum ffa_parallel_lane {
    FFA_PARALLEL_LANE_COMPUTE,
    FFA_PARALLEL_LANE_FETCH,
    FFA_PARALLEL_LANE_REDUCE
} ffa_parallel_lane;

typedef enum ffa_parallel_span_kind {
    FFA_PARALLEL_SPAN_WAIT, /* for other ranks */
    FFA_PARALLEL_SPAN_PUBLISH,
    FFA_PARALLEL_SPAN_COPY,
    FFA_PARALLEL_SPAN_ATTENTION,
    FFA_PARALLEL_SPAN_SUMS,
    FFA_PARALLEL_SPAN_TOTALS, /* max_logits or dsink */
    FFA_PARALLEL_SPAN_KEEP    /* received keys are copied to kept_keys, or from there */
} ffa_parallel_span_kind;

enum { FFA_PARALLEL_SPANS_MAX = 128 }; /* of a pass */

typedef struct ffa_parallel_span {
    uint32_t struct_size;
    int32_t lane;  /* ffa_parallel_lane */
    int32_t kind;  /* ffa_parallel_span_kind */
    int32_t stage; /* fetch: of this rank; reduce: of the rank that made the sums; -1: none */
    int32_t rank;  /* that is waited for or copied from; -1: none, or several */
    int32_t pad_;
    double begin_us, end_us; /* from the begin of the pass on this rank; about 0.5 us exact */
    int64_t bytes;           /* publish, copy and keep: that were copied; else 0 */
} ffa_parallel_span;
#define FFA_PARALLEL_SPAN_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_parallel_span)                                         \
    }
FFA_API void ffa_parallel_span_init(ffa_parallel_span *span, size_t bytes);

/*
 * out      receives a trace without spans; NULL on failure. Owner: caller,
 *          ffa_parallel_trace_destroy() when the passes that were given it are over, and before the
 *          context is closed.
 * context  of a GPU.
 *
 * Fails with FFA_INVALID; FFA_UNSUPPORTED: a context of the CPU; FFA_NOMEM, FFA_GPU. Thread: any.
 */
FFA_API ffa_status ffa_parallel_trace_create(ffa_parallel_trace **out, ffa_context *context,
                                             ffa_error *err);
FFA_API void ffa_parallel_trace_destroy(ffa_parallel_trace *trace); /* NULL is allowed */

/*
 * The spans of the last pass, once its stream was synchronised: by lane, in their order.
 *
 * spans     [capacity], receives them; the struct_size of the first is the distance between
 *           elements. NULL where capacity is 0: then only *count is wanted.
 * count     receives how many there are, up to FFA_PARALLEL_SPANS_MAX; 0 without a pass. Where a
 *           pass pulls sums, or in rounds fetches and computes, more often than there is room
 *           for, the last span of the lane, of stage -1 and rank -1, is all the rest.
 *
 * Fails with FFA_INVALID: an argument, a capacity below the count, or a pass that is not over yet;
 * FFA_GPU. Thread: one call of a trace at a time. Blocks: no.
 */
FFA_API ffa_status ffa_parallel_trace_get(const ffa_parallel_trace *trace, ffa_parallel_span *spans,
                                          int32_t capacity, int32_t *count, ffa_error *err);

/* ---- passes on the CPU ---- */

/*
 * One pass of one rank; all ranks of the group call the same passes in the same order, each with
 * its own plan of the same mask. Backward needs what the forward pass left in out and lse.
 *
 * Results do not depend on the seed, on the number of threads, or on timing: every sum has a fixed
 * order, partial results join by stage, then by rank.
 *
 * Fails with FFA_INVALID: an argument, named with value and limit (the other ranks then see a
 * broken group, so that none waits for this one), or ranks whose calls differ; FFA_NOMEM; FFA_COMM
 * and FFA_TIMEOUT: the group is broken. Outputs are then unspecified. Thread: any; one call of a
 * rank at a time. Blocks: until the rank's part is done.
 */
FFA_API ffa_status ffa_parallel_forward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                             const ffa_parallel_args *args, ffa_error *err);
FFA_API ffa_status ffa_parallel_backward_host(const ffa_parallel_plan *plan, ffa_comm *comm,
                                              const ffa_parallel_args *args, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
