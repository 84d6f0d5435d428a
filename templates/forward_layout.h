/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: constants of the specialisation, the layout of shared memory, its barriers,
 * and what each kind of wait is called.
 */
#ifndef FFA_FORWARD_LAYOUT_H
#define FFA_FORWARD_LAYOUT_H

#include "attention_forward.args.h"
#include "ffa_device.h"
#include "kernel_arrivals.h"
#include "kernel_plan.h"
#include "kernel_start.h"
#include "kernel_wait.h"

namespace {

namespace spec {
#include "ffa_spec.h"

#include "attention_forward.spec.def"
#undef FFA_SPEC
}

constexpr int head_dim = spec::head_dim;     /* of q and k */
constexpr int head_dim_v = spec::head_dim_v; /* of v and out */
constexpr int consumers = spec::consumers;
constexpr int tile_m = 64 * consumers;
constexpr int tile_n = spec::tile_n;
constexpr int kv_slots = spec::kv_slots;
constexpr int threads = 128 * (consumers + 1);
/* A panel is 64 columns: one row of the 128-byte swizzle. */
constexpr int panels = attention_forward_panels(head_dim);
constexpr int v_panels = attention_forward_panels(head_dim_v);
/* Registers of a consumer thread for O, for the scores of a block, and for P. */
constexpr int o_regs = head_dim_v / 2;
constexpr int s_regs = tile_n / 2;
constexpr int p_regs = tile_n / 4;
constexpr bool has_partial = spec::out_fp32 || spec::staged;
static_assert(!spec::split || !has_partial, "parts are combined into an out of dtype");
static_assert(!spec::out_fp32 || !spec::staged, "out is fp32 always, or until the last stage");
static_assert(!spec::arrivals || (!spec::out_fp32 && !spec::split),
              "keys arrive in launches of whole tiles, whose out is of dtype in the end");
static_assert(head_dim % 16 == 0, "head_dim must be a multiple of 16");
static_assert(head_dim_v % 32 == 0, "head_dim_v must be a multiple of 32");
static_assert(tile_n % 16 == 0, "tile_n must be a multiple of 16");

constexpr int q_slots = attention_forward_q_slots(head_dim, head_dim_v, tile_m, tile_n, kv_slots);
constexpr int tile_slots = FORWARD_TILE_SLOTS;
constexpr int inline_sweeps = FORWARD_INLINE_SWEEPS; /* of a tile, in its slot */
constexpr int inline_bands = FORWARD_INLINE_BANDS;
constexpr int q_panel_bytes = tile_m * FORWARD_PANEL_BYTES;
constexpr int kv_panel_bytes = tile_n * FORWARD_PANEL_BYTES;
constexpr int q_bytes = panels * q_panel_bytes;
constexpr int k_bytes = panels * kv_panel_bytes;
constexpr int v_bytes = v_panels * kv_panel_bytes;

/* Offsets in shared memory, from a 1024-byte boundary. */
constexpr int q_at = 0;
constexpr int k_at = q_at + q_slots * q_bytes;
constexpr int v_at = k_at + kv_slots * k_bytes;
constexpr int bars_at = v_at + kv_slots * v_bytes;
constexpr int bar_count = 4 * kv_slots + 2 * q_slots + 2 * tile_slots + 1;
constexpr int watch_at = bars_at + 8 * bar_count;
constexpr int slots_at = watch_at + 8;
static_assert(1024 + slots_at + tile_slots * (int)sizeof(forward_tile_slot) ==
                  attention_forward_shared_bytes(head_dim, head_dim_v, tile_m, tile_n, kv_slots,
                                                 q_slots),
              "host and device disagree on shared memory");

/* Barriers: who arrives (how often in a phase), who waits, and what a phase is of.
 *
 *              arrivals                                       waits                   phase
 * k_full[s]    1, the producer; bytes                         consumers               block
 * v_full[s]    1, the producer; bytes                         consumers               block
 * q_full[s]    1, the producer; bytes                         consumers               tile
 * k_empty[s]   consumer warps, behind the block's softmax,    producer                block
 *              which may make scores once more
 * v_empty[s]   consumer warps, when O += P V has read it      producer                block
 * q_empty[s]   consumer warps, behind the last softmax        producer                tile
 * tile_full[s] the scheduler's 32 lanes: the record is there  producer, consumers     tile
 * tile_empty   consumer warps and the producer, when they     scheduler               tile
 *              no longer need the record
 * loads_asked  1, the producer: all loads are asked for       scheduler, except where tile
 *                                                             each CTA has one item
 */
struct barriers {
    static constexpr bool is_debug = spec::debug;
    static constexpr bool keys_arrive = spec::arrivals;
    uint32_t base;
    FFA_DEVICE_MEMBER uint32_t k_full(int s) const { return base + 8 * s; }
    FFA_DEVICE_MEMBER uint32_t k_empty(int s) const { return base + 8 * (kv_slots + s); }
    FFA_DEVICE_MEMBER uint32_t v_full(int s) const { return base + 8 * (2 * kv_slots + s); }
    FFA_DEVICE_MEMBER uint32_t v_empty(int s) const { return base + 8 * (3 * kv_slots + s); }
    FFA_DEVICE_MEMBER uint32_t q_full(int s) const { return base + 8 * (4 * kv_slots + s); }
    FFA_DEVICE_MEMBER uint32_t q_empty(int s) const
    {
        return base + 8 * (4 * kv_slots + q_slots + s);
    }
    FFA_DEVICE_MEMBER uint32_t tile_full(int s) const
    {
        return base + 8 * (4 * kv_slots + 2 * q_slots + s);
    }
    FFA_DEVICE_MEMBER uint32_t tile_empty(int s) const
    {
        return base + 8 * (4 * kv_slots + 2 * q_slots + tile_slots + s);
    }
    FFA_DEVICE_MEMBER uint32_t loads_asked() const
    {
        return base + 8 * (4 * kv_slots + 2 * q_slots + 2 * tile_slots);
    }
    /* Two words of the watchdog (kernel_wait.h); consumer warps count as finished. */
    FFA_DEVICE_MEMBER uint32_t watch() const { return base + watch_at - bars_at; }
};

/* One thread, before the others use them. */
FFA_DEVICE void barriers_init(const barriers &bars)
{
    for (int s = 0; s < kv_slots; ++s) {
        mbarrier_init(bars.k_full(s), 1);
        mbarrier_init(bars.k_empty(s), 4 * consumers);
        mbarrier_init(bars.v_full(s), 1);
        mbarrier_init(bars.v_empty(s), 4 * consumers);
    }
    for (int s = 0; s < q_slots; ++s) {
        mbarrier_init(bars.q_full(s), 1);
        mbarrier_init(bars.q_empty(s), 4 * consumers);
    }
    for (int s = 0; s < tile_slots; ++s) {
        mbarrier_init(bars.tile_full(s), 32);
        mbarrier_init(bars.tile_empty(s), 4 * consumers + 1);
    }
    mbarrier_init(bars.loads_asked(), 1);
    fence_mbarrier_init();
    st_shared(bars.watch(), 0);
    st_shared(bars.watch() + 4, 0);
}

/* The slot of Q that belongs to a tile's slot. With two slots of Q it has the same index; with one,
 * the parity flips with each tile. */
FFA_DEVICE int q_slot(const ring<tile_slots> &at)
{
    return q_slots == 2 ? at.slot : 0;
}

FFA_DEVICE uint32_t q_parity(const ring<tile_slots> &at)
{
    return q_slots == 2 ? at.parity : (uint32_t)at.slot;
}
static_assert(tile_slots == 2, "q_slot and q_parity count on it");

/* What a wait is called, and how the watchdog prints it. */
#define FORWARD_WAITS(X)                                                                           \
    X(tile_full_producer, "tile_full (producer)")                                                  \
    X(tile_full_consumer, "tile_full (consumer)")                                                  \
    X(tile_empty, "tile_empty")                                                                    \
    X(loads_asked, "loads_asked")                                                                  \
    X(q_full, "q_full")                                                                            \
    X(q_empty, "q_empty")                                                                          \
    X(k_full, "k_full")                                                                            \
    X(k_empty, "k_empty")                                                                          \
    X(v_full, "v_full")                                                                            \
    X(v_empty, "v_empty")

enum wait_name : int {
    at_nothing,
#define X(name, text) at_##name,
    FORWARD_WAITS(X) at_arrival /* of keys */
#undef X
};

FFA_DEVICE void watchdog_report(int thread, int name)
{
#define X(name, text) text,
    const char *names[] = { "?", FORWARD_WAITS(X) };
#undef X

    printf("attention_forward: block %d: thread %d waits for %s without end\n", (int)blockIdx.x,
           thread, spec::arrivals && name == at_arrival ? "keys to arrive" : names[name]);
}

struct shared_view {
    uint32_t base; /* address in the shared window of the 1024-byte boundary */
    char *generic;
    FFA_DEVICE_MEMBER uint32_t q(int slot) const { return base + q_at + slot * q_bytes; }
    FFA_DEVICE_MEMBER uint32_t k(int slot) const { return base + k_at + slot * k_bytes; }
    FFA_DEVICE_MEMBER uint32_t v(int slot) const { return base + v_at + slot * v_bytes; }
    FFA_DEVICE_MEMBER barriers bars() const { return barriers{ base + bars_at }; }
    FFA_DEVICE_MEMBER forward_tile_slot *slot(int s) const
    {
        return reinterpret_cast<forward_tile_slot *>(generic + slots_at) + s;
    }
};

/* Sweep `index` of a tile: from its slot, which has room for the first ones, or from the plan. */
FFA_DEVICE plan_sweep tile_sweep(const attention_forward_args &a, const forward_tile_slot *slot,
                                 int index)
{
    return index < inline_sweeps ? slot->sweeps[index]
                                 : plan_record<plan_sweep>(a.image, slot->tile.sweep_begin + index);
}

FFA_DEVICE plan_band tile_band(const attention_forward_args &a, const forward_tile_slot *slot,
                               int index)
{
    return index < inline_bands ? slot->bands[index]
                                : plan_record<plan_band>(a.image, slot->tile.band_begin + index);
}

}

#endif
