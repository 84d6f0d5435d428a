/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks as the command line writes them: NAME:SIZES[,OPTION=N]..., or @FILE.
 *
 *   SIZES    N, or QxK where queries and keys differ; for packed documents a list, in which N*COUNT
 *            stands for COUNT documents of N tokens
 *   OPTION   left, right, global, block; `/` may stand in place of `,` before one
 *
 * One table says which name takes what; one reader walks the text and knows its column.
 */
#include "mask/mask.h"

#include <errno.h>
#include <stdio.h>

enum option { OPTION_LEFT, OPTION_RIGHT, OPTION_GLOBAL, OPTION_BLOCK, OPTION_COUNT };

static const struct {
    const char *name;
    int64_t least, missing; /* missing: the value where it is not given; below least: required */
} options[OPTION_COUNT] = {
    [OPTION_LEFT] = { "left", -1, -1 },
    [OPTION_RIGHT] = { "right", -1, -1 },
    [OPTION_GLOBAL] = { "global", 0, 0 },
    [OPTION_BLOCK] = { "block", 1, 0 },
};

enum {
    TAKES_LIST = 1 << OPTION_COUNT,
    TAKES_WINDOW = 1 << OPTION_LEFT | 1 << OPTION_RIGHT,
    TAKES_GLOBAL = 1 << OPTION_GLOBAL,
    TAKES_BLOCK = 1 << OPTION_BLOCK
};

/* What the text says. Boundaries: [document_count + 1]. */
struct request {
    int64_t *cu_q, *cu_k;
    int64_t document_count;
    int64_t capacity_q, capacity_k;
    int64_t option[OPTION_COUNT];
};

static ffa_documents request_docs(const struct request *r)
{
    return (ffa_documents){ r->cu_q, r->cu_k, r->document_count };
}

static ffa_mask_shape request_shape(const struct request *r)
{
    return (ffa_mask_shape){ r->cu_q[r->document_count], r->cu_k[r->document_count] };
}

static ffa_window request_window(const struct request *r)
{
    return (ffa_window){ r->option[OPTION_LEFT], r->option[OPTION_RIGHT] };
}

/* ---- from a request to a builder ---- */

static ffa_status build_full(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_mask_shape shape = request_shape(r);

    return ffa_mask_full(out, &shape, err);
}

static ffa_status build_causal(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_mask_shape shape = request_shape(r);

    return ffa_mask_causal(out, &shape, err);
}

static ffa_status build_window(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_mask_shape shape = request_shape(r);
    ffa_window window = request_window(r);

    return ffa_mask_global_window(out, &shape, &window, r->option[OPTION_GLOBAL], err);
}

static ffa_status build_varlen_full(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);

    return ffa_mask_varlen_full(out, &docs, err);
}

static ffa_status build_varlen_causal(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);

    return ffa_mask_varlen_causal(out, &docs, err);
}

static ffa_status build_varlen_window(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);
    ffa_window window = request_window(r);

    return ffa_mask_varlen_window(out, &docs, &window, r->option[OPTION_GLOBAL], err);
}

static ffa_status build_block_causal(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);

    return ffa_mask_block_causal(out, &docs, r->option[OPTION_BLOCK], err);
}

static ffa_status build_shared_prefix(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);

    return ffa_mask_shared_prefix(out, &docs, err);
}

static ffa_status build_shared_question(ffa_mask **out, const struct request *r, ffa_error *err)
{
    ffa_documents docs = request_docs(r);

    return ffa_mask_shared_question(out, &docs, err);
}

