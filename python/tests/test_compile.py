# SPDX-License-Identifier: Apache-2.0
"""Operators, torch.compile, autocast, activation checkpointing."""
import shutil

import pytest
import torch
import torch._dynamo
from torch.utils.checkpoint import checkpoint

from libffa import Mask
from libffa.torch import _ops, attention
from libffa.torch._calls import BACKWARD, MAX_LOGITS
from libffa.torch._layout import Layout
from cases import MASKS, close, dense, dtypes, reference, tensors

VARIED = [Mask.causal(48), Mask.full(48), Mask.window(48, 5, 0), Mask.window(48, 6, 0), MASKS["packed"]()]


@pytest.mark.parametrize("heads_first, has_sink", [(False, False), (True, True)])
def test_opcheck(device, heads_first, has_sink):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    q, k, v = tensors(device, dtype, mask, batch=2)
    if heads_first:
        q, k, v = (t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v))
    sink = torch.randn(4, device=device, dtype=torch.float32, requires_grad=True) if has_sink else None
    options = (mask.id, 0.0, 0.0, BACKWARD | MAX_LOGITS, heads_first)
    torch.library.opcheck(_ops.forward, (q, k, v, sink, *options))
    with torch.no_grad():
        out, lse, _ = _ops.forward(q, k, v, sink, *options)
        inputs = [None if t is None else t.detach() for t in (q, k, v, out, lse, sink)]
        torch.library.opcheck(_ops.backward, (torch.ones_like(out), None, *inputs, *options))
        torch.library.opcheck(_ops.backward, (torch.ones_like(out), torch.ones_like(lse), *inputs, *options))


def test_operator_and_eager_agree(device):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    for layout in Layout:
        q, k, v = tensors(device, dtype, mask)
        q, k, v = (layout.restored(t).detach().requires_grad_() for t in (q, k, v))
        eager = attention(q, k, v, mask, layout=layout.name, return_lse=True, return_max_logits=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_ops, "_is_watched", lambda: True)
            operator = attention(q, k, v, mask, layout=layout.name, return_lse=True, return_max_logits=True)
        for a, b in zip(eager, operator):
            assert torch.equal(a, b) and a.shape == b.shape
        dout = torch.randn_like(eager[0])
        for a, b in zip(*(torch.autograd.grad(r[0], (q, k, v), dout) for r in (eager, operator))):
            close(a, b, dtype)


def loss(q, k, v, mask, layout=None):
    out, lse = attention(q * 2, k, v, mask, return_lse=True, layout=layout)
    return out.sin().sum() + lse.square().sum()


@pytest.mark.parametrize("layout", [None, "BHSD"])
def test_compile_with_changing_masks(device, layout):
    """One graph, without breaks; the second mask makes masks an input of it, and no further mask compiles."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    for mask in VARIED:
        q, k, v = (t if layout is None else t.detach().transpose(1, 2).requires_grad_()
                   for t in tensors(device, dtypes(device)[0], mask, batch=2))
        have = torch.autograd.grad(compiled(q, k, v, mask, layout), (q, k, v))
        for a, b in zip(have, torch.autograd.grad(loss(q, k, v, mask, layout), (q, k, v))):
            close(a, b, q.dtype)
    assert counter.frame_count <= 2


def test_compile_with_changing_lengths(device):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (48, 64, 80, 96):
        mask = Mask.causal(tokens)
        q, k, v = tensors(device, dtypes(device)[0], mask)
        close(compiled(q, k, v, mask), loss(q, k, v, mask), q.dtype)
    assert counter.frame_count <= 2


def test_inductor(device):
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler, which Inductor needs")
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    for mask in VARIED[:2]:
        q, k, v = tensors(device, dtype, mask)
        have = torch.autograd.grad(compiled(q, k, v, mask), (q, k, v))
        for a, b in zip(have, torch.autograd.grad(loss(q, k, v, mask), (q, k, v))):
            close(a, b, dtype)


def test_autocast(device):
    mask = MASKS["causal"]()
    q, k, v = (t.float().detach().requires_grad_() for t in tensors(device, torch.float32, mask))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = attention(q, k, v, mask)
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")(q, k, v, mask)
    assert out.dtype == torch.bfloat16 and torch.equal(out, compiled)
    close(out, reference(q, k, v, dense(mask, device))[0], torch.bfloat16)
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointing(device, is_reentrant):
    mask = MASKS["packed"]()
    q, k, v = tensors(device, dtypes(device)[0], mask)
    want = torch.autograd.grad(loss(q, k, v, mask), (q, k, v))
    checkpoint(loss, q, k, v, mask, use_reentrant=is_reentrant).backward()
    for a, b in zip((q.grad, k.grad, v.grad), want):
        close(a, b, q.dtype)


def test_compiled_checkpointing(device):
    torch._dynamo.reset()
    mask = MASKS["packed"]()
    q, k, v = tensors(device, dtypes(device)[0], mask)
    compiled = torch.compile(lambda *t: checkpoint(loss, *t, mask, use_reentrant=False), fullgraph=True, backend="aot_eager")
    for a, b in zip(*(torch.autograd.grad(f, (q, k, v)) for f in (compiled(q, k, v), loss(q, k, v, mask)))):
        close(a, b, q.dtype)


def test_selective_checkpointing_sees_the_operator(device):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen, mask = [], MASKS["packed"]()

    def policy(_context, operator, *_arguments, **_options):
        seen.append(str(operator))
        return CheckpointPolicy.MUST_SAVE if "libffa" in str(operator) else CheckpointPolicy.PREFER_RECOMPUTE

    q, k, v = tensors(device, dtypes(device)[0], mask)
    out = checkpoint(loss, q, k, v, mask, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    for a, b in zip(*(torch.autograd.grad(f, (q, k, v)) for f in (out, loss(q, k, v, mask)))):
        close(a, b, q.dtype)
    assert "libffa.forward.default" in seen


def test_fake_tensors(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    mask = MASKS["packed"]()
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t.detach()) for t in tensors(device, dtypes(device)[0], mask, batch=2))
        out, lse = attention(q, k, v, mask, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
