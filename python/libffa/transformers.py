# SPDX-License-Identifier: Apache-2.0
"""libffa as an attention implementation of Hugging Face's transformers.

    import libffa.transformers
    libffa.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="libffa")

Nothing else changes: causal, sliding-window and bidirectional layers, padded batches, and packed rows, which transformers
sees by position ids that restart. The mask is made once a forward pass and kind of layer. A mask of one's own, of any
form, goes in as an argument of the model, `model(input_ids, libffa_mask=mask)`, and so does a context-parallel step
(libffa.torch.ContextParallel), whose rows the model's inputs then are.
"""
from __future__ import annotations

import functools

import torch

from .errors import UnsupportedError
from .mask import Mask
from .torch import attention

NAME = "libffa"


# ---- what transformers says of a mask ----

def _inner(function):
    """The variables of a mask function of transformers.masking_utils, and which of its makers made it."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None:
        return "", {}
    maker = function.__qualname__.partition(".<locals>")[0] if function.__module__.startswith("transformers.") else ""
    return maker, dict(zip(code.co_freevars, (cell.cell_contents for cell in cells or ())))


def _describe(function):
    """{"causal", "left", "right", "documents"} of a mask function that is made of known ones; None for any other."""
    from transformers import masking_utils

    if function is masking_utils.causal_mask_function:
        return {"causal": True}
    if function is masking_utils.bidirectional_mask_function:
        return {}
    maker, variables = _inner(function)
    if maker == "sliding_window_overlay":
        return {"left": variables["sliding_window"] - 1}
    if maker == "packed_sequence_mask_function":
        return {"documents": variables["packed_sequence_mask"]}
    if maker == "remap_positions_for_packed_sequence":
        return _describe(variables["mask_function"])
    if maker != "and_masks":
        return None
    found = {}
    for part in variables["mask_functions"]:
        facts = _describe(part)
        if facts is None or found.keys() & facts.keys():
            return None
        found |= facts
    return found


def _documents_of(row):
    """cu_seqlens of a row of document numbers, which ascend."""
    begins = (row[1:] != row[:-1]).nonzero().flatten() + 1
    return [0, *begins.tolist(), len(row)]


def _plain(facts, cu_q, seqlen_k):
    causal, left = facts.get("causal", False), facts.get("left")
    if len(cu_q) > 2:
        return Mask.from_cu_seqlens(cu_q, causal=causal, window=None if left is None else (left, 0 if causal else -1))
    if left is not None:
        return Mask.window(cu_q[-1], left, 0 if causal else -1, seqlen_k=seqlen_k)
    return Mask.causal(cu_q[-1], seqlen_k) if causal else Mask.full(cu_q[-1], seqlen_k)


def _without_padding(mask, keys):
    """The mask without keys that are padding. keys: booleans, on the CPU."""
    bounds = [0, *((keys[1:] != keys[:-1]).nonzero().flatten() + 1).tolist(), len(keys)]
    parts = [mask.crop((0, mask.seqlen_q), (begin, end)).shift(0, begin, mask.seqlen_q, mask.seqlen_k)
             for begin, end in zip(bounds, bounds[1:]) if keys[begin]]
    if not parts:
        return Mask.from_slices([], mask.seqlen_q, mask.seqlen_k)
    return parts[0] if len(parts) == 1 else Mask.union(parts)


def _dense(arguments):
    """Any other mask function: by its cells. tokens^2 of them, once a forward pass."""
    from transformers.masking_utils import sdpa_mask

    cells = sdpa_mask(**arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    if cells.shape[1] != 1:
        raise UnsupportedError("a mask that differs between query heads: pass a Mask as libffa_mask")
    return [Mask.from_dense(sample[0]) for sample in cells]


def _is_aligned(q_length, kv_length, q_offset, kv_offset):
    """Whether the last row is at the last key, as in training and in a cache that grows."""
    return not torch.is_tensor(q_offset) and q_offset + q_length == kv_offset + kv_length


@torch.compiler.disable
def make_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **options):
    """The Mask of a forward pass: what transformers calls where other implementations make a tensor."""
    facts = _describe(mask_function) if not options.get("use_vmap") else None
    if facts is None or not _is_aligned(q_length, kv_length, q_offset, kv_offset):
        samples = _dense({"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
                          "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask} | options)
        return _joined(samples)
    documents = facts.get("documents")
    rows = [None] * batch_size if documents is None else documents.cpu()
    samples = [_plain(facts, [0, q_length] if row is None else _documents_of(row), kv_length) for row in rows]
    if attention_mask is not None:  # of all tokens there are; those behind them are padding, too
        keys = attention_mask[:, kv_offset:kv_offset + kv_length].bool().cpu()
        keys = torch.nn.functional.pad(keys, (0, kv_length - keys.shape[1]))
        samples = [mask if row.all() else _without_padding(mask, row) for mask, row in zip(samples, keys)]
    return _joined(samples)


def _joined(samples):
    """One mask for all samples where they are equal; else one of the whole batch."""
    return samples[0] if all(mask == samples[0] for mask in samples) else Mask.concat(samples)


# ---- attention ----

_causal = functools.lru_cache(64)(Mask.causal)
_full = functools.lru_cache(64)(Mask.full)


def attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, s_aux=None,
                      is_causal=None, libffa_mask=None, **_options):
    """What transformers' layers call. query, key, value [batch, heads, tokens, head_dim]; returns (out [batch, tokens,
    heads, head_dim], None)."""
    if dropout:
        raise UnsupportedError(f"dropout: {dropout}; libffa has none")
    options = {"scale": scaling, "softcap": softcap or 0.0, "sink": s_aux}
    mask = attention_mask if libffa_mask is None else libffa_mask
    if hasattr(mask, "attention"):  # a step of libffa.torch.ContextParallel
        if query.shape[0] != 1:
            raise ValueError(f"query: a batch of {query.shape[0]}; a context-parallel step has one packed row")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return mask.attention(q, k, v, **options)[None], None
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = (_causal if causal else _full)(query.shape[2], key.shape[2])
    elif torch.is_tensor(mask):
        raise UnsupportedError(f"attention_mask: a tensor of {mask.dim()} dimensions; pass libffa_mask, Mask.from_dense() of its booleans")
    out = attention(query, key, value, mask, layout="BHSD", **options)
    return out.transpose(1, 2), None


def register(name: str = NAME) -> str:
    """Make libffa an attn_implementation of transformers, and return its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)
    return name


__all__ = ["NAME", "attention_forward", "make_mask", "register"]
