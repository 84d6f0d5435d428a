/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels: templates specialised, compiled and cached.
 *
 * A specialisation is a template name and values for the template's spec rows (head_dim, dtype,
 * tile, stages). Sequence lengths, masks, strides and head counts are never part of it.
 */
#ifndef FFA_KERNEL_H
#define FFA_KERNEL_H

#include <ffa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_dtype {
    FFA_BF16 = 1,
    FFA_FP16 = 2,
    FFA_FP32 = 3, /* CPU backend only */
    FFA_FP64 = 4  /* CPU backend only */
} ffa_dtype;

/* Bytes of one element, 0 for an unknown dtype. */
FFA_API size_t ffa_dtype_bytes(ffa_dtype dtype);

/* Where a kernel was found. */
typedef enum ffa_layer {
    FFA_LAYER_NONE = 0,
    FFA_LAYER_TABLE = 1,    /* this process's memory */
    FFA_LAYER_STORE = 2,    /* the node's store */
    FFA_LAYER_COMPILED = 3, /* NVRTC, just now */
    FFA_LAYER_BUNDLE = 4    /* a read-only bundle */
} ffa_layer;

/* "none", "table", "store", "compiled", "bundle". */
FFA_API const char *ffa_layer_text(ffa_layer layer);

/* What is known of a compiled kernel. */
typedef struct ffa_kernel_info {
    uint32_t struct_size;
    int32_t registers;      /* a thread, as ptxas reports; -1: it reported none */
    int32_t shared_bytes;   /* static + dynamic a block */
    int32_t spill_bytes;    /* stores + loads; -1: ptxas reported none */
    int32_t advisory_count; /* ptxas advisories that cost speed (C7504 ... C7519) */
    int32_t threads;        /* a block */
    int64_t cubin_bytes;
    int64_t compile_us; /* what compiling cost, whoever did it */
    int64_t resolve_us; /* what this look-up cost */
    ffa_layer layer;
    char key[33];       /* XXH3-128, canonical, hexadecimal */
    char toolchain[47]; /* "nvrtc 13.0 <build>" */
    char template_name[32];
    char arch[16];
} ffa_kernel_info;
#define FFA_KERNEL_INFO_INIT                                                                       \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_kernel_info)                                           \
    }
FFA_API void ffa_kernel_info_init(ffa_kernel_info *info, size_t bytes);

/* ---- one kernel by name: what `ffa compile` does; needs no GPU ---- */

typedef struct ffa_compiled ffa_compiled;

typedef struct ffa_compile_request {
    uint32_t struct_size;
    uint32_t flags;              /* FFA_COMPILE_... */
    const char *template_name;   /* "attention_forward" */
    const char *const *settings; /* [setting_count] "name=value"; the rest takes its default */
    int64_t setting_count;
    const char *arch; /* "sm_90a"; NULL: the context's */
} ffa_compile_request;
#define FFA_COMPILE_REQUEST_INIT                                                                   \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_compile_request)                                       \
    }
FFA_API void ffa_compile_request_init(ffa_compile_request *request, size_t bytes);

enum {
    FFA_COMPILE_FORCE = 1u << 0, /* compile even where a layer has it; do not store */
    FFA_COMPILE_PTX = 1u << 1    /* also keep the PTX (implies FORCE) */
};

/*
 * Look a kernel up, or compile it.
 * out: caller's, ffa_compiled_destroy(). On FFA_COMPILE, *out is set, too: its log says why, and
 * only ffa_compiled_log and _command are meaningful.
 * Fails with FFA_INVALID (template, setting, arch: named with value and limit), FFA_COMPILE,
 * FFA_NOT_FOUND (never-compile), FFA_UNSUPPORTED (no NVRTC, or one without the arch), FFA_NOMEM;
 * with compile workers FFA_TIMEOUT and FFA_IO (none can be started), too, and FFA_COMPILE for one
 * that died.
 * Thread: any. Blocks: up to seconds while compiling.
 */
FFA_API ffa_status ffa_compile(ffa_compiled **out, ffa_context *context,
                               const ffa_compile_request *request, ffa_error *err);
FFA_API void ffa_compiled_destroy(ffa_compiled *compiled);
FFA_API ffa_status ffa_compiled_info(const ffa_compiled *compiled, ffa_kernel_info *info,
                                     ffa_error *err);
