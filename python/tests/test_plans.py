# SPDX-License-Identifier: Apache-2.0
"""Plans of a GPU, as far as they can be tested without one: where their memory comes from, and what a capture refuses."""
import contextlib
import threading
from types import SimpleNamespace

import pytest
import torch

from libffa import FfaError, _abi
from libffa.torch import GraphMask, _runtime, attention, clear
from cases import MASKS, tensors

pytestmark = pytest.mark.cpu_only
GPU = torch.device("cuda", 0)


class Streams:
    """PyTorch's functions of streams, which write down who calls them: (what, thread, stream)."""

    def __init__(self, monkeypatch):
        self.events, self.current, self.error = [], threading.local(), None
        monkeypatch.setattr(_runtime, "_streams", {})
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.made("side"))
        monkeypatch.setattr(torch.cuda, "stream", self.use)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.made("caller's"))
        monkeypatch.setattr(torch, "empty", self.empty)

    def made(self, name):
        return SimpleNamespace(name=name, wait_stream=lambda other: self.note("wait for " + other.name, name))

    def note(self, what, stream):
        self.events.append((what, threading.get_ident(), stream))

    @contextlib.contextmanager
    def use(self, stream):
        self.current.name = stream.name
        yield
        self.current.name = None

    def empty(self, count, dtype, device):
        if self.error:
            raise self.error
        self.note(f"{count} bytes of {device}", getattr(self.current, "name", None))
        return torch.zeros(count, dtype=dtype)


def test_memory_of_a_plan_is_allocated_by_another_thread(monkeypatch):
    """On a stream of its own, for which the caller's then waits: freed memory may still be in use there."""
    streams = Streams(monkeypatch)
    assert _runtime._kept_bytes(100, GPU).numel() == 100
    (first, thread, stream), (then, waiter, waiting) = streams.events
    assert (first, stream) == ("100 bytes of cuda:0", "side") and thread != threading.get_ident()
    assert (then, waiting, waiter) == ("wait for side", "caller's", threading.get_ident())
    kept = dict(_runtime._streams)
    _runtime._kept_bytes(5, GPU)
    assert _runtime._streams == kept and list(kept) == [GPU]  # one stream a device
    _runtime._kept_bytes(5, torch.device("cuda", 1))
    assert len(_runtime._streams) == 2


def test_an_allocation_that_fails_is_the_callers(monkeypatch):
    streams = Streams(monkeypatch)
    streams.error = torch.cuda.OutOfMemoryError("out of memory")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        _runtime._kept_bytes(100, GPU)
    streams.error = None
    assert _runtime._kept_bytes(7, GPU).numel() == 7


def test_memory_on_the_cpu_needs_no_stream(monkeypatch):
    streams = Streams(monkeypatch)
    _runtime._kept_bytes(10, torch.device("cpu"))
    assert streams.events == [("10 bytes of cpu", threading.get_ident(), None)]


@pytest.fixture
def capture(monkeypatch):
    """A GPU, number 0, whose kernels are the CPU's, so that plans of it are made and never uploaded; the current stream is
    being captured while `is_on` is set."""
    state = SimpleNamespace(is_on=False, uploads=0, destroyed=[])
    clear()

    def upload(plan):
        state.uploads += 1
        if state.fails:
            raise FfaError("no upload")
    state.fails = False
    destroy = _runtime.lib.ffa_plan_destroy
    monkeypatch.setattr(_runtime, "is_capturing", lambda number: number == 0 and state.is_on)
    monkeypatch.setattr(_runtime.Plan, "upload", upload)
    monkeypatch.setattr(_runtime, "lib", SimpleNamespace(
        ffa_plan_destroy=lambda handle: (state.destroyed.append(handle.value), destroy(handle))))
    yield state
    clear()


def kernels(flags=0):
    """Of number 0, and the library's CPU ones."""
    spec = _runtime.Spec(_runtime.CPU, torch.float32, 16, 16, 4, 2, flags)
    made = _runtime.Kernels(spec)
    made.spec = spec._replace(device=0)
    return made


