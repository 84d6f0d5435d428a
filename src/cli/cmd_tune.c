/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa tune table|explain: the cost table that a device gets, and what a mask's choices were made
 * between. Both need no GPU.
 */
#include "cli/cli.h"
#include "cli/fits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kernels twice and a split; four groups of waves for each divisor of a group of heads. */
enum { CANDIDATES_MAX = 640 };

struct found {
    ffa_explain_candidate candidates[CANDIDATES_MAX];
    int count;
    ffa_explain_info info;
    ffa_plan_info plan;
    ffa_cost_table_info costs;
    ffa_attention_spec spec;
    const char *mask;
};

#define DEVICE_OPTION(target)                                                                      \
    {                                                                                              \
        "device", CLI_TEXT, target, "MODEL",                                                       \
            "a device model that has a cost table; this machine's, or NVIDIA H200", 0, 0           \
    }

static int open_context(const struct cli *cli, ffa_context **out, const char *device)
{
    return cli_open(cli, out, device ? FFA_DEVICE_CPU : FFA_DEVICE_AUTO,
                    FFA_OPEN_CACHE_READONLY | FFA_OPEN_NEVER_COMPILE);
}

/* ---- tune table ---- */

int cmd_tune_table(struct cli *cli)
{
    ffa_cost_table_info info = FFA_COST_TABLE_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    const char *device = NULL;
    char *text = NULL;
    const struct cli_option rows[] = { DEVICE_OPTION(&device) };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO)
        status = open_context(cli, &context, device);
    if (status != CLI_PARSE_GO)
        return status;
    status = ffa_cost_table_get(context, device, &info, &text, &err) == FFA_OK
                 ? CLI_DONE
                 : cli_fail(cli, &err);
    if (text)
        (void)fputs(text, stdout);
    ffa_free(text);
    ffa_close(context);
    return status;
}

/* ---- tune explain: looking ---- */

static int keep(void *user, const ffa_explain_candidate *candidate)
{
    struct found *found = user;

    found->candidates[found->count++] = *candidate;
    return found->count == CANDIDATES_MAX;
}

static int read_spec(const struct cli *cli, ffa_attention_spec *spec, const char *text,
                     const char *heads)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t q, kv;
    char item[64];

    *spec = (ffa_attention_spec)FFA_ATTENTION_SPEC_INIT;
    if (ffa_attention_spec_parse(spec, text, &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (!heads)
        return CLI_PARSE_GO;
    if (!cli_heads(heads, &q, &kv))
        return cli_fail_text(cli, FFA_INVALID,
                             "--heads is '%s', not HQ:HK, such as 8:2 (query heads : kv heads)",
                             heads);
    (void)snprintf(item, sizeof item, "heads=%d:%d", q, kv);
    return ffa_attention_spec_parse(spec, item, &err) == FFA_OK ? CLI_PARSE_GO
                                                                : cli_fail(cli, &err);
}

static ffa_status look(struct found *found, const ffa_mask *mask, ffa_context *context,
                       const char *device, ffa_error *err)
{
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_status rc;

    found->info = (ffa_explain_info)FFA_EXPLAIN_INFO_INIT;
    found->plan = (ffa_plan_info)FFA_PLAN_INFO_INIT;
    found->costs = (ffa_cost_table_info)FFA_COST_TABLE_INFO_INIT;
    query.spec = &found->spec;
    query.mask = mask;
    query.device = device;
    rc = ffa_explain(context, &query, &found->plan, &found->info, keep, found, err);
    if (rc == FFA_OK)
        rc = ffa_cost_table_get(context, device, &found->costs, NULL, err);
    return rc;
}

/* ---- saying ---- */

static const char *source_of(const struct found *found)
{
    return ffa_cost_source_text((ffa_cost_source)found->costs.source);
}

static bool has_pass(const struct found *found, int32_t is_backward)
{
    for (int i = 0; i < found->count; i++)
        if (found->candidates[i].is_backward == is_backward)
            return true;
    return false;
}

/* Splits are compared with whole tiles by a model of their own. */
static bool is_ranked(const ffa_explain_candidate *candidate, int32_t is_backward)
{
    return candidate->is_backward == is_backward && !candidate->is_split;
}

static double best_of(const struct found *found, int32_t is_backward)
{
    double best = 0;

    for (int i = 0; i < found->count; i++)
        if (is_ranked(&found->candidates[i], is_backward) &&
            (best == 0 || found->candidates[i].time < best))
            best = found->candidates[i].time;
    return best;
}

/* A candidate's time as a multiple of the best one's; a split's, of that of whole tiles. */
static double relative(const ffa_explain_candidate *candidate, double best)
{
    const double of = candidate->is_split ? candidate->whole_time : best;

    return of > 0 ? candidate->time / of : 1;
}

static json_t *candidate_object(const ffa_explain_candidate *candidate, double best)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "chosen", json_boolean(candidate->is_chosen));
    if (candidate->is_backward) {
        cli_set_int(object, "parts", candidate->parts);
        cli_set_int(object, "whole_heads", candidate->whole_heads);
        cli_set_int(object, "waves", candidate->waves);
        cli_set_int(object, "l2_head_groups", candidate->l2_head_groups);
    } else {
        cli_set_int(object, "tile_m", candidate->tile_m);
        cli_set_int(object, "tile_n", candidate->tile_n);
        cli_set_int(object, "consumers", candidate->consumers);
        (void)json_object_set_new(object, "split", json_boolean(candidate->is_split));
    }
    (void)json_object_set_new(object, "apart", json_boolean(candidate->is_apart));
    cli_set_int(object, "tiles", candidate->tile_count);
    (void)json_object_set_new(object, "time", cli_real(candidate->time));
    (void)json_object_set_new(object, "us",
                              candidate->us > 0 ? cli_real(candidate->us) : json_null());
    (void)json_object_set_new(object, "relative", cli_real(relative(candidate, best)));
    if (candidate->is_split)
        (void)json_object_set_new(object, "whole_time", cli_real(candidate->whole_time));
    return object;
}

