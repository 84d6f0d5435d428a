/* SPDX-License-Identifier: Apache-2.0
 *
 * Proving entries: the same request compiled again by the same toolchain gives the same bytes.
 */
#ifndef FFA_CLI_REBUILD_H
#define FFA_CLI_REBUILD_H

#include "cli/cli.h"

struct rebuild {
    int64_t percent; /* of the entries that can be rebuilt here, rounded up */
    int64_t seed;    /* which ones */
    int64_t same, different, failed;
    int64_t other_templates;  /* not rebuilt: of another template text or its settings */
    int64_t other_toolchains; /* nor these */
    json_t *different_keys;   /* borrowed; keys are added */
};

/* "10%" or "10", in [1, 100]. */
bool rebuild_read_percent(const char *text, int64_t *out);
/* Compile a sample of the store's entries and compare. CLI_PARSE_GO, or the exit status of what
 * made going on impossible. */
int rebuild_run(const struct cli *cli, ffa_cache *cache, struct rebuild *rebuild);

#endif
