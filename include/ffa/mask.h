/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: which keys each query row attends.
 *
 * A slice is (query range, key range, type). With i = row - q_begin and
 * sq = q_end - q_begin, row i of a slice attends the keys [lo, hi) with
 *
 *     lo = k_begin + (type & 2 ? i : 0)
 *     hi = k_end   - (type & 1 ? sq - 1 - i : 0)
 *
 * and nothing where hi <= lo. A mask is the union of its slices: a (query, key)
 * cell covered by several slices is attended once. (Slices and types: Flex-Flash-
 * Attention of MagiAttention; the union is ours.)
 *
 * Units: tokens. Ranges are half open. seqlen_q and seqlen_k are at most 2^31 - 1.
 */
#ifndef FFA_MASK_H
#define FFA_MASK_H

#include <ffa/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ffa_slice_type {
    FFA_SLICE_FULL = 0,      /* [k_begin, k_end) */
    FFA_SLICE_CAUSAL = 1,    /* bottom-right aligned: the last row attends all of it */
    FFA_SLICE_INVCAUSAL = 2, /* top-left aligned: the first row attends all of it */
    FFA_SLICE_BICAUSAL = 3   /* both: a band; with sq == sk the diagonal */
} ffa_slice_type;

typedef struct ffa_slice {
    int64_t q_begin, q_end;
    int64_t k_begin, k_end;
    int32_t type; /* ffa_slice_type */
    int32_t pad_; /* ignored */
} ffa_slice;

typedef struct ffa_mask_shape {
    int64_t seqlen_q; /* query tokens, 1 to 2^31 - 1 */
    int64_t seqlen_k; /* key tokens, 1 to 2^31 - 1 */
} ffa_mask_shape;

/* An immutable mask. Thread: any number of threads may read one mask; one destroys it, last. */
typedef struct ffa_mask ffa_mask;

/*
 * Create a mask from slices. Slices may overlap in any way and stand in any order; empty ranges are
 * legal. Cost: 40 us for 1,000 packed documents, 0.6 ms for 10,000.
 *
 * out     receives the mask; NULL on failure. Owner: caller, ffa_mask_destroy().
 * slices  [slice_count], at most 2^26, copied; may be NULL when slice_count is 0 (every row is
 *         empty).
 *
 * Fails with FFA_INVALID, naming the slice, for a reversed, negative or out-of-range range or an
 * unknown type; FFA_UNSUPPORTED where the rows fall into more than 2^26 key intervals; FFA_NOMEM.
 * Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_mask_create(ffa_mask **out, const ffa_mask_shape *shape,
                                   const ffa_slice *slices, int64_t slice_count, ffa_error *err);

/* One list of slices a kv head; query head h uses the list of its kv head. */
typedef struct ffa_slice_list {
    const ffa_slice *slices;
    int64_t count;
} ffa_slice_list;

/* As ffa_mask_create, with lists[heads_kv]; 1 <= heads_kv <= 1024. */
FFA_API ffa_status ffa_mask_create_per_head(ffa_mask **out, const ffa_mask_shape *shape,
                                            const ffa_slice_list *lists, int32_t heads_kv,
                                            ffa_error *err);

FFA_API void ffa_mask_destroy(ffa_mask *mask);

/* ---- builders: masks of named families, as disjoint slices; all may fail like ffa_mask_create,
 * naming the argument; at most 2^26 slices a list ---- */

FFA_API ffa_status ffa_mask_full(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err);
/* Bottom-right aligned where seqlen_q != seqlen_k. */
FFA_API ffa_status ffa_mask_causal(ffa_mask **out, const ffa_mask_shape *shape, ffa_error *err);

/* A sliding window: row i of sq rows over sk keys attends the keys
 * [i + sk - sq - left, i + sk - sq + right], cut to [0, sk). -1 is unlimited.
 * (The definition of FlashAttention: bottom-right aligned.) */
