/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans and attention calls.
 *
 * out = softmax(softmax_scale * q k^T restricted to the mask) v, lse = log-sum-exp of the
 * restricted scores, natural logarithm. A row without keys has out = 0, lse = -inf (with sinks,
 * their log-sum-exp).
 * (Algorithm: FlashAttention-2/-3, Dao 2023, Shah et al. 2024; slices: MagiAttention.)
 *
 *   tensor  shape, outermost first            dtype
 *   q       [tokens_q][heads_q][head_dim]     the spec's
 *   k       [tokens_k][heads_kv][head_dim]    the spec's
 *   v       [tokens_k][heads_kv][head_dim_v]  the spec's
 *   out     [tokens_q][heads_q][head_dim_v]   the spec's (fp32 with FFA_SPEC_OUT_FP32)
 *   lse     [tokens_q][heads_q]               fp32 (fp64 for FFA_FP64)
 *
 * The backward pass: with p = exp(score - lse), the weights, dp = dout v^T and
 * delta = rowsum(out * dout), ds = p (dp - delta + dlse), dlse 0 where none is given:
 *
 *   dq = softmax_scale * ds k    dk = softmax_scale * ds^T q    dv = p^T dout
 *   dsink = - sum over rows of e^(sink - lse) (delta - dlse)
 *
 * dk and dv of a kv head are sums over the query heads of its group; with a softcap, ds has the
 * factor 1 - (score / softcap)^2. Rows and keys without attended cells have zero gradients.
 * (FlashAttention-2, Dao 2023.)
 *
 *   tensor    shape, outermost first            dtype
 *   dout      [tokens_q][heads_q][head_dim_v]   the spec's
 *   dlse      [tokens_q][heads_q]               fp32 (fp64 for FFA_FP64)
 *   dq        [tokens_q][heads_q][head_dim]     the spec's (fp32 with FFA_SPEC_GRAD_FP32)
 *   dk        [tokens_k][heads_kv][head_dim]    likewise
 *   dv        [tokens_k][heads_kv][head_dim_v]  likewise
 *   dsink     [sink_count][heads_q]             fp32 (fp64 for FFA_FP64)
 */
#ifndef FFA_ATTENTION_H
#define FFA_ATTENTION_H

#include <ffa/choice.h>
#include <ffa/kernel.h>
#include <ffa/mask.h>
#include <ffa/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plans ---- */

/* Who computes which output tile over which keys; for kernels made with FFA_SPEC_BACKWARD, also
 * who computes which keys' gradients over which rows. Built once per mask, shared by all layers.
 * Immutable but for the buffer it was last uploaded to. Thread: any; one thread destroys, last. */
typedef struct ffa_plan ffa_plan;

/* Build the plan of `mask` for the tiles of `kernels`. Host only; the mask may be destroyed after.
 * Fails with FFA_INVALID, FFA_UNSUPPORTED (more than 2^31 - 1024 tokens on a GPU), FFA_NOMEM.
 * Thread: any. Blocks: host work, about 1 ms for 1,000 slices. */
FFA_API ffa_status ffa_plan_create(ffa_plan **out, const ffa_kernels *kernels, const ffa_mask *mask,
                                   ffa_error *err);
FFA_API void ffa_plan_destroy(ffa_plan *plan);

