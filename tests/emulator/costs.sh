#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: costs.sh FFA (with the emulator in LD_PRELOAD)
# A cost table that is tuned for the emulated GPU decides what a run computes with: the kernel that it
# makes the cheapest, as `ffa tune explain` said it would, and the results are right. Without it, and
# with one of other templates, the built-in table decides.
set -eu
ffa=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
unset FFA_COST_TABLES || true
export FFA_EMULATOR_SMS=8
mask="--mask varlen-causal:70,33,90 --heads 8:1 --head-dim 128 --dtype bf16"
spec="head_dim=128,dtype=bf16,heads=8:1"
name=$("$ffa" doctor --json | sed -n 's/^      "name": "\(.*\)",$/\1/p' | head -n 1)

# is WHAT TEXT FILE: the file says so.
is() {
    grep -q "$2" "$3" || { echo "$1: not $2"; cat "$3"; exit 1; }
}

mkdir "$out/tables" "$out/others"
"$ffa" tune table --cost-tables none > "$out/default.json"
is "the default" '"device": "NVIDIA H200"' "$out/default.json"
sed "s/\"NVIDIA H200\"/\"$name\"/; s/\"sm_count\": 132/\"sm_count\": 8/
s/\(\"head_dim\": 128, .*\"consumers\": 1.*\"begin\": \)231.0, \"key\": 0.75/\11.0, \"key\": 0.01/" \
    "$out/default.json" |
    sed '/^  "tiles": \[/a\
    { "head_dim": 128, "head_dim_v": 128, "packed": 0, "consumers": 2, "tile_n": 128, "cost": { "begin": 300, "key": 1 }, "unit_us": 0.01 },\
    { "head_dim": 128, "head_dim_v": 128, "packed": 0, "consumers": 1, "tile_n": 64, "cost": { "begin": 1, "key": 0.01 }, "unit_us": 0.01 },' \
        > "$out/tables/tuned.json"
sed 's/"templates": ""/"templates": "0123456789abcdef0123456789abcdef"/' "$out/tables/tuned.json" \
    > "$out/others/tuned.json"

# shellcheck disable=SC2086 # words
run() { # FILE ARGUMENTS...
    file=$1
    shift
    "$ffa" run $mask --backend cuda --check --json "$@" > "$file" 2> "$file.said" || { cat "$file" "$file.said"; exit 1; }
}

run "$out/tuned" --cost-tables "$out/tables"
is "tuned" '"cost_source": "tuned"' "$out/tuned"
is "tuned" '"tile_m": 8,' "$out/tuned"
is "tuned" '"passed": true' "$out/tuned"
"$ffa" tune explain varlen-causal:70,33,90 --spec "$spec" --device "$name" --cost-tables "$out/tables" > "$out/explained"
is "explained" '^ \* 8 x 128 ' "$out/explained"
"$ffa" tune explain varlen-causal:70,33,90 --spec "$spec" --cost-tables "$out/tables" > "$out/here"
is "explained for this device" '^ \* 8 x 128 ' "$out/here"

# Heads apart: two tiles of the table, and without it the one of the architecture.
run "$out/apart" --unpacked --cost-tables "$out/tables"
is "heads apart" '"cost_source": "tuned"' "$out/apart"
is "heads apart" '"tile_m": 64,' "$out/apart"
is "heads apart" '"tile_n": 64,' "$out/apart"
is "heads apart" '"passed": true' "$out/apart"
"$ffa" tune explain varlen-causal:70,33,90 --spec "$spec,pack=0" --cost-tables "$out/tables" > "$out/apart-here"
is "heads apart, explained" '^ \* 64 x 64 ' "$out/apart-here"
is "heads apart, explained" '^   128 x 128 .* us ' "$out/apart-here"
run "$out/one" --unpacked --cost-tables none
is "heads apart without a table" '"tile_n": 128,' "$out/one"

"$ffa" doctor --cost-tables "$out/tables" > "$out/doctor"
is "doctor" '^           used (tuned)$' "$out/doctor"
is "doctor" '^           not used on this device$' "$out/doctor"

run "$out/built-in" --cost-tables none
is "built-in" '"cost_source": "default"' "$out/built-in"
is "built-in" '"cost_table": "NVIDIA H200"' "$out/built-in"
run "$out/other" --cost-tables "$out/others"
is "other templates" '"cost_source": "default"' "$out/other"
is "other templates" 'reason="it was fitted with templates 0123456789abcdef0123456789abcdef' "$out/other.said"
digest=$(sed -n 's/.*"cost_digest": "\(.*\)".*/\1/p' "$out/built-in")
is "the default's digest" "\"cost_digest\": \"$digest\"" "$out/other"
if grep -q "$digest" "$out/tuned"; then echo "two tables, one digest"; exit 1; fi
echo "a tuned table decides"
