#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of attention costs the host: libffa's, and beside it those of flash-attn 2, FlashAttention-3 and -4 that are
installed, on the same tensors. A JSON line, or a table:

  bench_host.py [--device cpu|cuda] [--rounds N] [--json]

A call is one layer's of 32, each of which takes the one's before it as q: forward without gradients, forward with them, and
backward. On a GPU kernels are tiny and enqueued, so that the host is what takes the time. On the CPU, where a call computes,
the library's functions are replaced by ones that do nothing: these figures are Python's and PyTorch's alone. The least of
several rounds, in microseconds.
"""
import argparse
import contextlib
import ctypes
import importlib
import importlib.metadata
import json
import platform
import time
from unittest import mock

import torch

import libffa
from libffa import Mask, flash_attn
from libffa.torch import _calls, _ops, attention

LAYERS, TOKENS, HEADS, HEADS_KV, HEAD_DIM = 32, 64, 8, 2, 128
PARTS = ("no gradient", "with gradient", "backward")


class Nothing:
    """The library's two functions, which return at once; the same types of arguments are converted."""

    def __init__(self):
        function = ctypes.CDLL(None).isalpha  # 0 for 0
        function.argtypes, function.restype = [ctypes.c_void_p] * 5, ctypes.c_int
        self.ffa_forward = self.ffa_backward = lambda _kernels, *rest: 0 * function(0, *rest)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def best(rounds, function, device):
    """Microseconds of a layer, in the best round."""
    times = []
    for _ in range(rounds):
        synchronize(device)
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
        del result
    synchronize(device)
    return min(times) / LAYERS * 1e6


class Tensors:
    """q, k and v of a packed batch of one document, and dout; q has gradients."""

    def __init__(self, device):
        shapes = [(TOKENS, heads, HEAD_DIM) for heads in (HEADS, HEADS_KV, HEADS_KV, HEADS)]
        self.q, self.k, self.v, self.dout = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)
        self.q.requires_grad_()
        self.cu_seqlens = torch.tensor([0, TOKENS], device=device, dtype=torch.int32)

    def layers(self, function):
        """LAYERS calls in a row."""
        x = self.q
        for _ in range(LAYERS):
            x = function(x, self.k, self.v)
        return x

    def measured(self, function, rounds, device):
        """{part: microseconds} of function(q, k, v)."""
        with torch.no_grad():
            self.layers(function)  # compiles, plans
            found = {PARTS[0]: best(rounds, lambda: self.layers(function), device)}
        out = self.layers(function)
        if not out.requires_grad:
            return found
        backward = lambda: torch.autograd.grad(out, self.q, self.dout, retain_graph=True)
        backward()
        return found | {PARTS[1]: best(rounds, lambda: self.layers(function), device), PARTS[2]: best(rounds, backward, device)}


def ours(tensors):
    """{name: function(q, k, v)} of libffa."""
    mask, cu = Mask.causal(TOKENS), tensors.cu_seqlens
    call = lambda q, k, v: attention(q, k, v, mask)
    return {
        "libffa.torch.attention": call,
        "libffa.flash_attn.flash_attn_varlen_func":
            lambda q, k, v: flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, TOKENS, TOKENS, causal=True),
        "the operator libffa::forward": call,
    }


def peers(tensors):
    """{name: function(q, k, v)} of what is installed."""
    found = {}
    options = dict(causal=True, cu_seqlens_q=tensors.cu_seqlens, cu_seqlens_k=tensors.cu_seqlens, max_seqlen_q=TOKENS,
                   max_seqlen_k=TOKENS)
    for module, name in (("flash_attn.cute", "flash-attn-4"), ("flash_attn_interface", "flash-attn-3"),
                         ("fa3_fwd_interface", "fa3-fwd"), ("flash_attn", "flash-attn")):
        try:
            function = importlib.import_module(module).flash_attn_varlen_func
        except (ImportError, OSError, RuntimeError, AttributeError):  # not installed, or not for this machine
            continue

        def call(q, k, v, function=function):
            out = function(q, k, v, **options)
            return out[0] if isinstance(out, (tuple, list)) else out

        found[f"{name} {version_of(name)}: {module}.flash_attn_varlen_func"] = call
    return found


def version_of(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def rows(device, rounds):
    """(name, {part: microseconds}, why parts are missing or None)."""
    tensors = Tensors(device)
    for name, function in ours(tensors).items():
        is_operator = name.startswith("the operator")
        with mock.patch.object(_ops, "_is_watched", lambda: True) if is_operator else contextlib.nullcontext():
            yield name, tensors.measured(function, rounds, device), None
    if device != "cuda":
        return
    for name, function in peers(tensors).items():
        try:
            yield name, tensors.measured(function, rounds, device), None
        except Exception as error:  # of any kind: a peer's own
            yield name, {}, str(error).strip().partition("\n")[0] or type(error).__name__


def processor():
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="a JSON line instead of a table")
    arguments = parser.parse_args()
    nothing = mock.patch.object(_calls, "lib", Nothing()) if arguments.device == "cpu" else contextlib.nullcontext()
    with nothing:
        found = list(rows(arguments.device, arguments.rounds))
    head = {"device": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU", "processor": processor(),
            "torch": torch.__version__, "python": platform.python_version(), "libffa": libffa.version()}
    if arguments.json:
        print(json.dumps(head | {"rows": [{"name": name, "us": parts, "error": error} for name, parts, error in found]}))
        return
    print(", ".join(f"{key} {value}" for key, value in head.items()))
    print("\n| us a call | " + " | ".join(PARTS) + " |\n|---|" + "---|" * len(PARTS))
    for name, parts, error in found:
        print(f"| {name} | " + " | ".join(f"{parts[part]:.1f}" if part in parts else error or "-" for part in PARTS) + " |")


if __name__ == "__main__":
    main()
