/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: constants of the specialisation, the layout of shared memory, its barriers,
 * and what each kind of wait is called.
 */
#ifndef FFA_BACKWARD_LAYOUT_H
#define FFA_BACKWARD_LAYOUT_H

#include "attention_backward.args.h"
#include "ffa_device.h"
#include "kernel_arrivals.h"
#include "kernel_plan.h"
#include "kernel_start.h"
#include "kernel_wait.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "attention_backward.spec.def"
#undef FFA_SPEC
}

constexpr int head_dim = spec::head_dim;     /* of q and k */
constexpr int head_dim_v = spec::head_dim_v; /* of v and dout */
constexpr int consumers = spec::consumers;
constexpr int tile_m = spec::tile_m;
constexpr bool is_specialised = attention_backward_is_specialised(head_dim, head_dim_v);
constexpr int cta_keys = attention_backward_cta_keys(head_dim, head_dim_v); /* keys */
constexpr int cluster = spec::cluster;
/* Two blocks with 128 keys each: each makes half the columns of dQ, over the keys of both. */
constexpr bool is_pair = attention_backward_is_pair(head_dim, head_dim_v, cluster);
constexpr int dq_warpgroups = attention_backward_dq_warpgroups(head_dim, head_dim_v);
constexpr int threads = attention_backward_threads(head_dim, head_dim_v);

/* Slots of the rings. */
constexpr int q_slots = attention_backward_q_slots(head_dim, head_dim_v);
constexpr int dout_slots = attention_backward_dout_slots(head_dim, head_dim_v, tile_m, cluster);
constexpr int ds_slots = BACKWARD_DS_SLOTS;
constexpr int block_slots = attention_backward_block_slots(head_dim, head_dim_v);
constexpr int tile_slots = BACKWARD_TILE_SLOTS;
constexpr int ticket_slots = BACKWARD_TICKET_SLOTS;

/* A panel is 64 columns: one row of the 128-byte swizzle. */
constexpr int panels = attention_backward_columns(head_dim) / 64;
constexpr int v_panels = attention_backward_columns(head_dim_v) / 64;
/* Registers of a consumer thread for S or dP, for P or dS, for dK, and for dV. */
constexpr int s_regs = tile_m / 2;
constexpr int p_regs = tile_m / 4;
constexpr int dk_regs = head_dim / 2;
constexpr int dv_regs = head_dim_v / 2;
/* dQ of a block, tile_m x head_dim, is made in pieces of 64 rows and 64 columns. Of 96 columns the
 * last piece has 32. */
constexpr int last_columns = head_dim % 64 ? head_dim % 64 : 64;
static_assert(head_dim % 32 == 0 && head_dim_v % 32 == 0, "multiples of 32");
static_assert(4 * consumers == BACKWARD_CONSUMER_WARPS, "host and device disagree");
static_assert(!spec::arrivals || spec::dkv_fp32, "owners add up dk and dv in fp32");
static_assert(consumers == 2,
              "registers of consumers, and a thread of a warpgroup for each key of the block");
static_assert(tile_slots == 2, "the other slot is that of the tile before (backward_schedule.h)");
static_assert(cluster == attention_backward_cluster(head_dim) ||
                  (is_pair && attention_backward_may_pair(head_dim, head_dim_v)),
              "pairs are of 128 columns");
static_assert(is_specialised ? tile_m == 64 : tile_m / 64 * panels == consumers,
              "a block's dq is two pieces, or panels of 64 rows");

/* Where a piece is in dQ of its block: 64 rows from row `top` of the block on, and of dQ's panel
 * `panel`, which has panel_columns (64 or 32) in the workspace, `columns` (64 or 32) from `column`
 * on. */
struct piece_shape {
    int top, panel, panel_columns, column, columns;
};

/* Registers of a thread: of the producer warpgroup, of a consumer, and of the warpgroup of dQ. A
 * consumer at 128 columns with 64 rows a block has dK and dV, 64 each, over the whole tile; with S,
 * 32, and dS of the block before, 16, that is 176; with dP, 32, P, 16, and D, 16, it is 192. The
 * rest of 208 is addresses and the loop's state. */
