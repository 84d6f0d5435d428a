/* SPDX-License-Identifier: Apache-2.0
 *
 * A mask from the block lists of a FlexAttention BlockMask.
 *
 * Each row of blocks has a list of key blocks that are attended in full, and one of blocks in which
 * a function decides. Both are merged into one list by key, in which neighbours that are attended
 * in full are one entry. Where no function decides, all rows of the block have the same runs.
 * Elsewhere the function fills boxes of some rows at a time, and the runs of each row are put
 * together from them. Rows go to the tracker, which makes slices of them across blocks: causal
 * attention in blocks is one slice again.
 *
 * Nothing is as large as blocks x blocks: the cost is that of the lists, of the boxes, and of the
 * runs of each row where a function decides.
 */
#include "mask/runs.h"

/* Cells that are filled before their rows are read: whole rows of boxes, at least one. */
enum { BOX_CELLS = 1 << 22 };

/* Key blocks that a row of blocks attends: one, or in full the neighbours [block, end). */
struct entry {
    int32_t block, end;
    int32_t is_full; /* else mask_mod decides */
};

struct entries {
    struct entry *at;
    int64_t count, capacity;
};

/* One head's way through the blocks. */
struct scan {
    const ffa_block_mask *blocks;
    int32_t head;
    int64_t q_blocks, k_blocks;
    struct entries entries;
    struct row_runs runs;
    uint8_t *cells; /* boxes of some rows, one behind the other */
    int64_t cells_capacity;
    struct tracker tracker;
};

/* ---- arguments ---- */

static ffa_status list_check(const ffa_block_list *list, const char *name, bool has_heads,
                             ffa_error *err)
{
    const struct bounded fields[] = {
        { "num_head_stride", has_heads ? list->num_head_stride : 0, 0, INT32_MAX },
        { "index_head_stride", has_heads ? list->index_head_stride : 0, 0, (int64_t)1 << 50 },
        { "index_row_stride", list->index_row_stride, 0, INT32_MAX },
        { "blocks_max", list->blocks_max, 0, INT32_MAX },
    };

    if (!list->num_blocks && !list->indices)
        return FFA_OK;
    if (!list->num_blocks || !list->indices)
        return error_fail(err, FFA_INVALID, 0, "%s.%s is NULL, but %s.%s is not", name,
                          list->indices ? "num_blocks" : "indices", name,
                          list->indices ? "indices" : "num_blocks");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return error_fail(err, FFA_INVALID, 0, "%s.%s is %lld, not in [0, %lld]", name,
                              fields[i].name, (long long)fields[i].value, (long long)fields[i].max);
    return FFA_OK;
}

static ffa_status blocks_check(const ffa_block_mask *blocks, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(mask_check_shape(&blocks->shape, err));
    if (blocks->heads < 1 || blocks->heads > HEADS_KV_MAX) {
        rc = error_fail(err, FFA_INVALID, 0, "heads is %d, not in [1, %d]", blocks->heads,
                        HEADS_KV_MAX);
        goto out;
    }
    FFA_TRY(count_check(blocks->block.block_q, 1, "block_q", err));
    FFA_TRY(count_check(blocks->block.block_k, 1, "block_k", err));
    FFA_TRY(list_check(&blocks->kv, "kv", blocks->heads > 1, err));
    FFA_TRY(list_check(&blocks->full, "full", blocks->heads > 1, err));
    if (!blocks->kv.num_blocks && !blocks->full.num_blocks)
        rc = error_fail(err, FFA_INVALID, 0, "kv.num_blocks and full.num_blocks are both NULL");
out:
    return rc;
}

/* ---- lists ---- */

static int entry_compare(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->block != b->block)
        return a->block < b->block ? -1 : 1;
    return b->is_full - a->is_full; /* full first: it is the one that is kept */
}

