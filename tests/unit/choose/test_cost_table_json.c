/* SPDX-License-Identifier: Apache-2.0
 *
 * Cost tables as JSON: what is written reads back to the same bits, every kind of wrong text is
 * refused with its member, value and limit, and the digest follows what a table says, not how it is
 * written.
 */
#include "choose/cost_table_json.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>

enum { ROUNDS = 200 };

static char *text_of(const struct cost_table *table)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *text = NULL;

    ck_assert_msg(cost_table_write(table, &text, &err) == FFA_OK, "%s", err.message);
    return text;
}

static void check_same(const struct cost_table *a, const struct cost_table *b)
{
    ck_assert_str_eq(a->device, b->device);
    ck_assert_str_eq(a->templates, b->templates);
    ck_assert_str_eq(a->origin, b->origin);
    ck_assert_int_eq(a->tile_count, b->tile_count);
    ck_assert_mem_eq(a->tiles, b->tiles, sizeof a->tiles);
    ck_assert_mem_eq(&a->packed_cost, &b->packed_cost, sizeof a->packed_cost);
    ck_assert_mem_eq(&a->apart, &b->apart, sizeof a->apart);
    ck_assert_mem_eq(&a->order, &b->order, sizeof a->order);
    ck_assert_mem_eq(&a->l2, &b->l2, sizeof a->l2);
    ck_assert_int_eq(a->split.part_keys, b->split.part_keys);
    ck_assert_double_eq(a->split.saved_share_min, b->split.saved_share_min);
    ck_assert_double_eq(a->worth, b->worth);
    ck_assert_int_eq(a->l2_group_bytes, b->l2_group_bytes);
}

/* Both write the same text: all members are in it. */
static void check_round_trip(const struct cost_table *table)
{
    char *text = text_of(table), *again;
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table back;

    ck_assert_msg(cost_table_read(&back, text, strlen(text), "here", &err) == FFA_OK, "%s",
                  err.message);
    check_same(table, &back);
    again = text_of(&back);
    ck_assert_str_eq(text, again);
    mem_free(text);
    mem_free(again);
}

START_TEST(the_built_in_table_reads_back)
{
    check_round_trip(cost_table_find(NULL));
}
END_TEST

static double draw(struct rng *rng, double max)
{
    const double share = (double)(rng_next(rng) >> 11) / 9007199254740992.0;

    return share * max;
}

START_TEST(numbers_read_back_to_the_bit)
{
    struct rng rng = { 11 };

    for (int round = 0; round < ROUNDS; round++) {
        struct cost_table table = *cost_table_find(NULL);

        for (int32_t i = 0; i < table.tile_count; i++) {
            table.tiles[i].cost.begin = draw(&rng, 1e9);
            table.tiles[i].cost.key = draw(&rng, 1e-6) + DBL_MIN;
            table.tiles[i].unit_us = draw(&rng, 1);
        }
        table.worth = draw(&rng, 1);
        table.l2.key_cells = draw(&rng, 1e6);
        table.order.sum_blocks = draw(&rng, 1e-9);
        table.order.l2_misses[1] = draw(&rng, 1e3);
        table.order.miss_free = round % 2 ? -0.0 : DBL_TRUE_MIN;
        table.split.saved_share_min = draw(&rng, 1);
        check_round_trip(&table);
    }
}
END_TEST

START_TEST(texts_keep_their_characters)
{
    struct cost_table table = *cost_table_find(NULL);

    text_copy(table.origin, "%s", "a \"session\" of \\ 2026, K\xc3\xb6ln");
    text_copy(table.templates, "%s", "0123456789abcdef0123456789abcdef");
    table.tile_count = 0;
    memset(table.tiles, 0, sizeof table.tiles);
    check_round_trip(&table);
}
END_TEST

/* A text is the same where the decimal point is a comma. */
START_TEST(numbers_do_not_follow_the_locale)
{
    char *before = text_of(cost_table_find(NULL)), *after;

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "de_DE"))
        check_round_trip(cost_table_find(NULL));
    after = text_of(cost_table_find(NULL));
    ck_assert_str_eq(before, after);
    (void)setlocale(LC_NUMERIC, "C");
    mem_free(before);
    mem_free(after);
}
END_TEST

/* ---- versions 1 to 4 ---- */

/* The table as version 4 had it: the constants of L2 groups forward were the library's own. */
static json_t *root_of_version_4(const struct cost_table *table)
{
    char *text = text_of(table);
    json_t *root = json_loads(text, 0, NULL);

    ck_assert_int_eq(json_object_del(root, "l2"), 0);
    ck_assert_int_eq(json_object_set_new(root, "version", json_integer(4)), 0);
    mem_free(text);
    return root;
}

