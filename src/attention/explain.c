/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_explain: the plan of a mask on a device model, and what its choices were made between.
 *
 * What was chosen is read from a plan that the planner itself has made, for kernels without code
 * (kernels_outline). The candidates' times come from the functions that the planner compares with.
 */
#include "attention/attention.h"

#include "tile/split.h"

#include <ffa/explain.h>
#include <math.h>

struct explaining {
    ffa_kernels kernels;
    struct kernel_list list;
    const ffa_mask *mask;
    ffa_plan_opts opts;
    ffa_plan *whole, *plan; /* without a split, and as it is chosen */
    struct tile_query query;
    double times[FORWARD_KERNELS_MAX]; /* of the forward kernels, with the cuts they would get */
    struct split_times split;
    ffa_explain_info info;
    ffa_explain_fn visit;
    void *user;
    bool has_ended;
};

static void tell(struct explaining *explaining, ffa_explain_candidate candidate)
{
    candidate.struct_size = (uint32_t)sizeof candidate;
    if (explaining->visit && !explaining->has_ended)
        explaining->has_ended = explaining->visit(explaining->user, &candidate) != 0;
}

/* ---- forward ---- */

static struct tile_candidate tiles_of(const struct forward_kernel *kernel)
{
    return (struct tile_candidate){ kernel->tile_m, kernel->tile_n, kernel->cost };
}

/* A packed tile has a warpgroup's 64 rows, or fewer, divided by the heads. */
static ffa_explain_candidate candidate_of(const struct explaining *explaining,
                                          const struct forward_kernel *kernel, double time)
{
    return (ffa_explain_candidate){
        .tile_m = kernel->tile_m,
        .tile_n = kernel->tile_n,
        .consumers = (kernel->tile_m * kernels_pack(&explaining->kernels) + 63) / 64,
        .time = time,
        .us = time * kernel->unit_us
    };
}

static void tell_tiles(struct explaining *explaining, int32_t index, const struct tile_plan *tiles,
                       enum tile_cuts cuts, bool is_chosen)
{
    const struct forward_kernel *kernel = &explaining->kernels.forward[index];
    const struct tile_candidate of = tiles_of(kernel);
    ffa_explain_candidate candidate = candidate_of(
        explaining, kernel,
        choose_tiles_time(tiles, &of, &explaining->query, &explaining->kernels.device));

    candidate.is_apart = cuts == TILE_CUTS_ISOLATE;
    candidate.tile_count = tiles->tile_count;
    candidate.is_chosen = is_chosen && !explaining->plan->split_heads;
    tell(explaining, candidate);
}

/* A kernel with the cuts that it would get alone, and with the others if these give other tiles. */
static ffa_status tell_kernel(struct explaining *explaining, int32_t index, ffa_error *err)
{
    const struct tile_choice *chosen = &explaining->whole->choice.tiles;
    const struct tile_candidate of = tiles_of(&explaining->kernels.forward[index]);
    struct tile_options other = { .tile_m = of.tile_m, .tile_n = of.tile_n };
    struct tile_query alone = explaining->query;
    struct tile_plan first = { 0 }, second = { 0 };
    struct tile_choice choice;
    bool is_same = true;
    ffa_status rc;

    alone.candidates = &of;
    alone.candidate_count = 1;
    FFA_TRY(
        choose_tiles(&first, &choice, explaining->mask, &alone, &explaining->kernels.device, err));
    explaining->times[index] = choose_tiles_time(&first, &of, &alone, &explaining->kernels.device);
    if (alone.is_packed && alone.cuts == TILE_CUTS_CHEAP) {
        other.cuts = choice.cuts == TILE_CUTS_CHEAP ? TILE_CUTS_ISOLATE : TILE_CUTS_CHEAP;
        FFA_TRY(tile_build(&second, explaining->mask, TILE_OWNS_QUERIES, &other, err));
        is_same = first.tile_count == second.tile_count && first.block_count == second.block_count;
    }
    tell_tiles(explaining, index, &first, choice.cuts,
               chosen->candidate == index && (is_same || chosen->cuts == choice.cuts));
    if (!is_same)
        tell_tiles(explaining, index, &second, other.cuts,
                   chosen->candidate == index && chosen->cuts == other.cuts);
out:
    tile_finish(&first);
    tile_finish(&second);
    return rc;
}

