# SPDX-License-Identifier: Apache-2.0
"""One forward or backward call of the library on PyTorch's tensors.

All that shapes, strides and options decide is worked out once and kept (_Forward, _Backward): the plan, the filled-in
struct of arguments, which tensors must be copied, shapes and strides of the results. A call then fills in addresses.

Options are a tuple (mask's number, scale, softcap, flags, layout's name or None). A prepared call is found by its options
and a guard, which says whether tensors are like those that it was prepared for.
"""
from __future__ import annotations

import ctypes as C
import threading
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from .. import _abi
from .._library import lib, struct
from ..context import CPU
from ..errors import from_error
from ..mask import registry
from . import _runtime
from ._layout import Fold, empty, is_heads_first, layout_of, sum_dtype
from ._runtime import DTYPES, Spec, cache, gpu_stream_of, is_gpu_capturing

try:
    from torch._C._dynamo.guards import TensorGuards

    _probe = torch.empty(1)
    if not TensorGuards(_probe, dynamic_dims_sizes=None, dynamic_dims_strides=None).check(_probe):
        TensorGuards = None
except Exception:  # it is private: absent, or called otherwise
    TensorGuards = None

BACKWARD, SOFTCAP = _abi.FFA_SPEC_BACKWARD, _abi.FFA_SPEC_SOFTCAP
MAX_LOGITS, DETERMINISTIC = _abi.FFA_SPEC_MAX_LOGITS, _abi.FFA_SPEC_DETERMINISTIC
_KEPT = 128  # options with prepared calls; each keeps its plan
_KEPT_EACH = 8  # prepared calls of the same options


def _check(q, k, v, mask):
    """Refuse canonical tensors that do not fit each other or the mask. Returns whether the mask is that of the whole batch."""
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        raise ValueError(f"q, k, v: dtypes {q.dtype}, {k.dtype} and {v.dtype}; one of bfloat16, float16 and, on the CPU, "
                         "float32 and float64 is needed, the same for all")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, q is on {q.device}")
    batch, tokens_q, tokens_k = q.shape[0], q.shape[1], k.shape[1]
    if k.shape[0] != batch or v.shape[:3] != k.shape[:3] or k.shape[3] != q.shape[3]:
        raise ValueError(f"q, k, v: as [batch, tokens, heads, head_dim] {list(q.shape)}, {list(k.shape)} and {list(v.shape)} "
                         "do not fit")
    size = mask.seqlen_q, mask.seqlen_k
    if size == (batch * tokens_q, batch * tokens_k):
        return True
    if size == (tokens_q, tokens_k):
        return False
    samples = f"{batch} samples of " if batch > 1 else ""
    raise ValueError(f"mask: {size[0]} x {size[1]} tokens; q has {samples}{tokens_q}, k {samples}{tokens_k}")


