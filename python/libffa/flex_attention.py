# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's function, with its signature, for BlockMasks: `from libffa.flex_attention import flex_attention`.

The mask of a BlockMask is made once, exactly, by its block lists and its mask_mod (Mask.from_block_mask), and kept while
the BlockMask lives. Nothing is compiled by torch.compile.
"""
from __future__ import annotations

import functools
import weakref

import torch

from .errors import UnsupportedError
from .mask import Mask
from .torch import attention

_masks: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_full = functools.lru_cache(64)(Mask.full)


@torch.compiler.disable
def mask_of(block_mask) -> Mask:
    """The Mask of a BlockMask. Its heads are query heads to FlexAttention, kv heads to a Mask."""
    mask = _masks.get(block_mask)
    if mask is None:
        mask = _masks[block_mask] = Mask.from_block_mask(block_mask)
    return mask


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False,
                   kernel_options=None, *, softcap=0.0, deterministic=False):
    """Attention by a BlockMask, as torch.nn.attention.flex_attention.

    query [batch, heads_q, tokens_q, head_dim], key and value [batch, heads_kv, tokens_k, head_dim]; memory may be
    [batch][tokens][heads]. block_mask None: every row attends every key. One that differs between heads needs key and value
    to have as many as query. score_mod must be None: of what it does, softcap is an argument here. kernel_options are
    FlexAttention's, and not looked at.
    Returns out, or (out, lse [batch, heads_q, tokens_q]).
    """
    if score_mod is not None:
        raise UnsupportedError("score_mod: libffa has masks, softcap and sinks, and no other scores")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[1]}: pass enable_gqa=True")
    if block_mask is None:
        mask = _full(query.shape[2], key.shape[2])
    else:
        mask = mask_of(block_mask)
        if mask.heads > 1 and not mask.heads == query.shape[1] == key.shape[1]:
            raise UnsupportedError(f"block_mask: {mask.heads} heads, query has {query.shape[1]} and key {key.shape[1]}: 1 is needed, "
                                   "or as many as both have")
    return attention(query, key, value, mask, scale=scale, softcap=softcap, layout="BHSD", return_lse=return_lse,
                     deterministic=deterministic)


__all__ = ["flex_attention", "mask_of"]
