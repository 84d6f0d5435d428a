/* SPDX-License-Identifier: Apache-2.0
 *
 * Every builder, cell by cell, against a definition written from its sentence in ffa/mask.h.
 *
 * A case holds the arguments of all builders; each row of the table is a builder and a predicate
 * over cells. Slices must attend each cell of the definition once and nothing else.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { DOCS_MAX = 6, LENGTH_MAX = 12, SIDE_MAX = DOCS_MAX * LENGTH_MAX, SEEDS = 1200 };

struct arguments {
    ffa_mask_shape shape;
    int64_t cu_q[DOCS_MAX + 1], cu_k[DOCS_MAX + 1];
    ffa_documents docs, same; /* same: cu_k is cu_q */
    ffa_window window;
    int64_t globals, block_tokens;
    ffa_block_size block;
    int64_t k_blocks, topk;
    uint8_t keep[SIDE_MAX * SIDE_MAX];
    int32_t index[SIDE_MAX * SIDE_MAX];
};

static void cu_draw(struct rng *rng, int64_t *cu, int64_t count)
{
    cu[0] = 0;
    for (int64_t d = 0; d < count; d++)
        cu[d + 1] = cu[d] + rng_range(rng, 0, LENGTH_MAX);
    if (cu[count] == 0)
        cu[count] = 1;
}

static void arguments_draw(struct arguments *a, uint64_t seed)
{
    struct rng rng = { seed };
    int64_t count = rng_range(&rng, 1, DOCS_MAX);

    a->shape = (ffa_mask_shape){ rng_range(&rng, 1, 24), rng_range(&rng, 1, 24) };
    cu_draw(&rng, a->cu_q, count);
    cu_draw(&rng, a->cu_k, count);
    a->docs = (ffa_documents){ .cu_q = a->cu_q, .cu_k = a->cu_k, .document_count = count };
    a->same = (ffa_documents){ .cu_q = a->cu_q, .document_count = count };
    a->window = (ffa_window){ rng_range(&rng, -1, 14), rng_range(&rng, -1, 14) };
    a->globals = rng_range(&rng, 0, 8);
    a->block_tokens = rng_range(&rng, 1, 8);
    a->block = (ffa_block_size){ rng_range(&rng, 1, 30), rng_range(&rng, 1, 9) };
    a->k_blocks = (a->shape.seqlen_k + a->block.block_k - 1) / a->block.block_k;
    a->topk = rng_range(&rng, 1, a->k_blocks);
    for (int64_t i = 0; i < SIDE_MAX * SIDE_MAX; i++) {
        a->keep[i] = rng_range(&rng, 0, 1) != 0;
        a->index[i] = (int32_t)rng_range(&rng, -1, a->k_blocks - 1);
    }
}

/* ---- definitions ---- */

/* The document of a token, -1 past the end. */
static int64_t doc_of(const int64_t *cu, int64_t count, int64_t token)
{
    for (int64_t d = 0; d < count; d++)
        if (cu[d] <= token && token < cu[d + 1])
            return d;
    return -1;
}

/* FlashAttention's window, -1 = unlimited, over sq rows and sk keys, both from 0. */
static bool in_window(int64_t row, int64_t key, int64_t sq, int64_t sk, ffa_window window)
{
    if (window.left >= 0 && key < row + sk - sq - window.left)
        return false;
    return window.right < 0 || key <= row + sk - sq + window.right;
}

/* The same inside the one document of row and key. */
static bool in_doc_window(const struct arguments *a, int64_t row, int64_t key, ffa_window window)
{
    int64_t d = doc_of(a->cu_q, a->docs.document_count, row);

    return d == doc_of(a->cu_k, a->docs.document_count, key) &&
           in_window(row - a->cu_q[d], key - a->cu_k[d], a->cu_q[d + 1] - a->cu_q[d],
                     a->cu_k[d + 1] - a->cu_k[d], window);
}

static const ffa_window everything = { -1, -1 }, causal = { -1, 0 };

