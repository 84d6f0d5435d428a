/* SPDX-License-Identifier: Apache-2.0
 *
 * Amounts with a unit, as options have them. False: the text is none, and *out is left alone.
 */
#ifndef FFA_CLI_AMOUNT_H
#define FFA_CLI_AMOUNT_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes, at least 1: "500000", "512M", "4G" or "4GiB". */
bool amount_read_size(const char *text, int64_t *out);
/* Seconds, at least 1: "90", "12h", "30d" or "4w". */
bool amount_read_age(const char *text, int64_t *out);
/* Whether a unit stands after the number. */
bool amount_has_unit(const char *text);

#endif