static ffa_status entries_add(struct scan *scan, const ffa_block_list *list, int64_t qb,
                              const char *name, bool is_full, ffa_error *err)
{
    const int64_t head = scan->blocks->heads > 1 ? scan->head : 0;
    const int32_t *row;
    int32_t count;

    if (!list->num_blocks)
        return FFA_OK;
    count = list->num_blocks[head * list->num_head_stride + qb];
    row = list->indices + head * list->index_head_stride + qb * list->index_row_stride;
    if (count < 0 || count > list->blocks_max)
        return error_fail(err, FFA_INVALID, 0,
                          "%s.num_blocks of head %d, query block %lld is %d, not in [0, %lld]",
                          name, scan->head, (long long)qb, count, (long long)list->blocks_max);
    if (!mem_grow((void **)&scan->entries.at, &scan->entries.capacity, scan->entries.count + count,
                  sizeof *scan->entries.at))
        return error_nomem(err, "a row of blocks");
    for (int32_t i = 0; i < count; i++) {
        if (row[i] < 0 || row[i] >= scan->k_blocks)
            return error_fail(err, FFA_INVALID, 0,
                              "%s.indices of head %d, query block %lld, entry %d is %d, not in "
                              "[0, %lld)",
                              name, scan->head, (long long)qb, i, row[i],
                              (long long)scan->k_blocks);
        scan->entries.at[scan->entries.count++] = (struct entry){ row[i], row[i] + 1, is_full };
    }
    return FFA_OK;
}

/* Sorted entries: each block once, and neighbours in full joined. */
static void entries_join(struct entries *entries)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < entries->count; i++) {
        const struct entry *entry = &entries->at[i];
        struct entry *last = kept > 0 ? &entries->at[kept - 1] : NULL;

        if (last && entry->block < last->end)
            continue;
        if (last && last->is_full && entry->is_full && last->end == entry->block)
            last->end = entry->end;
        else
            entries->at[kept++] = *entry;
    }
    entries->count = kept;
}

/* Both lists of a row of blocks, by key block. */
static ffa_status entries_read(struct scan *scan, int64_t qb, ffa_error *err)
{
    struct entries *entries = &scan->entries;
    bool is_sorted = true;
    ffa_status rc;

    entries->count = 0;
    FFA_TRY(entries_add(scan, &scan->blocks->kv, qb, "kv", !scan->blocks->mask_mod, err));
    FFA_TRY(entries_add(scan, &scan->blocks->full, qb, "full", true, err));
    for (int64_t i = 1; i < entries->count; i++)
        is_sorted = is_sorted && entry_compare(&entries->at[i - 1], &entries->at[i]) <= 0;
    if (!is_sorted)
        qsort(entries->at, (size_t)entries->count, sizeof *entries->at, entry_compare);
    entries_join(entries);
out:
    return rc;
}

/* ---- cells ---- */

static int64_t key_begin(const struct scan *scan, const struct entry *entry)
{
    return entry->block * scan->blocks->block.block_k;
}

static int64_t key_end(const struct scan *scan, const struct entry *entry)
{
    return min64(entry->end * scan->blocks->block.block_k, scan->blocks->shape.seqlen_k);
}

/* Keys in which the function decides, over the row of blocks. */
static int64_t keys_decided(const struct scan *scan)
{
    int64_t keys = 0;

    for (int64_t i = 0; i < scan->entries.count; i++)
        if (!scan->entries.at[i].is_full)
            keys += key_end(scan, &scan->entries.at[i]) - key_begin(scan, &scan->entries.at[i]);
    return keys;
}

/* Fill the boxes of rows [begin, end). */
static ffa_status boxes_fill(struct scan *scan, int64_t begin, int64_t end, ffa_error *err)
{
    const ffa_block_mask *blocks = scan->blocks;
    uint8_t *cells = scan->cells;

    for (int64_t i = 0; i < scan->entries.count; i++) {
        const struct entry *entry = &scan->entries.at[i];
        const ffa_mask_box box = { begin, end, key_begin(scan, entry), key_end(scan, entry) };
        const int64_t count = (end - begin) * (box.k_end - box.k_begin);
        int32_t answer;

        if (entry->is_full)
            continue;
        memset(cells, 0, (size_t)count);
        answer = blocks->mask_mod(blocks->user, scan->head, &box, cells);
        if (answer)
            return error_fail(err, FFA_INVALID, 0,
                              "mask_mod returned %d for head %d, queries [%lld, %lld), keys [%lld, "
                              "%lld)",
                              answer, scan->head, (long long)begin, (long long)end,
                              (long long)box.k_begin, (long long)box.k_end);
        cells += count;
    }
    return FFA_OK;
}

