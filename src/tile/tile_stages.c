/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of arriving keys. There are at most 16, which are walked; ranges of first keys may be as
 * many as key tiles, and are searched. An empty stage ends where the one before it does, so that no
 * key is found in it.
 */
#include "tile/tile_stages.h"

#include <stdlib.h>

int32_t tile_stage_of(const struct tile_stages *stages, int32_t key)
{
    int32_t stage = 0;

    while (stage + 1 < stages->count && key >= stages->ends[stage])
        stage++;
    return stage;
}

/* The first range of `first` that ends behind the key. */
static int64_t range_behind(const struct tile_stages *stages, int32_t key)
{
    int64_t low = 0, high = stages->first_count;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (stages->first[middle].end <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t tile_group_of(const struct tile_stages *stages, int32_t key)
{
    const int32_t stage = tile_stage_of(stages, key);
    int64_t range;

    if (stage > 0 || stages->count == 0)
        return stage;
    range = range_behind(stages, key);
    return range < stages->first_count && stages->first[range].begin <= key ? 0 : stages->count;
}

bool tile_crosses_stages(const struct tile_stages *stages, int32_t begin, int32_t end)
{
    return tile_stage_of(stages, begin) != tile_stage_of(stages, end - 1);
}

bool tile_crosses_groups(const struct tile_stages *stages, int32_t begin, int32_t end)
{
    const int64_t range = range_behind(stages, begin);

    if (tile_crosses_stages(stages, begin, end))
        return true;
    if (range == stages->first_count)
        return false;
    return stages->first[range].begin <= begin ? stages->first[range].end < end
                                               : stages->first[range].begin < end;
}

ffa_status tile_stages_copy(struct tile_stages *out, const struct tile_stages *from, ffa_error *err)
{
    struct tile_range *first = mem_array((size_t)from->first_count, sizeof *first);

    *out = (struct tile_stages){ 0 };
    if (!first)
        return error_nomem(err, "the stages of a plan");
    if (from->first_count)
        memcpy(first, from->first, (size_t)from->first_count * sizeof *first);
    *out = *from;
    out->first = first;
    return FFA_OK;
}

void tile_stages_finish(struct tile_stages *stages)
{
    mem_free((void *)stages->first);
    *stages = (struct tile_stages){ 0 };
}

ffa_status tile_stages_marks(int32_t **out, int64_t *count, const struct tile_stages *stages,
                             ffa_error *err)
{
    const int64_t all = stages->count + 2 * stages->first_count;
    int32_t *marks = mem_array((size_t)all, sizeof *marks);
    int64_t kept = 0;

    *out = NULL;
    *count = 0;
    if (!marks)
        return error_nomem(err, "the stages of a plan");
    for (int32_t s = 0; s < stages->count; s++)
        marks[s] = stages->ends[s];
    for (int64_t i = 0; i < stages->first_count; i++) {
        marks[stages->count + 2 * i] = stages->first[i].begin;
        marks[stages->count + 2 * i + 1] = stages->first[i].end;
    }
    qsort(marks, (size_t)all, sizeof *marks, compare32);
    for (int64_t i = 0; i < all; i++)
        if (marks[i] > 0 && marks[i] < stages->ends[stages->count - 1] &&
            (kept == 0 || marks[kept - 1] < marks[i]))
            marks[kept++] = marks[i];
    *out = marks;
    *count = kept;
    return FFA_OK;
}

bool tile_stages_hold(const struct tile_stages *stages, int64_t keys)
{
    if (stages->count < 1 || stages->count > TILE_STAGES_MAX ||
        stages->ends[stages->count - 1] != keys)
        return false;
    for (int32_t s = 0; s < stages->count; s++)
        if (stages->ends[s] < (s ? stages->ends[s - 1] : 0))
            return false;
    for (int64_t i = 0; i < stages->first_count; i++)
        if (stages->first[i].begin < (i ? stages->first[i - 1].end : 0) ||
            stages->first[i].begin >= stages->first[i].end ||
            stages->first[i].end > stages->ends[0])
            return false;
    return true;
}