/* The table as version 3 had it, without L2 groups of three waves and of another model. */
static json_t *root_of_version_3(const struct cost_table *table)
{
    static const char *const lists[] = { "l2_misses", "l2_documents", "l2_waits" };
    json_t *root = root_of_version_4(table), *order = json_object_get(root, "order");

    ck_assert_int_eq(
        json_object_set_new(order, "l2_documents", json_pack("[f,f,f,f]", 0., 1., 2., 3.)), 0);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        ck_assert_int_eq(json_array_remove(json_object_get(order, lists[i]), 2), 0);
    ck_assert_int_eq(json_object_set_new(order, "drift", json_real(0.055)), 0);
    ck_assert_int_eq(json_object_set_new(order, "drift_lockstep", json_real(0.002)), 0);
    ck_assert_int_eq(json_object_set_new(order, "misaligned", json_real(0.5)), 0);
    ck_assert_int_eq(json_object_del(order, "miss_cost"), 0);
    ck_assert_int_eq(json_object_del(order, "miss_free"), 0);
    ck_assert_int_eq(json_object_set_new(root, "version", json_integer(3)), 0);
    return root;
}

/* The table as version 2 had it, whose orders were of another model. */
static json_t *root_of_version_2(const struct cost_table *table)
{
    json_t *root = root_of_version_3(table), *order = json_object_get(root, "order");

    ck_assert_int_eq(json_object_del(order, "misses"), 0);
    ck_assert_int_eq(json_object_del(order, "misaligned"), 0);
    ck_assert_int_eq(json_object_del(order, "l2_documents"), 0);
    ck_assert_int_eq(json_object_set_new(root, "version", json_integer(2)), 0);
    return root;
}

/* The table as version 1 had it: tiles of packed heads only, with one head_dim. */
static char *text_of_version_1(const struct cost_table *table)
{
    json_t *root = root_of_version_2(table), *tile;
    char *old;
    size_t i;

    json_array_foreach(json_object_get(root, "tiles"), i, tile)
    {
        ck_assert_int_eq(json_object_del(tile, "head_dim_v"), 0);
        ck_assert_int_eq(json_object_del(tile, "packed"), 0);
    }
    ck_assert_int_eq(json_object_set(root, "packed_tiles", json_object_get(root, "tiles")), 0);
    ck_assert_int_eq(json_object_del(root, "tiles"), 0);
    ck_assert_int_eq(json_object_set_new(root, "version", json_integer(1)), 0);
    old = json_dumps(root, 0);
    json_decref(root);
    return old;
}

/* Three waves between two and four; and what the model of today has, as it is built in. */
static struct cost_table with_half_way(struct cost_table table)
{
    double *const lists[] = { table.order.l2_misses, table.order.l2_waits };

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        lists[i][2] = (lists[i][1] + lists[i][3]) / 2;
    table.order.miss_cost = cost_table_find(NULL)->order.miss_cost;
    table.order.miss_free = cost_table_find(NULL)->order.miss_free;
    return table;
}

/* Nor what the model of versions 1 and 2 knew nothing of. */
static struct cost_table without_new(struct cost_table table)
{
    table.order.misses = 0;
    return with_half_way(table);
}

static const struct {
    int waves_then; /* how many numbers a list has */
    const char *says;
} old_lists[] = { { 2, "order.l2_waits has 2 numbers, not 3" },
                  { 3, NULL },
                  { 4, "order.l2_waits has 4 numbers, not 3" } };

/* `l2` is that of the table that is built in, whatever it was before. */
START_TEST(version_4_is_read)
{
    struct cost_table before = *cost_table_find(NULL), table;
    ffa_error err = { FFA_OK, 0, "" };
    json_t *root;
    char *old;

    before.worth = 0.07;
    before.l2.turns = 0.5;
    root = root_of_version_4(&before);
    old = json_dumps(root, 0);
    before.l2 = cost_table_find(NULL)->l2;
    ck_assert_msg(cost_table_read(&table, old, strlen(old), "here", &err) == FFA_OK, "%s",
                  err.message);
    check_same(&before, &table);
    free(old);
    json_decref(root);
}
END_TEST

