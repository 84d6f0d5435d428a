/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as JSON, read and written.
 *
 * jansson reads the syntax and says line and column; what the values mean is checked here, and a
 * message names the value by its path: slices[3], kv_heads[0][7].
 */
#include "mask/mask.h"

#include <jansson.h>
#include <stdio.h>

/* Keys and pieces of the input go into messages: keep them one line of plain characters. */
static void text_flatten(char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            *text = '?';
}

static ffa_status json_fail(ffa_error *err, const char *format, ...) FFA_PRINTF(2, 3);

static ffa_status json_fail(ffa_error *err, const char *format, ...)
{
    char line[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    text_flatten(line);
    return error_fail(err, FFA_INVALID, 0, "mask JSON: %s", line);
}

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number that is not whole";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    default:
        return "null";
    }
}

static ffa_status read_tokens(int64_t *out, const json_t *root, const char *key, ffa_error *err)
{
    const json_t *value = json_object_get(root, key);

    if (!value)
        return json_fail(err, "'%s' is missing", key);
    if (!json_is_integer(value))
        return json_fail(err, "'%s' is %s, not a whole number", key, kind_of(value));
    *out = json_integer_value(value);
    return FFA_OK;
}

static ffa_status read_type(int32_t *out, const json_t *value, const char *path, ffa_error *err)
{
    const char *name;

    if (json_is_integer(value)) {
        json_int_t code = json_integer_value(value);

        if (code < 0 || code > FFA_SLICE_BICAUSAL)
            return json_fail(err, "%s: type is %lld, not in [0, 3]", path, (long long)code);
        *out = (int32_t)code;
        return FFA_OK;
    }
    if (!json_is_string(value))
        return json_fail(err, "%s: type is %s, not a name or a code", path, kind_of(value));
    for (int32_t type = 0; (name = slice_type_name(type)); type++)
        if (!strcmp(name, json_string_value(value))) {
            *out = type;
            return FFA_OK;
        }
    return json_fail(err, "%s: type is '%.40s', not full, causal, invcausal or bicausal", path,
                     json_string_value(value));
}

static ffa_status read_slice(ffa_slice *out, const json_t *item, const char *path, ffa_error *err)
{
    static const char *const names[] = { "q_begin", "q_end", "k_begin", "k_end" };
    int64_t *fields[] = { &out->q_begin, &out->q_end, &out->k_begin, &out->k_end };

    if (!json_is_array(item))
        return json_fail(err, "%s is %s, not [q_begin, q_end, k_begin, k_end, type]", path,
                         kind_of(item));
    if (json_array_size(item) != 5)
        return json_fail(err, "%s has %zu items, not 5: q_begin, q_end, k_begin, k_end, type", path,
                         json_array_size(item));
    for (size_t i = 0; i < 4; i++) {
        const json_t *value = json_array_get(item, i);

        if (!json_is_integer(value))
            return json_fail(err, "%s: %s is %s, not a whole number", path, names[i],
                             kind_of(value));
        *fields[i] = json_integer_value(value);
    }
    return read_type(&out->type, json_array_get(item, 4), path, err);
}

/* name: what the list is called in messages. out->slices: caller frees, on failure, too. */
static ffa_status read_list(ffa_slice_list *out, const json_t *list, const char *name,
                            ffa_error *err)
{
    ffa_slice *slices;
    char path[64];
    ffa_status rc = FFA_OK;

    if (!json_is_array(list))
        return json_fail(err, "'%s' is %s, not an array of slices", name, kind_of(list));
    slices = mem_array(json_array_size(list), sizeof *slices);
    if (!slices)
        return error_nomem(err, "the slices of the mask's JSON");
    out->slices = slices;
    out->count = (int64_t)json_array_size(list);
    for (int64_t i = 0; i < out->count; i++) {
        text_copy(path, "%s[%lld]", name, (long long)i);
        FFA_TRY(read_slice(&slices[i], json_array_get(list, (size_t)i), path, err));
    }
out:
    return rc;
}

static ffa_status read_shared(ffa_mask **out, const ffa_mask_shape *shape, const json_t *list,
                              ffa_error *err)
{
    ffa_slice_list slices = { NULL, 0 };
    ffa_status rc;

    FFA_TRY(read_list(&slices, list, "slices", err));
    rc = ffa_mask_create(out, shape, slices.slices, slices.count, err);
out:
    mem_free((void *)slices.slices);
    return rc;
}

static ffa_status read_heads(ffa_mask **out, const ffa_mask_shape *shape, const json_t *heads,
                             ffa_error *err)
{
    size_t count = json_array_size(heads);
    ffa_slice_list *lists = NULL;
    char name[32];
    ffa_status rc;

    if (!json_is_array(heads))
        return json_fail(err, "'kv_heads' is %s, not an array of lists of slices", kind_of(heads));
    if (count < 1 || count > HEADS_KV_MAX)
        return json_fail(err, "'kv_heads' has %zu lists, not in [1, %d]", count, HEADS_KV_MAX);
    lists = mem_array(count, sizeof *lists);
    if (!lists)
        return error_nomem(err, "the lists of the mask's JSON");
    for (size_t i = 0; i < count; i++) {
        text_copy(name, "kv_heads[%zu]", i);
        FFA_TRY(read_list(&lists[i], json_array_get(heads, i), name, err));
    }
    rc = ffa_mask_create_per_head(out, shape, lists, (int32_t)count, err);
out:
    for (size_t i = 0; i < count; i++)
        mem_free((void *)lists[i].slices);
    mem_free(lists);
    return rc;
}

static ffa_status keys_check(json_t *root, ffa_error *err)
{
    static const char *const known[] = { "seqlen_q", "seqlen_k", "slices", "kv_heads" };
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value)
    {
        bool is_known = false;

        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || !strcmp(key, known[i]);
        if (!is_known)
            return json_fail(err,
                             "unknown key '%.64s'; known are seqlen_q, seqlen_k, slices, "
                             "kv_heads",
                             key);
    }
    return FFA_OK;
}

static ffa_status read_root(ffa_mask **out, json_t *root, ffa_error *err)
{
    const json_t *slices, *heads;
    ffa_mask_shape shape;
    ffa_status rc;

    if (!json_is_object(root))
        return json_fail(err, "it is %s, not an object", kind_of(root));
    FFA_TRY(keys_check(root, err));
    FFA_TRY(read_tokens(&shape.seqlen_q, root, "seqlen_q", err));
    FFA_TRY(read_tokens(&shape.seqlen_k, root, "seqlen_k", err));
    slices = json_object_get(root, "slices");
    heads = json_object_get(root, "kv_heads");
    if (!slices == !heads)
        return json_fail(err, "it has %s 'slices' %s 'kv_heads', not one of them",
                         slices ? "both" : "neither", slices ? "and" : "nor");
    rc = slices ? read_shared(out, &shape, slices, err) : read_heads(out, &shape, heads, err);
out:
    return rc;
}

ffa_status ffa_mask_parse_json(ffa_mask **out, const char *text, size_t bytes, ffa_error *err)
{
    json_error_t at;
    json_t *root;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!text)
        return error_fail(err, FFA_INVALID, 0, "text is NULL");
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);
    if (!root && json_error_code(&at) == json_error_out_of_memory)
        return error_nomem(err, "the mask's JSON");
    if (!root)
        return json_fail(err, "line %d, column %d: %s", at.line, at.column, at.text);
    rc = read_root(out, root, err);
    json_decref(root);
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
