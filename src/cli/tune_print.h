/* SPDX-License-Identifier: Apache-2.0
 *
 * What tuning sessions say, as a table or as JSON.
 */
#ifndef FFA_CLI_TUNE_PRINT_H
#define FFA_CLI_TUNE_PRINT_H

#include "cli/cli.h"

/* Read session files, fit, and print the report. failed: NULL, or a list of specs that could not be
 * measured, which --json adds; its reference is taken. The exit status. */
int tune_print_report(const struct cli *cli, const char *const *paths, int64_t count,
                      json_t *failed);
/* An order of a backward pass: "2x1+6" has 2 parts of a kv head's query heads, L2 groups of one
 * wave, and 6 kv heads that are not divided; "2x1u" is without lockstep. */
void tune_order_text(char out[48], int parts, int waves, int whole_heads, bool is_unlocked);
/* Print what a session would measure, from the text of ffa_tune_preview. The exit status. */
int tune_print_preview(const struct cli *cli, const char *text);

#endif
