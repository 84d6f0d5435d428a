/* SPDX-License-Identifier: Apache-2.0
 *
 * A process with one rank: who it is, the meeting of its group over a rendezvous, and its GPU.
 *
 * Processes are asked for by a folder (--rendezvous, FFA_RENDEZVOUS); a launcher's variables alone
 * are not enough, as --ranks then means threads. Invariant: once a rank has met the others, it says
 * how it ended, so that no other waits for it for longer than it takes to look.
 */
#include "cli/run_process.h"

#include "cli/file.h"
#include "cli/run_meeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 60000, LAG_US = 10000 };

struct run_process {
    struct run_meeting meeting; /* first */
    struct rendezvous *rendezvous;
};

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

/* ---- the meeting ---- */

static ffa_status said(const struct run_process *p, bool is_bad, ffa_error *err)
{
    const ffa_error *why = rendezvous_error(p->rendezvous);

    return is_bad ? cli_error(err, why->status, why->native, "%s", why->message) : FFA_OK;
}

static ffa_status gather(struct run_meeting *meeting, int32_t rank, const void *mine, void *all,
                         size_t bytes, ffa_error *err)
{
    const struct run_process *p = (struct run_process *)meeting;

    (void)rank;
    return said(p, rendezvous_allgather(p->rendezvous, mine, all, bytes) != 0, err);
}

static ffa_status give(struct run_meeting *meeting, int32_t rank, const void *mine, void *const *at,
                       const size_t *bytes, ffa_error *err)
{
    const struct run_process *p = (struct run_process *)meeting;

    (void)rank;
    return said(p, rendezvous_gather(p->rendezvous, mine, at, bytes) != 0, err);
}

static void give_up(struct run_meeting *meeting, const ffa_error *why)
{
    rendezvous_end(((struct run_process *)meeting)->rendezvous, cli_exit_of(why->status), why);
}

/* ---- the GPU ---- */

/* The ordinal of a local rank. That device is tried first, as to open another one only to count
 * them costs memory there. 0 where nothing can be opened: the caller then hears why. */
static int find_ordinal(const struct cli *cli, int32_t local)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context = NULL;
    int ordinal = 0;

    opts.cudart_path = cli->cudart;
    if (ffa_open(&context, local, &opts, NULL) == FFA_OK)
        ordinal = local;
    else if (ffa_open(&context, 0, &opts, NULL) == FFA_OK &&
             ffa_context_info_get(context, &info, NULL) == FFA_OK && info.device_count > 0)
        ordinal = local % info.device_count;
    ffa_close(context);
    return ordinal;
}

/* What tells GPUs apart, whatever ordinals and CUDA_VISIBLE_DEVICES processes see them by. */
struct identity {
    unsigned char uuid[sizeof(((ffa_context_info *)0)->device_uuid)];
};

static ffa_status share_out(struct run_process *p, int32_t rank, struct run_ranks_options *ranks,
                            ffa_error *err)
{
    const int32_t count = p->meeting.rank_count;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    struct identity own;
    struct identity *all = calloc((size_t)count, sizeof *all);
    ffa_status rc;

    if (!all)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    rc = ffa_context_info_get(ranks->contexts[0], &info, err);
    memcpy(own.uuid, info.device_uuid, sizeof own.uuid);
    if (rc == FFA_OK)
        rc = gather(&p->meeting, rank, &own, all, sizeof own, err);
    for (int32_t r = 0; r < count && rc == FFA_OK; r++) {
        int32_t sharing = 0, before = 0;

        for (int32_t q = 0; q < count; q++) {
            const bool is_same = memcmp(&all[q], &all[r], sizeof own) == 0;

            sharing += is_same;
            before += is_same && q < r;
        }
        ranks->gpus += before == 0;
        if (sharing > ranks->sharing) /* on all ranks alike, as plans are made with it */
            ranks->sharing = sharing;
    }
    free(all);
    return rc;
}

static int open_gpu(const struct cli *cli, struct run_process *p,
                    const struct rendezvous_place *place, struct run_ranks_options *ranks)
{
    ffa_error err = { FFA_OK, 0, "" };
    const int ordinal = find_ordinal(cli, place->local);
    int status;

    ranks->contexts = calloc((size_t)place->rank_count, sizeof(ffa_context *));
    if (!ranks->contexts) {
        (void)cli_error(&err, FFA_NOMEM, 0, "no memory for ranks");
        give_up(&p->meeting, &err);
        return cli_fail(cli, &err);
    }
    ranks->context_count = 1;
    status = cli_open(cli, &ranks->contexts[0], ordinal, 0);
    if (status != CLI_PARSE_GO) { /* which was said here */
        (void)cli_error(&err, FFA_UNSUPPORTED, 0, "its GPU cannot be opened");
        rendezvous_end(p->rendezvous, status, &err);
        return status;
    }
    if (share_out(p, place->rank, ranks, &err) == FFA_OK)
        return CLI_PARSE_GO;
    give_up(&p->meeting, &err);
    return cli_fail(cli, &err);
}

/* ---- from the begin to the end ---- */

int run_process_open(const struct cli *cli, const struct rendezvous_place *place,
                     const char *folder, struct run_ranks_options *ranks, struct run_process **out)
{
    const int64_t timeout_ms = ranks->timeout_ms ? ranks->timeout_ms : TIMEOUT_MS;
    struct run_process *p = calloc(1, sizeof *p);
    ffa_error err = { FFA_OK, 0, "" };

    *out = NULL;
    if (!p)
        return cli_fail_text(cli, FFA_NOMEM, "no memory for ranks");
    if (rendezvous_open(&p->rendezvous, folder, place, timeout_ms, &err) != FFA_OK) {
        free(p);
        return cli_fail(cli, &err);
    }
    p->meeting = (struct run_meeting){ .rank_count = place->rank_count,
                                       .lag_us = LAG_US,
                                       .gather = gather,
                                       .give = give,
                                       .give_up = give_up };
    ranks->meeting = &p->meeting;
    ranks->rank = place->rank;
    *out = p;
    return open_gpu(cli, p, place, ranks);
}

int run_process_leave(const struct cli *cli, struct run_process *p, int status)
{
    ffa_error err = { FFA_OK, 0, "" };
    int32_t code = status;

    if (!p)
        return status;
    if (rendezvous_agree(p->rendezvous, &code, &err) != FFA_OK && code == 0)
        code = cli_fail(cli, &err);
    rendezvous_close(p->rendezvous);
    free(p);
    return code;
}