static bool full_has(const struct arguments *a, int64_t row, int64_t key)
{
    (void)a, (void)row, (void)key;
    return true;
}

static bool causal_has(const struct arguments *a, int64_t row, int64_t key)
{
    return in_window(row, key, a->shape.seqlen_q, a->shape.seqlen_k, causal);
}

static bool window_has(const struct arguments *a, int64_t row, int64_t key)
{
    return in_window(row, key, a->shape.seqlen_q, a->shape.seqlen_k, a->window);
}

static bool global_window_has(const struct arguments *a, int64_t row, int64_t key)
{
    ffa_window window = a->window;

    if (row < a->globals || key < a->globals)
        window.left = -1;
    return in_window(row, key, a->shape.seqlen_q, a->shape.seqlen_k, window);
}

static bool varlen_full_has(const struct arguments *a, int64_t row, int64_t key)
{
    return in_doc_window(a, row, key, everything);
}

static bool varlen_causal_has(const struct arguments *a, int64_t row, int64_t key)
{
    return in_doc_window(a, row, key, causal);
}

static bool varlen_window_has(const struct arguments *a, int64_t row, int64_t key)
{
    int64_t d = doc_of(a->cu_k, a->docs.document_count, key);
    ffa_window window = a->window;

    if (key - a->cu_k[d] < a->globals)
        window.left = -1;
    return in_doc_window(a, row, key, window);
}

static bool block_causal_has(const struct arguments *a, int64_t row, int64_t key)
{
    int64_t d = doc_of(a->cu_q, a->same.document_count, row);
    int64_t begin = a->cu_q[d];

    return d == doc_of(a->cu_q, a->same.document_count, key) &&
           (key - begin) / a->block_tokens <= (row - begin) / a->block_tokens;
}

static bool shared_prefix_has(const struct arguments *a, int64_t row, int64_t key)
{
    if (key < a->cu_k[1] && row >= a->cu_q[1])
        return true;
    return in_doc_window(a, row, key, causal);
}

static bool shared_question_has(const struct arguments *a, int64_t row, int64_t key)
{
    return key < a->cu_k[1] || in_doc_window(a, row, key, causal);
}

static bool block_sparse_has(const struct arguments *a, int64_t row, int64_t key)
{
    return a->keep[row / a->block.block_q * a->k_blocks + key / a->block.block_k];
}

static bool block_variable_has(const struct arguments *a, int64_t row, int64_t key)
{
    int64_t count = a->docs.document_count;

    return a->keep[doc_of(a->cu_q, count, row) * count + doc_of(a->cu_k, count, key)];
}

static bool block_topk_has(const struct arguments *a, int64_t row, int64_t key)
{
    for (int64_t i = 0; i < a->topk; i++)
        if (a->index[row / a->block.block_q * a->topk + i] == key / a->block.block_k)
            return true;
    return false;
}

/* ---- builders ---- */

static ffa_status full_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_full(out, &a->shape, err);
}

static ffa_status causal_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_causal(out, &a->shape, err);
}

static ffa_status window_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_window(out, &a->shape, &a->window, err);
}

static ffa_status global_window_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_global_window(out, &a->shape, &a->window, a->globals, err);
}

static ffa_status varlen_full_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_varlen_full(out, &a->docs, err);
}

static ffa_status varlen_causal_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_varlen_causal(out, &a->docs, err);
}

static ffa_status varlen_window_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_varlen_window(out, &a->docs, &a->window, a->globals, err);
}

static ffa_status block_causal_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_block_causal(out, &a->same, a->block_tokens, err);
}

static ffa_status shared_prefix_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_shared_prefix(out, &a->docs, err);
}

static ffa_status shared_question_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_shared_question(out, &a->docs, err);
}

static ffa_status block_sparse_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_block_sparse(out, &a->shape, &a->block, a->keep, err);
}

static ffa_status block_variable_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_block_sparse_variable(out, a->cu_q, a->docs.document_count, a->cu_k,
                                          a->docs.document_count, a->keep, err);
}