typedef struct ffa_plan_opts {
    uint32_t struct_size;
    uint32_t flags; /* FFA_PLAN_... */
    /* > 0: query heads of the calls. Where they leave the device idle (few long tiles), tiles are
     * split over their keys, and a second kernel combines the parts in a fixed order; calls must
     * have these heads then, and their workspace is larger. Tiles of a mask with a list for each kv
     * head stay whole. Needs kernels made with FFA_SPEC_SPLIT, or with FFA_SPLIT_AUTO; not with
     * ffa_plan_create_stages. 0: those of the kernels' spec; where that does not say, or with
     * capacity_bytes, no tile is split. */
    int32_t heads_q;
    /* > 0: backward, on a GPU: the query heads of a kv head are divided into so many parts at most.
     * Each part has a sum of dk and dv in the workspace, 4 bytes an element; 1: there are none
     * but those that kernels made with FFA_SPEC_STAGED or FFA_SPEC_PARALLEL need in any case.
     * 0: whatever is expected to take the least time. */
    int32_t backward_parts_max;
    /* > 0: a plan that a CUDA graph replays with other masks. upload_bytes is capacity_bytes, and
     * nothing that launches are made of depends on the mask but its shape, its number of lists and
     * what is in the buffer: a launch has as many blocks for few tiles as for many. With heads_q
     * either all tiles are split, or none, whatever the mask (split_heads of ffa_plan_info says
     * so): each into one part or more, at most SMs / work items of a tile (query heads, or kv heads
     * of packed ones). A second kernel combines all rows then, and the workspace has room for that
     * many parts of each: it is for few rows, as of decoding. Where that is one part, tiles stay
     * whole. FFA_INVALID, with the bytes that are needed, where the mask needs more (image_bytes of
     * ffa_plan_info says what one needs, of a plan made with the same heads_q and any capacity that
     * is large enough). At most 2^35; on the CPU of no effect. Not with ffa_plan_create_stages. */
    int64_t capacity_bytes;
    /* A plan made with capacity_bytes: the new plan takes from it whatever launches are made of
     * (the kernels, the order of the backward pass and its parts, and with them the bytes of both
     * workspaces), FFA_PLAN_ISOLATE, heads_q, backward_parts_max and the capacity. Then a graph
     * that was captured with `like`, or a plan like it, replays with the new plan's mask once that
     * is uploaded to the same buffer. FFA_INVALID unless the kernels have its tiles and heads, and
     * the mask its shape and number of lists; and where `like` is split for another heads_q than is
     * asked for. It is read during the call only, and may be destroyed before the new plan is.
     * NULL: none. */
    const ffa_plan *like;
} ffa_plan_opts;
enum {
    /* No tile has rows of two documents, nor, in the backward pass, keys of two, so that a NaN or
     * Inf in one never reaches another (but dsink, a sum over all rows). Without it, what is not
     * finite in keys and values that a row attends may reach rows beside it, up to a tile away, and
     * in the backward pass what is not finite in a row the keys beside its own. A document ends
     * between two rows where the first attends a key that the second does not, unless both attend
     * the key after it, as inside a sliding window; and between two keys by the same rule with
     * rows and keys exchanged. Costs the part of a tile a document; on the CPU nothing reaches
     * other rows and keys with or without it. */
    FFA_PLAN_ISOLATE = 1u << 0
};
#define FFA_PLAN_OPTS_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_plan_opts)                                             \
    }
FFA_API void ffa_plan_opts_init(ffa_plan_opts *opts, size_t bytes);

/* ffa_plan_create with options; NULL: all defaults. Also FFA_UNSUPPORTED: an unknown flag. */
FFA_API ffa_status ffa_plan_create_with(ffa_plan **out, const ffa_kernels *kernels,
                                        const ffa_mask *mask, const ffa_plan_opts *opts,
                                        ffa_error *err);

/*
 * The plans of one pass in stages, as where keys arrive part by part: stage i attends masks[i] over
 * its own keys (k and v of that call), all over the same query rows; no cell may be in two stages.
 * Tiles are the same in all stages. The first stage that works on a tile writes it, the next ones
 * merge, the last writes out: between them the rows' fp32 sums are in ffa_forward_args.partial, and
 * in lse. A tile that one stage works on never touches partial, and a stage leaves tiles that it
 * does not work on as they are. Calls must run in order, with the same q, out, lse and partial;
 * sinks, if any, are given to all, and enter once; max_logits is set by stage 0 and raised after.
 *
 * Backward (kernels of FFA_SPEC_BACKWARD, too), a stage writes dk and dv of all its keys, as a call
 * of its own would, from the out and lse of the whole. dq is a sum over the stages, which stays in
 * the workspace: stage 0 begins it, whatever is there, and the last stage writes dq, and dsink. So
 * calls must run in order, one for each stage, with the same q, out, lse, dlse, dout and workspace,
 * which no other call uses until the last one is done. It must have the bytes that the stage that
 * needs most of it says. Only the last stage looks at dq and dsink. Kernels with and without
 * FFA_SPEC_GRAD_FP32 may take turns, where some stages' dk and dv are to be fp32.
 *
 * out      [count], receives the plans; all NULL on failure. Owner: caller, ffa_plan_destroy().
 * kernels  made with FFA_SPEC_STAGED.
 * masks    [count], 1 to 4096, of as many query rows and lists each.
 * opts     NULL: all defaults.
 *
 * Fails as ffa_plan_create_with. Thread: any. Blocks: host work.
 */
