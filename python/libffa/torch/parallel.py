# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention over a sequence whose tokens are spread over the ranks of a process group.

    cp = libffa.torch.ContextParallel(group)                                # once; collective
    step, ids, labels, positions = cp.dispatch(mask, ids, labels, positions)  # once a batch
    out = step.attention(q, k, v)                                           # in every layer: the rank's own rows
    whole = step.undispatch(out)                                            # where all tokens are wanted

Every rank has the whole batch's ids and the same mask, and works on the rows that dispatch() gives it. All but
attention is local, so the rest of a model does not know. A loss is a sum over the rank's rows: loss() scales it for
DDP or FSDP2 over these ranks.
"""
from __future__ import annotations

import ctypes as C
import threading
from collections import OrderedDict
from typing import Any, Sequence

import torch
import torch.distributed as dist

from .. import _abi
from .._arrays import integer
from .._library import call, lib, made, struct
from ..errors import InvalidError
from ..mask import Mask, masks_of
from . import _gather, _peer
from ._ops import autocast

STEPS_KEPT = 8  # dispatches with their plans, by masks


class _Exchange:
    """Bytes from every rank to every rank, over the process group: what a communicator is bootstrapped by."""

    def __init__(self, group):
        self.group, self.count = group, dist.get_world_size(group)
        backends = dist.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.has_gpus = "nccl" in backends
        self.device = torch.device("cpu") if "cpu:" in backends else torch.device("cuda", torch.cuda.current_device())
        self.failure: BaseException | None = None
        self.callback = _abi.ffa_comm_allgather(self._call)

    def all(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        every = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(every, mine, group=self.group)
        return [bytes(t.tolist()) for t in every]

    def _call(self, _user, mine, every, count):
        try:
            data = b"".join(self.all(C.string_at(mine, count)))
        except BaseException as error:  # of a callback: raised behind the call of the library
            self.failure = error
            return 1
        C.memmove(every, data, len(data))
        return 0


class ContextParallel:
    """One rank's end of a group that shares sequences.

    group      a torch.distributed process group, or a one-dimensional DeviceMesh; None: all ranks
    transport  "peer": GPUs that get keys from each other while they compute: pulled where all reach each other's memory,
               else over NCCL (docs/context-parallelism.md; between hosts it was not tested).
               "gather": every rank gathers all keys before it computes and sums their gradients afterwards, by
               collectives of the process group. It is the reference, works on any backend, the CPU's, too, and hides
               no transfer. None: "peer" where the group has NCCL, else "gather"
    timeout    seconds that one rank waits for another before the group is broken ("peer")
    chunk      tokens of a chunk, the unit of dispatch; 0: the library's choice. Which rank has which chunk is the
               best of several dispatches by the model of time (ffa_dispatch_create_best), of 8 query heads a kv head
    ranks_per_node  neighbours that share a node; 0: all of them
    stages     the most stages in which keys of other ranks arrive ("peer"); 0: the library's choice
    keep_keys  the backward pass takes the keys of other ranks from a copy that the forward one has kept, and brings none:
               half as much travels, for that much memory a layer until its backward pass ("peer")
    check      compare every plan of all ranks (one small collective a batch): masks that differ between ranks are then
               an InvalidError on every rank, and not a hang

    Collective: every rank makes one, and calls plan(), dispatch(), attention(), undispatch() and close() in the same
    order. Raises CommunicatorError, and UnsupportedError (neither peer access nor NCCL). Thread: one call of a rank at a
    time.
    """

    def __init__(self, group: Any = None, *, transport: str | None = None, timeout: float = 60.0, chunk: int = 0,
                 ranks_per_node: int = 0, stages: int = 0, keep_keys: bool = False, check: bool = True):
        if hasattr(group, "get_group"):
            group = group.get_group()
        self.group = group
        self.rank, self.rank_count = dist.get_rank(group), dist.get_world_size(group)
        self.chunk, self.ranks_per_node, self.stages, self.check = chunk, ranks_per_node, stages, check
        self.keep_keys = keep_keys
        self._plans = self._peers = None
        self._exchange = _Exchange(group)
        if transport is None:
            transport = "peer" if self._exchange.has_gpus else "gather"
        if transport not in ("peer", "gather"):
            raise ValueError(f"transport: '{transport}', not 'peer' or 'gather'")
        self.transport = transport
        self._plans = made("ffa_parallel_cache_create", 0)
        self._steps: OrderedDict[tuple, Step] = OrderedDict()
        self._lock = threading.Lock()
        self._peers = self._make_peers(int(timeout * 1000)) if transport == "peer" else None

    def _make_peers(self, timeout_ms):
        return _peer.Peers(self, torch.cuda.current_device(), timeout_ms)

    # ---- a batch ----

    def plan(self, mask: Mask | Sequence[Mask], weights: Sequence[int] | None = None) -> Step:
        """Who owns which rows of a batch with this mask: once a batch, or once for all batches of one mask.

        mask     of all tokens, seqlen_q == seqlen_k, the same on all ranks; or several, of layers of different kinds
        weights  with several masks: layers that have each
        """
        masks = tuple(masks_of([mask] if isinstance(mask, Mask) else mask))
        weights = tuple(weights or [1] * len(masks))
        if not masks or len(weights) != len(masks):
            raise ValueError(f"{len(masks)} masks and {len(weights)} weights: one a mask, and at least one mask")
        step = self._steps.get((masks, weights))
        if step is None:
            step = self._steps[masks, weights] = Step(self, masks, weights)
            while len(self._steps) > STEPS_KEPT:
                self._steps.popitem(last=False)
        self._steps.move_to_end((masks, weights))
        if self.check:
            self._compare(step.digest)
        return step

    def _compare(self, digest):
        every = self._exchange.all(digest)
        for rank, other in enumerate(every):
            if other != every[0]:
                raise InvalidError(f"ranks 0 and {rank} have different plans: their masks or options differ")

    def dispatch(self, mask: Mask | Sequence[Mask], *tensors: torch.Tensor, dim: int = 0):
        """plan(), and the rank's rows of whole tensors, such as ids, labels and position ids: (step, *local)."""
        step = self.plan(mask)
        return (step, *step.dispatch(*tensors, dim=dim))

    def attention(self, q, k, v, step: Step, **options):
        """step.attention(q, k, v): for models that hand a mask on to their attention function."""
        return step.attention(q, k, v, **options)

    # ---- the loss ----

    def loss(self, summed: torch.Tensor, count: Any, *, averaged: int | None = None) -> torch.Tensor:
        """What a rank calls backward() on, so that parameters get the gradient of the mean loss of all tokens.

        summed    the sum of the losses of the rank's own rows
        count     tokens with a label, of all ranks whose gradients are reduced: of the whole batch
        averaged  by how many ranks DDP or FSDP2 divides the sum of gradients: its world size. None: this group's. 1 where
                  gradients are summed
        """
        return summed * ((self.rank_count if averaged is None else averaged) / count)

    def mean(self, summed: torch.Tensor, count: Any) -> torch.Tensor:
        """The mean loss of all tokens, for a log: the same on all ranks, without a gradient."""
        total = summed.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total / count

    def status(self) -> None:
        """Raise what broke the group, if something did. To be asked when the GPU is synchronised anyway."""
        if self._peers:
            self._peers.status()

    def close(self) -> None:
        """Leave the group; the others leave, too. Without it ranks that still wait for this one break the group."""
        self._steps.clear()
        if self._peers:
            self._peers.close()
            self._peers = None
        if self._plans:
            lib.ffa_parallel_cache_destroy(self._plans)
            self._plans = None

    def __enter__(self) -> ContextParallel:
        return self

    def __exit__(self, *_error) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_plans", None) and lib is not None:  # None: Python ends
            self.close()


