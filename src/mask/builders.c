/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders: named families of masks as slices.
 *
 * Everything with a window is a region: a box of rows and keys between two diagonals. region_add
 * cuts it where a diagonal meets the box, so each piece is one slice whose type says which bounds
 * move. Builders give disjoint slices, so that `ffa mask check` has nothing to warn of.
 */
#include "mask/mask.h"

struct slices {
    ffa_slice *at;
    int64_t count, capacity;
};

static ffa_status slices_add(struct slices *slices, ffa_slice slice, ffa_error *err)
{
    if (slice.q_begin >= slice.q_end || slice.k_begin >= slice.k_end)
        return FFA_OK;
    if (slices->count >= SLICES_MAX)
        return error_fail(err, FFA_INVALID, 0, "the mask has more than %lld slices",
                          (long long)SLICES_MAX);
    if (!mem_grow((void **)&slices->at, &slices->capacity, slices->count + 1, sizeof *slices->at))
        return error_nomem(err, "the builder's slices");
    slices->at[slices->count++] = slice;
    return FFA_OK;
}

/* Row r of [q_begin, q_end) attends the keys of [k_begin, k_end) that are in
 * [r + first, r + last]; a bound that does not exist is -FAR or FAR. */
struct region {
    int64_t q_begin, q_end;
    int64_t k_begin, k_end;
    int64_t first, last;
};

/* Beyond any diagonal of a mask, with room to add rows. */
#define FAR ((int64_t)1 << 40)

/* Rows [begin, end) of the region, between two of its bends. */
static ffa_status region_add_piece(struct slices *out, const struct region *region, int64_t begin,
                                   int64_t end, ffa_error *err)
{
    ffa_slice slice = { begin, end, region->k_begin, region->k_end, FFA_SLICE_FULL, 0 };

    if (begin >= end)
        return FFA_OK;
    if (begin + region->first >= region->k_begin) {
        slice.type |= FFA_SLICE_INVCAUSAL;
        slice.k_begin = begin + region->first;
    }
    if (end - 1 + region->last < region->k_end) {
        slice.type |= FFA_SLICE_CAUSAL;
        slice.k_end = end + region->last;
    }
    return slices_add(out, slice, err);
}

static ffa_status region_add(struct slices *out, const struct region *region, ffa_error *err)
{
    /* Rows before `begin` lie left of the keys, rows from `end` on right of them. */
    int64_t begin = max64(region->q_begin, region->k_begin - region->last);
    int64_t end = min64(region->q_end, region->k_end - region->first);
    int64_t bends[2] = { region->k_begin - region->first, region->k_end - region->last };
    ffa_status rc;

    if (region->k_begin >= region->k_end || region->first > region->last)
        return FFA_OK;
    for (int i = 0; i < 2; i++) {
        int64_t bend = i == 0 ? min64(bends[0], bends[1]) : max64(bends[0], bends[1]);

        bend = min64(max64(bend, begin), end);
        FFA_TRY(region_add_piece(out, region, begin, bend, err));
        begin = max64(begin, bend);
    }
    rc = region_add_piece(out, region, begin, end, err);
out:
    return rc;
}

/* ---- arguments ---- */

static ffa_status out_clear(ffa_mask **out, ffa_error *err)
{
    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    return FFA_OK;
}

static ffa_status window_check(const ffa_window *window, ffa_error *err)
{
    if (!window)
        return error_fail(err, FFA_INVALID, 0, "window is NULL");
    if (window->left < -1)
        return error_fail(err, FFA_INVALID, 0, "window left is %lld, less than -1 (unlimited)",
                          (long long)window->left);
    if (window->right < -1)
        return error_fail(err, FFA_INVALID, 0, "window right is %lld, less than -1 (unlimited)",
                          (long long)window->right);
    return FFA_OK;
}

static ffa_status count_check(int64_t value, int64_t least, const char *name, ffa_error *err)
{
    if (value < least)
        return error_fail(err, FFA_INVALID, 0, "%s is %lld, less than %lld", name, (long long)value,
                          (long long)least);
    return FFA_OK;
}

/* Boundaries: from 0, non-decreasing, to at most 2^31 - 1. */
static ffa_status cu_check(const int64_t *cu, int64_t count, const char *name,
                           const char *count_name, ffa_error *err)
{
    if (!cu)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", name);
    if (count < 1 || count > TOKENS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%s is %lld, not in [1, %lld]", count_name,
                          (long long)count, (long long)TOKENS_MAX);
    if (cu[0] != 0)
        return error_fail(err, FFA_INVALID, 0, "%s[0] is %lld, not 0", name, (long long)cu[0]);
    for (int64_t i = 0; i < count; i++)
        if (cu[i + 1] < cu[i])
            return error_fail(err, FFA_INVALID, 0, "%s[%lld] is %lld, less than %s[%lld], %lld",
                              name, (long long)i + 1, (long long)cu[i + 1], name, (long long)i,
                              (long long)cu[i]);
    if (cu[count] < 1 || cu[count] > TOKENS_MAX)
        return error_fail(err, FFA_INVALID, 0, "%s[%lld], the tokens, is %lld, not in [1, %lld]",
                          name, (long long)count, (long long)cu[count], (long long)TOKENS_MAX);
    return FFA_OK;
}

