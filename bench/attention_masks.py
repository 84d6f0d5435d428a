# SPDX-License-Identifier: Apache-2.0
"""Masks of bench_attention.py: from files, the keys that each row attends, and what other systems make of them."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

TYPES = ("full", "causal", "invcausal", "bicausal")


class Unsupported(Exception):
    """What a system cannot do, in a sentence."""


class Documents(NamedTuple):
    """Packed documents that attend only themselves, as flash-attn's functions take them.

    cu_q, cu_k   [documents + 1]: document d has the rows cu_q[d] to cu_q[d + 1], and the keys of cu_k likewise
    left, right  keys before and after a row's own, which is aligned to the document's last row and key; -1: all
    """

    cu_q: list[int]
    cu_k: list[int]
    left: int
    right: int

    @property
    def is_full(self) -> bool:
        return (self.left, self.right) == (-1, -1)

    @property
    def is_causal(self) -> bool:
        return (self.left, self.right) == (-1, 0)

    @property
    def is_one(self) -> bool:
        """Whether the whole sequence is one document."""
        return len(self.cu_q) == 2


@dataclass(frozen=True)
class Case:
    """A mask with a name: the union of slices (q_begin, q_end, k_begin, k_end, type), type an index of TYPES."""

    name: str
    seqlen_q: int
    seqlen_k: int
    slices: tuple[tuple[int, int, int, int, int], ...]

    @cached_property
    def _ranges(self):
        """(row, begin, end) of all attended ranges of keys, by row and key, disjoint; and the cells that all slices have,
        cells that several of them cover counted as often."""
        rows, begins, ends = [], [], []
        for q_begin, q_end, k_begin, k_end, kind in self.slices:
            i = np.arange(q_end - q_begin)
            rows.append(q_begin + i)
            begins.append(k_begin + i if kind & 2 else np.full(len(i), k_begin))
            ends.append(k_end - i[::-1] if kind & 1 else np.full(len(i), k_end))
        row, begin, end = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (rows, begins, ends))
        some = end > begin
        row, begin, end = row[some], begin[some], end[some]
        cells = int((end - begin).sum())
        # Keys of row r are numbered from r * stride, so that ranges of all rows are merged as those of one.
        stride = self.seqlen_k + 1
        order = np.argsort(row * stride + begin, kind="stable")
        low, high = (row * stride + begin)[order], np.maximum.accumulate((row * stride + end)[order])
        first = np.flatnonzero(np.r_[True, low[1:] > high[:-1]]) if len(low) else np.zeros(0, np.int64)
        last = np.r_[first[1:], len(low)] - 1 if len(low) else first
        row = low[first] // stride
        return row, low[first] - row * stride, high[last] - row * stride, cells

    @cached_property
    def area(self) -> int:
        """Attended cells."""
        _, begin, end, _ = self._ranges
        return int((end - begin).sum())

    @property
    def overlaps(self) -> bool:
        """Whether several slices cover a cell."""
        return self._ranges[3] != self.area

    @property
    def rows_overlap(self) -> bool:
        """Whether a row is in several slices."""
        ranges = sorted(s[:2] for s in self.slices if s[1] > s[0])
        return any(b[0] < a[1] for a, b in zip(ranges, ranges[1:]))

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """low, high [ranges, rows]: row i attends the keys low[n][i] to high[n][i] of every n. Ranges are in ascending
        order; what a row has fewer of than others is empty, at the end of its last."""
        row, begin, end, _ = self._ranges
        count = np.bincount(row, minlength=self.seqlen_q)
        most = max(1, int(count.max(initial=0)))
        index = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        low, high = np.zeros((2, most, self.seqlen_q), np.int64)
        low[index, row], high[index, row] = begin, end
        high = np.maximum.accumulate(high, axis=0)
        return np.where(np.arange(most)[:, None] < count, low, high), high

    @cached_property
    def documents(self) -> Documents:
        """The mask as packed documents of one window; Unsupported where it is none."""
        low, high = self.bounds
        if len(low) > 1:
            raise Unsupported("a row attends several ranges of keys")
        low, high = low[0], high[0]
        if self.seqlen_q == 0 or (low == high).any():
            raise Unsupported("a row attends no keys")
        starts = np.flatnonzero(np.r_[True, low[1:] >= high[:-1]])
        for begins, keys in (([0], [0]), (starts, np.r_[0, np.minimum.reduceat(low, starts)[1:]])):
            found = _window_of(low, high, np.r_[begins, self.seqlen_q], np.r_[keys, self.seqlen_k])
            if found:
                return found
        raise Unsupported("not packed documents that are all full, causal or of one window")

    def restated(self) -> Case:
        """The same cells by another list of slices, the first of several rows cut in two: another mask for a system that
        keeps plans by their slices."""
        for n, (q_begin, q_end, k_begin, k_end, kind) in enumerate(self.slices):
            middle = (q_begin + q_end) // 2
            if middle > q_begin:
                upper = (q_begin, middle, k_begin, k_end - (q_end - middle) if kind & 1 else k_end, kind)
                lower = (middle, q_end, k_begin + middle - q_begin if kind & 2 else k_begin, k_end, kind)
                parts = tuple(part for part in (upper, lower) if part[3] > part[2])
                return Case(self.name, self.seqlen_q, self.seqlen_k, self.slices[:n] + parts + self.slices[n + 1:])
        return self


def _window_of(low, high, cu_q, cu_k):
    """The documents with these boundaries, if rows with the keys low to high are of one window in all of them."""
    sizes_q, sizes_k = np.diff(cu_q), np.diff(cu_k)
    if (sizes_q <= 0).any() or (sizes_k <= 0).any():
        return None
    document = np.repeat(np.arange(len(sizes_q)), sizes_q)
    begin, end = cu_k[:-1][document], cu_k[1:][document]
    own = np.arange(len(low)) - cu_q[1:][document] + end  # the key that the last one's alignment gives a row
    limited = np.flatnonzero(low > begin), np.flatnonzero(high < end)
    left = int((own - low)[limited[0][0]]) if len(limited[0]) else None
    right = int((high - 1 - own)[limited[1][0]]) if len(limited[1]) else None
    if (left is not None and left < 0) or (right is not None and right < 0):
        return None
    want_low = begin if left is None else np.maximum(begin, own - left)
    want_high = end if right is None else np.minimum(end, own + right + 1)
    if (low != want_low).any() or (high != want_high).any():
        return None
    return Documents(cu_q.tolist(), cu_k.tolist(), -1 if left is None else left, -1 if right is None else right)


def _case(name, mask, where):
    """A case of a mask as the command's JSON has it."""
    if "slices" not in mask:
        raise ValueError(f"{where}: no \"slices\"; one list of slices for all heads is needed")
    slices = []
    for n, (*ranges, kind) in enumerate(mask["slices"]):
        if kind not in TYPES and kind not in range(len(TYPES)):
            raise ValueError(f"{where}: slice {n} has the type {kind!r}, not one of {', '.join(TYPES)}")
        slices.append((*map(int, ranges), TYPES.index(kind) if kind in TYPES else int(kind)))
        q_begin, q_end, k_begin, k_end, _ = slices[-1]
        if not (0 <= q_begin <= q_end <= mask["seqlen_q"] and 0 <= k_begin <= k_end <= mask["seqlen_k"]):
            raise ValueError(f"{where}: slice {n}, {list(slices[-1])}, is not inside {mask['seqlen_q']} x {mask['seqlen_k']}")
    return Case(name, int(mask["seqlen_q"]), int(mask["seqlen_k"]), tuple(slices))


