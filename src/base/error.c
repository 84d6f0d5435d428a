/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors, and options of older and newer callers. Invariant: a failure fills the caller's ffa_error
 * and nothing else; there is no last error of a thread or a process. Option structs say their own
 * size, so a caller built against an older header gets zeros for the fields it does not know.
 */
#include "base/base.h"
#include "base/printable.h"

#include <stdio.h>

const char *ffa_status_text(ffa_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case FFA_##name:                                                                               \
        return text;
        FFA_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

#define VERSION_TEXT(a, b, c) #a "." #b "." #c
#define VERSION_EXPAND(a, b, c) VERSION_TEXT(a, b, c)

const char *ffa_version(void)
{
    return VERSION_EXPAND(FFA_VERSION_MAJOR, FFA_VERSION_MINOR, FFA_VERSION_PATCH);
}

void ffa_free(void *memory)
{
    free(memory);
}

/* Messages quote texts from elsewhere: none reaches a terminal or a log as more than text. */
ffa_status error_fail(ffa_error *err, ffa_status status, int32_t native, const char *format, ...)
{
    char said[sizeof err->message];
    va_list args;

    if (!err)
        return status;
    err->status = status;
    err->native = native;
    va_start(args, format);
    (void)vsnprintf(said, sizeof said, format, args);
    va_end(args);
    text_printable(err->message, sizeof err->message, said, "");
    return status;
}

ffa_status error_nomem(ffa_error *err, const char *what)
{
    return error_fail(err, FFA_NOMEM, 0, "no memory for %s", what);
}

/* Far above any struct's size now or to come: more is memory that was never initialised, and must
 * not be read or written. */
enum { STRUCT_BYTES_MAX = 1 << 14 };

static ffa_status size_check(uint32_t bytes, ffa_error *err)
{
    if (bytes < sizeof bytes || bytes > STRUCT_BYTES_MAX)
        return error_fail(err, FFA_INVALID, 0,
                          "struct_size is %u, not in [%zu, %d]: start from the _INIT macro", bytes,
                          sizeof bytes, STRUCT_BYTES_MAX);
    return FFA_OK;
}

/* The first byte of [from, to) that says something, or `to`: bytes are 0 by default, but for
 * tensors, which begin as FFA_TENSOR_INIT(NULL). */
static size_t tail_said(const unsigned char *bytes, size_t from, size_t to)
{
    /* FFA_TENSOR_INIT(NULL) of ffa/tensor.h, which this room does not see; test_base compares. */
    static const struct {
        void *data;
        int64_t strides[2], rest[5];
    } none = { NULL, { INT64_MIN, INT64_MIN }, { 0 } };
    size_t at = from;

    while (at < to) {
        if (at % sizeof(int64_t) == 0 && to - at >= sizeof none &&
            !memcmp(bytes + at, &none, sizeof none))
            at += sizeof none;
        else if (bytes[at])
            break;
        else
            at++;
    }
    return at;
}

ffa_status opts_import(void *dst, size_t dst_size, const void *src, ffa_error *err)
{
    uint32_t src_size;
    size_t said;

    memset(dst, 0, dst_size);
    if (!src)
        return FFA_OK;
    memcpy(&src_size, src, sizeof src_size);
    if (size_check(src_size, err) != FFA_OK)
        return FFA_INVALID;
    said = tail_said(src, dst_size, src_size);
    if (said < src_size)
        return error_fail(err, FFA_UNSUPPORTED, 0,
                          "an option at byte %zu is newer than this library", said);
    memcpy(dst, src, src_size < dst_size ? src_size : dst_size);
    return FFA_OK;
}

ffa_status opts_export(void *dst, const void *src, size_t src_size, ffa_error *err)
{
    uint32_t dst_size;

    memcpy(&dst_size, dst, sizeof dst_size);
    if (size_check(dst_size, err) != FFA_OK)
        return FFA_INVALID;
    memset(dst, 0, dst_size);
    memcpy(dst, src, dst_size < src_size ? dst_size : src_size);
    memcpy(dst, &dst_size, sizeof dst_size);
    return FFA_OK;
}

ffa_status opts_export_all(void *dst, int64_t count, const void *src, size_t src_size,
                           ffa_error *err)
{
    uint32_t dst_size;
    ffa_status rc = FFA_OK;

    memcpy(&dst_size, dst, sizeof dst_size);
    if (dst_size % 8 != 0)
        return error_fail(err, FFA_INVALID, 0,
                          "struct_size is %u, not a multiple of 8: start from the _INIT macro",
                          dst_size);
    for (int64_t i = 0; rc == FFA_OK && i < count; i++) {
        unsigned char *to = (unsigned char *)dst + (size_t)i * dst_size;

        memcpy(to, &dst_size, sizeof dst_size);
        rc = opts_export(to, (const unsigned char *)src + (size_t)i * src_size, src_size, err);
    }
    return rc;
}

ffa_status check_bounded(const struct bounded *fields, size_t count, ffa_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return error_fail(err, FFA_INVALID, 0, "%s is %lld, not in [%lld, %lld]",
                              fields[i].name, (long long)fields[i].value, (long long)fields[i].min,
                              (long long)fields[i].max);
    return FFA_OK;
}

ffa_status check_heads(const char *prefix, int32_t heads_q, int32_t heads_kv, int32_t most,
                       ffa_error *err)
{
    if (heads_kv < 1 || heads_kv > most)
        return error_fail(err, FFA_INVALID, 0, "%sheads_kv is %d, not in [1, %d]", prefix, heads_kv,
                          most);
    if (heads_q < 1 || heads_q > most || heads_q % heads_kv)
        return error_fail(err, FFA_INVALID, 0,
                          "%sheads_q is %d, not a multiple of heads_kv = %d in [1, %d]", prefix,
                          heads_q, heads_kv, most);
    return FFA_OK;
}

ffa_status check_mask_lists(const char *prefix, int32_t lists, int32_t heads_kv, ffa_error *err)
{
    if (lists > 1 && lists != heads_kv)
        return error_fail(err, FFA_INVALID, 0, "%sheads_kv is %d, the mask has %d lists", prefix,
                          heads_kv, lists);
    return FFA_OK;
}
