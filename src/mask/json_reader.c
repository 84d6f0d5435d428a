/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of JSON (RFC 8259), one at a time, with the line and column where each ends.
 *
 * No tree is built, so that reading takes no memory beyond the text: a tree takes up to 45 bytes
 * for each byte of a mask. Invariant: `at` is never moved past `end`. Names and types of a mask are
 * ASCII, so strings with other characters are refused where they are not valid UTF-8 and kept with
 * '?' where they are.
 */
#include "mask/json_reader.h"

#include <stdio.h>

/* Keys and pieces of the input go into messages: keep them one line of plain characters. */
static void text_flatten(char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            *text = '?';
}

ffa_status json_fail(ffa_error *err, const char *format, ...)
{
    char line[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    text_flatten(line);
    return error_fail(err, FFA_INVALID, 0, "mask JSON: %s", line);
}

ffa_status json_fail_here(const struct json_reader *reader, const char *what)
{
    const int64_t bytes = reader->at - reader->begin;

    if (reader->kind == JSON_KIND_END)
        return json_fail(reader->err, "line %d, column %d: %s near end of file", reader->line,
                         reader->column, what);
    return json_fail(reader->err, "line %d, column %d: %s near '%.*s'", reader->line,
                     reader->column, what, (int)min64(bytes, 20), reader->begin);
}

const char *json_kind_name(const struct json_reader *reader)
{
    switch (reader->kind) {
    case JSON_KIND_OBJECT:
        return "an object";
    case JSON_KIND_ARRAY:
        return "an array";
    case JSON_KIND_STRING:
        return "a string";
    case JSON_KIND_INTEGER:
        return "a whole number";
    case JSON_KIND_REAL:
        return "a number that is not whole";
    case JSON_KIND_TRUTH:
        return "a truth value";
    default:
        return "null";
    }
}

/* ---- characters ---- */

/* The next character, -1 at the end; stays where it is. */
static int peek(const struct json_reader *reader)
{
    return reader->at < reader->end ? (unsigned char)*reader->at : -1;
}

static void step(struct json_reader *reader)
{
    if (*reader->at == '\n') {
        reader->line++;
        reader->column = 0;
    } else {
        reader->column++;
    }
    reader->at++;
}

static bool is_blank(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(int c)
{
    return '0' <= c && c <= '9';
}

static int64_t skip_digits(struct json_reader *reader)
{
    const char *begin = reader->at;

    while (is_digit(peek(reader)))
        step(reader);
    return reader->at - begin;
}

/* ---- numbers ---- */

/* The digits from `at` to `end`; false: more than an int64_t holds. */
static bool integer_of(const char *at, const char *end, int64_t *out)
{
    const bool is_negative = *at == '-';
    int64_t value = 0;

    for (at += is_negative; at < end; at++) {
        const int digit = *at - '0';

        if (value < (INT64_MIN + digit) / 10) /* below 0 there is room for one more */
            return false;
        value = value * 10 - digit;
    }
    if (!is_negative && value == INT64_MIN)
        return false;
    *out = is_negative ? value : -value;
    return true;
}

static ffa_status read_number(struct json_reader *reader)
{
    reader->kind = JSON_KIND_INTEGER;
    if (peek(reader) == '-')
        step(reader);
    if (peek(reader) == '0')
        step(reader);
    else if (skip_digits(reader) == 0)
        return json_fail_here(reader, "invalid token");
    if (peek(reader) == '.') {
        reader->kind = JSON_KIND_REAL;
        step(reader);
        if (skip_digits(reader) == 0)
            return json_fail_here(reader, "invalid token");
    }
    if (peek(reader) == 'e' || peek(reader) == 'E') {
        reader->kind = JSON_KIND_REAL;
        step(reader);
        if (peek(reader) == '+' || peek(reader) == '-')
            step(reader);
        if (skip_digits(reader) == 0)
            return json_fail_here(reader, "invalid token");
    }
    if (reader->kind == JSON_KIND_INTEGER &&
        !integer_of(reader->begin, reader->at, &reader->integer))
        return json_fail_here(reader, "too big integer");
    return FFA_OK;
}

/* ---- strings ---- */

/* Bytes of the valid UTF-8 sequence at `at`, 0 where there is none. */
static int utf8_bytes(const unsigned char *at, int64_t left)
{
    const int bytes = at[0] < 0x80   ? 1
                      : at[0] < 0xc2 ? 0
                      : at[0] < 0xe0 ? 2
                      : at[0] < 0xf0 ? 3
                      : at[0] < 0xf5 ? 4
                                     : 0;

    if (bytes == 0 || bytes > left)
        return 0;
    for (int i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return bytes;
}

static int hex_digit(int c)
{
    if (is_digit(c))
        return c - '0';
    if ('a' <= c && c <= 'f')
        return c - 'a' + 10;
    return 'A' <= c && c <= 'F' ? c - 'A' + 10 : -1;
}

/* What follows a backslash, as one character; 0: no escape. */
static char read_escape(struct json_reader *reader)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const int c = peek(reader);
    const char *name = c > 0 ? strchr(names, c) : NULL;
    int code = 0;

    if (name) {
        step(reader);
        return meant[name - names];
    }
    if (c != 'u')
        return 0;
    step(reader);
    for (int i = 0; i < 4; i++) {
        const int digit = hex_digit(peek(reader));

        if (digit < 0)
            return 0;
        code = code * 16 + digit;
        step(reader);
    }
    return (char)(code > 0 && code < 0x80 ? code : '?');
}

/* One character of a string, unescaped, into *out. */
static ffa_status read_character(struct json_reader *reader, char *out)
{
    const int bytes = utf8_bytes((const unsigned char *)reader->at, reader->end - reader->at);

    if (bytes == 0)
        return json_fail(reader->err, "line %d, column %d: a string is not valid UTF-8",
                         reader->line, reader->column);
    *out = bytes == 1 ? *reader->at : '?';
    if (bytes == 1 && (unsigned char)*out < 0x20)
        return json_fail(reader->err, "line %d, column %d: a control character in a string",
                         reader->line, reader->column);
    step(reader);
    reader->at += bytes - 1;
    if (*out == '\\') {
        *out = read_escape(reader);
        if (!*out)
            return json_fail_here(reader, "invalid escape");
    }
    return FFA_OK;
}

static ffa_status read_string(struct json_reader *reader)
{
    size_t kept = 0;
    char c = 0;
    ffa_status rc = FFA_OK;

    step(reader);
    while (peek(reader) != '"') {
        if (peek(reader) < 0) {
            reader->kind = JSON_KIND_END;
            return json_fail_here(reader, "unexpected token");
        }
        FFA_TRY(read_character(reader, &c));
        if (kept + 1 < sizeof reader->string)
            reader->string[kept++] = c;
    }
    step(reader);
    reader->kind = JSON_KIND_STRING;
out:
    reader->string[kept] = '\0';
    return rc;
}

/* ---- words ---- */

/* true, false, null. */
static ffa_status read_word(struct json_reader *reader)
{
    static const char *const words[] = { "true", "false", "null" };
    size_t bytes;

    while ('a' <= peek(reader) && peek(reader) <= 'z')
        step(reader);
    bytes = (size_t)(reader->at - reader->begin);
    for (int i = 0; i < 3; i++)
        if (strlen(words[i]) == bytes && !memcmp(words[i], reader->begin, bytes)) {
            reader->kind = i < 2 ? JSON_KIND_TRUTH : JSON_KIND_NULL;
            return FFA_OK;
        }
    if (bytes == 0)
        step(reader);
    reader->kind = JSON_KIND_NULL; /* anything but the end: the message shows the word */
    return json_fail_here(reader, "invalid token");
}

ffa_status json_next(struct json_reader *reader)
{
    static const char marks[] = "{}[]:,";
    const char *mark;
    int c;

    while (is_blank(peek(reader)))
        step(reader);
    c = peek(reader);
    reader->begin = reader->at;
    if (c < 0) {
        reader->kind = JSON_KIND_END;
        return FFA_OK;
    }
    mark = c ? strchr(marks, c) : NULL;
    if (mark) {
        step(reader);
        reader->kind = (enum json_kind)(JSON_KIND_OBJECT + (mark - marks));
        return FFA_OK;
    }
    if (c == '"')
        return read_string(reader);
    if (c == '-' || is_digit(c))
        return read_number(reader);
    return read_word(reader);
}

ffa_status json_expect(struct json_reader *reader, enum json_kind kind, const char *what)
{
    ffa_status rc;

    FFA_TRY(json_next(reader));
    if (reader->kind != kind)
        rc = json_fail_here(reader, what);
out:
    return rc;
}

ffa_status json_more(struct json_reader *reader, enum json_kind kind, const char *what,
                     bool *is_more)
{
    ffa_status rc;

    FFA_TRY(json_next(reader));
    *is_more = reader->kind == JSON_KIND_COMMA;
    if (!*is_more && reader->kind != kind)
        rc = json_fail_here(reader, what);
out:
    return rc;
}

ffa_status json_end(struct json_reader *reader)
{
    while (is_blank(peek(reader)))
        step(reader);
    reader->begin = reader->at;
    if (peek(reader) < 0)
        return FFA_OK;
    reader->kind = JSON_KIND_NULL; /* not the end */
    step(reader);
    return json_fail_here(reader, "end of file expected");
}
