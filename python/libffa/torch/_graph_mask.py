# SPDX-License-Identifier: Apache-2.0
"""A mask that a CUDA graph can be replayed with another value of."""
from __future__ import annotations

import os

from .._arrays import integer
from ..mask import Mask, registry
from . import _runtime


LARGEST_BYTES = 1 << 35  # of ffa_plan_opts.capacity_bytes


class GraphMask:
    """Stands for a mask in attention(), and is given others later: update() before a replay.

    mask            the first one
    capacity_bytes  of each plan's buffer on the GPU; 0: four times what the first mask needs, at least 1 MiB. update()
                    raises InvalidError, with the bytes that are needed, where a mask needs more
    split           whether calls without gradients may split the keys of a tile over the SMs, for few query rows over many keys,
                    as in decoding. Each call then has a second kernel, whatever its mask, and memory for the parts of all rows:
                    4 * rows * heads_q * (head_dim_v + 1) bytes times the parts that a tile may have, SMs / heads_kv (heads_q,
                    if query heads do not share tiles; either times the samples, if these are folded into heads). Where that is
                    one part, and of a mask per kv head, tiles stay whole

    A graph that was captured with it replays with the mask of the last update(). All its masks have one shape and as many
    lists of slices. Unless `split`, few long documents may take longer than with a Mask.
    """

    def __init__(self, mask: Mask, capacity_bytes: int = 0, *, split: bool = False):
        if not isinstance(mask, Mask):
            raise TypeError(f"mask: {type(mask).__name__}, not a libffa.Mask")
        self.mask, self.capacity_bytes, self.split = mask, integer(capacity_bytes, "capacity_bytes"), split
        self.seqlen_q, self.seqlen_k, self.heads = mask.seqlen_q, mask.seqlen_k, mask.heads
        self.digest = os.urandom(16)
        self.plans: dict[tuple, _runtime.Plan] = {}
        self.id: int = registry.add_weakly(self)

    def plan_of(self, kernels, repeat, device):
        """As Cache.plan_of, of which this is the place for its plans."""
        key = kernels.spec, repeat
        plan = self.plans.get(key)
        if plan is None:
            mask = _runtime.repeated(self.mask, *repeat)
            capacity = self.capacity_bytes
            if not capacity:
                probe = _runtime.Plan(kernels, mask, None, LARGEST_BYTES, self.split)  # which takes what its mask needs
                capacity = min(LARGEST_BYTES, max(1 << 20, 4 * probe.info().image_bytes))
            plan = self.plans[key] = _runtime.Plan(kernels, mask, device, capacity, self.split)
        return plan

    def update(self, mask: Mask) -> None:
        """Make it stand for another mask: enqueues one copy a plan on the current stream, which must be that of the calls and
        replays before and after, or ordered with it. Not while a call with it is being made, nor while that stream is being
        captured, which is a RuntimeError. A mask that is refused changes nothing."""
        if not isinstance(mask, Mask):
            raise TypeError(f"mask: {type(mask).__name__}, not a libffa.Mask")
        if (mask.seqlen_q, mask.seqlen_k, mask.heads) != (self.seqlen_q, self.seqlen_k, self.heads):
            raise ValueError(f"mask: {mask!r}, not of the shape and lists of slices of {self.mask!r}")
        with _runtime.cache.lock:
            for plan in self.plans.values():
                if _runtime.is_capturing(plan.number):
                    raise RuntimeError("a GraphMask cannot be updated while a CUDA graph is being captured: update() it before "
                                       "the capture, or after")
            made = []
            try:
                for (_, repeat), plan in self.plans.items():
                    made.append((plan, plan.like(_runtime.repeated(mask, *repeat))))
                while made:
                    plan, handle = made.pop()
                    plan.replace(handle)
            finally:
                for _, handle in made:
                    _runtime.lib.ffa_plan_destroy(handle)
            self.mask = mask
