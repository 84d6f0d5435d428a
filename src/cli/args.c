/* SPDX-License-Identifier: Apache-2.0
 *
 * Long options: '--name value' or '--name=value', anywhere among the operands; '--' ends them.
 *
 * cli_parse is the only reader of a command's table of options, so a command is described by
 * running it up to that call: with cli->describe set, cli_parse copies the table there and stops.
 */
#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    return -1;
}

int cli_heads(const char *text, int32_t *heads_q, int32_t *heads_kv)
{
    const char *at = text;
    int count = 0;

    while (count < 2) {
        char *end;
        const long value = strtol(at, &end, 10);

        if (end == at || value < INT32_MIN || value > INT32_MAX)
            return 0;
        *heads_kv = (int32_t)value;
        if (count++ == 0)
            *heads_q = (int32_t)value;
        if (*end != ':')
            return *end ? 0 : count;
        at = end + 1;
    }
    return 0;
}

static const struct cli_option *find_row(const struct cli_table *table, const char *name,
                                         size_t bytes)
{
    for (int i = 0; i < table->count; i++)
        if (strlen(table->rows[i].name) == bytes && strncmp(table->rows[i].name, name, bytes) == 0)
            return &table->rows[i];
    return NULL;
}

static void add_row(struct cli_table *table, const struct cli_option *row)
{
    assert(!find_row(table, row->name, strlen(row->name)));
    table->rows[table->count++] = *row;
}

/* The command's own rows, then those every command has. */
static void table_fill(struct cli_table *table, struct cli *cli, const struct cli_option *options,
                       int count, bool *wants_help)
{
    const struct cli_option of_context[] = {
        { "store", CLI_TEXT, &cli->store, "PATH",
          "the kernel store; 'none' keeps kernels in memory", 0, 0 },
        CLI_SHARED_OPTION(cli),
        CLI_NETWORK_OPTION(cli),
        { "templates", CLI_TEXT, &cli->templates, "DIR",
          "read templates from DIR instead of the built-in text", 0, 0 },
        { "nvrtc", CLI_TEXT, &cli->nvrtc, "FILE", "the NVRTC library to open", 0, 0 },
        { "cudart", CLI_TEXT, &cli->cudart, "FILE", "the CUDA runtime to open", 0, 0 },
        { "cost-tables", CLI_TEXT, &cli->cost_tables, "PATH",
          "a cost table, or a folder of them; 'none': built-in ones only", 0, 0 },
        { "verbose", CLI_FLAG, &cli->verbose, NULL, "log what the library does to stderr", 0, 0 },
    };
    const struct cli_option of_all[] = {
        { "json", CLI_FLAG, &cli->json, NULL, "print one JSON object", 0, 0 },
        { "help", CLI_FLAG, wants_help, NULL, "print this and exit", 0, 0 },
    };

    assert(count + CLI_COUNT(of_context) + CLI_COUNT(of_all) <= CLI_OPTIONS_MAX);
    table->own_count = count;
    for (int i = 0; i < count; i++)
        add_row(table, &options[i]);
    for (int i = 0; cli->command->uses_context && i < CLI_COUNT(of_context); i++)
        add_row(table, &of_context[i]);
    for (int i = 0; i < CLI_COUNT(of_all); i++)
        add_row(table, &of_all[i]);
}

static void print_help(const struct cli *cli, const struct cli_table *table)
{
    const char *line = cli->command->examples;

    (void)printf("usage: ffa %s%s%s [--options]\n\n%s\n\noptions:\n", cli->command->name,
                 cli->command->operands[0] ? " " : "", cli->command->operands,
                 cli->command->summary ? cli->command->summary : "Internal.");
    for (int i = 0; i < table->count; i++) {
        const struct cli_option *row = &table->rows[i];
        char left[64];

        (void)snprintf(left, sizeof left, "--%s%s%s", row->name, row->value ? " " : "",
                       row->value ? row->value : "");
        (void)printf("  %-24s %s\n", left, row->doc);
    }
    (void)printf("\nexamples:\n");
    for (const char *end; (end = strchr(line, '\n')); line = end + 1)
        (void)printf("  %.*s\n", (int)(end - line), line);
}

static int put_int(const struct cli *cli, const struct cli_option *row, const char *value)
{
    char *end = NULL;
    long long number;

    errno = 0;
    number = strtoll(value, &end, 10);
    if (end == value || *end || errno == ERANGE || number < row->min || number > row->max)
        return cli_fail_text(cli, FFA_INVALID, "--%s is '%s', not a whole number in [%lld, %lld]",
                             row->name, value, (long long)row->min, (long long)row->max);
    *(int64_t *)row->target = number;
    return CLI_PARSE_GO;
}