def read_masks(path: str) -> list[Case]:
    """The masks of a file:

    - JSON {"cases": [{"name": ..., "mask": MASK}, ...]}, as tests/data/masks.json;
    - JSON MASK, as `ffa mask` writes it, {"seqlen_q": N, "seqlen_k": N, "slices": [[q, q, k, k, type], ...]}; its name is the
      file's;
    - lines `[NAME] TEXT`, TEXT as the command reads masks (docs/masks.md); what follows '#' is a comment.

    Raises ValueError, naming the file and what is wrong there.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if "cases" not in found:
            return [_case(os.path.splitext(os.path.basename(path))[0], found, path)]
        return [_case(c["name"], c["mask"], f"{path}: {c['name']}") for c in found["cases"]]
    cases = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2:
            raise ValueError(f"{path}:{number}: {len(words)} words; a line is [NAME] TEXT")
        cases.append(_parsed(words[0], words[-1], f"{path}:{number}"))
    if not cases:
        raise ValueError(f"{path}: no masks")
    return cases


def _parsed(name, text, where):
    """A case of a mask's text."""
    import libffa

    try:
        mask = json.loads(libffa.Mask.parse(text).to_json())
    except libffa.FfaError as error:
        raise ValueError(f"{where}: {error}") from None
    return _case(name, mask, where)
