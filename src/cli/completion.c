/* SPDX-License-Identifier: Apache-2.0
 *
 * Shell completion, from the tables of commands and options.
 *
 * Each script holds one list a command: its options, and which of them take a value. A value is
 * completed by its name in the help: FILE, STORE, BUNDLE and the like are files, DIR and FOLDER are
 * folders, all others are left to the user.
 */
#include "cli/reference.h"

#include <string.h>

enum cli_words cli_words_of(const char *value)
{
    static const char *const files[] = { "FILE", "PATH",         "STORE", "BUNDLE", "BUNDLE...",
                                         "A B",  "[MANIFEST|-]", "SPEC",  NULL };
    static const char *const folders[] = { "DIR", "FOLDER", "FOLDER BUNDLE...", NULL };

    if (value && cli_word(value, files) >= 0)
        return CLI_WORDS_FILES;
    if (value && cli_word(value, folders) >= 0)
        return CLI_WORDS_FOLDERS;
    return CLI_WORDS_NONE;
}

/* Call `each` with every public command. */
static void each_command(FILE *to, void (*each)(FILE *to, const struct cli_command *command,
                                                const struct cli_table *table))
{
    int count;
    const struct cli_command *commands = cli_commands(&count);

    for (int i = 0; i < count; i++) {
        struct cli_table table;

        if (!commands[i].summary)
            continue;
        cli_describe(&commands[i], &table);
        each(to, &commands[i], &table);
    }
}

/* The distinct first words of commands; with `group`, the second words of that group. */
static void print_words(FILE *to, const char *group)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    size_t group_bytes = group ? strlen(group) : 0;
    const char *last = "";

    for (int i = 0; i < count; i++) {
        const char *name = commands[i].name;
        size_t bytes = strcspn(name, " ");

        if (!commands[i].summary)
            continue;
        if (group) {
            if (bytes == group_bytes && strncmp(name, group, bytes) == 0 && name[bytes])
                (void)fprintf(to, " %s", name + bytes + 1);
        } else if (strncmp(name, last, bytes) != 0 || last[bytes] != name[bytes]) {
            (void)fprintf(to, " %.*s", (int)bytes, name);
        }
        last = name;
    }
}

/* Print `before GROUP middle WORDS after` for each group of commands. */
static void print_groups(FILE *to, const char *before, const char *middle, const char *after)
{
    int count;
    const struct cli_command *commands = cli_commands(&count);
    char last[32] = "";

    for (int i = 0; i < count; i++) {
        char group[32];
        size_t bytes = strcspn(commands[i].name, " ");

        if (!commands[i].name[bytes])
            continue;
        (void)snprintf(group, sizeof group, "%.*s", (int)bytes, commands[i].name);
        if (strcmp(group, last) != 0) {
            (void)fprintf(to, "%s%s%s", before, group, middle);
            print_words(to, group);
            (void)fputs(after, to);
        }
        memcpy(last, group, sizeof last);
    }
}

/* ---- bash ---- */

static void bash_options(FILE *to, const char *variable, const struct cli_table *table,
                         bool (*wanted)(const struct cli_option *row))
{
    (void)fprintf(to, "            %s='", variable);
    for (int i = 0; i < table->count; i++)
        if (wanted(&table->rows[i]))
            (void)fprintf(to, " --%s", table->rows[i].name);
    (void)fputs("'\n", to);
}

static bool is_any(const struct cli_option *row)
{
    return row->name != NULL;
}

static bool is_valued(const struct cli_option *row)
{
    return row->kind != CLI_FLAG;
}

static bool is_file(const struct cli_option *row)
{
    return cli_words_of(row->value) == CLI_WORDS_FILES;
}

static bool is_folder(const struct cli_option *row)
{
    return cli_words_of(row->value) == CLI_WORDS_FOLDERS;
}

static void bash_command(FILE *to, const struct cli_command *command, const struct cli_table *table)
{
    (void)fprintf(to, "        '%s')\n", command->name);
    bash_options(to, "options", table, is_any);
    bash_options(to, "valued", table, is_valued);
    bash_options(to, "files", table, is_file);
    bash_options(to, "folders", table, is_folder);
    (void)fprintf(to, "            operands=%s\n            ;;\n",
                  cli_words_of(command->operands) == CLI_WORDS_NONE ? "none" : "files");
}

void completion_bash(FILE *to)
{
    (void)fputs("# bash completion for ffa, printed by 'ffa help --format bash'\n"
                "_ffa() {\n"
                "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                "    local command=${COMP_WORDS[1]} at=2 words='' options='' valued=''\n"
                "    local files='' folders='' operands=none\n"
                "    COMPREPLY=()\n"
                "    case $command in\n",
                to);
    print_groups(to, "        ", ") words='", "' ;;\n");
    (void)fputs("    esac\n"
                "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "        words='",
                to);
    print_words(to, NULL);
    (void)fputs(" --help --version'\n"
                "    elif [ -n \"$words\" ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
                "        command=\"$command ${COMP_WORDS[2]}\" at=3 words=''\n"
                "    fi\n"
                "    if [ -n \"$words\" ]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
                "        return\n"
                "    fi\n"
                "    case $command in\n",
                to);
    each_command(to, bash_command);
    (void)fputs(
        "    esac\n"
        "    [ \"$COMP_CWORD\" -ge \"$at\" ] || return\n"
        "    case \" $valued \" in *\" $before \"*)\n"
        "        case \" $files \" in\n"
        "            *\" $before \"*) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
        "        esac\n"
        "        case \" $folders \" in\n"
        "            *\" $before \"*) mapfile -t COMPREPLY < <(compgen -d -- \"$word\") ;;\n"
        "        esac\n"
        "        return ;;\n"
        "    esac\n"
        "    if [ \"${word#-}\" != \"$word\" ]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
        "    elif [ \"$operands\" = files ]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
        "    fi\n"
        "}\n"
        "complete -o filenames -F _ffa ffa\n",
        to);
}

