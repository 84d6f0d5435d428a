/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: out = softmax(scale * q k^T on the mask) v, and lse, for sm_90a.
 *
 * Persistent blocks take (tile, head) work items from a counter; each owns its output rows and
 * writes them once. One block is a producer warpgroup (warp 0: copies, warp 1: scheduler) and
 * `consumers` warpgroups of 64 query rows each. Per tile the consumers walk the tile's sweeps from
 * the last block of keys to the first:
 *
 *     issue S' = Q K'^T, rescale O if the shift moved, issue O += P V, wait for S', softmax of
 *     S' -> P', wait for O
 *
 * so that one warpgroup's exponentials run under the other's matrix products, and its own under
 * its O += P V. Warpgroups are not ordered by barriers: with the softmax short enough they settle
 * into turns, and the barrier of FlashAttention-3's ping-pong costs 1 % here.
 *
 * Softmax without maxima: exp(s - shift) / sum exp(s - shift) is exact for any shift that neither
 * overflows nor loses the sum, so a row's shift need not be its maximum. It is taken from the row's
 * first block with keys and kept; a later block takes its exponentials at once. Where a row's sum
 * shows a score far above its shift (2^64 times, in fp16 2^15, whose P would overflow), the warp
 * computes the block's scores again with mma.sync and raises the shift (softmax_step). This takes
 * a quarter of the instructions out of the loop and the maximum out of its critical path.
 *
 * Masks: only blocks that the plan does not call full are masked, from a row's [lo, hi) in
 * registers. Rows of V past the end of a sweep belong to nobody here and are zeroed in shared
 * memory, so that their NaNs never meet P = 0.
 *
 * A packed specialisation: row i of a tile is query row i / pack and head i % pack of the kv head's,
 * so that a tile's keys serve all of them, and its rows attend nearly the same keys.
 *
 * head_dim is padded by the copy engine: columns past a tensor's own are zero in shared memory, and
 * are not stored. Sums of int stay below 2^31: the host refuses more tokens or work items.
 *
 * Learnt on an H200, in cycles of a pass: the loop is at 93 % of the tensor cores' speed, and its
 * control counts. To take half of a block where a warpgroup's 64 rows attend no more, and to pass
 * over blocks that they do not attend, is 5.6 % less work of a window of 1024 keys, and took 5.6 %
 * more cycles; the branches for it alone, 2.6 % more of a full mask. To issue the first scores of
 * the next tile before the rows of this one are stored, and to do the loop's control and wait for K
 * under O += P V, changed nothing (0.1 %): while one warpgroup begins or ends a tile, the other has
 * the tensor cores to itself. To move the last block of a sweep back, so that it ends with it and no
 * row of V needs to be zeroed, gained 0.3 to 1.1 % at head_dim 128 and lost 0.3 to 2.8 % at 64. To
 * begin and end a tile takes as long as two blocks; packed rows lose less at the ends of a window or
 * a document, and with a tile_n that fits it a window of 1024 keys takes 5.7 % (head_dim 64: 19 %)
 * fewer cycles.
 *
 * (Algorithm: FlashAttention-3, Shah et al. 2024. Plan and masks: tile_plan.h.)
 */
#include "attention_forward.args.h"
#include "ffa_device.h"
#include "fragment.h"
#include "ptx.h"
#include "wgmma.h"

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
constexpr int stages = spec::stages;
constexpr int threads = 128 * (consumers + 1);
constexpr int panels = attention_forward_panels(head_dim);
constexpr int v_panels = attention_forward_panels(head_dim_v);
constexpr int o_regs = head_dim_v / 2;
constexpr int s_regs = tile_n / 2;
constexpr int p_regs = tile_n / 4;
constexpr bool has_partial = spec::out_fp32 || spec::staged;
static_assert(!spec::split || !has_partial, "parts are combined into an out of dtype");
static_assert(!spec::out_fp32 || !spec::staged, "out is fp32 always, or until the last stage");
static_assert(head_dim % 16 == 0, "head_dim must be a multiple of 16");
static_assert(head_dim_v % 32 == 0, "head_dim_v must be a multiple of 32");
static_assert(tile_n % 16 == 0, "tile_n must be a multiple of 16");

constexpr int q_slots = attention_forward_q_slots(head_dim, head_dim_v, tile_m, tile_n, stages);
constexpr int tile_slots = FORWARD_TILE_SLOTS;
constexpr int q_panel_bytes = tile_m * FORWARD_PANEL_BYTES;
constexpr int kv_panel_bytes = tile_n * FORWARD_PANEL_BYTES;
constexpr int q_bytes = panels * q_panel_bytes;
constexpr int k_bytes = panels * kv_panel_bytes;
constexpr int v_bytes = v_panels * kv_panel_bytes;

/* Offsets in shared memory, from a 1024-byte boundary. */
constexpr int q_at = 0;
constexpr int k_at = q_at + q_slots * q_bytes;
constexpr int v_at = k_at + stages * k_bytes;
constexpr int bars_at = v_at + stages * v_bytes;
constexpr int bar_count = 4 * stages + 2 * q_slots + 2 * tile_slots;
constexpr int watch_at = bars_at + 8 * bar_count;
constexpr int slots_at = watch_at + 8;
static_assert(1024 + slots_at + tile_slots * (int)sizeof(forward_tile_slot) ==
                  attention_forward_shared_bytes(head_dim, head_dim_v, tile_m, tile_n, stages,
                                                 q_slots),
              "host and device disagree on shared memory");

