/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa help: the list of commands, one command's help, or the reference of them all.
 *
 * docs/command.md, the man pages and the shell completion are outputs of this command. The build
 * makes and installs the latter two; a test compares the first with what is printed here.
 */
#include "cli/reference.h"

#include <errno.h>
#include <string.h>

enum format { FORMAT_MARKDOWN, FORMAT_MAN, FORMAT_BASH, FORMAT_ZSH, FORMAT_FISH };

/* Print the help that the command itself prints. */
static int help_of(const struct cli_command *command)
{
    char option[] = "--help";
    char *argv[] = { option };
    struct cli other = { .command = command, .argc = 1, .argv = argv };

    return command->run(&other);
}

static int write_page(const struct cli *cli, const char *folder, const struct cli_command *command)
{
    char name[64];
    char path[4096];
    FILE *file;
    bool is_written;

    reference_page_name(command, name, sizeof name);
    if (snprintf(path, sizeof path, "%s/%s.1", folder, name) >= (int)sizeof path)
        return cli_fail_text(cli, FFA_INVALID, "--to is longer than %zu bytes", sizeof path);
    file = fopen(path, "w");
    if (!file)
        return cli_fail_text(cli, FFA_IO, "%s cannot be written: %s", path, strerror(errno));
    reference_man(file, command);
    is_written = !ferror(file);
    if (fclose(file) != 0 || !is_written)
        return cli_fail_text(cli, FFA_IO, "%s cannot be written: %s", path, strerror(errno));
    return CLI_DONE;
}

static int write_pages(const struct cli *cli, const char *folder)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    int status = write_page(cli, folder, NULL);

    for (int i = 0; i < count && status == CLI_DONE; i++)
        if (commands[i].summary)
            status = write_page(cli, folder, &commands[i]);
    return status;
}

static int print_reference(enum format format, const struct cli_command *command)
{
    switch (format) {
    case FORMAT_MARKDOWN:
        reference_markdown(stdout);
        break;
    case FORMAT_MAN:
        reference_man(stdout, command);
        break;
    case FORMAT_BASH:
        completion_bash(stdout);
        break;
    case FORMAT_ZSH:
        completion_zsh(stdout);
        break;
    case FORMAT_FISH:
        completion_fish(stdout);
        break;
    }
    return CLI_DONE;
}

/* The operands name a group of commands, or nothing. */
static int help_on_group(struct cli *cli)
{
    char option[] = "--help";
    char *argv[] = { cli->argv[0], option };

    if (cli->argc == 1)
        return cli_unknown_command(cli, 2, argv);
    return cli_unknown_command(cli, cli->argc, cli->argv);
}

int cmd_help(struct cli *cli)
{
    static const char *const formats[] = { "markdown", "man", "bash", "zsh", "fish", NULL };
    const char *format = NULL;
    const char *folder = NULL;
    int words = 0;
    int which;
    const struct cli_command *command = NULL;
    const struct cli_option rows[] = {
        { "format", CLI_TEXT, &format, "NAME",
          "print the reference: markdown, man, or completion for bash, zsh or fish", 0, 0 },
        { "to", CLI_TEXT, &folder, "FOLDER", "with --format man: write all pages to FOLDER", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 2);

    if (status != CLI_PARSE_GO)
        return status;
    which = format ? cli_word(format, formats) : -1;
    if (format && which < 0)
        return cli_fail_text(cli, FFA_INVALID,
                             "--format is '%s', not markdown, man, bash, zsh or fish", format);
    if (format && cli->json)
        return cli_fail_text(cli, FFA_INVALID, "--format and --json are both given");
    if (folder && (which != FORMAT_MAN || cli->argc))
        return cli_fail_text(cli, FFA_INVALID, "--to goes with --format man, without operands");
    if (cli->argc) {
        command = cli_find_command(cli->argc, cli->argv, &words);
        if (command && command->summary && words < cli->argc)
            return cli_fail_text(cli, FFA_INVALID,
                                 "'%s' is one operand too many: see 'ffa help %s'",
                                 cli->argv[words], command->name);
        if (command && !command->summary)
            command = NULL;
        if (!command && !format && !cli->json)
            return help_on_group(cli);
        if (!command || (format && which != FORMAT_MAN))
            return cli_fail_text(cli, FFA_INVALID, "%s",
                                 command ? "a command goes with --format man only"
                                         : "the operands name no command: see 'ffa --help'");
    }
    if (folder)
        return write_pages(cli, folder);
    if (format)
        return print_reference((enum format)which, command);
    if (cli->json)
        return cli_print_json(cli, reference_json(command), CLI_DONE);
    if (command)
        return help_of(command);
    cli_print_usage(stdout);
    return CLI_DONE;
}
