/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost tables of a context: the built-in ones and those read from files, and which one a device
 * gets. In this order: a tuned table of its model, a built-in one of its model, the nearest by SMs
 * and L2 (tuned ones before built-in ones), the default.
 *
 * A file whose table cannot be used is passed over with a warning, and stays in the list with the
 * reason: it never fails a context, and is never passed over in silence. Immutable once opened; any
 * thread may look up.
 */
#ifndef FFA_CHOOSE_COST_TABLES_H
#define FFA_CHOOSE_COST_TABLES_H

#include "base/digest.h"
#include "choose/cost_table.h"
#include <ffa/choice.h>

/* A table, used or not. */
struct cost_entry {
    struct cost_table table; /* zero where it cannot be read */
    char digest[DIGEST_TEXT];
    char path[256];    /* cut to size; "": built in */
    char skipped[256]; /* why it is not used; "": it may be */
    bool is_tuned;
};

struct cost_tables {
    const struct cost_entry *at; /* [count]: tuned ones in the order they were found, then built-in
                                  * ones, the default first */
    int32_t count;
};

enum { COST_FILES_MAX = 64 /* of a folder; of all folders, twice as many */ };

/* Where tables are looked for. */
struct cost_tables_opts {
    const char *path;       /* as cost_tables of ffa_context_opts */
    const char *store_path; /* NULL: memory only */
    struct log log;
};

/* Fails with FFA_NOMEM only. *out: the caller's, cost_tables_close(). Blocks: reads files. */
ffa_status cost_tables_open(struct cost_tables **out, const struct cost_tables_opts *opts,
                            ffa_error *err);
void cost_tables_close(struct cost_tables *tables);

/* Which table a device gets, and why; never NULL. */
const struct cost_entry *cost_tables_find(const struct cost_tables *tables,
                                          const struct device_facts *facts,
                                          ffa_cost_source *source);
/* The table of a model by its name; NULL: there is none that may be used. */
const struct cost_entry *cost_tables_named(const struct cost_tables *tables, const char *device);

/* A device with its table, which lives as long as `tables`. NULL: with a built-in one. */
struct choose_device choose_device_among(const struct cost_tables *tables,
                                         const struct device_facts *facts);

#endif
