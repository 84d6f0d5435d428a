/* SPDX-License-Identifier: Apache-2.0
 *
 * Bundles: kernels in one immutable file, to be moved between machines. A bundle is named by its
 * digest. Contexts read it in place, after their own store (option `bundles`). Its format is that
 * of a store: ffa_cache_open opens one, and every function of ffa/cache.h that does not write
 * accepts it.
 *
 * The manifest lists the kernels of a store or bundle, sorted. Its first line names the format;
 * then each line is one kernel: the SHA-256 of the cubin, two spaces, the key, a space, the
 * toolchain. The bundle's digest is the SHA-256 of the manifest, so other tools can sign and
 * compare manifests.
 */
#ifndef FFA_BUNDLE_H
#define FFA_BUNDLE_H

#include <ffa/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which kernels; a field that is NULL admits any. */
typedef struct ffa_bundle_filter {
    uint32_t struct_size;
    uint32_t flags; /* none yet */
    const char *template_name;
    const char *arch;
    const char *toolchain;
    const char *digest;       /* of an import: the bundle's, 64 hexadecimal digits in lower case;
                                 nothing is imported from one with another */
    const volatile int *stop; /* NULL, or what a signal handler sets to something other than 0 to
                                 end the call early, with FFA_TIMEOUT */
} ffa_bundle_filter;
#define FFA_BUNDLE_FILTER_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_bundle_filter)                                         \
    }
FFA_API void ffa_bundle_filter_init(ffa_bundle_filter *filter, size_t bytes);

typedef struct ffa_bundle_info {
    uint32_t struct_size;
    int32_t schema; /* version of the file */
    int64_t kernels;
    int64_t blobs; /* distinct cubins */
    int64_t blob_bytes;
    int64_t file_bytes;
    int64_t created_s; /* Unix time at which its newest kernel was built */
    int64_t left_out;  /* by an export: bad entries, which failed a check */
    char digest[65];   /* SHA-256 of the manifest, hexadecimal */
    char pad_[7];
    int64_t fitting; /* of `kernels`: those of this library's template texts. No others are ever
                        found by its contexts, but by those with a templates_dir */
    /* The library that exported it; "" of one before 0.1, which did not say. */
    char library_version[32];
    char templates_digest[40]; /* its ffa_templates_digest, where all kernels were of its template
                                  texts; else "" */
} ffa_bundle_info;
#define FFA_BUNDLE_INFO_INIT                                                                       \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_bundle_info)                                           \
    }
FFA_API void ffa_bundle_info_init(ffa_bundle_info *info, size_t bytes);

/*
 * A library finds a bundle's kernels where the texts of their templates are its own, whatever its
 * version: `fitting` says of how many that holds. A bundle of another version can be kept beside
 * its own, for programs that still use that version (docs/warming.md).
 */

/*
 * Write the kernels of `from` that pass `filter` (NULL: all) to a new bundle in `folder`, which
 * must exist: "<folder>/ffa-<first 32 digits of the digest>.ffadb", mode 0444. The same kernels
 * give the same manifest and name, and the same store gives the same bytes. The file appears whole
 * or not at all; one of the same name is replaced.
 *
 * path  receives its name. Owner: caller, ffa_free().
 * info  NULL, or receives what was written.
 * Fails with FFA_INVALID, FFA_NOT_FOUND (no kernel passes), FFA_CACHE (either file), FFA_TIMEOUT
 * (stopped: nothing is written), FFA_NOMEM.
 * Thread: any. Blocks: reads and writes all of it.
 */
FFA_API ffa_status ffa_bundle_export(char **path, ffa_cache *from, const char *folder,
                                     const ffa_bundle_filter *filter, ffa_bundle_info *info,
                                     ffa_error *err);

typedef struct ffa_bundle_report {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t added;
    int64_t present;   /* `into` has them already, with the same cubin */
    int64_t conflicts; /* `into` has them already, with another cubin, and keeps its own */
    int64_t bad;       /* failed a check and were left out */
} ffa_bundle_report;
#define FFA_BUNDLE_REPORT_INIT                                                                     \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_bundle_report)                                         \
    }
