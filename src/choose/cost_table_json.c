/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing, reading and the digest go through one list of fields, so that a member that is in the
 * list is in all three. Numbers are written with as few digits as read back to the same bits; they
 * and texts are formatted by jansson, which does not follow the locale.
 */
#include "choose/cost_table_json.h"

#include "base/printable.h"
#include "choose/spec_choice.h"

#include <jansson.h>
#include <stdio.h>

static const char FORMAT[] = "libffa-cost-table";
enum { VERSION = 5, PATH_BYTES = 64, INDENT = 2 };

enum kind {
    KIND_TEXT,    /* length: bytes of the array */
    KIND_NOTE,    /* a text that the digest leaves out */
    KIND_INT32,   /* in [min, max] */
    KIND_INT64,   /* the same */
    KIND_REAL,    /* the same */
    KIND_ABOVE,   /* a real in (min, max] */
    KIND_REALS,   /* of L2 groups of 1 to ORDER_WAVES_MAX waves, each in [min, max] */
    KIND_REALS_3, /* of versions 1 to 3: of L2 groups of 1, 2 and 4 waves */
    KIND_PAST,    /* a real of versions 1 to 3, which is read and forgotten */
    KIND_PAST_3,  /* likewise, of L2 groups of 1, 2 and 4 waves */
    KIND_OBJECT,  /* of `members` */
    KIND_TILES    /* the list of tiles, each of `members` */
};

struct field {
    const char *name; /* NULL: the list ends */
    enum kind kind;
    size_t offset;
    double min, max;
    int32_t length;
    const struct field *members;
};

#define MEMBER_BYTES(type, member) ((int32_t)sizeof(((type *)NULL)->member))
#define TEXT(type, member, kind)                                                                   \
    {                                                                                              \
#member, kind, offsetof(type, member), 0, 0, MEMBER_BYTES(type, member), NULL              \
    }
#define NUMBER(type, member, kind, min, max)                                                       \
    {                                                                                              \
#member, kind, offsetof(type, member), min, max, 0, NULL                                   \
    }
#define OBJECT(type, member, kind, members)                                                        \
    {                                                                                              \
#member, kind, offsetof(type, member), 0, 0, 0, members                                    \
    }
#define END                                                                                        \
    {                                                                                              \
        NULL, KIND_TEXT, 0, 0, 0, 0, NULL                                                          \
    }

static const struct field cost_fields[] = {
    NUMBER(struct tile_cost, begin, KIND_REAL, 0, 1e9),
    NUMBER(struct tile_cost, key, KIND_ABOVE, 0, 1e6),
    END,
};

#define TILE_FIELDS                                                                                \
    NUMBER(struct cost_tile, consumers, KIND_INT32, 1, 3),                                         \
        NUMBER(struct cost_tile, tile_n, KIND_INT32, 64, 192),                                     \
        OBJECT(struct cost_tile, cost, KIND_OBJECT, cost_fields),                                  \
        NUMBER(struct cost_tile, unit_us, KIND_REAL, 0, 1e6), END
static const struct field tile_fields[] = {
    NUMBER(struct cost_tile, head_dim, KIND_INT32, 64, 256),
    NUMBER(struct cost_tile, head_dim_v, KIND_INT32, 64, 256),
    NUMBER(struct cost_tile, packed, KIND_INT32, 0, 1),
    TILE_FIELDS,
};
/* Of version 1: packed heads only, head_dim_v as head_dim. */
static const struct field tile_fields_1[] = {
    NUMBER(struct cost_tile, head_dim, KIND_INT32, 64, 256),
    TILE_FIELDS,
};

static const struct field apart_fields[] = {
    NUMBER(struct apart_costs, tile_rows_max, KIND_ABOVE, 0, 1e9),
    NUMBER(struct apart_costs, cost_max, KIND_ABOVE, 0, 1e9),
    END,
};

static const struct field split_fields[] = {
    NUMBER(struct split_costs, part_blocks_min, KIND_INT32, 1, 1e6),
    NUMBER(struct split_costs, shares, KIND_INT32, 1, 64),
    NUMBER(struct split_costs, idle_permille, KIND_INT32, 0, 1000),
    NUMBER(struct split_costs, whole_keys, KIND_INT32, 0, 1e9),
    NUMBER(struct split_costs, part_keys, KIND_INT32, 0, 1e9),
    NUMBER(struct split_costs, saved_share_min, KIND_REAL, 0, 1),
    END,
};

