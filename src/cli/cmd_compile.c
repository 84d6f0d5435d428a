/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa compile: look one kernel up or compile it; print the nvcc command for it; list the templates.
 *
 * No device is needed: --arch names the architecture. Without --arch a device is looked for, only
 * to learn its architecture.
 */
#include "cli/cli.h"
#include "cli/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct compile_options {
    const char *arch;
    const char *emit; /* cubin, ptx or log */
    const char *out;  /* the file --emit writes */
    bool is_list, is_print, is_time, is_force;
};

/* ---- --list ---- */

static json_t *row_object(const ffa_spec_row *row)
{
    json_t *object = json_object();

    cli_set_text(object, "name", row->name);
    cli_set_int(object, "default", row->initial);
    cli_set_int(object, "min", row->min);
    cli_set_int(object, "max", row->max);
    cli_set_text(object, "doc", row->doc);
    return object;
}

static int list_json(const struct cli *cli)
{
    json_t *templates = json_array();
    json_t *object = json_object();
    ffa_spec_row row;

    for (int32_t i = 0; i < ffa_template_count(); i++) {
        json_t *template = json_object();
        json_t *rows = json_array();

        for (int32_t r = 0; ffa_template_row(i, r, &row); r++)
            (void)json_array_append_new(rows, row_object(&row));
        cli_set_text(template, "name", ffa_template_name(i));
        cli_set_text(template, "doc", ffa_template_doc(i));
        (void)json_object_set_new(template, "rows", rows);
        (void)json_array_append_new(templates, template);
    }
    (void)json_object_set_new(object, "templates", templates);
    return cli_print_json(cli, object, CLI_DONE);
}

static int list(const struct cli *cli)
{
    ffa_spec_row row;

    if (cli->json)
        return list_json(cli);
    for (int32_t i = 0; i < ffa_template_count(); i++) {
        (void)printf("%s: %s\n", ffa_template_name(i), ffa_template_doc(i));
        for (int32_t r = 0; ffa_template_row(i, r, &row); r++) {
            char initial[16];

            (void)snprintf(initial, sizeof initial, "%d", row.initial);
            (void)printf("  %-10s %3d to %-3d  default %-7s %s\n", row.name, row.min, row.max,
                         row.initial < row.min ? "chosen" : initial, row.doc);
        }
    }
    return CLI_DONE;
}

/* ---- one kernel ---- */

static json_t *info_object(const ffa_compiled *compiled, const ffa_kernel_info *info)
{
    json_t *object = json_object();

    cli_set_text(object, "template", info->template_name);
    cli_set_text(object, "arch", info->arch);
    cli_set_text(object, "key", info->key);
    cli_set_text(object, "toolchain", info->toolchain);
    cli_set_text(object, "layer", ffa_layer_text(info->layer));
    cli_set_int(object, "registers", info->registers);
    cli_set_int(object, "threads", info->threads);
    cli_set_int(object, "shared_bytes", info->shared_bytes);
    cli_set_int(object, "spill_bytes", info->spill_bytes);
    cli_set_int(object, "advisories", info->advisory_count);
    cli_set_int(object, "cubin_bytes", info->cubin_bytes);
    cli_set_real(object, "compile_ms", (double)info->compile_us / 1e3);
    cli_set_real(object, "resolve_ms", (double)info->resolve_us / 1e3);
    cli_set_text(object, "record", ffa_compiled_record(compiled));
    return object;
}

static void print_info(const ffa_kernel_info *info)
{
    (void)printf("template      %s for %s\n", info->template_name, info->arch);
    (void)printf("key           %s\n", info->key);
    (void)printf("layer         %s\n", ffa_layer_text(info->layer));
    cli_line(stdout, "toolchain     %s", info->toolchain);
    (void)printf("threads       %d\n", info->threads);
    (void)printf("registers     %d\n", info->registers);
    (void)printf("shared bytes  %d\n", info->shared_bytes);
    (void)printf("spill bytes   %d\n", info->spill_bytes);
    (void)printf("advisories    %d\n", info->advisory_count);
    (void)printf("cubin bytes   %" PRId64 "\n", info->cubin_bytes);
}

/* Write what --emit asks for. */
static ffa_status emit(const struct compile_options *options, const ffa_compiled *compiled,
                       ffa_error *err)
{
    size_t bytes = 0;
    const void *cubin = ffa_compiled_cubin(compiled, &bytes);
    const char *text =
        strcmp(options->emit, "ptx") == 0 ? ffa_compiled_ptx(compiled) : ffa_compiled_log(compiled);

    if (strcmp(options->emit, "cubin") == 0)
        return file_write(options->out, cubin, bytes, err);
    return file_write(options->out, text, strlen(text), err);
}

/* Report a kernel that did not compile: its log, and a command that reproduces the failure. */
static int report_failure(const struct cli *cli, ffa_context *context,
                          const ffa_compile_request *request, const ffa_compiled *compiled,
                          const ffa_error *err)
{
    char *command = NULL;

    if (compiled && ffa_compiled_log(compiled)[0])
        cli_text(stderr, ffa_compiled_log(compiled));
    if (err->status == FFA_COMPILE &&
        ffa_compile_command(context, request, cli->templates ? cli->templates : "templates",
                            "/dev/null", &command, NULL) == FFA_OK) {
        cli_line(stderr, "to reproduce, from the source folder:");
        cli_line(stderr, "  %s", command);
    }
    ffa_free(command);
    return cli_fail(cli, err);
}

static int compile_one(const struct cli *cli, ffa_context *context,
                       const struct compile_options *options, const ffa_compile_request *request)
{
    ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_compiled *compiled = NULL;
    int status;

    if (ffa_compile(&compiled, context, request, &err) != FFA_OK)
        status = report_failure(cli, context, request, compiled, &err);
    else if (ffa_compiled_info(compiled, &info, &err) != FFA_OK ||
             (options->emit && emit(options, compiled, &err) != FFA_OK))
        status = cli_fail(cli, &err);
    else if (cli->json)
        status = cli_print_json(cli, info_object(compiled, &info), CLI_DONE);
    else {
        print_info(&info);
        if (options->is_time)
            (void)printf("compile ms    %.1f\nresolve ms    %.3f\n", (double)info.compile_us / 1e3,
                         (double)info.resolve_us / 1e3);
        status = CLI_DONE;
    }
    ffa_compiled_destroy(compiled);
    return status;
}

static int print_command(const struct cli *cli, ffa_context *context,
                         const struct compile_options *options, const ffa_compile_request *request)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *command = NULL;
    char output[64];
    int status = CLI_DONE;

    (void)snprintf(output, sizeof output, "%.48s.cubin", request->template_name);
    if (ffa_compile_command(context, request, cli->templates ? cli->templates : "templates",
                            options->out ? options->out : output, &command, &err) != FFA_OK) {
        status = cli_fail(cli, &err);
    } else if (cli->json) {
        json_t *object = json_object();

        cli_set_text(object, "command", command);
        status = cli_print_json(cli, object, CLI_DONE);
    } else {
        (void)printf("%s\n", command);
    }
    ffa_free(command);
    return status;
}

/* --emit KIND FILE takes two words, and the option parser knows options of one. So the three words
 * are removed from argv before it runs. */
static int take_emit(struct cli *cli, struct compile_options *options)
{
    static const char *const kinds[] = { "cubin", "ptx", "log", NULL };

    for (int i = 0; i < cli->argc; i++) {
        if (strcmp(cli->argv[i], "--emit") != 0)
            continue;
        if (i + 2 >= cli->argc || cli_word(cli->argv[i + 1], kinds) < 0)
            return cli_fail_text(cli, FFA_INVALID, "--emit wants cubin, ptx or log, and a file");
        options->emit = cli->argv[i + 1];
        options->out = cli->argv[i + 2];
        memmove(cli->argv + i, cli->argv + i + 3, (size_t)(cli->argc - i - 3) * sizeof *cli->argv);
        cli->argc -= 3;
        break;
    }
    return CLI_PARSE_GO;
}

static uint32_t request_flags(const struct compile_options *options)
{
    bool wants_log = options->emit && strcmp(options->emit, "log") == 0;
    bool wants_ptx = options->emit && strcmp(options->emit, "ptx") == 0;

    return (options->is_force || wants_log ? (uint32_t)FFA_COMPILE_FORCE : 0) |
           (wants_ptx ? (uint32_t)FFA_COMPILE_PTX : 0);
}

int cmd_compile(struct cli *cli)
{
    struct compile_options options = { 0 };
    ffa_compile_request request = FFA_COMPILE_REQUEST_INIT;
    ffa_context *context = NULL;
    const char *never_read = NULL;
    const struct cli_option rows[] = {
        { "list", CLI_FLAG, &options.is_list, NULL, "list the templates and their settings", 0, 0 },
        { "arch", CLI_TEXT, &options.arch, "ARCH",
          "compile for ARCH; default: the device's, or sm_90a", 0, 0 },
        { "print", CLI_FLAG, &options.is_print, NULL,
          "print an nvcc command for this kernel; compile nothing", 0, 0 },
        { "emit", CLI_TEXT, &never_read, "KIND FILE", "write the cubin, ptx or log to FILE", 0, 0 },
        { "time", CLI_FLAG, &options.is_time, NULL, "print how long compiling and the look-up took",
          0, 0 },
        { "force", CLI_FLAG, &options.is_force, NULL,
          "compile even what is in the store, and do not store it", 0, 0 },
        CLI_BUNDLE_OPTION(cli),
    };
    int status = take_emit(cli, &options);

    if (status == CLI_PARSE_GO)
        status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 1000);
    if (status != CLI_PARSE_GO)
        return status;
    if (options.is_list && cli->argc == 0)
        return list(cli);
    if (options.is_list || cli->argc == 0)
        return cli_fail_text(cli, FFA_INVALID, "%s",
                             options.is_list ? "--list takes no operands"
                                             : "a template is missing: see 'ffa compile --list'");
    /* Without --arch the device's architecture is meant, so a device is opened if there is one. */
    status = cli_open(cli, &context, options.arch ? FFA_DEVICE_CPU : FFA_DEVICE_AUTO, 0);
    if (status != CLI_PARSE_GO)
        return status;
    request.template_name = cli->argv[0];
    request.settings = (const char *const *)(cli->argv + 1);
    request.setting_count = cli->argc - 1;
    request.arch = options.arch;
    request.flags = request_flags(&options);
    status = options.is_print ? print_command(cli, context, &options, &request)
                              : compile_one(cli, context, &options, &request);
    ffa_close(context);
    return status;
}
