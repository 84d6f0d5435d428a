/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa bundle export|import|merge|diff|inspect|verify: move kernels between machines as one file.
 *
 * A bundle is read with the functions of a store. Merging imports every input into a temporary
 * store beside the destination and exports that as a bundle; nothing is written where two inputs
 * disagree about a kernel. Damage and conflicts end with exit status CLI_STORE.
 */
#include "cli/bundle_fit.h"
#include "cli/entries.h"
#include "cli/file.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Option rows of export, import and merge. */
#define STORE_OPTION(cli)                                                                          \
    { "store", CLI_TEXT, &(cli)->store, "PATH", "the kernel store", 0, 0 }, CLI_SHARED_OPTION(cli)
#define FILTER_OPTIONS(filter)                                                                     \
    { "template", CLI_TEXT, &(filter).template_name, "T", "only kernels of this template", 0, 0 }, \
        { "arch", CLI_TEXT, &(filter).arch, "A", "only kernels for this architecture", 0, 0 },     \
    {                                                                                              \
        "toolchain", CLI_TEXT, &(filter).toolchain, "T", "only what this toolchain built", 0, 0    \
    }

/* ---- facts ---- */

static void add_info(json_t *object, const ffa_bundle_info *info)
{
    char when[32];

    entry_time(when, info->created_s);
    cli_set_text(object, "digest", info->digest);
    cli_set_int(object, "schema", info->schema);
    cli_set_int(object, "kernels", info->kernels);
    cli_set_int(object, "blobs", info->blobs);
    cli_set_int(object, "blob_bytes", info->blob_bytes);
    cli_set_int(object, "file_bytes", info->file_bytes);
    cli_set_text(object, "created", when);
    bundle_set_fit(object, info);
}

static void print_info(const ffa_bundle_info *info)
{
    char when[32];

    entry_time(when, info->created_s);
    (void)printf("digest      %s\nschema      %d\nkernels     %" PRId64 "\nblobs       %" PRId64
                 "\n",
                 info->digest, info->schema, info->kernels, info->blobs);
    (void)printf("blob bytes  %" PRId64 "\nfile bytes  %" PRId64 "\ncreated     %s\n",
                 info->blob_bytes, info->file_bytes, when);
    bundle_print_fit(info);
}

/* ---- export ---- */

static int print_exported(const struct cli *cli, const char *path, const ffa_bundle_info *info)
{
    int status = info->left_out ? CLI_STORE : CLI_DONE;
    json_t *object;

    if (info->left_out)
        cli_note(cli, "%" PRId64 " entries failed a check and were left out", info->left_out);
    if (!cli->json) {
        cli_line(stdout, "bundle      %s", path);
        print_info(info);
        return status;
    }
    object = json_object();
    cli_set_text(object, "bundle", path);
    add_info(object, info);
    cli_set_int(object, "left_out", info->left_out);
    return cli_print_json(cli, object, status);
}

/* A failure, or the end by a signal. */
static int fail_or_interrupted(const struct cli *cli, const ffa_error *err)
{
    const int status = cli_fail(cli, err);

    return err->status == FFA_TIMEOUT && interrupt_stop ? CLI_INTERRUPTED : status;
}

static int export_from(const struct cli *cli, ffa_cache *from, const char *folder,
                       const ffa_bundle_filter *filter)
{
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    char *path = NULL;
    int status = ffa_bundle_export(&path, from, folder, filter, &info, &err) == FFA_OK
                     ? print_exported(cli, path, &info)
                     : fail_or_interrupted(cli, &err);

    ffa_free(path);
    return status;
}

int cmd_bundle_export(struct cli *cli)
{
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    const char *folder = ".";
    struct interrupt kept;
    ffa_cache *cache = NULL;
    const struct cli_option rows[] = {
        { "to", CLI_TEXT, &folder, "FOLDER", "write the bundle to FOLDER; default: this one", 0,
          0 },
        FILTER_OPTIONS(filter),
        STORE_OPTION(cli),
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 0, 0);

    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_READONLY);
    if (status != CLI_PARSE_GO)
        return status;
    filter.stop = &interrupt_stop;
    interrupt_take(&kept);
    status = cache ? export_from(cli, cache, folder, &filter)
                   : cli_fail_text(cli, FFA_NOT_FOUND, "there is nothing to export");
    interrupt_give_back(&kept);
    ffa_cache_close(cache);
    return status;
}

/* ---- import ---- */