static json_t *pass_object(const struct found *found, int32_t is_backward)
{
    const double best = best_of(found, is_backward);
    json_t *object, *list;

    if (!has_pass(found, is_backward))
        return json_null();
    object = json_object();
    list = json_array();
    for (int i = 0; i < found->count; i++)
        if (found->candidates[i].is_backward == is_backward)
            (void)json_array_append_new(list, candidate_object(&found->candidates[i], best));
    cli_set_text(object, "unit", is_backward ? "blocks of a query head" : "keys of a tile");
    (void)json_object_set_new(object, "candidates", list);
    cli_set_text(object, "why", is_backward ? found->info.backward_why : found->info.forward_why);
    return object;
}

static int print_object(const struct cli *cli, const struct found *found)
{
    json_t *object = json_object(), *device = json_object(), *costs = json_object();

    cli_set_text(object, "mask", found->mask);
    cli_set_int(object, "heads_q", found->spec.heads_q);
    cli_set_int(object, "heads_kv", found->spec.heads_kv);
    cli_set_int(object, "head_dim", found->spec.head_dim);
    cli_set_int(object, "pack_heads", found->plan.pack_heads);
    cli_set_text(device, "name", found->info.device);
    cli_set_int(device, "sm_count", found->info.sm_count);
    cli_set_int(device, "l2_bytes", found->info.l2_bytes);
    (void)json_object_set_new(object, "device", device);
    cli_set_text(costs, "device", found->costs.device_name);
    cli_set_text(costs, "digest", found->costs.digest);
    cli_set_text(costs, "source", source_of(found));
    cli_set_text(costs, "origin", found->costs.origin);
    cli_set_text(costs, "path", found->costs.path);
    (void)json_object_set_new(object, "cost_table", costs);
    cli_set_int(object, "l2_heads_kv", found->plan.l2_heads_kv);
    (void)json_object_set_new(object, "forward", pass_object(found, 0));
    (void)json_object_set_new(object, "backward", pass_object(found, 1));
    return cli_print_json(cli, object, CLI_DONE);
}

static void print_time(const ffa_explain_candidate *candidate, double best)
{
    if (candidate->us > 0)
        (void)printf("%10.1f us", candidate->us);
    else
        (void)printf("%13.1f", candidate->time);
    (void)printf("  %8.3f%s\n", relative(candidate, best),
                 candidate->is_split ? " of whole tiles" : "");
}