constexpr int producer_regs = dq_warpgroups ? 32 : kernel_producer_registers(consumers);
constexpr int consumer_regs = dq_warpgroups ? 208 : kernel_consumer_registers(consumers);
constexpr int dq_regs = 64;
static_assert(128 * (producer_regs + consumers * consumer_regs + dq_warpgroups * dq_regs) <=
                  SM90_REGISTERS,
              "more registers than an SM has");

constexpr bool adds_lse = attention_backward_adds_lse(head_dim, head_dim_v, spec::softcap);

constexpr int senders = attention_backward_senders(tile_m, spec::deterministic, spec::arrivals);
constexpr int dq_places = attention_backward_dq_places(head_dim);
constexpr int inline_sweeps = BACKWARD_INLINE_SWEEPS; /* of a tile, in its slot */
constexpr int inline_bands = attention_backward_inline_bands(cluster);
constexpr int slot_bytes = attention_backward_slot_bytes(cluster);

/* Threads with roles in one warp take turns to issue: none may sleep on a barrier, so that each
 * polls, and hears of it late. So the thread that sends a pair's dS, and that of tickets, which
 * never sleeps, get warp 2 for themselves, and one thread fetches Q, K, V and dO in the order of
 * their use. (Elsewhere one producer is no faster, or slower: docs/lab-notes.md.) In an ordered
 * pair warp 2 sends dS, and tickets stand beside the scheduler, which then polls. */
constexpr bool has_one_producer = spec::deterministic || is_pair;
constexpr int tickets_warp = is_pair ? 1 : 2, tickets_lane = is_pair ? 1 : 0;
/* Threads of the producer warpgroup that read a tile's record: producers, that of tickets, that of
 * dS, and senders. */
constexpr int tile_readers =
    (has_one_producer ? 1 : 2) + (spec::deterministic ? 1 : 0) + (is_pair ? 1 : 0) + senders;
/* Lanes of the scheduler's warp that schedule. One, where the next lane sends, and where the next
 * work item goes to the cluster's second block. */
constexpr int scheduler_lanes = senders > 1 || cluster > 1 ? 1 : 32;
/* No other thread of its warp has a role, so that it may sleep. */
constexpr bool is_scheduler_alone = senders == 1 && !(spec::deterministic && is_pair);

constexpr int kv_panel_bytes = cta_keys * 128;
constexpr int q_panel_bytes = tile_m * 128;
constexpr int k_bytes = panels * kv_panel_bytes;
constexpr int v_bytes = v_panels * kv_panel_bytes;
constexpr int q_bytes = panels * q_panel_bytes;
constexpr int dout_bytes = v_panels * q_panel_bytes;
/* In a cluster of two: those panels of the other block's K that this block's pieces of dQ need. */
constexpr int kx_panels = cluster > 1 ? attention_backward_kx_panels(is_pair) : 0;
constexpr int kx_bytes = kx_panels * kv_panel_bytes;
/* dS is in panels of 64 rows: [key][64 rows]. In a cluster of two the keys of the block are first,
 * then those of the other block, which in a pair come to a place of dQ instead. */
constexpr int own_ds_bytes = tile_m * cta_keys * 2;
constexpr int ds_bytes = own_ds_bytes * (is_pair ? 1 : cluster);
constexpr int ds_panel_bytes = cta_keys * 128;
constexpr int dq_bytes = 64 * 64 * 4; /* a piece */
static_assert(!is_pair || (own_ds_bytes == dq_bytes && ds_slots == 2 && panels == 2),
              "dQ takes the place of the other block's dS");
constexpr int stats_bytes = 2 * 4 * tile_m;
/* Specialised consumers without a cluster have a place for P. In a cluster it is in the place of
 * dS. */
constexpr int p_bytes = is_specialised && cluster == 1 ? own_ds_bytes : 0;