typedef struct ffa_window {
    int64_t left;  /* keys to the left of the diagonal; -1: all */
    int64_t right; /* keys to the right of the diagonal; -1: all */
} ffa_window;

FFA_API ffa_status ffa_mask_window(ffa_mask **out, const ffa_mask_shape *shape,
                                   const ffa_window *window, ffa_error *err);

/* Packed documents: document d has the query rows [cu_q[d], cu_q[d+1]) and the keys
 * [cu_k[d], cu_k[d+1]). cu arrays are [document_count + 1], non-decreasing, from 0; their last
 * entries are seqlen_q and seqlen_k. cu_k NULL: the same as cu_q.
 * Boundaries of 32 bits, such as FlashAttention's cu_seqlens, go into cu_q32 and cu_k32. Each side
 * has one array: both of a side are FFA_INVALID. Members that are not used are NULL. */
typedef struct ffa_documents {
    const int64_t *cu_q;
    const int64_t *cu_k;
    int64_t document_count;
    const int32_t *cu_q32; /* in place of cu_q */
    const int32_t *cu_k32; /* in place of cu_k */
} ffa_documents;

FFA_API ffa_status ffa_mask_varlen_full(ffa_mask **out, const ffa_documents *docs, ffa_error *err);
FFA_API ffa_status ffa_mask_varlen_causal(ffa_mask **out, const ffa_documents *docs,
                                          ffa_error *err);
/* A window inside each document (aligned to its last row and key); every row of a document also
 * attends its first global_keys keys, as far as the window's right bound lets it see them. */
FFA_API ffa_status ffa_mask_varlen_window(ffa_mask **out, const ffa_documents *docs,
                                          const ffa_window *window, int64_t global_keys,
                                          ffa_error *err);
/* Block causal inside documents: rows of block b of a document attend the document's keys up to
 * the end of block b. block_tokens >= 1; cu_q must equal cu_k. */
FFA_API ffa_status ffa_mask_block_causal(ffa_mask **out, const ffa_documents *docs,
                                         int64_t block_tokens, ffa_error *err);
/* Shared prefix: every document behind document 0 attends the keys of document 0 in full, and
 * itself causally; document 0 attends itself causally, with a shared question in full. */
FFA_API ffa_status ffa_mask_shared_prefix(ffa_mask **out, const ffa_documents *docs,
                                          ffa_error *err);
FFA_API ffa_status ffa_mask_shared_question(ffa_mask **out, const ffa_documents *docs,
                                            ffa_error *err);
/* Global tokens plus window (Longformer): rows below `global_tokens` attend all keys, keys below it
 * are attended by all rows, the rest sees the window. The window's right bound holds everywhere, so
 * that a causal window stays causal. */
FFA_API ffa_status ffa_mask_global_window(ffa_mask **out, const ffa_mask_shape *shape,
                                          const ffa_window *window, int64_t global_tokens,
                                          ffa_error *err);

/* Block sparse: the q axis in blocks of block_q, the k axis in blocks of block_k (last ones
 * shorter); keep[qb * k_blocks + kb] != 0 keeps a block. */
typedef struct ffa_block_size {
    int64_t block_q, block_k; /* tokens, >= 1 */
} ffa_block_size;

FFA_API ffa_status ffa_mask_block_sparse(ffa_mask **out, const ffa_mask_shape *shape,
                                         const ffa_block_size *block, const uint8_t *keep,
                                         ffa_error *err);
/* The same with boundaries: block qb is [cu_q[qb], cu_q[qb+1]) x kb likewise. */
FFA_API ffa_status ffa_mask_block_sparse_variable(ffa_mask **out, const int64_t *cu_q,
                                                  int64_t q_blocks, const int64_t *cu_k,
                                                  int64_t k_blocks, const uint8_t *keep,
                                                  ffa_error *err);
