/* SPDX-License-Identifier: Apache-2.0
 *
 * The misses noted in a store as a set of kernels, to be warmed.
 */
#ifndef FFA_CLI_CMD_MISSES_H
#define FFA_CLI_CMD_MISSES_H

#include "cli/manifest.h"

struct misses_account {
    int64_t noted;
    int64_t edited;  /* taken, but of another template text: another key now */
    int64_t foreign; /* left out: this version has no such template, setting or architecture */
};

/* Append the misses noted in the store `path` to `out`. `context` says what can be asked for. */
ffa_status misses_read(struct manifest *out, ffa_context *context, const char *path,
                       struct misses_account *account, ffa_error *err);

#endif
