/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions and what was fitted from them, as JSON. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_REPORT_H
#define FFA_TUNE_TUNE_REPORT_H

#include "tune/tune_fit.h"

/* Texts are the caller's, mem_free(). Fail with FFA_NOMEM. */
ffa_status tune_report_text(const struct tune_fit *fit, const struct tune_record *records,
                            int32_t count, char **json, ffa_error *err);
/* records [count]: the session of the forward kernels, and that of the backward pass if there is
 * one. samples [count]: about how many will be taken. */
ffa_status tune_preview_text(const struct tune_record *records, const int64_t *samples, int count,
                             char **json, ffa_error *err);
/* All of the records, by id; equal records give equal bytes. */
ffa_status tune_samples_text(const struct tune_record *records, int32_t count, char **json,
                             ffa_error *err);
/* Read them back, checked. *out: caller's, tune_records_finish(). FFA_INVALID: what is wrong. */
ffa_status tune_samples_read(struct tune_record **out, int32_t *count, const char *text,
                             size_t bytes, ffa_error *err);

#endif
