/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of templates, made from their .spec.def files: names, limits, defaults.
 * Nothing is chosen here: src/choose fills in what a caller leaves open, then a spec is resolved,
 * which is to check it and to derive what follows.
 * To add a template: its rows, its functions and one line in `templates` below.
 */
#include "base/digest.h"
#include "jit/jit.h"

#include "attention_backward.args.h"
#include "attention_forward.args.h"
#include "backward_rows.h"
#include "base/embedded.h"
#include "device_limits.h"
#include "forward_combine.args.h"
#include "row_items.h"

#include <limits.h>
#include <stdio.h>

/* ---- architectures ---- */

static const struct jit_arch archs[] = {
    { "sm_90a", "compute_90a", SM90_SHARED_BYTES_MAX },
};
#define ARCH_NAMES "sm_90a"

ffa_status jit_arch_find(const struct jit_arch **out, const char *name, ffa_error *err)
{
    *out = NULL;
    if (!name || !*name)
        return error_fail(err, FFA_INVALID, 0, "arch is empty; known: " ARCH_NAMES);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].name, name) == 0) {
            *out = &archs[i];
            return FFA_OK;
        }
    return error_fail(err, FFA_UNSUPPORTED, 0,
                      "there are no kernels for arch '%s'; supported: " ARCH_NAMES, name);
}

/* ---- rows ---- */

struct row {
    const char *name;
    int32_t initial, lo, hi;
    const char *doc;
};

static const struct row attention_forward_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "attention_forward.spec.def"
#undef FFA_SPEC
};

static const struct row attention_backward_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "attention_backward.spec.def"
#undef FFA_SPEC
};

static const struct row backward_prepare_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "backward_prepare.spec.def"
#undef FFA_SPEC
};

static const struct row backward_finish_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "backward_finish.spec.def"
#undef FFA_SPEC
};

static const struct row forward_combine_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "forward_combine.spec.def"
#undef FFA_SPEC
};

static const struct row row_copy_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "row_copy.spec.def"
#undef FFA_SPEC
};

static const struct row row_reduce_rows[] = {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) { #name, initial, lo, hi, doc },
#include "row_reduce.spec.def"
#undef FFA_SPEC
};

/* The same rows as indices of jit_spec.values. */
enum {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) FORWARD_##name,
#include "attention_forward.spec.def"
#undef FFA_SPEC
};

enum {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) BACKWARD_##name,
#include "attention_backward.spec.def"
#undef FFA_SPEC
};

enum {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) PREPARE_##name,
#include "backward_prepare.spec.def"
#undef FFA_SPEC
};

enum {
#define FFA_SPEC(name, sample, initial, lo, hi, doc) FINISH_##name,
#include "backward_finish.spec.def"
#undef FFA_SPEC
};

/* Rows whose values have names. */
static const struct {
    const char *row;
    const char *name;
    int32_t value;
} value_names[] = {
    { "dtype", "bf16", 1 },    { "dtype", "fp16", 2 },    { "gradient", "bf16", 1 },
    { "gradient", "fp16", 2 }, { "gradient", "fp32", 3 }, { "input", "bf16", 1 },
    { "input", "fp16", 2 },    { "input", "fp32", 3 },    { "received", "bf16", 1 },
    { "received", "fp16", 2 }, { "output", "bf16", 1 },   { "output", "fp16", 2 },
    { "output", "fp32", 3 },   { "op", "sum", 1 },        { "op", "avg", 2 },
    { "op", "lse", 3 },        { "op", "max", 4 },
};

/* ---- what a template needs beyond its rows ---- */

struct forward {
    int32_t head_dim, head_dim_v, consumers, tile_n, kv_slots;
};

/* The least there are products for. */
static const int32_t kernel_columns[] = { 64, 96, 128, 192, 256 };

int32_t jit_columns(int32_t head_dim)
{
    int32_t i = 0;

    while (kernel_columns[i] < head_dim)
        i++;
    return kernel_columns[i];
}

static struct forward forward_of(const struct jit_spec *spec)
{
    return (struct forward){
        .head_dim = spec->values[FORWARD_head_dim],
        .head_dim_v = spec->values[FORWARD_head_dim_v],
        .consumers = spec->values[FORWARD_consumers],
        .tile_n = spec->values[FORWARD_tile_n],
        .kv_slots = spec->values[FORWARD_kv_slots],
    };
}

