/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a cost table. They are refused with a message, or read, and then
 * written and read again to the same text and digest; and choices can be made with what was read.
 */
#include "choose/cost_table_json.h"
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
    require(choose_l2_heads(&with, 1 << 20, 8) >= 1, "no head is in an L2 group");
    require(choose_cost_tiles(tiles, &table, 128, 128, true) <= table.tile_count,
            "more tiles than there are");
    mem_free(text);
    mem_free(text_again);
    return 0;
}
