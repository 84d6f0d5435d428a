# SPDX-License-Identifier: Apache-2.0
"""The systems that bench_attention.py compares: libffa and its peers, behind one interface.

A System is made once, which imports it; prepare() makes a call for a mask and tensors. What a system does not have raises
Unsupported with a sentence. Tensors are [tokens, heads, head_dim], without a batch; each adapter views them as its system
wants them, once.
"""
from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import time
from typing import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_masks import Case, Unsupported
from attention_turns import FailedElsewhere

Call = Callable[[], Tensor]


def module(*names: str):
    """The first of these modules that is installed, and that its own imports let be loaded."""
    reasons = []
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # of shared libraries, and of GPUs that are not there
            reasons.append(first_line(error))
    raise Unsupported("not installed: " + "; ".join(reasons))


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: BaseException) -> str:
    """Why a system is left out that raised this."""
    kind = "" if isinstance(error, FailedElsewhere) else f"{type(error).__name__}: "
    return f"fails: {kind}{first_line(error)}"


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def batched(tensor: Tensor) -> Tensor:
    """With a batch of one."""
    return tensor.unsqueeze(0)


class System:
    """One way to compute attention. `version` is its own, `name` that of --peers. deterministic: gradients, too, are said to
    have the same bits in every run."""

    name = version = ""
    deterministic = False

    def check(self, part: str, dtype: torch.dtype) -> None:
        """Raise Unsupported where the pass "forward" or "backward" is not there for a dtype."""

    def prepare(self, case: Case, q: Tensor, k: Tensor, v: Tensor, backward: bool) -> Call:
        """A call that returns out [tokens, heads, head_dim_v], differentiable by q, k and v where autograd is on.

        backward: its gradients will be asked for. What a system plans for a mask before its first call is done here.
        """
        raise NotImplementedError


class LibFFA(System):
    """This library, by its Python package. deterministic: all calls are. `library`: the path of libffa.so."""

    name = "libffa"

    def __init__(self, deterministic: bool = False):
        self.libffa, self.torch = module("libffa"), module("libffa.torch")
        self.version, self.library, self.deterministic = self.libffa.version(), self.libffa.library_path(), deterministic

    def prepare(self, case, q, k, v, backward):
        mask = self.libffa.Mask.from_slices(case.slices, case.seqlen_q, case.seqlen_k)
        return lambda: self.torch.attention(q, k, v, mask, deterministic=self.deterministic)


class Sdpa(System):
    """PyTorch's scaled_dot_product_attention by cuDNN: one sequence, full or causal."""

    name = "cudnn"
    backend = SDPBackend.CUDNN_ATTENTION

    def __init__(self):
        if not torch.backends.cudnn.is_available():
            raise Unsupported("not installed: PyTorch finds no cuDNN")
        self.version = str(torch.backends.cudnn.version())

    def prepare(self, case, q, k, v, backward):
        documents = case.documents
        if not documents.is_one or not (documents.is_full or (documents.is_causal and case.seqlen_q == case.seqlen_k)):
            raise Unsupported("full and causal masks of one sequence only")
        q, k, v = (batched(t.transpose(0, 1)) for t in (q, k, v))

        def call():
            with sdpa_kernel(self.backend):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=documents.is_causal,
                                                                       enable_gqa=True)
            return out.squeeze(0).transpose(0, 1)

        return call


class CudnnFlex(System):
    """cuDNN's flexible attention (nvidia-cudnn-frontend): any ranges of keys a row."""

    name = "cudnn-flex"

    def __init__(self):
        self.flex = module("cudnn.flex_attention")
        self.version = version_of("nvidia-cudnn-frontend")

    @staticmethod
    def ends(case: Case) -> np.ndarray:
        """[2 n + 1, rows]: a row attends the keys [0, F0), [F1, F2), ..."""
        low, high = case.bounds
        ends = np.zeros((2 * len(low) + 1, case.seqlen_q), np.int32)
        ends[1::2], ends[2::2] = low, high
        return ends[2:] if not low[0].any() else ends

    def prepare(self, case, q, k, v, backward):
        ends = batched(torch.from_numpy(self.ends(case)).to(q.device))
        q, k, v = map(batched, (q, k, v))
        plan = self.flex.create_mask_plan(ends, q, k, v, build_backward=backward)
        return lambda: self.flex.flex_attn_func(q, k, v, mask_plan=plan).squeeze(0)


class FlashAttention(System):
    """What flash-attn's functions have in common: packed documents that are full, causal or of a window."""

    unlimited = None  # a side of a window without a bound

    def prepare(self, case, q, k, v, backward):
        documents = case.documents
        side = lambda count: self.unlimited if count < 0 else count
        window = (side(-1), side(-1)) if documents.is_causal else (side(documents.left), side(documents.right))
        options = dict(causal=documents.is_causal, window_size=window)
        if documents.is_one:
            q, k, v = map(batched, (q, k, v))
            return lambda: self._first(self.dense(q, k, v, **options)).squeeze(0)
        for name, boundaries in (("q", documents.cu_q), ("k", documents.cu_k)):
            options["cu_seqlens_" + name] = torch.tensor(boundaries, dtype=torch.int32).to(q.device)
            options["max_seqlen_" + name] = int(np.diff(boundaries).max())
        return lambda: self._first(self.varlen(q, k, v, **options))

    @staticmethod
    def _first(result):
        """out, also of versions that return lse, too."""
        return result[0] if isinstance(result, (tuple, list)) else result