/* k_full[s], v_full[s]: the producer arrives once with the block's bytes; consumers wait.
 * k_empty[s], v_empty[s]: each consumer warp arrives when its products have read the block.
 * q_full[s], q_empty[s]: the same for the tile's Q.
 * tile_full[s]: the scheduler's lanes arrive; producer and consumers wait for the tile's record.
 * tile_empty[s]: consumer warps and the producer arrive when they need the record no more. */
struct barriers {
    uint32_t base;
    FFA_DEVICE_MEMBER uint32_t k_full(int s) const { return base + 8 * s; }
    FFA_DEVICE_MEMBER uint32_t k_empty(int s) const { return base + 8 * (stages + s); }
    FFA_DEVICE_MEMBER uint32_t v_full(int s) const { return base + 8 * (2 * stages + s); }
    FFA_DEVICE_MEMBER uint32_t v_empty(int s) const { return base + 8 * (3 * stages + s); }
    FFA_DEVICE_MEMBER uint32_t q_full(int s) const { return base + 8 * (4 * stages + s); }
    FFA_DEVICE_MEMBER uint32_t q_empty(int s) const
    {
        return base + 8 * (4 * stages + q_slots + s);
    }
    FFA_DEVICE_MEMBER uint32_t tile_full(int s) const
    {
        return base + 8 * (4 * stages + 2 * q_slots + s);
    }
    FFA_DEVICE_MEMBER uint32_t tile_empty(int s) const
    {
        return base + 8 * (4 * stages + 2 * q_slots + tile_slots + s);
    }
    /* Two words of the watchdog: who is stuck, and how many consumer warps are done. */
    FFA_DEVICE_MEMBER uint32_t watch() const { return base + watch_at - bars_at; }
};

/* Q of the tile at a ring position: with two slots it goes with the tile's own, with one slot the
 * phase flips each tile. */
FFA_DEVICE int q_slot(const ring<tile_slots> &at)
{
    return q_slots == 2 ? at.slot : 0;
}

FFA_DEVICE uint32_t q_parity(const ring<tile_slots> &at)
{
    return q_slots == 2 ? at.parity : (uint32_t)at.slot;
}
static_assert(tile_slots == 2, "q_slot and q_parity count on it");

/* Who waits, for a debug specialisation's last words. */
enum wait_name : int {
    at_tile_full_producer = 1,
    at_tile_full_consumer,
    at_tile_empty,
    at_q_full,
    at_q_empty,
    at_k_full,
    at_k_empty,
    at_v_full,
    at_v_empty
};

/* A debug specialisation's waits give up after about a second: they leave their name in shared
 * memory, where the watchdog finds it. (A call to printf here would spill the accumulators.) */
FFA_DEVICE void wait(const barriers &bars, uint32_t bar, uint32_t parity, wait_name name)
{
    for (int tries = 0; !mbarrier_try_wait_parity(bar, parity); ++tries)
        if (spec::debug && tries == 1 << 20)
            st_shared(bars.watch(), (uint32_t)name << 16 | threadIdx.x);
}

/* The watchdog of a debug specialisation: one thread, until all consumer warps are done. */
FFA_DEVICE void watchdog_run(const barriers &bars)
{
    while (ld_shared(bars.watch() + 4) < 4 * consumers) {
        const uint32_t stuck = ld_shared(bars.watch());
        if (stuck) {
            const char *names[] = { "?",
                                    "tile_full (producer)",
                                    "tile_full (consumer)",
                                    "tile_empty",
                                    "q_full",
                                    "q_empty",
                                    "k_full",
                                    "k_empty",
                                    "v_full",
                                    "v_empty" };
            printf("attention_forward: block %d: thread %d waits for %s without end\n",
                   (int)blockIdx.x, (int)(stuck & 0xffff), names[stuck >> 16]);
            __trap();
        }
        __nanosleep(1000);
    }
}

struct shared_view {
    uint32_t base; /* shared-window address of the 1024-byte boundary */
    char *generic;
    FFA_DEVICE_MEMBER uint32_t q(int slot) const { return base + q_at + slot * q_bytes; }
    FFA_DEVICE_MEMBER uint32_t k(int s) const { return base + k_at + s * k_bytes; }
    FFA_DEVICE_MEMBER uint32_t v(int s) const { return base + v_at + s * v_bytes; }
    FFA_DEVICE_MEMBER barriers bars() const { return barriers{ base + bars_at }; }
    FFA_DEVICE_MEMBER forward_tile_slot *slot(int s) const
    {
        return reinterpret_cast<forward_tile_slot *>(generic + slots_at) + s;
    }
};

/* Sweep `index` of a tile: from its slot, or from the plan where the slot is too small. */
FFA_DEVICE plan_sweep tile_sweep(const attention_forward_args &a, const forward_tile_slot *slot,
                                 int index)
{
    return index < FORWARD_INLINE_SWEEPS ? slot->sweeps[index]
                                         : a.sweeps[slot->tile.sweep_begin + index];
}

FFA_DEVICE plan_band tile_band(const attention_forward_args &a, const forward_tile_slot *slot,
                               int index)
{
    return index < FORWARD_INLINE_BANDS ? slot->bands[index]
                                        : a.bands[slot->tile.band_begin + index];
}

/* ---- scheduler: one warp, up to tile_slots tiles ahead ---- */

struct work {
    int tile, head;
};

/* Item -> (tile, head): sections of heads outermost, then tiles longest first, then the heads of a
 * section, so that what runs at a time shares K and V in L2. */
FFA_DEVICE work work_find(const attention_forward_args &a, int item)
{
    if (a.flags & FORWARD_LIST_PER_KV_HEAD)
        return work{ item / a.group, item % a.group };
    const int section_items = a.tile_count * a.l2_heads;
    const int section = item / section_items;
    const int rest = item - section * section_items;
    const int first_head = section * a.l2_heads;
    const int heads = min(a.l2_heads, a.heads_q - first_head);
    return work{ rest / heads, first_head + rest % heads };
}