/* The split that was, or would have been, where one was compared. */
static ffa_status tell_split(struct explaining *explaining, ffa_error *err)
{
    const ffa_kernels *kernels = &explaining->kernels;
    const struct forward_kernel *kernel =
        kernels->is_split ? &kernels->forward[0] : &kernels->split[0];
    struct split_query query = plan_split_query(explaining->whole, kernels, kernels->heads_q,
                                                explaining->whole->choice.tiles.cost);
    struct tile_query alone = explaining->query;
    const struct tile_candidate of = tiles_of(kernel);
    ffa_explain_candidate candidate;
    struct tile_plan tiles = { 0 };
    struct tile_choice choice;
    ffa_status rc = FFA_OK;

    explaining->split.most = INT64_MAX;
    if (query.heads < 1 || !kernels_take_splits(kernels) || explaining->whole->heads_in_mask > 1 ||
        choose_split(&explaining->whole->forward, &query, kernels->device.costs) == INT64_MAX)
        goto out;
    alone.candidates = &of;
    alone.candidate_count = 1;
    FFA_TRY(choose_tiles(&tiles, &choice, explaining->mask, &alone, &kernels->device, err));
    query.key = choice.cost.key;
    explaining->split = choose_split_times(&tiles, &query, kernels->device.costs);
    if (explaining->split.most == INT64_MAX)
        goto out;
    candidate = candidate_of(explaining, kernel, explaining->split.parts);
    candidate.is_apart = choice.cuts == TILE_CUTS_ISOLATE;
    candidate.is_split = 1;
    candidate.whole_time = explaining->split.whole;
    for (int64_t t = 0; t < tiles.tile_count; t++)
        candidate.tile_count += tile_split_parts(tiles.block_counts[t], explaining->split.most);
    candidate.is_chosen = explaining->plan->split_heads > 0;
    tell(explaining, candidate);
out:
    tile_finish(&tiles);
    return rc;
}

static double percent_saved(double time, double of)
{
    return of > 0 ? 100 * (1 - time / of) : 0;
}

/* With many work items, kernels of other rows than the first do not compete. */
static bool has_untried(const struct explaining *explaining, int32_t chosen)
{
    const double worth = explaining->kernels.device.costs->worth;

    for (int32_t i = chosen + 1; i < explaining->kernels.forward_count; i++)
        if (explaining->times[i] < (1 - worth) * explaining->times[chosen])
            return true;
    return false;
}

static void say_forward(struct explaining *explaining)
{
    const struct cost_table *costs = explaining->kernels.device.costs;
    const int32_t chosen = explaining->whole->choice.tiles.candidate;
    char *out = explaining->info.forward_why;
    const size_t size = sizeof explaining->info.forward_why;

    if (explaining->plan->split_heads && explaining->kernels.is_split)
        text_format(out, size, "a split was asked for, and parts even out over the SMs");
    else if (explaining->plan->split_heads)
        text_format(out, size,
                    "the split saves %.0f %% of the time of whole tiles, at least %.0f %% "
                    "is asked",
                    percent_saved(explaining->split.parts, explaining->split.whole),
                    100 * costs->split.saved_share_min);
    else if (explaining->kernels.forward_count == 1)
        text_format(out, size, "the spec has one kernel");
    else if (has_untried(explaining, chosen))
        text_format(
            out, size,
            "work items are so many that kernels of other rows than the first are not tried");
    else if (chosen == 0)
        text_format(out, size, "no other kernel saves %.3g %% of the time of the first",
                    100 * costs->worth);
    else
        text_format(out, size,
                    "it saves %.0f %% of the time of the first kernel, at least %.3g %% "
                    "is asked",
                    percent_saved(explaining->times[chosen], explaining->times[0]),
                    100 * costs->worth);
}

/* ---- backward ---- */

