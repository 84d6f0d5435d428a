/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions about keys that arrive in stages (struct tile_stages): where an axis is cut, and which
 * group a key tile is in.
 */
#ifndef FFA_TILE_TILE_STAGES_H
#define FFA_TILE_TILE_STAGES_H

#include "tile/tile.h"

/* The stage of a key. */
int32_t tile_stage_of(const struct tile_stages *stages, int32_t key);
/* The group of a key tile that has this key: 0 own first, then its stage, last of all the other own
 * keys; 0 where all keys are there. */
int32_t tile_group_of(const struct tile_stages *stages, int32_t key);
/* Whether keys [begin, end), not empty, are of two stages; or of two groups, in which a range of
 * `first` and the own keys around it are apart. */
bool tile_crosses_stages(const struct tile_stages *stages, int32_t begin, int32_t end);
bool tile_crosses_groups(const struct tile_stages *stages, int32_t begin, int32_t end);

/* A copy with a `first` of its own, for tile_stages_finish. Fails with FFA_NOMEM. */
ffa_status tile_stages_copy(struct tile_stages *out, const struct tile_stages *from,
                            ffa_error *err);
void tile_stages_finish(struct tile_stages *stages);
/* The keys at which a stage or a range of `first` begins or ends, ascending, within (0, keys): for
 * mem_free. Fails with FFA_NOMEM. */
ffa_status tile_stages_marks(int32_t **out, int64_t *count, const struct tile_stages *stages,
                             ffa_error *err);
/* That ends and ranges are as tile.h says, and the last end is `keys`. */
bool tile_stages_hold(const struct tile_stages *stages, int64_t keys);

#endif
