/* SPDX-License-Identifier: Apache-2.0
 *
 * Which cost table a device gets: the order of look-up, files that are passed over with a reason,
 * where files are looked for, and what a context says of it.
 */
#include "choose/cost_table_json.h"
#include "choose/cost_tables.h"
#include "service/context.h"
#include "support/suite.h"
#include "support/tmpdir.h"

#include <check.h>
#include <ffa/ffa.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder;
static char lines[16384]; /* of the log */

static void setup(void)
{
    folder = tmpdir_make();
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("tables", 0755), 0);
    lines[0] = '\0';
}

static void teardown(void)
{
    tmpdir_remove(folder);
}

static void keep(void *user, ffa_log_level level, const char *module, const char *line)
{
    const size_t used = strlen(lines);

    (void)user;
    (void)snprintf(lines + used, sizeof lines - used, "%d %s %s\n", (int)level, module, line);
}

/* What a file has in which it differs from the built-in table. */
struct file {
    const char *name, *device;
    int32_t sm_count;
    int64_t l2_mb;
    const char *templates; /* "ours", "" or a digest */
};

static void put(const struct file *file)
{
    struct cost_table table = *cost_table_find(NULL);
    char path[256], *text = NULL;
    ffa_error err = { FFA_OK, 0, "" };

    text_copy(table.device, "%s", file->device);
    text_copy(table.origin, "%s", file->name);
    table.sm_count = file->sm_count;
    table.l2_bytes = file->l2_mb << 20;
    if (!strcmp(file->templates, "ours"))
        ffa_templates_digest(table.templates);
    else
        text_copy(table.templates, "%s", file->templates);
    ck_assert_msg(cost_table_write(&table, &text, &err) == FFA_OK, "%s", err.message);
    text_copy(path, "tables/%s", file->name);
    tmpdir_write_text(path, text);
    ck_assert_int_eq(chmod(path, 0644), 0);
    mem_free(text);
}

static struct cost_tables *open_at(const char *path, const char *store)
{
    const struct cost_tables_opts opts = { path, store, { keep, NULL } };
    ffa_error err = { FFA_OK, 0, "" };
    struct cost_tables *tables;

    ck_assert_msg(cost_tables_open(&tables, &opts, &err) == FFA_OK, "%s", err.message);
    return tables;
}

static struct device_facts facts_of(const char *name, int32_t sm_count, int64_t l2_mb)
{
    struct device_facts facts = { .sm_count = sm_count, .l2_bytes = l2_mb << 20 };

    text_copy(facts.name, "%s", name);
    return facts;
}

#define OTHER "0123456789abcdef0123456789abcdef"

/* ---- the order of look-up ---- */

