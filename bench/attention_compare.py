# SPDX-License-Identifier: Apache-2.0
"""bench_attention.py --peers: libffa and its peers on the same masks and tensors, in turns, each checked first.

  bench/bench_attention.py --peers cudnn,cudnn-flex,fa3,fa4,flex,magi --table --json results.jsonl
  bench/bench_attention.py --peers fa4,flex --mask-file my_masks.txt --heads 32:8 --head-dims 192:128
  bench/bench_attention.py --peers= --variant before:tree=../before --variant ordered:deterministic --pass backward --table
  bench/bench_attention.py table results.jsonl

A system that is not installed, or that cannot do a mask, is left out with a reason. Each out and gradient is first compared
with fp64 for one kv head; what is wrong is no figure of the peer's. Calls are PyTorch's, as a model makes them: they allocate
their results, and a backward pass is torch.autograd.grad. A figure is the median over rounds of a system's turns; a turn is
calls back to back between CUDA events, after calls that do not count. docs/figures.md says how to read the results.

A --variant is libffa once more, in a process of its own: another checkout that was built (`tree`), another library, deterministic
calls, other FFA_ variables. It takes its turns with the others, and a column has its speed as a multiple of libffa's.

First calls are timed with empty caches of compiled code, unless --caches names a folder to keep them in. "first" calls compile
what they need. "another mask" is plan and forward call of a mask that was not seen yet, with all kernels compiled.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Callable, Iterator, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CASES = os.path.join(ROOT, "tests", "data", "masks.json")
BUILT = os.path.join(ROOT, "build", "libffa.so")
MASKS = "full,causal,sliding_window_causal,varlen_full,varlen_causal,varlen_block_causal"
PARTS = ("forward", "backward", "both")
# Where the systems, and what they are built on, keep compiled code.
CACHES = ("FFA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "CUTE_DSL_CACHE_DIR",
          "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "FLEX_ATTENTION_CUTE_DSL_CACHE_DIR", "QUACK_CACHE_DIR",
          "MAGI_ATTENTION_WORKSPACE_BASE")


def list_of(known):
    """Words between commas, each of them known."""
    def parse(text):
        words = [word for word in text.split(",") if word]
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(known)}")
        return list(dict.fromkeys(words))
    return parse


def pair(text):
    """Two numbers "64:8", or one for both."""
    try:
        first, second = (int(word) for word in (text.split(":") * 2)[:2])
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not A:B") from None
    if first < 1 or second < 1:
        raise argparse.ArgumentTypeError(f"'{text}': numbers are at least 1")
    return first, second


def at_least(limit, kind=int):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
        if not value >= limit:
            raise argparse.ArgumentTypeError(f"is {text}, not at least {limit}")
        return value
    return parse


def parser():
    found = argparse.ArgumentParser(prog="bench_attention.py", description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    add = found.add_argument
    peers = ("cudnn", "cudnn-flex", "fa3", "fa4", "flex", "magi")
    add("--peers", type=list_of(peers), required=True, metavar="NAMES", help=", ".join(peers) + '; "" for libffa alone')
    add("--variant", dest="variants", action="append", default=[], metavar="NAME:KEY=VALUE,...",
        help="also time libffa with tree=DIR, library=FILE, deterministic, FFA_...=VALUE; may be given again")
    add("--library", default=BUILT if os.path.exists(BUILT) else None,
        help="libffa.so; build/libffa.so, or what is installed")
    add("--masks", help=f"names of --cases, each at all --seqlens; unless a --mask-file is given {MASKS}")
    add("--seqlens", default="1024,4096,16384,65536", help="tokens; 1024,4096,16384,65536")
    add("--cases", default=CASES, help="the file of --masks, with names MASK_SEQLEN; tests/data/masks.json")
    add("--mask-file", help="masks of your own: JSON, or lines '[NAME] TEXT' (docs/masks.md)")
    add("--heads", type=pair, default=(64, 8), help="query and kv heads; 64:8")
    add("--head-dims", type=pair, default=(128, 128), help="head_dim of q and k, and of v; 128:128")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    add("--pass", dest="parts", type=list_of(PARTS), default=["forward", "backward"], help="of forward,backward,both")
    add("--rounds", type=at_least(1), default=4, help="turns of each system; 4")
    add("--measure-ms", type=at_least(0, float), default=150, help="of a turn that count; 150")
    add("--settle-ms", type=at_least(0, float), default=150, help="of a turn before that; 150")
    add("--warm-ms", type=at_least(0, float), default=1200, help="of all systems before the first turn of a mask and pass; 1200")
    add("--caches", help="keep compiled code in this folder; first calls are not cold then")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out; its figures mean nothing")
    add("--seed", type=int, default=1)
    add("--no-check", action="store_true", help="do not compare with fp64")
    add("--json", help="write the results file")
    add("--commit", default="", help="recorded in the results file")
    add("--table", action="store_true", help="print tables in Markdown at the end")
    return found


def cases_of(options):
    """The masks of the options, in their order."""
    from attention_masks import read_masks

    cases = []
    if options.masks or not options.mask_file:
        known = {case.name: case for case in read_masks(options.cases)}
        for seqlen in map(at_least(1), options.seqlens.split(",")):
            for name in (options.masks or MASKS).split(","):
                if f"{name}_{seqlen}" not in known:
                    raise ValueError(f"{options.cases}: no mask '{name}_{seqlen}'")
                cases.append((name, known[f"{name}_{seqlen}"]))
    if options.mask_file:
        cases += [(case.name, case) for case in read_masks(options.mask_file)]
    return cases


def load_systems(names, now=time.perf_counter, **how):
    """({name: System}, {name: seconds of its import}, {name: reason of one that is not there}). how: arguments of the systems."""
    from attention_peers import SYSTEMS, first_line
    from attention_masks import Unsupported

    loaded, seconds, left_out = {}, {}, {}
    for name in names:
        begin = now()
        try:
            loaded[name] = SYSTEMS[name](**how)
            seconds[name] = now() - begin
        except Unsupported as error:
            left_out[name] = str(error)
        except Exception as error:  # whatever else a package does when it is imported is its own matter
            left_out[name] = f"does not load: {type(error).__name__}: {first_line(error)}"
    return loaded, seconds, left_out


class Inputs(NamedTuple):
    """q, k and v [tokens, heads, head_dim] that gradients are asked for, and dout."""

    q: object
    k: object
    v: object
    dout: object

    @classmethod
    def make(cls, case, heads, dims, dtype, device, seed):
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        normal = lambda *size: torch.randn(*size, device=device, dtype=dtype, generator=generator)
        q, k, v, dout = (normal(case.seqlen_q, heads[0], dims[0]), normal(case.seqlen_k, heads[1], dims[0]),
                         normal(case.seqlen_k, heads[1], dims[1]), normal(case.seqlen_q, heads[0], dims[1]))
        return cls(*(t.requires_grad_() for t in (q, k, v)), dout)


def reference(case, inputs, head_kv):
    """(out, dq, dk, dv) in fp64 of a kv head and its query heads [tokens, heads, head_dim], rows at a time."""
    import torch

    group = inputs.q.shape[1] // inputs.k.shape[1]
    heads = slice(head_kv * group, (head_kv + 1) * group)
    q, dout = (t[:, heads].detach().double().transpose(0, 1) for t in (inputs.q, inputs.dout))
    k, v = (t[:, head_kv].detach().double() for t in (inputs.k, inputs.v))
    low, high = (torch.from_numpy(bound).to(q.device) for bound in case.bounds)
    keys = torch.arange(case.seqlen_k, device=q.device)
    scale = q.shape[2] ** -0.5
    out, dq, dk, dv = torch.empty_like(dout), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, (1 << 24) // max(1, case.seqlen_k))
    for begin in range(0, case.seqlen_q, step):
        rows = slice(begin, begin + step)
        cells = torch.zeros(low[0, rows].shape[0], case.seqlen_k, dtype=torch.bool, device=q.device)
        for first, last in zip(low[:, rows], high[:, rows]):
            cells |= (keys >= first[:, None]) & (keys < last[:, None])
        for head in range(group):
            scores = (q[head, rows] @ k.T * scale).masked_fill_(~cells, -torch.inf)
            p = torch.softmax(scores, 1).masked_fill_(~cells, 0)  # 0 also where a row has no keys
            out[head, rows] = p @ v
            d = dout[head, rows]
            dv += p.T @ d
            ds = p * (d @ v.T - (d * out[head, rows]).sum(1, keepdim=True)) * scale
            dq[head, rows], dk = ds @ k, dk + ds.T @ q[head, rows]
    return out.transpose(0, 1), dq.transpose(0, 1), dk[:, None], dv[:, None]


# Relative L2 error of a head: a few units of the dtype's precision, as products of rounded values have.
LIMITS = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-4}
LEAST = 1e-4  # root mean square; that of dq is 4e-4 where normally distributed rows attend 64k keys


def errors_of(want, out, gradients, head_kv):
    """{name: relative L2 error} of a kv head's out and gradients; infinite where there is a NaN. What should be all but 0, as
    dq of rows with one key, is compared with LEAST."""
    heads = want[0].shape[1]
    of_q, of_k = slice(head_kv * heads, (head_kv + 1) * heads), slice(head_kv, head_kv + 1)
    found = {}
    for name, have, expected, part in zip(("out", "dq", "dk", "dv"), (out, *gradients), want, (of_q, of_q, of_k, of_k)):
        least = LEAST * expected.numel() ** 0.5
        error = float((have.detach()[:, part].double() - expected).norm() / expected.norm().clamp(min=least))
        found[name] = error if error == error else float("inf")
    return found


class Prepared(NamedTuple):
    """A system's calls for a mask, ready to be timed: by pass; its first calls' times; {name: error}, empty if not checked."""

    calls: dict[str, Callable]
    cold: dict[str, float]
    errors: dict[str, float]

    @property
    def parts(self):
        return list(self.calls)

    def taker(self, clock, part):
        """Takes a turn: (settle_ms, measure_ms) -> Turn."""
        from attention_turns import take_turn

        return partial(take_turn, clock, self.calls[part])


class Bench:
    """What all masks of a run share.

    systems   {name: System}
    seconds   {name: seconds of its import}
    state     the GPU's state in spans of time: Monitor.state
    variants  {name: VariantProcess}
    """

    def __init__(self, options, systems, seconds, clock, state=lambda _spans: {}, variants=None):
        import torch

        self.options, self.systems, self.seconds, self.clock, self.state = options, systems, seconds, clock, state
        self.variants = variants or {}
        self.dtype = dict(bf16=torch.bfloat16, fp16=torch.float16, fp32=torch.float32)[options.dtype]
        self.parts = [part for part in ("forward", "backward") if part in options.parts or "both" in options.parts]
        self.device, self.head_kv = torch.device(options.device), options.heads[1] - 1  # the one that is checked

    @classmethod
    def of_options(cls, options, systems, seconds, **rest):
        """With the clock of the options' device."""
        from attention_turns import EventClock, WallClock

        return cls(options, systems, seconds, EventClock() if options.device == "cuda" else WallClock(), **rest)

    def inputs_of(self, case):
        """(Inputs, the reference or None) of a mask: the same in every process."""
        options = self.options
        inputs = Inputs.make(case, options.heads, options.head_dims, self.dtype, self.device, options.seed)
        return inputs, None if options.no_check else reference(case, inputs, self.head_kv)

    def _timed_ms(self, call):
        """What it returns, and the milliseconds until the device has done it. What was enqueued before does not count."""
        self.clock.wait()
        begin = self.clock.now()
        result = call()
        self.clock.wait()
        return result, (self.clock.now() - begin) * 1e3

    def prepare(self, name, case, inputs, parts, want):
        """A system's calls; its first ones are made here, timed, and compared with `want`, unless that is None."""
        import torch

        system, backward = self.systems[name], "backward" in parts
        leaves = [t if backward else t.detach() for t in inputs[:3]]
        cold = {"import_s": self.seconds[name]}
        mode = contextlib.nullcontext if backward else torch.no_grad
        with mode():
            forward, cold["plan_ms"] = self._timed_ms(lambda: system.prepare(case, *leaves, backward))
            out, cold["first_forward_ms"] = self._timed_ms(forward)
        calls, gradients = {}, ()
        if backward:
            gradient = lambda: torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)
            gradients, cold["first_backward_ms"] = self._timed_ms(gradient)
            calls["backward"] = gradient
        if "forward" in parts:
            calls["forward"] = torch.no_grad()(forward)
        with torch.no_grad():
            forward()  # what autograd's absence compiles is no part of another mask's time
            again = lambda: system.prepare(case.restated(), *leaves, False)()
            cold["new_mask_ms"] = self._timed_ms(again)[1]
        return Prepared(calls, cold, {} if want is None else errors_of(want, out, gradients, self.head_kv))

    def ready(self, name, case, inputs, want, wanted):
        """(what is prepared, or None; {pass: why it is left out}) of the wanted passes. Where both passes fail together the
        forward pass is tried alone."""
        from attention_masks import Unsupported
        from attention_peers import first_line

        parts, left_out = [], {}
        for part in wanted:
            try:
                self.systems[name].check(part, self.dtype)
                parts.append(part)
            except Unsupported as error:
                left_out[part] = str(error)
        while parts:
            try:
                return self.prepare(name, case, inputs, parts, want), left_out
            except Unsupported as error:
                return None, {**left_out, **dict.fromkeys(parts, str(error))}
            except Exception as error:  # a peer's failure is a row, and the others go on
                left_out[parts.pop()] = f"fails: {type(error).__name__}: {first_line(error)}"
            self.clock.wait()  # raises if the device is lost with it
        return None, left_out

    def names(self):
        """Of all that takes turns: libffa, its variants, its peers."""
        ours = [name for name in self.systems if name == "libffa"]
        return [*ours, *self.variants, *(name for name in self.systems if name not in ours)]

    def row_of(self, name, about):
        """The beginning of a system's rows."""
        return dict(system=name, **({"variant": self.variants[name].text} if name in self.variants else {}), **about)

    def rows(self, mask, case) -> Iterator[dict]:
        """The rows of the results file of one mask."""
        options = self.options
        about = dict(mask=mask, seqlen=case.seqlen_q, head_dim=options.head_dims[0], head_dim_v=options.head_dims[1],
                     dtype=options.dtype, heads="{}:{}".format(*options.heads))
        if case.seqlen_k != case.seqlen_q:
            about["seqlen_k"] = case.seqlen_k
        inputs, want = self.inputs_of(case)
        ready = {}
        for name in self.names():
            if name in self.variants:
                found, left_out = self.variants[name].ready(case, self.parts)
            else:
                found, left_out = self.ready(name, case, inputs, want, self.parts)
            row = self.row_of(name, about)
            if len(left_out) == len(self.parts) and len(set(left_out.values())) == 1:
                yield dict(row, skipped=left_out[self.parts[0]])
            else:
                yield from (dict(row, skipped=reason, **{"pass": part}) for part, reason in left_out.items())
            if found:
                ready[name] = found
                yield dict(row, cold=found.cold)
        del want
        yield from self.figures(case, about, ready)

    def figures(self, case, about, ready):
        """The rows of what was timed."""
        from attention_report import add_ratios, flops
        from attention_turns import in_turns, summary

        options = self.options
        taken = {}
        for part in self.parts:
            takers = {name: found.taker(self.clock, part) for name, found in ready.items() if part in found.parts}
            taken[part] = in_turns(self.clock.now, takers, options.rounds, options.warm_ms, options.settle_ms, options.measure_ms)
        for part in options.parts:
            rows = []
            for name in ready:
                sides = [taken[x][name] for x in self.parts if part in (x, "both") and name in taken[x]]
                if len(sides) < (2 if part == "both" else 1):
                    continue
                turns = list(zip(*sides))  # of each round, those of the pass
                row = dict(self.row_of(name, about), **{"pass": part}, **summary([sum(t.ms for t in turn) for turn in turns]))
                row["host_ms"] = sum(summary([turn.host_ms for turn in side])["ms"] for side in sides)
                row["tflops"] = flops(part, case.area, options.heads[0], *options.head_dims) / row["ms"] / 1e9
                row.update(self.state([(turn.begin, turn.end) for side in sides for turn in side]))
                if ready[name].errors:
                    row["errors"] = {of: error for of, error in ready[name].errors.items()
                                     if part in ("both", "forward" if of == "out" else "backward")}
                    row["wrong"] = any(error > LIMITS[options.dtype] for error in row["errors"].values())
                rows.append(row)
            add_ratios(rows)
            yield from rows


