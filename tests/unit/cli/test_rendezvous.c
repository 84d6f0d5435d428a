/* SPDX-License-Identifier: Apache-2.0
 *
 * The rendezvous in a folder: which rank a process is, by option and by launcher; several processes
 * that meet and hand bytes to each other; what an earlier launch left; and who is missing.
 */
#include "cli/rendezvous.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, TURNS = 20, LONG_MS = 60000, QUICK_MS = 200 };

/* ---- which rank ---- */

struct variable {
    const char *name, *value;
};

static const char *get(void *user, const char *name)
{
    for (const struct variable *v = user; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v->value;
    return NULL;
}

static const struct {
    int32_t rank, ranks;
    struct variable variables[8];
    struct rendezvous_place place;
    const char *says; /* NULL: it works */
} places[] = {
    { 2, 4, { { "RANK", "0" }, { "WORLD_SIZE", "2" } }, { 2, 4, 2, "", "--rank, --ranks" }, NULL },
    { -1,
      0,
      { { "RANK", "3" },
        { "WORLD_SIZE", "8" },
        { "LOCAL_RANK", "1" },
        { "TORCHELASTIC_RUN_ID", "run/7" },
        { "TORCHELASTIC_RESTART_COUNT", "2" },
        { "SLURM_PROCID", "0" },
        { "SLURM_NTASKS", "2" } },
      { 3, 8, 1, "run_7.2", "RANK, WORLD_SIZE" },
      NULL },
    { -1,
      0,
      { { "OMPI_COMM_WORLD_RANK", "1" },
        { "OMPI_COMM_WORLD_SIZE", "2" },
        { "OMPI_COMM_WORLD_LOCAL_RANK", "0" },
        { "PMIX_NAMESPACE", "prterun-3" },
        { "SLURM_PROCID", "0" },
        { "SLURM_NTASKS", "1" } },
      { 1, 2, 0, "prterun-3", "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE" },
      NULL },
    { -1,
      0,
      { { "PMI_RANK", "1" }, { "PMI_SIZE", "3" } },
      { 1, 3, 1, "", "PMI_RANK, PMI_SIZE" },
      NULL },
    { -1,
      0,
      { { "SLURM_PROCID", "5" },
        { "SLURM_NTASKS", "6" },
        { "SLURM_LOCALID", "2" },
        { "SLURM_JOB_ID", "1234" },
        { "SLURM_STEP_ID", "1" } },
      { 5, 6, 2, "1234.1", "SLURM_PROCID, SLURM_NTASKS" },
      NULL },
    { -1,
      0,
      { { "SLURM_PROCID", "0" },
        { "OMPI_COMM_WORLD_RANK", "1" },
        { "OMPI_COMM_WORLD_SIZE", "2" },
        { "RANK", "0" } },
      { 1, 2, 1, "", "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE" },
      NULL },
    { -1, 0, { { NULL, NULL } }, { 0 }, "which rank this process is, is not said: no --rank" },
    { -1, 0, { { "RANK", "1" } }, { 0 }, "is not said: RANK is set, WORLD_SIZE is not" },
    { -1, 0, { { "PMI_SIZE", "1" } }, { 0 }, "is not said: PMI_SIZE is set, PMI_RANK is not" },
    { -1,
      0,
      { { "RANK", "x" }, { "WORLD_SIZE", "2" } },
      { 0 },
      "RANK is 'x', not a whole number in [0, 2147483647]" },
    { -1,
      0,
      { { "RANK", "0" }, { "WORLD_SIZE", "" } },
      { 0 },
      "is not said: RANK is set, WORLD_SIZE is not" },
    { -1,
      0,
      { { "RANK", "2" }, { "WORLD_SIZE", "2" } },
      { 0 },
      "the rank (RANK, WORLD_SIZE) is 2, not in [0, 2)" },
    { 0, 257, { { NULL, NULL } }, { 0 }, "the number of ranks (--rank, --ranks) is 257" },
    { 0, 0, { { NULL, NULL } }, { 0 }, "is 0, not in [1, 256]" },
};

START_TEST(rank_is_found)
{
    struct rendezvous_place place;
    ffa_error err = { FFA_OK, 0, "" };
    const ffa_status rc = rendezvous_find(&place, places[_i].rank, places[_i].ranks, get,
                                          (void *)(uintptr_t)places[_i].variables, &err);

    ck_assert_int_eq(rc, places[_i].says ? FFA_INVALID : FFA_OK);
    if (places[_i].says) {
        ck_assert_msg(strstr(err.message, places[_i].says) != NULL, "%s", err.message);
        return;
    }
    ck_assert_int_eq(place.rank, places[_i].place.rank);
    ck_assert_int_eq(place.rank_count, places[_i].place.rank_count);
    ck_assert_int_eq(place.local, places[_i].place.local);
    ck_assert_str_eq(place.id, places[_i].place.id);
    ck_assert_str_eq(place.from, places[_i].place.from);
}
END_TEST

/* ---- processes ---- */

static char *root;

static void make_root(void)
{
    root = tmpdir_make();
}

static void remove_root(void)
{
    tmpdir_remove(root);
}

static int files_of(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static uint32_t value_of(int32_t rank, int turn, int32_t launch)
{
    return (uint32_t)(launch * 1000000 + turn * 1000 + rank);
}

/* 0: every turn brought what all ranks gave. */
static int take_part(const char *folder, int32_t rank, int32_t launch, bool closes)
{
    struct rendezvous_place place = { .rank = rank, .rank_count = PROCESSES, .id = "" };
    struct rendezvous *meeting;
    ffa_error err = { FFA_OK, 0, "" };

    if (rendezvous_open(&meeting, folder, &place, LONG_MS, &err) != FFA_OK) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, err.message);
        return 1;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        const uint32_t mine = value_of(rank, turn, launch);
        uint32_t all[PROCESSES];

        if (rendezvous_allgather(meeting, &mine, all, sizeof mine) != 0) {
            (void)fprintf(stderr, "rank %d: %s\n", rank, rendezvous_error(meeting)->message);
            return 2;
        }
        for (int32_t r = 0; r < PROCESSES; r++)
            if (all[r] != value_of(r, turn, launch))
                return 3;
    }
    if (closes)
        rendezvous_close(meeting);
    return 0;
}

