# SPDX-License-Identifier: Apache-2.0
"""Rows of a results file of bench_attention.py, and tables of them.

A results file is JSON lines. The first says where and how: device, driver, versions, settings, `systems` (a version, or why
one was left out). Then, told apart by what they have:

  {"system", "mask", "seqlen", ..., "pass", "ms", "spread", "rounds_ms", "tflops", "host_ms", ...}   a figure
  {"system", "mask", "seqlen", ..., "cold": {...}}                                                    first calls
  {"system", "mask", "seqlen", ..., "skipped": reason}, with "pass" where it is of one pass           what was left out

Rows of a variant of libffa have its settings as "variant", and its figures "to_libffa"; it is no peer.
"""
from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
from typing import Iterable, NamedTuple

# What tables call the systems of attention_peers.py, which is not needed to read results.
LABELS = {"libffa": "libffa", "cudnn": "cuDNN", "cudnn-flex": "cuDNN Flex", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4",
          "flex": "FlexAttention", "magi": "MagiAttention"}

PASSES = ("forward", "backward", "both")

# What tables and pictures call the masks of tests/data/masks.json, in their order; other masks come after them.
TITLES = {"full": "full", "causal": "causal", "sliding_window_causal": "causal window of 1024", "varlen_full": "packed documents, full",
          "varlen_causal": "packed documents, causal", "varlen_block_causal": "packed documents, block causal"}

COLD = {"import_s": "import, s", "plan_ms": "plan, ms", "first_forward_ms": "first forward, ms",
        "first_backward_ms": "first backward, ms", "new_mask_ms": "another mask, ms"}


class Shape(NamedTuple):
    """Query and kv heads; head_dim of q and k, and of v. As a text HQ:HKV/DIM, or HQ:HKV/DIM:DIM_V."""

    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """ValueError: it is none."""
        words = re.fullmatch(r"([1-9]\d*):([1-9]\d*)/([1-9]\d*)(?::([1-9]\d*))?", text)
        if not words:
            raise ValueError(f"'{text}' is not HQ:HKV/DIM or HQ:HKV/DIM:DIM_V")
        found = cls(*(int(word or words[3]) for word in words.groups()))
        if found.heads_q % found.heads_kv:
            raise ValueError(f"'{text}': {found.heads_q} query heads are not a multiple of {found.heads_kv} kv heads")
        return found

    @classmethod
    def of_row(cls, row: dict) -> Shape:
        """That of a row of a results file."""
        return cls(*map(int, row["heads"].split(":")), row["head_dim"], row["head_dim_v"])

    def __str__(self):
        dims = self.head_dim if self.head_dim == self.head_dim_v else f"{self.head_dim}:{self.head_dim_v}"
        return f"{self.heads_q}:{self.heads_kv}/{dims}"


def flops(part: str, area: int, heads: int, head_dim: int, head_dim_v: int) -> float:
    """Operations of a pass: two products forward, five backward, each 2 * cells * heads * dimensions."""
    forward, backward = head_dim + head_dim_v, 3 * head_dim + 2 * head_dim_v
    return 2.0 * area * heads * dict(forward=forward, backward=backward, both=forward + backward)[part]


def add_ratios(figures: list[dict], ours: str = "libffa") -> None:
    """Give each row its speed as a multiple of the best peer's, of rows of one mask and pass; wrong ones do not count. Rows of
    variants also that of libffa's, the median over rounds, as the clock of a round is nearly the same for both."""
    own = next((row for row in figures if row["system"] == ours and not row.get("wrong")), None)
    for row in figures:
        if own and "variant" in row and not row.get("wrong"):
            ratios = [mine / its for mine, its in zip(own["rounds_ms"], row["rounds_ms"])]
            row.update(to_libffa=statistics.median(ratios), to_libffa_spread=max(ratios) - min(ratios))
    peers = [row for row in figures if row["system"] != ours and "variant" not in row and not row.get("wrong")]
    if not peers:
        return
    best = max(peers, key=lambda row: row["tflops"])
    for row in figures:
        row.update(best_peer=best["system"], to_best_peer=row["tflops"] / best["tflops"])


