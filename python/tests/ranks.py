# SPDX-License-Identifier: Apache-2.0
"""Ranks of libffa.torch.ContextParallel, compared with one rank: run by test_context_parallel.py, a process a rank.

  ranks.py gather    keys gathered by gloo, in fp32; and heads exchanged, alone and beside that: four processes
  ranks.py refused   what one rank is not to exchange with others, and arguments of another kind
  ranks.py peer      over GPUs of the device emulator (tests/emulator), in bf16; its folder is FFA_EMULATOR

The emulator's device memory is the host's, so tensors of the CPU are handed in as those of a GPU. It is loaded behind
PyTorch, whose own CUDA runtime has the same name and stays what PyTorch uses.
"""
import ctypes as C
import os
import sys

import torch
import torch.distributed as dist

import libffa
import libffa.torch
from libffa._library import call
from libffa.torch import ContextParallel, Ulysses, _gather

HEADS_Q, HEADS_KV, HEAD_DIM = 2, 1, 64


def emulated():
    """The class of ContextParallel whose peers are emulated GPUs, and its ranks' devices. Rank 1's has fewer SMs."""
    from libffa.torch import _peer, parallel

    folder = os.environ["FFA_EMULATOR"]
    os.environ["FFA_EMULATOR_SMS"] = str(8 - 3 * dist.get_rank())
    C.CDLL(f"{folder}/libcudart.so.13", mode=C.RTLD_GLOBAL)  # kernels' objects look their functions up there
    libffa.context.wheel_library = lambda stem: f"{folder}/{stem}.so.13".encode()

    class Peers(_peer.Peers):
        def stream(self):
            return None

        def event(self):
            return None

        def enqueue(self, name, pass_, kernels, args):
            super().enqueue(name, pass_, kernels, args)
            call("ffa_device_synchronize", self.context.handle)  # PyTorch frees memory of the CPU at once
            self.status()

    class Emulated(parallel.ContextParallel):
        def _make_peers(self, timeout_ms):
            return Peers(self, self.rank % int(os.environ["FFA_EMULATOR_DEVICES"]), timeout_ms)

    return Emulated


def whole(tokens, seed):
    """q, k, v, a sink and weights of a loss, the same on all ranks."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random)

    return (draw(tokens, HEADS_Q, HEAD_DIM), draw(tokens, HEADS_KV, HEAD_DIM), draw(tokens, HEADS_KV, HEAD_DIM),
            draw(HEADS_Q), draw(tokens, HEADS_Q, HEAD_DIM), draw(tokens, HEADS_Q))


def leaves(tensors, dtype):
    return [t.detach().to(dtype).requires_grad_() for t in tensors]


def check(name, found, wanted, tolerance):
    difference = (found.float() - wanted.float()).abs().max().item()
    limit = tolerance * max(1.0, wanted.abs().max().item())
    if not difference <= limit:
        raise AssertionError(f"rank {dist.get_rank()}: {name} differs by {difference:.3g}, more than {limit:.3g}")


def compare(cp, mask, seed, dtype, tolerance, uses_lse=True):
    """A forward and a backward pass of all ranks, against those of one rank in fp32."""
    tensors = whole(mask.seqlen_q, seed)
    options = {"softcap": 0.0, "return_lse": True, "return_max_logits": True}
    q, k, v, sink = leaves([t.to(dtype) for t in tensors[:4]], torch.float32)
    out, lse, largest = libffa.torch.attention(q, k, v, mask, sink=sink, **options)
    loss = (out * tensors[4]).sum()
    (loss + (lse * tensors[5]).sum() if uses_lse else loss).backward()

    step, *local = cp.dispatch(mask, *tensors[:3], tensors[4], tensors[5])
    own = leaves(local[:3], dtype)
    own_sink = tensors[3].to(dtype).float().requires_grad_()
    got, got_lse, got_largest = step.attention(*own, sink=own_sink, **options)
    loss = (got.float() * local[3]).sum()
    (loss + (got_lse * local[4]).sum() if uses_lse else loss).backward()
    check("out", got, step.dispatch(out)[0], tolerance)
    check("lse", got_lse, step.dispatch(lse)[0], tolerance)
    check("max_logits", got_largest, largest, tolerance)
    for title, mine, one in zip(("dq", "dk", "dv"), own, (q, k, v)):
        check(title, mine.grad, step.dispatch(one.grad)[0], tolerance)
    shares = own_sink.grad.clone()
    dist.all_reduce(shares)
    check("dsink", shares, sink.grad, tolerance)
    check("undispatched out", step.undispatch(got), out, tolerance)


def cover(cp):
    """Each token is of one rank, and what is dispatched comes back, along any dimension, with its gradient."""
    step, ids = cp.dispatch(libffa.Mask.causal(700), torch.arange(700))
    assert torch.equal(ids, step.ids) and sum(step.counts) == 700
    table = torch.randn(3, 700, generator=torch.Generator().manual_seed(5))
    (local,) = step.dispatch(table, dim=1)
    assert torch.equal(step.undispatch(local, dim=1), table)
    for summed, factor in ((False, 1), (True, cp.rank_count)):
        leaf = local.clone().requires_grad_()
        step.undispatch(leaf, dim=1, summed=summed).mul(table).sum().backward()
        check("gradient of undispatch", leaf.grad, local * factor, 1e-6)
    assert sum(count for _, _, count in _gather.runs(step.ids)) == step.count


def losses(cp):
    """The mean of all tokens' losses, and its gradient as DDP averages it."""
    weight = torch.tensor(2.0, requires_grad=True)
    step, values = cp.dispatch(libffa.Mask.causal(300), torch.arange(300.0))
    summed = (values * weight).sum()
    cp.loss(summed, 300).backward()
    dist.all_reduce(weight.grad)
    check("gradient of a loss", weight.grad / cp.rank_count, torch.arange(300.0).mean(), 1e-6)
    check("mean loss", cp.mean(summed, 300), 2 * torch.arange(300.0).mean(), 1e-6)