/* The runs of row `row` of `rows` that are in the boxes. */
static ffa_status row_read(struct scan *scan, int64_t row, int64_t rows, ffa_error *err)
{
    const uint8_t *cells = scan->cells;
    ffa_status rc = FFA_OK;

    scan->runs.count = 0;
    for (int64_t i = 0; i < scan->entries.count; i++) {
        const int64_t begin = key_begin(scan, &scan->entries.at[i]);
        const int64_t end = key_end(scan, &scan->entries.at[i]);

        if (scan->entries.at[i].is_full) {
            FFA_TRY(row_runs_add(&scan->runs, begin, end, err));
            continue;
        }
        FFA_TRY(row_runs_scan(&scan->runs, cells + row * (end - begin), end - begin, begin, err));
        cells += rows * (end - begin);
    }
out:
    return rc;
}

/* Rows [begin, end), whose boxes fit into scan->cells. */
static ffa_status rows_read(struct scan *scan, int64_t begin, int64_t end, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(boxes_fill(scan, begin, end, err));
    for (int64_t row = begin; row < end; row++) {
        FFA_TRY(row_read(scan, row - begin, end - begin, err));
        FFA_TRY(tracker_rows(&scan->tracker, row, row + 1, &scan->runs, err));
    }
out:
    return rc;
}

/* The rows [begin, end) of one row of blocks, whose entries are read. */
static ffa_status block_row(struct scan *scan, int64_t begin, int64_t end, ffa_error *err)
{
    const int64_t keys = keys_decided(scan);
    int64_t rows;
    ffa_status rc;

    if (keys == 0) {
        FFA_TRY(row_read(scan, 0, 0, err));
        return tracker_rows(&scan->tracker, begin, end, &scan->runs, err);
    }
    rows = min64(end - begin, max64(1, BOX_CELLS / keys));
    if (!mem_grow((void **)&scan->cells, &scan->cells_capacity, rows * keys, 1)) {
        rc = error_nomem(err, "the cells of a row of blocks");
        goto out;
    }
    for (int64_t row = begin; row < end; row += rows)
        FFA_TRY(rows_read(scan, row, min64(row + rows, end), err));
out:
    return rc;
}

static ffa_status head_read(struct slices *out, const ffa_block_mask *blocks, int32_t head,
                            ffa_error *err)
{
    const int64_t block_q = blocks->block.block_q, block_k = blocks->block.block_k;
    struct scan scan = { .blocks = blocks, .head = head, .tracker.out = out };
    ffa_status rc = FFA_OK;

    scan.q_blocks = (blocks->shape.seqlen_q + block_q - 1) / block_q;
    scan.k_blocks = (blocks->shape.seqlen_k + block_k - 1) / block_k;
    for (int64_t qb = 0; qb < scan.q_blocks; qb++) {
        FFA_TRY(entries_read(&scan, qb, err));
        FFA_TRY(
            block_row(&scan, qb * block_q, min64((qb + 1) * block_q, blocks->shape.seqlen_q), err));
    }
out:
    mem_free(scan.entries.at);
    mem_free(scan.runs.at);
    mem_free(scan.cells);
    return tracker_finish(&scan.tracker, rc, err);
}

ffa_status ffa_mask_from_block_mask(ffa_mask **out, const ffa_block_mask *blocks, ffa_error *err)
{
    struct slice_lists lists = { NULL, 0 };
    ffa_block_mask own = { 0 };
    ffa_status rc;

    FFA_TRY(out_clear(out, err));
    if (!blocks) {
        rc = error_fail(err, FFA_INVALID, 0, "blocks is NULL");
        goto out;
    }
    FFA_TRY(opts_import(&own, sizeof own, blocks, err));
    FFA_TRY(blocks_check(&own, err));
    own.block.block_q = min64(own.block.block_q, own.shape.seqlen_q);
    own.block.block_k = min64(own.block.block_k, own.shape.seqlen_k);
    FFA_TRY(slice_lists_init(&lists, own.heads, err));
    for (int32_t head = 0; head < own.heads; head++)
        FFA_TRY(head_read(&lists.at[head], &own, head, err));
out:
    return slice_lists_to_mask(out, &own.shape, &lists, rc, err);
}
