/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_parallel_rows against the host's ffa_rows and plain loops over position ids: every call, on
 * tensors of any shape, twice without a wait in between. Outputs are compared byte by byte, so that
 * what must not be written is seen to stay.
 */
#include "support/exchange_ranks.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum output { GATHERED, ROLLED, SCATTERED, UNDISPATCHED, ROLL, REDUCED, OUTPUTS };
static const char *const names[OUTPUTS] = { "dispatch", "dispatch_rolled", "scatter", "undispatch",
                                            "roll",     "reduce" };

enum { DOCUMENTS = 6, WHOLE_MAX = 200 };

struct rows_rank {
    const struct rows_test *test;
    const ffa_row_kernels *kernels;
    int64_t local_rows;
    struct rows_tensor whole, local, ids; /* inputs; ids is written */
    struct rows_tensor outputs[OUTPUTS];
};

struct rows_test {
    ffa_mask *mask;
    ffa_dispatch *dispatch;
    const struct exchange_types *types;
    int32_t count, side;
    int64_t tokens, shift;
    int64_t cu_tokens[DOCUMENTS + 1];
    int64_t documents; /* 0: none are given */
    ffa_row_format format;
    int32_t dtype; /* of the format; 0: only bytes */
    bool has_fill, is_cleared;
    uint64_t fill;
    struct rows_rank ranks[EXCHANGE_RANKS];
};

static void ok(ffa_status rc, const ffa_error *err)
{
    ck_assert_msg(rc == FFA_OK, "%s", err->message);
}

static bool is_whole(enum output output)
{
    return output == SCATTERED || output == UNDISPATCHED;
}

/* ---- what is drawn ---- */