def layers_of_two_kinds(cp):
    """Two masks that share one dispatch."""
    masks = libffa.Mask.causal(400), libffa.Mask.window(400, 50, 0)
    step = cp.plan(masks, weights=[1, 3])
    q, k, v = whole(400, 7)[:3]
    for index, mask in enumerate(masks):
        local = step.attention(*step.dispatch(q, k, v), mask=index)
        check(f"mask {index}", local, step.dispatch(libffa.torch.attention(q, k, v, mask))[0], 1e-5)


def no_second_derivative(cp, dtype):
    """Refused also of a sum, whose gradient is constant."""
    step = cp.plan(libffa.Mask.causal(256))
    q, k, v = leaves(step.dispatch(*whole(256, 9)[:3]), dtype)
    first, = torch.autograd.grad(step.attention(q, k, v).sum(), q, create_graph=True)
    try:
        (first.float().square().sum() + v.float().sum()).backward()
    except RuntimeError as error:
        assert "no second derivative" in str(error), error
    else:
        raise AssertionError("a second derivative was not refused")


def differing(cp):
    """Ranks with different masks hear of it, and go on."""
    try:
        cp.plan(libffa.Mask.causal(300 + cp.rank))
    except libffa.InvalidError as error:
        assert "different plans" in str(error), error
    else:
        raise AssertionError("ranks with different masks were not told")


def exchanged(share, mask, heads_kv, seed):
    """Attention with exchanged heads, against that of one rank. share: of a mask, what dispatches and attends."""
    random = torch.Generator().manual_seed(seed)
    q, k, v, weights = (torch.randn(mask.seqlen_q, heads, 8, generator=random) for heads in (4, heads_kv, heads_kv, 4))
    sink = torch.randn(4, generator=random).requires_grad_()
    whole_ = leaves((q, k, v), torch.float32)
    out = libffa.torch.attention(*whole_, mask, sink=sink)
    wanted = torch.autograd.grad((out * weights).sum(), (*whole_, sink))
    shared = share(mask)
    own = leaves(shared.dispatch(q, k, v), torch.float32)
    got = shared.attention(*own, sink=sink)
    gradients = torch.autograd.grad((got * shared.dispatch(weights)[0]).sum(), (*own, sink))
    check("out", got, shared.dispatch(out)[0], 1e-5)
    for name, mine, one in zip(("dq", "dk", "dv"), gradients, wanted):
        check(name, mine, shared.dispatch(one)[0], 1e-5)
    share_of_sink = gradients[3].clone()
    dist.all_reduce(share_of_sink)
    check("dsink", share_of_sink, wanted[3], 1e-5)
    check("undispatched out", shared.undispatch(got), out, 1e-5)


