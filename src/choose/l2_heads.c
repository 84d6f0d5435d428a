/* SPDX-License-Identifier: Apache-2.0 */
#include "choose/l2_heads.h"

#include "choose/makespan.h"

#include <math.h>

/* Work items that are simulated, the last ones of the pass, at least so many and so many waves:
 * that is where SMs come to be idle. */
enum { SIMULATED_ITEMS = 1024, SIMULATED_WAVES = 7 };

/* A pass, and what is the same with any group. */
struct pass {
    const struct tile_plan *plan;
    const struct l2_query *query;
    const struct cost_table *costs;
    int32_t places;     /* SMs */
    double group_bytes; /* K and V at work that L2 keeps, on the device at hand */
    bool is_even;       /* as many blocks in each tile: what SMs do not finish together with one
                         * group, they do not with any */
    double work;        /* of all items, in the unit of the costs */
    double cells;       /* of a kv head's work items */
    double keys_alone;  /* that a kv head's tiles read if each reads alone */
};

/* ---- the queue ---- */

static double time_of_tile(const struct pass *pass, int64_t tile)
{
    const struct tile_cost cost = pass->query->cost;

    return cost.begin +
           cost.key * (double)pass->plan->block_counts[tile] * (double)pass->plan->tile_n;
}

/* In [-1, 1), another one for each item: of the finaliser of MurmurHash3, but for its last step. */
static double unevenness(uint64_t item)
{
    item = (item ^ item >> 33) * 0xff51afd7ed558ccdu;
    item = (item ^ item >> 33) * 0xc4ceb9fe1a85ec53u;
    return (double)(item >> 11) * 0x1p-52 - 1;
}

/* The tile of a work item, as work_find of forward_schedule.h has it. */
static int64_t tile_of_item(const struct pass *pass, int32_t heads, int64_t item)
{
    const struct l2_query *query = pass->query;
    const int64_t tiles = pass->plan->tile_count;
    const int64_t group = (int64_t)heads * query->tile_heads;
    const int64_t all = (int64_t)query->heads_kv * query->tile_heads;
    const int64_t first = item / (group * tiles) * group;

    return (item - first * tiles) / min64(group, all - first);
}

/* The time until the last SM is done, over that of SMs which are done together. */
static double imbalance(const struct pass *pass, int32_t heads)
{
    const struct l2_query *query = pass->query;
    const int64_t items = pass->plan->tile_count * query->heads_kv * query->tile_heads;
    const int64_t most = max64(SIMULATED_ITEMS, (int64_t)SIMULATED_WAVES * pass->places);
    struct makespan makespan = { .places = pass->places };
    double simulated = 0;

    for (int64_t item = max64(0, items - most); item < items; item++) {
        const double time = time_of_tile(pass, tile_of_item(pass, heads, item)) *
                            (1 + pass->costs->l2.uneven * unevenness((uint64_t)item));

        makespan_take(&makespan, time);
        simulated += time;
    }
    return 1 + (makespan.last * pass->places - simulated) / pass->work;
}

/* ---- L2 ---- */

/* Which keys tiles of a plan have read, by where they begin: those of a document begin together. */
enum { RANGE_BITS = 8, RANGE_PLACES = 1 << RANGE_BITS };

struct range_set {
    struct {
        int32_t begin, end;
        int64_t round; /* older ones count as empty */
    } places[RANGE_PLACES];
};

/* How many of the keys [begin, end) are new in this round, but for what they overlap with ranges
 * that begin elsewhere; all of them, too, where another range has taken the place of theirs. */
static int32_t set_add(struct range_set *set, int32_t begin, int32_t end, int64_t round)
{
    const uint32_t place = (uint32_t)begin * 2654435769u >> (32 - RANGE_BITS);
    const int32_t before = set->places[place].end;

    if (set->places[place].round == round && set->places[place].begin == begin) {
        set->places[place].end = max32(before, end);
        return max32(0, end - before);
    }
    set->places[place].begin = begin;
    set->places[place].end = end;
    set->places[place].round = round;
    return end - begin;
}

/* Keys that a kv head's tiles read: by so many in turn, those that are at work together reading
 * each once. Tiles of a document begin at the same key, or follow one another and overlap, as those
 * of a window do. */
