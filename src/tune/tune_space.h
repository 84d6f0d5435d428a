/* SPDX-License-Identifier: Apache-2.0
 *
 * The configurations of a tuning session. Of a forward one: every tile that the forward template
 * can have for a spec, by its registers and its shared memory. Of a backward one: every order that
 * backward_order_find chooses among for the heads of a spec. Thread: any.
 */
#ifndef FFA_TUNE_TUNE_SPACE_H
#define FFA_TUNE_TUNE_SPACE_H

#include "attention/kernels.h"
#include "cache/tune_store.h"

/* Fill in what is measured: head_dim, head_dim_v, dtype, heads, pack_heads, arch, and the
 * configurations, the baseline first. record: zero; tune_record_finish() whether or not it
 * succeeds. spec: imported. Fails with FFA_INVALID (names the field: a session wants dtype bf16 or
 * fp16, heads_q and heads_kv, no tiles and no flags), FFA_UNSUPPORTED (arch), FFA_NOMEM.
 */
ffa_status tune_space_build(struct tune_record *record, const ffa_attention_spec *spec,
                            const char *arch, const struct choose_device *device, ffa_error *err);

/*
 * The same of a backward session, for a spec with FFA_SPEC_BACKWARD and at most
 * FFA_SPEC_DETERMINISTIC besides; record->masks are there. Orders, that is all of these:
 *
 *   - parts that divide the query heads of a kv head, in L2 groups of 1 to ORDER_WAVES_MAX waves;
 *   - the same without lockstep, where a mask's tiles go in lockstep and the kernels are not
 *     deterministic;
 *   - all but 1, 2, 4 ... kv heads left whole, where the kernels can do that. Where there are more
 *     than TUNE_CONFIGURATIONS_MAX in all, those of the fewest parts, as backward_order_find has
 * it.
 */
ffa_status tune_space_build_orders(struct tune_record *record, const ffa_attention_spec *spec,
                                   const char *arch, const struct choose_device *device,
                                   ffa_error *err);

/* Keep the baseline, and of the others number `part` of each `count`. */
void tune_space_keep_part(struct tune_record *record, int32_t part, int32_t count);

/* Keep the baseline and the tiles texts [count], such as "192x80". FFA_INVALID: one is no tile that
 * the record has, or is there twice. */
ffa_status tune_space_keep(struct tune_record *record, const char *const *texts, int64_t count,
                           ffa_error *err);

/* The spec whose kernels are those of a configuration: one kernel of whole tiles, or, for the
 * baseline, those that plans choose from. All of a backward session have the same. */
ffa_attention_spec tune_space_spec(const struct tune_record *record, int32_t configuration);

#endif
