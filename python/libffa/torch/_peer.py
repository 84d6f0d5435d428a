# SPDX-License-Identifier: Apache-2.0
"""Context parallelism over a communicator of GPUs: passes that begin with own keys while those of others arrive.

Invariant: what a call's kernels read (pass, uploaded plan, workspace) lives until the stream has passed the call.
PyTorch's allocator sees to that for memory; a pass, which is the library's, is destroyed once its last call's event is.
"""
from __future__ import annotations

import ctypes as C
import threading
from functools import partial

import torch

from .. import _abi, context
from .._library import call, lib, made, struct
from ._ops import once

DTYPES = {torch.bfloat16: _abi.FFA_BF16, torch.float16: _abi.FFA_FP16}
ALIGNMENT = 256  # of workspaces and uploaded plans
GROWTH = 1.25  # windows are made larger than asked for: to make them larger again waits for the device


class Peers:
    """The communicator of a rank, its kernels, and its windows.

    ordinal  of the rank's GPU
    sms      that plans are made for, the same on all ranks: those of the GPU that has the fewest
    """

    def __init__(self, cp, ordinal, timeout_ms):
        self.cp, self.ordinal = cp, ordinal
        self.context = context.shared(ordinal)
        own = self.context.info().sm_count.to_bytes(4, "little")
        self.sms = min(int.from_bytes(sms, "little") for sms in cp._exchange.all(own))
        self.kernels, self.windows, self.retired = {}, (0, 0), []
        self.lock = threading.Lock()
        options = struct(_abi.ffa_peer_opts, rank=cp.rank, rank_count=cp.rank_count, allgather=cp._exchange.callback,
                         timeout_ms=timeout_ms)
        self.comm = self._collective(made, "ffa_comm_create_peer", self.context.handle, C.byref(options))

    def _collective(self, function, *arguments):
        """A call that may bootstrap: an exception of the process group is the cause of the library's."""
        try:
            return function(*arguments)
        except Exception as error:
            raise error from self.cp._exchange.failure

    def stream(self):
        return C.c_void_p(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def enqueue(self, name, pass_, kernels, args):
        call(name, pass_.handle, kernels, self.comm, C.byref(args), self.stream())
        pass_.used()

    def event(self):
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.ordinal))
        return event

    def kernels_for(self, spec):
        """spec: fields of an ffa_attention_spec, as a tuple of pairs."""
        if spec not in self.kernels:
            self.kernels[spec] = made("ffa_kernels_create", self.context.handle,
                                      C.byref(struct(_abi.ffa_attention_spec, **dict(spec))))
        return self.kernels[spec]

    def reserve(self, key_bytes, sum_bytes):
        """Windows at least so large. The arguments are the same on all ranks, and so is whether they are made larger."""
        if key_bytes <= self.windows[0] and sum_bytes <= self.windows[1]:
            return
        wanted = tuple(max(old, int(new * GROWTH)) for old, new in zip(self.windows, (key_bytes, sum_bytes)))
        self._collective(call, "ffa_comm_reserve", self.comm, *wanted)
        self.windows = wanted

    def retire(self, handle, event):
        with self.lock:
            self.retired.append((handle, event))

    def reap(self, wait=False):
        """Destroy passes whose calls are over."""
        with self.lock:
            kept = []
            for handle, event in self.retired:
                if event is not None and wait:
                    event.synchronize()
                if event is None or event.query():
                    lib.ffa_parallel_pass_destroy(handle)
                else:
                    kept.append((handle, event))
            self.retired = kept

    def status(self):
        call("ffa_comm_status", self.comm)

    def close(self):
        lib.ffa_comm_destroy(self.comm)
        self.reap(wait=True)
        for kernels in self.kernels.values():
            lib.ffa_kernels_destroy(kernels)
        self.kernels = {}


