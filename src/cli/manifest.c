/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifests, from JSON to requests. Invariant: the order of the result follows from the text alone,
 * the last setting turning fastest, so that shards of equal manifests are disjoint everywhere.
 */
#include "cli/manifest.h"

#include "cli/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARCHS_MAX = 16, VALUES_MAX = 1024, SCHEMA = 1 };

/* ---- one kernel ---- */

static ffa_status not_a_kernel(const char *what, ffa_error *err)
{
    return cli_error(err, FFA_INVALID, 0, "a request's %s is missing or wrong", what);
}

static void describe_kernel(struct manifest_kernel *kernel)
{
    size_t at =
        (size_t)snprintf(kernel->text, sizeof kernel->text, "%s", kernel->request.template_name);

    for (int64_t i = 0; i < kernel->request.setting_count && at < sizeof kernel->text; i++)
        at += (size_t)snprintf(kernel->text + at, sizeof kernel->text - at, " %s",
                               kernel->settings[i]);
    if (at < sizeof kernel->text)
        (void)snprintf(kernel->text + at, sizeof kernel->text - at, " %s", kernel->request.arch);
}

/* Takes over `json`. The kernel must not move afterwards. */
static ffa_status kernel_init(struct manifest_kernel *kernel, json_t *json, ffa_error *err)
{
    const json_t *settings = json_object_get(json, "settings");

    *kernel = (struct manifest_kernel){ .json = json, .request = FFA_COMPILE_REQUEST_INIT };
    kernel->request.template_name = json_string_value(json_object_get(json, "template"));
    kernel->request.arch = json_string_value(json_object_get(json, "arch"));
    kernel->request.settings = kernel->settings;
    kernel->request.setting_count = (int64_t)json_array_size(settings);
    if (!kernel->request.template_name)
        return not_a_kernel("template", err);
    if (!kernel->request.arch)
        return not_a_kernel("arch", err);
    if (!json_is_array(settings) || kernel->request.setting_count > MANIFEST_SETTINGS_MAX)
        return not_a_kernel("list of settings", err);
    for (size_t i = 0; i < json_array_size(settings); i++) {
        kernel->settings[i] = json_string_value(json_array_get(settings, i));
        if (!kernel->settings[i])
            return not_a_kernel("setting", err);
    }
    describe_kernel(kernel);
    return FFA_OK;
}

static void kernel_finish(struct manifest_kernel *kernel)
{
    json_decref(kernel->json);
    *kernel = (struct manifest_kernel){ 0 };
}

void manifest_drop_last(struct manifest *manifest)
{
    struct manifest_kernel *last = manifest->at[--manifest->count];

    kernel_finish(last);
    free(last);
}

void manifest_finish(struct manifest *manifest)
{
    while (manifest->count)
        manifest_drop_last(manifest);
    free(manifest->at);
    *manifest = (struct manifest){ 0 };
}

ffa_status manifest_add(struct manifest *manifest, json_t *json, ffa_error *err)
{
    struct manifest_kernel *kernel = calloc(1, sizeof *kernel);
    struct manifest_kernel **grown = manifest->at;
    ffa_status rc;

    /* Grown at powers of two, 0 included. */
    if ((manifest->count & (manifest->count - 1)) == 0)
        grown = realloc(manifest->at,
                        (size_t)(manifest->count ? 2 * manifest->count : 1) * sizeof *grown);
    if (grown)
        manifest->at = grown;
    if (!kernel || !grown || !json) {
        free(kernel);
        json_decref(json);
        return cli_error(err, FFA_NOMEM, 0, "no memory for the manifest's kernels");
    }
    rc = kernel_init(kernel, json, err);
    manifest->at[manifest->count++] = kernel;
    return rc;
}

/* ---- a manifest ---- */

