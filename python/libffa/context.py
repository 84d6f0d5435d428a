# SPDX-License-Identifier: Apache-2.0
"""Contexts: a device, its kernel store and options. One a process and device is shared by all that is here."""
from __future__ import annotations

import ctypes as C
import logging
import os
import threading

from . import _abi
from ._library import call, lib, made, struct, wheel_library

CPU = _abi.FFA_DEVICE_CPU
AUTO = _abi.FFA_DEVICE_AUTO
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_logger = logging.getLogger("libffa")


@_abi.ffa_log_fn
def _log(_user, level, module, line):
    """Lines of the library go to the logger "libffa"."""
    level = _LEVELS[level] if 0 <= level < len(_LEVELS) else logging.INFO
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s: %s", module.decode(), line.decode("utf-8", "replace"))


class Environment:
    """The options that the environment gives, as the command `ffa` has them (docs/store.md).

    store    the store's file, "" for memory only
    chosen   which variable or rule chose it
    reasons  a line a candidate
    """

    def __init__(self, options: _abi.ffa_context_opts):
        self._kept = []
        get = _abi.ffa_environment_fn(self._get)
        self._handle = C.c_void_p()
        call("ffa_context_opts_from_environment", C.byref(options), C.byref(self._handle), get, None)
        info = struct(_abi.ffa_environment_info)
        call("ffa_environment_info_get", self._handle, C.byref(info))
        self.store = (info.store_path or b"").decode()
        self.chosen = (info.chosen_by or b"").decode()
        reasons = C.cast(info.reasons, C.POINTER(C.c_char_p))
        self.reasons = [reasons[i].decode() for i in range(info.reason_count)]

    def _get(self, _user, name):
        value = os.environb.get(name)
        if value is None:
            return None
        self._kept.append(C.create_string_buffer(value))
        return C.addressof(self._kept[-1])

    def __del__(self, destroy=lib.ffa_environment_destroy):
        if getattr(self, "_handle", None):
            destroy(self._handle)


def options() -> tuple[_abi.ffa_context_opts, list]:
    """Options of a context: the environment's, NVIDIA's wheels, and the log. With what must outlive their use."""
    opts = struct(_abi.ffa_context_opts, log=_log)
    environment = Environment(opts)
    paths = wheel_library("libnvrtc"), wheel_library("libcudart")
    opts.nvrtc_path, opts.cudart_path = paths
    return opts, [environment, paths]


class Context:
    """An open context.

    device  a CUDA ordinal, `libffa.context.CPU` or `AUTO`
    flags   FFA_OPEN_... of `ffa/context.h`, besides those of the environment

    Thread: any. It closes when the last object that was made from it is gone.
    """

    def __init__(self, device: int = AUTO, flags: int = 0):
        opts, kept = options()
        opts.flags |= flags
        self.handle = made("ffa_open", device, C.byref(opts))
        del kept
        self.device = self.info().device

    def info(self) -> _abi.ffa_context_info:
        """What the context found: device, store, NVRTC, runtime, driver."""
        info = struct(_abi.ffa_context_info)
        call("ffa_context_info_get", self.handle, C.byref(info))
        return info

    def stats(self) -> dict[str, int]:
        """Counters since the context was opened: hits, misses, compiles, calls."""
        stats = struct(_abi.ffa_context_stats)
        call("ffa_context_stats_get", self.handle, C.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name not in ("struct_size", "pad_")}

    def close(self) -> None:
        """Close it now; nothing that was made from it may be left. It waits for compiles that are under way."""
        self.__del__()

    def __del__(self, close=lib.ffa_close):
        handle, self.handle = getattr(self, "handle", None), None
        if handle:
            close(handle)


_shared: dict[int, Context] = {}
_lock = threading.Lock()


def shared(device: int) -> Context:
    """The process's context of a device; opened at the first call."""
    context = _shared.get(device)
    if context is None:
        with _lock:
            context = _shared.get(device)
            if context is None:
                context = _shared[device] = Context(device)
    return context


def _after_fork():
    """A lock that another thread held would stay locked. Contexts on the CPU serve the child, too (ffa/context.h)."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
