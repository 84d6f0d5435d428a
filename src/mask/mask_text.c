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
#include "mask/text_reader.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

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
    int64_t option[OPTION_COUNT];
};

static ffa_documents request_docs(const struct request *r)
{
    return (ffa_documents){ .cu_q = r->cu_q, .cu_k = r->cu_k, .document_count = r->document_count };
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
    int more_slices; /* than one a document */
} families[] = {
    { "full", 0, build_full, 0 },
    { "causal", 0, build_causal, 0 },
    { "window", TAKES_WINDOW, build_window, 0 },
    { "global-window", TAKES_WINDOW | TAKES_GLOBAL, build_window, 0 },
    { "varlen-full", TAKES_LIST, build_varlen_full, 0 },
    { "varlen-causal", TAKES_LIST, build_varlen_causal, 0 },
    { "varlen-window", TAKES_LIST | TAKES_WINDOW | TAKES_GLOBAL, build_varlen_window, 0 },
    { "block-causal", TAKES_LIST | TAKES_BLOCK, build_block_causal, 0 },
    { "shared-prefix", TAKES_LIST, build_shared_prefix, 1 },
    { "shared-question", TAKES_LIST, build_shared_question, 1 },
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* ---- reading ---- */

/* Documents of all sizes read so far, and their tokens. */
struct counted {
    int64_t documents, tokens_q, tokens_k;
    int64_t not_empty; /* documents with a cell */
};

/* N, QxK, and in lists either with *COUNT behind. Nothing is built: what is too much is refused
 * here. */
static ffa_status read_size(struct reader *reader, const struct family *family,
                            struct counted *counted, int64_t tokens[2], int64_t *count)
{
    const char *begin = reader->at;
    ffa_status rc;

    *count = 1;
    FFA_TRY(reader_number(reader, 0, &tokens[0]));
    tokens[1] = tokens[0];
    if (reader_take(reader, 'x'))
        FFA_TRY(reader_number(reader, 0, &tokens[1]));
    if ((family->takes & TAKES_LIST) && reader_take(reader, '*'))
        FFA_TRY(reader_number(reader, 1, count));
    counted->documents += *count;
    counted->not_empty += tokens[0] > 0 && tokens[1] > 0 ? *count : 0;
    counted->tokens_q += tokens[0] * *count;
    counted->tokens_k += tokens[1] * *count;
    if (counted->documents > SLICES_MAX)
        rc = error_fail(reader->err, FFA_INVALID, 0,
                        "mask text, column %lld: more than %lld documents",
                        reader_column(reader, begin), (long long)SLICES_MAX);
    else if (counted->tokens_q > TOKENS_MAX || counted->tokens_k > TOKENS_MAX)
        rc = error_fail(reader->err, FFA_INVALID, 0,
                        "mask text, column %lld: more than %lld tokens in all",
                        reader_column(reader, begin), (long long)TOKENS_MAX);
out:
    return rc;
}

static bool has_next_size(const struct reader *reader, const struct family *family)
{
    return (family->takes & TAKES_LIST) && reader->at[0] == ',' &&
           !reader_is_name_char(reader->at[1]);
}

/* Move past the sizes and count their documents. */
static ffa_status count_sizes(struct reader *reader, const struct family *family,
                              struct counted *counted)
{
    int64_t tokens[2], count;
    ffa_status rc;

    *counted = (struct counted){ 0 };
    FFA_TRY(read_size(reader, family, counted, tokens, &count));
    while (has_next_size(reader, family)) {
        reader->at++;
        FFA_TRY(read_size(reader, family, counted, tokens, &count));
    }
out:
    return rc;
}

static void request_add(struct request *r, const int64_t tokens[2], int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = r->document_count++;

        r->cu_q[n + 1] = r->cu_q[n] + tokens[0];
        r->cu_k[n + 1] = r->cu_k[n] + tokens[1];
    }
}

