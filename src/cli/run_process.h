/* SPDX-License-Identifier: Apache-2.0
 *
 * `ffa run` as one of several processes, each with a rank on a GPU, that meet in a folder.
 */
#ifndef FFA_CLI_RUN_PROCESS_H
#define FFA_CLI_RUN_PROCESS_H

#include "cli/cli.h"
#include "cli/process_meeting.h"
#include "cli/run_ranks.h"

struct run_process_options {
    int64_t rank;       /* -1: what a launcher says */
    const char *folder; /* of --rendezvous; NULL: FFA_RENDEZVOUS, or none */
};

/* Which rank of several processes this is. place->rank_count 0: it is none, and ranks are threads;
 * else *folder is where they meet. ranks: of --ranks, 0: not given. CLI_PARSE_GO, or the exit
 * status. */
int run_process_find(const struct cli *cli, const struct run_process_options *options,
                     int64_t ranks, struct rendezvous_place *place, const char **folder);

/* Meet the others, then open this rank's GPU, and fill what `ranks` says of processes and contexts.
 * CLI_PARSE_GO, or the exit status, which was said; *out for run_process_leave in any case. */
int run_process_open(const struct cli *cli, const struct rendezvous_place *place,
                     const char *folder, struct run_ranks_options *ranks,
                     struct process_meeting **out);
/* NULL: this process is not one of several. The exit status that all agree on, of `status`. */
int run_process_leave(const struct cli *cli, struct process_meeting *process, int status);

#endif
