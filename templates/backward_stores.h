/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_backward: dK and dV of a tile from a consumer's registers to global memory.
 */
#ifndef FFA_BACKWARD_STORES_H
#define FFA_BACKWARD_STORES_H

#include "backward_mask.h"

namespace {

/* Where dK or dV of a tile goes. */
struct gradient_place {
    char *to;       /* row 0 of the tensor, of the tile's kv head and part */
    bool is_narrow; /* dkv_fp32: in the model's dtype all the same */
};

/* Writes the thread's two rows of dK or dV, times `scale`; of a padded tensor the first `real`
 * columns. key: the first row; key_end: the end of the block's keys. Threads store two columns at a
 * time, as they hold them: exchanging registers for wider stores, which are rare, is a fifth of the
 * code, and of the time that head_dim 256 takes to compile. */
template <int columns>
FFA_DEVICE void store_gradient(const attention_backward_args &a, const float (&g)[columns / 2],
                               int real, const gradient_place &place, long long token_stride,
                               float scale, int key, int key_end, int lane)
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
            if (!spec::dkv_fp32 || place.is_narrow) {
                *(uint32_t *)((uint16_t *)place.to + first + j * 8) =
                    pack_half2<spec::dtype>(x.x, x.y);
            } else {
                float2 *at = (float2 *)((float *)place.to + first + j * 8);
                if (spec::arrivals && a.order.parts > 1 &&
                    a.dk_part_stride == 0) { /* one place for all */
                    atomicAdd(at, x);
                    continue;
                }
                if (a.flags & BACKWARD_ACCUMULATE) {
                    const float2 was = *at;
                    x.x += was.x;
                    x.y += was.y;
                }
                *at = x;
            }
        }
    }
}

constexpr long long gradient_bytes = spec::dkv_fp32 ? 4 : 2;

FFA_DEVICE bool is_narrow(const attention_backward_args &a, const backward_tile_slot *slot)
{
    if (spec::arrivals)
        return slot->tile.begin >= a.narrow_from;
    return spec::dkv_fp32 && slot->kv_head < a.order.whole_heads;
}

/* Narrow rows of keys that arrive begin with the key narrow_from. */
FFA_DEVICE gradient_place narrow_place(const attention_backward_args &a, void *to,
                                       long long token_stride, long long head_stride, int kv_head)
{
    const long long before = spec::arrivals ? a.narrow_from * token_stride : 0;

    return { (char *)((uint16_t *)to + kv_head * head_stride - before), true };
}

FFA_DEVICE gradient_place dk_find(const attention_backward_args &a, const backward_tile_slot *slot)
{
    if (is_narrow(a, slot))
        return narrow_place(a, a.narrow_dk, a.narrow_dk_token_stride, a.narrow_dk_head_stride,
                            slot->kv_head);
    return { (char *)a.dk + gradient_bytes *
                                (slot->kv_head * a.dk_head_stride + slot->part * a.dk_part_stride),
             false };
}

FFA_DEVICE gradient_place dv_find(const attention_backward_args &a, const backward_tile_slot *slot)
{
    if (is_narrow(a, slot))
        return narrow_place(a, a.narrow_dv, a.narrow_dv_token_stride, a.narrow_dv_head_stride,
                            slot->kv_head);
    return { (char *)a.dv + gradient_bytes *
                                (slot->kv_head * a.dv_head_stride + slot->part * a.dv_part_stride),
             false };
}

FFA_DEVICE void store_dk(const attention_backward_args &a, const float (&dk)[dk_regs],
                         const gradient_place &to, int key, int key_end, int lane)
{
    store_gradient<head_dim>(a, dk, a.head_dim, to,
                             to.is_narrow ? a.narrow_dk_token_stride : a.dk_token_stride, a.scale,
                             key, key_end, lane);
}

FFA_DEVICE void store_dv(const attention_backward_args &a, const float (&dv)[dv_regs],
                         const gradient_place &to, int key, int key_end, int lane)
{
    store_gradient<head_dim_v>(a, dv, a.head_dim_v, to,
                               to.is_narrow ? a.narrow_dv_token_stride : a.dv_token_stride, 1.0f,
                               key, key_end, lane);
}

}

#endif