static double tell_order(struct explaining *explaining, const struct order_query *query,
                         struct backward_order order, struct backward_order chosen)
{
    const struct tile_plan *tiles = &explaining->plan->backward;
    const double time = backward_order_time(tiles, query, order);
    const ffa_explain_candidate candidate = {
        .is_backward = 1,
        .is_chosen = order_is_same(order, chosen),
        .is_apart = tiles->cuts == TILE_CUTS_ISOLATE,
        .tile_count = tiles->tile_count,
        .tile_m = tiles->tile_m,
        .tile_n = tiles->tile_n,
        .parts = order.parts,
        .waves = order.waves,
        .l2_head_groups = (int32_t)backward_order_l2_group(tiles, query, order),
        .whole_heads = order.whole_heads,
        .time = time,
    };

    tell(explaining, candidate);
    return time;
}

static void tell_why(struct explaining *explaining, const struct order_query *query,
                     struct backward_order chosen, double saved)
{
    char *out = explaining->info.backward_why;
    const size_t size = sizeof explaining->info.backward_why;
    const double worth = 100 * backward_parts_worth(&explaining->plan->backward, query);

    if (query->group == 1)
        text_format(out, size,
                    "one query head a kv head has one part; the L2 groups take the least time");
    else if (chosen.parts == 1)
        text_format(out, size, "more parts do not save %.3g %% of the time", worth);
    else if (chosen.whole_heads)
        text_format(out, size,
                    "%d parts of the last %d of %d kv heads take %.1f %% less than one: the fewest "
                    "sums within %.3g %% of the least time",
                    chosen.parts, query->heads_kv - chosen.whole_heads, query->heads_kv, saved,
                    worth);
    else
        text_format(out, size,
                    "%d parts take %.1f %% less than one; each step to more has to save %.3g %%",
                    chosen.parts, saved, 100 * query->costs->order.worth);
}

static void add_why(struct explaining *explaining, const char *more)
{
    char *out = explaining->info.backward_why;
    const size_t used = strlen(out);

    text_format(out + used, sizeof explaining->info.backward_why - used, "%s", more);
}

/* Of the tiles of the backward pass, what else was chosen. */
static void tell_key_tiles(struct explaining *explaining)
{
    const struct tile_plan *tiles = &explaining->plan->backward;
    const ffa_kernels *kernels = &explaining->kernels;

    if (kernels->backward_count > 1)
        add_why(explaining, kernels_backward_of(kernels, tiles->tile_m, tiles->tile_n)->cluster > 1
                                ? "; in pairs of blocks"
                                : "; not in pairs");
    if (tiles->lockstep != TILE_LOCKSTEP_NONE)
        add_why(explaining, tiles->is_unlocked
                                ? "; not in lockstep: L2 would not hold so many documents"
                                : "; in lockstep");
    if (tiles->cuts != plan_cuts(&explaining->opts))
        add_why(explaining, "; no tile has keys of two documents");
}

/* All orders in which all kv heads are divided alike, and the chosen one. */
static void tell_orders(struct explaining *explaining)
{
    const struct order_query query = plan_order_query(explaining->plan, explaining->kernels.heads_q,
                                                      explaining->kernels.heads_kv);
    const struct backward_order chosen = plan_order(explaining->plan, &query);
    double one = INFINITY;

    for (int32_t parts = 1; parts <= query.group; parts++)
        for (int32_t waves = 1; query.group % parts == 0 && waves <= ORDER_WAVES_MAX; waves++) {
            const struct backward_order order = { parts, waves, 0 };
            const double time = tell_order(explaining, &query, order, chosen);

            if (parts == 1)
                one = fmin(one, time);
        }
    if (chosen.whole_heads)
        (void)tell_order(explaining, &query, chosen, chosen);
    tell_why(explaining, &query, chosen,
             percent_saved(backward_order_time(&explaining->plan->backward, &query, chosen), one));
    tell_key_tiles(explaining);
}

/* ---- all ---- */

