/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of the command in each format that `ffa help` prints. All of them walk the table of
 * commands and describe each (cli_describe); commands without a summary are left out.
 */
#ifndef FFA_CLI_REFERENCE_H
#define FFA_CLI_REFERENCE_H

#include "cli/cli.h"

/* What a command does beyond its summary, or NULL (details.c). Paragraphs are separated by a
 * newline, lines that start with "- " are the items of a list, and words in backquotes are literal.
 */
const char *cli_details(const char *name);

/* Environment variables that the command reads. */
struct cli_variable {
    const char *name;
    const char *meaning; /* a sentence */
};
const struct cli_variable *cli_variables(int *count);

/* What completion offers for a value or an operand, told by the name the help gives it. */
enum cli_words { CLI_WORDS_NONE, CLI_WORDS_FILES, CLI_WORDS_FOLDERS };
enum cli_words cli_words_of(const char *value);

void reference_markdown(FILE *to);
/* The page of `command`, or of `ffa` itself where that is NULL. */
void reference_man(FILE *to, const struct cli_command *command);
/* The name of a command's page: "ffa-mask-show". */
void reference_page_name(const struct cli_command *command, char *out, size_t size);
/* An object with `command`, or with all where that is NULL. */
json_t *reference_json(const struct cli_command *command);

void completion_bash(FILE *to);
void completion_zsh(FILE *to);
void completion_fish(FILE *to);

#endif
