/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: dk, dv, and what adds up to dq, for sm_90a.
 *
 * Persistent blocks take (key tile, kv head, part) work items from a counter. One block is a
 * producer warpgroup (warps 0 and 2: copies, warp 1: scheduler, warp 3: dQ to the workspace; of two
 * senders, the second in warp 1) and `consumers` warpgroups of 64 keys each; it walks the query
 * heads of its part, each head's sweeps over query rows, each sweep in blocks of tile_m rows, and
 * writes dk and dv of its keys once.
 * Scores are held transposed, keys by query rows, so that P and dS are at once the register
 * operands of dV and dK:
 *
 *     P  = exp(scale * K Q^T - lse)        dV += P dO
 *     dS = P * (V dO^T - D)                dK += dS Q        dQ += dS^T K
 *
 * with D = sum of out * dout, a row. dS goes through shared memory, because dQ sums over the keys
 * of all warpgroups: each computes a piece of dQ, 64 rows by 64 columns, stages it in shared
 * memory, and a thread of the producer warpgroup, the sender, has the copy engine add it to the
 * fp32 workspace. dQ lags one block behind, so that a warpgroup waits for the others' dS of the
 * block before, not of this one: they drift apart by up to a block and run their exponentials under
 * each other's products. Per block a warpgroup does
 *
 *     issue S, dP; wait S: P; issue dV; wait dP: dS; wait for all dS of the block before; dS to
 *     shared memory; issue dQ of the block before, dK; wait dQ: stage it, for the sender; wait dK
 *
 * Shared memory is the limit: S and dP, of 64 x 64 a warpgroup, read as many bytes a cycle as it
 * has (m64n64k16 of two operands there), dQ likewise, dV and dK half as many. With Q and dO coming,
 * dS, and dQ staged and fetched, a block takes 2850 cycles of it and 2560 of the tensor cores; it
 * takes 3400 (H200, ncu: 83 % and 78 %). So its loads and stores take hundreds of cycles to return,
 * and what a block needs is loaded ahead, its addresses are kept, not made anew from %tid, and the
 * fence between the others' dS and dQ stands with its reader, before it stores its own: there it
 * waits for nothing.
 *
 * By role: dK and dV of 64 keys and more than 128 columns are too many registers for one
 * warpgroup. So both have the same 64 keys, the first has P and dV, the second dS and dK, and P
 * goes from one to the other through shared memory, thread to thread. The first is up to a block
 * ahead, so that its exponentials run under the other's products:
 *
 *     first:  issue S; wait S: P, given; wait for dS of the block before; issue its dQ, dV;
 *             wait dQ: stage it; wait dV
 *     second: issue dP; wait dP, P: dS; issue dQ of the block before; dS to shared memory;
 *             issue dK; wait dQ: stage it; wait dK
 *
 * In pairs: 64 keys are few for what a block of rows costs. On paper, of head_dim 256, 64 rows:
 * products 2560 cycles; shared memory, at 128 bytes a cycle, S and dP 512 each, dV and dK (A in
 * registers) 256 each, dQ 512, Q and dO coming 512, dQ staged and fetched 1024, P and dS 200, in
 * all 3800; 17 bytes a cycle and SM each way between it and L2, 90 % of what L2 takes; and the
 * power of all that. So two blocks of a cluster work on 64 keys each of the same tile, and walk the
 * same blocks of rows. Each fetches every other panel of Q and dO for both. Each copies its dS, 8
 * KB, to the other, and computes half the columns of dQ over the keys of both, for which it has
 * those columns of the other's K, too: two panels of 64 columns of 256, one a warpgroup; of 192 a
 * panel, and half of one for the first. That is half of what goes between SMs and L2, and a tenth
 * less in shared memory. Shared memory is full: P is given in the place of dS, and at 256 the
 * warpgroups stage dQ in one place, one after the other. (H200, million cycles of full, causal,
 * window 16k: 256 alone 132, 69.5, 9.96, in pairs 121, 61.9, 8.58; 192 alone 97.7, 51.0, 7.17, in
 * pairs 97.9, 49.6, 7.03, and 4 % more TFLOP/s, as they take less power. Pairs that share Q and dO
 * only, or one of them: 256 145 to 147, as one that waits holds up the other, and no faster.)
 *
 * P is packed to the model's dtype at once, as dV needs it, and dS is made from that.
 *
 * Learnt on an H200: reductions of dQ straight from registers (red.v4) take a quarter of the
 * time; warpgroups that meet at a barrier each block leave the tensor cores idle in their common
 * pauses (500 against 555 TFLOP/s), even with the scores of the next block issued ahead.
 * Accumulators in flight over the loop's back edge make ptxas serialise all products. Cycles a
 * block of full 8k, each on top of the one before: dQ sent by the consumer warps, each on its
 * own, 4070; by the sender, the fence of dS with its reader, 3690; statistics loaded ahead,
 * addresses kept, 3410. A quarter of the exponentials as polynomials: 3550. The chip is
 * power-limited (690 W, 1.55 to 1.7 GHz), so the time that saves is about two thirds of it.
 * Items taken while the one before is at work, a whole one ahead, leave SMs idle at the end that
 * could have had them: causal 4k 491, packed documents of 4k 390 TFLOP/s; taken when it is
 * nearly done, 529 and 450. dq made of its sum here, by the scheduler's warp, wherever it comes
 * to be complete, instead of by the finish pass: no faster. To know what is complete takes 1 to
 * 2 % more cycles, to make it another 2 to 5 % of causal 4k and 5 to 10 % of a window, about
 * what the pass took (causal 4k 501 against 534 TFLOP/s, a window of 16k alike). A warpgroup of
 * whose keys a block's rows attend none, as at the edges of a band, passing over all but its
 * share of dQ: 1 % fewer cycles of a window, but 1 to 3 % more of long masks, as ptxas then
 * orders the loop otherwise. Places of K and V that are free one after the other, and the next
 * tile's Q asked for before K: no difference.
 *
 * Order: what works on one stream of Q, dO and dq should pass over the same rows at nearly the
 * same time, which then are in L2. Head by head, tiles of different lengths drift apart from the
 * second head on (causal 64k: one query head an item 548 TFLOP/s, the eight of a group 443).
 * Where tiles end at one row, as those of a causal mask, they can go in step, whatever their
 * lengths. A wave of items, one an SM, begins together at the last row, all heads of a block of
 * rows after another, and goes towards the first. The next wave goes the other way: as tiles are
 * taken longest first, an item with t rows less begins t rows later, and that is where the
 * others of its wave then are. (Causal 4k, 8 query heads a kv head, million cycles and bytes of
 * device memory: waves that alternate 1.76 and 0.4 G, all from the last row 2.23 and 2.8 G, all
 * from the first 2.21 and 2.7 G; head by head 2.08 and 2.6 G, with two heads an item 1.81 and 1.1
 * G. bench/results/h200/order_ncu.txt)
 *
 * deterministic: dq is added to in a fixed order, that of the work items. Each block of a query
 * head's rows has a counter of visits, and the plan says how many come before each visit
 * (tile_plan.h). An item waits only for items that were taken before it, by a block that is
 * there: so some item can always go on. It is taken when the one before is nearly done, as others
 * wait for it from then on. A round trip to L2, and the fence of a release, are a part of a block's
 * time each. So a thread beside the scheduler waits for the counter ahead of the sender, and moves
 * it on when the sender says that the copy engine has added, which that waits for while it has
 * nothing to send. (With the release by the sender, causal 16k took 10 to 13 % longer than not
 * deterministic, so 3 to 6 %. That blocks wait for their turns is no part of it.)
 *
 * Masks: only blocks that the plan does not call full are masked, from the bands of their sweep.
 * Rows outside a sweep, and keys that no row attends, are zeroed in shared memory, so that
 * their NaNs never meet P = 0.
 *
 * head_dim and head_dim_v are padded by the copy engine: columns past a tensor's own are zero in
 * shared memory, and are not stored.
 *
 * (Algorithm: FlashAttention-2 and -3, Dao 2023, Shah et al. 2024. Plan and masks:
 * tile_plan.h.)
 */
#include "attention_backward.args.h"
#include "ffa_device.h"
#include "fragment.h"
#include "ptx.h"
#include "wgmma.h"

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
constexpr int block_n = attention_backward_block_n(head_dim, head_dim_v); /* keys */
constexpr int cluster = attention_backward_cluster(head_dim);
constexpr int stages = BACKWARD_Q_SLOTS;
constexpr int dout_slots = attention_backward_dout_slots(head_dim, head_dim_v, tile_m);
constexpr int ds_slots = attention_backward_ds_slots(head_dim, head_dim_v, tile_m);
constexpr int threads = 128 * (consumers + 1);
/* Panels of 64 columns, 128 bytes: one swizzle row. */
constexpr int panels = attention_backward_columns(head_dim) / 64;
constexpr int v_panels = attention_backward_columns(head_dim_v) / 64;
constexpr int s_regs = tile_m / 2;
constexpr int p_regs = tile_m / 4;
constexpr int dk_regs = head_dim / 2;
constexpr int dv_regs = head_dim_v / 2;
/* dQ of a block, tile_m x head_dim, is shared out in pieces of 64 rows and 64 columns; the last
 * columns of 96 are a piece of 32. */
constexpr int last_columns = head_dim % 64 ? head_dim % 64 : 64;
static_assert(head_dim % 32 == 0 && head_dim_v % 32 == 0, "multiples of 32");
static_assert(consumers == 2,
              "setmaxnreg's counts, and a thread of a warpgroup a key of the block");
static_assert(is_specialised ? tile_m == 64 : tile_m / 64 * panels == consumers,
              "each warpgroup has one piece of dq, or panels of 64 rows");

constexpr int kv_panel_bytes = block_n * 128;
constexpr int q_panel_bytes = tile_m * 128;
constexpr int k_bytes = panels * kv_panel_bytes;
constexpr int v_bytes = v_panels * kv_panel_bytes;
constexpr int q_bytes = panels * q_panel_bytes;
constexpr int dout_bytes = v_panels * q_panel_bytes;
constexpr int kx_bytes = cluster > 1 ? consumers * kv_panel_bytes : 0; /* of the other's keys */
/* Panels of 64 rows: [key][64 rows]. Of a pair, the block's own keys, then the other's. */
constexpr int own_ds_bytes = tile_m * block_n * 2;
constexpr int ds_bytes = own_ds_bytes * cluster;
constexpr int ds_panel_bytes = block_n * 128;
constexpr int dq_bytes = 64 * 64 * 4; /* a piece of dq */
constexpr int stats_bytes = 2 * 4 * tile_m;

