# SPDX-License-Identifier: Apache-2.0
"""Attention on PyTorch's tensors, by any mask: attention(q, k, v, mask)."""
from __future__ import annotations

import torch
from torch import Tensor

from ..mask import Mask
from . import _ops
from ._graph_mask import GraphMask
from ._private import is_forward_mode
from ._runtime import clear

_is_deterministic, _is_grad_enabled = torch.are_deterministic_algorithms_enabled, torch.is_grad_enabled

__all__ = ["GraphMask", "attention", "clear", "prepare"]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | GraphMask, *, scale: float | None = None, softcap: float = 0.0,
              sink: Tensor | None = None, layout: str | None = None, return_lse: bool = False,
              return_max_logits: bool = False, deterministic: bool = False):
    """softmax(scale * q k^T, restricted to the mask) v, differentiable by q, k, v and sink.

    layout       tensors have the dimensions
      "THD"      [tokens, heads, head_dim]: a packed batch; the one of 3 dimensions unless given
      "BSHD"     [batch, tokens, heads, head_dim]; the one of 4 dimensions unless given
      "BHSD"     [batch, heads, tokens, head_dim], as SDPA; "HTD" without a batch

    q            [tokens_q, heads_q, head_dim], bfloat16 or float16; on the CPU float32 and float64, too
    k            [tokens_k, heads_kv, head_dim]; heads_q is a multiple of heads_kv (MHA, GQA, MQA)
    v            [tokens_k, heads_kv, head_dim_v]; head_dim and head_dim_v are multiples of 8 up to 256
    mask         libffa.Mask of tokens_q x tokens_k: each sample has it; or of the whole batch, sample after sample. Or a
                 GraphMask, which stands for one
    scale        of the scores; None: 1 / sqrt(head_dim)
    softcap      > 0: scores become softcap * tanh(score / softcap)
    sink         [heads_q] or [sinks, heads_q], at most 8, floating point: logits that join each row's softmax without a value
    deterministic  dq, too, has the same bits in every run; also where torch.use_deterministic_algorithms is on

    Returns out, of q's layout with head_dim_v; or a tuple (out, lse, max_logits) of what was asked for:
      lse          [tokens_q, heads_q] (BSHD: [batch, tokens_q, heads_q]; BHSD: [batch, heads_q, tokens_q]), fp32 (fp64
                   for float64): log-sum-exp of the scores, -inf for a row without keys. Differentiable
      max_logits   [heads_q], the largest scaled score of each head, over the batch

    A row without keys has out = 0. Strides are free, and memory is not copied, where the last dimension is contiguous
    and the batch folds into the tokens ([batch][tokens] in memory) or into the heads ([batch][heads]), alike for all of
    q, k and v; on a GPU data must be aligned to 16 bytes, too. What does not fit is copied. Under autocast q, k and v are
    cast to its dtype.

    It runs on the current stream of q's device. The first call of a kind compiles kernels (seconds, once a machine); the
    first call with a mask plans it (about a millisecond, once a batch). Later calls only enqueue. Raises ValueError,
    TypeError and libffa.FfaError with a sentence that names the argument. Thread: any.
    """
    if scale is not None:
        if type(scale) is not float:
            scale = _number("scale", scale)
        if scale == 0.0:
            raise ValueError("scale: 0")
    if type(softcap) is not float:
        softcap = _number("softcap", softcap)
    try:
        number = mask.id
    except AttributeError:
        raise TypeError(f"mask: {type(mask).__name__}, not a libffa.Mask; Mask.concat joins those of a batch") from None
    # What a call costs the host is counted in such lines (bench_host.py): the rest is worked out where no call is prepared.
    return _ops.run(q, k, v, sink, (number, scale, softcap, layout, return_lse, return_max_logits,
                                    deterministic or _is_deterministic(), sink is None, _is_grad_enabled()))


def _number(name, value):
    """A float of what a caller passed for one."""
    if isinstance(value, Tensor) and (value.requires_grad or is_forward_mode()):
        raise ValueError(f"{name}: a tensor that may have a derivative; derivatives are by q, k, v and sink only")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r}, not a number") from None


def prepare(q: Tensor, k: Tensor, v: Tensor, mask: Mask | GraphMask, **options) -> None:
    """Compile, plan and upload what attention() with these arguments needs, before a CUDA graph is captured or a first step
    is timed. Options are attention()'s. It makes the call, and drops its results."""
    attention(q, k, v, mask, **options)


def __getattr__(name):  # what needs torch.distributed, when it is asked for
    if name in ("ContextParallel", "Ulysses"):
        from . import parallel, ulysses

        return {"ContextParallel": parallel.ContextParallel, "Ulysses": ulysses.Ulysses}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
