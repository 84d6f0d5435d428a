# SPDX-License-Identifier: Apache-2.0
"""attention() against an fp64 reference and SDPA: layouts, masks, dtypes, options, gradients, errors."""
import pytest
import torch
import torch.nn.functional as F

import libffa
from libffa import Mask
from libffa.torch import attention
import cases
from cases import MASKS, close, decoding, dense, dtypes, head_dim, reference, tensors

LAYOUTS = {  # name: from [batch, tokens, heads, head_dim] to the layout, and back
    "BSHD": (lambda t: t, lambda t: t),
    "BHSD": (lambda t: t.transpose(1, 2), lambda t: t.transpose(1, 2)),
}


def in_memory(tensor, order):
    """The same tensor with another order of dimensions in memory; a leaf."""
    if order == "heads first":
        tensor = tensor.detach().transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.detach().requires_grad_()


def compare(q, k, v, cells, run, dtype, **options):
    """out, lse and all gradients of run(q, k, v) -> (out, lse) of canonical tensors."""
    out, lse = run(q, k, v)
    want, want_lse, _ = reference(q, k, v, cells, **options)
    close(out, want, dtype, "out")
    close(lse, want_lse, dtype, "lse")
    dout, dlse = torch.randn_like(want), torch.randn_like(want_lse)
    finite = want_lse.isfinite()
    loss = (out.double() * dout).sum() + (lse.double()[finite] * dlse[finite]).sum()
    want_loss = (want * dout).sum() + (want_lse[finite] * dlse[finite]).sum()
    for name, have, good in zip("qkv", torch.autograd.grad(loss, (q, k, v)), torch.autograd.grad(want_loss, (q, k, v))):
        close(have, good, dtype, "d" + name)


@pytest.mark.parametrize("memory", ["tokens first", "heads first"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MASKS)
def test_layouts_masks_dtypes(device, name, layout, memory):
    mask, (there, back) = MASKS[name](), LAYOUTS[layout]
    for dtype in dtypes(device):
        q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, mask, batch=3))

        def run(q, k, v):
            out, lse = attention(there(q), there(k), there(v), mask, layout=layout, return_lse=True)
            assert out.shape == there(q).shape and lse.shape == out.shape[:3]
            assert back(out).stride() == q.stride(), "out has the memory order of q"
            return back(out), back(lse)

        compare(q, k, v, dense(mask, device), run, dtype)


def test_packed(device):
    mask = MASKS["packed"]()
    for dtype in dtypes(device):
        for name in ("THD", "HTD"):
            q, k, v = tensors(device, dtype, mask, dim_v=8)

            def run(q, k, v):
                swap = (lambda t: t.transpose(0, 1)) if name == "HTD" else (lambda t: t)
                out, lse = attention(*(swap(t[0]) for t in (q, k, v)), mask, return_lse=True, layout=name)
                return swap(out)[None], swap(lse)[None]

            compare(q, k, v, dense(mask, device), run, dtype)


@pytest.mark.parametrize("memory", ["tokens first", "heads first"])
def test_a_mask_of_the_whole_batch(device, memory):
    one, other = MASKS["packed"](), MASKS["window"]()
    mask, dtype = Mask.concat([one, other]), dtypes(device)[0]
    q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, one, batch=2))
    cells = torch.stack((dense(one, device), dense(other, device)))[:, None]
    compare(q, k, v, cells, lambda *t: attention(*t, mask, return_lse=True), dtype)


@pytest.mark.parametrize("memory", ["tokens first", "heads first"])
def test_a_mask_a_head(device, memory):
    one, other = MASKS["packed"](), MASKS["window"]()
    mask, dtype = Mask.per_head([one, other]), dtypes(device)[0]
    q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, one, batch=2))
    cells = torch.stack((dense(one, device), dense(other, device))).repeat_interleave(2, 0)
    compare(q, k, v, cells, lambda *t: attention(*t, mask, return_lse=True), dtype)


