#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small Llama on packed documents, with one attention function or with several in turn.

  train.py --attention sdpa,libffa --steps 300 --out losses.jsonl
  torchrun --nproc-per-node 2 train.py --attention libffa --context-parallel 2 --fsdp

Each step is one packed row of documents a data-parallel group. Prints a line a step and writes it as JSON to
--out; the last line of a run has its tokens a second and its memory. README.md says more.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from attentions import ATTENTIONS
from model import Config, Llama, loss_sum
from text import batches

SIZES = {
    "tiny": Config(layers=2, dim=64, heads_q=4, heads_kv=2, head_dim=16, hidden=128),
    "small": Config(),
    "medium": Config(layers=16, dim=1024, heads_q=16, heads_kv=4, head_dim=64, hidden=2816),
}
WARM_UP = 10  # steps that the summary's times leave out


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="libffa", help="one or more of %s, with commas" % ", ".join(ATTENTIONS))
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--head-dim", type=int, help="default: the size's")
    parser.add_argument("--tokens", type=int, default=8192, help="of a packed row")
    parser.add_argument("--longest", type=int, help="bytes of a document, at most; default: a row")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the text")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), help="of activations; default: bf16 on a GPU, else fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--context-parallel", type=int, default=1, metavar="RANKS", help="ranks that share a row")
    parser.add_argument("--fsdp", action="store_true", help="shard parameters (FSDP2) instead of DDP")
    parser.add_argument("--out", help="JSON lines are appended here")
    parser.add_argument("--parity", type=float, metavar="LOSS",
                        help="fail where losses of two attentions differ by more in any step")
    args = parser.parse_args()
    args.attention = args.attention.split(",")
    for name in args.attention:
        if name not in ATTENTIONS:
            parser.error(f"--attention {name}: none of {', '.join(ATTENTIONS)}")
    if args.context_parallel > 1 and args.attention != ["libffa"]:
        parser.error("--context-parallel is for --attention libffa")
    args.dtype = args.dtype or ("bf16" if args.device.startswith("cuda") else "fp32")
    return args


@dataclass
class World:
    """The ranks of the launch: --context-parallel neighbours share a row, and each such group has its own."""

    rank: int
    size: int
    device: torch.device
    row: int  # which row of a step this rank works on
    context_parallel: object  # libffa.torch.ContextParallel, or None

    def total(self, value):
        """The sum over all ranks."""
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value


def join(args):
    if "WORLD_SIZE" not in os.environ:
        if args.context_parallel > 1:
            sys.exit("--context-parallel needs torchrun")
        return World(0, 1, torch.device(args.device), 0, None)
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, size, ranks = dist.get_rank(), dist.get_world_size(), args.context_parallel
    if size % ranks:
        sys.exit(f"--context-parallel {ranks} does not divide {size} ranks")
    context_parallel = None
    if ranks > 1:
        import libffa.torch

        groups = [dist.new_group(list(range(first, first + ranks))) for first in range(0, size, ranks)]
        context_parallel = libffa.torch.ContextParallel(groups[rank // ranks])
    return World(rank, size, device, rank // ranks, context_parallel)


def build(args, name, world):
    torch.manual_seed(args.seed)
    config = SIZES[args.size]
    if args.head_dim:
        config = replace(config, head_dim=args.head_dim)
    attend = ATTENTIONS[name].attend
    if world.context_parallel:
        attend = world.context_parallel.attention
    model = Llama(config, attend).to(world.device)
    if args.fsdp and world.size > 1:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # rotary cosines stay fp32
        if args.dtype == "bf16":
            policy = replace(policy, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif world.size > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return torch.compile(model) if args.compile else model


def inputs(batch, name, world):
    """ids, labels, positions and mask of one step, on the device; the rank's own rows, if it shares the row."""
    tensors = [t.to(world.device, non_blocking=True) for t in (batch.ids, batch.labels, batch.positions)]
    mask = ATTENTIONS[name].mask(batch, world.device)
    if world.context_parallel:
        mask = world.context_parallel.plan(mask)
        tensors = mask.dispatch(*tensors)
    return (*tensors, mask)


def memory_mib(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def learning_rate(step, args):
    return min(1.0, (step + 1) / 20) * (1.0 - 0.9 * step / max(args.steps, 1))


def one_step(model, optimizer, batch, name, world, args):
    """The mean loss of all ranks' tokens, and the gradient's norm; tensors, so that the GPU is not waited for."""
    ids, labels, positions, mask = inputs(batch, name, world)
    tokens = world.total((labels != -100).sum())
    mixed = args.dtype == "bf16" and not args.fsdp
    with torch.autocast(world.device.type, dtype=torch.bfloat16) if mixed else nullcontext():
        summed = loss_sum(model(ids, positions, mask), labels)
    (summed * world.size / tokens).backward()  # DDP and FSDP divide sums of gradients by the number of ranks
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return world.total(summed.detach()) / tokens, norm


class Report:
    """Lines of one run: printed, and written as JSON."""

    def __init__(self, args, name, world):
        self.head = {"attention": name, "compile": args.compile, "context_parallel": args.context_parallel,
                     "fsdp": args.fsdp, "ranks": world.size, "seed": args.seed}
        self.file = open(args.out, "a") if args.out and world.rank == 0 else None
        self.prints = world.rank == 0

    def line(self, text, **values):
        if self.prints:
            print(text, flush=True)
        if self.file:
            print(json.dumps(self.head | values), file=self.file, flush=True)


def run(args, name, world):
    """Train once; the losses of all steps."""
    device, losses, times = world.device, [], []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    report = Report(args, name, world)
    model = build(args, name, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args))
    rows = batches(args.tokens, args.seed * 1000 + world.row, args.longest)
    tokens = args.tokens * world.size // args.context_parallel
    for step in range(args.steps):
        batch = next(rows)
        begin = time.perf_counter()
        loss, norm = one_step(model, optimizer, batch, name, world, args)
        schedule.step()
        losses.append(loss.item())  # waits for the GPU
        times.append(time.perf_counter() - begin)
        memory = memory_mib(device)
        report.line(f"{name:7} step {step:4}  loss {losses[-1]:.4f}  {tokens / times[-1]:9.0f} tokens/s  {memory:7.0f} MiB",
                    step=step, loss=losses[-1], grad_norm=float(norm), tokens_s=tokens / times[-1], memory_mib=memory)
    typical = statistics.median(times[WARM_UP:] or times)
    report.line(f"{name:7} {tokens / typical:.0f} tokens/s, {memory_mib(device):.0f} MiB", summary=True,
                tokens_s=tokens / typical, step_ms=1e3 * typical, memory_mib=memory_mib(device),
                device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    return losses


def largest_difference(runs):
    """The largest difference of two runs' losses in a step, and where."""
    (first, *others), worst = runs.items(), (0.0, "")
    for name, losses in others:
        for step, (a, b) in enumerate(zip(first[1], losses)):
            worst = max(worst, (abs(a - b), f"{first[0]} and {name}, step {step}"))
    return worst


def main():
    args = arguments()
    world = join(args)
    runs = {name: run(args, name, world) for name in args.attention}
    failed = False
    if len(runs) > 1 and world.rank == 0:
        worst, where = largest_difference(runs)
        print(f"losses differ by {worst:.2e} at most{f' ({where})' if where else ''}")
        failed = args.parity is not None and not worst <= args.parity
        if failed:
            print(f"more than --parity {args.parity:g}", file=sys.stderr)
    if world.context_parallel:
        world.context_parallel.close()
    if world.size > 1:
        dist.destroy_process_group()
    sys.exit(failed)


if __name__ == "__main__":
    main()
