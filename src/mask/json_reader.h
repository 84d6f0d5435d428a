/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of JSON, one at a time.
 */
#ifndef FFA_MASK_JSON_READER_H
#define FFA_MASK_JSON_READER_H

#include "base/base.h"

enum json_kind {
    JSON_KIND_END, /* of the text */
    JSON_KIND_OBJECT,
    JSON_KIND_OBJECT_END,
    JSON_KIND_ARRAY,
    JSON_KIND_ARRAY_END,
    JSON_KIND_COLON,
    JSON_KIND_COMMA,
    JSON_KIND_STRING,
    JSON_KIND_INTEGER,
    JSON_KIND_REAL,
    JSON_KIND_TRUTH,
    JSON_KIND_NULL
};

enum { JSON_STRING_MAX = 72 };

struct json_reader {
    const char *at, *end;
    int line, column; /* of the last character read; from 1, column 0 before a line's first */
    ffa_error *err;
    /* The word read last. */
    enum json_kind kind;
    const char *begin; /* where it begins; it ends at `at` */
    int64_t integer;
    char string[JSON_STRING_MAX]; /* unescaped, cut, terminated; '?' for what is not ASCII */
};

/* FFA_INVALID: "mask JSON: ...", as one line of printable characters. */
ffa_status json_fail(ffa_error *err, const char *format, ...) FFA_PRINTF(2, 3);
/* FFA_INVALID: where the last word ends, `what`, and near which word. */
ffa_status json_fail_here(const struct json_reader *reader, const char *what);
/* "an object", "a whole number" and so on: what the last word is or begins. */
const char *json_kind_name(const struct json_reader *reader);

/* Read the next word. FFA_INVALID for what is none. */
ffa_status json_next(struct json_reader *reader);
/* The same, and it must be of this kind: `what` completes "... expected". */
ffa_status json_expect(struct json_reader *reader, enum json_kind kind, const char *what);
/* After a value of a list, whose end has `kind`: *is_more, whether another one follows. `what` as
 * above, naming the end. */
ffa_status json_more(struct json_reader *reader, enum json_kind kind, const char *what,
                     bool *is_more);
/* Nothing but blanks may follow. */
ffa_status json_end(struct json_reader *reader);

#endif