class FlashAttention3(FlashAttention):
    """FlashAttention-3: a build of the project's folder hopper, or fa3-fwd of PyPI, which has the forward pass only."""

    name = "fa3"
    unlimited = -1

    def __init__(self):
        found = module("flash_attn_interface", "fa3_fwd_interface")
        self.dense, self.varlen = found.flash_attn_func, found.flash_attn_varlen_func
        self.version = version_of("fa3-fwd" if found.__name__ == "fa3_fwd_interface" else "flash-attn-3")
        try:
            config = importlib.import_module(found.__name__.replace("interface", "config"))
            self.left_out = {name for name, value in config.CONFIG["build_flags"].items() if value}
        except ImportError:
            self.left_out = set()  # older builds do not say

    def _needs(self, flag, what):
        if "FLASHATTENTION_DISABLE_" + flag in self.left_out:
            raise Unsupported(f"this build has no {what}")

    def check(self, part, dtype):
        if part == "backward":
            self._needs("BACKWARD", "backward pass")
        if dtype == torch.float16:
            self._needs("FP16", "fp16")

    def prepare(self, case, q, k, v, backward):
        documents = case.documents
        if not (documents.is_full or documents.is_causal):
            self._needs("LOCAL", "windows")
        if not documents.is_one:
            self._needs("VARLEN", "packed documents")
        return super().prepare(case, q, k, v, backward)


class FlashAttention4(FlashAttention):
    """FlashAttention-4 (flash-attn-4 of PyPI)."""

    name = "fa4"

    def __init__(self):
        found = module("flash_attn.cute")
        self.dense, self.varlen = found.flash_attn_func, found.flash_attn_varlen_func
        self.version = version_of("flash-attn-4")


class Flex(System):
    """PyTorch's FlexAttention: any ranges of keys a row, up to MOST."""

    name = "flex"
    MOST = 8
    compiled = staticmethod(torch.compile)

    def __init__(self):
        self.flex = module("torch.nn.attention.flex_attention")
        module("torch._functorch.config").donated_buffer = False  # gradients are asked for several times
        dynamo = module("torch._dynamo").config
        limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"
        setattr(dynamo, limit, 512)
        self.version = torch.__version__
        self.attention, self.create = self.compiled(self.flex.flex_attention), self.compiled(self.flex.create_block_mask)

    def prepare(self, case, q, k, v, backward):
        low, high = case.bounds
        if len(low) > self.MOST:
            raise Unsupported(f"a row attends {len(low)} ranges of keys, more than {self.MOST}")
        block_mask = None
        if case.area != case.seqlen_q * case.seqlen_k:
            lows, highs = (torch.from_numpy(x.astype(np.int32)).to(q.device).unbind() for x in (low, high))

            def attends(_batch, _head, row, key):
                found = (key >= lows[0][row]) & (key < highs[0][row])
                for n in range(1, len(lows)):
                    found = found | ((key >= lows[n][row]) & (key < highs[n][row]))
                return found

            block_mask = self.create(attends, 1, 1, case.seqlen_q, case.seqlen_k, device=str(q.device))
        q, k, v = (batched(t.transpose(0, 1)) for t in (q, k, v))
        return lambda: self.attention(q, k, v, block_mask=block_mask, enable_gqa=True).squeeze(0).transpose(0, 1)


class Magi(System):
    """MagiAttention's flex_flash_attn_func: slices that do not overlap."""

    name = "magi"

    def __init__(self):
        self.attention = module("magi_attention.functional").flex_flash_attn_func
        self.options = inspect.signature(self.attention).parameters
        self.version = version_of("magi-attention")

    def prepare(self, case, q, k, v, backward):
        if case.overlaps:
            raise Unsupported("slices overlap")
        if q.shape[2] != v.shape[2]:
            raise Unsupported("head_dim of v differs")
        slices = torch.tensor(case.slices, dtype=torch.int32).reshape(-1, 5).to(q.device)
        options = dict(q_ranges=slices[:, 0:2].contiguous(), k_ranges=slices[:, 2:4].contiguous(),
                       attn_type_map=slices[:, 4].contiguous())
        if "disable_fwd_atomic_reduction" in self.options:  # documented as faster where no row is in several slices
            options["disable_fwd_atomic_reduction"] = not case.rows_overlap
        return lambda: self.attention(q, k, v, **options)[0]


SYSTEMS = {system.name: system for system in (LibFFA, Sdpa, CudnnFlex, FlashAttention3, FlashAttention4, Flex, Magi)}
PEERS = tuple(name for name in SYSTEMS if name != LibFFA.name)


def load_systems(names, now=time.perf_counter, **how):
    """({name: System}, {name: seconds of its import}, {name: reason of one that is not there}). how: arguments of the systems."""
    loaded, seconds, left_out = {}, {}, {}
    for name in names:
        begin = now()
        try:
            loaded[name] = SYSTEMS[name](**how)
            seconds[name] = now() - begin
        except Unsupported as error:
            left_out[name] = str(error)
        except Exception as error:  # whatever else a package does when it is imported is its own matter
            left_out[name] = f"does not load: {type(error).__name__}: {first_line(error)}"
    return loaded, seconds, left_out