static int check_digest(const struct cli *cli, const char *digest)
{
    if (!digest || (strlen(digest) == 64 && strspn(digest, "0123456789abcdef") == 64))
        return CLI_PARSE_GO;
    return cli_fail_text(cli, FFA_INVALID,
                         "--digest is '%.80s', not 64 hexadecimal digits in lower case", digest);
}

static void add_report(json_t *object, const ffa_bundle_report *report)
{
    cli_set_int(object, "added", report->added);
    cli_set_int(object, "present", report->present);
    cli_set_int(object, "conflicts", report->conflicts);
    cli_set_int(object, "bad", report->bad);
}

/* Note conflicts and bad entries of one file on stderr. */
static void note_report(const struct cli *cli, const char *path, const ffa_bundle_report *report)
{
    if (report->conflicts)
        cli_note(cli, "%s: %" PRId64 " kernels are in the store already, with another cubin", path,
                 report->conflicts);
    if (report->bad)
        cli_note(cli, "%s: %" PRId64 " entries failed a check", path, report->bad);
}

/* Import files one after the other. `sum` counts over all files; `bundles` receives one object a
 * file. */
static ffa_status import_all(const struct cli *cli, ffa_cache *into, char *const *paths, int count,
                             const ffa_bundle_filter *filter, ffa_bundle_report *sum,
                             json_t *bundles, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int i = 0; i < count && rc == FFA_OK; i++) {
        ffa_bundle_report report = FFA_BUNDLE_REPORT_INIT;
        json_t *object = json_object();
        ffa_cache *from = NULL;

        rc = entries_open_file(&from, paths[i], err);
        if (rc == FFA_OK)
            rc = ffa_bundle_import(into, from, filter, &report, err);
        ffa_cache_close(from);
        note_report(cli, paths[i], &report);
        sum->added += report.added;
        sum->present += report.present;
        sum->conflicts += report.conflicts;
        sum->bad += report.bad;
        cli_set_text(object, "path", paths[i]);
        add_report(object, &report);
        (void)json_array_append_new(bundles, object);
    }
    return rc;
}

/* What several bundles have brought before one of them failed: that stays. */
static void note_imported(const struct cli *cli, int before, const ffa_bundle_report *sum)
{
    if (before > 0)
        cli_note(cli,
                 "%d of %d bundles were imported before it, %" PRId64
                 " kernels added; to go on, import them all again: what is there is passed over",
                 before, cli->argc, sum->added);
}

static int print_imported(const struct cli *cli, const ffa_bundle_report *sum, json_t *bundles)
{
    int status = sum->conflicts || sum->bad ? CLI_STORE : CLI_DONE;
    json_t *object;

    if (!cli->json) {
        (void)printf("added      %" PRId64 "\npresent    %" PRId64 "\nconflicts  %" PRId64
                     "\nbad        %" PRId64 "\n",
                     sum->added, sum->present, sum->conflicts, sum->bad);
        return status;
    }
    object = json_object();
    add_report(object, sum);
    (void)json_object_set(object, "bundles", bundles);
    return cli_print_json(cli, object, status);
}

/* A store that grows by kernels that nothing here finds is of no use to anybody. */
static int refuse_others(const struct cli *cli)
{
    bool is_fitting = true;

    for (int i = 0; i < cli->argc; i++) {
        ffa_cache *from = NULL;

        if (entries_open_file(&from, cli->argv[i], NULL) == FFA_OK)
            is_fitting = bundle_check_fit_of(cli, cli->argv[i], from) && is_fitting;
        ffa_cache_close(from);
    }
    return is_fitting
               ? CLI_PARSE_GO
               : cli_fail_text(cli, FFA_CACHE,
                               "nothing was imported; --any-version imports it all the same");
}

/* A filter that no kernel passes is a mistake, as with export. */
static ffa_status check_found(const struct cli *cli, const ffa_bundle_filter *filter,
                              const ffa_bundle_report *sum, ffa_error *err)
{
    const bool has_filter = filter->template_name || filter->arch || filter->toolchain;

    if (!has_filter || sum->added || sum->present || sum->conflicts || sum->bad)
        return FFA_OK;
    return cli_error(err, FFA_NOT_FOUND, 0, "%s no kernel that is asked for",
                     cli->argc > 1 ? "the bundles have" : "the bundle has");
}