def test_a_capture_makes_no_kernels(capture, monkeypatch):
    """The call is refused before anything is compiled."""
    q, k, v = tensors(torch.device("cpu"), torch.float32, MASKS["packed"](), grad=False)
    monkeypatch.setattr(_runtime, "ordinal", lambda device: 0)
    monkeypatch.setattr(_runtime, "shared", lambda number: pytest.fail("a context was asked for"))
    capture.is_on = True
    with pytest.raises(RuntimeError, match=r"prepare\(\)"):
        attention(q, k, v, MASKS["packed"]())
    assert not _runtime.cache.kernels and not _runtime.cache.plans


def test_a_capture_makes_no_plan(capture):
    made = kernels()
    capture.is_on = True
    with pytest.raises(RuntimeError, match="has no plan for these shapes yet, and a CUDA graph is being captured"):
        _runtime.Plan(made, MASKS["packed"](), torch.device("cpu"))
    assert capture.uploads == 0
    capture.is_on = False
    assert _runtime.Plan(made, MASKS["packed"](), torch.device("cpu")).image is not None and capture.uploads == 1


def test_a_captured_plan_is_kept_until_clear(capture):
    plan = _runtime.Plan(kernels(), MASKS["packed"](), torch.device("cpu"))
    capture.is_on = True
    plan.used_by(7)
    assert plan in _runtime._captured and 7 not in plan.streams  # what is captured on a stream does not run there yet
    clear()
    assert plan not in _runtime._captured


def graph_mask(count=2):
    """A GraphMask with plans, of samples as tokens."""
    stands, made = GraphMask(MASKS["packed"]()), kernels()
    for samples in range(1, count + 1):
        stands.plan_of(made, ("tokens", samples), torch.device("cpu"))
    return stands


@pytest.mark.parametrize("flags, split, heads", [(0, True, 4), (0, False, 0), (_abi.FFA_SPEC_BACKWARD, True, 0)])
def test_which_plans_of_a_graph_mask_may_be_split(capture, monkeypatch, flags, split, heads):
    """Those of calls without gradients, if that is asked for."""
    asked, made = [], _runtime.Plan._made
    monkeypatch.setattr(_runtime.Plan, "_made", lambda plan, mask, options: asked.append(options) or made(plan, mask, options))
    GraphMask(MASKS["packed"](), split=split).plan_of(kernels(flags), ("tokens", 1), torch.device("cpu"))
    assert [(options.capacity_bytes > 0, options.heads_q) for options in asked] == [(True, heads)] * 2


def test_a_capture_does_not_update_a_mask(capture):
    stands = graph_mask()
    handles, uploads = [plan.handle for plan in stands.plans.values()], capture.uploads
    capture.is_on = True
    with pytest.raises(RuntimeError, match=r"update\(\) it before the capture, or after"):
        stands.update(MASKS["causal"]())
    assert stands.mask == MASKS["packed"]() and capture.uploads == uploads and not capture.destroyed
    assert [plan.handle for plan in stands.plans.values()] == handles
    capture.is_on = False
    stands.update(MASKS["causal"]())
    assert stands.mask == MASKS["causal"]() and capture.uploads == uploads + 2
    assert capture.destroyed == [handle.value for handle in reversed(handles)]


def test_a_mask_that_is_refused_leaves_no_plan_behind(capture, monkeypatch):
    """The plan of one sample is made before that of two is refused; it is destroyed, and nothing is replaced."""
    stands = graph_mask()
    handles, uploads = [plan.handle.value for plan in stands.plans.values()], capture.uploads
    made, like = [], _runtime.Plan.like

    def second_fails(plan, mask):
        if made:
            raise FfaError("too large")
        made.append(like(plan, mask))
        return made[0]
    monkeypatch.setattr(_runtime.Plan, "like", second_fails)
    with pytest.raises(FfaError, match="too large"):
        stands.update(MASKS["causal"]())
    assert capture.destroyed == [made[0].value] and capture.uploads == uploads
    assert [plan.handle.value for plan in stands.plans.values()] == handles and stands.mask == MASKS["packed"]()


def test_an_upload_that_fails_keeps_the_plan(capture):
    stands = graph_mask(1)
    handle = next(iter(stands.plans.values())).handle.value
    capture.fails = True
    with pytest.raises(FfaError, match="no upload"):
        stands.update(MASKS["causal"]())
    assert next(iter(stands.plans.values())).handle.value == handle
    assert len(capture.destroyed) == 1 and capture.destroyed[0] != handle and stands.mask == MASKS["packed"]()