FFA_API ffa_status ffa_plan_create_stages(ffa_plan **out, const ffa_kernels *kernels,
                                          const ffa_mask *const *masks, int32_t count,
                                          const ffa_plan_opts *opts, ffa_error *err);

typedef struct ffa_plan_info {
    uint32_t struct_size;
    int32_t tile_m, tile_n;
    int32_t tile_count;     /* query tiles, over all lists of the mask */
    int64_t sweep_count;    /* contiguous key ranges swept, over all lists, as the next three */
    int64_t block_count;    /* tile_m x tile_n blocks visited for one head of each list */
    int64_t partial_blocks; /* of those, blocks that need the mask */
    int64_t area;           /* attended cells for one head of each list; at most INT64_MAX */
    int64_t upload_bytes;   /* size of the device buffer, of both passes */
    /* Of the backward pass; 0 in a plan of kernels without it. */
    int32_t backward_tile_m, backward_tile_n; /* query rows a block, keys a tile */
    int32_t backward_tile_count;              /* key tiles, over all lists of the mask */
    int32_t backward_whole_heads; /* of what was chosen: kv heads not divided into backward_parts */
    /* tile_m x tile_n blocks visited for one query head a list. A GPU starts each range of rows at
     * a multiple of 8, and may visit one more of it. */
    int64_t backward_block_count;
    int64_t backward_partial_blocks;
    /* What was chosen. */
    int32_t pack_heads;  /* query heads that share a tile; 0: none */
    int32_t is_isolated; /* 1: no tile has rows of two documents, asked for or chosen */
    int32_t split_heads; /* query heads that tiles were split for; 0: none was split */
    int32_t split_tiles; /* of tile_count, parts of a split tile; in a replayed plan also where a
                          * tile is one part */
    /* For the heads of the kernels' spec, on all SMs of a GPU; 0 where those are not known. */
    int32_t l2_heads_kv;    /* forward: kv heads worked on together; in a replayed graph it is that
                             * of the plan it was captured with */
    int32_t backward_parts; /* shares of a kv head's query heads, each with its own dk, dv */
    int32_t backward_waves; /* waves of work items in an L2 group: 1 to 4 */
    int32_t backward_l2_head_groups; /* head groups (a kv head, a part) of an L2 group */
    char cost_table[32]; /* the device whose measurements decided, the first 31 bytes; "" on the CPU
                          */
    int64_t image_bytes; /* of upload_bytes, those that an upload copies; 0 on the CPU */
    int64_t capacity_bytes; /* as in ffa_plan_opts, asked for or of the plan it is like; 0: none */
    char cost_digest[20];   /* the first 16 digits of that table's digest; "" on the CPU */
    int32_t cost_source;    /* enum ffa_cost_source: why that table decided */
} ffa_plan_info;
#define FFA_PLAN_INFO_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_plan_info)                                             \
    }
FFA_API void ffa_plan_info_init(ffa_plan_info *info, size_t bytes);
FFA_API ffa_status ffa_plan_info_get(const ffa_plan *plan, ffa_plan_info *info, ffa_error *err);
/* The facts of the forward kernel, one of `kernels`, that calls with the plan launch; layer NONE on
 * the CPU backend. FFA_INVALID if the plan is for none of them. */
FFA_API ffa_status ffa_plan_kernel(const ffa_plan *plan, const ffa_kernels *kernels,
                                   ffa_kernel_info *info, ffa_error *err);

