/* SPDX-License-Identifier: Apache-2.0
 *
 * The misses noted in a store as a set of kernels, to be warmed.
 */
#ifndef FFA_CLI_CMD_MISSES_H
#define FFA_CLI_CMD_MISSES_H

#include "cli/manifest.h"

struct misses_account {
    int64_t noted;   /* misses read */
    int64_t edited;  /* of these, taken though the template's text has changed: another key now */
    int64_t foreign; /* left out: this version has no such template, setting or architecture */
};

/* Append the misses noted in the store `path` to `out`, in its order. `context` decides which of
 * them this version can compile. Fails as ffa_cache_open and ffa_cache_list_misses do. */
ffa_status misses_read(struct manifest *out, ffa_context *context, const char *path,
                       struct misses_account *account, ffa_error *err);

#endif
