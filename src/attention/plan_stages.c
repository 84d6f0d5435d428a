/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of a pass in stages: one for the keys of each, all with the same tiles, each tile marked
 * with what comes before and after. A stage's plan has the tiles it works on, and no others. Of the
 * backward pass it has the tiles of all its keys: each key is one stage's.
 */
#include "attention/attention.h"
#include "tile/cut.h"

enum { STAGES_MAX = 4096 };

struct build {
    ffa_plan **plans; /* [count] */
    int32_t count;
    const ffa_kernels *kernels;
    ffa_plan_opts wish;
    struct tile_options tiles;
    struct cut_list *cuts; /* [lists] */
    int32_t list_count;
};

static ffa_status check(const ffa_kernels *kernels, const ffa_mask *const *masks, int32_t count,
                        ffa_error *err)
{
    if (!kernels || !masks)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create_stages: %s is NULL",
                          kernels ? "masks" : "kernels");
    if (count < 1 || count > STAGES_MAX)
        return error_fail(err, FFA_INVALID, 0, "count is %d, not in [1, %d]", count, STAGES_MAX);
    if (!kernels->is_staged)
        return error_fail(err, FFA_INVALID, 0, "the kernels were made without FFA_SPEC_STAGED");
    for (int32_t i = 0; i < count; i++) {
        if (!masks[i])
            return error_fail(err, FFA_INVALID, 0, "masks[%d] is NULL", i);
        if (ffa_mask_seqlen_q(masks[i]) != ffa_mask_seqlen_q(masks[0]) ||
            ffa_mask_head_count(masks[i]) != ffa_mask_head_count(masks[0]))
            return error_fail(
                err, FFA_INVALID, 0,
                "masks[%d] has %lld query rows and %d lists, masks[0] %lld and %d", i,
                (long long)ffa_mask_seqlen_q(masks[i]), (int)ffa_mask_head_count(masks[i]),
                (long long)ffa_mask_seqlen_q(masks[0]), (int)ffa_mask_head_count(masks[0]));
    }
    return FFA_OK;
}