static const struct {
    const char *name;
    struct file files[4];
    const char *device;
    int32_t sm_count;
    int64_t l2_mb;
    const char *want; /* the file; NULL: built in */
    ffa_cost_source source;
} lookups[] = {
    { "built-in of the model", { { 0 } }, "NVIDIA H200", 132, 60, NULL, FFA_COST_BUILT_IN },
    { "tuned before built-in",
      { { "a.json", "NVIDIA H200", 132, 60, "ours" } },
      "NVIDIA H200",
      132,
      60,
      "a.json",
      FFA_COST_TUNED },
    { "a long name, as of a MIG device", /* it was cut to 31 bytes, and never found */
      { { "a.json", "NVIDIA H200 NVL MIG 1g.18gb made-up", 16, 8, "ours" },
        { "b.json", "NVIDIA H200 NVL MIG 1g.18gb made", 16, 8, "ours" } },
      "NVIDIA H200 NVL MIG 1g.18gb made-up",
      16,
      8,
      "a.json",
      FFA_COST_TUNED },
    { "of no templates in particular",
      { { "a.json", "NVIDIA H200", 132, 60, "" } },
      "NVIDIA H200",
      132,
      60,
      "a.json",
      FFA_COST_TUNED },
    { "other templates are passed over",
      { { "a.json", "NVIDIA H200", 132, 60, OTHER } },
      "NVIDIA H200",
      132,
      60,
      NULL,
      FFA_COST_BUILT_IN },
    { "the first of two by name",
      { { "b.json", "NVIDIA H200", 130, 60, "ours" }, { "a.json", "NVIDIA H200", 131, 60, "" } },
      "NVIDIA H200",
      132,
      60,
      "a.json",
      FFA_COST_TUNED },
    { "the second where the first is of other templates",
      { { "a.json", "NVIDIA H200", 130, 60, OTHER }, { "b.json", "NVIDIA H200", 131, 60, "" } },
      "NVIDIA H200",
      132,
      60,
      "b.json",
      FFA_COST_TUNED },
    { "the model before one that is nearer",
      { { "a.json", "X 1", 70, 40, "ours" }, { "b.json", "X 2", 132, 50, "ours" } },
      "X 1",
      132,
      50,
      "a.json",
      FFA_COST_TUNED },
    { "the nearest, tuned before built-in",
      { { "a.json", "X 1", 100, 60, "ours" }, { "b.json", "X 2", 110, 60, "ours" } },
      "X 3",
      132,
      60,
      "b.json",
      FFA_COST_NEAREST },
    { "by L2, too",
      { { "a.json", "X 1", 132, 32, "ours" }, { "b.json", "X 2", 120, 60, "ours" } },
      "X 3",
      132,
      60,
      "b.json",
      FFA_COST_NEAREST },
    { "tuned ones that are not near, built-in one that is",
      { { "a.json", "X 1", 40, 60, "ours" } },
      "X 3",
      114,
      50,
      NULL,
      FFA_COST_NEAREST },
    { "nearest, but of other templates",
      { { "a.json", "X 1", 114, 50, OTHER } },
      "X 3",
      114,
      50,
      NULL,
      FFA_COST_NEAREST },
    { "none is near",
      { { "a.json", "X 1", 50, 30, "ours" } },
      "X 3",
      20,
      4,
      NULL,
      FFA_COST_DEFAULT },
    { "no device", { { "a.json", "X 1", 50, 30, "ours" } }, "", 0, 0, NULL, FFA_COST_DEFAULT },
};

START_TEST(a_device_gets_its_table)
{
    const struct device_facts facts =
        facts_of(lookups[_i].device, lookups[_i].sm_count, lookups[_i].l2_mb);
    const char *want = lookups[_i].want ? lookups[_i].want : cost_table_find(NULL)->origin;
    struct choose_device device;
    struct cost_tables *tables;
    char digest[DIGEST_TEXT];

    for (int i = 0; i < 4 && lookups[_i].files[i].name; i++)
        put(&lookups[_i].files[i]);
    tables = open_at("tables", NULL);
    device = choose_device_among(tables, &facts);
    ck_assert_msg(!strcmp(device.costs->origin, want), "%s: %s", lookups[_i].name,
                  device.costs->origin);
    ck_assert_msg(device.source == lookups[_i].source, "%s: %s", lookups[_i].name,
                  ffa_cost_source_text(device.source));
    cost_table_digest(device.costs, digest);
    ck_assert_str_eq(device.digest, digest);
    ck_assert_str_eq(device.facts.name, lookups[_i].device);
    cost_tables_close(tables);
}
END_TEST

/* ---- files that are passed over ---- */

static void check_skipped(const char *path, const char *reason, bool warns)
{
    struct cost_tables *tables;

    lines[0] = '\0';
    tables = open_at(path, NULL);
    ck_assert_int_ge(tables->count, 2);
    for (int32_t i = 0; i < tables->count; i++)
        if (strstr(tables->at[i].skipped, reason)) {
            ck_assert_ptr_nonnull(strstr(lines, warns ? "1 choose event=cost_table_skipped"
                                                      : "2 choose event=cost_table_skipped"));
            ck_assert_msg(strstr(lines, reason) != NULL, "%s", lines);
            cost_tables_close(tables);
            return;
        }
    ck_abort_msg("no table is skipped for '%s':\n%s", reason, lines);
}

