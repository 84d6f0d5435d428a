/* SPDX-License-Identifier: Apache-2.0
 *
 * How a plan asks src/choose: the candidates are the kernels that were loaded, the facts are the
 * device's, and the answer is kept in the plan, for calls and for ffa_plan_info.
 *
 * A choice depends on the mask, the kernels and the plan's options only, so that equal calls make
 * equal plans in every process. A plan is split by kernels of its own where nobody asked for it:
 * the tiles of both are built, and the plan keeps those it is for. Of a plan that is replayed with
 * other masks all tiles are split, or none (tile_split_all).
 */
#include "attention/attention.h"

#include "tile/split.h"

enum tile_cuts plan_cuts(const ffa_plan_opts *opts)
{
    return opts->flags & FFA_PLAN_ISOLATE ? TILE_CUTS_ISOLATE : TILE_CUTS_CHEAP;
}

/* Whether the costs are a table's: a tile without a table costs nothing to begin, so that whole
 * tiles would be too cheap beside parts. */
static bool has_costs(const struct forward_kernel *kernel)
{
    return kernel->cost.begin > 0;
}

/* Build the tiles for the kernel that is expected to be the fastest of the list. */
static ffa_status build_tiles(struct tile_plan *out, struct tile_choice *choice,
                              const ffa_kernels *kernels, struct forward_list list,
                              const ffa_mask *mask, const struct tile_stages *stages,
                              const ffa_plan_opts *opts, ffa_error *err)
{
    const struct forward_kernel *all = list.kernels;
    struct tile_candidate candidates[FORWARD_KERNELS_MAX];
    /* 0: not known, or a plan for other masks, too. */
    const int32_t heads = opts->capacity_bytes ? 0
                                               : kernels_tile_heads(kernels, kernels->heads_q,
                                                                    ffa_mask_head_count(mask));
    const struct tile_query query = { .candidates = candidates,
                                      .candidate_count = list.count,
                                      .cuts = plan_cuts(opts),
                                      .heads = heads,
                                      .stages = stages,
                                      .is_packed =
                                          kernels->pack_heads && kernels_target_gpu(kernels),
                                      .wants_time = has_costs(&all[0]) };

    for (int32_t i = 0; i < list.count; i++)
        candidates[i] = (struct tile_candidate){ all[i].tile_m, all[i].tile_n, all[i].cost };
    return choose_tiles(out, choice, mask, &query, &kernels->device, err);
}

/* Query heads of a call are a multiple. */
static int32_t split_divisor(const struct ffa_plan *plan, const ffa_kernels *kernels)
{
    return plan->heads_in_mask * kernels_pack(kernels);
}

/* The heads that a split is asked for. */
static ffa_status split_check(const struct ffa_plan *plan, const ffa_kernels *kernels,
                              int32_t heads_q, ffa_error *err)
{
    if (heads_q < 1 || heads_q > FFA_HEADS_MAX || heads_q % split_divisor(plan, kernels))
        return error_fail(
            err, FFA_INVALID, 0,
            "plan: heads_q is %d, not a multiple of %d lists of the mask x %d packed heads in "
            "[1, %d]",
            heads_q, plan->heads_in_mask, kernels_pack(kernels), FFA_HEADS_MAX);
    if (kernels->heads_q && kernels->heads_q != heads_q)
        return error_fail(err, FFA_INVALID, 0,
                          "plan: heads_q is %d, the kernels were made for heads_q %d", heads_q,
                          kernels->heads_q);
    return FFA_OK;
}

struct split_query plan_split_query(const ffa_plan *plan, const ffa_kernels *kernels,
                                    int32_t heads_q, struct tile_cost cost)
{
    return (struct split_query){
        .heads = kernels_tile_heads(kernels, heads_q, plan->heads_in_mask),
        .places = kernels->device.facts.sm_count,
        /* A plan that is replayed combines its rows in any case: a part costs nothing more. */
        .is_asked = kernels->is_split || plan->capacity_bytes,
        .whole_time = kernels->heads_q ? plan->choice.tiles.time : 0,
        .key = cost.key,
    };
}

static int64_t split_most(const struct tile_plan *tiles, struct tile_cost cost,
                          const struct ffa_plan *plan, const ffa_kernels *kernels, int32_t heads_q)
{
    const struct split_query query = plan_split_query(plan, kernels, heads_q, cost);

    return choose_split(tiles, &query, kernels->device.costs);
}