static ffa_status block_topk_make(ffa_mask **out, const struct arguments *a, ffa_error *err)
{
    return ffa_mask_block_topk(out, &a->shape, &a->block, a->index, a->topk, err);
}

enum shape_of { OF_SHAPE, OF_DOCS, OF_SAME };

static const struct {
    const char *name;
    enum shape_of shape;
    ffa_status (*make)(ffa_mask **out, const struct arguments *a, ffa_error *err);
    bool (*has)(const struct arguments *a, int64_t row, int64_t key);
} builders[] = {
    { "full", OF_SHAPE, full_make, full_has },
    { "causal", OF_SHAPE, causal_make, causal_has },
    { "window", OF_SHAPE, window_make, window_has },
    { "global window", OF_SHAPE, global_window_make, global_window_has },
    { "varlen full", OF_DOCS, varlen_full_make, varlen_full_has },
    { "varlen causal", OF_DOCS, varlen_causal_make, varlen_causal_has },
    { "varlen window", OF_DOCS, varlen_window_make, varlen_window_has },
    { "block causal", OF_SAME, block_causal_make, block_causal_has },
    { "shared prefix", OF_DOCS, shared_prefix_make, shared_prefix_has },
    { "shared question", OF_DOCS, shared_question_make, shared_question_has },
    { "block sparse", OF_SHAPE, block_sparse_make, block_sparse_has },
    { "block sparse, variable", OF_DOCS, block_variable_make, block_variable_has },
    { "block top-k", OF_SHAPE, block_topk_make, block_topk_has },
};

static ffa_mask_shape shape_of(const struct arguments *a, enum shape_of what)
{
    int64_t count = a->docs.document_count;

    if (what == OF_SHAPE)
        return a->shape;
    return (ffa_mask_shape){ a->cu_q[count], what == OF_DOCS ? a->cu_k[count] : a->cu_q[count] };
}

/* How many slices attend a cell. */
static int cover(const ffa_mask *mask, int64_t row, int64_t key)
{
    ffa_slice_list list = ffa_mask_slices(mask, 0);
    int count = 0;

    for (int64_t i = 0; i < list.count; i++)
        count += slice_has(&list.slices[i], row, key);
    return count;
}

START_TEST(builder_matches_its_definition)
{
    static struct arguments a;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_mask *mask = NULL;
        ffa_mask_shape shape;
        int64_t area = 0;

        arguments_draw(&a, seed);
        shape = shape_of(&a, builders[_i].shape);
        ck_assert_msg(builders[_i].make(&mask, &a, &err) == FFA_OK, "%s, seed %llu: %s",
                      builders[_i].name, (unsigned long long)seed, err.message);
        ck_assert_int_eq(ffa_mask_seqlen_q(mask), shape.seqlen_q);
        ck_assert_int_eq(ffa_mask_seqlen_k(mask), shape.seqlen_k);
        for (int64_t row = 0; row < shape.seqlen_q; row++)
            for (int64_t key = 0; key < shape.seqlen_k; key++) {
                bool want = builders[_i].has(&a, row, key);
                int got = cover(mask, row, key);

                area += want;
                if (got != want)
                    ck_abort_msg("%s, seed %llu, cell (%lld, %lld): %d slices, want %d",
                                 builders[_i].name, (unsigned long long)seed, (long long)row,
                                 (long long)key, got, want);
            }
        ck_assert_int_eq(ffa_mask_area(mask, 0), area);
        ffa_mask_destroy(mask);
    }
}
END_TEST

START_TEST(builder_survives_every_allocation_failing)
{
    static struct arguments a;
    ffa_mask *mask = NULL;
    ffa_status rc;

    arguments_draw(&a, 7);
    for (long nth = 1;; nth++) {
        ffa_error err = { FFA_OK, 0, "" };

        fault_arm(FAULT_ALLOC, nth);
        mask = (ffa_mask *)&a;
        rc = builders[_i].make(&mask, &a, &err);
        if (!fault_fired())
            break;
        ck_assert_int_eq(rc, FFA_NOMEM);
        ck_assert_str_ne(err.message, "");
        ck_assert_ptr_null(mask);
    }
    fault_arm(FAULT_ALLOC, 0);
    ck_assert_int_eq(rc, FFA_OK);
    ffa_mask_destroy(mask);
}
END_TEST