FFA_API void ffa_bundle_report_init(ffa_bundle_report *report, size_t bytes);

/*
 * Add the kernels of `from`, a bundle or a store, that pass `filter` (NULL: all) to the store
 * `into`. To merge several, import one after the other. Of a bundle, the manifest and
 * its digest are checked first, and nothing is imported where a kernel is not as it lists it, or
 * missing; one whose cubin or facts are damaged is left out. Kernels added before a failure stay,
 * and `report` is filled on failure too. The size limit of `into` is not applied here; the next
 * context that writes it does that. Fails with FFA_INVALID (the same file twice; a digest, and
 * `from` is a store), FFA_CACHE (`into` is read-only, either file, the manifest or its digest),
 * FFA_TIMEOUT (stopped), FFA_NOMEM. Thread: any. Blocks: reads all, writes what is new.
 */
FFA_API ffa_status ffa_bundle_import(ffa_cache *into, ffa_cache *from,
                                     const ffa_bundle_filter *filter, ffa_bundle_report *report,
                                     ffa_error *err);

/* The facts of a bundle. FFA_INVALID for a plain store. */
FFA_API ffa_status ffa_bundle_info_get(ffa_cache *bundle, ffa_bundle_info *info, ffa_error *err);

/* The manifest: of a bundle, the one it carries; of a plain store, one made for this call, which
 * reads all of the store. *out: caller's, ffa_free(). Blocks. */
FFA_API ffa_status ffa_bundle_manifest(ffa_cache *cache, char **out, ffa_error *err);

typedef struct ffa_bundle_verdict {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t checked; /* entries */
    int64_t bad;     /* entries whose cubin or facts differ from what was stored or listed */
    int64_t missing; /* listed in the manifest, but not in the file */
} ffa_bundle_verdict;
#define FFA_BUNDLE_VERDICT_INIT                                                                    \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_bundle_verdict)                                        \
    }
FFA_API void ffa_bundle_verdict_init(ffa_bundle_verdict *verdict, size_t bytes);

/* Check every entry of a bundle by its length, its XXH3 hash and the SHA-256 in the manifest, and
 * check the structure of the file; `visit` (may be NULL) receives the bad entries. Somebody who can
 * write the file can also write its manifest: to know that the bundle is the one that was meant,
 * compare its digest with one from elsewhere. FFA_CACHE for a damaged structure or manifest,
 * FFA_INVALID for a plain store. Blocks: reads all of it. */
FFA_API ffa_status ffa_bundle_verify(ffa_cache *bundle, ffa_bundle_verdict *verdict,
                                     ffa_cache_visit visit, void *user, ffa_error *err);

typedef enum ffa_bundle_side {
    FFA_BUNDLE_ONLY_A = 1,
    FFA_BUNDLE_ONLY_B = 2,
    FFA_BUNDLE_DIFFERENT = 3 /* in both, with different cubins; the entry is that of A */
} ffa_bundle_side;

typedef struct ffa_bundle_difference {
    uint32_t struct_size;
    uint32_t pad_;
    int64_t same;
    int64_t only_a;
    int64_t only_b;
    int64_t different;
} ffa_bundle_difference;
#define FFA_BUNDLE_DIFFERENCE_INIT                                                                 \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_bundle_difference)                                     \
    }
FFA_API void ffa_bundle_difference_init(ffa_bundle_difference *difference, size_t bytes);

/* Return 0 to go on, anything else to stop. Must not call into either cache. */
typedef int (*ffa_bundle_visit)(void *user, ffa_bundle_side side, const ffa_cache_entry *entry);

/* Compare two bundles or stores by (key, toolchain) and cubin. `visit` (may be NULL) receives the
 * differences in the order of the manifest. FFA_INVALID when both are the same file. */
FFA_API ffa_status ffa_bundle_diff(ffa_cache *a, ffa_cache *b, ffa_bundle_difference *out,
                                   ffa_bundle_visit visit, void *user, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