/* By role, each warpgroup has one panel of dQ. Of one panel in all the second has it; of three, of
 * a pair, the first ones, which have the exponentials, have half of one each. */
constexpr bool p_has_dq = panels > 1;
constexpr int p_columns = panels == 3 ? 32 : 64;
static_assert(!is_specialised || panels <= 2 * cluster, "a panel a warpgroup");

constexpr int senders = attention_backward_senders(tile_m, spec::deterministic);
constexpr int dq_places = attention_backward_dq_places(head_dim);
constexpr int inline_bands = attention_backward_inline_bands(head_dim);
constexpr int slot_bytes = attention_backward_slot_bytes(head_dim);
constexpr int block_slots = attention_backward_block_slots(tile_m, spec::deterministic);

/* Offsets in shared memory, from a 1024-byte boundary. */
constexpr int k_at = 0;
constexpr int kx_at = k_at + k_bytes;
constexpr int v_at = kx_at + kx_bytes;
constexpr int q_at = v_at + v_bytes;
constexpr int dout_at = q_at + stages * q_bytes;
constexpr int ds_at = dout_at + dout_slots * dout_bytes;
constexpr int p_at = ds_at + ds_slots * ds_bytes; /* by role, but of a pair: P on its way */
constexpr int dq_at = p_at + (is_specialised && cluster == 1 ? own_ds_bytes : 0);
constexpr int stats_at = dq_at + dq_places * dq_bytes;
constexpr int blocks_at = stats_at + stages * stats_bytes;
constexpr int bars_at = blocks_at + block_slots * (int)sizeof(backward_block);
constexpr int tile_slots = BACKWARD_TILE_SLOTS;
constexpr int ticket_slots = BACKWARD_TICKET_SLOTS;
constexpr int bar_count = 4 * stages + 4 + 2 * tile_slots + 2 * ds_slots + 2 * consumers +
                          (is_specialised ? 1 : 0) + (spec::deterministic ? 2 * ticket_slots : 0) +
                          (cluster > 1 ? 2 : 0);
constexpr int watch_at = bars_at + 8 * bar_count;
constexpr int mail_at = watch_at + 8;
constexpr int slots_at = mail_at + (cluster > 1 ? 8 : 0);
constexpr int tickets_at = slots_at + tile_slots * slot_bytes;
constexpr int tickets_bytes = spec::deterministic ? ticket_slots * (int)sizeof(backward_ticket_slot) : 0;
static_assert(1024 + tickets_at + tickets_bytes ==
                  attention_backward_shared_bytes(head_dim, head_dim_v, tile_m,
                                                  spec::deterministic),
              "host and device disagree on shared memory");

/* q_full[s], dout_full[s]: the producer arrives once with the block's bytes (q_full: and its
 * statistics); consumers wait.
 * q_empty[s], dout_empty[s]: each consumer warp arrives when its products have read the block; in a
 * pair, those of both, at both's.
 * k_full, v_full, kv_empty: the same for the tile's K and V.
 * tile_full[s]: the scheduler's lanes arrive; producers and consumers wait for the tile's record.
 * tile_empty[s]: consumer warps, and all threads of the producer warpgroup that read the record,
 * arrive when they need it no more.
 * ds_full[s], ds_empty[s]: each consumer warp that makes dS arrives when its part is there, in a
 * pair with the bytes of the other one's; and, where there are two slots, each consumer warp, in a
 * pair those of both at both's, when its warpgroup's dQ has read all of it. (Of three, a slot is
 * free when the next but one is full.)
 * dq_full[p], dq_empty[p]: each warp of a warpgroup arrives when its part of a piece of dQ is
 * staged, the sender when the copy engine has read the piece.
 * p_full, by role: each warp that makes P arrives when its part is there. It is read before dS is
 * full, and written after.
 * tile_asked: the producer of Q arrives when it has asked for the last block of a tile; the
 * scheduler waits before it takes the next item.
 * ticket_full[s], ticket_empty[s], of a deterministic block: the thread that takes turns arrives when
 * one has come; the sender when the copy engine has added the block, so that it may be passed on.
 * mail_full, mail_empty, of a pair: the second's scheduler expects the word of the next item, which
 * the first's sends; the second's arrives at the first's when it has read it. */
struct barriers {
    uint32_t base;
    FFA_DEVICE_MEMBER uint32_t q_full(int s) const { return base + 8 * s; }
    FFA_DEVICE_MEMBER uint32_t q_empty(int s) const { return base + 8 * (stages + s); }
    FFA_DEVICE_MEMBER uint32_t dout_full(int s) const { return base + 8 * (2 * stages + s); }
    FFA_DEVICE_MEMBER uint32_t dout_empty(int s) const { return dout_full(stages + s); }
    FFA_DEVICE_MEMBER uint32_t k_full() const { return dout_full(2 * stages); }
    FFA_DEVICE_MEMBER uint32_t v_full() const { return dout_full(2 * stages + 1); }
    FFA_DEVICE_MEMBER uint32_t kv_empty() const { return dout_full(2 * stages + 2); }
    FFA_DEVICE_MEMBER uint32_t tile_asked() const { return dout_full(2 * stages + 3); }
    FFA_DEVICE_MEMBER uint32_t tile_full(int s) const { return dout_full(2 * stages + 4 + s); }
    FFA_DEVICE_MEMBER uint32_t tile_empty(int s) const { return tile_full(tile_slots + s); }
    FFA_DEVICE_MEMBER uint32_t ds_full(int s) const { return tile_full(2 * tile_slots + s); }
    FFA_DEVICE_MEMBER uint32_t ds_empty(int s) const { return ds_full(ds_slots + s); }
    FFA_DEVICE_MEMBER uint32_t dq_full(int p) const { return ds_empty(ds_slots + p); }
    FFA_DEVICE_MEMBER uint32_t dq_empty(int p) const { return dq_full(consumers + p); }
    FFA_DEVICE_MEMBER uint32_t p_full() const { return dq_empty(consumers); }
    FFA_DEVICE_MEMBER uint32_t mail_full() const { return dq_empty(consumers + (is_specialised ? 1 : 0)); }
    FFA_DEVICE_MEMBER uint32_t mail_empty() const { return mail_full() + 8; }
    FFA_DEVICE_MEMBER uint32_t ticket_full(int s) const
    {
        return mail_full() + 8 * ((cluster > 1 ? 2 : 0) + s);
    }
    FFA_DEVICE_MEMBER uint32_t ticket_empty(int s) const { return ticket_full(ticket_slots + s); }
    /* The item that the cluster's first block has taken for the other. */
    FFA_DEVICE_MEMBER uint32_t mail() const { return base + mail_at - bars_at; }
    /* Two words of the watchdog: who is stuck; how many consumer warps and senders are done. */
    FFA_DEVICE_MEMBER uint32_t watch() const { return base + watch_at - bars_at; }
};

/* A position in the rings of blocks: a count, as their lengths are powers of two. */
struct position {
    uint32_t count = 0;
    FFA_DEVICE_MEMBER uint32_t slot() const { return count % stages; }
    FFA_DEVICE_MEMBER uint32_t parity() const { return count / stages % 2; }
    FFA_DEVICE_MEMBER uint32_t dout_slot() const { return count % dout_slots; }
    FFA_DEVICE_MEMBER uint32_t dout_parity() const { return count / dout_slots % 2; }
    /* The block before: its record is still there when its stage is another's. */
    FFA_DEVICE_MEMBER uint32_t before() const { return (count - 1) % block_slots; }
    FFA_DEVICE_MEMBER position after() const { return { (count + 1) % block_slots }; }
    FFA_DEVICE_MEMBER void next() { *this = after(); }
};
static_assert(block_slots % (2 * stages) == 0, "a position is one of a record, too");

/* Who waits, for a debug specialisation's last words. */
enum wait_name : int {
    at_tile_full_producer = 1,
    at_tile_full_consumer,
    at_kv_full,
    at_kv_empty,
    at_q_full,
    at_q_empty,
    at_dout_full,
    at_dout_empty,
    at_ds_full,
    at_ds_empty,
    at_dq_full,
    at_dq_empty,
    at_p_full,
    at_ticket_full, /* from here on, a deterministic specialisation's */
    at_ticket_empty,
    at_semaphore
};

/* A debug specialisation's waits give up after about a second: they leave their name in shared
 * memory, where the watchdog finds it. (A call to printf here would spill the accumulators.) */
FFA_DEVICE void wait(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    for (int tries = 0; !mbarrier_try_wait_parity(bar, parity); ++tries)
        if (spec::debug && tries == 1 << 20)
            st_shared(bars.watch(), (uint32_t)name << 16 | threadIdx.x);
}

/* The same for threads that share a warp with others at work, a sender with the watchdog or the
 * scheduler: they must not sleep on the barrier. */
FFA_DEVICE void wait_beside(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    for (int tries = 0; !mbarrier_test_wait_parity(bar, parity); ++tries) {
        if (spec::debug && tries == 1 << 22)
            st_shared(bars.watch(), (uint32_t)name << 16 | threadIdx.x);
        __nanosleep(20);
    }
}

/* The watchdog of a debug specialisation: one thread, until senders and consumer warps are all
 * done. */
FFA_DEVICE void watchdog_run(const barriers &bars)
{
    while (ld_shared(bars.watch() + 4) < 4 * consumers + senders) {
        const uint32_t stuck = ld_shared(bars.watch());
        if (stuck) {
            const char *names[] = { "?",
                                    "tile_full (producer)",
                                    "tile_full (consumer)",
                                    "k_full or v_full",
                                    "kv_empty",
                                    "q_full",
                                    "q_empty",
                                    "dout_full",
                                    "dout_empty",
                                    "ds_full",
                                    "ds_empty",
                                    "dq_full",
                                    "dq_empty",
                                    "p_full" };
            const char *ticket_names[] = { "ticket_full", "ticket_empty", "its turn to add to dq" };
            const int name = (int)(stuck >> 16);
            printf("attention_backward: block %d: thread %d waits for %s without end\n",
                   (int)blockIdx.x, (int)(stuck & 0xffff),
                   spec::deterministic && name >= at_ticket_full ? ticket_names[name - at_ticket_full]
                                                               : names[name]);
            __trap();
        }
        __nanosleep(1000);
    }
}

