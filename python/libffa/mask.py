# SPDX-License-Identifier: Apache-2.0
"""Masks: which keys each query row attends."""
from __future__ import annotations

import ctypes as C
import hashlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Iterable, Sequence

from . import _abi
from ._arrays import array, integer, integers, numbers, pair
from ._library import OUT, call, lib, made, struct, text
from .errors import FfaError

TYPES = {"full": 0, "causal": 1, "invcausal": 2, "bicausal": 3}
_NAMES = tuple(TYPES)
Slice = Sequence  # (q_begin, q_end, k_begin, k_end, type)


class _Registry:
    """Masks by number. Compiled graphs have the number only, so that the last MASKS masks are kept until they ran."""

    MASKS = 1024

    def __init__(self):
        self.lock = threading.Lock()
        self.next = itertools.count(1 << 40)  # no size of a tensor is as large: torch.compile takes none for it
        self.last: OrderedDict[int, Mask] = OrderedDict()
        self.alive: weakref.WeakValueDictionary[int, Mask] = weakref.WeakValueDictionary()
        self.numbers: dict[bytes, int] = {}

    def add(self, mask: Mask) -> int:
        """The number of a mask: that of an equal one, where there is one."""
        with self.lock:
            number = self.numbers.get(mask.digest)
            if number is None:
                number = self.numbers[mask.digest] = next(self.next)
            self.last.setdefault(number, mask)
            self.last.move_to_end(number)
            self.alive.setdefault(number, mask)
            while len(self.last) > self.MASKS:
                _, dropped = self.last.popitem(last=False)
                self.numbers.pop(dropped.digest, None)
            return number

    def add_weakly(self, mask) -> int:
        """A number of its own for what stands for a mask; it is its owner's care that it lives."""
        with self.lock:
            number = next(self.next)
            self.alive[number] = mask
            return number

    def get(self, number: int) -> Mask:
        mask = self.alive.get(number)
        if mask is None:
            raise LookupError(f"mask {number} is gone: more than {self.MASKS} masks were made since it was used last; "
                              "keep the Mask until the backward pass is done")
        return mask


registry = _Registry()