/* ---- zsh ---- */

/* Inside '...' and, for _arguments, inside [...]. */
static void zsh_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            (void)fputs("'\\''", to);
        else if (strchr("[]:\\", *text))
            (void)fprintf(to, "\\%c", *text);
        else
            (void)fputc(*text, to);
    }
}

static const char *zsh_action(const char *value)
{
    switch (cli_words_of(value)) {
    case CLI_WORDS_FILES:
        return "_files";
    case CLI_WORDS_FOLDERS:
        return "_files -/";
    case CLI_WORDS_NONE:
        break;
    }
    return " ";
}

static void zsh_command(FILE *to, const struct cli_command *command, const struct cli_table *table)
{
    (void)fprintf(to, "        '%s')\n            _arguments \\\n", command->name);
    for (int i = 0; i < table->count; i++) {
        const struct cli_option *row = &table->rows[i];

        (void)fprintf(to, "                '%s--%s[", row->kind == CLI_LIST ? "*" : "", row->name);
        zsh_text(to, row->doc);
        (void)fputs("]", to);
        if (row->kind != CLI_FLAG) {
            (void)fputs(":", to);
            zsh_text(to, row->value);
            (void)fprintf(to, ":%s", zsh_action(row->value));
        }
        (void)fputs("' \\\n", to);
    }
    (void)fprintf(to, "                '*:operand:%s'\n            ;;\n",
                  zsh_action(command->operands));
}

static void zsh_summaries(FILE *to, const struct cli_command *command,
                          const struct cli_table *table)
{
    (void)table;
    (void)fputs("        '", to);
    zsh_text(to, command->name);
    (void)fputs(":", to);
    zsh_text(to, command->summary);
    (void)fputs("'\n", to);
}

void completion_zsh(FILE *to)
{
    (void)fputs("#compdef ffa\n"
                "# zsh completion for ffa, printed by 'ffa help --format zsh'\n"
                "_ffa() {\n"
                "    local -a summaries first second\n"
                "    local command=$words[2] row\n"
                "    summaries=(\n",
                to);
    each_command(to, zsh_summaries);
    (void)fputs("    )\n"
                "    if (( CURRENT == 2 )); then\n"
                "        first=(${${summaries%%:*}%% *})\n"
                "        _values command ${(u)first}\n"
                "        return\n"
                "    fi\n"
                "    for row in $summaries; do\n"
                "        [[ $row == \"$command \"* ]] && second+=(${row#\"$command \"})\n"
                "    done\n"
                "    if (( $#second )); then\n"
                "        if (( CURRENT == 3 )); then\n"
                "            _describe command second\n"
                "            return\n"
                "        fi\n"
                "        command=\"$command $words[3]\"\n"
                "        shift words\n"
                "        (( CURRENT-- ))\n"
                "    fi\n"
                "    shift words\n"
                "    (( CURRENT-- ))\n"
                "    case $command in\n",
                to);
    each_command(to, zsh_command);
    (void)fputs("    esac\n"
                "}\n"
                "_ffa \"$@\"\n",
                to);
}

/* ---- fish ---- */

static void fish_text(FILE *to, const char *text)
{
    (void)fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            (void)fputc('\\', to);
        (void)fputc(*text, to);
    }
    (void)fputc('\'', to);
}

static void fish_command(FILE *to, const struct cli_command *command, const struct cli_table *table)
{
    size_t bytes = strcspn(command->name, " ");
    bool is_grouped = command->name[bytes] != '\0';

    if (is_grouped)
        (void)fprintf(to, "complete -c ffa -f -n '__ffa_at %.*s' -a %s -d ", (int)bytes,
                      command->name, command->name + bytes + 1);
    else
        (void)fprintf(to, "complete -c ffa -f -n __fish_use_subcommand -a %s -d ", command->name);
    fish_text(to, command->summary);
    (void)fputc('\n', to);
    if (cli_words_of(command->operands) == CLI_WORDS_NONE)
        (void)fprintf(to, "complete -c ffa -f -n '__ffa_in %s'\n", command->name);
    for (int i = 0; i < table->count; i++) {
        const struct cli_option *row = &table->rows[i];
        enum cli_words words = cli_words_of(row->value);

        (void)fprintf(to, "complete -c ffa -n '__ffa_in %s' -l %s%s -d ", command->name, row->name,
                      row->kind == CLI_FLAG        ? ""
                      : words == CLI_WORDS_NONE    ? " -x"
                      : words == CLI_WORDS_FOLDERS ? " -x -a '(__fish_complete_directories)'"
                                                   : " -r -F");
        fish_text(to, row->doc);
        (void)fputc('\n', to);
    }
}

void completion_fish(FILE *to)
{
    (void)fputs("# fish completion for ffa, printed by 'ffa help --format fish'\n"
                "function __ffa_in\n"
                "    set -l line (commandline -opc)\n"
                "    set -e line[1]\n"
                "    test (count $line) -ge (count $argv); or return 1\n"
                "    set -l first $line[1..(count $argv)]\n"
                "    test \"$first\" = \"$argv\"\n"
                "end\n"
                "function __ffa_at\n"
                "    set -l line (commandline -opc)\n"
                "    test (count $line) -eq 2\n"
                "    and test \"$line[2]\" = \"$argv\"\n"
                "end\n",
                to);
    print_groups(to, "complete -c ffa -f -n __fish_use_subcommand -a ", " -d '", "'\n");
    each_command(to, fish_command);
}
