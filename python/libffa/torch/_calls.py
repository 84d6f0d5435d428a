# SPDX-License-Identifier: Apache-2.0
"""One forward or backward call of the library on PyTorch's tensors.

Here q is [batch, tokens, heads, head_dim] whatever the caller's layout, as a view. The library knows no samples: a batch
is folded into the tokens, or, where memory has heads before tokens, into the heads. All that shapes and strides decide is
worked out once and kept (_Forward, _Backward); a call then copies a prepared struct and fills in addresses.
"""
from __future__ import annotations

import ctypes as C

import torch

from .. import _abi
from .._library import lib, struct
from ..context import CPU
from ..errors import from_error
from ..mask import registry
from . import _runtime
from ._runtime import DTYPES, Spec, cache, is_capturing, stream_of

BACKWARD, SOFTCAP = _abi.FFA_SPEC_BACKWARD, _abi.FFA_SPEC_SOFTCAP
MAX_LOGITS, DETERMINISTIC = _abi.FFA_SPEC_MAX_LOGITS, _abi.FFA_SPEC_DETERMINISTIC
_KEPT = 512  # prepared calls
_TENSOR = C.sizeof(_abi.ffa_tensor)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of lse, sinks and largest logits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty(like, batch, tokens, heads, width, heads_first, dtype=None):
    """[batch, tokens, heads, width], in memory tokens or heads first; without `width` where that is None."""
    tail = () if width is None else (width,)
    if heads_first:
        return like.new_empty((batch, heads, tokens) + tail, dtype=dtype).transpose(1, 2)
    return like.new_empty((batch, tokens, heads) + tail, dtype=dtype)


class _Fold:
    """How the tensors of a call become the library's: [tokens][heads][head_dim]."""

    def __init__(self, batch, into_heads, on_gpu):
        self.batch, self.into_heads, self.on_gpu = batch, into_heads, on_gpu

    def strides(self, shape, stride, size):
        """(token_stride, head_stride), or None where there are none: the tensor is to be copied."""
        batch, tokens, heads = shape[:3]
        sample, token, head = stride[:3]
        if len(shape) == 4 and shape[3] != 1 and stride[3] != 1:
            return None
        if batch > 1 and self.into_heads:
            if heads == 1:
                head = sample
            elif sample != heads * head:
                return None
        elif batch > 1:
            if tokens == 1:
                token = sample
            elif sample != tokens * token:
                return None
        if self.on_gpu and len(shape) == 4 and (token * size % 16 or head * size % 16):
            return None
        return token, head

    def copied(self, tensor):
        """The tensor in memory that can be folded."""
        if self.into_heads:
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        return tensor.contiguous()


