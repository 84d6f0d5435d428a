/* SPDX-License-Identifier: Apache-2.0
 *
 * The device image of a plan: where each array lies, that it holds the host's records, and what an
 * image without records is.
 */
#include "support/suite.h"
#include "tile/plan_image.h"
#include "tile/split.h"

#include <check.h>
#include <stdio.h>

enum { MOST_BLOCKS = 3 };

struct plans {
    struct tile_plan forward, backward;
};

/* A causal mask, split forward and with tickets backward, where asked for. */
static void plans_init(struct plans *plans, bool is_split, bool has_tickets)
{
    const struct tile_options forward = { .tile_m = 16, .tile_n = 32 };
    const struct tile_options backward = { .tile_m = 16, .tile_n = 32, .on_grid = has_tickets };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_parse(&mask, "varlen-causal:300,41,100", NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plans->forward, mask, TILE_OWNS_QUERIES, &forward, NULL), FFA_OK);
    ck_assert_int_eq(tile_build(&plans->backward, mask, TILE_OWNS_KEYS, &backward, NULL), FFA_OK);
    if (is_split)
        ck_assert_int_eq(tile_split(&plans->forward, MOST_BLOCKS, NULL), FFA_OK);
    ck_assert_int_eq(plans->forward.split_count > 0, is_split);
    ck_assert_int_eq(plans->backward.ticket_count > 0, has_tickets);
    ffa_mask_destroy(mask);
}

static void plans_finish(struct plans *plans)
{
    tile_finish(&plans->forward);
    tile_finish(&plans->backward);
}

/* An array of an image: it begins where the one before ends, and holds the host's records. */
static void check_array(const unsigned char *data, int64_t *end, const void *at,
                        const void *records, int64_t count, size_t record_bytes)
{
    ck_assert_ptr_eq(at, data + *end);
    ck_assert_int_eq(*end % (int64_t)record_bytes, 0);
    if (count)
        ck_assert_mem_eq(at, records, (size_t)count * record_bytes);
    *end += count * (int64_t)record_bytes;
}

static void check_pass(unsigned char *data, int64_t *end, const struct plan_image_pass *pass,
                       const struct tile_plan *plan)
{
    check_array(data, end, plan_image_tiles(pass, data), plan->tiles, plan->tile_count, 32);
    check_array(data, end, plan_image_sweeps(pass, data), plan->sweeps, plan->sweep_count, 32);
    check_array(data, end, plan_image_bands(pass, data), plan->bands, plan->band_count, 32);
}

/* The header leads to the arrays. */
static void check_header(const struct plan_header_pass *header, const struct plan_image_pass *pass,
                         const struct tile_plan *plan)
{
    ck_assert_int_eq(header->tile_count, plan->tile_count);
    ck_assert_int_eq((int64_t)header->tiles_at * PLAN_RECORD_BYTES, pass->tiles_at);
    ck_assert_int_eq((int64_t)header->sweeps_at * PLAN_RECORD_BYTES, pass->sweeps_at);
    ck_assert_int_eq((int64_t)header->bands_at * PLAN_RECORD_BYTES, pass->bands_at);
}

/* _i: bit 0 split, bit 1 tickets. */
START_TEST(arrays_follow_one_another)
{
    struct plan_header header;
    struct plan_image image;
    struct plans plans;
    unsigned char *data;
    int64_t end = sizeof header;

    plans_init(&plans, _i & 1, _i & 2);
    image = plan_image_layout(&plans.forward, &plans.backward);
    data = malloc((size_t)image.bytes + 32);
    ck_assert_ptr_nonnull(data);
    memset(data, 0xa5, (size_t)image.bytes + 32);
    plan_image_write(&image, data, &plans.forward, &plans.backward);

    memcpy(&header, data, sizeof header);
    check_header(&header.forward, &image.forward, &plans.forward);
    check_header(&header.backward, &image.backward, &plans.backward);
    ck_assert_int_eq((int64_t)header.tickets_at * PLAN_RECORD_BYTES, image.tickets_at);
    ck_assert_int_eq(header.lockstep != 0, plans.backward.lockstep != TILE_LOCKSTEP_NONE);
    check_array(data, &end, plan_image_splits(&image, data), plans.forward.splits,
                plans.forward.split_count, 32);
    check_pass(data, &end, &image.forward, &plans.forward);
    check_pass(data, &end, &image.backward, &plans.backward);
    check_array(data, &end, plan_image_tickets(&image, data), plans.backward.tickets,
                plans.backward.ticket_count, 8);
    ck_assert_int_eq(end, image.bytes);
    for (int i = 0; i < 32; i++)
        ck_assert_uint_eq(data[end + i], 0xa5);
    free(data);
    plans_finish(&plans);
}
END_TEST

/* The image is the host's records as they are: of a part, where its results go; its weight stays
 * beside it. */
