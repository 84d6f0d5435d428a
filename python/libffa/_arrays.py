# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries as memory on the host: PyTorch's of any device, NumPy's and their like, lists."""
from __future__ import annotations

import ctypes as C
import sys
from array import array as packed
from typing import Any, NamedTuple

_CODES = {C.c_int64: "q", C.c_uint8: "B"}
_KINDS = {("i", 4): C.c_int32, ("i", 8): C.c_int64, ("u", 1): C.c_uint8, ("b", 1): C.c_uint8, ("i", 1): C.c_int8}


class Array(NamedTuple):
    """Contiguous memory. `owner` keeps it alive."""

    address: int
    kind: type  # C.c_int32, ...
    shape: tuple[int, ...]
    owner: Any

    def __len__(self):
        count = 1
        for n in self.shape:
            count *= n
        return count


def is_tensor(value: Any) -> bool:
    """Whether a value is a PyTorch tensor; PyTorch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def numbers(code: str, values: Any, name: str) -> packed:
    """An array.array of integers. ctypes would cut those that are too long."""
    try:
        return packed(code, values)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def integer(value: Any, name: str) -> int:
    """A value as an int of 64 bits."""
    return numbers("q", [value], name)[0]


def pair(value: Any, name: str) -> tuple[int, int]:
    """Two integers."""
    try:
        first, second = value
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not a pair of integers") from None
    return integer(first, name), integer(second, name)


def _of_tensor(tensor, name, wanted):
    torch = sys.modules["torch"]
    kinds = {torch.int32: C.c_int32, torch.int64: C.c_int64, torch.bool: C.c_uint8, torch.uint8: C.c_uint8}
    if tensor.dtype not in kinds:
        raise TypeError(f"{name}: dtype is {tensor.dtype}, not {wanted}")
    host = tensor.detach().to("cpu").contiguous()  # one transfer, which waits for the device
    return Array(host.data_ptr(), kinds[tensor.dtype], tuple(host.shape), host)


def _of_interface(value, name, wanted):
    """An object with __array_interface__: NumPy's protocol, without NumPy."""
    if not value.flags.c_contiguous:
        value = value.copy(order="C")
    face = value.__array_interface__
    kind = _KINDS.get((face["typestr"][1], int(face["typestr"][2:])))
    if kind is None or face["typestr"][0] == ">":
        raise TypeError(f"{name}: dtype is {face['typestr']}, not {wanted}")
    return Array(face["data"][0], kind, tuple(face["shape"]), value)


def _of_sequence(value, name, kind):
    rows = list(value)
    shape = (len(rows),)
    if rows and isinstance(rows[0], (list, tuple)):
        shape = (len(rows), len(rows[0]))
        if any(len(row) != shape[1] for row in rows):
            raise ValueError(f"{name}: rows are of different lengths")
        rows = [cell for row in rows for cell in row]
    memory = numbers(_CODES[kind], rows, name)
    return Array(memory.buffer_info()[0], kind, shape, memory)


def array(value: Any, name: str, kind: type = C.c_int64, wanted: str = "int32 or int64") -> Array:
    """The elements of a tensor, an array or a (nested) sequence, on the host; sequences become `kind`. wanted: the dtypes that
    a message names."""
    if is_tensor(value):
        return _of_tensor(value, name, wanted)
    if hasattr(value, "__array_interface__") and hasattr(value, "flags"):
        return _of_interface(value, name, wanted)
    if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)):
        return _of_sequence(value, name, kind)
    raise TypeError(f"{name}: {type(value).__name__} is not a tensor, an array or a sequence")


def integers(value: Any, name: str) -> Array:
    """As array(), of int32 or int64."""
    found = array(value, name)
    if found.kind not in (C.c_int32, C.c_int64):
        raise TypeError(f"{name}: booleans or bytes; int32 or int64 is needed")
    return found