/* The documents of the sizes at `reader`, a copy, that were counted. */
static ffa_status read_sizes(struct reader reader, const struct family *family,
                             const struct counted *counted, struct request *r)
{
    const size_t count = (size_t)counted->documents + 1;
    struct counted again = { 0 };
    int64_t tokens[2], repeated;
    ffa_status rc = FFA_OK;

    r->cu_q = mem_array(count, sizeof *r->cu_q);
    r->cu_k = mem_array(count, sizeof *r->cu_k);
    if (!r->cu_q || !r->cu_k)
        return error_nomem(reader.err, "the mask text's documents");
    while (r->document_count < counted->documents) {
        FFA_TRY(read_size(&reader, family, &again, tokens, &repeated));
        request_add(r, tokens, repeated);
        reader.at++; /* the ',' */
    }
out:
    return rc;
}

/* OPTION=N, the separator already taken. given: a bit an option. */
static ffa_status read_option(struct reader *reader, const struct family *family, struct request *r,
                              int *given)
{
    const char *name;
    size_t bytes = reader_name(reader, &name);

    if (bytes == 0)
        return reader_expected(reader, "an option");
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!reader_is_same(name, bytes, options[i].name) || !(family->takes & 1 << i))
            continue;
        if (*given & 1 << i)
            return error_fail(reader->err, FFA_INVALID, 0,
                              "mask text, column %lld: '%s' is given twice",
                              reader_column(reader, name), options[i].name);
        *given |= 1 << i;
        if (!reader_take(reader, '='))
            return reader_expected(reader, "'='");
        return reader_number(reader, options[i].least, &r->option[i]);
    }
    return error_fail(
        reader->err, FFA_INVALID, 0, "mask text, column %lld: '%s' has no option '%.*s'",
        reader_column(reader, name), family->name, (int)(bytes < 40 ? bytes : 40), name);
}

static ffa_status read_options(struct reader *reader, const struct family *family,
                               struct request *r)
{
    int given = 0;
    ffa_status rc = FFA_OK;

    for (int i = 0; i < OPTION_COUNT; i++)
        r->option[i] = options[i].missing;
    while (!reader_at_end(reader)) {
        if (!reader_take(reader, ',') && !reader_take(reader, '/')) {
            rc = reader_expected(reader, reader->depth ? "',' or '/' or ';' or ')'"
                                                       : "',' or '/' or the end");
            goto out;
        }
        FFA_TRY(read_option(reader, family, r, &given));
    }
    for (int i = 0; i < OPTION_COUNT; i++)
        if ((family->takes & 1 << i) && r->option[i] < options[i].least) {
            rc = error_fail(reader->err, FFA_INVALID, 0,
                            "mask text, column %lld: '%s' needs the option '%s'",
                            reader_column(reader, reader->at), family->name, options[i].name);
            goto out;
        }
out:
    return rc;
}

static ffa_status read_family(struct reader *reader, const char *name, size_t bytes,
                              const struct family **out)
{
    struct text names = { 0 };

    for (int i = 0; i < FAMILY_COUNT; i++)
        if (reader_is_same(name, bytes, families[i].name)) {
            *out = &families[i];
            return reader_take(reader, ':') ? FFA_OK : reader_expected(reader, "':'");
        }
    for (int i = 0; i < FAMILY_COUNT; i++)
        text_add(&names, "%s, ", families[i].name);
    (void)error_fail(reader->err, FFA_INVALID, 0,
                     "mask text, column %lld: '%.*s' is no mask; known are %s%sand @FILE",
                     reader_column(reader, name), (int)(bytes < 40 ? bytes : 40), name,
                     names.at ? names.at : "", expression_names);
    text_finish(&names);
    return FFA_INVALID;
}