def _after_fork():
    """A lock that another thread held would stay locked."""
    registry.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Mask:
    """An immutable mask of `seqlen_q` query rows and `seqlen_k` keys: the union of its slices.

    A slice is (q_begin, q_end, k_begin, k_end, type), types "full", "causal" (its last row attends all its keys),
    "invcausal" (its first row does) and "bicausal" (both bounds move: a band). A cell that several slices cover is
    attended once. Make masks by the class methods; masks.md draws them.

    Two masks are equal, and share plans, if their shapes and lists of slices are. Masks can be pickled. They may be
    shared by threads. Attributes:

      seqlen_q, seqlen_k  tokens
      heads               lists of slices: 1 (all heads share it) or heads_kv
      area                attended cells, over all lists
      id                  a number, the same for equal masks of this process
    """

    def __init__(self, handle: C.c_void_p):
        self._handle = handle
        self.seqlen_q: int = lib.ffa_mask_seqlen_q(handle)
        self.seqlen_k: int = lib.ffa_mask_seqlen_k(handle)
        self.heads: int = lib.ffa_mask_head_count(handle)
        content = hashlib.blake2b(b"%d %d %d" % (self.seqlen_q, self.seqlen_k, self.heads), digest_size=16)
        for head in range(self.heads):
            content.update(b"|")
            content.update(self._slice_bytes(head))
        self.digest: bytes = content.digest()
        self.id: int = registry.add(self)

    # ---- making masks ----

    @classmethod
    def _make(cls, name: str, *arguments) -> Mask:
        return cls(made(name, *arguments))

    @classmethod
    def full(cls, seqlen_q: int, seqlen_k: int | None = None) -> Mask:
        """Every row attends every key. seqlen_k: as seqlen_q unless given."""
        return cls._make("ffa_mask_full", _shape(seqlen_q, seqlen_k))

    @classmethod
    def causal(cls, seqlen_q: int, seqlen_k: int | None = None) -> Mask:
        """Causal; bottom-right aligned where seqlen_k differs."""
        return cls._make("ffa_mask_causal", _shape(seqlen_q, seqlen_k))

    @classmethod
    def window(cls, seqlen_q: int, left: int = -1, right: int = -1, *, seqlen_k: int | None = None) -> Mask:
        """A sliding window: row i attends the keys i - left to i + right (FlashAttention's definition, bottom-right
        aligned). -1 is unlimited."""
        bounds = _abi.ffa_window(integer(left, "left"), integer(right, "right"))
        return cls._make("ffa_mask_window", _shape(seqlen_q, seqlen_k), C.byref(bounds))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens_q: Any, cu_seqlens_k: Any = None, *, causal: bool = False,
                        window: tuple[int, int] | None = None, global_keys: int = 0) -> Mask:
        """Packed documents that attend only themselves.

        cu_seqlens_q  [documents + 1], int32 or int64, from 0: document d has the rows cu[d] to cu[d + 1]. A tensor of
                      any device (one on a GPU is copied to the host once, here), an array or a list
        cu_seqlens_k  the same of keys; None: as cu_seqlens_q
        causal        inside each document, aligned to its last row and key
        window        (left, right) inside each document, -1 for unlimited; with causal, right is 0
        global_keys   with a window: every row attends its document's first keys, too

        Raises InvalidError, naming the boundary.
        """
        docs, kept = _documents(cu_seqlens_q, cu_seqlens_k)
        if window is None and global_keys == 0:
            mask = cls._make("ffa_mask_varlen_causal" if causal else "ffa_mask_varlen_full", C.byref(docs))
        else:
            left, right = (-1, -1) if window is None else pair(window, "window")
            bounds = _abi.ffa_window(left, 0 if causal else right)
            mask = cls._make("ffa_mask_varlen_window", C.byref(docs), C.byref(bounds), integer(global_keys, "global_keys"))
        del kept
        return mask

    @classmethod
    def block_causal(cls, cu_seqlens: Any, block: int) -> Mask:
        """Rows of a document's block attend its keys up to the end of the block, of `block` tokens.
        cu_seqlens as from_cu_seqlens() has it, or one document's length."""
        is_length = isinstance(cu_seqlens, int) or getattr(cu_seqlens, "ndim", None) == 0
        docs, kept = _documents([0, cu_seqlens] if is_length else cu_seqlens, None)
        mask = cls._make("ffa_mask_block_causal", C.byref(docs), integer(block, "block"))
        del kept
        return mask

    @classmethod
    def shared_prefix(cls, cu_seqlens: Any, *, full_prefix: bool = False) -> Mask:
        """Documents that attend document 0 in full, and themselves causally. Document 0 attends itself causally, with
        full_prefix in full."""
        docs, kept = _documents(cu_seqlens, None)
        mask = cls._make("ffa_mask_shared_question" if full_prefix else "ffa_mask_shared_prefix", C.byref(docs))
        del kept
        return mask

    @classmethod
    def from_slices(cls, slices: Iterable[Slice], seqlen_q: int, seqlen_k: int | None = None) -> Mask:
        """The union of slices (q_begin, q_end, k_begin, k_end, type), type a name or FFA_SLICE_...'s number; tuples, or
        integers [n, 5]. Raises InvalidError, naming the slice."""
        records = _records(slices)
        return cls._make("ffa_mask_create", _shape(seqlen_q, seqlen_k), records, len(records))

    @classmethod
    def from_ranges(cls, q_ranges: Any, k_ranges: Any, types: Any, seqlen_q: int, seqlen_k: int | None = None) -> Mask:
        """from_slices() of columns, as MagiAttention has them: q_ranges and k_ranges [n, 2], types [n], or one type."""
        q, k = _rows(q_ranges, "q_ranges", 2), _rows(k_ranges, "k_ranges", 2)
        types = types.tolist() if hasattr(types, "tolist") else types
        types = [types] * len(q) if isinstance(types, (str, int)) else list(types)
        if not len(q) == len(k) == len(types):
            raise ValueError(f"{len(q)} q_ranges, {len(k)} k_ranges and {len(types)} types: not as many of each")
        return cls.from_slices([(*a, *b, t) for a, b, t in zip(q, k, types)], seqlen_q, seqlen_k)

    @classmethod
    def per_head(cls, masks: Sequence[Mask]) -> Mask:
        """One mask a kv head, all of one shape and with one list of slices each."""
        masks = masks_of(masks)
        lists = (_abi.ffa_slice_list * len(masks))(*(lib.ffa_mask_slices(m._handle, 0) for m in masks))
        if not masks or any((m.seqlen_q, m.seqlen_k, m.heads) != (masks[0].seqlen_q, masks[0].seqlen_k, 1) for m in masks):
            raise ValueError("masks: at least one, of one shape, each with one list of slices")
        return cls._make("ffa_mask_create_per_head", _shape(masks[0].seqlen_q, masks[0].seqlen_k), lists, len(masks))

    @classmethod
    def from_dense(cls, cells: Any) -> Mask:
        """The mask of a boolean array [seqlen_q, seqlen_k] or, one a kv head, [heads_kv, seqlen_q, seqlen_k]; True where
        a row attends a key (as SDPA's attn_mask). Exact, as few slices."""
        found = array(cells, "cells", C.c_uint8, "bool")
        if found.kind is not C.c_uint8:
            raise TypeError("cells: integers, not booleans")
        if len(found.shape) not in (2, 3):
            raise ValueError(f"cells: {list(found.shape)} elements; [seqlen_q, seqlen_k] or [heads_kv, seqlen_q, seqlen_k] is needed")
        rows, keys = found.shape[-2:]
        dense = struct(_abi.ffa_dense_mask, cells=found.address, row_stride=keys, head_stride=rows * keys)
        dense.heads = found.shape[0] if len(found.shape) == 3 else 1
        dense.shape = _abi.ffa_mask_shape(rows, keys)
        return cls._make("ffa_mask_from_dense", C.byref(dense))

    @classmethod
    def from_block_mask(cls, block_mask: Any) -> Mask:
        """The mask of FlexAttention's BlockMask: its block lists, and its mask_mod inside partial blocks. Its heads must
        be 1 or heads_kv; the samples of a batch follow each other, as the tokens of a packed batch."""
        from ._block_mask import samples_of

        masks = []
        for blocks, _kept, failed in samples_of(block_mask):
            try:
                masks.append(cls._make("ffa_mask_from_block_mask", C.byref(blocks)))
            except FfaError:
                if failed:  # in mask_mod
                    raise failed[0] from None
                raise
        return masks[0] if len(masks) == 1 else cls.concat(masks)

    @classmethod
    def parse(cls, words: str) -> Mask:
        """A mask as the command writes it, such as "varlen-causal:1000,3000,96" (masks.md)."""
        return cls._make("ffa_mask_parse", _bytes(words))

    @classmethod
    def from_json(cls, words: str) -> Mask:
        """A mask of to_json()."""
        data = _bytes(words)
        return cls._make("ffa_mask_parse_json", data, len(data))

    # ---- masks from masks ----

    @classmethod
    def concat(cls, masks: Sequence[Mask]) -> Mask:
        """Block diagonal: sequences one after another that do not attend each other."""
        masks = masks_of(masks)
        return cls._make("ffa_mask_concat", _handles(masks), len(masks))

    @classmethod
    def union(cls, masks: Sequence[Mask]) -> Mask:
        """What any of the masks attends; all of one shape."""
        masks = masks_of(masks)
        return cls._make("ffa_mask_union", _handles(masks), len(masks))

    def __or__(self, other: Mask) -> Mask:
        return Mask.union([self, other]) if isinstance(other, Mask) else NotImplemented

    def crop(self, q: tuple[int, int], k: tuple[int, int]) -> Mask:
        """The query rows and keys of two ranges, which begin at 0 in the result."""
        return self._make("ffa_mask_crop", self._handle, C.byref(_abi.ffa_mask_box(*pair(q, "q"), *pair(k, "k"))))

    def shift(self, q: int, k: int, seqlen_q: int | None = None, seqlen_k: int | None = None) -> Mask:
        """Query i becomes i + q, key j becomes j + k; cells that leave the shape are dropped."""
        shape = _shape(self.seqlen_q if seqlen_q is None else seqlen_q, self.seqlen_k if seqlen_k is None else seqlen_k)
        offset = _abi.ffa_mask_offset(integer(q, "q"), integer(k, "k"))
        return self._make("ffa_mask_shift", self._handle, C.byref(offset), shape)

    def repeat_heads(self, count: int) -> Mask:
        """The lists of all heads, `count` times: the mask of a batch whose samples are folded into the heads."""
        lists = [lib.ffa_mask_slices(self._handle, head) for head in range(self.heads)] * count
        return self._make("ffa_mask_create_per_head", _shape(self.seqlen_q, self.seqlen_k),
                          (_abi.ffa_slice_list * len(lists))(*lists), len(lists))

    # ---- facts ----

    @property
    def area(self) -> int:
        """Attended cells, exact, over all lists of slices."""
        return lib.ffa_mask_area(self._handle, -1)

    def slices(self, head: int = 0) -> list[tuple[int, int, int, int, str]]:
        """The slices of list `head`."""
        found = lib.ffa_mask_slices(self._handle, self._head(head))
        items = C.cast(found.slices, C.POINTER(_abi.ffa_slice))
        return [(s.q_begin, s.q_end, s.k_begin, s.k_end, _NAMES[s.type]) for s in items[:found.count]]

    def check(self) -> dict[str, int]:
        """What `ffa mask check` reports: area, overlaps, rows without keys, keys that no row attends."""
        report = struct(_abi.ffa_mask_report)
        call("ffa_mask_check", self._handle, C.byref(report))
        return {name: getattr(report, name) for name, _ in report._fields_ if name != "struct_size"}

    def to_json(self) -> str:
        """The mask as JSON, for from_json() and the command."""
        return text("ffa_mask_to_json", self._handle, OUT)

    def show(self, columns: int = 64, head: int = 0) -> str:
        """A picture in text: '#' all cells attended, '+' some, '.' none. print(mask.show())"""
        return text("ffa_mask_text_picture", self._handle, self._head(head), columns, OUT)

    def svg(self, size: int = 640, head: int = 0) -> str:
        """A picture as SVG; `size` pixels is its longer side."""
        return text("ffa_mask_svg", self._handle, self._head(head), size, OUT)

    def _repr_svg_(self) -> str:
        return self.svg(480)

    def _head(self, head):
        if not 0 <= head < self.heads:
            raise IndexError(f"head: {head}, the mask has {self.heads}")
        return head

    def _slice_bytes(self, head):
        found = lib.ffa_mask_slices(self._handle, head)
        return C.string_at(found.slices, found.count * C.sizeof(_abi.ffa_slice)) if found.count else b""

    @property
    def handle(self) -> C.c_void_p:
        """The ffa_mask, for calls of the C API; it lives as long as this object."""
        return self._handle

    def __eq__(self, other) -> bool:
        return self.digest == other.digest if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        heads = f", {self.heads} heads" if self.heads > 1 else ""
        return f"Mask({self.seqlen_q} x {self.seqlen_k} tokens{heads}, area {self.area})"

    def __reduce__(self):
        return _unpickle, (self.seqlen_q, self.seqlen_k, tuple(self._slice_bytes(h) for h in range(self.heads)))

    def __del__(self, destroy=lib.ffa_mask_destroy):  # an argument: at exit the module's names are gone
        if getattr(self, "_handle", None):
            destroy(self._handle)


