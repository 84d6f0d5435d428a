/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks from dense arrays and from FlexAttention's block lists, cell by cell. Each cell of the
 * array must be attended by one slice or none, and masks of few slices come back as few.
 */
#include "mask/mask.h"
#include "support/rng.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>

enum { SIDE_MAX = 40, HEADS_MAX = 3, SEEDS = 3000, CELLS = HEADS_MAX * SIDE_MAX * SIDE_MAX };

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

static const ffa_error no_error = { FFA_OK, 0, "" };

/* How many slices of a list attend a cell. */
static int cover(const ffa_mask *mask, int32_t head, int64_t row, int64_t key)
{
    const ffa_slice_list list = ffa_mask_slices(mask, head);
    int count = 0;

    for (int64_t i = 0; i < list.count; i++)
        count += slice_has(&list.slices[i], row, key);
    return count;
}

static ffa_mask *mask_of(const char *text)
{
    ffa_error err = no_error;
    ffa_mask *mask;

    ck_assert_msg(ffa_mask_parse(&mask, text, &err) == FFA_OK, "%s: %s", text, err.message);
    return mask;
}

/* ---- dense ---- */

static void dense_draw(ffa_dense_mask *dense, uint8_t cells[CELLS], struct rng *rng)
{
    const int64_t denominator = rng_range(rng, 1, 12); /* how often a cell differs from the last */

    *dense = (ffa_dense_mask)FFA_DENSE_MASK_INIT;
    dense->heads = (int32_t)rng_range(rng, 1, HEADS_MAX);
    dense->shape = (ffa_mask_shape){ rng_range(rng, 1, SIDE_MAX), rng_range(rng, 1, SIDE_MAX) };
    dense->row_stride =
        rng_range(rng, 0, 9) == 0 ? 0 : rng_range(rng, dense->shape.seqlen_k, SIDE_MAX);
    dense->head_stride = rng_range(rng, 0, 9) == 0 ? 0 : SIDE_MAX * SIDE_MAX;
    dense->cells = cells;
    for (int i = 0; i < CELLS; i++)
        cells[i] = rng_range(rng, 0, denominator) == 0 ? (uint8_t)(rng_range(rng, 0, 1) * 255)
                   : i > 0                             ? cells[i - 1]
                                                       : 0;
}

static void dense_compare(const ffa_mask *mask, const ffa_dense_mask *dense, uint64_t seed)
{
    for (int32_t head = 0; head < dense->heads; head++)
        for (int64_t row = 0; row < dense->shape.seqlen_q; row++)
            for (int64_t key = 0; key < dense->shape.seqlen_k; key++) {
                const bool want =
                    dense->cells[head * dense->head_stride + row * dense->row_stride + key] != 0;

                if (cover(mask, head, row, key) != want)
                    ck_abort_msg("seed %llu: head %d, cell (%lld, %lld)", (unsigned long long)seed,
                                 head, (long long)row, (long long)key);
            }
}

