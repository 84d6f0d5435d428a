/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between the sequence and ranks' buffers: every token where the dispatch says, with any
 * strides; gradients by the definition of an adjoint, exactly; roll; position ids and padding of
 * the reference; arguments.
 */
#include "parallel/dispatch/dispatch.h"
#include "support/parallel_cases.h"
#include "support/parallel_run.h"
#include "support/suite.h"

#include <check.h>
#include <ffa/parallel_rows.h>
#include <stdio.h>

enum { TOKENS_HERE = 60, RANKS_HERE = 6, HEADS = 2, DIM = 3 };

/* A tensor with gaps between heads and tokens, which must stay as they are. */
enum { HEAD_STRIDE = 5, TOKEN_STRIDE = 17, ROOM = TOKENS_HERE * TOKEN_STRIDE };
#define GAP 12345.

struct tensor {
    double at[ROOM];
};

static ffa_tensor view(struct tensor *tensor)
{
    return (
        ffa_tensor){ .data = tensor->at, .token_stride = TOKEN_STRIDE, .head_stride = HEAD_STRIDE };
}

static double *cell(struct tensor *tensor, int64_t token, int64_t head, int64_t e)
{
    return &tensor->at[token * TOKEN_STRIDE + head * HEAD_STRIDE + e];
}

static void clear(struct tensor *tensor)
{
    for (int64_t i = 0; i < ROOM; i++)
        tensor->at[i] = GAP;
}

/* Small integers: sums of products are exact. */
static void fill(struct tensor *tensor, struct rng *rng, int64_t tokens)
{
    clear(tensor);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t e = 0; e < DIM; e++)
                *cell(tensor, t, h, e) = (double)rng_range(rng, -50, 50);
}

static double product(struct tensor *a, struct tensor *b, int64_t tokens)
{
    double sum = 0;

    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t e = 0; e < DIM; e++)
                sum += *cell(a, t, h, e) * *cell(b, t, h, e);
    return sum;
}

static int64_t gaps(const struct tensor *tensor)
{
    int64_t count = 0;

    for (int64_t i = 0; i < ROOM; i++)
        count += tensor->at[i] == GAP;
    return count;
}

struct trial {
    ffa_dispatch *dispatch;
    const struct layout *layout;
    ffa_rows rows;
    int32_t ranks;
    int64_t tokens; /* of the side */
};

