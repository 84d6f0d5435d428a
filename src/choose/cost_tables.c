/* SPDX-License-Identifier: Apache-2.0
 *
 * Files are looked for in the place that the caller names, else beside the store and beside the
 * library. The list holds whatever was found, so that `ffa doctor` can say why a file is not used.
 * Names are sorted: which of two tables of one model is taken does not depend on the file system.
 */
#include "choose/cost_tables.h"

#include "base/printable.h"
#include "choose/cost_table_json.h"
#include <ffa/kernel.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char folder_name[] = "cost-tables", ending[] = ".json", no_files[] = "none";

struct list {
    struct cost_tables tables; /* first: what is given out */
    struct cost_entry *at;
    int64_t capacity;
    struct log log;
};

/* ---- entries ---- */

/* The new entry, zero; NULL: no memory. */
static struct cost_entry *entry_add(struct list *list)
{
    struct cost_entry *entry;

    if (!mem_grow((void **)&list->at, &list->capacity, list->tables.count + 1, sizeof *list->at))
        return NULL;
    list->tables.at = list->at;
    entry = &list->at[list->tables.count++];
    memset(entry, 0, sizeof *entry);
    return entry;
}

static void skip(const struct list *list, struct cost_entry *entry, ffa_log_level level,
                 const char *format, ...) FFA_PRINTF(4, 5);

static void skip(const struct list *list, struct cost_entry *entry, ffa_log_level level,
                 const char *format, ...)
{
    char why[sizeof entry->skipped];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    text_printable(entry->skipped, sizeof entry->skipped, why, "");
    log_line(&list->log, level, "choose", "event=cost_table_skipped path=\"%s\" reason=\"%s\"",
             entry->path, entry->skipped);
}

/* ---- files ---- */

/* Open a file that nobody but its owner and group may write; unless any_owner, this is the user or
 * root. -1: `entry` says why not. */
static int open_file(const struct list *list, struct cost_entry *entry, const char *path,
                     bool any_owner, struct stat *stat)
{
    int file = fault_here(FAULT_FILE) ? (errno = EIO, -1)
                                      : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (file < 0 || fstat(file, stat) != 0)
        skip(list, entry, FFA_LOG_WARNING, "it cannot be read: %s", strerror(errno));
    else if (!S_ISREG(stat->st_mode))
        skip(list, entry, FFA_LOG_WARNING, "it is no regular file");
    else if (stat->st_mode & S_IWOTH)
        skip(list, entry, FFA_LOG_WARNING, "others can write it (mode %03o): chmod o-w it",
             (unsigned)stat->st_mode & 0777u);
    else if (!any_owner && stat->st_uid != geteuid() && stat->st_uid != 0)
        skip(list, entry, FFA_LOG_WARNING,
             "it belongs to user %u, this process runs as %u: name it to use it",
             (unsigned)stat->st_uid, (unsigned)geteuid());
    else if (stat->st_size > COST_TABLE_BYTES_MAX)
        skip(list, entry, FFA_LOG_WARNING, "it has %lld bytes, the limit is %d",
             (long long)stat->st_size, COST_TABLE_BYTES_MAX);
    else
        return file;
    if (file >= 0)
        (void)close(file);
    return -1;
}

