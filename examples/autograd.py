#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention over packed documents as a torch.autograd.Function, over the C API by ctypes: no build step, CPU or GPU.

  examples/autograd.py [LIBRARY]    default: libffa.so. Needs PyTorch.

Tensors cross by DLPack, so that the library sees their dtypes, shapes and strides and checks them: what does not fit is
an exception with its sentence. The structs below follow include/ffa. The library may be newer: its init functions are
told the size that a struct has here, and so is every call.
"""
import ctypes as C
import sys

import torch
from torch.autograd.function import once_differentiable

lib = C.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libffa.so")
capsule_pointer = C.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]
DTYPES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3, torch.float64: 4}
BACKWARD = 1 << 3  # FFA_SPEC_BACKWARD


class Error(C.Structure):
    _fields_ = [("status", C.c_int), ("native", C.c_int32), ("message", C.c_char * 496)]


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p)] + [(n, C.c_int64) for n in "token_stride head_stride tokens head_dim batch_stride".split()] + \
               [(n, C.c_int32) for n in "batch heads dtype pad".split()]


HEAD = [("struct_size", C.c_uint32)] + [(n, C.c_int32) for n in "heads_q heads_kv sm_margin".split()] + \
       [("softmax_scale", C.c_double), ("softcap", C.c_double)]
SINK = [("sink", C.c_void_p), ("sink_count", C.c_int32), ("flags", C.c_uint32)]
WORKSPACE = [("workspace", C.c_void_p), ("workspace_bytes", C.c_int64)]


class ForwardArgs(C.Structure):
    _fields_ = HEAD + [(n, Tensor) for n in "q k v out lse".split()] + SINK + [("max_logits", C.c_void_p), ("partial", Tensor)] + WORKSPACE


class BackwardArgs(C.Structure):
    _fields_ = HEAD + [(n, Tensor) for n in "q k v out lse dout dq dk dv".split()] + [("dsink", C.c_void_p)] + SINK + \
               [(n, Tensor) for n in "partial_dk partial_dv dlse".split()] + WORKSPACE


class Spec(C.Structure):
    _fields_ = [("struct_size", C.c_uint32)] + [(n, C.c_int32) for n in ("dtype head_dim flags tile_m tile_n head_dim_v backward_tile_m "
                "backward_tile_n pack_heads heads_q heads_kv split pad").split()]


class Documents(C.Structure):
    _fields_ = [("cu_q", C.c_void_p), ("cu_k", C.c_void_p), ("document_count", C.c_int64),
                ("cu_q32", C.c_void_p), ("cu_k32", C.c_void_p)]


def call(name, *args):
    """Call a function that can fail; its sentence is the exception's."""
    error = Error()
    if getattr(lib, name)(*args, C.byref(error)):
        raise RuntimeError(error.message.decode())


def init(struct, name):
    """A struct with its defaults, as the library has it."""
    getattr(lib, name)(C.byref(struct), C.c_size_t(C.sizeof(struct)))
    return struct


def tensor(t):
    """An ffa_tensor for a torch tensor; a last stride that is not 1 is refused."""
    out, capsule = Tensor(), torch.utils.dlpack.to_dlpack(t.detach())
    call("ffa_tensor_from_dlpack", C.byref(out), C.c_void_p(capsule_pointer(capsule, b"dltensor")))
    return out


def made(name, *args):
    out = C.c_void_p()
    call(name, C.byref(out), *args)
    return out


class PlanInfo(C.Structure):  # as much of ffa_plan_info as is asked for
    _fields_ = [("struct_size", C.c_uint32)] + [(n, C.c_int32) for n in "tile_m tile_n tile_count".split()] + \
               [(n, C.c_int64) for n in "sweep_count block_count partial_blocks area upload_bytes".split()]