struct reader {
    const char *name;
    const json_t *root;
    char archs[ARCHS_MAX][16]; /* for kernels that name none */
    int arch_count;
    bool is_arch_given; /* on the command line: stands above the manifest's */
    const char *list;   /* "specs" or "kernels": which one is read */
    json_t *seen;       /* texts of the kernels of specs: many specs share kernels */
};

/* FFA_INVALID with the manifest's name in front; index < 0: of no element of a list. */
static ffa_status wrong(const struct reader *reader, int64_t index, ffa_error *err,
                        const char *format, ...) FFA_PRINTF(4, 5);

static ffa_status wrong(const struct reader *reader, int64_t index, ffa_error *err,
                        const char *format, ...)
{
    char what[256], where[40] = "";
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (index >= 0)
        (void)snprintf(where, sizeof where, "%s[%lld]: ", reader->list, (long long)index);
    return cli_error(err, FFA_INVALID, 0, "manifest '%.160s': %s%s", reader->name, where, what);
}

static ffa_status check_members(const struct reader *reader, int64_t index, const json_t *object,
                                const char *const *known, const char *known_text, ffa_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return wrong(reader, index, err, "not an object");
    json_object_foreach((json_t *)(uintptr_t)object, key,
                        value) if (cli_word(key, known) <
                                   0) return wrong(reader, index, err,
                                                   "there is no member '%s'; known: %s", key,
                                                   known_text);
    return FFA_OK;
}

static ffa_status put_arch(const struct reader *reader, int64_t index, char (*out)[16], int *count,
                           const char *name, size_t bytes, ffa_error *err)
{
    if (*count == ARCHS_MAX || bytes == 0 || bytes >= sizeof out[0])
        return wrong(reader, index, err, "the list of architectures is not 1 to %d names",
                     ARCHS_MAX);
    (void)snprintf(out[(*count)++], sizeof out[0], "%.*s", (int)bytes, name);
    return FFA_OK;
}

/* "arch" of the manifest or of a kernel. */
static ffa_status read_archs(const struct reader *reader, int64_t index, const json_t *list,
                             char (*out)[16], int *count, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    *count = 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return wrong(reader, index, err, "'arch' is not a list of names");
    for (size_t i = 0; i < json_array_size(list) && rc == FFA_OK; i++) {
        const char *name = json_string_value(json_array_get(list, i));

        rc = put_arch(reader, index, out, count, name, name ? strlen(name) : 0, err);
    }
    return rc;
}

static ffa_status split_archs(struct reader *reader, const char *archs, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    reader->is_arch_given = true;
    while (rc == FFA_OK) {
        size_t bytes = strcspn(archs, ",");

        if (bytes == 0)
            return cli_error(err, FFA_INVALID, 0, "--arch has an empty name");
        rc = put_arch(reader, -1, reader->archs, &reader->arch_count, archs, bytes, err);
        archs += bytes;
        if (*archs++ != ',')
            break;
    }
    return rc;
}

/* One spec row of an entry and the values it runs through. */
struct axis {
    const char *name;
    const json_t *values; /* an array, or the one value */
    size_t count, at;
};

static const json_t *axis_value(const struct axis *axis)
{
    return json_is_array(axis->values) ? json_array_get(axis->values, axis->at) : axis->values;
}

static ffa_status read_axes(const struct reader *reader, int64_t index, const json_t *entry,
                            struct axis *axes, int *count, ffa_error *err)
{
    json_t *values = json_object_get(entry, "values");
    const char *key;
    json_t *value;

    *count = 0;
    if (values && !json_is_object(values))
        return wrong(reader, index, err, "'values' is not an object");
    json_object_foreach(values, key, value)
    {
        struct axis axis = { .name = key, .values = value, .count = 1 };

        if (json_is_array(value))
            axis.count = json_array_size(value);
        if (*count == MANIFEST_SETTINGS_MAX || axis.count == 0 || axis.count > VALUES_MAX)
            return wrong(reader, index, err, "values.%s is not a value, nor a list of 1 to %d", key,
                         VALUES_MAX);
        for (axis.at = 0; axis.at < axis.count; axis.at++)
            if (!json_is_integer(axis_value(&axis)) && !json_is_string(axis_value(&axis)))
                return wrong(reader, index, err,
                             "values.%s holds what is neither text nor a whole "
                             "number",
                             key);
        axis.at = 0;
        axes[(*count)++] = axis;
    }
    return FFA_OK;
}