struct shared_view {
    uint32_t base; /* shared-window address of the 1024-byte boundary */
    char *generic;
    FFA_DEVICE_MEMBER uint32_t k() const { return base + k_at; }
    FFA_DEVICE_MEMBER uint32_t kx() const { return base + kx_at; }
    FFA_DEVICE_MEMBER uint32_t v() const { return base + v_at; }
    FFA_DEVICE_MEMBER uint32_t q(int s) const { return base + q_at + s * q_bytes; }
    FFA_DEVICE_MEMBER uint32_t dout(int s) const { return base + dout_at + s * dout_bytes; }
    FFA_DEVICE_MEMBER uint32_t ds(int s) const { return base + ds_at + s * ds_bytes; }
    FFA_DEVICE_MEMBER uint32_t dq(int place) const { return base + dq_at + place * dq_bytes; }
    FFA_DEVICE_MEMBER uint32_t stats(int s) const { return base + stats_at + s * stats_bytes; }
    FFA_DEVICE_MEMBER uint32_t stats_d(int s) const { return stats(s) + 4 * tile_m; }
    FFA_DEVICE_MEMBER backward_block *block(int s) const
    {
        return reinterpret_cast<backward_block *>(generic + blocks_at) + s;
    }
    FFA_DEVICE_MEMBER uint32_t block_flags(int s) const
    {
        return base + blocks_at + s * (int)sizeof(backward_block) + 12;
    }
    FFA_DEVICE_MEMBER barriers bars() const { return barriers{ base + bars_at }; }
    FFA_DEVICE_MEMBER backward_tile_slot *slot(int s) const
    {
        return reinterpret_cast<backward_tile_slot *>(generic + slots_at + s * slot_bytes);
    }
    FFA_DEVICE_MEMBER backward_ticket_slot *turn(int s) const
    {
        return reinterpret_cast<backward_ticket_slot *>(generic + tickets_at) + s;
    }
};

/* Sweep `index` of a tile: from its slot, or from the plan where the slot is too small. */
FFA_DEVICE plan_sweep tile_sweep(const attention_backward_args &a,
                                     const backward_tile_slot *slot, int index)
{
    return index < BACKWARD_INLINE_SWEEPS ? slot->sweeps[index]
                                          : a.sweeps[slot->tile.sweep_begin + index];
}

FFA_DEVICE plan_band tile_band(const attention_backward_args &a, const backward_tile_slot *slot,
                                   int index)
{
    return index < inline_bands ? slot->bands[index] : a.bands[slot->tile.band_begin + index];
}

/* ---- pairs ---- */

/* The panel of dQ of which warpgroup w of this block has p_columns, or all. */
FFA_DEVICE int pair_panel(int w)
{
    const int rank = (int)cluster_rank();

    return panels == 4 ? 2 * rank + w : w == 0 ? 1 : 2 * rank;
}

/* And its first column there. */
FFA_DEVICE int pair_column(int w)
{
    return panels == 3 && w == 0 ? (int)cluster_rank() * p_columns : 0;
}

/* From the block's first key to the other one's. */
FFA_DEVICE int keys_to_other()
{
    return cluster_rank() == 0 ? block_n : -block_n;
}

/* ---- the order of visits ---- */

/* Blocks begin at a multiple of `grid`: of the rows that lie together in dq, or of blocks. */
constexpr int grid = spec::deterministic ? tile_m : BACKWARD_DQ_ROWS;

/* A record has the first row of the sweep in its block. */
FFA_DEVICE int block_row(const backward_block &block)
{
    return block.row / grid * grid;
}

FFA_DEVICE int rows_before(const backward_block &block)
{
    return block.row % grid;
}

/* One visit of a tile: a block of rows of a head. */
struct visit {
    int head, row;
    int sweep;    /* index in the tile */
    bool is_last; /* of the tile */
};

/* Calls `f` with each visit of a tile and its sweep: heads_at_once of its heads after another, the
 * sweeps and their blocks from the first row on or from the last, and of each block those heads. */
template <typename function>
FFA_DEVICE void visit_all(const attention_backward_args &a, const backward_tile_slot *slot,
                          function f)
{
    constexpr bool in_turns = spec::deterministic;
    const int sweep_count = slot->tile.sweep_count, head_end = slot->head_end;
    const int at_once = slot->heads_at_once;
    const bool is_descending = in_turns || slot->is_descending;
    int first = slot->head_begin;

    do
        for (int i = 0; i < sweep_count; ++i) {
            const int index = is_descending ? sweep_count - 1 - i : i;
            const plan_sweep sweep = tile_sweep(a, slot, index);
            const int begin = sweep.begin / grid * grid;
            const int last = (sweep.end - 1 - begin) / tile_m * tile_m;

            for (int at = 0; at <= last; at += tile_m) {
                const int row = begin + (is_descending ? last - at : at);
                const bool ends = at == last && i == sweep_count - 1;
                int head = first;
                do
                    f(visit{ head, row, index, ends && head == head_end - 1 }, sweep);
                while (++head < (in_turns ? head_end : first + at_once));
            }
        }
    while (!in_turns && (first += at_once) < head_end);
}

/* ---- scheduler ---- */

struct work {
    int tile, stream; /* a stream is a kv head and a part of its query heads */
    bool is_descending;   /* in step: rows from the last to the first */
};

/* Sections of streams are outermost, then tiles longest first, then the streams of a section. What
 * runs at a time then passes over the same Q, dO and dq at nearly the same time, and finds them in
 * L2. */
FFA_DEVICE work work_find(const attention_backward_args &a, int item)
{
    const int section_items = a.tile_count * a.l2_head_groups;
    const int section = item / section_items;
    const int rest = item - section * section_items;
    const int first = section * a.l2_head_groups;
    const int streams = min(a.l2_head_groups, a.heads_kv * a.parts - first);
    work found = { rest / streams, first + rest % streams, false };

    if (a.flags & BACKWARD_LOCKSTEP) {
        const int wave = section * a.l2_waves + rest / a.wave_items;
        found.is_descending = (wave & 1) != !!(a.flags & BACKWARD_DESCENDING);
    }
    return found;
}

/* A warp; or one thread, where the next one takes turns, or sends; and of a pair, where a word goes
 * to the other block. */
constexpr int scheduler_lanes = spec::deterministic || senders > 1 || cluster > 1 ? 1 : 32;

FFA_DEVICE int scheduler_take(const attention_backward_args &a, int lane)
{
    int item = lane == 0 ? atomicAdd(&a.counters[0], 1) : 0;

    if (scheduler_lanes == 32)
        item = __shfl_sync(0xffffffffu, item, 0);
    return item;
}

/* As long as a tile takes, so without last words: whoever keeps it from being done has them. */
FFA_DEVICE void scheduler_wait(uint32_t bar, uint32_t parity)
{
    if (scheduler_lanes == 1)
        while (!mbarrier_test_wait_parity(bar, parity))
            __nanosleep(20);
    else
        while (!mbarrier_try_wait_parity(bar, parity)) {
        }
}

/* The next item. Of a cluster's blocks the first takes it, for both. */
FFA_DEVICE int scheduler_next(const attention_backward_args &a, const barriers &bars, int lane,
                              ring<1> &mail)
{
    int item;

    if (cluster == 1)
        return scheduler_take(a, lane);
    if (cluster_rank() == 0) {
        item = scheduler_take(a, lane);
        scheduler_wait(bars.mail_empty(), mail.parity ^ 1);
        st_async_at(bars.mail(), (uint32_t)item, bars.mail_full(), 1);
    } else {
        mbarrier_arrive_expect_tx(bars.mail_full(), 4);
        scheduler_wait(bars.mail_full(), mail.parity);
        item = (int)ld_shared(bars.mail());
        mbarrier_arrive_at(bars.mail_empty(), 0);
    }
    mail.next();
    return item;
}

FFA_DEVICE void scheduler_run(const attention_backward_args &a, const shared_view &smem, int lane)
{
    const barriers bars = smem.bars();
    /* Where items wait for others, none is a block's own: the block might not be there yet. */
    const int own_items = spec::deterministic ? 0 : (int)gridDim.x / cluster;
    ring<tile_slots> at;
    ring<1> asked, mail;
    int item =
        spec::deterministic ? scheduler_next(a, bars, lane, mail) : (int)blockIdx.x / cluster;

    for (;;) {
        scheduler_wait(bars.tile_empty(at.slot), at.parity ^ 1);
        backward_tile_slot *slot = smem.slot(at.slot);
        const bool has_work = item < a.work_count;
        if (has_work) {
            const bool has_lists = a.flags & BACKWARD_LIST_PER_KV_HEAD;
            const work found =
                has_lists ? work{ item / a.parts, item % a.parts, false } : work_find(a, item);
            plan_tile tile = a.tiles[found.tile];
            if (cluster > 1) { /* the block's own keys; the second may have none */
                const int before = (int)cluster_rank() * block_n;
                tile.begin += before;
                tile.count = min(max(tile.count - before, 0), block_n);
            }
            const int stream = found.stream + (has_lists ? tile.list * a.parts : 0);
            const int kv_head = stream / a.parts, part = stream % a.parts;
            if (lane == 0) {
                const int share = a.group / a.parts;
                slot->tile = tile;
                slot->kv_head = kv_head;
                slot->head_begin = kv_head * a.group + part * share;
                slot->head_end = slot->head_begin + share;
                slot->part = part;
                slot->heads_at_once = a.flags & BACKWARD_LOCKSTEP ? share : 1;
                slot->is_descending = found.is_descending;
            }
            for (int i = lane; i < min((int)BACKWARD_INLINE_SWEEPS, tile.sweep_count);
                 i += scheduler_lanes)
                slot->sweeps[i] = a.sweeps[tile.sweep_begin + i];
            for (int i = lane; i < min(inline_bands, tile.band_count); i += scheduler_lanes)
                slot->bands[i] = a.bands[tile.band_begin + i];
        } else if (lane == 0) {
            slot->tile.count = -1;
        }
        mbarrier_arrive(bars.tile_full(at.slot));
        at.next();
        if (!has_work)
            break;
        /* Not before the one at work is nearly done: who is free first takes the next, and none is
         * held back behind another one, where others wait for it. */
        scheduler_wait(bars.tile_asked(), asked.parity);
        asked.next();
        item = own_items + scheduler_next(a, bars, lane, mail);
    }
    /* The last block to finish leaves the counters ready for the next launch: every block has
     * taken its last item by then. */
    if (lane == 0 && atomicAdd(&a.counters[1], 1) == (int)gridDim.x - 1) {
        atomicExch(&a.counters[0], 0);
        atomicExch(&a.counters[1], 0);
    }
}

