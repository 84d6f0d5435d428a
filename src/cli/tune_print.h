/* SPDX-License-Identifier: Apache-2.0
 *
 * What tuning sessions say, as a table or as JSON.
 */
#ifndef FFA_CLI_TUNE_PRINT_H
#define FFA_CLI_TUNE_PRINT_H

#include "cli/cli.h"

/* Read session files, fit, and print the report. The exit status. */
int tune_print_report(const struct cli *cli, const char *const *paths, int64_t count);
/* Print what a session would measure, from the text of ffa_tune_preview. The exit status. */
int tune_print_preview(const struct cli *cli, const char *text);

#endif