def bytes_on(device, count):
    """Memory of a device for `count` bytes, and its aligned address."""
    memory = torch.empty(count + ALIGNMENT, dtype=torch.uint8, device=device)
    return memory, (memory.data_ptr() + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class Pass:
    """The pass of a step for tensors of one shape: made by the first layer that calls, shared by all."""

    def __init__(self, step, index, shape, spec, device):
        cp, peers = step.cp, step.cp._peers
        heads_q, heads_kv, head_dim, head_dim_v, element = shape
        self.peers, self.handle, self.event = peers, None, None
        self.kernels = peers.kernels_for(spec)
        options = struct(_abi.ffa_parallel_plan_opts, sms=peers.sms, head_dim_v=head_dim_v,
                         forward_stages=cp.stages, backward_stages=cp.stages, stage_rows_min=1 if cp.stages > 0 else 0)
        options.model.heads_q, options.model.heads_kv = heads_q, heads_kv
        options.model.head_dim, options.model.element_bytes = head_dim, element
        plan = C.c_void_p()
        call("ffa_parallel_cache_plan", cp._plans, C.byref(plan), step._dispatch, step.masks[index].handle, cp.rank,
             C.byref(options))
        try:
            self.handle = made("ffa_parallel_pass_create", plan, self.kernels)
            rows = max(self._rows(plan, rank) for rank in range(cp.rank_count))
        finally:
            lib.ffa_parallel_plan_destroy(plan)
        info = struct(_abi.ffa_parallel_pass_info)
        call("ffa_parallel_pass_info_get", self.handle, self.kernels, heads_q, heads_kv, C.byref(info))
        columns = heads_kv * (head_dim + head_dim_v)
        peers.reserve(rows * columns * element, rows * columns * 4)
        self.kept_bytes = info.kept_bytes if cp.keep_keys else None
        self.workspaces = {"ffa_parallel_forward": info.forward_workspace_bytes,
                           "ffa_parallel_backward": info.backward_workspace_bytes}
        self.buffer, address = bytes_on(device, info.upload_bytes)
        call("ffa_parallel_pass_upload", self.handle, self.kernels, C.c_void_p(address), peers.stream())

    @staticmethod
    def _rows(plan, rank):
        """Rows of a rank's key window: every rank knows those of all."""
        found = struct(_abi.ffa_parallel_rank)
        call("ffa_parallel_plan_rank_get", plan, rank, C.byref(found))
        return found.tokens_k + found.received_rows

    def used(self):
        self.event = self.peers.event()

    def __del__(self):
        if getattr(self, "handle", None):
            self.peers.retire(self.handle, self.event)


def set_tensor(field, tensor):
    """An ffa_tensor of [tokens][heads][head_dim], or [tokens][heads] for statistics."""
    field.data = tensor.data_ptr() or None
    field.token_stride, field.head_stride = tensor.stride(0), tensor.stride(1)
    field.tokens, field.heads = tensor.shape[:2]
    field.head_dim = tensor.shape[2] if tensor.dim() == 3 else 1


def rows_of(tensor):
    """The tensor, its rows contiguous and aligned as the kernels need them: itself, wherever that can be."""
    aligned = tensor.data_ptr() % 16 == 0 and all(s * tensor.element_size() % 16 == 0 for s in tensor.stride()[:-1])
    return tensor if tensor.stride(-1) == 1 and aligned else tensor.contiguous()


def arguments(pass_, q, k, v, sink, scale, softcap):
    args = struct(_abi.ffa_parallel_args)
    args.heads_q, args.heads_kv, args.head_dim, args.head_dim_v = q.shape[1], k.shape[1], q.shape[2], v.shape[2]
    args.dtype = DTYPES[q.dtype]
    args.softmax_scale, args.softcap = scale or 0.0, softcap
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        set_tensor(getattr(args, name), tensor)
    if sink is not None:
        args.sink, args.sink_count = sink.data_ptr(), sink.shape[0]
    return args


def run(pass_, name, args, device):
    count = pass_.workspaces[name]
    memory, args.workspace = bytes_on(device, count)
    args.workspace_bytes = count
    pass_.peers.enqueue(name, pass_, pass_.kernels, args)
    return memory  # the caller's until it has enqueued what it had to


def gradients(rest, dout, dlse, q, k, v, sinks, out, lse, kept):
    pass_, scale, softcap, sink = rest
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dout = torch.zeros_like(out) if dout is None else rows_of(dout)
    args = arguments(pass_, q, k, v, sinks, scale, softcap)
    for name, tensor in (("out", out), ("lse", lse), ("dout", dout), ("dq", dq), ("dk", dk), ("dv", dv)):
        set_tensor(getattr(args, name), tensor)
    if dlse is not None:
        dlse = dlse.contiguous()
        set_tensor(args.dlse, dlse)
    if kept is not None:
        args.kept_keys, args.kept_bytes = kept.data_ptr(), pass_.kept_bytes
    dsink = None
    if sink is not None:
        dsink = torch.empty_like(sinks)
        args.dsink = dsink.data_ptr()
    run(pass_, "ffa_parallel_backward", args, q.device)
    if dsink is not None:  # summed over all ranks: an equal share each
        dsink = (dsink / pass_.peers.cp.rank_count).reshape(sink[0]).to(sink[1])
    return dq, dk, dv, dsink


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, pass_, scale, softcap, wants_largest):
        q, k, v = rows_of(q), rows_of(k), rows_of(v)
        sinks = None if sink is None else sink.detach().float().reshape(-1, q.shape[1]).contiguous()
        out = q.new_empty((*q.shape[:2], v.shape[2]))
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        largest = q.new_empty(q.shape[1] if wants_largest else 0, dtype=torch.float32)
        args = arguments(pass_, q, k, v, sinks, scale, softcap)
        set_tensor(args.out, out)
        set_tensor(args.lse, lse)
        if wants_largest:
            args.max_logits = largest.data_ptr()
        kept = None
        if pass_.kept_bytes is not None and any(ctx.needs_input_grad[:4]):
            kept = q.new_empty(max(pass_.kept_bytes, 1), dtype=torch.uint8)
            args.kept_keys, args.kept_bytes = kept.data_ptr(), pass_.kept_bytes
        run(pass_, "ffa_parallel_forward", args, q.device)
        ctx.save_for_backward(q, k, v, sinks, out, lse, kept)
        ctx.rest = pass_, scale, softcap, None if sink is None else (sink.shape, sink.dtype)
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)
        return out, lse, largest

    @staticmethod
    def backward(ctx, dout, dlse, _largest):
        return *once(partial(gradients, ctx.rest), dout, dlse, *ctx.saved_tensors), None, None, None, None


