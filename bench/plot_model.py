#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the model's time of each kernel against the device's, log by log, as an SVG. Needs only Python.

  bench/plot_model.py model.jsonl > model.svg

The file is what `bench_model --json FILE` writes. A point is a kernel with a mask; what a plan chooses is filled. The lines are
equal times and 5 % to either side.
"""
import argparse, json, math
from html import escape

SIZE, LEFT, TOP, RIGHT, BOTTOM, LEGEND = 420, 64, 70, 24, 52, 150
COLOURS = ["#0b5cad", "#c2410c", "#4d7c0f", "#7e22ce", "#d97706", "#0f766e", "#be123c", "#444444"]


def rows_of(path):
    """What the first line says of all, and the lines of the cases."""
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    return next((row for row in rows if "items" not in row), {}), [row for row in rows if "items" in row]


def group_of(spec):
    """ "head_dim=128,heads=16:16,pack=0" is of "128, heads apart"."""
    values = dict(item.split("=", 1) for item in spec.split(",") if "=" in item)
    return values["head_dim"] + (", heads apart" if values.get("pack") == "0" else ", packed")


def points_of(cases):
    """{group: [(device us, model us, chosen)]}"""
    points = {}
    for case in cases:
        for item in case["items"]:
            if item["model_us"]:
                points.setdefault(group_of(case["spec"]), []).append((item["us"], item["model_us"], item["chosen"]))
    return dict(sorted(points.items(), key=lambda group: (int(group[0].split(",")[0].split(":")[0]), group[0])))


def text(x, y, what, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(what)}</text>'


def ticks(low, high):
    """1, 2 and 5 times the powers of ten in the range."""
    return [v for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for v in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if low <= v <= high]


def draw(head, cases):
    points = points_of(cases)
    values = [v for group in points.values() for us, model, _ in group for v in (us, model)]
    low, high = min(values) / 1.3, max(values) * 1.3
    at = lambda v: (math.log(v) - math.log(low)) / (math.log(high) - math.log(low)) * SIZE
    x_of, y_of = lambda v: LEFT + at(v), lambda v: TOP + SIZE - at(v)
    errors = sorted(abs(model / us - 1) for group in points.values() for us, model, _ in group)
    width, height = LEFT + SIZE + RIGHT + LEGEND, TOP + SIZE + BOTTOM
    title = f"{head.get('device', '')}: forward, {len(cases)} masks, {len(errors)} times, {100 * errors[len(errors) // 2]:.1f} % off in the median"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>', text(LEFT, 24, title, 'font-size="14"'),
           text(LEFT, 44, f"costs {head.get('cost_table', '')[:16]}, {head.get('cost_source', '')}" + ("; times of some tables are scaled" if any(c["scaled"] for c in cases) else ""))]
    for v in ticks(low, high):
        out.append(f'<line x1="{x_of(v):.1f}" y1="{TOP}" x2="{x_of(v):.1f}" y2="{TOP + SIZE}" stroke="#eeeeee"/>')
        out.append(f'<line x1="{LEFT}" y1="{y_of(v):.1f}" x2="{LEFT + SIZE}" y2="{y_of(v):.1f}" stroke="#eeeeee"/>')
        out.append(text(x_of(v), TOP + SIZE + 16, f"{v:g}", 'text-anchor="middle"'))
        out.append(text(LEFT - 6, y_of(v) + 4, f"{v:g}", 'text-anchor="end"'))
    for factor, dash in ((1, ""), (1.05, ' stroke-dasharray="4 3"'), (1 / 1.05, ' stroke-dasharray="4 3"')):
        begin, end = max(low, low / factor), min(high, high / factor)
        out.append(f'<line x1="{x_of(begin):.1f}" y1="{y_of(begin * factor):.1f}" x2="{x_of(end):.1f}" y2="{y_of(end * factor):.1f}" stroke="#999999"{dash}/>')
    for i, (name, group) in enumerate(points.items()):
        colour = COLOURS[i % len(COLOURS)]
        out.append(f'<circle cx="{LEFT + SIZE + 20}" cy="{TOP + 10 + 20 * i}" r="4" fill="{colour}"/>')
        out.append(text(LEFT + SIZE + 30, TOP + 14 + 20 * i, name))
        out += [f'<circle cx="{x_of(us):.1f}" cy="{y_of(model):.1f}" r="3.5" stroke="{colour}" fill="{colour if chosen else "none"}"/>' for us, model, chosen in group]
    out.append(text(LEFT + SIZE / 2, TOP + SIZE + 40, "device, us", 'text-anchor="middle"'))
    out.append(text(16, TOP + SIZE / 2, "model, us", f'text-anchor="middle" transform="rotate(-90 16 {TOP + SIZE / 2:.0f})"'))
    return "\n".join(out + ["</svg>"])


def main(arguments=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("results")
    opts = ap.parse_args(arguments)
    head, cases = rows_of(opts.results)
    if not points_of(cases):
        ap.error(f"{opts.results}: no times of the model")
    print(draw(head, cases))


if __name__ == "__main__":
    main()
