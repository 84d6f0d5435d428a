/* SPDX-License-Identifier: Apache-2.0
 *
 * A meeting of processes. Invariant: once a rank has met the others, it says how it ended, so that
 * no other waits for it for longer than it takes to look.
 */
#include "cli/process_meeting.h"

#include "cli/file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LAG_US = 10000 };

/* ---- the meeting ---- */

static ffa_status said(const struct process_meeting *p, bool is_bad, ffa_error *err)
{
    const ffa_error *why = rendezvous_error(p->rendezvous);

    return is_bad ? cli_error(err, why->status, why->native, "%s", why->message) : FFA_OK;
}

static ffa_status gather(struct run_meeting *meeting, int32_t rank, const void *mine, void *all,
                         size_t bytes, ffa_error *err)
{
    const struct process_meeting *p = (struct process_meeting *)meeting;

    (void)rank;
    return said(p, rendezvous_allgather(p->rendezvous, mine, all, bytes) != 0, err);
}

static ffa_status give(struct run_meeting *meeting, int32_t rank, const void *mine, void *const *at,
                       const size_t *bytes, ffa_error *err)
{
    const struct process_meeting *p = (struct process_meeting *)meeting;

    (void)rank;
    return said(p, rendezvous_gather(p->rendezvous, mine, at, bytes) != 0, err);
}

static void give_up(struct run_meeting *meeting, const ffa_error *why)
{
    const struct process_meeting *p = (struct process_meeting *)meeting;

    rendezvous_end(p->rendezvous, p->code_of(why->status), why);
}

ffa_status process_meeting_open(struct process_meeting **out, const char *folder,
                                const struct rendezvous_place *place, int64_t timeout_ms,
                                int (*code_of)(ffa_status status), ffa_error *err)
{
    struct process_meeting *p = calloc(1, sizeof *p);
    ffa_status rc;

    *out = NULL;
    if (!p)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    rc = rendezvous_open(&p->rendezvous, folder, place, timeout_ms, err);
    if (rc != FFA_OK) {
        free(p);
        return rc;
    }
    p->code_of = code_of;
    p->meeting = (struct run_meeting){ .rank_count = place->rank_count,
                                       .lag_us = LAG_US,
                                       .gather = gather,
                                       .give = give,
                                       .give_up = give_up };
    *out = p;
    return FFA_OK;
}

void process_meeting_close(struct process_meeting *p)
{
    if (p)
        rendezvous_close(p->rendezvous);
    free(p);
}

/* ---- GPUs ---- */

int process_meeting_ordinal(const char *cudart, int32_t local)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context = NULL;
    int ordinal = 0;

    opts.cudart_path = cudart;
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

ffa_status process_meeting_share_out(struct process_meeting *p, int32_t rank, ffa_context *context,
                                     int32_t *gpus, int32_t *sharing, ffa_error *err)
{
    const int32_t count = p->meeting.rank_count;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    struct identity own;
    struct identity *all = calloc((size_t)count, sizeof *all);
    ffa_status rc;

    *gpus = *sharing = 0;
    if (!all)
        return cli_error(err, FFA_NOMEM, 0, "no memory for ranks");
    rc = ffa_context_info_get(context, &info, err);
    memcpy(own.uuid, info.device_uuid, sizeof own.uuid);
    if (rc == FFA_OK)
        rc = gather(&p->meeting, rank, &own, all, sizeof own, err);
    for (int32_t r = 0; r < count && rc == FFA_OK; r++) {
        int32_t of_gpu = 0, before = 0;

        for (int32_t q = 0; q < count; q++) {
            const bool is_same = memcmp(&all[q], &all[r], sizeof own) == 0;

            of_gpu += is_same;
            before += is_same && q < r;
        }
        *gpus += before == 0;
        if (of_gpu > *sharing) /* on all ranks alike, as plans are made with it */
            *sharing = of_gpu;
    }
    free(all);
    return rc;
}