class _Prepared:
    """What shapes, strides and options of a call decide."""

    def __init__(self, q, k, v, mask, scale, softcap, flags, heads_first):
        batch, tokens_q, heads_q, dim = q.shape
        tokens_k, heads_kv, dim_v = k.shape[1], k.shape[2], v.shape[3]
        number = _runtime.ordinal(q.device)
        if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
            raise ValueError(f"q, k, v: dtypes {q.dtype}, {k.dtype} and {v.dtype}; one of bfloat16, float16 and, on the CPU, "
                             "float32 and float64 is needed, the same for all")
        if k.shape[0] != batch or tuple(v.shape[:3]) != tuple(k.shape[:3]) or k.shape[3] != dim:
            raise ValueError(f"q, k, v: shapes [batch, tokens, heads, head_dim] {list(q.shape)}, {list(k.shape)} and "
                             f"{list(v.shape)} do not fit")
        whole = (mask.seqlen_q, mask.seqlen_k) == (batch * tokens_q, batch * tokens_k)
        if not whole and (mask.seqlen_q, mask.seqlen_k) != (tokens_q, tokens_k):
            samples = f"{batch} samples of " if batch > 1 else ""
            raise ValueError(f"mask: {mask.seqlen_q} x {mask.seqlen_k} tokens; q has {samples}{tokens_q}, k {samples}{tokens_k}")
        into_heads = heads_first and batch > 1 and not whole
        self.fold = _Fold(batch, into_heads, number != CPU)
        self.heads_first, self.number = heads_first, number
        self.is_moved = heads_first and batch > 1 and whole  # outputs are made tokens first, and then copied
        self.shape_q, self.shape_k = (batch, tokens_q, heads_q, dim), (batch, tokens_k, heads_kv, dim)
        self.dim_v, self.dtype, self.sum_dtype = dim_v, q.dtype, sum_dtype(q.dtype)
        self.samples = batch if into_heads else 1
        self.tokens_q = tokens_q if into_heads else batch * tokens_q
        self.tokens_k = tokens_k if into_heads else batch * tokens_k
        spec = Spec(number, q.dtype, dim, dim_v, heads_q * self.samples, heads_kv * self.samples, flags)
        repeat = ("heads" if into_heads else "tokens", 1 if whole else batch)
        self.plan = cache.plan_of(spec, mask, repeat, q.device)
        self.kernels = self.plan.kernels.handle
        self.scale, self.softcap, self.flags = scale, softcap, flags

    def tensor(self, name, value, heads, width):
        """The ffa_tensor of a tensor (its address is filled in later), and whether it must be copied first."""
        strides = self.fold.strides(value.shape, value.stride(), value.element_size())
        is_copied = strides is None
        if is_copied:
            value = self.fold.copied(value)
            strides = self.fold.strides(value.shape, value.stride(), value.element_size())
        tokens = value.shape[1] if self.samples > 1 else value.shape[0] * value.shape[1]
        return _abi.ffa_tensor(None, *strides, tokens, width, 0, 0, heads * self.samples, DTYPES[value.dtype]), is_copied

    def arguments(self, cls):
        heads_q, heads_kv = self.shape_q[2] * self.samples, self.shape_k[2] * self.samples
        return struct(cls, heads_q=heads_q, heads_kv=heads_kv, softmax_scale=self.scale, softcap=self.softcap)

    def outputs(self, like, tokens, heads, width, dtype):
        return empty(like, self.shape_q[0], tokens, heads, width, self.heads_first and not self.is_moved, dtype)

    def moved(self, tensor):
        """An output in the memory order that callers expect."""
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if self.is_moved else tensor

    def stream(self):
        """The stream of a call, which then sees the plan's image."""
        if self.number == CPU:
            return None
        stream = stream_of(self.number)
        if stream not in self.plan.streams or is_capturing(self.number):
            self.plan.used_by(stream)
        return stream

    def sinks(self, sink):
        """[sinks, heads] as the library takes them."""
        heads = self.shape_q[2]
        if sink.shape[-1] != heads or sink.dim() > 2:
            raise ValueError(f"sink: shape {list(sink.shape)}; [{heads}] or [sinks, {heads}] is needed")
        value = sink.detach().reshape(-1, heads).to(self.sum_dtype)
        return (value.repeat(1, self.samples) if self.samples > 1 else value).contiguous()

    def workspace(self, like, count):
        return like.new_empty(count, dtype=torch.uint8) if count else None