static void launch(const char *folder, int32_t number, bool closes)
{
    pid_t children[PROCESSES];

    for (int32_t r = 0; r < PROCESSES; r++) {
        children[r] = fork();
        ck_assert_int_ge(children[r], 0);
        if (children[r] == 0) {
            usleep((unsigned)(r * 7919 + number * 104729) % 20000);
            _exit(take_part(folder, r, number, closes));
        }
    }
    for (int32_t r = 0; r < PROCESSES; r++) {
        int status;

        ck_assert_int_eq(waitpid(children[r], &status, 0), children[r]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status %x", r,
                      (unsigned)status);
    }
}

/* Some launches leave all their files, others clean up. */
START_TEST(launches_meet_one_after_another)
{
    char folder[512];

    (void)snprintf(folder, sizeof folder, "%s/meet", root);
    for (int32_t i = 0; i < 6; i++) {
        launch(folder, i, i % 2 != 0);
        if (i % 2 == 1)
            ck_assert_int_le(files_of(folder), PROCESSES * (i + 1) / 2);
    }
}
END_TEST

START_TEST(clean_launch_leaves_nothing)
{
    char folder[512];

    (void)snprintf(folder, sizeof folder, "%s/clean", root);
    launch(folder, 1, true);
    ck_assert_int_eq(files_of(folder), 0);
}
END_TEST

START_TEST(missing_ranks_are_named)
{
    struct rendezvous_place place = { .rank_count = 4 };
    struct rendezvous *meeting;
    char *hello = tmpdir_path(root, "ffa-hello.2");
    ffa_error err;
    pid_t child = fork();

    if (child == 0) {
        place.rank = 2;
        (void)rendezvous_open(&meeting, root, &place, LONG_MS, NULL);
        _exit(0);
    }
    for (int i = 0; i < LONG_MS && access(hello, F_OK) != 0; i++)
        usleep(1000);
    ck_assert_int_eq(access(hello, F_OK), 0);
    free(hello);
    ck_assert_int_eq(rendezvous_open(&meeting, root, &place, QUICK_MS, &err), FFA_TIMEOUT);
    ck_assert_ptr_null(meeting);
    ck_assert_msg(strstr(err.message, "2 of 4 ranks have not come to the rendezvous") &&
                      strstr(err.message, "within 200 ms: 1, 3"),
                  "%s", err.message);
    place.rank = 1;
    ck_assert_int_eq(rendezvous_open(&meeting, root, &place, QUICK_MS, &err), FFA_TIMEOUT);
    ck_assert_msg(strstr(err.message, "rank 3 has not come") != NULL, "%s", err.message);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
}
END_TEST

