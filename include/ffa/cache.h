/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel store as a file: list it, check it, remove from it. A context uses its store by
 * itself; these functions are for maintenance, and need neither a context nor a GPU.
 */
#ifndef FFA_CACHE_H
#define FFA_CACHE_H

#include <ffa/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open store. Thread: any; calls on one handle run one at a time. One thread closes it, after
 * all other calls have returned. */
typedef struct ffa_cache ffa_cache;

enum {
    FFA_CACHE_READONLY = 1u << 0, /* refuse calls that write */
    FFA_CACHE_CREATE = 1u << 1,   /* create the store if it does not exist */
    FFA_CACHE_GROUP = 1u << 2,    /* as FFA_OPEN_GROUP_STORE */
    FFA_CACHE_NETWORK = 1u << 3,  /* write a store even on a network file system. Without it such a
                                     store opens, and calls that write fail with FFA_CACHE */
    FFA_CACHE_FOLLOW_LINKS = 1u << 4 /* with FFA_CACHE_READONLY: the path may be a symbolic link, as
                                        those of ffa_context_opts.bundles may. Each link on the way,
                                        and its folder, is trusted or refused as the file is */
};

/*
 * Open the store or bundle in the file `path`, which must exist unless FFA_CACHE_CREATE is given.
 * A bundle is read-only whatever the flags.
 * Fails with FFA_INVALID (also for a URL), FFA_NOT_FOUND (no such file), FFA_CACHE (not trusted,
 * damaged, newer
 * than this library or no kernel store; the message says which and what to do), FFA_NOMEM.
 * Thread: any. Blocks: file access, and up to 3 s while another process writes; so does every
 * function below.
 */
FFA_API ffa_status ffa_cache_open(ffa_cache **out, const char *path, uint32_t flags,
                                  ffa_error *err);
FFA_API void ffa_cache_close(ffa_cache *cache);

typedef struct ffa_cache_stats {
    uint32_t struct_size;
    int32_t schema;  /* version of the file */
    int64_t kernels; /* entries: a key built by two toolchains counts twice */
    int64_t blobs;   /* distinct cubins */
    int64_t blob_bytes;
    int64_t file_bytes; /* of the file, free_bytes included */
    int64_t free_bytes; /* inside the file, to be reused */
    int64_t compile_us; /* what compiling all entries took */
    int64_t oldest_s;   /* Unix times; 0 in an empty store */
    int64_t newest_s;
    int64_t failures; /* notes (ffa_cache_list_failures, ffa_cache_list_misses) */
    int64_t misses;
} ffa_cache_stats;
#define FFA_CACHE_STATS_INIT                                                                       \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cache_stats)                                           \
    }
FFA_API void ffa_cache_stats_init(ffa_cache_stats *stats, size_t bytes);

FFA_API ffa_status ffa_cache_stats_get(ffa_cache *cache, ffa_cache_stats *stats, ffa_error *err);

/* Totals over the store's life, of the counters of ffa_context_stats. A context that may write the
 * store adds its own when it closes; they are lost where another process holds the store just then.
 * A bundle has none. */
typedef struct ffa_cache_counters {
    uint32_t struct_size;
    uint32_t pad_;
    uint64_t sessions; /* contexts that looked kernels up */
    uint64_t hits_table;
    uint64_t hits_store;
    uint64_t hits_bundle;
    uint64_t misses;
    uint64_t compiles;
    uint64_t compile_fails;
    uint64_t compile_us; /* spent compiling */
    uint64_t saved_us;   /* what the kernels of hits_store and hits_bundle had taken to compile */
} ffa_cache_counters;
#define FFA_CACHE_COUNTERS_INIT                                                                    \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cache_counters)                                        \
    }
FFA_API void ffa_cache_counters_init(ffa_cache_counters *counters, size_t bytes);

FFA_API ffa_status ffa_cache_counters_get(ffa_cache *cache, ffa_cache_counters *counters,
                                          ffa_error *err);

/* One entry; texts live as long as the callback. struct_size, as in all that callbacks are given,
 * is the library's: fields beyond it are not there. */
typedef struct ffa_cache_entry {
    uint32_t struct_size;
    uint32_t pad_;
    const char *key;       /* 32 hexadecimal digits */
    const char *toolchain; /* "nvrtc 13.0 <build>" */
    const char *template_name;
    const char *arch;
    const char *record; /* name=value lines */
    const char *digest; /* of the cubin: XXH3-128, hexadecimal */
    int64_t cubin_bytes;
    int64_t created_s; /* Unix time */
    int64_t used_s;    /* Unix time of the last use, to a day */
    int64_t compile_us;
    int32_t registers;
    int32_t shared_bytes;
    int32_t spill_bytes;
    int32_t advisory_count;
    int32_t threads;
    int32_t is_bad; /* set by ffa_cache_verify: a check failed, do not trust the other fields */
} ffa_cache_entry;

/* Return 0 to go on, anything else to stop. Must not call into the cache. */
typedef int (*ffa_cache_visit)(void *user, const ffa_cache_entry *entry);

/* Visit the entries whose key starts with `prefix` (NULL or "": all), most recently built first.
 * FFA_NOT_FOUND when a prefix matches none; FFA_INVALID for a prefix that is not hexadecimal. */
FFA_API ffa_status ffa_cache_list(ffa_cache *cache, const char *prefix, ffa_cache_visit visit,
                                  void *user, ffa_error *err);