/* The plan twice, for kernels that are only listed. */
static ffa_status make_plans(struct explaining *explaining, const ffa_attention_spec *spec,
                             const ffa_context *context, const struct choose_device *device,
                             ffa_error *err)
{
    ffa_kernels *kernels = &explaining->kernels;
    ffa_kernels whole;
    ffa_status rc;

    FFA_TRY(kernels_outline(kernels, &explaining->list, spec, context->arch, device, err));
    whole = *kernels;
    whole.is_split = whole.may_split = false;
    FFA_TRY(
        ffa_plan_create_with(&explaining->whole, &whole, explaining->mask, &explaining->opts, err));
    FFA_TRY(
        ffa_plan_create_with(&explaining->plan, kernels, explaining->mask, &explaining->opts, err));
    explaining->query = (struct tile_query){
        .heads = kernels_tile_heads(kernels, kernels->heads_q, explaining->whole->heads_in_mask),
        .cuts = plan_cuts(&explaining->opts),
        .is_packed = kernels->pack_heads > 0,
    };
out:
    return rc;
}

static ffa_status explain_passes(struct explaining *explaining, ffa_error *err)
{
    ffa_status rc = FFA_OK;

    for (int32_t i = 0; i < explaining->kernels.forward_count; i++)
        FFA_TRY(tell_kernel(explaining, i, err));
    FFA_TRY(tell_split(explaining, err));
    say_forward(explaining);
    if (explaining->plan->backward.tile_count && explaining->kernels.heads_q)
        tell_orders(explaining);
out:
    return rc;
}

static ffa_status check_arguments(const ffa_context *context, const ffa_explain_query *query,
                                  const ffa_plan_info *plan, const ffa_explain_info *info,
                                  ffa_error *err)
{
    const char *missing = !context ? "context"
                          : !query ? "query"
                          : !plan  ? "plan"
                          : !info  ? "info"
                                   : NULL;

    return missing ? error_fail(err, FFA_INVALID, 0, "ffa_explain: %s is NULL", missing) : FFA_OK;
}

ffa_status ffa_explain(ffa_context *context, const ffa_explain_query *query_in, ffa_plan_info *plan,
                       ffa_explain_info *info, ffa_explain_fn visit, void *user, ffa_error *err)
{
    struct explaining *explaining = NULL;
    struct choose_device device;
    ffa_explain_query query;
    ffa_attention_spec spec;
    ffa_status rc;

    FFA_TRY(check_arguments(context, query_in, plan, info, err));
    FFA_TRY(opts_import(&query, sizeof query, query_in, err));
    if (!query.spec || !query.mask) {
        rc = error_fail(err, FFA_INVALID, 0, "ffa_explain: %s is NULL",
                        query.spec ? "mask" : "spec");
        goto out;
    }
    FFA_TRY(opts_import(&spec, sizeof spec, query.spec, err));
    if (spec.heads_kv) /* else they are not known */
        FFA_TRY(check_mask_lists("", ffa_mask_head_count(query.mask), spec.heads_kv, err));
    FFA_TRY(context_choose_model(&device, context, query.device, err));
    explaining = mem_array(1, sizeof *explaining);
    if (!explaining) {
        rc = error_nomem(err, "an explanation");
        goto out;
    }
    explaining->mask = query.mask;
    explaining->visit = visit;
    explaining->user = user;
    explaining->opts = (ffa_plan_opts)FFA_PLAN_OPTS_INIT;
    explaining->opts.flags = query.plan_flags;
    FFA_TRY(make_plans(explaining, &spec, context, &device, err));
    FFA_TRY(explain_passes(explaining, err));
    explaining->info.sm_count = device.facts.sm_count;
    explaining->info.l2_bytes = device.facts.l2_bytes;
    text_copy(explaining->info.device, "%s", device.facts.name);
    FFA_TRY(ffa_plan_info_get(explaining->plan, plan, err));
    rc = opts_export(info, &explaining->info, sizeof explaining->info, err);
out:
    if (explaining) {
        ffa_plan_destroy(explaining->plan);
        ffa_plan_destroy(explaining->whole);
    }
    mem_free(explaining);
    return rc;
}