static const int64_t *docs_cu_k(const ffa_documents *docs)
{
    return docs->cu_k ? docs->cu_k : docs->cu_q;
}

static ffa_status docs_check(const ffa_documents *docs, ffa_error *err)
{
    ffa_status rc;

    if (!docs)
        return error_fail(err, FFA_INVALID, 0, "docs is NULL");
    FFA_TRY(cu_check(docs->cu_q, docs->document_count, "cu_q", "document_count", err));
    FFA_TRY(cu_check(docs_cu_k(docs), docs->document_count, "cu_k", "document_count", err));
out:
    return rc;
}

static ffa_mask_shape docs_shape(const ffa_documents *docs)
{
    return (ffa_mask_shape){ docs->cu_q[docs->document_count],
                             docs_cu_k(docs)[docs->document_count] };
}

/* Document d as a slice of a type. */
static ffa_slice docs_slice(const ffa_documents *docs, int64_t d, ffa_slice_type type)
{
    const int64_t *cu_k = docs_cu_k(docs);

    return (ffa_slice){ docs->cu_q[d], docs->cu_q[d + 1], cu_k[d], cu_k[d + 1], (int32_t)type, 0 };
}

/* The mask of `slices`, unless rc is a failure already; frees them. */
static ffa_status slices_to_mask(ffa_mask **out, const ffa_mask_shape *shape, struct slices *slices,
                                 ffa_status rc, ffa_error *err)
{
    if (rc == FFA_OK)
        rc = ffa_mask_create(out, shape, slices->at, slices->count, err);
    mem_free(slices->at);
    return rc;
}

/* ---- one document ---- */

static ffa_status one_slice(ffa_mask **out, const ffa_mask_shape *shape, ffa_slice_type type,
                            ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    rc = ffa_mask_create(out, shape,
                         &(ffa_slice){ 0, shape->seqlen_q, 0, shape->seqlen_k, (int32_t)type, 0 },
                         1, err);
out:
    return rc;
}

ffa_status ffa_mask_full(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err)
{
    return one_slice(out, shape, FFA_SLICE_FULL, err);
}

ffa_status ffa_mask_causal(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err)
{
    return one_slice(out, shape, FFA_SLICE_CAUSAL, err);
}

/* The window over the rows and keys of `box`, bottom-right aligned. */
static struct region region_of_window(const ffa_slice *box, const ffa_window *window)
{
    struct region region = { box->q_begin, box->q_end, box->k_begin, box->k_end, -FAR, FAR };
    int64_t diagonal = box->k_end - box->q_end; /* what is added to a row to reach its last key */

    if (window->left >= 0)
        region.first = diagonal - min64(window->left, TOKENS_MAX);
    if (window->right >= 0)
        region.last = diagonal + min64(window->right, TOKENS_MAX);
    return region;
}

ffa_status ffa_mask_window(ffa_mask **out, const ffa_mask_shape *shape, const ffa_window *window,
                           ffa_error *err)
{
    return ffa_mask_global_window(out, shape, window, 0, err);
}

/* Three regions that do not meet: global rows, global keys of the rows below, and the window over
 * the rest. Only the last one has a left bound. */
ffa_status ffa_mask_global_window(ffa_mask **out, const ffa_mask_shape *shape,
                                  const ffa_window *window, int64_t global_tokens, ffa_error *err)
{
    struct slices slices = { 0 };
    struct region rest, rows, keys;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(mask_check_shape(shape, err));
    FFA_TRY(window_check(window, err));
    FFA_TRY(count_check(global_tokens, 0, "global_tokens", err));

    rest = region_of_window(&(ffa_slice){ 0, shape->seqlen_q, 0, shape->seqlen_k, 0, 0 }, window);
    rows = keys = rest;
    rows.first = keys.first = -FAR;
    rows.q_end = rest.q_begin = keys.q_begin = min64(global_tokens, shape->seqlen_q);
    keys.k_end = rest.k_begin = min64(global_tokens, shape->seqlen_k);
    FFA_TRY(region_add(&slices, &rows, err));
    FFA_TRY(region_add(&slices, &keys, err));
    FFA_TRY(region_add(&slices, &rest, err));
out:
    return slices_to_mask(out, shape, &slices, rc, err);
}

/* ---- packed documents ---- */