def test_sdpa(device):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    q, k, v = (t.detach().transpose(1, 2) for t in tensors(device, dtype, mask, batch=2, heads=(2, 2)))
    close(attention(q, k, v, mask, layout="BHSD"), F.scaled_dot_product_attention(q, k, v, attn_mask=dense(mask, device)), dtype)


@pytest.mark.parametrize("memory", ["tokens first", "heads first"])
@pytest.mark.parametrize("sinks", [None, (), (2,)])
def test_options(device, sinks, memory):
    """Scale, softcap, sinks and largest logits, and the gradient of the sinks."""
    mask, dtype = MASKS["empty_rows"](), dtypes(device)[0]
    q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, mask, batch=2))
    sink = None if sinks is None else torch.randn(*sinks, 4, device=device, dtype=torch.float32, requires_grad=True)
    options = {"scale": 0.3, "softcap": 2.0, "sink": sink}
    compare(q, k, v, dense(mask, device), lambda *t: attention(*t, mask, return_lse=True, **options), dtype, **options)
    out, logits = attention(q, k, v, mask, return_max_logits=True, **options)
    want, _, want_logits = reference(q, k, v, dense(mask, device), **options)
    close(logits, want_logits, dtype)
    assert not logits.requires_grad
    if sink is not None:
        dout = torch.randn_like(want)
        have, = torch.autograd.grad((out.double() * dout).sum(), sink)
        good, = torch.autograd.grad((want * dout).sum(), sink)
        close(have, good, torch.float32 if dtype == torch.float64 else dtype)


def test_only_lse_in_the_loss(device):
    mask, dtype = MASKS["causal"](), dtypes(device)[0]
    q, k, v = tensors(device, dtype, mask)
    have = torch.autograd.grad(attention(q, k, v, mask, return_lse=True)[1].sum(), (q, k))
    good = torch.autograd.grad(reference(q, k, v, dense(mask, device))[1].sum(), (q, k))
    for a, b in zip(have, good):
        close(a, b, dtype)


@pytest.mark.parametrize("kind", ["sliced", "one projection", "last dimension", "misaligned", "mixed", "expanded"])
def test_strides(device, kind):
    """Tensors that are parts of others; what cannot be folded is copied."""
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    dim = head_dim()
    if kind == "one projection":  # q, k and v of one linear layer
        whole = torch.randn(2, 48, 4 + 2 + 2, dim, device=device, dtype=dtype)
        q, k, v = whole.split((4, 2, 2), 2)
    elif kind == "sliced":
        q, k, v = (torch.randn(2, 96, h, dim, device=device, dtype=dtype)[:, ::2] for h in (4, 2, 2))
    elif kind == "last dimension":
        q, k, v = (torch.randn(2, 48, dim, h, device=device, dtype=dtype).transpose(2, 3) for h in (4, 2, 2))
    elif kind == "misaligned":
        q, k, v = (torch.randn(2 * 48 * h * dim + 1, device=device, dtype=dtype)[1:].view(2, 48, h, dim) for h in (4, 2, 2))
    elif kind == "mixed":
        q, k, v = tensors(device, dtype, mask, batch=2, grad=False)
        k = k.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        q, k, v = (torch.randn(1, 48, h, dim, device=device, dtype=dtype).expand(2, -1, -1, -1) for h in (4, 2, 2))
    before = [t.clone() for t in (q, k, v)]
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    compare(*leaves, dense(mask, device), lambda *t: attention(*t, mask, return_lse=True), dtype)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v)))


def test_nothing_is_copied(device, monkeypatch):
    """The layouts of frameworks reach the library as they are."""
    from libffa.torch import _layout

    def refuse(self, tensor):
        raise AssertionError(f"copied: {tensor.shape}, {tensor.stride()}")

    monkeypatch.setattr(_layout.Fold, "copied", refuse)
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    for memory in ("tokens first", "heads first"):
        q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, mask, batch=2))
        attention(q, k, v, mask).backward(torch.randn_like(q))
        q, k, v = (t.detach().transpose(1, 2).requires_grad_() for t in (q, k, v))
        attention(q, k, v, mask, layout="BHSD").backward(torch.randn_like(q))
    one = Mask.full(1, 48)  # decoding: q has one row, and no order
    for memory in ("tokens first", "heads first"):
        q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, one, batch=2))
        compare(q, k, v, dense(one, device), lambda *t: attention(*t, one, return_lse=True), dtype)
    assert attention(q, k[:, :40], v[:, :40], Mask.full(1, 40)).shape == q.shape  # the begin of a cache, heads first