static int32_t forward_shared_bytes(const struct forward *f)
{
    int32_t tile_m = 64 * f->consumers;
    int32_t q_slots =
        attention_forward_q_slots(f->head_dim, f->head_dim_v, tile_m, f->tile_n, f->kv_slots);

    return attention_forward_shared_bytes(f->head_dim, f->head_dim_v, tile_m, f->tile_n,
                                          f->kv_slots, q_slots);
}

/* Registers a consumer thread holds at once: O, the scores of one block, P of the one before. */
static int32_t forward_registers(const struct forward *f)
{
    return f->head_dim_v / 2 + f->tile_n / 2 + f->tile_n / 4;
}

/* What setmaxnreg gives a consumer, less what addresses, loop state and the extras take. */
static int32_t forward_registers_max(const struct jit_spec *spec, const struct forward *f)
{
    const bool has_extra = spec->values[FORWARD_debug] || spec->values[FORWARD_softcap] ||
                           spec->values[FORWARD_max_logits];
    const bool has_partial = spec->values[FORWARD_out_fp32] || spec->values[FORWARD_staged] ||
                             spec->values[FORWARD_split];
    return kernel_consumer_registers(f->consumers) - (f->consumers == 3 ? 32 : 28) -
           (has_partial || has_extra ? 20 : 0);
}

static bool forward_fits(const struct jit_spec *spec, const struct jit_arch *arch)
{
    const struct forward f = forward_of(spec);

    return forward_registers(&f) <= forward_registers_max(spec, &f) &&
           forward_shared_bytes(&f) <= arch->shared_bytes_max;
}

/* Tensors have head_dim columns, kernels compute with as many as there are products for. */
static ffa_status forward_pad(struct jit_spec *spec, ffa_error *err)
{
    const int32_t head_dim = spec->values[FORWARD_head_dim];
    const int32_t head_dim_v = spec->values[FORWARD_head_dim_v];

    if (head_dim % 8 || head_dim_v % 8)
        return error_fail(err, FFA_INVALID, 0, "attention_forward: %s is %d, not a multiple of 8",
                          head_dim % 8 ? "head_dim" : "head_dim_v",
                          (int)(head_dim % 8 ? head_dim : head_dim_v));
    spec->values[FORWARD_head_dim_v] = jit_columns(head_dim_v ? head_dim_v : head_dim);
    spec->values[FORWARD_head_dim] = jit_columns(head_dim);
    return FFA_OK;
}

/* The three that src/choose fills in where a caller leaves them open. */
static ffa_status forward_check_chosen(const struct jit_spec *spec, ffa_error *err)
{
    static const int rows[] = { FORWARD_consumers, FORWARD_tile_n, FORWARD_kv_slots };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!spec->values[rows[i]])
            return error_fail(err, FFA_INVALID, 0, "attention_forward: %s is 0: it was not chosen",
                              attention_forward_rows[rows[i]].name);
    return FFA_OK;
}

/* Launches whose keys arrive are of whole tiles, whose out is of dtype in the end. */
static ffa_status forward_check_arrivals(const struct jit_spec *spec, ffa_error *err)
{
    static const int rows[] = { FORWARD_out_fp32, FORWARD_split };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (spec->values[FORWARD_arrivals] && spec->values[rows[i]])
            return error_fail(err, FFA_INVALID, 0,
                              "attention_forward: arrivals and %s are both 1: keys arrive in "
                              "launches of whole tiles, with an out of dtype",
                              attention_forward_rows[rows[i]].name);
    return FFA_OK;
}

