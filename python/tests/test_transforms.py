# SPDX-License-Identifier: Apache-2.0
"""Transforms of torch.func, batched gradients, and forward-mode AD, which is refused: no result may lack its tangent."""
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import libffa
from libffa import Mask
from libffa.torch import _private, attention
from cases import MASKS, close, dtypes, tensors

MASK = MASKS["packed"]()
NO_TANGENTS = "no forward-mode derivative .*torch.func.grad, vjp, jacrev"


def inputs(device, dtype=None):
    return [t[0].detach() for t in tensors(device, dtype or dtypes(device)[0], MASK)]


def dual(*tensors, at=0):
    return [forward_ad.make_dual(t, torch.ones_like(t)) if i == at else t for i, t in enumerate(tensors)]


# ---- forward mode ----

@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("at", range(4))
def test_dual_tensors_are_refused(device, at, has_gradients):
    q, k, v = inputs(device)
    given = [t.requires_grad_(has_gradients) for t in (q, k, v, torch.zeros(4, device=device))]
    attention(*given[:3], MASK, sink=given[3])  # prepared for such tensors
    with forward_ad.dual_level(), pytest.raises(libffa.UnsupportedError, match=NO_TANGENTS):
        q, k, v, sink = dual(*given, at=at)
        attention(q, k, v, MASK, sink=sink)


def test_dual_tensors_are_refused_without_grad_mode(device):
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(libffa.UnsupportedError, match=NO_TANGENTS):
        attention(*dual(*inputs(device)), MASK)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_with_a_tangent_is_refused(device, create_graph):
    q, k, v = inputs(device)
    out = attention(q.requires_grad_(), k, v, MASK)
    with forward_ad.dual_level(), pytest.raises(libffa.UnsupportedError, match="no second derivative"):
        torch.autograd.grad(out, q, *dual(torch.ones_like(out)), create_graph=create_graph)