/* Top-k: query block qb attends the key blocks index[qb * k + 0 .. k-1], in any order, twice counts
 * once; -1 entries are unused. 1 <= k <= number of key blocks. */
FFA_API ffa_status ffa_mask_block_topk(ffa_mask **out, const ffa_mask_shape *shape,
                                       const ffa_block_size *block, const int32_t *index, int64_t k,
                                       ffa_error *err);

/* ---- masks of other programs ---- */

/* A dense boolean mask: cells[head * head_stride + row * row_stride + key] != 0 where query `row`
 * attends `key`. Strides are in cells and are taken as they are: 0 repeats a row or a head. */
typedef struct ffa_dense_mask {
    uint32_t struct_size; /* FFA_DENSE_MASK_INIT */
    int32_t heads;        /* 1: shared by all heads; else heads_kv, at most 1024 */
    ffa_mask_shape shape;
    const uint8_t *cells;
    int64_t row_stride;
    int64_t head_stride; /* not read where heads is 1 */
} ffa_dense_mask;
#define FFA_DENSE_MASK_INIT                                                                        \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_dense_mask), .heads = 1                                \
    }
FFA_API void ffa_dense_mask_init(ffa_dense_mask *mask, size_t bytes);

/*
 * A mask from a dense one: exact, as disjoint slices. Attended keys of consecutive rows whose
 * bounds stay or move by one key a row become one slice, so a causal mask is one slice again, and
 * packed documents are one slice each.
 *
 * Fails with FFA_INVALID, naming the member, and where it takes more than 2^26 slices; FFA_NOMEM.
 * Cost: one look at each cell, eight at a time. Thread: any. Blocks: no.
 */
FFA_API ffa_status ffa_mask_from_dense(ffa_mask **out, const ffa_dense_mask *dense, ffa_error *err);

/* The cells [q_begin, q_end) x [k_begin, k_end) of one head, for ffa_mask_mod. */
typedef struct ffa_mask_box {
    int64_t q_begin, q_end;
    int64_t k_begin, k_end;
} ffa_mask_box;

/* FlexAttention's mask_mod, a box at a time: set cells[(q - q_begin) * (k_end - k_begin) +
 * k - k_begin] to 1 where query q of kv head `head` attends key k. All cells are 0 at first.
 * Returns 0; any other value ends the building with FFA_INVALID and is in the message. */
typedef int32_t (*ffa_mask_mod)(void *user, int32_t head, const ffa_mask_box *box, uint8_t *cells);

/* One pair of FlexAttention's lists: query block qb of a head has the key blocks indices[head *
 * index_head_stride + qb * index_row_stride + n] for n < num_blocks[head * num_head_stride + qb].
 * Entries behind those are not read. Strides are in elements and are taken as they are: 0 repeats.
 * Head strides are not read where heads is 1. */
typedef struct ffa_block_list {
    const int32_t *num_blocks;
    const int32_t *indices;
    int64_t num_head_stride;
    int64_t index_head_stride;
    int64_t index_row_stride;
    int64_t blocks_max; /* entries of a row of indices: no num_blocks may be above it */
} ffa_block_list;

/* What a FlexAttention BlockMask of one sequence says; a batch goes together by ffa_mask_concat. */
typedef struct ffa_block_mask {
    uint32_t struct_size;  /* FFA_BLOCK_MASK_INIT */
    int32_t heads;         /* 1: shared by all heads; else heads_kv, at most 1024 */
    ffa_mask_shape shape;  /* seq_lengths */
    ffa_block_size block;  /* BLOCK_SIZE: (queries, keys) */
    ffa_block_list kv;     /* kv_num_blocks, kv_indices: blocks in which mask_mod decides */
    ffa_block_list full;   /* full_kv_num_blocks, full_kv_indices: blocks of which all cells are
                              attended; both arrays NULL: there are none */
    ffa_mask_mod mask_mod; /* NULL: all cells of the blocks of `kv` are attended, too */
    void *user;            /* passed to mask_mod */
} ffa_block_mask;
#define FFA_BLOCK_MASK_INIT                                                                        \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_block_mask), .heads = 1                                \
    }
