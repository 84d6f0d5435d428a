/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own passes: dispatch, transfers and stages of all ranks as planned, and a timeline
 * of each rank in which a stage's fetch also waits for the busiest of the ranks that serve it.
 */
#include "simulate/simulate_plan.h"

#include "parallel/dispatch/dispatch.h"
#include "parallel/plan/stages.h"

/* Rows of one stage of one rank that move over the links of a class. */
struct traffic {
    int64_t in[2], out[2]; /* node, network */
    int64_t wait[2];       /* the most that one of its sources sends in that stage */
    bool is_relayed;       /* something came over another receiver */
};

struct plan_model {
    struct sim *sim;
    ffa_dispatch *dispatch;
    struct transfer_input in;
    struct transfer transfer;
    struct stages stages;
    struct traffic *traffic; /* [ranks][OVERLAP_STAGES_MAX] */
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
    FFA_TRY(ffa_dispatch_create(&m->dispatch, &mask, 1, &sim->topology, &opts, err));
    m->in = (struct transfer_input){ &m->dispatch->layout, &m->dispatch->layout,
                                     &m->dispatch->needs, sim->topology };
    FFA_TRY(transfer_build(&m->transfer, &m->in, err));
    stages = (struct stages_input){ .in = &m->in,
                                    .transfer = &m->transfer,
                                    .lists = sim->lists,
                                    .list_count = sim->list_count,
                                    .opts = &sim->opts };
    FFA_TRY(stages_build(&m->stages, &stages, err));
    m->traffic =
        mem_array((size_t)sim->topology.rank_count * OVERLAP_STAGES_MAX, sizeof *m->traffic);
    if (!m->traffic)
        rc = error_nomem(err, "the traffic of ranks");
out:
    return rc;
}

/* ---- who moves how much in which stage ---- */

struct portion {
    int32_t stage, source;
    bool is_network, is_relayed;
    int64_t rows;
};

/* The part of a receive in a stage of its rank; false: none. */
static bool portion_of(struct portion *out, const struct plan_model *m, const struct stage_cut *cut,
                       int64_t receive, int32_t rank, int32_t stage, enum transfer_route route)
{
    const struct transfer_receive *r = &m->transfer.receives[receive];
    const struct transfer_piece *piece = &m->transfer.pieces[r->piece];
    const int64_t row = m->stages.row[receive];
    const int64_t begin = stage ? cut->ends[stage - 1] : 0;
    const int32_t width = m->transfer.topology.ranks_per_node;

    out->stage = stage;
    out->source = route == TRANSFER_RELAYED ? r->relay : piece->owner;
    out->is_network = out->source / width != rank / width;
    out->is_relayed = out->source != piece->owner;
    out->rows = min64(cut->ends[stage], row + piece->end - piece->begin) - max64(begin, row);
    return out->rows > 0;
}

/* Twice over all receives: sums, then what a rank's sources send. */
static void add_traffic(struct plan_model *m, const struct stage_cut *cuts,
                        enum transfer_route route)
{
    const struct transfer *t = &m->transfer;
    struct portion part;

    memset(m->traffic, 0, (size_t)t->topology.rank_count * OVERLAP_STAGES_MAX * sizeof *m->traffic);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t r = 0; r < t->topology.rank_count; r++)
            for (int64_t i = t->receive_begin[r]; i < t->receive_begin[r + 1]; i++)
                for (int32_t s = 0; s < cuts[r].count; s++) {
                    struct traffic *to = &m->traffic[(int64_t)r * OVERLAP_STAGES_MAX + s], *from;

                    if (!portion_of(&part, m, &cuts[r], i, r, s, route))
                        continue;
                    from = &m->traffic[(int64_t)part.source * OVERLAP_STAGES_MAX + s];
                    if (pass == 0) {
                        to->in[part.is_network] += part.rows;
                        from->out[part.is_network] += part.rows;
                        to->is_relayed |= part.is_relayed;
                    } else {
                        to->wait[part.is_network] =
                            max64(to->wait[part.is_network], from->out[part.is_network]);
                    }
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
    const struct overlap_input input = { .items = items,
                                         .count = cut->count,
                                         .own = cut->own_ns,
                                         .buffers = sim->opts.buffers,
                                         .degree = cut->count,
                                         .degree_max = OVERLAP_STAGES_MAX,
                                         .is_backward = is_backward,
                                         .has_reduce = is_backward };

    for (int32_t s = 0; s < cut->count; s++) {
        const struct traffic *t = &m->traffic[(int64_t)rank * OVERLAP_STAGES_MAX + s];
        const int64_t node = max64(t->in[0], t->wait[0]), network = max64(t->in[1], t->wait[1]);

        items[s] = (struct overlap_item){
            .fetch = price_wire_ns(sim, node * price_key_bytes(sim, element),
                                   network * price_key_bytes(sim, element)),
            .compute = cut->compute_ns[s],
            .reduce = is_backward ? price_wire_ns(sim, node * price_key_bytes(sim, 4),
                                                  network * price_key_bytes(sim, element))
                                  : 0,
            .latency = price_latency_ns(sim, t->in[1] > 0) +
                       (t->is_relayed ? price_latency_ns(sim, true) : 0),
        };
        split.ends[s] = s + 1;
    }
    return overlap_cost(&input, &split, NULL);
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

static void fill(struct plan_model *m, ffa_sim_result *out, enum transfer_route route)
{
    const int64_t key_bytes = price_key_bytes(m->sim, m->sim->opts.model.element_bytes);

    add_traffic(m, m->stages.forward, route);
    fill_pass(m, &out->forward, m->stages.forward, false);
    for (int32_t r = 0; r < m->sim->topology.rank_count; r++) {
        int64_t in[2] = { 0, 0 };

        for (int32_t s = 0; s < m->stages.forward[r].count; s++)
            for (int c = 0; c < 2; c++)
                in[c] += m->traffic[(int64_t)r * OVERLAP_STAGES_MAX + s].in[c] * key_bytes;
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
        fill(&m, plan, TRANSFER_FLAT);
        fill(&m, relayed, TRANSFER_RELAYED);
    } else if (rc == FFA_INVALID && sim->topology.rank_count > sim->tokens) {
        sim_refuse(plan, "%d ranks for %lld tokens", sim->topology.rank_count,
                   (long long)sim->tokens);
        sim_refuse(relayed, "%s", plan->why_not);
        rc = FFA_OK;
    } else if (err) {
        *err = why;
    }
    mem_free(m.traffic);
    stages_finish(&m.stages);
    transfer_finish(&m.transfer);
    ffa_dispatch_destroy(m.dispatch);
    return rc;
}