static ffa_status forward_resolve(struct jit_spec *spec, const struct jit_arch *arch,
                                  ffa_error *err)
{
    const struct forward f = forward_of(spec);
    ffa_status rc;

    if (spec->values[FORWARD_out_fp32] && spec->values[FORWARD_staged])
        return error_fail(err, FFA_INVALID, 0,
                          "attention_forward: out_fp32 and staged are both 1: out is fp32 always, "
                          "or until the last stage of a tile");
    if (spec->values[FORWARD_split] &&
        (spec->values[FORWARD_out_fp32] || spec->values[FORWARD_staged]))
        return error_fail(
            err, FFA_INVALID, 0,
            "attention_forward: split is 1 with %s, parts are combined into an out of "
            "dtype",
            spec->values[FORWARD_out_fp32] ? "out_fp32" : "staged");
    FFA_TRY(forward_check_arrivals(spec, err));
    FFA_TRY(forward_check_chosen(spec, err));
    if (f.tile_n % 16)
        return error_fail(err, FFA_INVALID, 0,
                          "attention_forward: tile_n is %d, not a multiple of 16", (int)f.tile_n);
    if (forward_shared_bytes(&f) > arch->shared_bytes_max)
        return error_fail(err, FFA_INVALID, 0,
                          "attention_forward: head_dim %d:%d, consumers %d, tile_n %d and "
                          "kv_slots %d need %d bytes of shared memory, %s has %d",
                          (int)f.head_dim, (int)f.head_dim_v, (int)f.consumers, (int)f.tile_n,
                          (int)f.kv_slots, (int)forward_shared_bytes(&f), arch->name,
                          (int)arch->shared_bytes_max);
    if (forward_registers(&f) > forward_registers_max(spec, &f))
        return error_fail(err, FFA_INVALID, 0,
                          "attention_forward: head_dim_v %d and tile_n %d hold %d registers a "
                          "thread, with %d consumers there are %d",
                          (int)f.head_dim_v, (int)f.tile_n, (int)forward_registers(&f),
                          (int)f.consumers, (int)forward_registers_max(spec, &f));
out:
    return rc;
}

static int32_t forward_shared(const struct jit_spec *spec)
{
    struct forward f = forward_of(spec);

    return forward_shared_bytes(&f);
}

/* One producer warpgroup beside the consumers. */
static int32_t forward_threads(const struct jit_spec *spec)
{
    return 128 * (1 + spec->values[FORWARD_consumers]);
}

/* Templates of the backward pass begin with head_dim, head_dim_v and padded. */
_Static_assert(BACKWARD_head_dim == 0 && BACKWARD_head_dim_v == 1 && BACKWARD_padded == 2, "rows");
_Static_assert(PREPARE_head_dim == 0 && PREPARE_head_dim_v == 1 && PREPARE_padded == 2, "rows");
_Static_assert(FINISH_head_dim == 0 && FINISH_head_dim_v == 1 && FINISH_padded == 2, "rows");

/* The columns that the kernels of a backward pass compute with. With more than 64 of v, tile_m must
 * be 64: with 128 rows ptxas spills at 128 of v, and with a softcap at 96. dq must then be two
 * pieces of 64 rows (backward_resolve): 96 of q at least. With 96 of q and 128 of v the kernel of
 * 128 and 128 is used, though one of their own would not spill. Specialised consumers take any
 * number of panels of 64. */
static ffa_status backward_pad(struct jit_spec *spec, ffa_error *err)
{
    const int32_t head_dim = spec->values[BACKWARD_head_dim];
    const int32_t head_dim_v =
        spec->values[BACKWARD_head_dim_v] ? spec->values[BACKWARD_head_dim_v] : head_dim;

    if (head_dim % 8 || head_dim_v % 8)
        return error_fail(err, FFA_INVALID, 0, "%s: %s is %d, not a multiple of 8",
                          jit_spec_template(spec), head_dim % 8 ? "head_dim" : "head_dim_v",
                          (int)(head_dim % 8 ? head_dim : head_dim_v));
    if (attention_backward_is_specialised(head_dim, head_dim_v)) {
        spec->values[BACKWARD_head_dim] = attention_backward_columns(head_dim);
        spec->values[BACKWARD_head_dim_v] = attention_backward_columns(head_dim_v);
    } else {
        spec->values[BACKWARD_head_dim] =
            jit_columns(head_dim < head_dim_v && head_dim_v > 64 ? head_dim_v : head_dim);
        spec->values[BACKWARD_head_dim_v] = jit_columns(head_dim_v);
    }
    if (spec->values[BACKWARD_head_dim] != head_dim ||
        spec->values[BACKWARD_head_dim_v] != head_dim_v)
        spec->values[BACKWARD_padded] = 1;
    return FFA_OK;
}

/* Blocks of a cluster: what follows from head_dim, unless a pair is asked for. With keys that
 * arrive the scheduler has no registers for one. */