/* Borrowed until destroy. cubin: *bytes long. ptx and log: "" where there is none. */
FFA_API const void *ffa_compiled_cubin(const ffa_compiled *compiled, size_t *bytes);
FFA_API const char *ffa_compiled_ptx(const ffa_compiled *compiled);
FFA_API const char *ffa_compiled_log(const ffa_compiled *compiled);
/* The readable record behind the key: one "name=value" a line. */
FFA_API const char *ffa_compiled_record(const ffa_compiled *compiled);

/* An nvcc command line that compiles this very kernel from the files in `templates_dir` to
 * `output`. *out: caller's, ffa_free(). Needs no NVRTC. */
FFA_API ffa_status ffa_compile_command(ffa_context *context, const ffa_compile_request *request,
                                       const char *templates_dir, const char *output, char **out,
                                       ffa_error *err);

/* What a request asks for, without looking for it: the key, and the readable record behind it (one
 * "name=value" a line, the choices made included). *record: caller's, ffa_free(); record may be
 * NULL. Needs no NVRTC, reads no store. */
FFA_API ffa_status ffa_compile_key(ffa_context *context, const ffa_compile_request *request,
                                   char key[33], char **record, ffa_error *err);

/* ---- many kernels before they are needed ---- */

/* What ffa_precompile tells of a request that is done, or of itself between two of them. Borrowed:
 * all of it ends with the call of the function it is given to. */
typedef struct ffa_precompile_event {
    uint32_t struct_size; /* the library's: fields beyond it are not there */
    uint32_t pad_;
    int64_t index;               /* of the request; -1: none, time has passed (tick_ms) */
    ffa_status status;           /* what came of it */
    int32_t busy;                /* threads that have a request */
    const ffa_kernel_info *info; /* NULL on failure */
    const char *message;         /* "" on success */
    const char *log;             /* the compiler's where it was asked, else "" */
    int32_t worker;              /* the process that was asked to compile it; 0: none */
    int32_t worker_signal;       /* that ended this process instead of an answer; 0: none */
    int32_t worker_status;       /* with which it ended instead of an answer; -1: it did not */
    int32_t pad2_;
} ffa_precompile_event;

/* What *stop of the options may be set to; 0: go on. */
enum {
    FFA_PRECOMPILE_DRAIN = 1, /* begin no further request; what is under way is finished */
    FFA_PRECOMPILE_CUT = 2    /* end now: compile workers are killed, waits for locks given up */
};

typedef struct ffa_precompile_opts {
    uint32_t struct_size;
    uint32_t flags;   /* none yet */
    uint32_t threads; /* that compile, at most 1024; 0: one per core, at most 8. With compile
                         workers, each thread has one, which compiles kernel after kernel */
    uint32_t pad_;
    int64_t deadline_ms; /* from the call on; 0: none */
    /* Told of each request that is done, one at a time, from the compile threads and never after
     * the call has returned. info: NULL on failure; message: "" on success. Must not call into the
     * context. NULL: nobody is told. */
    void (*progress)(void *user, int64_t index, ffa_status status,
                     const struct ffa_kernel_info *info, const char *message);
    void *user;
    /* NULL, or what a signal handler or one of the functions here sets to end the call early. It is
     * looked at until the call returns. Whoever gives it wants no work in the background: the
     * deadline, too, then ends as FFA_PRECOMPILE_CUT does. */
    const volatile int *stop;
    /* As progress, with more to tell, and called by the calling thread, too, every tick_ms (index
     * -1) where that is not 0. NULL: nobody is told. */
    void (*event)(void *user, const ffa_precompile_event *event);
    int64_t tick_ms;
} ffa_precompile_opts;
#define FFA_PRECOMPILE_OPTS_INIT                                                                   \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_precompile_opts)                                       \
    }
FFA_API void ffa_precompile_opts_init(ffa_precompile_opts *opts, size_t bytes);

typedef struct ffa_precompile_report {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t requested;
    int64_t compiled; /* by this call */
    int64_t hit;      /* found in a layer, or compiled by another process meanwhile */
    int64_t failed;
    int64_t unfinished;   /* when the deadline passed */
    int64_t first_failed; /* the lowest index; -1: none */
    int64_t spent_us;     /* compiling, in all threads together */
    int64_t saved_us;     /* what compiling the hits had cost */
    int64_t wall_us;      /* the call */
} ffa_precompile_report;
#define FFA_PRECOMPILE_REPORT_INIT                                                                 \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_precompile_report)                                     \
    }
FFA_API void ffa_precompile_report_init(ffa_precompile_report *report, size_t bytes);

