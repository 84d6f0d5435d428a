# SPDX-License-Identifier: Apache-2.0
"""flash-attn's functions, with its signatures: `from libffa.flash_attn import flash_attn_varlen_func`.

What a caller of flash-attn hands over, it may hand over here; what libffa cannot do (dropout, ALiBi, paged keys) is an
exception that says so. A batch's cu_seqlens are copied to the host once, however many layers get the same tensors.
"""
from __future__ import annotations

import functools
import weakref

import torch

from .errors import UnsupportedError
from .mask import Mask
from .torch import attention

_KEPT = 64
_masks: dict[tuple, tuple] = {}  # (ids of tensors, options): (weak references, versions, mask)


def _same(entry, tensors):
    references, versions, _ = entry
    return all(ref() is t and version == t._version for ref, version, t in zip(references, versions, tensors))


@torch.compiler.disable
def _varlen_mask(cu_q, cu_k, causal, window, tokens_q, tokens_k):
    """The mask of packed documents, found again while the tensors live and were not written to."""
    tensors = (cu_q, cu_k)
    key = (id(cu_q), id(cu_k), causal, window, tokens_q, tokens_k)
    kept = _masks.get(key)
    if kept is not None and _same(kept, tensors):
        return kept[2]
    mask = Mask.from_cu_seqlens(cu_q, None if cu_k is cu_q else cu_k, causal=causal,
                                window=None if window == (-1, -1) else window)
    if (mask.seqlen_q, mask.seqlen_k) != (tokens_q, tokens_k):
        mask = mask.shift(0, 0, tokens_q, tokens_k)  # rows behind the last document attend nothing
    if not any(t.is_inference() for t in tensors):
        while len(_masks) >= _KEPT:
            _masks.pop(next(iter(_masks)))
        _masks[key] = (tuple(map(weakref.ref, tensors)), tuple(t._version for t in tensors), mask)
    return mask


@functools.lru_cache(_KEPT)
def _fixed_mask(seqlen_q, seqlen_k, causal, window):
    if window != (-1, -1):
        return Mask.window(seqlen_q, window[0], 0 if causal else window[1], seqlen_k=seqlen_k)
    return Mask.causal(seqlen_q, seqlen_k) if causal else Mask.full(seqlen_q, seqlen_k)


def _refuse(dropout_p, alibi_slopes, block_table=None):
    for name, value in (("dropout_p", dropout_p), ("alibi_slopes", alibi_slopes), ("block_table", block_table)):
        if value is not None and not (name == "dropout_p" and value == 0.0):
            raise UnsupportedError(f"{name}: libffa has none")


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Attention inside packed documents, as flash-attn's function of this name.

    q [tokens_q, heads_q, head_dim]; k, v [tokens_k, heads_kv, head_dim]; cu_seqlens_* int32 [documents + 1], on any device,
    from 0. max_seqlen_* are not needed. causal and windows are aligned to the last row and key of a document.
    Returns out [tokens_q, heads_q, head_dim]; with return_attn_probs (out, lse [heads_q, tokens_q], None).
    """
    _refuse(dropout_p, alibi_slopes, block_table)
    mask = _varlen_mask(cu_seqlens_q, cu_seqlens_k, bool(causal), tuple(window_size), q.shape[0], k.shape[0])
    found = attention(q, k, v, mask, scale=softmax_scale, softcap=softcap, deterministic=deterministic,
                      return_lse=return_attn_probs)
    return (found[0], found[1].transpose(0, 1), None) if return_attn_probs else found


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of a batch, as flash-attn's function of this name: q [batch, seqlen_q, heads_q, head_dim], and so on.
    With return_attn_probs (out, lse [batch, heads_q, seqlen_q], None)."""
    _refuse(dropout_p, alibi_slopes)
    mask = _fixed_mask(q.shape[1], k.shape[1], bool(causal), tuple(window_size))
    found = attention(q, k, v, mask, scale=softmax_scale, softcap=softcap, deterministic=deterministic,
                      return_lse=return_attn_probs)
    return (found[0], found[1].transpose(1, 2), None) if return_attn_probs else found


__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