static void draw(struct trial *trial, struct rng *rng)
{
    const int64_t queries = rng_range(rng, 1, TOKENS_HERE);
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    ffa_topology topology;
    ffa_dispatch_mask one = { 0 };
    ffa_mask_shape shape = { queries, queries };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    opts.keys = (int32_t)rng_range(rng, FFA_KEYS_WITH_QUERIES, FFA_KEYS_DISPATCHED);
    opts.chunk_tokens = rng_range(rng, 1, 7);
    opts.flags = FFA_DISPATCH_CHUNK_EXACT;
    opts.algorithm = (int32_t)rng_range(rng, 0, 3);
    if (opts.keys != FFA_KEYS_WITH_QUERIES)
        shape.seqlen_k = rng_range(rng, 1, TOKENS_HERE);
    if (opts.keys == FFA_KEYS_DISPATCHED)
        opts.key_chunk_tokens = rng_range(rng, 1, 7);
    topology.rank_count = (int32_t)rng_range(rng, 1, RANKS_HERE);
    topology.ranks_per_node = 0;
    while ((int64_t)topology.rank_count * opts.chunk_tokens > queries + opts.chunk_tokens - 1)
        topology.rank_count--;
    ck_assert_int_eq(ffa_mask_full(&mask, &shape, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_msg(!ffa_dispatch_create(&trial->dispatch, &one, 1, &topology, &opts, &err), "%s",
                  err.message);
    ffa_mask_destroy(mask);
    trial->ranks = topology.rank_count;
    trial->rows = (ffa_rows){ .dispatch = trial->dispatch,
                              .side = (int32_t)rng_range(rng, 0, 1),
                              .dtype = FFA_FP64,
                              .heads = HEADS,
                              .head_dim = DIM };
    trial->layout = trial->rows.side == FFA_SIDE_KEYS ? dispatch_key_layout(trial->dispatch)
                                                      : &trial->dispatch->layout;
    trial->tokens = trial->rows.side == FFA_SIDE_KEYS ? shape.seqlen_k : queries;
}

static int64_t rows_of(const struct trial *trial, int32_t rank)
{
    return trial->rows.side == FFA_SIDE_KEYS ? ffa_dispatch_key_rows(trial->dispatch, rank)
                                             : ffa_dispatch_query_rows(trial->dispatch, rank);
}

/* Each local row is its token's; undispatching all ranks gives the whole back. */
static void check_rows(struct trial *trial, struct rng *rng)
{
    static struct tensor whole, local, back;
    const ffa_tensor w = view(&whole), l = view(&local), b = view(&back);
    int64_t ids[TOKENS_HERE], seen = 0;

    fill(&whole, rng, trial->tokens);
    clear(&back);
    for (int32_t r = 0; r < trial->ranks; r++) {
        trial->rows.rank = r;
        clear(&local);
        ck_assert_int_eq(ffa_rows_dispatch(&trial->rows, &w, &l, NULL), FFA_OK);
        ck_assert_int_eq(ffa_rows_position_ids(&trial->rows, ids, NULL), FFA_OK);
        for (int64_t i = 0; i < rows_of(trial, r); i++) {
            ck_assert_int_eq(ids[i], parallel_token(trial->layout, r, i));
            ck_assert(i == 0 || ids[i - 1] < ids[i]);
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t e = 0; e < DIM; e++)
                    ck_assert(*cell(&local, i, h, e) == *cell(&whole, ids[i], h, e));
        }
        ck_assert_int_eq(gaps(&local), ROOM - rows_of(trial, r) * HEADS * DIM);
        ck_assert_int_eq(ffa_rows_undispatch(&trial->rows, &l, &b, NULL), FFA_OK);
        seen += rows_of(trial, r);
    }
    ck_assert_int_eq(seen,
                     trial->layout->is_replicated ? trial->tokens * trial->ranks : trial->tokens);
    ck_assert_int_eq(memcmp(&whole, &back, sizeof whole), 0);
}

/* <dispatch(x), y> = <x, undispatch(y)>, and for partial gradients <undispatch(y), sum of x_r> =
 * sum over ranks of <y_r, reduce(x)_r>. */
static void check_adjoints(struct trial *trial, struct rng *rng)
{
    static struct tensor x[RANKS_HERE], y[RANKS_HERE], whole, local;
    ffa_tensor views[RANKS_HERE];
    const ffa_tensor w = view(&whole), l = view(&local);
    double left = 0, right = 0;

    clear(&whole);
    for (int32_t r = 0; r < trial->ranks; r++) {
        const ffa_tensor from = view(&y[r]);

        trial->rows.rank = r;
        fill(&x[r], rng, trial->tokens);
        fill(&y[r], rng, rows_of(trial, r));
        views[r] = view(&x[r]);
        ck_assert_int_eq(ffa_rows_undispatch(&trial->rows, &from, &w, NULL), FFA_OK);
    }
    for (int32_t r = 0; r < trial->ranks && !trial->layout->is_replicated; r++) {
        const ffa_tensor from = view(&x[0]);

        trial->rows.rank = r;
        clear(&local);
        ck_assert_int_eq(ffa_rows_dispatch(&trial->rows, &from, &l, NULL), FFA_OK);
        left += product(&local, &y[r], rows_of(trial, r));
    }
    if (!trial->layout->is_replicated)
        ck_assert(left == product(&x[0], &whole, trial->tokens));
    left = 0;
    for (int32_t r = 0; r < trial->ranks; r++) {
        trial->rows.rank = r;
        clear(&local);
        ck_assert_int_eq(ffa_rows_reduce(&trial->rows, views, &l, NULL), FFA_OK);
        left += product(&local, &y[r], rows_of(trial, r));
        right += product(&x[r], &whole, trial->tokens);
    }
    if (!trial->layout->is_replicated)
        ck_assert(left == right);
}

static void check_roll(struct trial *trial, struct rng *rng)
{
    static struct tensor whole, locals[RANKS_HERE], output;
    const int64_t shift = rng_range(rng, -2 * trial->tokens, 2 * trial->tokens);
    const ffa_tensor w = view(&whole), o = view(&output);
    ffa_tensor views[RANKS_HERE];

    fill(&whole, rng, trial->tokens);
    for (int32_t r = 0; r < trial->ranks; r++) {
        trial->rows.rank = r;
        clear(&locals[r]);
        views[r] = view(&locals[r]);
        ck_assert_int_eq(ffa_rows_dispatch(&trial->rows, &w, &views[r], NULL), FFA_OK);
    }
    for (int32_t r = 0; r < trial->ranks; r++) {
        trial->rows.rank = r;
        clear(&output);
        ck_assert_int_eq(ffa_rows_roll(&trial->rows, shift, views, &o, NULL), FFA_OK);
        for (int64_t i = 0; i < rows_of(trial, r); i++) {
            int64_t from = parallel_token(trial->layout, r, i) - shift;

            while (from < 0)
                from += trial->tokens;
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t e = 0; e < DIM; e++)
                    ck_assert(*cell(&output, i, h, e) == *cell(&whole, from % trial->tokens, h, e));
        }
        ck_assert_int_eq(gaps(&output), ROOM - rows_of(trial, r) * HEADS * DIM);
    }
}