/* ---- how ranks end ---- */

/* What rank 1 does after the first exchange, in a process of its own. */
enum after { SLEEPS, DIES, GIVES_UP, ENDS_WELL };

static const struct {
    enum after after;
    ffa_status status; /* of rank 0's second exchange */
    const char *says;
    int32_t code; /* that rank 0 and the rest agree on, of its own 0 */
    ffa_status agrees;
    const char *lost; /* NULL: it is not */
} endings[] = {
    { SLEEPS, FFA_TIMEOUT, "rank 1 has not come to exchange 2 of the rendezvous within 5000 ms", 0,
      FFA_COMM, NULL },
    { DIES, FFA_COMM, "rank 1 has died and does not come to exchange 2 of the rendezvous", 0,
      FFA_COMM, "rank 1 has died" },
    { GIVES_UP, FFA_GPU, "rank 1 gave up: no device", 3, FFA_OK, "rank 1 gave up: no device" },
    { ENDS_WELL, FFA_COMM, "rank 1 has ended and does not come to exchange 2 of the rendezvous", 0,
      FFA_OK, NULL },
};

static void end_as(struct rendezvous *meeting, enum after after)
{
    const ffa_error why = { FFA_GPU, 0, "no device" };

    if (after == SLEEPS)
        (void)pause();
    if (after == GIVES_UP)
        rendezvous_end(meeting, 3, &why);
    if (after == ENDS_WELL)
        rendezvous_end(meeting, 0, NULL);
    _exit(0);
}

START_TEST(rank_missing_from_an_exchange_is_named)
{
    struct rendezvous_place place = { .rank_count = 2 };
    struct rendezvous *meeting;
    const int mine = 5;
    int32_t code = 0;
    int all[2];
    ffa_error err;
    pid_t child = fork();
    const int64_t timeout_ms = child != 0 && endings[_i].after == SLEEPS ? 5000 : LONG_MS;

    place.rank = child == 0;
    if (rendezvous_open(&meeting, root, &place, timeout_ms, NULL) != FFA_OK ||
        rendezvous_allgather(meeting, &mine, all, sizeof mine) != 0)
        _exit(1);
    if (child == 0)
        end_as(meeting, endings[_i].after);
    ck_assert_int_eq(rendezvous_allgather(meeting, &mine, all, sizeof mine), 1);
    ck_assert_str_eq(rendezvous_error(meeting)->message, endings[_i].says);
    ck_assert_int_eq(rendezvous_error(meeting)->status, endings[_i].status);
    ck_assert_int_eq(rendezvous_lost(meeting, &err), endings[_i].lost ? 1 : -1);
    if (endings[_i].lost)
        ck_assert_str_eq(err.message, endings[_i].lost);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    ck_assert_int_eq(rendezvous_agree(meeting, &code, &err), endings[_i].agrees);
    ck_assert_int_eq(code, endings[_i].code);
    rendezvous_close(meeting);
    ck_assert_int_eq(files_of(root), 0);
}
END_TEST

/* Rank r ends with codes[r]; FFA_COMM, where its group was broken, and FFA_TIMEOUT otherwise. */
static const struct {
    int32_t codes[PROCESSES];
    bool is_broken[PROCESSES];
    int32_t agreed;
} agreements[] = {
    { { 0, 0, 0, 0 }, { false, false, false, false }, 0 },
    { { 0, 0, 3, 4 }, { false, false, false, false }, 3 },
    { { 1, 0, 3, 1 }, { true, false, false, true }, 3 },
    { { 0, 1, 0, 2 }, { false, true, false, true }, 1 },
};

static int agree_on(const char *folder, int32_t rank, int32_t row)
{
    struct rendezvous_place place = { .rank = rank, .rank_count = PROCESSES, .id = "" };
    const ffa_error why = { agreements[row].is_broken[rank] ? FFA_COMM : FFA_TIMEOUT, 0, "why" };
    int32_t code = agreements[row].codes[rank];
    struct rendezvous *meeting;

    if (rendezvous_open(&meeting, folder, &place, LONG_MS, NULL) != FFA_OK)
        return 1;
    usleep((unsigned)(rank * 20000)); /* some have said it long before others ask */
    if (code)
        rendezvous_end(meeting, code, &why);
    if (rendezvous_agree(meeting, &code, NULL) != FFA_OK)
        return 2;
    rendezvous_close(meeting);
    return code == agreements[row].agreed ? 0 : 3;
}

