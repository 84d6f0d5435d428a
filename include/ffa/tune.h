/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuning: measure the forward kernels of a spec on a device, and the orders of its backward pass,
 * and fit the cost table that plans choose by. Offline: nothing here is for the ranks of a job,
 * which must agree.
 *
 * A session compiles every tile that the forward kernel can have, drops those that spill registers
 * or give wrong results, and races the others against what the library chooses now. A backward
 * session does the same with the orders that a backward pass may have, which run the same kernels.
 * All that was measured is kept in a file, from which tables are fitted at any time.
 */
#ifndef FFA_TUNE_H
#define FFA_TUNE_H

#include <ffa/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a session is at. */
typedef enum ffa_tune_phase {
    FFA_TUNE_COMPILE = 1,
    FFA_TUNE_CHECK = 2, /* results against fp64 */
    FFA_TUNE_RACE = 3
} ffa_tune_phase;

/* Something of a session is done. Borrowed: it ends with the call of the function it is given to.
 */
typedef struct ffa_tune_event {
    uint32_t struct_size; /* the library's: fields beyond it are not there */
    ffa_tune_phase phase;
    int64_t done, total;         /* configurations, in a race samples; total is an estimate there */
    int64_t spent_ms, budget_ms; /* of the race */
    int32_t configuration;       /* -1: the event is of none */
    int32_t tile_m, tile_n;      /* rows and keys of its kernel; both 0: the baseline */
    int32_t pad_;
    const char *state, *reason; /* what became of it: "compiled", "spilled", "wrong", or "pending"
                                 * where nobody could compile it; NULL: of none */
    int32_t is_backward;        /* 1: of a backward session; then of an order: */
    int32_t parts;              /* of each kv head's query heads; 0: the baseline */
    int32_t waves;              /* of work items in an L2 group */
    int32_t whole_heads;        /* kv heads that are not divided */
    int32_t is_unlocked;        /* 1: without the lockstep that the mask's tiles can go in */
    int32_t pad2_;
} ffa_tune_event;

enum {
    FFA_TUNE_RESUME = 1u << 0, /* go on with the session of the file; without it there must be none
                                 for this spec */
    /* Compile what a session would, into the context's store, and measure nothing: session_path is
     * NULL, and no GPU is needed where `device` names a model. */
    FFA_TUNE_COMPILE_ONLY = 1u << 1,
    FFA_TUNE_BACKWARD_ONLY = 1u << 2 /* of a spec with FFA_SPEC_BACKWARD no forward session */
};

typedef struct ffa_tune_opts {
    uint32_t struct_size;
    uint32_t flags;           /* FFA_TUNE_... */
    const char *session_path; /* the file of sessions; made where there is none */
    /* [mask_count] texts of ffa_mask_parse, of one list of slices and without files; 0: ten masks
     * from 512 to 32,768 tokens. The first three decide who is dropped first. At most 64. */
    const char *const *masks;
    int64_t mask_count;
    /* [tile_count] texts such as "192x80", rows and keys: time no other ones beside the baseline.
     * 0: all that the kernel can have. */
    const char *const *tiles;
    int64_t tile_count;
    int64_t budget_ms;      /* for timing, over all calls of a session; 0: 300,000 */
    int64_t run_timeout_ms; /* a kernel that takes longer hangs; 0: 10,000 */
    /* NULL, or told of what is done: one at a time, while kernels are compiled from the threads
     * that wait for the workers, else from the thread of the call. Must not call into the context.
     */
    void (*event)(void *user, const ffa_tune_event *event);
    void *user;
    const volatile int *stop; /* NULL, or what a signal handler sets to end the call */
    /* FFA_TUNE_COMPILE_ONLY and ffa_tune_preview: the device model to be measured, one that has a
     * cost table. NULL: the context's device, which is a GPU then. */
    const char *device;
    /* Time only number `part` of each part_count tiles and orders, for several GPUs at once, each
     * with a file of its own, whose sessions are merged; what has none is left out. part_count 0:
     * all; at most 64. */
    int32_t part, part_count;
    /* NULL, or the file that the sessions are merged into later: before anything is measured, its
     * sessions are looked at as those of session_path are. With FFA_TUNE_RESUME what it has is left
     * out, and what neither file has is begun. */
    const char *join_path;
} ffa_tune_opts;
#define FFA_TUNE_OPTS_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_tune_opts)                                             \
    }
FFA_API void ffa_tune_opts_init(ffa_tune_opts *opts, size_t bytes);

typedef struct ffa_tune_outcome {
    uint32_t struct_size;
    uint32_t pad_;
    int32_t is_over;      /* 1: the race ended, or its budget is spent */
    int32_t must_restart; /* 1: a kernel took the device down; FFA_TUNE_RESUME in a new process
                             goes on without it */
    int64_t spent_ms;     /* of the budget, over all calls of the session */
} ffa_tune_outcome;
#define FFA_TUNE_OUTCOME_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_tune_outcome)                                          \
    }
FFA_API void ffa_tune_outcome_init(ffa_tune_outcome *outcome, size_t bytes);

