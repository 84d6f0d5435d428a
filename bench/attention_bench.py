# SPDX-License-Identifier: Apache-2.0
"""What bench_attention.py does with one mask and shape: inputs, fp64, first calls of each system, their turns, the rows."""
from __future__ import annotations

import contextlib
from functools import partial
from typing import Callable, Iterator, NamedTuple

import torch

from attention_masks import Unsupported
from attention_peers import reason_of
from attention_report import Shape, add_ratios, flops
from attention_turns import EventClock, WallClock, in_turns, summary, take_turn


class Inputs(NamedTuple):
    """q, k and v [tokens, heads, head_dim] that gradients are asked for, and dout."""

    q: object
    k: object
    v: object
    dout: object

    @property
    def checked(self):
        """The kv head that is compared with fp64: the last."""
        return self.k.shape[1] - 1

    @classmethod
    def make(cls, case, shape, dtype, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        normal = lambda *size: torch.randn(*size, device=device, dtype=dtype, generator=generator)
        q, k, v, dout = (normal(case.seqlen_q, shape.heads_q, shape.head_dim), normal(case.seqlen_k, shape.heads_kv, shape.head_dim),
                         normal(case.seqlen_k, shape.heads_kv, shape.head_dim_v),
                         normal(case.seqlen_q, shape.heads_q, shape.head_dim_v))
        return cls(*(t.requires_grad_() for t in (q, k, v)), dout)


def reference(case, inputs, head_kv):
    """(out, dq, dk, dv) in fp64 of a kv head and its query heads [tokens, heads, head_dim], rows at a time."""
    group = inputs.q.shape[1] // inputs.k.shape[1]
    heads = slice(head_kv * group, (head_kv + 1) * group)
    q, dout = (t[:, heads].detach().double().transpose(0, 1) for t in (inputs.q, inputs.dout))
    k, v = (t[:, head_kv].detach().double() for t in (inputs.k, inputs.v))
    low, high = (torch.from_numpy(bound).to(q.device) for bound in case.bounds)
    keys = torch.arange(case.seqlen_k, device=q.device)
    scale = q.shape[2] ** -0.5
    out, dq, dk, dv = torch.empty_like(dout), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, (1 << 24) // max(1, case.seqlen_k))
    for begin in range(0, case.seqlen_q, step):
        rows = slice(begin, begin + step)
        cells = torch.zeros(low[0, rows].shape[0], case.seqlen_k, dtype=torch.bool, device=q.device)
        for first, last in zip(low[:, rows], high[:, rows]):
            cells |= (keys >= first[:, None]) & (keys < last[:, None])
        for head in range(group):
            scores = (q[head, rows] @ k.T * scale).masked_fill_(~cells, -torch.inf)
            p = torch.softmax(scores, 1).masked_fill_(~cells, 0)  # 0 also where a row has no keys
            out[head, rows] = p @ v
            d = dout[head, rows]
            dv += p.T @ d
            ds = p * (d @ v.T - (d * out[head, rows]).sum(1, keepdim=True)) * scale
            dq[head, rows], dk = ds @ k, dk + ds.T @ q[head, rows]
    return out.transpose(0, 1), dq.transpose(0, 1), dk[:, None], dv[:, None]


# Relative L2 error of a head: a few units of the dtype's precision, as products of rounded values have.
LIMITS = {"bf16": 2e-2, "fp16": 4e-3, "fp32": 1e-4}
LEAST = 1e-4  # root mean square; that of dq is 4e-4 where normally distributed rows attend 64k keys


def errors_of(want, out, gradients, head_kv):
    """{name: relative L2 error} of a kv head's out and gradients; infinite where there is a NaN. What should be all but 0, as
    dq of rows with one key, is compared with LEAST."""
    heads = want[0].shape[1]
    of_q, of_k = slice(head_kv * heads, (head_kv + 1) * heads), slice(head_kv, head_kv + 1)
    found = {}
    for name, have, expected, part in zip(("out", "dq", "dk", "dv"), (out, *gradients), want, (of_q, of_q, of_k, of_k)):
        least = LEAST * expected.numel() ** 0.5
        error = float((have.detach()[:, part].double() - expected).norm() / expected.norm().clamp(min=least))
        found[name] = error if error == error else float("inf")
    return found


class Prepared(NamedTuple):
    """A system's calls for a mask, ready to be timed: by pass; its first calls' times; {name: error}, empty if not checked."""

    calls: dict[str, Callable]
    cold: dict[str, float]
    errors: dict[str, float]

    @property
    def parts(self):
        return list(self.calls)

    def taker(self, clock, part):
        """Takes a turn: (settle_ms, measure_ms) -> Turn."""
        return partial(take_turn, clock, self.calls[part])


class Bench:
    """What all masks of a run share.

    systems   {name: System}, libffa first
    seconds   {name: seconds of its import}
    state     the GPU's state in spans of time, as Monitor.state
    variants  {name: VariantProcess}
    """

    def __init__(self, options, systems, seconds, clock, state=lambda _spans: {}, variants=None):
        self.options, self.systems, self.seconds, self.clock, self.state = options, systems, seconds, clock, state
        self.variants = variants or {}
        self.dtype = dict(bf16=torch.bfloat16, fp16=torch.float16, fp32=torch.float32)[options.dtype]
        self.parts = [part for part in ("forward", "backward") if part in options.parts or "both" in options.parts]
        self.device = torch.device(options.device)
        # The first one of a process imports SymPy, whoever calls it: that is no system's time.
        one = torch.ones(1, requires_grad=True)
        torch.autograd.grad(one + one, one)

    @classmethod
    def of_options(cls, options, systems, seconds, **rest):
        """With the clock of the options' device."""
        return cls(options, systems, seconds, EventClock() if options.device == "cuda" else WallClock(), **rest)

    def inputs_of(self, case, shape):
        """(Inputs, the reference or None) of a mask: the same in every process. Others have what memory that took."""
        inputs = Inputs.make(case, shape, self.dtype, self.device, self.options.seed)
        want = None if self.options.no_check else reference(case, inputs, inputs.checked)
        self.clock.empty()
        return inputs, want

    def _timed_ms(self, call):
        """What it returns, and the milliseconds until the device has done it. What was enqueued before does not count."""
        self.clock.wait()
        begin = self.clock.now()
        result = call()
        self.clock.wait()
        return result, (self.clock.now() - begin) * 1e3

    def prepare(self, name, case, inputs, parts, want):
        """A system's calls; its first ones are made here, timed, and compared with `want`, unless that is None."""
        system, backward = self.systems[name], "backward" in parts
        leaves = [t if backward else t.detach() for t in inputs[:3]]
        cold = {"import_s": self.seconds[name]}
        mode = contextlib.nullcontext if backward else torch.no_grad
        with mode():
            forward, cold["plan_ms"] = self._timed_ms(lambda: system.prepare(case, *leaves, backward))
            out, cold["first_forward_ms"] = self._timed_ms(forward)
        calls, gradients, errors = {}, (), {}
        if backward:
            gradient = lambda: torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)
            gradients, cold["first_backward_ms"] = self._timed_ms(gradient)
            calls["backward"] = gradient
        if "forward" in parts:
            calls["forward"] = torch.no_grad()(forward)
        with torch.no_grad():
            forward()  # what autograd's absence compiles is no part of another mask's time
            again = lambda: system.prepare(case.restated(), *leaves, False)()
            cold["new_mask_ms"] = self._timed_ms(again)[1]
        if want is not None:
            errors = errors_of(want, out, gradients, inputs.checked)
            if backward and system.deterministic and not all(map(torch.equal, gradients, gradient())):
                errors["repeated"] = float("inf")
        return Prepared(calls, cold, errors)

    def try_to_prepare(self, name, case, inputs, want, wanted):
        """(what is prepared, or None; {pass: why it is left out}) of the wanted passes. Where both passes fail together the
        forward pass is tried alone."""
        parts, left_out = [], {}
        for part in wanted:
            try:
                self.systems[name].check(part, self.dtype)
                parts.append(part)
            except Unsupported as error:
                left_out[part] = str(error)
        while parts:
            try:
                return self.prepare(name, case, inputs, parts, want), left_out
            except Unsupported as error:
                return None, {**left_out, **dict.fromkeys(parts, str(error))}
            except Exception as error:  # a peer's failure is a row, and the others go on
                left_out[parts.pop()] = reason_of(error)
            self.clock.wait()  # raises if the device is lost with it
        return None, left_out

    def row_of(self, name, about):
        """The beginning of a system's rows."""
        return dict(system=name, **({"variant": self.variants[name].text} if name in self.variants else {}), **about)

    def skipped(self, name, about, left_out) -> Iterator[dict]:
        """Rows of passes that are left out, one where all are for the same reason."""
        row = self.row_of(name, about)
        if len(left_out) == len(self.parts) and len(set(left_out.values())) == 1:
            yield dict(row, skipped=left_out[self.parts[0]])
        else:
            yield from (dict(row, skipped=reason, **{"pass": part}) for part, reason in left_out.items())

    def rows(self, mask, case, shape: Shape) -> Iterator[dict]:
        """The rows of the results file of one mask and shape."""
        about = dict(mask=mask, seqlen=case.seqlen_q, head_dim=shape.head_dim, head_dim_v=shape.head_dim_v,
                     dtype=self.options.dtype, heads=f"{shape.heads_q}:{shape.heads_kv}")
        if case.seqlen_k != case.seqlen_q:
            about["seqlen_k"] = case.seqlen_k
        inputs, want = self.inputs_of(case, shape)
        ready = {}
        names = list(self.systems)
        for name in [*names[:1], *self.variants, *names[1:]]:
            if name in self.variants:
                found, left_out = self.variants[name].try_to_prepare(case, shape, self.parts)
            else:
                found, left_out = self.try_to_prepare(name, case, inputs, want, self.parts)
            yield from self.skipped(name, about, left_out)
            if found:
                ready[name] = found
                yield dict(self.row_of(name, about), cold=found.cold)
        del want
        yield from self.figures(case, shape, about, ready)
        for process in self.variants.values():
            process.drop()

    def figures(self, case, shape, about, ready):
        """The rows of what was timed, and of what failed then."""
        options = self.options
        taken, failed = {}, {name: {} for name in ready}
        for part in self.parts:
            takers = {name: found.taker(self.clock, part) for name, found in ready.items() if part in found.parts}
            taken[part], reasons = in_turns(self.clock.now, takers, options.rounds, options.warm_ms, options.settle_ms,
                                            options.measure_ms)
            for name, error in reasons.items():
                failed[name][part] = reason_of(error)
        for name, reasons in failed.items():
            yield from self.skipped(name, about, reasons)
        for part in options.parts:
            rows = []
            for name in ready:
                sides = [taken[x][name] for x in self.parts if part in (x, "both") and name in taken[x]]
                if len(sides) < (2 if part == "both" else 1):
                    continue
                turns = list(zip(*sides))  # of each round, those of the pass
                row = dict(self.row_of(name, about), **{"pass": part}, **summary([sum(t.ms for t in turn) for turn in turns]))
                row["host_ms"] = sum(summary([turn.host_ms for turn in side])["ms"] for side in sides)
                row["tflops"] = flops(part, case.area, shape.heads_q, shape.head_dim, shape.head_dim_v) / row["ms"] / 1e9
                row.update(self.state([(turn.begin, turn.end) for side in sides for turn in side]))
                if ready[name].errors:
                    row["errors"] = {of: error for of, error in ready[name].errors.items()
                                     if part in ("both", "forward" if of == "out" else "backward")}
                    row["wrong"] = any(error > LIMITS[options.dtype] for error in row["errors"].values())
                rows.append(row)
            add_ratios(rows)
            yield from rows
