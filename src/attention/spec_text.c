/* SPDX-License-Identifier: Apache-2.0
 *
 * An attention spec from a text: "head_dim=128,dtype=bf16,pack=8,backward". One table has the names
 * of items and how their values are read. Invariant: the caller's spec is written once, at the end,
 * and only the fields that it has.
 */
#include "base/base.h"
#include <ffa/kernel.h>

#include <errno.h>
#include <stdlib.h>

/* An item: its name, and its value, which is "" where there is none. */
struct item {
    const char *at;
    int bytes; /* of all of it, for messages */
    char name[24], value[24];
};

static ffa_status wrong(const struct item *item, const char *expected, ffa_error *err)
{
    return error_fail(err, FFA_INVALID, 0, "spec: '%.*s' is not %s", item->bytes, item->at,
                      expected);
}

/* Whole numbers, one or two with `separator` between them. Returns how many; 0: it is not so. */
static int read_numbers(const char *text, char separator, int32_t out[2])
{
    for (int i = 0; i < 2; i++) {
        char *end;
        long number;

        errno = 0;
        number = strtol(text, &end, 10);
        if (*text < '0' || *text > '9' || errno || number > INT32_MAX)
            return 0;
        out[i] = (int32_t)number;
        if (!*end)
            return i + 1;
        if (*end != separator)
            return 0;
        text = end + 1;
    }
    return 0;
}

static ffa_status read_head_dim(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    int32_t numbers[2] = { 0, 0 };

    if (!read_numbers(item->value, ':', numbers))
        return wrong(item, "head_dim=N or head_dim=Q:V", err);
    spec->head_dim = numbers[0];
    spec->head_dim_v = numbers[1];
    return FFA_OK;
}

static ffa_status read_dtype(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    static const char *const names[] = { "", "bf16", "fp16", "fp32", "fp64" };

    for (int i = FFA_BF16; i <= FFA_FP64; i++)
        if (!strcmp(item->value, names[i])) {
            spec->dtype = (ffa_dtype)i;
            return FFA_OK;
        }
    return wrong(item, "dtype=bf16, fp16, fp32 or fp64", err);
}

static ffa_status read_pack(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    int32_t numbers[2];

    if (!strcmp(item->value, "auto"))
        spec->pack_heads = FFA_PACK_AUTO;
    else if (read_numbers(item->value, '\0', numbers) == 1)
        spec->pack_heads = numbers[0];
    else
        return wrong(item, "pack=N or pack=auto", err);
    return FFA_OK;
}

static ffa_status read_heads(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    int32_t numbers[2];

    if (read_numbers(item->value, ':', numbers) != 2)
        return wrong(item, "heads=Q:KV", err);
    if (!numbers[0] && !numbers[1]) /* which means that they are not said */
        return error_fail(err, FFA_INVALID, 0, "spec: '%.*s' is not heads=Q:KV in [1, %d]",
                          item->bytes, item->at, FFA_HEADS_MAX);
    spec->heads_q = numbers[0];
    spec->heads_kv = numbers[1];
    return FFA_OK;
}

static ffa_status read_tile(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    int32_t numbers[2];

    if (read_numbers(item->value, 'x', numbers) != 2)
        return wrong(item, "tile=MxN", err);
    spec->tile_m = numbers[0];
    spec->tile_n = numbers[1];
    return FFA_OK;
}

static ffa_status read_backward_tile(ffa_attention_spec *spec, const struct item *item,
                                     ffa_error *err)
{
    int32_t numbers[2];

    if (read_numbers(item->value, 'x', numbers) != 2)
        return wrong(item, "backward_tile=MxN", err);
    spec->backward_tile_m = numbers[0];
    spec->backward_tile_n = numbers[1];
    return FFA_OK;
}

static ffa_status read_flag(ffa_attention_spec *spec, uint32_t flag, const struct item *item,
                            ffa_error *err)
{
    if (!item->value[0] || !strcmp(item->value, "1"))
        spec->flags |= flag;
    else if (!strcmp(item->value, "0"))
        spec->flags &= ~flag;
    else
        return wrong(item, "a flag, which is 0 or 1", err);
    return FFA_OK;
}