def attention(step, q, k, v, index, scale, softcap, sink, return_lse, return_max_logits, deterministic):
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k, v: {q.dtype}, {k.dtype}, {v.dtype}: bfloat16 or float16 are needed, the same for all")
    flags = _abi.FFA_SPEC_PARALLEL | _abi.FFA_SPEC_BACKWARD
    flags |= (_abi.FFA_SPEC_SOFTCAP if softcap else 0) | (_abi.FFA_SPEC_DETERMINISTIC if deterministic else 0)
    flags |= _abi.FFA_SPEC_MAX_LOGITS if return_max_logits else 0
    shape = (q.shape[1], k.shape[1], q.shape[2], v.shape[2], q.element_size())
    spec = (("dtype", DTYPES[q.dtype]), ("head_dim", shape[2]), ("head_dim_v", shape[3]), ("flags", flags),
            ("heads_q", shape[0]), ("heads_kv", shape[1]))
    pass_ = step._made.get((index, spec))
    if pass_ is None:
        step.cp._peers.reap()
        pass_ = step._made[index, spec] = Pass(step, index, shape, spec, q.device)
    out, lse, largest = Attention.apply(q, k, v, sink, pass_, scale, softcap, return_max_logits)
    found = (out, *((lse,) if return_lse else ()), *((largest,) if return_max_logits else ()))
    return found if len(found) > 1 else out
