# SPDX-License-Identifier: Apache-2.0
"""libffa: attention kernels for the mask you have, compiled when they are needed.

    import libffa, libffa.torch
    mask = libffa.Mask.from_cu_seqlens([0, 1000, 4000], causal=True)   # once a batch
    out = libffa.torch.attention(q, k, v, mask)                        # in every layer; q [4000, heads, head_dim]

The core needs no framework. `python -m libffa doctor` says what is found on this machine. docs/python.md has the rest.
"""
from ._library import include_dir, library_path, version
from .errors import (BugError, CacheError, CommunicatorError, CompileError, DeadlineError, FfaError, FileError, GpuError,
                     InvalidError, NotFoundError, OutOfMemoryError, UnsupportedError)
from ._tune import TuneReport, tune, tuned
from ._warm import WarmReport, warm
from .mask import Mask

__version__ = version()
__all__ = ["BugError", "CacheError", "CommunicatorError", "CompileError", "DeadlineError", "FfaError", "FileError",
           "GpuError", "InvalidError", "Mask", "NotFoundError", "OutOfMemoryError", "TuneReport", "UnsupportedError",
           "WarmReport", "include_dir", "library_path", "tune", "tuned", "version", "warm"]
