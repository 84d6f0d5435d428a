# SPDX-License-Identifier: Apache-2.0
"""Kernels and plans of a process, by what they are made for: one context a device, kernels by spec, plans by mask.

A plan is uploaded once, on the stream of the call that needs it first; calls on other streams wait for that. What a call
enqueues reads the plan's image later, so an image's memory is told of each stream that uses it, and images that a CUDA
graph was captured with are kept.
"""
from __future__ import annotations

import ctypes as C
import os
import threading
from collections import OrderedDict
from typing import NamedTuple

import torch

from .. import _abi
from .._library import call, lib, made, struct
from ..context import CPU, shared
from ..mask import Mask
from ._private import find

DTYPES = {torch.bfloat16: _abi.FFA_BF16, torch.float16: _abi.FFA_FP16, torch.float32: _abi.FFA_FP32,
          torch.float64: _abi.FFA_FP64}
PLANS = 64  # kept for later calls


def ordinal(device: torch.device) -> int:
    """The library's number of a device."""
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise ValueError(f"q: on {device}; attention runs on cuda and cpu")
    return torch.cuda.current_device() if device.index is None else device.index


def find_stream_functions():
    """Of GPUs: what the current stream of one is, as the library takes it, and whether the current stream is being captured into
    a CUDA graph. By PyTorch's own functions, where they are there, as these take less time. Nothing asks without CUDA."""
    stream_of = find("_C._cuda_getCurrentRawStream") or (lambda number: torch.cuda.current_stream(number).cuda_stream)
    return stream_of, find("_C._cuda_isCurrentStreamCapturing") or torch.cuda.is_current_stream_capturing


gpu_stream_of, is_gpu_capturing = find_stream_functions()


def stream_of(number: int) -> int:
    """The current stream of a device, as the library takes it."""
    return 0 if number == CPU else gpu_stream_of(number)


def is_capturing(number: int) -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return number != CPU and is_gpu_capturing()


def refuse_capture(number: int) -> None:
    """Raise where what a call needs first cannot be made, because the current stream is being captured."""
    if is_capturing(number):
        raise RuntimeError("this mask has no plan for these shapes yet, and a CUDA graph is being captured: call "
                           "libffa.torch.prepare(), or attention() once, before the capture")


class Spec(NamedTuple):
    """What kernels are made for."""

    device: int
    dtype: torch.dtype
    head_dim: int
    head_dim_v: int
    heads_q: int
    heads_kv: int
    flags: int  # FFA_SPEC_...


class Kernels:
    """An ffa_kernels, with the context it is of."""

    def __init__(self, spec: Spec):
        refuse_capture(spec.device)
        self.context = shared(spec.device)
        options = struct(_abi.ffa_attention_spec, dtype=DTYPES[spec.dtype], head_dim=spec.head_dim, flags=spec.flags,
                         head_dim_v=spec.head_dim_v, heads_q=spec.heads_q, heads_kv=spec.heads_kv)
        self.spec = spec
        self.handle = made("ffa_kernels_create", self.context.handle, C.byref(options))

    def __del__(self, destroy=lib.ffa_kernels_destroy):
        if getattr(self, "handle", None):
            destroy(self.handle)


def _kept_bytes(count: int, device: torch.device) -> torch.Tensor:
    """Memory that outlives the call. On a GPU another thread allocates it: while Inductor warms up a CUDA graph, what this
    thread allocates is of the graph's pool, and must be free again when the graph is recorded. The current stream waits for
    the one that it is of, on which freed memory may still be in use."""
    if device.type != "cuda":
        return torch.empty(count, dtype=torch.uint8, device=device)
    results = []

    def allocate():
        try:
            if device not in _streams:
                _streams[device] = torch.cuda.Stream(device)
            with torch.cuda.stream(_streams[device]):
                results.append(torch.empty(count, dtype=torch.uint8, device=device))
        except BaseException as error:  # for the caller's thread
            results.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    torch.cuda.current_stream(device).wait_stream(_streams[device])
    return results[0]


_streams: dict[torch.device, torch.cuda.Stream] = {}