static ffa_status read_split(ffa_attention_spec *spec, const struct item *item, ffa_error *err)
{
    spec->split = 0;
    if (strcmp(item->value, "auto") != 0)
        return read_flag(spec, FFA_SPEC_SPLIT, item, err);
    spec->split = FFA_SPLIT_AUTO;
    spec->flags &= ~(uint32_t)FFA_SPEC_SPLIT;
    return FFA_OK;
}

static const struct row {
    const char *name;
    ffa_status (*read)(ffa_attention_spec *spec, const struct item *item, ffa_error *err);
    uint32_t flag;  /* of a row without `read` */
    bool has_value; /* it must */
} rows[] = {
    { "head_dim", read_head_dim, 0, true },
    { "dtype", read_dtype, 0, true },
    { "pack", read_pack, 0, true },
    { "heads", read_heads, 0, true },
    { "tile", read_tile, 0, true },
    { "backward_tile", read_backward_tile, 0, true },
    { "split", read_split, 0, false },
    { "backward", NULL, FFA_SPEC_BACKWARD, false },
    { "deterministic", NULL, FFA_SPEC_DETERMINISTIC, false },
    { "softcap", NULL, FFA_SPEC_SOFTCAP, false },
    { "max_logits", NULL, FFA_SPEC_MAX_LOGITS, false },
    { "out_fp32", NULL, FFA_SPEC_OUT_FP32, false },
    { "grad_fp32", NULL, FFA_SPEC_GRAD_FP32, false },
    { "staged", NULL, FFA_SPEC_STAGED, false },
    { "parallel", NULL, FFA_SPEC_PARALLEL, false },
    { "debug", NULL, FFA_SPEC_DEBUG, false },
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

static const struct row *row_of(const struct item *item)
{
    for (int i = 0; i < ROW_COUNT; i++)
        if (!strcmp(rows[i].name, item->name))
            return &rows[i];
    return NULL;
}

static ffa_status wrong_name(const struct item *item, ffa_error *err)
{
    char names[256] = "one of";

    for (int i = 0; i < ROW_COUNT; i++)
        text_format(names + strlen(names), sizeof names - strlen(names), "%s %s%s", i ? "," : "",
                    rows[i].name, rows[i].has_value ? "=" : "");
    return wrong(item, names, err);
}

/* The item at `text`, up to the next comma; FFA_INVALID where there is no such. */
static ffa_status item_read(struct item *item, const char *text, ffa_error *err)
{
    const int bytes = (int)strcspn(text, ","), name = (int)strcspn(text, ",=");
    const bool has_value = name < bytes;
    const struct row *row;

    *item = (struct item){ .at = text, .bytes = bytes < 64 ? bytes : 64 };
    text_copy(item->name, "%.*s", name, text);
    row = row_of(item);
    if (!row)
        return wrong_name(item, err);
    if (has_value && bytes - name - 1 >= (int)sizeof item->value)
        return wrong(item, "a name and a value of up to 23 characters", err);
    if (has_value)
        text_copy(item->value, "%.*s", bytes - name - 1, text + name + 1);
    if ((row->has_value || has_value) && !item->value[0])
        return wrong(item, "a name and a value, such as head_dim=128", err);
    return FFA_OK;
}

ffa_status ffa_attention_spec_parse(ffa_attention_spec *out, const char *text, ffa_error *err)
{
    bool is_there[ROW_COUNT] = { false };
    ffa_attention_spec spec;
    ffa_status rc;

    if (!out || !text)
        return error_fail(err, FFA_INVALID, 0, "ffa_attention_spec_parse: %s is NULL",
                          out ? "text" : "spec");
    FFA_TRY(opts_import(&spec, sizeof spec, out, err));
    for (;;) {
        const struct row *row;
        struct item item;

        FFA_TRY(item_read(&item, text, err));
        row = row_of(&item);
        if (is_there[row - rows])
            return error_fail(err, FFA_INVALID, 0, "spec: '%s' is there twice", row->name);
        is_there[row - rows] = true;
        FFA_TRY(row->read ? row->read(&spec, &item, err) : read_flag(&spec, row->flag, &item, err));
        text += strcspn(text, ",");
        if (!*text++)
            break;
    }
    rc = opts_export(out, &spec, sizeof spec, err);
out:
    return rc;
}
