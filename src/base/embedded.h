/* SPDX-License-Identifier: Apache-2.0
 *
 * Files compiled into the library by cmake/FfaEmbed.cmake.
 */
#ifndef FFA_BASE_EMBEDDED_H
#define FFA_BASE_EMBEDDED_H

#include <stddef.h>

struct embedded_file {
    const char *name; /* without a folder */
    const char *text; /* terminated; `bytes` without the terminator */
    size_t bytes;
};

extern const struct embedded_file embedded_templates[]; /* sorted by name */
extern const int embedded_template_count;
extern const struct embedded_file embedded_schema;

#endif
