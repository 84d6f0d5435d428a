# SPDX-License-Identifier: Apache-2.0
"""The reference of context parallelism: all keys are gathered by the process group, and each rank computes its rows.

Nothing is hidden behind computation, and every rank holds all keys of a layer while it computes. It works where the
process group does, and is what the other transport is compared with.
"""
from __future__ import annotations

import torch
import torch.distributed as dist

from ..mask import Mask


def _padded(local, rows):
    if local.shape[0] == rows:
        return local.contiguous()
    out = local.new_zeros((rows, *local.shape[1:]))
    out[:local.shape[0]] = local
    return out


class Whole(torch.autograd.Function):
    """whole [tokens, ...] of local [count, ...] of all ranks. Its gradient is the rows of the whole gradient, which every
    rank has, or, summed, has a part of."""

    @staticmethod
    def forward(ctx, local, step, summed):
        ctx.step, ctx.summed = step, summed
        own = _padded(local.detach(), max(step.counts))
        every = [torch.empty_like(own) for _ in range(step.cp.rank_count)]
        dist.all_gather(every, own, group=step.cp.group)
        return torch.cat(every).index_select(0, step.order_on(local.device))

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        if ctx.summed:
            whole = gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient.clone()
            dist.all_reduce(whole, group=ctx.step.cp.group)
            gradient = whole.to(gradient.dtype)
        return gradient.index_select(0, ctx.step.ids_on(gradient.device)), None, None


def runs(ids):
    """The runs of consecutive tokens in a rank's rows: (row, token, count)."""
    breaks = ((ids[1:] - ids[:-1]) != 1).nonzero().flatten() + 1
    bounds = [0, *breaks.tolist(), len(ids)]
    return [(begin, int(ids[begin]), end - begin) for begin, end in zip(bounds, bounds[1:]) if end > begin]


def local_mask(mask: Mask, ids) -> Mask:
    """The mask of a rank's rows over all keys."""
    rows, keys = len(ids), mask.seqlen_k
    parts = [mask.crop((token, token + count), (0, keys)).shift(row, 0, rows, keys) for row, token, count in runs(ids)]
    return parts[0] if len(parts) == 1 else Mask.union(parts)


def attention(step, q, k, v, index, scale, softcap, sink, return_lse, return_max_logits, deterministic):
    from . import attention as attend

    keys, values = Whole.apply(k, step, True), Whole.apply(v, step, True)
    mask = step._made.get(index)
    if mask is None:
        mask = step._made[index] = local_mask(step.masks[index], step.ids)
    found = attend(q, keys, values, mask, scale=scale, softcap=softcap, sink=sink, return_lse=return_lse,
                   return_max_logits=return_max_logits, deterministic=deterministic)
    if not return_max_logits:
        return found
    *others, largest = found
    largest = largest.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=step.cp.group)
    return (*others, largest)
