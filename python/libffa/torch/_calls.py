# SPDX-License-Identifier: Apache-2.0
"""One forward or backward call of the library on PyTorch's tensors.

All that shapes, strides and options decide is worked out once and kept (_Forward, _Backward): the plan, the filled-in
struct of arguments, which tensors must be copied, shapes and strides of the results. A call then fills in addresses.

Options are a tuple (mask's number, scale, softcap, flags, layout's name or None). A prepared call is found by its options
and a guard, which says whether tensors are like those that it was prepared for.
"""
from __future__ import annotations

import ctypes as C
from functools import partial

import torch

from .. import _abi
from .._library import lib, struct
from ..context import CPU
from ..errors import from_error
from ..mask import registry
from . import _runtime
from ._layout import Fold, empty, is_heads_first, layout_of, sum_dtype
from ._private import TensorGuards, dispatch_facts, find_current, find_empty, is_batched
from ._runtime import DTYPES, Spec, cache, gpu_stream_of, is_gpu_capturing

BACKWARD, SOFTCAP = _abi.FFA_SPEC_BACKWARD, _abi.FFA_SPEC_SOFTCAP
MAX_LOGITS, DETERMINISTIC = _abi.FFA_SPEC_MAX_LOGITS, _abi.FFA_SPEC_DETERMINISTIC
_KEPT = 128  # options with prepared calls; each keeps its plan
_KEPT_EACH = 8  # prepared calls of the same options
_SMALL = 4096  # bytes of a workspace that may live as long as a backward pass is possible
_SMALL_ROW = 1 << 17  # bytes that may be kept from call to call; with more, a GPU takes longer than the host


def _check(q, k, v, mask):
    """Refuse canonical tensors that do not fit each other or the mask. Returns whether the mask is that of the whole batch."""
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        raise ValueError(f"q, k, v: dtypes {q.dtype}, {k.dtype} and {v.dtype}; one of bfloat16, float16 and, on the CPU, "
                         "float32 and float64 is needed, the same for all")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, q is on {q.device}")
    batch, tokens_q, tokens_k = q.shape[0], q.shape[1], k.shape[1]
    if batch == 0:
        raise ValueError("q: a batch of 0 samples")
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


