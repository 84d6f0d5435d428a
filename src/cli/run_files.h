/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of `ffa run`.
 */
#ifndef FFA_CLI_RUN_FILES_H
#define FFA_CLI_RUN_FILES_H

#include "cli/run_report.h"

/* That no file is written which another option writes or reads. CLI_PARSE_GO, or the exit status.
 */
int run_files_check(const struct cli *cli, const struct run_options *options);

#endif
