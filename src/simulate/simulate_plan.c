/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own passes: dispatch, transfers and stages of all ranks as planned, and a timeline
 * of each rank. Invariant: the plan is the one that ffa_parallel_plan_create makes; only times are
 * added. A plan assumes that a rank's own link is what limits a fetch. Here a stage's fetch also
 * waits for the busiest of the ranks that serve it, as ranks do not take turns.
 */
#include "simulate/simulate_plan.h"

#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/stages.h"
#include "parallel/plan/transfer.h"

/* Rows of one stage of one rank that move over the links of a class. */
struct traffic {
    int64_t in[2], out[2]; /* node, network */
    int64_t wait[2];       /* the most that one of its sources sends in that stage */
    bool is_relayed;       /* something came over another receiver */
};

enum route { ROUTE_FLAT, ROUTE_RELAYED };

/* How far a walk over pieces has come in the ordered rows of a rank and link class. */
struct progress {
    int64_t row;
    int32_t stage;
    int32_t pad_;
};

struct plan_model {
    struct sim *sim;
    ffa_dispatch *dispatch;
    struct rank_needs_input in;
    struct rank_needs needs;
    struct transfer_walk walk;
    struct stages stages;
    int32_t stages_most;            /* of a rank */
    struct traffic *traffic;        /* [ranks][stages_most] */
    struct progress (*progress)[2]; /* [ranks]: far, near */
};

static ffa_status build(struct plan_model *m, ffa_error *err)
{
    const struct sim *sim = m->sim;
    const ffa_dispatch_mask mask = { sim->mask, 1 };
    ffa_dispatch_opts opts = FFA_DISPATCH_OPTS_INIT;
    struct stages_input stages;
    ffa_status rc;

    opts.algorithm = sim->given.algorithm;
    opts.chunk_tokens = sim->given.chunk_tokens;
    opts.flags = opts.chunk_tokens ? FFA_DISPATCH_CHUNK_EXACT : 0;
    if (sim->given.algorithm == FFA_SIM_BEST) {
        opts.algorithm = FFA_DISPATCH_AFFINITY;
        FFA_TRY(ffa_dispatch_create_best(&m->dispatch, &mask, 1, &sim->topology, &opts, &sim->opts,
                                         err));
    } else {
        FFA_TRY(ffa_dispatch_create(&m->dispatch, &mask, 1, &sim->topology, &opts, err));
    }
    m->in = (struct rank_needs_input){ &m->dispatch->layout, &m->dispatch->layout,
                                       &m->dispatch->needs, sim->topology };
    FFA_TRY(rank_needs_build(&m->needs, &m->in, err));
    FFA_TRY(transfer_walk_init(&m->walk, &m->needs, err));
    stages = (struct stages_input){ .in = &m->in,
                                    .needs = &m->needs,
                                    .lists = sim->lists,
                                    .list_count = sim->list_count,
                                    .opts = &sim->opts };
    FFA_TRY(stages_build(&m->stages, &stages, err));
    m->stages_most = 1;
    for (int32_t r = 0; r < sim->topology.rank_count; r++)
        m->stages_most = (int32_t)max64(
            m->stages_most, max64(m->stages.forward[r].count, m->stages.backward[r].count));
    m->traffic =
        mem_array((size_t)sim->topology.rank_count * (size_t)m->stages_most, sizeof *m->traffic);
    m->progress = mem_array((size_t)sim->topology.rank_count, sizeof *m->progress);
    if (!m->traffic || !m->progress)
        rc = error_nomem(err, "the traffic of ranks");
out:
    return rc;
}

/* ---- who moves how much in which stage ---- */

static struct traffic *traffic_of(const struct plan_model *m, int32_t rank, int32_t stage)
{
    return &m->traffic[(int64_t)rank * m->stages_most + stage];
}

/* What a walk adds to traffic: the rows that move; the most that a source of a stage sends. */
enum round { ROUND_ROWS, ROUND_WAITS };

/* Receiver i of a piece takes its rows, in one stage or several. */
static void add_receive(struct plan_model *m, const struct stage_cut *cuts,
                        const struct transfer_piece *piece, int32_t i, enum route route,
                        enum round round)
{
    const int32_t rank = piece->receivers[i];
    const int32_t source = route == ROUTE_RELAYED ? piece->relays[i] : piece->owner;
    const bool is_network = !rank_needs_is_near(&m->needs, source, rank);
    const struct stage_cut *cut = &cuts[rank];
    struct progress *at = &m->progress[rank][rank_needs_is_near(&m->needs, piece->owner, rank)];

    for (int64_t rows = piece->end - piece->begin, part; rows > 0; rows -= part) {
        struct traffic *to, *from;

        while (at->row < cut->begins[at->stage] || cut->ends[at->stage] <= at->row)
            at->stage = (at->stage + 1) % cut->count;
        part = min64(rows, cut->ends[at->stage] - at->row);
        at->row += part;
        to = traffic_of(m, rank, at->stage);
        from = traffic_of(m, source, at->stage);
        if (round == ROUND_ROWS) {
            to->in[is_network] += part;
            from->out[is_network] += part;
            to->is_relayed |= source != piece->owner;
        } else {
            to->wait[is_network] = max64(to->wait[is_network], from->out[is_network]);
        }
    }
}