def read_results(path: str) -> list[dict]:
    """The rows of a results file. ValueError: it is none."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    if not rows or not all(isinstance(row, dict) for row in rows) or "systems" not in rows[0]:
        raise ValueError("not a results file of --peers: its first line has no 'systems'")
    return rows


def label(name: str) -> str:
    """What tables call a system; a variant has its own name."""
    return LABELS.get(name, name)


def title(mask: str) -> str:
    """What tables call a mask."""
    return TITLES.get(mask, mask)


def size(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _markdown(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]


def _host_mark(*rows):
    """Where the host was the limit of one of them."""
    return " *" if any(row["host_ms"] >= 0.9 * row["ms"] for row in rows) else ""


def _cell(row):
    if row is None:
        return "-"
    if row.get("wrong"):
        return "wrong"
    return f"{row['tflops']:.0f} ±{50 * row['spread']:.0f} %{_host_mark(row)}"


def _in_order(figures):
    """Figures by mask and length: masks with titles first, in that order, then others as they come."""
    masks = [*TITLES, *dict.fromkeys(row["mask"] for row in figures)]
    return sorted(figures, key=lambda row: (masks.index(row["mask"]), row["seqlen"]))


def _ratio(row):
    """libffa's speed as a multiple of the best peer's, bold where it is behind."""
    text = f"{row['to_best_peer']:.2f}"
    return f"**{text}**" if float(text) < 1 else text


def _speed_table(figures):
    variants = list(dict.fromkeys(row["system"] for row in figures if "variant" in row))
    systems = dict.fromkeys(row["system"] for row in figures)
    names = [name for name in dict.fromkeys(["libffa", *variants, *LABELS, *systems]) if name in systems]
    found = {(row["mask"], row["seqlen"], row["system"]): row for row in figures}
    rows = []
    for mask, seqlen in dict.fromkeys((row["mask"], row["seqlen"]) for row in _in_order(figures)):
        ours = found.get((mask, seqlen, "libffa"), {})
        ratio = f"{_ratio(ours)} {label(ours['best_peer'])}" if "best_peer" in ours else "-"
        of_variants = (found.get((mask, seqlen, name), {}) for name in variants)
        ratios = [f"{row['to_libffa']:.3f} ±{row['to_libffa_spread'] / 2:.3f}" + _host_mark(row, ours) if "to_libffa" in row else "-"
                  for row in of_variants]
        rows.append([title(mask), size(seqlen), *(_cell(found.get((mask, seqlen, name))) for name in names), *ratios, ratio])
    head = [*map(label, names), *(f"{name} / libffa" for name in variants), "libffa / best peer"]
    return _markdown(["mask", "tokens", *head], rows)


def cell_of(row: dict) -> tuple:
    """What a figure is of: shape, dtype, pass, mask, tokens. Systems are compared within it."""
    return Shape.of_row(row), row["dtype"], row["pass"], row["mask"], row["seqlen"]


def table_below(rows: list[dict], ratio: float) -> str:
    """Markdown: the cells in which libffa has less than `ratio` times the speed of the best peer, and how the GPU ran in the turns
    of both."""
    figures = {(cell_of(row), row["system"]): row for row in rows if "tflops" in row}
    ours = [row for row in _in_order(list(figures.values())) if row["system"] == "libffa" and "best_peer" in row]
    below = [row for row in ours if row["to_best_peer"] < ratio]
    lines = []
    for row in sorted(below, key=lambda row: (PASSES.index(row["pass"]), Shape.of_row(row))):
        both = row, figures[cell_of(row), row["best_peer"]]
        pair = lambda key: ", ".join(f"{one[key]:.0f}" for one in both) if all(key in one for one in both) else "-"
        cycles = [one["ms"] * one.get("clock_mhz", 0) for one in both]
        lines.append([row["pass"], str(Shape.of_row(row)), title(row["mask"]), size(row["seqlen"]),
                      f"{_ratio(row)} {label(row['best_peer'])}", f"{cycles[1] / cycles[0]:.2f}" if all(cycles) else "-",
                      pair("clock_mhz"), pair("power_w")])
    said = f"libffa has less than {ratio:g} times the best peer's speed in {len(below)} of {len(ours)} cells"
    if not lines:
        return said + ".\n"
    head = ["pass", "shape", "mask", "tokens", "libffa / best peer", "in cycles", "MHz: libffa, peer", "W: libffa, peer"]
    return "\n".join([said + ":", "", *_markdown(head, lines)]) + "\n"


TABLES = ("figures", "first", "left-out")


def tables(rows: list[dict], shown: Iterable[str] = TABLES) -> str:
    """Markdown, what is shown of: TFLOP/s a pass, first calls of each system's first mask, and what was left out."""
    figures = [row for row in rows if "tflops" in row]
    lines = []
    groups = dict.fromkeys((Shape.of_row(row), row["dtype"]) for row in figures)
    if "figures" in shown:
        for (shape, dtype), part in itertools.product(groups, PASSES):
            of_part = [row for row in figures if (Shape.of_row(row), row["dtype"], row["pass"]) == (shape, dtype, part)]
            if of_part:
                lines += [f"{shape}, {dtype}, {part}: TFLOP/s, ± half the spread over rounds; * the host was the limit:", ""]
                lines += _speed_table(of_part) + [""]
    first, run = {}, 0
    for row in rows:
        run += "systems" in row  # the first row of a run's file
        if "cold" in row:
            first.setdefault((run, row["system"]), row)
    if first and "first" in shown:
        value = lambda cold, key: f"{cold[key]:.3g}" if key in cold else "-"
        lines += ["The first mask of each system in its process:", ""]
        lines += _markdown(["system", "mask", *COLD.values()],
                           ([label(name), f"{title(row['mask'])} {size(row['seqlen'])}", *(value(row["cold"], key) for key in COLD)]
                            for (_, name), row in first.items())) + [""]
    left_out = {}
    for row in rows:
        if "skipped" in row:
            what = f"{title(row['mask'])} {size(row['seqlen'])}" + (f" {row['pass']}" if "pass" in row else "")
            what += f" {Shape.of_row(row)}" if len(groups) > 1 else ""
            left_out.setdefault((row["system"], row["skipped"]), []).append(what)
        for name, text in row.get("systems", {}).items():
            if isinstance(text, dict):
                left_out.setdefault((name, text["skipped"]), []).append("all")
    if left_out and "left-out" in shown:
        lines += ["Left out:", ""]
        lines += _markdown(["system", "masks", "why"],
                           ([label(name), ", ".join(what), why] for (name, why), what in left_out.items())) + [""]
    return "\n".join(lines)