/* Step the last axis, as an odometer does. False: all combinations were there. */
static bool axes_step(struct axis *axes, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        if (++axes[i].at < axes[i].count)
            return true;
        axes[i].at = 0;
    }
    return false;
}

static json_t *kernel_json(const char *template_name, const char *arch, const struct axis *axes,
                           int count)
{
    json_t *object = json_object();
    json_t *settings = json_array();

    cli_set_text(object, "template", template_name);
    for (int i = 0; i < count; i++) {
        const json_t *value = axis_value(&axes[i]);

        (void)json_array_append_new(
            settings,
            json_is_string(value)
                ? json_sprintf("%s=%s", axes[i].name, json_string_value(value))
                : json_sprintf("%s=%lld", axes[i].name, (long long)json_integer_value(value)));
    }
    (void)json_object_set_new(object, "settings", settings);
    cli_set_text(object, "arch", arch);
    return object;
}

/* The architectures of an element of a list. */
static ffa_status entry_archs(const struct reader *reader, int64_t index, const json_t *entry,
                              char (*archs)[16], int *count, ffa_error *err)
{
    const json_t *arch = json_object_get(entry, "arch");

    memcpy(archs, reader->archs, sizeof reader->archs);
    *count = reader->arch_count;
    return arch && !reader->is_arch_given ? read_archs(reader, index, arch, archs, count, err)
                                          : FFA_OK;
}

static ffa_status read_kernel(struct manifest *out, const struct reader *reader, int64_t index,
                              const json_t *entry, ffa_error *err)
{
    static const char *const known[] = { "template", "values", "arch", NULL };
    const char *template_name = json_string_value(json_object_get(entry, "template"));
    struct axis axes[MANIFEST_SETTINGS_MAX];
    char archs[ARCHS_MAX][16];
    int arch_count = 0, axis_count;
    ffa_status rc = check_members(reader, index, entry, known, "template, values, arch", err);

    if (rc == FFA_OK && !template_name)
        rc = wrong(reader, index, err, "'template' is missing");
    if (rc == FFA_OK)
        rc = read_axes(reader, index, entry, axes, &axis_count, err);
    if (rc == FFA_OK)
        rc = entry_archs(reader, index, entry, archs, &arch_count, err);
    for (int i = 0; rc == FFA_OK && i < arch_count; i++) {
        do {
            if (out->count == MANIFEST_KERNELS_MAX)
                rc = wrong(reader, index, err, "more than %d kernels", MANIFEST_KERNELS_MAX);
            else
                rc = manifest_add(out, kernel_json(template_name, archs[i], axes, axis_count), err);
        } while (rc == FFA_OK && axes_step(axes, axis_count));
    }
    return rc;
}

/* ---- specs ---- */

static json_t *request_json(const ffa_compile_request *request)
{
    json_t *object = json_object();
    json_t *settings = json_array();

    cli_set_text(object, "template", request->template_name);
    for (int64_t i = 0; i < request->setting_count; i++)
        (void)json_array_append_new(settings, json_string(request->settings[i]));
    (void)json_object_set_new(object, "settings", settings);
    cli_set_text(object, "arch", request->arch);
    return object;
}

/* A spec whose kernels are added, table by table. */
struct adding {
    struct manifest *manifest;
    json_t *seen; /* their texts */
    const ffa_attention_spec *spec;
    const char *arch;
    ffa_status rc;
    ffa_error *err;
};

