/* SPDX-License-Identifier: Apache-2.0
 *
 * Which process of a launch this is: as the caller says, or as the innermost launcher does in its
 * variables. The id of the launch becomes a part of names of files.
 */
#include "cli/file.h"
#include "cli/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_number(const char *text, int32_t max, int32_t *out)
{
    char *end;
    long long number;

    if (!text || !*text)
        return false;
    errno = 0;
    number = strtoll(text, &end, 10);
    *out = (int32_t)number;
    return errno == 0 && *end == '\0' && number >= 0 && number <= max;
}

/* ---- launchers ---- */

static const struct launcher launchers[] = {
    { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
      "TORCHELASTIC_RESTART_COUNT" },
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid" },
    { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", "SLURM_STEP_ID" },
    { "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID",
      "SLURM_STEP_ID" },
};

static bool is_set(rendezvous_variable get, void *user, const char *name)
{
    const char *value = get(user, name);

    return value && value[0];
}

const struct launcher *rendezvous_launcher(rendezvous_variable get, void *user)
{
    const struct launcher *half = NULL;

    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const bool has_rank = is_set(get, user, launchers[i].rank);
        const bool has_count = is_set(get, user, launchers[i].count);

        if (has_rank && has_count)
            return &launchers[i];
        if (!half && (has_rank || has_count))
            half = &launchers[i];
    }
    return half;
}

void rendezvous_half(const struct launcher *launcher, rendezvous_variable get, void *user,
                     const char **set, const char **unset)
{
    const bool has_rank = is_set(get, user, launcher->rank);
    const bool has_both = has_rank && is_set(get, user, launcher->count);

    *set = has_rank ? launcher->rank : launcher->count;
    *unset = has_both ? NULL : has_rank ? launcher->count : launcher->rank;
}

/* ---- the place ---- */

/* Letters and digits of the id, others as '_': it stands in names of files. */
static void add_id(char *id, const char *text)
{
    size_t at = strlen(id);

    if (!text)
        return;
    if (at > 0 && at + 1 < RENDEZVOUS_ID_BYTES)
        id[at++] = '.';
    for (; *text && at + 1 < RENDEZVOUS_ID_BYTES; text++) {
        const bool is_plain = (*text >= '0' && *text <= '9') || (*text >= 'a' && *text <= 'z') ||
                              (*text >= 'A' && *text <= 'Z') || *text == '-';

        id[at++] = is_plain ? *text : '_';
    }
    id[at] = '\0';
}

static ffa_status wrong(const char *name, const char *text, ffa_error *err)
{
    return cli_error(err, FFA_INVALID, 0, "%s is '%s', not a whole number in [0, %d]", name, text,
                     INT32_MAX);
}

/* Both variables of the launcher are set. */
static ffa_status ask_launcher(struct rendezvous_place *out, const struct launcher *l,
                               rendezvous_variable get, void *user, ffa_error *err)
{
    (void)snprintf(out->from, sizeof out->from, "%s, %s", l->rank, l->count);
    if (!read_number(get(user, l->rank), INT32_MAX, &out->rank))
        return wrong(l->rank, get(user, l->rank), err);
    if (!read_number(get(user, l->count), INT32_MAX, &out->rank_count))
        return wrong(l->count, get(user, l->count), err);
    if (!read_number(get(user, l->local), INT32_MAX, &out->local))
        out->local = out->rank;
    add_id(out->id, get(user, l->id));
    add_id(out->id, get(user, l->more));
    return FFA_OK;
}

static ffa_status ask_launchers(struct rendezvous_place *out, rendezvous_variable get, void *user,
                                ffa_error *err)
{
    const struct launcher *launcher = rendezvous_launcher(get, user);
    const char *set, *unset;

    if (!launcher)
        return cli_error(err, FFA_INVALID, 0,
                         "which rank this process is, is not said: no --rank, and no variables of "
                         "torchrun, mpirun or srun");
    rendezvous_half(launcher, get, user, &set, &unset);
    if (unset)
        return cli_error(err, FFA_INVALID, 0,
                         "which rank this process is, is not said: %s is set, %s is not", set,
                         unset);
    return ask_launcher(out, launcher, get, user, err);
}

ffa_status rendezvous_find(struct rendezvous_place *out, int32_t rank, int32_t rank_count,
                           rendezvous_variable get, void *user, ffa_error *err)
{
    *out = (struct rendezvous_place){ .rank = rank, .rank_count = rank_count, .local = rank };
    if (rank >= 0)
        (void)snprintf(out->from, sizeof out->from, "--rank, --ranks");
    else if (ask_launchers(out, get, user, err) != FFA_OK)
        return FFA_INVALID;
    if (out->rank_count < 1 || out->rank_count > RENDEZVOUS_RANKS_MAX)
        return cli_error(err, FFA_INVALID, 0, "the number of ranks (%s) is %d, not in [1, %d]",
                         out->from, out->rank_count, RENDEZVOUS_RANKS_MAX);
    if (out->rank >= out->rank_count)
        return cli_error(err, FFA_INVALID, 0, "the rank (%s) is %d, not in [0, %d)", out->from,
                         out->rank, out->rank_count);
    return FFA_OK;
}
