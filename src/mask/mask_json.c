/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as JSON, read and written.
 *
 * Slices go from the text straight into arrays, whose length is counted before. What a value means
 * is checked where it stands, and a message names it by its path: slices[3], kv_heads[0][7]. A
 * mask has few keys, so an object is read key by key, and what was there is remembered as bits.
 */
#include "mask/json_reader.h"
#include "mask/mask.h"

#include <stdio.h>

/* What was read so far. */
struct parsed {
    ffa_mask_shape shape;
    ffa_slice_list *lists; /* [HEADS_KV_MAX] */
    int32_t list_count;
    uint32_t seen; /* a bit a key */
    ffa_slice *slices;
    int64_t slice_count, slice_capacity; /* of all lists; what could be one was counted */
};

enum { KEY_SEQLEN_Q, KEY_SEQLEN_K, KEY_SLICES, KEY_KV_HEADS, KEY_COUNT };

enum { LIST_KEYS = 1 << KEY_SLICES | 1 << KEY_KV_HEADS };

static const char *const keys[KEY_COUNT] = { "seqlen_q", "seqlen_k", "slices", "kv_heads" };

/* ---- one slice ---- */

static ffa_status read_type(struct json_reader *reader, int32_t *out, const char *path)
{
    const char *name;

    if (reader->kind == JSON_KIND_INTEGER) {
        if (reader->integer < 0 || reader->integer > FFA_SLICE_BICAUSAL)
            return json_fail(reader->err, "%s: type is %lld, not in [0, 3]", path,
                             (long long)reader->integer);
        *out = (int32_t)reader->integer;
        return FFA_OK;
    }
    if (reader->kind != JSON_KIND_STRING)
        return json_fail(reader->err, "%s: type is %s, not a name or a code", path,
                         json_kind_name(reader));
    for (int32_t type = 0; (name = slice_type_name(type)); type++)
        if (!strcmp(name, reader->string)) {
            *out = type;
            return FFA_OK;
        }
    return json_fail(reader->err, "%s: type is '%.40s', not full, causal, invcausal or bicausal",
                     path, reader->string);
}

/* A value has begun: whether it is one. */
static ffa_status value_check(const struct json_reader *reader)
{
    switch (reader->kind) {
    case JSON_KIND_END:
    case JSON_KIND_OBJECT_END:
    case JSON_KIND_ARRAY_END:
    case JSON_KIND_COLON:
    case JSON_KIND_COMMA:
        return json_fail_here(reader, "unexpected token");
    default:
        return FFA_OK;
    }
}

static ffa_status read_field(struct json_reader *reader, ffa_slice *out, int field,
                             const char *path)
{
    static const char *const names[] = { "q_begin", "q_end", "k_begin", "k_end" };
    int64_t *fields[] = { &out->q_begin, &out->q_end, &out->k_begin, &out->k_end };

    if (field == 4)
        return read_type(reader, &out->type, path);
    if (reader->kind != JSON_KIND_INTEGER)
        return json_fail(reader->err, "%s: %s is %s, not a whole number", path, names[field],
                         json_kind_name(reader));
    *fields[field] = reader->integer;
    return FFA_OK;
}

/* The value that has begun, as a slice. */
static ffa_status read_slice(struct json_reader *reader, ffa_slice *out, const char *path)
{
    bool is_more = true;
    ffa_status rc;

    *out = (ffa_slice){ 0 };
    if (reader->kind != JSON_KIND_ARRAY)
        return json_fail(reader->err, "%s is %s, not [q_begin, q_end, k_begin, k_end, type]", path,
                         json_kind_name(reader));
    for (int field = 0; is_more; field++) {
        FFA_TRY(json_next(reader));
        if (field == 0 && reader->kind == JSON_KIND_ARRAY_END)
            return json_fail(reader->err,
                             "%s has 0 items, not 5: q_begin, q_end, k_begin, k_end, type", path);
        FFA_TRY(value_check(reader));
        if (field == 5)
            return json_fail(reader->err,
                             "%s has more than 5 items: q_begin, q_end, k_begin, k_end, type",
                             path);
        FFA_TRY(read_field(reader, out, field, path));
        FFA_TRY(json_more(reader, JSON_KIND_ARRAY_END, "']' expected", &is_more));
        if (!is_more && field < 4)
            return json_fail(reader->err,
                             "%s has %d items, not 5: q_begin, q_end, k_begin, k_end, type", path,
                             field + 1);
    }
out:
    return rc;
}