START_TEST(random_dispatches)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct rng rng = { seed };
        struct trial trial;

        draw(&trial, &rng);
        check_rows(&trial, &rng);
        check_adjoints(&trial, &rng);
        check_roll(&trial, &rng);
        ffa_dispatch_destroy(trial.dispatch);
    }
}
END_TEST

/* From 2048 on fp16 has steps of 2: added one by one in halves, ones would be lost. */
START_TEST(halves_are_summed_in_fp32)
{
    const ffa_topology topology = { 4, 0 };
    ffa_mask *mask;
    ffa_dispatch_mask one = { 0 };
    ffa_dispatch *dispatch;
    uint16_t parts[4][4], got;
    ffa_tensor wholes[4];
    const ffa_tensor local = FFA_TENSOR_INIT(&got);
    ffa_rows rows = { .dtype = FFA_FP16, .heads = 1, .head_dim = 1 };

    ck_assert_int_eq(ffa_mask_full(&mask, &(ffa_mask_shape){ 4, 4 }, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
    rows.dispatch = dispatch;
    for (int r = 0; r < 4; r++) {
        for (int t = 0; t < 4; t++)
            parts[r][t] = r == 0 ? 0x6800 /* 2048 */ : 0x3c00;
        wholes[r] = (ffa_tensor)FFA_TENSOR_INIT(parts[r]);
    }
    ck_assert_int_eq(ffa_rows_reduce(&rows, wholes, &local, NULL), FFA_OK);
    ck_assert_uint_eq(got, 0x6802); /* 2051, to even: 2052 */
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- the reference: it pads to chunks of equal length for all ranks; nothing is padded here, and
 * with its padding the position ids are its own ---- */

START_TEST(padding_of_the_reference)
{
    json_t *root = parallel_cases_load();
    const json_t *list = json_object_get(root, "padding");

    ck_assert_uint_eq(json_array_size(list), 6);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const int64_t tokens = json_integer_value(json_object_get(entry, "seqlen"));
        const int64_t chunk = json_integer_value(json_object_get(entry, "chunk"));
        const int64_t pad = json_integer_value(json_object_get(entry, "pad"));
        const int32_t ranks = (int32_t)json_integer_value(json_object_get(entry, "cp"));

        for (int padded = 0; padded < 2; padded++) {
            const int64_t all = tokens + (padded ? pad : 0);
            const ffa_topology topology = { ranks, 0 };
            ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
            ffa_dispatch_mask one = { 0 };
            ffa_dispatch *dispatch;
            ffa_status rc;
            ffa_mask *mask;
            int64_t *ids = calloc((size_t)all, sizeof *ids), sum = 0;

            ck_assert_int_eq(ffa_mask_causal(&mask, &(ffa_mask_shape){ all, all }, NULL), FFA_OK);
            one.mask = mask;
            opts.algorithm = FFA_DISPATCH_MIN_HEAP;
            opts.flags = FFA_DISPATCH_CHUNK_EXACT;
            opts.chunk_tokens = chunk;
            rc = ffa_dispatch_create(&dispatch, &one, 1, &topology, &opts, NULL);
            ck_assert_int_eq(rc, (all + chunk - 1) / chunk < ranks ? FFA_INVALID : FFA_OK);
            for (int32_t r = 0; r < ranks && rc == FFA_OK; r++) {
                const ffa_rows rows = { .dispatch = dispatch, .rank = r };
                const int64_t own = ffa_dispatch_query_rows(dispatch, r);
                int64_t count, row = 0;
                const int64_t *chunks = ffa_dispatch_rank_chunks(dispatch, r, &count);

                if (padded) /* the same number of whole chunks for every rank */
                    ck_assert_int_eq(own, all / ranks);
                ck_assert_int_eq(ffa_rows_position_ids(&rows, ids, NULL), FFA_OK);
                for (int64_t c = 0; c < count; c++)
                    for (int64_t t = chunks[c] * chunk; t < chunks[c] * chunk + chunk && t < all;
                         t++)
                        ck_assert_int_eq(ids[row++], t);
                ck_assert_int_eq(row, own);
                sum += own;
            }
            ck_assert_int_eq(sum, rc == FFA_OK ? all : 0);
            free(ids);
            ffa_dispatch_destroy(dispatch);
            ffa_mask_destroy(mask);
        }
        ck_assert_int_eq((tokens + pad) % (ranks * chunk), 0);
        ck_assert_int_lt(pad, ranks * chunk);
    }
    json_decref(root);
}
END_TEST

/* ---- arguments ---- */

START_TEST(bad_arguments_are_named)
{
    const ffa_topology topology = { 2, 0 };
    ffa_mask *mask;
    ffa_dispatch_mask one = { 0 };
    ffa_dispatch *dispatch;
    double data[8] = { 0 };
    const ffa_tensor good = FFA_TENSOR_INIT(data), null = FFA_TENSOR_INIT(NULL);
    ffa_tensor some = FFA_TENSOR_INIT(data);
    const ffa_tensor bad = { .data = data, .token_stride = -1 };
    const ffa_tensor pair[2] = { good, null };
    ffa_rows rows = { .dtype = FFA_FP64, .heads = 1, .head_dim = 1 };
    ffa_error err = { FFA_OK, 0, "" };
    int64_t ids[2];

    ck_assert_int_eq(ffa_mask_full(&mask, &(ffa_mask_shape){ 4, 4 }, NULL), FFA_OK);
    one.mask = mask;
    ck_assert_int_eq(ffa_dispatch_create(&dispatch, &one, 1, &topology, NULL, NULL), FFA_OK);
#define FAILS(call, text)                                                                          \
    do {                                                                                           \
        ck_assert_int_eq(call, FFA_INVALID);                                                       \
        ck_assert_str_eq(err.message, text);                                                       \
    } while (0)
    FAILS(ffa_rows_dispatch(NULL, &good, &good, &err), "rows is NULL");
    FAILS(ffa_rows_dispatch(&rows, &good, &good, &err), "rows: dispatch is NULL");
    rows.dispatch = dispatch;
    rows.side = 2;
    FAILS(ffa_rows_position_ids(&rows, ids, &err), "rows: side is 2, not 0 or 1");
    rows.side = 0;
    rows.rank = 2;
    FAILS(ffa_rows_position_ids(&rows, ids, &err), "rows: rank is 2, not in [0, 2)");
    rows.rank = 0;
    FAILS(ffa_rows_position_ids(&rows, NULL, &err), "ids is NULL");
    rows.dtype = 5;
    FAILS(ffa_rows_dispatch(&rows, &good, &good, &err), "rows: dtype is 5, not in [1, 4]");
    rows.dtype = FFA_FP64;
    rows.heads = 0;
    FAILS(ffa_rows_undispatch(&rows, &good, &good, &err), "rows: heads is 0, not 1 or more");
    rows.heads = 1;
    rows.head_dim = 0;
    FAILS(ffa_rows_undispatch(&rows, &good, &good, &err), "rows: head_dim is 0, not 1 or more");
    rows.head_dim = 1;
    FAILS(ffa_rows_dispatch(&rows, &null, &good, &err), "whole: data is NULL, it has 4 rows");
    FAILS(ffa_rows_dispatch(&rows, &good, NULL, &err), "local is NULL");
    FAILS(ffa_rows_dispatch(&rows, &good, &bad, &err),
          "local: token_stride is -1, not in [0, 274877906944] elements");
    some.token_stride = 0; /* for what is read */
    ck_assert_int_eq(ffa_rows_dispatch(&rows, &some, &good, &err), FFA_OK);
    ck_assert_int_eq(ffa_rows_undispatch(&rows, &some, &good, &err), FFA_OK);
    FAILS(ffa_rows_dispatch(&rows, &good, &some, &err),
          "local: token_stride is 0, which makes its rows overlap, and it is written; "
          "FFA_CONTIGUOUS says that a tensor is contiguous");
    FAILS(ffa_rows_undispatch(&rows, &good, &some, &err),
          "whole: token_stride is 0, which makes its rows overlap, and it is written; "
          "FFA_CONTIGUOUS says that a tensor is contiguous");
    some = good;
    some.tokens = 3;
    FAILS(ffa_rows_dispatch(&rows, &some, &good, &err), "whole: tokens is 3, the call needs 4");
    ck_assert_int_eq(ffa_rows_dispatch(&rows, &good, &some, &err), FFA_OK);
    some.tokens = 0;
    some.dtype = FFA_FP32;
    FAILS(ffa_rows_dispatch(&rows, &good, &some, &err),
          "local: dtype is 3 (fp32), the call takes 4 (fp64)");
    rows.heads = 1 << 30;
    rows.head_dim = (int64_t)1 << 34;
    FAILS(ffa_rows_dispatch(&rows, &good, &good, &err),
          "rows: head_dim is 17179869184, times 1073741824 heads over 274877906944");
    rows.head_dim = INT64_MAX;
    FAILS(ffa_rows_reduce(&rows, pair, &good, &err),
          "rows: head_dim is 9223372036854775807, times 1073741824 heads over 274877906944");
    rows.heads = 1;
    rows.head_dim = 1;
    FAILS(ffa_rows_reduce(&rows, pair, &good, &err), "wholes[1]: data is NULL, it has 4 rows");
    FAILS(ffa_rows_reduce(&rows, NULL, &good, &err), "wholes is NULL");
    FAILS(ffa_rows_roll(&rows, 1, pair, &good, &err), "locals[1]: data is NULL, it has 2 rows");
#undef FAILS
    ffa_dispatch_destroy(dispatch);
    ffa_mask_destroy(mask);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rows");
    TCase *tc = tcase_create("rows");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, random_dispatches);
    tcase_add_test(tc, halves_are_summed_in_fp32);
    tcase_add_test(tc, padding_of_the_reference);
    tcase_add_test(tc, bad_arguments_are_named);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
