# SPDX-License-Identifier: Apache-2.0
"""Kernels compiled into the store before a job needs them."""
from __future__ import annotations

import ctypes as C
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Tuple, Union

from . import _abi
from ._library import call, call_stoppable, lib, made, struct
from .context import CPU, Context

Request = Union[str, Tuple[str, Mapping[str, object]]]


class WarmReport(NamedTuple):
    """What warm() did, in kernels and seconds."""

    requested: int
    compiled: int
    found: int
    failed: int
    unfinished: int
    compile_s: float
    wall_s: float


class _Requests:
    """An array of requests, and what it points to."""

    def __init__(self, context: Context, what: Iterable[Request], arch: str | None):
        self.context, self.arch = context, None if arch is None else arch.encode()
        self.kept, items = [], []
        self.devices = [None, *_tables(context)]  # None: by the default table
        for wanted in what:
            items += self.of_spec(wanted) if isinstance(wanted, str) else [self.of_template(*wanted)]
        self.items = (_abi.ffa_compile_request * len(items))(*items)

    def of_template(self, template, values):
        settings = (C.c_char_p * len(values))(*(f"{name}={value}".encode() for name, value in values.items()))
        self.kept.append(settings)
        return struct(_abi.ffa_compile_request, template_name=template.encode(), settings=C.addressof(settings),
                      setting_count=len(values), arch=self.arch)

    def of_spec(self, spec):
        """The kernels that a spec, "head_dim=128,dtype=bf16,backward", needs by any cost table that is found, each once."""
        options, count = struct(_abi.ffa_attention_spec), C.c_int64()
        call("ffa_attention_spec_parse", C.byref(options), spec.encode())
        found = {}
        for device in self.devices:
            requests = made("ffa_spec_requests_on", self.context.handle, device, C.byref(options), self.arch)
            self.kept.append(_Owner(requests))
            first = C.cast(lib.ffa_requests_get(requests, C.byref(count)), C.POINTER(_abi.ffa_compile_request))
            for request in first[:count.value]:
                settings = C.cast(request.settings, C.POINTER(C.c_char_p))[:request.setting_count]
                found.setdefault((request.template_name, *settings), request)
        return list(found.values())


def _tables(context: Context) -> list[bytes]:
    """The device models that there is a usable cost table of."""
    names: list[bytes] = []

    def visit(_user, at):
        info = C.cast(at, C.POINTER(_abi.ffa_cost_table_info)).contents
        if not info.skipped:
            names.append(info.device_name)
        return 0

    call("ffa_cost_tables_list", context.handle, _abi.ffa_cost_table_fn(visit), None)
    return names


class _Owner:
    def __init__(self, requests):
        self.requests = requests

    def __del__(self):
        if lib is not None:
            lib.ffa_requests_destroy(self.requests)


def warm(what: Request | Iterable[Request], *, arch: str | None = None, threads: int = 0, deadline: float | None = None,
         progress: Optional[Callable[[int, int, str], None]] = None) -> WarmReport:
    """Have kernels in the store: look each up, compile what is missing. Needs NVRTC and no GPU.

    what      specs such as "head_dim=128,dtype=bf16,heads=32:4,backward" (warming.md), each with the kernels that it needs by
              any cost table that is found; or (template, {setting: value}), as `ffa compile` takes them; one or several
    arch      "sm_90a"; None: the default
    threads   that compile; 0: one a core, at most 8
    deadline  seconds; what is not done then is dropped, and DeadlineError raised
    progress  called with (done, requested, message) after each kernel, message "" unless it failed; from other threads

    Raises the first failure's FfaError after all were tried. Ctrl-C ends it: what is compiled stays in the store.
    """
    context = Context(CPU)
    requests = _Requests(context, [what] if isinstance(what, str) else what, arch)
    count, done = len(requests.items), [0]
    stop = C.c_int(0)

    def tell(_user, _index, _status, _info, message):
        done[0] += 1
        if progress is not None:
            progress(done[0], count, message.decode("utf-8", "replace"))

    options = struct(_abi.ffa_precompile_opts, threads=threads, deadline_ms=int((deadline or 0) * 1000),
                     stop=C.addressof(stop))
    told = type(options.progress)(tell)
    options.progress = told
    report = struct(_abi.ffa_precompile_report)
    try:
        call_stoppable(stop, _abi.FFA_PRECOMPILE_CUT, "ffa_precompile", context.handle, requests.items, count,
                       C.byref(options), C.byref(report))
    finally:
        context.close()  # a compile that was cut may still be under way, and would log to an interpreter that is gone
    return WarmReport(report.requested, report.compiled, report.hit, report.failed, report.unfinished,
                      report.spent_us / 1e6, report.wall_us / 1e6)
