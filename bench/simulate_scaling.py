#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `ffa simulate` says of the cases of bench_parallel on more GPUs than there were to measure. Needs only Python and ffa.

  bench/simulate_scaling.py run --calibration bench/results/h200/calibration.json > scaling.jsonl
  bench/simulate_scaling.py table scaling.jsonl --measured bench/results/h200/parallel.jsonl,bench/results/h200/parallel_order.jsonl
  bench/simulate_scaling.py plot scaling.jsonl --measured ... > scaling.svg

A results file is JSON lines. The first says where the rates of the model come from, the others are predictions: of a case, a
number of ranks, a pass and a method. The dispatch of a plan is the one that `ffa plan --algorithm best` takes, as in bench_parallel.
TFLOP/s are a GPU's, of attended cells; the efficiency is that against one GPU by the model.

Beside predictions stand measurements of bench_parallel (--json), where there are any of the same mask; of several, the one that
comes last in the files. `scaled` is a prediction times what was measured on two GPUs over what is predicted for two.
"""
import argparse, json, subprocess, sys
from html import escape

CASES = [("64:8", 8192), ("8:1", 65536)]  # heads, tokens a rank
MASKS = {"full": "full", "causal": "causal", "packed-full": "packed documents, full", "packed-causal": "packed documents, causal",
         "block-causal": "block causal"}
HEAD_DIM, PASSES = 128, {"forward": 4, "backward": 10}  # operations a cell, head and element
METHODS = {"plan": "libffa", "all-gather": "all-gather", "zigzag": "ring, zigzag", "ulysses": "Ulysses"}
COLOURS = {"plan": "#0b5cad", "all-gather": "#888888", "zigzag": "#d97706", "ulysses": "#7e22ce"}
WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y, Y_STEP, LEGEND = 180, 130, 50, 76, 40, 56, 200, 150


# ---- running ffa ----

def packed_lengths(tokens):
    """Documents of 64 tokens to a quarter of all, as make_packed() of parallel_case.c draws them; table() compares the cells."""
    state, lengths = 0x9e3779b97f4a7c15, []

    def draw():
        nonlocal state
        state ^= state << 13 & (1 << 64) - 1
        state ^= state >> 7
        state ^= state << 17 & (1 << 64) - 1
        return state

    while sum(lengths) < tokens:
        length = 64 + draw() % 193
        length <<= draw() % 8
        length = min(length, tokens // 4) if tokens >= 256 else length
        lengths.append(min(length, tokens - sum(lengths)))
    return lengths


def mask_of(name, tokens):
    if name.startswith("packed-"):
        return f"varlen-{name[len('packed-'):]}:{','.join(map(str, packed_lengths(tokens)))}"
    if name == "window":
        return f"window:{tokens}/left=1024,right=0"
    return f"block-causal:{tokens}/block=2048" if name == "block-causal" else f"{name}:{tokens}"


def ask(*command):
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def predictions(opts, name, heads, tokens, ranks):
    """Rows of a case on a number of ranks: each pass by each method."""
    case = ["--mask", mask_of(name, tokens * ranks), "--heads", heads, "--head-dim", str(HEAD_DIM), "--calibration", opts.calibration]
    best = ask(opts.ffa, "plan", *case, "--ranks", str(ranks), "--algorithm", "best")
    chunk = -(-tokens * ranks // best["chunks"])
    told = ask(opts.ffa, "simulate", *case, "--ranks", str(ranks), "--dispatch", best["algorithm"], "--chunk", str(chunk))
    shared = dict(case=f"{name}/{heads}", tokens=tokens * ranks, ranks=ranks, cells=told["area"], dispatch=best["algorithm"], chunk_tokens=chunk,
                  node_mbytes_s=told["model"]["node_mbytes_s"])
    for method in told["worlds"][0]["methods"]:
        if not method["is_possible"]:
            yield dict(shared, method=method["method"], why_not=method["why_not"])
            continue
        for part, operations in PASSES.items():
            took = method[part]
            tflops = operations * told["area"] * int(heads.split(":")[0]) * HEAD_DIM / (took["ns"] * ranks) / 1e3
            yield {**shared, "method": method["method"], "pass": part, "ms": took["ns"] / 1e6, "efficiency": took["efficiency"],
                   "tflops": round(tflops, 1)}


def run(opts):
    with open(opts.calibration, encoding="utf-8") as file:
        rates = json.load(file)
    about = "predictions of ffa simulate: no row was measured"
    print(json.dumps(dict(about=about, device=rates["device"], calibration=opts.calibration, calibrated_on_gpus=rates["gpus"], date=opts.date,
                          commit=opts.commit, command="bench/simulate_scaling.py " + " ".join(sys.argv[1:]))))
    for heads, tokens in CASES:
        for name in MASKS:
            for ranks in opts.ranks:
                for row in predictions(opts, name, heads, tokens, ranks):
                    print(json.dumps(row), flush=True)


# ---- reading results ----

def rows_of(path):
    with open(path, encoding="utf-8") as file:
        try:
            return [json.loads(line) for line in file if line.strip()]
        except ValueError as error:
            sys.exit(f"{path}: not JSON lines: {error}")


def key(row):
    return row["case"], row["ranks"], row["pass"], row["method"]


def measured_of(paths, predicted):
    """{key: (TFLOP/s a GPU, efficiency)} of plans over peer copies. A mask of other cells than the predicted one ends the program."""
    found = {}
    for row in (row for path in paths for row in rows_of(path)):
        if row.get("plan") != "stages" or row.get("transport", "pull") != "pull":
            continue
        at = row["case"], row["ranks"], row["pass"], "plan"
        if at not in predicted:
            continue
        heads = int(row["case"].split("/")[1].split(":")[0])
        cells = row["tflops"] * 1e9 * row["ranks"] * row["t_ms"] / (PASSES[row["pass"]] * heads * HEAD_DIM)
        if abs(cells / predicted[at]["cells"] - 1) > 1e-3:
            sys.exit(f"{row['case']} on {row['ranks']} ranks: {cells:.0f} cells were measured, {predicted[at]['cells']} are predicted")
        found[at] = row["tflops"], row["efficiency"]
    return found


def read(opts):
    rows = [row for row in rows_of(opts.results) if row.keys() >= {"pass", "method", "tflops"}]
    if not rows:
        sys.exit(f"{opts.results}: no predictions")
    predicted = {key(row): row for row in rows}
    return predicted, measured_of(opts.measured.split(",") if opts.measured else [], predicted), sorted({row["ranks"] for row in rows})


# ---- the table ----

def figure(row):
    return f"{row['tflops']:.0f} ({row['efficiency']:.3f})" if row else "-"


def table(opts):
    predicted, measured, ranks = read(opts)
    most, others = ranks[-1], [method for method in METHODS if method != "plan"]
    for heads, tokens in CASES:
        print(f"Heads {heads}, {tokens // 1024}k tokens a rank:\n")
        print("| mask | pass | " + " | ".join(f"{n} GPU{'s' * (n > 1)}" for n in ranks) + f" | 2 GPUs, measured | {most} GPUs, scaled | " +
              " | ".join(f"{METHODS[method]}, {most}" for method in others) + " |")
        print("|---" * (len(ranks) + len(others) + 4) + "|")
        for name, title in MASKS.items():
            for part in PASSES:
                of = lambda n, method: predicted.get((f"{name}/{heads}", n, part, method))
                tflops, efficiency = measured.get((f"{name}/{heads}", 2, part, "plan"), (None, None))
                cells = [title, part, *(figure(of(n, "plan")) for n in ranks), f"{tflops:.0f} ({efficiency:.3f})" if tflops else "-",
                         f"{of(most, 'plan')['tflops'] * tflops / of(2, 'plan')['tflops']:.0f}" if tflops else "-"]
                print("| " + " | ".join(cells + [figure(of(most, method)) for method in others]) + " |")
        print()


# ---- the picture ----

def text(x, y, what, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(what)}</text>'


def line_of(points, colour):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)]


def panel(title, lines, measured, ranks, x0, y0, y_max):
    at = lambda n, v: (x0 + WIDTH * ranks.index(n) / max(1, len(ranks) - 1), y0 + HEIGHT * (1 - v / y_max))
    out = [text(x0, y0 - 8, title, 'font-weight="bold"')]
    for v in range(0, y_max + 1, Y_STEP):
        out.append(f'<line x1="{x0}" y1="{at(ranks[0], v)[1]:.1f}" x2="{x0 + WIDTH}" y2="{at(ranks[0], v)[1]:.1f}" stroke="#dddddd"/>')
        out.append(text(x0 - 6, at(ranks[0], v)[1] + 4, str(v), 'text-anchor="end"'))
    for n in ranks:
        out.append(text(at(n, 0)[0], y0 + HEIGHT + 16, str(n), 'text-anchor="middle"'))
    for method in reversed(METHODS):  # ours on top
        points = [at(n, lines[method][n]) for n in ranks if n in lines.get(method, {})]
        out += line_of(points, COLOURS[method]) if points else []
    out += [f'<circle cx="{at(n, v)[0]:.1f}" cy="{at(n, v)[1]:.1f}" r="5" fill="none" stroke="black" stroke-width="2"/>' for n, v in measured]
    return out


def plot(opts):
    predicted, measured, ranks = read(opts)
    y_max = -(-int(max(row["tflops"] for row in predicted.values())) // Y_STEP) * Y_STEP
    width, height = LEFT + len(MASKS) * (WIDTH + GAP_X), TOP + len(CASES) * len(PASSES) * (HEIGHT + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(LEFT, 18, "A prediction, not a measurement: TFLOP/s a GPU by number of GPUs", 'font-size="14"')]
    for i, (method, title) in enumerate(METHODS.items()):
        out.append(f'<rect x="{LEFT + i * LEGEND}" y="28" width="12" height="12" fill="{COLOURS[method]}"/>')
        out.append(text(LEFT + i * LEGEND + 18, 38, title))
    if measured:
        x = LEFT + len(METHODS) * LEGEND
        out.append(f'<circle cx="{x + 6}" cy="34" r="5" fill="none" stroke="black" stroke-width="2"/>')
        out.append(text(x + 18, 38, "libffa, measured"))
    for row, (heads, part) in enumerate((heads, part) for heads, _ in CASES for part in PASSES):
        for column, name in enumerate(MASKS):
            of = lambda method, found: {n: found[f"{name}/{heads}", n, part, method] for n in ranks if (f"{name}/{heads}", n, part, method) in found}
            lines = {method: {n: figures["tflops"] for n, figures in of(method, predicted).items()} for method in METHODS}
            points = [(n, tflops) for n, (tflops, _) in of("plan", measured).items()]
            out += panel(f"{name}, {heads}, {part}", lines, points, ranks, LEFT + column * (WIDTH + GAP_X), TOP + row * (HEIGHT + GAP_Y), y_max)
    print("\n".join(out + ["</svg>"]))


def ranks_list(words):
    ranks = [int(word) for word in words.split(",")]
    if not all(1 <= n <= 4096 for n in ranks):
        raise argparse.ArgumentTypeError(f"'{words}' has a number that is not in [1, 4096]")
    return ranks


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = ap.add_subparsers(required=True, metavar="run|table|plot")
    one = commands.add_parser("run", help="ask ffa, print results")
    one.add_argument("--ffa", default="build/ffa", help="the command; build/ffa")
    one.add_argument("--calibration", required=True, help="a file of bench_parallel --calibrate")
    one.add_argument("--ranks", type=ranks_list, default=[1, 2, 4, 8], help="numbers of GPUs; 1,2,4,8")
    one.add_argument("--date", default="", help="for the first row"), one.add_argument("--commit", default="", help="for the first row")
    one.set_defaults(do=run)
    for name, do in (("table", table), ("plot", plot)):
        one = commands.add_parser(name, help=f"print a {'picture' if do is plot else 'table'}")
        one.add_argument("results"), one.add_argument("--measured", default="", help="files of bench_parallel --json, A,B")
        one.set_defaults(do=do)
    opts = ap.parse_args()
    try:
        opts.do(opts)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