/* ---- producers: a thread each ---- */

template <int rows, int count>
FFA_DEVICE void load_tile(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
#pragma unroll
    for (int panel = 0; panel < count; ++panel)
        cp_async_bulk_tensor_3d(dst + panel * rows * 128, map, bar, panel * 64, head, row);
}

/* A block of rows. Both of a pair want it, and each fetches every other panel for both: they have a
 * place for it when the barrier that frees it has heard of both. */
template <int count>
FFA_DEVICE void load_rows(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
    if constexpr (cluster == 1) {
        load_tile<tile_m, count>(map, dst, bar, head, row);
    } else {
        for (int panel = (int)cluster_rank(); panel < count; panel += cluster)
            cp_async_bulk_tensor_3d_to(dst + panel * q_panel_bytes, map, bar, panel * 64, head, row,
                                       (1 << cluster) - 1);
    }
}

/* K, and the blocks of Q with their statistics and records. */
FFA_DEVICE void produce_q(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;
    uint32_t kv_parity = 0;

    prefetch_tensormap(&a.q);
    prefetch_tensormap(&a.k);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        const int key_count = slot->tile.count, sweep_count = slot->tile.sweep_count;
        if (key_count < 0)
            break;
        if (sweep_count > 0) {
            wait(bars, bars.kv_empty(), kv_parity ^ 1, at_kv_empty);
            mbarrier_arrive_expect_tx(bars.k_full(), k_bytes + kx_bytes);
            load_tile<block_n, panels>(&a.k, smem.k(), bars.k_full(), slot->kv_head,
                                       slot->tile.begin);
            if constexpr (cluster > 1)
                for (int w = 0; w < consumers; ++w)
                    cp_async_bulk_tensor_3d(smem.kx() + w * kv_panel_bytes, &a.k, bars.k_full(),
                                            pair_panel(w) * 64, slot->kv_head,
                                            slot->tile.begin + keys_to_other());
            kv_parity ^= 1;
        }
        visit_all(a, slot, [&](const visit &now, const plan_sweep &sweep) {
            const int row = now.row;
            /* In a cut tile, the keys past its end are masked in every block. */
            const bool is_full =
                row >= sweep.full_begin && row + tile_m <= sweep.full_end && key_count == block_n;
            wait(bars, bars.q_empty(at.slot()), at.parity() ^ 1, at_q_empty);
            int flags = (now.is_last ? BACKWARD_BLOCK_LAST : 0) |
                        (is_full ? BACKWARD_BLOCK_FULL : 0) |
                        (row + tile_m > sweep.end ? BACKWARD_BLOCK_CUT : 0) |
                        now.sweep * BACKWARD_BLOCK_SWEEP;
            int inside = row; /* the sweep */
            if (row < sweep.begin) {
                flags |= BACKWARD_BLOCK_CUT;
                inside = sweep.begin;
            }
            *smem.block(at.count) = backward_block{ now.head, inside, sweep.end, flags };
            mbarrier_arrive_expect_tx(bars.q_full(at.slot()), q_bytes + stats_bytes);
            load_rows<panels>(&a.q, smem.q(at.slot()), bars.q_full(at.slot()), now.head, row);
            const float *stats = a.stats + now.head * 2 * a.stats_rows + row;
            cp_async_bulk(smem.stats(at.slot()), stats, bars.q_full(at.slot()), 4 * tile_m);
            cp_async_bulk(smem.stats(at.slot()) + 4 * tile_m, stats + a.stats_rows,
                          bars.q_full(at.slot()), 4 * tile_m);
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        mbarrier_arrive(bars.tile_asked());
    }
}

/* V, and the blocks of dO. */
FFA_DEVICE void produce_dout(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    position at;
    uint32_t kv_parity = 0;

    prefetch_tensormap(&a.dout);
    prefetch_tensormap(&a.v);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        const int sweep_count = slot->tile.sweep_count;
        if (slot->tile.count < 0)
            break;
        if (sweep_count > 0) {
            wait(bars, bars.kv_empty(), kv_parity ^ 1, at_kv_empty);
            mbarrier_arrive_expect_tx(bars.v_full(), v_bytes);
            load_tile<block_n, v_panels>(&a.v, smem.v(), bars.v_full(), slot->kv_head,
                                         slot->tile.begin);
            kv_parity ^= 1;
        }
        visit_all(a, slot, [&](const visit &now, const plan_sweep &) {
            const int slot_at = at.dout_slot();
            wait(bars, bars.dout_empty(slot_at), at.dout_parity() ^ 1, at_dout_empty);
            mbarrier_arrive_expect_tx(bars.dout_full(slot_at), dout_bytes);
            load_rows<v_panels>(&a.dout, smem.dout(slot_at), bars.dout_full(slot_at), now.head,
                                now.row);
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
}

/* ---- turns: a thread ---- */

/* Turns that were taken and not yet passed on, from the slot `at`. */
struct turns_held {
    int count = 0;
    ring<ticket_slots> at;
};

/* Passes the oldest turn on, if the sender has said that its block is done. */
FFA_DEVICE void turns_pass(const attention_backward_args &a, const shared_view &smem,
                           turns_held &held)
{
    const barriers bars = smem.bars();

    if (held.count == 0 ||
        !mbarrier_test_wait_parity(bars.ticket_empty(held.at.slot), held.at.parity))
        return;
    const backward_ticket_slot turn = *smem.turn(held.at.slot);
    fence_proxy_async_global();
    st_release_gpu(a.dq_semaphores + turn.counter, turn.next);
    --held.count;
    held.at.next();
}

/* Waits for the turn of each block, as the plan gives it, ahead of the sender, and passes it on
 * when its block is done. */
FFA_DEVICE void turns_run(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const uint32_t blocks = (uint32_t)((a.dq_rows + tile_m - 1) / tile_m);
    ring<tile_slots> tile_at;
    ring<ticket_slots> at;
    turns_held held;
    const auto until = [&](wait_name name, auto is_so) {
        for (int tries = 0;; ++tries) {
            turns_pass(a, smem, held);
            if (is_so())
                break;
            if (spec::debug && tries == 1 << 22)
                st_shared(bars.watch(), (uint32_t)name << 16 | threadIdx.x);
            __nanosleep(20);
        }
    };

    for (;; tile_at.next()) {
        until(at_tile_full_producer, [&] {
            return mbarrier_test_wait_parity(bars.tile_full(tile_at.slot), tile_at.parity);
        });
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        const plan_ticket *turn = nullptr;
        plan_ticket counted = {};
        int counted_of = -1; /* sweep */
        visit_all(a, slot, [&](const visit &now, const plan_sweep &sweep) {
            const uint32_t counter = ((uint32_t)now.head * cluster + cluster_rank()) * blocks +
                                     (uint32_t)now.row / tile_m;
            if (now.sweep != counted_of) {
                counted_of = now.sweep;
                turn = a.tickets + sweep.ticket_begin;
                counted = *turn;
            } else if (now.row < counted.row) {
                counted = *++turn;
            }
            until(at_ticket_empty, [&] { return held.count < ticket_slots; });
            until(at_semaphore,
                  [&] { return ld_acquire_gpu(a.dq_semaphores + counter) == counted.before; });
            fence_proxy_async_global();
            *smem.turn(at.slot) = backward_ticket_slot{ counter, counted.before + 1 };
            ++held.count;
            mbarrier_arrive(bars.ticket_full(at.slot));
            at.next();
        });
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
    until(at_ticket_empty, [&] { return held.count == 0; });
}

/* ---- the sender of dQ: a thread, or one for each warpgroup ---- */

/* The piece of dQ that the copy engine may still read is free once it has read all. */
FFA_DEVICE void dq_release(uint32_t &unread)
{
    if (unread) {
        bulk_wait_read<0>();
        mbarrier_arrive(unread);
        unread = 0;
    }
}

/* A deterministic block is done, when the copy engine has added all but the last `left` pieces.
 * `turn`: ticket_empty of its slot, or 0. */
template <int left> FFA_DEVICE void turn_done(uint32_t &turn)
{
    if (spec::deterministic && turn) {
        bulk_wait<left>();
        mbarrier_arrive(turn);
        turn = 0;
    }
}

/* A piece of dQ, in shared memory and in the workspace. */
struct dq_piece {
    float *to;
    uint32_t from;
    int bytes; /* <= 0: no row of it is in the sweep */
};

/* The piece of warpgroup w, `staged` in shared memory. */
FFA_DEVICE dq_piece piece_find(const attention_backward_args &a, const backward_block &block, int w,
                               uint32_t staged)
{
    const int panel = cluster > 1 ? pair_panel(w) : w % panels;
    const int columns = is_specialised ? w == 0 ? p_columns : 64 : panel == panels - 1 ? last_columns : 64;
    const int top = block_row(block) + (is_specialised ? 0 : w / panels * 64);
    const int first = max(block.row, top) / BACKWARD_DQ_ROWS * BACKWARD_DQ_ROWS;
    const int end = (block.row_end + BACKWARD_DQ_ROWS - 1) / BACKWARD_DQ_ROWS * BACKWARD_DQ_ROWS;

    return dq_piece{ (float *)a.dq + (long long)block.head * a.dq_head_stride +
                         (long long)panel * a.dq_rows * 64 +
                         (long long)first * (is_specialised ? 64 : columns) +
                         (cluster > 1 ? pair_column(w) * BACKWARD_DQ_ROWS : 0),
                     staged + (first - top) * columns * 4,
                     (min(end, top + 64) - first) * columns * 4 };
}

/* Half a panel is a run of each group of rows. */
FFA_DEVICE void piece_add(const dq_piece &piece, int w)
{
    constexpr int run = BACKWARD_DQ_ROWS * p_columns * 4;

    if (p_columns == 64 || w > 0) {
        if (piece.bytes > 0)
            bulk_reduce_add_f32(piece.to, piece.from, piece.bytes);
    } else {
        for (int at = 0; at < piece.bytes; at += run)
            bulk_reduce_add_f32(piece.to + at / run * BACKWARD_DQ_ROWS * 64, piece.from + at, run);
    }
}

/* By role, what the sender does between a piece's coming and its copy counts: it knows where the
 * piece goes before it comes, and need not sleep, as it has its warp to itself. (1 % more cycles at
 * head_dim 128.) */
constexpr bool sends_ahead = is_specialised;
static_assert(!is_specialised || senders == 1, "all pieces of a block are its own");

FFA_DEVICE void sender_wait(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    if (sends_ahead && !spec::debug)
        wait(bars, bar, parity, name);
    else
        wait_beside(bars, bar, parity, name);
}

/* Has the copy engine add what the warpgroups stage to the fp32 workspace; deterministic: when the
 * block's turn has come, which is then passed on. While pieces keep coming, it asks for the next
 * before it waits for the one before; when it has to wait, it first gives up what others wait for.
 * (Reductions straight from registers take a quarter of the kernel's time, and a fence and a copy
 * of each consumer warp a tenth.) */
template <int which>
FFA_DEVICE void send_dq(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    constexpr int w_begin = is_specialised && !p_has_dq ? 1 : which;
    constexpr int w_end = senders > 1 ? which + 1 : consumers;
    ring<tile_slots> tile_at;
    position at;
    uint32_t parity[consumers] = {};
    uint32_t unread = 0; /* dq_empty of the piece that the copy engine may still be at */
    ring<ticket_slots> turn_at;
    uint32_t turn = 0; /* of a block that was given to the copy engine */

    for (;; tile_at.next()) {
        sender_wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;
        backward_block block = {};
        bool has_block = false; /* of the first, its record is there when its dQ is */
        for (bool is_last = slot->tile.sweep_count == 0; !is_last;) {
            for (int w = w_begin; w < w_end; ++w) {
                const bool is_first = w == w_begin;
                const uint32_t from = smem.dq(w % dq_places);
                dq_piece piece = {};
                if (has_block)
                    piece = piece_find(a, block, w, from);
                if (!mbarrier_test_wait_parity(bars.dq_full(w), parity[w]) ||
                    (spec::deterministic && is_first &&
                     !mbarrier_test_wait_parity(bars.ticket_full(turn_at.slot), turn_at.parity))) {
                    dq_release(unread);
                    turn_done<0>(turn);
                }
                sender_wait(bars, bars.dq_full(w), parity[w], at_dq_full);
                parity[w] ^= 1;
                if (!has_block) {
                    has_block = sends_ahead;
                    block = *smem.block(at.count);
                    piece = piece_find(a, block, w, from);
                }
                if (spec::deterministic && is_first)
                    sender_wait(bars, bars.ticket_full(turn_at.slot), turn_at.parity, at_ticket_full);
                fence_proxy_async();
                piece_add(piece, w);
                bulk_commit();
                if (unread) {
                    bulk_wait_read<1>();
                    mbarrier_arrive(unread);
                }
                unread = bars.dq_empty(w);
                turn_done<1>(turn);
            }
            if constexpr (spec::deterministic) {
                turn = bars.ticket_empty(turn_at.slot);
                turn_at.next();
            }
            is_last = block.flags & BACKWARD_BLOCK_LAST;
            at.next();
            if (sends_ahead && !is_last) /* dQ of a block comes while the next one is at work */
                block = *smem.block(at.count);
        }
        dq_release(unread);
        turn_done<0>(turn);
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
    }
    bulk_wait<0>();
    if (spec::debug)
        atom_shared_add(bars.watch() + 4, 1);
}

/* ---- consumers ---- */

/* The warp has read what both blocks of a pair write, here and there. */
FFA_DEVICE void release(uint32_t bar)
{
    mbarrier_arrive(bar);
    if (cluster > 1)
        mbarrier_arrive_at(bar, cluster_rank() ^ 1);
}

/* The thread's index in its warpgroup, read afresh: what is derived from it does not then occupy
 * registers over the loop. It takes its time: for what happens rarely, and where registers are
 * short. */
FFA_DEVICE int thread_now()
{
    return (int)((uint32_t)thread_index() % 128);
}

/* Where in shared memory a thread's share is, kept over the loop: of dS and of its warpgroup's
 * piece of dQ, in their first slots, and in a block's statistics. */
struct places {
    uint32_t ds, dq, stats;
};

/* `keys`: the warpgroup's first in the tile. */
FFA_DEVICE places places_find(const shared_view &smem, int warpgroup, int keys, int dq_columns)
{
    const uint32_t thread = threadIdx.x % 128, lane = thread % 32;
    const uint32_t key = (uint32_t)keys + thread / 32 * 16 + lane % 16;
    places at = { smem.ds(0) + key * 128 + ((lane / 16) ^ (key % 8)) * 16,
                  smem.dq(warpgroup % dq_places) +
                      (thread / 32 * 2 * BACKWARD_DQ_ROWS * (uint32_t)dq_columns + lane * 2) * 4,
                  lane % 4 * 8 };

    keep(at.ds);
    if constexpr (!spec::softcap) { /* it has no registers to spare */
        keep(at.dq);
        keep(at.stats);
    }
    return at;
}

/* Scores of rows that do not attend the thread's keys become -inf. */
FFA_DEVICE void mask_scores(float (&s)[s_regs], const attention_backward_args &a,
                            const backward_tile_slot *slot, const backward_block &block,
                            int warpgroup)
{
    const int thread = thread_now(), lane = thread % 32;
    const int tile_key = warpgroup * 64 + thread / 32 * 16 + lane / 4;
    const plan_sweep sweep = tile_sweep(a, slot, block.flags / BACKWARD_BLOCK_SWEEP);
    const int key = slot->tile.begin + tile_key;
    const int first = block_row(block) + lane % 4 * 2; /* the thread's first column */
    int lo[2] = { 0, 0 }, hi[2] = { 0, 0 };            /* columns that attend its two keys: none */

#pragma unroll 1 /* for the sake of registers */
    for (int i = 0; i < sweep.band_count; ++i) {
        const plan_band band = tile_band(a, slot, sweep.band_begin + i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int d = key + 8 * r - band.begin;
            if (d >= 0 && key + 8 * r < band.end) {
                lo[r] = band.lo + band.lo_step * d - first;
                hi[r] = band.hi + band.hi_step * d - first;
            }
        }
    }
    mask_columns(s, lo, hi);
}

/* Rows [rows - tail, rows) of a tile in shared memory become 0, or [0, head). Every warpgroup
 * writes all of them: the same zeros, so they may meet. */
template <int rows, int count> FFA_DEVICE void zero_tail(uint32_t tile, int tail)
{
#pragma unroll 1 /* here and below, for the sake of compile time */
    for (int i = (rows - tail) * 8 + thread_now(); i < rows * 8; i += 128)
#pragma unroll 1
        for (int panel = 0; panel < count; ++panel)
            st_shared_v4_zero(tile + panel * rows * 128 + i * 16);
}

template <int rows, int count> FFA_DEVICE void zero_head(uint32_t tile, int head)
{
#pragma unroll 1
    for (int i = thread_now(); i < head * 8; i += 128)
#pragma unroll 1
        for (int panel = 0; panel < count; ++panel)
            st_shared_v4_zero(tile + panel * rows * 128 + i * 16);
}

/* Rows of a block outside its sweep become 0. */
template <int count>
FFA_DEVICE void zero_rows(const backward_block &block, uint32_t tile, int warpgroup)
{
    zero_tail<tile_m, count>(tile, block_row(block) + tile_m - block.row_end);
    zero_head<tile_m, count>(tile, rows_before(block));
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

/* Q of the block at `at` is there, and its record: the block's flags. */
FFA_DEVICE int q_wait(const shared_view &smem, const position &at)
{
    const barriers bars = smem.bars();

    wait(bars, bars.q_full(at.slot()), at.parity(), at_q_full);
    return (int)ld_shared(smem.block_flags(at.count));
}

/* Rows of Q outside the sweep, and their statistics, become 0. */
FFA_DEVICE void q_cut(const shared_view &smem, const position &at, int flags, int warpgroup)
{
    if (!(flags & BACKWARD_BLOCK_CUT))
        return;
    const backward_block block = *smem.block(at.count);
    const int row = block_row(block) + thread_now();
    if (thread_now() < tile_m && (row < block.row || row >= block.row_end)) {
        st_shared(smem.stats(at.slot()) + 4 * thread_now(), 0);
        st_shared(smem.stats_d(at.slot()) + 4 * thread_now(), 0);
    }
    zero_rows<panels>(block, smem.q(at.slot()), warpgroup);
}

/* Likewise its dO. */
FFA_DEVICE void dout_ready(const shared_view &smem, const position &at, int flags, int warpgroup)
{
    const barriers bars = smem.bars();

    wait(bars, bars.dout_full(at.dout_slot()), at.dout_parity(), at_dout_full);
    if (flags & BACKWARD_BLOCK_CUT)
        zero_rows<v_panels>(*smem.block(at.count), smem.dout(at.dout_slot()), warpgroup);
}

/* K and V of the tile are there. Rows of keys that no row attends, and of keys past the tile's end,
 * become 0: their dS is 0, and 0 times NaN is not. A thread looks after a key, of 64 keys two
 * after the same; every warpgroup writes all of them. */
FFA_DEVICE void kv_ready(const attention_backward_args &a, const shared_view &smem,
                         const backward_tile_slot *slot, uint32_t parity, int warpgroup)
{
    const barriers bars = smem.bars();
    const int key = slot->tile.begin + thread_now() % block_n;
    const int key_there = cluster > 1 ? key + keys_to_other() : key;
    bool is_attended = false, is_attended_there = false;

    for (int i = 0; i < slot->tile.band_count; ++i) {
        const plan_band band = tile_band(a, slot, i);
        is_attended |= key >= band.begin && key < band.end;
        is_attended_there |= key_there >= band.begin && key_there < band.end;
    }
    wait(bars, bars.k_full(), parity, at_kv_full);
    wait(bars, bars.v_full(), parity, at_kv_full);
    if (!is_attended)
#pragma unroll 1
        for (int i = 0; i < 8 * (panels > v_panels ? panels : v_panels); ++i) {
            const int at = i / 8 * kv_panel_bytes + thread_now() % block_n * 128 + i % 8 * 16;
            if (i < 8 * panels)
                st_shared_v4_zero(smem.k() + at);
            if (i < 8 * v_panels)
                st_shared_v4_zero(smem.v() + at);
        }
    if (cluster > 1 && !is_attended_there)
#pragma unroll 1
        for (int i = 0; i < 8 * consumers; ++i)
            st_shared_v4_zero(smem.kx() + i / 8 * kv_panel_bytes + thread_now() % block_n * 128 +
                              i % 8 * 16);
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

/* S = K Q^T, or dP = V dO^T, of this warpgroup's 64 keys; committed, not waited for. */
template <int columns> FFA_DEVICE void scores_issue(float (&s)[s_regs], uint32_t kv, uint32_t q)
{
    const uint64_t a = descriptor_k_major(kv), b = descriptor_k_major(q);

    touch(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < columns / 16; ++step)
        wgmma<tile_m, spec::dtype>::ss(
            s, descriptor_advance(a, step / 4 * kv_panel_bytes + step % 4 * 32),
            descriptor_advance(b, step / 4 * q_panel_bytes + step % 4 * 32), step > 0);
    wgmma_commit();
}

/* dV += P dO, or dK += dS Q. */
template <int columns>
FFA_DEVICE void gradient_issue(float (&g)[columns / 2], uint32_t (&p)[p_regs], uint32_t rows)
{
    const uint64_t b = descriptor_mn_major(rows, q_panel_bytes);

    touch(g);
    touch(p);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_m / 16; ++step)
        wgmma<columns, spec::dtype>::rs(g, p[4 * step], p[4 * step + 1], p[4 * step + 2],
                                        p[4 * step + 3], descriptor_advance(b, step * 2048), 1);
    wgmma_commit();
}

/* The warpgroup's piece of dQ = dS^T K: 64 rows x 64 columns, or 32, over the block's keys, and of
 * a pair over the other one's, whose K is at `kx`. */
template <int columns>
FFA_DEVICE void dq_issue(float (&dq)[columns / 2], uint32_t ds, uint32_t k, uint32_t kx = 0)
{
    const uint64_t a = descriptor_mn_major(ds, ds_panel_bytes);
    const uint64_t own = descriptor_mn_major(k, kv_panel_bytes);
    const uint64_t other = descriptor_mn_major(kx, kv_panel_bytes);
    constexpr int steps = block_n / 16;

    touch(dq);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < cluster * steps; ++step)
        wgmma<columns, spec::dtype>::ss_mn(
            dq, descriptor_advance(a, step * 2048),
            descriptor_advance(step < steps ? own : other, step % steps * 2048), step > 0);
    wgmma_commit();
}

/* Shared memory is busy, and takes its time. With 64 rows a block, and no softcap, there are
 * registers to load what comes next ahead, under products: statistics, and a block's flags. */
constexpr bool loads_early = tile_m == 64 && !spec::softcap;

/* lse or D of the thread's columns. */
constexpr int stats_regs = loads_early ? tile_m / 8 : 1;

FFA_DEVICE void stats_load(float2 (&x)[stats_regs], uint32_t at)
{
    if constexpr (loads_early) {
#pragma unroll
        for (int j = 0; j < stats_regs; ++j)
            x[j] = ld_shared_f32x2(at + 32 * j);
    }
}

/* Columns 8 j and after, of the thread: loaded before, or now from `at`. */
FFA_DEVICE float2 stats_get(const float2 (&x)[stats_regs], uint32_t at, int j)
{
    return loads_early ? x[loads_early ? j : 0] : ld_shared_f32x2(at + 32 * j);
}

/* Scores -> P, in the model's dtype, from the rows' lse. With a softcap, `slope`
 * becomes P times the derivative of the capped score, which dS takes in P's place. */
FFA_DEVICE void make_p(uint32_t (&p)[p_regs], uint32_t (&slope)[p_regs], float (&s)[s_regs],
                       float2 (&rows_lse)[stats_regs], uint32_t stats,
                       const attention_backward_args &a, const shared_view &smem,
                       const position &at, const backward_tile_slot *slot, int flags, int warpgroup)
{
    if (!(flags & BACKWARD_BLOCK_FULL)) {
        mask_scores(s, a, slot, *smem.block(at.count), warpgroup);
        stats_load(rows_lse, stats); /* again: the mask needs the registers */
    }
#pragma unroll
    for (int j = 0; j < tile_m / 8; ++j) {
        const float2 lse = stats_get(rows_lse, stats, j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float x[2];
            if constexpr (spec::softcap) {
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    /* tanh(t) = 1 - 2 / (1 + e^2t), as in the forward kernel; -inf stays masked. */
                    const float s_i = s[4 * j + 2 * r + e];
                    const float tanh =
                        fmaf(rcp_approx(1.0f + ex2_approx(s_i * a.cap_inner)), -2.0f, 1.0f);
                    x[e] = s_i == neg_inf()
                               ? 0.0f
                               : ex2_approx(fmaf(tanh, a.cap_outer, e ? -lse.y : -lse.x));
                    y[e] = x[e] * fmaf(-tanh, tanh, 1.0f);
                }
                slope[2 * j + r] = pack_half2<spec::dtype>(y[0], y[1]);
            } else {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    x[e] =
                        ex2_approx(fmaf(s[4 * j + 2 * r + e], a.scale_log2, e ? -lse.y : -lse.x));
            }
            p[2 * j + r] = pack_half2<spec::dtype>(x[0], x[1]);
        }
    }
}

FFA_DEVICE uint32_t ds_pair(uint32_t p, float dp0, float dp1, const float2 &d)
{
    const float2 x = unpack_half2<spec::dtype>(p);

    return pack_half2<spec::dtype>(x.x * (dp0 - d.x), x.y * (dp1 - d.y));
}

/* dS = P * (dP - D), packed. */
template <int count>
FFA_DEVICE void make_ds(uint32_t (&ds)[count], const uint32_t (&p)[count],
                        const float (&dp)[2 * count], const float2 (&rows_d)[stats_regs],
                        uint32_t stats)
{
#pragma unroll
    for (int j = 0; j < tile_m / 8; ++j) {
        const float2 d = stats_get(rows_d, stats, j);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            ds[2 * j + r] = ds_pair(p[2 * j + r], dp[4 * j + 2 * r], dp[4 * j + 2 * r + 1], d);
    }
}

/* dS to shared memory as [key][row], 64 rows a panel, where dQ reads it. `to`: the thread's place.
 */
FFA_DEVICE void store_ds(const uint32_t (&ds)[p_regs], uint32_t to)
{
#pragma unroll
    for (int j = 0; j < tile_m / 16; ++j) /* 16 query rows: chunks 2j and 2j + 1 of 8 */
        stmatrix_x4((to ^ (j % 4 * 32)) + j / 4 * ds_panel_bytes, ds[4 * j], ds[4 * j + 1],
                    ds[4 * j + 2], ds[4 * j + 3]);
}

/* The warpgroup's piece of dQ goes to shared memory, for the sender, as it lies in the workspace:
 * groups of 8 rows, each in runs of 8 columns, which is how a warp holds them. Rows outside the
 * block's sweep become 0, as they are added, too. `parity`: of the pieces that warpgroup `w` has
 * staged before; `top`: the piece's first row in the block. */
template <int columns>
FFA_DEVICE void stage_dq(const shared_view &smem, float (&dq)[columns / 2], uint32_t to, int flags,
                         const backward_block *block, int top, uint32_t parity, int w)
{
    const barriers bars = smem.bars();

    if (flags & BACKWARD_BLOCK_CUT) {
        const int thread = thread_now();
        const int first = block_row(*block) + top + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (first + 8 * r < block->row || first + 8 * r >= block->row_end)
#pragma unroll
                for (int i = 2 * r; i < columns / 2; i += 4)
                    dq[i] = dq[i + 1] = 0.0f;
    }
    if (dq_places > 1)
        wait(bars, bars.dq_empty(w), parity ^ 1, at_dq_empty);
    else /* the other warpgroup's piece before this one, of the block before or of the same */
        wait(bars, bars.dq_empty(w ^ 1), w == 0 ? parity ^ 1 : parity, at_dq_empty);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < columns / 8; ++k)
            st_shared_f32x2(to + r * BACKWARD_DQ_ROWS * columns * 4 + k * 256, dq[4 * k + 2 * r],
                            dq[4 * k + 2 * r + 1]);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(bars.dq_full(w));
}

/* Write the thread's two rows of dK or dV, times `scale`; of a padded tensor `real` columns. (Two
 * columns at a time, as threads hold them: to trade registers for wider stores, which are rare, is
 * a fifth of the code, and of the time that head_dim 256 takes to compile.) */
template <int columns>
FFA_DEVICE void store_gradient(const attention_backward_args &a, const float (&g)[columns / 2],
                               int real, void *to, long long token_stride, float scale, int key,
                               int key_end, int lane)
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const long long first = (long long)(key + 8 * r) * token_stride + lane % 4 * 2;
        if (key + 8 * r >= key_end)
            continue;
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
            if (spec::padded && j * 8 >= real)
                break;
            float2 x = make_float2(g[j * 4 + r * 2] * scale, g[j * 4 + r * 2 + 1] * scale);
            if constexpr (spec::dkv_fp32) {
                float2 *at = (float2 *)((float *)to + first + j * 8);
                if (a.flags & BACKWARD_ACCUMULATE) {
                    const float2 was = *at;
                    x.x += was.x;
                    x.y += was.y;
                }
                *at = x;
            } else {
                *(uint32_t *)((uint16_t *)to + first + j * 8) = pack_half2<spec::dtype>(x.x, x.y);
            }
        }
    }
}

