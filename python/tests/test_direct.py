# SPDX-License-Identifier: Apache-2.0
"""The way to the library without an operator: that it has the operator's results, when it is taken, and that no call takes
what was prepared for another."""
import itertools
import json
import pathlib
import threading

import pytest
import torch
import torch._dynamo.compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from libffa import Mask
from libffa.torch import _calls, _ops, attention, clear
from libffa.torch._layout import Layout
from cases import MASKS, close, dense, dtypes, head_dim, reference, tensors

OPTIONS = {
    "none": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": (4,)},  # its shape
    "sinks": {"sink": (2, 4)},
    "lse": {"return_lse": True},
    "all results": {"return_lse": True, "return_max_logits": True},
}


@pytest.fixture(autouse=True)
def prepared():
    clear()
    yield _calls._prepared
    clear()


@pytest.fixture
def operators(monkeypatch):
    """The operators that calls took."""
    taken = []
    for name in ("forward", "backward"):
        operator = getattr(_ops, name)
        monkeypatch.setattr(_ops, name, lambda *a, name=name, operator=operator: taken.append(name) or operator(*a))
    return taken


def leaves(device, layout=Layout.THD, **options):
    made = tensors(device, dtypes(device)[0], MASKS["packed"](), **options)
    return [layout.restored(t).detach().requires_grad_() for t in made]


def results(inputs, mask, **options):
    """All results of attention() as a tuple, and all gradients."""
    sink = options.get("sink")
    found = attention(*inputs, mask, **options)
    found = found if isinstance(found, tuple) else (found,)
    differentiable = [t for t in found if t.requires_grad]
    weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).view(t.shape) for t in differentiable]
    return found + torch.autograd.grad(differentiable, [*inputs, *([] if sink is None else [sink])], weights)


def with_sink(options, device):
    """Options with a sink in place of its shape."""
    if "sink" not in options:
        return options
    return options | {"sink": torch.randn(options["sink"], device=device, requires_grad=True)}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", Layout)
def test_the_operator_has_the_same_bits(device, layout, options, operators, monkeypatch):
    inputs, mask = leaves(device, layout), MASKS["packed"]()
    options = with_sink(OPTIONS[options], device) | {"layout": layout.name, "deterministic": True}
    direct = results(inputs, mask, **options)
    assert not operators
    monkeypatch.setattr(_ops, "_is_watched", lambda: True)
    operator = results(inputs, mask, **options)
    assert operators == ["forward", "backward"]
    for a, b in zip(direct, operator):
        assert a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


# ---- who is watching ----