class Plan:
    """An ffa_plan for some kernels, and its image on their device; device None: no image.

    capacity            ffa_plan_opts.capacity_bytes: of a plan that a CUDA graph replays with other masks; 0: of no such plan
    split               of such a plan: its tiles are split over their keys, if its kernels can
    workspace           bytes of a forward call
    backward_workspace  bytes of a backward call
    """

    def __init__(self, kernels: Kernels, mask: Mask, device: torch.device | None, capacity: int = 0, split: bool = False):
        spec = kernels.spec
        self.kernels, self.number = kernels, spec.device
        splits = split and not spec.flags & _abi.FFA_SPEC_BACKWARD
        options = struct(_abi.ffa_plan_opts, capacity_bytes=capacity, heads_q=spec.heads_q if splits else 0)
        self.handle = self._made(mask, options)
        bytes_ = C.c_int64()
        call("ffa_workspace_bytes", kernels.handle, self.handle, C.byref(bytes_))
        self.workspace = bytes_.value
        self.backward_workspace = 0
        if spec.flags & _abi.FFA_SPEC_BACKWARD:
            call("ffa_backward_workspace_bytes", kernels.handle, self.handle, spec.heads_q, spec.heads_kv, C.byref(bytes_))
            self.backward_workspace = bytes_.value
        self.image, self.event, self.streams = None, None, set()
        if spec.device != CPU and device is not None:
            refuse_capture(spec.device)
            self.image = _kept_bytes(self.info().upload_bytes, device)
            self.upload()

    def _made(self, mask, options):
        return made("ffa_plan_create_with", self.kernels.handle, mask.handle, C.byref(options))

    def info(self) -> _abi.ffa_plan_info:
        """What was chosen for the mask."""
        info = struct(_abi.ffa_plan_info)
        call("ffa_plan_info_get", self.handle, C.byref(info))
        return info

    def upload(self):
        """Enqueue the copy of the image on the current stream, which is not being captured; calls on others wait for it."""
        stream = stream_of(self.number)
        call("ffa_plan_upload", self.handle, self.kernels.handle, self.image.data_ptr(), stream)
        self.streams = {stream}
        if self.image.is_cuda:
            current = torch.cuda.current_stream(self.image.device)
            self.image.record_stream(current)
            self.event = torch.cuda.Event()
            self.event.record(current)

    def like(self, mask: Mask) -> C.c_void_p:
        """An ffa_plan of another mask that a graph can be replayed with (ffa_plan_opts.like). It is replace()'s, or to be
        destroyed."""
        return self._made(mask, struct(_abi.ffa_plan_opts, like=self.handle))

    def replace(self, handle: C.c_void_p):
        """Take a plan of like() in place of this one, which stays where the upload fails."""
        old, self.handle = self.handle, handle
        try:
            if self.image is not None:
                self.upload()
        except BaseException:
            old, self.handle = self.handle, old
            raise
        finally:
            lib.ffa_plan_destroy(old)

    def used_by(self, stream: int):
        """Before a call on a stream other than that of the upload."""
        if is_capturing(self.number):
            _captured.add(self)  # replays read the image; the capture began after the device was idle
            return
        if self.event is not None:
            torch.cuda.current_stream(self.image.device).wait_event(self.event)
            self.image.record_stream(torch.cuda.current_stream(self.image.device))
        self.streams.add(stream)

    def __del__(self, destroy=lib.ffa_plan_destroy):
        if getattr(self, "handle", None):
            destroy(self.handle)


_captured: set[Plan] = set()


class Cache:
    """Kernels and plans by what they are made for."""

    def __init__(self):
        self.lock = threading.RLock()
        self.kernels: dict[Spec, Kernels] = {}
        self.plans: OrderedDict[tuple, Plan] = OrderedDict()

    def kernels_of(self, spec: Spec) -> Kernels:
        with self.lock:
            found = self.kernels.get(spec)
            if found is None:
                found = self.kernels[spec] = Kernels(spec)
            return found

    def plan_of(self, spec: Spec, mask: Mask, repeat: tuple[str, int], device: torch.device) -> Plan:
        """The plan of a mask that is repeated over the samples of a batch, as tokens or as heads."""
        key = spec, mask.digest, repeat
        with self.lock:
            if not isinstance(mask, Mask):  # a GraphMask
                return mask.plan_of(self.kernels_of(spec), repeat, device)
            plan = self.plans.get(key)
            if plan is None:
                plan = self.plans[key] = Plan(self.kernels_of(spec), repeated(mask, *repeat), device)
                while len(self.plans) > PLANS:
                    self.plans.popitem(last=False)
            else:
                self.plans.move_to_end(key)
            return plan


def repeated(mask: Mask, axis: str, samples: int) -> Mask:
    """The mask of a batch whose samples have one mask each."""
    if samples == 1 or (axis == "heads" and mask.heads == 1):
        return mask
    if axis == "tokens":
        return Mask.concat([mask] * samples)
    return mask.repeat_heads(samples)


cache = Cache()


def clear() -> None:
    """Forget all plans and kernels, those of captured CUDA graphs, too: replay none of these graphs afterwards."""
    from . import _calls

    with cache.lock:
        _calls.forget()
        _captured.clear()
        cache.plans.clear()
        cache.kernels.clear()


def _after_fork():
    cache.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