/* Enqueue the copy of the plan to `buffer` (memory of the kernels' device, upload_bytes, 16-byte
 * aligned), which must stay until the last call that uses the plan has finished. Must precede
 * ffa_forward and ffa_backward on a GPU; on the CPU it is a no-op and `buffer` may be NULL.
 * What is copied is put aside in one of 16 blocks of pinned host memory of the context. So the plan
 * may be destroyed as soon as the call returns, unless calls are still to be made with it, and the
 * call does not wait for the stream. It waits only where no block is free: until the oldest upload
 * is done whose block is large enough, or, where none is, the oldest of all. Blocks are allocated
 * when they are needed first, which takes about a millisecond; where all 16 are there and the free
 * ones too small, one is replaced, and CUDA may wait for the device then.
 * FFA_INVALID while `stream` is capturing, but another stream may be. Thread: one at a time per
 * plan.
 *
 * A CUDA graph: calls read the plan from the buffer when they run. So a graph that was captured
 * with a plan of capacity_bytes works on the plan, like that one, that was uploaded last to its
 * buffer. An upload overwrites what earlier calls and replays may still be reading, and later ones
 * read what it writes. So it belongs on their stream, or between events that order it behind the
 * former and before the latter. */
FFA_API ffa_status ffa_plan_upload(ffa_plan *plan, const ffa_kernels *kernels, void *buffer,
                                   ffa_stream stream, ffa_error *err);

/* ---- calls ---- */

/* The tensors of a call are contiguous where it begins with its _INIT macro, so that their data is
 * all that must be set (tensor.h). The last dimension of v, out, dout and dv is head_dim_v, that of
 * lse and dlse 1. */
typedef struct ffa_forward_args {
    uint32_t struct_size;
    int32_t heads_q; /* a multiple of heads_kv */
    int32_t heads_kv;
    int32_t sm_margin; /* SMs left free for others; 0 to sm_count - 1, of no effect on the CPU */
    /* 0: 1 / sqrt(head_dim). Used in the precision that scores are computed in: fp64 for FFA_FP64
     * and on a CPU context with FFA_OPEN_CPU_FP64, else fp32; so is softcap. */
    double softmax_scale;
    /* > 0: scores become softcap * tanh(score / softcap), before the mask; needs kernels made with
     * FFA_SPEC_SOFTCAP. 0: none, and kernels made without. (Gemma 2, 2024) */
    double softcap;
    ffa_tensor q, k, v; /* inputs; device memory on a GPU context, host memory on the CPU's */
    ffa_tensor out;
    ffa_tensor lse; /* fp32; fp64 for FFA_FP64 */
    /* [sink_count][heads_q], fp32 (fp64 for FFA_FP64): logits that join each row's softmax without
     * a value, so that lse = log(e^lse + sum e^sink) and out shrinks by as much; NULL: none. Device
     * memory on a GPU context. (StreamingLLM, Xiao et al. 2023) */
    const void *sink;
    int32_t sink_count; /* 0 to FFA_SINKS_MAX */
    uint32_t flags;     /* FFA_FORWARD_... */
    /* [heads_q], fp32 (fp64 for FFA_FP64): the largest scaled (and capped) score of each head over
     * all rows, -inf where there is none; sinks do not count, nor scores that are NaN. With
     * FFA_FORWARD_ACCUMULATE it is raised, not set. Given if and only if the kernels were made with
     * FFA_SPEC_MAX_LOGITS. Device memory on a GPU context. (QK-clip, Kimi K2 2025) */
    void *max_logits;
    /* fp32 (fp64 for FFA_FP64), of the shape of out and by the same rules: the sums of a pass in
     * stages (ffa_plan_create_stages). data NULL: none. */
    ffa_tensor partial;
    /* Of at least ffa_workspace_bytes, 16-byte aligned; it may hold anything. Device memory on a
     * GPU context, of no use on the CPU's. No other call in flight uses it. */
    void *workspace;
    int64_t workspace_bytes; /* that are there */
} ffa_forward_args;
enum {
    /* Merge with the (out, lse) that are there, as if their keys and this call's were attended in
     * one: lse' = log(e^lse + e^this), out' = (e^lse out + e^this this) / e^lse'. A row with lse =
     * -inf is not read. The out must be fp32 (FFA_SPEC_OUT_FP32) or fp64. Sinks are to enter once.
     */
    FFA_FORWARD_ACCUMULATE = 1u << 0
};
#define FFA_FORWARD_ARGS_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_forward_args), .q = FFA_TENSOR_INIT(NULL),             \
        .k = FFA_TENSOR_INIT(NULL), .v = FFA_TENSOR_INIT(NULL), .out = FFA_TENSOR_INIT(NULL),      \
        .lse = FFA_TENSOR_INIT(NULL), .partial = FFA_TENSOR_INIT(NULL)                             \
    }
