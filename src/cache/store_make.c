/* SPDX-License-Identifier: Apache-2.0
 *
 * Making the file of a store, and putting a damaged one aside.
 *
 * Invariant: nobody ever sees half a store, because a new one has no name until it is whole, and
 * nothing is left of one whose maker was killed. All files are reached through the open folder of
 * the place that was checked.
 */
#include "base/embedded.h"
#include "base/tempfile.h"
#include "cache/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

ffa_status store_begin_file(struct store *store, int file, int64_t created_s, ffa_error *err)
{
    char sql[96];
    ffa_status rc;

    FFA_TRY(store_open_new(store, file, err));
    FFA_TRY(store_run(store,
                      "PRAGMA page_size=16384; PRAGMA secure_delete=ON; "
                      "PRAGMA journal_mode=MEMORY; BEGIN IMMEDIATE",
                      "begin", err));
    FFA_TRY(store_run(store, embedded_schema.text, "write the schema", err));
    (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 1, NULL);
    text_copy(sql, "INSERT INTO meta VALUES ('created_s', '%lld')", (long long)created_s);
    rc = store_run(store, sql, "write the schema", err);
out:
    return rc;
}

static ffa_status write_new(struct store *store, int file, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(store_begin_file(store, file, clock_unix_s(), err));
    FFA_TRY(store_run(store, "COMMIT", "commit the schema", err));
out:
    store_close_db(store);
    return rc;
}

/* "<name>.new-": what the temporary files of a store are called, where they must have a name. */
static char *prefix_of(const struct store *store)
{
    struct text prefix = { 0 };

    text_add(&prefix, "%s.new-", store->place.name);
    return text_take(&prefix);
}

/* ---- one process at a time ---- */

/* Who replaces what has the name of the store, or puts it aside, locks the folder meanwhile, so
 * that what was looked at is what is moved. The lock ends with its holder; where there is none, or
 * for long, it goes without: -1, or a descriptor that holds nothing. */
