#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of time beside what bench_parallel measured: what its rates and begins of tiles are, and how far it is off. Needs only
Python and ffa.

  bench/fit_model.py fit --calibration bench/results/h200/calibration.json --measured A,B > fitted.json
  bench/fit_model.py compare --calibration bench/results/h200/calibration.json --measured A,B

A and B are files of bench_parallel --json, such as bench/results/h200/parallel.jsonl and parallel_order.jsonl; of a case that
several have, `compare` takes the one that comes last, `fit` the median.

`fit` reads only t1_ms, the whole mask on one GPU. By the model the time of a pass is linear in 1/rate and begin/rate, so two questions
to ffa a case give both factors, and least squares of the relative error give the two constants. The calibration is printed with
these in place of its kernels. `compare` reads only t_ms, passes of several GPUs over peer copies, which `fit` never saw, and prints
the predicted time of the slowest rank beside each, then the median and the worst error. Exit 1 where that is above --limit.
"""
import argparse, json, os, statistics, sys, tempfile

from simulate_scaling import CASES, HEAD_DIM, PASSES, ask, mask_of, rows_of

TILES = {"forward": (128, 128), "backward": (64, 128)}  # what the model's tiles are
RATE, BEGINS = 1000000, (1000, 2000)  # of the two questions
PLANS = {"stages": [], "all-gather": ["--stages", "1"]}  # of the same dispatch


def kernel(part, gflops, begin):
    m, n = TILES[part]
    return {"pass": part, "head_dim": HEAD_DIM, "head_dim_v": HEAD_DIM, "tile_m": m, "tile_n": n, "gflops": gflops, "begin_tokens": begin}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def predicted(opts, calibration, case, tokens, ranks, *more):
    """{pass: ms} of the slowest rank."""
    name, heads = case.split("/")
    told = ask(opts.ffa, "plan", "--mask", mask_of(name, tokens), "--heads", heads, "--head-dim", str(HEAD_DIM), "--ranks", str(ranks),
               "--algorithm", "best", "--calibration", calibration, *more)
    return {part: told[part]["slowest_ns"] / 1e6 for part in PASSES}


def measured(opts):
    return [row for path in opts.measured.split(",") for row in rows_of(path) if "t1_ms" in row and row["case"].split("/")[1] in dict(CASES)]


# ---- fit ----

def solve(rows):
    """x, y with the least sum of (a x + b y - 1)^2."""
    aa, ab, bb = (sum(f(a, b) for a, b in rows) for f in (lambda a, b: a * a, lambda a, b: a * b, lambda a, b: b * b))
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    det = aa * bb - ab * ab
    return (a1 * bb - b1 * ab) / det, (b1 * aa - a1 * ab) / det


def fit(opts):
    whole, took = {}, {}
    for row in measured(opts):
        whole.setdefault((row["case"], row["tokens"], row["pass"]), set()).add(row["t1_ms"])
    calibration = dict(read(opts.calibration), sms=opts.sms, window_mbytes_s=opts.window_mbytes_s)
    for begin in BEGINS:
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(dict(calibration, kernels=[kernel(part, RATE, begin) for part in PASSES]), file)
        for case, tokens in sorted({key[:2] for key in whole}):
            took[case, tokens, begin] = predicted(opts, file.name, case, tokens, 1)
        os.unlink(file.name)
    kernels = []
    for part in PASSES:
        keys = [key for key in whole if key[2] == part]
        factors = []
        for case, tokens, _ in keys:
            few, many = (took[case, tokens, begin][part] for begin in BEGINS)
            slope = (many - few) / (BEGINS[1] - BEGINS[0])
            ms = statistics.median(sorted(whole[case, tokens, part]))
            factors.append(((few - slope * BEGINS[0]) / ms, slope / ms))
        x, y = solve(factors)
        kernels.append(kernel(part, round(RATE / x), round(y / x)))
        for (case, _, _), (a, b) in zip(keys, factors):
            print(f"{case:20} {part:9} {100 * (a * x + b * y - 1):+5.1f} %", file=sys.stderr)
        print(f"{part}: {RATE / x / 1e3:.1f} TFLOP/s, begin {y / x:.1f} tokens", file=sys.stderr)
    calibration["kernels"] = kernels
    files = ", ".join(os.path.basename(path) for path in opts.measured.split(","))
    calibration["source"] = f"kernels: fitted to t1_ms of {files} by bench/fit_model.py; {opts.source}".rstrip("; ")
    lists = ("links", "kernels")
    out = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in calibration.items() if name not in lists]
    out += [f'  "{name}": [\n' + ",\n".join("    " + json.dumps(row) for row in calibration[name]) + "\n  ]" for name in lists]
    print("{\n" + ",\n".join(out) + "\n}")


# ---- compare ----

def compare(opts):
    last, told, errors = {}, {}, []
    for row in measured(opts):
        if row["plan"] in PLANS and row.get("transport", "pull") == "pull" and row["ranks"] > 1:
            last[row["case"], row["tokens"], row["ranks"], row["pass"], row["plan"]] = row["t_ms"]
    print("| case | GPUs | pass | plan | measured ms | predicted ms | error |\n|---|---|---|---|---|---|---|")
    for (case, tokens, ranks, part, plan), ms in last.items():
        if (case, ranks, plan) not in told:
            told[case, ranks, plan] = predicted(opts, opts.calibration, case, tokens, ranks, *PLANS[plan])
        error = told[case, ranks, plan][part] / ms - 1
        if plan == "stages":
            errors.append(abs(error))
        print(f"| {case} | {ranks} | {part} | {plan} | {ms:.3f} | {told[case, ranks, plan][part]:.3f} | {100 * error:+.1f} % |")
    if not errors:
        sys.exit(f"{opts.measured}: no passes of several GPUs")
    print(f"\nOf stages: median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %.")
    return 1 if max(errors) > opts.limit / 100 else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = ap.add_subparsers(required=True, metavar="fit|compare")
    for name, do in (("fit", fit), ("compare", compare)):
        one = commands.add_parser(name)
        one.add_argument("--ffa", default="build/ffa", help="the command; build/ffa")
        one.add_argument("--calibration", required=True, help="a file of bench_parallel --calibrate")
        one.add_argument("--measured", required=True, help="files of bench_parallel --json, A,B")
        if do is fit:
            one.add_argument("--sms", type=int, default=132, help="of the GPU; 132")
            one.add_argument("--window-mbytes-s", type=int, default=2000000, help="own keys into the window, 10^6 bytes a second; 2000000")
            one.add_argument("--source", default="", help="what else is to be said of the numbers")
        else:
            one.add_argument("--limit", type=float, default=5, help="percent; 5")
        one.set_defaults(do=do)
    opts = ap.parse_args()
    try:
        sys.exit(opts.do(opts))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