/* Its lists are of 1, 2 and 4 waves, whatever the constants: what three waves have is found. */
START_TEST(version_3_is_read)
{
    struct cost_table before = *cost_table_find(NULL), table;
    json_t *root, *waits;
    ffa_error err = { FFA_OK, 0, "" };
    char *old;

    before.order.l2_misses[3] = 0.5;
    before.order.miss_cost = 7;
    root = root_of_version_3(&before);
    waits = json_object_get(json_object_get(root, "order"), "l2_waits");
    before = with_half_way(before);
    ck_assert_double_eq_tol(before.order.l2_misses[2], 0.254, 1e-12);
    if (old_lists[_i].waves_then == 2)
        ck_assert_int_eq(json_array_remove(waits, 0), 0);
    if (old_lists[_i].waves_then == 4)
        ck_assert_int_eq(json_array_append_new(waits, json_real(0)), 0);
    old = json_dumps(root, 0);
    ck_assert_int_eq(cost_table_read(&table, old, strlen(old), "here", &err),
                     old_lists[_i].says ? FFA_INVALID : FFA_OK);
    if (old_lists[_i].says)
        ck_assert_msg(strstr(err.message, old_lists[_i].says) != NULL, "%s", err.message);
    else
        check_same(&before, &table);
    free(old);
    json_decref(root);
}
END_TEST