static const struct field l2_fields[] = {
    NUMBER(struct l2_costs, uneven, KIND_REAL, 0, 1),
    NUMBER(struct l2_costs, kept, KIND_REAL, 0, 1e3),
    NUMBER(struct l2_costs, key_cells, KIND_REAL, 0, 1e6),
    NUMBER(struct l2_costs, turns, KIND_REAL, 0, 1e3),
    NUMBER(struct l2_costs, worth, KIND_REAL, 0, 1),
    END,
};

/* Of all versions. */
#define ORDERED_FIELDS                                                                             \
    NUMBER(struct order_costs, item_blocks_ordered, KIND_REAL, 0, 1e6),                            \
        NUMBER(struct order_costs, drift_ordered, KIND_REAL, 0, 1e3),                              \
        NUMBER(struct order_costs, drift_ordered_lockstep, KIND_REAL, 0, 1e3),                     \
        NUMBER(struct order_costs, drift_heads, KIND_REAL, 0, 1e6),                                \
        NUMBER(struct order_costs, alone_ordered, KIND_REAL, 0, 1e3)
static const struct field order_fields[] = {
    NUMBER(struct order_costs, item_blocks, KIND_REAL, 0, 1e6),
    NUMBER(struct order_costs, miss_cost, KIND_REAL, 0, 1e3),
    NUMBER(struct order_costs, miss_free, KIND_REAL, 0, 1e3),
    ORDERED_FIELDS,
    NUMBER(struct order_costs, misses, KIND_REAL, 0, 1e3),
    NUMBER(struct order_costs, l2_misses, KIND_REALS, 0, 1e3),
    NUMBER(struct order_costs, l2_waits, KIND_REALS, 0, 1e3),
    NUMBER(struct order_costs, sum_blocks, KIND_REAL, 0, 1e6),
    NUMBER(struct order_costs, worth, KIND_REAL, 0, 1),
    END,
};

/* Of versions before 4, which had no L2 groups of three waves and another model of L2. */
#define PAST(name, kind)                                                                           \
    {                                                                                              \
        name, kind, 0, 0, 1e3, 0, NULL                                                             \
    }
#define ORDER_FIELDS_2                                                                             \
    NUMBER(struct order_costs, item_blocks, KIND_REAL, 0, 1e6), ORDERED_FIELDS,                    \
        PAST("drift", KIND_PAST), PAST("drift_lockstep", KIND_PAST),                               \
        NUMBER(struct order_costs, l2_misses, KIND_REALS_3, 0, 1e3),                               \
        NUMBER(struct order_costs, l2_waits, KIND_REALS_3, 0, 1e3),                                \
        NUMBER(struct order_costs, sum_blocks, KIND_REAL, 0, 1e6),                                 \
        NUMBER(struct order_costs, worth, KIND_REAL, 0, 1)
static const struct field order_fields_3[] = {
    ORDER_FIELDS_2,
    NUMBER(struct order_costs, misses, KIND_REAL, 0, 1e3),
    PAST("misaligned", KIND_PAST),
    PAST("l2_documents", KIND_PAST_3),
    END,
};
/* `misses` was not known: it is zero. */
static const struct field order_fields_2[] = {
    ORDER_FIELDS_2,
    END,
};

#define TABLE_FIELDS(tiles_field, order_list)                                                      \
    TEXT(struct cost_table, device, KIND_TEXT),                                                    \
        NUMBER(struct cost_table, sm_count, KIND_INT32, 1, 65536),                                 \
        NUMBER(struct cost_table, l2_bytes, KIND_INT64, 1, 1099511627776),                         \
        TEXT(struct cost_table, templates, KIND_TEXT), TEXT(struct cost_table, origin, KIND_NOTE), \
        NUMBER(struct cost_table, l2_group_bytes, KIND_INT64, 1, 1099511627776), tiles_field,      \
        OBJECT(struct cost_table, packed_cost, KIND_OBJECT, cost_fields),                          \
        NUMBER(struct cost_table, packed_rows_min, KIND_INT32, 1, 128),                            \
        NUMBER(struct cost_table, worth, KIND_REAL, 0, 1),                                         \
        OBJECT(struct cost_table, apart, KIND_OBJECT, apart_fields),                               \
        OBJECT(struct cost_table, split, KIND_OBJECT, split_fields),                               \
        OBJECT(struct cost_table, order, KIND_OBJECT, order_list)
