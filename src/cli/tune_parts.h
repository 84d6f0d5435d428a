/* SPDX-License-Identifier: Apache-2.0
 *
 * `ffa tune run` as other processes: the same words with others added or exchanged.
 */
#ifndef FFA_CLI_TUNE_PARTS_H
#define FFA_CLI_TUNE_PARTS_H

#include "cli/cli.h"

/* Become a new process with the words of this one, and `word` if it is not among them. Returns only
 * where that fails, with errno. */
void tune_parts_become(char *word);

/* Measure on several GPUs, each in a process of its own with a share of the tiles and the session
 * file SESSION.partI; then all of them are in SESSION, the part files are gone, and the report is
 * printed. devices: such as "0,1". With `resumes` part files that are there go on. Returns the exit
 * status. */
int tune_parts_run(const struct cli *cli, const char *devices, const char *session, bool resumes);

#endif
