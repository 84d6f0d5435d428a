# SPDX-License-Identifier: Apache-2.0
"""The operators libffa::forward and libffa::backward, for torch.compile, opcheck, and whatever looks at operators.

A mask is an int argument: its number (Mask.id). A compiled graph takes it as an input, so that another mask is the same
graph. Operators take and return [batch, tokens, heads, head_dim]; outputs have heads first in memory where heads_first.
Eager calls on plain tensors do not go through an operator but directly to the library, in any layout, by _Eager where
there are gradients: that costs less host time. Both ways end in _calls.forward's and backward's prepared calls.
"""
# Annotations are types, not texts: PyTorch 2.6 reads the operators' schemas from them.
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ..errors import UnsupportedError
from . import _calls
from ._calls import BACKWARD, DETERMINISTIC, MAX_LOGITS, SOFTCAP
from ._layout import empty, is_heads_first, layout_of, sum_dtype
from ._private import find_apply, is_forward_mode, is_transformed, is_watched as _is_watched, is_wrapped


def _arranged(tensor, heads_first):
    """A result in the memory order that the fake kernel promised, also where a dimension of 1 hid the order."""
    if heads_first:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.contiguous()


@torch.library.custom_op("libffa::forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], mask: int, scale: float, softcap: float, flags: int,
            heads_first: bool) -> Tuple[Tensor, Tensor, Tensor]:
    out, lse, logits = _calls.forward(q, k, v, sink, (mask, scale, softcap, flags, "BSHD"))
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
    *gradients, dsink = _calls.backward(dout, dlse, q, k, v, out, lse, sink, (mask, scale, softcap, flags, "BSHD"))
    return *(_arranged(g, heads_first) for g in gradients), q.new_empty(0) if dsink is None else dsink


@backward.register_fake
def _(dout, dlse, q, k, v, out, lse, sink, mask, scale, softcap, flags, heads_first):
    gradients = [empty(t, t.shape[0], t.shape[1], t.shape[2], t.shape[3], heads_first, t.dtype) for t in (q, k, v)]
    return *gradients, q.new_empty(0) if sink is None else torch.empty_like(sink)


def _setup(ctx, inputs, output):
    q, k, v, sink, *ctx.options, ctx.heads_first = inputs
    out, lse, logits = output
    ctx.mark_non_differentiable(logits)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, sink)


def _backward(ctx, dout, dlse, _dlogits):
    q, k, v, out, lse, sink = ctx.saved_tensors
    if not ctx.options[3] & BACKWARD:
        raise RuntimeError("libffa: the forward call's flags have no FFA_SPEC_BACKWARD")
    if dout is None:
        dout = torch.zeros_like(out)
    *gradients, dsink = backward(dout, dlse, q, k, v, out, lse, sink, *ctx.options, ctx.heads_first)
    return *gradients, None if sink is None else dsink, None, None, None, None, None


forward.register_autograd(_backward, setup_context=_setup)


class _Refusing(torch.autograd.Function):
    """The gradients make(*arguments), whose own derivatives are refused. PyTorch sees every tensor argument as an
    input, so a gradient that depends on q, k or v is never taken for a constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(make, *arguments):
        return make(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_gradients):
        raise UnsupportedError("libffa.torch.attention has no second derivative")

    @staticmethod
    def jvp(ctx, *_tangents):
        raise UnsupportedError("libffa.torch.attention has no second derivative, and so its gradients have no tangents")


def once(make, *arguments):
    """The gradients make(*arguments), for a backward pass, which may be asked for derivatives of them."""
    if (torch.is_grad_enabled() or is_forward_mode()) and not torch.compiler.is_compiling():
        return _Refusing.apply(make, *arguments)
    return make(*arguments)


_NO_TANGENTS = ("libffa.torch.attention has no forward-mode derivative (jvp, jacfwd, linearize, dual tensors), only the reverse one: "
                "backward(), torch.autograd.grad, torch.func.grad, vjp, jacrev")


class _Transformed(torch.autograd.Function):
    """The operator for transforms of torch.func, which do not take an operator's gradient, and for tensors with tangents, which
    an operator ignores. options: a function that returns those of the operator, as transforms take tuples apart."""

    @staticmethod
    def forward(q, k, v, sink, options):
        return forward(q, k, v, sink, *options())

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.options = inputs
        out, lse, logits = output
        ctx.mark_non_differentiable(logits)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[:3], out, lse, tensors[3])

    @staticmethod
    def backward(ctx, dout, dlse, _dlogits):
        q, k, v, out, lse, sink = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        *gradients, dsink = once(backward, dout, dlse, q, k, v, out, lse, sink, *ctx.options())
        return *gradients, None if sink is None else dsink, None

    @staticmethod
    def vmap(info, dims, *inputs):
        """A call a sample. PyTorch's own rule does not get as far as jvp() where there is no sink."""
        if info.batch_size == 0:
            raise ValueError("libffa.torch.attention: vmap over 0 samples")
        samples = [_Transformed.apply(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, dims)))
                   for i in range(info.batch_size)]
        return tuple(map(torch.stack, zip(*samples))), (0, 0, 0)

    @staticmethod
    def jvp(ctx, *_tangents):
        raise UnsupportedError(_NO_TANGENTS)