#define TILES OBJECT(struct cost_table, tiles, KIND_TILES, tile_fields)
static const struct field table_fields[] = {
    TABLE_FIELDS(TILES, order_fields),
    OBJECT(struct cost_table, l2, KIND_OBJECT, l2_fields),
    END,
};
/* Of versions before, which are read and not written. `l2` was not known: it is the default's. */
static const struct field table_fields_4[] = { TABLE_FIELDS(TILES, order_fields), END };
static const struct field table_fields_3[] = { TABLE_FIELDS(TILES, order_fields_3), END };
static const struct field table_fields_2[] = { TABLE_FIELDS(TILES, order_fields_2), END };
#define TILES_1                                                                                    \
    {                                                                                              \
        "packed_tiles", KIND_TILES, offsetof(struct cost_table, tiles), 0, 0, 0, tile_fields_1     \
    }
static const struct field table_fields_1[] = { TABLE_FIELDS(TILES_1, order_fields_2), END };

static const struct field *const fields_of_version[VERSION + 1] = { NULL,           table_fields_1,
                                                                    table_fields_2, table_fields_3,
                                                                    table_fields_4, table_fields };

static const void *member_of(const void *object, const struct field *field)
{
    return (const char *)object + field->offset;
}

static double real_at(const void *object, const struct field *field, int32_t index)
{
    return ((const double *)member_of(object, field))[index];
}

static int64_t integer_at(const void *object, const struct field *field)
{
    return field->kind == KIND_INT32 ? *(const int32_t *)member_of(object, field)
                                     : *(const int64_t *)member_of(object, field);
}

/* ---- messages ---- */

/* A member of the table that is written or read. */
struct place {
    const char *origin;
    char path[PATH_BYTES];
    ffa_error *err;
};

static struct place place_in(const struct place *at, const char *name)
{
    struct place inner = { .origin = at->origin, .err = at->err };

    text_copy(inner.path, "%s%s%s", at->path, *at->path ? "." : "", name);
    return inner;
}

static struct place place_of(const struct place *at, size_t index)
{
    struct place inner = { .origin = at->origin, .err = at->err };

    text_copy(inner.path, "%s[%zu]", at->path, index);
    return inner;
}

static ffa_status fail(const struct place *at, const char *format, ...) FFA_PRINTF(2, 3);
static ffa_status fail(const struct place *at, const char *format, ...)
{
    char line[240], from[100], path[PATH_BYTES], what[240];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    text_printable(from, sizeof from, at->origin, "");
    text_printable(path, sizeof path, at->path, "");
    text_printable(what, sizeof what, line, "");
    return error_fail(at->err, FFA_INVALID, 0, "cost table '%s': %s%s%s", from, path,
                      *path ? " " : "", what);
}

/* ---- checks, of what is read and of what is written ---- */

static ffa_status check_number(const struct place *at, const struct field *field, double value)
{
    const bool is_above = field->kind == KIND_ABOVE;

    if (value <= field->max && (is_above ? value > field->min : value >= field->min))
        return FFA_OK;
    return fail(at, "is %.10g, not in %c%.15g, %.15g]", value, is_above ? '(' : '[', field->min,
                field->max);
}

static ffa_status check_text(const struct place *at, const struct field *field, const char *text)
{
    const size_t bytes = strnlen(text, (size_t)field->length);
    char shown[256];

    if (bytes >= (size_t)field->length)
        return fail(at, "is longer than %d bytes", (int)field->length - 1);
    text_printable(shown, sizeof shown, text, "");
    if (strcmp(shown, text) != 0)
        return fail(at, "is '%s', not printable text", shown);
    if (field->offset == offsetof(struct cost_table, device) && !bytes)
        return fail(at, "is empty, not the name of a device model");
    if (field->offset == offsetof(struct cost_table, templates) && bytes &&
        (bytes != DIGEST_TEXT - 1 || strspn(text, "0123456789abcdef") != bytes))
        return fail(at, "is '%s', not %d hexadecimal digits in lower case, or empty", text,
                    DIGEST_TEXT - 1);
    return FFA_OK;
}