/*
 * Have `count` kernels ready: look each up, compile what is missing in parallel. Meant for the time
 * before a job's first collective, where a compile on one rank would keep all others waiting.
 *
 * requests  [count], as for ffa_compile, without flags; all are checked before any is compiled, and
 *           need not outlive the call. The struct_size of the first is the distance between them.
 * opts      NULL: all defaults. Copied.
 * report    NULL, or receives the account, on failure, too, once the requests were accepted.
 *
 * Fails with FFA_TIMEOUT when the deadline passes: what is finished is kept; what is being compiled
 * then is finished in the background and kept; the rest is dropped. The same where *stop ends it,
 * without the background. Otherwise with the status of the first request that failed, after all
 * were tried; FFA_INVALID, FFA_UNSUPPORTED, FFA_NOMEM.
 * Thread: any. Blocks: until all is done, the deadline has passed or *stop was set.
 */
FFA_API ffa_status ffa_precompile(ffa_context *context, const ffa_compile_request *requests,
                                  int64_t count, const ffa_precompile_opts *opts,
                                  ffa_precompile_report *report, ffa_error *err);

/* ---- compile workers ---- */

/* All that a compile worker does (ffa_context_opts.worker_path): answer the requests that come on
 * standard input, a socket, until it is closed; for main() of an executable of one's own to return.
 * It is started with the one argument "kernel-worker", all of the environment, and /dev/null for
 * stdout; it and the library that starts it must be of one version. Returns the exit status of the
 * process. */
FFA_API int ffa_worker_main(void);

/* ---- what can be specialised ---- */

typedef struct ffa_spec_row {
    const char *name;
    const char *doc;
    int32_t initial, min, max; /* initial: when not set; below min: the library then chooses */
} ffa_spec_row;

FFA_API int32_t ffa_template_count(void);
/* NULL past the end. */
FFA_API const char *ffa_template_name(int32_t index);
FFA_API const char *ffa_template_doc(int32_t index);
/* Rows of template `index`; 0 <= row. Returns 0 past the end. */
FFA_API int ffa_template_row(int32_t index, int32_t row, ffa_spec_row *out);
/* XXH3-128 (hex) over the text of all embedded templates: names a state of the device code. */
FFA_API void ffa_templates_digest(char out[33]);

/* ---- the kernels of an attention spec ---- */

/* The kernels of one model: loaded on the context's device, or the CPU backend's. Immutable.
 * Thread: any; one thread destroys, last. */
typedef struct ffa_kernels ffa_kernels;

