/* SPDX-License-Identifier: Apache-2.0
 *
 * The in-process table: resolved spec -> kernel. A hit takes no lock. Threads that miss the same
 * spec wait for the one that claimed it. Kernels stay until the table is destroyed.
 */
#ifndef FFA_CACHE_TABLE_H
#define FFA_CACHE_TABLE_H

#include "base/base.h"
#include "jit/jit.h"

/* The template text is fixed for a context, so spec and architecture name a kernel as well as its
 * key does, and need no hash of the text. No padding: compared as bytes. */
struct table_key {
    int32_t template_index;
    int32_t values[JIT_SPEC_MAX];
    char arch[16];
};
_Static_assert(sizeof(struct table_key) == 4 + 4 * JIT_SPEC_MAX + 16, "compared as bytes");

void table_key_init(struct table_key *key, const struct jit_spec *spec, const char *arch);

struct table;
struct table_entry;

ffa_status table_create(struct table **out, ffa_error *err);
/* No thread may be in a call. */
void table_destroy(struct table *table);

/* NULL when absent or still in flight. */
const struct jit_kernel *table_find(struct table *table, const struct table_key *key);

/*
 * Look again, and wait where another thread has claimed the key. Exactly one is set on FFA_OK:
 * *found, or *claim, which the caller must settle or fail. Otherwise the status and error of the
 * claim that was waited for, or FFA_NOMEM.
 */
ffa_status table_claim(struct table *table, const struct table_key *key,
                       const struct jit_kernel **found, struct table_entry **claim, ffa_error *err);
/* Publish; *kernel moves into the table. Cannot fail. */
const struct jit_kernel *table_settle(struct table *table, struct table_entry *claim,
                                      struct jit_kernel *kernel);
void table_fail(struct table *table, struct table_entry *claim, const ffa_error *why);

#endif
