/* SPDX-License-Identifier: Apache-2.0
 *
 * The files that presets are made from, cache/models.json, embedded by cmake/FfaEmbed.cmake.
 */
#ifndef FFA_CLI_PRESETS_H
#define FFA_CLI_PRESETS_H

#include <stddef.h>

struct preset_file {
    const char *name; /* "models.json" */
    const char *text; /* terminated */
    size_t bytes;
};
extern const struct preset_file preset_files[];
extern const int preset_file_count;

#endif