typedef struct ffa_attention_spec {
    uint32_t struct_size;
    ffa_dtype dtype;
    int32_t head_dim;   /* of q and k: 8 to 256 in steps of 8. GPU kernels compute with 64, 96, 128,
                         * 192 or 256 columns, the tensors are as they are */
    uint32_t flags;     /* FFA_SPEC_... */
    int32_t tile_m;     /* query rows a tile; 0: chosen */
    int32_t tile_n;     /* keys a block; 0: chosen */
    int32_t head_dim_v; /* of v and out, likewise; 0: head_dim */
    /* The backward pass's tile; without FFA_SPEC_BACKWARD they must be 0. */
    int32_t backward_tile_m; /* query rows a block; 0: chosen */
    int32_t backward_tile_n; /* keys a tile; 0: chosen. A GPU has one, 64 or 128; and, of 97 to 128
                              * columns without FFA_SPEC_PARALLEL, 256: two blocks share a tile
                              * (docs/kernels.md, Pairs). With both 0 there may be kernels for 128
                              * and for 256, and each plan is for the one that is expected to be
                              * faster on its mask */
    /* Query heads of a kv head that share a tile, row by row: heads_q / heads_kv of all calls, at
     * most 64; 0: each query head has tiles of its own. Tiles of few query rows and all their heads
     * read keys once for all of them, and fit windows better (docs/figures.md); a number that does
     * not divide 64 leaves the rest of a tile's rows idle. tile_m counts rows of heads then. With
     * tile_m and tile_n both 0 there may be kernels for up to three tiles, and each plan is for the
     * one that is expected to be faster on its mask. The CPU backend only checks it. FFA_PACK_AUTO:
     * chosen. All heads of a kv head are packed where they fill a tile well, heads_q and heads_kv
     * are given, tile_m and tile_n are 0, and the kernels can be had; else none are.
     */
    int32_t pack_heads;
    /* Heads of all calls, at most FFA_HEADS_MAX: what FFA_PACK_AUTO and FFA_SPLIT_AUTO need to
     * know. Calls with other heads are refused. Both 0: not known, and calls may have any.
     * (ffa_attention fills them in from its arguments.) */
    int32_t heads_q;
    int32_t heads_kv;
    /* 0: plans may be split over their keys if flags has FFA_SPEC_SPLIT. FFA_SPLIT_AUTO: a plan is
     * split where its mask leaves the device idle and the parts save a good share of the time
     * (ffa_plan_info says whether it was); not a mask with a list for each kv head, and with
     * capacity_bytes of ffa_plan_opts only if that has heads_q. Applies where heads_q and heads_kv
     * are given, and flags has none of FFA_SPEC_SPLIT, _OUT_FP32, _STAGED, _BACKWARD and _PARALLEL.
     * It costs two more kernels to look up, or to compile, on a GPU; where they cannot be had
     * (nothing may be compiled, no NVRTC, no room for them), no plan is split, and that is no
     * error. */
    int32_t split;
    int32_t pad_;
} ffa_attention_spec;
enum {
    /* kernels whose barriers trap after about a second and name themselves */
    FFA_SPEC_DEBUG = 1u << 0,
    /* kernels that cap scores: ffa_forward_args.softcap */
    FFA_SPEC_SOFTCAP = 1u << 1,
    /* out is fp32, whatever the dtype, and can be accumulated into; not with FFA_FP64, whose out is
     * fp64 and can be, too */
    FFA_SPEC_OUT_FP32 = 1u << 2,
    /* kernels for ffa_backward, too; plans made with them serve both passes. */
    FFA_SPEC_BACKWARD = 1u << 3,
    /* with FFA_SPEC_BACKWARD: dq, dk and dv are fp32, whatever the dtype, and can be accumulated
     * into; not with FFA_FP64, whose gradients are fp64 and can be, too */
    FFA_SPEC_GRAD_FP32 = 1u << 4,
    /* with FFA_SPEC_BACKWARD: dq, too, has the same bits in every run, whatever the SMs and the
     * sm_margin. (dk, dv and dsink have on one device; on the CPU all gradients always have.) On a
     * GPU key tiles then add to dq one after another, in the order of the plan; plans are these
     * kernels' own, as their blocks and that order are in them. */
    FFA_SPEC_DETERMINISTIC = 1u << 5,
    /* kernels that keep the largest score of each head: ffa_forward_args.max_logits */
    FFA_SPEC_MAX_LOGITS = 1u << 6,
    /* kernels of a pass in stages (ffa_plan_create_stages), of both passes with FFA_SPEC_BACKWARD:
     * fp32 between stages, the dtype after the last; not with FFA_SPEC_OUT_FP32, whose calls
     * accumulate by themselves */
    FFA_SPEC_STAGED = 1u << 7,
    /* kernels for plans whose tiles are split over their keys wherever that gains anything
     * (ffa_plan_opts.heads_q), and no others; not with FFA_SPEC_OUT_FP32, _STAGED or _BACKWARD. No
     * use on the CPU */
    FFA_SPEC_SPLIT = 1u << 8,
    /* kernels of context-parallel passes (ffa_parallel_forward and _backward on GPUs): keys of
     * other ranks arrive while a pass's one launch runs, and other ranks are told when the
     * gradients of their keys are complete; and the kernels that copy and add up rows. Of both
     * passes with FFA_SPEC_BACKWARD. ffa_forward and ffa_backward take them, too; dk and dv then go
     * through fp32 sums in the workspace. Plans are never split without being asked. With
     * FFA_SPEC_DEBUG a kernel also traps where keys do not arrive within about a second. With
     * FFA_SPEC_STAGED for passes in rounds (memory_bytes of ffa_parallel_plan_opts), or in which
     * queries move. Not with
     * FFA_SPEC_OUT_FP32, _SPLIT or _GRAD_FP32. On the CPU it changes nothing */
    FFA_SPEC_PARALLEL = 1u << 9
};
enum { FFA_PACK_AUTO = -1, FFA_SPLIT_AUTO = -1 };
/* The most query heads of a call, and kv heads; and the most sinks a head. */
enum { FFA_HEADS_MAX = 65536, FFA_SINKS_MAX = 8 };
/* Packing and splitting are chosen; in a zeroed struct they are off. */
#define FFA_ATTENTION_SPEC_INIT                                                                    \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_attention_spec), .pack_heads = FFA_PACK_AUTO,          \
        .split = FFA_SPLIT_AUTO                                                                    \
    }
FFA_API void ffa_attention_spec_init(ffa_attention_spec *spec, size_t bytes);

