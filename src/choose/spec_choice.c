/* SPDX-License-Identifier: Apache-2.0
 *
 * choose_spec: candidates are tried in the order of preference, and the first that fits is taken.
 *
 * What a caller set is never changed. Whether a tile fits is asked of src/jit, which knows the
 * registers and the shared memory that a spec needs; where nothing fits, the last candidate stays,
 * and resolving it says why.
 */
#include "choose/spec_choice.h"

/* The rows of attention_forward that are chosen here. */
static const char CONSUMERS[] = "consumers", TILE_N[] = "tile_n", SLOTS[] = "kv_slots";

enum { TILE_N_MOST = 128, TILE_N_LEAST = 64, TILE_N_STEP = 16, SLOTS_DEFAULT = 2 };

/* Where three consumer warpgroups are faster than two, with the tile_n that leaves them registers:
 * heads that small wait for exponentials. (H200, full and causal at 16k, TFLOP/s: head_dim 96 660
 * and 626, with two and tile_n 144 592 and 591.) */
static const struct {
    int32_t head_dim, tile_n;
} forward_three[] = { { 64, 128 }, { 96, 96 } };

/* Set a row that is open. Values are in the row's limits. */
static void fill(struct jit_spec *spec, const char *row, int32_t value)
{
    if (!jit_spec_get(spec, row))
        (void)jit_spec_put(spec, row, value, NULL);
}

static bool choose_three(struct jit_spec *spec, const struct jit_arch *arch)
{
    const int32_t head_dim = jit_spec_get(spec, "head_dim");

    for (size_t i = 0; i < sizeof forward_three / sizeof *forward_three; i++) {
        struct jit_spec three = *spec;

        if (head_dim != forward_three[i].head_dim || head_dim != jit_spec_get(spec, "head_dim_v"))
            continue;
        fill(&three, CONSUMERS, 3);
        fill(&three, TILE_N, forward_three[i].tile_n);
        fill(&three, SLOTS, SLOTS_DEFAULT);
        if (!jit_spec_fits(&three, arch))
            continue;
        *spec = three;
        return true;
    }
    return false;
}

/* Three warpgroups where they are faster, else two with the widest tile up to 128 keys that fits.
 * Packed rows are few and wait for memory: one warpgroup, more blocks in flight. */
static void choose_forward(struct jit_spec *spec, const struct jit_arch *arch)
{
    const bool is_packed = jit_spec_get(spec, "packed") != 0;
    const bool is_open_n = !jit_spec_get(spec, TILE_N), are_open_slots = !jit_spec_get(spec, SLOTS);
    int32_t tile_n, slots;

    if (!jit_spec_get(spec, CONSUMERS) && !is_packed && choose_three(spec, arch))
        return;
    fill(spec, TILE_N, TILE_N_MOST);
    fill(spec, SLOTS, is_packed ? SLOTS_DEFAULT + 1 : SLOTS_DEFAULT);
    fill(spec, CONSUMERS, is_packed ? 1 : 2);
    tile_n = jit_spec_get(spec, TILE_N);
    slots = jit_spec_get(spec, SLOTS);
    while (is_open_n && tile_n > TILE_N_LEAST && !jit_spec_fits(spec, arch))
        (void)jit_spec_put(spec, TILE_N, tile_n -= TILE_N_STEP, NULL);
    while (are_open_slots && slots > 1 && jit_spec_shared_bytes(spec) > arch->shared_bytes_max)
        (void)jit_spec_put(spec, SLOTS, --slots, NULL);
}

ffa_status choose_spec(struct jit_spec *spec, const char *arch, ffa_error *err)
{
    const struct jit_arch *found;
    ffa_status rc;

    FFA_TRY(jit_arch_find(&found, arch, err));
    FFA_TRY(jit_spec_pad(spec, err));
    if (!strcmp(jit_spec_template(spec), "attention_forward"))
        choose_forward(spec, found);
    rc = jit_spec_resolve(spec, arch, err);
out:
    return rc;
}
