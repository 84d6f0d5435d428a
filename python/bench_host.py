#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of attention() costs the host, and of what it is made; beside flash-attn where that is installed.

  bench_host.py [--device cuda] [--calls N]

On a GPU the kernels are tiny and enqueued, so that the host is what takes the time. On the CPU, where a call computes,
the library's functions are replaced by ones that do nothing: the figures are Python's alone. The best of several rounds.
"""
import argparse
import ctypes
import time

import torch

from libffa import Mask
from libffa.torch import _calls, _ops, attention


class Nothing:
    """The library's two functions, which return at once; the same types of arguments are converted."""

    def __init__(self):
        function = ctypes.CDLL(None).isalpha  # 0 for 0
        function.argtypes, function.restype = [ctypes.c_void_p] * 5, ctypes.c_int
        self.ffa_forward = self.ffa_backward = lambda _kernels, *rest: 0 * function(0, *rest)


def best(calls, function, device):
    """Microseconds of a call, the best round."""
    rounds = []
    for _ in range(100):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        rounds.append((time.perf_counter() - begin) / calls * 1e6)
    return min(rounds)


def cases(device):
    """(name, function)."""
    dtype = torch.bfloat16
    q, k, v = (torch.randn(64, heads, 64, device=device, dtype=dtype) for heads in (4, 2, 2))
    mask = Mask.causal(64)
    attention(q, k, v, mask)  # compiles, plans
    yield "torch.empty, for comparison", lambda: torch.empty(64, 4, 64, device=device, dtype=dtype)
    yield "attention, no gradient", lambda: attention(q, k, v, mask)
    yield "the operator, no gradient", lambda: _ops.forward(q[None], k[None], v[None], None, mask.id, 0.0, 0.0, 0, False)
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out = attention(*leaves, mask)
    dout = torch.randn_like(out)
    yield "attention, with gradient", lambda: attention(*leaves, mask)
    yield "attention and its backward pass", lambda: torch.autograd.grad(attention(*leaves, mask), leaves, dout)
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return
    cu = torch.tensor([0, 64], device=device, dtype=torch.int32)
    yield "flash-attn varlen, no gradient", lambda: flash_attn_varlen_func(q, k, v, cu, cu, 64, 64, causal=True)
    yield "flash-attn varlen, with gradient", lambda: flash_attn_varlen_func(*leaves, cu, cu, 64, 64, causal=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        _calls.lib = Nothing()
    for name, function in cases(arguments.device):
        print(f"{best(arguments.calls, function, arguments.device):8.1f} us  {name}", flush=True)


if __name__ == "__main__":
    main()