static ffa_status backward_resolve_cluster(struct jit_spec *spec, ffa_error *err)
{
    const int32_t head_dim = spec->values[BACKWARD_head_dim];
    const int32_t head_dim_v = spec->values[BACKWARD_head_dim_v];
    const int32_t fitting = attention_backward_cluster(head_dim);
    const int32_t asked = spec->values[BACKWARD_cluster];
    const bool may_pair =
        attention_backward_may_pair(head_dim, head_dim_v) && !spec->values[BACKWARD_arrivals];

    if (asked && asked != fitting && !(asked == 2 && may_pair))
        return error_fail(err, FFA_INVALID, 0,
                          "attention_backward: cluster is %d, head_dim %d and head_dim_v %d%s need "
                          "%d",
                          (int)asked, (int)head_dim, (int)head_dim_v,
                          spec->values[BACKWARD_arrivals] ? " with arrivals" : "", (int)fitting);
    spec->values[BACKWARD_cluster] = asked ? asked : fitting;
    return FFA_OK;
}

/* A block's dq is two pieces of 64 rows and up to 64 columns, so tile_m follows from head_dim and
 * the consumers. */
static ffa_status backward_resolve(struct jit_spec *spec, const struct jit_arch *arch,
                                   ffa_error *err)
{
    const int32_t consumers =
        spec->values[BACKWARD_consumers] ? spec->values[BACKWARD_consumers] : 2;
    int32_t fitting, tile_m;
    ffa_status rc;

    (void)arch;
    if (spec->values[BACKWARD_arrivals] && !spec->values[BACKWARD_dkv_fp32])
        return error_fail(err, FFA_INVALID, 0,
                          "attention_backward: arrivals is 1, dkv_fp32 is 0: owners add up dk and "
                          "dv in fp32");
    /* With a softcap, 128 of q and 96 of v have the kernel of 128 and 128, though one of their own
     * would not spill. */
    if (spec->values[BACKWARD_softcap] && spec->values[BACKWARD_head_dim] == 128 &&
        spec->values[BACKWARD_head_dim_v] == 96) {
        spec->values[BACKWARD_head_dim_v] = 128;
        spec->values[BACKWARD_padded] = 1;
    }
    fitting = spec->values[BACKWARD_head_dim] > 64 || spec->values[BACKWARD_head_dim_v] > 64
                  ? 32 * consumers
                  : 64 * consumers;
    tile_m = spec->values[BACKWARD_tile_m] ? spec->values[BACKWARD_tile_m] : fitting;
    if (consumers != 2)
        return error_fail(err, FFA_INVALID, 0, "attention_backward: consumers is %d, not 2",
                          (int)consumers);
    if (tile_m != fitting)
        return error_fail(err, FFA_INVALID, 0,
                          "attention_backward: tile_m is %d, head_dim %d and consumers %d need %d",
                          (int)tile_m, (int)spec->values[BACKWARD_head_dim], (int)consumers,
                          (int)fitting);
    FFA_TRY(backward_resolve_cluster(spec, err));
    spec->values[BACKWARD_consumers] = consumers;
    spec->values[BACKWARD_tile_m] = tile_m;
out:
    return rc;
}

static int32_t backward_shared(const struct jit_spec *spec)
{
    return attention_backward_shared_bytes(
        spec->values[BACKWARD_head_dim], spec->values[BACKWARD_head_dim_v],
        spec->values[BACKWARD_tile_m], spec->values[BACKWARD_cluster],
        spec->values[BACKWARD_deterministic]);
}

static int32_t backward_threads(const struct jit_spec *spec)
{
    return attention_backward_threads(spec->values[BACKWARD_head_dim],
                                      spec->values[BACKWARD_head_dim_v]);
}

static int32_t backward_cluster(const struct jit_spec *spec)
{
    return spec->values[BACKWARD_cluster];
}

static int32_t pass_shared(const struct jit_spec *spec)
{
    (void)spec;
    return BACKWARD_PASS_SHARED_BYTES;
}

static int32_t pass_threads(const struct jit_spec *spec)
{
    (void)spec;
    return BACKWARD_PASS_THREADS;
}

static int32_t no_shared(const struct jit_spec *spec)
{
    (void)spec;
    return 0;
}

static int32_t combine_threads(const struct jit_spec *spec)
{
    (void)spec;
    return COMBINE_THREADS;
}

static int32_t row_threads(const struct jit_spec *spec)
{
    (void)spec;
    return ROW_THREADS;
}

#define ROWS(rows) rows, sizeof(rows) / sizeof *(rows)

