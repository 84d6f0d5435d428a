#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a transformers model on packed samples with context parallelism, as in a recipe of NeMo Automodel.

  torchrun --nproc-per-node 8 nemo_automodel.py --model meta-llama/Llama-3.2-1B --context-parallel 4 --fsdp
  nemo_automodel.py --steps 3                       one process, a tiny model of random weights, on the CPU, too

What libffa asks of a recipe: the attn_implementation's name, and one call a step, prepare(), that makes the plan from
ranges and types, and dispatches ids, labels and position ids. Needs torch and transformers; no kernels are built
beforehand, and no tensor is made contiguous for them.
"""
import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

import libffa
import libffa.torch
import libffa.transformers


def load(args, device):
    """model: {attn_implementation: libffa} in a recipe."""
    name = libffa.transformers.register()
    if args.model:
        return AutoModelForCausalLM.from_pretrained(args.model, attn_implementation=name, dtype=torch.bfloat16).to(device)
    config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, attn_implementation=name)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(device)
    return model.bfloat16() if device.type == "cuda" else model


def packed(vocab, tokens, seed):
    """A row of samples, as a packed data set gives it: a prompt and an answer each, with labels of answers only."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, (tokens,), generator=random)
    seq_lens = []
    while sum(seq_lens) < tokens:
        seq_lens.append(min(int(torch.randint(20, 200, (), generator=random)), tokens - sum(seq_lens)))
    labels, positions = torch.full_like(ids, -100), torch.empty_like(ids)
    begin = 0
    for length in seq_lens:
        positions[begin:begin + length] = torch.arange(length)
        answer = slice(begin + length // 3, begin + length - 1)
        labels[answer] = ids[answer.start + 1:answer.stop + 1]  # the token to come: rows do not follow each other any more
        begin += length
    return {"ids": ids, "labels": labels, "position_ids": positions, "seq_lens": seq_lens}


def prepare(cp, batch, device):
    """The call of each step: ranges and types of the samples, their plan, and this rank's rows of the batch."""
    bounds = torch.tensor([0, *batch["seq_lens"]]).cumsum(0)
    ranges = torch.stack([bounds[:-1], bounds[1:]], dim=1)
    mask = libffa.Mask.from_ranges(ranges, ranges, "causal", len(batch["ids"]))
    rows = [batch[name].to(device)[None] for name in ("ids", "labels", "position_ids")]
    step, ids, labels, positions = cp.dispatch(mask, *rows, dim=1) if cp else (mask, *rows)
    return {"input_ids": ids, "position_ids": positions, "libffa_mask": step}, labels


def parallel(args, device):
    """The mesh of a recipe: rows differ along "dp", and are shared along "cp". (context parallelism, dp rank, ranks)"""
    if "WORLD_SIZE" not in os.environ:
        if args.context_parallel > 1:
            sys.exit("--context-parallel needs torchrun")
        return None, 0, 1
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    size = dist.get_world_size()
    if size % args.context_parallel:
        sys.exit(f"--context-parallel {args.context_parallel} does not divide {size} ranks")
    mesh = init_device_mesh(device.type, (size // args.context_parallel, args.context_parallel), mesh_dim_names=("dp", "cp"))
    cp = libffa.torch.ContextParallel(mesh["cp"]) if args.context_parallel > 1 else None
    return cp, mesh["dp"].get_local_rank(), size


def wrap(model, args, ranks):
    if args.fsdp and ranks > 1:
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    elif ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model


def total(value, ranks):
    if ranks > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="of transformers; default: a tiny Llama of random weights")
    parser.add_argument("--tokens", type=int, default=512, help="of a packed row")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--context-parallel", type=int, default=1, metavar="RANKS")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    cp, dp_rank, ranks = parallel(args, device)
    vocab = AutoConfig.from_pretrained(args.model).vocab_size if args.model else 128
    model = wrap(load(args, device), args, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        batch, labels = prepare(cp, packed(vocab, args.tokens, 1000 * dp_rank + step), device)
        count = total((labels != -100).sum(), ranks)
        logits = model(**batch, use_cache=False).logits
        loss = F.cross_entropy(logits[0].float(), labels[0], reduction="sum")
        (loss * ranks / count).backward()  # DDP and FSDP2 average
        optimizer.step()
        optimizer.zero_grad()
        mean = (total(loss.detach(), ranks) / count).item()
        if ranks == 1 or dist.get_rank() == 0:
            print(f"step {step} loss {mean:.4f}", flush=True)
    if cp:
        cp.close()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