static int take_turn(const struct store_place *place)
{
    enum { TRIES = 200 };
    const struct timespec nap = { .tv_nsec = 5000000 };
    int turn = openat(place->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (int i = 0; turn >= 0 && i < TRIES && flock(turn, LOCK_EX | LOCK_NB) != 0 &&
                    (errno == EWOULDBLOCK || errno == EINTR);
         i++)
        (void)nanosleep(&nap, NULL);
    return turn;
}

static void end_turn(int turn)
{
    if (turn < 0)
        return;
    (void)flock(turn, LOCK_UN); /* a forked child may share it */
    (void)close(turn);
}

/* Rename to "<name>.damaged<ending>"; what is not there is no failure. */
static ffa_status move_aside(struct store *store, const char *ending, ffa_error *err)
{
    const struct store_place *place = &store->place;
    struct text from = { 0 }, to = { 0 };
    ffa_status rc = FFA_OK;

    text_add(&from, "%s%s", place->name, ending);
    text_add(&to, "%s.damaged%s", place->name, ending);
    if (from.failed || to.failed)
        rc = error_nomem(err, "a path");
    else if ((renameat(place->folder, from.at, place->folder, to.at) != 0 && errno != ENOENT) ||
             fault_here(FAULT_FILE))
        rc = store_file_trouble(store, "put aside", from.at, err);
    text_finish(&from);
    text_finish(&to);
    return rc;
}

/* ---- a new file ---- */

/* What is where a new store is to be: a store, an empty file, the journal of one that is gone. */
struct way {
    bool is_taken, is_empty, has_journal;
};

static ffa_status look_at_way(const struct store_place *place, struct way *out, ffa_error *err)
{
    struct text journal = { 0 };
    struct stat stat;

    *out = (struct way){ 0 };
    text_add(&journal, "%s-journal", place->name);
    if (journal.failed)
        return error_nomem(err, "a path");
    /* The journal first: one that is of a store made meanwhile comes after that. */
    out->has_journal = fstatat(place->folder, journal.at, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
                       S_ISREG(stat.st_mode) && stat.st_size > 0;
    if (fstatat(place->folder, place->name, &stat, AT_SYMLINK_NOFOLLOW) == 0) {
        out->is_empty = S_ISREG(stat.st_mode) && stat.st_size == 0;
        out->is_taken = !out->is_empty;
    }
    text_finish(&journal);
    return FFA_OK;
}

/* An empty file is replaced. A journal without its store is put aside: it would be played back into
 * the new one. */
static ffa_status put_in_place(struct store *store, struct tempfile *file, ffa_error *err)
{
    const struct store_place *place = &store->place;
    struct way way;
    int turn = -1;
    ffa_status rc;

    FFA_TRY(look_at_way(place, &way, err));
    if (way.is_empty || way.has_journal) {
        turn = take_turn(place);
        FFA_TRY(look_at_way(place, &way, err));
    }
    if (way.is_taken) /* another process was faster, and its store is as good */
        goto out;
    if (way.has_journal)
        FFA_TRY(move_aside(store, "-journal", err));
    if (!tempfile_publish(file, place->name, way.is_empty) && errno != EEXIST)
        rc = store_file_trouble(store, "put in place", store->path, err);
out:
    end_turn(turn);
    return rc;
}

ffa_status store_make(struct store *store, ffa_error *err)
{
    struct tempfile file = TEMPFILE_NONE;
    char *prefix = prefix_of(store);
    ffa_status rc = FFA_OK;

    if (!prefix)
        return error_nomem(err, "a path");
    if (!tempfile_open(&file, store->place.opened, prefix)) {
        rc = store_file_trouble(store, "make a file in", store->folder, err);
        goto out;
    }
    FFA_TRY(write_new(store, file.file, err));
    if (store->of_group && !tempfile_set_mode(&file, 0660))
        rc = store_file_trouble(store, "hand to its group", store->path, err);
    else
        rc = put_in_place(store, &file, err);
out:
    tempfile_discard(&file);
    mem_free(prefix);
    return rc;
}

ffa_status store_reap(const struct store *store)
{
    char *prefix;

    if (!store->place.opened)
        return FFA_OK;
    prefix = prefix_of(store);
    if (!prefix)
        return FFA_NOMEM;
    tempfile_reap(store->place.opened, prefix);
    mem_free(prefix);
    return FFA_OK;
}

/* ---- a damaged file ---- */

/* Whether a file begins as a store does, or with zeros, as a crash may leave it. Anything else is
 * other data. Only for files that no connection of this process has open. */
static bool is_ours(const struct store_place *place)
{
    static const unsigned char zeros[100];
    unsigned char head[100] = { 0 };
    int file = openat(place->folder, place->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t bytes = file >= 0 ? pread(file, head, sizeof head, 0) : 0;

    if (file >= 0)
        (void)close(file);
    if (bytes <= 0)
        return false;
    if (memcmp(head, zeros, sizeof head) == 0)
        return true;
    return bytes == sizeof head && memcmp(head, "SQLite format 3", 16) == 0 && head[68] == 0x66 &&
           head[69] == 0x66 && head[70] == 0x61 && head[71] == 0x6b;
}

/* The journal goes with it: one left behind would be played back into the next store. */
ffa_status store_put_aside(struct store *store, const struct stat *file, ffa_error *err)
{
    const struct store_place *place = &store->place;
    int turn = take_turn(place);
    struct stat now;
    ffa_status rc = FFA_OK;

    /* Another process may have put it aside, and made a new one, meanwhile. */
    if (fstatat(place->folder, place->name, &now, AT_SYMLINK_NOFOLLOW) != 0 ||
        now.st_ino != file->st_ino || now.st_dev != file->st_dev)
        goto out;
    if (!is_ours(place)) {
        rc = error_fail(err, FFA_CACHE, 0,
                        "'%s' is not a kernel store, or is damaged from its first bytes; remove "
                        "it or choose another path",
                        store->called);
        goto out;
    }
    FFA_TRY(move_aside(store, "-journal", err));
    rc = move_aside(store, "", err);
out:
    end_turn(turn);
    return rc;
}