/* A copy of the cubin of the entry `key` (all 32 digits) that `toolchain` built (NULL: the newest).
 * *out: caller's, ffa_free(). FFA_CACHE when its length or hash does not match. */
FFA_API ffa_status ffa_cache_cubin(ffa_cache *cache, const char *key, const char *toolchain,
                                   void **out, size_t *bytes, ffa_error *err);

typedef struct ffa_cache_verdict {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t checked; /* entries */
    int64_t bad;     /* entries whose cubin or facts are not what was stored */
} ffa_cache_verdict;
#define FFA_CACHE_VERDICT_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cache_verdict)                                         \
    }
FFA_API void ffa_cache_verdict_init(ffa_cache_verdict *verdict, size_t bytes);

/* Check every entry and the file's structure; `visit` (may be NULL) receives the bad entries. It
 * changes nothing: a context removes the bad entries that it meets. FFA_CACHE for a damaged
 * structure. */
FFA_API ffa_status ffa_cache_verify(ffa_cache *cache, ffa_cache_verdict *verdict,
                                    ffa_cache_visit visit, void *user, ffa_error *err);

typedef struct ffa_cache_gc_opts {
    uint32_t struct_size;
    uint32_t flags;    /* FFA_CACHE_GC_... */
    int64_t unused_s;  /* remove entries unused for this long, to a day; 0: no limit of age */
    int64_t bytes_max; /* then those unused for longest until the rest fits; 0: no limit of size */
} ffa_cache_gc_opts;
#define FFA_CACHE_GC_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cache_gc_opts)                                         \
    }
FFA_API void ffa_cache_gc_opts_init(ffa_cache_gc_opts *opts, size_t bytes);
/* Remove nothing; report what would be removed. A store that is read-only will do. */
enum { FFA_CACHE_GC_DRY_RUN = 1u << 0 };

typedef struct ffa_cache_gc_report {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t removed; /* entries */
    int64_t kept;
    int64_t bytes_before; /* of the file, without its free bytes */
    int64_t bytes_after;
} ffa_cache_gc_report;
#define FFA_CACHE_GC_REPORT_INIT                                                                   \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cache_gc_report)                                       \
    }
FFA_API void ffa_cache_gc_report_init(ffa_cache_gc_report *report, size_t bytes);

/* Remove entries by age and size, and return the file's space to the file system; `visit` (may be
 * NULL) receives each entry before it goes. FFA_INVALID when the options give neither limit. */
FFA_API ffa_status ffa_cache_gc(ffa_cache *cache, const ffa_cache_gc_opts *opts,
                                ffa_cache_gc_report *report, ffa_cache_visit visit, void *user,
                                ffa_error *err);

/* Remove the entries of the one key that starts with `prefix`, of all toolchains. *removed receives
 * their number; may be NULL. FFA_NOT_FOUND when no key matches, FFA_INVALID when several do. */
FFA_API ffa_status ffa_cache_remove(ffa_cache *cache, const char *prefix, int64_t *removed,
                                    ffa_error *err);
/* Remove all entries, failures and misses, and return the file's space to the file system. */
FFA_API ffa_status ffa_cache_clear(ffa_cache *cache, int64_t *removed, ffa_error *err);

/* ---- notes: failures and misses ---- */

/* A kernel that failed to compile. It is not tried again for a while
 * (ffa_context_opts.failure_age_s). Texts live as long as the callback. */
typedef struct ffa_cache_failure {
    uint32_t struct_size;
    uint32_t pad_;
    const char *key;
    const char *toolchain;
    const char *template_name;
    const char *arch;
    const char *record;  /* name=value lines; "spec.<row>=<value>" are the settings */
    const char *message; /* one line */
    const char *log;     /* the compiler's, at most 64 KiB */
    int64_t failed_s;    /* Unix time */
} ffa_cache_failure;

/* A kernel that was found in no layer. Contexts opened with FFA_OPEN_NEVER_COMPILE or
 * FFA_OPEN_LOG_MISSES note their misses. Texts live as long as the callback. */
typedef struct ffa_cache_miss {
    uint32_t struct_size;
    uint32_t pad_;
    const char *key;
    const char *template_name;
    const char *arch;
    const char *record;
    int64_t noted;   /* how often; at most once an hour */
    int64_t first_s; /* Unix times */
    int64_t last_s;
} ffa_cache_miss;

/* Return 0 to go on, anything else to stop. Must not call into the cache. */
typedef int (*ffa_cache_failure_visit)(void *user, const ffa_cache_failure *failure);
typedef int (*ffa_cache_miss_visit)(void *user, const ffa_cache_miss *miss);

/* Visit the notes, the newest first. A store keeps the last 1000 failures and 4000 misses. */
FFA_API ffa_status ffa_cache_list_failures(ffa_cache *cache, ffa_cache_failure_visit visit,
                                           void *user, ffa_error *err);
FFA_API ffa_status ffa_cache_list_misses(ffa_cache *cache, ffa_cache_miss_visit visit, void *user,
                                         ffa_error *err);

enum { FFA_CACHE_FAILURES = 1u << 0, FFA_CACHE_MISSES = 1u << 1 };
/* Remove the notes of the kinds in `what`, the constants above or'ed. *removed receives their
 * number; may be NULL. */
FFA_API ffa_status ffa_cache_forget(ffa_cache *cache, uint32_t what, int64_t *removed,
                                    ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