FFA_DEVICE void scheduler_run(const attention_forward_args &a, const shared_view &smem, int lane)
{
    const barriers bars = smem.bars();
    ring<tile_slots> at;
    int item = (int)blockIdx.x;

    for (;;) {
        wait(bars, bars.tile_empty(at.slot), at.parity ^ 1, at_tile_empty);
        forward_tile_slot *slot = smem.slot(at.slot);
        const bool has_work = item < a.work_count;
        if (has_work) {
            const work w = work_find(a, item);
            const plan_tile tile = a.tiles[w.tile];
            if (lane == 0) {
                slot->tile = tile;
                slot->head =
                    w.head + (a.flags & FORWARD_LIST_PER_KV_HEAD ? tile.list * a.group : 0);
            }
            if (lane < FORWARD_INLINE_SWEEPS && lane < tile.sweep_count)
                slot->sweeps[lane] = a.sweeps[tile.sweep_begin + lane];
            if (lane < FORWARD_INLINE_BANDS && lane < tile.band_count)
                slot->bands[lane] = a.bands[tile.band_begin + lane];
        } else if (lane == 0) {
            slot->tile.count = 0;
        }
        mbarrier_arrive(bars.tile_full(at.slot));
        at.next();
        if (!has_work)
            break;
        if (lane == 0)
            item = (int)gridDim.x + atomicAdd(&a.counters[0], 1);
        item = __shfl_sync(0xffffffffu, item, 0);
    }
    /* The last block to finish leaves the counters ready for the next launch: every block has
     * taken its last item by then. */
    if (lane == 0 && atomicAdd(&a.counters[1], 1) == (int)gridDim.x - 1) {
        atomicExch(&a.counters[0], 0);
        atomicExch(&a.counters[1], 0);
    }
}

/* ---- packed rows ---- */

/* Rows of a tile per query row of the plan. */
FFA_DEVICE int pack_of(const attention_forward_args &a)
{
    return spec::packed ? a.pack : 1;
}

/* The query row that a row of the tile is of, less the tile's first. A division here and where rows
 * are stored took 2 % of a window of 1024 keys. */
FFA_DEVICE int query_row(const attention_forward_args &a, int row)
{
    return spec::packed ? row * a.pack_inverse >> 16 : row;
}

/* Rows of a tile that a box of Q fills. */
FFA_DEVICE int pack_rows(const attention_forward_args &a)
{
    return query_row(a, tile_m) * a.pack;
}

/* ---- producer: one thread ---- */

template <int count>
FFA_DEVICE void load_block(const void *map, uint32_t dst, uint32_t bar, int head, int row)
{
    mbarrier_arrive_expect_tx(bar, count * kv_panel_bytes);
#pragma unroll
    for (int panel = 0; panel < count; ++panel)
        cp_async_bulk_tensor_3d(dst + panel * kv_panel_bytes, map, bar, panel * 64, head, row);
}

FFA_DEVICE void producer_run(const attention_forward_args &a, const shared_view &smem)
{
    const barriers bars = smem.bars();
    ring<tile_slots> tile_at;
    ring<stages> k_at_, v_at_;

    prefetch_tensormap(&a.q);
    prefetch_tensormap(&a.k);
    prefetch_tensormap(&a.v);
    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_producer);
        const forward_tile_slot *slot = smem.slot(tile_at.slot);
        const int sweep_count = slot->tile.sweep_count;
        if (slot->tile.count == 0)
            break;
        const int head = slot->head;
        const int kv_head = head / a.group;
        const int q = q_slot(tile_at);
        int pending_row = -1; /* V lags one block behind K, as it is used later */

        wait(bars, bars.q_empty(q), q_parity(tile_at) ^ 1, at_q_empty);
        mbarrier_arrive_expect_tx(bars.q_full(q),
                                  spec::packed ? panels * FORWARD_PANEL_BYTES * pack_rows(a)
                                               : q_bytes);
#pragma unroll
        for (int panel = 0; panel < panels; ++panel)
            cp_async_bulk_tensor_3d(smem.q(q) + panel * q_panel_bytes, &a.q, bars.q_full(q),
                                    panel * 64, spec::packed ? head * a.pack : head,
                                    slot->tile.begin);
        for (int i = 0; i < sweep_count; ++i) {
            const plan_sweep sweep = tile_sweep(a, slot, i);
            const int blocks = (sweep.end - sweep.begin + tile_n - 1) / tile_n;
            for (int j = blocks - 1; j >= 0; --j) {
                const int row = sweep.begin + j * tile_n;
                wait(bars, bars.k_empty(k_at_.slot), k_at_.parity ^ 1, at_k_empty);
                load_block<panels>(&a.k, smem.k(k_at_.slot), bars.k_full(k_at_.slot), kv_head, row);
                k_at_.next();
                if (pending_row >= 0) {
                    wait(bars, bars.v_empty(v_at_.slot), v_at_.parity ^ 1, at_v_empty);
                    load_block<v_panels>(&a.v, smem.v(v_at_.slot), bars.v_full(v_at_.slot), kv_head,
                               pending_row);
                    v_at_.next();
                }
                pending_row = row;
            }
        }
        mbarrier_arrive(bars.tile_empty(tile_at.slot));
        if (pending_row >= 0) {
            wait(bars, bars.v_empty(v_at_.slot), v_at_.parity ^ 1, at_v_empty);
            load_block<v_panels>(&a.v, smem.v(v_at_.slot), bars.v_full(v_at_.slot), kv_head, pending_row);
            v_at_.next();
        }
    }
}

