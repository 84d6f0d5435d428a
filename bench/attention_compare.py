# SPDX-License-Identifier: Apache-2.0
"""bench_attention.py --peers: libffa and its peers on the same masks and tensors, in turns, each checked first.

  bench/bench_attention.py --peers cudnn,cudnn-flex,fa3,fa4,flex,magi --table --json results.jsonl
  bench/bench_attention.py --peers fa4,flex --mask-file my_masks.txt --shapes 64:8/128,32:8/192:128
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
import itertools
import json
import os
import subprocess
import sys
import tempfile

from attention_report import LABELS, PASSES, Shape
from attention_variants import KEYS, LIBRARY, ROOT, Variant, VariantProcess, build_of

CASES = os.path.join(ROOT, "tests", "data", "masks.json")
BUILT = os.path.join(ROOT, LIBRARY)
MASKS = "full,causal,sliding_window_causal,varlen_full,varlen_causal,varlen_block_causal"
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


def shapes(text):
    """Shapes between commas."""
    try:
        return list(dict.fromkeys(map(Shape.parse, text.split(","))))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        help=f"also time libffa with {KEYS}; with none of them (NAME:) the ratio says what noise is; may be given again")
    add("--library", default=BUILT if os.path.exists(BUILT) else None,
        help="libffa.so; build/libffa.so, or what is installed")
    add("--masks", help=f"names of --cases, each at all --seqlens; unless a --mask-file is given {MASKS}")
    add("--seqlens", default="1024,4096,16384,65536", help="tokens; 1024,4096,16384,65536")
    add("--cases", default=CASES, help="the file of --masks, with names MASK_SEQLEN; tests/data/masks.json")
    add("--mask-file", help="masks of your own: JSON, or lines '[NAME] TEXT' (docs/masks.md)")
    add("--shapes", type=shapes, default="64:8/128", metavar="HQ:HKV/DIM[:DIM_V],...",
        help="query and kv heads, head_dim of q and k, and of v if that differs, all masks with each; 64:8/128")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    add("--pass", dest="parts", type=list_of(PASSES), default=["forward", "backward"], help="of forward,backward,both")
    add("--rounds", type=at_least(1), default=4, help="turns of each system; 4")
    add("--measure-ms", type=at_least(0, float), default=150, help="of a turn that count; 150")
    add("--settle-ms", type=at_least(0, float), default=150, help="of a turn before that; 150")
    add("--warm-ms", type=at_least(0, float), default=1200,
        help="of all systems before the first turn of a mask and pass; 1200; after less than 1000 the first turn on a cold GPU is slow")
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


def line_of(row, with_shape=False):
    """A row of the results file as one line for a reader."""
    where = f"{row['mask']:24s} {row['seqlen']:7d} {row.get('pass', ''):8s} {row['system']:10s}"
    if with_shape:
        where = f"{str(Shape.of_row(row)):14s} {where}"
    if "skipped" in row:
        return f"{where} left out: {row['skipped']}"
    if "cold" in row:
        return where + " " + ", ".join(f"{key} {value:.3g}" for key, value in row["cold"].items())
    text = f"{where} {row['tflops']:7.1f} TFLOP/s ±{50 * row['spread']:.1f} %"
    if "to_libffa" in row:
        text += f", {row['to_libffa']:.3f} ±{row['to_libffa_spread'] / 2:.3f} of libffa"
    if "to_best_peer" in row and row["best_peer"] != row["system"]:
        text += f", {row['to_best_peer']:.3f} of {row['best_peer']}"
    if "errors" in row:
        text += ", " + " ".join(f"{name} {error:.0e}" for name, error in row["errors"].items())
    return text + (" WRONG" if row.get("wrong") else "")


def first_row(options, systems, builds, left_out, arguments):
    """Where and how: the first line of a results file. systems: what has a version, by name; builds: of libffa and variants."""
    import torch

    row = dict(device="cpu", torch=torch.__version__, commit=options.commit, date=str(datetime.date.today()),
               settings=dict(rounds=options.rounds, measure_ms=options.measure_ms, settle_ms=options.settle_ms,
                             warm_ms=options.warm_ms, caches=options.caches or "new", seed=options.seed,
                             cost_tables=os.environ.get("FFA_COST_TABLES", "")),
               systems={**{name: system.version for name, system in systems.items()},
                        **{name: dict(skipped=reason) for name, reason in left_out.items()}},
               builds=builds,
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
    started = {variant.name: stack.enter_context(VariantProcess(variant, options)) for variant in variants}
    failed = {name: process.failure for name, process in started.items() if process.failure}
    return {name: process for name, process in started.items() if name not in failed}, failed


def builds_of(library, variants):
    """{name: build} of libffa, whose library this is, and of its variants."""
    return {"libffa": build_of(library, ROOT),
            **{variant.name: build_of(variant.library or library, variant.tree or ROOT) for variant in variants}}


def run(options, cases, variants, loaded, arguments):
    """Print a line a row, write the results file; 1 where libffa or a variant is wrong or fails, else 0."""
    from attention_bench import Bench
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
        rest = dict(variants=processes)
        if options.device == "cuda":
            monitor = Monitor.of_gpu(gpu_name())
            stack.callback(monitor.close)
            rest["state"] = monitor.state
        bench = Bench.of_options(options, systems, seconds, **rest)

        def take(row):
            rows.append(row)
            if output:
                print(json.dumps(row), file=output, flush=True)

        builds = builds_of(systems["libffa"].library, variants)
        take(first_row(options, {**systems, **processes}, builds, left_out, arguments))
        for shape, (mask, case) in itertools.product(options.shapes, cases):
            for row in bench.rows(mask, case, shape):
                print(line_of(row, len(options.shapes) > 1), flush=True)
                take(row)
            bench.clock.empty()
    if options.table:
        print("\n" + tables(rows))
    is_ours = lambda row: row.get("system") == "libffa" or "variant" in row
    return int(bool(failed) or any(is_ours(row) and (row.get("wrong") or "skipped" in row) for row in rows))


def main(arguments):
    found = parser()
    options = found.parse_args(arguments)
    variants = []
    for text in options.variants:
        try:
            variants.append(Variant.parse(text, [*LABELS, *(variant.name for variant in variants)]))
        except ValueError as error:
            found.error(f"--variant: {error}")
    sys.path.insert(0, os.path.join(ROOT, "python"))
    if options.library:
        os.environ["LIBFFA_LIBRARY"] = os.path.abspath(options.library)
    with tempfile.TemporaryDirectory() as folder:
        use_caches(options.caches or folder)
        from attention_peers import load_systems

        ours, peers = load_systems(["libffa"]), options.peers
        if "libffa" in ours[2]:
            sys.exit(f"libffa: {ours[2]['libffa']}")
        try:
            cases = cases_of(options)
        except (OSError, ValueError, argparse.ArgumentTypeError) as error:
            found.error(str(error))
        loaded = [dict(a, **b) for a, b in zip(ours, load_systems(peers))]
        return run(options, cases, variants, loaded, arguments)
