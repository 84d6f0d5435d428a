/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost tables of a context: which one its device gets, and listing them.
 */
#include "choose/cost_table_json.h"
#include "gpu/gpu.h"
#include "service/context.h"

struct choose_device context_choose_device(const ffa_context *context)
{
    const struct device_facts none = { .name = "" };

    return choose_device_among(context->costs,
                               context->gpu ? gpu_device_facts(context->gpu) : &none);
}

/* What a table says of the device that it was fitted on. */
static struct device_facts facts_of(const struct cost_table *table)
{
    struct device_facts facts = { .sm_count = table->sm_count, .l2_bytes = table->l2_bytes };

    text_copy(facts.name, "%s", table->device);
    return facts;
}

static ffa_status fail_model(const struct cost_tables *tables, const char *device, ffa_error *err)
{
    char known[160] = "";

    for (int32_t i = 0; i < tables->count; i++) {
        const char *name = tables->at[i].table.device;
        const size_t used = strlen(known);

        if (!*tables->at[i].skipped && cost_tables_named(tables, name) == &tables->at[i])
            text_format(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
    }
    return error_fail(err, FFA_NOT_FOUND, 0, "there is no cost table of device '%.60s', but of: %s",
                      device, known);
}

ffa_status context_choose_model(struct choose_device *out, const ffa_context *context,
                                const char *device, ffa_error *err)
{
    const struct cost_entry *entry = device ? cost_tables_named(context->costs, device) : NULL;
    struct device_facts facts;

    if (device && !entry)
        return fail_model(context->costs, device, err);
    *out = context_choose_device(context);
    if (entry) {
        facts = facts_of(&entry->table);
        *out = choose_device_among(context->costs, &facts);
    } else if (!context->gpu) {
        out->facts = facts_of(out->costs);
    }
    return FFA_OK;
}

/* ---- public ---- */

static ffa_cost_table_info info_of(const struct cost_entry *entry, ffa_cost_source source)
{
    ffa_cost_table_info info = { .source = (int32_t)source,
                                 .sm_count = entry->table.sm_count,
                                 .l2_bytes = entry->table.l2_bytes };

    text_copy(info.device, "%s", entry->table.device);
    text_copy(info.device_name, "%s", entry->table.device);
    text_copy(info.digest, "%s", entry->digest);
    text_copy(info.templates, "%s", entry->table.templates);
    text_copy(info.origin, "%s", entry->table.origin);
    text_copy(info.path, "%s", entry->path);
    text_copy(info.skipped, "%s", entry->skipped);
    return info;
}

ffa_status ffa_cost_tables_list(ffa_context *context, ffa_cost_table_fn visit, void *user,
                                ffa_error *err)
{
    if (!context || !visit)
        return error_fail(err, FFA_INVALID, 0, "ffa_cost_tables_list: %s is NULL",
                          context ? "visit" : "context");
    for (int32_t i = 0; i < context->costs->count; i++) {
        const struct cost_entry *entry = &context->costs->at[i];
        ffa_cost_table_info info =
            info_of(entry, entry->is_tuned ? FFA_COST_TUNED : FFA_COST_BUILT_IN);

        info.struct_size = (uint32_t)sizeof info;
        if (visit(user, &info))
            break;
    }
    return FFA_OK;
}

/* The entry that a device's table is in. */
static const struct cost_entry *entry_of(const struct cost_tables *tables,
                                         const struct cost_table *table)
{
    int32_t i = 0;

    while (&tables->at[i].table != table)
        i++;
    return &tables->at[i];
}

ffa_status ffa_cost_table_get(ffa_context *context, const char *device, ffa_cost_table_info *info,
                              char **text, ffa_error *err)
{
    struct choose_device chosen;
    ffa_cost_table_info now;
    ffa_status rc;

    if (text)
        *text = NULL;
    if (!context || !info)
        return error_fail(err, FFA_INVALID, 0, "ffa_cost_table_get: %s is NULL",
                          context ? "info" : "context");
    FFA_TRY(context_choose_model(&chosen, context, device, err));
    now = info_of(entry_of(context->costs, chosen.costs), chosen.source);
    FFA_TRY(opts_export(info, &now, sizeof now, err));
    if (text)
        rc = cost_table_write(chosen.costs, text, err);
out:
    return rc;
}
