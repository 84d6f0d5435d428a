/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a cost table. They are refused with a message, or read, and then
 * written and read again to the same text and digest; and choices can be made with what was read.
 */
#include "choose/cost_table_json.h"
#include "choose/l2_heads.h"
#include "choose/tile_choice.h"
#include "fuzz/fuzz.h"

#include <stdio.h>

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_cost_table: %s\n", what);
    abort();
}

/* Three tiles of a causal mask, for eight heads. */
static bool l2_heads_are_chosen(const struct choose_device *device)
{
    static struct plan_tile tiles[3] = { { .sweep_begin = 0, .sweep_count = 1 },
                                         { .sweep_begin = 1, .sweep_count = 1 },
                                         { .sweep_begin = 2, .sweep_count = 1 } };
    static struct plan_sweep sweeps[3] = { { .end = 3 << 15 },
                                           { .end = 2 << 15 },
                                           { .end = 1 << 15 } };
    static int32_t counts[3] = { 768, 512, 256 };
    const struct tile_plan plan = { .shape = { 3 << 15, 3 << 15 },
                                    .tile_m = 128,
                                    .tile_n = 128,
                                    .list_count = 1,
                                    .tiles = tiles,
                                    .tile_count = 3,
                                    .sweeps = sweeps,
                                    .sweep_count = 3,
                                    .block_counts = counts,
                                    .block_count = 1536 };
    const struct l2_query query = { 8, 1, 128, 512, device->costs->packed_cost, 0 };
    const int32_t heads = choose_l2_heads(&plan, &query, device);

    return heads >= 1 && heads <= 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct choose_device device = { .facts = { .sm_count = 132, .l2_bytes = 60 << 20 } };
    const struct cost_tile *tiles[COST_TILES_MAX];
    char digest[DIGEST_TEXT], digest_again[DIGEST_TEXT], *text, *text_again;
    struct choose_device with = device;
    struct cost_table table, again;
    ffa_error err = { FFA_OK, 0, "" };

    if (cost_table_read(&table, (const char *)data, bytes, "here", &err) != FFA_OK) {
        require(!strncmp(err.message, "cost table 'here': ", 19), "refused without a reason");
        require(table.tile_count == 0, "refused, but there is a table");
        return 0;
    }
    require(cost_table_write(&table, &text, &err) == FFA_OK, "a table is not written");
    require(cost_table_read(&again, text, strlen(text), "again", &err) == FFA_OK,
            "what was written is not read");
    require(cost_table_write(&again, &text_again, &err) == FFA_OK, "it is not written again");
    require(!strcmp(text, text_again), "a table changes when it is written");
    cost_table_digest(&table, digest);
    cost_table_digest(&again, digest_again);
    require(!strcmp(digest, digest_again), "a digest changes when a table is written");
    with.costs = &table;
    require(l2_heads_are_chosen(&with), "no head is in an L2 group, or more than there are");
    require(choose_cost_tiles(tiles, &table, 128, 128, true) <= table.tile_count,
            "more tiles than there are");
    mem_free(text);
    mem_free(text_again);
    return 0;
}