/* The templates can have the tile, and no tile before it is the same. */
static ffa_status check_tile(const struct place *at, const struct cost_table *table, int32_t index)
{
    const struct cost_tile *tile = &table->tiles[index];
    ffa_error found = { FFA_OK, 0, "" };
    struct jit_spec spec;
    ffa_status rc;

    if (jit_columns(tile->head_dim) != tile->head_dim)
        return fail(at, "has head_dim %d, not 64, 96, 128, 192 or 256", tile->head_dim);
    if (jit_columns(tile->head_dim_v) != tile->head_dim_v)
        return fail(at, "has head_dim_v %d, not 64, 96, 128, 192 or 256", tile->head_dim_v);
    FFA_TRY(jit_spec_init(&spec, "attention_forward", &found));
    FFA_TRY(jit_spec_put(&spec, "head_dim", tile->head_dim, &found));
    FFA_TRY(jit_spec_put(&spec, "head_dim_v", tile->head_dim_v, &found));
    FFA_TRY(jit_spec_put(&spec, "consumers", tile->consumers, &found));
    FFA_TRY(jit_spec_put(&spec, "tile_n", tile->tile_n, &found));
    FFA_TRY(jit_spec_put(&spec, "packed", tile->packed, &found));
    FFA_TRY(choose_spec(&spec, JIT_ARCH_DEFAULT, &found));
    for (int32_t i = 0; i < index; i++) {
        const struct cost_tile *other = &table->tiles[i];

        if (other->head_dim == tile->head_dim && other->head_dim_v == tile->head_dim_v &&
            other->packed == tile->packed && other->consumers == tile->consumers &&
            other->tile_n == tile->tile_n)
            return fail(at, "is the same tile as number %d: each may be there once", i);
    }
out:
    return rc == FFA_OK ? FFA_OK : fail(at, "cannot be a tile: %s", found.message);
}

static ffa_status check_count(const struct place *at, double count)
{
    if (count >= 0 && count <= COST_TILES_MAX)
        return FFA_OK;
    return fail(at, "has %.10g tiles, not in [0, %d]", count, COST_TILES_MAX);
}

/* ---- writing ---- */

/* Takes the reference. NULL: no memory. */
static char *dumped_of(json_t *value, size_t digits)
{
    char *dumped = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits)) : NULL;

    json_decref(value);
    return dumped;
}

/* Takes the memory. */
static void add_dumped(struct text *text, char *dumped)
{
    if (dumped)
        text_add(text, "%s", dumped);
    else
        text->failed = true;
    free(dumped);
}

/* The number with the fewest digits that read back to it: 17 always do. */
static char *real_text(double value)
{
    enum { FEW = 15, MANY = 17 };
    char *dumped = NULL;
    bool is_same = false;

    for (size_t digits = FEW; digits <= MANY && !is_same; digits++) {
        json_t *back;

        free(dumped);
        dumped = dumped_of(json_real(value), digits);
        if (!dumped)
            break;
        back = json_loads(dumped, JSON_DECODE_ANY, NULL);
        is_same = back && json_real_value(back) == value;
        json_decref(back);
    }
    return dumped;
}

static ffa_status write_real(struct text *text, const struct place *at, const struct field *field,
                             double value)
{
    const ffa_status rc = check_number(at, field, value);

    if (rc == FFA_OK)
        add_dumped(text, real_text(value));
    return rc;
}

static ffa_status write_reals(struct text *text, const struct place *at, const struct field *field,
                              const void *object)
{
    ffa_status rc = FFA_OK;

    text_add(text, "[");
    for (int32_t i = 0; i < ORDER_WAVES_MAX && rc == FFA_OK; i++) {
        const struct place inner = place_of(at, (size_t)i);

        text_add(text, "%s", i ? ", " : "");
        rc = write_real(text, &inner, field, real_at(object, field, i));
    }
    text_add(text, "]");
    return rc;
}

static ffa_status write_number(struct text *text, const struct place *at, const struct field *field,
                               const void *object)
{
    int64_t value;
    ffa_status rc;

    if (field->kind == KIND_REAL || field->kind == KIND_ABOVE)
        return write_real(text, at, field, real_at(object, field, 0));
    value = integer_at(object, field);
    rc = check_number(at, field, (double)value);
    text_add(text, "%lld", (long long)value);
    return rc;
}