/* piece: columns of the warpgroup's piece of dQ. */
template <int piece>
FFA_DEVICE void consumer_run(const attention_backward_args &a, const shared_view &smem,
                             int warpgroup)
{
    const barriers bars = smem.bars();
    const bool is_leader = threadIdx.x % 32 == 0;
    const uint32_t my_k = smem.k() + warpgroup * 64 * 128, my_v = smem.v() + warpgroup * 64 * 128;
    const uint32_t dq_k = smem.k() + warpgroup % panels * kv_panel_bytes;
    const int dq_ds = warpgroup / panels * ds_panel_bytes;
    const places my = places_find(smem, warpgroup, warpgroup * 64, piece);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_at_;
    uint32_t kv_parity = 0;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;

        float dk[dk_regs], dv[dv_regs];
#pragma unroll
        for (int i = 0; i < dk_regs; ++i)
            dk[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < dv_regs; ++i)
            dv[i] = 0.0f;
        if (slot->tile.sweep_count > 0) {
            float s[s_regs], dp[s_regs], dq[piece / 2];
            float2 lse[stats_regs], d[stats_regs];
            uint32_t p[p_regs], slope[p_regs], ds[p_regs];
            ring<ds_slots> ds_before = ds_at_;
            int flags_before = 0;

            kv_ready(a, smem, slot, kv_parity, warpgroup);
            kv_parity ^= 1;
            int flags = loads_early ? q_wait(smem, at) : 0;
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                if (!loads_early)
                    flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, warpgroup);
                if (loads_early) /* no branch between what is loaded and its use */
                    dout_ready(smem, at, flags, warpgroup);
                stats_load(lse, smem.stats(at.slot()) + my.stats);
                scores_issue<head_dim>(s, my_k, smem.q(at.slot()));
                if (!loads_early)
                    dout_ready(smem, at, flags, warpgroup);
                if constexpr (!spec::softcap)
                    scores_issue<head_dim_v>(dp, my_v, smem.dout(at.dout_slot()));
                wgmma_wait<spec::softcap ? 0 : 1>();
                touch(s);
                make_p(p, slope, s, lse, smem.stats(at.slot()) + my.stats, a, smem, at, slot, flags,
                       warpgroup);
                stats_load(d, smem.stats_d(at.slot()) + my.stats);
                if constexpr (spec::softcap) /* not before: slope has taken its registers */
                    scores_issue<head_dim_v>(dp, my_v, smem.dout(at.dout_slot()));
                gradient_issue<head_dim_v>(dv, p, smem.dout(at.dout_slot()));
                wgmma_wait<1>();
                touch(dp);
                make_ds(ds, spec::softcap ? slope : p, dp, d, smem.stats_d(at.slot()) + my.stats);
                /* Under the first block a dQ of old dS, which nobody uses: a conditional product
                 * would make the compiler wait for all of them. */
                if (!is_first)
                    wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
                /* For the others' dS, now that nothing of its own is waited for. */
                fence_proxy_async();
                if constexpr (ds_slots < 3)
                    wait(bars, bars.ds_empty(ds_at_.slot), ds_at_.parity ^ 1, at_ds_empty);
                store_ds(ds, my.ds + ds_at_.slot * ds_bytes);
                dq_issue<piece>(dq, smem.ds(ds_before.slot) + dq_ds, dq_k);
                __syncwarp();
                if (is_leader)
                    mbarrier_arrive(bars.ds_full(ds_at_.slot));
                gradient_issue<head_dim>(dk, ds, smem.q(at.slot()));
                int flags_next = 0;
                if (loads_early && !is_last) /* before dQ fills the queue to shared memory */
                    flags_next = q_wait(smem, at.after());
                wgmma_wait<1>();
                touch(dv);
                touch(p);
                touch(dq);
                if (is_leader) {
                    release(bars.dout_empty(at.dout_slot()));
                    if (ds_slots < 3 && !is_first)
                        mbarrier_arrive(bars.ds_empty(ds_before.slot));
                }
                if (!is_first)
                    stage_dq<piece>(smem, dq, my.dq, flags_before, smem.block(at.before()),
                                    warpgroup / panels * 64, (at.count + 1) % 2, warpgroup);
                wgmma_wait<0>();
                touch(dk);
                touch(ds);
                if (is_leader)
                    release(bars.q_empty(at.slot()));
                flags_before = flags;
                flags = flags_next;
                ds_before = ds_at_;
                ds_at_.next();
                at.next();
            }
            wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
            fence_proxy_async();
            dq_issue<piece>(dq, smem.ds(ds_before.slot) + dq_ds, dq_k);
            wgmma_wait<0>();
            touch(dq);
            if (is_leader) {
                if (ds_slots < 3)
                    mbarrier_arrive(bars.ds_empty(ds_before.slot));
                mbarrier_arrive(bars.kv_empty());
            }
            stage_dq<piece>(smem, dq, my.dq, flags_before, smem.block(at.before()),
                            warpgroup / panels * 64, (at.count + 1) % 2, warpgroup);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + warpgroup * 64 + thread / 32 * 16 + lane / 4;
        const int key_end = slot->tile.begin + slot->tile.count;
        const int kv_head = slot->kv_head, part = slot->part;
        const long long size = spec::dkv_fp32 ? 4 : 2;
        char *dk_to = (char *)a.dk + size * (kv_head * a.dk_head_stride + part * a.dk_part_stride);
        char *dv_to = (char *)a.dv + size * (kv_head * a.dv_head_stride + part * a.dv_part_stride);
        __syncwarp();
        if (is_leader)
            mbarrier_arrive(bars.tile_empty(tile_at.slot));
        store_gradient<head_dim_v>(a, dv, a.head_dim_v, dv_to, a.dv_token_stride, 1.0f, key,
                                   key_end, lane);
        store_gradient<head_dim>(a, dk, a.head_dim, dk_to, a.dk_token_stride, a.scale, key, key_end,
                                 lane);
    }
    if (spec::debug && is_leader)
        atom_shared_add(bars.watch() + 4, 1);
}

