/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of mask texts. Invariant: a reader never moves past the terminator, and each message
 * names the column of what it is about.
 */
#include "mask/text_reader.h"

long long reader_column(const struct reader *reader, const char *at)
{
    return at - reader->text + 1;
}

bool reader_at_end(const struct reader *reader)
{
    return !*reader->at || (reader->depth > 0 && (*reader->at == ';' || *reader->at == ')'));
}

/* What stands at `at`, for a message: one printable character in quotes, or words. */
static const char *seen(const char *at, char out[4])
{
    if (!*at)
        return "the end";
    if (*at < 0x20 || *at == 0x7f)
        return "a character that is not printable";
    out[0] = out[2] = '\'';
    out[1] = *at;
    out[3] = '\0';
    return out;
}

ffa_status reader_expected(const struct reader *reader, const char *what)
{
    char quoted[4];

    return error_fail(reader->err, FFA_INVALID, 0, "mask text, column %lld: expected %s, got %s",
                      reader_column(reader, reader->at), what, seen(reader->at, quoted));
}

static bool is_digit(char c)
{
    return '0' <= c && c <= '9';
}

bool reader_is_name_char(char c)
{
    return ('a' <= c && c <= 'z') || c == '-' || c == '_';
}

bool reader_take(struct reader *reader, char c)
{
    if (*reader->at != c)
        return false;
    reader->at++;
    return true;
}

ffa_status reader_number(struct reader *reader, int64_t least, int64_t *out)
{
    const char *begin = reader->at;
    int64_t value = 0;
    bool is_negative = least < 0 && reader_take(reader, '-');

    if (!is_digit(*reader->at))
        return reader_expected(reader, "a number");
    for (; is_digit(*reader->at); reader->at++)
        if (value <= TOKENS_MAX)
            value = value * 10 + (*reader->at - '0');
    if (is_negative)
        value = -value;
    if (value < least || value > TOKENS_MAX)
        return error_fail(
            reader->err, FFA_INVALID, 0, "mask text, column %lld: %.*s is not in [%lld, %lld]",
            reader_column(reader, begin), (int)(reader->at - begin < 40 ? reader->at - begin : 40),
            begin, (long long)least, (long long)TOKENS_MAX);
    *out = value;
    return FFA_OK;
}

size_t reader_name(struct reader *reader, const char **name)
{
    *name = reader->at;
    while (reader_is_name_char(*reader->at))
        reader->at++;
    return (size_t)(reader->at - *name);
}

bool reader_is_same(const char *name, size_t bytes, const char *other)
{
    return strlen(other) == bytes && memcmp(name, other, bytes) == 0;
}