static const struct family {
    const char *name;
    int takes;
    ffa_status (*build)(ffa_mask **out, const struct request *r, ffa_error *err);
} families[] = {
    { "full", 0, build_full },
    { "causal", 0, build_causal },
    { "window", TAKES_WINDOW, build_window },
    { "global-window", TAKES_WINDOW | TAKES_GLOBAL, build_window },
    { "varlen-full", TAKES_LIST, build_varlen_full },
    { "varlen-causal", TAKES_LIST, build_varlen_causal },
    { "varlen-window", TAKES_LIST | TAKES_WINDOW | TAKES_GLOBAL, build_varlen_window },
    { "block-causal", TAKES_LIST | TAKES_BLOCK, build_block_causal },
    { "shared-prefix", TAKES_LIST, build_shared_prefix },
    { "shared-question", TAKES_LIST, build_shared_question },
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* ---- reading ---- */

struct reader {
    const char *text, *at;
    ffa_error *err;
};

static long long column_of(const struct reader *reader, const char *at)
{
    return at - reader->text + 1;
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

static ffa_status expected(const struct reader *reader, const char *what)
{
    char quoted[4];

    return error_fail(reader->err, FFA_INVALID, 0, "mask text, column %lld: expected %s, got %s",
                      column_of(reader, reader->at), what, seen(reader->at, quoted));
}

static bool is_digit(char c)
{
    return '0' <= c && c <= '9';
}

static bool is_name(char c)
{
    return ('a' <= c && c <= 'z') || c == '-' || c == '_';
}

static bool take(struct reader *reader, char c)
{
    if (*reader->at != c)
        return false;
    reader->at++;
    return true;
}

/* A whole number in [least, 2^31 - 1]; the only negative one there can be is -1. */
static ffa_status read_number(struct reader *reader, int64_t least, int64_t *out)
{
    const char *begin = reader->at;
    int64_t value = 0;
    bool is_negative = least < 0 && take(reader, '-');

    if (!is_digit(*reader->at))
        return expected(reader, "a number");
    for (; is_digit(*reader->at); reader->at++)
        if (value <= TOKENS_MAX)
            value = value * 10 + (*reader->at - '0');
    if (is_negative)
        value = -value;
    if (value < least || value > TOKENS_MAX)
        return error_fail(
            reader->err, FFA_INVALID, 0, "mask text, column %lld: %.*s is not in [%lld, %lld]",
            column_of(reader, begin), (int)(reader->at - begin < 40 ? reader->at - begin : 40),
            begin, (long long)least, (long long)TOKENS_MAX);
    *out = value;
    return FFA_OK;
}

static ffa_status request_add(struct reader *reader, struct request *r, const char *begin,
                              int64_t tokens_q, int64_t tokens_k)
{
    int64_t n = r->document_count;

    if (!mem_grow((void **)&r->cu_q, &r->capacity_q, n + 2, sizeof *r->cu_q) ||
        !mem_grow((void **)&r->cu_k, &r->capacity_k, n + 2, sizeof *r->cu_k))
        return error_nomem(reader->err, "the mask text's documents");
    if (n == 0)
        r->cu_q[0] = r->cu_k[0] = 0;
    r->cu_q[n + 1] = r->cu_q[n] + tokens_q;
    r->cu_k[n + 1] = r->cu_k[n] + tokens_k;
    if (r->cu_q[n + 1] > TOKENS_MAX || r->cu_k[n + 1] > TOKENS_MAX)
        return error_fail(reader->err, FFA_INVALID, 0,
                          "mask text, column %lld: more than %lld tokens in all",
                          column_of(reader, begin), (long long)TOKENS_MAX);
    r->document_count++;
    return FFA_OK;
}

/* N, QxK, and in lists either with *COUNT behind. */
static ffa_status read_size(struct reader *reader, const struct family *family, struct request *r)
{
    const char *begin = reader->at;
    int64_t tokens_q, tokens_k, count = 1;
    ffa_status rc;

    FFA_TRY(read_number(reader, 0, &tokens_q));
    tokens_k = tokens_q;
    if (take(reader, 'x'))
        FFA_TRY(read_number(reader, 0, &tokens_k));
    if ((family->takes & TAKES_LIST) && take(reader, '*'))
        FFA_TRY(read_number(reader, 1, &count));
    if (count > SLICES_MAX) {
        rc = error_fail(reader->err, FFA_INVALID, 0,
                        "mask text, column %lld: more than %lld documents",
                        column_of(reader, begin), (long long)SLICES_MAX);
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        FFA_TRY(request_add(reader, r, begin, tokens_q, tokens_k));
out:
    return rc;
}

static ffa_status read_sizes(struct reader *reader, const struct family *family, struct request *r)
{
    ffa_status rc;

    FFA_TRY(read_size(reader, family, r));
    while ((family->takes & TAKES_LIST) && reader->at[0] == ',' && !is_name(reader->at[1])) {
        reader->at++;
        FFA_TRY(read_size(reader, family, r));
    }
out:
    return rc;
}

/* The name at reader->at, which is moved past it. */
static size_t read_name(struct reader *reader, const char **name)
{
    *name = reader->at;
    while (is_name(*reader->at))
        reader->at++;
    return (size_t)(reader->at - *name);
}

static bool is_same(const char *name, size_t bytes, const char *other)
{
    return strlen(other) == bytes && memcmp(name, other, bytes) == 0;
}

/* OPTION=N, the separator already taken. given: a bit an option. */
static ffa_status read_option(struct reader *reader, const struct family *family, struct request *r,
                              int *given)
{
    const char *name;
    size_t bytes = read_name(reader, &name);

    if (bytes == 0)
        return expected(reader, "an option");
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!is_same(name, bytes, options[i].name) || !(family->takes & 1 << i))
            continue;
        if (*given & 1 << i)
            return error_fail(reader->err, FFA_INVALID, 0,
                              "mask text, column %lld: '%s' is given twice",
                              column_of(reader, name), options[i].name);
        *given |= 1 << i;
        if (!take(reader, '='))
            return expected(reader, "'='");
        return read_number(reader, options[i].least, &r->option[i]);
    }
    return error_fail(reader->err, FFA_INVALID, 0,
                      "mask text, column %lld: '%s' has no option '%.*s'", column_of(reader, name),
                      family->name, (int)(bytes < 40 ? bytes : 40), name);
}

static ffa_status read_options(struct reader *reader, const struct family *family,
                               struct request *r)
{
    int given = 0;
    ffa_status rc = FFA_OK;

    for (int i = 0; i < OPTION_COUNT; i++)
        r->option[i] = options[i].missing;
    while (*reader->at) {
        if (!take(reader, ',') && !take(reader, '/')) {
            rc = expected(reader, "',' or '/' or the end");
            goto out;
        }
        FFA_TRY(read_option(reader, family, r, &given));
    }
    for (int i = 0; i < OPTION_COUNT; i++)
        if ((family->takes & 1 << i) && r->option[i] < options[i].least) {
            rc = error_fail(reader->err, FFA_INVALID, 0,
                            "mask text, column %lld: '%s' needs the option '%s'",
                            column_of(reader, reader->at), family->name, options[i].name);
            goto out;
        }
out:
    return rc;
}

static ffa_status read_family(struct reader *reader, const struct family **out)
{
    struct text names = { 0 };
    const char *name;
    size_t bytes = read_name(reader, &name);

    for (int i = 0; i < FAMILY_COUNT; i++)
        if (is_same(name, bytes, families[i].name)) {
            *out = &families[i];
            return take(reader, ':') ? FFA_OK : expected(reader, "':'");
        }
    for (int i = 0; i < FAMILY_COUNT; i++)
        text_add(&names, "%s, ", families[i].name);
    (void)error_fail(reader->err, FFA_INVALID, 0,
                     "mask text, column 1: '%.*s' is no mask; known are %sand @FILE",
                     (int)(bytes < 40 ? bytes : 40), name, names.at ? names.at : "");
    text_finish(&names);
    return FFA_INVALID;
}

/* ---- files ---- */

#define FILE_BYTES_MAX ((size_t)1 << 30)

static ffa_status file_fail(const char *path, const char *doing, ffa_error *err)
{
    int code = errno;

    return error_fail(err, FFA_IO, code, "cannot %s '%s': %s", doing, path, strerror(code));
}

static ffa_status file_read(struct text *out, const char *path, ffa_error *err)
{
    FILE *file = fault_here(FAULT_FILE) ? NULL : fopen(path, "rb");
    char block[16384];
    size_t got;
    ffa_status rc = FFA_OK;

    if (!file)
        return file_fail(path, "open", err);
    do {
        got = fread(block, 1, sizeof block, file);
        text_add_bytes(out, block, got);
    } while (got == sizeof block && !out->failed && out->bytes <= FILE_BYTES_MAX);
    if (ferror(file) || fault_here(FAULT_FILE))
        rc = file_fail(path, "read", err);
    else if (out->failed)
        rc = error_nomem(err, "the mask's file");
    else if (out->bytes > FILE_BYTES_MAX)
        rc = error_fail(err, FFA_INVALID, 0, "'%s' has more than %zu bytes", path, FILE_BYTES_MAX);
    (void)fclose(file);
    return rc;
}

static ffa_status parse_file(ffa_mask **out, const char *path, ffa_error *err)
{
    struct text text = { 0 };
    ffa_status rc;

    FFA_TRY(file_read(&text, path, err));
    rc = ffa_mask_parse_json(out, text.at, text.bytes, err);
out:
    text_finish(&text);
    return rc;
}

ffa_status ffa_mask_parse(ffa_mask **out, const char *text, ffa_error *err)
{
    struct reader reader = { text, text, err };
    struct request request = { 0 };
    const struct family *family = NULL;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!text)
        return error_fail(err, FFA_INVALID, 0, "text is NULL");
    if (text[0] == '@')
        return parse_file(out, text + 1, err);

    FFA_TRY(read_family(&reader, &family));
    FFA_TRY(read_sizes(&reader, family, &request));
    FFA_TRY(read_options(&reader, family, &request));
    rc = family->build(out, &request, err);
out:
    mem_free(request.cu_q);
    mem_free(request.cu_k);
    return rc;
}