static int put_real(const struct cli *cli, const struct cli_option *row, const char *value)
{
    char *end = NULL;
    double number;

    errno = 0;
    number = strtod(value, &end);
    if (end == value || *end || !isfinite(number))
        return cli_fail_text(cli, FFA_INVALID, "--%s is '%s', not a finite number", row->name,
                             value);
    if (errno == ERANGE) /* 0 stands for the default, or nearly 0 */
        return cli_fail_text(cli, FFA_INVALID, "--%s is '%s', closer to 0 than 2.3e-308", row->name,
                             value);
    *(double *)row->target = number;
    return CLI_PARSE_GO;
}

static int put_list(const struct cli *cli, const struct cli_option *row, const char *value)
{
    struct cli_list *list = row->target;

    if (!value[0])
        return cli_fail_text(cli, FFA_INVALID, "--%s is empty", row->name);
    if (list->count == CLI_LIST_MAX)
        return cli_fail_text(cli, FFA_INVALID, "--%s is given more than %d times", row->name,
                             CLI_LIST_MAX);
    list->at[list->count++] = value;
    return CLI_PARSE_GO;
}

static int put(const struct cli *cli, const struct cli_option *row, const char *value)
{
    switch (row->kind) {
    case CLI_FLAG:
        *(bool *)row->target = true;
        return CLI_PARSE_GO;
    case CLI_TEXT:
        *(const char **)row->target = value;
        return CLI_PARSE_GO;
    case CLI_INT:
        return put_int(cli, row, value);
    case CLI_REAL:
        return put_real(cli, row, value);
    case CLI_LIST:
        return put_list(cli, row, value);
    }
    return CLI_PARSE_GO;
}

/* argv[*at] begins with "--": store its value and step over what was used. */
static int take_option(const struct cli *cli, const struct cli_table *table, int *at)
{
    const char *name = cli->argv[*at] + 2;
    const char *equals = strchr(name, '=');
    const struct cli_option *row =
        find_row(table, name, equals ? (size_t)(equals - name) : strlen(name));
    const char *value = equals ? equals + 1 : NULL;

    if (!row)
        return cli_fail_text(cli, FFA_INVALID, "'%s' is no option: see 'ffa %s --help'",
                             cli->argv[*at], cli->command->name);
    if (row->kind == CLI_FLAG && value)
        return cli_fail_text(cli, FFA_INVALID, "--%s takes no value, '%s' was given", row->name,
                             value);
    if (row->kind != CLI_FLAG && !value) {
        if (*at + 1 >= cli->argc)
            return cli_fail_text(cli, FFA_INVALID, "--%s wants a value: %s", row->name, row->value);
        value = cli->argv[++*at];
    }
    return put(cli, row, value);
}

int cli_parse(struct cli *cli, const struct cli_option *options, int option_count, int operands_min,
              int operands_max)
{
    struct cli_table table = { 0 };
    bool wants_help = false;
    bool ended = false;
    int operands = 0;

    table_fill(&table, cli, options, option_count, &wants_help);
    if (cli->describe) {
        *cli->describe = table;
        for (int i = 0; i < table.count; i++)
            cli->describe->rows[i].target = NULL;
        return CLI_DONE;
    }
    cli->uses_bundles = find_row(&table, "bundle", strlen("bundle")) != NULL;
    for (int i = 0; i < cli->argc; i++) {
        char *word = cli->argv[i];
        int status = CLI_PARSE_GO;

        if (ended || word[0] != '-' || word[1] == '\0')
            cli->argv[operands++] = word;
        else if (strcmp(word, "--") == 0)
            ended = true;
        else if (word[1] != '-')
            status = cli_fail_text(cli, FFA_INVALID,
                                   "'%s' is no option: options are long, see 'ffa %s --help'", word,
                                   cli->command->name);
        else
            status = take_option(cli, &table, &i);
        if (status != CLI_PARSE_GO)
            return status;
    }
    cli->argc = operands;
    if (wants_help) {
        print_help(cli, &table);
        return CLI_DONE;
    }
    if (operands < operands_min)
        return cli_fail_text(cli, FFA_INVALID, "an operand is missing: usage is 'ffa %s %s'",
                             cli->command->name, cli->command->operands);
    if (operands > operands_max)
        return cli_fail_text(cli, FFA_INVALID, "'%s' is one operand too many: usage is 'ffa %s %s'",
                             cli->argv[operands_max], cli->command->name, cli->command->operands);
    return CLI_PARSE_GO;
}

void cli_describe(const struct cli_command *command, struct cli_table *out)
{
    struct cli cli = { .command = command, .describe = out };

    out->count = 0;
    (void)command->run(&cli);
}
