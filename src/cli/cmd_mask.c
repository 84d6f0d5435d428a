/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa mask show|check|area: a mask as a picture, what is odd about its slices, its attended cells.
 */
#include "cli/cli.h"
#include "cli/file.h"
#include "cli/fits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Parse the one operand; CLI_PARSE_GO, or the exit status. */
static int read_mask(const struct cli *cli, ffa_mask **out)
{
    ffa_error err = { FFA_OK, 0, "" };

    cli_bound_memory();
    if (ffa_mask_parse(out, cli->argv[0], &err) != FFA_OK)
        return cli_fail(cli, &err);
    return CLI_PARSE_GO;
}

static int check_head(const struct cli *cli, const ffa_mask *mask, int64_t head)
{
    if (head < ffa_mask_head_count(mask))
        return CLI_PARSE_GO;
    return cli_fail_text(cli, FFA_INVALID, "--head is %" PRId64 ", not in [0, %d]: the mask has %d",
                         head, ffa_mask_head_count(mask) - 1, ffa_mask_head_count(mask));
}

static json_t *mask_object(const ffa_mask *mask)
{
    json_t *object = json_object();

    cli_set_int(object, "seqlen_q", ffa_mask_seqlen_q(mask));
    cli_set_int(object, "seqlen_k", ffa_mask_seqlen_k(mask));
    cli_set_int(object, "heads", ffa_mask_head_count(mask));
    return object;
}

static int show_text(const struct cli *cli, const ffa_mask *mask, int32_t head, int32_t columns)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *picture = NULL;
    int status = CLI_DONE;

    if (ffa_mask_text_picture(mask, head, columns, &picture, &err) != FFA_OK)
        return cli_fail(cli, &err);
    if (cli->json) {
        json_t *object = mask_object(mask);

        cli_set_int(object, "head", head);
        cli_set_text(object, "picture", picture);
        status = cli_print_json(cli, object, CLI_DONE);
    } else {
        (void)fputs(picture, stdout);
    }
    ffa_free(picture);
    return status;
}

static int show_svg(const struct cli *cli, const ffa_mask *mask, int32_t head, const char *path)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *picture = NULL;
    int status = CLI_DONE;

    if (ffa_mask_svg(mask, head, 0, &picture, &err) != FFA_OK ||
        file_write(path, picture, strlen(picture), &err) != FFA_OK) {
        status = cli_fail(cli, &err);
    } else if (cli->json) {
        json_t *object = mask_object(mask);

        cli_set_int(object, "head", head);
        cli_set_text(object, "svg", path);
        status = cli_print_json(cli, object, CLI_DONE);
    } else {
        cli_note(cli, "wrote %s", path);
    }
    ffa_free(picture);
    return status;
}

int cmd_mask_show(struct cli *cli)
{
    const char *svg = NULL;
    int64_t columns = 0;
    int64_t head = 0;
    ffa_mask *mask = NULL;
    const struct cli_option options[] = {
        { "svg", CLI_TEXT, &svg, "FILE", "write a picture to FILE instead", 0, 0 },
        { "columns", CLI_INT, &columns, "N", "width of the text picture; 64 unless given", 1,
          1000 },
        { "head", CLI_INT, &head, "H", "which kv head, where the mask has one list a head", 0,
          1023 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, 1);

    if (status == CLI_PARSE_GO)
        status = read_mask(cli, &mask);
    if (status == CLI_PARSE_GO)
        status = check_head(cli, mask, head);
    if (status == CLI_PARSE_GO)
        status = svg ? show_svg(cli, mask, (int32_t)head, svg)
                     : show_text(cli, mask, (int32_t)head, (int32_t)columns);
    ffa_mask_destroy(mask);
    return status;
}

static int print_report(const struct cli *cli, const ffa_mask *mask, const ffa_mask_report *report)
{
    int64_t twice = report->area_of_slices - report->area;

    if (cli->json) {
        json_t *object = mask_object(mask);

        cli_set_int(object, "area", report->area);
        cli_set_int(object, "area_of_slices", report->area_of_slices);
        cli_set_int(object, "empty_rows", report->empty_rows);
        cli_set_int(object, "unattended_keys", report->unattended_keys);
        cli_set_int(object, "empty_slices", report->empty_slices);
        if (report->overlap_head >= 0)
            (void)json_object_set_new(object, "overlap",
                                      json_pack("{s:i, s:I, s:I}", "head", report->overlap_head,
                                                "row", (json_int_t)report->overlap_row, "key",
                                                (json_int_t)report->overlap_key));
        else
            (void)json_object_set_new(object, "overlap", json_null());
        return cli_print_json(cli, object, CLI_DONE);
    }
    (void)printf("seqlen_q         %" PRId64 "\nseqlen_k         %" PRId64 "\n",
                 ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask));
    (void)printf("heads            %d\n", ffa_mask_head_count(mask));
    (void)printf("area             %" PRId64 "\n", report->area);
    (void)printf("empty rows       %" PRId64 "\n", report->empty_rows);
    (void)printf("unattended keys  %" PRId64 "\n", report->unattended_keys);
    (void)printf("empty slices     %" PRId64 "\n", report->empty_slices);
    if (report->overlap_head >= 0)
        cli_note(cli,
                 "warning: slices cover cells twice (%" PRId64
                 " more than the union), for example head %d, row %" PRId64 ", key %" PRId64
                 "; a cell is attended once",
                 twice, report->overlap_head, report->overlap_row, report->overlap_key);
    return CLI_DONE;
}

int cmd_mask_check(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask_report report = FFA_MASK_REPORT_INIT;
    ffa_mask *mask = NULL;
    int status = cli_parse(cli, NULL, 0, 1, 1);

    if (status == CLI_PARSE_GO)
        status = read_mask(cli, &mask);
    if (status == CLI_PARSE_GO)
        status = ffa_mask_check(mask, &report, &err) == FFA_OK ? print_report(cli, mask, &report)
                                                               : cli_fail(cli, &err);
    ffa_mask_destroy(mask);
    return status;
}

int cmd_mask_area(struct cli *cli)
{
    int64_t head = -1;
    ffa_mask *mask = NULL;
    const struct cli_option options[] = {
        { "head", CLI_INT, &head, "H", "one kv head; all lists together unless given", 0, 1023 },
    };
    int status = cli_parse(cli, options, CLI_COUNT(options), 1, 1);

    if (status == CLI_PARSE_GO)
        status = read_mask(cli, &mask);
    if (status == CLI_PARSE_GO)
        status = check_head(cli, mask, head);
    if (status == CLI_PARSE_GO && cli->json) {
        json_t *object = mask_object(mask);

        cli_set_int(object, "area", ffa_mask_area(mask, (int32_t)head));
        status = cli_print_json(cli, object, CLI_DONE);
    } else if (status == CLI_PARSE_GO) {
        (void)printf("%" PRId64 "\n", ffa_mask_area(mask, (int32_t)head));
        status = CLI_DONE;
    }
    ffa_mask_destroy(mask);
    return status;
}