/* Split the plan's tiles where that fills idle SMs. */
static ffa_status split_asked(struct ffa_plan *plan, const ffa_kernels *kernels, int32_t heads_q,
                              ffa_error *err)
{
    const int64_t most =
        split_most(&plan->forward, plan->choice.tiles.cost, plan, kernels, heads_q);
    ffa_status rc = FFA_OK;

    if (most < INT64_MAX) {
        FFA_TRY(tile_split(&plan->forward, most, err));
        plan->split_heads = heads_q;
    }
out:
    return rc;
}

/* The same for kernels that are others than those of whole tiles, with other tiles. */
static ffa_status split_auto(struct ffa_plan *plan, const ffa_kernels *kernels,
                             const ffa_mask *mask, const ffa_plan_opts *opts, int32_t heads_q,
                             ffa_error *err)
{
    struct tile_plan tiles = { 0 }, whole;
    struct tile_choice choice;
    int64_t most = split_most(&plan->forward, plan->choice.tiles.cost, plan, kernels, heads_q);
    ffa_status rc = FFA_OK;

    if (most == INT64_MAX)
        goto out;
    FFA_TRY(build_tiles(&tiles, &choice, kernels, kernels_forward(kernels, true), mask, NULL, opts,
                        err));
    most = split_most(&tiles, choice.cost, plan, kernels, heads_q);
    if (most == INT64_MAX)
        goto out;
    FFA_TRY(tile_split(&tiles, most, err));
    whole = plan->forward;
    plan->forward = tiles;
    tiles = whole;
    plan->choice.tiles = choice;
    plan->split_heads = heads_q;
out:
    tile_finish(&tiles);
    return rc;
}

/* Parts that a tile may have in a plan that is replayed: as many as fill all SMs with one tile in
 * one wave, so that no mask needs more room. 1: its tiles stay whole. */
static int32_t replayed_parts(const ffa_kernels *kernels, const ffa_mask *mask,
                              const ffa_plan_opts *opts)
{
    const int32_t lists = ffa_mask_head_count(mask);
    const int32_t tile_heads = kernels_tile_heads(kernels, opts->heads_q, lists);

    if (!opts->capacity_bytes || lists > 1 || !kernels_target_gpu(kernels) ||
        !kernels_take_splits(kernels) || tile_heads < 1)
        return 1;
    if (opts->like)
        return opts->like->split_parts_max;
    return min32(TILE_PARTS_MAX, max32(1, kernels->device.facts.sm_count / tile_heads));
}

/* Split all tiles of such a plan, into one part or more, or none. */
static ffa_status split_replayed(struct ffa_plan *plan, const ffa_kernels *kernels,
                                 const ffa_mask *mask, const ffa_plan_opts *opts, ffa_error *err)
{
    const int32_t parts = replayed_parts(kernels, mask, opts);
    ffa_status rc = FFA_OK;

    if (parts == 1)
        goto out;
    FFA_TRY(tile_split_all(
        &plan->forward,
        split_most(&plan->forward, plan->choice.tiles.cost, plan, kernels, opts->heads_q), parts,
        err));
    plan->split_parts_max = parts;
    plan->split_heads = opts->heads_q;
out:
    return rc;
}

/* Split the tiles if they may be, where that fills idle SMs. */
static ffa_status split(struct ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                        const ffa_plan_opts *opts, ffa_error *err)
{
    const bool is_replayed = plan->capacity_bytes > 0; /* then only what is asked for */
    const int32_t heads_q = opts->heads_q || is_replayed ? opts->heads_q : kernels->heads_q;
    ffa_status rc = FFA_OK;

    if (opts->heads_q && !kernels->is_split && !kernels->may_split) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "plan: heads_q is %d, the kernels were made without FFA_SPEC_SPLIT",
                        opts->heads_q);
        goto out;
    }
    if (!heads_q || !(kernels->is_split || kernels->may_split))
        goto out;
    if (opts->heads_q || kernels->is_split)
        FFA_TRY(split_check(plan, kernels, heads_q, err));
    else if (heads_q % split_divisor(plan, kernels)) /* calls with this mask are refused */
        goto out;
    if (!kernels_target_gpu(kernels) || plan->heads_in_mask > 1)
        goto out; /* the CPU's threads take tiles as they come; forward_combine knows one list */
    if (is_replayed)
        rc = split_replayed(plan, kernels, mask, opts, err);
    else if (kernels->is_split)
        rc = split_asked(plan, kernels, heads_q, err);
    else if (kernels->split_count)
        rc = split_auto(plan, kernels, mask, opts, heads_q, err);
out:
    return rc;
}

