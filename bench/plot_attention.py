#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw TFLOP/s against sequence length, with a panel for each mask, as an SVG. Needs only Python.

  bench/plot_attention.py bench/results/h200/attention.jsonl [--pass backward] [--peers bench/results/h200/peers.jsonl] > backward.svg

The results file is the concatenated output of one or more `bench_attention.py run --json`. cuDNN's line is of the full mask in
the same run (TFLOP/s divided by U). A peers file has lines {"peer", "pass", "mask", "seqlen", "tflops"}, measured in other runs.
"""
import argparse, json, sys
from html import escape

MASKS = [("full", "full"), ("causal", "causal"), ("sliding_window_causal", "causal window of 1024"), ("varlen_full", "packed documents, full"),
         ("varlen_causal", "packed documents, causal"), ("varlen_block_causal", "packed documents, block causal")]
COLOURS = {"libffa": "#0b5cad", "cuDNN, full mask": "#888888", "FlashAttention-3": "#c2410c", "MagiAttention": "#7e22ce", "FlexAttention": "#4d7c0f"}
WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y, COLUMNS = 280, 190, 50, 76, 40, 56, 3
Y_MAX, Y_STEP = 800, 200


def rows_of(path, part):
    """The lines of a file that are figures of the pass; the other lines say where they come from."""
    with open(path) as f:
        return [row for row in map(json.loads, f) if "tflops" in row and row["pass"] == part]


def series_of(results, peers):
    """{mask: {name: [(seqlen, tflops)]}}, each list in ascending order."""
    series = {}
    for r in results:
        if r["variant"] != "libffa" or r["head_dim"] != 128 or r["dtype"] != 1:
            continue
        series.setdefault(r["mask"], {}).setdefault("libffa", []).append((r["seqlen"], r["tflops"]))
        if r["mask"] == "full" and r["u"]:
            for mask, _ in MASKS:
                series.setdefault(mask, {}).setdefault("cuDNN, full mask", []).append((r["seqlen"], r["tflops"] / r["u"]))
    for p in peers:
        series.setdefault(p["mask"], {}).setdefault(p["peer"], []).append((p["seqlen"], p["tflops"]))
    return {mask: {name: sorted(points) for name, points in lines.items()} for mask, lines in series.items()}


def text(x, y, what, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(what)}</text>'


def panel(title, lines, seqlens, x0, y0):
    at = lambda n, v: (x0 + WIDTH * seqlens.index(n) / max(1, len(seqlens) - 1), y0 + HEIGHT * (1 - v / Y_MAX))
    out = [text(x0, y0 - 8, title, 'font-weight="bold"')]
    for v in range(0, Y_MAX + 1, Y_STEP):
        y = y0 + HEIGHT * (1 - v / Y_MAX)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(text(x0 - 6, y + 4, str(v), 'text-anchor="end"'))
    for n in seqlens:
        out.append(text(at(n, 0)[0], y0 + HEIGHT + 16, f"{n // 1024}k", 'text-anchor="middle"'))
    for name, points in lines.items():
        points = [at(n, v) for n, v in points if n in seqlens]
        colour, dash = COLOURS[name], ' stroke-dasharray="4 3"' if name.startswith("cuDNN") else ""
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return out


def draw(series, part):
    seqlens = sorted({n for lines in series.values() for n, _ in lines.get("libffa", [])})
    names = [n for n in COLOURS if any(n in lines for lines in series.values())]
    width = LEFT + COLUMNS * (WIDTH + GAP_X)
    height = TOP + -(-len(MASKS) // COLUMNS) * (HEIGHT + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(LEFT, 18, f"{part.capitalize()}, bf16, heads 64:8, head_dim 128: TFLOP/s by sequence length", 'font-size="14"')]
    for i, name in enumerate(names):
        x = LEFT + i * 170
        out.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{COLOURS[name]}"/>')
        out.append(text(x + 18, 38, name))
    for i, (mask, title) in enumerate(MASKS):
        out += panel(title, series.get(mask, {}), seqlens, LEFT + i % COLUMNS * (WIDTH + GAP_X), TOP + i // COLUMNS * (HEIGHT + GAP_Y))
    return "\n".join(out + ["</svg>"])


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("results"); ap.add_argument("--peers", default=""); ap.add_argument("--pass", dest="part", default="forward", choices=["forward", "backward", "both"])
    opts = ap.parse_args()
    print(draw(series_of(rows_of(opts.results, opts.part), rows_of(opts.peers, opts.part) if opts.peers else []), opts.part))