def test_plans_are_shared(device):
    from libffa.torch import _runtime, clear

    clear()
    q, k, v = tensors(device, dtypes(device)[0], MASKS["packed"]())
    for _ in range(3):  # layers, each with a mask of its own
        attention(q, k, v, MASKS["packed"]()).sum().backward()
    assert len(_runtime.cache.plans) == 1 and len(_runtime.cache.kernels) == 1
    with torch.no_grad():
        attention(q, k, v, MASKS["packed"]())
    assert len(_runtime.cache.plans) == 2, "without gradients, a plan of the forward pass only"
    x = q[:, :8].detach()
    for n in range(_runtime.PLANS + 5):
        attention(x, x, x, Mask.from_slices([(i, i + 1, 0, 1 + (n >> i & 1), "full") for i in range(8)], 8))
    assert len(_runtime.cache.plans) == _runtime.PLANS


@pytest.mark.parametrize("split", [False, True])
def test_graph_mask(device, split):
    """What stands for masks, one after another, with and without gradients."""
    from libffa.torch import GraphMask

    dtype, names = dtypes(device)[0], ("packed", "causal", "empty_rows", "window")
    stands = GraphMask(MASKS[names[0]](), split=split)
    for name in names:
        stands.update(MASKS[name]())
        for memory in ("tokens first", "heads first"):
            q, k, v = (in_memory(t, memory) for t in tensors(device, dtype, stands, batch=2))
            compare(q, k, v, dense(MASKS[name](), device), lambda *t: attention(*t, stands, return_lse=True), dtype)
    assert len(stands.plans) == 2
    for graph_mask in (stands, GraphMask(stands.mask)):  # with plans, and without
        for other, kind in ((Mask.full(49), ValueError), (Mask.per_head([Mask.full(48)] * 2), ValueError), (None, TypeError)):
            with pytest.raises(kind, match="^mask: "):
                graph_mask.update(other)
        assert graph_mask.mask == MASKS[names[-1]]()
    with pytest.raises(TypeError, match="^mask: GraphMask"):
        GraphMask(stands)


@pytest.mark.parametrize("has_sink, softcap", [(False, 0.0), (True, 0.0), (True, 5.0)])
def test_graph_mask_of_decoding(device, has_sink, softcap):
    """Few rows over many keys, which are split on a GPU; also where a row has no keys. Sinks enter once."""
    from libffa.torch import GraphMask

    dtype, sink = dtypes(device)[0], torch.tensor([[0.5, -1.0, 3.0, 0.0]], device=device) if has_sink else None
    stands = GraphMask(decoding(10, 1200), split=True)
    q, k, v = tensors(device, dtype, stands, grad=False)
    parts = []
    for lengths in ((10, 1200), (1200, 1199), (0, 1100), (0, 0)):
        stands.update(decoding(*lengths))
        have = attention(q, k, v, stands, sink=sink, softcap=softcap, return_lse=True, return_max_logits=True)
        want = reference(q, k, v, dense(stands.mask, device), sink=sink, softcap=softcap)
        for a, b in zip(have, want):
            close(a, b, dtype, lengths)
        (plan,) = stands.plans.values()
        parts.append(plan.info().split_tiles)
    assert (parts[1] > parts[3] >= 1) if cases.IS_GPU else not any(parts)