/* Its orders had no misses: they are zero, as in no later table that is built in. */
START_TEST(version_2_is_read)
{
    const struct cost_table built_in = without_new(*cost_table_find(NULL));
    json_t *root = root_of_version_2(cost_table_find(NULL)),
           *order = json_object_get(root, "order");
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table table;
    char *old = json_dumps(root, 0);

    ck_assert_msg(cost_table_read(&table, old, strlen(old), "here", &err) == FFA_OK, "%s",
                  err.message);
    check_same(&built_in, &table);
    free(old);
    ck_assert_int_eq(json_object_set_new(order, "misses", json_real(0.5)), 0);
    old = json_dumps(root, 0);
    ck_assert_int_eq(cost_table_read(&table, old, strlen(old), "here", &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "cost table 'here': order.misses is not a member of cost tables");
    free(old);
    json_decref(root);
}
END_TEST

/* It reads as the table that it was, with the digest of that. */
START_TEST(version_1_is_read)
{
    struct cost_table table, built_in = without_new(*cost_table_find(NULL));
    char *old, was[DIGEST_TEXT], now[DIGEST_TEXT];
    ffa_error err = { FFA_OK, 0, "" };
    int32_t count = 0;

    for (int32_t i = 0; i < built_in.tile_count; i++) /* it had one head_dim a tile */
        if (built_in.tiles[i].head_dim == built_in.tiles[i].head_dim_v)
            built_in.tiles[count++] = built_in.tiles[i];
    memset(&built_in.tiles[count], 0,
           (size_t)(built_in.tile_count - count) * sizeof *built_in.tiles);
    built_in.tile_count = count;
    old = text_of_version_1(&built_in);

    ck_assert_msg(cost_table_read(&table, old, strlen(old), "here", &err) == FFA_OK, "%s",
                  err.message);
    check_same(&built_in, &table);
    cost_table_digest(&built_in, was);
    cost_table_digest(&table, now);
    ck_assert_str_eq(was, now);
    free(old);
}
END_TEST

/* Tiles of heads apart, and of another head_dim of v, are the table's, too. */
START_TEST(all_kinds_of_tiles_read_back)
{
    static const struct cost_tile more[] = { { 128, 128, 0, 2, 128, { 318, 1 }, 0.01 },
                                             { 128, 128, 0, 2, 144, { 330, 0.9 }, 0.01 },
                                             { 192, 128, 1, 2, 96, { 400, 1 }, 0 },
                                             { 192, 128, 0, 2, 96, { 400, 1 }, 0 } };
    struct cost_table table = *cost_table_find(NULL);

    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        table.tiles[table.tile_count++] = more[i];
    check_round_trip(&table);
}
END_TEST

/* ---- refusals ---- */

/* `text` with the first `from` as `to`; caller frees. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    const size_t bytes = strlen(text) + strlen(to) + 1;
    char *out = malloc(bytes);

    ck_assert_msg(at != NULL, "'%s' is not in the text", from);
    ck_assert_ptr_nonnull(out);
    (void)snprintf(out, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static const struct {
    const char *from, *to, *says;
} refusals[] = {
    { "libffa-cost-table", "other", "'here': format is 'other', not 'libffa-cost-table'" },
    { "\"format\": \"libffa-cost-table\",", "", "format is missing" },
    { "\"libffa-cost-table\"", "1", "format is a whole number, not a text" },
    { "\"version\": 5", "\"version\": 6", "version is 6, this library reads versions 1 to 5" },
    { "\"version\": 5", "\"version\": 5.0", "version is a number that is not whole" },
    { "\"version\": 5,", "", "version is missing" },
    { "\"NVIDIA H200\"", "\"\"", "device is empty" },
    { "\"NVIDIA H200\"",
      "\"NVIDIA H200 with a very long name of its own, which no driver gives to a device, as names "
      "have at "
      "most 127 bytes: this one has more than that\"",
      "device is longer than 127 bytes" },
    { "\"NVIDIA H200\"", "\"a\\u001bb\"", "device is 'a\\x1bb', not printable text" },
    { "\"NVIDIA H200\"", "[]", "device is a list, not a text" },
    { "\"templates\": \"\"", "\"templates\": \"12ab\"",
      "templates is '12ab', not 32 hexadecimal digits in lower case, or empty" },
    { "\"sm_count\": 132", "\"sm_count\": 0", "sm_count is 0, not in [1, 65536]" },
    { "\"sm_count\": 132", "\"sm_count\": 4294967428", "sm_count is 4294967428, not in" },
    { "\"sm_count\": 132", "\"sm_count\": 132.0", "sm_count is a number that is not whole, not" },
    { "\"sm_count\": 132,", "", "sm_count is missing" },
    { "\"l2_bytes\"", "\"l2_byte\"", "l2_byte is not a member of cost tables" },
    { "62914560", "-1", "l2_bytes is -1, not in [1, 1099511627776]" },
    { "\"begin\": 316.0", "\"begin\": -1", "tiles[0].cost.begin is -1, not in [0, 1000000000]" },
    { "\"key\": 1.0", "\"key\": 0", "tiles[0].cost.key is 0, not in (0, 1000000]" },
    { "\"key\": 1.0", "\"key\": 1e999", "real number overflow" },
    { "\"key\": 1.0", "\"key\": NaN", "line 11, column 120: invalid token near 'NaN'" },
    { "\"key\": 1.0", "\"key\": \"1\"", "tiles[0].cost.key is a text, not a number" },
    { "\"key\": 1.0", "\"key\": 1, \"keys\": 2", "tiles[0].cost.keys is not a member" },
    { "\"key\": 1.0", "\"key\": 1, \"key\": 2", "duplicate object key" },
    { "\"head_dim\": 64", "\"head_dim\": 72",
      "tiles[0] has head_dim 72, not 64, 96, 128, 192 or 256" },
    { "\"head_dim_v\": 64", "\"head_dim_v\": 72", "tiles[0] has head_dim_v 72, not 64, 96" },
    { "\"packed\": 1", "\"packed\": 2", "tiles[0].packed is 2, not in [0, 1]" },
    { "\"packed\": 1, ", "", "tiles[0].packed is missing" },
    { "\"turns\": 0.02", "\"turns\": -1", "l2.turns is -1, not in [0, 1000]" },
    { "\"version\": 5", "\"version\": 4", "l2 is not a member of cost tables" },
    { "\"version\": 5", "\"version\": 1", "tiles is not a member of cost tables" },
    { "\"tile_n\": 128", "\"tile_n\": 100", "tile_n is 100, not a multiple of 16" },
    { "\"consumers\": 3, \"tile_n\": 80", "\"consumers\": 3, \"tile_n\": 192",
      "tiles[2] cannot be a tile: attention_forward: head_dim" },
    { "\"tile_n\": 96", "\"tile_n\": 128", "tiles[1] is the same tile as number 0" },
    { "\"consumers\": 3", "\"consumers\": 4", "tiles[0].consumers is 4, not in [1, 3]" },
    { "\"packed_rows_min\": 115", "\"packed_rows_min\": 129",
      "packed_rows_min is 129, not in [1, 128]" },
    { "\"worth\": 0.03", "\"worth\": 1.5", "worth is 1.5, not in [0, 1]" },
    { "\"miss_free\": 0.13,", "", "order.miss_free is missing" },
    { "\"miss_free\": 0.13", "\"miss_free\": true",
      "order.miss_free is a truth value, not a number" },
    { "\"miss_free\": 0.13", "\"drift\": 0.13", "order.drift is not a member of cost tables" },
    { "[0.0, 0.008, 0.014, 0.02]", "[0, 1]", "order.l2_misses has 2 numbers, not 4" },
    { "[0.0, 0.008, 0.014, 0.02]", "[0, 1, -2, 3]", "order.l2_misses[2] is -2, not in [0, 1000]" },
    { "[0.0, 0.008, 0.014, 0.02]", "null", "order.l2_misses is null, not a list" },
    { "\"shares\": 4", "\"shares\": 65", "split.shares is 65, not in [1, 64]" },
    { "\"split\": {", "\"split\": 3, \"x\": {", "x is not a member of cost tables" },
};

START_TEST(wrong_texts_are_refused)
{
    char *text = text_of(cost_table_find(NULL));
    char *wrong = edited(text, refusals[_i].from, refusals[_i].to);
    const struct cost_table none = { .sm_count = 0 };
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table table;

    ck_assert_int_eq(cost_table_read(&table, wrong, strlen(wrong), "here", &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, refusals[_i].says) != NULL, "%s", err.message);
    ck_assert_msg(!strncmp(err.message, "cost table 'here': ", 19), "%s", err.message);
    ck_assert_mem_eq(&table, &none, sizeof table);
    mem_free(text);
    free(wrong);
}
END_TEST

/* One more tile than there may be, no object, no JSON, nothing, a cut text, a text too long. */
START_TEST(wrong_wholes_are_refused)
{
    static const struct {
        const char *text, *says;
    } cases[] = { { "[]", "the text is a list, not an object" },
                  { "3", "line 1, column 1" },
                  { "{", "line 1, column 1" },
                  { "", "line 1, column 0" },
                  { "{} {}", "line 1, column 4" } };
    char *text = text_of(cost_table_find(NULL)), *large = calloc(COST_TABLE_BYTES_MAX + 2, 1);
    struct cost_table table;
    ffa_error err;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(
            cost_table_read(&table, cases[i].text, strlen(cases[i].text), "here", &err),
            FFA_INVALID);
        ck_assert_msg(strstr(err.message, cases[i].says) != NULL, "%s", err.message);
    }
    for (size_t bytes = 0; bytes + 2 < strlen(text); bytes += 7)
        ck_assert_int_eq(cost_table_read(&table, text, bytes, "here", &err), FFA_INVALID);
    ck_assert_ptr_nonnull(large);
    ck_assert_int_eq(cost_table_read(&table, large, COST_TABLE_BYTES_MAX + 1, "here", &err),
                     FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "1048577 bytes, the limit is 1048576"));
    free(large);
    mem_free(text);
}
END_TEST

