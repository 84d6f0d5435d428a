# SPDX-License-Identifier: Apache-2.0
"""Tuning sessions: what tiles cost on a device, measured, and the cost table that fits. Offline, never in a job."""
from __future__ import annotations

import ctypes as C
import json
import os
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

from . import _abi
from ._library import OUT, call, call_stoppable, lib, made, struct, text
from .context import Context
from .errors import FfaError, GpuError

PHASES = {_abi.FFA_TUNE_COMPILE: "compile", _abi.FFA_TUNE_CHECK: "check", _abi.FFA_TUNE_RACE: "race"}


class TuneReport(NamedTuple):
    """What sessions found (docs/tuning.md).

    is_published  the table differs from the one that the sessions began with: some gain is above its noise
    gain, noise   of the head_dim that gains most, over the timed masks; shares of the time
    device        the device model
    digest        of the table, which ranks compare
    table         the cost table; as JSON, a file in a folder of cost tables
    report        per mask times, gain and noise; per kernel costs and residual
    samples       all that was measured, for `ffa tune import`
    """

    is_published: bool
    gain: float
    noise: float
    device: str
    digest: str
    table: Dict[str, Any]
    report: Dict[str, Any]
    samples: Dict[str, Any]


def tuned(*sessions: str | os.PathLike) -> TuneReport:
    """What the sessions of these files found. Needs no GPU."""
    paths = [os.fsencode(path) for path in sessions]
    tune = made("ffa_tune_open", (C.c_char_p * len(paths))(*paths), len(paths))
    try:
        info = struct(_abi.ffa_tune_info)
        call("ffa_tune_info_get", tune, C.byref(info))
        report, table, samples = (json.loads(text("ffa_tune_text", tune, kind, OUT)) for kind in
                                  (_abi.FFA_TUNE_REPORT, _abi.FFA_TUNE_TABLE, _abi.FFA_TUNE_SAMPLES))
    finally:
        lib.ffa_tune_destroy(tune)
    return TuneReport(bool(info.is_published), info.gain, info.noise, info.device.decode(), info.table_digest.decode(),
                      table, report, samples)


def _texts(words):
    return (C.c_char_p * len(words))(*(word.encode() for word in words))


def _name(event):
    """What an event is of: a tile, an order as `ffa tune show` prints it, or the baseline."""
    if event.tile_m:
        return f"{event.tile_m}x{event.tile_n}"
    if not event.parts:
        return "baseline"
    whole, unlocked = f"+{event.whole_heads}" if event.whole_heads else "", "u" if event.is_unlocked else ""
    return f"{event.parts}x{event.waves}{whole}{unlocked}"


def tune(spec: str, session: str | os.PathLike, *, masks: Sequence[str] = (), tiles: Sequence[str] = (), budget: float = 300,
         run_timeout: float = 10, resume: bool = False, backward_only: bool = False, device: int = 0,
         progress: Optional[Callable[[str, int, int, str], None]] = None) -> TuneReport:
    """Measure every tile of a spec's forward kernels, and with "backward" the orders of its backward pass, on a GPU that nobody
    else uses, and fit what they cost.

    spec         head_dim, dtype and heads: "head_dim=128,dtype=bf16,heads=64:8", and perhaps "backward"
    session      the file that keeps all samples; several sessions may share one
    masks        texts such as "causal:4096" (docs/masks.md); none: ten from 512 to 32,768 tokens
    tiles        "192x80", rows and keys: time no others; none: all that the kernel can have
    budget       seconds for timing, over all calls of a session
    run_timeout  seconds; a kernel that takes longer hangs, and is left out
    resume       go on with the session of the file
    backward_only  of a spec with "backward", only its orders
    device       a CUDA ordinal
    progress     called with (phase, done, total, message): phase is "compile", "check" or "race", message what became of a
                 tile or an order ("2x1+6": 2 parts, 1 wave, 6 kv heads whole), or ""; from another thread

    Ctrl-C ends it, and so may anything else: what is measured is in the file, and `resume` goes on. GpuError where a kernel
    took the GPU from the process: `resume` in a new process goes on without that kernel. Other errors as ffa_tune_run.
    """
    options = struct(_abi.ffa_attention_spec)
    call("ffa_attention_spec_parse", C.byref(options), spec.encode())
    stop = C.c_int(0)
    mask_texts, tile_texts, path = _texts(masks), _texts(tiles), os.fsencode(session)
    flags = (_abi.FFA_TUNE_RESUME if resume else 0) | (_abi.FFA_TUNE_BACKWARD_ONLY if backward_only else 0)
    opts = struct(_abi.ffa_tune_opts, flags=flags, session_path=path,
                  masks=C.addressof(mask_texts) if masks else None, mask_count=len(masks),
                  tiles=C.addressof(tile_texts) if tiles else None, tile_count=len(tiles),
                  budget_ms=int(budget * 1000), run_timeout_ms=int(run_timeout * 1000), stop=C.addressof(stop))

    def tell(_user, event):
        if progress is not None:
            now = C.cast(event, C.POINTER(_abi.ffa_tune_event)).contents
            progress(PHASES[now.phase], now.done, now.total, f"{_name(now)} {now.state.decode()}" if now.state else "")

    told = type(opts.event)(tell)
    opts.event = told
    outcome = struct(_abi.ffa_tune_outcome)
    context = Context(device)
    try:
        call_stoppable(stop, 1, "ffa_tune_run", context.handle, C.byref(options), C.byref(opts), C.byref(outcome))
    except FfaError as error:
        if outcome.must_restart:
            raise GpuError(f"{error}: go on in a new process, with resume=True") from error
        raise
    return tuned(session)