class _Local(threading.local):
    """A thread's own copy of a call's arguments."""

    def __init__(self, cls, template):
        arguments, self.error = cls.from_buffer_copy(template), _abi.ffa_error()
        self.words = (C.c_uint64 * (C.sizeof(cls) // 8)).from_buffer(arguments)
        self.addresses = C.addressof(arguments), C.addressof(self.error)


class _Prepared:
    """What shapes, strides and options of a call decide."""

    def __init__(self, q, k, v, options):
        number, scale, softcap, flags, name = options
        layout, mask = layout_of(name, q, k, v), registry.get(number)
        q, k, v = map(layout.canonical, (q, k, v))
        whole = _check(q, k, v, mask)
        batch, tokens_q, heads_q, dim = q.shape
        number = _runtime.ordinal(q.device)
        self.heads_first = is_heads_first(q)
        into_heads = self.heads_first and batch > 1 and not whole
        # Outputs that the whole batch's mask needs tokens first, and the caller's memory order has heads first.
        self.is_moved = self.heads_first and batch > 1 and whole
        self.fold, self.layout, self.number = Fold(batch, into_heads, number != CPU), layout, number
        self.device, self.dtype, self.sum_dtype = q.device, q.dtype, sum_dtype(q.dtype)
        # The guard sees whether autocast is on, and not to which dtype.
        self.is_autocast = torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64
        self.size_q = (tokens_q, heads_q, dim)
        self.size_k = (k.shape[1], k.shape[2], dim)
        self.size_v, self.size_out = (k.shape[1], k.shape[2], v.shape[3]), (tokens_q, heads_q, v.shape[3])
        self.size_lse = (tokens_q, heads_q, None)
        self.samples = batch if into_heads else 1
        spec = Spec(number, q.dtype, dim, v.shape[3], heads_q * self.samples, k.shape[2] * self.samples, flags)
        self.plan = cache.plan_of(spec, mask, ("heads" if into_heads else "tokens", 1 if whole else batch), q.device)
        self.kernels = self.plan.kernels.handle.value
        self.options, self.mask = options, mask  # the mask lives as long as a backward pass may need it
        self.scale, self.softcap = scale, softcap

    def arguments(self, cls, sink, workspace):
        """A struct of arguments without addresses."""
        made = struct(cls, heads_q=self.size_q[1] * self.samples, heads_kv=self.size_k[1] * self.samples,
                      softmax_scale=self.scale, softcap=self.softcap, workspace_bytes=workspace)
        made.sink_count = 0 if sink is None else self.sinks(sink).shape[0]
        return made

    def tensor(self, value, is_canonical=False):
        """The ffa_tensor of a tensor (its address comes later), and whether it must be copied first."""
        value = value if is_canonical else self.layout.canonical(value)
        strides = self.fold.strides(value)
        is_copied = strides is None
        if is_copied:
            value = self.fold.copied(value)
            strides = self.fold.strides(value)
        tokens = value.shape[1] * (1 if self.samples > 1 else value.shape[0])
        width = value.shape[3] if value.dim() == 4 else 1
        return _abi.ffa_tensor(None, *strides, tokens, width, 0, 0, value.shape[2] * self.samples, DTYPES[value.dtype]), is_copied

    def output(self, size, dtype):
        """The ffa_tensor of a result, and a tensor without memory, as the caller's layout has it, for torch.empty_like()."""
        made = torch.empty(0, dtype=dtype, device="meta")
        made = empty(made, self.fold.batch, *size, self.heads_first and not self.is_moved, dtype)
        final = made if self.is_moved else self.layout.restored(made)
        pattern = torch.empty_strided(final.shape, final.stride(), dtype=dtype, device=self.device)
        pattern.untyped_storage().resize_(0)
        return self.tensor(made, True)[0], pattern

    def moved(self, tensor):
        """A result of a call with is_moved, in the caller's layout and memory order."""
        return self.layout.restored(tensor.transpose(1, 2).contiguous().transpose(1, 2))

    def readable(self, tensors, copies):
        """The tensors of a call, those copied that cannot be folded or are not aligned."""
        tensors = [self.fold.copied(self.layout.canonical(t)) if copy else t for t, copy in zip(tensors, copies)]
        if self.fold.on_gpu:
            tensors = [_aligned(t) if t.data_ptr() & 15 else t for t in tensors]
        return tensors

    def sinks(self, sink):
        """[sinks, heads] as the library takes them."""
        heads = self.size_q[1]
        if sink.device != self.device:
            raise ValueError(f"sink: on {sink.device}, q is on {self.device}")
        if sink.shape[-1] != heads or sink.dim() > 2:
            raise ValueError(f"sink: shape {list(sink.shape)}; [{heads}] or [sinks, {heads}] is needed")
        value = sink.detach().reshape(-1, heads).to(self.sum_dtype)
        return (value.repeat(1, self.samples) if self.samples > 1 else value).contiguous()

    def run(self, function, local):
        """Call the library on the current stream."""
        stream = None
        if self.number != CPU:
            stream = gpu_stream_of(self.number)
            if stream not in self.plan.streams or is_gpu_capturing():
                self.plan.used_by(stream)
        arguments, error = local.addresses
        if function(self.kernels, self.plan.handle, arguments, stream, error):
            raise from_error(local.error)


def _aligned(tensor):
    """A copy with the same strides, in memory of its own. What has expanded dimensions is left to the library to refuse."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _words(cls, names):
    """Where the addresses of tensors and pointers are in a struct, in words."""
    return [getattr(cls, name).offset // 8 for name in names]


class _Forward(_Prepared):
    """A prepared forward call: (out, lse, max_logits or None) of q, k, v and a sink or None."""

    Q, K, V, OUT, LSE, SINK, LOGITS, WORKSPACE = _words(
        _abi.ffa_forward_args, ("q", "k", "v", "out", "lse", "sink", "max_logits", "workspace"))

    def __init__(self, q, k, v, sink, options):
        super().__init__(q, k, v, options)
        arguments = self.arguments(_abi.ffa_forward_args, sink, self.plan.workspace)
        arguments.q, copy_q = self.tensor(q)
        arguments.k, copy_k = self.tensor(k)
        arguments.v, copy_v = self.tensor(v)
        arguments.out, self.out = self.output(self.size_out, self.dtype)
        arguments.lse, self.lse = self.output(self.size_lse, self.sum_dtype)
        self.copies = (copy_q, copy_k, copy_v)
        self.is_copied = any(self.copies)
        self.unaligned = 15 if self.fold.on_gpu else 0  # bits of an address
        self.has_logits = bool(options[3] & MAX_LOGITS)
        self.local = _Local(_abi.ffa_forward_args, bytes(arguments))

    def __call__(self, q, k, v, sink):
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if self.is_copied or (at_q | at_k | at_v) & self.unaligned:
            q, k, v = self.readable((q, k, v), self.copies)
            at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        local, logits, kept, workspace = self.local, None, None, None
        words, out, lse = local.words, torch.empty_like(self.out), torch.empty_like(self.lse)
        words[self.Q], words[self.K], words[self.V] = at_q, at_k, at_v
        words[self.OUT], words[self.LSE] = out.data_ptr(), lse.data_ptr()
        if sink is not None:
            kept = self.sinks(sink)
            words[self.SINK] = kept.data_ptr()
        if self.has_logits:
            logits = q.new_empty(self.size_q[1] * self.samples, dtype=self.sum_dtype)
            words[self.LOGITS] = logits.data_ptr()
        if self.plan.workspace:
            workspace = q.new_empty(self.plan.workspace, dtype=torch.uint8)
            words[self.WORKSPACE] = workspace.data_ptr()
        self.run(lib.ffa_forward, local)
        if logits is not None and self.samples > 1:
            logits = logits.view(self.samples, -1).amax(0)
        if self.is_moved:
            out, lse = self.moved(out), self.moved(lse)
        return out, lse, logits


class _Backward(_Prepared):
    """A prepared backward call: (dq, dk, dv, dsink or None) of (q, k, v, out, lse, dout[, dlse]) and a sink or None."""

    READ = ("q", "k", "v", "out", "lse", "dout", "dlse")
    AT = _words(_abi.ffa_backward_args, READ)
    DQ, DK, DV, SINK, DSINK, WORKSPACE = _words(_abi.ffa_backward_args, ("dq", "dk", "dv", "sink", "dsink", "workspace"))

    def __init__(self, tensors, sink, options):
        super().__init__(*tensors[:3], options)
        arguments = self.arguments(_abi.ffa_backward_args, sink, self.plan.backward_workspace)
        self.copies = []
        for name, tensor in zip(self.READ, tensors):
            filled, is_copied = self.tensor(tensor)
            setattr(arguments, name, filled)
            self.copies.append(is_copied)
        arguments.dq, self.dq = self.output(self.size_q, self.dtype)
        arguments.dk, self.dk = self.output(self.size_k, self.dtype)
        arguments.dv, self.dv = self.output(self.size_v, self.dtype)
        self.is_copied = any(self.copies)
        self.local = _Local(_abi.ffa_backward_args, bytes(arguments))

    def __call__(self, tensors, sink):
        addresses = list(map(Tensor.data_ptr, tensors))
        if self.is_copied or self.fold.on_gpu and reduce(or_, addresses) & 15:
            tensors = self.readable(tensors, self.copies)
            addresses = map(Tensor.data_ptr, tensors)
        local, dsink, kept, workspace = self.local, None, None, None
        words, dq, dk, dv = local.words, torch.empty_like(self.dq), torch.empty_like(self.dk), torch.empty_like(self.dv)
        for at, address in zip(self.AT, addresses):
            words[at] = address
        words[self.DQ], words[self.DK], words[self.DV] = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        if sink is not None:
            kept = self.sinks(sink)
            dsink = torch.empty_like(kept)
            words[self.SINK], words[self.DSINK] = kept.data_ptr(), dsink.data_ptr()
        if self.plan.backward_workspace:
            workspace = dq.new_empty(self.plan.backward_workspace, dtype=torch.uint8)
            words[self.WORKSPACE] = workspace.data_ptr()
        self.run(lib.ffa_backward, local)
        if self.is_moved:
            dq, dk, dv = map(self.moved, (dq, dk, dv))
        return dq, dk, dv, None if sink is None else self.sink_gradient(dsink, sink)

    def sink_gradient(self, dsink, sink):
        if self.samples > 1:
            dsink = dsink.view(dsink.shape[0], self.samples, -1).sum(1)
        return dsink.reshape(sink.shape).to(sink.dtype)


class _Facts:
    """A guard in Python, for what TensorGuards does not take."""

    def __init__(self, tensors):
        self.facts = self.of(tensors)

    def check(self, *tensors):
        return self.of(tensors) == self.facts

    @staticmethod
    def of(tensors):
        here = (torch._C._dispatch_tls_local_include_set().raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr(),
                torch.is_grad_enabled())
        return here, [(type(t), torch._C._dispatch_keys(t).raw_repr(), t.dtype, t.device, t.shape, t.stride(), t.requires_grad)
                      for t in tensors]


def _guard(tensors):
    """What says of others whether they are like these tensors: in type, dtype, device, shape, strides, requires_grad, and
    dispatch keys, with those of the thread: tensors under autocast or tracing are unlike plain ones. TensorGuards is what
    torch.compile guards its graphs with, one call into C++; it takes no tensor twice."""
    if TensorGuards is None or len(set(map(id, tensors))) < len(tensors):
        return _Facts(tensors)
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


_prepared: dict[tuple, tuple] = {}  # ((guard's check, prepared call), ...), the newest first


def forget() -> None:
    """Drop all prepared calls."""
    _prepared.clear()


def _find(key, tensors):
    """The prepared call of a key for tensors such as these, or None."""
    for check, prepared in _prepared.get(key, ()):
        if check(*tensors):
            return prepared
    return None


def _keep(key, tensors, prepared):
    with cache.lock:
        while len(_prepared) >= _KEPT and key not in _prepared:
            _prepared.pop(next(iter(_prepared)))
        _prepared[key] = ((_guard(tensors).check, prepared), *_prepared.get(key, ())[:_KEPT_EACH - 1])
    return prepared


def find(q, k, v, sink, options):
    """The forward call that was prepared for such tensors, or None."""
    return _find((options, sink is None), (q, k, v) if sink is None else (q, k, v, sink))


def prepare(q, k, v, sink, options):
    """A forward call for these tensors, prepared for later ones, too."""
    tensors = (q, k, v) if sink is None else (q, k, v, sink)
    return _keep((options, sink is None), tensors, _Forward(q, k, v, sink, options))


def forward(q, k, v, sink, options):
    """(out, lse, max_logits [heads_q] or None) in the layout of the options."""
    return (find(q, k, v, sink, options) or prepare(q, k, v, sink, options))(q, k, v, sink)


def backward(dout, dlse, q, k, v, out, lse, sink, options):
    """(dq, dk, dv, dsink), of the shapes of q, k, v and sink; dsink None without a sink."""
    tensors = (q, k, v, out, lse, dout) if dlse is None else (q, k, v, out, lse, dout, dlse)
    guarded = tensors if sink is None else (*tensors, sink)
    key = options, sink is None, dlse is None
    prepared = _find(key, guarded) or _keep(key, guarded, _Backward(tensors, sink, options))
    return prepared(tensors, sink)