/* What could not be read back is not written. */
START_TEST(wrong_tables_are_not_written)
{
    struct cost_table table = *cost_table_find(NULL);
    ffa_error err = { FFA_OK, 0, "" };
    char *text = NULL;

    table.worth = (double)NAN;
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "cost table 'NVIDIA H200': worth is nan, not in [0, 1]");
    ck_assert_ptr_null(text);
    table.worth = 0;
    table.tile_count = COST_TILES_MAX + 1;
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "tiles has 65 tiles, not in [0, 64]"));
    table.tile_count = 1;
    table.tiles[0].tile_n = 90;
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "tiles[0] cannot be a tile"));
    table.tiles[0].tile_n = 64;
    memset(table.device, 'x', sizeof table.device);
    ck_assert_int_eq(cost_table_write(&table, &text, &err), FFA_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "device is longer than 127 bytes"));
}
END_TEST

START_TEST(writing_survives_no_memory)
{
    ffa_error err;
    char *text;

    for (long nth = 1;; nth++) {
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = cost_table_write(cost_table_find(NULL), &text, &err);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            ck_assert_int_gt((int)nth, 1);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(text);
    }
    fault_arm(FAULT_ALLOC, 0);
    mem_free(text);
}
END_TEST

/* ---- digest ---- */

static void digest_of_text(const char *text, char out[DIGEST_TEXT])
{
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table table;

    ck_assert_msg(cost_table_read(&table, text, strlen(text), "here", &err) == FFA_OK, "%s",
                  err.message);
    cost_table_digest(&table, out);
}