class Seeing(TorchDispatchMode):
    """Writes down what operators it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.append(str(operator))
        return operator(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    """A tensor that looks at nothing."""


def by_dispatch_mode(call, inputs):
    with Seeing() as mode:
        found = call(*inputs)
    assert "libffa.forward.default" in mode.seen
    return found


def by_profiler(call, inputs):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = call(*inputs)
        found.sum().backward()
    assert {"libffa::forward", "libffa::backward"} <= {event.key for event in profile.key_averages()}
    return found


def by_functionalize(call, inputs):
    return torch.func.functionalize(call)(*(t.detach() for t in inputs))


def by_vmap(call, inputs):
    return torch.func.vmap(call)(*(t.detach()[None] for t in inputs))[0]


def by_compiler(call, inputs):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph.code)
        return graph

    torch._dynamo.reset()
    found = torch.compile(call, fullgraph=True, backend=backend)(*inputs)
    assert len(graphs) == 1 and "libffa_forward" in graphs[0].replace(".", "_")
    return found


def by_export(call, inputs):
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return call(*inputs)

    exported = torch.export.export(Module(), tuple(inputs))
    assert "libffa.forward" in exported.graph_module.code
    return exported.module()(*inputs)


def by_trace(call, inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(call)(*inputs)
    assert "libffa.forward" in graph.code
    return graph(*inputs)


def by_subclass(call, inputs):
    return call(*(t.detach().as_subclass(Subclass).requires_grad_() for t in inputs))


@pytest.mark.parametrize("by", [by_dispatch_mode, by_profiler, by_functionalize, by_vmap, by_compiler, by_export, by_trace,
                                by_subclass])
def test_a_watched_call_takes_the_operator(device, by, operators):
    """Also where the same call was made, and so prepared, without a watcher."""
    inputs, mask = leaves(device), MASKS["packed"]()
    call = lambda *t: attention(*t, mask)
    with torch.no_grad():
        want = call(*inputs)
    assert torch.equal(call(*inputs), want) and not operators
    assert torch.equal(by(call, inputs), want)
    assert "forward" in operators
    operators.clear()
    assert torch.equal(call(*inputs), want) and not operators


def test_fake_tensors_are_not_computed_with(device, operators):
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs, mask = leaves(device), MASKS["packed"]()
    attention(*inputs, mask)
    with FakeTensorMode() as mode:
        attention(*(mode.from_tensor(t) for t in inputs), mask)
    assert operators == ["forward"]


def test_a_backward_pass_is_watched_on_its_own(device, operators):
    """Of a forward pass that nobody looked at: by a dispatch mode, and by compiled autograd."""
    for layout in Layout:
        inputs, mask = leaves(device, layout), MASKS["packed"]()

        def gradients(out):
            return torch.autograd.grad(out.sin().sum(), inputs, retain_graph=True)

        out = attention(*inputs, mask, layout=layout.name, deterministic=True)
        want = gradients(out)
        assert not operators
        with Seeing() as mode:
            have = gradients(out)
        assert "libffa.backward.default" in mode.seen and operators == ["backward"]
        with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager", fullgraph=True)):
            compiled = gradients(out)
        for a, b, c in zip(have, compiled, want):
            assert torch.equal(a, c) and torch.equal(b, c)
        operators.clear()


def test_tensors_of_a_transform_that_is_over(device, operators):
    """Which are neither plain, nor is anybody watching: they go by the operator, as apply() does not unwrap them."""
    inputs, mask, kept = leaves(device), MASKS["packed"](), []

    def loss(q):
        kept.append(q * 1)
        return kept[0].sum()

    want = attention(*inputs, mask)
    torch.func.grad(loss)(inputs[0].detach())
    assert torch.equal(attention(kept[0], *inputs[1:], mask), want) and "forward" in operators


def test_gradients_are_by_grad_mode(device):
    """The same tensors, with gradients on and off in turns: PyTorch's guards do not see which."""
    inputs, mask = leaves(device), MASKS["packed"]()
    for _ in range(2):
        with torch.no_grad():
            assert not attention(*inputs, mask).requires_grad
        assert attention(*inputs, mask).requires_grad
        with torch.inference_mode():
            assert attention(*inputs, mask).is_inference()


def test_a_device_that_is_not_the_current_one(device, prepared):
    """Where memory without the dispatcher is the current device's, and so another's than q's: none is asked for."""
    inputs, mask = leaves(device), MASKS["packed"]()
    want = results(inputs, mask, deterministic=True)
    forward, backward = (calls[0][1] for calls in prepared.values())

    def on_another():
        raise AssertionError("memory of another device")

    forward.index = backward.index = 7
    forward.new_out = forward.new_lse = forward.new_workspace = on_another
    backward.new = [on_another] * len(backward.new)
    have = results(inputs, mask, deterministic=True)
    for a, b in zip(have, want):
        assert torch.equal(a, b)


def test_autocast_of_a_call_that_was_prepared_without(device):
    inputs, mask = [t.detach().float() for t in leaves(device)], MASKS["packed"]()
    if device.type == "cpu":
        attention(*inputs, mask)
    for _ in range(2):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            assert attention(*inputs, mask).dtype == torch.bfloat16


@pytest.mark.parametrize("has_guards", [True, False])
def test_autocast_to_another_dtype(device, has_guards, monkeypatch):
    """Of calls in turns, whose tensors are the same."""
    if not has_guards:
        monkeypatch.setattr(_calls, "TensorGuards", None)
    inputs, mask = [t.detach().to(torch.bfloat16) for t in leaves(device)], MASKS["packed"]()
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(device.type, dtype=dtype):
                assert attention(*inputs, mask).dtype == dtype


def test_views_of_the_other_sign(device):
    """Whose memory is not what they say."""
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    inputs = [t.detach() for t in tensors(device, dtype, mask)]
    for i in range(3):
        views = [torch._neg_view(t) if n == i else t for n, t in enumerate(inputs)]
        close(attention(*views, mask), reference(*(t.resolve_neg() for t in views), dense(mask, device))[0], dtype)


# ---- what calls were prepared for ----

