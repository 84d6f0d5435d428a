#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: scaling.sh SOURCE
# The tables and the picture of the prediction in docs/figures.md are those of its raw results, and the measurements beside
# it are of the predicted masks.
set -eu
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v python3 > /dev/null 2>&1 || { echo "skipped: no python3"; exit 77; }

results=bench/results/h200
measured=$results/parallel.jsonl,$results/parallel_order.jsonl
python3 bench/simulate_scaling.py table $results/scaling.jsonl --measured $measured > "$work/table.md"
python3 bench/simulate_scaling.py plot $results/scaling.jsonl --measured $measured > "$work/scaling.svg"
[ "$(grep -c '^|' "$work/table.md")" = 24 ] || { echo "not two tables of ten rows:"; cat "$work/table.md"; exit 1; }
grep '^|' "$work/table.md" | while IFS= read -r line; do
    grep -qxF -e "$line" docs/figures.md || { echo "docs/figures.md has not: $line"; exit 1; }
done
cmp "$work/scaling.svg" $results/scaling.svg

# A measurement of other cells than the predicted ones is refused, a file without predictions too.
grep packed-causal $results/parallel_order.jsonl | sed 's/"tflops":/"tflops":1/' > "$work/other.jsonl"
for arguments in "$results/scaling.jsonl --measured $work/other.jsonl" "$results/parallel.jsonl" "README.md"; do
    # shellcheck disable=SC2086 # words
    if python3 bench/simulate_scaling.py table $arguments > "$work/said" 2>&1 || grep -q Traceback "$work/said"; then
        echo "table $arguments:"
        cat "$work/said"
        exit 1
    fi
done
