# SPDX-License-Identifier: Apache-2.0
"""The attention functions to train with. Each is a pair: what a batch's mask is, made once a step, and
attend(q, k, v, mask) for q, k, v of [tokens][heads][head_dim], called by each layer."""
import torch
import torch.nn.functional as F


class Sdpa:
    """PyTorch's scaled_dot_product_attention with a dense boolean mask: tokens^2 bytes of it."""

    @staticmethod
    def mask(batch, device):
        documents = torch.bucketize(torch.arange(len(batch.ids)), batch.cu_seqlens[1:].long(), right=True)
        documents = documents.to(device)
        return (documents[:, None] == documents[None, :]).tril()

    @staticmethod
    def attend(q, k, v, mask):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)


class Libffa:
    """libffa: the mask is a plan of tiles, which all layers share."""

    @staticmethod
    def mask(batch, device):
        import libffa

        return libffa.Mask.from_cu_seqlens(batch.cu_seqlens, causal=True)

    @staticmethod
    def attend(q, k, v, mask):
        import libffa.torch

        return libffa.torch.attention(q, k, v, mask)


class Flex:
    """FlexAttention, compiled, with a BlockMask."""

    compiled = None

    @staticmethod
    def mask(batch, device):
        from torch.nn.attention.flex_attention import create_block_mask

        tokens = len(batch.ids)
        documents = torch.bucketize(torch.arange(tokens), batch.cu_seqlens[1:].long(), right=True).to(device)

        def document_causal(b, h, q, k):
            return (documents[q] == documents[k]) & (q >= k)

        return create_block_mask(document_causal, None, None, tokens, tokens, device=device)

    @classmethod
    def attend(cls, q, k, v, mask):
        from torch.nn.attention.flex_attention import flex_attention

        if cls.compiled is None:
            cls.compiled = torch.compile(flex_attention)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return cls.compiled(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)


class Flash:
    """flash-attn 2's variable length function, where it is installed."""

    @staticmethod
    def mask(batch, device):
        return batch.cu_seqlens.to(device), int(batch.cu_seqlens.diff().max())

    @staticmethod
    def attend(q, k, v, mask):
        from flash_attn import flash_attn_varlen_func

        cu_seqlens, longest = mask
        return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True)


class Flash4(Flash):
    """FlashAttention-4's (flash-attn-4 of PyPI), where it is installed."""

    @staticmethod
    def attend(q, k, v, mask):
        from flash_attn.cute import flash_attn_varlen_func

        cu_seqlens, longest = mask
        found = flash_attn_varlen_func(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=longest,
                                       max_seqlen_k=longest, causal=True)
        return found[0] if isinstance(found, (tuple, list)) else found  # some versions return lse, too


ATTENTIONS = {"sdpa": Sdpa, "libffa": Libffa, "flex": Flex, "flash": Flash, "fa4": Flash4}
