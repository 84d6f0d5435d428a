/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes and errors: what every fallible function of libffa returns.
 *
 * A function that can fail returns ffa_status and takes `ffa_error *err` last. There is no global
 * and no thread-local error state.
 */
#ifndef FFA_STATUS_H
#define FFA_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define FFA_API __attribute__((visibility("default")))
#define FFA_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define FFA_API
#define FFA_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FFA_VERSION_MAJOR 0
#define FFA_VERSION_MINOR 1
#define FFA_VERSION_PATCH 0

/* clang-format off */
#define FFA_STATUS_MAP(X)                                    \
    X(OK,          0, "success")                             \
    X(INVALID,     1, "invalid argument")                    \
    X(NOMEM,       2, "out of memory")                       \
    X(UNSUPPORTED, 3, "not supported by this build or device") \
    X(COMPILE,     4, "kernel did not compile")              \
    X(CACHE,       5, "kernel cache cannot be used")         \
    X(GPU,         6, "CUDA call failed")                    \
    X(COMM,        7, "communicator failed")                 \
    X(TIMEOUT,     8, "deadline passed")                     \
    X(BUG,         9, "internal error")                      \
    X(IO,         10, "file cannot be read or written")      \
    X(NOT_FOUND,  11, "not found")
/* clang-format on */

typedef enum ffa_status {
#define X(name, value, text) FFA_##name = value,
    FFA_STATUS_MAP(X)
#undef X
} ffa_status;

/* What went wrong, in the caller's memory. Any `err` argument may be NULL. It is written on failure
 * only. */
typedef struct ffa_error {
    ffa_status status;
    int32_t native;    /* the code of CUDA, NVRTC, NCCL, SQLite or errno that caused it, or 0 */
    char message[496]; /* one line of UTF-8, always terminated */
} ffa_error;

/* The fixed English text of a status, "unknown status" for any other value. Thread: any. */
FFA_API const char *ffa_status_text(ffa_status status);

/* "0.1.0". Thread: any. */
FFA_API const char *ffa_version(void);

/*
 * Structs with a struct_size are started from a macro:
 *
 *     ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
 *
 * or, in C++ and in languages without macros, by the function that stands below the macro:
 *
 *     ffa_context_opts opts;
 *     ffa_context_opts_init(&opts, sizeof opts);
 *
 * Both give the same values. The function is told the size because the caller may be compiled
 * against another version of the struct than the library; bytes beyond those that the library knows
 * become 0, the default. Thread: any.
 */

/* Free a text or buffer that a function of this library returned for the caller to own. NULL is
 * allowed. Thread: any. */
FFA_API void ffa_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif
