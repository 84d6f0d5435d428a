/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of the command as Markdown, as man pages and as JSON.
 *
 * Nothing is said here about one command: its summary and examples are its row in main.c, its
 * options the table it passes to cli_parse, its details a row in details.c. In Markdown the options
 * that several commands share are printed once; a man page stands alone and repeats them.
 */
#include "cli/reference.h"

#include <ctype.h>
#include <string.h>

/* Call `line` with each line of `text` that ends in a newline, without the newline. */
static void each_line(FILE *to, const char *text,
                      void (*line)(FILE *to, const char *text, size_t bytes))
{
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        line(to, text, (size_t)(end - text));
}

/* ---- Markdown ---- */

static void markdown_line(FILE *to, const char *text, size_t bytes)
{
    bool is_item = strncmp(text, "- ", 2) == 0;

    (void)fprintf(to, "%s%.*s\n", is_item ? "" : "\n", (int)bytes, text);
}

static void plain_line(FILE *to, const char *text, size_t bytes)
{
    (void)fprintf(to, "%.*s\n", (int)bytes, text);
}

/* A cell of a table: a bar would end it. */
static void markdown_cell(FILE *to, const char *text)
{
    for (; *text; text++)
        (void)fprintf(to, "%s%c", *text == '|' ? "\\" : "", *text);
}

static void markdown_rows(FILE *to, const struct cli_option *rows, int count)
{
    if (count)
        (void)fputs("\n| option | |\n|---|---|\n", to);
    for (int i = 0; i < count; i++) {
        (void)fprintf(to, "| `--%s%s%s` | ", rows[i].name, rows[i].value ? " " : "",
                      rows[i].value ? rows[i].value : "");
        markdown_cell(to, rows[i].doc);
        if (rows[i].kind == CLI_INT && rows[i].max < INT32_MAX)
            (void)fprintf(to, " (%d to %d)", (int)rows[i].min, (int)rows[i].max);
        (void)fputs(" |\n", to);
    }
}

static void markdown_command(FILE *to, const struct cli_command *command)
{
    const char *details = cli_details(command->name);
    struct cli_table table;

    cli_describe(command, &table);
    (void)fprintf(to, "\n## ffa %s\n\n%s\n\n```\nffa %s%s%s [--options]\n```\n", command->name,
                  command->summary, command->name, command->operands[0] ? " " : "",
                  command->operands);
    if (details)
        each_line(to, details, markdown_line);
    markdown_rows(to, table.rows, table.own_count);
    (void)fputs(command->uses_context ? "\nAlso the [options of the store and the compiler]"
                                        "(#options-of-the-store-and-the-compiler).\n"
                                      : "",
                to);
    (void)fputs("\n```sh\n", to);
    each_line(to, command->examples, plain_line);
    (void)fputs("```\n", to);
}

/* The options that table_fill in args.c adds, from any command that has them all. */
static void markdown_shared(FILE *to)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    struct cli_table table;

    for (int i = 0; i < count; i++)
        if (commands[i].summary && commands[i].uses_context) {
            cli_describe(&commands[i], &table);
            break;
        }
    (void)fputs("\n## Options of the store and the compiler\n\n"
                "Every command that opens a context takes these. Every command at all takes "
                "`--json` and `--help`.\n",
                to);
    markdown_rows(to, table.rows + table.own_count, table.count - table.own_count);
}

static void markdown_exits(FILE *to)
{
    int count;
    const struct cli_exit_row *exits = cli_exit_rows(&count);

    (void)fputs("\n## Exit status\n\n| status | |\n|---|---|\n", to);
    for (int i = 0; i < count; i++)
        (void)fprintf(to, "| %d | %s |\n", exits[i].status, exits[i].meaning);
}

static void markdown_variables(FILE *to)
{
    int count;
    const struct cli_variable *variables = cli_variables(&count);

    (void)fputs("\n## Environment\n\nThe command reads these variables; the library reads none.\n\n"
                "| variable | |\n|---|---|\n",
                to);
    for (int i = 0; i < count; i++)
        (void)fprintf(to, "| `%s` | %s |\n", variables[i].name, variables[i].meaning);
}

/* The anchor that Markdown gives a heading "ffa NAME". */
static void markdown_link(FILE *to, const char *name)
{
    (void)fprintf(to, "| [%s](#ffa-", name);
    for (; *name; name++)
        (void)fputc(*name == ' ' ? '-' : *name, to);
    (void)fputs(") | ", to);
}

void reference_markdown(FILE *to)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);

    (void)fputs("<!-- Made by 'ffa help --format markdown > docs/command.md'; do not edit. -->\n"
                "# The command ffa\n",
                to);
    each_line(to, cli_details(""), markdown_line);
    (void)fputs("\n| command | |\n|---|---|\n", to);
    for (int i = 0; i < count; i++)
        if (commands[i].summary) {
            markdown_link(to, commands[i].name);
            markdown_cell(to, commands[i].summary);
            (void)fputs(" |\n", to);
        }
    markdown_exits(to);
    markdown_variables(to);
    markdown_shared(to);
    for (int i = 0; i < count; i++)
        if (commands[i].summary)
            markdown_command(to, &commands[i]);
}

/* ---- man pages ---- */

/* Text of `bytes` characters: minus signs that can be copied, no requests by accident, and bold for
 * what is between backquotes. */
static void man_bytes(FILE *to, const char *text, size_t bytes)
{
    bool is_literal = false;

    if (bytes && (text[0] == '.' || text[0] == '\''))
        (void)fputs("\\&", to);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '`') {
            is_literal = !is_literal;
            (void)fputs(is_literal ? "\\fB" : "\\fR", to);
        } else if (text[i] == '\\') {
            (void)fputs("\\e", to);
        } else if (text[i] == '-') {
            (void)fputs("\\-", to);
        } else if (text[i] == '\'') {
            (void)fputs("\\(aq", to);
        } else if (text[i] == '~') {
            (void)fputs("\\(ti", to);
        } else {
            (void)fputc(text[i], to);
        }
    }
}

static void man_text(FILE *to, const char *text)
{
    man_bytes(to, text, strlen(text));
}

static void man_line(FILE *to, const char *text, size_t bytes)
{
    bool is_item = strncmp(text, "- ", 2) == 0;

    (void)fputs(is_item ? ".IP \\(bu 2\n" : ".PP\n", to);
    man_bytes(to, text + (is_item ? 2 : 0), bytes - (is_item ? 2 : 0));
    (void)fputc('\n', to);
}

static void man_example(FILE *to, const char *text, size_t bytes)
{
    man_bytes(to, text, bytes);
    (void)fputc('\n', to);
}

static void man_options(FILE *to, const struct cli_table *table)
{
    (void)fputs(".SH OPTIONS\n", to);
    for (int i = 0; i < table->count; i++) {
        (void)fputs(".TP\n\\fB\\-\\-", to);
        man_text(to, table->rows[i].name);
        (void)fputs("\\fR", to);
        if (table->rows[i].value) {
            (void)fputs(" \\fI", to);
            man_text(to, table->rows[i].value);
            (void)fputs("\\fR", to);
        }
        (void)fputc('\n', to);
        man_text(to, table->rows[i].doc);
        (void)fputc('\n', to);
    }
}

void reference_page_name(const struct cli_command *command, char *out, size_t size)
{
    (void)snprintf(out, size, "ffa%s%s", command ? "-" : "", command ? command->name : "");
    for (char *at = out; (at = strchr(at, ' '));)
        *at = '-';
}

static void man_title(FILE *to, const struct cli_command *command)
{
    char name[64];

    reference_page_name(command, name, sizeof name);
    (void)fputs(".TH ", to);
    for (const char *at = name; *at; at++)
        (void)fprintf(to, "%s%c", *at == '-' ? "\\" : "", toupper((unsigned char)*at));
    (void)fprintf(to, " 1 \"\" \"ffa %s\" \"libffa\"\n.SH NAME\n", ffa_version());
    man_text(to, name);
    (void)fputs(" \\- ", to);
    man_text(to, command ? command->summary : "Flex-Flash-Attention kernels and their store");
    (void)fputs("\n.SH SYNOPSIS\n.B ffa ", to);
    man_text(to, command ? command->name : "COMMAND");
    (void)fputs("\n", to);
    man_text(to, command ? command->operands : "[operands]");
    (void)fputs("\n[\\-\\-options]\n", to);
}

static void man_command(FILE *to, const struct cli_command *command)
{
    const char *details = cli_details(command->name);
    struct cli_table table;

    cli_describe(command, &table);
    man_title(to, command);
    (void)fputs(".SH DESCRIPTION\n", to);
    man_text(to, command->summary);
    (void)fputc('\n', to);
    if (details)
        each_line(to, details, man_line);
    man_options(to, &table);
    (void)fputs(".SH EXAMPLES\n.nf\n", to);
    each_line(to, command->examples, man_example);
    (void)fputs(".fi\n.SH SEE ALSO\n.BR ffa (1)\n", to);
}

static void man_ffa(FILE *to)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    const struct cli_exit_row *exits;
    const struct cli_variable *variables;

    man_title(to, NULL);
    (void)fputs(".SH DESCRIPTION\n"
                "Plans masks, compiles and stores attention kernels, runs and checks them.\n",
                to);
    each_line(to, cli_details(""), man_line);
    (void)fputs(".SH COMMANDS\n", to);
    for (int i = 0; i < count; i++)
        if (commands[i].summary) {
            char name[64];

            reference_page_name(&commands[i], name, sizeof name);
            (void)fputs(".TP\n\\fB", to);
            man_text(to, name);
            (void)fputs("\\fR(1)\n", to);
            man_text(to, commands[i].summary);
            (void)fputc('\n', to);
        }
    (void)fputs(".SH EXIT STATUS\n", to);
    exits = cli_exit_rows(&count);
    for (int i = 0; i < count; i++) {
        (void)fprintf(to, ".TP\n.B %d\n", exits[i].status);
        man_text(to, exits[i].meaning);
        (void)fputc('\n', to);
    }
    (void)fputs(".SH ENVIRONMENT\n", to);
    variables = cli_variables(&count);
    for (int i = 0; i < count; i++) {
        (void)fprintf(to, ".TP\n.B %s\n", variables[i].name);
        man_text(to, variables[i].meaning);
        (void)fputc('\n', to);
    }
}

void reference_man(FILE *to, const struct cli_command *command)
{
    if (command)
        man_command(to, command);
    else
        man_ffa(to);
}

/* ---- JSON ---- */

static json_t *json_options(const struct cli_table *table)
{
    json_t *array = json_array();

    for (int i = 0; i < table->count; i++) {
        json_t *row = json_object();

        cli_set_text(row, "name", table->rows[i].name);
        (void)json_object_set_new(
            row, "value", table->rows[i].value ? json_string(table->rows[i].value) : json_null());
        cli_set_text(row, "doc", table->rows[i].doc);
        (void)json_array_append_new(array, row);
    }
    return array;
}

json_t *reference_json(const struct cli_command *command)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    json_t *object = json_object();
    json_t *array = json_array();

    for (int i = 0; i < count; i++) {
        json_t *row;
        struct cli_table table;

        if (!commands[i].summary || (command && command != &commands[i]))
            continue;
        cli_describe(&commands[i], &table);
        row = json_object();
        cli_set_text(row, "name", commands[i].name);
        cli_set_text(row, "operands", commands[i].operands);
        cli_set_text(row, "summary", commands[i].summary);
        (void)json_object_set_new(row, "options", json_options(&table));
        (void)json_array_append_new(array, row);
    }
    cli_set_text(object, "version", ffa_version());
    (void)json_object_set_new(object, "commands", array);
    return object;
}