static const struct template_entry {
    const char *name;
    const char *doc;
    const struct row *rows;
    int32_t row_count;
    ffa_status (*pad)(struct jit_spec *spec, ffa_error *err); /* NULL: nothing to pad */
    /* Derive what follows from other rows, and check the combination; NULL: any will do. */
    ffa_status (*resolve)(struct jit_spec *spec, const struct jit_arch *arch, ffa_error *err);
    bool (*fits)(const struct jit_spec *spec, const struct jit_arch *arch); /* NULL: always */
    int32_t (*shared_bytes)(const struct jit_spec *spec);
    int32_t (*threads)(const struct jit_spec *spec);
    int32_t (*cluster)(const struct jit_spec *spec); /* NULL: 1 */
} templates[] = {
    { "attention_forward", "attention over a tile plan: out and lse", ROWS(attention_forward_rows),
      forward_pad, forward_resolve, forward_fits, forward_shared, forward_threads, NULL },
    { "attention_backward", "gradients over a backward tile plan: dk and dv, and the sum of dq",
      ROWS(attention_backward_rows), backward_pad, backward_resolve, NULL, backward_shared,
      backward_threads, backward_cluster },
    /* The passes before and after attention_backward compute with its columns. */
    { "backward_prepare", "before attention_backward: row statistics, and dq set to zero",
      ROWS(backward_prepare_rows), backward_pad, NULL, NULL, pass_shared, pass_threads, NULL },
    { "backward_finish", "after attention_backward: dq, parts of dk and dv, dsink",
      ROWS(backward_finish_rows), backward_pad, NULL, NULL, pass_shared, pass_threads, NULL },
    { "forward_combine", "after attention_forward: rows whose keys were split among tiles",
      ROWS(forward_combine_rows), NULL, NULL, NULL, no_shared, combine_threads, NULL },
    { "row_copy", "copies rows between layouts, and by tables of runs", ROWS(row_copy_rows), NULL,
      NULL, NULL, no_shared, row_threads, NULL },
    { "row_reduce", "adds received rows to own ones, in a fixed order, and casts",
      ROWS(row_reduce_rows), NULL, NULL, NULL, no_shared, row_threads, NULL },
};
enum { TEMPLATE_COUNT = sizeof templates / sizeof *templates };
_Static_assert(sizeof attention_forward_rows / sizeof(struct row) <= JIT_SPEC_MAX, "spec rows");

/* ---- specs ---- */

static const struct template_entry *entry_of(const struct jit_spec *spec)
{
    assert(spec->template_index >= 0 && spec->template_index < TEMPLATE_COUNT);
    return &templates[spec->template_index];
}

static int32_t row_index(const struct template_entry *entry, const char *name, size_t bytes)
{
    for (int32_t i = 0; i < entry->row_count; i++)
        if (strlen(entry->rows[i].name) == bytes && memcmp(entry->rows[i].name, name, bytes) == 0)
            return i;
    return -1;
}

/* "a, b, c" of the names of a template's rows, or of the templates (entry NULL). */
static void known_names(const struct template_entry *entry, char *out, size_t size)
{
    int32_t count = entry ? entry->row_count : TEMPLATE_COUNT;
    size_t at = 0;

    out[0] = '\0';
    for (int32_t i = 0; i < count && at < size; i++) {
        int bytes = snprintf(out + at, size - at, "%s%s", i ? ", " : "",
                             entry ? entry->rows[i].name : templates[i].name);

        at += bytes > 0 ? (size_t)bytes : 0;
    }
}

/* " (bf16=1, fp16=2)" for a row whose values have names, else "". */
static void known_values(const char *row, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < sizeof value_names / sizeof *value_names && at < size; i++) {
        int bytes;

        if (strcmp(value_names[i].row, row) != 0)
            continue;
        bytes = snprintf(out + at, size - at, "%s%s=%d", at ? ", " : " (", value_names[i].name,
                         (int)value_names[i].value);
        at += bytes > 0 ? (size_t)bytes : 0;
    }
    if (at && at + 1 < size)
        memcpy(out + at, ")", 2);
}

