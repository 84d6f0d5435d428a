/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa kernel-worker: what a context with worker_path starts. The library is both ends of it.
 */
#include "cli/cli.h"

int cmd_kernel_worker(struct cli *cli)
{
    int status = cli_parse(cli, NULL, 0, 0, 0);

    return status == CLI_PARSE_GO ? ffa_worker_main() : status;
}