/* Those of the requests that are not among the `seen` ones. */
static void add_requests(struct adding *adding, ffa_requests *owner)
{
    struct manifest *manifest = adding->manifest;
    int64_t count = 0;
    const ffa_compile_request *requests = ffa_requests_get(owner, &count);

    for (int64_t i = 0; i < count; i++) {
        const char *kernel;

        if (manifest->count == MANIFEST_KERNELS_MAX)
            adding->rc = cli_error(adding->err, FFA_INVALID, 0, "more than %d kernels",
                                   MANIFEST_KERNELS_MAX);
        else
            adding->rc = manifest_add(manifest, request_json(&requests[i]), adding->err);
        if (adding->rc != FFA_OK)
            break;
        kernel = manifest->at[manifest->count - 1]->text;
        if (json_object_get(adding->seen, kernel))
            manifest_drop_last(manifest);
        else
            (void)json_object_set_new(adding->seen, kernel, json_true());
    }
}

/* The kernels by the table of a device model; NULL: by the default one. */
static void add_by_table(struct adding *adding, const char *device)
{
    ffa_requests *owner = NULL;

    adding->rc = device ? ffa_spec_requests_on(&owner, adding->manifest->context, device,
                                               adding->spec, adding->arch, adding->err)
                        : ffa_spec_requests(&owner, adding->spec, adding->arch, adding->err);
    if (adding->rc == FFA_OK)
        add_requests(adding, owner);
    ffa_requests_destroy(owner);
}

static int add_by_listed(void *user, const ffa_cost_table_info *info)
{
    struct adding *adding = user;

    if (!info->skipped[0])
        add_by_table(adding, info->device_name);
    return adding->rc != FFA_OK;
}

/* The kernels of a spec. Without a device model they are those of every job that finds the tables
 * that are found here, or none but the built-in one. */
static ffa_status add_spec(struct manifest *manifest, json_t *seen, const char *text,
                           const char *arch, ffa_error *err)
{
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    struct adding adding = {
        .manifest = manifest, .seen = seen, .spec = &spec, .arch = arch, .err = err
    };

    adding.rc = ffa_attention_spec_parse(&spec, text, err);
    if (adding.rc == FFA_OK)
        add_by_table(&adding, manifest->device);
    if (adding.rc == FFA_OK && manifest->context && !manifest->device) {
        ffa_status rc = ffa_cost_tables_list(manifest->context, add_by_listed, &adding, err);

        if (rc != FFA_OK)
            return rc;
    }
    return adding.rc;
}

/* "head_dim=128,dtype=bf16": where the axes stand. */
static void axes_text(const struct axis *axes, int count, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < count && at < size; i++) {
        const json_t *value = axis_value(&axes[i]);
        const char *comma = i ? "," : "";
        int bytes = json_is_string(value)
                        ? snprintf(out + at, size - at, "%s%s=%s", comma, axes[i].name,
                                   json_string_value(value))
                        : snprintf(out + at, size - at, "%s%s=%lld", comma, axes[i].name,
                                   (long long)json_integer_value(value));

        at += bytes > 0 ? (size_t)bytes : 0;
    }
}

static ffa_status read_spec(struct manifest *out, const struct reader *reader, int64_t index,
                            const json_t *entry, ffa_error *err)
{
    static const char *const known[] = { "values", "arch", NULL };
    struct axis axes[MANIFEST_SETTINGS_MAX];
    char archs[ARCHS_MAX][16];
    int arch_count = 0, axis_count;
    ffa_error why = { FFA_OK, 0, "" };
    char text[512];
    ffa_status rc = check_members(reader, index, entry, known, "values, arch", err);

    if (rc == FFA_OK)
        rc = read_axes(reader, index, entry, axes, &axis_count, err);
    if (rc == FFA_OK)
        rc = entry_archs(reader, index, entry, archs, &arch_count, err);
    for (int i = 0; rc == FFA_OK && i < arch_count; i++) {
        do {
            axes_text(axes, axis_count, text, sizeof text);
            rc = add_spec(out, reader->seen, text, archs[i], &why);
        } while (rc == FFA_OK && axes_step(axes, axis_count));
    }
    return rc == FFA_OK || !why.status
               ? rc
               : cli_error(err, why.status, 0, "manifest '%.160s': specs[%lld]: %s: %s",
                           reader->name, (long long)index, text, why.message);
}