def test_deterministic(device):
    mask, dtype = MASKS["causal"](), dtypes(device)[-1]
    q, k, v = tensors(device, dtype, mask)
    dout = torch.randn_like(q)
    runs = [torch.autograd.grad(attention(q, k, v, mask, deterministic=True), (q, k, v), dout) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs))
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(torch.autograd.grad(attention(q, k, v, mask), q, dout)[0], runs[0][0])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.cpu_only
def test_gradcheck():
    for mask in (Mask.from_cu_seqlens([0, 5, 9], causal=True), Mask.from_slices([(2, 7, 0, 4, "invcausal")], 9)):
        q, k, v = tensors(torch.device("cpu"), torch.float64, mask, dim=8)
        sink = torch.randn(4, dtype=torch.float64, requires_grad=True)

        def function(q, k, v, sink):
            out, lse = attention(q, k, v, mask, sink=sink, softcap=3.0, return_lse=True)
            return out, lse

        assert torch.autograd.gradcheck(function, (q, k, v, sink))


@pytest.mark.parametrize("loss", [lambda out, _lse: out.square().sum(), lambda out, _lse: out.sum(),
                                  lambda _out, lse: lse.sum()])
def test_no_second_derivative(device, loss):
    q, k, v = tensors(device, dtypes(device)[0], MASKS["causal"]())
    first, = torch.autograd.grad(loss(*attention(q, k, v, MASKS["causal"](), return_lse=True)), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (first.square().sum() + v.sum()).backward()
    for other in (q, v):  # also where a derivative may be absent, which PyTorch takes for 0
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(first.square().sum(), other, retain_graph=True, allow_unused=True)


@pytest.mark.cpu_only
def test_no_second_derivative_by_dout():
    """PyTorch finds a Jacobian's product with a vector as one."""
    q, k, v = (t.detach() for t in tensors(torch.device("cpu"), torch.float64, MASKS["causal"]()))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.functional.jvp(lambda q: attention(q, k, v, MASKS["causal"]()), q, torch.ones_like(q))


@pytest.mark.parametrize("change, words", [
    (lambda q, k, v: (q[:, :-1], k, v), "mask: 48 x 48 tokens; q has 47"),
    (lambda q, k, v: (q, k[:, :-1], v), "do not fit"),
    (lambda q, k, v: (q, k, v.bool()), "dtypes"),
    (lambda q, k, v: (q, k[0], v), "dimensions"),
    (lambda q, k, v: (q[:, :, :3], k, v), "heads_q"),
    (lambda q, k, v: (q[..., :7], k[..., :7], v), "head_dim"),
])
def test_errors_are_sentences(device, change, words):
    q, k, v = change(*tensors(device, dtypes(device)[0], MASKS["causal"](), grad=False))
    with pytest.raises(ValueError) as caught:
        attention(q, k, v, MASKS["causal"]())
    assert words in str(caught.value)


@pytest.mark.parametrize("name, value", [
    ("q", None), ("k", [1.0]), ("v", torch.zeros(4).numpy()), ("sink", [0.0] * 4), ("scale", "a third"), ("scale", [1]), ("softcap", None),
    ("layout", 1), ("mask", "causal:48"), ("mask", torch.ones(48, 48, dtype=torch.bool))])
def test_arguments_of_another_kind(device, name, value):
    """Also where a call with the right ones was made, and so prepared."""
    q, k, v = tensors(device, dtypes(device)[0], MASKS["causal"](), grad=False)
    given = {"q": q, "k": k, "v": v, "mask": MASKS["causal"]()}
    attention(**given)
    with pytest.raises(TypeError, match=f"^{name}: "):
        attention(**given | {name: value})


@pytest.mark.parametrize("sink, words", [
    (torch.tensor(1.0), "shape []"), (torch.zeros(1, 1, 4), "shape [1, 1, 4]"), (torch.zeros(4, dtype=torch.int32), "dtype torch.int32"),
    (torch.zeros(4, dtype=torch.bool), "dtype torch.bool"), (torch.zeros(4, dtype=torch.complex64), "dtype torch.complex64"),
    (torch.zeros(4, device="meta"), "on meta")])
def test_sinks_that_are_refused(device, sink, words):
    q, k, v = tensors(device, dtypes(device)[0], MASKS["causal"](), grad=False)
    with pytest.raises(ValueError) as caught:
        attention(q, k, v, MASKS["causal"](), sink=sink if sink.is_meta else sink.to(device))
    assert str(caught.value).startswith("sink: ") and words in str(caught.value)


def test_derivatives_by_numbers_are_refused(device):
    q, k, v = tensors(device, dtypes(device)[0], MASKS["causal"](), grad=False)
    number = torch.tensor(0.5, device=device)
    want = attention(q, k, v, MASKS["causal"](), scale=0.5, softcap=0.5)
    assert torch.equal(attention(q, k, v, MASKS["causal"](), scale=number, softcap=number), want)
    for name in ("scale", "softcap"):
        with pytest.raises(ValueError, match=f"^{name}: a tensor that may have a derivative"):
            attention(q, k, v, MASKS["causal"](), **{name: number.clone().requires_grad_()})
        with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match=f"^{name}: "):
            attention(q, k, v, MASKS["causal"](), **{name: torch.autograd.forward_ad.make_dual(number, number)})