class Attention:
    """The kernels of a model, and the plan of one batch of packed documents, each causal. Layers share it."""

    def __init__(self, device, dtype, heads_q, heads_kv, head_dim, cu_seqlens):
        self.device, self.heads, self.on_gpu = device, (heads_q, heads_kv), device.type == "cuda"
        self.tokens = cu_seqlens[-1]
        self.context = made("ffa_open", (device.index or 0) if self.on_gpu else -1, None)
        spec = init(Spec(), "ffa_attention_spec_init")
        spec.dtype, spec.head_dim, spec.flags = DTYPES[dtype], head_dim, BACKWARD
        self.kernels = made("ffa_kernels_create", self.context, C.byref(spec))
        bounds = (C.c_int64 * len(cu_seqlens))(*cu_seqlens)
        mask = made("ffa_mask_varlen_causal", C.byref(Documents(C.addressof(bounds), None, len(cu_seqlens) - 1)))
        self.plan = made("ffa_plan_create", self.kernels, mask)
        lib.ffa_mask_destroy(mask)
        info, bytes_ = PlanInfo(C.sizeof(PlanInfo)), C.c_int64()
        call("ffa_plan_info_get", self.plan, C.byref(info))
        call("ffa_backward_workspace_bytes", self.kernels, self.plan, heads_q, heads_kv, C.byref(bytes_))
        self.image = torch.empty(info.upload_bytes, dtype=torch.uint8, device=device)
        self.workspace = torch.empty(bytes_.value + 16, dtype=torch.uint8, device=device)  # whatever is in it
        call("ffa_plan_upload", self.plan, self.kernels, C.c_void_p(self.image.data_ptr()), self.stream())

    def stream(self):
        return C.c_void_p(torch.cuda.current_stream(self.device).cuda_stream if self.on_gpu else None)

    def run(self, name, args, **tensors):
        args.heads_q, args.heads_kv = self.heads
        args.workspace, args.workspace_bytes = self.workspace.data_ptr(), self.workspace.numel()
        for key, value in tensors.items():
            setattr(args, key, tensor(value))
        call(name, self.kernels, self.plan, C.byref(args), self.stream())

    def __call__(self, q, k, v):
        return Function.apply(self, q, k, v)

    def __del__(self):
        lib.ffa_plan_destroy(getattr(self, "plan", None))
        lib.ffa_kernels_destroy(getattr(self, "kernels", None))
        lib.ffa_close(getattr(self, "context", None))


class Function(torch.autograd.Function):
    """out [tokens][heads_q][head_dim], lse [tokens][heads_q] of q, k, v [tokens][heads][head_dim]."""

    @staticmethod
    def forward(ctx, attention, q, k, v):
        for name, t in (("q", q), ("k", k), ("v", v)):  # the library takes longer ones, of which it leaves rows unwritten
            if t.shape[0] != attention.tokens:
                raise RuntimeError(f"{name}: {t.shape[0]} tokens, the batch has {attention.tokens}")
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:2], device=q.device, dtype=q.dtype if q.dtype == torch.float64 else torch.float32)
        attention.run("ffa_forward", init(ForwardArgs(), "ffa_forward_args_init"), q=q, k=k, v=v, out=out, lse=lse)
        ctx.attention = attention
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    @once_differentiable  # there is no second derivative, and PyTorch is to say so
    def backward(ctx, dout, dlse):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if dout.stride(-1) != 1:  # of out.sum(): one element for a whole row
            dout = dout.contiguous()
        ctx.attention.run("ffa_backward", init(BackwardArgs(), "ffa_backward_args_init"), q=q, k=k, v=v, out=out, lse=lse,
                          dout=dout, dlse=dlse, dq=dq, dk=dk, dv=dv)
        return None, dq, dk, dv


def main():
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dtype, cu_seqlens = (torch.bfloat16, [0, 300, 1000, 1024]) if device.type == "cuda" else (torch.float64, [0, 5, 17, 24])
    dim = 64 if device.type == "cuda" else 8
    torch.manual_seed(0)
    attention = Attention(device, dtype, 4, 2, dim, cu_seqlens)
    q, k, v = (torch.randn(cu_seqlens[-1], h, dim, dtype=dtype, device=device, requires_grad=True) for h in (4, 2, 2))
    if dtype == torch.float64:
        print("gradcheck", torch.autograd.gradcheck(attention, (q, k, v)))
    out, lse = attention(q, k, v)
    (out.sum() + 1e-3 * lse.square().sum()).backward()  # a z-loss
    for name, t in (("q", q), ("k", k), ("v", v)):
        print(f"d{name}: sum {t.grad.double().sum().item():.6f}, largest {t.grad.abs().max().item():.6f}")


if __name__ == "__main__":
    main()
