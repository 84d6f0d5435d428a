/* SPDX-License-Identifier: Apache-2.0
 *
 * Session files, their merging, and their text: several machines give one table in whatever order,
 * sessions that do not go together are refused, and nothing that a file or a text may hold is taken
 * on trust.
 */
#include "base/digest.h"
#include "choose/cost_table_json.h"
#include "support/fake_tune.h"
#include "support/fixture.h"
#include "support/suite.h"
#include "support/tmpdir.h"
#include "tune/tune_fit.h"
#include "tune/tune_report.h"
#include "tune/tune_session.h"
#include <ffa/tune.h>

#include <check.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const masks[] = { "causal:2048", "varlen-causal:300*8", "full:1024" };
enum { MASKS = 3 };

static char *prepared; /* a folder with the files that all tests begin with */
static char *folder;
static struct cost_table truth;

static void setup(void)
{
    folder = tmpdir_make();
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

/* Keep the baseline and every second other tile, from the first or the second one on, and those
 * that are fastest. */
static void keep_half(struct tune_record *record, int which)
{
    int32_t kept = 1;

    for (int32_t i = 1; i < record->configuration_count; i++)
        if (i % 2 == which || record->configurations[i].tile_n == 128)
            record->configurations[kept++] = record->configurations[i];
    record->configuration_count = kept;
}

/* A machine's session in a file of its own. */
static void run_session(const char *name, int id, double speed, int half)
{
    struct tune_record record = fake_tune_record(id, masks, MASKS);
    struct fake_tune fake = { .costs = &truth,
                              .unit_us = 0.01,
                              .speed = speed,
                              .noise = 0.003,
                              .seed = (uint64_t)id,
                              .recovers = true };
    const struct tune_device device = fake_tune_device(&fake);
    struct tune_session session = { .record = &record, .device = &device };
    ffa_error err = { FFA_OK, 0, "" };
    char *path = tmpdir_path(prepared, name);

    if (half >= 0)
        keep_half(&record, half);
    ck_assert_int_eq(tune_store_open(&session.store, path, TUNE_STORE_CREATE, &err), FFA_OK);
    ck_assert_int_eq(tune_store_add(session.store, &record, 1, &err), FFA_OK);
    ck_assert_msg(tune_session_run(&session, &err) == FFA_OK, "%s", err.message);
    tune_store_close(session.store);
    tune_record_finish(&record);
    free(path);
}

/* Once: each sample is written to the disk. */
static void run_all(void)
{
    prepared = tmpdir_make();
    truth = *cost_table_find("NVIDIA H200");
    fake_tune_tile(&truth, 128, 128, 2, 128)->cost.key = 0.75;
    run_session("whole1", 1, 1, -1);
    run_session("whole2", 2, 1, -1);
    run_session("half1", 1, 1, 0);
    run_session("half2", 2, 0.93, 1);
}

static void remove_all(void)
{
    tmpdir_remove(prepared);
}

/* A copy of a file; the path is the caller's. */
static char *copy_of(const char *name)
{
    char *from = tmpdir_path(prepared, name), *to = tmpdir_path(folder, name);

    tmpdir_copy(from, to);
    free(from);
    return to;
}

static ffa_tune_info info_of(const char *const *paths, int64_t count)
{
    ffa_tune_info info = FFA_TUNE_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;

    ck_assert_msg(ffa_tune_open(&tune, paths, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(ffa_tune_info_get(tune, &info, &err), FFA_OK);
    ffa_tune_destroy(tune);
    return info;
}

/* ---- several machines ---- */

/* Two machines that differ in speed have each measured half of the tiles. */
START_TEST(two_halves_make_one_table_in_either_order)
{
    char *first = copy_of("half1"), *second = copy_of("half2");
    char *merged = tmpdir_path(folder, "merged"), *other = tmpdir_path(folder, "other");
    const char *const forth[] = { first, second }, *const back[] = { second, first };
    const char *const one[] = { merged }, *const two[] = { other };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune_info a, b;
    int64_t added;

    ck_assert_int_eq(ffa_tune_merge(merged, forth, 2, &added, &err), FFA_OK);
    ck_assert_int_eq(added, 2);
    ck_assert_int_eq(ffa_tune_merge(other, back, 2, &added, &err), FFA_OK);
    a = info_of(one, 1);
    b = info_of(two, 1);
    ck_assert_int_eq(a.session_count, 2);
    ck_assert_int_eq(a.is_published, 1);
    ck_assert(a.gain > 0.02);
    ck_assert_str_eq(a.table_digest, b.table_digest);
    ck_assert_str_eq(a.samples_digest, b.samples_digest);
    a = info_of(back, 2);
    ck_assert_str_eq(a.table_digest, b.table_digest);
    /* What is there already is not added again. */
    ck_assert_int_eq(ffa_tune_merge(merged, forth, 2, &added, &err), FFA_OK);
    ck_assert_int_eq(added, 0);
    free(first);
    free(second);
    free(merged);
    free(other);
}
END_TEST

/* The table that is exported is one that a context takes, with the digest that was told. */
START_TEST(the_table_reads_back)
{
    char *first = copy_of("half1"), *second = copy_of("half2");
    const char *const both[] = { first, second };
    const ffa_tune_info info = info_of(both, 2);
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_table table;
    char digest[DIGEST_TEXT];
    ffa_tune *tune;
    char *text;

    ck_assert_int_eq(ffa_tune_open(&tune, both, 2, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_TABLE, &text, &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_msg(cost_table_read(&table, text, strlen(text), "a test", &err) == FFA_OK, "%s",
                  err.message);
    cost_table_digest(&table, digest);
    ck_assert_str_eq(digest, info.table_digest);
    ck_assert_str_eq(table.device, "NVIDIA H200");
    ck_assert_str_eq(table.templates, info.templates_digest);
    ck_assert_msg(strncmp(table.origin, "tuned: 2 sessions", 17) == 0, "%s", table.origin);
    ffa_free(text);
    free(first);
    free(second);
}
END_TEST

static char *fits_of(const char *const *paths, int64_t count)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;
    char *text;

    ck_assert_msg(ffa_tune_open(&tune, paths, count, &err) == FFA_OK, "%s", err.message);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_REPORT, &text, &err), FFA_OK);
    ffa_tune_destroy(tune);
    return text;
}

static const struct {
    const char *sql, *want;
} strangers[] = {
    { "UPDATE session SET templates_digest = '0123456789abcdef0123456789abcdef'",
      "their kernels are not the same" },
    { "UPDATE session SET device = 'NVIDIA H100'", "a table is of one device model" },
    { "UPDATE session SET base_table = replace(base_table, '316', '317')",
      "different cost tables" },
    { "UPDATE session SET base_table = '{}'", "base_table of a session" },
};

START_TEST(sessions_that_do_not_go_together_are_refused)
{
    char *first = copy_of("whole1"), *second = copy_of("whole2");
    char *merged = tmpdir_path(folder, "merged");
    const char *const both[] = { first, second }, *const one[] = { first };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;

    fixture_sql(second, strangers[_i].sql);
    ck_assert_int_eq(ffa_tune_open(&tune, both, 2, &err), FFA_INVALID);
    ck_assert_ptr_null(tune);
    ck_assert_msg(strstr(err.message, strangers[_i].want), "%s", err.message);
    ck_assert_int_eq(ffa_tune_merge(merged, both, 2, NULL, &err), FFA_INVALID);
    /* Nor into a file that has others. */
    ck_assert_int_eq(ffa_tune_merge(merged, one, 1, NULL, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_merge(merged, both + 1, 1, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(info_of((const char *const[]){ merged }, 1).session_count, 1);
    free(first);
    free(second);
    free(merged);
}
END_TEST

/* Sessions of other heads, none of whose tiles the others have timed. */
START_TEST(sessions_without_a_common_tile_say_so)
{
    char *first = copy_of("half1"), *second = copy_of("half2"), *text;
    const char *const both[] = { first, second };

    fixture_sql(second, "UPDATE session SET heads_q = 32, heads_kv = 4; DELETE FROM sample WHERE "
                        "configuration IN (SELECT position FROM configuration WHERE tile_n = 128)");
    text = fits_of(both, 2);
    ck_assert_msg(strstr(text, "no tile was timed with all masks and heads"), "%.300s", text);
    ffa_free(text);
    free(first);
    free(second);
}
END_TEST

/* Before the final has three laps nothing is fitted, but the baseline's times are known. */
START_TEST(times_without_a_fit_are_shown)
{
    char *path = copy_of("whole1"), *text;
    const char *const paths[] = { path };

    fixture_sql(path, "DELETE FROM sample WHERE lap >= 1024 AND configuration > 0");
    text = fits_of(paths, 1);
    ck_assert_msg(strstr(text, "no session has measured enough"), "%.300s", text);
    ck_assert_msg(!strstr(text, "\"baseline_us\": 0.0"), "%.300s", text);
    ffa_free(text);
    free(path);
}
END_TEST

/* ---- files ---- */

static const char *const damages[] = {
    "UPDATE session SET sm_count = 0",
    "UPDATE session SET heads_kv = 0",
    "UPDATE session SET heads_q = 12",
    "UPDATE session SET head_dim = 1000000",
    "UPDATE session SET id = 'x'",
    "UPDATE session SET trying = 64",
    "UPDATE sample SET us = -1 WHERE lap = 0",
    "UPDATE sample SET us = 9e999 WHERE lap = 0",
    "UPDATE sample SET mask = 3 WHERE mask = 2",
    "UPDATE sample SET lap = 1 << 30 WHERE lap = 0 AND configuration = 1",
    "UPDATE configuration SET state = 8 WHERE position = 2",
    "UPDATE configuration SET consumers = 4 WHERE position = 2",
    "UPDATE configuration SET consumers = 0 WHERE position = 2",
    "UPDATE configuration SET position = 64 WHERE position = 2",
    "UPDATE session SET spent_us = 9223372036854775807",
    "UPDATE session SET budget_us = 9223372036854775807",
    "UPDATE session SET l2_bytes = 9223372036854775807",
    /* A file that was made without the key of samples: one of them again and again. */
    "CREATE TABLE again AS SELECT * FROM sample; DROP TABLE sample; ALTER TABLE again RENAME TO "
    "sample; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) "
    "INSERT INTO sample SELECT sample.* FROM n, (SELECT * FROM sample LIMIT 1) AS sample",
    "UPDATE mask SET text = '@masks.json' WHERE position = 1",
    "UPDATE mask SET text = '' WHERE position = 1",
    "DELETE FROM mask",
    "DELETE FROM configuration",
    "PRAGMA user_version = 5",
    "UPDATE sample SET process = -1 WHERE lap = 0",
    "UPDATE sample SET process = 1048576 WHERE lap = 0",
    "UPDATE mask SET parts = 1, waves = 1",
    "UPDATE mask SET whole_heads = 1",
    "PRAGMA user_version = 0",
    "UPDATE session SET head_dim_v = 0",
    "UPDATE session SET backward_tile_m = 64",
    "UPDATE session SET is_deterministic = 2",
    "UPDATE configuration SET parts = 1 WHERE position = 2",
    "UPDATE configuration SET parts = 1 WHERE position = 0",
    "PRAGMA application_id = 7",
};

START_TEST(values_that_no_session_writes_are_refused)
{
    char *path = copy_of("whole1");
    const char *const paths[] = { path };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;

    fixture_sql(path, damages[_i]);
    if (strstr(damages[_i], "session SET id"))
        fixture_sql(path, "UPDATE mask SET session = 'x'; UPDATE configuration SET session = 'x'");
    ck_assert_msg(ffa_tune_open(&tune, paths, 1, &err) == FFA_CACHE, "%s: %s", damages[_i],
                  err.message);
    ck_assert_ptr_null(tune);
    free(path);
}
END_TEST

/* What older schemas lack. */
#define WITHOUT_PROCESSES                                                                          \
    "ALTER TABLE sample DROP COLUMN process; ALTER TABLE mask DROP COLUMN parts;"                  \
    "ALTER TABLE mask DROP COLUMN waves; ALTER TABLE mask DROP COLUMN whole_heads;"
#define WITHOUT_BACKWARD                                                                           \
    WITHOUT_PROCESSES                                                                              \
    "ALTER TABLE session DROP COLUMN backward_tile_m;"                                             \
    "ALTER TABLE session DROP COLUMN backward_tile_n;"                                             \
    "ALTER TABLE session DROP COLUMN backward_cluster;"                                            \
    "ALTER TABLE session DROP COLUMN is_deterministic;"                                            \
    "ALTER TABLE session DROP COLUMN lockstep_masks;"                                              \
    "ALTER TABLE configuration DROP COLUMN parts;"                                                 \
    "ALTER TABLE configuration DROP COLUMN waves;"                                                 \
    "ALTER TABLE configuration DROP COLUMN whole_heads;"                                           \
    "ALTER TABLE configuration DROP COLUMN is_unlocked;"
static const char *const older_schemas[] = {
    WITHOUT_BACKWARD "ALTER TABLE session DROP COLUMN head_dim_v; PRAGMA user_version = 1;",
    WITHOUT_BACKWARD "PRAGMA user_version = 2;",
    WITHOUT_PROCESSES "PRAGMA user_version = 3;",
};

/* A file of schema 1 has no head_dim_v, which was head_dim; up to schema 2 there are no backward
 * sessions; up to schema 3 samples lack their process, and masks the order of the baseline; and a
 * table may be another text. Each is read as it is, and has the columns when a session is added. */
START_TEST(files_of_older_schemas_go_on)
{
    char *path = copy_of("whole1"), *other = copy_of("whole2");
    const char *const paths[] = { path };
    const ffa_tune_info before = info_of(paths, 1);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune_info after;
    int64_t added;

    fixture_sql(path, older_schemas[_i]);
    fixture_sql(path,
                "UPDATE session SET base_table = base_table || ' '"); /* or written otherwise */
    after = info_of(paths, 1);
    ck_assert_str_eq(before.samples_digest, after.samples_digest);
    ck_assert_str_eq(before.table_digest, after.table_digest);
    ck_assert_msg(ffa_tune_merge(path, (const char *const[]){ other }, 1, &added, &err) == FFA_OK,
                  "%s", err.message);
    ck_assert_int_eq(added, 1);
    ck_assert_int_eq(info_of(paths, 1).session_count, 2);
    free(path);
    free(other);
}
END_TEST

/* What needs no GPU says so where it is asked for something else. */
START_TEST(what_only_compiles_has_no_session)
{
    static const struct {
        uint32_t flags;
        const char *session, *device;
        ffa_status status;
        const char *want;
    } rows[] = {
        { FFA_TUNE_COMPILE_ONLY, "s", "NVIDIA H200", FFA_INVALID, "session_path is 's'" },
        { FFA_TUNE_COMPILE_ONLY | FFA_TUNE_RESUME, NULL, "NVIDIA H200", FFA_INVALID,
          "flags is 0x3" },
        { FFA_TUNE_COMPILE_ONLY, NULL, NULL, FFA_UNSUPPORTED, "the context is of the CPU" },
        { FFA_TUNE_COMPILE_ONLY, NULL, "X 9", FFA_NOT_FOUND, "no cost table of device 'X 9'" },
        { 0, "s", "NVIDIA H200", FFA_INVALID, "device is 'NVIDIA H200', not NULL" },
        { 1u << 3, NULL, "NVIDIA H200", FFA_UNSUPPORTED, "flags is 0x8, only 0x7" },
        { FFA_TUNE_BACKWARD_ONLY | FFA_TUNE_COMPILE_ONLY, NULL, "NVIDIA H200", FFA_INVALID,
          "of a spec without a backward pass" },
    };
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_context_opts open_opts = FFA_CONTEXT_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;

    open_opts.cost_tables = "none";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &open_opts, &err), FFA_OK);
    ck_assert_int_eq(ffa_attention_spec_parse(&spec, "head_dim=128,dtype=bf16,heads=8:1", &err),
                     FFA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ffa_tune_opts opts = FFA_TUNE_OPTS_INIT;

        opts.flags = rows[i].flags;
        opts.session_path = rows[i].session;
        opts.device = rows[i].device;
        ck_assert_int_eq(ffa_tune_run(context, &spec, &opts, NULL, &err), rows[i].status);
        ck_assert_msg(strstr(err.message, rows[i].want) != NULL, "%s", err.message);
    }
    ffa_close(context);
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
    char *text = tmpdir_path(folder, "text"), *empty = tmpdir_path(folder, "empty");
    char *none = tmpdir_path(folder, "none");
    const char *const paths[][1] = { { text }, { empty }, { none }, { folder }, { "" } };
    const ffa_status want[] = { FFA_CACHE, FFA_CACHE, FFA_NOT_FOUND, FFA_CACHE, FFA_INVALID };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;

    tmpdir_write_text(text, "no database at all, but longer than the header of one would be: "
                            "0123456789 0123456789 0123456789 0123456789 0123456789");
    tmpdir_write_text(empty, "");
    for (int i = 0; i < 5; i++)
        ck_assert_msg(ffa_tune_open(&tune, paths[i], 1, &err) == want[i], "%d: %s", i, err.message);
    ck_assert_int_eq(ffa_tune_open(&tune, NULL, 1, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_tune_open(&tune, paths[0], 0, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_tune_open(NULL, paths[0], 1, &err), FFA_INVALID);
    free(text);
    free(empty);
    free(none);
}
END_TEST

/* A database of someone else's is refused before its journal is changed. */
START_TEST(a_foreign_database_stays_as_it_is)
{
    char *path = tmpdir_path(folder, "foreign");
    struct tune_store *store;
    ffa_error err = { FFA_OK, 0, "" };
    sqlite3_stmt *statement;
    sqlite3 *db;

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(
        sqlite3_exec(db, "PRAGMA journal_mode=WAL; CREATE TABLE t(a)", NULL, NULL, NULL),
        SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    ck_assert_int_eq(tune_store_open(&store, path, TUNE_STORE_CREATE, &err), FFA_CACHE);
    ck_assert_msg(strstr(err.message, "no file of tuning sessions"), "%s", err.message);
    ck_assert_int_eq(tune_store_open(&store, path, TUNE_STORE_WRITE, &err), FFA_CACHE);

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(db, "PRAGMA journal_mode", -1, &statement, NULL),
                     SQLITE_OK);
    ck_assert_int_eq(sqlite3_step(statement), SQLITE_ROW);
    ck_assert_str_eq((const char *)sqlite3_column_text(statement, 0), "wal");
    ck_assert_int_eq(sqlite3_finalize(statement), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    free(path);
}
END_TEST

/* A writer has the file for itself. */
START_TEST(a_file_has_one_session_at_work)
{
    char *path = copy_of("whole1");
    struct tune_store *store, *other;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(tune_store_open(&store, path, TUNE_STORE_WRITE, &err), FFA_OK);
    ck_assert_int_eq(tune_store_open(&other, path, TUNE_STORE_WRITE, &err), FFA_CACHE);
    ck_assert_ptr_null(other);
    ck_assert_msg(strstr(err.message, "another session is using it"), "%s", err.message);
    tune_store_close(store);
    ck_assert_int_eq(tune_store_open(&other, path, TUNE_STORE_READ, &err), FFA_OK);
    tune_store_close(other);
    free(path);
}
END_TEST

/* A writer that is killed within a transaction leaves a journal, and what it has begun is undone.
 */
START_TEST(a_write_that_was_killed_is_undone)
{
    char *path = copy_of("whole1"), *journal = tmpdir_path(folder, "whole1-journal");
    const char *const paths[] = { path };
    const ffa_tune_info before = info_of(paths, 1);
    ffa_tune_info after;
    struct stat stat_of;
    int status;
    const pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        sqlite3 *db;

        (void)sqlite3_open(path, &db);
        (void)sqlite3_exec(db, "PRAGMA cache_size=1; BEGIN; UPDATE sample SET us = us * 2", NULL,
                           NULL, NULL);
        (void)raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(stat(journal, &stat_of), 0);
    ck_assert_int_gt(stat_of.st_size, 0);
    after = info_of(paths, 1);
    ck_assert_str_eq(before.samples_digest, after.samples_digest);
    free(path);
    free(journal);
}
END_TEST

/* Each statement and allocation fails in turn: a message, no leak, and the next call works. */
START_TEST(opening_survives_faults)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_SQLITE };
    char *path = copy_of("whole1");
    const char *const paths[] = { path };

    for (int k = 0; k < 2; k++)
        for (long nth = 1;; nth += nth < 60 ? 1 : 97) {
            ffa_error err = { FFA_OK, 0, "" };
            ffa_tune *tune;
            ffa_status rc;

            fault_arm(kinds[k], nth);
            rc = ffa_tune_open(&tune, paths, 1, &err);
            if (!fault_fired()) {
                ck_assert_msg(rc == FFA_OK, "%s", err.message);
                ffa_tune_destroy(tune);
                break;
            }
            ck_assert_int_ne(rc, FFA_OK);
            ck_assert_ptr_null(tune);
            ck_assert_str_ne(err.message, "");
        }
    fault_arm(FAULT_ALLOC, 0);
    free(path);
}
END_TEST

/* The same of a merge, which is all or nothing. */
START_TEST(merging_survives_faults)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_SQLITE };
    char *first = copy_of("half1"), *second = copy_of("half2");
    const char *const both[] = { first, second };

    for (int k = 0; k < 2; k++)
        for (long nth = 1;; nth += nth < 40 ? 1 : 211) {
            char *merged = tmpdir_path(folder, "merged");
            ffa_error err = { FFA_OK, 0, "" };
            struct tune_record *all = NULL;
            struct tune_store *store;
            int64_t added = -1;
            int32_t count = 0;
            bool has_fired;
            ffa_status rc;

            fault_arm(kinds[k], nth);
            rc = ffa_tune_merge(merged, both, 2, &added, &err);
            has_fired = fault_fired();
            fault_arm(kinds[k], 0);
            ck_assert_int_eq(rc != FFA_OK, has_fired);
            if (tune_store_open(&store, merged, TUNE_STORE_READ, &err) == FFA_OK) {
                ck_assert_int_eq(tune_store_load(store, &all, &count, &err), FFA_OK);
                tune_store_close(store);
            }
            ck_assert_int_eq(count, rc == FFA_OK ? 2 : 0);
            tune_records_finish(all, count);
            ck_assert_int_eq(added, rc == FFA_OK ? 2 : 0);
            (void)unlink(merged);
            free(merged);
            if (!has_fired)
                break;
        }
    free(first);
    free(second);
}
END_TEST

/* ---- texts ---- */

START_TEST(samples_go_through_a_text)
{
    char *path = copy_of("whole1"), *copy = tmpdir_path(folder, "copy");
    const char *const paths[] = { path }, *const copies[] = { copy };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune_info a, b;
    ffa_tune *tune;
    char *text;
    int64_t added;

    ck_assert_int_eq(ffa_tune_open(&tune, paths, 1, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_SAMPLES, &text, &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_msg(ffa_tune_import(copy, text, strlen(text), &added, &err) == FFA_OK, "%s",
                  err.message);
    ck_assert_int_eq(added, 1);
    a = info_of(paths, 1);
    b = info_of(copies, 1);
    ck_assert_str_eq(a.samples_digest, b.samples_digest);
    ck_assert_str_eq(a.table_digest, b.table_digest);
    ck_assert_int_eq(ffa_tune_import(copy, text, strlen(text), &added, &err), FFA_OK);
    ck_assert_int_eq(added, 0);
    ck_assert_int_eq(ffa_tune_import(copy, text, strlen(text) / 2, &added, &err), FFA_INVALID);
    ffa_free(text);
    free(path);
    free(copy);
}
END_TEST

/* A reason as long as there is room for, of bytes that are printed as several. */
START_TEST(a_long_reason_goes_through_a_text)
{
    char *path = copy_of("whole1"), *copy = tmpdir_path(folder, "copy");
    const char *const paths[] = { path };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_tune *tune;
    char *text;

    fixture_sql(path,
                "UPDATE configuration SET reason = replace(hex(zeroblob(99)), '00', char(1, 2)) "
                "WHERE position = 1");
    ck_assert_int_eq(ffa_tune_open(&tune, paths, 1, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_SAMPLES, &text, &err), FFA_OK);
    ffa_tune_destroy(tune);
    ck_assert_msg(ffa_tune_import(copy, text, strlen(text), NULL, &err) == FFA_OK, "%s",
                  err.message);
    ffa_free(text);
    free(path);
    free(copy);
}
END_TEST

static const struct {
    const char *from, *to, *want;
} edits[] = {
    { "libffa-tuning-sessions", "other", "format" },
    { "\"version\": 4", "\"version\": 5", "version" },
    { "\"version\": 4", "\"version\": 3", "up to version 3 of nine" },
    { "\"sm_count\": 132", "\"sm_count\": 1.5", "sm_count" },
    { "\"sm_count\": 132", "\"sm_count\": 99999", "sm_count" },
    { "\"checked\"", "\"cheered\"", "state" },
    { "\"base_table\": {", "\"base_table\": 5, \"other\": {", "base_table" },
    { "\"masks\": [", "\"masks\": [ 7,", "masks" },
    { "\"causal:2048\"", "\"(@/dev/zero)\"", "masks" },
    { "\"samples\": [", "\"samples\": [ [1,2,3],", "samples" },
    { "\"samples\": [", "\"samples\": [ [0,0,0,0,1,-5,0,0,0,0],", "samples" },
};

START_TEST(a_text_with_other_values_is_refused)
{
    char *path = copy_of("whole1"), *copy = tmpdir_path(folder, "copy");
    const char *const paths[] = { path };
    ffa_error err = { FFA_OK, 0, "" };
    struct text edited = { 0 };
    const char *at;
    ffa_tune *tune;
    char *text;

    ck_assert_int_eq(ffa_tune_open(&tune, paths, 1, &err), FFA_OK);
    ck_assert_int_eq(ffa_tune_text(tune, FFA_TUNE_SAMPLES, &text, &err), FFA_OK);
    ffa_tune_destroy(tune);
    at = strstr(text, edits[_i].from);
    ck_assert_ptr_nonnull(at);
    text_add_bytes(&edited, text, (size_t)(at - text));
    text_add(&edited, "%s%s", edits[_i].to, at + strlen(edits[_i].from));
    ck_assert_int_eq(ffa_tune_import(copy, edited.at, edited.bytes, NULL, &err), FFA_INVALID);
    ck_assert_msg(strstr(err.message, edits[_i].want), "%s", err.message);
    text_finish(&edited);
    ffa_free(text);
    free(path);
    free(copy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tune_files");
    TCase *all = tcase_create("files");

    tcase_add_unchecked_fixture(all, run_all, remove_all);
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, two_halves_make_one_table_in_either_order);
    tcase_add_test(all, the_table_reads_back);
    tcase_add_loop_test(all, sessions_that_do_not_go_together_are_refused, 0,
                        sizeof strangers / sizeof *strangers);
    tcase_add_test(all, sessions_without_a_common_tile_say_so);
    tcase_add_test(all, times_without_a_fit_are_shown);
    tcase_add_loop_test(all, values_that_no_session_writes_are_refused, 0,
                        sizeof damages / sizeof *damages);
    tcase_add_test(all, files_that_are_none_are_refused);
    tcase_add_loop_test(all, files_of_older_schemas_go_on, 0, 3);
    tcase_add_test(all, what_only_compiles_has_no_session);
    tcase_add_test(all, a_foreign_database_stays_as_it_is);
    tcase_add_test(all, a_file_has_one_session_at_work);
    tcase_add_test(all, a_write_that_was_killed_is_undone);
    tcase_add_test(all, opening_survives_faults);
    tcase_add_test(all, merging_survives_faults);
    tcase_add_test(all, samples_go_through_a_text);
    tcase_add_test(all, a_long_reason_goes_through_a_text);
    tcase_add_loop_test(all, a_text_with_other_values_is_refused, 0, sizeof edits / sizeof *edits);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