/* ---- consumers ---- */

/* The first of a consumer thread's two rows in the tile. */
FFA_DEVICE int tile_row()
{
    const int thread = thread_index() - 128;

    return thread / 32 * 16 + thread % 32 / 4;
}

/* Where a consumer stands in its tile's sweeps, from the last block of a sweep to its first. */
struct cursor {
    int sweep_index;
    int key;                  /* first key of the block */
    int k_begin;              /* of the sweep */
    int full_begin, full_end; /* of the sweep; full_end less a block */
    int tail;                 /* rows of the block past the sweep's end */
    int lo[2], hi[2]; /* keys that the thread's two rows attend, less the thread's first column */
    FFA_DEVICE_MEMBER bool is_full() const { return key >= full_begin && key <= full_end; }
};

FFA_DEVICE void cursor_enter(cursor &c, const attention_forward_args &a,
                             const forward_tile_slot *slot)
{
    const plan_sweep sweep = tile_sweep(a, slot, c.sweep_index);
    int row[2];
    const int column = thread_index() % 4 * 2;
    const int blocks = (sweep.end - sweep.begin + tile_n - 1) / tile_n;

#pragma unroll
    for (int r = 0; r < 2; ++r)
        row[r] = slot->tile.begin + query_row(a, tile_row() + 8 * r);
    c.k_begin = sweep.begin;
    c.key = sweep.begin + (blocks - 1) * tile_n;
    c.full_begin = sweep.full_begin;
    c.full_end = sweep.full_end - tile_n;
    c.tail = c.key + tile_n - sweep.end;
    c.lo[0] = c.lo[1] = 0;
    c.hi[0] = c.hi[1] = sweep.begin - tile_n; /* nothing */
#pragma unroll 1
    for (int i = 0; i < sweep.band_count; ++i) {
        const plan_band band = tile_band(a, slot, sweep.band_begin + i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int d = row[r] - band.begin;
            if (d >= 0 && row[r] < band.end) {
                c.lo[r] = band.lo + band.lo_step * d - column;
                c.hi[r] = band.hi + band.hi_step * d - column;
            }
        }
    }
}

/* To the next block; false: that was the last one of the tile. */
FFA_DEVICE bool cursor_next(cursor &c, const attention_forward_args &a,
                            const forward_tile_slot *slot)
{
    if (c.key != c.k_begin) {
        c.key -= tile_n;
        c.tail = 0;
        return true;
    }
    if (++c.sweep_index >= slot->tile.sweep_count)
        return false;
    cursor_enter(c, a, slot);
    return true;
}

/* Scores of a softcap specialisation are capped and in log2 units from here on; others stay raw. */
FFA_DEVICE float scores_scale(const attention_forward_args &a)
{
    return spec::softcap ? 1.0f : a.scale_log2;
}

/* s -> softcap * log2(e) * tanh(softmax_scale * s / softcap), tanh(x) = 1 - 2 / (1 + e^2x): as
 * exact as its two approximations, where tanh.approx has 11 bits. */
FFA_DEVICE void cap_scores(float (&s)[s_regs], const attention_forward_args &a)
{
    if constexpr (spec::softcap) {
#pragma unroll
        for (int i = 0; i < s_regs; ++i)
            s[i] = fmaf(rcp_approx(1.0f + ex2_approx(s[i] * a.cap_inner)), -2.0f * a.cap_outer,
                        a.cap_outer);
    }
}

/* Scores outside [lo, hi) of their row become -inf. */
FFA_DEVICE void mask_scores(float (&s)[s_regs], const cursor &c)
{
    const int lo[2] = { c.lo[0] - c.key, c.lo[1] - c.key };
    const int hi[2] = { c.hi[0] - c.key, c.hi[1] - c.key };

    mask_columns(s, lo, hi);
}

/* Per thread, two rows. "log2 units": a score times scale_log2. */
struct softmax_state {
    float
        shift[2]; /* subtracted from scores in log2 units: a maximum seen so far; -inf: none yet */
    float sum[2]; /* this thread's share of sum exp2(score - shift) */
    float rescale[2]; /* what O must be multiplied with before the next product */
    bool has_rescale; /* uniform over the warp */
    bool is_settled;  /* every row of the warp has a shift; uniform over the warp */
    float top[2];     /* max_logits: this thread's largest scores */
};

/* Rows past the end of a tile belong to nobody: with a shift from the start, no block waits for
 * them. */
FFA_DEVICE softmax_state softmax_begin(int rows_left)
{
    return softmax_state{ { rows_left > 0 ? neg_inf() : 0.0f, rows_left > 8 ? neg_inf() : 0.0f },
                          { 0.0f, 0.0f },
                          { 1.0f, 1.0f },
                          false,
                          false,
                          { neg_inf(), neg_inf() } };
}

/* Largest scores of a max_logits specialisation: not the shift, which stays where it was. */
FFA_DEVICE void note_tops(const float (&s)[s_regs], softmax_state &st)
{
    if constexpr (spec::max_logits) {
#pragma unroll
        for (int i = 0; i < s_regs; ++i)
            st.top[i / 2 % 2] = fmaxf(st.top[i / 2 % 2], s[i]);
    }
}

/* s -> exp2(scale_log2 * s - shift); adds up each row's share of the block. */
FFA_DEVICE void exponentials(float (&s)[s_regs], const softmax_state &st, float scale_log2,
                             float (&sum)[2])
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float shift = st.shift[r] == neg_inf() ? 0.0f : st.shift[r];
        float part[2] = { 0.0f, 0.0f };