int cmd_bundle_import(struct cli *cli)
{
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    ffa_bundle_report sum = FFA_BUNDLE_REPORT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *cache = NULL;
    bool any_version = false;
    json_t *bundles;
    const struct cli_option rows[] = {
        { "digest", CLI_TEXT, &filter.digest, "SHA256", "the digest that BUNDLE must have", 0, 0 },
        { "any-version", CLI_FLAG, &any_version, NULL,
          "also a bundle for another version of libffa", 0, 0 },
        FILTER_OPTIONS(filter),
        STORE_OPTION(cli),
        CLI_NETWORK_OPTION(cli),
    };
    struct interrupt kept;
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 1, 1000);

    if (status == CLI_PARSE_GO)
        status = check_digest(cli, filter.digest);
    if (status == CLI_PARSE_GO && filter.digest && cli->argc > 1)
        status =
            cli_fail_text(cli, FFA_INVALID, "--digest is of one bundle, %d are given", cli->argc);
    if (status == CLI_PARSE_GO && !any_version)
        status = refuse_others(cli);
    if (status == CLI_PARSE_GO)
        status = entries_open_store(cli, &cache, FFA_CACHE_CREATE);
    if (status != CLI_PARSE_GO)
        return status;
    filter.stop = &interrupt_stop;
    interrupt_take(&kept);
    bundles = json_array();
    if (import_all(cli, cache, cli->argv, cli->argc, &filter, &sum, bundles, &err) != FFA_OK) {
        note_imported(cli, (int)json_array_size(bundles) - 1, &sum);
        status = fail_or_interrupted(cli, &err);
    } else {
        status = check_found(cli, &filter, &sum, &err) == FFA_OK
                     ? print_imported(cli, &sum, bundles)
                     : fail_or_interrupted(cli, &err);
    }
    json_decref(bundles);
    interrupt_give_back(&kept);
    ffa_cache_close(cache);
    return status;
}

/* ---- merge: a temporary store beside the bundle it becomes ---- */

struct scratch {
    int lock; /* held on the folder: without it the next export takes the folder for left behind */
    char folder[4096];
    char store[4096 + 32];
};