/* Refuse before documents and slices are built what cannot become a mask. */
static ffa_status slices_are_few(const struct reader *reader, const struct family *family,
                                 const struct counted *counted, const struct request *r)
{
    int64_t slices = counted->not_empty + family->more_slices;
    char what[64];

    if (family->takes & TAKES_BLOCK)
        slices = max64(slices, counted->tokens_q / r->option[OPTION_BLOCK]);
    if (slices > SLICES_MAX)
        return error_fail(reader->err, FFA_INVALID, 0, "the mask has more than %lld slices",
                          (long long)SLICES_MAX);
    text_copy(what, "a mask of %lld slices", (long long)slices);
    return mem_check(counted->documents * 2 * (int64_t)sizeof(int64_t) +
                         slices * ((int64_t)sizeof(ffa_slice) + MASK_SLICE_BYTES),
                     what, reader->err);
}

static ffa_status family_mask(struct reader *reader, const char *name, size_t bytes, ffa_mask **out)
{
    struct request request = { 0 };
    const struct family *family = NULL;
    struct counted counted;
    struct reader sizes;
    ffa_status rc;

    FFA_TRY(read_family(reader, name, bytes, &family));
    sizes = *reader;
    FFA_TRY(count_sizes(reader, family, &counted));
    FFA_TRY(read_options(reader, family, &request));
    FFA_TRY(slices_are_few(reader, family, &counted, &request));
    FFA_TRY(read_sizes(sizes, family, &counted, &request));
    rc = family->build(out, &request, reader->err);
out:
    mem_free(request.cu_q);
    mem_free(request.cu_k);
    return rc;
}

/* ---- files ---- */

#define FILE_BYTES_MAX ((size_t)1 << 30)

static ffa_status file_fail(const char *path, const char *doing, ffa_error *err)
{
    int code = errno;

    return error_fail(err, FFA_IO, code, "cannot %s '%s': %s", doing, path, strerror(code));
}

/* Room for a whole file, so that the text is not copied while it grows. */
static ffa_status file_reserve(struct text *out, FILE *file, const char *path, ffa_error *err)
{
    struct stat facts;

    if (fstat(fileno(file), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0)
        return FFA_OK;
    if ((uintmax_t)facts.st_size > FILE_BYTES_MAX)
        return error_fail(err, FFA_INVALID, 0, "'%s' has more than %zu bytes", path,
                          FILE_BYTES_MAX);
    out->at = mem_array((size_t)facts.st_size + 1, 1);
    if (!out->at)
        return error_nomem(err, "the mask's file");
    out->capacity = (size_t)facts.st_size + 1;
    return FFA_OK;
}

static ffa_status file_read(struct text *out, const char *path, ffa_error *err)
{
    FILE *file = fault_here(FAULT_FILE) ? NULL : fopen(path, "rb");
    char block[16384];
    size_t got;
    ffa_status rc = FFA_OK;

    if (!file)
        return file_fail(path, "open", err);
    FFA_TRY(file_reserve(out, file, path, err));
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
out:
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

/* '@' and a path: to the end, or inside parentheses to ';' or ')'. */
static ffa_status file_mask(struct reader *reader, ffa_mask **out)
{
    const char *begin = ++reader->at;
    struct text path = { 0 };
    ffa_status rc;

    while (!reader_at_end(reader))
        reader->at++;
    text_add_bytes(&path, begin, (size_t)(reader->at - begin));
    rc = path.failed ? error_nomem(reader->err, "a file's name")
                     : parse_file(out, path.at, reader->err);
    text_finish(&path);
    return rc;
}

ffa_status reader_mask(struct reader *reader, ffa_mask **out)
{
    const char *name;
    size_t bytes;

    if (*reader->at == '@')
        return file_mask(reader, out);
    bytes = reader_name(reader, &name);
    if (is_expression(name, bytes))
        return reader_expression(reader, name, bytes, out);
    return family_mask(reader, name, bytes, out);
}

ffa_status ffa_mask_parse(ffa_mask **out, const char *text, ffa_error *err)
{
    struct reader reader = { text, text, err, 0 };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!text)
        return error_fail(err, FFA_INVALID, 0, "text is NULL");
    FFA_TRY(reader_mask(&reader, out));
    if (*reader.at) {
        rc = reader_expected(&reader, "the end");
        ffa_mask_destroy(*out);
        *out = NULL;
    }
out:
    return rc;
}
