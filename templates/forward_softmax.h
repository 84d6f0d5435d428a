/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_forward: softmax without maxima.
 *
 * exp(s - shift) / sum exp(s - shift) is exact for any shift that neither overflows nor loses the
 * sum, so a row's shift need not be its maximum. It is taken from the row's first block with keys
 * and kept, and a later block takes its exponentials at once. Where a row's sum shows a score far
 * above its shift (2^64 times; in fp16 2^15, because P would overflow), the warp computes the
 * block's scores again with mma.sync and raises the shift (softmax_step). This takes a quarter of
 * the instructions out of the loop, and the maximum out of its critical path.
 */
#ifndef FFA_FORWARD_SOFTMAX_H
#define FFA_FORWARD_SOFTMAX_H

#include "forward_mask.h"
#include "forward_products.h"

namespace {

/* cap_scores leaves capped scores in log2 units. Without a softcap, scores stay raw. */
FFA_DEVICE float scores_scale(const attention_forward_args &a)
{
    return spec::softcap ? 1.0f : a.scale_log2;
}

/* s becomes softcap * log2(e) * tanh(softmax_scale * s / softcap), with tanh(x) = 1 - 2 / (1 +
 * e^2x). This is as exact as ex2.approx and rcp.approx are; tanh.approx has only 11 bits. */
FFA_DEVICE void cap_scores(float (&s)[s_regs], const attention_forward_args &a)
{
    if constexpr (spec::softcap) {
#pragma unroll
        for (int i = 0; i < s_regs; ++i)
            s[i] = fmaf(rcp_approx(1.0f + ex2_approx(s[i] * a.cap_inner)), -2.0f * a.cap_outer,
                        a.cap_outer);
    }
}

/* Of the thread's two rows. "log2 units": a score times scale_log2. */
struct softmax_state {
    float shift[2];   /* what is subtracted from scores, in log2 units; -inf: none yet */
    float sum[2];     /* this thread's share of sum exp2(score - shift) */
    float rescale[2]; /* what O must be multiplied with before the next product */
    bool has_rescale; /* uniform over the warp */
    bool is_settled;  /* every row of the warp has a shift; uniform over the warp */
    float top[2];     /* max_logits: this thread's largest scores */
};

/* Rows past the end of the tile get a shift at once, so that the warp can be settled. rows_left:
 * from the thread's first row to the end of the tile. */
FFA_DEVICE softmax_state softmax_begin(int rows_left)
{
    return softmax_state{ { rows_left > 0 ? neg_inf() : 0.0f, rows_left > 8 ? neg_inf() : 0.0f },
                          { 0.0f, 0.0f },
                          { 1.0f, 1.0f },
                          false,
                          false,
                          { neg_inf(), neg_inf() } };
}

/* max_logits: keeps the largest scores. The shift cannot serve, as it need not be a maximum. */
FFA_DEVICE void note_tops(const float (&s)[s_regs], softmax_state &st)
{
    if constexpr (spec::max_logits) {
#pragma unroll
        for (int i = 0; i < s_regs; ++i)
            st.top[i / 2 % 2] = fmaxf(st.top[i / 2 % 2], s[i]);
    }
}

/* s becomes exp2(scale_log2 * s - shift); `sum`: the thread's sums over the block. */
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

/* Scores become P, and the sums grow. The shift is raised to the block's maximum where that is more
 * than rescale_threshold above it. */
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

/* How far a score may be above the shift. P must stay finite in its own format: bf16 has the range
 * of fp32, fp16 ends at 2^16. */
constexpr float far_above = spec::dtype == 1 ? 0x1p64f : 0x1p15f;

/* The common case: scores become P with the shift as it is, and no maximum is taken. False: a score
 * was far above the shift, or NaN. Then `s` is spoilt, and the scores must be computed again. */
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

/* Multiplies O with what the last block's softmax asked for, if it did. */
FFA_DEVICE void rescale_o(float (&o)[o_regs], const softmax_state &st)
{
    if (st.has_rescale) {
#pragma unroll
        for (int i = 0; i < o_regs; ++i)
            o[i] *= st.rescale[i / 2 % 2];
    }
}

/* The softmax of any block but a tile's first: S becomes P, in place. q, k: this warpgroup's rows
 * of Q, and the block's keys, in shared memory. */
FFA_DEVICE void softmax_block(float (&s)[s_regs], softmax_state &st, const cursor &c,
                              const attention_forward_args &a, uint32_t q, uint32_t k, int thread)
{
    const float scale = scores_scale(a);
    bool is_settled = st.is_settled;

#pragma unroll 1
    for (;;) { /* twice at most; a loop, so that the mask's code is there once */
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

}

#endif