def test_options_are_not_mixed_up(device):
    """Calls that differ in one option, in turns, twice: of equal shapes, also where two layouts fit the tensors."""
    dtype, dim = dtypes(device)[0], head_dim()
    q, k, v = (torch.randn(4, 4, dim, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    masks = Mask.causal(4), Mask.full(4), Mask.window(4, 1, 0)
    scales, softcaps, layouts = (None, 0.5, 1), (0.0, 3.0), (None, "THD", "HTD")
    sinks = None, torch.randn(4, device=device), torch.randn(2, 4, device=device)
    turns = list(itertools.product(masks, scales, softcaps, sinks, layouts))
    if device.type == "cuda":
        turns = turns[::4]  # all values of each option
    for _ in range(2):
        for mask, scale, softcap, sink, layout in turns:
            out, lse = attention(q, k, v, mask, scale=scale, softcap=softcap, sink=sink, layout=layout, return_lse=True)
            canonical = (Layout.HTD if layout == "HTD" else Layout.THD).canonical
            want, want_lse, _ = reference(*map(canonical, (q, k, v)), dense(mask, device), scale=scale, softcap=softcap, sink=sink)
            close(canonical(out), want, dtype)
            close(canonical(lse), want_lse, dtype)
    assert len(_calls._prepared) <= _calls._KEPT


def test_shapes_strides_and_gradients_are_not_mixed_up(device):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    for _ in range(2):
        for heads, dim, order in itertools.product(((4, 2), (4, 4)), (head_dim(), 2 * head_dim()), (0, 1)):
            inputs = tensors(device, dtype, mask, heads=heads, dim=dim)
            if order:  # heads first in memory
                inputs = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in inputs]
            for gradients in (False, True):
                with torch.set_grad_enabled(gradients):
                    out = attention(*inputs, mask)
                assert out.requires_grad == gradients and out.stride(1) == (dim if order else heads[0] * dim)
                close(out, reference(*inputs, dense(mask, device))[0], dtype)


def test_calls_of_one_option_are_few(device, prepared):
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    for extra in range(2 * _calls._KEPT_EACH):
        q, k, v = (torch.randn(48, heads + extra, head_dim(), device=device, dtype=dtype)[:, :heads] for heads in (4, 2, 2))
        close(attention(q, k, v, mask)[None], reference(q[None], k[None], v[None], dense(mask, device))[0], dtype)
    assert len(prepared) == 1 and len(*prepared.values()) == _calls._KEPT_EACH


@pytest.mark.parametrize("has_guards", [True, False])
def test_a_call_is_prepared_once(device, prepared, has_guards, monkeypatch):
    """Also where one tensor stands for several, and without PyTorch's guards."""
    if has_guards and _calls.TensorGuards is None:
        pytest.skip("this PyTorch has no TensorGuards")
    if not has_guards:
        monkeypatch.setattr(_calls, "TensorGuards", None)
    mask, dtype = MASKS["packed"](), dtypes(device)[0]
    for n in range(3):
        q, k, v = (t.detach() for t in tensors(device, dtype, mask, heads=(4, 4)))
        for inputs in ((q, k, v), (q, k, k), (q, q, q)):
            close(attention(*inputs, mask), reference(*inputs, dense(mask, device))[0], dtype)
        inputs = [t.requires_grad_() for t in (q, k, v)]
        out = attention(*inputs, mask)
        for a, b in zip(torch.autograd.grad(out, inputs, out.detach()),
                        torch.autograd.grad(reference(*inputs, dense(mask, device))[0], inputs, out.detach().double())):
            close(a, b, dtype)
        # Backward; forward without and with gradients, and with tensors that stand for several.
        assert sorted(map(len, prepared.values())) == ([1, 3] if has_guards else [1, 2]), n


def test_saved_tensors_may_come_back_with_other_strides(device):
    """By hooks, as of those that keep them elsewhere."""
    inputs, mask = leaves(device), MASKS["packed"]()

    def gradients(out):
        return torch.autograd.grad(out.sin().sum(), inputs)

    want = gradients(attention(*inputs, mask, deterministic=True))

    def other(t):
        if t.dim() == 1:  # lse, which no caller sees
            return t.repeat_interleave(2)[::2]
        return t.transpose(0, 1).contiguous().transpose(0, 1)

    for unpack in (other, torch.Tensor.clone):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), unpack):
            out = attention(*inputs, mask, deterministic=True)
        for a, b in zip(gradients(out), want):
            assert torch.equal(a, b)
    with torch.autograd.graph.save_on_cpu():
        out = attention(*inputs, mask, deterministic=True)
    for a, b in zip(gradients(out), want):
        assert torch.equal(a, b)