FFA_API void ffa_block_mask_init(ffa_block_mask *mask, size_t bytes);

/*
 * A mask from a BlockMask's block lists: exact, as disjoint slices, as ffa_mask_from_dense makes
 * them. mask_mod is called by the calling thread, for boxes inside the blocks of `kv` only, in
 * order of heads, queries and keys. A block named several times is attended once, in full where
 * `full` has it. Blocks at the ends of the axes are cut to the shape.
 *
 * Fails with FFA_INVALID, naming the member or the entry, and as ffa_mask_from_dense.
 * Thread: any. Blocks: as mask_mod does.
 */
FFA_API ffa_status ffa_mask_from_block_mask(ffa_mask **out, const ffa_block_mask *blocks,
                                            ffa_error *err);

/* ---- masks from masks: the inputs stay as they are. Masks with one list of slices go with those
 * that have one a kv head; two numbers of kv heads do not go together. Cost: linear in slices. All
 * fail with FFA_INVALID, naming the argument, and as ffa_mask_create. Thread: any. Blocks: no. ----
 */

/* Block diagonal: the queries and keys of masks[i] follow those of masks[i - 1], and sequences do
 * not attend each other. This is how the sequences of a batch become one mask. 1 <= count. */
FFA_API ffa_status ffa_mask_concat(ffa_mask **out, const ffa_mask *const *masks, int64_t count,
                                   ffa_error *err);
/* The queries and keys of a box, which begin at 0 in the result; neither range may be empty. */
FFA_API ffa_status ffa_mask_crop(ffa_mask **out, const ffa_mask *mask, const ffa_mask_box *box,
                                 ffa_error *err);

/* How far ffa_mask_shift moves: -(2^31 - 1) to 2^31 - 1. */
typedef struct ffa_mask_offset {
    int64_t q; /* query i becomes query i + q */
    int64_t k; /* key j becomes key j + k */
} ffa_mask_offset;

/* Move the cells and give the mask another shape. Cells that leave the shape are dropped; rows and
 * keys that come in attend nothing. */
FFA_API ffa_status ffa_mask_shift(ffa_mask **out, const ffa_mask *mask,
                                  const ffa_mask_offset *offset, const ffa_mask_shape *shape,
                                  ffa_error *err);
/* What any of the masks attends; all have one shape. 1 <= count. Slices are those of the masks, so
 * they may overlap. */
FFA_API ffa_status ffa_mask_union(ffa_mask **out, const ffa_mask *const *masks, int64_t count,
                                  ffa_error *err);

/* ---- text and JSON ---- */

/*
 * Read a mask as the command line writes it:
 *   full:4096  causal:4096  full:QxK  causal:QxK  varlen-full:LENS  varlen-causal:1000,3000,96
 *   window:16384,left=1024,right=0  varlen-window:LENS/left=L,right=R[,global=G]
 *   block-causal:4096,8192/block=2048  shared-prefix:LENS  shared-question:LENS
 *   global-window:N,left=L,right=R,global=G  @FILE.json
 *   concat(MASK;MASK...)  union(MASK;MASK...)  crop(MASK;q=BEGIN:END,k=BEGIN:END)
 *   shift(MASK;q=N,k=N,size=QxK)
 * In these a MASK is again any of the forms, up to 16 deep; a file's name ends at ';' or ')'. A
 * range of crop that is not given is the whole axis; q and k of shift default to 0, its size to the
 * mask's.
 * A length is N, or QxK where queries and keys differ; in LENS, N*COUNT stands for COUNT documents
 * of N tokens. Before an option, ',' and '/' are the same. left, right default to -1, global to 0.
 * Fails with FFA_INVALID (with the column), FFA_IO (the file), and as ffa_mask_create.
 */
