# SPDX-License-Identifier: Apache-2.0
"""python -m libffa doctor: what is found on this machine, and where."""
from __future__ import annotations

import ctypes as C
import os
import platform
import sys

from . import _abi
from ._library import call, library_path, struct, wheel_folders
from .context import AUTO, Context, Environment, options
from .errors import FfaError


def _versions():
    opts, kept = options()
    info = struct(_abi.ffa_version_info)
    call("ffa_version_info_get", C.byref(info), C.byref(opts))
    del kept
    return info


def _found(path, version, missing):
    return f"{version.decode()}, {path.decode()}" if path else missing


def _torch():
    try:
        import torch
    except ImportError as error:
        return f"not found: {error}"
    return f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, {torch.cuda.device_count()} GPUs"


def _device():
    try:
        info = Context(AUTO).info()
    except FfaError as error:
        return f"not usable: {error}", ""
    name = info.device_name.decode()
    return (name if info.device < 0 else f"{name}, {info.sm_count} SMs"), info.store_state.decode()


def lines():
    """(name, what was found), in the order of the report."""
    info = _versions()
    environment = Environment(struct(_abi.ffa_context_opts))
    device, state = _device()
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "library", f"{info.version.decode()}, {library_path()}"
    yield "commit", info.commit.decode()
    yield "templates", info.templates_digest.decode()
    yield "torch", _torch()
    yield "device", device
    yield "driver", info.driver_version.decode() or "not found: attention runs on the CPU"
    yield "runtime", _found(info.cudart_path, info.cudart_version, "not found: pip install nvidia-cuda-runtime")
    yield "nvrtc", _found(info.nvrtc_path, info.nvrtc_version, "not found, so nothing is compiled: pip install nvidia-cuda-nvrtc")
    for folder in wheel_folders():
        yield "wheels", folder
    yield "store", f"{environment.store or 'memory only'} ({environment.chosen}); {state}"
    for reason in environment.reasons:
        yield "", reason


def main(arguments):
    if arguments != ["doctor"]:
        print("usage: python -m libffa doctor", file=sys.stderr)
        return 2
    for name, value in lines():
        print(f"{name:<10} {value}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(1)