static void draw_dispatch(struct rows_test *test, struct rng *rng)
{
    const ffa_mask_shape shape = { rng_range(rng, 20, WHOLE_MAX), 0 };
    const int32_t keys = (int32_t)rng_range(rng, 0, 2);
    const ffa_mask_shape full = { shape.seqlen_q, keys == FFA_KEYS_WITH_QUERIES
                                                      ? shape.seqlen_q
                                                      : rng_range(rng, 1, WHOLE_MAX) };
    const ffa_topology topology = { test->count, 0 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    opts.keys = keys;
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.algorithm = (int32_t)rng_range(rng, 0, 3);
    opts.chunk_tokens = rng_range(rng, 1, full.seqlen_q / test->count);
    if (keys == FFA_KEYS_DISPATCHED) /* some ranks may have none */
        opts.key_chunk_tokens = rng_range(rng, 1, full.seqlen_k);
    test->side = (int32_t)rng_range(rng, 0, 1);
    test->tokens = test->side == FFA_SIDE_KEYS ? full.seqlen_k : full.seqlen_q;
    ok(ffa_mask_causal(&test->mask, &full, &err), &err);
    ok(ffa_dispatch_create(&test->dispatch, &(ffa_dispatch_mask){ test->mask, 1 }, 1, &topology,
                           &opts, &err),
       &err);
}

static void draw_roll(struct rows_test *test, struct rng *rng)
{
    int64_t at = 0;

    test->shift = rng_range(rng, 0, 2) ? -1 : rng_range(rng, -2 * test->tokens, 2 * test->tokens);
    test->documents = rng_range(rng, 0, DOCUMENTS);
    for (int64_t d = 1; d < test->documents; d++) {
        at += rng_range(rng, 0, (test->tokens - at) / 2);
        test->cu_tokens[d] = at;
    }
    test->cu_tokens[test->documents] = test->documents ? test->tokens : 0;
    test->has_fill = rng_range(rng, 0, 1);
    test->is_cleared = rng_range(rng, 0, 1);
    test->fill = rng_next(rng);
}

static void draw_format(struct rows_test *test, struct rng *rng)
{
    test->dtype = rng_range(rng, 0, 2) ? test->types->dtype : 0;
    test->format.element_bytes =
        test->dtype ? (int32_t)ffa_dtype_bytes((ffa_dtype)test->dtype) : 1 << rng_range(rng, 0, 3);
    test->format.heads = (int32_t)rng_range(rng, 1, 3);
    test->format.columns = rng_range(rng, 0, 1) ? 8 * rng_range(rng, 1, 4) : rng_range(rng, 1, 9);
}

static void draw_rank(struct rows_test *test, struct rng *rng, int32_t rank)
{
    struct rows_rank *r = &test->ranks[rank];
    const ffa_row_format *f = &test->format;

    r->test = test;
    r->kernels = kernels_of(env_context(rank), test->types->dtype, test->types->wire_dtype,
                            test->types->reduces);
    r->local_rows = test->side == FFA_SIDE_KEYS ? ffa_dispatch_key_rows(test->dispatch, rank)
                                                : ffa_dispatch_query_rows(test->dispatch, rank);
    rows_init(&r->whole, rng, test->tokens, f->heads, f->columns, f->element_bytes, false);
    rows_init(&r->local, rng, r->local_rows, f->heads, f->columns, f->element_bytes, false);
    rows_init(&r->ids, rng, r->local_rows, 1, 1, sizeof(int64_t), true);
    rows_draw(&r->whole, rng, test->dtype);
    rows_draw(&r->local, rng, test->dtype);
    for (int o = 0; o < OUTPUTS; o++)
        rows_init(&r->outputs[o], rng, is_whole((enum output)o) ? test->tokens : r->local_rows,
                  f->heads, f->columns, f->element_bytes, false);
}

static struct rows_test *test_new(uint64_t seed, const struct exchange_types *types)
{
    struct rows_test *test = calloc(1, sizeof *test);
    struct rng rng = { seed };

    test->types = types;
    test->count = (int32_t)rng_range(&rng, 1, EXCHANGE_RANKS);
    draw_dispatch(test, &rng);
    draw_roll(test, &rng);
    draw_format(test, &rng);
    for (int32_t r = 0; r < test->count; r++)
        draw_rank(test, &rng, r);
    return test;
}

static void test_free(struct rows_test *test)
{
    for (int32_t i = 0; i < test->count; i++) {
        struct rows_rank *r = &test->ranks[i];

        rows_free_host(&r->whole);
        rows_free_host(&r->local);
        rows_free_host(&r->ids);
        for (int o = 0; o < OUTPUTS; o++)
            rows_free_host(&r->outputs[o]);
    }
    ffa_dispatch_destroy(test->dispatch);
    ffa_mask_destroy(test->mask);
    free(test);
}

/* ---- a rank ---- */

static ffa_status make_rows(struct exchange_rank *rank, ffa_parallel_rows **rows)
{
    const struct rows_rank *r = &((struct rows_test *)rank->user)->ranks[rank->rank];
    const struct rows_test *test = r->test;
    ffa_parallel_rows_opts opts = FFA_PARALLEL_ROWS_OPTS_INIT;
    ffa_parallel_rows_info info = FFA_PARALLEL_ROWS_INFO_INIT;
    int64_t bytes;
    void *buffer;
    ffa_status rc;

    opts.side = test->side;
    opts.rank = rank->rank;
    opts.shift = test->shift;
    opts.cu_tokens = test->documents ? test->cu_tokens : NULL;
    opts.document_count = test->documents;
    rc = ffa_parallel_rows_create(rows, test->dispatch, r->kernels, &opts, &rank->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_rows_info_get(*rows, &test->format, &info, &rank->err);
    bytes = info.undispatch_bytes > info.roll_bytes ? info.undispatch_bytes : info.roll_bytes;
    bytes = bytes > info.reduce_bytes ? bytes : info.reduce_bytes;
    if (rc == FFA_OK)
        rc = rank_alloc(rank, &buffer, info.upload_bytes + 1);
    if (rc == FFA_OK)
        rc = ffa_comm_reserve(rank->comm, bytes, 0, &rank->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_rows_upload(*rows, buffer, rank->stream, &rank->err);
    return rc;
}

static ffa_status call_local(struct exchange_rank *rank, const ffa_parallel_rows *rows)
{
    struct rows_rank *r = &((struct rows_test *)rank->user)->ranks[rank->rank];
    const struct rows_test *test = r->test;
    const ffa_tensor whole = rows_view(&r->whole, true), local = rows_view(&r->local, true);
    const ffa_tensor gathered = rows_view(&r->outputs[GATHERED], true);
    const ffa_tensor rolled = rows_view(&r->outputs[ROLLED], true);
    const ffa_tensor scattered = rows_view(&r->outputs[SCATTERED], true);
    ffa_status rc = ffa_parallel_rows_position_ids(rows, r->ids.device, rank->stream, &rank->err);

    if (rc == FFA_OK)
        rc = ffa_parallel_rows_dispatch(rows, &test->format, &whole, &gathered, rank->stream,
                                        &rank->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_rows_dispatch_rolled(rows, &test->format, &whole, &rolled,
                                               test->has_fill ? &test->fill : NULL, rank->stream,
                                               &rank->err);
    if (rc == FFA_OK)
        rc = ffa_parallel_rows_scatter(rows, &test->format, &local, &scattered,
                                       test->is_cleared ? FFA_ROWS_CLEAR : 0, rank->stream,
                                       &rank->err);
    return rc;
}

static ffa_status call_all(struct exchange_rank *rank, ffa_parallel_rows *rows)
{
    struct rows_rank *r = &((struct rows_test *)rank->user)->ranks[rank->rank];
    const struct rows_test *test = r->test;
    const ffa_tensor whole = rows_view(&r->whole, true), local = rows_view(&r->local, true);
    const ffa_tensor all = rows_view(&r->outputs[UNDISPATCHED], true);
    const ffa_tensor rolled = rows_view(&r->outputs[ROLL], true);
    const ffa_tensor reduced = rows_view(&r->outputs[REDUCED], true);
    ffa_status rc = ffa_parallel_rows_undispatch(rows, rank->comm, &test->format, &local, &all,
                                                 rank->stream, &rank->err);

    if (rc == FFA_OK)
        rc = ffa_parallel_rows_roll(rows, rank->comm, &test->format, &local, &rolled,
                                    test->has_fill ? &test->fill : NULL, rank->stream, &rank->err);
    if (rc == FFA_OK && test->dtype)
        rc = ffa_parallel_rows_reduce(rows, rank->comm, &test->format, &whole, &reduced,
                                      rank->stream, &rank->err);
    return rc;
}

static ffa_status run_rows(struct exchange_rank *rank)
{
    struct rows_rank *r = &((struct rows_test *)rank->user)->ranks[rank->rank];
    struct rows_tensor *const inputs[] = { &r->whole, &r->local, &r->ids };
    ffa_parallel_rows *rows = NULL;
    ffa_status rc = FFA_OK;

    for (int i = 0; i < 3 && rc == FFA_OK; i++)
        rc = rank_send(rank, inputs[i]);
    for (int o = 0; o < OUTPUTS && rc == FFA_OK; o++)
        rc = rank_send(rank, &r->outputs[o]);
    if (rc == FFA_OK)
        rc = make_rows(rank, &rows);
    if (rc == FFA_OK)
        rc = call_local(rank, rows);
    for (int i = 0; i < 2 && rc == FFA_OK; i++)
        rc = call_all(rank, rows);
    if (rc == FFA_OK)
        rc = env_synchronize(rank->context, rank->stream, &rank->err);
    if (rc == FFA_OK)
        rc = ffa_comm_status(rank->comm, &rank->err);
    if (rc == FFA_OK)
        rc = rank_receive(rank, &r->ids);
    for (int o = 0; o < OUTPUTS && rc == FFA_OK; o++)
        rc = rank_receive(rank, &r->outputs[o]);
    (void)env_synchronize(rank->context, rank->stream, NULL);
    ffa_parallel_rows_destroy(rows);
    return rc;
}

/* ---- what is expected ---- */

static const int64_t *ids_of(const struct rows_test *test, int32_t rank)
{
    const ffa_rows rows = { .dispatch = test->dispatch, .side = test->side, .rank = rank };
    const struct rows_rank *r = &test->ranks[rank];
    ffa_error err = { FFA_OK, 0, "" };

    ok(ffa_rows_position_ids(&rows, (int64_t *)(void *)r->ids.host, &err), &err);
    return (const int64_t *)(const void *)r->ids.host;
}

/* The token whose row a token gets; *is_outside: it is not in its document without a wrap. */
static int64_t source_of(const struct rows_test *test, int64_t token, bool *is_outside)
{
    int64_t begin = 0, end = test->tokens, from = token - test->shift;

    for (int64_t d = 0; d < test->documents; d++)
        if (token >= test->cu_tokens[d] && token < test->cu_tokens[d + 1]) {
            begin = test->cu_tokens[d];
            end = test->cu_tokens[d + 1];
        }
    *is_outside = from < begin || from >= end;
    while (from < begin)
        from += end - begin;
    while (from >= end)
        from -= end - begin;
    return from;
}

/* The rank and row of a token. */
struct place {
    int32_t rank;
    int64_t row;
};

static void expect_rank(struct rows_test *test, int32_t rank, const struct place *places)
{
    struct rows_rank *r = &test->ranks[rank];
    const int64_t *ids = (const int64_t *)(const void *)r->ids.host;

    for (int64_t t = 0; t < test->tokens; t++) {
        const struct place *from = &places[t];

        rows_copy_row(&r->outputs[UNDISPATCHED], t, &test->ranks[from->rank].local, from->row);
        if (test->is_cleared)
            rows_fill_row(&r->outputs[SCATTERED], t, 0);
    }
    for (int64_t row = 0; row < r->local_rows; row++) {
        bool is_outside;
        const int64_t source = source_of(test, ids[row], &is_outside);
        const struct place *from = &places[source];

        rows_copy_row(&r->outputs[GATHERED], row, &r->whole, ids[row]);
        rows_copy_row(&r->outputs[SCATTERED], ids[row], &r->local, row);
        rows_copy_row(&r->outputs[ROLLED], row, &r->whole, source);
        rows_copy_row(&r->outputs[ROLL], row, &test->ranks[from->rank].local, from->row);
        if (test->has_fill && is_outside) {
            rows_fill_row(&r->outputs[ROLLED], row, test->fill);
            rows_fill_row(&r->outputs[ROLL], row, test->fill);
        }
    }
}

/* What travels in less is rounded first. */
static void round_whole(struct rows_test *test, struct rows_rank *r)
{
    for (int64_t t = 0; t < test->tokens; t++)
        for (int32_t h = 0; h < test->format.heads; h++)
            for (int64_t c = 0; c < test->format.columns; c++) {
                unsigned char *at = rows_element(&r->whole, t, h, c), wire[4];

                number_store(test->types->wire_dtype, wire, number_load(test->dtype, at));
                number_store(test->dtype, at, number_load(test->types->wire_dtype, wire));
            }
}

static void expect_reduced(struct rows_test *test)
{
    ffa_tensor wholes[EXCHANGE_RANKS];
    ffa_error err = { FFA_OK, 0, "" };

    for (int32_t r = 0; r < test->count; r++) {
        if (test->types->wire_dtype)
            round_whole(test, &test->ranks[r]);
        wholes[r] = rows_view(&test->ranks[r].whole, false);
    }
    for (int32_t r = 0; r < test->count; r++) {
        const ffa_tensor local = rows_view(&test->ranks[r].outputs[REDUCED], false);
        const ffa_rows rows = { test->dispatch, test->side,         r,
                                test->dtype,    test->format.heads, test->format.columns };

        ok(ffa_rows_reduce(&rows, wholes, &local, &err), &err);
    }
}

static void expect_all(struct rows_test *test)
{
    struct place places[WHOLE_MAX];

    /* Where all ranks have all rows, a rank takes its own. */
    for (int32_t r = 0; r < test->count; r++) {
        const int64_t *ids = ids_of(test, r);

        for (int64_t row = 0; row < test->ranks[r].local_rows; row++)
            places[ids[row]] = (struct place){ r, row };
    }
    for (int32_t r = 0; r < test->count; r++) {
        const int64_t *ids = (const int64_t *)(const void *)test->ranks[r].ids.host;

        for (int64_t row = 0; test->ranks[r].local_rows == test->tokens && row < test->tokens;
             row++)
            places[ids[row]] = (struct place){ r, row };
        expect_rank(test, r, places);
    }
    if (test->dtype)
        expect_reduced(test);
}

void rows_case(uint64_t seed, const struct exchange_types *types)
{
    struct rows_test *test = test_new(seed, types);
    struct exchange_rank ranks[EXCHANGE_RANKS];

    ranks_run(ranks, test->count, 60000, run_rows, test);
    ranks_check(ranks, test->count);
    expect_all(test);
    for (int32_t r = 0; r < test->count; r++) {
        rows_check(&test->ranks[r].ids, "position ids", r);
        for (int o = 0; o < OUTPUTS; o++)
            rows_check(&test->ranks[r].outputs[o], names[o], r);
    }
    test_free(test);
}

/* ---- refusals ---- */

/* The first call that was not refused as it should be. */
struct refusals {
    const struct exchange_rank *rank;
    const char *missed;
};

static void expect(struct refusals *of, ffa_status rc, const char *text)
{
    if (!of->missed && (rc != FFA_INVALID || !strstr(of->rank->err.message, text)))
        of->missed = text;
}

static ffa_status run_refused(struct exchange_rank *rank)
{
    struct rows_test *test = rank->user;
    struct rows_rank *r = &test->ranks[rank->rank];
    const ffa_tensor whole = rows_view(&r->whole, false), local = rows_view(&r->local, false);
    const ffa_row_format bad_bytes = { 3, 1, 1 }, bad_heads = { 4, 0, 1 },
                         bad_columns = { 4, 1, 0 };
    ffa_parallel_rows_opts opts = FFA_PARALLEL_ROWS_OPTS_INIT;
    ffa_parallel_rows *rows = NULL;
    ffa_tensor other = local;
    const int64_t cu_tokens[] = { 0, 3, 2 };
    const ffa_tensor packed = FFA_TENSOR_INIT(r->whole.host); /* of no use to a refused call */
    struct refusals refusals = { rank, NULL };

    opts.rank = rank->count;
    expect(&refusals,
           ffa_parallel_rows_create(&rows, test->dispatch, r->kernels, &opts, &rank->err),
           "rank is");
    opts.rank = rank->rank;
    opts.cu_tokens = cu_tokens;
    opts.document_count = 2;
    expect(&refusals,
           ffa_parallel_rows_create(&rows, test->dispatch, r->kernels, &opts, &rank->err),
           "cu_tokens goes from 3 to 2");
    opts.document_count = 1;
    expect(&refusals,
           ffa_parallel_rows_create(&rows, test->dispatch, r->kernels, &opts, &rank->err),
           "cu_tokens is [0, 3]");
    opts.cu_tokens = NULL;
    expect(&refusals,
           ffa_parallel_rows_create(&rows, test->dispatch, r->kernels, &opts, &rank->err),
           "cu_tokens is NULL");
    opts.document_count = 0;
    if (ffa_parallel_rows_create(&rows, test->dispatch, r->kernels, &opts, &rank->err) != FFA_OK)
        return FFA_INVALID;
    expect(
        &refusals,
        ffa_parallel_rows_dispatch(rows, &test->format, &whole, &local, rank->stream, &rank->err),
        "not uploaded");
    expect(&refusals,
           ffa_parallel_rows_upload(rows, (void *)(uintptr_t)8, rank->stream, &rank->err),
           "256-byte aligned");
    ffa_parallel_rows_destroy(rows);
    rows = NULL;
    rank->status = make_rows(rank, &rows); /* of the test's shift */
    if (rank->status != FFA_OK)
        return rank->status;
    expect(&refusals,
           ffa_parallel_rows_dispatch(rows, &bad_bytes, &whole, &local, rank->stream, &rank->err),
           "element_bytes is 3");
    expect(&refusals,
           ffa_parallel_rows_dispatch(rows, &bad_heads, &whole, &local, rank->stream, &rank->err),
           "heads is 0");
    expect(&refusals,
           ffa_parallel_rows_dispatch(rows, &bad_columns, &whole, &local, rank->stream, &rank->err),
           "columns is 0");
    expect(&refusals,
           ffa_parallel_rows_dispatch(rows, &test->format, NULL, &local, rank->stream, &rank->err),
           "whole is NULL");
    other.token_stride = 0;
    expect(
        &refusals,
        ffa_parallel_rows_dispatch(rows, &test->format, &whole, &other, rank->stream, &rank->err),
        "local: token_stride is 0");
    expect(&refusals,
           ffa_parallel_rows_undispatch(rows, NULL, &test->format, &local, &whole, rank->stream,
                                        &rank->err),
           "comm is NULL");
    expect(&refusals,
           ffa_parallel_rows_reduce(rows, rank->comm, &(ffa_row_format){ 8, 1, 1 }, &packed,
                                    &packed, rank->stream, &rank->err),
           "the kernels add rows of dtype");
    expect(&refusals,
           ffa_parallel_rows_undispatch(rows, rank->comm, &(ffa_row_format){ 8, 64, 4096 }, &packed,
                                        &packed, rank->stream, &rank->err),
           "key window has");
    ffa_parallel_rows_destroy(rows);
    if (refusals.missed) {
        snprintf(rank->err.message, sizeof rank->err.message, "not refused: %s", refusals.missed);
        return FFA_INVALID;
    }
    return ffa_comm_status(rank->comm, &rank->err);
}

void rows_refusals(void)
{
    static const struct exchange_types types = { FFA_FP32, 0, FFA_ROW_KERNELS_SUM };
    struct exchange_rank ranks[EXCHANGE_RANKS];
    struct rows_test *test = NULL;

    for (uint64_t seed = 1; !test || test->count < 2 || test->side == FFA_SIDE_KEYS; seed++) {
        if (test)
            test_free(test);
        test = test_new(seed, &types);
    }
    ranks_run(ranks, test->count, 60000, run_refused, test);
    ranks_check(ranks, test->count);
    test_free(test);
}
