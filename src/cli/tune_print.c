/* SPDX-License-Identifier: Apache-2.0
 *
 * The report of ffa_tune_text is JSON already: with --json it is printed with the digests added,
 * else as tables.
 */
#include "cli/tune_print.h"

#include <inttypes.h>
#include <string.h>

static const char *text_at(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text ? text : "";
}

static long long int_at(const json_t *object, const char *name)
{
    return (long long)json_integer_value(json_object_get(object, name));
}

static double real_at(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

void tune_order_text(char out[48], int parts, int waves, int whole_heads, bool is_unlocked)
{
    char whole[16] = "";

    if (whole_heads)
        (void)snprintf(whole, sizeof whole, "+%d", whole_heads);
    (void)snprintf(out, 48, "%dx%d%s%s", parts, waves, whole, is_unlocked ? "u" : "");
}

static void order_text(char out[48], const json_t *of)
{
    tune_order_text(out, (int)int_at(of, "parts"), (int)int_at(of, "waves"),
                    (int)int_at(of, "whole_heads"),
                    int_at(of, "is_unlocked") || json_is_true(json_object_get(of, "unlocked")));
}

/* "192x80", an order, or "baseline". */
static void tile_text(char out[48], const json_t *of, const char *rows, int factor)
{
    if (int_at(of, "tile_n"))
        (void)snprintf(out, 48, "%lldx%lld", int_at(of, rows) * factor, int_at(of, "tile_n"));
    else if (int_at(of, "parts"))
        order_text(out, of);
    else
        (void)snprintf(out, 48, "baseline");
}

/* "128", or with another head_dim of v "192:128". */
static void columns_text(char out[24], const json_t *of)
{
    const long long q = int_at(of, "head_dim"), v = int_at(of, "head_dim_v");

    if (v && v != q)
        (void)snprintf(out, 24, "%lld:%lld", q, v);
    else
        (void)snprintf(out, 24, "%lld", q);
}

/* ---- a session ---- */

/* How many configurations are in each state: "18 checked, 3 refused, 2 spilled". */
static void print_states(const json_t *configurations)
{
    static const char *const states[] = { "pending", "compiled", "checked", "spilled",
                                          "refused", "wrong",    "hung",    "died" };
    const char *separator = "";
    const json_t *one;
    size_t i;

    for (int s = 0; s < CLI_COUNT(states); s++) {
        int count = 0;

        json_array_foreach(configurations, i, one)
        {
            count += strcmp(text_at(one, "state"), states[s]) == 0;
        }
        if (!count)
            continue;
        (void)printf("%s%d %s", separator, count, states[s]);
        separator = ", ";
    }
    (void)printf("\n");
}

static void print_session(const json_t *session)
{
    const json_t *configurations = json_object_get(session, "configurations");
    const bool is_backward = int_at(session, "backward_tile_m") > 0;
    char columns[24];
    const json_t *one;
    size_t i;

    cli_line(stdout, "session %.8s  %s, %lld SMs, driver %s, %lld W", text_at(session, "id"),
             text_at(session, "device"), int_at(session, "sm_count"),
             text_at(session, "driver")[0] ? text_at(session, "driver") : "unknown",
             int_at(session, "power_limit_w"));
    columns_text(columns, session);
    cli_line(stdout, "  spec      head_dim=%s,dtype=%s,heads=%lld:%lld,pack=%lld%s%s", columns,
             int_at(session, "dtype") == FFA_BF16 ? "bf16" : "fp16", int_at(session, "heads_q"),
             int_at(session, "heads_kv"), int_at(session, "pack_heads"),
             is_backward ? ",backward" : "",
             int_at(session, "is_deterministic") ? ",deterministic" : "");
    (void)printf("  timed     %.1f of %.1f s, %lld samples, %s\n",
                 (double)int_at(session, "spent_us") / 1e6,
                 (double)int_at(session, "budget_us") / 1e6, int_at(session, "samples"),
                 int_at(session, "ended_s") ? "over" : "not over");
    (void)printf("  %-9s ", is_backward ? "orders" : "tiles");
    print_states(configurations);
    json_array_foreach(configurations, i, one)
    {
        char tile[48];

        tile_text(tile, one, "consumers", 64);
        if (text_at(one, "reason")[0])
            cli_line(stdout, "    %-8s %s: %s", tile, text_at(one, "state"),
                     text_at(one, "reason"));
    }
}

/* ---- a fit ---- */

/* Of the column of masks: the longest one, up to a line. */
static int mask_width(const json_t *cases)
{
    const json_t *one;
    size_t i, width = 26;

    json_array_foreach(cases, i, one)
    {
        const size_t bytes = strlen(text_at(one, "mask"));

        width = bytes > width && bytes <= 60 ? bytes : width;
    }
    return (int)width;
}

static void print_cases(const json_t *cases)
{
    const int width = mask_width(cases);
    const json_t *one;
    size_t i;

    (void)printf("  %-*s %7s %12s %11s %8s %8s %8s\n", width, "mask", "heads", "baseline us",
                 "chosen us", "tile", "gain", "noise");
    json_array_foreach(cases, i, one)
    {
        char heads[32], tile[48];

        (void)snprintf(heads, sizeof heads, "%lld:%lld", int_at(one, "heads_q"),
                       int_at(one, "heads_kv"));
        if (!json_object_get(one, "chosen_us")) {
            cli_line(stdout, "  %-*s %7s %12.1f", width, text_at(one, "mask"), heads,
                     real_at(one, "baseline_us"));
            continue;
        }
        tile_text(tile, one, "tile_m", 1);
        cli_line(stdout, "  %-*s %7s %12.1f %11.1f %8s %+7.2f%% %7.2f%%", width,
                 text_at(one, "mask"), heads, real_at(one, "baseline_us"),
                 real_at(one, "chosen_us"), tile, 100 * real_at(one, "gain"),
                 100 * real_at(one, "noise"));
    }
}

static void print_kernels(const json_t *kernels)
{
    const json_t *one;
    size_t i;

    (void)printf("  %-8s %6s %9s %8s %9s %9s\n", "tile", "rank", "begin", "key", "of model",
                 "of time");
    json_array_foreach(kernels, i, one)
    {
        char tile[48], rank[24] = "-";

        tile_text(tile, one, "tile_m", 1);
        if (int_at(one, "rank") >= 0)
            (void)snprintf(rank, sizeof rank, "%lld", int_at(one, "rank") + 1);
        (void)printf("  %-8s %6s %9.0f %8.3f %8.2f%% %8.2f%%\n", tile, rank, real_at(one, "begin"),
                     real_at(one, "key"), 100 * real_at(one, "residual"),
                     100 * real_at(one, "relative"));
    }
}

static void print_fit(const json_t *fit)
{
    char columns[24];

    columns_text(columns, fit);
    (void)printf("head_dim %s%s: %s, gain %+.2f %%, noise %.2f %%\n", columns,
                 json_is_false(json_object_get(fit, "packed")) ? ", heads apart" : "",
                 json_is_true(json_object_get(fit, "published")) ? "published" : "as it was",
                 100 * real_at(fit, "gain"), 100 * real_at(fit, "noise"));
    if (text_at(fit, "reason")[0])
        cli_line(stdout, "  %s", text_at(fit, "reason"));
    if (json_array_size(json_object_get(fit, "masks")))
        print_cases(json_object_get(fit, "masks"));
    if (json_array_size(json_object_get(fit, "kernels")))
        print_kernels(json_object_get(fit, "kernels"));
}

/* ---- orders ---- */

static void print_order_case(const json_t *of, int width)
{
    const json_t *best = json_array_get(json_object_get(of, "times"), 0);
    char columns[24], heads[32], chosen[48], order[48] = "-", fitted[48];
    double gain = 0, noise = 0;

    columns_text(columns, of);
    (void)snprintf(heads, sizeof heads, "%lld:%lld", int_at(of, "heads_q"), int_at(of, "heads_kv"));
    order_text(chosen, json_object_get(of, "chosen"));
    order_text(fitted, json_object_get(of, "fitted"));
    if (best && json_is_true(json_object_get(best, "final"))) {
        order_text(order, best);
        gain = real_at(best, "gain");
        noise = real_at(best, "noise");
    }
    cli_line(stdout, "  %-*s %8s %7s %12.1f %8s %8s %+7.2f%% %7.2f%% %8s %+7.2f%% %7.2f%%", width,
             text_at(of, "mask"), columns, heads, real_at(of, "baseline_us"), chosen, order,
             100 * gain, 100 * noise, fitted, 100 * real_at(of, "gain"),
             100 * real_at(of, "noise"));
}

static void print_constants(const json_t *constants)
{
    const json_t *one;
    size_t i;

    json_array_foreach(constants, i, one)
    {
        cli_line(stdout, "  %-24s %10.3g, was %.3g", text_at(one, "name"), real_at(one, "after"),
                 real_at(one, "before"));
    }
}

static void print_orders(const json_t *orders)
{
    const json_t *masks = json_object_get(orders, "masks"), *one;
    const int width = mask_width(masks);
    size_t i;

    (void)printf("orders: %s, gain %+.2f %%, noise %.2f %%; of the best of each mask %+.2f %%\n",
                 json_is_true(json_object_get(orders, "published")) ? "published" : "as they were",
                 100 * real_at(orders, "gain"), 100 * real_at(orders, "noise"),
                 100 * real_at(orders, "best_gain"));
    if (text_at(orders, "reason")[0])
        cli_line(stdout, "  %s", text_at(orders, "reason"));
    if (!json_array_size(masks))
        return;
    (void)printf("  %-*s %8s %7s %12s %8s %8s %8s %8s %8s %8s %8s\n", width, "mask", "head_dim",
                 "heads", "baseline us", "chosen", "best", "gain", "noise", "fitted", "gain",
                 "noise");
    json_array_foreach(masks, i, one)
    {
        print_order_case(one, width);
    }
    print_constants(json_object_get(orders, "constants"));
}

static void print_tables(const json_t *report, const ffa_tune_info *info)
{
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(report, "sessions"), i, one)
    {
        print_session(one);
    }
    json_array_foreach(json_object_get(report, "fits"), i, one)
    {
        print_fit(one);
    }
    if (json_object_get(report, "orders"))
        print_orders(json_object_get(report, "orders"));
    (void)printf("table %s%s\n", info->table_digest,
                 info->is_published ? "" : ", as the sessions began with it");
}

