/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version of libffa a bundle is for. A kernel is found by its key, which covers the texts of
 * its template: a library finds it where its own texts are the same, whatever the versions are. So
 * what counts is how many kernels are of this library's texts; the version that a bundle names only
 * explains it.
 */
#include "cli/bundle_fit.h"

#include <inttypes.h>
#include <string.h>

bool bundle_check_fit(const struct cli *cli, const char *path, const ffa_bundle_info *info)
{
    char digest[33];

    if (info->fitting == info->kernels)
        return true;
    ffa_templates_digest(digest);
    if (!info->templates_digest[0] || !strcmp(info->templates_digest, digest)) {
        cli_note(cli, "%s: %" PRId64 " of its %" PRId64 " kernels are of this version's templates",
                 path, info->fitting, info->kernels);
        return true;
    }
    cli_note(cli,
             "%s is for libffa %s, templates %s; this is %s, templates %s, which finds %" PRId64
             " of its %" PRId64 " kernels",
             path, info->library_version, info->templates_digest, ffa_version(), digest,
             info->fitting, info->kernels);
    return false;
}

bool bundle_check_fit_of(const struct cli *cli, const char *path, ffa_cache *cache)
{
    ffa_bundle_info info = FFA_BUNDLE_INFO_INIT;

    return ffa_bundle_info_get(cache, &info, NULL) != FFA_OK || bundle_check_fit(cli, path, &info);
}

void bundle_set_fit(json_t *object, const ffa_bundle_info *info)
{
    cli_set_text(object, "library", info->library_version);
    cli_set_text(object, "templates", info->templates_digest);
    cli_set_int(object, "fitting", info->fitting);
}

void bundle_print_fit(const ffa_bundle_info *info)
{
    cli_line(stdout, "library     %s",
             info->library_version[0] ? info->library_version : "not said");
    cli_line(stdout, "templates   %s",
             info->templates_digest[0] ? info->templates_digest : "not said, or several");
    cli_line(stdout, "fitting     %" PRId64, info->fitting);
}
