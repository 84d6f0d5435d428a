/* SPDX-License-Identifier: Apache-2.0
 *
 * The in-process table, from request to kernel. A hit takes no lock. Of the threads that miss the
 * same kernel, one reserves its entry and publishes it, and the others wait. Kernels stay until the
 * table is destroyed.
 */
#ifndef FFA_CACHE_TABLE_H
#define FFA_CACHE_TABLE_H

#include "base/base.h"
#include "jit/jit.h"

struct table;
struct table_entry;

ffa_status table_create(struct table **out, ffa_error *err);
/* No thread may be in a call. */
void table_destroy(struct table *table);

/* Of a request, the table reads spec and architecture only: it need not be completed. The template
 * text is fixed for a context, so these name a kernel as well as its key does. */

/* NULL when absent, only reserved, or refused. */
const struct jit_kernel *table_find(struct table *table, const struct jit_request *request);

/*
 * Look again, and wait where another thread has reserved the entry. Exactly one is set on FFA_OK:
 * *found, or *reserved, which the caller must publish or fail. Otherwise the status and error of
 * the thread that was waited for, or FFA_NOMEM.
 */
ffa_status table_reserve(struct table *table, const struct jit_request *request,
                         const struct jit_kernel **found, struct table_entry **reserved,
                         ffa_error *err);
/* *kernel moves into the table. Cannot fail. */
const struct jit_kernel *table_publish(struct table *table, struct table_entry *reserved,
                                       struct jit_kernel *kernel);
void table_fail(struct table *table, struct table_entry *reserved, const ffa_error *why);

/* The driver does not take this kernel of the table: it is found no more, and another may be
 * published in its place. It stays until the table is destroyed. */
void table_refuse(struct table *table, const struct jit_kernel *kernel);
enum { TABLE_REFUSED_MAX = 16 };
/* The refused kernels of a request, at most TABLE_REFUSED_MAX; returns their number. */
int table_refused(struct table *table, const struct jit_request *request,
                  const struct jit_kernel *out[TABLE_REFUSED_MAX]);

#endif
