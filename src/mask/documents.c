/* SPDX-License-Identifier: Apache-2.0
 *
 * Builders of packed documents.
 *
 * Slices are disjoint, so that `ffa mask check` has nothing to warn of. How many there will be
 * follows from the boundaries, and is known before the first is built.
 */
#include "mask/slices.h"

static struct boundaries docs_cu_q(const ffa_documents *docs)
{
    return (struct boundaries){ docs->cu_q, docs->cu_q32 };
}

static struct boundaries docs_cu_k(const ffa_documents *docs)
{
    if (!docs->cu_k && !docs->cu_k32)
        return docs_cu_q(docs);
    return (struct boundaries){ docs->cu_k, docs->cu_k32 };
}

static ffa_status docs_check(const ffa_documents *docs, ffa_error *err)
{
    struct boundaries cu_q, cu_k;
    ffa_status rc;

    if (!docs)
        return error_fail(err, FFA_INVALID, 0, "docs is NULL");
    cu_q = docs_cu_q(docs);
    cu_k = docs_cu_k(docs);
    FFA_TRY(boundaries_check(&cu_q, docs->document_count, "cu_q", "document_count", err));
    FFA_TRY(boundaries_check(&cu_k, docs->document_count, "cu_k", "document_count", err));
out:
    return rc;
}

/* Document d as a slice of a type. */
static ffa_slice docs_slice(const ffa_documents *docs, int64_t d, ffa_slice_type type)
{
    const struct boundaries cu_q = docs_cu_q(docs), cu_k = docs_cu_k(docs);

    return (ffa_slice){ boundary_at(&cu_q, d), boundary_at(&cu_q, d + 1),
                        boundary_at(&cu_k, d), boundary_at(&cu_k, d + 1),
                        (int32_t)type,         0 };
}

static ffa_mask_shape docs_shape(const ffa_documents *docs)
{
    const ffa_slice last = docs_slice(docs, docs->document_count - 1, FFA_SLICE_FULL);

    return (ffa_mask_shape){ last.q_end, last.k_end };
}

/* Documents with a cell. */
static int64_t docs_not_empty(const ffa_documents *docs)
{
    int64_t count = 0;

    for (int64_t d = 0; d < docs->document_count; d++) {
        const ffa_slice slice = docs_slice(docs, d, FFA_SLICE_FULL);

        count += slice.q_begin < slice.q_end && slice.k_begin < slice.k_end;
    }
    return count;
}

static ffa_status one_slice_a_document(ffa_mask **out, const ffa_documents *docs,
                                       ffa_slice_type type, ffa_error *err)
{
    struct slices slices = { 0 };
    ffa_mask_shape shape = { 0, 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    FFA_TRY(docs_check(docs, err));
    shape = docs_shape(docs);
    FFA_TRY(slices_expect(&slices, docs_not_empty(docs), err));
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

    keys.first = -REGION_FAR;
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
    /* At least one each: the last row of a document attends its last key. */
    FFA_TRY(slices_expect(&slices, docs_not_empty(docs), err));
    for (int64_t d = 0; d < docs->document_count; d++) {
        ffa_slice document = docs_slice(docs, d, FFA_SLICE_FULL);

        FFA_TRY(document_window(&slices, &document, window, global_keys, err));
    }
out:
    return slices_to_mask(out, &shape, &slices, rc, err);
}

static ffa_status same_boundaries(const ffa_documents *docs, ffa_error *err)
{
    const struct boundaries cu_q = docs_cu_q(docs), cu_k = docs_cu_k(docs);

    for (int64_t i = 0; i <= docs->document_count; i++)
        if (boundary_at(&cu_q, i) != boundary_at(&cu_k, i))
            return error_fail(err, FFA_INVALID, 0,
                              "cu_q[%lld] is %lld, cu_k[%lld] is %lld: block causal needs equal "
                              "boundaries",
                              (long long)i, (long long)boundary_at(&cu_q, i), (long long)i,
                              (long long)boundary_at(&cu_k, i));
    return FFA_OK;
}

/* Blocks of all documents together. */
static int64_t docs_blocks(const ffa_documents *docs, int64_t block_tokens)
{
    int64_t count = 0;

    for (int64_t d = 0; d < docs->document_count; d++) {
        const ffa_slice document = docs_slice(docs, d, FFA_SLICE_FULL);

        count += (document.q_end - document.q_begin + block_tokens - 1) / block_tokens;
    }
    return count;
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
    FFA_TRY(slices_expect(&slices, docs_blocks(docs, block_tokens), err));
    for (int64_t d = 0; d < docs->document_count; d++) {
        const ffa_slice document = docs_slice(docs, d, FFA_SLICE_FULL);
        const int64_t first = document.q_begin, last = document.q_end;

        for (int64_t at = first; at < last; at += block_tokens) {
            const int64_t end = min64(at + block_tokens, last);

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
    shared = docs_slice(docs, 0, FFA_SLICE_FULL);
    shared.q_begin = shared.q_end;
    shared.q_end = shape.seqlen_q;
    FFA_TRY(slices_expect(&slices,
                          docs_not_empty(docs) +
                              (shared.q_begin < shared.q_end && shared.k_begin < shared.k_end),
                          err));
    FFA_TRY(slices_add(&slices, docs_slice(docs, 0, own), err));
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