#pragma unroll
        for (int j = 0; j < tile_n / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = j * 4 + r * 2 + e;
                s[i] = ex2_approx(fmaf(s[i], scale_log2, -shift));
                part[e] += s[i];
            }
        sum[r] = part[0] + part[1];
    }
}

/* The maximum of each row of the block, in log2 units, the same in all four threads of the row. */
FFA_DEVICE void row_maxima(const float (&s)[s_regs], float scale_log2, float (&top)[2])
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float part[4];
#pragma unroll
        for (int j = 0; j < tile_n / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = j * 4 + r * 2 + e, at = j % 2 * 2 + e;
                part[at] = j < 2 ? s[i] : fmaxf(part[at], s[i]);
            }
        float best = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        top[r] = best * scale_log2;
    }
}

constexpr float rescale_threshold = 8.0f;

/* Scores to P and the sums, raising the shift to the block's maximum where that is far above it. */
FFA_DEVICE void softmax_step(float (&s)[s_regs], softmax_state &st, float scale_log2)
{
    float top[2], sum[2];
    bool grew[2];

    row_maxima(s, scale_log2, top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        /* False for -inf - -inf = NaN: a row still without keys. */
        grew[r] = top[r] - st.shift[r] > rescale_threshold;
        st.rescale[r] = grew[r] ? ex2_approx(st.shift[r] - top[r]) : 1.0f;
        st.shift[r] = grew[r] ? top[r] : st.shift[r];
    }
    st.has_rescale = __any_sync(0xffffffffu, grew[0] || grew[1]);
    st.is_settled = __all_sync(0xffffffffu, st.shift[0] != neg_inf() && st.shift[1] != neg_inf());
    exponentials(s, st, scale_log2, sum);
#pragma unroll
    for (int r = 0; r < 2; ++r)
        st.sum[r] = st.sum[r] * st.rescale[r] + sum[r];
}

/* P must stay finite in its own format: bf16 has the range of fp32, fp16 ends at 2^16. */
constexpr float far_above = spec::dtype == 1 ? 0x1p64f : 0x1p15f;

/* The common case: scores to P with the shift there is, no maximum taken. False, with `s` spoilt,
 * where a score was far above the shift (or NaN): then the scores are needed again. */
FFA_DEVICE bool softmax_step_settled(float (&s)[s_regs], softmax_state &st, float scale_log2)
{
    float sum[2];

    exponentials(s, st, scale_log2, sum);
    if (__any_sync(0xffffffffu, !(sum[0] <= far_above) || !(sum[1] <= far_above)))
        return false;
    st.sum[0] += sum[0];
    st.sum[1] += sum[1];
    st.has_rescale = false;
    return true;
}

/* The scores of this warp's 16 rows once more, with mma.sync: warps decide alone, and wgmma would
 * need all four. `q`: this warpgroup's rows of Q. */
FFA_DEVICE void scores_again(float (&s)[s_regs], uint32_t q, uint32_t k, int thread)
{
    const int lane = thread % 32;
    const int q_row = thread / 32 * 16 + lane % 16, q_half = lane / 16;
    const int k_row = lane / 16 * 8 + lane % 8, k_half = lane / 8 % 2;

#pragma unroll
    for (int i = 0; i < s_regs; ++i)
        s[i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < head_dim / 16; ++step) {
        const int chunk = step % 4 * 2;
        uint32_t a[4], b[4];
        ldmatrix_x4(a, q + step / 4 * q_panel_bytes + q_row * 128 +
                           ((chunk + q_half) ^ (q_row & 7)) * 16);
#pragma unroll
        for (int j = 0; j < tile_n / 16; ++j) {
            const int row = j * 16 + k_row;
            ldmatrix_x4(b, k + step / 4 * kv_panel_bytes + row * 128 +
                               ((chunk + k_half) ^ (row & 7)) * 16);
            mma_m16n8k16<spec::dtype>(s[8 * j], s[8 * j + 1], s[8 * j + 2], s[8 * j + 3], a, b[0],
                                      b[1]);
            mma_m16n8k16<spec::dtype>(s[8 * j + 4], s[8 * j + 5], s[8 * j + 6], s[8 * j + 7], a,
                                      b[2], b[3]);
        }
    }
}

FFA_DEVICE void convert_p(uint32_t (&p)[p_regs], const float (&s)[s_regs])
{
#pragma unroll
    for (int i = 0; i < p_regs; ++i)
        p[i] = pack_half2<spec::dtype>(s[2 * i], s[2 * i + 1]);
}

FFA_DEVICE void rescale_o(float (&o)[o_regs], const softmax_state &st)
{
#pragma unroll
    for (int i = 0; i < o_regs; ++i)
        o[i] *= st.rescale[i / 2 % 2];
}

FFA_DEVICE void issue_qk(float (&s)[s_regs], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step)
        wgmma<tile_n, spec::dtype>::ss(
            s, descriptor_advance(q, step / 4 * q_panel_bytes + step % 4 * 32),
            descriptor_advance(k, step / 4 * kv_panel_bytes + step % 4 * 32), step > 0);
}

FFA_DEVICE void issue_pv(float (&o)[o_regs], const uint32_t (&p)[p_regs], uint64_t v,
                         int accumulate)
{
#pragma unroll
    for (int step = 0; step < tile_n / 16; ++step)
        wgmma<head_dim_v, spec::dtype>::rs(o, p[4 * step], p[4 * step + 1], p[4 * step + 2],
                                           p[4 * step + 3], descriptor_advance(v, step * 2048),
                                           step > 0 ? 1 : accumulate);
}

