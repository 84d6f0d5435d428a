/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: one device (or the CPU), one kernel cache, one set of options.
 */
#ifndef FFA_CONTEXT_H
#define FFA_CONTEXT_H

#include <ffa/log.h>
#include <ffa/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread: any thread may use a context. One thread closes it, after all other calls have returned
 * and the objects made from it are destroyed.
 * fork(): a child may use a context without a GPU; it reopens the files. If another thread of the
 * parent was compiling at the time of the fork, NVRTC would hang in the child: compiles there fail
 * with FFA_UNSUPPORTED, look-ups work. */
typedef struct ffa_context ffa_context;

/* The same type as cudaStream_t, without its header. */
typedef struct CUstream_st *ffa_stream;

enum {
    FFA_DEVICE_CPU = -1, /* no GPU: plans and compiles; attention runs on the CPU backend */
    FFA_DEVICE_AUTO = -2 /* the first GPU a kernel exists for; else, and where there is no CUDA
                            runtime, the CPU */
};

enum {
    FFA_OPEN_NEVER_COMPILE = 1u << 0,   /* a miss is FFA_NOT_FOUND, and is noted in the store */
    FFA_OPEN_EXACT_TOOLCHAIN = 1u << 1, /* use only kernels of the NVRTC that would compile now */
    FFA_OPEN_CPU_FP64 = 1u << 2,        /* the CPU backend accumulates in fp64 instead of fp32 */
    FFA_OPEN_CACHE_READONLY = 1u << 3,  /* never write the store */
    FFA_OPEN_LOG_MISSES = 1u << 4,      /* note misses in the store although this context compiles
                                           them (ffa_cache_list_misses) */
    FFA_OPEN_RETRY_FAILED = 1u << 5,    /* compile again what failed to, however recently */
    FFA_OPEN_NETWORK_STORE = 1u << 6,   /* write a store even on a network file system. Without it
                                           such a store is read only, with a warning, because locks
                                           do not hold there */
    FFA_OPEN_GROUP_STORE = 1u << 7,     /* trust a store that its group may write if this process is
                                           in the group, and create new ones so. Every member of the
                                           group can then choose the code that all members run */
    FFA_OPEN_COPY_HITS = 1u << 8        /* add kernels found in a bundle to the store, so that each
                                           node reads a bundle on a network once a kernel */
};

/* Zero means "the default" for every field, so a zeroed tail is always valid. */
typedef struct ffa_context_opts {
    uint32_t struct_size;      /* sizeof(ffa_context_opts); the macro sets it */
    uint32_t flags;            /* FFA_OPEN_... */
    const char *cache_path;    /* UTF-8, the store's file (kernels.ffadb); NULL: memory only */
    uint64_t cache_bytes_max;  /* 0: 1 GiB; kernels longest unused go first */
    const char *templates_dir; /* NULL: the text embedded in the library; for development */
    const char *nvrtc_path;    /* NULL: searched for (docs/building.md) */
    const char *nccl_path;     /* NULL: searched for */
    ffa_log_fn log;            /* NULL: silent */
    void *log_user;
    uint32_t cpu_threads; /* CPU backend; 0: one per core */
    uint32_t pad_;
    uint32_t lock_wait_ms;  /* how long to wait for another process that compiles the same kernel
                               before compiling it here; 0: 60 s */
    uint32_t failure_age_s; /* a kernel that failed to compile is not tried again for so long, by
                               any context of the same store and NVRTC: it fails with the same log;
                               0: 300 s */
    const char *const *bundles; /* [bundle_count] files of ffa_bundle_export, looked up in this
                                   order, after the store. One that is not trusted or cannot be
                                   read is ignored, with a warning */
    int64_t bundle_count;       /* at most 64 */
    const char *worker_path;    /* compile in processes of this executable, one a kernel or, in
                                   ffa_precompile, one a thread: the command `ffa`, or one that calls
                                   ffa_worker_main; a worker that hangs, crashes or takes too much
                                   memory is one failed kernel. NULL: in this process */
    uint32_t worker_timeout_ms; /* of one compile; 0: 300 s */
    uint32_t worker_memory_mib; /* what a worker may take to compile, at least 32; 0: 2048 */
    const char *cudart_path;    /* the CUDA runtime; NULL: searched for (docs/building.md). On the
                                   CPU none is opened */
    const char *cost_tables; /* a cost table, or a folder of *.json ones, that choices for a device
                                are made with (docs/choosing.md); "none": built-in ones only. NULL:
                                the folder cost-tables beside the store, then the one that was
                                installed with the library. One that cannot be read, is of other
                                templates or, beside the store, of another user is passed over
                                with a warning. Ranks of a group need equal ones */
} ffa_context_opts;
#define FFA_CONTEXT_OPTS_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_context_opts)                                          \
    }
