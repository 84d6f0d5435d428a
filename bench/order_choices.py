#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far the orders that are chosen for backward passes are from the fastest ones that tuning sessions timed. Needs no GPU.

  order_choices.py [--ffa FILE] [--device MODEL] [--cost-tables PATH] [--runs LETTERS] [--list] FILE

FILE has a line a mask (bench/results/h100/orders.jsonl): its heads, the time of the session's baseline, and all orders as parts, waves,
whole heads, whether without lockstep, whether of the final, microseconds. `ffa tune explain` says what is chosen with the cost table. Prints
the mean, the median and the most by which that order's time is above the least of the final's, and the baseline's, with ordered accumulation
and without; --list, a line a mask. Where the chosen order was not timed, the mask is counted apart.
"""
import argparse
import json
import statistics
import subprocess
import sys


def chosen(line, options):
    """The order that is chosen for a mask, as (parts, waves, whole heads, without lockstep)."""
    columns = str(line["head_dim"]) + (f":{line['head_dim_v']}" if line["head_dim_v"] != line["head_dim"] else "")
    spec = f"head_dim={columns},dtype=bf16,heads={line['heads_q']}:{line['heads_kv']},backward"
    command = [options.ffa, "tune", "explain", line["mask"], "--spec", spec + (",deterministic" if line["deterministic"] else ""), "--device",
               options.device, "--cost-tables", options.cost_tables, "--json"]
    backward = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["backward"]
    order = next(candidate for candidate in backward["candidates"] if candidate["chosen"])
    return order["parts"], order["waves"], order["whole_heads"], "; not in lockstep" in backward["why"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ffa", default="build/ffa")
    parser.add_argument("--device", default="NVIDIA H100 80GB HBM3")
    parser.add_argument("--cost-tables", default="cache/cost-tables")
    parser.add_argument("--runs", help="only lines of these runs; default: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("file")
    options = parser.parse_args()
    above, missing = {False: [], True: []}, 0
    for line in map(json.loads, open(options.file)):
        if options.runs and line["run"] not in options.runs:
            continue
        times = {(*order, bool(unlocked)): us for *order, unlocked, _, us in line["times"]}
        least = min(us for *_, final, us in line["times"] if final)
        order = chosen(line, options)
        if order not in times:
            missing += 1
            continue
        shares = times[order] / least - 1, line["baseline_us"] / least - 1
        above[line["deterministic"]].append(shares)
        if options.list:
            print(f"{100 * shares[0]:6.1f} %  {100 * shares[1]:6.1f} %  {line['mask'][:60]} {line['head_dim']} {line['heads_q']}:{line['heads_kv']}"
                  f"{' deterministic' if line['deterministic'] else ''} {order[0]}x{order[1]}+{order[2]}{'u' if order[3] else ''}")
    if not any(above.values()):
        sys.exit(f"{options.file}: no mask's chosen order was timed")
    for is_ordered, shares in above.items():
        for name, values in zip(("chosen", "baseline"), zip(*shares)):
            print(f"{'ordered' if is_ordered else '':8s}{name:9s} above the fastest: {100 * statistics.mean(values):.2f} % in the mean, "
                  f"{100 * statistics.median(values):.2f} % in the median, {100 * max(values):.1f} % at most, {len(values)} masks")
    if missing:
        print(f"{missing} masks whose chosen order was not timed")


if __name__ == "__main__":
    main()