START_TEST(files_are_passed_over_with_a_reason)
{
    const struct file good = { "good.json", "X 1", 100, 50, "" };
    const struct file again = { "more.json", "X 1", 100, 50, "" };
    const struct file other = { "other.json", "X 2", 100, 50, OTHER };

    put(&good);
    put(&again);
    put(&other);
    tmpdir_write_text("tables/broken.json", "{ \"format\": 1 }");
    tmpdir_write_text("tables/.hidden.json", "");
    tmpdir_write_text("tables/notes.txt", "");
    ck_assert_int_eq(mkdir("tables/folder.json", 0755), 0);
    ck_assert_int_eq(mkfifo("tables/pipe.json", 0600), 0);
    ck_assert_int_eq(symlink("nowhere", "tables/link.json"), 0);
    check_skipped("tables", "'tables/good.json' has a table of this model", false);
    check_skipped("tables", "it was fitted with templates " OTHER ", this library has ", true);
    check_skipped("tables", "cost table 'tables/broken.json': format is a whole number", true);
    check_skipped("tables", "it is no regular file", true);
    check_skipped("tables", "it cannot be read: No such file or directory", true);
    check_skipped("nowhere", "it cannot be read: No such file or directory", true);
    check_skipped("tables/broken.json", "format is a whole number, not a text", true);
    ck_assert_int_eq(chmod("tables/good.json", 0646), 0);
    check_skipped("tables/good.json", "others can write it (mode 646): chmod o-w it", true);
    ck_assert_ptr_null(strstr(lines, "hidden"));
    ck_assert_ptr_null(strstr(lines, "notes"));
}
END_TEST

START_TEST(a_file_that_cannot_be_opened_fails_nothing)
{
    const struct file good = { "good.json", "X 1", 100, 50, "" };

    put(&good);
    fault_arm(FAULT_FILE, 1);
    check_skipped("tables", "it cannot be read: Input/output error", true);
    ck_assert(fault_fired());
    fault_arm(FAULT_FILE, 0);
}
END_TEST

START_TEST(folders_have_a_limit)
{
    struct cost_tables *tables;

    for (int i = 0; i <= COST_FILES_MAX; i++) {
        char path[64];

        text_copy(path, "tables/%02d.json", i);
        tmpdir_write_text(path, "{}");
    }
    tables = open_at("tables", NULL);
    ck_assert_int_eq(tables->count, COST_FILES_MAX + 2);
    ck_assert_str_eq(tables->at[COST_FILES_MAX].skipped,
                     "it has more than 64 tables: the others are not read");
    cost_tables_close(tables);
}
END_TEST

START_TEST(opening_survives_no_memory)
{
    const struct file good = { "good.json", "X 1", 100, 50, "" };
    const struct cost_tables_opts opts = { "tables", NULL, { NULL, NULL } };
    struct cost_tables *tables;

    put(&good);
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc;

        fault_arm(FAULT_ALLOC, nth);
        rc = cost_tables_open(&tables, &opts, &err);
        if (!fault_fired()) {
            ck_assert_int_eq(rc, FFA_OK);
            ck_assert_int_gt((int)nth, 2);
            break;
        }
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_ptr_null(tables);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(tables->count, 2);
    cost_tables_close(tables);
}
END_TEST

/* ---- places ---- */

START_TEST(tables_beside_the_store_are_found)
{
    const struct file good = { "good.json", "X 1", 100, 50, "" };
    char store[512];
    struct cost_tables *tables;

    put(&good);
    ck_assert_int_eq(rename("tables", "cost-tables"), 0);
    text_copy(store, "%s/kernels.ffadb", folder);
    tables = open_at(NULL, store);
    ck_assert_int_eq(tables->count, 2);
    ck_assert_ptr_nonnull(cost_tables_named(tables, "X 1"));
    cost_tables_close(tables);
    tables = open_at(NULL, "kernels.ffadb"); /* in the working folder */
    ck_assert_int_eq(tables->count, 2);
    cost_tables_close(tables);
    tables = open_at("none", store);
    ck_assert_int_eq(tables->count, 1);
    cost_tables_close(tables);
    tables = open_at(NULL, NULL);
    ck_assert_int_eq(tables->count, 1);
    ck_assert_ptr_null(cost_tables_named(tables, "X 1"));
    cost_tables_close(tables);
    tables = open_at("cost-tables/good.json", NULL);
    ck_assert_int_eq(tables->count, 2);
    cost_tables_close(tables);
    ck_assert_ptr_null(strstr(lines, "1 choose")); /* no warning */
}
END_TEST

/* What another user put beside a store decides nothing, unless it is named. Only root can make such
 * a file. */
START_TEST(tables_of_others_beside_the_store_are_passed_over)
{
    const struct file good = { "good.json", "X 1", 100, 50, "" };
    struct cost_tables *tables;

    put(&good);
    ck_assert_int_eq(rename("tables", "cost-tables"), 0);
    if (geteuid() != 0 || chown("cost-tables/good.json", 12345, 12345) != 0)
        return;
    tables = open_at(NULL, "kernels.ffadb");
    ck_assert_int_eq(tables->count, 2);
    ck_assert_str_eq(tables->at[0].skipped,
                     "it belongs to user 12345, this process runs as 0: name it to use it");
    cost_tables_close(tables);
    tables = open_at("cost-tables", "kernels.ffadb");
    ck_assert_ptr_nonnull(cost_tables_named(tables, "X 1"));
    cost_tables_close(tables);
}
END_TEST

