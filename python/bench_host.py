#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of attention costs the host: libffa's, and beside it those of flash-attn 2, FlashAttention-3 and -4 that are
installed, on the same tensors. A JSON line, or a table:

  bench_host.py [--device cpu|cuda] [--rounds N] [--json]

A call is one layer's of 32, each of which takes the one's before it as q: forward without gradients, forward with them, and
backward. On a GPU kernels are tiny and enqueued, so that the host is what takes the time. On the CPU, where a call computes,
the library's functions are replaced by ones that do nothing: these figures are Python's and PyTorch's alone. The least of
all rounds, in microseconds. Everything is compiled and planned first, and then takes turns of a few rounds each, so that what
the machine does besides befalls all alike.

Rows that begin with "-" are what a call is made of, measured alone: what of it is PyTorch's, the library's, the driver's.
"""
import argparse
import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import json
import platform
import statistics
import time
from unittest import mock

import torch

import libffa
from libffa import Mask, flash_attn
from libffa.torch import _calls, _ops, _private, attention

LAYERS, TOKENS, HEADS, HEADS_KV, HEAD_DIM = 32, 64, 8, 2, 128
PARTS = ("no gradient", "with gradient", "backward")
TURN = 10  # rounds


class Nothing:
    """The library's two functions, which return at once; the same types of arguments are converted."""

    def __init__(self):
        function = ctypes.CDLL(None).isalpha  # 0 for 0
        function.argtypes, function.restype = [ctypes.c_void_p] * 5, ctypes.c_int
        self.ffa_forward = self.ffa_backward = lambda _kernels, *rest: 0 * function(0, *rest)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class Subject:
    """Something measured: its parts, functions that make LAYERS calls; the microseconds of a call in each round; or why it
    cannot be called."""

    def __init__(self, name, parts=None, error=None):
        self.name, self.parts, self.error = name, parts or {}, error
        self.us = {part: [] for part in self.parts}

    def turn(self, device):
        for part, function in self.parts.items():
            for _ in range(TURN):
                synchronize(device)
                begin = time.perf_counter()
                result = function()
                self.us[part].append((time.perf_counter() - begin) / LAYERS * 1e6)
                del result
            synchronize(device)


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

    def parts(self, function, through=contextlib.nullcontext):
        """{part: its LAYERS calls} of function(q, k, v), after one of each, which compiles and plans. through: what calls
        run in."""
        out = None

        def without_gradient():
            with through(), torch.no_grad():
                return self.layers(function)

        def with_gradient():
            with through():
                return self.layers(function)

        def backward():
            with through():
                return torch.autograd.grad(out, self.q, self.dout, retain_graph=True)

        without_gradient()
        out = with_gradient()
        if not out.requires_grad:
            return {PARTS[0]: without_gradient}
        backward()
        return dict(zip(PARTS, (without_gradient, with_gradient, backward)))


def ours(tensors):
    """Subjects of libffa."""
    mask, cu = Mask.causal(TOKENS), tensors.cu_seqlens

    def call(q, k, v):
        return attention(q, k, v, mask)

    def varlen(q, k, v):
        return flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, TOKENS, TOKENS, causal=True)

    @contextlib.contextmanager
    def watched():
        is_watched, _ops._is_watched = _ops._is_watched, lambda: True
        try:
            yield
        finally:
            _ops._is_watched = is_watched

    return [Subject("libffa.torch.attention", tensors.parts(call)),
            Subject("libffa.flash_attn.flash_attn_varlen_func", tensors.parts(varlen)),
            Subject("the operator libffa::forward", tensors.parts(call, watched))]


class Allocates(torch.autograd.Function):
    """As libffa's, without a call: memory, and tensors that are saved."""

    @staticmethod
    def forward(ctx, q, k, v, new):
        out, lse = new[0](), new[1]()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.new = new
        return out

    @staticmethod
    def backward(ctx, _dout):
        ctx.saved_tensors
        dq, dk, dv, *_workspace = [new() for new in ctx.new[2:]]
        return dq, dk, dv, None


@torch.library.custom_op("bench_host::allocates", mutates_args=())
def allocates(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q)


def repeated(function):
    """LAYERS calls of a function without arguments."""
    def calls():
        for _ in range(LAYERS):
            function()

    return calls