/* The forward kernels that a plan may be for: all, or that of the plan that it is like. One that is
 * replayed is split, or not, whatever its mask. */
static struct forward_list candidates_of(const ffa_kernels *kernels, const ffa_mask *mask,
                                         const ffa_plan_opts *opts)
{
    const struct forward_list all =
        kernels_forward(kernels, replayed_parts(kernels, mask, opts) > 1);
    const struct forward_kernel *same =
        opts->like ? kernels_forward_of(all, &opts->like->forward) : NULL;

    return same ? (struct forward_list){ same, 1 } : all;
}

ffa_status plan_choose_tiles(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                             const ffa_plan_opts *opts, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(build_tiles(&plan->forward, &plan->choice.tiles, kernels,
                        candidates_of(kernels, mask, opts), mask, NULL, opts, err));
    rc = split(plan, kernels, mask, opts, err);
out:
    return rc;
}

ffa_status plan_choose_arriving(ffa_plan *plan, const ffa_kernels *kernels, const ffa_mask *mask,
                                const struct tile_stages *stages, ffa_error *err)
{
    const ffa_plan_opts opts = FFA_PLAN_OPTS_INIT;

    return build_tiles(&plan->forward, &plan->choice.tiles, kernels,
                       kernels_forward(kernels, false), mask, stages, &opts, err);
}

/* ---- what was chosen ---- */

struct plan_choice plan_choice_begin(const ffa_kernels *kernels)
{
    return (struct plan_choice){
        .device = kernels->device,
        .pack_heads = kernels->pack_heads,
        .heads_q = kernels->heads_q,
        .heads_kv = kernels->heads_kv,
        .token_bytes =
            (kernels->head_dim + kernels->head_dim_v) * (int32_t)ffa_dtype_bytes(kernels->dtype),
        .backward_at_a_time =
            kernels->has_backward
                ? kernels_backward_at_a_time(&kernels->backward[0], kernels->device.facts.sm_count)
                : 0,
        .can_leave_whole = kernels_can_leave_whole(kernels),
        .row_bytes = kernels_backward_row_bytes(kernels),
    };
}

/* The plan remembers the last answer in 16 bits of a word; the others say to which question. (A
 * plan that is used in turn with two head layouts, or two numbers of SMs, finds it each time, and
 * so where heads or SMs do not fit those bits.) */
int32_t plan_l2_heads_kv(const ffa_plan *plan, int32_t tile_heads, int32_t heads_kv,
                         int32_t sm_margin)
{
    const struct plan_choice *choice = &plan->choice;
    const struct tile_cost cost = choice->tiles.cost;
    const struct l2_query query = {
        .heads_kv = heads_kv,
        .tile_heads = tile_heads,
        .tile_rows = plan->forward.tile_m * max32(1, choice->pack_heads),
        .key_bytes = choice->token_bytes,
        .cost = cost.begin > 0 ? cost : choice->device.costs->packed_cost,
        .sm_margin = sm_margin,
    };
    const bool fits = !(tile_heads >> 16 || heads_kv >> 16 || sm_margin >> 16);
    const uint64_t key =
        (uint64_t)tile_heads << 48 | (uint64_t)heads_kv << 32 | (uint64_t)sm_margin << 16;
    const uint64_t known = atomic_load(&plan->found->l2_heads);
    int32_t heads;

    if (fits && known >> 16 == key >> 16)
        return (int32_t)(known & 0xffff);
    heads = choose_l2_heads(&plan->forward, &query, &choice->device);
    if (fits)
        atomic_store(&plan->found->l2_heads, key | (uint64_t)heads);
    return heads;
}

/* Of keys that arrive, owners add up one sum of each key tile that comes from a rank, and the
 * kernel adds its parts to that sum, which begins as zeros. Two parts have the same bits in either
 * order, more would not: the better one of one part and two. A wave to an L2 group: heads beyond
 * that are worked on side by side, and miss L2. */
static struct backward_order order_of(const ffa_plan *plan, const struct tile_plan *tiles,
                                      const struct order_query *query)
{
    enum { ARRIVING_PARTS = 2 };
    struct order_query asked = *query;
    struct backward_order order;

    if (plan->choice.forced.parts)
        return plan->choice.forced;
    if (plan->arriving.count && (!asked.parts_max || asked.parts_max > ARRIVING_PARTS))
        asked.parts_max = ARRIVING_PARTS;
    order = backward_order_find(tiles, &asked);
    if (plan->arriving.count > 1)
        order.waves = 1;
    return order;
}

/* How many kv heads are divided, in five bits: 0 for all, else 1 and the logarithm of a power of
 * two. */