/* ---- a context ---- */

static int count_tables(void *user, const ffa_cost_table_info *info)
{
    int *counts = user;

    counts[info->source]++;
    ck_assert_uint_eq(info->struct_size, sizeof *info);
    return counts[0]; /* 1: ends the list */
}

START_TEST(a_context_has_tables)
{
    const struct file good = { "good.json", "X 1", 100, 50, "ours" };
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_cost_table_info info = FFA_COST_TABLE_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_context *context;
    struct cost_table back;
    int counts[5] = { 0 };
    char *text;

    put(&good);
    opts.cost_tables = "tables";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_OK);
    ck_assert_int_eq(ffa_cost_tables_list(context, count_tables, counts, &err), FFA_OK);
    ck_assert_int_eq(counts[FFA_COST_TUNED], 1);
    ck_assert_int_eq(counts[FFA_COST_BUILT_IN], 1);
    counts[0] = 1;
    ck_assert_int_eq(ffa_cost_tables_list(context, count_tables, counts, &err), FFA_OK);
    ck_assert_int_eq(counts[FFA_COST_TUNED] + counts[FFA_COST_BUILT_IN], 3);

    ck_assert_int_eq(ffa_cost_table_get(context, "X 1", &info, &text, &err), FFA_OK);
    ck_assert_str_eq(info.device, "X 1");
    ck_assert_str_eq(info.path, "tables/good.json");
    ck_assert_str_eq(info.origin, "good.json");
    ck_assert_int_eq(info.source, FFA_COST_TUNED);
    ck_assert_int_eq(info.sm_count, 100);
    ck_assert_int_eq(info.l2_bytes, 50 << 20);
    ck_assert_int_eq(cost_table_read(&back, text, strlen(text), "text", &err), FFA_OK);
    ck_assert_str_eq(back.device, "X 1");
    ffa_free(text);
    ck_assert_int_eq(ffa_cost_table_get(context, NULL, &info, NULL, &err), FFA_OK);
    ck_assert_str_eq(info.device, "NVIDIA H200");
    ck_assert_int_eq(info.source, FFA_COST_DEFAULT);
    ck_assert_str_eq(info.path, "");

    ck_assert_int_eq(ffa_cost_table_get(context, "X 9", &info, &text, &err), FFA_NOT_FOUND);
    ck_assert_str_eq(err.message,
                     "there is no cost table of device 'X 9', but of: X 1, NVIDIA H200");
    ck_assert_ptr_null(text);
    ck_assert_int_eq(ffa_cost_table_get(NULL, NULL, &info, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cost_table_get(context, NULL, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cost_tables_list(context, NULL, NULL, &err), FFA_INVALID);
    ck_assert_int_eq(ffa_cost_tables_list(NULL, count_tables, NULL, &err), FFA_INVALID);
    ffa_close(context);

    opts.cost_tables = "";
    ck_assert_int_eq(ffa_open(&context, FFA_DEVICE_CPU, &opts, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "cost_tables is empty; NULL is the default");
}
END_TEST

START_TEST(sources_have_names)
{
    ck_assert_str_eq(ffa_cost_source_text(FFA_COST_NONE), "none");
    ck_assert_str_eq(ffa_cost_source_text(FFA_COST_DEFAULT), "default");
    ck_assert_str_eq(ffa_cost_source_text((ffa_cost_source)5), "unknown");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost_tables");
    TCase *tc = tcase_create("cost_tables");

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, a_device_gets_its_table, 0, sizeof lookups / sizeof *lookups);
    tcase_add_test(tc, files_are_passed_over_with_a_reason);
    tcase_add_test(tc, a_file_that_cannot_be_opened_fails_nothing);
    tcase_add_test(tc, folders_have_a_limit);
    tcase_add_test(tc, opening_survives_no_memory);
    tcase_add_test(tc, tables_beside_the_store_are_found);
    tcase_add_test(tc, tables_of_others_beside_the_store_are_passed_over);
    tcase_add_test(tc, a_context_has_tables);
    tcase_add_test(tc, sources_have_names);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