class _Arguments:
    """A struct of arguments, as words, and what a call of the library takes with it. One a call that is under way."""

    def __init__(self, cls, template):
        arguments, self.error = cls.from_buffer_copy(template), _abi.ffa_error()
        self.words = (C.c_uint64 * (C.sizeof(cls) // 8)).from_buffer(arguments)
        self.addresses = C.addressof(arguments), C.addressof(self.error)
        self.row = None  # memory that the words name, kept for the next call that takes them


class _Prepared:
    """What shapes, strides and options of a call decide."""

    def __init__(self, q, k, v, options):
        number, scale, softcap, flags, name = options
        layout, mask = layout_of(name, q, k, v), registry.get(number)
        q, k, v = map(layout.canonical, (q, k, v))
        whole = _check(q, k, v, mask)
        batch, tokens_q, heads_q, dim = q.shape
        number = _runtime.ordinal(q.device)
        self.heads_first = is_heads_first(q, k)
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

    def canonical_output(self, size, dtype):
        """A result as the library writes it, without memory."""
        return empty(torch.empty(0, dtype=dtype, device="meta"), self.fold.batch, *size, self.heads_first and not self.is_moved,
                     dtype)

    def output(self, size, dtype):
        """The ffa_tensor of a result, and a tensor without memory, as the caller's layout has it."""
        made = self.canonical_output(size, dtype)
        return self.tensor(made, True)[0], self.pattern(made if self.is_moved else self.layout.restored(made))

    def pattern(self, made):
        """A tensor without memory on the device, for torch.empty_like()."""
        pattern = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=self.device)
        pattern.untyped_storage().resize_(0)
        return pattern

    def bytes_pattern(self, count):
        return self.pattern(torch.empty(count, dtype=torch.uint8, device="meta"))

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
        if sink.dim() not in (1, 2) or sink.shape[-1] != heads:
            raise ValueError(f"sink: shape {list(sink.shape)}; [{heads}] or [sinks, {heads}] is needed")
        if not sink.is_floating_point():
            raise ValueError(f"sink: dtype {sink.dtype}; a floating-point one is needed")
        value = sink.detach().reshape(-1, heads).to(self.sum_dtype)
        return (value.repeat(1, self.samples) if self.samples > 1 else value).contiguous()

    def keep(self, arguments):
        """What calls start from: structs of arguments that no call has. One is taken by free.pop(), which no other thread
        gets then, and costs less than a thread's own."""
        self.new_arguments = partial(_Arguments, type(arguments), bytes(arguments))
        self.free = [self.new_arguments()]

    def run(self, function, arguments, stream):
        """Call the library on the current stream: 0, the default one, which is never captured into a CUDA graph, another, or
        None on the CPU."""
        if stream is not None and (stream not in self.plan.streams or stream and is_gpu_capturing()):
            self.plan.used_by(stream)
        at, at_error = arguments.addresses
        if function(self.kernels, self.plan.handle, at, stream, at_error):
            raise from_error(arguments.error)
        self.free.append(arguments)


def _aligned(tensor):
    """A copy with the same strides, in memory of its own. What has expanded dimensions is left to the library to refuse."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _words(cls, names):
    """Where the addresses of tensors and pointers are in a struct, in words."""
    return [getattr(cls, name).offset // 8 for name in names]


class _Forward(_Prepared):
    """A prepared forward call: (out, lse, max_logits or None) of q, k, v and a sink or None.

    Memory for a result takes a good part of a call's time. Where the caller does not get lse, it shares one allocation with
    the workspace: a row of elements, of which whole_lse() makes one. A workspace that is not small has its own where lse is
    kept for a backward pass. Where nobody is to see lse, a small row stays with the arguments: no other call has them until
    this one is enqueued, and what is enqueued on the default stream later runs later. On other streams, and so in a CUDA graph,
    each call has a row of its own.
    """

    Q, K, V, OUT, LSE, SINK, LOGITS, WORKSPACE = _words(
        _abi.ffa_forward_args, ("q", "k", "v", "out", "lse", "sink", "max_logits", "workspace"))

    def __init__(self, q, k, v, sink, options, returns):
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
        self.has_logits, self.has_gradients = bool(options[3] & MAX_LOGITS), bool(options[3] & BACKWARD)
        self.returns_lse, self.returns_logits = returns
        self.is_out_enough = not any(returns)
        self.workspace_at, self.lse_order = 0, None  # bytes from lse to the workspace, strides of lse, where they share a row
        if not self.returns_lse:
            self.join(self.plan.workspace)
        self.workspace = self.bytes_pattern(self.plan.workspace) if self.plan.workspace and not self.workspace_at else None
        self.new_out, self.new_lse, self.index = find_empty(self.out), find_empty(self.lse), self.out.get_device()
        self.current = find_current(self.out.device.type)
        self.new_workspace = None if self.workspace is None else find_empty(self.workspace)
        self.is_row_kept = not (self.has_gradients or self.returns_lse) and self.lse.numel() * self.lse.itemsize <= _SMALL_ROW
        self.keep(arguments)

    def join(self, workspace):
        """Have lse, which nobody but a backward pass sees, and the workspace in one row of elements."""
        size, count = self.sum_dtype.itemsize, self.lse.numel()
        if workspace and (not self.has_gradients or workspace <= _SMALL):
            self.workspace_at = -(-max(count * size, 1) // 256) * 256
            count = (self.workspace_at + workspace + size - 1) // size
        self.lse_order = self.canonical_output(self.size_lse, self.sum_dtype).stride()
        self.lse = self.pattern(torch.empty(count, dtype=self.sum_dtype, device="meta"))

    def whole_lse(self, lse):
        """The lse that the call made, or a copy of it that autograd's hooks gave back, in the caller's layout."""
        if self.lse_order is None:
            return lse
        tokens, heads, _ = self.size_lse
        return self.layout.restored(lse.contiguous().as_strided((self.fold.batch, tokens, heads), self.lse_order))

    def fill_rare(self, words, q, sink):
        """Fill in what few calls have: what must live until it is enqueued, and memory for the largest logits or None."""
        logits = kept = None
        if sink is not None:
            kept = self.sinks(sink)
            words[self.SINK] = kept.data_ptr()
        if self.has_logits:
            logits = q.new_empty(self.size_q[1] * self.samples, dtype=self.sum_dtype)
            words[self.LOGITS] = logits.data_ptr()
        return kept, logits

    def results(self, q, k, v, sink):
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if self.is_copied or (at_q | at_k | at_v) & self.unaligned:
            q, k, v = self.readable((q, k, v), self.copies)
            at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        try:
            arguments = self.free.pop()
        except IndexError:
            arguments = self.new_arguments()
        words, lse, logits = arguments.words, arguments.row, None
        stream = None if self.number == CPU else gpu_stream_of(self.number)
        is_here = self.current() == self.index  # else q is not on the current device
        out = self.new_out() if is_here else torch.empty_like(self.out)
        words[self.Q], words[self.K], words[self.V], words[self.OUT] = at_q, at_k, at_v, out.data_ptr()
        if lse is None or stream:
            lse = self.new_lse() if is_here else torch.empty_like(self.lse)
            words[self.LSE] = at_lse = lse.data_ptr()
            if self.workspace_at:
                words[self.WORKSPACE] = at_lse + self.workspace_at
            if self.is_row_kept:
                arguments.row = None if stream else lse
        if self.workspace is not None:
            workspace = self.new_workspace() if is_here else torch.empty_like(self.workspace)  # alive until it is enqueued
            words[self.WORKSPACE] = workspace.data_ptr()
        if sink is not None or self.has_logits:
            kept, logits = self.fill_rare(words, q, sink)
        self.run(lib.ffa_forward, arguments, stream)
        if logits is not None and self.samples > 1:
            logits = logits.view(self.samples, -1).amax(0)
        if self.is_moved:
            out, lse = self.moved(out), self.moved(lse) if self.returns_lse else lse
        return out, lse, logits


class _Backward(_Prepared):
    """A prepared backward call: (dq, dk, dv, dsink or None) of (q, k, v, out, lse, dout[, dlse]) and a sink or None. It
    is called with the lse that it was prepared for, or with the row of elements that begins with it."""

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
        self.unaligned = 15 if self.fold.on_gpu else 0  # bits of an address
        self.patterns = [self.dq, self.dk, self.dv]
        if self.plan.backward_workspace:
            self.patterns.append(self.bytes_pattern(self.plan.backward_workspace))
        self.new, self.index = list(map(find_empty, self.patterns)), self.dq.get_device()
        self.current = find_current(self.dq.device.type)
        self.keep(arguments)

    def fill(self, words, tensors):
        """Fill in what is read; the addresses' bits."""
        bits = 0
        for at, tensor in zip(self.AT, tensors):
            words[at] = address = tensor.data_ptr()
            bits |= address
        return bits

    def results(self, tensors, sink):
        try:
            arguments = self.free.pop()
        except IndexError:
            arguments = self.new_arguments()
        words, dsink = arguments.words, None
        if self.is_copied or self.fill(words, tensors) & self.unaligned:
            tensors = self.readable(tensors, self.copies)
            self.fill(words, tensors)
        if self.current() == self.index:
            made = [new() for new in self.new]
        else:  # q is not on the current device
            made = list(map(torch.empty_like, self.patterns))
        dq, dk, dv = made[:3]
        words[self.DQ], words[self.DK], words[self.DV] = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        if len(made) > 3:
            words[self.WORKSPACE] = made[3].data_ptr()
        if sink is not None:
            kept = self.sinks(sink)
            dsink = torch.empty_like(kept)
            words[self.SINK], words[self.DSINK] = kept.data_ptr(), dsink.data_ptr()
        self.run(lib.ffa_backward, arguments, None if self.number == CPU else gpu_stream_of(self.number))
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
        return dispatch_facts(tensors), torch.is_grad_enabled(), [
            (type(t), t.dtype, t.device, t.shape, t.stride(), t.requires_grad) for t in tensors]


def _guard(tensors):
    """What says of others whether they are like these tensors: in type, dtype, device, shape, strides, requires_grad, and
    dispatch keys, with those of the thread: tensors under autocast or tracing are unlike plain ones. TensorGuards is one call
    into C++; it takes no tensor twice."""
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


def find(key, q, k, v, sink):
    """The forward call that was prepared for such tensors, or None. A key has whether there is a sink."""
    for check, prepared in _prepared.get(key, ()):
        if check(q, k, v) if sink is None else check(q, k, v, sink):
            return prepared
    return None


def prepare(key, q, k, v, sink, options, returns):
    """A forward call for these tensors, prepared for later ones, too. returns: whether its caller gets lse and the logits."""
    tensors = (q, k, v) if sink is None else (q, k, v, sink)
    return _keep(key, tensors, _Forward(q, k, v, sink, options, returns))


def forward(q, k, v, sink, options):
    """(out, lse, max_logits [heads_q] or None) in the layout of the options."""
    key = options, sink is None
    return (find(key, q, k, v, sink) or prepare(key, q, k, v, sink, options, (True, True))).results(q, k, v, sink)


def backward(dout, dlse, q, k, v, out, lse, sink, options, call=None):
    """(dq, dk, dv, dsink), of the shapes of q, k, v and sink; dsink None without a sink. call: the forward call that made lse,
    where that may be a row of elements. None where dout is of a kind that only the operator takes."""
    tensors = (q, k, v, out, lse, dout) if dlse is None else (q, k, v, out, lse, dout, dlse)
    guarded = tensors if sink is None else (*tensors, sink)
    order = None if call is None else call.lse_order
    key = options, sink is None, dlse is None, order
    for check, prepared in _prepared.get(key, ()):
        if check(*guarded):
            return prepared.results(tensors, sink)
    if is_batched(dout) or dlse is not None and is_batched(dlse):
        return None
    if order is None:
        return _keep(key, guarded, _Backward(tensors, sink, options)).results(tensors, sink)
    whole = call.whole_lse(lse)
    prepared = _Backward((*tensors[:4], whole, *tensors[5:]), sink, options)
    if prepared.copies[4] or not lse.is_contiguous():  # hooks gave something back in another order than they took it
        return backward(dout, dlse, q, k, v, out, whole, sink, options)
    return _keep(key, guarded, prepared).results(tensors, sink)