/* Offsets in shared memory, from a 1024-byte boundary. */
constexpr int k_at = 0;
constexpr int kx_at = k_at + k_bytes;
constexpr int v_at = kx_at + kx_bytes;
constexpr int q_at = v_at + v_bytes;
constexpr int dout_at = q_at + q_slots * q_bytes;
constexpr int ds_at = dout_at + dout_slots * dout_bytes;
constexpr int p_at = ds_at + ds_slots * ds_bytes;
constexpr int dq_at = p_at + p_bytes;
constexpr int stats_at = dq_at + dq_places * dq_bytes;
constexpr int blocks_at = stats_at + q_slots * stats_bytes;
constexpr int bars_at = blocks_at + block_slots * (int)sizeof(backward_block);
constexpr int bar_count = 4 * q_slots + 4 + 2 * tile_slots + 2 * ds_slots + 2 * consumers +
                          (is_specialised ? 1 : 0) + (spec::deterministic ? 2 * ticket_slots : 0) +
                          (cluster > 1 ? 2 : 0) + (is_pair ? ds_slots : 0);
constexpr int watch_at = bars_at + 8 * bar_count;
constexpr int item_at = watch_at + 8;
constexpr int slots_at = item_at + (cluster > 1 ? 8 : 0);
constexpr int tickets_at = slots_at + tile_slots * slot_bytes;
constexpr int tickets_bytes =
    spec::deterministic ? ticket_slots * (int)sizeof(backward_ticket_slot) : 0;
static_assert(sizeof(backward_block) == 16 && blocks_at % 16 == 0, "stored at once");
static_assert(attention_backward_alignment(is_pair) + tickets_at + tickets_bytes ==
                  attention_backward_shared_bytes(head_dim, head_dim_v, tile_m, cluster,
                                                  spec::deterministic),
              "host and device disagree on shared memory");

/* Barriers: who arrives (how often in a phase), who waits, and what a phase is of. A warp arrives
 * by one lane, behind a __syncwarp or a warpgroup barrier if it made ordinary accesses. "Both":
 * lanes arrive in both CTAs of a cluster (release(), backward_cluster.h). "Plain": up to 128
 * columns and one CTA a tile; "spec.": specialised consumers; WG: warpgroup.
 *
 *              arrivals                                           waits                phase
 * q_full[s]    1, the producer of Q; bytes of Q and statistics    consumers            block
 *              (in a cluster every other panel is from the
 *              other CTA)
 * q_empty[s]   8 consumer warps; in a cluster 16, of both.        producer of Q        block
 *              Plain, pair: dK is done; spec.: the first WG has
 *              read S, dK of the second is done
 * dout_full[s] 1, the producer of dO; bytes. s < dout_slots       consumers            block
 * dout_empty   8 or 16, as q_empty. Plain, pair: dV and dP are    producer of dO       block
 *              done; spec.: dV of the first WG, dP of the second
 * k_full       1, the producer of K; bytes (cluster: of kx, too)  consumers, WG of dQ  tile (*)
 * v_full       1, the producer of V; bytes                        consumers            tile (*)
 * kv_empty     8 consumer warps, 4 of the WG of dQ: behind their  producer of K and V  tile (*)
 *              last product of the tile that reads K or V
 * tile_full[s] scheduler_lanes: the record is written             who reads it         tile
 * tile_empty   8 consumer warps, 4 of dQ, tile_readers            scheduler            tile
 * loads_asked  1, a producer (asked_by_dout): all loads of the    scheduler            tile
 *              tile are asked for
 * ds_full[s]   plain, pair: 8 consumer warps; spec.: 4 of the     WG of dQ, in a pair  block
 *              second WG, in a cluster bytes of the other CTA's   send_ds, too; spec.:
 *              dS, too                                            the consumers
 * ds_empty[s]  plain: 4 warps of dQ; pair: those, and 1 thread    consumers that make  block
 *              of the other CTA's WG of dQ, when it has the       dS; spec. in a
 *              copy; spec.: 8, in a cluster 16, of both           cluster: the first
 * dq_full[p]   4 warps of the WG that made the piece              sender               piece
 * dq_empty[p]  1, the sender, when the piece is read; in a pair   who copies dQ; in a  piece
 *              the other CTA's sender                             pair send_ds
 * p_full       4 warps of the first WG                            second WG            block
 * dsx_full[s]  pair: 1, send_ds; bytes of the other CTA's dS      WG of dQ, send_ds    block
 * item_full    cluster: 1, the second CTA's scheduler; 4 bytes    the same             item
 * item_empty   1, the same, at the first CTA's                    the first's          item
 * ticket_full  ordered: 1, the thread of tickets: one has come    sender               block
 * ticket_empty 1, the sender: the block is added, the ticket may  thread of tickets    block
 *              be passed on
 *
 * (*) Of tiles with sweeps alone: the slot's kv_parity has the parity, not the ring.
 * There is no p_empty: P of a block is given after ds_full of the block before, and a warp makes
 * its dS after it has read its P. In a cluster P lies where dS goes, so that ds_empty is waited
 * for, too. */
