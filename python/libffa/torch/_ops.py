# SPDX-License-Identifier: Apache-2.0
"""The operators libffa::forward and libffa::backward, for torch.compile, opcheck, and whatever looks at operators.

A mask is an int argument: its number (Mask.id). A compiled graph takes it as an input, so that another mask is the same
graph. Operators take and return [batch, tokens, heads, head_dim]; outputs have heads first in memory where heads_first.
Eager calls on plain tensors do not go through an operator but through _Eager, which costs less host time, and any layout.
"""
from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..mask import registry
from . import _calls
from ._calls import BACKWARD, MAX_LOGITS
from ._layout import Layout, empty, is_heads_first, sum_dtype


def _arranged(tensor, heads_first):
    """A result in the memory order that the fake kernel promised, also where a dimension of 1 hid the order."""
    if heads_first:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.contiguous()


@torch.library.custom_op("libffa::forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], mask: int, scale: float, softcap: float, flags: int,
            heads_first: bool) -> Tuple[Tensor, Tensor, Tensor]:
    out, lse, logits = _calls.forward(q, k, v, sink, mask, scale, softcap, flags, Layout.BSHD)
    if logits is None:
        logits = q.new_empty(0, dtype=sum_dtype(q.dtype))
    return _arranged(out, heads_first), _arranged(lse, heads_first), logits


@forward.register_fake
def _(q, k, v, sink, mask, scale, softcap, flags, heads_first):
    batch, tokens, heads, _ = q.shape
    sums = sum_dtype(q.dtype)
    return (empty(q, batch, tokens, heads, v.shape[3], heads_first, q.dtype),
            empty(q, batch, tokens, heads, None, heads_first, sums),
            q.new_empty(heads if flags & MAX_LOGITS else 0, dtype=sums))


@torch.library.custom_op("libffa::backward", mutates_args=())
def backward(dout: Tensor, dlse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
             sink: Optional[Tensor], mask: int, scale: float, softcap: float, flags: int,
             heads_first: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    *gradients, dsink = _calls.backward(dout, dlse, q, k, v, out, lse, sink, mask, scale, softcap, flags, Layout.BSHD)
    return *(_arranged(g, heads_first) for g in gradients), q.new_empty(0) if dsink is None else dsink


@backward.register_fake
def _(dout, dlse, q, k, v, out, lse, sink, mask, scale, softcap, flags, heads_first):
    gradients = [empty(t, t.shape[0], t.shape[1], t.shape[2], t.shape[3], heads_first, t.dtype) for t in (q, k, v)]
    return *gradients, q.new_empty(0) if sink is None else torch.empty_like(sink)


def _setup(ctx, inputs, output):
    q, k, v, sink, *options = inputs
    out, lse, logits = output
    if logits is not None:
        ctx.mark_non_differentiable(logits)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, sink)
    ctx.options = options


def _gradients(ctx, run, dout, dlse):
    q, k, v, out, lse, sink = ctx.saved_tensors
    if not ctx.options[3] & BACKWARD:
        raise RuntimeError("libffa: the forward call's flags have no FFA_SPEC_BACKWARD")
    if dout is None:
        dout = torch.zeros_like(out)
    *gradients, dsink = run(dout, dlse, q, k, v, out, lse, sink, *ctx.options)
    return *gradients, None if sink is None else dsink, None, None, None, None, None


def _backward(ctx, dout, dlse, dlogits):
    return _gradients(ctx, backward, dout, dlse)


forward.register_autograd(_backward, setup_context=_setup)


class _Eager(torch.autograd.Function):
    """The same, without the dispatcher, in any layout."""

    @staticmethod
    def forward(ctx, q, k, v, sink, *options):
        results = _calls.forward(q, k, v, sink, *options)
        _setup(ctx, (q, k, v, sink, *options), results)
        ctx.mask = registry.get(options[0])  # lives until the backward pass
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse, dlogits):
        return _gradients(ctx, _calls.backward, dout, dlse)


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_plain(q, k, v):
    """Whether nobody looks at operators: no compiler, no subclass, no dispatch mode, no functorch."""
    return (not torch.compiler.is_compiling() and type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN
            and torch._C._len_torch_dispatch_stack() == 0 and torch._C._functorch.peek_interpreter_stack() is None)


def run(q, k, v, sink, mask: int, scale: float, softcap: float, flags: int, layout: Layout):
    """(out, lse, max_logits) by the way that suits."""
    if _is_plain(q, k, v):
        call = _Eager.apply if flags & BACKWARD else _calls.forward
        return call(q, k, v, sink, mask, scale, softcap, flags, layout)
    q, k, v = layout.canonical(q), layout.canonical(k), layout.canonical(v)
    out, lse, logits = forward(q, k, v, sink, mask, scale, softcap, flags, is_heads_first(q))
    return layout.restored(out), layout.restored(lse), logits