/* ---- consumers by role ---- */

/* Where the thread's P is on its way. Of a pair, in the place of dS, where each warp reads it
 * before it writes there what it makes of it. */
FFA_DEVICE uint32_t p_place(const shared_view &smem, int slot)
{
    return smem.base + (cluster > 1 ? ds_at + slot * ds_bytes : p_at) + thread_now() / 32 * 2048 +
           thread_now() % 32 * 16;
}

/* P, or with a softcap its slope, for the other warpgroup: what a thread has of P, the same thread
 * there has of dP. */
template <int count>
FFA_DEVICE void give_p(const shared_view &smem, int slot, const uint32_t (&p)[count])
{
    const uint32_t at = p_place(smem, slot);

#pragma unroll
    for (int i = 0; i < count; i += 4)
        st_shared_v4(at + i / 4 * 512, p[i], p[i + 1], p[i + 2], p[i + 3]);
}

/* dS as make_ds has it, P coming from there piece by piece. */
template <int count>
FFA_DEVICE void make_ds_of_given(uint32_t (&ds)[count], const shared_view &smem, int slot,
                                 const float (&dp)[2 * count], uint32_t stats)
{
    const uint32_t at = p_place(smem, slot);

#pragma unroll
    for (int i = 0; i < count; i += 4) {
        uint32_t p[4];
        ld_shared_v4(p, at + i / 4 * 512);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 d = ld_shared_f32x2(stats + (i + j) / 2 * 32);
            ds[i + j] = ds_pair(p[j], dp[2 * (i + j)], dp[2 * (i + j) + 1], d);
        }
    }
}