/* ---- lists ---- */

/* The value that has begun, as a list of slices behind those there. name: in messages. */
static ffa_status read_list(struct json_reader *reader, struct parsed *out, const char *name)
{
    const int64_t first = out->slice_count;
    bool is_more = true;
    char path[64];
    ffa_status rc;

    if (reader->kind != JSON_KIND_ARRAY)
        return json_fail(reader->err, "'%s' is %s, not an array of slices", name,
                         json_kind_name(reader));
    while (is_more) {
        FFA_TRY(json_next(reader));
        if (out->slice_count == first && reader->kind == JSON_KIND_ARRAY_END)
            break;
        FFA_TRY(value_check(reader));
        text_copy(path, "%s[%lld]", name, (long long)(out->slice_count - first));
        if (reader->kind == JSON_KIND_ARRAY && out->slice_count >= out->slice_capacity)
            return error_fail(reader->err, FFA_BUG, 0,
                              "the slices of a mask's JSON were miscounted");
        FFA_TRY(read_slice(reader, &out->slices[out->slice_count], path));
        out->slice_count++;
        FFA_TRY(json_more(reader, JSON_KIND_ARRAY_END, "']' expected", &is_more));
    }
    out->lists[out->list_count++] =
        (ffa_slice_list){ out->slices + first, out->slice_count - first };
out:
    return rc;
}

static ffa_status read_heads(struct json_reader *reader, struct parsed *out)
{
    const int32_t first = out->list_count;
    bool is_more = true;
    char name[32];
    ffa_status rc;

    if (reader->kind != JSON_KIND_ARRAY)
        return json_fail(reader->err, "'kv_heads' is %s, not an array of lists of slices",
                         json_kind_name(reader));
    while (is_more) {
        FFA_TRY(json_next(reader));
        if (out->list_count == first && reader->kind == JSON_KIND_ARRAY_END)
            return json_fail(reader->err, "'kv_heads' has 0 lists, not in [1, %d]", HEADS_KV_MAX);
        FFA_TRY(value_check(reader));
        if (out->list_count - first == HEADS_KV_MAX)
            return json_fail(reader->err, "'kv_heads' has more than %d lists", HEADS_KV_MAX);
        text_copy(name, "kv_heads[%d]", out->list_count - first);
        FFA_TRY(read_list(reader, out, name));
        FFA_TRY(json_more(reader, JSON_KIND_ARRAY_END, "']' expected", &is_more));
    }
out:
    return rc;
}

/* ---- the object ---- */

static ffa_status read_tokens(struct json_reader *reader, int64_t *out, const char *key)
{
    if (reader->kind != JSON_KIND_INTEGER)
        return json_fail(reader->err, "'%s' is %s, not a whole number", key,
                         json_kind_name(reader));
    *out = reader->integer;
    return FFA_OK;
}

/* The key that was read last. */
static ffa_status key_find(const struct json_reader *reader, const struct parsed *out, int *key)
{
    for (*key = 0; *key < KEY_COUNT; ++*key)
        if (!strcmp(keys[*key], reader->string))
            break;
    if (*key == KEY_COUNT)
        return json_fail(reader->err,
                         "unknown key '%.64s'; known are seqlen_q, seqlen_k, slices, kv_heads",
                         reader->string);
    if (out->seen & 1u << *key)
        return json_fail_here(reader, "duplicate object key");
    if ((*key == KEY_SLICES || *key == KEY_KV_HEADS) && (out->seen & LIST_KEYS))
        return json_fail(reader->err, "it has both 'slices' and 'kv_heads', not one of them");
    return FFA_OK;
}

static ffa_status read_member(struct json_reader *reader, struct parsed *out)
{
    int key;
    ffa_status rc;

    FFA_TRY(key_find(reader, out, &key));
    out->seen |= 1u << key;
    FFA_TRY(json_expect(reader, JSON_KIND_COLON, "':' expected"));
    FFA_TRY(json_next(reader));
    FFA_TRY(value_check(reader));
    if (key == KEY_SEQLEN_Q)
        rc = read_tokens(reader, &out->shape.seqlen_q, keys[key]);
    else if (key == KEY_SEQLEN_K)
        rc = read_tokens(reader, &out->shape.seqlen_k, keys[key]);
    else if (key == KEY_KV_HEADS)
        rc = read_heads(reader, out);
    else
        rc = read_list(reader, out, keys[key]);
out:
    return rc;
}