@pytest.mark.cpu_only
def test_tensors_without_strides_are_refused():
    libffa.torch.clear()  # PyTorch's guards, which find prepared calls, end the process where a nested tensor has another layout
    q = torch.randn(48, 4, 16)
    jagged = torch.nested.nested_tensor([q[:20], q[20:]], layout=torch.jagged)
    for odd, words in ((q.to_sparse(), "sparse_coo"), (jagged, "a nested tensor"), (torch.nested.nested_tensor([q, q]), "a nested tensor")):
        with pytest.raises(libffa.UnsupportedError, match="^q: .*" + words):
            attention(odd, q, q, Mask.full(48))
    with pytest.raises(ValueError, match="q: on meta"):
        attention(*[q.to("meta")] * 3, Mask.full(48))


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_gradients_by_some(device, which):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    q, k, v = tensors(device, dtype, mask)
    want = torch.autograd.grad(attention(q, k, v, mask, deterministic=True).sin().sum(), (q, k, v))
    some = [t.detach().requires_grad_(i in which) for i, t in enumerate((q, k, v))]
    attention(*some, mask, deterministic=True).sin().sum().backward()
    for i, (t, good) in enumerate(zip(some, want)):
        assert torch.equal(t.grad, good) if i in which else t.grad is None


@pytest.mark.cpu_only
def test_autocast_casts_floating_point_tensors():
    """But for float64, as PyTorch's own: what it does not cast must fit by itself."""
    q, k, v = (t.detach() for t in tensors(torch.device("cpu"), torch.float32, MASKS["causal"]()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(q.half(), k, v.bfloat16(), MASKS["causal"]()).dtype == torch.bfloat16
        assert attention(q.double(), k.double(), v.double(), MASKS["causal"]()).dtype == torch.float64
        for odd in (q.int(), q.double()):
            with pytest.raises(ValueError, match="q, k, v: dtypes"):
                attention(odd, k, v, MASKS["causal"]())
            with pytest.raises(ValueError, match="q, k, v: dtypes"):
                attention(q, odd[:, :, :2], v, MASKS["causal"]())


def test_more_errors(device):
    mask = MASKS["causal"]()
    with pytest.raises(TypeError, match="mask: list, not a libffa.Mask"):
        attention(*tensors(device, dtypes(device)[0], mask, grad=False), [mask])
    q, k, v = tensors(device, dtypes(device)[0], mask, grad=False)
    for options, words in (({"layout": "SBHD"}, "SBHD"), ({"sink": torch.zeros(3, device=device)}, "sink"), ({"scale": 0.0}, "scale"),
                           ({"sink": torch.zeros(9, 4, device=device)}, "sink_count"), ({"softcap": -1.0}, "softcap")):
        with pytest.raises(ValueError, match=words):
            attention(q, k, v, mask, **options)
    with pytest.raises(ValueError, match="heads"):
        attention(q, k, v, Mask.per_head([mask] * 3))
    with pytest.raises(ValueError, match="q: a batch of 0 samples"):
        attention(q[:0], k[:0], v[:0], mask)
    assert isinstance(libffa.InvalidError("x"), ValueError)