/* The warpgroup's piece of a block's dQ, from dS in slot `ds`. */
template <int count>
FFA_DEVICE void panel_issue(float (&dq)[count], const shared_view &smem, int ds, int warpgroup)
{
    if constexpr (cluster == 1) {
        dq_issue<2 * count>(dq, smem.ds(ds), smem.k() + warpgroup % panels * kv_panel_bytes);
    } else {
        const int column_bytes = 2 * pair_column(warpgroup);

        dq_issue<2 * count>(dq, smem.ds(ds),
                            smem.k() + pair_panel(warpgroup) * kv_panel_bytes + column_bytes,
                            smem.kx() + warpgroup * kv_panel_bytes + column_bytes);
    }
}

/* dS of a block is in shared memory: the warp's part, for this block and the other one of its pair.
 */
FFA_DEVICE void ds_done(const shared_view &smem, int slot)
{
    const barriers bars = smem.bars();

    if (cluster > 1)
        fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0)
        return;
    if constexpr (cluster == 1) {
        mbarrier_arrive(bars.ds_full(slot));
    } else {
        constexpr int bytes = own_ds_bytes / 4;
        const uint32_t from = smem.ds(slot) + thread_now() / 32 * bytes;

        mbarrier_arrive_expect_tx(bars.ds_full(slot), bytes); /* the other one's */
        cp_async_bulk_at(from + own_ds_bytes, from, bars.ds_full(slot), bytes, cluster_rank() ^ 1);
    }
}

/* Stages the warpgroup's piece of the block before the one at `at`. */
template <int count>
FFA_DEVICE void stage_panel(const shared_view &smem, float (&dq)[count], const position &at,
                            uint32_t to, int flags, int warpgroup)
{
    const uint32_t before = at.before();

    stage_dq<2 * count>(smem, dq, to, flags, smem.block(before), 0, before % 2, warpgroup);
}

/* dQ of a tile's last block, and the end of K and V. `at`: past that block, whose dS is in `ds`. */
template <bool has_dq, int count>
FFA_DEVICE void panel_end(const shared_view &smem, float (&dq)[count], const ring<ds_slots> &ds,
                          const position &at, uint32_t to, int flags, int warpgroup)
{
    const barriers bars = smem.bars();
    const bool is_leader = threadIdx.x % 32 == 0;

    if (has_dq || is_leader)
        wait(bars, bars.ds_full(ds.slot), ds.parity, at_ds_full);
    if constexpr (has_dq) {
        if (cluster == 1)
            fence_proxy_async();
        panel_issue(dq, smem, ds.slot, warpgroup);
        wgmma_wait<0>();
        touch(dq);
    }
    if (is_leader) {
        release(bars.ds_empty(ds.slot));
        mbarrier_arrive(bars.kv_empty());
    }
    if constexpr (has_dq)
        stage_panel(smem, dq, at, to, flags, warpgroup);
}