/*
 * Run a session, or go on with one. Whatever is measured is in the file at once: a process may be
 * killed at any point, and FFA_TUNE_RESUME goes on. A kernel during which two processes in a row
 * ended is left out.
 *
 * context  of a GPU that nobody else uses meanwhile; with worker_path kernels are compiled in
 *          workers.
 * spec     head_dim, dtype, heads_q and heads_kv; no tiles, no flags but these: with
 *          FFA_SPEC_BACKWARD there is a forward session and then a backward one, each with half of
 *          the budget and the latter with what the former leaves; where the file has the forward
 *          session already, with FFA_TUNE_RESUME one that is over, only the backward one, with all
 *          of it. A session's budget never becomes less.
 *          FFA_SPEC_DETERMINISTIC is of the backward one.
 * opts     session_path is wanted.
 * outcome  NULL, or receives what came of it, on failure, too.
 *
 * Fails with FFA_INVALID (argument, value and limit named; a session of this spec that is there,
 * or, to resume, is of other masks or tiles, another device, other templates or a backward
 * baseline of another order; a file whose sessions could not be fitted with this one),
 * FFA_UNSUPPORTED (no GPU, or no compiler; what the library chooses now cannot be measured),
 * FFA_TIMEOUT (*stop), FFA_GPU (must_restart, or the device fails), FFA_CACHE (the file),
 * FFA_NOT_FOUND (nothing to resume; a kernel in no layer, and the context may not compile), FFA_IO
 * (the compile worker cannot be started, or templates read), FFA_NOMEM. Thread: one at a time per
 * context and per file. Blocks: as long as compiling takes, and budget_ms.
 */
FFA_API ffa_status ffa_tune_run(ffa_context *context, const ffa_attention_spec *spec,
                                const ffa_tune_opts *opts, ffa_tune_outcome *outcome,
                                ffa_error *err);

/* What ffa_tune_run would measure, as JSON: configurations, masks, samples. Runs, compiles and
 * writes nothing. *json: caller's, ffa_free(). Fails as ffa_tune_run. Thread: any. */
FFA_API ffa_status ffa_tune_preview(ffa_context *context, const ffa_attention_spec *spec,
                                    const ffa_tune_opts *opts, char **json, ffa_error *err);

/* ---- sessions that were run ---- */

/* Sessions of one or several files, and the table that fits them. Immutable. Thread: any; one
 * thread destroys, last. */
typedef struct ffa_tune ffa_tune;

/*
 * Read sessions and fit. The table is the same whatever the order of the files.
 * paths [count], at least 1. out: caller's, ffa_tune_destroy().
 * Fails with FFA_INVALID (sessions of several device models, templates or tables to begin with;
 * none), FFA_NOT_FOUND, FFA_CACHE (no file of sessions, damaged, in use), FFA_NOMEM.
 */
FFA_API ffa_status ffa_tune_open(ffa_tune **out, const char *const *paths, int64_t count,
                                 ffa_error *err);
FFA_API void ffa_tune_destroy(ffa_tune *tune);

typedef struct ffa_tune_info {
    uint32_t struct_size;
    int32_t session_count;
    int32_t is_published; /* 1: the table differs from the one that the sessions began with */
    int32_t pad_;
    int64_t sample_count;
    double gain, noise;        /* over the timed masks; of the head_dim, or the orders, that gain
                                  most */
    char device[128];          /* the device model */
    char templates_digest[40]; /* as ffa_templates_digest */
    char table_digest[40];     /* what ranks compare */
    char samples_digest[40];   /* of the text of all samples */
} ffa_tune_info;
#define FFA_TUNE_INFO_INIT                                                                         \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_tune_info)                                             \
    }
FFA_API void ffa_tune_info_init(ffa_tune_info *info, size_t bytes);
FFA_API ffa_status ffa_tune_info_get(const ffa_tune *tune, ffa_tune_info *info, ffa_error *err);

typedef enum ffa_tune_text_kind {
    FFA_TUNE_REPORT = 1, /* per mask: times, gain and noise; per kernel: costs and residual */
    FFA_TUNE_TABLE = 2,  /* the cost table */
    FFA_TUNE_SAMPLES = 3 /* all sessions with all that was measured, for ffa_tune_import */
} ffa_tune_text_kind;

/* JSON. *json: caller's, ffa_free(). Fails with FFA_INVALID (kind), FFA_NOMEM. */
FFA_API ffa_status ffa_tune_text(const ffa_tune *tune, ffa_tune_text_kind kind, char **json,
                                 ffa_error *err);

/*
 * Add the sessions of the files `paths` [count] to the file `path`, which is made where there is
 * none. All or nothing; a session that is there already stays. *added: NULL, or how many were new.
 * Fails as ffa_tune_open does for all of them together.
 */
FFA_API ffa_status ffa_tune_merge(const char *path, const char *const *paths, int64_t count,
                                  int64_t *added, ffa_error *err);
/* The same of a text of FFA_TUNE_SAMPLES, `bytes` long. FFA_INVALID: it is none. */
FFA_API ffa_status ffa_tune_import(const char *path, const char *text, size_t bytes, int64_t *added,
                                   ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
