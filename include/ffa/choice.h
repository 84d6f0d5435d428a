/* SPDX-License-Identifier: Apache-2.0
 *
 * What decides for a device: cost tables, the constants that choices are made with (which tile,
 * packing, split and order a mask gets).
 */
#ifndef FFA_CHOICE_H
#define FFA_CHOICE_H

#include <ffa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a device has its table. */
typedef enum ffa_cost_source {
    FFA_COST_NONE = 0,     /* no table decides: the CPU backend */
    FFA_COST_TUNED = 1,    /* a table read from a file, of this device model */
    FFA_COST_BUILT_IN = 2, /* a built-in one of this device model */
    FFA_COST_NEAREST = 3,  /* of another model, with at most twice or at least half as many SMs, and
                              bytes of L2: the one that differs least */
    FFA_COST_DEFAULT = 4 /* no table is near, or the device is not known: the first built-in one */
} ffa_cost_source;

/* "none", "tuned", "built-in", "nearest", "default"; "unknown" for other values. Static. */
FFA_API const char *ffa_cost_source_text(ffa_cost_source source);

/* A cost table. Texts are cut to size. */
typedef struct ffa_cost_table_info {
    uint32_t struct_size;
    int32_t source;     /* enum ffa_cost_source; in a list, tuned or built-in */
    char device[32];    /* the model it was fitted on, the first 31 bytes of its name */
    char digest[40];    /* of all numbers in it: equal digests, equal choices */
    char templates[40]; /* ffa_templates_digest() of the kernels it was fitted with; "": not said */
    char origin[160];   /* in words: session, date, driver */
    char path[256];     /* the file; "": built in */
    char skipped[256];  /* why it is not used; "": it may be */
    int32_t sm_count;   /* of the device it was fitted on */
    int32_t pad_;
    int64_t l2_bytes;
    char device_name[128]; /* `device`, not cut: a part of a GPU (MIG) has a long name */
} ffa_cost_table_info;
#define FFA_COST_TABLE_INFO_INIT                                                                   \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_cost_table_info)                                       \
    }
FFA_API void ffa_cost_table_info_init(ffa_cost_table_info *info, size_t bytes);

/* Called for each table; another value than 0 ends the list. */
typedef int (*ffa_cost_table_fn)(void *user, const ffa_cost_table_info *info);

/* All tables of a context: those of files, in the order that they were found, used or not, then the
 * built-in ones, the default first. FFA_INVALID for NULL. Thread: any. */
FFA_API ffa_status ffa_cost_tables_list(ffa_context *context, ffa_cost_table_fn visit, void *user,
                                        ffa_error *err);

/*
 * The table that a device gets.
 *
 * device  a device model, as the driver names it ("NVIDIA H200"); NULL: the context's device, on
 *         the CPU the default.
 * info    receives what the table is.
 * text    NULL, or receives it as JSON (docs/choosing.md). Owner: caller, ffa_free().
 *
 * Fails with FFA_INVALID, FFA_NOT_FOUND (no table of this model: the message lists those there
 * are), FFA_NOMEM. Thread: any.
 */
FFA_API ffa_status ffa_cost_table_get(ffa_context *context, const char *device,
                                      ffa_cost_table_info *info, char **text, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
