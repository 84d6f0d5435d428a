/* SPDX-License-Identifier: Apache-2.0
 *
 * How many of a backward pass's visits to blocks of query rows miss L2. A visit is a tile that
 * reads a block's Q and dO and adds to its dq.
 *
 * The queue of work items is simulated in the order in which the kernel takes them, so that each
 * item's begin, and from it the time of each of its visits, is known. Of a sample of rows, the
 * visits of one head group to one block are sorted by time: the gap to the visit before is how long
 * L2 has to keep the block for the later one to find it. Blocks come to L2 at the rate of visits
 * that miss; what L2 holds is a window of time by the working-set rule (Denning 1968): blocks whose
 * gap is longer have left. Rates differ over a pass, as at its end SMs are idle, so that all this
 * is done for periods of time, each of its own.
 *
 * docs/lab-notes.md has how well it agrees with an L2 that is simulated block by block, and with
 * measured times.
 */
#ifndef FFA_CHOOSE_VISITS_H
#define FFA_CHOOSE_VISITS_H

#include "base/base.h"
#include "tile/tile.h"

enum { VISIT_PERIODS = 12, VISIT_ITEMS_MAX = 4352 };

/* Head groups of equal items, in L2 groups of equal size. */
struct visit_section {
    int32_t copies, heads;               /* heads: query heads of an item */
    int32_t l2_group, waves, wave_items; /* as backward_l2_groups_find has them */
};

struct visit_query {
    struct visit_section sections[2]; /* one after the other; the first may have no copies */
    int32_t at_a_time;                /* SMs or clusters, 1 to MAKESPAN_PLACES_MAX */
    bool in_lockstep;                 /* all heads of an item visit a block of rows one by one */
    double item;      /* to begin and end an item: in blocks of one head, as all times here */
    double partial;   /* that a partial block takes longer */
    double l2_blocks; /* blocks of rows of one head that L2 keeps */
};

struct missed_visits {
    double last;   /* when the last item is done */
    bool is_whole; /* all items were simulated */
    /* Of each period of that time: the share of visits that miss, times the share of
     * places at work, which is the share of the most misses that there can be. */
    double missed[VISIT_PERIODS];
};

/* plan: backward, of one list. Of items that are more than VISIT_ITEMS_MAX, the first L2 groups of
 * each section stand for all; where a section's first one is too many, nothing is known, and there
 * are no misses. Only reads the plan; any thread may call it. It takes 20 to 300 us and 110 KB of
 * stack. */
struct missed_visits missed_visits_find(const struct tile_plan *plan,
                                        const struct visit_query *query);

#endif