static ffa_status scratch_make(struct scratch *scratch, const char *beside, ffa_error *err)
{
    int bytes = snprintf(scratch->folder, sizeof scratch->folder, "%s/.ffa-merge-XXXXXX", beside);

    if (bytes < 0 || (size_t)bytes >= sizeof scratch->folder) {
        scratch->folder[0] = '\0';
        return cli_error(err, FFA_INVALID, 0, "the folder's name is longer than %zu bytes",
                         sizeof scratch->folder - 20);
    }
    if (!mkdtemp(scratch->folder)) {
        scratch->folder[0] = '\0';
        return cli_error(err, FFA_CACHE, errno, "cannot write to '%s': %s", beside,
                         strerror(errno));
    }
    scratch->lock = open(scratch->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (scratch->lock >= 0)
        (void)flock(scratch->lock, LOCK_EX | LOCK_NB);
    (void)snprintf(scratch->store, sizeof scratch->store, "%s/kernels.ffadb", scratch->folder);
    return FFA_OK;
}

static void scratch_remove(const struct scratch *scratch)
{
    char journal[sizeof scratch->store + 16];

    if (!scratch->folder[0])
        return;
    (void)snprintf(journal, sizeof journal, "%s-journal", scratch->store);
    (void)unlink(journal);
    (void)unlink(scratch->store);
    (void)rmdir(scratch->folder);
    if (scratch->lock >= 0)
        (void)close(scratch->lock);
}

/* Merge all inputs or none: which of two cubins of the same kernel is right, only a person can
 * decide. */
static int merge_into(const struct cli *cli, ffa_cache *store, const ffa_bundle_filter *filter)
{
    ffa_bundle_report sum = FFA_BUNDLE_REPORT_INIT;
    ffa_bundle_filter all = FFA_BUNDLE_FILTER_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    json_t *bundles = json_array();
    ffa_status rc =
        import_all(cli, store, cli->argv + 1, cli->argc - 1, filter, &sum, bundles, &err);

    json_decref(bundles);
    if (rc != FFA_OK)
        return fail_or_interrupted(cli, &err);
    if (sum.conflicts || sum.bad)
        return cli_fail_text(cli, FFA_CACHE,
                             "nothing was written: %" PRId64 " conflicts, %" PRId64 " bad entries",
                             sum.conflicts, sum.bad);
    all.stop = filter->stop;
    return export_from(cli, store, cli->argv[0], &all);
}

int cmd_bundle_merge(struct cli *cli)
{
    ffa_bundle_filter filter = FFA_BUNDLE_FILTER_INIT;
    struct scratch scratch = { .lock = -1 };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *store = NULL;
    const struct cli_option rows[] = { FILTER_OPTIONS(filter) };
    struct interrupt kept;
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 2, 1000);

    if (status != CLI_PARSE_GO)
        return status;
    filter.stop = &interrupt_stop;
    interrupt_take(&kept);
    if (scratch_make(&scratch, cli->argv[0], &err) != FFA_OK ||
        ffa_cache_open(&store, scratch.store, FFA_CACHE_CREATE | FFA_CACHE_NETWORK, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    else
        status = merge_into(cli, store, &filter);
    ffa_cache_close(store);
    scratch_remove(&scratch);
    interrupt_give_back(&kept);
    return status;
}

/* ---- diff ---- */

static int visit_difference(void *user, ffa_bundle_side side, const ffa_cache_entry *entry)
{
    static const char *const names[] = { "", "a", "b", "both" };
    json_t *array = user; /* NULL: print */
    char settings[256];
    json_t *object;

    if (!array) {
        entry_settings(settings, sizeof settings, entry);
        cli_line(stdout, "%c %s  %s  %s  %s  %s", " -+!"[side], entry -> key, entry -> toolchain,
                 entry -> template_name, entry -> arch, settings);
        return 0;
    }
    object = entry_object(entry);
    cli_set_text(object, "in", names[side]);
    (void)json_array_append_new(array, object);
    return 0;
}

static int print_difference(const struct cli *cli, const ffa_bundle_difference *found,
                            json_t *array)
{
    int status = found->different                 ? CLI_STORE
                 : found->only_a || found->only_b ? CLI_FAILED
                                                  : CLI_DONE;
    json_t *object;

    if (!cli->json) {
        (void)printf("same       %" PRId64 "\nonly in A  %" PRId64 "\nonly in B  %" PRId64
                     "\ndifferent  %" PRId64 "\n",
                     found->same, found->only_a, found->only_b, found->different);
        return status;
    }
    object = json_object();
    cli_set_int(object, "same", found->same);
    cli_set_int(object, "only_a", found->only_a);
    cli_set_int(object, "only_b", found->only_b);
    cli_set_int(object, "different", found->different);
    (void)json_object_set(object, "differences", array);
    return cli_print_json(cli, object, status);
}

int cmd_bundle_diff(struct cli *cli)
{
    ffa_bundle_difference found = FFA_BUNDLE_DIFFERENCE_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *a = NULL;
    ffa_cache *b = NULL;
    json_t *array = NULL;
    int status = cli_parse(cli, NULL, 0, 2, 2);

    if (status != CLI_PARSE_GO)
        return status;
    array = cli->json ? json_array() : NULL;
    if (entries_open_file(&a, cli->argv[0], &err) != FFA_OK ||
        entries_open_file(&b, cli->argv[1], &err) != FFA_OK ||
        ffa_bundle_diff(a, b, &found, visit_difference, array, &err) != FFA_OK)
        status = cli_fail(cli, &err);
    else
        status = print_difference(cli, &found, array);
    json_decref(array);
    ffa_cache_close(a);
    ffa_cache_close(b);
    return status;
}

/* ---- inspect ---- */

static int inspect(const struct cli *cli, ffa_cache *bundle)
{
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    struct entry_list list = { .array = cli->json ? json_array() : NULL };
    ffa_error err = { FFA_OK, 0, "" };
    json_t *object;

    if (ffa_bundle_info_get(bundle, &info, &err) != FFA_OK) {
        json_decref(list.array);
        return cli_fail(cli, &err);
    }
    if (!cli->json) {
        print_info(&info);
        (void)printf("\n");
    }
    if (ffa_cache_list(bundle, NULL, entry_list_visit, &list, &err) != FFA_OK) {
        json_decref(list.array);
        return cli_fail(cli, &err);
    }
    if (!cli->json)
        return CLI_DONE;
    object = json_object();
    cli_set_text(object, "bundle", cli->argv[0]);
    add_info(object, &info);
    (void)json_object_set_new(object, "entries", list.array);
    return cli_print_json(cli, object, CLI_DONE);
}

/* Print the manifest byte for byte, as its SHA-256 is the digest; on a terminal, what of it is
 * printable. */
static int print_manifest(const struct cli *cli, ffa_cache *bundle)
{
    ffa_error err = { FFA_OK, 0, "" };
    char *manifest = NULL;
    int status = CLI_DONE;

    if (ffa_bundle_manifest(bundle, &manifest, &err) != FFA_OK) {
        status = cli_fail(cli, &err);
    } else if (cli->json) {
        json_t *object = json_object();

        cli_set_text(object, "manifest", manifest);
        status = cli_print_json(cli, object, CLI_DONE);
    } else if (isatty(STDOUT_FILENO)) {
        cli_text(stdout, manifest);
    } else {
        (void)fputs(manifest, stdout);
    }
    ffa_free(manifest);
    return status;
}

int cmd_bundle_inspect(struct cli *cli)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_cache *bundle = NULL;
    bool wants_manifest = false;
    const struct cli_option rows[] = {
        { "manifest", CLI_FLAG, &wants_manifest, NULL,
          "print only the manifest, whose SHA-256 is the digest; BUNDLE may be a store", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 1, 1);

    if (status != CLI_PARSE_GO)
        return status;
    if (entries_open_file(&bundle, cli->argv[0], &err) != FFA_OK)
        status = cli_fail(cli, &err);
    else
        status = wants_manifest ? print_manifest(cli, bundle) : inspect(cli, bundle);
    ffa_cache_close(bundle);
    return status;
}

/* ---- verify ---- */

/* Whether the file's name agrees with the digest. A name that is not of the form a bundle gets at
 * its export agrees with every digest. */
static bool is_named_right(const char *path, const char *digest)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    if (strncmp(name, "ffa-", 4) != 0 || strspn(name + 4, "0123456789abcdef") != 32 ||
        strcmp(name + 36, ".ffadb") != 0)
        return true;
    return strncmp(name + 4, digest, 32) == 0;
}

static bool is_the_digest(const struct cli *cli, const char *digest, const char *wanted)
{
    if (!is_named_right(cli->argv[0], digest)) {
        cli_note(cli, "the file is named after another digest, its own is %s", digest);
        return false;
    }
    if (wanted && strcmp(wanted, digest) != 0) {
        cli_note(cli, "the digest is %s, not %s", digest, wanted);
        return false;
    }
    return true;
}

static int print_verdict(const struct cli *cli, const ffa_bundle_verdict *verdict,
                         const ffa_bundle_info *info, bool is_digest_right, bool fits, json_t *bad)
{
    int status =
        verdict->bad || verdict->missing || !is_digest_right || !fits ? CLI_STORE : CLI_DONE;
    json_t *object;

    if (!cli->json) {
        (void)printf("digest   %s\nchecked  %" PRId64 "\nbad      %" PRId64 "\nmissing  %" PRId64
                     "\nfitting  %" PRId64 "\n",
                     info->digest, verdict->checked, verdict->bad, verdict->missing, info->fitting);
        return status;
    }
    object = json_object();
    cli_set_text(object, "digest", info->digest);
    bundle_set_fit(object, info);
    (void)json_object_set_new(object, "digest_as_expected", json_boolean(is_digest_right));
    cli_set_int(object, "checked", verdict->checked);
    cli_set_int(object, "bad", verdict->bad);
    cli_set_int(object, "missing", verdict->missing);
    (void)json_object_set(object, "bad_keys", bad);
    return cli_print_json(cli, object, status);
}

int cmd_bundle_verify(struct cli *cli)
{
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;
    ffa_bundle_verdict verdict = FFA_BUNDLE_VERDICT_INIT;
    ffa_error err = { FFA_OK, 0, "" };
    const char *wanted = NULL;
    bool any_version = false, is_right, fits;
    ffa_cache *bundle = NULL;
    json_t *bad;
    const struct cli_option rows[] = {
        { "digest", CLI_TEXT, &wanted, "SHA256", "the digest it must have", 0, 0 },
        { "any-version", CLI_FLAG, &any_version, NULL,
          "a bundle for another version of libffa is right, too", 0, 0 },
    };
    int status = cli_parse(cli, rows, CLI_COUNT(rows), 1, 1);

    if (status != CLI_PARSE_GO)
        return status;
    status = check_digest(cli, wanted);
    if (status != CLI_PARSE_GO)
        return status;
    bad = json_array();
    if (entries_open_file(&bundle, cli->argv[0], &err) != FFA_OK ||
        ffa_bundle_verify(bundle, &verdict, entries_visit_bad, bad, &err) != FFA_OK ||
        ffa_bundle_info_get(bundle, &info, &err) != FFA_OK) {
        status = cli_fail(cli, &err);
    } else {
        is_right = is_the_digest(cli, info.digest, wanted);
        fits = bundle_check_fit(cli, cli->argv[0], &info) || any_version;
        status = print_verdict(cli, &verdict, &info, is_right, fits, bad);
    }
    json_decref(bad);
    ffa_cache_close(bundle);
    return status;
}
