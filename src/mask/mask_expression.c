/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks of masks as text: concat(A;B), union(A;B), crop(A;q=B:E,k=B:E), shift(A;q=N,k=N,size=QxK).
 *
 * An operand is any text of a mask. Operands are built as they are read, so a text takes memory for
 * the masks it names and no tree of itself. Invariant: how deep expressions nest is limited, as
 * each level is a level of calls.
 */
#include "mask/text_reader.h"

enum { DEPTH_MAX = 16 };

const char *const expression_names = "concat(), union(), crop(), shift() ";

struct operands {
    ffa_mask **at;
    int64_t count, capacity;
};

static void operands_finish(struct operands *operands)
{
    for (int64_t i = 0; i < operands->count; i++)
        ffa_mask_destroy(operands->at[i]);
    mem_free(operands->at);
}

static ffa_status read_operand(struct reader *reader, struct operands *operands)
{
    ffa_mask *mask = NULL;
    ffa_status rc;

    FFA_TRY(reader_mask(reader, &mask));
    if (!mem_grow((void **)&operands->at, &operands->capacity, operands->count + 1,
                  sizeof(ffa_mask *))) {
        ffa_mask_destroy(mask);
        return error_nomem(reader->err, "the masks of a mask text");
    }
    operands->at[operands->count++] = mask;
out:
    return rc;
}

static ffa_status read_close(struct reader *reader, const char *what)
{
    return reader_take(reader, ')') ? FFA_OK : reader_expected(reader, what);
}

/* ---- options of one mask ---- */

/* What stands behind the mask; not given: what the mask says. */
struct options {
    ffa_mask_box box;       /* of crop */
    ffa_mask_offset offset; /* of shift */
    ffa_mask_shape size;
};

/* BEGIN:END */
static ffa_status read_range(struct reader *reader, int64_t *begin, int64_t *end)
{
    ffa_status rc;

    FFA_TRY(reader_number(reader, 0, begin));
    if (!reader_take(reader, ':'))
        return reader_expected(reader, "':'");
    rc = reader_number(reader, 0, end);
out:
    return rc;
}

static ffa_status read_crop_q(struct reader *reader, struct options *options)
{
    return read_range(reader, &options->box.q_begin, &options->box.q_end);
}

static ffa_status read_crop_k(struct reader *reader, struct options *options)
{
    return read_range(reader, &options->box.k_begin, &options->box.k_end);
}

static ffa_status read_shift_q(struct reader *reader, struct options *options)
{
    return reader_number(reader, -TOKENS_MAX, &options->offset.q);
}

static ffa_status read_shift_k(struct reader *reader, struct options *options)
{
    return reader_number(reader, -TOKENS_MAX, &options->offset.k);
}

/* N or QxK */
static ffa_status read_shift_size(struct reader *reader, struct options *options)
{
    ffa_status rc;

    FFA_TRY(reader_number(reader, 1, &options->size.seqlen_q));
    options->size.seqlen_k = options->size.seqlen_q;
    if (reader_take(reader, 'x'))
        FFA_TRY(reader_number(reader, 1, &options->size.seqlen_k));
out:
    return rc;
}

struct option {
    const char *name;
    ffa_status (*read)(struct reader *reader, struct options *options);
};

static const struct option crop_options[] = { { "q", read_crop_q }, { "k", read_crop_k } };
static const struct option shift_options[] = {
    { "q", read_shift_q },
    { "k", read_shift_k },
    { "size", read_shift_size },
};

/* ---- expressions ---- */

static ffa_status make_concat(ffa_mask **out, const struct operands *operands,
                              const struct options *options, ffa_error *err)
{
    (void)options;
    return ffa_mask_concat(out, (const ffa_mask *const *)operands->at, operands->count, err);
}

static ffa_status make_union(ffa_mask **out, const struct operands *operands,
                             const struct options *options, ffa_error *err)
{
    (void)options;
    return ffa_mask_union(out, (const ffa_mask *const *)operands->at, operands->count, err);
}

static ffa_status make_crop(ffa_mask **out, const struct operands *operands,
                            const struct options *options, ffa_error *err)
{
    return ffa_mask_crop(out, operands->at[0], &options->box, err);
}

