/* SPDX-License-Identifier: Apache-2.0
 *
 * Cost tables as JSON: one object whose members are those of struct cost_table, in any order, and
 * "format": "libffa-cost-table" and "version": 5. Older versions are read, too. They have no `l2`,
 * which is that of the default table then, and their `order` is of another model: `drift`,
 * `drift_lockstep`, `misaligned` and `l2_documents` are read and forgotten, and `miss_cost` and
 * `miss_free` are those of the default table. Lists have numbers of L2 groups of 1, 2 and 4 waves:
 * three waves get what is half way between two and four. Versions 1 and 2 have no `misses`, which
 * is zero then, and the list `packed_tiles` of version 1 has tiles of packed heads only.
 *
 * Invariant: what is written reads back to the same bits, and what is read was checked: every
 * member is there once and in its range, there is no other, and the templates can have each tile.
 * Reading and writing refuse the same tables. Thread: any; the functions have no state.
 */
#ifndef FFA_CHOOSE_COST_TABLE_JSON_H
#define FFA_CHOOSE_COST_TABLE_JSON_H

#include "base/digest.h"
#include "choose/cost_table.h"

enum { COST_TABLE_BYTES_MAX = 1 << 20 /* of a text */ };

/* *text: terminated, ends with a line break; NULL on failure. Owner: caller, mem_free. Fails with
 * FFA_INVALID (names the member, its value and its limit), FFA_NOMEM. */
ffa_status cost_table_write(const struct cost_table *table, char **text, ffa_error *err);

/* text [length]: need not be terminated. origin: where it is from, for messages; not
 * out->origin, which is in the text. *out is zero on failure: FFA_INVALID (names origin, member,
 * value and limit), FFA_NOMEM. */
ffa_status cost_table_read(struct cost_table *out, const char *text, size_t length,
                           const char *origin, ffa_error *err);

/* Of all members but `origin`, whatever text they were read from: equal digests, equal choices. */
void cost_table_digest(const struct cost_table *table, char out[DIGEST_TEXT]);

#endif
