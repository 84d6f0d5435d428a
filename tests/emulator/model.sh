#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: model.sh BENCH_MODEL FFA PLOT (with the emulator in LD_PRELOAD)
# bench_model times each kernel of its masks, and compares the choice of a table with that of the built-in ones: a table
# that says nonsense of a kernel is found out. Its picture can be drawn.
set -eu
bench=$1
ffa=$2
plot=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset FFA_COST_TABLES || true
fail() {
    echo "$1"
    exit 1
}
tiny="--cases 4 --tokens 64:128 --laps 2 --spec head_dim=64,heads=2:1 --spec head_dim=64,heads=2:2,pack=0"

# shellcheck disable=SC2086 # words
"$bench" $tiny --json plain.jsonl > out || fail "$(cat out)"
grep -q '^model    off by ' out || fail "$(cat out)"
grep -q '^choice   .* of 4, ' out || fail "$(cat out)"
[ "$(wc -l < plain.jsonl)" = 5 ] || fail "$(cat plain.jsonl)"
# The same seed, the same masks.
# shellcheck disable=SC2086
"$bench" $tiny --json again.jsonl > out
masks() { grep -o '"mask": "[^"]*"' "$1"; }
[ "$(masks plain.jsonl)" = "$(masks again.jsonl)" ] || fail "other masks"

# A table with other tiles than the built-in one, and with microseconds.
name=$("$ffa" doctor --json | sed -n 's/^      "name": "\(.*\)",$/\1/p' | head -n 1)
"$ffa" tune table --cost-tables none 2> said |
    sed "s/\"NVIDIA H200\"/\"$name\"/; s/\"unit_us\": 0.0/\"unit_us\": 0.5/; /^  \"tiles\": \[/a\\
    { \"head_dim\": 64, \"head_dim_v\": 64, \"packed\": 0, \"consumers\": 1, \"tile_n\": 64, \"cost\": { \"begin\": 1, \"key\": 1 }, \"unit_us\": 0.5 }," > table.json
# shellcheck disable=SC2086
"$bench" $tiny --cost-tables table.json --json table.jsonl > out || fail "$(cat out)"
grep -q '^gain .* over the built-in tables' out || fail "$(cat out)"
grep -q '^  head_dim=64,heads=2:2,pack=0 ' out || fail "$(cat out)"
grep -q '"tile": "64x64", "apart": false, "chosen": true' table.jsonl || fail "$(cat table.jsonl)"
grep -q '"cost_source": "tuned"' table.jsonl || fail "$(cat table.jsonl)"
if grep -q '"scaled": true' table.jsonl; then fail "times were known"; fi
if command -v python3 > /dev/null; then
    "$plot" table.jsonl > picture.svg
    grep -q '</svg>' picture.svg || fail "no picture"
fi
if "$bench" --cases 0 > out 2>&1; then fail "taken: --cases 0"; fi
if "$bench" --nonsense 1 > out 2>&1; then fail "taken: --nonsense"; fi