static int by_row(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* Add the rows at which the plan's tiles of a list begin, each once. */
static ffa_status cuts_add(struct cut_list *cuts, const struct tile_plan *plan, int32_t list,
                           ffa_error *err)
{
    const int64_t first = plan->list_begin[list], last = plan->list_begin[list + 1];
    int32_t *begins = mem_array((size_t)(cuts->count + last - first), sizeof *begins);
    int64_t count = cuts->count, kept = 0;

    if (!begins)
        return error_nomem(err, "the tiles of stages");
    if (count)
        memcpy(begins, cuts->begins, (size_t)count * sizeof *begins);
    for (int64_t t = first; t < last; t++)
        begins[count++] = plan->tiles[t].begin;
    qsort(begins, (size_t)count, sizeof *begins, by_row);
    for (int64_t i = 0; i < count; i++)
        if (!kept || begins[i] != begins[kept - 1])
            begins[kept++] = begins[i];
    mem_free(cuts->begins);
    *cuts = (struct cut_list){ begins, kept };
    return FFA_OK;
}

/* The tiles of the stage with most cells; isolated, cut wherever one of the stages needs it. */
static ffa_status find_cuts(struct build *b, const ffa_mask *const *masks, ffa_error *err)
{
    const bool is_isolated = b->tiles.cuts == TILE_CUTS_ISOLATE;
    struct tile_plan plan = { 0 };
    int32_t most = 0;
    ffa_status rc = FFA_OK;

    for (int32_t i = 1; i < b->count; i++)
        if (ffa_mask_area(masks[i], -1) > ffa_mask_area(masks[most], -1))
            most = i;
    for (int32_t i = is_isolated ? 0 : most; i < (is_isolated ? b->count : most + 1); i++) {
        FFA_TRY(tile_build(&plan, masks[i], TILE_OWNS_QUERIES, &b->tiles, err));
        for (int32_t list = 0; list < b->list_count; list++)
            FFA_TRY(cuts_add(&b->cuts[list], &plan, list, err));
        tile_finish(&plan);
    }
out:
    tile_finish(&plan);
    return rc;
}

/* Where in a list's cuts a tile begins. */
static int64_t cut_index(const struct cut_list *cuts, int32_t row)
{
    const int32_t *found =
        bsearch(&row, cuts->begins, (size_t)cuts->count, sizeof *cuts->begins, by_row);

    assert(found);
    return found - cuts->begins;
}

/* Keep the tiles that the stage works on, marked. first, last: the stages of each cut of the list
 * that do, by cut; -1: none does, and stage 0 writes it as empty. */
static int64_t keep_tiles(struct build *b, int32_t stage, int32_t list, const int32_t *first,
                          const int32_t *last, int64_t kept)
{
    struct tile_plan *plan = &b->plans[stage]->tiles;
    const int64_t begin = plan->list_begin[list], end = plan->list_begin[list + 1];

    plan->list_begin[list] = (int32_t)kept;
    for (int64_t t = begin; t < end; t++) {
        struct plan_tile tile = plan->tiles[t];
        const int64_t cut = cut_index(&b->cuts[list], tile.begin);

        if (first[cut] < 0 ? stage > 0 : tile.sweep_count == 0)
            continue;
        if (first[cut] >= 0)
            tile.flags = (uint16_t)((first[cut] < stage ? PLAN_TILE_MERGES : 0) |
                                    (last[cut] > stage ? PLAN_TILE_CONTINUES : 0));
        plan->tiles[kept++] = tile;
    }
    return kept;
}

static ffa_status mark_list(struct build *b, int32_t list, int64_t *kept, ffa_error *err)
{
    const int64_t count = b->cuts[list].count;
    int32_t *first = mem_array((size_t)count, sizeof *first);
    int32_t *last = mem_array((size_t)count, sizeof *last);
    ffa_status rc = FFA_OK;

    if (!first || !last) {
        rc = error_nomem(err, "the tiles of stages");
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        first[i] = last[i] = -1;
    for (int32_t s = 0; s < b->count; s++) {
        const struct tile_plan *plan = &b->plans[s]->tiles;

        for (int64_t t = plan->list_begin[list]; t < plan->list_begin[list + 1]; t++) {
            const int64_t cut = cut_index(&b->cuts[list], plan->tiles[t].begin);

            if (!plan->tiles[t].sweep_count)
                continue;
            first[cut] = first[cut] < 0 ? s : first[cut];
            last[cut] = s;
        }
    }
    for (int32_t s = 0; s < b->count; s++)
        kept[s] = keep_tiles(b, s, list, first, last, kept[s]);
out:
    mem_free(first);
    mem_free(last);
    return rc;
}

static ffa_status build_plans(struct build *b, const ffa_mask *const *masks, ffa_error *err)
{
    int64_t *kept = mem_array((size_t)b->count, sizeof *kept);
    ffa_status rc = FFA_OK;

    if (!kept)
        return error_nomem(err, "the tiles of stages");
    for (int32_t s = 0; s < b->count; s++) {
        FFA_TRY(plan_begin(&b->plans[s], b->kernels, masks[s], err));
        b->plans[s]->choice.cuts = b->tiles.cuts;
        b->plans[s]->stage = s;
        b->plans[s]->stage_count = b->count;
        FFA_TRY(tile_build_at(&b->plans[s]->tiles, masks[s], TILE_OWNS_QUERIES, &b->tiles, b->cuts,
                              err));
        FFA_TRY(plan_add_backward(b->plans[s], b->kernels, masks[s], &b->wish, err));
    }
    for (int32_t list = 0; list < b->list_count; list++)
        FFA_TRY(mark_list(b, list, kept, err));
    for (int32_t s = 0; s < b->count; s++) {
        b->plans[s]->tiles.tile_count = kept[s];
        b->plans[s]->tiles.list_begin[b->list_count] = (int32_t)kept[s];
        FFA_TRY(plan_complete(b->plans[s], b->kernels, err));
    }
out:
    mem_free(kept);
    return rc;
}

ffa_status ffa_plan_create_stages(ffa_plan **out, const ffa_kernels *kernels,
                                  const ffa_mask *const *masks, int32_t count,
                                  const ffa_plan_opts *opts, ffa_error *err)
{
    struct build b = { .plans = out, .count = count, .kernels = kernels };
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_plan_create_stages: out is NULL");
    for (int32_t i = 0; i < count && count <= STAGES_MAX; i++)
        out[i] = NULL;
    FFA_TRY(check(kernels, masks, count, err));
    FFA_TRY(plan_wish_import(&b.wish, opts, err));
    b.tiles = plan_tile_options(&kernels->forward[0], &b.wish);
    if (b.wish.heads_q) {
        rc =
            error_fail(err, FFA_INVALID, 0,
                       "plan: heads_q is %d, stages are not split over their keys", b.wish.heads_q);
        goto out;
    }
    b.list_count = ffa_mask_head_count(masks[0]);
    b.cuts = mem_array((size_t)b.list_count, sizeof *b.cuts);
    if (!b.cuts) {
        rc = error_nomem(err, "the tiles of stages");
        goto out;
    }
    FFA_TRY(find_cuts(&b, masks, err));
    rc = build_plans(&b, masks, err);
out:
    for (int32_t i = 0; rc != FFA_OK && i < count && count <= STAGES_MAX; i++) {
        ffa_plan_destroy(out[i]);
        out[i] = NULL;
    }
    for (int32_t i = 0; b.cuts && i < b.list_count; i++)
        cut_finish(&b.cuts[i]);
    mem_free(b.cuts);
    return rc;
}
