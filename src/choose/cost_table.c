/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in cost tables, and which one a device gets. The first is the default.
 *
 * A constant that was fitted to measurements stands here with the device it was measured on, and
 * nowhere else. The comment above it says which measurements; choosing.md says what it decides.
 */
#include "choose/cost_table_json.h"

static const struct cost_table tables[] = {
    {
        .device = "NVIDIA H200",
        .sm_count = 132,
        .l2_bytes = 62914560,
        .origin = "measured on an H200, 2026-11-24, 26 and 27; ordered accumulation, backward, on "
                  "an H100",
        /* The rest of L2 is for what passes through, and each half of L2 keeps what the other's SMs
         * read, too. Full masks of 8k and 16k tokens, heads 64:8: 16 to 22 MB are 3 % faster than
         * 32 and 12. */
        .l2_group_bytes = 22 << 20,
        /* Cycles of full, causal, window and packed-document masks of 16k tokens, without softcap
         * and the like; the model is within 1 % of them. At head_dim 128, times of 25 full, causal
         * and packed masks of 512 to 65,536 tokens, heads 64:8, 16:16 and 8:1, one tile forced
         * after the other: of the first three, the tile that is chosen is the fastest, or within 2
         * % of it. The fourth is for windows, where the first does not fit. The others are of
         * tuning sessions (docs/tuning-results.md): 192:128 and 256 of 2026-11-24, heads 32:32, and
         * 16:16 and 64:8; of 256, 64 keys with 128 rows would be 2 to 5 % faster with 16:16 heads,
         * and 5 % slower for windows with 64:8. 96 and 192 of 2026-11-27, heads 16:16, 32:8 and, at
         * 96, 64:8. */
        .tile_count = 14,
        .tiles = { { 64, 64, 1, 3, 128, { 316, 1 }, 0 },
                   { 64, 64, 1, 3, 96, { 251, 1.039 }, 0 },
                   { 96, 96, 1, 3, 80, { 260, 1 }, 0.014246521 },
                   { 96, 96, 1, 2, 64, { 168, 0.859 }, 0.014246521 },
                   { 128, 128, 1, 3, 80, { 420, 1.4 }, 0 },
                   { 128, 128, 1, 2, 128, { 318, 1 }, 0 },
                   { 128, 128, 1, 1, 128, { 231, 0.75 }, 0 },
                   { 128, 128, 1, 2, 80, { 208, 1.073 }, 0 },
                   { 192, 128, 1, 2, 64, { 206, 1.078 }, 0.01481388 },
                   { 192, 128, 1, 2, 128, { 241, 1 }, 0.01481388 },
                   { 192, 192, 1, 2, 64, { 215, 0.994 }, 0.01716301 },
                   { 192, 192, 1, 1, 64, { 131, 0.691 }, 0.01716301 },
                   { 256, 256, 1, 2, 80, { 210, 1 }, 0.023190921 },
                   { 256, 256, 1, 1, 64, { 123, 0.625 }, 0.023190921 } },
        .packed_cost = { 250, 1 },
        .packed_rows_min = 115,
        .worth = 0.03,
        .apart = { .tile_rows_max = 2, .cost_max = 1.1 },
        /* Keys of a whole tile and of a part: causal masks of 1k and 4k tokens, heads 4:1, split
         * and not, and 1 and 128 rows over 64k keys. */
        .split = { .part_blocks_min = 4,
                   .shares = 4,
                   .idle_permille = 800,
                   .whole_keys = 320,
                   .part_keys = 576,
                   .saved_share_min = 0.1 },
        /* `uneven` by the shares of SMs at work that ncu measures: the model's are within 0.02 of
         * them. `kept` by its bytes of device memory; the others by the times of passes that take
         * the same cycles, at the limit of power (bench/results/h200/l2_groups.txt). */
        .l2 = { .uneven = 0.087, .kept = 0.45, .key_cells = 0.75, .turns = 0.02, .worth = 0.003 },
        /* All orders of 98 masks, 2026-11-26 (bench/results/h200/orders.jsonl, run p). Ordered
         * accumulation: from sessions on an H100, but for `drift_ordered`, `drift_heads` and
         * `l2_misses`; three waves have what is half way between two and four. */
        .order = { .item_blocks = 3,
                   .miss_cost = 0.42,
                   .miss_free = 0.13,
                   .item_blocks_ordered = 0.5,
                   .drift_ordered = 0.1,
                   .drift_ordered_lockstep = 0.06,
                   .drift_heads = 7,
                   .alone_ordered = 0.35,
                   .misses = 0.75,
                   .l2_misses = { 0, 0.008, 0.014, 0.02 },
                   .l2_waits = { 0.17, 0.14, 0.07, 0 },
                   .sum_blocks = 1e-4,
                   .worth = 0.005 },
    },
};

const struct cost_table *cost_table_at(int32_t index)
{
    return (size_t)index < sizeof tables / sizeof *tables ? &tables[index] : NULL;
}

const struct cost_table *cost_table_find(const char *device)
{
    for (size_t i = 0; device && i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].device, device))
            return &tables[i];
    return &tables[0];
}

struct choose_device choose_device_of(const struct device_facts *facts)
{
    struct choose_device device = { .facts = *facts, .costs = cost_table_find(facts->name) };

    device.source =
        strcmp(device.costs->device, facts->name) ? FFA_COST_DEFAULT : FFA_COST_BUILT_IN;
    cost_table_digest(device.costs, device.digest);
    return device;
}