TRANSFORMED = {
    "jvp": lambda f, q: jvp(f, (q,), (q,)),
    "jacfwd": lambda f, q: jacfwd(f)(q),
    "hessian": lambda f, q: hessian(lambda q: f(q).sum())(q),
    "linearize": lambda f, q: linearize(f, q)[1](q),
    "jvp of vmap": lambda f, q: jvp(vmap(f), (q[None],), (q[None],)),
    "vmap of jvp": lambda f, q: vmap(lambda q: jvp(f, (q,), (q,)))(q[None]),
    "jvp of grad": lambda f, q: jvp(grad(lambda q: f(q).sum()), (q,), (q,)),
    "grad of jvp": lambda f, q: grad(lambda q: jvp(f, (q,), (q,))[1].sum())(q),
    "outer of two jvp": lambda f, q: jvp(lambda outer: jvp(lambda x: f(outer) * x, (q,), (q,))[1], (q,), (q,)),
    "compiled jvp": lambda f, q: torch.compile(lambda q: jvp(f, (q,), (torch.ones_like(q),))[1], backend="eager")(q),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_that_need_tangents_are_refused(device, name):
    q, k, v = inputs(device)
    with pytest.raises(libffa.UnsupportedError, match=NO_TANGENTS):
        TRANSFORMED[name](lambda q: attention(q, k, v, MASK), q)


def test_tensors_without_tangents_are_not_refused(device):
    """In a level, inside of a jvp, or of a level that is over."""
    q, k, v = inputs(device)
    want = attention(q, k, v, MASK)
    with forward_ad.dual_level():
        assert torch.equal(attention(q, k, v, MASK), want)
        old = dual(q)[0] * 1
    assert torch.equal(attention(old, k, v, MASK), want)
    for transform in (lambda f: f, lambda f: torch.compile(f, backend="eager", fullgraph=True)):
        out, tangent = transform(lambda x: jvp(lambda x: attention(q, k, v, MASK) * x, (x,), (x,)))(torch.ones_like(want))
        assert torch.equal(out, want) and torch.equal(tangent, want)
    out, _ = jvp(lambda x: vmap(lambda q: attention(q, k, v, MASK))(q[None]) * x, (want[None],), (want[None],))
    assert torch.equal(out[0], want * want)


# ---- reverse mode, and vmap ----

def gradient(q, k, v, **options):
    q = q.detach().requires_grad_()
    found = attention(q, k, v, MASK, deterministic=True, **options)
    out, lse = found if isinstance(found, tuple) else (found, found)
    return torch.autograd.grad(out.sin().sum() + lse.sum(), q)[0]


def test_reverse_transforms_have_the_same_gradients(device):
    q, k, v = inputs(device)

    def f(q):
        return attention(q, k, v, MASK, deterministic=True)

    def loss(q, **options):
        found = attention(q, k, v, MASK, deterministic=True, **options)
        out, lse = found if options else (found, found)
        return out.sin().sum() + lse.sum()

    want, batch = gradient(q, k, v), torch.stack([q, 2 * q])
    each = torch.stack([want, gradient(2 * q, k, v)])
    close(grad(loss)(q), want, q.dtype)
    close(grad(loss)(q, return_lse=True), gradient(q, k, v, return_lse=True), q.dtype)
    out, pull = vjp(f, q)
    close(pull(out.cos() + 1)[0], want, q.dtype)
    close(vmap(grad(loss))(batch), each, q.dtype)
    close(grad(lambda batch: vmap(loss)(batch).sum())(batch), each, q.dtype)
    batch.requires_grad_()
    close(torch.autograd.grad(vmap(loss)(batch).sum(), batch)[0], each, q.dtype)
    sink = torch.zeros(4, device=device)
    have = grad(lambda sink: attention(q, k, v, MASK, sink=sink, return_max_logits=True)[0].sum())(sink)
    leaf = sink.clone().requires_grad_()
    close(have, torch.autograd.grad(attention(q, k, v, MASK, sink=leaf).sum(), leaf)[0], q.dtype)


@pytest.mark.cpu_only
def test_jacobians(device):
    """All three of PyTorch: the last two by batched gradients."""
    mask = Mask.causal(3)
    q, k, v = (torch.randn(3, 1, 8, dtype=torch.float64) for _ in range(3))

    def f(q):
        return attention(q, k, v, mask)

    want = torch.autograd.functional.jacobian(f, q)
    for have in (jacrev(f)(q), torch.autograd.functional.jacobian(f, q, vectorize=True)):
        close(have, want, q.dtype)
    q.requires_grad_()
    douts = torch.eye(24, dtype=q.dtype).view(24, 3, 1, 8)
    close(torch.autograd.grad(f(q), q, douts, is_grads_batched=True)[0].view(3, 1, 8, 3, 1, 8), want, q.dtype)


def test_gradients_of_samples(device):
    """As in differential privacy: of parameters, a sample at a time."""
    _, k, v = inputs(device)
    layer = torch.nn.Linear(k.shape[2], k.shape[2], device=device, dtype=k.dtype)
    xs = torch.stack([inputs(device)[0] for _ in range(3)])

    def loss(parameters, x):
        return attention(functional_call(layer, parameters, (x,)), k, v, MASK, deterministic=True).square().sum()

    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    have = vmap(grad(loss), in_dims=(None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        want = torch.autograd.grad(loss(dict(layer.named_parameters()), x), list(layer.parameters()))
        for a, b in zip(have.values(), want):
            close(a[i], b, k.dtype)


def test_what_vmap_maps(device):
    q, k, v = inputs(device)
    sinks, batch = torch.randn(2, 4, device=device), torch.stack([q, 2 * q], 1)
    out, lse, logits = vmap(lambda q, sink: attention(q, k, v, MASK, sink=sink, return_lse=True, return_max_logits=True),
                            in_dims=(1, 0), out_dims=1)(batch, sinks)
    for i in range(2):
        want = attention(batch[:, i], k, v, MASK, sink=sinks[i], return_lse=True, return_max_logits=True)
        for a, b in zip((out, lse, logits), want):
            assert torch.equal(a[:, i], b)
    with pytest.raises(ValueError, match="vmap over 0 samples"):
        vmap(lambda q: attention(q, k, v, MASK))(q[None][:0])


def test_a_second_derivative_of_transforms_is_refused(device):
    q, k, v = inputs(device)
    with pytest.raises(libffa.UnsupportedError, match="no second derivative"):
        grad(lambda q: grad(lambda q: attention(q, k, v, MASK).sin().sum())(q).sum())(q)
    with pytest.raises(libffa.UnsupportedError, match="no second derivative"):
        jacrev(jacrev(lambda k: attention(q, k, v, MASK).sum()))(k)


@pytest.mark.parametrize("names", [("is_forward_mode",), ("is_transformed",), ("is_forward_mode", "is_transformed")])
def test_nothing_says_that_there_are_transforms(device, names, monkeypatch):
    """Then each call is taken to be of one."""
    from libffa.torch import _ops

    q, k, v = (t.requires_grad_() for t in inputs(device))
    want = gradient(q, k, v)
    monkeypatch.setattr(_ops, "_is_watched", lambda: True)
    for name in names:
        monkeypatch.setattr(_ops, name, lambda: True)
    assert torch.equal(gradient(q, k, v), want)
    with torch.no_grad():
        assert torch.equal(attention(q, k, v, MASK), attention(q, k, v, MASK))
    with forward_ad.dual_level(), pytest.raises(libffa.UnsupportedError, match=NO_TANGENTS):
        attention(*dual(q, k, v), MASK)


def test_what_says_that_there_are_transforms():
    seen = []
    with forward_ad.dual_level():
        seen.append(_private.is_forward_mode())
    vmap(lambda x: seen.append(_private.is_transformed()) or x)(torch.empty(1))
    assert seen == [True, True] and not _private.is_forward_mode() and not _private.is_transformed()