static ffa_status seen_check(const struct parsed *out, ffa_error *err)
{
    for (int key = 0; key <= KEY_SEQLEN_K; key++)
        if (!(out->seen & 1u << key))
            return json_fail(err, "'%s' is missing", keys[key]);
    if (!(out->seen & LIST_KEYS))
        return json_fail(err, "it has neither 'slices' nor 'kv_heads'");
    return FFA_OK;
}

static ffa_status read_object(struct json_reader *reader, struct parsed *out)
{
    bool is_more = true;
    ffa_status rc;

    FFA_TRY(json_next(reader));
    FFA_TRY(value_check(reader));
    if (reader->kind != JSON_KIND_OBJECT)
        return json_fail(reader->err, "it is %s, not an object", json_kind_name(reader));
    while (is_more) {
        FFA_TRY(json_next(reader));
        if (!out->seen && reader->kind == JSON_KIND_OBJECT_END)
            break;
        if (reader->kind != JSON_KIND_STRING)
            return json_fail_here(reader, "string or '}' expected");
        FFA_TRY(read_member(reader, out));
        FFA_TRY(json_more(reader, JSON_KIND_OBJECT_END, "'}' expected", &is_more));
    }
    FFA_TRY(json_end(reader));
    rc = seen_check(out, reader->err);
out:
    return rc;
}

/* Arrays begin with a bracket: there are no more slices than brackets. */
static ffa_status parsed_init(struct parsed *out, const char *text, size_t bytes, ffa_error *err)
{
    const char *end = text + bytes, *at = text;
    char what[64];
    ffa_status rc;

    while (at < end && (at = memchr(at, '[', (size_t)(end - at)))) {
        out->slice_capacity++;
        at++;
    }
    text_copy(what, "a mask of %lld slices", (long long)out->slice_capacity);
    FFA_TRY(mem_check(out->slice_capacity * ((int64_t)sizeof(ffa_slice) + MASK_SLICE_BYTES), what,
                      err));
    out->slices = mem_array((size_t)out->slice_capacity, sizeof *out->slices);
    out->lists = mem_array(HEADS_KV_MAX, sizeof *out->lists);
    if (!out->slices || !out->lists)
        rc = error_nomem(err, "the slices of the mask's JSON");
out:
    return rc;
}

ffa_status ffa_mask_parse_json(ffa_mask **out, const char *text, size_t bytes, ffa_error *err)
{
    struct json_reader reader = { .at = text, .end = text + bytes, .line = 1, .err = err };
    struct parsed parsed = { 0 };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!text)
        return error_fail(err, FFA_INVALID, 0, "text is NULL");
    FFA_TRY(parsed_init(&parsed, text, bytes, err));
    FFA_TRY(read_object(&reader, &parsed));
    if (parsed.seen & 1u << KEY_SLICES)
        rc = ffa_mask_create(out, &parsed.shape, parsed.slices, parsed.slice_count, err);
    else
        rc = ffa_mask_create_per_head(out, &parsed.shape, parsed.lists, parsed.list_count, err);
out:
    mem_free(parsed.slices);
    mem_free(parsed.lists);
    return rc;
}

/* ---- writing ---- */

static void write_list(struct text *text, const struct mask_list *list)
{
    text_add(text, "[");
    for (int64_t i = 0; i < list->count; i++) {
        const ffa_slice *s = &list->slices[i];

        text_add(text, "%s\n[%lld,%lld,%lld,%lld,\"%s\"]", i ? "," : "", (long long)s->q_begin,
                 (long long)s->q_end, (long long)s->k_begin, (long long)s->k_end,
                 slice_type_name(s->type));
    }
    text_add(text, "]");
}

ffa_status ffa_mask_to_json(const ffa_mask *mask, char **out, ffa_error *err)
{
    struct text text = { 0 };

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!mask)
        return error_fail(err, FFA_INVALID, 0, "mask is NULL");

    text_add(&text, "{\"seqlen_q\":%lld,\"seqlen_k\":%lld,", (long long)mask->shape.seqlen_q,
             (long long)mask->shape.seqlen_k);
    text_add(&text, mask->head_count == 1 ? "\"slices\":" : "\"kv_heads\":[");
    for (int32_t i = 0; i < mask->head_count; i++) {
        text_add(&text, i ? ",\n" : "");
        write_list(&text, &mask->lists[i]);
    }
    text_add(&text, mask->head_count == 1 ? "}\n" : "]}\n");
    *out = text_take(&text);
    return *out ? FFA_OK : error_nomem(err, "the mask's JSON");
}