def read_all(paths: Iterable[str]) -> list[dict]:
    """The rows of several results files, of one kind of device. ValueError names the file: it is none, its device is another
    than that of the files before it, or it has a figure twice, or one that they have."""
    rows, device, found = [], None, {}
    for path in paths:
        try:
            more = read_results(path)
            if device not in (None, more[0].get("device")):
                raise ValueError(f"is of {more[0].get('device')}, the files before of {device}")
            device = more[0].get("device")
            for row in more:
                if "tflops" not in row:
                    continue
                key = *cell_of(row), row["system"]
                if key in found:
                    raise ValueError(f"has {row['system']} on {row['mask']} of {row['seqlen']}, {row['pass']}, {key[0]}, as has {found[key]}")
                found[key] = path
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        rows += more
    return rows


def main(words: list[str]) -> int:
    """Print the tables of results files. Returns the exit status: 1 where a file cannot be read."""
    parser = argparse.ArgumentParser(prog="bench_attention.py table", description="Print the tables of results files of --peers, those of"
                                     " several files together. Files of different devices, and twice the same figure, are refused.")
    parser.add_argument("results", nargs="+", help="a file that --json has written")
    parser.add_argument("--below", type=float, metavar="R",
                        help="the cells in which libffa has less than R times the best peer's speed, with clocks and power")
    parser.add_argument("--show", default=",".join(TABLES), metavar="TABLES",
                        help=f"tables to print, between commas: {', '.join(TABLES)}; without it all three")
    parser.add_argument("--pass", dest="part", choices=PASSES, help="figures of this pass only")
    parser.add_argument("--shape", type=Shape.parse, metavar="HQ:HKV/DIM[:DIM_V]", help="figures of this shape only")
    parser.add_argument("--without", default="", metavar="SYSTEMS", help="tables without the columns of these, between commas; the best peer is that of all")
    options = parser.parse_args(words)
    shown = options.show.split(",")
    unknown = [name for name in shown if name not in TABLES]
    if unknown:
        parser.error(f"--show: '{unknown[0]}' is none of {', '.join(TABLES)}")
    if options.below is not None and (options.without or tuple(shown) != TABLES):
        parser.error("--below is a table of its own: not with --show or --without")
    try:
        rows = read_all(options.results)
    except ValueError as error:
        print(f"bench_attention.py table: {error}", file=sys.stderr)
        return 1
    is_asked = lambda row: options.part in (None, row["pass"]) and options.shape in (None, Shape.of_row(row))
    rows = [row for row in rows if "tflops" not in row or is_asked(row)]
    if options.below is not None:
        print(table_below(rows, options.below))
    else:
        print(tables([row for row in rows if row.get("system") not in options.without.split(",")], shown))
    return 0
