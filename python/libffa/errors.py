# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class a status of the library, each with the library's sentence as its text."""
from __future__ import annotations

from . import _abi


class FfaError(Exception):
    """A call of the library failed. `str(error)` names the argument, its value and the limit.

    status  the code (`FFA_INVALID`, ... of `ffa/status.h`)
    native  the code of CUDA, NVRTC, NCCL, SQLite or errno that caused it, or 0
    """

    status = 0

    def __init__(self, message: str, status: int | None = None, native: int = 0):
        super().__init__(message)
        self.status = type(self).status if status is None else status
        self.native = native


class InvalidError(FfaError, ValueError):
    """An argument is wrong."""

    status = _abi.FFA_INVALID


class OutOfMemoryError(FfaError, MemoryError):
    """There is not the memory that is needed."""

    status = _abi.FFA_NOMEM


class UnsupportedError(FfaError, NotImplementedError):
    """This build or device cannot do it, or a library such as NVRTC was not found."""

    status = _abi.FFA_UNSUPPORTED


class CompileError(FfaError, RuntimeError):
    """A kernel did not compile."""

    status = _abi.FFA_COMPILE


class CacheError(FfaError, RuntimeError):
    """The kernel store, or a bundle, cannot be used."""

    status = _abi.FFA_CACHE


class GpuError(FfaError, RuntimeError):
    """A CUDA call failed; `native` is its code."""

    status = _abi.FFA_GPU


class CommunicatorError(FfaError, RuntimeError):
    """A communicator failed, or its group is broken."""

    status = _abi.FFA_COMM


class DeadlineError(FfaError, TimeoutError):
    """A deadline passed."""

    status = _abi.FFA_TIMEOUT


class BugError(FfaError, RuntimeError):
    """An error inside the library."""

    status = _abi.FFA_BUG


class FileError(FfaError, OSError):
    """A file cannot be read or written."""

    status = _abi.FFA_IO


class NotFoundError(FfaError, LookupError):
    """There is no such thing: a file, or a kernel where nothing may be compiled."""

    status = _abi.FFA_NOT_FOUND


_CLASSES = {cls.status: cls for cls in FfaError.__subclasses__()}


def from_error(error: _abi.ffa_error) -> FfaError:
    """The exception that an ffa_error stands for."""
    message = error.message.decode("utf-8", "replace")
    return _CLASSES.get(error.status, FfaError)(message, error.status, error.native)
