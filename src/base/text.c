/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing strings. Invariant: a string is terminated at all times, and a failed append leaves it as
 * it was and sets `failed`, so that callers append without looking and ask once, in text_take.
 */
#include "base/base.h"

#include <stdio.h>

static bool text_reserve(struct text *text, size_t more)
{
    size_t need = text->bytes + more + 1;
    size_t wanted;
    char *grown;

    if (text->failed)
        return false;
    if (need <= text->capacity)
        return true;
    wanted = text->capacity * 2 > need ? text->capacity * 2 : need + 64;
    if (fault_here(FAULT_ALLOC) || !mem_fits((int64_t)(wanted - text->capacity)))
        grown = NULL;
    else
        grown = realloc(text->at, wanted);
    if (!grown) {
        text->failed = true;
        return false;
    }
    text->at = grown;
    text->capacity = wanted;
    return true;
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args;
    int bytes;

    va_start(args, format);
    bytes = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (bytes < 0 || !text_reserve(text, (size_t)bytes))
        return;
    va_start(args, format);
    (void)vsnprintf(text->at + text->bytes, (size_t)bytes + 1, format, args);
    va_end(args);
    text->bytes += (size_t)bytes;
}

void text_add_bytes(struct text *text, const void *bytes, size_t count)
{
    if (!text_reserve(text, count))
        return;
    if (count)
        memcpy(text->at + text->bytes, bytes, count);
    text->bytes += count;
    text->at[text->bytes] = '\0';
}

void text_finish(struct text *text)
{
    free(text->at);
    *text = (struct text){ 0 };
}

char *text_take(struct text *text)
{
    char *at;

    if (!text->at)
        text_add_bytes(text, "", 0);
    if (text->failed) {
        text_finish(text);
        return NULL;
    }
    at = text->at;
    *text = (struct text){ 0 };
    return at;
}

void text_format(char *at, size_t bytes, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(at, bytes, format, args);
    va_end(args);
}