class Step:
    """A batch, spread over the ranks. Layers and their backward passes share it.

    tokens  of the whole batch
    count   the rank's own rows: `count` tokens, its chunks in ascending order
    ids     [count] int64, on the CPU: the token of the whole batch in each row
    """

    def __init__(self, cp: ContextParallel, masks: tuple[Mask, ...], weights: tuple[int, ...]):
        self.cp, self.masks = cp, masks
        self.tokens: int = masks[0].seqlen_q
        entries = (_abi.ffa_dispatch_mask * len(masks))()
        for entry, mask, weight in zip(entries, masks, weights):
            entry.mask, entry.weight = mask.handle.value, weight
        topology = _abi.ffa_topology(cp.rank_count, cp.ranks_per_node)
        options = struct(_abi.ffa_dispatch_opts, chunk_tokens=cp.chunk)
        options.flags = 1 if cp.chunk else 0  # FFA_DISPATCH_CHUNK_EXACT
        model = struct(_abi.ffa_parallel_plan_opts, sms=cp._peers.sms if cp._peers else 0)
        self._dispatch = made_from("ffa_parallel_cache_best", cp._plans, entries, len(masks), C.byref(topology),
                                   C.byref(options), C.byref(model))
        self.digest: bytes = lib.ffa_dispatch_digest(self._dispatch)
        self.counts = [lib.ffa_dispatch_query_rows(self._dispatch, rank) for rank in range(cp.rank_count)]
        self.count: int = self.counts[cp.rank]
        self.ids = self._ids_of(cp.rank)
        self._on_device: dict[Any, torch.Tensor] = {}
        self._made: dict[Any, Any] = {}  # passes, local masks: by what they are for

    def _ids_of(self, rank):
        ids = torch.empty(self.counts[rank], dtype=torch.int64)
        rows = _abi.ffa_rows(self._dispatch, 0, rank, _abi.FFA_FP32, 1, 1)
        call("ffa_rows_position_ids", C.byref(rows), C.cast(ids.data_ptr(), C.c_void_p))
        return ids

    def ids_on(self, device) -> torch.Tensor:
        """ids, on a device."""
        return self._on(device, "own", lambda: self.ids)

    def _on(self, device, name, make):
        tensor = self._on_device.get((device, name))
        if tensor is None:
            tensor = self._on_device[device, name] = make().to(device, non_blocking=True)
        return tensor

    def order_on(self, device) -> torch.Tensor:
        """[tokens] int64: where each token is in the ranks' rows, one rank's after another's, each padded to the
        longest."""
        return self._on(device, "order", self._order)

    def _order(self):
        order, longest = torch.empty(self.tokens, dtype=torch.int64), max(self.counts)
        for rank, count in enumerate(self.counts):
            order[self._ids_of(rank)] = torch.arange(count) + rank * longest
        return order

    def dispatch(self, *tensors: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
        """The rank's rows of whole tensors with the tokens along `dim`. A gradient is that of the rank's own rows; zero
        elsewhere."""
        check_whole(tensors, dim, self.tokens)
        return [tensor.index_select(dim, self.ids_on(tensor.device)) for tensor in tensors]

    def undispatch(self, local: torch.Tensor, dim: int = 0, *, summed: bool = False) -> torch.Tensor:
        """The whole tensor, of the rows of all ranks; collective. summed: the gradient is the sum of what all ranks have
        for it (each uses the whole for a part of the loss); else each rank has all of it, as where all compute the same."""
        check_local(local, dim, self.count)
        whole = _gather.Whole.apply(local.movedim(dim, 0), self, summed)
        return whole.movedim(0, dim)

    @torch.compiler.disable
    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None,
                  softcap: float = 0.0, sink: torch.Tensor | None = None, return_lse: bool = False,
                  return_max_logits: bool = False, deterministic: bool = False, mask: int = 0):
        """Attention of the rank's own rows over the keys of all ranks; as libffa.torch.attention().

        q, k, v   [count][heads][head_dim], of this rank's rows; strides are free, rows contiguous
        sink      [heads_q] or [sinks][heads_q], the same on all ranks. Its gradient is the rank's share, so that ranks'
                  gradients add up, or average, as those of other parameters do
        mask      which of plan()'s masks
        Returns out [count][heads_q][head_dim of v]; with lse [count][heads_q] fp32 (it has a gradient), and the largest
        logits [heads_q] over all ranks (no gradient), where these are asked for.
        """
        check_rows(q, k, v, self.count, self.tokens)
        mask = integer(mask, "mask")
        if not 0 <= mask < len(self.masks):
            raise IndexError(f"mask: {mask}, the plan has {len(self.masks)}, counted from 0")
        q, k, v = autocast(q, k, v)
        backend = _peer if self.cp._peers else _gather
        return backend.attention(self, q, k, v, mask, scale, softcap, sink, return_lse, return_max_logits, deterministic)

    def __del__(self, destroy=lib.ffa_dispatch_destroy):
        if getattr(self, "_dispatch", None):
            destroy(self._dispatch)


def check_whole(tensors, dim, tokens):
    """Refuse what dispatch() cannot take the rank's rows of."""
    for i, tensor in enumerate(tensors):
        if tensor.shape[dim] != tokens:
            raise ValueError(f"tensors[{i}]: {tensor.shape[dim]} tokens along dim {dim}, the batch has {tokens}")


def check_local(local, dim, count):
    """Refuse what undispatch() cannot put together."""
    if local.shape[dim] != count:
        raise ValueError(f"local: {local.shape[dim]} rows along dim {dim}, this rank has {count}")


def check_rows(q, k, v, count, tokens):
    """Refuse what attention() would exchange with other ranks, although it is not the rank's rows."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: {type(tensor).__name__}, not a tensor")
        if tensor.dim() != 3:
            raise ValueError(f"{name}: {tensor.dim()} dimensions; [{count}, heads, head_dim] is needed")
        if tensor.shape[0] != count:
            raise ValueError(f"{name}: {tensor.shape[0]} rows, this rank has {count} of the batch's {tokens} tokens")


def made_from(name, source, *arguments):
    """As made(), of a function whose second argument receives the object."""
    out = C.c_void_p()
    call(name, source, C.byref(out), *arguments)
    return out


__all__ = ["ContextParallel", "Step"]
