/* SPDX-License-Identifier: Apache-2.0
 *
 * amount_read_size and amount_read_age: a number and the letter of one of some units. Units of
 * bytes are powers of 1024, whether or not iB follows.
 */
#include "cli/amount.h"

#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    char letter;
    int64_t factor;
};

static const struct unit sizes[] = {
    { 'B', 1 }, { 'K', 1 << 10 }, { 'M', 1 << 20 }, { 'G', 1 << 30 }, { 'T', INT64_C(1) << 40 },
};
static const struct unit ages[] = {
    { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 }, { 'w', 604800 },
};

/* Without a letter the unit is the first. rest: what may follow a letter but the first's. */
static bool read_amount(const char *text, const struct unit *units, int count, const char *rest,
                        int64_t *out)
{
    char *end = NULL;
    long long number;
    int unit = 0;

    errno = 0;
    number = strtoll(text, &end, 10);
    if (end == text || errno == ERANGE || number < 1)
        return false;
    if (*end) {
        while (unit < count && units[unit].letter != *end)
            unit++;
        if (unit == count || (end[1] && (unit == 0 || strcmp(end + 1, rest) != 0)))
            return false;
    }
    if (number > INT64_MAX / units[unit].factor)
        return false;
    *out = number * units[unit].factor;
    return true;
}

bool amount_read_size(const char *text, int64_t *out)
{
    return read_amount(text, sizes, CLI_COUNT(sizes), "iB", out);
}

bool amount_read_age(const char *text, int64_t *out)
{
    return read_amount(text, ages, CLI_COUNT(ages), "", out);
}

bool amount_has_unit(const char *text)
{
    const size_t bytes = strlen(text);

    return bytes > 0 && (text[bytes - 1] < '0' || text[bytes - 1] > '9');
}
