# SPDX-License-Identifier: Apache-2.0
"""What is private in PyTorch and makes a call cheaper, looked for and tried once, here.

Where a name is absent, or is not what it was, something public takes its place, which costs time only. Where nothing public
says who is watching, everybody is taken to be: calls then go by the operators.
"""
from __future__ import annotations

from functools import cache, partial

import torch
from torch.autograd import forward_ad


def find(path):
    """What torch has by a dotted name, or None."""
    found = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def find_is_forward_mode():
    """A function that says whether tensors may have tangents, those of forward-mode AD."""
    seen = [getattr(forward_ad, "_current_level", None)]
    if seen == [-1]:
        with forward_ad.dual_level():
            seen.append(forward_ad._current_level)
    # Or PyTorch is in a level, while this is imported.
    return (lambda: forward_ad._current_level >= 0) if seen in ([-1, 0], [0]) else lambda: True


def find_is_transformed():
    """A function that says whether torch.func is transforming a function, but for functionalize, which changes no results."""
    try:
        interpreter, kinds = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.TransformType

        def is_transformed():
            top = interpreter()
            return top is not None and top.key() != kinds.Functionalize

        seen = [is_transformed()]
        for transform in (torch.func.vmap, torch.func.functionalize):
            transform(lambda value: seen.append(is_transformed()) or value)(torch.empty(1))
        if seen == [False, True, False]:
            return is_transformed
    except Exception:
        pass
    return lambda: True


def find_is_watched():
    """A function that says whether somebody looks at operators: a compiler, a dispatch mode, functorch, forward-mode AD, a
    profiler."""
    is_compiling = torch.compiler.is_compiling
    modes, interpreter = find("_C._len_torch_dispatch_stack"), find("_C._functorch.peek_interpreter_stack")
    is_profiled = find("_C._autograd._profiler_enabled")

    def is_watched():
        return (is_compiling() or modes() > 0 or interpreter() is not None or forward_ad._current_level >= 0
                or is_profiled())

    try:
        from torch.utils._python_dispatch import TorchDispatchMode

        before, seen = modes(), []
        with TorchDispatchMode():
            seen.append(modes() == before + 1)
        torch.func.vmap(lambda value: seen.append(interpreter() is not None) or value)(torch.empty(1))
        if seen == [True, True] and isinstance(is_profiled(), bool) and isinstance(forward_ad._current_level, int):
            return is_watched
    except Exception:
        pass
    return lambda: True


def find_tensor_guards():
    """PyTorch's class TensorGuards, or None. It is what torch.compile guards its graphs with."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        probe, other = torch.empty(1), torch.empty(2)
        check = TensorGuards(probe, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return TensorGuards if check(probe) and not check(other) else None
    except Exception:
        return None


def dispatch_facts(tensors):
    """What decides where a dispatcher sends calls with these tensors: keys of the thread, keys of each tensor. Nothing where
    PyTorch does not say; is_watched() then says that everybody is watching."""
    if not HAS_DISPATCH_KEYS:
        return ()
    here, left_out = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return here.raw_repr(), left_out.raw_repr(), *(torch._C._dispatch_keys(t).raw_repr() for t in tensors)


def find_dispatch_keys():
    """Whether dispatch_facts() can say something."""
    try:
        sets = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        return all(isinstance(s.raw_repr(), int) for s in (*sets, torch._C._dispatch_keys(torch.empty(1))))
    except Exception:
        return False


def find_is_wrapped():
    """A function that says whether a tensor is functorch's, also of a transform that is over; None where there is none."""
    try:
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        return is_wrapped if is_wrapped(torch.empty(1)) is False else None
    except Exception:
        return None


def find_is_batched():
    """A function that says whether a tensor is several gradients, of torch.autograd.grad(is_grads_batched=True)."""
    try:
        is_batched = torch._C._functorch.is_legacy_batchedtensor
        return is_batched if is_batched(torch.empty(1)) is False else lambda tensor: False
    except Exception:
        return lambda tensor: False


class _Probe(torch.autograd.Function):
    """Its input's double."""

    @staticmethod
    def forward(ctx, value, factor):
        return value * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def find_apply(function):
    """The apply() of an autograd.Function without what it does for functorch: for calls that are not watched, on tensors
    that are not functorch's. In PyTorch 2.11 that is two fifths of the time of an apply()."""
    try:
        if is_wrapped is None:
            return function.apply
        probe = super(torch.autograd.Function, _Probe).apply
        made = probe(torch.ones(1).requires_grad_(), 2)
        if made.grad_fn is not None and made.detach().item() == 2:
            return super(torch.autograd.Function, function).apply
    except Exception:
        pass
    return function.apply


@cache
def find_empty_strided(kind):
    """PyTorch's function that makes tensors of a type of device from sizes, strides and dtype, without the dispatcher, or
    None."""
    fast = find(f"_C._dynamo.guards._empty_strided_{kind}")
    try:
        made = fast((3, 4), (1, 3), torch.float16)
        facts = made.shape, made.stride(), made.dtype, made.device.type
        return fast if facts == ((3, 4), (1, 3), torch.float16, kind) else None
    except Exception:
        return None


def find_empty(pattern):
    """A function that makes tensors as torch.empty_like(pattern) does, in half its time. On a GPU they are of the current
    device, whichever the pattern is of."""
    fast = find_empty_strided(pattern.device.type)
    if fast is None:
        return partial(torch.empty_like, pattern)
    return partial(fast, tuple(pattern.shape), pattern.stride(), pattern.dtype)


@cache
def find_current(kind):
    """A function that says what get_device() says of a tensor that find_empty() makes."""
    if kind != "cuda":
        return lambda: -1
    return find("_C._cuda_getDevice") or torch.cuda.current_device


HAS_DISPATCH_KEYS = find_dispatch_keys()
is_forward_mode, is_transformed = find_is_forward_mode(), find_is_transformed()
TensorGuards = find_tensor_guards()
# A prepared call is found by a guard, of one kind or the other.
is_watched = find_is_watched() if TensorGuards is not None or HAS_DISPATCH_KEYS else (lambda: True)
is_wrapped = find_is_wrapped()
is_batched = find_is_batched()