FFA_API void ffa_forward_args_init(ffa_forward_args *args, size_t bytes);

/* The bytes of workspace that ffa_forward needs. 0 on the CPU. */
FFA_API ffa_status ffa_workspace_bytes(const ffa_kernels *kernels, const ffa_plan *plan,
                                       int64_t *bytes, ffa_error *err);

/*
 * Forward attention. On a GPU it only enqueues on `stream`: no allocation, compilation or
 * synchronisation; it can be captured in a CUDA graph. All buffers must live until it completes.
 * On a CPU context it blocks until done; `stream` must be NULL.
 * Fails with FFA_INVALID (argument, value and limit named), FFA_GPU. Nothing is enqueued on
 * failure. Thread: any; plan and kernels are shared freely, a workspace is not.
 */
FFA_API ffa_status ffa_forward(const ffa_kernels *kernels, const ffa_plan *plan,
                               const ffa_forward_args *args, ffa_stream stream, ffa_error *err);

typedef struct ffa_backward_args {
    uint32_t struct_size;
    int32_t heads_q; /* a multiple of heads_kv */
    int32_t heads_kv;
    /* SMs left free for others; 0 to sm_count - 1. Where two CTAs share a key tile (above
     * head_dim 128, and where a plan of head_dim 97 to 128 is for pairs), SMs are used two by two,
     * and two at least. */
    int32_t sm_margin;
    double softmax_scale; /* as of the forward pass, as are softcap and the sinks; 0: its default */
    double softcap;       /* > 0: kernels made with FFA_SPEC_SOFTCAP */
    ffa_tensor q, k, v;   /* inputs of the forward pass */
    ffa_tensor out;       /* its outputs: the spec's dtype (fp32 with FFA_SPEC_OUT_FP32) */
    ffa_tensor lse;       /* fp32; fp64 for FFA_FP64 */
    ffa_tensor dout;
    ffa_tensor dq, dk, dv; /* outputs */
    /* [sink_count][heads_q], fp32 (fp64 for FFA_FP64), written, never added to: it does not depend
     * on the keys; in a pass in stages by the last one. NULL: not asked for. */
    void *dsink;
    const void *sink;   /* [sink_count][heads_q], fp32 (fp64 for FFA_FP64); NULL: none */
    int32_t sink_count; /* 0 to FFA_SINKS_MAX */
    uint32_t flags;     /* FFA_BACKWARD_... */
    /* fp32 (fp64 for FFA_FP64), of the shapes of dk and dv and by the same rules: what other calls,
     * or other ranks, made of these keys. It is added before dk and dv are rounded to their dtype,
     * and not written. So a key's gradients may be fp32 from a first call (FFA_SPEC_GRAD_FP32), be
     * added to by further ones (FFA_BACKWARD_ACCUMULATE), and get the dtype in the last. Needs
     * kernels made with FFA_SPEC_STAGED. data NULL: none; both or neither. */
    ffa_tensor partial_dk, partial_dv;
    /* The gradient of the loss by lse, of lse's shape and dtype, for a loss that reads lse, too (a
     * z-loss, the merging of several results); read only. data NULL: none. With p = e^(score - lse)
     * the weight of a key, dp = v . dout and delta = out . dout,
     *
     *   ds = p (dp - delta + dlse),  dsink = - sum over rows of e^(sink - lse) (delta - dlse),
     *
     * since d lse / d score = p and d lse / d sink = e^(sink - lse). The lse is the one that the
     * forward pass returned, sinks included. A row with lse = -inf ignores its dlse. Where a pass
     * is in stages, or in calls over parts of the keys, each call is given the same. */
    ffa_tensor dlse;
    /* Of at least ffa_backward_workspace_bytes, 16-byte aligned. It may hold anything, but for what
     * earlier stages of the pass left there. No other call in flight uses it. */
    void *workspace;
    int64_t workspace_bytes; /* that are there */
} ffa_backward_args;
enum {
    /* dq, dk and dv are added to what they hold. They must be fp32 (FFA_SPEC_GRAD_FP32) or fp64.
     * For a call per part of the keys, with the out, lse and dlse of the whole. In a pass in stages
     * each call says so of its dk and dv, and the last one of dq. */
    FFA_BACKWARD_ACCUMULATE = 1u << 0
};
#define FFA_BACKWARD_ARGS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_backward_args), .q = FFA_TENSOR_INIT(NULL),            \
        .k = FFA_TENSOR_INIT(NULL), .v = FFA_TENSOR_INIT(NULL), .out = FFA_TENSOR_INIT(NULL),      \
        .lse = FFA_TENSOR_INIT(NULL), .dout = FFA_TENSOR_INIT(NULL), .dq = FFA_TENSOR_INIT(NULL),  \
        .dk = FFA_TENSOR_INIT(NULL), .dv = FFA_TENSOR_INIT(NULL),                                  \
        .partial_dk = FFA_TENSOR_INIT(NULL), .partial_dv = FFA_TENSOR_INIT(NULL),                  \
        .dlse = FFA_TENSOR_INIT(NULL)                                                              \
    }