START_TEST(dense_masks_are_read)
{
    static uint8_t cells[CELLS];

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rng rng = { seed };
        ffa_error err = no_error;
        ffa_dense_mask dense;
        ffa_mask *mask;

        dense_draw(&dense, cells, &rng);
        ck_assert_msg(ffa_mask_from_dense(&mask, &dense, &err) == FFA_OK, "seed %llu: %s",
                      (unsigned long long)seed, err.message);
        ck_assert_int_eq(ffa_mask_head_count(mask), dense.heads);
        dense_compare(mask, &dense, seed);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* Masks of builders, as cells and back. Where a line is all corners, slices of one row are free to
 * go with either neighbour; so: no more slices than the builder made, and one more a window. */
static const struct {
    const char *text;
    int64_t slices_max;
} round_trips[] = {
    { "full:33x20", 1 },
    { "causal:37", 1 },
    { "causal:10x37", 1 },
    { "causal:37x10", 1 },
    { "varlen-causal:9,1,17,5", 4 },
    { "varlen-full:9,17,5", 3 },
    { "window:37,left=5,right=0", 2 },
    { "window:37,left=5,right=3", 4 },
    { "block-causal:20,17/block=4", 10 },
    { "shared-question:5,9,12", 4 },
    { "shift(causal:20;q=9,k=4,size=38)", 1 },
};

START_TEST(few_slices_come_back_as_few)
{
    static uint8_t cells[SIDE_MAX * SIDE_MAX];
    ffa_mask *want = mask_of(round_trips[_i].text), *got;
    ffa_dense_mask dense = FFA_DENSE_MASK_INIT;

    dense.shape = (ffa_mask_shape){ ffa_mask_seqlen_q(want), ffa_mask_seqlen_k(want) };
    dense.cells = cells;
    dense.row_stride = SIDE_MAX;
    memset(cells, 0, sizeof cells);
    for (int64_t row = 0; row < dense.shape.seqlen_q; row++)
        for (int64_t key = 0; key < dense.shape.seqlen_k; key++)
            cells[row * SIDE_MAX + key] = cover(want, 0, row, key) > 0;
    ck_assert_int_eq(ffa_mask_from_dense(&got, &dense, NULL), FFA_OK);
    dense_compare(got, &dense, 0);
    ck_assert_msg(ffa_mask_slices(got, 0).count <= round_trips[_i].slices_max, "%s: %lld slices",
                  round_trips[_i].text, (long long)ffa_mask_slices(got, 0).count);
    ffa_mask_destroy(want);
    ffa_mask_destroy(got);
}
END_TEST

/* A row that is repeated by stride 0 is read once: 2^31 - 1 rows of it are nothing. */
START_TEST(a_repeated_row_is_read_once)
{
    static const uint8_t keys[8] = { 1, 1, 0, 1, 0, 0, 0, 1 };
    ffa_dense_mask dense = FFA_DENSE_MASK_INIT;
    ffa_mask *mask;

    dense.shape = (ffa_mask_shape){ INT32_MAX, 8 };
    dense.cells = keys;
    ck_assert_int_eq(ffa_mask_from_dense(&mask, &dense, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_area(mask, 0), (int64_t)INT32_MAX * 4);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, 3);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- block lists ---- */

/* A BlockMask in memory of its own, and the function that decides in its partial blocks. */
struct blocks {
    ffa_block_mask mask;
    int32_t kv_num[HEADS_MAX][SIDE_MAX], kv[HEADS_MAX][SIDE_MAX][SIDE_MAX];
    int32_t full_num[HEADS_MAX][SIDE_MAX], full[HEADS_MAX][SIDE_MAX][SIDE_MAX];
    uint8_t cells[HEADS_MAX][SIDE_MAX][SIDE_MAX];
    int64_t asked; /* cells */
};

static bool lists_name(const ffa_block_list *list, int32_t head, int64_t qb, int64_t kb)
{
    if (!list->num_blocks)
        return false;
    for (int32_t i = 0; i < list->num_blocks[head * list->num_head_stride + qb]; i++)
        if (list->indices[head * list->index_head_stride + qb * list->index_row_stride + i] == kb)
            return true;
    return false;
}

/* Asks for nothing outside of the blocks that it decides in. */
static int32_t mod_cells(void *user, int32_t head, const ffa_mask_box *box, uint8_t *cells)
{
    struct blocks *b = user;
    const ffa_block_mask *mask = &b->mask;
    const int64_t keys = box->k_end - box->k_begin;

    ck_assert(0 <= box->q_begin && box->q_begin < box->q_end && box->q_end <= mask->shape.seqlen_q);
    ck_assert(0 <= box->k_begin && box->k_begin < box->k_end && box->k_end <= mask->shape.seqlen_k);
    for (int64_t q = box->q_begin; q < box->q_end; q++)
        for (int64_t k = box->k_begin; k < box->k_end; k++) {
            uint8_t *cell = &cells[(q - box->q_begin) * keys + k - box->k_begin];

            ck_assert_int_eq(*cell, 0);
            ck_assert(
                lists_name(&mask->kv, head, q / mask->block.block_q, k / mask->block.block_k));
            *cell = b->cells[head][q][k];
            b->asked++;
        }
    return 0;
}

static bool blocks_have(const struct blocks *b, int32_t head, int64_t row, int64_t key)
{
    const int64_t qb = row / b->mask.block.block_q, kb = key / b->mask.block.block_k;

    if (lists_name(&b->mask.full, head, qb, kb))
        return true;
    return lists_name(&b->mask.kv, head, qb, kb) && (!b->mask.mask_mod || b->cells[head][row][key]);
}

/* Blocks in any order, some twice; behind them what must not be read. */
static void row_draw(struct rng *rng, int32_t *num, int32_t row[SIDE_MAX], int64_t k_blocks)
{
    *num = (int32_t)rng_range(rng, 0, min64(k_blocks + 1, SIDE_MAX));
    for (int i = 0; i < SIDE_MAX; i++)
        row[i] = i < *num ? (int32_t)rng_range(rng, 0, k_blocks - 1) : INT32_MIN;
}

static void blocks_draw(struct blocks *b, struct rng *rng)
{
    const ffa_block_list list = { NULL, NULL, SIDE_MAX, SIDE_MAX * SIDE_MAX, SIDE_MAX, SIDE_MAX };
    int64_t k_blocks;
    const int which = (int)rng_range(rng, 1, 3);

    b->asked = 0;
    b->mask = (ffa_block_mask)FFA_BLOCK_MASK_INIT;
    b->mask.heads = (int32_t)rng_range(rng, 1, HEADS_MAX);
    b->mask.shape = (ffa_mask_shape){ rng_range(rng, 1, SIDE_MAX), rng_range(rng, 1, SIDE_MAX) };
    b->mask.block = (ffa_block_size){ rng_range(rng, 1, 50), rng_range(rng, 1, 9) };
    b->mask.mask_mod = rng_range(rng, 0, 3) ? mod_cells : NULL;
    b->mask.user = b;
    b->mask.kv = b->mask.full = list;
    if (which & 1) {
        b->mask.kv.num_blocks = &b->kv_num[0][0];
        b->mask.kv.indices = &b->kv[0][0][0];
    }
    if (which & 2) {
        b->mask.full.num_blocks = &b->full_num[0][0];
        b->mask.full.indices = &b->full[0][0][0];
        if (rng_range(rng, 0, 3) == 0) /* one head's, expanded over all */
            b->mask.full.num_head_stride = b->mask.full.index_head_stride = 0;
    }
    k_blocks = (b->mask.shape.seqlen_k + b->mask.block.block_k - 1) / b->mask.block.block_k;
    for (int head = 0; head < HEADS_MAX; head++)
        for (int row = 0; row < SIDE_MAX; row++) {
            row_draw(rng, &b->kv_num[head][row], b->kv[head][row], k_blocks);
            row_draw(rng, &b->full_num[head][row], b->full[head][row], k_blocks);
            for (int key = 0; key < SIDE_MAX; key++)
                b->cells[head][row][key] = (uint8_t)(rng_range(rng, 0, 2) == 0 ? 0 : 7);
        }
}

START_TEST(block_masks_are_read)
{
    static struct blocks b;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rng rng = { seed };
        ffa_error err = no_error;
        ffa_mask *mask;

        blocks_draw(&b, &rng);
        ck_assert_msg(ffa_mask_from_block_mask(&mask, &b.mask, &err) == FFA_OK, "seed %llu: %s",
                      (unsigned long long)seed, err.message);
        ck_assert_int_eq(ffa_mask_head_count(mask), b.mask.heads);
        for (int32_t head = 0; head < b.mask.heads; head++)
            for (int64_t row = 0; row < b.mask.shape.seqlen_q; row++)
                for (int64_t key = 0; key < b.mask.shape.seqlen_k; key++)
                    if (cover(mask, head, row, key) != blocks_have(&b, head, row, key))
                        ck_abort_msg("seed %llu: head %d, cell (%lld, %lld)",
                                     (unsigned long long)seed, head, (long long)row,
                                     (long long)key);
        ffa_mask_destroy(mask);
    }
}
END_TEST

/* FlexAttention's causal mask of 128-token blocks: the diagonal blocks are asked, and no more. */
static int32_t mod_causal(void *user, int32_t head, const ffa_mask_box *box, uint8_t *cells)
{
    (void)head;
    for (int64_t q = box->q_begin; q < box->q_end; q++)
        for (int64_t k = box->k_begin; k < box->k_end; k++)
            *cells++ = q >= k;
    *(int64_t *)user += (box->q_end - box->q_begin) * (box->k_end - box->k_begin);
    return 0;
}

START_TEST(causal_blocks_are_one_slice)
{
    enum { TOKENS = 8000, BLOCK = 128, BLOCKS = (TOKENS + BLOCK - 1) / BLOCK };
    static int32_t kv_num[BLOCKS], kv[BLOCKS], full_num[BLOCKS], full[BLOCKS][BLOCKS];
    int64_t asked = 0;
    ffa_block_mask blocks = FFA_BLOCK_MASK_INIT;
    ffa_mask *mask;

    for (int32_t i = 0; i < BLOCKS; i++) {
        kv_num[i] = 1;
        kv[i] = i;
        full_num[i] = i;
        for (int32_t j = 0; j < i; j++)
            full[i][j] = j;
    }
    blocks.shape = (ffa_mask_shape){ TOKENS, TOKENS };
    blocks.block = (ffa_block_size){ BLOCK, BLOCK };
    blocks.kv = (ffa_block_list){ kv_num, kv, 0, 0, 1, 1 };
    blocks.full = (ffa_block_list){ full_num, &full[0][0], 0, 0, BLOCKS, BLOCKS };
    blocks.mask_mod = mod_causal;
    blocks.user = &asked;
    ck_assert_int_eq(ffa_mask_from_block_mask(&mask, &blocks, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, 1);
    ck_assert_int_eq(ffa_mask_area(mask, 0), (int64_t)TOKENS * (TOKENS + 1) / 2);
    ck_assert_int_eq(asked, (int64_t)(BLOCKS - 1) * BLOCK * BLOCK + 64 * 64);
    ffa_mask_destroy(mask);
}
END_TEST

/* A window of a million tokens in blocks of 16: what is blocks x blocks would never end. */
START_TEST(long_block_masks_take_the_time_of_their_lists)
{
    enum { BLOCKS = 1 << 17 };
    int32_t *num = malloc(BLOCKS * sizeof *num), *indices = malloc(BLOCKS * sizeof *indices);
    ffa_block_mask blocks = FFA_BLOCK_MASK_INIT;
    ffa_mask *mask;

    for (int32_t i = 0; i < BLOCKS; i++) {
        num[i] = 1;
        indices[i] = BLOCKS - 1 - i;
    }
    blocks.shape = (ffa_mask_shape){ (int64_t)BLOCKS * 16, (int64_t)BLOCKS * 16 };
    blocks.block = (ffa_block_size){ 16, 16 };
    blocks.full = (ffa_block_list){ num, indices, 0, 0, 1, 1 };
    ck_assert_int_eq(ffa_mask_from_block_mask(&mask, &blocks, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, BLOCKS);
    ck_assert_int_eq(ffa_mask_area(mask, 0), (int64_t)BLOCKS * 256);
    ffa_mask_destroy(mask);
    free(num);
    free(indices);
}
END_TEST

/* Causal attention in blocks of 128: each row of blocks has up to a thousand that are attended in
 * full, and one in which the function decides. */
START_TEST(full_blocks_beside_others_are_few_runs)
{
    enum { BLOCK = 128, BLOCKS = 1 << 10, TOKENS = BLOCK * BLOCKS };
    static int32_t ones[BLOCKS], all[BLOCKS];
    int64_t asked = 0;
    ffa_block_mask blocks = FFA_BLOCK_MASK_INIT;
    ffa_mask *mask;

    for (int32_t i = 0; i < BLOCKS; i++) {
        ones[i] = 1;
        all[i] = i;
    }
    blocks.shape = (ffa_mask_shape){ TOKENS, TOKENS };
    blocks.block = (ffa_block_size){ BLOCK, BLOCK };
    blocks.kv = (ffa_block_list){ ones, all, 0, 0, 1, 1 };
    blocks.full = (ffa_block_list){ all, all, 0, 0, 0, BLOCKS };
    blocks.mask_mod = mod_causal;
    blocks.user = &asked;
    ck_assert_int_eq(ffa_mask_from_block_mask(&mask, &blocks, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_slices(mask, 0).count, 1);
    ck_assert_int_eq(ffa_mask_area(mask, 0), (int64_t)TOKENS * (TOKENS + 1) / 2);
    ck_assert_int_eq(asked, (int64_t)TOKENS * BLOCK);
    ffa_mask_destroy(mask);
}
END_TEST

/* ---- allocations ---- */

START_TEST(every_allocation_may_fail)
{
    static struct blocks b;
    static uint8_t cells[CELLS];
    struct rng rng = { 11 };
    ffa_dense_mask dense;
    ffa_mask *mask;
    ffa_status rc;

    blocks_draw(&b, &rng);
    b.mask.mask_mod = mod_cells;
    dense_draw(&dense, cells, &rng);
    for (int i = 0; i < 2; i++) {
        for (long nth = 1;; nth++) {
            ffa_error err = no_error;

            fault_arm(FAULT_ALLOC, nth);
            mask = (ffa_mask *)&b;
            rc = i == 0 ? ffa_mask_from_dense(&mask, &dense, &err)
                        : ffa_mask_from_block_mask(&mask, &b.mask, &err);
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
}
END_TEST

/* ---- bad input ---- */

static int32_t mod_fails(void *user, int32_t head, const ffa_mask_box *box, uint8_t *cells)
{
    (void)user, (void)head, (void)box, (void)cells;
    return -3;
}

#define BAD(call, want)                                                                            \
    do {                                                                                           \
        ffa_error got = no_error;                                                                  \
        ffa_mask *none = (ffa_mask *)&got;                                                         \
                                                                                                   \
        ck_assert_int_eq(call(&none, &bad, &got), FFA_INVALID);                                    \
        ck_assert_msg(strstr(got.message, want) != NULL, "got '%s', want '%s'", got.message,       \
                      want);                                                                       \
        ck_assert_ptr_null(none);                                                                  \
    } while (0)
/* One member of a good struct is bad. */
#define BAD_DENSE(member, value, want)                                                             \
    do {                                                                                           \
        ffa_dense_mask bad = dense;                                                                \
                                                                                                   \
        bad.member = value;                                                                        \
        BAD(ffa_mask_from_dense, want);                                                            \
    } while (0)
#define BAD_BLOCKS(member, value, want)                                                            \
    do {                                                                                           \
        ffa_block_mask bad = blocks;                                                               \
                                                                                                   \
        bad.member = value;                                                                        \
        BAD(ffa_mask_from_block_mask, want);                                                       \
    } while (0)

START_TEST(dense_masks_are_checked)
{
    static const uint8_t cells[16] = { 1 };
    ffa_dense_mask dense = FFA_DENSE_MASK_INIT;
    ffa_error err = no_error;
    ffa_mask *mask;

    dense.shape = (ffa_mask_shape){ 4, 4 };
    dense.cells = cells;
    dense.row_stride = 4;
    BAD_DENSE(struct_size, 0, "struct_size is 0, not in");
    BAD_DENSE(shape.seqlen_q, 0, "seqlen_q is 0, not in [1, 2147483647]");
    BAD_DENSE(shape.seqlen_k, INT64_MAX, "seqlen_k is 9223372036854775807, not in");
    BAD_DENSE(heads, 0, "heads is 0, not in [1, 1024]");
    BAD_DENSE(heads, 1025, "heads is 1025, not in [1, 1024]");
    BAD_DENSE(cells, NULL, "cells is NULL");
    BAD_DENSE(row_stride, -1, "row_stride is -1, not in [0, ");
    BAD_DENSE(row_stride, INT64_MAX, "row_stride is 9223372036854775807, not in [0, ");
    dense.heads = 2;
    BAD_DENSE(head_stride, -4, "head_stride is -4, not in [0, ");
    ck_assert_int_eq(ffa_mask_from_dense(&mask, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "dense is NULL");
    ck_assert_int_eq(ffa_mask_from_dense(NULL, &dense, NULL), FFA_INVALID);
}
END_TEST

START_TEST(block_masks_are_checked)
{
    static const int32_t num[2] = { 1, 2 }, many[2] = { 1, 3 }, negative[2] = { -1, 1 };
    static const int32_t indices[2][2] = { { 0, 9 }, { 0, 1 } },
                         high[2][2] = { { 0, 0 }, { 0, 2 } };
    static const int32_t low[2][2] = { { -1, 0 }, { 0, 1 } };
    ffa_block_mask blocks = FFA_BLOCK_MASK_INIT;
    ffa_error err = no_error;
    ffa_mask *mask;

    blocks.shape = (ffa_mask_shape){ 4, 4 };
    blocks.block = (ffa_block_size){ 2, 2 };
    blocks.kv = (ffa_block_list){ num, &indices[0][0], 0, 0, 2, 2 };
    ck_assert_int_eq(ffa_mask_from_block_mask(&mask, &blocks, NULL), FFA_OK);
    ck_assert_int_eq(ffa_mask_area(mask, 0), 12);
    ffa_mask_destroy(mask);

    BAD_BLOCKS(struct_size, 1 << 20, "struct_size is 1048576, not in");
    BAD_BLOCKS(heads, -1, "heads is -1, not in [1, 1024]");
    BAD_BLOCKS(shape.seqlen_k, 0, "seqlen_k is 0, not in");
    BAD_BLOCKS(block.block_q, 0, "block_q is 0, less than 1");
    BAD_BLOCKS(block.block_k, -128, "block_k is -128, less than 1");
    BAD_BLOCKS(kv.num_blocks, NULL, "kv.num_blocks is NULL, but kv.indices is not");
    BAD_BLOCKS(kv.indices, NULL, "kv.indices is NULL, but kv.num_blocks is not");
    BAD_BLOCKS(full.indices, &indices[0][0], "full.num_blocks is NULL, but full.indices is not");
    BAD_BLOCKS(kv, (ffa_block_list){ 0 }, "kv.num_blocks and full.num_blocks are both NULL");
    BAD_BLOCKS(kv.index_row_stride, -2, "kv.index_row_stride is -2, not in [0, ");
    BAD_BLOCKS(kv.blocks_max, -1, "kv.blocks_max is -1, not in [0, ");
    BAD_BLOCKS(kv.blocks_max, 1, "kv.num_blocks of head 0, query block 1 is 2, not in [0, 1]");
    BAD_BLOCKS(kv.num_blocks, many, "kv.num_blocks of head 0, query block 1 is 3, not in [0, 2]");
    BAD_BLOCKS(kv.num_blocks, negative, "kv.num_blocks of head 0, query block 0 is -1, not in");
    BAD_BLOCKS(kv.indices, &high[0][0],
               "kv.indices of head 0, query block 1, entry 1 is 2, not in [0, 2)");
    BAD_BLOCKS(kv.indices, &low[0][0],
               "kv.indices of head 0, query block 0, entry 0 is -1, not in");
    BAD_BLOCKS(mask_mod, mod_fails, "mask_mod returned -3 for head 0, queries [0, 2), keys [0, 2)");
    blocks.heads = 2;
    BAD_BLOCKS(kv.num_head_stride, -1, "kv.num_head_stride is -1, not in [0, ");
    BAD_BLOCKS(kv.index_head_stride, -1, "kv.index_head_stride is -1, not in [0, ");
    ck_assert_int_eq(ffa_mask_from_block_mask(&mask, NULL, &err), FFA_INVALID);
    ck_assert_str_eq(err.message, "blocks is NULL");
    ck_assert_int_eq(ffa_mask_from_block_mask(NULL, &blocks, NULL), FFA_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("masks from cells");
    TCase *tc = tcase_create("masks from cells");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, dense_masks_are_read);
    tcase_add_loop_test(tc, few_slices_come_back_as_few, 0, COUNT_OF(round_trips));
    tcase_add_test(tc, a_repeated_row_is_read_once);
    tcase_add_test(tc, block_masks_are_read);
    tcase_add_test(tc, causal_blocks_are_one_slice);
    tcase_add_test(tc, long_block_masks_take_the_time_of_their_lists);
    tcase_add_test(tc, full_blocks_beside_others_are_few_runs);
    tcase_add_test(tc, every_allocation_may_fail);
    tcase_add_test(tc, dense_masks_are_checked);
    tcase_add_test(tc, block_masks_are_checked);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