struct barriers {
    static constexpr bool is_debug = spec::debug;
    static constexpr bool keys_arrive = spec::arrivals;
    uint32_t base;
    FFA_DEVICE_MEMBER uint32_t q_full(int s) const { return base + 8 * s; }
    FFA_DEVICE_MEMBER uint32_t q_empty(int s) const { return base + 8 * (q_slots + s); }
    FFA_DEVICE_MEMBER uint32_t dout_full(int s) const { return base + 8 * (2 * q_slots + s); }
    FFA_DEVICE_MEMBER uint32_t dout_empty(int s) const { return dout_full(q_slots + s); }
    FFA_DEVICE_MEMBER uint32_t k_full() const { return dout_full(2 * q_slots); }
    FFA_DEVICE_MEMBER uint32_t v_full() const { return dout_full(2 * q_slots + 1); }
    FFA_DEVICE_MEMBER uint32_t kv_empty() const { return dout_full(2 * q_slots + 2); }
    FFA_DEVICE_MEMBER uint32_t loads_asked() const { return dout_full(2 * q_slots + 3); }
    FFA_DEVICE_MEMBER uint32_t tile_full(int s) const { return dout_full(2 * q_slots + 4 + s); }
    FFA_DEVICE_MEMBER uint32_t tile_empty(int s) const { return tile_full(tile_slots + s); }
    FFA_DEVICE_MEMBER uint32_t ds_full(int s) const { return tile_full(2 * tile_slots + s); }
    FFA_DEVICE_MEMBER uint32_t ds_empty(int s) const { return ds_full(ds_slots + s); }
    FFA_DEVICE_MEMBER uint32_t dq_full(int p) const { return ds_empty(ds_slots + p); }
    FFA_DEVICE_MEMBER uint32_t dq_empty(int p) const { return dq_full(consumers + p); }
    FFA_DEVICE_MEMBER uint32_t p_full() const { return dq_empty(consumers); }
    FFA_DEVICE_MEMBER uint32_t item_full() const
    {
        return dq_empty(consumers + (is_specialised ? 1 : 0));
    }
    FFA_DEVICE_MEMBER uint32_t item_empty() const { return item_full() + 8; }
    FFA_DEVICE_MEMBER uint32_t dsx_full(int s) const { return item_empty() + 8 * (1 + s); }
    FFA_DEVICE_MEMBER uint32_t ticket_full(int s) const
    {
        return item_full() + 8 * ((cluster > 1 ? 2 : 0) + (is_pair ? ds_slots : 0) + s);
    }
    FFA_DEVICE_MEMBER uint32_t ticket_empty(int s) const { return ticket_full(ticket_slots + s); }
    /* The number of the next work item, from the cluster's first block to the second. */
    FFA_DEVICE_MEMBER uint32_t item() const { return base + item_at - bars_at; }
    /* Two words of the watchdog (kernel_wait.h); consumer warps and senders count as finished. */
    FFA_DEVICE_MEMBER uint32_t watch() const { return base + watch_at - bars_at; }
};