/* Rows [tile_n - tail, tile_n) of a V block become 0. Every warpgroup writes all of them: the same
 * zeros, so they may meet. */
FFA_DEVICE void zero_tail(uint32_t v, int tail, int warpgroup, int thread)
{
    for (int i = (tile_n - tail) * 8 + thread; i < tile_n * 8; i += 128)
#pragma unroll
        for (int panel = 0; panel < v_panels; ++panel)
            st_shared_v4_zero(v + panel * kv_panel_bytes + i * 16);
    fence_proxy_async();
    warpgroup_sync(warpgroup);
}

/* The sinks join a row's sum, all of the row's threads alike; the shift is raised where a sink is
 * above it. Returns what O must be scaled with for the new shift. */
FFA_DEVICE float add_sinks(const attention_forward_args &a, int head, float &shift, float &sum)
{
    float next = shift;

    if (a.sink_count == 0)
        return 1.0f;
#pragma unroll 1
    for (int i = 0; i < a.sink_count; ++i)
        next = fmaxf(next, a.sink[i * a.sink_stride + head] * 1.4426950408889634f);
    if (next == neg_inf())
        return 1.0f;
    const float keep = ex2_approx(shift - next);
    sum *= keep;
#pragma unroll 1
    for (int i = 0; i < a.sink_count; ++i)
        sum +=
            ex2_approx(fmaf(a.sink[i * a.sink_stride + head], 1.4426950408889634f, -next));
    shift = next;
    return keep;
}

/* How a row of this call joins what out and lse held: out = old * was + new * is. An empty pair has
 * lse = -inf and is not read, whatever its out. */
struct row_merge {
    float was, is;
    float lse; /* of both, in log2 units */
};

FFA_DEVICE row_merge merge_row(float old_lse, float new_lse)
{
    const float top = fmaxf(old_lse, new_lse);
    if (top == neg_inf())
        return row_merge{ 0.0f, 0.0f, top };
    const float was = ex2_approx(old_lse - top), is = ex2_approx(new_lse - top);
    const float inverse = 1.0f / (was + is);
    return row_merge{ was * inverse, is * inverse, top + lg2_approx(was + is) };
}

/* What storing needs of a tile, which is another's by then. */
struct tile_rows {
    int row_begin, row_count; /* of a part: among the results of parts */
    int first; /* the thread's first row, counted in the tile */
    int head, flags;
};

/* One of the thread's two rows of a tile: where it goes. */
struct row_place {
    int token, head; /* of a part: its row among the results of parts */
    bool is_mine;    /* inside the tile */
    bool is_part;
};

FFA_DEVICE float *lse_of(const attention_forward_args &a, const row_place &at)
{
    if (spec::split && at.is_part)
        return a.part_lse + (long long)at.token * a.sink_stride + at.head;
    return a.lse + (long long)at.token * a.lse_token_stride + (long long)at.head * a.lse_head_stride;
}

/* The fp32 row that is merged with, or left for the next stage or for what combines parts. */
FFA_DEVICE float *partial_of(const attention_forward_args &a, const row_place &at)
{
    return a.partial + (long long)at.token * a.partial_token_stride +
           (long long)at.head * a.partial_head_stride;
}

/* Row r of the warp's tile: O becomes the row of out, sinks and what was there included. Returns
 * lse, natural. */
FFA_DEVICE float row_finish(const attention_forward_args &a, float (&o)[o_regs],
                            const softmax_state &st, int r, const row_place &at, int tile_flags,
                            int quad)
{
    float shift = st.shift[r], sum = st.sum[r], keep = 1.0f, was = 0.0f;
    bool merges = false;

    if (spec::out_fp32)
        merges = a.flags & FORWARD_ACCUMULATE;
    else if (spec::staged)
        merges = tile_flags & PLAN_TILE_MERGES;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    /* Sinks enter with the first stage, and where parts are combined. */
    if ((!spec::staged || !merges) && (!spec::split || !at.is_part))
        keep = add_sinks(a, at.head, shift, sum);
    const bool is_empty = sum == 0.0f;
    float lse = is_empty ? neg_inf() : shift + lg2_approx(sum);
    float scale = keep / sum;

    if (has_partial) {
        const float old =
            merges && at.is_mine ? *lse_of(a, at) * 1.4426950408889634f : neg_inf();
        const row_merge merge = merge_row(old, lse);
        scale *= merge.is;
        was = merge.was;
        lse = merge.lse;
    }
#pragma unroll
    for (int j = 0; j < head_dim_v / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            o[j * 4 + r * 2 + e] = is_empty ? 0.0f : o[j * 4 + r * 2 + e] * scale;
    if (has_partial && was != 0.0f) {
        const float *row = partial_of(a, at) + quad * 2;
#pragma unroll
        for (int j = 0; j < head_dim_v / 8; ++j)
            if (j * 8 < a.head_dim_v) {
                const float2 value = ld_global_v2(row + j * 8);
                o[j * 4 + r * 2] = fmaf(was, value.x, o[j * 4 + r * 2]);
                o[j * 4 + r * 2 + 1] = fmaf(was, value.y, o[j * 4 + r * 2 + 1]);
            }
    }
    return lse * 0.6931471805599453f;
}

FFA_DEVICE void row_store_fp32(const attention_forward_args &a, const float (&o)[o_regs], int r,
                               const row_place &at, int quad)
{
    float *row = partial_of(a, at) + quad * 2;

    if (at.is_mine)
#pragma unroll
        for (int j = 0; j < head_dim_v / 8; ++j)
            if (j * 8 < a.head_dim_v)
                *(float2 *)(row + j * 8) = make_float2(o[j * 4 + r * 2], o[j * 4 + r * 2 + 1]);
}

/* Four threads of a row trade registers so that each stores 16 bytes of 8 neighbouring columns. */
FFA_DEVICE void row_store(const attention_forward_args &a, const float (&o)[o_regs], int r,
                          const row_place &at, int quad)
{
    const bool is_odd = quad & 1, is_high = quad & 2;
    uint16_t *row = (uint16_t *)a.out + (long long)at.token * a.out_token_stride +
                    (long long)at.head * a.out_head_stride + quad * 8;
#pragma unroll
    for (int g = 0; g < head_dim_v / 32; ++g) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int i = (g * 4 + j) * 4 + r * 2;
            x[j] = pack_half2<spec::dtype>(o[i], o[i + 1]);
        }
        const uint32_t r0 = __shfl_xor_sync(0xffffffffu, is_odd ? x[0] : x[1], 1);
        const uint32_t r1 = __shfl_xor_sync(0xffffffffu, is_odd ? x[2] : x[3], 1);
        const uint32_t y0 = is_odd ? r0 : x[0], y1 = is_odd ? x[1] : r0;
        const uint32_t y2 = is_odd ? r1 : x[2], y3 = is_odd ? x[3] : r1;
        const uint32_t z0 = __shfl_xor_sync(0xffffffffu, is_high ? y0 : y2, 2);
        const uint32_t z1 = __shfl_xor_sync(0xffffffffu, is_high ? y1 : y3, 2);
        if (at.is_mine && g * 32 + quad * 8 < a.head_dim_v)
            st_global_v4(row + g * 32, is_high ? z0 : y0, is_high ? z1 : y1, is_high ? y2 : z0,
                         is_high ? y3 : z1);
    }
}

