/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa cache gc: remove the entries unused for longest, by age, by size or both.
 *
 * The store decides what goes; this file reads sizes and ages and prints the result. --dry-run
 * lists the entries that would go.
 */
#include "cli/amount.h"
#include "cli/cli.h"
#include "cli/entries.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_report(const struct cli *cli, const ffa_cache_gc_report *report, json_t *entries)
{
    json_t *object;

    if (!cli->json) {
        (void)printf("removed       %" PRId64 "\nkept          %" PRId64 "\n", report->removed,
                     report->kept);
        (void)printf("bytes before  %" PRId64 "\nbytes after   %" PRId64 "\n", report->bytes_before,
                     report->bytes_after);
        return CLI_DONE;
    }
    object = json_object();
    cli_set_int(object, "removed", report->removed);
    cli_set_int(object, "kept", report->kept);
    cli_set_int(object, "bytes_before", report->bytes_before);
    cli_set_int(object, "bytes_after", report->bytes_after);
    (void)json_object_set(object, "entries", entries);
    return cli_print_json(cli, object, CLI_DONE);
}

static int collect(const struct cli *cli, const ffa_cache_gc_opts *opts)
{
    struct entry_list list = { .array = cli->json ? json_array() : NULL };
    bool is_dry = opts->flags & FFA_CACHE_GC_DRY_RUN;
    ffa_cache_gc_report report = FFA_CACHE_GC_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    int status = entries_open_store(cli, &cache, is_dry ? FFA_CACHE_READONLY : 0);

    if (status == CLI_PARSE_GO)
        status = cache && ffa_cache_gc(cache, opts, &report,
                                       is_dry || cli->json ? entry_list_visit : NULL, &list,
                                       &err) != FFA_OK
                     ? cli_fail(cli, &err)
                     : print_report(cli, &report, list.array);
    json_decref(list.array);
    ffa_cache_close(cache);
    return status;
}

int cmd_cache_gc(struct cli *cli)
{
    ffa_cache_gc_opts opts = FFA_CACHE_GC_OPTS_INIT;
    const char *size = NULL;
    const char *age = NULL;
    bool is_dry = false;
    const struct cli_option rows[] = {
        { "max-size", CLI_TEXT, &size, "SIZE", "remove the longest unused until SIZE is left: 1G",
          0, 0 },
        { "older-than", CLI_TEXT, &age, "AGE", "remove what was not used for AGE: 30d, 12h", 0, 0 },
        { "dry-run", CLI_FLAG, &is_dry, NULL, "list what would go; remove nothing", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status != CLI_PARSE_GO)
        return status;
    if (!size && !age)
        return cli_fail_text(cli, FFA_INVALID,
                             "say what may go: --max-size 1G, --older-than 30d or both");
    if (size && !amount_read_size(size, &opts.bytes_max))
        return cli_fail_text(cli, FFA_INVALID,
                             "--max-size is '%s', not a size such as 500000, 512M or 1G", size);
    /* A bare number would be seconds, and meant as days: it would remove all. */
    if (age && (!amount_read_age(age, &opts.unused_s) || !amount_has_unit(age)))
        return cli_fail_text(cli, FFA_INVALID,
                             "--older-than is '%s', not an age such as 12h, 30d or 4w", age);
    opts.flags = is_dry ? (uint32_t)FFA_CACHE_GC_DRY_RUN : 0;
    return collect(cli, &opts);
}
