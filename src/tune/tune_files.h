/* SPDX-License-Identifier: Apache-2.0
 *
 * The sessions of a file, as all of tuning compares them. Thread: one at a time.
 */
#ifndef FFA_TUNE_TUNE_FILES_H
#define FFA_TUNE_TUNE_FILES_H

#include "cache/tune_store.h"

/* All sessions, by id. *out: caller's, tune_records_finish(). Fails as tune_store_load and
 * cost_table_read do. */
ffa_status tune_records_load(struct tune_store *store, struct tune_record **out, int32_t *count,
                             ffa_error *err);

/* Whether a session may have the text as its mask `index`: it is a mask, of one list of slices. */
ffa_status tune_mask_check(const char *text, int32_t index, ffa_error *err);

#endif