def ulysses():
    rank = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    exchange, context = Ulysses(groups[rank // 2]), groups[2 + rank % 2]
    with ContextParallel(context, transport="gather") as cp:
        mask = libffa.Mask.from_cu_seqlens([0, 150, 190, 401], causal=True)
        exchanged(lambda mask: exchange.share(cp.plan(mask)), mask, 2, 1)
        exchanged(lambda mask: Ulysses().share(mask), mask, 2, 2)  # all four ranks, kv heads repeated


def gather():
    with ContextParallel(transport="gather") as cp:
        compare(cp, libffa.Mask.from_cu_seqlens([0, 150, 190, 520], causal=True), 1, torch.float32, 1e-5)
        compare(cp, libffa.Mask.full(300), 2, torch.float32, 1e-5)
        cover(cp)
        losses(cp)
        layers_of_two_kinds(cp)
        no_second_derivative(cp, torch.float32)
        differing(cp)
        cover(cp)
    ulysses()


def is_refused(kind, words, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert str(error).startswith(words), error
    else:
        raise AssertionError(f"not refused: {words}")


def rows_of_others(step):
    """Other ranks would wait for rows that are not a rank's, or get others."""
    q, k, v = (torch.randn(64, heads, 8) for heads in (2, 1, 1))
    given = {"q": q, "k": k, "v": v}
    want = step.attention(q, k, v)
    for name, tensor in given.items():
        for other in (tensor[:60], torch.cat((tensor, tensor)), tensor[None]):
            is_refused(ValueError, f"{name}: ", step.attention, **given | {name: other})
        is_refused(TypeError, f"{name}: NoneType", step.attention, **given | {name: None})
    for other in (q[:60], torch.cat((q, q))):
        is_refused(ValueError, "tensors[0]: ", step.dispatch, other)
        is_refused(ValueError, "local: ", step.undispatch, other)
    assert torch.equal(step.attention(q, k, v), want)


class Lonely(ContextParallel):
    """Whose peers cannot be reached."""

    def _make_peers(self, timeout_ms):
        raise OSError("no peers")


def compare_index(step, q):
    own = q[:step.count]
    assert torch.equal(step.attention(own, own, own, mask=torch.tensor(0)), step.attention(own, own, own))


def refused():
    mask, q = libffa.Mask.causal(64), torch.randn(64, 1, 8)
    with ContextParallel() as cp:
        rows_of_others(cp.plan(mask))
        rows_of_others(Ulysses().share(mask))
        for masks, words in ((3, "masks: int"), ([mask, 3], "masks[1]: int"), (None, "masks: NoneType")):
            is_refused(TypeError, words, cp.plan, masks)
        for index, kind in ((1, IndexError), (-1, IndexError), (mask, TypeError), (None, TypeError)):
            is_refused(kind, "mask: ", cp.plan(mask).attention, q, q, q, mask=index)
        compare_index(cp.plan(mask), q)
        is_refused(TypeError, "inner: int", Ulysses().share, 3)
    is_refused(ValueError, "transport", ContextParallel, transport="pear")
    cp = object.__new__(Lonely)
    is_refused(OSError, "no peers", cp.__init__, transport="peer")
    assert cp._plans is not None
    cp.__del__()  # gives back what there is
    assert cp._plans is None


def peer():
    with emulated()(transport="peer", timeout=60, stages=2) as cp:
        compare(cp, libffa.Mask.from_cu_seqlens([0, 150, 190, 520], causal=True), 1, torch.bfloat16, 2e-2)
        compare(cp, libffa.Mask.full(300), 2, torch.bfloat16, 2e-2, uses_lse=False)  # fewer keys: the windows stay
        no_second_derivative(cp, torch.bfloat16)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"gather": gather, "peer": peer, "refused": refused}[sys.argv[1]]()
    print(f"rank {dist.get_rank()}: ok", flush=True)
    dist.destroy_process_group()