FFA_API ffa_status ffa_mask_parse(ffa_mask **out, const char *text, ffa_error *err);

/* Read JSON: {"seqlen_q":N,"seqlen_k":N,"slices":[[qs,qe,ks,ke,"causal"],...]} or, for one mask a
 * kv head, "kv_heads":[[...slices...],...]. Type names or codes 0 to 3. Errors give line and
 * column where the syntax is wrong, else the path of the value (slices[3]). An unknown key is an
 * error. `text` is `bytes` long and need not be terminated. */
FFA_API ffa_status ffa_mask_parse_json(ffa_mask **out, const char *text, size_t bytes,
                                       ffa_error *err);
/* Write the JSON form. *out: caller's, ffa_free(). */
FFA_API ffa_status ffa_mask_to_json(const ffa_mask *mask, char **out, ffa_error *err);

/* ---- facts: 0 or empty for a NULL mask or a head it has not ---- */

FFA_API int64_t ffa_mask_seqlen_q(const ffa_mask *mask);
FFA_API int64_t ffa_mask_seqlen_k(const ffa_mask *mask);
/* 1 when all heads share one mask, else heads_kv. */
FFA_API int32_t ffa_mask_head_count(const ffa_mask *mask);
/* Slices of list `head` (0 <= head < ffa_mask_head_count()), borrowed until destroy. */
FFA_API ffa_slice_list ffa_mask_slices(const ffa_mask *mask, int32_t head);
/* Attended cells of list `head`, exact; head = -1: the sum over all lists (at most INT64_MAX). */
FFA_API int64_t ffa_mask_area(const ffa_mask *mask, int32_t head);

/* What `ffa mask check` reports. The caller sets struct_size. */
typedef struct ffa_mask_report {
    uint32_t struct_size; /* FFA_MASK_REPORT_INIT */
    int32_t overlap_head; /* an example of a cell covered twice, or -1 in all three */
    int64_t overlap_row;
    int64_t overlap_key;
    int64_t area;            /* attended cells, over all lists; at most INT64_MAX, as the next */
    int64_t area_of_slices;  /* sum of the slices' own areas: larger where slices overlap */
    int64_t empty_rows;      /* query rows without a key, over all lists */
    int64_t unattended_keys; /* keys no row attends, over all lists */
    int64_t empty_slices;    /* slices without a cell */
} ffa_mask_report;
#define FFA_MASK_REPORT_INIT                                                                       \
    {                                                                                              \
        .struct_size = (uint32_t)sizeof(ffa_mask_report)                                           \
    }
FFA_API void ffa_mask_report_init(ffa_mask_report *report, size_t bytes);

/* Exact, and not cell by cell: about the cost of building the mask, times log2(slices) where slices
 * overlap. Fails with FFA_INVALID, FFA_NOMEM. Thread: any. */
FFA_API ffa_status ffa_mask_check(const ffa_mask *mask, ffa_mask_report *report, ffa_error *err);

/* Pictures of list `head`. SVG: the longer side `size_px` pixels (64 to 8192; 0: 640) plus axes and
 * caption, and, where most slices are too small to be seen, a close-up of the first of them beside
 * it; at most about 3 MB whatever the mask. Text: `columns` wide (1 to 1000; 0: 64), one
 * character a cell group: '#' all cells attended, '+' some, '.' none; lines end in '\n'.
 * *out: caller's, ffa_free(). Fails with FFA_INVALID, FFA_NOMEM. Thread: any. */
FFA_API ffa_status ffa_mask_svg(const ffa_mask *mask, int32_t head, int32_t size_px, char **out,
                                ffa_error *err);
FFA_API ffa_status ffa_mask_text_picture(const ffa_mask *mask, int32_t head, int32_t columns,
                                         char **out, ffa_error *err);

#ifdef __cplusplus
}
#endif
#endif