/* A head's largest logit. The host has filled the array with ones, a NaN that both orders below put
 * under every number. */
FFA_DEVICE void raise_top(const attention_forward_args &a, int head, float top)
{
    top = top * scores_scale(a) * 0.6931471805599453f + 0.0f; /* + 0: no -0 */
    if (top >= 0.0f)
        atomicMax((int *)a.max_logits + head, __float_as_int(top));
    else
        atomicMin((unsigned *)a.max_logits + head, __float_as_uint(top));
}

/* The warp's rows are of one head; packed ones each of its own. */
FFA_DEVICE void store_tops(const attention_forward_args &a, const softmax_state &st,
                           const row_place (&at)[2], int lane)
{
    float top[2];

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        top[r] = at[r].is_mine ? st.top[r] : neg_inf();
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        if (spec::packed && at[r].is_mine && lane % 4 == 0)
            raise_top(a, at[r].head, top[r]);
    }
    if (!spec::packed) {
        float all = fmaxf(top[0], top[1]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, lanes));
        if (lane == 0)
            raise_top(a, at[0].head, all);
    }
}

/* Write the thread's two rows of out and lse. */
FFA_DEVICE void store_rows(const attention_forward_args &a, float (&o)[o_regs],
                           const softmax_state &st, const tile_rows &rows, int lane)
{
    const int quad = lane % 4;
    row_place at[2];
    float lse[2];

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = rows.first + 8 * r, query = query_row(a, row);
        at[r] = row_place{ rows.row_begin + query,
                           spec::packed ? rows.head * a.pack + row - query * a.pack : rows.head,
                           row < rows.row_count * pack_of(a),
                           spec::split && rows.flags & PLAN_TILE_PART };
        lse[r] = row_finish(a, o, st, r, at[r], rows.flags, quad);
    }
    if (has_partial)
        __syncwarp(); /* a row's four threads have read its lse */
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (spec::out_fp32 || (spec::staged && rows.flags & PLAN_TILE_CONTINUES) ||
            (spec::split && rows.flags & PLAN_TILE_PART))
            row_store_fp32(a, o, r, at[r], quad);
        else
            row_store(a, o, r, at[r], quad);
        if (at[r].is_mine && quad == 0)
            *lse_of(a, at[r]) = lse[r];
    }
    if (spec::max_logits)
        store_tops(a, st, at, lane);
}

/* S = Q K^T of the block at ring position `at`; committed, not waited for. */
FFA_DEVICE void scores_issue(float (&s)[s_regs], const shared_view &smem, uint64_t q,
                             const ring<stages> &at)
{
    touch(s);
    asm volatile("" : "+l"(q)); /* the descriptors of its steps are added up, not kept */
    wgmma_fence();
    issue_qk(s, q, descriptor_k_major(smem.k(at.slot)));
    wgmma_commit();
}

/* O (+)= P V likewise, after what V and O still need. */
FFA_DEVICE void output_issue(float (&o)[o_regs], uint32_t (&p)[p_regs], const shared_view &smem,
                             const softmax_state &st, const ring<stages> &at, int tail,
                             bool is_first, int warpgroup, int thread)
{
    const barriers bars = smem.bars();

    if (st.has_rescale)
        rescale_o(o, st);
    wait(bars, bars.v_full(at.slot), at.parity, at_v_full);
    if (tail > 0)
        zero_tail(smem.v(at.slot), tail, warpgroup, thread);
    touch(o);
    touch(p);
    wgmma_fence();
    issue_pv(o, p, descriptor_mn_major(smem.v(at.slot), kv_panel_bytes), !is_first);
    wgmma_commit();
}

