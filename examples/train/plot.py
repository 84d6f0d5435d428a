#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the loss curves of JSON lines that train.py wrote, and print its table of speed and memory.

  plot.py LOSSES.jsonl... > losses.svg        python alone, no packages
  plot.py --table LOSSES.jsonl...             Markdown

Runs that differ in their seed only are drawn in one colour, as a band from the least to the largest loss
of a step: what two seeds differ by is what other curves may differ by, too.
"""
import json
import sys
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 420, 56, 48, 230, 44
COLOURS = ["#1d5fc4", "#c9541b", "#12908e", "#7b3fa0", "#b8860b", "#8a8f99", "#2e7d32"]
SMOOTH = 5  # a curve is the mean of so many steps


def name_of(line):
    parts = [line["attention"]]
    if line["compile"]:
        parts.append("torch.compile")
    if line["context_parallel"] > 1:
        parts.append(f"context parallel x {line['context_parallel']}")
    if line["fsdp"]:
        parts.append("FSDP2")
    elif line["ranks"] > line["context_parallel"]:
        parts.append(f"DDP x {line['ranks']}")
    return ", ".join(parts)


def read(paths):
    """{name: {seed: [losses]}} and {name: [summaries]}, in the order of the files."""
    losses, summaries = {}, {}
    for path in paths:
        with open(path) as file:
            for line in map(json.loads, file):
                name = name_of(line)
                if line.get("summary"):
                    summaries.setdefault(name, []).append(line)
                    continue
                runs = losses.setdefault(name, {})
                if line["step"] == 0:  # a later run of the same settings replaces the earlier one
                    runs[line["seed"]] = []
                runs[line["seed"]].append(line["loss"])
    return losses, summaries


def smooth(values):
    return [sum(values[max(0, i - SMOOTH + 1):i + 1]) / min(i + 1, SMOOTH) for i in range(len(values))]


class Axes:
    def __init__(self, curves):
        values = [loss for _, seeds in curves for run in seeds for loss in run]
        self.steps = max(len(run) for _, seeds in curves for run in seeds)
        self.low, self.high = 0.0, max(values) * 1.02

    def x(self, step):
        return LEFT + step / max(self.steps - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, loss):
        return TOP + (self.high - loss) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def points(self, run):
        return [f"{self.x(i):.1f},{self.y(loss):.1f}" for i, loss in enumerate(run)]

    def frame(self):
        for i in range(6):
            loss = self.high * i / 5
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(loss):.1f}" y2="{self.y(loss):.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{self.y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>'
        for i in range(6):
            step = round((self.steps - 1) * i / 5)
            yield f'<text x="{self.x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>'
        yield f'<text x="{LEFT}" y="{HEIGHT - 8}">step</text>'
        yield f'<text class="title" x="{LEFT}" y="24">Loss, mean of {SMOOTH} steps</text>'


def label_heights(wanted):
    """Where labels go so that none is on another: as near as that allows, in the order of their wishes."""
    at, last = [0.0] * len(wanted), TOP - 16.0
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        at[index] = last = max(wanted[index], last + 16)
    return [height - max(0.0, last - (HEIGHT - BOTTOM)) for height in at]


def svg(losses):
    curves = [(name, [smooth(run) for run in seeds.values()]) for name, seeds in losses.items()]
    axes = Axes(curves)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    yield "<style>.grid{stroke:#d8dce2}.title{font-size:15px}text{fill:#333}polyline{fill:none;stroke-width:1.6}</style>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    yield from axes.frame()
    ends = label_heights([axes.y(seeds[0][-1]) + 4 for _, seeds in curves])
    for i, (name, seeds) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        if len(seeds) > 1:
            columns = list(zip(*seeds))
            outline = axes.points([max(c) for c in columns]) + axes.points([min(c) for c in columns])[::-1]
            yield f'<polygon points="{" ".join(outline)}" fill="{colour}" fill-opacity="0.18"/>'
        yield f'<polyline points="{" ".join(axes.points(seeds[0]))}" stroke="{colour}"/>'
        count = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{ends[i]:.1f}" style="fill:{colour}">{escape(name + count)}</text>'
    yield "</svg>"


def table(summaries):
    yield "| attention | ranks | tokens/s | ms a step | memory of a rank, MiB | device |"
    yield "|---|---|---|---|---|---|"
    for name, lines in summaries.items():
        line = lines[-1]
        yield (f"| {name} | {line['ranks']} | {line['tokens_s']:.0f} | {line['step_ms']:.1f} | {line['memory_mib']:.0f} "
               f"| {line['device']} |")


def main():
    paths = [path for path in sys.argv[1:] if path != "--table"]
    if not paths or any(path.startswith("-") for path in paths):
        sys.exit(__doc__)
    losses, summaries = read(paths)
    print("\n".join(table(summaries) if "--table" in sys.argv else svg(losses)))


if __name__ == "__main__":
    main()