static ffa_status one_slice_a_document(ffa_mask **out, const ffa_documents *docs,
                                       ffa_slice_type type, ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { 0, 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(docs_check(docs, err));
    shape = docs_shape(docs);
    for (int64_t d = 0; d < docs->document_count; d++)
        FFA_TRY(slices_add(&slices, docs_slice(docs, d, type), err));
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

ffa_status ffa_mask_varlen_full(ffa_mask **out, const ffa_documents *docs, ffa_error *err)
{
    return one_slice_a_document(out, docs, FFA_SLICE_FULL, err);
}

ffa_status ffa_mask_varlen_causal(ffa_mask **out, const ffa_documents *docs, ffa_error *err)
{
    return one_slice_a_document(out, docs, FFA_SLICE_CAUSAL, err);
}

/* The document's leading keys without the left bound, then the window over the keys behind them. */
static ffa_status document_window(struct slices *out, const ffa_slice *document,
                                  const ffa_window *window, int64_t global_keys, ffa_error *err)
{
    struct region rest = region_of_window(document, window);
    struct region keys = rest;
    ffa_status rc;

    keys.first = -FAR;
    keys.k_end = rest.k_begin =
        min64(document->k_end - document->k_begin, global_keys) + document->k_begin;
    FFA_TRY(region_add(out, &keys, err));
    FFA_TRY(region_add(out, &rest, err));
out:
    return rc;
}

ffa_status ffa_mask_varlen_window(ffa_mask **out, const ffa_documents *docs,
                                  const ffa_window *window, int64_t global_keys, ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { 0, 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(docs_check(docs, err));
    FFA_TRY(window_check(window, err));
    FFA_TRY(count_check(global_keys, 0, "global_keys", err));
    shape = docs_shape(docs);
    for (int64_t d = 0; d < docs->document_count; d++) {
        ffa_slice document = docs_slice(docs, d, FFA_SLICE_FULL);

        FFA_TRY(document_window(&slices, &document, window, global_keys, err));
    }
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

static ffa_status same_boundaries(const ffa_documents *docs, ffa_error *err)
{
    const int64_t *cu_k = docs_cu_k(docs);

    for (int64_t i = 0; i <= docs->document_count; i++)
        if (docs->cu_q[i] != cu_k[i])
            return error_fail(err, FFA_INVALID, 0,
                              "cu_q[%lld] is %lld, cu_k[%lld] is %lld: block causal needs equal "
                              "boundaries",
                              (long long)i, (long long)docs->cu_q[i], (long long)i,
                              (long long)cu_k[i]);
    return FFA_OK;
}

ffa_status ffa_mask_block_causal(ffa_mask **out, const ffa_documents *docs, int64_t block_tokens,
                                 ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { 0, 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(docs_check(docs, err));
    FFA_TRY(same_boundaries(docs, err));
    FFA_TRY(count_check(block_tokens, 1, "block_tokens", err));
    shape = docs_shape(docs);
    block_tokens = min64(block_tokens, TOKENS_MAX);
    for (int64_t d = 0; d < docs->document_count; d++) {
        int64_t first = docs->cu_q[d], last = docs->cu_q[d + 1];

        for (int64_t at = first; at < last; at += block_tokens) {
            int64_t end = min64(at + block_tokens, last);

            FFA_TRY(
                slices_add(&slices, (ffa_slice){ at, end, first, end, FFA_SLICE_FULL, 0 }, err));
        }
    }
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

/* Document 0 attends itself as `own`; all others attend its keys in full and themselves causally.
 */
static ffa_status shared_first(ffa_mask **out, const ffa_documents *docs, ffa_slice_type own,
                               ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { 0, 0 };
    ffa_slice shared;
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(docs_check(docs, err));
    shape = docs_shape(docs);
    FFA_TRY(slices_add(&slices, docs_slice(docs, 0, own), err));
    shared = docs_slice(docs, 0, FFA_SLICE_FULL);
    shared.q_begin = shared.q_end;
    shared.q_end = shape.seqlen_q;
    FFA_TRY(slices_add(&slices, shared, err));
    for (int64_t d = 1; d < docs->document_count; d++)
        FFA_TRY(slices_add(&slices, docs_slice(docs, d, FFA_SLICE_CAUSAL), err));
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

ffa_status ffa_mask_shared_prefix(ffa_mask **out, const ffa_documents *docs, ffa_error *err)
{
    return shared_first(out, docs, FFA_SLICE_CAUSAL, err);
}

ffa_status ffa_mask_shared_question(ffa_mask **out, const ffa_documents *docs, ffa_error *err)
{
    return shared_first(out, docs, FFA_SLICE_FULL, err);
}

/* ---- block sparse ---- */

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
    FFA_TRY(cu_check(cu_q, q_blocks, "cu_q", "q_blocks", err));
    FFA_TRY(cu_check(cu_k, k_blocks, "cu_k", "k_blocks", err));
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