/* S of a block -> P, in place. `q`: this warpgroup's rows in shared memory, `k` the block's. */
FFA_DEVICE void softmax_block(float (&s)[s_regs], softmax_state &st, const cursor &c,
                              const attention_forward_args &a, uint32_t q, uint32_t k, int thread)
{
    const float scale = scores_scale(a);
    bool is_settled = st.is_settled;

#pragma unroll 1
    for (;;) { /* twice at most: one copy of the mask */
        cap_scores(s, a);
        if (!c.is_full())
            mask_scores(s, c);
        note_tops(s, st);
        if (!is_settled)
            break;
        if (softmax_step_settled(s, st, scale))
            return;
        scores_again(s, q, k, thread);
        is_settled = false;
    }
    softmax_step(s, st, scale);
}

FFA_DEVICE void consumer_run(const attention_forward_args &a, const shared_view &smem,
                             int warpgroup, int thread)
{
    const barriers bars = smem.bars();
    const int lane = thread % 32;
    const bool is_leader = lane == 0;
    ring<tile_slots> tile_at;
    ring<stages> k_at_, v_at_;

    for (;; tile_at.next()) {
        wait(bars, bars.tile_full(tile_at.slot), tile_at.parity, at_tile_full_consumer);
        const forward_tile_slot *slot = smem.slot(tile_at.slot);
        if (slot->tile.count == 0)
            break;

        float o[o_regs];
        softmax_state st = softmax_begin(slot->tile.count * pack_of(a) - tile_row());

        if (slot->tile.sweep_count > 0) {
            const uint64_t q = descriptor_k_major(smem.q(q_slot(tile_at)) + warpgroup * 64 * 128);
            float s[s_regs];
            uint32_t p[p_regs];
            bool is_first = true;
            cursor c;

            c.sweep_index = 0;
            cursor_enter(c, a, slot);
            wait(bars, bars.q_full(q_slot(tile_at)), q_parity(tile_at), at_q_full);
            wait(bars, bars.k_full(k_at_.slot), k_at_.parity, at_k_full);
            scores_issue(s, smem, q, k_at_);
            wgmma_wait<0>();
            touch(s);
            if (is_leader)
                mbarrier_arrive(bars.k_empty(k_at_.slot));
            k_at_.next();
            cap_scores(s, a);
            if (!c.is_full())
                mask_scores(s, c);
            note_tops(s, st);
            softmax_step(s, st, scores_scale(a));
            st.has_rescale = false; /* there is no O yet */
            convert_p(p, s);

            for (int tail = c.tail; cursor_next(c, a, slot); tail = c.tail) {
                wait(bars, bars.k_full(k_at_.slot), k_at_.parity, at_k_full);
                scores_issue(s, smem, q, k_at_);
                output_issue(o, p, smem, st, v_at_, tail, is_first, warpgroup, thread);
                wgmma_wait<1>();
                touch(s);
                softmax_block(s, st, c, a, smem.q(q_slot(tile_at)) + warpgroup * 64 * 128,
                              smem.k(k_at_.slot), thread);
                __syncwarp();
                if (is_leader)
                    mbarrier_arrive(bars.k_empty(k_at_.slot));
                k_at_.next();
                wgmma_wait<0>();
                touch(o);
                touch(p);
                if (is_leader)
                    mbarrier_arrive(bars.v_empty(v_at_.slot));
                v_at_.next();
                convert_p(p, s);
                is_first = false;
            }
            if (is_leader)
                mbarrier_arrive(bars.q_empty(q_slot(tile_at)));

            output_issue(o, p, smem, st, v_at_, c.tail, is_first, warpgroup, thread);
            wgmma_wait<0>();
            touch(o);
            if (is_leader)
                mbarrier_arrive(bars.v_empty(v_at_.slot));
            v_at_.next();
        } else {
            wait(bars, bars.q_full(q_slot(tile_at)), q_parity(tile_at), at_q_full);
            if (is_leader)
                mbarrier_arrive(bars.q_empty(q_slot(tile_at)));
#pragma unroll
            for (int i = 0; i < o_regs; ++i)
                o[i] = 0.0f;
        }
        const bool is_part = spec::split && slot->tile.flags & PLAN_TILE_PART;
        const tile_rows rows = { is_part ? slot->tile.part_row : slot->tile.begin,
                                 slot->tile.count, tile_row(), slot->head,
                                 has_partial || spec::split ? slot->tile.flags : 0 };
        __syncwarp();
        if (is_leader)
            mbarrier_arrive(bars.tile_empty(tile_at.slot));
        store_rows(a, o, st, rows, lane);
    }
    if (spec::debug && is_leader)
        atom_shared_add(bars.watch() + 4, 1);
}

}

extern "C" __global__ void __launch_bounds__(threads, 1)
    attention_forward(const __grid_constant__ attention_forward_args a)
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
        fence_mbarrier_init();
        st_shared(bars.watch(), 0);
        st_shared(bars.watch() + 4, 0);
    }
    if (spec::packed) { /* rows that no box fills: zeros, no NaN */
        for (int i = (int)threadIdx.x; i < q_slots * q_bytes / 16; i += threads)
            st_shared_v4_zero(smem.q(0) + i * 16);
        fence_proxy_async();
    }
    __syncthreads();

    if (warpgroup == 0) {
        if (consumers == 2)
            setmaxnreg_dec<40>();
        else if (consumers == 3)
            setmaxnreg_dec<32>();
        if (warp == 1)
            scheduler_run(a, smem, lane);
        else if (warp == 0 && lane == 0)
            producer_run(a, smem);
        else if (spec::debug && warp == 2 && lane == 0)
            watchdog_run(bars);
    } else {
        if (consumers == 2)
            setmaxnreg_inc<232>();
        else if (consumers == 3)
            setmaxnreg_inc<160>();
        consumer_run(a, smem, warpgroup - 1, (int)threadIdx.x % 128);
    }
}
