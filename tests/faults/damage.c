/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage: stores and bundles whose bytes, pages, length or rows are not what was written.
 */
#include "faults/faults.h"
#include "support/tmpdir.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* ---- of the file ---- */

static size_t place(struct rng *rng, size_t bytes)
{
    return bytes ? (size_t)rng_range(rng, 0, (int64_t)bytes - 1) : 0;
}

static size_t page_of(struct rng *rng, size_t bytes)
{
    return place(rng, bytes) / PAGE * PAGE;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Change what `file` holds; *bytes may shrink. */
static void bytes_change(struct rng *rng, unsigned char *file, size_t *bytes)
{
    const size_t at = place(rng, *bytes), page = page_of(rng, *bytes);
    const size_t other = page_of(rng, *bytes), length = smaller(PAGE, *bytes - page);

    switch (rng_range(rng, 0, 7)) {
    case 0: /* bits */
        for (int64_t n = rng_range(rng, 1, 40); n > 0; n--)
            file[place(rng, *bytes)] ^= (unsigned char)(1 << rng_range(rng, 0, 7));
        break;
    case 1: /* a page of zeros, as a lost write leaves it */
        memset(file + page, 0, length);
        break;
    case 2: /* a page of noise */
        for (size_t i = 0; i < length; i++)
            file[page + i] = (unsigned char)rng_next(rng);
        break;
    case 3: /* a page in another's place */
        memcpy(file + page, file + other, smaller(length, *bytes - other));
        break;
    case 4: /* cut off */
        *bytes = at;
        break;
    case 5: /* the file's head */
        for (int64_t n = rng_range(rng, 1, 8); n > 0; n--)
            file[place(rng, smaller(100, *bytes))] = (unsigned char)rng_next(rng);
        break;
    case 6: /* one byte all over a page, as of a dying disk */
        memset(file + page, (int)rng_range(rng, 0, 255), length);
        break;
    default: /* the tree of a page: type, cell count and first cells */
        for (int64_t n = rng_range(rng, 1, 6); n > 0; n--)
            file[page + place(rng, smaller(64, length))] = (unsigned char)rng_next(rng);
        break;
    }
}

static void file_damage(struct rng *rng, const char *path)
{
    size_t bytes;
    unsigned char *file = (unsigned char *)tmpdir_read(path, &bytes);

    for (int64_t n = rng_range(rng, 1, 3); n > 0 && bytes > 0; n--)
        bytes_change(rng, file, &bytes);
    (void)chmod(path, 0644);
    tmpdir_write(path, file, bytes);
    free(file);
}

/* ---- of the rows: what somebody who can write the file, or a bug, may do ---- */

static void rows_damage(struct rng *rng, const char *path)
{
    static const char *const changes[] = {
        "UPDATE kernel SET blob_id = (SELECT max(blob_id) FROM kernel)",
        "UPDATE kernel SET key = (SELECT group_concat(substr(key, 1, 1), '') FROM kernel)",
        "UPDATE blob SET cubin = (SELECT cubin FROM blob ORDER BY random() LIMIT 1)",
        "UPDATE blob SET cubin = substr(cubin, 2)",
        "UPDATE blob SET cubin = zeroblob(length(cubin))",
        "UPDATE kernel SET record = record || 'x=1' || char(10)",
        "UPDATE kernel SET arch = 'sm_100a'",
        "UPDATE meta SET value = '999'",
        "DELETE FROM blob",
        "DELETE FROM meta",
        "DROP TABLE blob",
        "ALTER TABLE kernel RENAME TO kernel2",
        "CREATE TRIGGER t AFTER INSERT ON kernel BEGIN DELETE FROM kernel; END",
        "DROP TABLE meta; CREATE VIEW meta AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x "
        "+ 1 FROM c) SELECT x AS key, x AS value FROM c",
        "ALTER TABLE kernel RENAME TO k2; CREATE VIEW kernel AS WITH RECURSIVE c(x) AS (SELECT 1 "
        "UNION ALL SELECT x + 1 FROM c) SELECT k2.* FROM k2, c",
        "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = 'CREATE TABLE kernel(key)' "
        "WHERE name = 'kernel'",
        "PRAGMA user_version = 77",
        "PRAGMA application_id = 1",
        "PRAGMA journal_mode = WAL",
    };
    sqlite3 *db = NULL;

    (void)chmod(path, 0644);
    if (sqlite3_open(path, &db) == SQLITE_OK)
        for (int64_t n = rng_range(rng, 1, 2); n > 0; n--)
            (void)sqlite3_exec(db, fault_draw(rng, changes, sizeof changes / sizeof *changes), NULL,
                               NULL, NULL);
    (void)sqlite3_close(db);
}

/* ---- of what stands beside it ---- */

static void journal_damage(struct rng *rng, const char *path)
{
    static const char *const kinds[] = { "-journal", "-wal", "-shm" };
    char beside[1024];
    unsigned char noise[2 * PAGE];

    (void)snprintf(beside, sizeof beside, "%s%s", path, fault_draw(rng, kinds, 3));
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rng_next(rng);
    switch (rng_range(rng, 0, 4)) {
    case 0:
        tmpdir_write(beside, noise, place(rng, sizeof noise));
        break;
    case 1: /* with the magic of a journal */
        memcpy(noise, "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
        tmpdir_write(beside, noise, sizeof noise);
        break;
    case 2:
        (void)mkfifo(beside, 0600);
        break;
    case 3:
        (void)mkdir(beside, 0700);
        break;
    default:
        (void)symlink("/dev/zero", beside);
        break;
    }
}

/* The one bundle in a folder. */
static const char *bundle_in(const struct faults *faults, const char *folder)
{
    DIR *dir = opendir(fault_path(faults, folder));
    struct dirent *entry;
    char name[600] = "";

    while (dir && (entry = readdir(dir)))
        if (strstr(entry->d_name, ".ffadb"))
            (void)snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
    if (dir)
        (void)closedir(dir);
    return name[0] ? fault_path(faults, name) : NULL;
}

static const char *bundle_make(const struct faults *faults, const char *store)
{
    const char *const argv[] = { faults->ffa, "bundle",  "export", "--to",
                                 "bundles",   "--store", store,    NULL };
    struct fault_result result;

    (void)mkdir(fault_path(faults, "bundles"), 0755);
    result = fault_run(faults, &(struct fault_run){ .argv = argv });
    return result.status == 0 ? NULL : fault_say("bundle export: %s", result.err);
}

/* The commands that look at files end, and with a sentence where they refuse. */
static const char *commands_check(const struct faults *faults, const char *path)
{
    static const char *const looks[][3] = { { "cache", "verify", "--store" },
                                            { "cache", "ls", "--store" },
                                            { "bundle", "inspect", NULL },
                                            { "bundle", "verify", NULL } };
    const char *wrong = NULL;

    for (size_t i = 0; i < sizeof looks / sizeof *looks && !wrong; i++) {
        const char *argv[6] = { faults->ffa, looks[i][0], looks[i][1] };
        int at = 3;
        struct fault_result result;

        if (looks[i][2])
            argv[at++] = looks[i][2];
        argv[at] = path;
        result = fault_run(faults, &(struct fault_run){ .argv = argv });
        wrong = fault_check(&result, 0);
    }
    return wrong;
}

const char *damage_round(const struct faults *faults, struct rng *rng)
{
    const char *const store = fault_path(faults, "store/kernels.ffadb");
    const bool of_bundle = rng_range(rng, 0, 2) == 0;
    const char *path = store;
    const char *wrong = reference_store(faults, store, 4);

    if (!wrong && of_bundle) {
        wrong = bundle_make(faults, store);
        path = bundle_in(faults, "bundles");
        if (!wrong && !path)
            wrong = "bundle export left no bundle";
    }
    if (wrong)
        return wrong;
    switch (rng_range(rng, 0, 3)) {
    case 0:
        rows_damage(rng, path);
        break;
    case 1:
        journal_damage(rng, path);
        break;
    default:
        file_damage(rng, path);
        break;
    }
    wrong = commands_check(faults, path);
    if (wrong)
        return wrong;
    return of_bundle ? reference_check_bundle(faults, path) : reference_check(faults, path, false);
}
