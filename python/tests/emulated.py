# SPDX-License-Identifier: Apache-2.0
"""The GPU's path on the emulator of tests/emulator: tensors are PyTorch's on the CPU, whose memory it takes for a device's.

FFA_EMULATOR names its folder. Each call ends with a wait, because memory of the CPU that is freed may be given away at once.
Loading it late needs GLIBC_TUNABLES=glibc.rtld.optional_static_tls=262144.
"""
import ctypes
import os

import libffa.context
from libffa._library import call
from libffa.torch import _calls, _runtime


def use():
    folder = os.environ["FFA_EMULATOR"]
    # After PyTorch, which is linked to another library of this name.
    ctypes.CDLL(f"{folder}/libcudart.so.13", mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    options, run = libffa.context.options, _calls._Prepared.run

    def emulated_options():
        found, kept = options()
        found.cudart_path, found.nvrtc_path = f"{folder}/libcudart.so.13".encode(), f"{folder}/libnvrtc.so.13".encode()
        return found, kept

    def run_and_wait(self, *arguments):
        run(self, *arguments)
        call("ffa_device_synchronize", libffa.context.shared(0).handle)

    libffa.context.options = emulated_options
    _calls._Prepared.run = run_and_wait
    _runtime.ordinal = lambda _device: 0
    for module in (_runtime, _calls):
        module.gpu_stream_of = lambda _number: 0
        module.is_gpu_capturing = lambda: False