def line_of(row):
    """A row of the results file as one line for a reader."""
    where = f"{row['mask']:24s} {row['seqlen']:7d} {row.get('pass', ''):8s} {row['system']:10s}"
    if "skipped" in row:
        return f"{where} left out: {row['skipped']}"
    if "cold" in row:
        return where + " " + ", ".join(f"{key} {value:.3g}" for key, value in row["cold"].items())
    text = f"{where} {row['tflops']:7.1f} TFLOP/s ±{50 * row['spread']:.1f} %"
    if "to_libffa" in row:
        text += f", {row['to_libffa']:.3f} of libffa"
    if "to_best_peer" in row and row["best_peer"] != row["system"]:
        text += f", {row['to_best_peer']:.3f} of {row['best_peer']}"
    if "errors" in row:
        text += ", " + " ".join(f"{name} {error:.0e}" for name, error in row["errors"].items())
    return text + (" WRONG" if row.get("wrong") else "")


def first_row(options, systems, left_out, arguments):
    """Where and how: the first line of a results file. systems: what has a version, by name."""
    import torch

    row = dict(device="cpu", torch=torch.__version__, commit=options.commit, date=str(datetime.date.today()),
               settings=dict(rounds=options.rounds, measure_ms=options.measure_ms, settle_ms=options.settle_ms,
                             warm_ms=options.warm_ms, caches=options.caches or "new", seed=options.seed),
               systems={**{name: system.version for name, system in systems.items()},
                        **{name: dict(skipped=reason) for name, reason in left_out.items()}},
               command=" ".join(["bench/bench_attention.py", *arguments]))
    if options.device == "cuda":
        row.update(device=torch.cuda.get_device_name(0), cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
        query = ["nvidia-smi", f"--id={gpu_name()}", "--query-gpu=driver_version,power.limit,clocks.max.sm",
                 "--format=csv,noheader,nounits"]
        try:
            driver, watts, mhz = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
            row.update(driver=driver, power_limit_w=float(watts), clock_max_mhz=float(mhz))
        except (OSError, ValueError, subprocess.CalledProcessError):
            pass  # no nvidia-smi, or one that does not know: the row is without these
    return row


def gpu_name():
    """The GPU in use, as nvidia-smi knows it."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def use_caches(folder):
    """Have all systems keep compiled code below a folder. Before they are imported."""
    for name in CACHES:
        os.environ[name] = os.path.join(folder, name.lower())
        os.makedirs(os.environ[name], exist_ok=True)


def start_variants(variants, options, stack):
    """({name: VariantProcess}, {name: reason of one that does not begin}). They end with the stack."""
    from attention_variants import VariantProcess

    started = {variant.name: stack.enter_context(VariantProcess(variant, options)) for variant in variants}
    failed = {name: process.failure for name, process in started.items() if process.failure}
    return {name: process for name, process in started.items() if name not in failed}, failed


def run(options, cases, variants, loaded, arguments):
    """Print a line a row, write the results file; 1 where libffa or a variant is wrong or fails, else 0."""
    from attention_report import tables
    from attention_turns import Monitor

    systems, seconds, left_out = loaded
    rows = []
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(options.json, "w", encoding="utf-8")) if options.json else None
        processes, failed = start_variants(variants, options, stack)
        left_out = {**left_out, **failed}
        for name, reason in left_out.items():
            print(f"{name} is left out: {reason}", flush=True)
        bench = Bench.of_options(options, systems, seconds, variants=processes)
        if options.device == "cuda":
            monitor = Monitor.of_gpu(gpu_name())
            stack.callback(monitor.close)
            bench.state = monitor.state

        def take(row):
            rows.append(row)
            if output:
                print(json.dumps(row), file=output, flush=True)

        take(first_row(options, {**systems, **processes}, left_out, arguments))
        for mask, case in cases:
            for row in bench.rows(mask, case):
                print(line_of(row), flush=True)
                take(row)
            bench.clock.empty()
    if options.table:
        print("\n" + tables(rows))
    is_ours = lambda row: row.get("system") == "libffa" or "variant" in row
    return int(bool(failed) or any(is_ours(row) and (row.get("wrong") or "skipped" in row) for row in rows))


def main(arguments):
    from attention_variants import Variant

    found = parser()
    options = found.parse_args(arguments)
    if options.heads[0] % options.heads[1]:
        found.error(f"--heads: {options.heads[0]} query heads are not a multiple of {options.heads[1]} kv heads")
    variants = []
    for text in options.variants:
        try:
            variants.append(Variant.parse(text, ["libffa", *options.peers, *(variant.name for variant in variants)]))
        except ValueError as error:
            found.error(f"--variant: {error}")
    sys.path.insert(0, os.path.join(ROOT, "python"))
    if options.library:
        os.environ["LIBFFA_LIBRARY"] = os.path.abspath(options.library)
    with tempfile.TemporaryDirectory() as folder:
        use_caches(options.caches or folder)
        ours, peers = load_systems(["libffa"]), options.peers
        if "libffa" in ours[2]:
            sys.exit(f"libffa: {ours[2]['libffa']}")
        try:
            cases = cases_of(options)
        except (OSError, ValueError, argparse.ArgumentTypeError) as error:
            found.error(str(error))
        loaded = [dict(a, **b) for a, b in zip(ours, load_systems(peers))]
        return run(options, cases, variants, loaded, arguments)