static ffa_status make_shift(ffa_mask **out, const struct operands *operands,
                             const struct options *options, ffa_error *err)
{
    return ffa_mask_shift(out, operands->at[0], &options->offset, &options->size, err);
}

static const struct expression {
    const char *name;
    const struct option *options; /* NULL: masks, as many as there are */
    int option_count;
    ffa_status (*make)(ffa_mask **out, const struct operands *operands,
                       const struct options *options, ffa_error *err);
} expressions[] = {
    { "concat", NULL, 0, make_concat },
    { "union", NULL, 0, make_union },
    { "crop", crop_options, 2, make_crop },
    { "shift", shift_options, 3, make_shift },
};
enum { EXPRESSION_COUNT = sizeof expressions / sizeof *expressions };

static const struct expression *find(const char *name, size_t bytes)
{
    for (int i = 0; i < EXPRESSION_COUNT; i++)
        if (reader_is_same(name, bytes, expressions[i].name))
            return &expressions[i];
    return NULL;
}

bool is_expression(const char *name, size_t bytes)
{
    return find(name, bytes) != NULL;
}

/* NAME=VALUE. given: a bit an option. */
static ffa_status read_option(struct reader *reader, const struct expression *expression,
                              struct options *options, int *given)
{
    const char *name;
    const size_t bytes = reader_name(reader, &name);

    if (bytes == 0)
        return reader_expected(reader, "an option");
    for (int i = 0; i < expression->option_count; i++) {
        if (!reader_is_same(name, bytes, expression->options[i].name))
            continue;
        if (*given & 1 << i)
            return error_fail(reader->err, FFA_INVALID, 0,
                              "mask text, column %lld: '%s' is given twice",
                              reader_column(reader, name), expression->options[i].name);
        *given |= 1 << i;
        if (!reader_take(reader, '='))
            return reader_expected(reader, "'='");
        return expression->options[i].read(reader, options);
    }
    return error_fail(
        reader->err, FFA_INVALID, 0, "mask text, column %lld: '%s' has no option '%.*s'",
        reader_column(reader, name), expression->name, (int)(bytes < 40 ? bytes : 40), name);
}

/* Behind the mask: nothing, or ';' and options, then ')'. */
static ffa_status read_options(struct reader *reader, const struct expression *expression,
                               const ffa_mask *mask, struct options *options)
{
    int given = 0;
    ffa_status rc = FFA_OK;

    *options = (struct options){ { 0, ffa_mask_seqlen_q(mask), 0, ffa_mask_seqlen_k(mask) },
                                 { 0, 0 },
                                 { ffa_mask_seqlen_q(mask), ffa_mask_seqlen_k(mask) } };
    if (reader_take(reader, ')'))
        return FFA_OK;
    if (!reader_take(reader, ';'))
        return reader_expected(reader, "';' or ')'");
    do
        FFA_TRY(read_option(reader, expression, options, &given));
    while (reader_take(reader, ','));
    rc = read_close(reader, "',' or ')'");
out:
    return rc;
}

static ffa_status read_operands(struct reader *reader, const struct expression *expression,
                                struct operands *operands, struct options *options)
{
    ffa_status rc;

    FFA_TRY(read_operand(reader, operands));
    if (expression->options)
        return read_options(reader, expression, operands->at[0], options);
    while (reader_take(reader, ';'))
        FFA_TRY(read_operand(reader, operands));
    rc = read_close(reader, "';' or ')'");
out:
    return rc;
}

ffa_status reader_expression(struct reader *reader, const char *name, size_t bytes, ffa_mask **out)
{
    const struct expression *expression = find(name, bytes);
    struct operands operands = { 0 };
    struct options options = { 0 };
    ffa_status rc = FFA_OK;

    if (!reader_take(reader, '('))
        return reader_expected(reader, "'('");
    if (++reader->depth > DEPTH_MAX)
        return error_fail(reader->err, FFA_INVALID, 0,
                          "mask text, column %lld: masks nest more than %d deep",
                          reader_column(reader, name), DEPTH_MAX);
    FFA_TRY(read_operands(reader, expression, &operands, &options));
    reader->depth--;
    rc = expression->make(out, &operands, &options, reader->err);
out:
    operands_finish(&operands);
    return rc;
}