FFA_API void ffa_backward_args_init(ffa_backward_args *args, size_t bytes);

/* Workspace of one ffa_backward in flight: on a GPU an fp32 dq, two numbers a row of a head, and
 * where the query heads of a group are shared out to fill the device, and for kernels of
 * FFA_SPEC_STAGED or FFA_SPEC_PARALLEL, fp32 partial dk and dv. It is enough for ffa_forward, too.
 * On the CPU 0, but for a stage's plan: the sum of dq and a number a row of a head. Fails with
 * FFA_INVALID. */
FFA_API ffa_status ffa_backward_workspace_bytes(const ffa_kernels *kernels, const ffa_plan *plan,
                                                int32_t heads_q, int32_t heads_kv, int64_t *bytes,
                                                ffa_error *err);

/*
 * Backward attention: dq, dk, dv, and dsink where asked for. As ffa_forward, it only enqueues on a
 * GPU (three kernels; of a later stage a memset and one or two), and blocks on the CPU.
 * dk, dv and dsink have the same bits in every run on as many SMs, less sm_margin; dq is a sum
 * whose order varies (the last bits of fp32) where several key tiles attend a row, unless the
 * kernels are FFA_SPEC_DETERMINISTIC: then a block waits for others of the call, each only for what
 * was begun before it. Rows of q, k, v, out and dout that no attended cell needs may hold anything,
 * NaN, too. Fails with FFA_INVALID (argument, value and limit named; kernels or plan made without
 * FFA_SPEC_BACKWARD, or only one of them with FFA_SPEC_DETERMINISTIC; kernels that lack the plan's
 * backward tile, as those of another spec may), FFA_GPU. Nothing is enqueued
 * when an argument is refused.
 * Thread: any; plan and kernels are shared freely, a workspace is not.
 */
FFA_API ffa_status ffa_backward(const ffa_kernels *kernels, const ffa_plan *plan,
                                const ffa_backward_args *args, ffa_stream stream, ffa_error *err);

/* One call that ties kernels, plan and workspace together: caches kernels in the context,
 * builds the plan, and on a GPU allocates what it needs stream-ordered, so that it does not use
 * args->workspace. For experiments and tests; training loops keep the objects. */
FFA_API ffa_status ffa_attention(ffa_context *context, const ffa_mask *mask,
                                 const ffa_attention_spec *spec, const ffa_forward_args *args,
                                 ffa_stream stream, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