/* One thread, before the others use them. */
FFA_DEVICE void barriers_init(const barriers &bars)
{
    for (int s = 0; s < q_slots; ++s) {
        mbarrier_init(bars.q_full(s), 1);
        mbarrier_init(bars.q_empty(s), 4 * consumers * cluster);
        mbarrier_init(bars.dout_full(s), 1);
        mbarrier_init(bars.dout_empty(s), 4 * consumers * cluster);
    }
    mbarrier_init(bars.k_full(), 1);
    mbarrier_init(bars.v_full(), 1);
    mbarrier_init(bars.kv_empty(), 4 * (consumers + dq_warpgroups));
    mbarrier_init(bars.loads_asked(), 1);
    for (int s = 0; s < ds_slots; ++s) {
        mbarrier_init(bars.ds_full(s), is_specialised ? 4 : 4 * consumers);
        mbarrier_init(bars.ds_empty(s), is_pair ? 5 : dq_warpgroups ? 4 : 4 * consumers * cluster);
        if (is_pair)
            mbarrier_init(bars.dsx_full(s), 1);
    }
    for (int p = 0; p < consumers; ++p) {
        mbarrier_init(bars.dq_full(p), 4);
        mbarrier_init(bars.dq_empty(p), 1);
    }
    if (is_specialised)
        mbarrier_init(bars.p_full(), 4);
    for (int s = 0; s < tile_slots; ++s) {
        mbarrier_init(bars.tile_full(s), scheduler_lanes);
        mbarrier_init(bars.tile_empty(s), 4 * (consumers + dq_warpgroups) + tile_readers);
    }
    for (int s = 0; spec::deterministic && s < ticket_slots; ++s) {
        mbarrier_init(bars.ticket_full(s), 1);
        mbarrier_init(bars.ticket_empty(s), 1);
    }
    if (cluster > 1) {
        mbarrier_init(bars.item_full(), 1);
        mbarrier_init(bars.item_empty(), 1);
    }
    fence_mbarrier_init();
    st_shared(bars.watch(), 0);
    st_shared(bars.watch() + 4, 0);
}

/* A position in the rings of blocks: a count modulo block_slots, a multiple of twice each ring's
 * slots. */
struct position {
    uint32_t count = 0;
    FFA_DEVICE_MEMBER uint32_t slot() const { return count % q_slots; }
    FFA_DEVICE_MEMBER uint32_t parity() const { return count / q_slots % 2; }
    FFA_DEVICE_MEMBER uint32_t dout_slot() const { return count % dout_slots; }
    FFA_DEVICE_MEMBER uint32_t dout_parity() const { return count / dout_slots % 2; }
    FFA_DEVICE_MEMBER uint32_t ds_slot() const { return count % ds_slots; }
    FFA_DEVICE_MEMBER uint32_t ds_parity() const { return count / ds_slots % 2; }
    FFA_DEVICE_MEMBER position after() const
    {
        return { count + 1 == block_slots ? 0 : count + 1 };
    }
    FFA_DEVICE_MEMBER void next() { *this = after(); }
};
static_assert(block_slots % (2 * q_slots) == 0 && block_slots % (2 * dout_slots) == 0 &&
                  block_slots % (2 * ds_slots) == 0,
              "the count is the index of the record, too");

/* What a wait is called, and how the watchdog prints it. */
#define BACKWARD_WAITS(X)                                                                          \
    X(tile_full_producer, "tile_full (producer)")                                                  \
    X(tile_full_consumer, "tile_full (consumer)")                                                  \
    X(kv_full, "k_full or v_full")                                                                 \
    X(kv_empty, "kv_empty")                                                                        \
    X(q_full, "q_full")                                                                            \
    X(q_empty, "q_empty")                                                                          \
    X(dout_full, "dout_full")                                                                      \
    X(dout_empty, "dout_empty")                                                                    \
    X(ds_full, "ds_full")                                                                          \
    X(ds_empty, "ds_empty")                                                                        \
    X(dq_full, "dq_full")                                                                          \
    X(dq_empty, "dq_empty")                                                                        \
    X(p_full, "p_full")                                                                            \
    X(dsx_full, "dsx_full")