static int print_tune(const struct cli *cli, const ffa_tune *tune, json_t *failed, ffa_error *err)
{
    ffa_tune_info info = FFA_TUNE_INFO_INIT;
    json_t *report;
    char *text = NULL;

    if (ffa_tune_info_get(tune, &info, err) != FFA_OK ||
        ffa_tune_text(tune, FFA_TUNE_REPORT, &text, err) != FFA_OK)
        return cli_fail(cli, err);
    report = json_loads(text, 0, NULL);
    ffa_free(text);
    if (!report)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for the report");
    cli_set_text(report, "device", info.device);
    cli_set_text(report, "templates_digest", info.templates_digest);
    cli_set_text(report, "table_digest", info.table_digest);
    cli_set_text(report, "samples_digest", info.samples_digest);
    (void)json_object_set_new(report, "published", json_boolean(info.is_published));
    if (json_array_size(failed))
        (void)json_object_set(report, "failed", failed);
    if (cli->json)
        return cli_print_json(cli, report, CLI_DONE);
    print_tables(report, &info);
    json_decref(report);
    return CLI_DONE;
}

int tune_print_report(const struct cli *cli, const char *const *paths, int64_t count,
                      json_t *failed)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune = NULL;
    const int status = ffa_tune_open(&tune, paths, count, &err) == FFA_OK
                           ? print_tune(cli, tune, failed, &err)
                           : cli_fail(cli, &err);

    ffa_tune_destroy(tune);
    json_decref(failed);
    return status;
}