ffa_status jit_spec_init(struct jit_spec *spec, const char *template_name, ffa_error *err)
{
    char known[160];

    *spec = (struct jit_spec){ 0 };
    for (int32_t i = 0; template_name && i < TEMPLATE_COUNT; i++) {
        if (strcmp(templates[i].name, template_name) != 0)
            continue;
        spec->template_index = i;
        spec->row_count = templates[i].row_count;
        for (int32_t r = 0; r < spec->row_count; r++)
            spec->values[r] = templates[i].rows[r].initial;
        return FFA_OK;
    }
    known_names(NULL, known, sizeof known);
    if (!template_name)
        return error_fail(err, FFA_INVALID, 0, "template_name is NULL; known: %s", known);
    return error_fail(err, FFA_INVALID, 0, "there is no template '%s'; known: %s", template_name,
                      known);
}

static ffa_status out_of_range(const struct template_entry *entry, const struct row *row,
                               const char *value, ffa_error *err)
{
    char names[96];

    known_values(row->name, names, sizeof names);
    return error_fail(err, FFA_INVALID, 0, "%s: %s is %.40s, not in [%d, %d]%s", entry->name,
                      row->name, value, (int)row->lo, (int)row->hi, names);
}

static ffa_status check_row(const struct template_entry *entry, int32_t index, int32_t value,
                            ffa_error *err)
{
    const struct row *row = &entry->rows[index];
    char text[16];

    if ((value >= row->lo && value <= row->hi) || (row->initial < row->lo && value == row->initial))
        return FFA_OK;
    text_copy(text, "%d", (int)value);
    return out_of_range(entry, row, text, err);
}

static ffa_status put(struct jit_spec *spec, const char *name, size_t bytes, int32_t value,
                      ffa_error *err)
{
    const struct template_entry *entry = entry_of(spec);
    int32_t index = row_index(entry, name, bytes);
    char known[256];
    ffa_status rc;

    if (index < 0) {
        known_names(entry, known, sizeof known);
        return error_fail(err, FFA_INVALID, 0, "%s: there is no setting '%.*s'; known: %s",
                          entry->name, bytes > 64 ? 64 : (int)bytes, name, known);
    }
    rc = check_row(entry, index, value, err);
    if (rc == FFA_OK)
        spec->values[index] = value;
    return rc;
}

ffa_status jit_spec_put(struct jit_spec *spec, const char *name, int32_t value, ffa_error *err)
{
    return put(spec, name, strlen(name), value, err);
}

ffa_status jit_spec_set(struct jit_spec *spec, const char *setting, ffa_error *err)
{
    const struct template_entry *entry = entry_of(spec);
    const char *equals = setting ? strchr(setting, '=') : NULL;
    size_t bytes;
    char names[96];
    char *end;
    long number;

    if (!equals)
        return error_fail(err, FFA_INVALID, 0, "%s: setting '%s' is not name=value", entry->name,
                          setting ? setting : "(NULL)");
    bytes = (size_t)(equals - setting);
    for (size_t i = 0; i < sizeof value_names / sizeof *value_names; i++)
        if (strlen(value_names[i].row) == bytes &&
            memcmp(value_names[i].row, setting, bytes) == 0 &&
            strcmp(value_names[i].name, equals + 1) == 0)
            return put(spec, setting, bytes, value_names[i].value, err);

    number = strtol(equals + 1, &end, 10); /* of too large a number the largest, or least */
    /* Unknown names first: their message is of more use than the value's. */
    if (row_index(entry, setting, bytes) < 0)
        return put(spec, setting, bytes, 0, err);
    if (end == equals + 1 || *end) {
        char row[64];

        text_copy(row, "%.*s", bytes > 60 ? 60 : (int)bytes, setting);
        known_values(row, names, sizeof names);
        return error_fail(err, FFA_INVALID, 0, "%s: %s is '%s', not a number%s", entry->name, row,
                          equals + 1, names);
    }
    if (number > INT32_MAX || number < INT32_MIN)
        return out_of_range(entry, &entry->rows[row_index(entry, setting, bytes)], equals + 1, err);
    return put(spec, setting, bytes, (int32_t)number, err);
}

int32_t jit_spec_get(const struct jit_spec *spec, const char *name)
{
    int32_t index = row_index(entry_of(spec), name, strlen(name));

    assert(index >= 0);
    return index < 0 ? 0 : spec->values[index];
}

ffa_status jit_spec_pad(struct jit_spec *spec, ffa_error *err)
{
    const struct template_entry *entry = entry_of(spec);
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < spec->row_count; i++)
        FFA_TRY(check_row(entry, i, spec->values[i], err));
    if (entry->pad)
        rc = entry->pad(spec, err);
