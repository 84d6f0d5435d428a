# SPDX-License-Identifier: Apache-2.0
"""The text to train on: documents of byte tokens, made from a seed, packed into rows of one length.

A document introduces a few people with made-up names and places, and then tells what they do. Its grammar
is learnt within some dozen steps; its names are new in each document, so that to go on learning a model has
to attend to the document's begin, and to that of no other.
"""
import random
from dataclasses import dataclass

import torch

END = 0  # the token between documents
VERBS = "meets follows asks helps calls finds answers thanks leaves visits".split()
WHEN = "at noon,before dawn,on monday,after the rain,in winter,at night,without a word,once more".split(",")
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def name_of(random_):
    return "".join(random_.choice(SYLLABLES) for _ in range(random_.randint(2, 4)))


def document(random_, longest):
    """One document, as bytes: most are short, some are up to `longest` bytes."""
    length = min(longest, int(random_.lognormvariate(6.0, 1.0)) + 64)
    people = [name_of(random_) for _ in range(random_.randint(2, 5))]
    home = {person: name_of(random_) for person in people}
    lines = [f"{person.title()} of {home[person].title()}." for person in people]
    size = sum(len(line) + 1 for line in lines)
    while size < length:
        one, other = random_.choice(people), random_.choice(people)
        if random_.random() < 0.3:
            lines.append(f"{one.title()} goes home to {home[one].title()}.")
        else:
            lines.append(f"{one.title()} {random_.choice(VERBS)} {other.title()} {random_.choice(WHEN)}.")
        size += len(lines[-1]) + 1
    return " ".join(lines).encode()[:length]


@dataclass
class Batch:
    """One packed row of documents, on the CPU. The last document may be cut, and goes on in no other row."""

    ids: torch.Tensor  # [tokens] int64
    labels: torch.Tensor  # [tokens] int64: the token to come; -100 at the last token of a document
    positions: torch.Tensor  # [tokens] int64: from 0 in each document
    cu_seqlens: torch.Tensor  # [documents + 1] int32: where documents begin, and `tokens`


def batches(tokens, seed, longest=None):
    """Batches without end, the same ones for a seed. longest: bytes of a document, default `tokens`."""
    random_ = random.Random(seed)
    while True:
        ids, bounds = [], [0]
        while len(ids) < tokens:
            ids += document(random_, longest or tokens)
            ids.append(END)
            bounds.append(min(len(ids), tokens))
        ids = torch.tensor(ids[:tokens])
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
        begins, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
        positions = torch.arange(tokens) - begins.repeat_interleave(lengths)
        labels = ids.roll(-1)
        labels[cu_seqlens[1:].long() - 1] = -100
        yield Batch(ids, labels, positions, cu_seqlens)