def test_a_backward_pass_after_clear(device):
    inputs, mask = leaves(device), MASKS["packed"]()
    out = attention(*inputs, mask, deterministic=True)
    want = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    clear()
    for a, b in zip(torch.autograd.grad(out.sum(), inputs), want):
        assert torch.equal(a, b)


def test_threads_share_a_prepared_call(device):
    """Threads that make one prepared call at once, with tensors of their own."""
    mask, dtype, failed, ready = MASKS["packed"](), dtypes(device)[0], [], threading.Barrier(6)
    drawn = [tensors(device, dtype, mask) for _ in range(6)]
    wanted = [results(inputs, mask, deterministic=True) for inputs in drawn]
    assert sorted(map(len, _calls._prepared.values())) == [1, 1]

    def work(inputs, want):
        try:
            ready.wait()
            for _ in range(20):
                for a, b in zip(results(inputs, mask, deterministic=True), want):
                    assert torch.equal(a, b)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(drawn, wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_threads_without_gradients(device, prepared):
    """Of which each has a row of its own for what nobody sees, while its call is under way."""
    mask, dtype, failed, ready = MASKS["packed"](), dtypes(device)[0], [], threading.Barrier(6)
    drawn = [tensors(device, dtype, mask, grad=False) for _ in range(6)]
    wanted = [attention(*inputs, mask) for inputs in drawn]

    def work(inputs, want):
        ready.wait()
        for _ in range(50):
            if not torch.equal(attention(*inputs, mask), want):
                failed.append(inputs)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(drawn, wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((_, call),) = next(iter(prepared.values()))
    rows = [arguments.row.data_ptr() for arguments in call.free]
    assert not failed and 1 <= len(set(rows)) == len(rows) <= 6


def test_a_row_is_kept_on_the_default_stream_only(device, prepared, monkeypatch):
    inputs, mask = [t.detach() for t in leaves(device)], MASKS["packed"]()
    want, run = attention(*inputs, mask), _calls._Prepared.run
    ((_, call),) = next(iter(prepared.values()))
    row = call.free[0].row
    assert torch.equal(attention(*inputs, mask), want) and call.free[0].row is row

    with monkeypatch.context() as patch:
        patch.setattr(call, "number", 0)
        patch.setattr(_calls, "gpu_stream_of", lambda _number: 5)
        patch.setattr(_calls._Prepared, "run", lambda call, function, arguments, stream: run(call, function, arguments, None))
        for _ in range(2):
            assert torch.equal(attention(*inputs, mask), want) and call.free[0].row is None
    for _ in range(2):
        assert torch.equal(attention(*inputs, mask), want) and call.free[0].row is not None

    out = attention(*(t.requires_grad_() for t in inputs), mask)
    with torch.no_grad():
        _, lse = attention(*inputs, mask, return_lse=True)
        monkeypatch.setattr(_calls, "_SMALL_ROW", 0)
        large = attention(*inputs, mask, return_max_logits=True)[0]
    assert torch.equal(out, want) and torch.equal(large, want) and lse.shape == want.shape[:-1]
    calls = [other for found in prepared.values() for _, other in found]
    assert len(calls) == 4 and [other for other in calls if other.free[0].row is not None] == [call]


@pytest.mark.cpu_only
def test_the_benchmark(run):
    script = pathlib.Path(__file__).resolve().parents[1] / "bench_host.py"
    rows = json.loads(run(script, "--device", "cpu", "--rounds", 1, "--json"))["rows"]
    calls, pieces = rows[:3], rows[3:]
    assert len(pieces) == 5 and all(row["name"].startswith("- ") for row in pieces)
    for row in calls:
        assert set(row["us"]) == {"no gradient", "with gradient", "backward"} and row["error"] is None
    for row in rows:
        assert row["us"] and all(0 < us <= row["median_us"][part] for part, us in row["us"].items())
    table = run(script, "--device", "cpu", "--rounds", 1)
    assert table.count("| libffa") == 2 and "| the operator" in table and table.count("| - ") == 5