FFA_API void ffa_context_opts_init(ffa_context_opts *opts, size_t bytes);

/* ---- options from an environment ---- */

/* Owns the texts that ffa_context_opts_from_environment points options at. Immutable. */
typedef struct ffa_environment ffa_environment;

/* The value of a variable, NULL for none: getenv(), or what a program takes for it. Called during
 * the call it is given to; the value is copied before the next one is asked for. */
typedef const char *(*ffa_environment_fn)(void *user, const char *name);

/*
 * Set the options of a context as the command `ffa` does from its environment, so that a program
 * and the command find one store: cache_path (NULL where no place is left), bundles and
 * bundle_count, FFA_OPEN_NEVER_COMPILE for FFA_JIT=never, and cost_tables. The other options, and
 * flags, stay. docs/store.md lists the variables. The library itself reads none: `get` is all it
 * asks.
 *
 * opts  set up by the caller, from the _INIT macro. Its texts are those of *out until ffa_open has
 *       copied them.
 * out   receives the owner of the texts; NULL on failure. Owner: caller, ffa_environment_destroy().
 * Fails with FFA_INVALID (FFA_CACHE_DIR is a URL or too long, FFA_COST_TABLES is too long, FFA_JIT
 * is neither never nor auto), FFA_NOMEM; *opts is as it was then. Thread: any. Looks at folders,
 * makes none.
 */
FFA_API ffa_status ffa_context_opts_from_environment(ffa_context_opts *opts, ffa_environment **out,
                                                     ffa_environment_fn get, void *user,
                                                     ffa_error *err);
FFA_API void ffa_environment_destroy(ffa_environment *environment);

/* Where the store is, and why there. Texts live as long as the environment. */
typedef struct ffa_environment_info {
    uint32_t struct_size;
    int32_t reason_count;
    const char *store_path;     /* "": memory only */
    const char *chosen_by;      /* "FFA_CACHE_DIR", ... "nothing" */
    const char *const *reasons; /* [reason_count], a line a candidate, in order */
} ffa_environment_info;
#define FFA_ENVIRONMENT_INFO_INIT                                                                  \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_environment_info)                                      \
    }
FFA_API void ffa_environment_info_init(ffa_environment_info *info, size_t bytes);

FFA_API ffa_status ffa_environment_info_get(const ffa_environment *environment,
                                            ffa_environment_info *info, ffa_error *err);

/*
 * Open a context.
 *
 * out     receives the context; NULL on failure. Owner: caller, ffa_close().
 * device  a CUDA ordinal, FFA_DEVICE_CPU or FFA_DEVICE_AUTO.
 * opts    NULL: all defaults. Copied, strings too; need not outlive the call.
 *
 * A store that cannot be used causes a warning, never a failure: kernels are then kept in memory.
 * Fails with FFA_INVALID (bad option), FFA_UNSUPPORTED (an option newer than this library; a device
 * without a kernel; for an ordinal, no CUDA runtime >= 12.8: the message lists where it was looked
 * for), FFA_GPU, FFA_IO (templates_dir), FFA_NOMEM.
 * Thread: any. Blocks: may create the CUDA primary context (0.1 to 1 s).
 */
FFA_API ffa_status ffa_open(ffa_context **out, int device, const ffa_context_opts *opts,
                            ffa_error *err);
/* Blocks while threads of an ffa_precompile that ended early finish what they are at. */
FFA_API void ffa_close(ffa_context *context);

