# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs and streams: only on a GPU."""
import pytest
import torch

from libffa import Mask
from libffa.torch import GraphMask, attention, clear, prepare
from cases import MASKS, close, decoding, dense, reference, tensors


@pytest.fixture(autouse=True)
def gpu(device):
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a GPU")


def test_graph_of_both_passes(device):
    mask = MASKS["packed"]()
    q, k, v = tensors(device, torch.bfloat16, mask)
    dout = torch.randn_like(q)

    def step():
        return torch.autograd.grad(attention(q, k, v, mask), (q, k, v), dout)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        have = step()
    for _ in range(3):
        with torch.no_grad():
            for t in (q, k, v):
                t.normal_()
        graph.replay()
        for a, b in zip(have, step()):
            close(a, b, torch.bfloat16)


def test_a_plan_of_a_graph_is_kept(device):
    from libffa.torch import _runtime

    mask = MASKS["packed"]()
    q, k, v = tensors(device, torch.bfloat16, mask, grad=False)
    prepare(q, k, v, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, mask)
    for n in range(_runtime.PLANS + 8):
        attention(q, k, v, Mask.window(48, n % 40, n // 40))
    graph.replay()
    close(out, reference(q, k, v, dense(mask, device))[0], torch.bfloat16)


def test_graph_with_changing_masks(device):
    stands = GraphMask(MASKS["packed"]())
    q, k, v = tensors(device, torch.bfloat16, stands.mask)
    dout = torch.randn_like(q)

    def step():
        return torch.autograd.grad(attention(q, k, v, stands), (q, k, v), dout)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        have = step()
    for name in ("causal", "window", "packed", "full"):
        mask = MASKS[name]()
        stands.update(mask)
        graph.replay()
        for a, b in zip(have, torch.autograd.grad(attention(q, k, v, mask), (q, k, v), dout)):
            close(a, b, torch.bfloat16)


def test_graph_of_decoding(device):
    """Few rows over many keys: split, whatever the lengths of the captured mask were."""
    stands = GraphMask(decoding(10, 20), split=True)
    q, k, v = tensors(device, torch.bfloat16, stands.mask, grad=False)
    prepare(q, k, v, stands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, stands)
    for lengths in ((10, 20), (1199, 1200), (0, 1200), (1000, 1)):
        stands.update(decoding(*lengths))
        graph.replay()
        close(out, reference(q, k, v, dense(stands.mask, device))[0], torch.bfloat16)


def test_a_capture_that_was_not_prepared_is_a_sentence(device):
    clear()
    mask = MASKS["packed"]()
    q, k, v = tensors(device, torch.bfloat16, mask, grad=False)
    with pytest.raises(RuntimeError, match="prepare"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            attention(q, k, v, mask)


def test_a_capture_does_not_update_a_mask(device):
    stands = GraphMask(MASKS["packed"]())
    q, k, v = tensors(device, torch.bfloat16, stands.mask, grad=False)
    prepare(q, k, v, stands)
    with pytest.raises(RuntimeError, match="update"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            stands.update(MASKS["causal"]())
    want = reference(q, k, v, dense(MASKS["packed"](), device))[0]
    close(attention(q, k, v, stands), want, torch.bfloat16)


def test_streams(device):
    """The stream of the second call waits for the upload on the first one's."""
    for n in range(5):
        mask = Mask.window(48, n, 0)
        q, k, v = tensors(device, torch.bfloat16, mask, grad=False)
        torch.cuda.synchronize()
        one, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            torch.cuda._sleep(10_000_000)
            attention(q, k, v, mask)
        with torch.cuda.stream(other):
            out = attention(q, k, v, mask)
        other.synchronize()
        close(out, reference(q, k, v, dense(mask, device))[0], torch.bfloat16)


def test_reduce_overhead(device):
    """Inductor's own graphs: a mask is part of what they are recorded for."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, m: attention(q, k, v, m) * 2, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        for mask in (MASKS["packed"](), MASKS["causal"](), MASKS["window"]()):
            q, k, v = tensors(device, torch.bfloat16, mask, grad=False)
            close(compiled(q, k, v, mask), 2 * reference(q, k, v, dense(mask, device))[0], torch.bfloat16)