def found_calls():
    """The prepared forward call without gradients, the one with them, and the backward call, of attention() before."""
    calls = [prepared for found in _calls._prepared.values() for _, prepared in found]
    forward = [c for c in calls if isinstance(c, _calls._Forward) and c.is_out_enough]
    return (next(c for c in forward if not c.has_gradients), next(c for c in forward if c.has_gradients),
            next(c for c in calls if isinstance(c, _calls._Backward)))


def pieces(tensors, device):
    """Subjects that a call is made of, of the calls that others have made."""
    q, k, v, dout = tensors.q.detach(), tensors.k, tensors.v, tensors.dout
    plain, _, backward = calls = found_calls()
    patterns = [plain.out, plain.lse, *backward.patterns]
    new = [_private.find_empty(pattern) for pattern in patterns]
    apply = _private.find_apply(Allocates)

    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else None
    kept, enqueues = [], []  # the library's functions, again and again on what one call was given, which stays alive
    for call in calls:
        if call is backward:
            out, lse, _ = kept[-1]
            kept.append(call.results((q, k, v, out, lse, dout), None))
        else:
            kept.append(call.results(q, k, v, None))
        arguments, function = call.free.pop(), "ffa_backward" if call is backward else "ffa_forward"
        if call is backward and len(call.new) > 3:
            kept.append(call.new[3]())
            arguments.words[call.WORKSPACE] = kept[-1].data_ptr()

        def enqueue(call=call, function=function, arguments=arguments, kept=kept):
            call.run(getattr(_calls.lib, function), arguments, stream)
            call.free.pop()

        enqueues.append(repeated(enqueue))

    def memory(functions):
        parts = functions[:1], functions[:2], functions[2:]  # out; out and lse; gradients and the workspace
        return {part: repeated(lambda each=each: [make() for make in each]) for part, each in zip(PARTS, parts)}

    found = [
        Subject("- the library's function, by ctypes, on the current stream", dict(zip(PARTS, enqueues))),
        Subject("- memory of results and workspace", memory(new)),
        Subject("- the same by torch.empty_like", memory([functools.partial(torch.empty_like, p) for p in patterns])),
        Subject("- a torch.autograd.Function that only makes them", tensors.parts(lambda q, k, v: apply(q, k, v, new))),
        Subject("- an operator that only makes one result", {PARTS[0]: repeated(lambda: allocates(q, k, v))}),
    ]
    if device == "cuda":
        sleep = getattr(torch.cuda, "_sleep", None)  # a launch, and nearly nothing around it
        found += [Subject("- a launch: torch.cuda._sleep", {PARTS[0]: repeated(lambda: sleep(1))})] if sleep else []
    return found


def peers(tensors):
    """Subjects that are installed."""
    found = []
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

        title = f"{name} {version_of(name)}: {module}.flash_attn_varlen_func"
        try:
            found.append(Subject(title, tensors.parts(call)))
        except Exception as error:  # of any kind: a peer's own
            found.append(Subject(title, error=str(error).strip().partition("\n")[0] or type(error).__name__))
    return found


def version_of(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def measured(device, rounds):
    """All subjects, after their turns."""
    tensors = Tensors(device)
    subjects = ours(tensors) + pieces(tensors, device) + (peers(tensors) if device == "cuda" else [])
    for _ in range(-(-rounds // TURN)):
        for subject in subjects:
            subject.turn(device)
    return subjects


def row(subject):
    return {"name": subject.name, "us": {part: min(us) for part, us in subject.us.items()},
            "median_us": {part: statistics.median(us) for part, us in subject.us.items()}, "error": subject.error}


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
        rows = list(map(row, measured(arguments.device, arguments.rounds)))
    head = {"device": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU", "processor": processor(),
            "torch": torch.__version__, "python": platform.python_version(), "libffa": libffa.version()}
    if arguments.json:
        print(json.dumps(head | {"rows": rows}))
        return
    print(", ".join(f"{key} {value}" for key, value in head.items()))
    print("\n| us a call, least (median) | " + " | ".join(PARTS) + " |\n|---|" + "---|" * len(PARTS))
    for found in rows:
        us, medians = found["us"], found["median_us"]
        cells = [f"{us[part]:.1f} ({medians[part]:.1f})" if part in us else found["error"] or "" for part in PARTS]
        print(f"| {found['name']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
