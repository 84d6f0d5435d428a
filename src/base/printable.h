/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from elsewhere (a store's rows, a manifest, a file's header or its path), made fit for a
 * message, a log line or a listing: it cannot move a terminal's cursor, begin a line of its own or
 * turn the reading direction. All inline, so that the command shares it with the library.
 *
 * Valid UTF-8 stays as it is, but for control characters (C0, DEL, C1), separators of lines and
 * paragraphs, and marks of direction. These, and bytes that are no UTF-8, become \xNN.
 */
#ifndef FFA_BASE_PRINTABLE_H
#define FFA_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The bytes of the UTF-8 character at `text`, and the character; 0: it is none. */
static inline size_t utf8_take(const char *text, uint32_t *character)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *at = (const unsigned char *)text;
    const size_t bytes = at[0] < 0x80             ? 1
                         : (at[0] & 0xe0) == 0xc0 ? 2
                         : (at[0] & 0xf0) == 0xe0 ? 3
                         : (at[0] & 0xf8) == 0xf0 ? 4
                                                  : 0;

    if (bytes < 2) {
        *character = at[0];
        return bytes;
    }
    *character = at[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        *character = *character << 6 | (at[i] & 0x3f);
    }
    if (*character < least[bytes] || *character > 0x10ffff || (*character & ~0x7ffu) == 0xd800)
        return 0;
    return bytes;
}

/* Whether a terminal shows the character as itself, and reads on from left to right. */
static inline bool is_printable(uint32_t character)
{
    return character >= 0x20 && !(character >= 0x7f && character <= 0x9f) &&
           !(character >= 0x200e && character <= 0x200f) &&
           !(character >= 0x2028 && character <= 0x202e) &&
           !(character >= 0x2066 && character <= 0x2069) && character != 0x061c &&
           character != 0xfeff;
}

/* Copy `text` to out [size], terminated, cut before what does not fit whole. `keep`: control
 * characters that stay, such as "\n\t". */
static inline void text_printable(char *out, size_t size, const char *text, const char *keep)
{
    static const char digits[] = "0123456789abcdef";
    size_t used = 0;

    while (*text) {
        uint32_t character = 0;
        const size_t bytes = utf8_take(text, &character);
        const bool is_kept = bytes && (is_printable(character) ||
                                       (character < 0x80 && strchr(keep, (int)character)));
        const size_t taken = bytes ? bytes : 1;
        const size_t wanted = is_kept ? taken : 4 * taken;

        if (wanted >= size - used)
            break;
        for (size_t i = 0; i < taken; i++) {
            const unsigned char byte = (unsigned char)text[i];

            if (is_kept) {
                out[used++] = text[i];
                continue;
            }
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = digits[byte >> 4];
            out[used++] = digits[byte & 15];
        }
        text += taken;
    }
    if (size)
        out[used] = '\0';
}

#endif
