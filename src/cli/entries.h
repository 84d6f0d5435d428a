/* SPDX-License-Identifier: Apache-2.0
 *
 * What the commands that look into stores and bundles share: opening, and showing entries.
 */
#ifndef FFA_CLI_ENTRIES_H
#define FFA_CLI_ENTRIES_H

#include "cli/cli.h"

/* The store of --store and the environment: CLI_PARSE_GO with *out set, or NULL where there is none
 * yet, which was said; else the exit status. */
int entries_open_store(const struct cli *cli, ffa_cache **out, uint32_t flags);
/* The store in the file `path`, trusted as --shared says. */
ffa_status entries_open_path(const struct cli *cli, ffa_cache **out, const char *path,
                             uint32_t flags, ffa_error *err);
/* A bundle or store named by hand, to read. Symbolic links are followed, as a bundle in use may be
 * behind some. */
ffa_status entries_open_file(ffa_cache **out, const char *path, ffa_error *err);

void entry_time(char out[32], int64_t unix_s); /* "2026-01-31T12:00:00Z" */
/* The values of the template's spec rows, such as "head_dim=128 dtype=1". */
void entry_settings(char *out, size_t size, const ffa_cache_entry *entry);
json_t *entry_object(const ffa_cache_entry *entry);

/* What a listing collects: an array, or lines on stdout. */
struct entry_list {
    json_t *array; /* NULL: print */
    int64_t count;
    bool is_long;
};
int entry_list_visit(void *list, const ffa_cache_entry *entry); /* an ffa_cache_visit */
/* Print the array, if there is one, as {"<name>": [...]}; returns the exit status. */
int entry_list_finish(const struct cli *cli, struct entry_list *list, const char *name, int status);
/* An ffa_cache_visit: say a bad entry on stderr, add its key to a json_t array. */
int entries_visit_bad(void *bad, const ffa_cache_entry *entry);

#endif