START_TEST(parts_know_their_rows)
{
    struct plan_image image;
    struct plans plans;
    unsigned char *data;
    int64_t parts = 0;

    plans_init(&plans, true, false);
    image = plan_image_layout(&plans.forward, &plans.backward);
    data = malloc((size_t)image.bytes);
    ck_assert_ptr_nonnull(data);
    plan_image_write(&image, data, &plans.forward, &plans.backward);
    for (int64_t i = 0; i < plans.forward.split_count; i++) {
        const struct plan_split *split = &plan_image_splits(&image, data)[i];
        const struct plan_tile *tiles = plan_image_tiles(&image.forward, data);
        int32_t found = 0;

        for (int64_t t = 0; t < plans.forward.tile_count; t++) {
            const int32_t row = split->token - tiles[t].begin;

            if (!(tiles[t].flags & PLAN_TILE_PART) || row < 0 || row >= tiles[t].count)
                continue;
            ck_assert_int_eq((tiles[t].part_row + row - split->part_row) % split->part_step, 0);
            ck_assert_int_le(plans.forward.block_counts[t], MOST_BLOCKS);
            found++;
        }
        ck_assert_int_eq(found, split->parts);
        parts += found;
    }
    ck_assert_int_eq(parts, plans.forward.part_row_count);
    free(data);
    plans_finish(&plans);
}
END_TEST

/* A stage may have nothing to do: a header that says so. */
START_TEST(nothing_is_a_header_long)
{
    const struct tile_plan none = { 0 };
    const struct plan_image image = plan_image_layout(&none, &none);
    struct plan_header header;
    _Alignas(32) unsigned char data[96];

    memset(data, 0xa5, sizeof data);
    ck_assert_int_eq(image.bytes, 64);
    plan_image_write(&image, data, &none, &none);
    for (size_t i = 64; i < sizeof data; i++)
        ck_assert_uint_eq(data[i], 0xa5);
    memcpy(&header, data, sizeof header);
    ck_assert_int_eq(header.forward.tile_count, 0);
    ck_assert_int_eq(header.backward.tile_count, 0);
    ck_assert_ptr_eq(plan_image_tiles(&image.forward, data), data + 64);
    ck_assert_ptr_eq(plan_image_bands(&image.backward, data), data + 64);
    ck_assert_ptr_eq(plan_image_splits(&image, data), data + 64);
    ck_assert_ptr_eq(plan_image_tickets(&image, data), data + 64);
}
END_TEST

/* What an order of lockstep becomes for a kernel. */
START_TEST(lockstep_is_in_the_header)
{
    static const struct {
        enum tile_lockstep of;
        int flags;
    } rows[] = {
        { TILE_LOCKSTEP_NONE, 0 },
        { TILE_LOCKSTEP_ASCENDING, PLAN_LOCKSTEP },
        { TILE_LOCKSTEP_DESCENDING, PLAN_LOCKSTEP | PLAN_LOCKSTEP_DESCENDING },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct tile_plan none = { 0 }, backward = { .lockstep = rows[i].of };
        const struct plan_image image = plan_image_layout(&none, &backward);
        struct tile_plan unlocked = { .is_unlocked = true };
        struct plan_header header;

        plan_image_write(&image, &header, &none, &backward);
        ck_assert_int_eq(header.lockstep, rows[i].flags);
        unlocked.lockstep = rows[i].of;
        plan_image_write(&image, &header, &none, &unlocked);
        ck_assert_int_eq(header.lockstep, 0);
    }
}
END_TEST

/* Indices of the header have 31 bits. */
START_TEST(more_records_than_it_can_count)
{
    const int64_t most = (int64_t)PLAN_RECORD_BYTES * INT32_MAX;
    struct plan_image image = { .bytes = most };
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(plan_image_check(&image, &err), FFA_OK);
    image.bytes += PLAN_RECORD_BYTES;
    ck_assert_int_eq(plan_image_check(&image, &err), FFA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "has 68719476736 bytes, at most 68719476704"));
}
END_TEST

/* Kernels without the backward pass: the forward arrays are all there is. */
START_TEST(one_pass_alone)
{
    const struct tile_plan none = { 0 };
    struct plan_image image, both;
    struct plans plans;

    plans_init(&plans, true, true);
    image = plan_image_layout(&plans.forward, &none);
    both = plan_image_layout(&plans.forward, &plans.backward);
    ck_assert_mem_eq(&image.forward, &both.forward, sizeof image.forward);
    ck_assert_int_eq(image.splits_at, sizeof(struct plan_header));
    ck_assert_int_eq(image.splits_at, both.splits_at);
    ck_assert_int_eq(image.bytes, both.backward.tiles_at);
    plans_finish(&plans);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan image");
    TCase *tc = tcase_create("plan image");

    tcase_add_loop_test(tc, arrays_follow_one_another, 0, 4);
    tcase_add_test(tc, parts_know_their_rows);
    tcase_add_test(tc, nothing_is_a_header_long);
    tcase_add_test(tc, lockstep_is_in_the_header);
    tcase_add_test(tc, more_records_than_it_can_count);
    tcase_add_test(tc, one_pass_alone);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