/* Two walks over all pieces: sums first, then the most that one of a stage's sources sends. */
static void add_traffic(struct plan_model *m, const struct stage_cut *cuts, enum route route)
{
    const int32_t ranks = m->needs.topology.rank_count;
    struct transfer_piece piece;

    memset(m->traffic, 0, (size_t)ranks * (size_t)m->stages_most * sizeof *m->traffic);
    for (int round = ROUND_ROWS; round <= ROUND_WAITS; round++) {
        transfer_walk_restart(&m->walk);
        for (int32_t r = 0; r < ranks; r++) {
            m->progress[r][0] = (struct progress){ m->needs.near_rows[r], 0, 0 };
            m->progress[r][1] = (struct progress){ 0, 0, 0 };
        }
        while (transfer_walk_next(&m->walk, &piece))
            for (int32_t i = 0; i < piece.receiver_count; i++)
                add_receive(m, cuts, &piece, i, route, (enum round)round);
    }
}

/* ---- the timeline of a rank ---- */

static int64_t rank_ns(const struct plan_model *m, const struct stage_cut *cut, int32_t rank,
                       bool is_backward)
{
    const struct sim *sim = m->sim;
    const int64_t element = sim->opts.model.element_bytes;
    struct overlap_item items[OVERLAP_STAGES_MAX] = { { 0 } };
    struct overlap_split split = { .count = cut->count };
    const bool is_launch = sim->opts.sms && !cut->half_rows;
    const struct overlap_input input = { .items = items,
                                         .count = cut->count,
                                         .own = cut->own_ns / cut->waves,
                                         .buffers =
                                             is_launch ? OVERLAP_BUFFERS_MAX : sim->opts.buffers,
                                         .is_backward = is_backward && !cut->half_rows,
                                         .has_reduce = is_backward };

    for (int32_t s = 0; s < cut->count; s++) {
        const struct traffic *t = traffic_of(m, rank, s);
        const int64_t node = max64(t->in[0], t->wait[0]), network = max64(t->in[1], t->wait[1]);

        items[s] = (struct overlap_item){
            .fetch = price_wire_ns(sim, node * price_key_bytes(sim, element),
                                   network * price_key_bytes(sim, element)),
            .compute = cut->compute_ns[s] / cut->waves,
            .reduce = is_backward ? price_wire_ns(sim, node * price_key_bytes(sim, 4),
                                                  network * price_key_bytes(sim, element))
                                  : 0,
            .latency = price_latency_ns(sim, t->in[1] > 0) +
                       (t->is_relayed ? price_latency_ns(sim, true) : 0),
        };
        split.ends[s] = s + 1;
    }
    return cut->copy_ns + overlap_cost(&input, &split, NULL) + cut->rest_ns;
}

static void fill_pass(struct plan_model *m, ffa_sim_pass *out, const struct stage_cut *cuts,
                      bool is_backward)
{
    int64_t most = 0, computes = 0;

    for (int32_t r = 0; r < m->sim->topology.rank_count; r++) {
        int64_t sum = cuts[r].own_ns;

        for (int32_t s = 0; s < cuts[r].count; s++)
            sum += cuts[r].compute_ns[s];
        computes = max64(computes, sum);
        most = max64(most, rank_ns(m, &cuts[r], r, is_backward));
    }
    sim_set_pass(m->sim, out, most + m->sim->opts.model.launch_ns, computes, is_backward);
}

static void fill(struct plan_model *m, ffa_sim_result *out, enum route route)
{
    const int64_t key_bytes = price_key_bytes(m->sim, m->sim->opts.model.element_bytes);

    add_traffic(m, m->stages.forward, route);
    fill_pass(m, &out->forward, m->stages.forward, false);
    for (int32_t r = 0; r < m->sim->topology.rank_count; r++) {
        int64_t in[2] = { 0, 0 };

        for (int32_t s = 0; s < m->stages.forward[r].count; s++)
            for (int c = 0; c < 2; c++)
                in[c] += traffic_of(m, r, s)->in[c] * key_bytes;
        out->node_bytes = max64(out->node_bytes, in[0]);
        out->network_bytes = max64(out->network_bytes, in[1]);
        out->stages = (int32_t)max64(out->stages, m->stages.forward[r].count);
    }
    add_traffic(m, m->stages.backward, route);
    fill_pass(m, &out->backward, m->stages.backward, true);
}

ffa_status sim_plan(ffa_sim_result *plan, ffa_sim_result *relayed, struct sim *sim, ffa_error *err)
{
    struct plan_model m = { .sim = sim };
    ffa_error why = { FFA_OK, 0, "" };
    ffa_status rc = build(&m, &why);

    if (rc == FFA_OK) {
        const struct layout *layout = &m.dispatch->layout;

        for (int64_t c = 0; c < layout->count; c++)
            sim->given.chunk_tokens =
                max64(c ? sim->given.chunk_tokens : 0, layout->bounds[c + 1] - layout->bounds[c]);
        fill(&m, plan, ROUTE_FLAT);
        fill(&m, relayed, ROUTE_RELAYED);
    } else if (rc == FFA_INVALID && sim->topology.rank_count > sim->tokens) {
        sim_refuse(plan, "%d ranks for %lld tokens", sim->topology.rank_count,
                   (long long)sim->tokens);
        sim_refuse(relayed, "%s", plan->why_not);
        rc = FFA_OK;
    } else if (err) {
        *err = why;
    }
    mem_free(m.traffic);
    mem_free(m.progress);
    stages_finish(&m.stages);
    transfer_walk_finish(&m.walk);
    rank_needs_finish(&m.needs);
    ffa_dispatch_destroy(m.dispatch);
    return rc;
}
