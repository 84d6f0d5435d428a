/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version of libffa a bundle is for, and what to say where that is another one.
 */
#ifndef FFA_CLI_BUNDLE_FIT_H
#define FFA_CLI_BUNDLE_FIT_H

#include "cli/cli.h"

/* Says on stderr where not all kernels are of this version's templates. False where the bundle is
 * another version's: that one said so, and not all of its kernels are found by this one. */
bool bundle_check_fit(const struct cli *cli, const char *path, const ffa_bundle_info *info);
/* The same of a file, which may be a store: that fits. */
bool bundle_check_fit_of(const struct cli *cli, const char *path, ffa_cache *cache);

/* What a bundle says of it: members of an object, or lines. */
void bundle_set_fit(json_t *object, const ffa_bundle_info *info);
void bundle_print_fit(const ffa_bundle_info *info);

#endif