/* FlashAttention's own examples (README, "causal mask is aligned to the bottom right corner"). */
static const struct {
    const char *name;
    ffa_mask_shape shape;
    ffa_window window;
    const char *rows; /* one character a cell, row by row */
} pictures[] = {
    { "causal, 2 rows, 5 keys", { 2, 5 }, { -1, 0 }, "11110 11111" },
    { "causal, 5 rows, 2 keys", { 5, 2 }, { -1, 0 }, "00 00 00 10 11" },
    { "window 1, 1 of 4", { 4, 4 }, { 1, 1 }, "1100 1110 0111 0011" },
    { "window 0, 0, more keys", { 2, 4 }, { 0, 0 }, "0010 0001" },
    { "window 1, 0, more rows", { 5, 3 }, { 1, 0 }, "000 000 100 110 011" },
    { "window 0, 2, more rows", { 4, 2 }, { 0, 2 }, "10 11 11 01" },
    { "no right bound", { 3, 3 }, { 1, -1 }, "111 111 011" },
    { "bounds beyond the mask", { 2, 2 }, { INT64_MAX, INT64_MAX }, "11 11" },
};

START_TEST(window_by_hand)
{
    ffa_mask_shape shape = pictures[_i].shape;
    ffa_mask *mask;
    char got[64] = "";
    size_t at = 0;

    ck_assert_int_eq(ffa_mask_window(&mask, &shape, &pictures[_i].window, NULL), FFA_OK);
    for (int64_t row = 0; row < shape.seqlen_q; row++) {
        if (row > 0)
            got[at++] = ' ';
        for (int64_t key = 0; key < shape.seqlen_k; key++)
            got[at++] = cover(mask, row, key) ? '1' : '0';
    }
    ck_assert_msg(!strcmp(got, pictures[_i].rows), "%s: %s", pictures[_i].name, got);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- bad input ---- */

enum { NO_SHAPE = 1, NO_BLOCK = 2, NO_WINDOW = 4, NO_ARRAY = 8, NO_DOCS = 16 };

static const struct {
    const char *builder;
    int missing;
    ffa_mask_shape shape;
    ffa_window window;
    int64_t number;   /* globals, block_tokens, block_k, k */
    const char *want; /* what the message must have */
} bad_builders[] = {
    { "full", NO_SHAPE, { 4, 4 }, { 0, 0 }, 1, "shape is NULL" },
    { "full", 0, { 0, 4 }, { 0, 0 }, 1, "seqlen_q is 0, not in [1, 2147483647]" },
    { "full", 0, { 4, (int64_t)1 << 31 }, { 0, 0 }, 1, "seqlen_k is 2147483648, not in" },
    { "causal", 0, { 4, -1 }, { 0, 0 }, 1, "seqlen_k is -1" },
    { "causal", NO_SHAPE, { 4, 4 }, { 0, 0 }, 1, "shape is NULL" },
    { "window", NO_WINDOW, { 4, 4 }, { 0, 0 }, 1, "window is NULL" },
    { "window", 0, { 4, 4 }, { -2, 0 }, 1, "window left is -2, less than -1" },
    { "window", 0, { 4, 4 }, { 0, -7 }, 1, "window right is -7, less than -1" },
    { "global", 0, { 4, 4 }, { 0, 0 }, -1, "global_tokens is -1, less than 0" },
    { "varlen window", 0, { 4, 4 }, { 0, 0 }, -5, "global_keys is -5, less than 0" },
    { "varlen window", NO_DOCS, { 4, 4 }, { 0, 0 }, 1, "docs is NULL" },
    { "varlen window", NO_WINDOW, { 4, 4 }, { 0, 0 }, 1, "window is NULL" },
    { "block causal", 0, { 4, 4 }, { 0, 0 }, 0, "block_tokens is 0, less than 1" },
    { "block causal", 0, { 4, 5 }, { 0, 0 }, 1, "cu_q[1] is 4, cu_k[1] is 5" },
    { "block sparse", NO_BLOCK, { 4, 4 }, { 0, 0 }, 1, "block is NULL" },
    { "block sparse", NO_ARRAY, { 4, 4 }, { 0, 0 }, 1, "keep is NULL" },
    { "block sparse", NO_SHAPE, { 4, 4 }, { 0, 0 }, 1, "shape is NULL" },
    { "block sparse", 0, { 4, 4 }, { 0, 0 }, 0, "block_k is 0, less than 1" },
    { "topk", NO_ARRAY, { 4, 4 }, { 0, 0 }, 1, "index is NULL" },
    { "topk", 0, { 4, 4 }, { 0, 0 }, 0, "k is 0, not in [1, 2]" },
    { "topk", 0, { 4, 4 }, { 0, 0 }, 3, "k is 3, not in [1, 2]" },
    { "topk", 0, { 4, 4 }, { 0, 0 }, 2, "index[2] is 2, not in [-1, 1]" },
};

static ffa_status bad_call(ffa_mask **out, int row, ffa_error *err)
{
    static const int32_t index[] = { 0, 1, 2, -1 };
    static const uint8_t keep[16] = { 0 };
    int missing = bad_builders[row].missing;
    const char *name = bad_builders[row].builder;
    const ffa_mask_shape *shape = missing & NO_SHAPE ? NULL : &bad_builders[row].shape;
    const ffa_window *window = missing & NO_WINDOW ? NULL : &bad_builders[row].window;
    int64_t number = bad_builders[row].number;
    int64_t cu_q[] = { 0, bad_builders[row].shape.seqlen_q };
    int64_t cu_k[] = { 0, bad_builders[row].shape.seqlen_k };
    ffa_documents documents = { .cu_q = cu_q, .cu_k = cu_k, .document_count = 1 };
    const ffa_documents *docs = missing & NO_DOCS ? NULL : &documents;
    ffa_block_size size = { 2, !strcmp(name, "topk") ? 2 : number };
    const ffa_block_size *block = missing & NO_BLOCK ? NULL : &size;

    if (!strcmp(name, "full"))
        return ffa_mask_full(out, shape, err);
    if (!strcmp(name, "causal"))
        return ffa_mask_causal(out, shape, err);
    if (!strcmp(name, "window"))
        return ffa_mask_window(out, shape, window, err);
    if (!strcmp(name, "global"))
        return ffa_mask_global_window(out, shape, window, number, err);
    if (!strcmp(name, "varlen window"))
        return ffa_mask_varlen_window(out, docs, window, number, err);
    if (!strcmp(name, "block causal"))
        return ffa_mask_block_causal(out, docs, number, err);
    if (!strcmp(name, "block sparse"))
        return ffa_mask_block_sparse(out, shape, block, missing & NO_ARRAY ? NULL : keep, err);
    return ffa_mask_block_topk(out, shape, block, missing & NO_ARRAY ? NULL : index, number, err);
}

START_TEST(builder_refuses)
{
    ffa_mask *mask = (ffa_mask *)&bad_builders;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(bad_call(&mask, _i, &err), FFA_INVALID);
    ck_assert_ptr_null(mask);
    ck_assert_int_eq(err.status, FFA_INVALID);
    ck_assert_msg(strstr(err.message, bad_builders[_i].want) != NULL, "%s: got '%s', want '%s'",
                  bad_builders[_i].builder, err.message, bad_builders[_i].want);
    ck_assert_int_eq(bad_call(NULL, _i, NULL), FFA_INVALID);
}
END_TEST

static const int64_t cu_good[] = { 0, 2, 4 }, cu_late[] = { 1, 2, 4 }, cu_back[] = { 0, 3, 2 },
                     cu_zero[] = { 0, 0, 0 }, cu_huge[] = { 0, 2, (int64_t)1 << 31 };

static const struct {
    const int64_t *cu_q, *cu_k;
    int64_t count;
    const char *want;
} bad_docs[] = {
    { NULL, cu_good, 2, "cu_q is NULL" },
    { cu_good, cu_good, 0, "document_count is 0, not in [1, 2147483647]" },
    { cu_good, cu_good, -3, "document_count is -3" },
    { cu_late, cu_good, 2, "cu_q[0] is 1, not 0" },
    { cu_good, cu_late, 2, "cu_k[0] is 1, not 0" },
    { cu_back, cu_good, 2, "cu_q[2] is 2, less than cu_q[1], 3" },
    { cu_good, cu_back, 2, "cu_k[2] is 2, less than cu_k[1], 3" },
    { cu_zero, NULL, 2, "cu_q[2], the tokens, is 0, not in [1, 2147483647]" },
    { cu_good, cu_huge, 2, "cu_k[2], the tokens, is 2147483648, not in" },
};

START_TEST(documents_are_checked)
{
    ffa_documents docs = { .cu_q = bad_docs[_i].cu_q,
                           .cu_k = bad_docs[_i].cu_k,
                           .document_count = bad_docs[_i].count };
    ffa_window window = { 1, 1 };
    ffa_mask *mask;

    for (int i = 0; i < 6; i++) {
        ffa_error err = { FFA_OK, 0, "" };
        ffa_status rc = FFA_OK;

        mask = (ffa_mask *)&docs;
        rc = i == 0   ? ffa_mask_varlen_full(&mask, &docs, &err)
             : i == 1 ? ffa_mask_varlen_causal(&mask, &docs, &err)
             : i == 2 ? ffa_mask_varlen_window(&mask, &docs, &window, 0, &err)
             : i == 3 ? ffa_mask_block_causal(&mask, &docs, 1, &err)
             : i == 4 ? ffa_mask_shared_prefix(&mask, &docs, &err)
                      : ffa_mask_shared_question(&mask, &docs, &err);
        ck_assert_int_eq(rc, FFA_INVALID);
        ck_assert_ptr_null(mask);
        ck_assert_msg(strstr(err.message, bad_docs[_i].want) != NULL, "got '%s', want '%s'",
                      err.message, bad_docs[_i].want);
    }
}
END_TEST

/* ---- boundaries of 32 bits ---- */

static const int32_t cu32_good[] = { 0, 2, 4 }, cu32_late[] = { -1, 2, 4 },
                     cu32_back[] = { 0, 3, 2 };

static const struct {
    ffa_documents docs;
    const char *want;
} bad_docs32[] = {
    { { .cu_q = cu_good, .cu_q32 = cu32_good, .document_count = 2 },
      "cu_q and cu_q32 are both given" },
    { { .cu_q = cu_good, .cu_k = cu_good, .cu_k32 = cu32_good, .document_count = 2 },
      "cu_k and cu_k32 are both given" },
    { { .cu_k32 = cu32_good, .document_count = 2 }, "cu_q is NULL" },
    { { .cu_q32 = cu32_late, .document_count = 2 }, "cu_q[0] is -1, not 0" },
    { { .cu_q32 = cu32_back, .document_count = 2 }, "cu_q[2] is 2, less than cu_q[1], 3" },
    { { .cu_q32 = cu32_good, .cu_k32 = cu32_back, .document_count = 2 },
      "cu_k[2] is 2, less than cu_k[1], 3" },
    { { .cu_q32 = cu32_good }, "document_count is 0, not in" },
};

START_TEST(documents_of_32_bits_are_checked)
{
    ffa_mask *mask = (ffa_mask *)&bad_docs32;
    ffa_error err = { FFA_OK, 0, "" };

    ck_assert_int_eq(ffa_mask_varlen_causal(&mask, &bad_docs32[_i].docs, &err), FFA_INVALID);
    ck_assert_ptr_null(mask);
    ck_assert_msg(strstr(err.message, bad_docs32[_i].want) != NULL, "got '%s', want '%s'",
                  err.message, bad_docs32[_i].want);
}
END_TEST

static bool same_slices(const ffa_mask *a, const ffa_mask *b)
{
    const ffa_slice_list x = ffa_mask_slices(a, 0), y = ffa_mask_slices(b, 0);

    return x.count == y.count && !memcmp(x.slices, y.slices, (size_t)x.count * sizeof *x.slices) &&
           ffa_mask_seqlen_q(a) == ffa_mask_seqlen_q(b) &&
           ffa_mask_seqlen_k(a) == ffa_mask_seqlen_k(b);
}

/* Every builder of documents, with either side in 32 bits. */
START_TEST(documents_of_32_bits_are_those_of_64)
{
    static struct arguments a;

    for (uint64_t seed = 0; seed < 200; seed++) {
        int32_t cu_q32[DOCS_MAX + 1], cu_k32[DOCS_MAX + 1];
        ffa_mask *want, *got;

        arguments_draw(&a, seed);
        for (int i = 0; i <= DOCS_MAX; i++) {
            cu_q32[i] = (int32_t)a.cu_q[i];
            cu_k32[i] = (int32_t)a.cu_k[i];
        }
        for (size_t i = 0; i < sizeof builders / sizeof *builders; i++) {
            if (builders[i].shape == OF_SHAPE || strstr(builders[i].name, "sparse"))
                continue;
            ck_assert_int_eq(builders[i].make(&want, &a, NULL), FFA_OK);
            for (int which = 1; which < 4; which++) {
                struct arguments narrow = a;

                if (which & 1) {
                    narrow.docs.cu_q = narrow.same.cu_q = NULL;
                    narrow.docs.cu_q32 = narrow.same.cu_q32 = cu_q32;
                }
                if (which & 2) {
                    narrow.docs.cu_k = NULL;
                    narrow.docs.cu_k32 = cu_k32;
                }
                ck_assert_int_eq(builders[i].make(&got, &narrow, NULL), FFA_OK);
                ck_assert_msg(same_slices(want, got), "%s, seed %llu", builders[i].name,
                              (unsigned long long)seed);
                ffa_mask_destroy(got);
            }
            ffa_mask_destroy(want);
        }
    }
}
END_TEST

START_TEST(variable_blocks_are_checked)
{
    static const uint8_t keep[4] = { 1, 1, 1, 1 };
    ffa_mask *mask;

    ck_assert_int_eq(ffa_mask_block_sparse_variable(&mask, cu_good, 2, cu_good, 2, NULL, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_mask_block_sparse_variable(&mask, cu_back, 2, cu_good, 2, keep, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_mask_block_sparse_variable(&mask, cu_good, 2, NULL, 2, keep, NULL),
                     FFA_INVALID);
    ck_assert_int_eq(ffa_mask_block_sparse_variable(&mask, cu_good, 0, cu_good, 2, keep, NULL),
                     FFA_INVALID);
    ck_assert_ptr_null(mask);
}
END_TEST

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

int main(void)
{
    Suite *suite = suite_create("mask builders");
    TCase *tc = tcase_create("mask builders");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, builder_matches_its_definition, 0, COUNT_OF(builders));
    tcase_add_loop_test(tc, builder_survives_every_allocation_failing, 0, COUNT_OF(builders));
    tcase_add_loop_test(tc, window_by_hand, 0, COUNT_OF(pictures));
    tcase_add_loop_test(tc, builder_refuses, 0, COUNT_OF(bad_builders));
    tcase_add_loop_test(tc, documents_are_checked, 0, COUNT_OF(bad_docs));
    tcase_add_loop_test(tc, documents_of_32_bits_are_checked, 0, COUNT_OF(bad_docs32));
    tcase_add_test(tc, documents_of_32_bits_are_those_of_64);
    tcase_add_test(tc, variable_blocks_are_checked);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
