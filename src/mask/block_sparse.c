/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders of block-sparse masks: consecutive kept blocks of a row of blocks are one slice, so
 * slices are disjoint.
 */
#include "mask/slices.h"

/* The boundaries of blocks along one axis: uniform, or `cu` where it is given. */
struct blocks {
    int64_t tokens, size, count;
    const int64_t *cu;
};

static int64_t block_begin(const struct blocks *blocks, int64_t index)
{
    return blocks->cu ? blocks->cu[index] : min64(index * blocks->size, blocks->tokens);
}

static struct blocks blocks_uniform(int64_t tokens, int64_t size)
{
    size = min64(size, tokens);
    return (struct blocks){ tokens, size, (tokens + size - 1) / size, NULL };
}

static ffa_status block_size_check(const ffa_block_size *block, ffa_error *err)
{
    ffa_status rc;

    if (!block)
        return error_fail(err, FFA_INVALID, 0, "block is NULL");
    FFA_TRY(count_check(block->block_q, 1, "block_q", err));
    FFA_TRY(count_check(block->block_k, 1, "block_k", err));
out:
    return rc;
}

/* One slice a run of kept blocks of query block qb. keep: [k_blocks]. */
static ffa_status block_row_add(struct slices *out, const struct blocks *q, int64_t qb,
                                const struct blocks *k, const uint8_t *keep, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int64_t kb = 0; kb < k->count; kb++) {
        int64_t first = kb;

        while (kb < k->count && keep[kb])
            kb++;
        if (kb > first)
            FFA_TRY(slices_add(out,
                               (ffa_slice){ block_begin(q, qb), block_begin(q, qb + 1),
                                            block_begin(k, first), block_begin(k, kb),
                                            FFA_SLICE_FULL, 0 },
                               err));
    }
out:
    return rc;
}

static ffa_status block_sparse(ffa_mask **out, const struct blocks *q, const struct blocks *k,
                               const uint8_t *keep, ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { q->tokens, k->tokens };
    ffa_status rc = FFA_OK;

    if (!keep)
        return error_fail(err, FFA_INVALID, 0, "keep is NULL");
    for (int64_t qb = 0; qb < q->count; qb++)
        FFA_TRY(block_row_add(&slices, q, qb, k, keep + qb * k->count, err));
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

ffa_status ffa_mask_block_sparse(ffa_mask **out, const ffa_mask_shape *shape,
                                 const ffa_block_size *block, const uint8_t *keep, ffa_error *err)
{
    struct blocks q, k;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    FFA_TRY(block_size_check(block, err));
    q = blocks_uniform(shape->seqlen_q, block->block_q);
    k = blocks_uniform(shape->seqlen_k, block->block_k);
    rc = block_sparse(out, &q, &k, keep, err);
out:
    return rc;
}

ffa_status ffa_mask_block_sparse_variable(ffa_mask **out, const int64_t *cu_q, int64_t q_blocks,
                                          const int64_t *cu_k, int64_t k_blocks,
                                          const uint8_t *keep, ffa_error *err)
{
    struct blocks q = { 0, 0, q_blocks, cu_q }, k = { 0, 0, k_blocks, cu_k };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(
        boundaries_check(&(struct boundaries){ cu_q, NULL }, q_blocks, "cu_q", "q_blocks", err));
    FFA_TRY(
        boundaries_check(&(struct boundaries){ cu_k, NULL }, k_blocks, "cu_k", "k_blocks", err));
    q.tokens = cu_q[q_blocks];
    k.tokens = cu_k[k_blocks];
    rc = block_sparse(out, &q, &k, keep, err);
out:
    return rc;
}

/* keep[k_blocks] of one query block, which may name a block twice. */
static ffa_status topk_row(uint8_t *keep, int64_t k_blocks, const int32_t *index, int64_t k,
                           int64_t qb, ffa_error *err)
{
    memset(keep, 0, (size_t)k_blocks);
    for (int64_t i = 0; i < k; i++) {
        int32_t kb = index[qb * k + i];

        if (kb < -1 || kb >= k_blocks)
            return error_fail(err, FFA_INVALID, 0, "index[%lld] is %d, not in [-1, %lld]",
                              (long long)(qb * k + i), kb, (long long)k_blocks - 1);
        if (kb >= 0)
            keep[kb] = 1;
    }
    return FFA_OK;
}

ffa_status ffa_mask_block_topk(ffa_mask **out, const ffa_mask_shape *shape,
                               const ffa_block_size *block, const int32_t *index, int64_t k,
                               ffa_error *err)
{
    struct slices slices = { 0 };
    struct blocks q, keys;
    uint8_t *keep = NULL;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    FFA_TRY(block_size_check(block, err));
    q = blocks_uniform(shape->seqlen_q, block->block_q);
    keys = blocks_uniform(shape->seqlen_k, block->block_k);
    if (k < 1 || k > keys.count) {
        rc = error_fail(err, FFA_INVALID, 0, "k is %lld, not in [1, %lld]", (long long)k,
                        (long long)keys.count);
        goto out;
    }
    if (!index) {
        rc = error_fail(err, FFA_INVALID, 0, "index is NULL");
        goto out;
    }
    keep = mem_array((size_t)keys.count, 1);
    if (!keep) {
        rc = error_nomem(err, "one row of blocks");
        goto out;
    }
    for (int64_t qb = 0; qb < q.count; qb++) {
        FFA_TRY(topk_row(keep, keys.count, index, k, qb, err));
        FFA_TRY(block_row_add(&slices, &q, qb, &keys, keep, err));
    }
out:
    mem_free(keep);
    return slices_to_mask(out, shape, &slices, rc, err);
}
