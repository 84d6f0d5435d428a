# SPDX-License-Identifier: Apache-2.0
"""Masks, tensors and the reference that tests share."""
import math

import torch

from libffa import Mask

MASKS = {
    "full": lambda: Mask.full(48),
    "causal": lambda: Mask.causal(48),
    "packed": lambda: Mask.from_cu_seqlens([0, 20, 41, 48], causal=True),
    "window": lambda: Mask.window(48, 7, 0),
    "block_causal": lambda: Mask.block_causal(48, 16),
    "empty_rows": lambda: Mask.from_slices([(5, 30, 0, 20, "full"), (10, 40, 25, 48, "invcausal")], 48),
    "cross": lambda: Mask.causal(48, 80),
}
IS_GPU = IS_EMULATED = False  # conftest.py sets them
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def dtypes(device):
    """That a device has kernels for."""
    if IS_EMULATED:  # where each kernel takes seconds to compile
        return [torch.bfloat16]
    return [torch.bfloat16, torch.float16] if IS_GPU else [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def head_dim():
    return 64 if IS_GPU else 16


def dense(mask, device="cpu", head=0):
    """[seqlen_q, seqlen_k], cell by cell from the slices."""
    rows, keys = torch.arange(mask.seqlen_q)[:, None], torch.arange(mask.seqlen_k)[None, :]
    cells = torch.zeros(mask.seqlen_q, mask.seqlen_k, dtype=torch.bool)
    for q_begin, q_end, k_begin, k_end, kind in mask.slices(head):
        i = rows - q_begin
        low = k_begin + (i if kind in ("invcausal", "bicausal") else 0)
        high = k_end - (q_end - q_begin - 1 - i if kind in ("causal", "bicausal") else 0)
        cells |= (rows >= q_begin) & (rows < q_end) & (keys >= low) & (keys < high)
    return cells.to(device)


def reference(q, k, v, cells, *, scale=None, softcap=0.0, sink=None):
    """(out, lse, max_logits) in fp64 of [batch, tokens, heads, head_dim]; differentiable."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (scale or 1 / math.sqrt(q.shape[3]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~cells, -math.inf)
    columns = scores
    if sink is not None:
        logits = sink.double().reshape(-1, q.shape[2]).T[None, :, None, :].expand(*scores.shape[:3], -1)
        columns = torch.cat((scores, logits), 3)
    has_keys = columns.amax(3, keepdim=True) > -math.inf
    weights = torch.where(has_keys, columns.masked_fill(~has_keys, 0.0).softmax(3), 0.0)[..., :k.shape[1]]
    lse = torch.where(has_keys, columns.masked_fill(~has_keys, 0.0).logsumexp(3, True), -math.inf)[..., 0]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse.transpose(1, 2), scores.detach().amax((0, 2, 3))


def tensors(device, dtype, mask, *, batch=1, heads=(4, 2), dim=None, dim_v=None, grad=True):
    """q, k, v [batch, tokens, heads, head_dim]."""
    dim = dim or head_dim()
    sizes = ((mask.seqlen_q, heads[0], dim), (mask.seqlen_k, heads[1], dim), (mask.seqlen_k, heads[1], dim_v or dim))
    return [torch.randn(batch, *size, device=device, dtype=dtype, requires_grad=grad) for size in sizes]


def decoding(*lengths, capacity=1200):
    """The mask of a batch of sequences of these lengths, one query row each, whose keys begin at multiples of the capacity."""
    return Mask.from_slices([(b, b + 1, b * capacity, b * capacity + n, "full") for b, n in enumerate(lengths)], len(lengths),
                            len(lengths) * capacity)


def close(have, want, dtype, what=""):
    have, want = have.detach().double(), want.detach().double()
    scale = max(1.0, want[want.isfinite()].abs().max().item() if want.isfinite().any() else 1.0)
    same = (have == want) | ((have - want).abs() <= TOLERANCE[dtype] * scale)
    assert same.all(), f"{what}: off by {(have - want).abs()[~same].max().item()}, scale {scale}"
