# SPDX-License-Identifier: Apache-2.0
"""What is private in PyTorch: that a call without it has the same results, and what takes its place."""
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

from libffa.torch import _calls, _ops, _private, attention, clear
from cases import MASKS, dtypes, tensors

pytestmark = pytest.mark.cpu_only
GUARDS = torch._C._dynamo.guards
AUTOGRAD = torch._C._autograd
FUNCTORCH = torch._C._functorch


class Odd:
    """Something of another kind than what had the name."""

    def __init__(self, *_arguments, **_options):
        pass

    def __call__(self, *_arguments, **_options):
        return self


def loaded():
    """The module, as it is where PyTorch is as it is now."""
    spec = importlib.util.spec_from_file_location("libffa.torch._private_again", _private.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(inputs, mask):
    out = attention(*inputs, mask)
    with torch.no_grad():
        return out, attention(*inputs, mask), *torch.autograd.grad(out, inputs, torch.ones_like(out))


WATCHERS = ((torch._C, "_len_torch_dispatch_stack"), (FUNCTORCH, "peek_interpreter_stack"), (AUTOGRAD, "_profiler_enabled"),
            (forward_ad, "_current_level"))
FACTS = ((torch._C, "_dispatch_tls_local_include_set"), (torch._C, "_dispatch_keys"))
NAMES = {name: (owner, name) for owner, name in (
    *WATCHERS, *FACTS, (GUARDS, "TensorGuards"), (GUARDS, "_empty_strided_cpu"), (FUNCTORCH, "is_functorch_wrapped_tensor"),
    (FUNCTORCH, "TransformType"), (FUNCTORCH, "is_legacy_batchedtensor"))}


@pytest.mark.parametrize("becomes", ["absent", "odd"])
@pytest.mark.parametrize("names", [*NAMES, "all"])
def test_a_private_name_that_is_not_what_it_was(names, becomes, monkeypatch):
    inputs = [t[0].detach().requires_grad_() for t in tensors(torch.device("cpu"), torch.float32, MASKS["packed"]())]
    clear()
    want = results(inputs, MASKS["packed"]())
    for name in (NAMES if names == "all" else [names]):
        owner, _ = NAMES[name]
        if becomes == "absent":
            monkeypatch.delattr(owner, name)
        else:
            monkeypatch.setattr(owner, name, Odd())
    module = loaded()
    pattern = torch.empty(3, 4).t()
    made = module.find_empty(pattern)()
    assert made.shape == pattern.shape and made.stride() == pattern.stride() and made.dtype == pattern.dtype
    # Who cannot be seen is taken to be watching.
    is_blind = names == "all" or NAMES[names] in WATCHERS
    assert module.is_watched() == is_blind
    assert module.is_forward_mode() == (names in ("all", "_current_level"))
    assert module.is_transformed() == (names in ("all", "peek_interpreter_stack", "TransformType"))
    assert not module.is_batched(pattern)
    assert (module.TensorGuards is None) == (names in ("all", "TensorGuards"))
    assert (module.find_apply(_ops._Eager) == _ops._Eager.apply) or names not in ("all", "is_functorch_wrapped_tensor")

    clear()
    for name in ("TensorGuards", "find_empty", "dispatch_facts", "is_batched"):
        monkeypatch.setattr(_calls, name, getattr(module, name))
    for name in ("is_forward_mode", "is_transformed"):
        monkeypatch.setattr(_ops, name, getattr(module, name))
    monkeypatch.setattr(_ops, "_is_watched", module.is_watched)
    monkeypatch.setattr(_ops, "is_wrapped", module.is_wrapped)
    monkeypatch.setattr(_ops, "_apply", module.find_apply(_ops._Eager))
    for _ in range(2):
        for a, b in zip(results(inputs, MASKS["packed"]()), want):
            assert torch.equal(a, b)
    clear()


def test_nothing_says_what_a_call_is_like(monkeypatch):
    """Neither guards nor dispatch keys: each call goes by the operator."""
    for name in ("TensorGuards", "_dispatch_keys"):
        owner, _ = NAMES[name]
        monkeypatch.delattr(owner, name)
    assert loaded().is_watched()


def test_streams_have_public_functions(monkeypatch):
    from libffa.torch import _runtime

    for name in ("_cuda_getCurrentRawStream", "_cuda_isCurrentStreamCapturing"):
        monkeypatch.delattr(torch._C, name, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda number: SimpleNamespace(cuda_stream=40 + number))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: "asked")
    stream_of, is_capturing = _runtime.find_stream_functions()
    assert stream_of(2) == 42 and is_capturing() == "asked"


def test_what_is_there_is_used():
    """In the PyTorch that the tests run with, no less than all of it."""
    inputs = [t[0] for t in tensors(torch.device("cpu"), dtypes(torch.device("cpu"))[1], MASKS["packed"](), grad=False)]
    clear()
    attention(*inputs, MASKS["packed"]())
    ((_, call),) = next(iter(_calls._prepared.values()))
    assert call.new_out.func is GUARDS._empty_strided_cpu and not _private.is_watched()
    assert _private.TensorGuards is GUARDS.TensorGuards and _private.is_wrapped is FUNCTORCH.is_functorch_wrapped_tensor
    clear()


def test_operators_have_types_for_annotations():
    """Not texts, which PyTorch 2.6 makes no schema of."""
    assert not hasattr(_ops, "annotations"), "from __future__ import annotations"