static ffa_status write_object(struct text *text, const struct place *at,
                               const struct field *fields, const void *object, int indent);

static ffa_status write_tiles(struct text *text, const struct place *at, const struct field *field,
                              const struct cost_table *table)
{
    const char *separator = "\n";
    ffa_status rc = check_count(at, table->tile_count);

    text_add(text, "[");
    for (int32_t i = 0; rc == FFA_OK && i < table->tile_count; i++) {
        const struct place inner = place_of(at, (size_t)i);

        text_add(text, "%s%*s", separator, 2 * INDENT, "");
        rc = write_object(text, &inner, field->members, &table->tiles[i], 0);
        if (rc == FFA_OK)
            rc = check_tile(&inner, table, i);
        separator = ",\n";
    }
    text_add(text, "\n%*s]", INDENT, "");
    return rc;
}

static ffa_status write_field(struct text *text, const struct place *at, const struct field *field,
                              const void *object, int indent)
{
    ffa_status rc;

    switch (field->kind) {
    case KIND_TEXT:
    case KIND_NOTE:
        rc = check_text(at, field, member_of(object, field));
        if (rc == FFA_OK)
            add_dumped(text, dumped_of(json_string(member_of(object, field)), 0));
        return rc;
    case KIND_REALS:
        return write_reals(text, at, field, object);
    case KIND_OBJECT:
        return write_object(text, at, field->members, member_of(object, field), indent);
    case KIND_TILES:
        return write_tiles(text, at, field, object);
    default:
        return write_number(text, at, field, object);
    }
}

/* Each member on a line of its own, `indent` from the left; 0: all on one line. */
static ffa_status write_object(struct text *text, const struct place *at,
                               const struct field *fields, const void *object, int indent)
{
    const char *between = indent ? ",\n" : ", ";
    ffa_status rc = FFA_OK;

    text_add(text, "%s", indent ? "{\n" : "{ ");
    if (indent == INDENT)
        text_add(text, "%*s\"format\": \"%s\",\n%*s\"version\": %d,\n", indent, "", FORMAT, indent,
                 "", VERSION);
    for (const struct field *field = fields; field->name && rc == FFA_OK; field++) {
        const struct place inner = place_in(at, field->name);

        text_add(text, "%s%*s\"%s\": ", field == fields ? "" : between, indent, "", field->name);
        rc = write_field(text, &inner, field, object, indent ? indent + INDENT : 0);
    }
    text_add(text, "%s%*s}", indent ? "\n" : " ", indent ? indent - INDENT : 0, "");
    return rc;
}

ffa_status cost_table_write(const struct cost_table *table, char **text, ffa_error *err)
{
    char device[sizeof table->device + 1];
    const struct place at = { .origin = device, .err = err };
    struct text made = { 0 };
    ffa_status rc;

    *text = NULL;
    text_copy(device, "%.*s", (int)sizeof table->device, table->device);
    FFA_TRY(write_object(&made, &at, table_fields, table, INDENT));
    text_add(&made, "\n");
    *text = text_take(&made);
    if (!*text)
        rc = error_nomem(err, "a cost table");
out:
    text_finish(&made);
    return rc;
}

/* ---- reading ---- */

static const char *type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number that is not whole";
    case JSON_NULL:
        return "null";
    default:
        return "a truth value";
    }
}

static ffa_status fail_type(const struct place *at, const json_t *value, const char *wanted)
{
    return fail(at, "is %s, not %s", type_of(value), wanted);
}

static ffa_status read_real(double *out, const struct place *at, const struct field *field,
                            const json_t *value)
{
    if (!json_is_number(value))
        return fail_type(at, value, "a number");
    *out = json_number_value(value);
    return check_number(at, field, *out);
}

static ffa_status read_reals(double *out, int32_t count, const struct place *at,
                             const struct field *field, const json_t *value)
{
    ffa_status rc = FFA_OK;

    if (!json_is_array(value))
        return fail_type(at, value, "a list");
    if (json_array_size(value) != (size_t)count)
        return fail(at, "has %zu numbers, not %d", json_array_size(value), count);
    for (size_t i = 0; i < (size_t)count && rc == FFA_OK; i++) {
        const struct place inner = place_of(at, i);

        rc = read_real(&out[i], &inner, field, json_array_get(value, i));
    }
    return rc;
}

