/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands that look into stores and bundles share: open one, list its entries.
 */
#ifndef FFA_CLI_ENTRIES_H
#define FFA_CLI_ENTRIES_H

#include "cli/cli.h"

/* Open the store that --store or the environment names. Returns CLI_PARSE_GO with *out set, or with
 * *out NULL and a note on stderr where the store does not exist yet; otherwise the error was
 * reported, and the exit status is returned. */
int entries_open_store(const struct cli *cli, ffa_cache **out, uint32_t flags);
/* Open the store in the file `path`. --shared decides whether one that its group may write is
 * trusted. */
ffa_status entries_open_path(const struct cli *cli, ffa_cache **out, const char *path,
                             uint32_t flags, ffa_error *err);
/* Open a bundle or store that the user named, read-only. Symbolic links are followed, because a
 * bundle is often deployed behind one, and refused as a context refuses them. */
ffa_status entries_open_file(ffa_cache **out, const char *path, ffa_error *err);

void entry_time(char out[32], int64_t unix_s); /* "2026-01-31T12:00:00Z" */
/* Set object[key] to that text. */
void entry_set_time(json_t *object, const char *key, int64_t unix_s);
/* The values of the template's spec rows as one line, such as "head_dim=128 dtype=1". */
void entry_settings(char *out, size_t size, const ffa_cache_entry *entry);
json_t *entry_object(const ffa_cache_entry *entry);

/* A listing: a JSON array to be printed at the end, or lines on stdout as they come. */
struct entry_list {
    json_t *array; /* NULL: print lines */
    int64_t count;
    bool is_long; /* print all facts of an entry instead of a table row */
};
int entry_list_visit(void *list, const ffa_cache_entry *entry); /* an ffa_cache_visit */
/* Append an object, which the list then owns, to list->array. Returns 0, as visitors do. */
int entry_list_add(struct entry_list *list, json_t *object);
/* Print the array, if there is one, as {"<name>": [...]}. Where `rc`, the status of the listing, is
 * an error, drop the array and report *err instead. Returns the exit status. */
int entry_list_finish(const struct cli *cli, struct entry_list *list, const char *name,
                      ffa_status rc, const ffa_error *err);
/* An ffa_cache_visit: name a bad entry on stderr and append its key to a json_t array. */
int entries_visit_bad(void *bad, const ffa_cache_entry *entry);
/* Print how many entries or notes were removed; returns the exit status. */
int entries_print_removed(const struct cli *cli, int64_t removed);

#endif