def _addresses(cls, names):
    """Where the addresses of tensors and pointers are in a struct, in words."""
    return [getattr(cls, name).offset // 8 for name in names]


def _run(function, prepared, arguments):
    error = _abi.ffa_error()
    if function(prepared.kernels, prepared.plan.handle, C.byref(arguments), prepared.stream(), C.byref(error)):
        raise from_error(error)


def _readable(prepared, values, copies):
    """The tensors of a call, those copied that cannot be folded or are not aligned."""
    values = [prepared.fold.copied(v) if copy else v for v, copy in zip(values, copies)]
    if prepared.fold.on_gpu:
        values = [_aligned(v) if v.data_ptr() & 15 else v for v in values]
    return values


def _aligned(tensor):
    """A copy with the same strides, in memory of its own. What has expanded dimensions is left to the library to refuse."""
    if 0 in tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class _Forward(_Prepared):
    NAMES = ("q", "k", "v", "out", "lse", "sink", "max_logits", "workspace")
    WORDS = _addresses(_abi.ffa_forward_args, NAMES)
    SIZE = C.sizeof(_abi.ffa_forward_args) // 8

    def __init__(self, q, k, v, sink, mask, scale, softcap, flags, heads_first):
        super().__init__(q, k, v, mask, scale, softcap, flags, heads_first)
        arguments = self.arguments(_abi.ffa_forward_args)
        heads_q, heads_kv = self.shape_q[2], self.shape_k[2]
        arguments.q, copy_q = self.tensor("q", q, heads_q, self.shape_q[3])
        arguments.k, copy_k = self.tensor("k", k, heads_kv, self.shape_q[3])
        arguments.v, copy_v = self.tensor("v", v, heads_kv, self.dim_v)
        out, lse = self.results(q)
        arguments.out, _ = self.tensor("out", out, heads_q, self.dim_v)
        arguments.lse, _ = self.tensor("lse", lse, heads_q, 1)
        arguments.sink_count = 0 if sink is None else self.sinks(sink).shape[0]
        arguments.workspace_bytes = self.plan.workspace
        self.template, self.copies = bytes(arguments), (copy_q, copy_k, copy_v)
        self.is_read_as_is = not any(self.copies) and not self.fold.on_gpu

    def results(self, q):
        batch, tokens, heads, _ = self.shape_q
        return (self.outputs(q, tokens, heads, self.dim_v, self.dtype), self.outputs(q, tokens, heads, None, self.sum_dtype))

    def __call__(self, q, k, v, sink):
        if not self.is_read_as_is:
            q, k, v = _readable(self, (q, k, v), self.copies)
        out, lse = self.results(q)
        arguments = _abi.ffa_forward_args.from_buffer_copy(self.template)
        words = (C.c_uint64 * self.SIZE).from_buffer(arguments)
        at = self.WORDS
        words[at[0]], words[at[1]], words[at[2]] = q.data_ptr(), k.data_ptr(), v.data_ptr()
        words[at[3]], words[at[4]] = out.data_ptr(), lse.data_ptr()
        kept = None
        if sink is not None:
            kept = self.sinks(sink)
            words[at[5]] = kept.data_ptr()
        logits = q.new_empty(self.shape_q[2] * self.samples if self.flags & MAX_LOGITS else 0, dtype=self.sum_dtype)
        if self.flags & MAX_LOGITS:
            words[at[6]] = logits.data_ptr()
        workspace = self.workspace(q, self.plan.workspace)
        if workspace is not None:
            words[at[7]] = workspace.data_ptr()
        _run(lib.ffa_forward, self, arguments)
        if self.samples > 1 and self.flags & MAX_LOGITS:
            logits = logits.view(self.samples, -1).amax(0)
        return self.moved(out), self.moved(lse), logits


class _Backward(_Prepared):
    NAMES = ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv", "sink", "dsink", "workspace")
    WORDS = dict(zip(NAMES, _addresses(_abi.ffa_backward_args, NAMES)))
    SIZE = C.sizeof(_abi.ffa_backward_args) // 8
    READ = NAMES[:7]

    def __init__(self, tensors, sink, mask, scale, softcap, flags, heads_first):
        super().__init__(*tensors[:3], mask, scale, softcap, flags, heads_first)
        arguments = self.arguments(_abi.ffa_backward_args)
        heads_q, heads_kv, dim = self.shape_q[2], self.shape_k[2], self.shape_q[3]
        sizes = {"q": (heads_q, dim), "k": (heads_kv, dim), "v": (heads_kv, self.dim_v), "out": (heads_q, self.dim_v),
                 "lse": (heads_q, 1), "dout": (heads_q, self.dim_v), "dlse": (heads_q, 1)}
        self.copies = []
        for name, tensor in zip(self.READ, tensors):
            if tensor is not None:
                filled, copy = self.tensor(name, tensor, *sizes[name])
                setattr(arguments, name, filled)
                self.copies.append(copy)
        for name, tensor, size in zip(("dq", "dk", "dv"), self.results(tensors[0]), (sizes["q"], sizes["k"], sizes["v"])):
            setattr(arguments, name, self.tensor(name, tensor, *size)[0])
        arguments.sink_count = 0 if sink is None else self.sinks(sink).shape[0]
        arguments.workspace_bytes = self.plan.backward_workspace
        self.template = bytes(arguments)

    def results(self, q):
        _, tokens_q, heads_q, dim = self.shape_q
        _, tokens_k, heads_kv, _ = self.shape_k
        return [self.outputs(q, *size, self.dtype) for size in
                ((tokens_q, heads_q, dim), (tokens_k, heads_kv, dim), (tokens_k, heads_kv, self.dim_v))]

    def __call__(self, tensors, sink):
        given = [t for t in tensors if t is not None]
        if self.fold.on_gpu or any(self.copies):
            given = _readable(self, given, self.copies)
        arguments = _abi.ffa_backward_args.from_buffer_copy(self.template)
        words, at = (C.c_uint64 * self.SIZE).from_buffer(arguments), self.WORDS
        for name, tensor in zip(self.READ, given):
            words[at[name]] = tensor.data_ptr()
        results = self.results(tensors[0])
        for name, tensor in zip(("dq", "dk", "dv"), results):
            words[at[name]] = tensor.data_ptr()
        dsink = kept = None
        if sink is not None:
            kept = self.sinks(sink)
            dsink = torch.empty_like(kept)
            words[at["sink"]], words[at["dsink"]] = kept.data_ptr(), dsink.data_ptr()
        workspace = self.workspace(tensors[0], self.plan.backward_workspace)
        if workspace is not None:
            words[at["workspace"]] = workspace.data_ptr()
        _run(lib.ffa_backward, self, arguments)
        return *map(self.moved, results), self.sink_gradient(dsink, sink)

    def sink_gradient(self, dsink, sink):
        if sink is None:
            return None
        if self.samples > 1:
            dsink = dsink.view(dsink.shape[0], self.samples, -1).sum(1)
        return dsink.reshape(sink.shape).to(sink.dtype)


_prepared: dict[tuple, _Prepared] = {}


def forget() -> None:
    """Drop all prepared calls."""
    _prepared.clear()


def _key(tensor):
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _keep(key, prepared):
    while len(_prepared) >= _KEPT:
        _prepared.pop(next(iter(_prepared)), None)
    _prepared[key] = prepared


def _same_device(q, others):
    for name, tensor in others:
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, q is on {q.device}")


def forward(q, k, v, sink, mask: int, scale: float, softcap: float, flags: int, heads_first: bool):
    """(out [batch, tokens_q, heads_q, head_dim_v], lse [batch, tokens_q, heads_q], max_logits [heads_q] or [0])."""
    key = (mask, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.device,
           None if sink is None else sink.shape, scale, softcap, flags, heads_first)
    prepared = _prepared.get(key)
    if prepared is None:
        _same_device(q, (("k", k), ("v", v), ("sink", sink)))
        prepared = _Forward(q, k, v, sink, registry.get(mask), scale, softcap, flags, heads_first)
        _keep(key, prepared)
    return prepared(q, k, v, sink)


def backward(dout, dlse, q, k, v, out, lse, sink, mask: int, scale: float, softcap: float, flags: int, heads_first: bool):
    """(dq, dk, dv, dsink), of the shapes of q, k, v and sink; dsink None without a sink."""
    tensors = (q, k, v, out, lse, dout, dlse)
    key = (mask, tuple(map(_key, tensors)), q.device, None if sink is None else sink.shape, scale, softcap, flags,
           heads_first)
    prepared = _prepared.get(key)
    if prepared is None:
        prepared = _Backward(tensors, sink, registry.get(mask), scale, softcap, flags, heads_first)
        _keep(key, prepared)
    return prepared(tensors, sink)
