# SPDX-License-Identifier: Apache-2.0
"""Layouts: what the dimensions of a caller's tensors are, and how they become the library's [tokens][heads][head_dim].

Inside, every tensor is [batch, tokens, heads, head_dim], as a view. The library knows no samples: a batch is folded into the
tokens, or, where memory has heads before tokens, into the heads.
"""
from __future__ import annotations

from enum import IntEnum

import torch


class Layout(IntEnum):
    """The dimensions of q, k, v and out; of lse and its gradient the same without the last."""

    BSHD = 0
    BHSD = 1
    THD = 2
    HTD = 3

    def canonical(self, tensor):
        """The [batch, tokens, heads, head_dim] view of a tensor."""
        if self >= Layout.THD:
            tensor = tensor.unsqueeze(0)
        return tensor.transpose(1, 2) if self in (Layout.BHSD, Layout.HTD) else tensor

    def restored(self, tensor):
        """The inverse of canonical()."""
        if self in (Layout.BHSD, Layout.HTD):
            tensor = tensor.transpose(1, 2)
        return tensor.squeeze(0) if self >= Layout.THD else tensor


_BY_DIMS = {3: (Layout.THD, Layout.HTD), 4: (Layout.BSHD, Layout.BHSD)}


def layout_of(name: str | None, q, k, v) -> Layout:
    """The layout of tensors that a caller names, or means."""
    dims = q.dim()
    if k.dim() != dims or v.dim() != dims:
        raise ValueError(f"q, k, v: {dims}, {k.dim()} and {v.dim()} dimensions")
    if dims not in _BY_DIMS:
        raise ValueError(f"q: {dims} dimensions; 3 (THD, HTD) or 4 (BSHD, BHSD) are needed")
    first, second = _BY_DIMS[dims]
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"layout: {type(name).__name__}, not a str")
    if name is None or name.upper() == first.name:
        return first
    if name.upper() != second.name:
        raise ValueError(f"layout: '{name}', q has {dims} dimensions: {first.name} or {second.name}")
    return second


def is_heads_first(q, k) -> bool:
    """Whether memory of canonical tensors has heads before tokens; outputs are made likewise. One query row has no order: k says
    it then."""
    tensor = q if q.shape[1] > 1 else k
    return tensor.stride(1) < tensor.stride(2)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of lse, sinks and largest logits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty(like, batch, tokens, heads, width, heads_first, dtype=None):
    """[batch, tokens, heads, width], in memory tokens or heads first; without `width` where that is None."""
    tail = () if width is None else (width,)
    if heads_first:
        return like.new_empty((batch, heads, tokens) + tail, dtype=dtype).transpose(1, 2)
    return like.new_empty((batch, tokens, heads) + tail, dtype=dtype)


class Fold:
    """How canonical tensors of a call become the library's."""

    def __init__(self, batch: int, into_heads: bool, on_gpu: bool):
        self.batch, self.into_heads, self.on_gpu = batch, into_heads, on_gpu

    def strides(self, tensor):
        """(token_stride, head_stride), or None where there are none: the tensor is to be copied."""
        if tensor.is_neg():  # a view whose memory has the other sign
            return None
        shape, stride = tensor.shape, tensor.stride()
        (batch, tokens, heads), (sample, token, head) = shape[:3], stride[:3]
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
        if self.on_gpu and len(shape) == 4 and (token * tensor.element_size() % 16 or head * tensor.element_size() % 16):
            return None
        return token, head

    def copied(self, tensor):
        """The tensor in memory that can be folded."""
        tensor = tensor.resolve_neg()
        if self.into_heads:
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        return tensor.contiguous()
