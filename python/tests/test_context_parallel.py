# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: processes over gloo, and over GPUs of the device emulator where FFA_EMULATOR names it."""
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import libffa  # noqa: E402
import libffa.torch  # noqa: E402
from launch import launch  # noqa: E402

RANKS = pathlib.Path(__file__).resolve().with_name("ranks.py")
EMULATOR = os.environ.get("FFA_EMULATOR")


def run(how, ranks=2, **variables):
    printed = launch(RANKS, how, ranks=ranks, **variables)
    assert [f"rank {rank}: ok" in text for rank, text in enumerate(printed)] == [True] * ranks, printed


@pytest.mark.cpu_only
def test_gather_and_ulysses():
    run("gather", ranks=4)


@pytest.mark.skipif(not EMULATOR, reason="FFA_EMULATOR names no folder of the device emulator")
def test_peer_emulated():
    # The emulator's thread-local state needs room, as it is loaded behind PyTorch. Bound now: PyTorch keeps its own runtime.
    # Kernels that wait for another process are slow on a busy machine; the time-out is for those that never end.
    run("peer", GLIBC_TUNABLES="glibc.rtld.optional_static_tls=262144", LD_BIND_NOW="1", FFA_EMULATOR_SMS="8",
        FFA_EMULATOR_IPC="1", FFA_EMULATOR_DEVICES="2", FFA_EMULATOR_TIMEOUT_MS="120000",
        FFA_CACHE_DIR=os.path.join(EMULATOR, "cache"))


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.cpu_only
@pytest.mark.parametrize("shared", [False, True])
def test_rows_that_are_not_the_ranks(group, shared):
    """Other ranks would wait for them, or get others: nothing is exchanged."""
    mask = libffa.Mask.causal(64)
    q, k, v = (torch.randn(64, heads, 8) for heads in (2, 1, 1))
    with libffa.torch.ContextParallel() as cp:
        step = libffa.torch.Ulysses().share(mask) if shared else cp.plan(mask)
        want = step.attention(q, k, v)
        given = {"q": q, "k": k, "v": v}
        for name, tensor in given.items():
            for other in (tensor[:60], torch.cat((tensor, tensor)), tensor[None]):
                with pytest.raises(ValueError, match=f"^{name}: "):
                    step.attention(**given | {name: other})
            with pytest.raises(TypeError, match=f"^{name}: "):
                step.attention(**given | {name: None})
        for other in (q[:60], torch.cat((q, q))):
            with pytest.raises(ValueError, match=r"^tensors\[0\]: "):
                step.dispatch(other)
            with pytest.raises(ValueError, match="^local: "):
                step.undispatch(other)
        assert torch.equal(step.attention(q, k, v), want)


@pytest.mark.cpu_only
def test_arguments_of_another_kind(group):
    mask = libffa.Mask.causal(64)
    with pytest.raises(ValueError, match="transport"):
        libffa.torch.ContextParallel(transport="pear")
    with libffa.torch.ContextParallel() as cp:
        for masks, words in ((3, "masks: int"), ([mask, 3], r"masks\[1\]: int"), (None, "masks: NoneType")):
            with pytest.raises(TypeError, match=words):
                cp.plan(masks)
        q = torch.randn(64, 1, 8)
        for index in (1, -1, mask, None):
            with pytest.raises(IndexError, match="^mask: "):
                cp.plan(mask).attention(q, q, q, mask=index)
        with pytest.raises(TypeError, match="^inner: int"):
            libffa.torch.Ulysses().share(3)


@pytest.mark.cpu_only
def test_a_group_that_is_not_made(group, monkeypatch):
    """What it has is given back, and nothing else."""
    cp = object.__new__(libffa.torch.ContextParallel)
    monkeypatch.setattr(libffa.torch.ContextParallel, "_make_peers", lambda _self, _timeout: (_ for _ in ()).throw(OSError("no peers")))
    with pytest.raises(OSError, match="no peers"):
        cp.__init__(transport="peer")
    assert cp._plans is not None
    cp.__del__()
    assert cp._plans is None