out:
    return rc;
}

ffa_status jit_spec_resolve(struct jit_spec *spec, const char *arch, ffa_error *err)
{
    const struct template_entry *entry = entry_of(spec);
    const struct jit_arch *found;
    ffa_status rc;

    FFA_TRY(jit_arch_find(&found, arch, err));
    FFA_TRY(jit_spec_pad(spec, err));
    if (entry->resolve)
        rc = entry->resolve(spec, found, err);
out:
    return rc;
}

bool jit_spec_fits(const struct jit_spec *spec, const struct jit_arch *arch)
{
    const struct template_entry *entry = entry_of(spec);

    return !entry->fits || entry->fits(spec, arch);
}

int32_t jit_spec_shared_bytes(const struct jit_spec *spec)
{
    return entry_of(spec)->shared_bytes(spec);
}

int32_t jit_spec_threads(const struct jit_spec *spec)
{
    return entry_of(spec)->threads(spec);
}

int32_t jit_spec_cluster(const struct jit_spec *spec)
{
    const struct template_entry *entry = entry_of(spec);

    return entry->cluster ? entry->cluster(spec) : 1;
}

const char *jit_spec_template(const struct jit_spec *spec)
{
    return entry_of(spec)->name;
}

const char *jit_spec_row_name(const struct jit_spec *spec, int32_t row)
{
    assert(row >= 0 && row < spec->row_count);
    return entry_of(spec)->rows[row].name;
}

bool jit_spec_setting(const struct jit_spec *spec, int32_t row, char *out, size_t size)
{
    const char *name = jit_spec_row_name(spec, row);
    const int32_t value = spec->values[row];

    (void)snprintf(out, size, "%s=%d", name, (int)value);
    for (size_t i = 0; i < sizeof value_names / sizeof *value_names; i++)
        if (value_names[i].value == value && !strcmp(value_names[i].row, name))
            (void)snprintf(out, size, "%s=%s", name, value_names[i].name);
    return value != entry_of(spec)->rows[row].initial;
}

void jit_spec_text(const struct jit_spec *spec, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (int32_t i = 0; i < spec->row_count && at < size; i++) {
        int bytes = snprintf(out + at, size - at, "%s%s=%d", i ? " " : "",
                             jit_spec_row_name(spec, i), (int)spec->values[i]);

        at += bytes > 0 ? (size_t)bytes : 0;
    }
}

/* ---- the registry, as callers see it ---- */

int32_t ffa_template_count(void)
{
    return TEMPLATE_COUNT;
}

const char *ffa_template_name(int32_t index)
{
    return index >= 0 && index < TEMPLATE_COUNT ? templates[index].name : NULL;
}

const char *ffa_template_doc(int32_t index)
{
    return index >= 0 && index < TEMPLATE_COUNT ? templates[index].doc : NULL;
}

int ffa_template_row(int32_t index, int32_t row, ffa_spec_row *out)
{
    const struct row *found;

    if (!out || index < 0 || index >= TEMPLATE_COUNT || row < 0 ||
        row >= templates[index].row_count)
        return 0;
    found = &templates[index].rows[row];
    *out = (ffa_spec_row){ .name = found->name,
                           .doc = found->doc,
                           .initial = found->initial,
                           .min = found->lo,
                           .max = found->hi };
    return 1;
}

void ffa_templates_digest(char out[33])
{
    struct digest digest;

    if (!out)
        return;
    digest_init(&digest);
    for (int i = 0; i < embedded_template_count; i++) {
        digest_text(&digest, embedded_templates[i].name);
        digest_field(&digest, embedded_templates[i].text, embedded_templates[i].bytes);
    }
    digest_final(&digest, out);
}

const char *ffa_layer_text(ffa_layer layer)
{
    static const char *const texts[] = { "none", "table", "store", "compiled", "bundle" };

    return (unsigned)layer < sizeof texts / sizeof *texts ? texts[layer] : "unknown";
}

size_t ffa_dtype_bytes(ffa_dtype dtype)
{
    switch (dtype) {
    case FFA_BF16:
    case FFA_FP16:
        return 2;
    case FFA_FP32:
        return 4;
    case FFA_FP64:
        return 8;
    }
    return 0;
}
