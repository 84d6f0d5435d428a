#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a backward pass misses in L2, by the order of its work items: a simulation, without a GPU.

  simulate_l2.py [--documents N,N,...] [--cap BLOCKS] [--misses N] [--sms N] [--heads HQ:HK]

SMs take a plan's work items in the order of templates/backward_schedule.h: L2 groups, then tiles, longest first, then head groups. Each
item walks blocks of 64 query rows of its heads, a unit of time each, and begins with three units. A visit hits where its block of
Q, dO and dq is among the --cap ones used last: at head_dim 128 a block is 64 KB, and half an L2 of 50 MB, as each half keeps what the
other's SMs read, has some 400. Else device memory brings it, one block after the other, --misses of them in a unit of time: some 66 on an
H100. The mask is packed causal documents, tiles have 128 keys. Prints the share of visits that miss and the
time at which the last SM ends, head by head, in lockstep, and with each SM going down and up in turn whatever its wave, for 1 to 8 parts of
a kv head and L2 groups of 1 to 4 waves.
docs/lab-notes.md ("packed causal documents") has what came of it, beside measured times.
"""
import argparse
import heapq
import math
from collections import OrderedDict

ROWS, KEYS, BEGIN = 64, 128, 3


def tiles_of(documents):
    """The first and the last block of query rows of each key tile, longest first."""
    tiles, begin = [], 0
    for length in documents:
        end = begin + length
        tiles += [(key // ROWS, (end - 1) // ROWS) for key in range(begin, end, KEYS)]
        begin = end
    return sorted(tiles, key=lambda tile: tile[0] - tile[1])


def items_of(tiles, copies, waves, sms):
    """(tile, head group, whether its wave goes from the last row to the first), in the order in which they are taken."""
    at_once = max(1, min(copies, waves * sms // len(tiles)))
    items = at_once * len(tiles)
    waves_of_group = max(1, (items + sms // 2) // sms)
    wave_items = math.ceil(items / waves_of_group)
    for first in range(0, copies, at_once):
        heads = range(first, min(copies, first + at_once))
        for place, (tile, head) in enumerate((tile, head) for tile in tiles for head in heads):
            yield tile, head, (first // at_once * waves_of_group + place // wave_items) % 2 == 0


def visits_of(item, share, order, descends):
    (begin, end), group, _ = item
    rows = range(end, begin - 1, -1) if descends else range(begin, end + 1)
    heads = range(group * share, (group + 1) * share)
    if order == "head by head":
        yield from ((head, row) for head in heads for row in rows)
    else:
        yield from ((head, row) for row in rows for head in heads)


def simulate(documents, parts, waves, order, options):
    heads_q, heads_kv = options.heads
    items = items_of(tiles_of(documents), heads_kv * parts, waves, options.sms)
    work = {sm: iter(()) for sm in range(options.sms)}
    taken = dict.fromkeys(work, 0)
    queue = [(0, sm) for sm in work]
    cache, missed, visited, last, memory = OrderedDict(), 0, 0, 0, 0
    while queue:
        now, sm = heapq.heappop(queue)
        visit = next(work[sm], None)
        if visit is None:
            item = next(items, None)
            if item is None:
                last = max(last, now)
                continue
            taken[sm] += 1
            descends = {"head by head": False, "lockstep": item[2], "in turn": taken[sm] % 2 == 1}[order]
            work[sm] = visits_of(item, heads_q // heads_kv // parts, order, descends)
            heapq.heappush(queue, (now + BEGIN, sm))
            continue
        visited += 1
        done = now + 1
        if visit in cache:
            cache.move_to_end(visit)
        else:
            missed += 1
            memory = max(memory, now) + 1 / options.misses
            done = max(done, memory)
            cache[visit] = True
            if len(cache) > options.cap:
                cache.popitem(last=False)
        heapq.heappush(queue, (done, sm))
    return missed / visited, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default=",".join(["1024"] * 8), help="tokens of each; default: 8 of 1024")
    parser.add_argument("--cap", type=int, default=400, help="blocks that L2 holds")
    parser.add_argument("--misses", type=float, default=66, help="blocks that device memory brings while an SM computes one")
    parser.add_argument("--sms", type=int, default=132)
    parser.add_argument("--heads", default="64:8")
    options = parser.parse_args()
    documents = [int(length) for length in options.documents.split(",")]
    options.heads = [int(count) for count in options.heads.split(":")]
    group, rest = divmod(*options.heads)
    if min(documents) < 1 or min(options.cap, options.sms, *options.heads) < 1 or rest or not options.misses > 0:
        parser.error("documents, blocks, SMs and heads are at least 1, and kv heads divide query heads")
    blocks = sum(last - first + 1 for first, last in tiles_of(documents)) * options.heads[0] / options.sms
    print(f"the blocks alone, evenly: {blocks:.0f}")
    print("order         parts " + "".join(f"   {waves} waves: missed, end" for waves in (1, 2, 3, 4)))
    for order in ("head by head", "lockstep", "in turn"):
        for parts in (1, 2, 4, 8):
            if group % parts == 0:
                found = [simulate(documents, parts, waves, order, options) for waves in (1, 2, 3, 4)]
                print(f"{order:13s} {parts:5d} " + "".join(f" {miss:17.3f} {end:7.0f}" for miss, end in found))


if __name__ == "__main__":
    main()
