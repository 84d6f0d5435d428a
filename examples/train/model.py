# SPDX-License-Identifier: Apache-2.0
"""A small Llama in plain PyTorch: RMSNorm, rotary embeddings, grouped-query attention, SwiGLU.

It takes packed documents: tokens have no batch dimension, positions restart where a document does, and what
may attend what is `mask`, which the model hands on to its attention function unread.
"""
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 256
    layers: int = 8
    dim: int = 512
    heads_q: int = 8
    heads_kv: int = 2
    head_dim: int = 64
    hidden: int = 1408
    rope_base: float = 10000.0


def rotate(x, cos, sin):
    """Rotary embedding. x [tokens][heads][head_dim]; cos, sin [tokens][1][head_dim / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: Config, attend: Callable):
        super().__init__()
        self.config, self.attend = config, attend
        q, kv = config.heads_q * config.head_dim, config.heads_kv * config.head_dim
        self.qkv = nn.Linear(config.dim, q + 2 * kv, bias=False)
        self.out = nn.Linear(q, config.dim, bias=False)

    def forward(self, x, cos, sin, mask):
        c = self.config
        qkv = self.qkv(x).unflatten(-1, (c.heads_q + 2 * c.heads_kv, c.head_dim))
        q, k, v = qkv.split([c.heads_q, c.heads_kv, c.heads_kv], dim=1)  # v stays a part of qkv: no copy
        out = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        return self.out(out.flatten(1))


class Block(nn.Module):
    def __init__(self, config: Config, attend: Callable):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(config.dim, eps=1e-5), nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config, attend)
        self.gate_up = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """attend(q, k, v, mask): out [tokens][heads_q][head_dim] of q and of k, v [tokens][heads_kv][head_dim]."""

    def __init__(self, config: Config, attend: Callable):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(Block(config, attend) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (2 * config.layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, ids, positions, mask):
        """Logits [tokens][vocab] of ids and positions [tokens]."""
        half = self.config.head_dim // 2
        steps = torch.arange(half, device=ids.device, dtype=torch.float32) / half
        angles = positions[:, None, None].float() * self.config.rope_base**-steps
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return self.head(self.norm(x))


def loss_sum(logits, labels):
    """The sum of the cross-entropies of tokens with a label, in fp32."""
    return F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