class _Eager(torch.autograd.Function):
    """A prepared call without the dispatcher: (out, lse, max_logits), or out alone, as each result costs the host time."""

    @staticmethod
    def forward(ctx, q, k, v, sink, call):
        out, lse, logits = call.results(q, k, v, sink)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.call = call
        if call.is_out_enough:
            return out
        ctx.set_materialize_grads(False)
        if not call.returns_lse:
            lse = None
        if logits is not None:
            ctx.mark_non_differentiable(logits)
        return out, lse, logits

    @staticmethod
    def backward(ctx, dout, dlse=None, _dlogits=None):
        tensors, call = ctx.saved_tensors, ctx.call
        if dout is None:
            dout = torch.zeros_like(tensors[3])
        if not (torch.is_grad_enabled() or _is_watched()):
            gradients = _calls.backward(dout, dlse, *tensors, call.options, call)
            if gradients is not None:
                return *gradients, None
        q, k, v, out, lse, sink = tensors
        layout, lse = call.layout, call.whole_lse(lse)
        dout, dlse, q, k, v, out, lse = (None if t is None else layout.canonical(t) for t in (dout, dlse, q, k, v, out, lse))
        *gradients, dsink = once(backward, dout, dlse, q, k, v, out, lse, sink, *call.options[:4], is_heads_first(q, k))
        return *map(layout.restored, gradients), None if sink is None else dsink, None


_apply = find_apply(_Eager)


def _is_plain(*tensors):
    """Whether nothing but a watcher keeps a call from the library: no subclass, no tensor of functorch, no tracing."""
    return not torch.jit.is_tracing() and all(
        t is None or type(t) in (Tensor, torch.nn.Parameter) and not (is_wrapped and is_wrapped(t)) for t in tensors)


def autocast(*tensors):
    """What autocast makes of the inputs: it casts floating-point tensors, but for those of float64."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _refuse_kinds(tensors):
    """Raise where an argument is no tensor, or one of a kind that has no strides."""
    for name, tensor in tensors.items():
        if tensor is None and name == "sink":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {type(tensor).__name__}, not a tensor")
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else tensor.layout
            advice = "; pack it: its values() with Mask.from_cu_seqlens() of its offsets()" if tensor.is_nested else ""
            raise UnsupportedError(f"{name}: a {kind} tensor, not a strided one{advice}")


def _options(q, k, v, sink, asked, transformed):
    """The options of a call (_calls.py), of what attention() was asked for. Tensors of a transform do not say whether one behind
    it takes gradients."""
    number, scale, softcap, layout, _, returns_logits, deterministic, _, is_grad_enabled = asked
    flags = (SOFTCAP if softcap else 0) | (MAX_LOGITS if returns_logits else 0)
    if is_grad_enabled and (transformed or any(t is not None and t.requires_grad for t in (q, k, v, sink))):
        flags |= BACKWARD | (DETERMINISTIC if deterministic else 0)
    return number, 0.0 if scale is None else scale, softcap, flags, layout


def _operator(q, k, v, sink, options, transformed):
    """attention() by the operator."""
    layout = layout_of(options[4], q, k, v)
    q, k, v = layout.canonical(q), layout.canonical(k), layout.canonical(v)
    options = *options[:4], is_heads_first(q, k)
    if transformed:
        out, lse, logits = _Transformed.apply(q, k, v, sink, lambda: options)
    else:
        out, lse, logits = forward(q, k, v, sink, *options)
    return layout.restored(out), layout.restored(lse), logits


def _returned(results, returns_lse, returns_logits):
    """What attention() returns of (out, lse, max_logits)."""
    out, lse, logits = results
    if not (returns_lse or returns_logits):
        return out
    return (out,) + ((lse,) if returns_lse else ()) + ((logits,) if returns_logits else ())


def run(q, k, v, sink, asked):
    """attention() by the way that suits. asked: (mask's number, scale or None, softcap, layout's name or None, return_lse,
    return_max_logits, deterministic, whether there is no sink, whether gradients are on), by which a prepared call is found.
    That is for plain tensors only, and which of them require gradients is its guard's to see: nothing else is looked at where
    it is found."""
    call = None if _is_watched() else _calls.find(asked, q, k, v, sink)
    if call is None or call.is_autocast and call.dtype != torch.get_autocast_dtype(q.device.type):
        _refuse_kinds({"q": q, "k": k, "v": v, "sink": sink})
        q, k, v = autocast(q, k, v)
        if torch.compiler.is_compiling():  # which traces a Function without its jvp()
            transformed = False
            if is_forward_mode() and any(t is not None and unpack_dual(t).tangent is not None for t in (q, k, v, sink)):
                raise UnsupportedError(_NO_TANGENTS)
        else:
            transformed = is_forward_mode() or is_transformed()
        options, returns = _options(q, k, v, sink, asked, transformed), asked[4:6]
        if _is_watched() or not _is_plain(q, k, v, sink):
            return _returned(_operator(q, k, v, sink, options, transformed), *returns)
        call = _calls.find(asked, q, k, v, sink) or _calls.prepare(asked, q, k, v, sink, options, returns)
    if call.has_gradients:
        results = _apply(q, k, v, sink, call)
        return results if call.is_out_enough else _returned(results, call.returns_lse, call.returns_logits)
    results = call.results(q, k, v, sink)
    return results[0] if call.is_out_enough else _returned(results, call.returns_lse, call.returns_logits)
