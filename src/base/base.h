/* SPDX-License-Identifier: Apache-2.0
 *
 * What every room may use: errors, checked memory, text, arithmetic, log, fault points,
 * clock.
 */
#ifndef FFA_BASE_BASE_H
#define FFA_BASE_BASE_H

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <ffa/log.h>
#include <ffa/status.h>

/* ---- errors ---- */

/* Jump to the single exit label `out` unless `expr` is FFA_OK; needs `ffa_status rc` in scope. */
#define FFA_TRY(expr)                                                                              \
    do {                                                                                           \
        if ((rc = (expr)) != FFA_OK)                                                               \
            goto out;                                                                              \
    } while (0)

/* Fill *err (if any) and return `status`. Message: lower case, no full stop, names the argument,
 * the value and the limit. */
ffa_status error_fail(ffa_error *err, ffa_status status, int32_t native, const char *format, ...)
    FFA_PRINTF(4, 5);
/* The standard FFA_NOMEM: "no memory for <what>". */
ffa_status error_nomem(ffa_error *err, const char *what);

/* Import an option struct that may come from an older or newer header: shorter is zero-filled, a
 * longer one is accepted only if its unknown tail is as the _INIT macros leave it: zero, but for
 * tensors, which are FFA_TENSOR_INIT(NULL). NULL gives all zero. */
ffa_status opts_import(void *dst, size_t dst_size, const void *src, ffa_error *err);
/* Export an info struct to a caller that may be older: at most the caller's struct_size bytes. */
ffa_status opts_export(void *dst, const void *src, size_t src_size, ffa_error *err);
/* The same of an array: the struct_size of the caller's first element is the distance between
 * elements, a multiple of 8; each receives it. */
ffa_status opts_export_all(void *dst, int64_t count, const void *src, size_t src_size,
                           ffa_error *err);

/* A number of an option struct, and the range [min, max] it may lie in. */
struct bounded {
    const char *name;
    int64_t value, min, max;
};
/* FFA_INVALID, naming the first of fields [count] that is not in [min, max]. */
ffa_status check_bounded(const struct bounded *fields, size_t count, ffa_error *err);
/* FFA_INVALID unless heads_kv is in [1, most], and heads_q a multiple of it that is, too. prefix:
 * what stands before both names, such as "model.". */
ffa_status check_heads(const char *prefix, int32_t heads_q, int32_t heads_kv, int32_t most,
                       ffa_error *err);
/* FFA_INVALID where a mask has several lists of slices, but not one a kv head. */
ffa_status check_mask_lists(const char *prefix, int32_t lists, int32_t heads_kv, ffa_error *err);

/* ---- memory ---- */

/* Whether so many bytes more can be had, by what the system says: see base/available.h. */
bool mem_fits(int64_t bytes);
/* FFA_NOMEM, naming `what`, the bytes and what is available, where they cannot be had. Ask before
 * building what is large: `what` is the subject of "... needs about 5.00 GiB of memory". */
ffa_status mem_check(int64_t bytes, const char *what, ffa_error *err);
/* Zeroed, overflow-checked; NULL on overflow, on no memory, where a large array cannot fit, or for
 * a fault point. count 0 gives a pointer that may be freed. */
void *mem_array(size_t count, size_t size);
/* Grow *at (count elements used, *capacity allocated) so that `need` fit; false: no memory, and
 * *at is unchanged. */
bool mem_grow(void **at, int64_t *capacity, int64_t need, size_t size);
char *mem_strdup(const char *text); /* NULL for NULL */
#define mem_free(memory) free(memory)

/* ---- text ---- */

/* A growing, always terminated string. A failed append sets `failed` and keeps the rest. */
struct text {
    char *at;
    size_t bytes; /* without the terminator */
    size_t capacity;
    bool failed;
};
void text_add(struct text *text, const char *format, ...) FFA_PRINTF(2, 3);
void text_add_bytes(struct text *text, const void *bytes, size_t count);
void text_finish(struct text *text);
/* Move the string out (caller frees); NULL if an append failed. */
char *text_take(struct text *text);
/* Format into a fixed array, terminated, cut if need be. */
#define text_copy(array, ...) text_format((array), sizeof(array), __VA_ARGS__)
void text_format(char *at, size_t bytes, const char *format, ...) FFA_PRINTF(3, 4);

/* ---- arithmetic ---- */

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static inline int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Ascending, for qsort and bsearch. */
static inline int compare32(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static inline int compare64(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Items sorted by owner, in four steps: count them in at[owner]; begins_from_counts; place each at
 * at[owner]++; begins_move_back. Then owner i has the items [at[i], at[i + 1]). at [count + 1], all
 * zero at first. */
static inline void begins_from_counts(int64_t *at, int64_t count)
{
    int64_t sum = 0;

    for (int64_t i = 0; i <= count; i++) {
        const int64_t own = at[i];

        at[i] = sum;
        sum += own;
    }
}

static inline void begins_move_back(int64_t *at, int64_t count)
{
    for (int64_t i = count; i > 0; i--)
        at[i] = at[i - 1];
    at[0] = 0;
}

/* ---- log: a sink in the context, silent by default ---- */

struct log {
    ffa_log_fn fn;
    void *user;
};
void log_line(const struct log *log, ffa_log_level level, const char *module, const char *format,
              ...) FFA_PRINTF(4, 5);

/* ---- clock ---- */

int64_t clock_us(void);     /* monotonic */
int64_t clock_unix_s(void); /* wall clock */

/* ---- fault points: tests make the nth call of a kind fail. Compiled to 0 without FFA_FAULTS ----
 */

enum fault_kind {
    FAULT_ALLOC,
    FAULT_FILE,
    FAULT_SQLITE,
    FAULT_NVRTC,
    FAULT_GPU,
    FAULT_LOAD, /* the driver refuses a cubin */
    FAULT_NETWORK,
    FAULT_PROC, /* descriptors have no path in /proc */
    FAULT_COUNT
};

#ifdef FFA_FAULTS
/* The nth call (from 1) of fault_here(kind) from now on answers true, once. nth 0 disarms. */
void fault_arm(enum fault_kind kind, long nth);
/* The first `count` calls of fault_here(kind) from now on answer true. */
void fault_arm_first(enum fault_kind kind, long count);
/* Whether the armed fault has fired since fault_arm. */
bool fault_fired(void);
bool fault_here(enum fault_kind kind);
#else
#define fault_here(kind) ((void)(kind), false)
#endif

#endif