static uint64_t divided_code(const struct order_query *query, struct backward_order order)
{
    const int32_t divided = query->heads_kv - order.whole_heads;

    return order.whole_heads ? 1 + (uint64_t)__builtin_ctz((unsigned)divided) : 0;
}

/* The plan remembers the last answer in 20 bits of a word; the others say to which question. (A
 * plan that is used with two head layouts in turn asks each time.) */
struct backward_order plan_order(const ffa_plan *plan, const struct order_query *query)
{
    const uint64_t key = (uint64_t)query->can_leave_whole << 62 | (uint64_t)query->group << 50 |
                         (uint64_t)query->heads_kv << 32 | (uint64_t)query->at_a_time << 20;
    const struct tile_plan *tiles = plan->reference ? &plan->reference->backward : &plan->backward;
    const uint64_t known = atomic_load(&plan->found->order);
    struct backward_order order;

    if (query->group >> 12 || query->heads_kv >> 18 || query->at_a_time >> 12)
        return order_of(plan, tiles, query);
    if (known >> 20 == key >> 20) {
        const int32_t code = known >> 15 & 0x1f;

        return (struct backward_order){ (int32_t)(known >> 3 & 0xfff), (int32_t)(known & 7),
                                        code ? query->heads_kv - (1 << (code - 1)) : 0 };
    }
    order = order_of(plan, tiles, query);
    atomic_store(&plan->found->order, key | divided_code(query, order) << 15 |
                                          (uint64_t)order.parts << 3 | (uint64_t)order.waves);
    return order;
}

void plan_force_order(ffa_plan *plan, struct backward_order order, bool is_unlocked)
{
    assert(!(is_unlocked && plan->backward.on_grid));
    plan->choice.forced = order;
    atomic_store(&plan->found->order, 0);
    plan->backward.is_unlocked = is_unlocked;
    if (plan->image_data)
        plan_image_write(&plan->image, plan->image_data, &plan->forward, &plan->backward);
}

struct order_query plan_order_query(const ffa_plan *plan, int32_t heads_q, int32_t heads_kv)
{
    const struct plan_choice *choice = &plan->choice;

    return (struct order_query){
        .group = heads_q / heads_kv,
        .heads_kv = heads_kv,
        .at_a_time = choice->backward_at_a_time,
        .costs = choice->device.costs,
        .can_leave_whole = choice->can_leave_whole,
        .parts_max = choice->parts_max,
        .row_bytes = choice->row_bytes,
        .l2_bytes = choice->device.facts.l2_bytes,
    };
}

void plan_settle_lockstep(ffa_plan *plan)
{
    struct order_query query;

    if (!plan->choice.heads_q || !plan->backward.tile_count)
        return;
    query = plan_order_query(plan, plan->choice.heads_q, plan->choice.heads_kv);
    plan->backward.is_unlocked = !backward_keeps_lockstep(&plan->backward, &query);
}

static int32_t parts_of(const struct tile_plan *tiles)
{
    int32_t parts = 0;

    for (int64_t t = 0; t < tiles->tile_count; t++)
        parts += (tiles->tiles[t].flags & PLAN_TILE_PART) != 0;
    return parts;
}

void plan_choice_info(ffa_plan_info *info, const ffa_plan *plan)
{
    const struct plan_choice *choice = &plan->choice;
    const bool is_known = plan->image_data && choice->heads_q;

    info->pack_heads = choice->pack_heads;
    info->is_isolated = choice->tiles.cuts == TILE_CUTS_ISOLATE;
    info->split_heads = plan->split_heads;
    info->split_tiles = parts_of(&plan->forward);
    if (plan->image_data) {
        text_copy(info->cost_table, "%s", choice->device.costs->device);
        text_copy(info->cost_digest, "%.16s", choice->device.digest);
        info->cost_source = (int32_t)choice->device.source;
    }
    if (is_known)
        info->l2_heads_kv = plan_l2_heads_kv(
            plan, choice->pack_heads ? 1 : choice->heads_q / choice->heads_kv, choice->heads_kv, 0);
    if (is_known && plan->backward.tile_count) {
        const struct order_query query = plan_order_query(plan, choice->heads_q, choice->heads_kv);
        const struct backward_order order = plan_order(plan, &query);

        info->backward_parts = order.parts;
        info->backward_waves = order.waves;
        info->backward_whole_heads = order.whole_heads;
        info->backward_l2_head_groups =
            (int32_t)backward_order_l2_group(&plan->backward, &query, order);
    }
}
