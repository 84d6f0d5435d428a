/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: schema_check SCHEMA < JSON
 *
 * Validate JSON against a schema of tests/schema. It knows the keywords of JSON Schema that those
 * use; any other keyword is an error, so that a schema cannot state what nobody checks.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH_MAX = 16 };

static int findings;

static void complain(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void complain(const char *path, const char *format, ...)
{
    va_list args;

    (void)printf("%s: ", *path ? path : "(root)");
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)putchar('\n');
    findings++;
}

static int is_type(const json_t *value, const char *type)
{
    return (strcmp(type, "object") == 0 && json_is_object(value)) ||
           (strcmp(type, "array") == 0 && json_is_array(value)) ||
           (strcmp(type, "string") == 0 && json_is_string(value)) ||
           (strcmp(type, "integer") == 0 && json_is_integer(value)) ||
           (strcmp(type, "number") == 0 && json_is_number(value)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(value)) ||
           (strcmp(type, "null") == 0 && json_is_null(value));
}

static int is_one_of(const json_t *value, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(value, json_array_get(list, i)))
            return 1;
    return 0;
}

static void check_type(const json_t *value, const json_t *types, const char *path)
{
    if (json_is_string(types) && is_type(value, json_string_value(types)))
        return;
    for (size_t i = 0; i < json_array_size(types); i++)
        if (is_type(value, json_string_value(json_array_get(types, i))))
            return;
    complain(path, "wrong type");
}

static void check(const json_t *value, const json_t *schema, const char *path, int depth);

static void check_object(const json_t *value, const json_t *schema, const char *path, int depth)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const char *key;
    json_t *member;

    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i))))
            complain(path, "'%s' is missing", json_string_value(json_array_get(required, i)));
    json_object_foreach((json_t *)(size_t)value, key, member)
    {
        const json_t *of_member = json_object_get(properties, key);
        char below[256];

        (void)snprintf(below, sizeof below, "%.200s.%s", path, key);
        if (of_member)
            check(member, of_member, below, depth);
        else if (json_is_false(json_object_get(schema, "additionalProperties")))
            complain(below, "not in the schema");
    }
}

static void check_keyword(const json_t *value, const char *keyword, const json_t *wanted,
                          const char *path)
{
    /* Checked by other functions, or mere comments. */
    static const char *const elsewhere[] = { "$schema",    "title",    "description",
                                             "properties", "required", "additionalProperties",
                                             "items" };

    if (strcmp(keyword, "type") == 0) {
        check_type(value, wanted, path);
    } else if (strcmp(keyword, "enum") == 0) {
        if (!is_one_of(value, wanted))
            complain(path, "none of the values it may have");
    } else if (strcmp(keyword, "minimum") == 0) {
        if (json_is_number(value) && json_number_value(value) < json_number_value(wanted))
            complain(path, "%g is below %g", json_number_value(value), json_number_value(wanted));
    } else if (strcmp(keyword, "minLength") == 0) {
        if (json_is_string(value) &&
            (json_int_t)json_string_length(value) < json_integer_value(wanted))
            complain(path, "too short");
    } else {
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
            if (strcmp(keyword, elsewhere[i]) == 0)
                return;
        complain(path, "the schema's '%s' is not known here", keyword);
    }
}

static void check(const json_t *value, const json_t *schema, const char *path, int depth)
{
    const json_t *items = json_object_get(schema, "items");
    const char *keyword;
    json_t *wanted;

    if (depth > DEPTH_MAX) {
        complain(path, "too deep");
        return;
    }
    json_object_foreach((json_t *)(size_t)schema, keyword, wanted)
        check_keyword(value, keyword, wanted, path);
    if (json_is_object(value))
        check_object(value, schema, path, depth + 1);
    for (size_t i = 0; items && i < json_array_size(value); i++) {
        char below[256];

        (void)snprintf(below, sizeof below, "%.200s[%zu]", path, i);
        check(json_array_get(value, i), items, below, depth + 1);
    }
}

int main(int argc, char **argv)
{
    json_error_t where;
    json_t *schema = argc == 2 ? json_load_file(argv[1], 0, &where) : NULL;
    json_t *value = schema ? json_loadf(stdin, 0, &where) : NULL;

    if (!value)
        complain("", "line %d: %s", argc == 2 ? where.line : 0, argc == 2 ? where.text : "usage");
    else
        check(value, schema, "", 0);
    json_decref(value);
    json_decref(schema);
    return findings != 0;
}
