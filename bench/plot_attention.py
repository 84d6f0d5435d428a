#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw TFLOP/s against sequence length, with a panel for each mask, as an SVG. Needs only Python.

  bench/plot_attention.py FILE... [--pass backward] [--shape 64:8/128] > backward.svg

The files are results of `bench_attention.py --peers ... --json`. All systems are drawn, with a bar from the slowest round to the
fastest, for one shape, and for the dtype of its first row.
"""
import argparse
from html import escape

from attention_report import PASSES, TITLES, Shape, label, read_all, size

COLOURS = {"libffa": "#0b5cad", "cuDNN": "#888888", "cuDNN Flex": "#444444", "FlashAttention-3": "#c2410c",
           "FlashAttention-4": "#d97706", "MagiAttention": "#7e22ce", "FlexAttention": "#4d7c0f"}
OF_VARIANTS = ("#0e7490", "#be123c", "#1e1b4b", "#14532d", "#a16207", "#db2777")
WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y, COLUMNS = 280, 190, 50, 76, 40, 56, 3
Y_MAX, Y_STEP, LEGEND = 800, 200, 170


def series_of(results):
    """{mask: {name: [(seqlen, tflops, slowest, fastest)]}}, each list in ascending order."""
    series = {}
    for r in results:
        ends = (r["tflops"] * r["ms"] / ms for ms in (max(r["rounds_ms"]), min(r["rounds_ms"])))
        series.setdefault(r["mask"], {}).setdefault(label(r["system"]), []).append((r["seqlen"], r["tflops"], *ends))
    return {mask: {name: sorted(points) for name, points in lines.items()} for mask, lines in series.items()}


def colours_of(series):
    """{name: colour} of all that is drawn, in the order of the legend."""
    found = dict.fromkeys(name for lines in series.values() for name in lines)
    variants = [name for name in found if name not in COLOURS]
    return {**{name: COLOURS[name] for name in COLOURS if name in found},
            **{name: OF_VARIANTS[i % len(OF_VARIANTS)] for i, name in enumerate(variants)}}


def text(x, y, what, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(what)}</text>'


def panel(title, lines, colours, seqlens, x0, y0, y_max):
    at = lambda n, v: (x0 + WIDTH * seqlens.index(n) / max(1, len(seqlens) - 1), y0 + HEIGHT * (1 - v / y_max))
    out = [text(x0, y0 - 8, title, 'font-weight="bold"')]
    for v in range(0, y_max + 1, Y_STEP):
        y = y0 + HEIGHT * (1 - v / y_max)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(text(x0 - 6, y + 4, str(v), 'text-anchor="end"'))
    for n in seqlens:
        out.append(text(at(n, 0)[0], y0 + HEIGHT + 16, size(n), 'text-anchor="middle"'))
    for name, points in lines.items():
        bars = [(at(n, slowest), at(n, fastest)) for n, _, slowest, fastest in points if n in seqlens]
        points = [at(n, v) for n, v, _, _ in points if n in seqlens]
        colour = colours[name]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        out += [f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{top:.1f}" stroke="{colour}"/>' for (x, y), (_, top) in bars]
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return out


def draw(series, part, dtype, shape):
    seqlens = sorted({n for lines in series.values() for n, *_ in lines.get("libffa", [])})
    colours = colours_of(series)
    masks = [m for m in TITLES.items() if m[0] in series] + [(m, m) for m in series if m not in TITLES]
    fastest = max(v for lines in series.values() for points in lines.values() for _, v, *_ in points)
    y_max = max(Y_MAX, int(-(-fastest // Y_STEP)) * Y_STEP)
    heads, dims = str(shape).split("/")
    width = max(LEFT + COLUMNS * (WIDTH + GAP_X), LEFT + len(colours) * LEGEND)
    height = TOP + -(-len(masks) // COLUMNS) * (HEIGHT + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(LEFT, 18, f"{part.capitalize()}, {dtype}, heads {heads}, head_dim {dims}: TFLOP/s by sequence length", 'font-size="14"')]
    for i, (name, colour) in enumerate(colours.items()):
        x = LEFT + i * LEGEND
        out.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{colour}"/>')
        out.append(text(x + 18, 38, name))
    for i, (mask, title) in enumerate(masks):
        out += panel(title, series[mask], colours, seqlens, LEFT + i % COLUMNS * (WIDTH + GAP_X), TOP + i // COLUMNS * (HEIGHT + GAP_Y), y_max)
    return "\n".join(out + ["</svg>"])


def main(arguments=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("results", nargs="+")
    ap.add_argument("--pass", dest="part", default="forward", choices=PASSES)
    ap.add_argument("--shape", type=Shape.parse, metavar="HQ:HKV/DIM[:DIM_V]", help="that of the first row")
    opts = ap.parse_args(arguments)
    try:
        rows = read_all(opts.results)
    except ValueError as error:
        ap.error(str(error))
    results = [row for row in rows if "tflops" in row and row["pass"] == opts.part and not row.get("wrong")]
    shape = opts.shape or next(map(Shape.of_row, results), None)
    results = [row for row in results if Shape.of_row(row) == shape]
    if not results:
        ap.error(f"{', '.join(opts.results)}: no figures of the pass {opts.part}" + (f" and shape {shape}" if shape else ""))
    dtype = results[0]["dtype"]
    print(draw(series_of([row for row in results if row["dtype"] == dtype]), opts.part, dtype, shape))


if __name__ == "__main__":
    main()