/* Three waves get what is half way between two and four. */
static ffa_status read_reals_3(double out[ORDER_WAVES_MAX], const struct place *at,
                               const struct field *field, const json_t *value)
{
    const ffa_status rc = read_reals(out, 3, at, field, value);

    out[3] = out[2];
    out[2] = (out[1] + out[3]) / 2;
    return rc;
}

static ffa_status read_integer(void *out, const struct place *at, const struct field *field,
                               const json_t *value)
{
    ffa_status rc;

    if (!json_is_integer(value))
        return fail_type(at, value, "a whole number");
    rc = check_number(at, field, (double)json_integer_value(value));
    if (rc != FFA_OK)
        return rc;
    if (field->kind == KIND_INT32)
        *(int32_t *)out = (int32_t)json_integer_value(value);
    else
        *(int64_t *)out = json_integer_value(value);
    return FFA_OK;
}

static ffa_status read_text(char *out, const struct place *at, const struct field *field,
                            const json_t *value)
{
    ffa_status rc;

    if (!json_is_string(value))
        return fail_type(at, value, "a text");
    rc = check_text(at, field, json_string_value(value));
    if (rc == FFA_OK)
        memcpy(out, json_string_value(value), json_string_length(value) + 1);
    return rc;
}

static ffa_status read_object(void *out, const struct place *at, const struct field *fields,
                              json_t *object);

static ffa_status read_tiles(struct cost_table *out, const struct place *at,
                             const struct field *field, const json_t *value)
{
    ffa_status rc;

    if (!json_is_array(value))
        return fail_type(at, value, "a list");
    rc = check_count(at, (double)json_array_size(value));
    for (size_t i = 0; rc == FFA_OK && i < json_array_size(value); i++) {
        const struct place inner = place_of(at, i);

        struct cost_tile *tile = &out->tiles[i];

        rc = read_object(tile, &inner, field->members, json_array_get(value, i));
        if (field->members == tile_fields_1) {
            tile->head_dim_v = tile->head_dim;
            tile->packed = 1;
        }
        if (rc == FFA_OK)
            rc = check_tile(&inner, out, (int32_t)i);
        out->tile_count = (int32_t)i + 1;
    }
    return rc;
}

static ffa_status read_field(void *object, const struct place *at, const struct field *field,
                             json_t *value)
{
    void *out = (char *)object + field->offset;
    double past[3];

    switch (field->kind) {
    case KIND_TEXT:
    case KIND_NOTE:
        return read_text(out, at, field, value);
    case KIND_INT32:
    case KIND_INT64:
        return read_integer(out, at, field, value);
    case KIND_REALS:
        return read_reals(out, ORDER_WAVES_MAX, at, field, value);
    case KIND_REALS_3:
        return read_reals_3(out, at, field, value);
    case KIND_PAST:
        return read_real(past, at, field, value);
    case KIND_PAST_3:
        return read_reals(past, 3, at, field, value);
    case KIND_OBJECT:
        return read_object(out, at, field->members, value);
    case KIND_TILES:
        return read_tiles(object, at, field, value);
    default:
        return read_real(out, at, field, value);
    }
}

static bool is_member(const char *name, const struct field *fields)
{
    bool is_table = false;

    for (int32_t version = 1; version <= VERSION; version++)
        is_table |= fields == fields_of_version[version];
    if (is_table && (!strcmp(name, "format") || !strcmp(name, "version")))
        return true;
    while (fields->name && strcmp(fields->name, name) != 0)
        fields++;
    return fields->name != NULL;
}

static ffa_status read_object(void *out, const struct place *at, const struct field *fields,
                              json_t *object)
{
    const char *name;
    json_t *value;
    ffa_status rc = FFA_OK;

    if (!json_is_object(object))
        return fail_type(at, object, "an object");
    json_object_foreach(object, name, value)
    {
        const struct place inner = place_in(at, name);

        if (!is_member(name, fields))
            return fail(&inner, "is not a member of cost tables");
    }
    for (; fields->name && rc == FFA_OK; fields++) {
        const struct place inner = place_in(at, fields->name);

        value = json_object_get(object, fields->name);
        rc = value ? read_field(out, &inner, fields, value) : fail(&inner, "is missing");
    }
    return rc;
}

