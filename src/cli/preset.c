/* SPDX-License-Identifier: Apache-2.0
 *
 * Presets, made from the table of models (cache/models.json): a preset is a manifest whose specs
 * are those of every model with the preset's values beside them; a model's name stands for its part
 * of all presets; "all" is all presets and what the table lists for it alone. A model's own value
 * stands above the preset's.
 */
#include "cli/file.h"
#include "cli/manifest.h"
#include "cli/presets.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(const json_t *row)
{
    return json_string_value(json_object_get(row, "name"));
}

/* "training, inference, gqa-128, ... or all". */
static ffa_status unknown(const json_t *table, const char *name, ffa_error *err)
{
    static const char *const lists[] = { "presets", "models" };
    char known[512] = "";
    size_t at = 0;

    for (int i = 0; i < CLI_COUNT(lists); i++) {
        const json_t *list = json_object_get(table, lists[i]);

        for (size_t j = 0; j < json_array_size(list) && at < sizeof known; j++) {
            const char *row = name_of(json_array_get(list, j));
            int bytes = snprintf(known + at, sizeof known - at, "%s, ", row);

            at += bytes > 0 ? (size_t)bytes : 0;
        }
    }
    return cli_error(err, FFA_INVALID, 0, "--preset is '%.40s', not one of %sall", name, known);
}

/* The specs of a model in a preset. */
static void add_spec(json_t *specs, const json_t *model, const json_t *preset)
{
    json_t *entry = json_object();
    json_t *values = json_copy(json_object_get(preset, "values"));

    (void)json_object_update(values, json_object_get(model, "values"));
    (void)json_object_set_new(entry, "values", values);
    (void)json_array_append_new(specs, entry);
}

static void add_specs(json_t *specs, const json_t *table, const char *name)
{
    const json_t *presets = json_object_get(table, "presets");
    const json_t *models = json_object_get(table, "models");
    const bool is_all = !strcmp(name, "all");

    for (size_t i = 0; i < json_array_size(presets); i++)
        for (size_t j = 0; j < json_array_size(models); j++) {
            const json_t *preset = json_array_get(presets, i), *model = json_array_get(models, j);

            if (is_all || !strcmp(name_of(preset), name) || !strcmp(name_of(model), name))
                add_spec(specs, model, preset);
        }
}

ffa_status preset_make(json_t **out, const char *name, ffa_error *err)
{
    json_t *table = json_loadb(preset_files[0].text, preset_files[0].bytes, 0, NULL);
    json_t *specs = json_array();
    json_t *root = json_object();
    const json_t *all = json_object_get(table, "all");
    ffa_status rc = FFA_OK;

    add_specs(specs, table, name);
    if (!strcmp(name, "all")) {
        (void)json_array_extend(specs, json_object_get(all, "specs"));
        (void)json_object_set(root, "kernels", json_object_get(all, "kernels"));
    }
    if (!table)
        rc = cli_error(err, FFA_NOMEM, 0, "no memory for the table of models");
    else if (!json_array_size(specs))
        rc = unknown(table, name, err);
    cli_set_int(root, "schema", 1);
    (void)json_object_set_new(root, "specs", specs);
    json_decref(table);
    if (rc != FFA_OK) {
        json_decref(root);
        root = NULL;
    }
    *out = root;
    return rc;
}
