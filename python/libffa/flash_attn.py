# SPDX-License-Identifier: Apache-2.0
"""flash-attn's functions, with its signatures: `from libffa.flash_attn import flash_attn_varlen_func`.

What a caller of flash-attn hands over, it may hand over here; what libffa cannot do (dropout, ALiBi, paged keys) is an
exception that says so. A batch's cu_seqlens are copied to the host once, however many layers get the same tensors.
"""
from __future__ import annotations

import functools
import weakref

import torch

from ._arrays import pair
from .errors import UnsupportedError
from .mask import Mask
from .torch import attention

_KEPT = 64


class _Kept:
    """The mask of two tensors of boundaries, while they live and are not written to."""

    def __init__(self, cu_q, cu_k, mask):
        self.cu_q, self.cu_k, self.mask = weakref.ref(cu_q), weakref.ref(cu_k), mask
        self.version_q, self.version_k = cu_q._version, cu_k._version

    def is_of(self, cu_q, cu_k):
        if not (self.cu_q() is cu_q and self.version_q == cu_q._version):
            return False
        return cu_k is cu_q or (self.cu_k() is cu_k and self.version_k == cu_k._version)


_masks: dict[tuple, _Kept] = {}  # by ids of tensors and options


def _eager_varlen_mask(cu_q, cu_k, causal, window, tokens_q, tokens_k):
    """The mask of packed documents, found again where it is kept."""
    key = id(cu_q), id(cu_k), causal, window, tokens_q, tokens_k
    kept = _masks.get(key)
    if kept is not None and kept.is_of(cu_q, cu_k):
        return kept.mask
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if not isinstance(cu, torch.Tensor):
            raise TypeError(f"{name}: {type(cu).__name__}, not a tensor")
    mask = Mask.from_cu_seqlens(cu_q, None if cu_k is cu_q else cu_k, causal=causal,
                                window=None if window == (-1, -1) else window)
    for name, end, tensor, tokens in (("cu_seqlens_q", mask.seqlen_q, "q", tokens_q), ("cu_seqlens_k", mask.seqlen_k, "k", tokens_k)):
        if end > tokens:
            raise ValueError(f"{name}: ends at {end}, {tensor} has {tokens} tokens")
    if (mask.seqlen_q, mask.seqlen_k) != (tokens_q, tokens_k):
        mask = mask.shift(0, 0, tokens_q, tokens_k)  # rows behind the last document attend nothing
    if not (cu_q.is_inference() or cu_k.is_inference()):  # which have no versions
        while len(_masks) >= _KEPT:
            _masks.pop(next(iter(_masks)), None)
        _masks[key] = _Kept(cu_q, cu_k, mask)
    return mask


_varlen_mask_outside_of_graphs = torch.compiler.disable(_eager_varlen_mask)


@functools.lru_cache(_KEPT)
def _fixed_mask(seqlen_q, seqlen_k, causal, window):
    if window != (-1, -1):
        return Mask.window(seqlen_q, window[0], 0 if causal else window[1], seqlen_k=seqlen_k)
    return Mask.causal(seqlen_q, seqlen_k) if causal else Mask.full(seqlen_q, seqlen_k)


def _refuse(dropout_p, alibi_slopes, block_table=None):
    if not dropout_p and alibi_slopes is None and block_table is None:
        return
    name = "dropout_p" if dropout_p else "block_table" if alibi_slopes is None else "alibi_slopes"
    raise UnsupportedError(f"{name}: libffa has none")


def _window(size):
    """window_size as a tuple. Of a list Dynamo can make one."""
    if not isinstance(size, (tuple, list)):
        return pair(size, "window_size")
    if len(size) != 2:
        raise TypeError(f"window_size: {size!r} is not a pair of integers")
    return tuple(size)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Attention inside packed documents, as flash-attn's function of this name.

    q [tokens_q, heads_q, head_dim]; k, v [tokens_k, heads_kv, head_dim]; cu_seqlens_* int32 [documents + 1], on any device,
    from 0, to tokens_* at most: rows behind the last document attend nothing. max_seqlen_* are not needed. causal and windows
    are aligned to the last row and key of a document.
    Returns out [tokens_q, heads_q, head_dim]; with return_attn_probs (out, lse [heads_q, tokens_q], None).
    """
    _refuse(dropout_p, alibi_slopes, block_table)
    mask_of = _varlen_mask_outside_of_graphs if torch.compiler.is_compiling() else _eager_varlen_mask
    window = _window(window_size)
    mask = mask_of(cu_seqlens_q, cu_seqlens_k, bool(causal), window, q.shape[0], k.shape[0])
    found = attention(q, k, v, mask, scale=softmax_scale, softcap=softcap, deterministic=deterministic,
                      return_lse=return_attn_probs)
    return (found[0], found[1].transpose(0, 1), None) if return_attn_probs else found


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of a batch, as flash-attn's function of this name: q [batch, seqlen_q, heads_q, head_dim], and so on.
    With return_attn_probs (out, lse [batch, heads_q, seqlen_q], None)."""
    _refuse(dropout_p, alibi_slopes)
    if q.dim() != 4:
        raise ValueError(f"q: {q.dim()} dimensions; [batch, seqlen_q, heads_q, head_dim] is needed")
    window = _window(window_size)
    mask = _fixed_mask(q.shape[1], k.shape[1], bool(causal), window)
    found = attention(q, k, v, mask, scale=softmax_scale, softcap=softcap, deterministic=deterministic,
                      return_lse=return_attn_probs)
    return (found[0], found[1].transpose(1, 2), None) if return_attn_probs else found


__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