static void print_configurations(const json_t *session)
{
    const json_t *one;
    size_t i;

    (void)printf("%-9s ", int_at(session, "backward_tile_m") ? "orders" : "tiles");
    json_array_foreach(json_object_get(session, "configurations"), i, one)
    {
        char tile[48];

        tile_text(tile, one, "consumers", 64);
        (void)printf("%s%s", i ? " " : "", tile);
    }
    (void)printf("\n");
}

static void print_samples(const json_t *session)
{
    (void)printf("samples   %lld at most, in %.0f s\n", int_at(session, "samples"),
                 (double)int_at(session, "budget_us") / 1e6);
}

int tune_print_preview(const struct cli *cli, const char *text)
{
    json_t *preview = json_loads(text, 0, NULL);
    const json_t *one;
    size_t i;

    if (!preview)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for the preview");
    if (cli->json)
        return cli_print_json(cli, preview, CLI_DONE);
    cli_line(stdout, "device    %s", text_at(preview, "device"));
    print_configurations(preview);
    (void)printf("masks     ");
    json_array_foreach(json_object_get(preview, "masks"), i, one)
    {
        cli_line(stdout, "%s%s", i ? "          " : "", json_string_value(one));
    }
    print_samples(preview);
    if (json_object_get(preview, "backward")) {
        print_configurations(json_object_get(preview, "backward"));
        print_samples(json_object_get(preview, "backward"));
    }
    json_decref(preview);
    return CLI_DONE;
}