#define BACKWARD_TICKET_WAITS(X)                                                                   \
    X(ticket_full, "ticket_full")                                                                  \
    X(ticket_empty, "ticket_empty")                                                                \
    X(semaphore, "its ticket to add to dq")

enum wait_name : int {
    at_nothing,
#define X(name, text) at_##name,
    BACKWARD_WAITS(X) BACKWARD_TICKET_WAITS(X) at_arrival /* of keys */
#undef X
};

FFA_DEVICE void watchdog_report(int thread, int name)
{
#define X(name, text) text,
    const char *names[] = { "?", BACKWARD_WAITS(X) };
    const char *ticket_names[] = { BACKWARD_TICKET_WAITS(X) };
#undef X

    printf("attention_backward: block %d: thread %d waits for %s without end\n", (int)blockIdx.x,
           thread,
           spec::arrivals && name == at_arrival            ? "keys to arrive"
           : spec::deterministic && name >= at_ticket_full ? ticket_names[name - at_ticket_full]
                                                           : names[name]);
}

struct shared_view {
    uint32_t base; /* address in the shared window of the 1024-byte boundary */
    char *generic;
    FFA_DEVICE_MEMBER uint32_t k() const { return base + k_at; }
    FFA_DEVICE_MEMBER uint32_t kx() const { return base + kx_at; }
    FFA_DEVICE_MEMBER uint32_t v() const { return base + v_at; }
    FFA_DEVICE_MEMBER uint32_t q(int s) const { return base + q_at + s * q_bytes; }
    FFA_DEVICE_MEMBER uint32_t dout(int s) const { return base + dout_at + s * dout_bytes; }
    FFA_DEVICE_MEMBER uint32_t ds(int s) const { return base + ds_at + s * ds_bytes; }
    FFA_DEVICE_MEMBER uint32_t p(int ds_slot) const
    {
        return base + (cluster > 1 ? ds_at + ds_slot * ds_bytes : p_at);
    }
    FFA_DEVICE_MEMBER uint32_t dq(int place) const { return base + dq_at + place * dq_bytes; }
    FFA_DEVICE_MEMBER uint32_t stats(int s) const { return base + stats_at + s * stats_bytes; }
    FFA_DEVICE_MEMBER uint32_t stats_d(int s) const { return stats(s) + 4 * tile_m; }
    FFA_DEVICE_MEMBER backward_block *block(int s) const
    {
        return reinterpret_cast<backward_block *>(generic + blocks_at) + s;
    }
    FFA_DEVICE_MEMBER uint32_t block_flags(int s) const
    {
        return base + blocks_at + s * (int)sizeof(backward_block) + BACKWARD_BLOCK_FLAGS_AT;
    }
    FFA_DEVICE_MEMBER barriers bars() const { return barriers{ base + bars_at }; }
    FFA_DEVICE_MEMBER backward_tile_slot *slot(int s) const
    {
        return reinterpret_cast<backward_tile_slot *>(generic + slots_at + s * slot_bytes);
    }
    FFA_DEVICE_MEMBER backward_ticket_slot *ticket(int s) const
    {
        return reinterpret_cast<backward_ticket_slot *>(generic + tickets_at) + s;
    }
};

/* Sweep `index` of a tile: from its slot, which has room for the first ones, or from the plan. */
FFA_DEVICE plan_sweep tile_sweep(const attention_backward_args &a, const backward_tile_slot *slot,
                                 int index)
{
    return index < inline_sweeps ? slot->sweeps[index]
                                 : plan_record<plan_sweep>(a.image, slot->tile.sweep_begin + index);
}

FFA_DEVICE plan_band tile_band(const attention_backward_args &a, const backward_tile_slot *slot,
                               int index)
{
    return index < inline_bands ? slot->bands[index]
                                : plan_record<plan_band>(a.image, slot->tile.band_begin + index);
}

}

#endif
