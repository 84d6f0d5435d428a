# SPDX-License-Identifier: Apache-2.0
"""Ulysses: ranks that share rows by exchanging heads around attention, alone or beside context parallelism.

    step = cp.plan(mask)                    # of libffa.torch.ContextParallel; or the mask itself
    step = Ulysses(group).share(step)
    ids, positions = step.dispatch(ids, positions)
    out = step.attention(q, k, v)           # the rank's rows, all heads

Outside attention a rank has its share of the rows, with all heads; inside, all of its group's rows, with its share of
the heads. Beside context parallelism the ranks of a Ulysses group are neighbours that share the rows of one
context-parallel rank, and each of them has a context-parallel group of its own, with its heads.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..mask import Mask
from .parallel import Step, check_local, check_rows, check_whole


class _Exchange(torch.autograd.Function):
    """[rows of this rank][all heads] to [all rows][heads of this rank], or back."""

    @staticmethod
    def forward(ctx, tensor, shared, to_rows):
        ctx.shared, ctx.to_rows = shared, to_rows
        return shared.to_rows(tensor) if to_rows else shared.to_heads(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return (ctx.shared.to_heads if ctx.to_rows else ctx.shared.to_rows)(gradient), None, None


class Ulysses:
    """A process group, or a one-dimensional DeviceMesh, whose ranks share rows."""

    def __init__(self, group: Any = None):
        if hasattr(group, "get_group"):
            group = group.get_group()
        self.group, self.rank, self.rank_count = group, dist.get_rank(group), dist.get_world_size(group)

    def share(self, inner) -> Shared:
        """A mask, or a step of ContextParallel.plan() that is the same on all ranks of the group, with its rows shared."""
        if not isinstance(inner, (Mask, Step)):
            raise TypeError(f"inner: {type(inner).__name__}, not a Mask or a step of ContextParallel")
        return Shared(self, inner)


class Shared:
    """A batch whose rows a Ulysses group shares: dispatch(), attention(), undispatch() as those of a context-parallel
    step. count: rows of this rank."""

    def __init__(self, ulysses: Ulysses, inner):
        self.ulysses, self.inner = ulysses, inner
        self.rows: int = inner.seqlen_q if isinstance(inner, Mask) else inner.count
        each, more = divmod(self.rows, ulysses.rank_count)
        self.counts = [each + (rank < more) for rank in range(ulysses.rank_count)]
        self.begin, self.count = sum(self.counts[:ulysses.rank]), self.counts[ulysses.rank]

    # ---- rows ----

    def dispatch(self, *tensors: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
        """This rank's rows of whole tensors with the tokens along `dim`."""
        if isinstance(self.inner, Mask):
            check_whole(tensors, dim, self.rows)
        else:
            tensors = self.inner.dispatch(*tensors, dim=dim)
        return [tensor.narrow(dim, self.begin, self.count) for tensor in tensors]

    def undispatch(self, local: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """The whole tensor, of all ranks' rows; without a gradient."""
        check_local(local, dim, self.count)
        local = local.detach().movedim(dim, 0)
        own = local.new_zeros((max(self.counts), *local.shape[1:]))
        own[:self.count] = local
        every = [torch.empty_like(own) for _ in self.counts]
        dist.all_gather(every, own, group=self.ulysses.group)
        rows = torch.cat([part[:count] for part, count in zip(every, self.counts)])
        if not isinstance(self.inner, Mask):
            rows = self.inner.undispatch(rows)
        return rows.movedim(0, dim)

    # ---- heads ----

    def to_rows(self, tensor):
        ranks = self.ulysses.rank_count
        rows, heads, width = tensor.shape
        parts = tensor.reshape(rows, ranks, heads // ranks, width).transpose(0, 1).reshape(ranks * rows, heads // ranks, width)
        out = tensor.new_empty((self.rows, heads // ranks, width))
        dist.all_to_all_single(out, parts.contiguous(), self.counts, [rows] * ranks, group=self.ulysses.group)
        return out

    def to_heads(self, tensor):
        ranks = self.ulysses.rank_count
        _, heads, width = tensor.shape
        parts = tensor.new_empty((ranks * self.count, heads, width))
        dist.all_to_all_single(parts, tensor.contiguous(), [self.count] * ranks, self.counts, group=self.ulysses.group)
        return parts.reshape(ranks, self.count, heads, width).transpose(0, 1).reshape(self.count, ranks * heads, width)

    @torch.compiler.disable
    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sink: torch.Tensor | None = None, **options):
        """Attention of this rank's rows [count][heads][head_dim] over all keys; options as libffa.torch.attention() has
        them, but return_lse and return_max_logits. heads_q must be a multiple of the ranks; kv heads that are fewer than
        ranks are repeated. A sink's gradient is that of the rank's heads, and 0 for others: ranks' gradients add up."""
        from . import attention

        check_rows(q, k, v, self.count, self.rows)
        ranks = self.ulysses.rank_count
        if q.shape[1] % ranks or (k.shape[1] % ranks and ranks % k.shape[1]):
            raise ValueError(f"q has {q.shape[1]} heads and k {k.shape[1]}: not shared by {ranks} ranks")
        if options.get("return_lse") or options.get("return_max_logits"):
            raise ValueError("return_lse, return_max_logits: not with exchanged heads")
        if k.shape[1] < ranks:
            k, v = (x.repeat_interleave(ranks // k.shape[1], dim=1) for x in (k, v))
        q, k, v = (_Exchange.apply(x, self, True) for x in (q, k, v))
        if sink is not None:
            sink = sink.unflatten(-1, (ranks, q.shape[1])).select(-2, self.ulysses.rank)
        if isinstance(self.inner, Mask):
            out = attention(q, k, v, self.inner, sink=sink, **options)
        else:
            out = self.inner.attention(q, k, v, sink=sink, **options)
        return _Exchange.apply(out, self, False)


__all__ = ["Shared", "Ulysses"]