/* Before all else: of another format or version, other members are to be expected. */
static ffa_status check_header(const struct place *at, const json_t *root,
                               const struct field **fields)
{
    const json_t *format = json_object_get(root, "format");
    const json_t *version = json_object_get(root, "version");
    const struct place in_format = place_in(at, "format"), in_version = place_in(at, "version");

    if (!json_is_object(root))
        return fail(at, "the text is %s, not an object", type_of(root));
    if (!format)
        return fail(&in_format, "is missing");
    if (!json_is_string(format))
        return fail_type(&in_format, format, "a text");
    if (strcmp(json_string_value(format), FORMAT) != 0)
        return fail(&in_format, "is '%.60s', not '%s'", json_string_value(format), FORMAT);
    if (!version)
        return fail(&in_version, "is missing");
    if (!json_is_integer(version))
        return fail_type(&in_version, version, "a whole number");
    if (json_integer_value(version) < 1 || json_integer_value(version) > VERSION)
        return fail(&in_version, "is %lld, this library reads versions 1 to %d",
                    (long long)json_integer_value(version), VERSION);
    *fields = fields_of_version[json_integer_value(version)];
    return FFA_OK;
}

ffa_status cost_table_read(struct cost_table *out, const char *text, size_t length,
                           const char *origin, ffa_error *err)
{
    const struct place at = { .origin = origin, .err = err };
    const struct field *fields = NULL;
    json_error_t wrong;
    json_t *root = NULL;
    ffa_status rc;

    memset(out, 0, sizeof *out);
    if (length > COST_TABLE_BYTES_MAX)
        return fail(&at, "the text has %zu bytes, the limit is %d", length, COST_TABLE_BYTES_MAX);
    root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &wrong);
    if (!root && json_error_code(&wrong) == json_error_out_of_memory)
        return error_nomem(err, "a cost table");
    if (!root)
        return fail(&at, "line %d, column %d: %s", wrong.line, wrong.column, wrong.text);
    FFA_TRY(check_header(&at, root, &fields));
    out->order.miss_cost = cost_table_at(0)->order.miss_cost; /* of versions without */
    out->order.miss_free = cost_table_at(0)->order.miss_free;
    out->l2 = cost_table_at(0)->l2;
    rc = read_object(out, &at, fields, root);
out:
    json_decref(root);
    if (rc != FFA_OK)
        memset(out, 0, sizeof *out);
    return rc;
}

/* ---- digest ---- */

/* Zero has one digest, whatever its sign. */
static void digest_real(struct digest *digest, double value)
{
    const double canonical = value + 0.0;
    int64_t bits;

    memcpy(&bits, &canonical, sizeof bits);
    digest_number(digest, bits);
}

static void digest_object(struct digest *digest, const struct field *fields, const void *object);

static void digest_member(struct digest *digest, const struct field *field, const void *object)
{
    const struct cost_table *table = object;

    switch (field->kind) {
    case KIND_TEXT:
        digest_text(digest, member_of(object, field));
        break;
    case KIND_NOTE:
        break;
    case KIND_INT32:
    case KIND_INT64:
        digest_number(digest, integer_at(object, field));
        break;
    case KIND_REALS:
        for (int32_t i = 0; i < ORDER_WAVES_MAX; i++)
            digest_real(digest, real_at(object, field, i));
        break;
    case KIND_OBJECT:
        digest_object(digest, field->members, member_of(object, field));
        break;
    case KIND_TILES:
        digest_number(digest, table->tile_count);
        for (int32_t i = 0; i < table->tile_count; i++)
            digest_object(digest, field->members, &table->tiles[i]);
        break;
    default:
        digest_real(digest, real_at(object, field, 0));
    }
}

static void digest_object(struct digest *digest, const struct field *fields, const void *object)
{
    for (; fields->name; fields++)
        digest_member(digest, fields, object);
}

void cost_table_digest(const struct cost_table *table, char out[DIGEST_TEXT])
{
    struct digest digest;

    digest_init(&digest);
    digest_text(&digest, FORMAT);
    digest_number(&digest, VERSION);
    digest_object(&digest, table_fields, table);
    digest_final(&digest, out);
}