/* Members in another order, other blanks, whole numbers for reals, another origin. */
START_TEST(the_digest_is_of_what_is_said)
{
    char *text = text_of(cost_table_find(NULL)), want[DIGEST_TEXT], got[DIGEST_TEXT];
    json_t *root = json_loads(text, 0, NULL);
    char *sorted = json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT);
    char *whole = edited(text, "316.0", "316"), *zero = edited(text, "[0.0,", "[-0.0,");
    char *origin = edited(text, "measured", "guessed");

    cost_table_digest(cost_table_find(NULL), want);
    digest_of_text(text, got);
    ck_assert_str_eq(got, want);
    digest_of_text(sorted, got);
    ck_assert_str_eq(got, want);
    digest_of_text(whole, got);
    ck_assert_str_eq(got, want);
    digest_of_text(zero, got);
    ck_assert_str_eq(got, want);
    digest_of_text(origin, got);
    ck_assert_str_eq(got, want);
    json_decref(root);
    mem_free(text);
    free(sorted);
    free(whole);
    free(zero);
    free(origin);
}
END_TEST

/* The leaf number `*index` of the tree, or NULL; *index counts down. */
static json_t *number_at(json_t *tree, int *index)
{
    const char *name;
    json_t *value, *found = NULL;
    size_t i;

    if (json_is_number(tree))
        return (*index)-- == 0 ? tree : NULL;
    json_array_foreach(tree, i, value) if (!found) found = number_at(value, index);
    json_object_foreach(tree, name, value) if (!found) found = number_at(value, index);
    return found;
}

/* Every number, nudged one after the other, changes it; those that may not be nudged so (the
 * version, tiles) are refused. */
START_TEST(every_number_changes_the_digest)
{
    char *text = text_of(cost_table_find(NULL)), was[DIGEST_TEXT], now[DIGEST_TEXT];
    int changed = 0, refused = 0;

    cost_table_digest(cost_table_find(NULL), was);
    for (int i = 0;; i++) {
        json_t *root = json_loads(text, 0, NULL);
        int index = i;
        json_t *number = number_at(root, &index);
        struct cost_table table;
        char *nudged;

        if (!number) {
            json_decref(root);
            break;
        }
        if (json_is_integer(number))
            ck_assert_int_eq(json_integer_set(number, json_integer_value(number) + 1), 0);
        else
            ck_assert_int_eq(json_real_set(number, json_real_value(number) * (1 + 1e-15) + 1e-15),
                             0);
        nudged = json_dumps(root, 0);
        if (cost_table_read(&table, nudged, strlen(nudged), "here", NULL) == FFA_OK) {
            cost_table_digest(&table, now);
            ck_assert_msg(strcmp(was, now) != 0, "number %d", i);
            changed++;
        } else {
            refused++;
        }
        free(nudged);
        json_decref(root);
    }
    ck_assert_int_ge(changed, 58);
    ck_assert_int_le(refused, 1 + 5 * cost_table_find(NULL)->tile_count);
    mem_free(text);
}
END_TEST

START_TEST(tiles_and_texts_change_the_digest)
{
    struct cost_table table = *cost_table_find(NULL);
    char was[DIGEST_TEXT], now[DIGEST_TEXT];

    cost_table_digest(&table, was);
    table.tiles[7].tile_n = 64;
    cost_table_digest(&table, now);
    ck_assert_str_ne(was, now);
    table = *cost_table_find(NULL);
    table.tile_count--;
    cost_table_digest(&table, now);
    ck_assert_str_ne(was, now);
    table = *cost_table_find(NULL);
    text_copy(table.device, "%s", "NVIDIA H100");
    cost_table_digest(&table, now);
    ck_assert_str_ne(was, now);
    table = *cost_table_find(NULL);
    text_copy(table.templates, "%s", "0123456789abcdef0123456789abcdef");
    cost_table_digest(&table, now);
    ck_assert_str_ne(was, now);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost_table_json");
    TCase *tc = tcase_create("cost_table_json");

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, the_built_in_table_reads_back);
    tcase_add_test(tc, numbers_read_back_to_the_bit);
    tcase_add_test(tc, texts_keep_their_characters);
    tcase_add_test(tc, numbers_do_not_follow_the_locale);
    tcase_add_test(tc, version_1_is_read);
    tcase_add_test(tc, version_2_is_read);
    tcase_add_test(tc, version_4_is_read);
    tcase_add_loop_test(tc, version_3_is_read, 0, sizeof old_lists / sizeof *old_lists);
    tcase_add_test(tc, all_kinds_of_tiles_read_back);
    tcase_add_loop_test(tc, wrong_texts_are_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(tc, wrong_wholes_are_refused);
    tcase_add_test(tc, wrong_tables_are_not_written);
    tcase_add_test(tc, writing_survives_no_memory);
    tcase_add_test(tc, the_digest_is_of_what_is_said);
    tcase_add_test(tc, every_number_changes_the_digest);
    tcase_add_test(tc, tiles_and_texts_change_the_digest);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
