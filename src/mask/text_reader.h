/* SPDX-License-Identifier: Apache-2.0
 *
 * What reads the text of a mask: a place in it, and the words that are found there.
 */
#ifndef FFA_MASK_TEXT_READER_H
#define FFA_MASK_TEXT_READER_H

#include "mask/mask.h"

struct reader {
    const char *text, *at;
    ffa_error *err;
    int depth; /* parentheses around this place */
};

/* From 1, for messages. */
long long reader_column(const struct reader *reader, const char *at);
/* FFA_INVALID: "expected <what>, got ...". */
ffa_status reader_expected(const struct reader *reader, const char *what);
/* Whether the mask that is being read ends here: at the terminator, or inside parentheses at ';'
 * or ')'. */
bool reader_at_end(const struct reader *reader);
/* Move past `c`; false: something else is there. */
bool reader_take(struct reader *reader, char c);
/* A whole number in [least, 2^31 - 1]. */
ffa_status reader_number(struct reader *reader, int64_t least, int64_t *out);
bool reader_is_name_char(char c);
/* The name at reader->at, which is moved past it. Returns its bytes. */
size_t reader_name(struct reader *reader, const char **name);
bool reader_is_same(const char *name, size_t bytes, const char *other);

/* ---- masks inside masks ---- */

/* Read the mask at reader->at, up to where reader_at_end. */
ffa_status reader_mask(struct reader *reader, ffa_mask **out);
/* Whether `name` is that of an expression: concat, union, crop, shift. */
bool is_expression(const char *name, size_t bytes);
/* Read what follows the name of an expression: '(' to ')'. */
ffa_status reader_expression(struct reader *reader, const char *name, size_t bytes, ffa_mask **out);
/* The names of all expressions, for messages: "concat(), union(), crop(), shift() ". */
extern const char *const expression_names;

#endif