/* What a context found. */
typedef struct ffa_context_info {
    uint32_t struct_size;
    int32_t device;   /* CUDA ordinal, or FFA_DEVICE_CPU */
    int32_t sm_count; /* 0 on the CPU */
    int32_t cpu_threads;
    char device_name[128]; /* "NVIDIA H200", or "cpu" */
    char arch[16];         /* what is compiled for by default, "sm_90a", on the CPU too */
    char nvrtc_path[256];  /* empty until NVRTC was opened */
    char nvrtc_version[32];
    char store_path[256];  /* empty: memory only */
    char store_state[160]; /* "ok", "memory only", or why the store is not used */
    int32_t bundle_count;
    int32_t bundles_used;    /* of these; the others were ignored with a warning */
    char cudart_path[256];   /* of the CUDA runtime; empty where none was opened or found */
    char cudart_version[32]; /* "13.0" */
    char driver_version[32]; /* the newest CUDA that the driver runs; empty: no driver, or no
                                runtime to ask it by */
    int32_t device_count;    /* of CUDA devices, ordinals from 0; 0 on the CPU */
    int32_t pad_;
    unsigned char device_uuid[16]; /* tells the GPU from every other one, in all processes, whatever
                                      its ordinal is there; zero on the CPU */
} ffa_context_info;
#define FFA_CONTEXT_INFO_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_context_info)                                          \
    }
FFA_API void ffa_context_info_init(ffa_context_info *info, size_t bytes);

FFA_API ffa_status ffa_context_info_get(ffa_context *context, ffa_context_info *info,
                                        ffa_error *err);

/* Open NVRTC now instead of at the first compile; afterwards ffa_context_info has its path and
 * version. Fails with FFA_UNSUPPORTED, whose message lists where it was looked for. Thread: any. */
FFA_API ffa_status ffa_context_open_compiler(ffa_context *context, ffa_error *err);

/* What this library was built from, and what it finds on this machine. A text is empty where there
 * is no such thing. */
typedef struct ffa_version_info {
    uint32_t struct_size;
    uint32_t pad_;
    char version[32];          /* "0.1.0" */
    char commit[48];           /* "cca73a56adf4", with "-dirty" where files differed from it; or
                                  "unknown" */
    char templates_digest[40]; /* as ffa_templates_digest */
    char cuda_built[32];       /* CUDA's version in the headers of the build, "13.0" */
    char cudart_path[256];     /* the CUDA runtime */
    char cudart_version[32];
    char driver_version[32]; /* the newest CUDA that the driver runs */
    char nvrtc_path[256];
    char nvrtc_version[32];
} ffa_version_info;
#define FFA_VERSION_INFO_INIT                                                                      \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_version_info)                                          \
    }
FFA_API void ffa_version_info_init(ffa_version_info *info, size_t bytes);

/*
 * What `ffa --version` prints.
 *
 * opts  cudart_path and nvrtc_path name the libraries to open; other fields are not looked at.
 *       NULL: both are searched for, as a context without options does.
 *
 * Fails with FFA_INVALID, FFA_UNSUPPORTED (an option newer than this library), FFA_NOMEM. That a
 * library is not found is no failure. Thread: any. Blocks: the first call loads both libraries,
 * which stay loaded.
 */
FFA_API ffa_status ffa_version_info_get(ffa_version_info *info, const ffa_context_opts *opts,
                                        ffa_error *err);

/* Counters since ffa_open; in a forked child, since the fork. Thread: any; each counter is exact,
 * the set is not a snapshot. */
typedef struct ffa_context_stats {
    uint32_t struct_size;
    uint32_t pad_;
    uint64_t hits_table; /* found in the table */
    uint64_t hits_store; /* found in the store */
    uint64_t misses;     /* found in no layer, and not added by another process meanwhile */
    uint64_t compiles;   /* NVRTC runs that succeeded */
    uint64_t compile_fails;
    uint64_t compile_us;   /* time spent compiling */
    uint64_t store_bad;    /* entries refused: length, hash or record did not match */
    uint64_t store_errors; /* operations on the store or a bundle that failed */
    uint64_t forward_calls;
    uint64_t lock_waits;    /* waits for another process that compiled the same kernel, or one that
                               shares its lock; counted when they begin */
    uint64_t lock_timeouts; /* of these, ended by lock_wait_ms */
    uint64_t waited_us;     /* time spent in lock_waits */
    uint64_t lock_errors;   /* locks that could not be taken; the kernel was compiled without */
    uint64_t hits_bundle;   /* found in a bundle */
    uint64_t fails_known;   /* compiles not tried because the same one failed within failure_age_s;
                               not in compile_fails */
    uint64_t backward_calls;
} ffa_context_stats;
#define FFA_CONTEXT_STATS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_context_stats)                                         \
    }
FFA_API void ffa_context_stats_init(ffa_context_stats *stats, size_t bytes);

FFA_API ffa_status ffa_context_stats_get(ffa_context *context, ffa_context_stats *stats,
                                         ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