/*
 * Set fields of a spec from a text such as "head_dim=128,dtype=bf16,pack=8,backward,deterministic":
 * items with commas between them, in any order, an item once. What is not named stays as it is.
 *
 *   head_dim=N or Q:V      head_dim, head_dim_v (N: 0, the same)
 *   dtype=bf16             bf16, fp16, fp32 or fp64
 *   pack=N                 pack_heads; 0: none; auto: FFA_PACK_AUTO
 *   heads=Q:KV             heads_q, heads_kv
 *   tile=MxN               tile_m, tile_n
 *   backward_tile=MxN      backward_tile_m, backward_tile_n
 *   split=auto             `split` is FFA_SPLIT_AUTO; split=0 and split=1: it is 0, and flags has
 *                          FFA_SPEC_SPLIT or not; split: as split=1
 *   backward, deterministic, softcap, max_logits, out_fp32, grad_fp32, staged, parallel, debug
 *                          the flag of this name; with =1 likewise, with =0 it is removed
 *
 * Fails with FFA_INVALID, which names the item; *spec is as it was then. What of a spec does not go
 * together is said by who uses it. Thread: any.
 */
FFA_API ffa_status ffa_attention_spec_parse(ffa_attention_spec *spec, const char *text,
                                            ffa_error *err);

/* Requests for kernels, for ffa_precompile and ffa_compile. Immutable. Thread: any. */
typedef struct ffa_requests ffa_requests;

/*
 * The kernels that ffa_kernels_create would look up for a spec on a GPU, each once: also those
 * without which it gets by (the other tiles of packed heads, a split that was not asked for). With
 * all of them in a layer, a context that may not compile finds whatever the spec needs. Pure: needs
 * no context, no GPU and no compiler, and opens nothing.
 *
 * spec  as for ffa_kernels_create; on the CPU there are no kernels, and this is of the GPU's.
 * arch  "sm_90a"; NULL: the one that is compiled for by default
 * out   receives the requests; NULL on failure. Owner: caller, ffa_requests_destroy().
 * Fails with FFA_INVALID and FFA_UNSUPPORTED as ffa_kernels_create does, FFA_NOMEM.
 */
FFA_API ffa_status ffa_spec_requests(ffa_requests **out, const ffa_attention_spec *spec,
                                     const char *arch, ffa_error *err);
/*
 * The same for a device model, whose tiles its cost table says (ffa/choice.h). Without a
 * device it is ffa_kernels_create's on the context's device; ffa_spec_requests has the default
 * table.
 *
 * device  as for ffa_cost_table_get
 * Fails as ffa_spec_requests does, and with FFA_NOT_FOUND (no table of this model). Thread: any.
 */
FFA_API ffa_status ffa_spec_requests_on(ffa_requests **out, ffa_context *context,
                                        const char *device, const ffa_attention_spec *spec,
                                        const char *arch, ffa_error *err);
/* [*count], at least 1, borrowed until destroy. Settings that a spec leaves at their template's
 * initial value are not listed, but for head_dim and dtype. */
FFA_API const ffa_compile_request *ffa_requests_get(const ffa_requests *requests, int64_t *count);
FFA_API void ffa_requests_destroy(ffa_requests *requests);

/*
 * Resolve a spec's kernels: look up or compile, then load. A cubin that the driver refuses, such as
 * one of a newer toolkit in a shared store, is passed over with a warning: that of another layer or
 * toolchain is taken, else the kernel is compiled here.
 * Fails as ffa_compile does, and with FFA_GPU; FFA_UNSUPPORTED when the driver refuses what was
 * compiled here. Where the context may not compile (or notes misses), all kernels of the spec that
 * are in no layer are noted in the store before it fails, not only the first. Where it may compile,
 * kernels that are in no layer are compiled side by side: one by the caller, the others by threads
 * of the library, one per core and at most 8, which end with the last kernel. (After a failure they
 * finish what they are at, and ffa_close waits for them.)
 * Thread: any. Blocks: up to seconds while compiling.
 */
FFA_API ffa_status ffa_kernels_create(ffa_kernels **out, ffa_context *context,
                                      const ffa_attention_spec *spec, ffa_error *err);
FFA_API void ffa_kernels_destroy(ffa_kernels *kernels);
/* The forward kernel's facts, of several (pack_heads, split) the first one's: ffa_plan_kernel tells
 * which one a plan is for. Layer NONE on the CPU backend. */
FFA_API ffa_status ffa_kernels_info(const ffa_kernels *kernels, ffa_kernel_info *info,
                                    ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