static ffa_status read_list(struct manifest *out, struct reader *reader, const char *member,
                            ffa_status (*read)(struct manifest *out, const struct reader *reader,
                                               int64_t index, const json_t *entry, ffa_error *err),
                            ffa_error *err)
{
    const json_t *list = json_object_get(reader->root, member);
    ffa_status rc = FFA_OK;

    if (list && !json_is_array(list))
        return wrong(reader, -1, err, "'%s' is not a list", member);
    reader->list = member;
    for (size_t i = 0; rc == FFA_OK && i < json_array_size(list); i++)
        rc = read(out, reader, (int64_t)i, json_array_get(list, i), err);
    return rc;
}

static ffa_status read_root(struct manifest *out, struct reader *reader, ffa_error *err)
{
    static const char *const known[] = { "schema", "doc", "arch", "specs", "kernels", NULL };
    const json_t *schema = json_object_get(reader->root, "schema");
    const json_t *arch = json_object_get(reader->root, "arch");
    ffa_status rc =
        check_members(reader, -1, reader->root, known, "schema, doc, arch, specs, kernels", err);

    if (rc == FFA_OK && json_integer_value(schema) != SCHEMA)
        rc = wrong(reader, -1, err, "'schema' is not %d, the one this version reads", SCHEMA);
    if (rc == FFA_OK && !json_object_get(reader->root, "kernels") &&
        !json_object_get(reader->root, "specs"))
        rc = wrong(reader, -1, err, "it has neither 'specs' nor 'kernels'");
    if (rc == FFA_OK && arch && !reader->is_arch_given)
        rc = read_archs(reader, -1, arch, reader->archs, &reader->arch_count, err);
    if (rc == FFA_OK)
        rc = read_list(out, reader, "specs", read_spec, err);
    if (rc == FFA_OK)
        rc = read_list(out, reader, "kernels", read_kernel, err);
    return rc;
}

ffa_status manifest_read_json(struct manifest *out, const char *name, const json_t *root,
                              const char *archs, const char *arch, ffa_error *err)
{
    struct reader reader = { .name = name, .root = root, .seen = json_object() };
    ffa_status rc;

    if (archs)
        rc = split_archs(&reader, archs, err);
    else
        rc = put_arch(&reader, -1, reader.archs, &reader.arch_count, arch, strlen(arch), err);
    if (rc == FFA_OK)
        rc = read_root(out, &reader, err);
    json_decref(reader.seen);
    return rc;
}

ffa_status manifest_read(struct manifest *out, const char *name, const char *text, size_t bytes,
                         const char *archs, const char *arch, ffa_error *err)
{
    json_error_t where;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    ffa_status rc;

    if (!root)
        return cli_error(err, FFA_INVALID, 0, "manifest '%.160s', line %d: %s", name, where.line,
                         where.text);
    rc = manifest_read_json(out, name, root, archs, arch, err);
    json_decref(root);
    return rc;
}

ffa_status manifest_read_specs(struct manifest *out, const json_t *specs, const char *archs,
                               const char *arch, ffa_error *err)
{
    struct reader reader = { .name = "--spec", .seen = json_object() };
    ffa_status rc =
        archs ? split_archs(&reader, archs, err)
              : put_arch(&reader, -1, reader.archs, &reader.arch_count, arch, strlen(arch), err);

    for (int i = 0; i < reader.arch_count && rc == FFA_OK; i++)
        for (size_t j = 0; j < json_array_size(specs) && rc == FFA_OK; j++)
            rc = add_spec(out, reader.seen, json_string_value(json_array_get(specs, j)),
                          reader.archs[i], err);
    json_decref(reader.seen);
    return rc;
}
