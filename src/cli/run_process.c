/* SPDX-License-Identifier: Apache-2.0
 *
 * A process with one rank: who it is, the meeting of its group over a rendezvous, and its GPU.
 *
 * Processes are asked for by a folder (--rendezvous, FFA_RENDEZVOUS); a launcher's variables alone
 * are not enough, as --ranks then means threads.
 */
#include "cli/run_process.h"

#include "cli/file.h"

#include <stdlib.h>

enum { TIMEOUT_MS = 60000 };

/* ---- which rank ---- */

static bool is_launched(const struct rendezvous_place *place)
{
    return place->from[0] != '\0';
}

int run_process_find(const struct cli *cli, const struct run_process_options *options,
                     int64_t ranks, struct rendezvous_place *place, const char **folder)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_status rc;

    *place = (struct rendezvous_place){ 0 };
    *folder = cli_find_rendezvous(options->folder);
    if (options->rank >= 0 && !*folder)
        return cli_fail_text(cli, FFA_INVALID,
                             "--rank needs a folder where processes meet: --rendezvous DIR, or "
                             "FFA_RENDEZVOUS");
    if (options->rank >= 0 && !ranks)
        return cli_fail_text(cli, FFA_INVALID, "--rank needs --ranks");
    if (!*folder)
        return CLI_PARSE_GO;
    rc = rendezvous_find(place, (int32_t)options->rank, (int32_t)ranks, cli_variable, NULL, &err);
    if (!options->folder && !is_launched(place)) { /* a variable that is not for this call */
        *place = (struct rendezvous_place){ 0 };
        return CLI_PARSE_GO;
    }
    if (rc != FFA_OK)
        return cli_fail(cli, &err);
    if (ranks && ranks != place->rank_count)
        return cli_fail_text(cli, FFA_INVALID, "--ranks is %lld, and %s say %d ranks",
                             (long long)ranks, place->from, place->rank_count);
    return CLI_PARSE_GO;
}

/* ---- the GPU ---- */

static int open_gpu(const struct cli *cli, struct process_meeting *p,
                    const struct rendezvous_place *place, struct run_ranks_options *ranks)
{
    ffa_error err = { FFA_OK, 0, "" };
    const int ordinal = process_meeting_ordinal(cli->cudart, place->local);
    int status;

    ranks->contexts = calloc((size_t)place->rank_count, sizeof(ffa_context *));
    if (!ranks->contexts) {
        (void)cli_error(&err, FFA_NOMEM, 0, "no memory for ranks");
        p->meeting.give_up(&p->meeting, &err);
        return cli_fail(cli, &err);
    }
    ranks->context_count = 1;
    status = cli_open(cli, &ranks->contexts[0], ordinal, 0);
    if (status != CLI_PARSE_GO) { /* which was said here */
        (void)cli_error(&err, FFA_UNSUPPORTED, 0, "its GPU cannot be opened");
        rendezvous_end(p->rendezvous, status, &err);
        return status;
    }
    if (process_meeting_share_out(p, place->rank, ranks->contexts[0], &ranks->gpus, &ranks->sharing,
                                  &err) == FFA_OK)
        return CLI_PARSE_GO;
    p->meeting.give_up(&p->meeting, &err);
    return cli_fail(cli, &err);
}

/* ---- from the begin to the end ---- */

int run_process_open(const struct cli *cli, const struct rendezvous_place *place,
                     const char *folder, struct run_ranks_options *ranks,
                     struct process_meeting **out)
{
    const int64_t timeout_ms = ranks->timeout_ms ? ranks->timeout_ms : TIMEOUT_MS;
    ffa_error err = { FFA_OK, 0, "" };

    if (process_meeting_open(out, folder, place, timeout_ms, cli_exit_of, &err) != FFA_OK)
        return cli_fail(cli, &err);
    ranks->meeting = &(*out)->meeting;
    ranks->rank = place->rank;
    return open_gpu(cli, *out, place, ranks);
}

int run_process_leave(const struct cli *cli, struct process_meeting *p, int status)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t code = status;

    if (!p)
        return status;
    if (rendezvous_agree(p->rendezvous, &code, &err) != FFA_OK && code == 0)
        code = cli_fail(cli, &err);
    process_meeting_close(p);
    return code;
}
