# SPDX-License-Identifier: Apache-2.0
"""What stands for the packages of bench_attention.py's peers where they are not: their functions' signatures, and what their
documentation says of the arguments, in fp64. Taken from flash-attn-4 4.0.0b36, fa3-fwd 0.0.3, nvidia-cudnn-frontend 1.32.0
and MagiAttention's flex_flash_attn.py."""
import types

import torch

from cases import reference


def _attention(q, k, v, cells):
    """[batch, tokens, heads, head_dim]."""
    return reference(q, k, v, cells)[0].to(q.dtype)


def _window(seqlen_q, seqlen_k, causal, window_size):
    """Row i attends the keys i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right."""
    left, right = (None if side is None or side < 0 else side for side in window_size)
    if causal:
        right = 0
    own = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    keys = torch.arange(seqlen_k)[None]
    cells = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if left is not None:
        cells &= keys >= own - left
    if right is not None:
        cells &= keys <= own + right
    return cells


def _dense(q, k, v, causal, window_size):
    assert q.dim() == k.dim() == v.dim() == 4
    return _attention(q, k, v, _window(q.shape[1], k.shape[1], causal, window_size))


def _varlen(q, k, v, cu_q, cu_k, most_q, most_k, causal, window_size):
    assert q.dim() == k.dim() == v.dim() == 3 and cu_q.dtype == cu_k.dtype == torch.int32
    assert most_q == int(cu_q.diff().max()) and most_k == int(cu_k.diff().max())
    assert int(cu_q[-1]) == q.shape[0] and int(cu_k[-1]) == k.shape[0]
    parts = []
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        parts.append(_dense(q[None, a:b], k[None, c:d], v[None, c:d], causal, window_size)[0])
    return torch.cat(parts)


def flash_attention_3(left_out=()):
    """{name: module}; left_out: FLASHATTENTION_DISABLE_..."""
    def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                        window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                        deterministic=False, sm_margin=0, return_attn_probs=False):
        assert all(isinstance(side, int) for side in window_size)
        return _dense(q, k, v, causal, window_size)

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                               seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                               v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                               pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
        assert all(isinstance(side, int) for side in window_size)
        return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size)

    interface, config = types.ModuleType("flash_attn_interface"), types.ModuleType("flash_attn_config")
    interface.flash_attn_func, interface.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    config.CONFIG = {"build_flags": {"FLASHATTENTION_DISABLE_" + flag: flag in left_out
                                     for flag in ("BACKWARD", "LOCAL", "VARLEN", "FP16", "HDIM64")}}
    return {module.__name__: module for module in (interface, config)}


def flash_attention_4():
    def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None),
                        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None,
                        score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None,
                        block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False,
                        gather_bwd_token_chunk=None):
        assert -1 not in window_size
        return _dense(q, k, v, causal, window_size), None

    def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
                               min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
                               softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
                               num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None,
                               mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False,
                               scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False,
                               gather_bwd_recompute_p=False, gather_bwd_token_chunk=None):
        assert -1 not in window_size
        return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size), None

    cute = types.ModuleType("flash_attn.cute")
    cute.flash_attn_func, cute.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    return {"flash_attn": types.ModuleType("flash_attn"), "flash_attn.cute": cute}


def cudnn_flex():
    def create_mask_plan(mask_func, q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
                         pack_gqa=None, build_backward=None, _fwd_variant=None):
        assert q.dim() == k.dim() == v.dim() == 4 and mask_func.dim() == 3 and mask_func.dtype == torch.int32
        assert mask_func.is_contiguous() and mask_func.shape[0] == 1 and mask_func.shape[1] % 2 == 1
        assert mask_func.shape[2] == q.shape[1] and (mask_func.diff(dim=1) >= 0).all()
        return mask_func[0], build_backward

    def flex_attn_func(q, k, v, *, mask_plan, softmax_scale=None, deterministic=False, return_lse=False,
                       return_max_logit=False):
        ends, has_backward = mask_plan
        assert has_backward or not (torch.is_grad_enabled() and q.requires_grad)
        keys = torch.arange(k.shape[1])[None]
        cells = keys < ends[0][:, None]
        for n in range(1, len(ends), 2):
            cells = cells | ((keys >= ends[n][:, None]) & (keys < ends[n + 1][:, None]))
        return _attention(q, k, v, cells)

    flex = types.ModuleType("cudnn.flex_attention")
    flex.create_mask_plan, flex.flex_attn_func = create_mask_plan, flex_attn_func
    return {"cudnn": types.ModuleType("cudnn"), "cudnn.flex_attention": flex}


def magi():
    def flex_flash_attn_func(q, k, v, q_ranges=None, k_ranges=None, attn_type_map=None, *, sink=None, sink_layout="sh",
                             softmax_scale=None, softcap=0.0, deterministic=False, sm_margin=0,
                             disable_fwd_atomic_reduction=False, ref_block_size=None, swap_ab=False):
        counts = torch.zeros(q.shape[0], k.shape[0], dtype=torch.int32)
        slices_of_row = torch.zeros(q.shape[0], dtype=torch.int32)
        for (a, b), (c, d), kind in zip(q_ranges.tolist(), k_ranges.tolist(), attn_type_map.tolist()):
            i, j = torch.arange(b - a)[:, None], torch.arange(d - c)[None]
            inside = torch.ones(b - a, d - c, dtype=torch.bool)
            if kind & 1:
                inside &= j < d - c - (b - a - 1 - i)
            if kind & 2:
                inside &= j >= i
            counts[a:b, c:d] += inside.int()
            slices_of_row[a:b] += 1
        assert counts.max() <= 1, "a cell is counted twice"
        assert not disable_fwd_atomic_reduction or slices_of_row.max() <= 1
        return _attention(q[None], k[None], v[None], counts > 0)[0], None

    functional = types.ModuleType("magi_attention.functional")
    functional.flex_flash_attn_func = flex_flash_attn_func
    return {"magi_attention": types.ModuleType("magi_attention"), "magi_attention.functional": functional}