/* The first warpgroup: P, dV, and its piece of dQ. rows: tile_m, 64. */
template <int rows>
FFA_DEVICE void consumer_run_p(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const bool is_leader = threadIdx.x % 32 == 0;
    const places my = places_find(smem, 0, 0, p_columns);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_at_;
    uint32_t kv_parity = 0;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;

        float dv[dv_regs];
#pragma unroll
        for (int i = 0; i < dv_regs; ++i)
            dv[i] = 0.0f;
        if (slot->tile.sweep_count > 0) {
            float s[rows / 2], dq[p_columns / 2];
            float2 lse[stats_regs];
            uint32_t p[p_regs], slope[p_regs];
            ring<ds_slots> ds_before = ds_at_;
            int flags_before = 0;

            kv_ready(a, smem, slot, kv_parity, 0);
            kv_parity ^= 1;
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                const int flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, 0);
                stats_load(lse, smem.stats(at.slot()) + my.stats);
                scores_issue<head_dim>(s, smem.k(), smem.q(at.slot()));
                wgmma_wait<0>();
                touch(s);
                make_p(p, slope, s, lse, smem.stats(at.slot()) + my.stats, a, smem, at, slot, flags,
                       0);
                if (cluster > 1)
                    wait(bars, bars.ds_empty(ds_at_.slot), ds_at_.parity ^ 1, at_ds_empty);
                /* The other warpgroup has read P, as it has made dS of it. */
                if (!is_first)
                    wait(bars, bars.ds_full(ds_before.slot), ds_before.parity, at_ds_full);
                if (cluster == 1) /* in a pair who made dS has, to copy it */
                    fence_proxy_async();
                give_p(smem, ds_at_.slot, spec::softcap ? slope : p);
                __syncwarp();
                if (is_leader) {
                    mbarrier_arrive(bars.p_full());
                    release(bars.q_empty(at.slot()));
                }
                /* Under the first block dQ of old dS, as in consumer_run. */
                if constexpr (p_has_dq)
                    panel_issue(dq, smem, ds_before.slot, 0);
                dout_ready(smem, at, flags, 0);
                gradient_issue<head_dim_v>(dv, p, smem.dout(at.dout_slot()));
                if constexpr (p_has_dq) {
                    wgmma_wait<1>();
                    touch(dq);
                }
                if (!is_first) {
                    if (is_leader)
                        release(bars.ds_empty(ds_before.slot));
                    if constexpr (p_has_dq)
                        stage_panel(smem, dq, at, my.dq, flags_before, 0);
                }
                wgmma_wait<0>();
                touch(dv);
                touch(p);
                if (is_leader)
                    release(bars.dout_empty(at.dout_slot()));
                flags_before = flags;
                ds_before = ds_at_;
                ds_at_.next();
                at.next();
            }
            panel_end<p_has_dq>(smem, dq, ds_before, at, my.dq, flags_before, 0);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + thread / 32 * 16 + lane / 4;
        const int key_end = slot->tile.begin + slot->tile.count;
        const int kv_head = slot->kv_head, part = slot->part;
        char *to = (char *)a.dv + (spec::dkv_fp32 ? 4ll : 2ll) *
                                      (kv_head * a.dv_head_stride + part * a.dv_part_stride);
        __syncwarp();
        if (is_leader)
            mbarrier_arrive(bars.tile_empty(tile_at.slot));
        store_gradient<head_dim_v>(a, dv, a.head_dim_v, to, a.dv_token_stride, 1.0f, key, key_end,
                                   lane);
    }
    if (spec::debug && is_leader)
        atom_shared_add(bars.watch() + 4, 1);
}

/* The second: dS, dK, and its own. */
template <int rows>
FFA_DEVICE void consumer_run_ds(const attention_backward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    const bool is_leader = threadIdx.x % 32 == 0;
    const places my = places_find(smem, 1, 0, 64);
    ring<tile_slots> tile_at;
    position at;
    ring<ds_slots> ds_at_;
    ring<1> p_at_;
    uint32_t kv_parity = 0;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const backward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count < 0)
            break;

        float dk[dk_regs];
#pragma unroll
        for (int i = 0; i < dk_regs; ++i)
            dk[i] = 0.0f;
        if (slot->tile.sweep_count > 0) {
            float dp[rows / 2], dq[32];
            uint32_t ds[p_regs];
            ring<ds_slots> ds_before = ds_at_;
            int flags_before = 0;

            kv_ready(a, smem, slot, kv_parity, 1);
            kv_parity ^= 1;
            for (bool is_first = true, is_last = false; !is_last; is_first = false) {
                const int flags = q_wait(smem, at);
                is_last = flags & BACKWARD_BLOCK_LAST;
                q_cut(smem, at, flags, 1);
                dout_ready(smem, at, flags, 1);
                scores_issue<head_dim_v>(dp, smem.v(), smem.dout(at.dout_slot()));
                wgmma_wait<0>();
                touch(dp);
                if (is_leader)
                    release(bars.dout_empty(at.dout_slot()));
                wait(bars, bars.p_full(), p_at_.parity, at_p_full);
                make_ds_of_given(ds, smem, ds_at_.slot, dp, smem.stats_d(at.slot()) + my.stats);
                /* All dS of the block before is there: P was not given before. */
                if (cluster == 1)
                    fence_proxy_async();
                panel_issue(dq, smem, ds_before.slot, 1);
                if (cluster > 1)
                    __syncwarp(); /* all lanes have read P there */
                else
                    wait(bars, bars.ds_empty(ds_at_.slot), ds_at_.parity ^ 1, at_ds_empty);
                store_ds(ds, my.ds + ds_at_.slot * ds_bytes);
                ds_done(smem, ds_at_.slot);
                gradient_issue<head_dim>(dk, ds, smem.q(at.slot()));
                wgmma_wait<1>();
                touch(dq);
                if (!is_first) {
                    if (is_leader)
                        release(bars.ds_empty(ds_before.slot));
                    stage_panel(smem, dq, at, my.dq, flags_before, 1);
                }
                wgmma_wait<0>();
                touch(dk);
                touch(ds);
                if (is_leader)
                    release(bars.q_empty(at.slot()));
                flags_before = flags;
                ds_before = ds_at_;
                ds_at_.next();
                p_at_.next();
                at.next();
            }
            panel_end<true>(smem, dq, ds_before, at, my.dq, flags_before, 1);
        }
        const int thread = thread_now(), lane = thread % 32;
        const int key = slot->tile.begin + thread / 32 * 16 + lane / 4;
        const int key_end = slot->tile.begin + slot->tile.count;
        const int kv_head = slot->kv_head, part = slot->part;
        char *to = (char *)a.dk + (spec::dkv_fp32 ? 4ll : 2ll) *
                                      (kv_head * a.dk_head_stride + part * a.dk_part_stride);
        __syncwarp();
        if (is_leader)
            mbarrier_arrive(bars.tile_empty(tile_at.slot));
        store_gradient<head_dim>(a, dk, a.head_dim, to, a.dk_token_stride, a.scale, key, key_end,
                                 lane);
    }
    if (spec::debug && is_leader)
        atom_shared_add(bars.watch() + 4, 1);
}

}

extern "C" __global__ void __launch_bounds__(threads, 1)
    attention_backward(const __grid_constant__ attention_backward_args a)
{
    extern __shared__ char shared_bytes[];
    const uint32_t raw = shared_address(shared_bytes);
    const uint32_t pad = (1024 - raw % 1024) % 1024;
    const shared_view smem{ raw + pad, shared_bytes + pad };
    const barriers bars = smem.bars();
    const int warpgroup = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    const int lane = (int)threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            mbarrier_init(bars.q_full(s), 1);
            mbarrier_init(bars.q_empty(s), 4 * consumers * cluster);
            mbarrier_init(bars.dout_full(s), 1);
            mbarrier_init(bars.dout_empty(s), 4 * consumers * cluster);
        }
        mbarrier_init(bars.k_full(), 1);
        mbarrier_init(bars.v_full(), 1);
        mbarrier_init(bars.kv_empty(), 4 * consumers);
        mbarrier_init(bars.tile_asked(), 1);
        for (int s = 0; s < ds_slots; ++s) {
            mbarrier_init(bars.ds_full(s), is_specialised ? 4 : 4 * consumers);
            mbarrier_init(bars.ds_empty(s), 4 * consumers * cluster);
        }
        for (int p = 0; p < consumers; ++p) {
            mbarrier_init(bars.dq_full(p), 4);
            mbarrier_init(bars.dq_empty(p), 1);
        }
        if (is_specialised)
            mbarrier_init(bars.p_full(), 4);
        for (int s = 0; s < tile_slots; ++s) {
            mbarrier_init(bars.tile_full(s), scheduler_lanes);
            mbarrier_init(bars.tile_empty(s),
                          4 * consumers + 2 + senders + (spec::deterministic ? 1 : 0));
        }
        for (int s = 0; spec::deterministic && s < ticket_slots; ++s) {
            mbarrier_init(bars.ticket_full(s), 1);
            mbarrier_init(bars.ticket_empty(s), 1);
        }
        if (cluster > 1) {
            mbarrier_init(bars.mail_full(), 1);
            mbarrier_init(bars.mail_empty(), 1);
        }
        fence_mbarrier_init();
        st_shared(bars.watch(), 0);
        st_shared(bars.watch() + 4, 0);
    }
    if (cluster > 1)
        cluster_sync();
    else
        __syncthreads();

    if (warpgroup == 0) {
        setmaxnreg_dec<40>();
        if (warp == 1 && lane < scheduler_lanes)
            scheduler_run(a, smem, lane);
        else if (spec::deterministic && warp == 1 && lane == scheduler_lanes)
            turns_run(a, smem);
        else if (senders > 1 && warp == 1 && lane == scheduler_lanes)
            send_dq<senders - 1>(a, smem);
        else if (warp == 0 && lane == 0)
            produce_q(a, smem);
        else if (warp == 2 && lane == 0)
            produce_dout(a, smem);
        else if (warp == 3 && lane == 0)
            send_dq<0>(a, smem);
        else if (spec::debug && warp == 3 && lane == 2)
            watchdog_run(bars);
    } else {
        setmaxnreg_inc<232>();
        if constexpr (is_specialised) {
            if (warpgroup == 1)
                consumer_run_p<tile_m>(a, smem);
            else
                consumer_run_ds<tile_m>(a, smem);
        } else if (last_columns == 64) {
            consumer_run<64>(a, smem, warpgroup - 1);
        } else if (warpgroup == 1) {
            consumer_run<64>(a, smem, 0);
        } else {
            consumer_run<last_columns>(a, smem, 1);
        }
    }
    if (cluster > 1) { /* until nobody arrives here, or copies to here, any more */
        __syncwarp();
        cluster_sync();
    }
}