/* The bytes of a file, of at most `size`; -1 with errno. */
static ssize_t read_whole(int file, char *text, size_t size)
{
    size_t used = 0;

    while (used < size) {
        const ssize_t got = read(file, text + used, size - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static const struct cost_entry *find_tuned(const struct cost_tables *tables, const char *device)
{
    for (int32_t i = 0; i < tables->count; i++) {
        const struct cost_entry *entry = &tables->at[i];

        if (entry->is_tuned && !*entry->skipped && !strcmp(entry->table.device, device))
            return entry;
    }
    return NULL;
}

/* Whether a table that could be read may be used: of these templates, the first of its model. */
static void check_use(const struct list *list, struct cost_entry *entry)
{
    struct cost_tables before = list->tables;
    const struct cost_entry *other;
    char templates[DIGEST_TEXT];

    before.count--;
    ffa_templates_digest(templates);
    other = find_tuned(&before, entry->table.device);
    if (*entry->table.templates && strcmp(entry->table.templates, templates) != 0)
        skip(list, entry, FFA_LOG_WARNING,
             "it was fitted with templates %s, this library has %s: tune again",
             entry->table.templates, templates);
    else if (other)
        skip(list, entry, FFA_LOG_INFO, "'%.200s' has a table of this model", other->path);
    else
        log_line(&list->log, FFA_LOG_INFO, "choose",
                 "event=cost_table path=\"%s\" device=\"%s\" digest=%s", entry->path,
                 entry->table.device, entry->digest);
}

static ffa_status add_file(struct list *list, const char *path, bool any_owner, ffa_error *err)
{
    struct cost_entry *entry = entry_add(list);
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc = FFA_OK;
    struct stat stat;
    char *text = NULL;
    ssize_t bytes;
    int file;

    if (!entry)
        return error_nomem(err, "the cost tables");
    entry->is_tuned = true;
    text_printable(entry->path, sizeof entry->path, path, "");
    file = open_file(list, entry, path, any_owner, &stat);
    if (file < 0)
        return FFA_OK;
    text = mem_array((size_t)stat.st_size + 1, 1);
    if (!text) {
        rc = error_nomem(err, "a cost table");
        goto out;
    }
    bytes = read_whole(file, text, (size_t)stat.st_size + 1);
    if (bytes < 0) {
        skip(list, entry, FFA_LOG_WARNING, "it cannot be read: %s", strerror(errno));
        goto out;
    }
    rc = cost_table_read(&entry->table, text, (size_t)bytes, path, &why);
    if (rc == FFA_NOMEM && err)
        *err = why;
    if (rc == FFA_NOMEM)
        goto out;
    if (rc == FFA_OK) {
        cost_table_digest(&entry->table, entry->digest);
        check_use(list, entry);
    } else {
        skip(list, entry, FFA_LOG_WARNING, "%s", why.message);
    }
    rc = FFA_OK;
out:
    (void)close(file);
    mem_free(text);
    return rc;
}

/* ---- folders ---- */

static int is_table(const struct dirent *file)
{
    const size_t bytes = strlen(file->d_name);

    return file->d_name[0] != '.' && bytes >= sizeof ending &&
           !strcmp(file->d_name + bytes - (sizeof ending - 1), ending);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static ffa_status note_trouble(struct list *list, const char *path, const char *what, int code,
                               ffa_error *err)
{
    struct cost_entry *entry = entry_add(list);

    if (!entry)
        return error_nomem(err, "the cost tables");
    entry->is_tuned = true;
    text_printable(entry->path, sizeof entry->path, path, "");
    skip(list, entry, FFA_LOG_WARNING, "%s%s%s", what, code ? ": " : "",
         code ? strerror(code) : "");
    return FFA_OK;
}

static ffa_status add_folder(struct list *list, const char *folder, bool any_owner, ffa_error *err)
{
    struct dirent **files = NULL;
    const int count = scandir(folder, &files, is_table, by_bytes);
    ffa_status rc = FFA_OK;

    if (count < 0)
        return errno == ENOENT && !any_owner
                   ? FFA_OK
                   : note_trouble(list, folder, "it cannot be read", errno, err);
    for (int i = 0; i < count && rc == FFA_OK; i++) {
        char path[PATH_BYTES], trouble[64];
        const int bytes = snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name);

        if (i == COST_FILES_MAX) {
            text_copy(trouble, "it has more than %d tables: the others are not read",
                      COST_FILES_MAX);
            rc = note_trouble(list, folder, trouble, 0, err);
            break;
        }
        if (bytes < 0 || (size_t)bytes >= sizeof path) {
            text_copy(trouble, "a path is longer than %d bytes", PATH_BYTES - 1);
            rc = note_trouble(list, folder, trouble, 0, err);
        } else
            rc = add_file(list, path, any_owner, err);
    }
    for (int i = 0; i < count; i++)
        free(files[i]);
    free(files);
    return rc;
}

static ffa_status add_named(struct list *list, const char *path, ffa_error *err)
{
    struct stat at;

    if (stat(path, &at) == 0 && S_ISDIR(at.st_mode))
        return add_folder(list, path, true, err);
    return add_file(list, path, true, err);
}

/* The folder `below` that of the file at `path`; false: there is none. */
static bool folder_beside(char out[PATH_BYTES], const char *path, const char *below)
{
    const char *slash = strrchr(path, '/');
    const int bytes = slash ? snprintf(out, PATH_BYTES, "%.*s/%s", (int)(slash - path), path, below)
                            : snprintf(out, PATH_BYTES, "%s", below);

    return bytes > 0 && bytes < PATH_BYTES;
}

/* What was installed with this library, wherever that was moved. */
static bool installed_folder(char out[PATH_BYTES])
{
    static const char here = 0;
    char *library = NULL, *folder = NULL;
    Dl_info info;
    bool is_there;

    if (dladdr(&here, &info) && info.dli_fname)
        library = realpath(info.dli_fname, NULL);
    if (library && folder_beside(out, library, FFA_COST_TABLES_BESIDE))
        folder = realpath(out, NULL);
    is_there = folder && strlen(folder) < PATH_BYTES;
    if (is_there)
        memcpy(out, folder, strlen(folder) + 1);
    free(library);
    free(folder);
    return is_there;
}

static ffa_status add_found(struct list *list, const char *store_path, ffa_error *err)
{
    char folder[PATH_BYTES];
    ffa_status rc = FFA_OK;

    if (store_path && folder_beside(folder, store_path, folder_name))
        FFA_TRY(add_folder(list, folder, false, err));
    if (installed_folder(folder))
        rc = add_folder(list, folder, true, err);
out:
    return rc;
}

static ffa_status add_built_in(struct list *list, ffa_error *err)
{
    const struct cost_table *table;

    for (int32_t i = 0; (table = cost_table_at(i)) != NULL; i++) {
        struct cost_entry *entry = entry_add(list);

        if (!entry)
            return error_nomem(err, "the cost tables");
        entry->table = *table;
        cost_table_digest(table, entry->digest);
    }
    return FFA_OK;
}

ffa_status cost_tables_open(struct cost_tables **out, const struct cost_tables_opts *opts,
                            ffa_error *err)
{
    struct list *list;
    ffa_status rc = FFA_OK;

    *out = NULL;
    list = mem_array(1, sizeof *list);
    if (!list)
        return error_nomem(err, "the cost tables");
    list->log = opts->log;
    if (!opts->path)
        FFA_TRY(add_found(list, opts->store_path, err));
    else if (strcmp(opts->path, no_files) != 0)
        FFA_TRY(add_named(list, opts->path, err));
    FFA_TRY(add_built_in(list, err));
    *out = &list->tables;
    list = NULL;
out:
    cost_tables_close(list ? &list->tables : NULL);
    return rc;
}

void cost_tables_close(struct cost_tables *tables)
{
    struct list *list = (struct list *)tables;

    if (list)
        mem_free(list->at);
    mem_free(list);
}

/* ---- look-up ---- */

const struct cost_entry *cost_tables_named(const struct cost_tables *tables, const char *device)
{
    const struct cost_entry *found = find_tuned(tables, device);

    for (int32_t i = 0; i < tables->count && !found; i++)
        if (!tables->at[i].is_tuned && !strcmp(tables->at[i].table.device, device))
            found = &tables->at[i];
    return found;
}

/* How far a device is from the one a table was fitted on, in doublings; above 1 each: not near. */
static double distance(const struct cost_table *table, const struct device_facts *facts)
{
    const double sms = fabs(log2((double)facts->sm_count / table->sm_count));
    const double l2 = fabs(log2((double)facts->l2_bytes / (double)table->l2_bytes));

    return sms <= 1 && l2 <= 1 ? sms + l2 : INFINITY;
}

/* NULL: none is near. Of equally near ones the first. */
static const struct cost_entry *find_nearest(const struct cost_tables *tables,
                                             const struct device_facts *facts, bool is_tuned)
{
    const struct cost_entry *best = NULL;
    double least = INFINITY;

    for (int32_t i = 0; i < tables->count; i++) {
        const struct cost_entry *entry = &tables->at[i];
        const double off = distance(&entry->table, facts);

        if (entry->is_tuned != is_tuned || *entry->skipped || !(off < least))
            continue;
        least = off;
        best = entry;
    }
    return best;
}

static const struct cost_entry *find_default(const struct cost_tables *tables)
{
    int32_t i = 0;

    while (tables->at[i].is_tuned)
        i++;
    return &tables->at[i];
}

const struct cost_entry *cost_tables_find(const struct cost_tables *tables,
                                          const struct device_facts *facts, ffa_cost_source *source)
{
    const struct cost_entry *found = cost_tables_named(tables, facts->name);

    *source = found && found->is_tuned ? FFA_COST_TUNED : FFA_COST_BUILT_IN;
    if (found)
        return found;
    *source = FFA_COST_NEAREST;
    if (facts->sm_count > 0 && facts->l2_bytes > 0) {
        found = find_nearest(tables, facts, true);
        if (!found)
            found = find_nearest(tables, facts, false);
    }
    if (found)
        return found;
    *source = FFA_COST_DEFAULT;
    return find_default(tables);
}

struct choose_device choose_device_among(const struct cost_tables *tables,
                                         const struct device_facts *facts)
{
    struct choose_device device = { .facts = *facts };
    const struct cost_entry *entry;

    if (!tables)
        return choose_device_of(facts);
    entry = cost_tables_find(tables, facts, &device.source);
    device.costs = &entry->table;
    text_copy(device.digest, "%s", entry->digest);
    return device;
}

const char *ffa_cost_source_text(ffa_cost_source source)
{
    static const char *const texts[] = { "none", "tuned", "built-in", "nearest", "default" };

    return (unsigned)source < sizeof texts / sizeof *texts ? texts[source] : "unknown";
}
