#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a model of text and images with mixed visibility, as with VeOmni: text is causal, the patches of an image see
each other both ways. Ranks exchange heads (Ulysses), share rows (context parallelism), or both.

  torchrun --nproc-per-node 8 veomni.py --ulysses 2 --context-parallel 4
  veomni.py --steps 3                               one process, on the CPU, too

What libffa asks for: the attn_implementation's name, and one call a step, prepare(), that makes the plan from ranges and
types and dispatches what each token has. The language model is a plain one of transformers, of random weights here.
"""
import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen2Config

import libffa
import libffa.torch
import libffa.transformers

VOCAB, PATCH = 128, 48  # numbers of an image's patch


class Omni(nn.Module):
    """A language model whose tokens are of text or patches of images."""

    def __init__(self):
        super().__init__()
        config = Qwen2Config(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, attn_implementation=libffa.transformers.register())
        self.language = AutoModelForCausalLM.from_config(config)
        self.patches = nn.Linear(PATCH, 64)

    def forward(self, ids, patches, is_image, position_ids, mask):
        text = self.language.get_input_embeddings()(ids)
        embeddings = torch.where(is_image[..., None], self.patches(patches.to(text.dtype)), text)
        return self.language(inputs_embeds=embeddings, position_ids=position_ids, libffa_mask=mask, use_cache=False).logits


def sample(length, image, random):
    """Text with one image inside, [begin, end)."""
    begin, end = image
    ids = torch.randint(VOCAB, (length,), generator=random)
    is_image = torch.zeros(length, dtype=torch.bool)
    is_image[begin:end] = True
    labels = ids.roll(-1).masked_fill(is_image.roll(-1), -100)  # the text to come
    labels[-1] = -100
    patches = torch.randn(length, PATCH, generator=random) * is_image[:, None]
    return {"ids": ids, "labels": labels, "patches": patches, "is_image": is_image, "position_ids": torch.arange(length)}


def packed(seed):
    """A row of samples one after another, and its visibility as ranges and types: what several ranges cover is visible
    once."""
    random = torch.Generator().manual_seed(seed)
    samples, q_ranges, types, begin = [], [], [], 0
    for length, image in ((150, (20, 84)), (210, (5, 133)), (152, (60, 100))):
        samples.append(sample(length, image, random))
        q_ranges += [[begin, begin + length], [begin + image[0], begin + image[1]]]
        types += ["causal", "full"]
        begin += length
    batch = {name: torch.cat([one[name] for one in samples]) for name in samples[0]}
    return batch, q_ranges, types


def prepare(cp, ulysses, row, device):
    """The call of each step: the plan of ranges and types, and this rank's rows of all that tokens have."""
    batch, ranges, types = row
    step = libffa.Mask.from_ranges(ranges, ranges, types, len(batch["ids"]))
    if cp:
        step = cp.plan(step)
    if ulysses:
        step = ulysses.share(step)
    tensors = [tensor.to(device) for tensor in batch.values()]
    if cp or ulysses:
        tensors = step.dispatch(*tensors)
    batch = dict(zip(batch, (tensor[None] for tensor in tensors)))
    return batch.pop("labels"), {**batch, "mask": step}


def parallel(args, device):
    """Neighbours exchange heads; ranks with the same heads share rows. (context parallelism, Ulysses, ranks)"""
    ranks = args.context_parallel * args.ulysses
    if "WORLD_SIZE" not in os.environ:
        if ranks > 1:
            sys.exit("--context-parallel and --ulysses need torchrun")
        return None, None, 1
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if ranks != dist.get_world_size():
        sys.exit(f"--context-parallel {args.context_parallel} times --ulysses {args.ulysses} is not {dist.get_world_size()} ranks")
    mesh = init_device_mesh(device.type, (args.context_parallel, args.ulysses), mesh_dim_names=("cp", "ulysses"))
    cp = libffa.torch.ContextParallel(mesh["cp"]) if args.context_parallel > 1 else None
    ulysses = libffa.torch.Ulysses(mesh["ulysses"]) if args.ulysses > 1 else None
    return cp, ulysses, ranks


def total(value, ranks):
    if ranks > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--context-parallel", type=int, default=1, metavar="RANKS")
    parser.add_argument("--ulysses", type=int, default=1, metavar="RANKS")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    cp, ulysses, ranks = parallel(args, device)
    torch.manual_seed(0)
    model = Omni().to(device)
    if device.type == "cuda":
        model = model.bfloat16()
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        labels, batch = prepare(cp, ulysses, packed(step), device)
        count = total((labels != -100).sum(), ranks)
        loss = F.cross_entropy(model(**batch)[0].float(), labels[0], reduction="sum")
        (loss * ranks / count).backward()  # DDP averages
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