def _unpickle(seqlen_q, seqlen_k, lists):
    size = C.sizeof(_abi.ffa_slice)
    records = [(_abi.ffa_slice * (len(data) // size)).from_buffer_copy(data) for data in lists]
    shape = _shape(seqlen_q, seqlen_k)
    if len(records) == 1:
        return Mask._make("ffa_mask_create", shape, records[0], len(records[0]))
    heads = (_abi.ffa_slice_list * len(records))(*((C.addressof(r), len(r)) for r in records))
    return Mask._make("ffa_mask_create_per_head", shape, heads, len(records))


def _shape(seqlen_q, seqlen_k):
    seqlen_q = integer(seqlen_q, "seqlen_q")
    return C.byref(_abi.ffa_mask_shape(seqlen_q, seqlen_q if seqlen_k is None else integer(seqlen_k, "seqlen_k")))


def masks_of(masks: Iterable[Mask]) -> list[Mask]:
    """A list of masks, each of which is one."""
    if not hasattr(masks, "__iter__"):
        raise TypeError(f"masks: {type(masks).__name__}, not a sequence of Masks")
    masks = list(masks)
    for i, mask in enumerate(masks):
        if not isinstance(mask, Mask):
            raise TypeError(f"masks[{i}]: {type(mask).__name__}, not a Mask")
    return masks


def _handles(masks):
    return (C.c_void_p * len(masks))(*(m._handle for m in masks))


def _bytes(words):
    """A text as C takes it."""
    if not isinstance(words, str):
        raise TypeError(f"words: {type(words).__name__}, not a str")
    if "\0" in words:
        raise ValueError("words: a NUL, which would end the text")
    return words.encode()


def _documents(cu_q, cu_k):
    """An ffa_documents, and what must outlive its use."""
    docs, kept = _abi.ffa_documents(), []
    for side, value in (("q", cu_q), ("k", cu_k)):
        if value is None and side == "k":
            continue
        bounds = integers(value, f"cu_seqlens_{side}")
        if len(bounds.shape) != 1 or bounds.shape[0] < 2:
            raise ValueError(f"cu_seqlens_{side}: {list(bounds.shape)} elements, [documents + 1] are needed")
        if kept and bounds.shape != kept[0].shape:
            raise ValueError(f"cu_seqlens_k: {len(bounds)} elements, cu_seqlens_q has {len(kept[0])}")
        setattr(docs, f"cu_{side}" + ("32" if bounds.kind is C.c_int32 else ""), bounds.address)
        docs.document_count = len(bounds) - 1
        kept.append(bounds)
    return docs, kept


def _rows(value, name, width):
    """[n, width] elements as lists."""
    try:
        rows = value.tolist() if hasattr(value, "tolist") else [list(row) for row in value]
        if all(len(row) == width for row in rows):
            return rows
    except TypeError:
        pass
    raise ValueError(f"{name}: [n, {width}] is needed")


def _records(slices):
    rows = _rows(slices, "slices", 5)
    records = (_abi.ffa_slice * len(rows))()
    for i, (record, row) in enumerate(zip(records, rows)):
        kind = row[4]
        if isinstance(kind, str):
            if kind not in TYPES:
                raise ValueError(f"slices[{i}]: type is '{kind}', not one of {', '.join(TYPES)}")
            kind = TYPES[kind]
        *bounds, kind = numbers("q", (*row[:4], kind), f"slices[{i}]")
        if not 0 <= kind < len(TYPES):
            raise ValueError(f"slices[{i}]: type is {kind}, not in [0, {len(TYPES) - 1}]")
        record.q_begin, record.q_end, record.k_begin, record.k_end, record.type = *bounds, kind
    return records