static int64_t keys_read(const struct tile_plan *plan, int64_t together)
{
    struct range_set set = { 0 };
    int64_t keys = 0;
    int32_t before_begin = 0, before_end = 0;

    for (int64_t t = 0; t < plan->tile_count; t++) {
        const struct plan_tile *tile = &plan->tiles[t];
        int32_t begin, end, add;

        if (t % together == 0)
            before_begin = before_end = 0;
        if (!tile->sweep_count)
            continue;
        begin = plan->sweeps[tile->sweep_begin].begin;
        end = plan->sweeps[tile->sweep_begin + tile->sweep_count - 1].end;
        add = set_add(&set, begin, end, 1 + t / together);
        if (add == end - begin)
            add -= max32(0, min32(end, before_end) - max32(begin, before_begin));
        keys += min64(add, (int64_t)plan->block_counts[t] * plan->tile_n); /* sweeps are apart */
        before_begin = begin;
        before_end = end;
    }
    return keys;
}

/* The share of the pass that its reading of K and V costs. */
static double cost_of_reading(const struct pass *pass, int32_t heads)
{
    const struct l2_query *query = pass->query;
    const struct l2_costs *costs = &pass->costs->l2;
    const int64_t tiles = pass->plan->tile_count;
    /* A group with fewer items than places is not at work alone. */
    const int64_t beside = pass->places / (tiles * query->tile_heads);
    const int32_t at_work = min32(query->heads_kv, max32(heads, (int32_t)beside));
    const int64_t together = max64(1, pass->places / ((int64_t)at_work * query->tile_heads));
    const int64_t chunks = (tiles + together - 1) / together;
    const double read = (double)keys_read(pass->plan, together);
    const double once = fmin(read, (double)pass->plan->shape.seqlen_k);
    /* Bytes of K and V at work of one head, in those that L2 keeps. */
    const double head_bytes = read / (double)chunks * query->key_bytes / pass->group_bytes;
    const double missed = fmin(1, fmax(0, head_bytes * at_work - costs->kept));

    if (pass->keys_alone <= once || pass->cells <= 0) /* no key is read twice */
        return 0;
    return costs->key_cells * pass->places * (read - once) * missed / pass->cells +
           costs->turns * fmin(1, head_bytes * heads) * (1 - once / pass->keys_alone);
}

/* ---- which is the best ---- */

static bool is_even(const struct tile_plan *plan)
{
    for (int64_t t = 1; t < plan->tile_count; t++)
        if (plan->block_counts[t] != plan->block_counts[0])
            return false;
    return true;
}

static struct pass pass_of(const struct tile_plan *plan, const struct l2_query *query,
                           const struct choose_device *device)
{
    const struct cost_table *costs = device->costs;
    const int32_t places = device->facts.sm_count > 0 ? device->facts.sm_count : costs->sm_count;
    const double l2_share = device->facts.l2_bytes && costs->l2_bytes
                                ? (double)device->facts.l2_bytes / (double)costs->l2_bytes
                                : 1;
    const double keys = (double)plan->block_count * plan->tile_n;
    const double tiles = (double)plan->tile_count;

    return (struct pass){
        .plan = plan,
        .query = query,
        .costs = costs,
        .places = max32(1, min32(places - query->sm_margin, MAKESPAN_PLACES_MAX)),
        .group_bytes = (double)costs->l2_group_bytes * l2_share,
        .is_even = is_even(plan),
        .work = (tiles * query->cost.begin + keys * query->cost.key) * query->heads_kv *
                query->tile_heads,
        .cells = keys * query->tile_rows * query->tile_heads,
        .keys_alone = (double)keys_read(plan, 1) * query->tile_heads,
    };
}

/* The time, or less than it where that is not below `most`. */
static double time_below(double most, const struct pass *pass, int32_t heads)
{
    const double even = 1 + cost_of_reading(pass, heads);

    return even >= most || pass->is_even ? even : even * imbalance(pass, heads);
}

double l2_heads_time(const struct tile_plan *plan, const struct l2_query *query,
                     const struct choose_device *device, int32_t heads)
{
    const struct pass pass = pass_of(plan, query, device);

    return time_below(INFINITY, &pass, heads);
}

int32_t choose_l2_heads(const struct tile_plan *plan, const struct l2_query *query,
                        const struct choose_device *device)
{
    int32_t best = query->heads_kv;
    struct pass pass;
    double least;

    if (plan->list_count != 1 || !plan->tile_count || query->heads_kv == 1)
        return query->heads_kv;
    pass = pass_of(plan, query, device);
    least = time_below(INFINITY, &pass, best);
    /* Half as many heads in turn, in groups of one size. */
    for (int32_t half = (query->heads_kv + 1) / 2;; half = (half + 1) / 2) {
        const int32_t groups = (query->heads_kv + half - 1) / half;
        const int32_t heads = (query->heads_kv + groups - 1) / groups;
        const double most = least * (1 - pass.costs->l2.worth);
        const double time = time_below(most, &pass, heads);

        if (time < most) {
            least = time;
            best = heads;
        }
        if (half == 1)
            break;
    }
    return best;
}