static void print_forward(const struct found *found)
{
    const double best = best_of(found, 0);

    if (found->plan.pack_heads > 1)
        (void)printf("forward    %d query heads share a tile\n", found->plan.pack_heads);
    else
        (void)printf("forward    each query head has its own tiles\n");
    (void)printf("   rows x keys  warpgroups  tiles are           tiles  %13s  relative\n", "time");
    for (int i = 0; i < found->count; i++) {
        const ffa_explain_candidate *candidate = &found->candidates[i];
        char tile[32];

        if (candidate->is_backward)
            continue;
        (void)snprintf(tile, sizeof tile, "%d x %d", candidate->tile_m, candidate->tile_n);
        (void)printf(" %c %-11s  %10d  %-16s %8" PRId64 "  ", candidate->is_chosen ? '*' : ' ',
                     tile, candidate->consumers,
                     candidate->is_split   ? "split"
                     : candidate->is_apart ? "a document each"
                                           : "across documents",
                     candidate->tile_count);
        print_time(candidate, best);
    }
    cli_line(stdout, "           %s", found->info.forward_why);
    if (found->plan.l2_heads_kv)
        (void)printf("           %d kv %s in an L2 group\n", found->plan.l2_heads_kv,
                     found->plan.l2_heads_kv == 1 ? "head" : "heads");
}

static void print_backward(const struct found *found)
{
    const double best = best_of(found, 1);

    (void)printf("backward   %d key tiles of %d x %d\n"
                 "   parts  whole heads  waves  head groups  %13s  relative\n",
                 found->plan.backward_tile_count, found->plan.backward_tile_m,
                 found->plan.backward_tile_n, "time");
    for (int i = 0; i < found->count; i++) {
        const ffa_explain_candidate *candidate = &found->candidates[i];

        if (!candidate->is_backward)
            continue;
        (void)printf(" %c %5d  %11d  %5d  %11d  ", candidate->is_chosen ? '*' : ' ',
                     candidate->parts, candidate->whole_heads, candidate->waves,
                     candidate->l2_head_groups);
        print_time(candidate, best);
    }
    cli_line(stdout, "           %s", found->info.backward_why);
}

static int print_text(const struct found *found)
{
    cli_line(stdout, "mask       %s", found->mask);
    cli_line(stdout, "device     %s, %d SMs, %.1f MiB of L2", found->info.device,
             found->info.sm_count, (double)found->info.l2_bytes / 1048576);
    cli_line(stdout, "costs      %s, %.16s, %s%s%s", found->costs.device_name, found->costs.digest,
             source_of(found), found->costs.path[0] ? ", " : "", found->costs.path);
    if (found->costs.origin[0])
        cli_line(stdout, "           %s", found->costs.origin);
    print_forward(found);
    if (has_pass(found, 1))
        print_backward(found);
    return CLI_DONE;
}

int cmd_tune_explain(struct cli *cli)
{
    const char *spec = "head_dim=128,dtype=bf16,heads=8:8,backward", *heads = NULL, *device = NULL;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context = NULL;
    ffa_mask *mask = NULL;
    struct found *found;
    const struct cli_option rows[] = {
        { "spec", CLI_TEXT, &spec, "SPEC",
          "the kernels; head_dim=128,dtype=bf16,heads=8:8,backward", 0, 0 },
        { "heads", CLI_TEXT, &heads, "HQ:HK", "query and kv heads; those of the spec", 0, 0 },
        DEVICE_OPTION(&device),
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 1, 1);

    if (status != CLI_PARSE_GO)
        return status;
    cli_bound_memory();
    found = calloc(1, sizeof *found);
    if (!found)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for the candidates");
    found->mask = cli->argv[0];
    status = read_spec(cli, &found->spec, spec, heads);
    if (status == CLI_PARSE_GO && ffa_mask_parse(&mask, found->mask, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    if (status == CLI_PARSE_GO)
        status = open_context(cli, &context, device);
    if (status == CLI_PARSE_GO && look(found, mask, context, device, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    if (status == CLI_PARSE_GO)
        status = cli->json ? print_object(cli, found) : print_text(found);
    ffa_close(context);
    ffa_mask_destroy(mask);
    free(found);
    return status;
}
