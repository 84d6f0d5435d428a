# SPDX-License-Identifier: Apache-2.0
"""The operators libffa::forward and libffa::backward, for torch.compile, opcheck, and whatever looks at operators.

A mask is an int argument: its number (Mask.id). A compiled graph takes it as an input, so that another mask is the same
graph. Eager calls on plain tensors do not go through an operator but through _Eager, which costs less host time.
"""
from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _calls
from ._calls import BACKWARD, MAX_LOGITS, empty, sum_dtype


@torch.library.custom_op("libffa::forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], mask: int, scale: float, softcap: float, flags: int,
            heads_first: bool) -> Tuple[Tensor, Tensor, Tensor]:
    return _calls.forward(q, k, v, sink, mask, scale, softcap, flags, heads_first)


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
    *gradients, dsink = _calls.backward(dout, dlse, q, k, v, out, lse, sink, mask, scale, softcap, flags, heads_first)
    return *gradients, q.new_empty(0) if dsink is None else dsink


@backward.register_fake
def _(dout, dlse, q, k, v, out, lse, sink, mask, scale, softcap, flags, heads_first):
    gradients = [empty(t, t.shape[0], t.shape[1], t.shape[2], t.shape[3], heads_first, t.dtype) for t in (q, k, v)]
    return *gradients, q.new_empty(0) if sink is None else torch.empty_like(sink)


def _setup(ctx, inputs, output):
    q, k, v, sink, mask, scale, softcap, flags, heads_first = inputs
    out, lse, logits = output
    ctx.mark_non_differentiable(logits)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, sink)
    ctx.options = mask, scale, softcap, flags, heads_first


def _gradients(ctx, run, dout, dlse):
    q, k, v, out, lse, sink = ctx.saved_tensors
    if not ctx.options[3] & BACKWARD:
        raise RuntimeError("libffa: flags of this forward call have no FFA_SPEC_BACKWARD")
    if dout is None:
        dout = torch.zeros_like(out)
    *gradients, dsink = run(dout, dlse, q, k, v, out, lse, sink, *ctx.options)
    return *gradients, None if sink is None else dsink, None, None, None, None, None


def _backward(ctx, dout, dlse, dlogits):
    return _gradients(ctx, backward, dout, dlse)


forward.register_autograd(_backward, setup_context=_setup)


class _Eager(torch.autograd.Function):
    """The same, without the dispatcher."""

    @staticmethod
    def forward(ctx, q, k, v, sink, *options):
        results = _calls.forward(q, k, v, sink, *options)
        _setup(ctx, (q, k, v, sink, *options), results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse, dlogits):
        return _gradients(ctx, _calls.backward, dout, dlse)


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_plain(q, k, v):
    """Whether nobody looks at operators: no compiler, no subclass, no dispatch mode, no functorch."""
    return (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None)


def run(q, k, v, sink, *options):
    """(out, lse, max_logits) by the way that suits."""
    if torch.compiler.is_compiling() or not _is_plain(q, k, v):
        return forward(q, k, v, sink, *options)
    if options[3] & BACKWARD:
        return _Eager.apply(q, k, v, sink, *options)
    return _calls.forward(q, k, v, sink, *options)