START_TEST(ranks_agree_how_they_ended)
{
    pid_t children[PROCESSES];

    for (int32_t r = 0; r < PROCESSES; r++) {
        children[r] = fork();
        if (children[r] == 0)
            _exit(agree_on(root, r, _i));
    }
    for (int32_t r = 0; r < PROCESSES; r++) {
        int status;

        ck_assert_int_eq(waitpid(children[r], &status, 0), children[r]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status %x", r,
                      (unsigned)status);
    }
    ck_assert_int_eq(files_of(root), 0);
}
END_TEST

/* Rank r gives r + 1 bytes, and only rank 0 reads them. */
static int give_to_first(const char *folder, int32_t rank)
{
    struct rendezvous_place place = { .rank = rank, .rank_count = PROCESSES, .id = "" };
    char all[PROCESSES][PROCESSES] = { { 0 } }, mine[PROCESSES];
    void *at[PROCESSES];
    size_t bytes[PROCESSES];
    struct rendezvous *meeting;

    if (rendezvous_open(&meeting, folder, &place, LONG_MS, NULL) != FFA_OK)
        return 1;
    memset(mine, 'a' + rank, sizeof mine);
    for (int32_t r = 0; r < PROCESSES; r++) {
        at[r] = rank == 0 ? all[r] : NULL;
        bytes[r] = (size_t)r + 1;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        memset(all, 0, sizeof all);
        if (rendezvous_gather(meeting, mine, at, bytes) != 0)
            return 2;
        for (int32_t r = 0; r < PROCESSES; r++)
            for (int32_t i = 0; i < PROCESSES; i++)
                if (all[r][i] != (rank == 0 && i <= r ? 'a' + r : 0))
                    return 3;
    }
    rendezvous_close(meeting);
    return 0;
}

START_TEST(first_rank_gathers_what_differs_in_size)
{
    pid_t children[PROCESSES];

    for (int32_t r = 0; r < PROCESSES; r++) {
        children[r] = fork();
        if (children[r] == 0)
            _exit(give_to_first(root, r));
    }
    for (int32_t r = 0; r < PROCESSES; r++) {
        int status;

        ck_assert_int_eq(waitpid(children[r], &status, 0), children[r]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d: status %x", r,
                      (unsigned)status);
    }
    ck_assert_int_eq(files_of(root), 0);
}
END_TEST

START_TEST(folder_that_cannot_be_is_named)
{
    const struct rendezvous_place place = { .rank_count = 1 };
    struct rendezvous *meeting;
    ffa_error err;
    char folder[2048];

    ck_assert_int_eq(rendezvous_open(&meeting, "/nowhere/at/all", &place, QUICK_MS, &err), FFA_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "/nowhere/at/all"));
    (void)snprintf(folder, sizeof folder, "%s", root);
    while (strlen(folder) < 1020)
        (void)strcat(folder, "/.");
    ck_assert_int_eq(rendezvous_open(&meeting, folder, &place, QUICK_MS, &err), FFA_INVALID);
    ck_assert_ptr_null(meeting);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rendezvous");
    TCase *tc = tcase_create("rendezvous");

    tcase_set_timeout(tc, 180);
    tcase_add_checked_fixture(tc, make_root, remove_root);
    tcase_add_loop_test(tc, rank_is_found, 0, sizeof places / sizeof *places);
    tcase_add_test(tc, launches_meet_one_after_another);
    tcase_add_test(tc, clean_launch_leaves_nothing);
    tcase_add_test(tc, missing_ranks_are_named);
    tcase_add_loop_test(tc, rank_missing_from_an_exchange_is_named, 0,
                        sizeof endings / sizeof *endings);
    tcase_add_loop_test(tc, ranks_agree_how_they_ended, 0, sizeof agreements / sizeof *agreements);
    tcase_add_test(tc, first_rank_gathers_what_differs_in_size);
    tcase_add_test(tc, folder_that_cannot_be_is_named);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
