#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: tune.sh FFA SCHEMA_CHECK SCHEMAS (with the emulator in LD_PRELOAD)
# A tuning session end to end: it is killed in its race and goes on, its samples go out and in again,
# and a kernel that hangs makes the command go on in a new process.
set -eu
ffa=$1
conforms() { "$check" "$schemas/$1.json" || fail "not as $1.json says"; }
check=$2
schemas=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
tune="head_dim=64,heads=2:1 --tile 64x64 --tile 128x128 --mask causal:64 --mask full:100"

fail() {
    echo "$1"
    exit 1
}

# Killed at the first line of its race.
: > log
# shellcheck disable=SC2086 # words
"$ffa" tune run $tune --session a --verbose 2> log > out &
session=$!
while kill -0 "$session" 2> /dev/null && ! grep -q '^ffa tune run: race' log; do sleep 0.01; done
kill -KILL "$session" 2> /dev/null || true
status=0
wait "$session" || status=$?
[ $status = 137 ] || [ $status = 0 ] || fail "the session ended with $status: $(cat log)"
"$ffa" tune show a | grep -q '3 checked' || fail "the killed session has lost its tiles"

# A session that is there is not begun again, and goes on.
# shellcheck disable=SC2086
if "$ffa" tune run $tune --session a > out 2> log; then fail "it was begun again"; fi
grep -q 'resume it' log || fail "$(cat log)"
# shellcheck disable=SC2086
"$ffa" tune run $tune --session a --resume > out 2> log || fail "$(cat log)"
if grep -q 'compile' log; then fail "it was compiled again"; fi
grep -q '90 samples, over' out || fail "$(cat out)"
grep -q '3 checked' out || fail "$(cat out)"
if "$ffa" tune run head_dim=64,heads=2:1 --session a --resume --tile 64x64 > out 2> log; then
    fail "it went on with other tiles"
fi
grep -q 'another list of tiles' log || fail "$(cat log)"

# A session that began with another cost table is not measured into a file where it could not be fitted.
name=$("$ffa" doctor --json | sed -n 's/^      "name": "\(.*\)",$/\1/p' | head -n 1)
"$ffa" tune table | sed "s/\"NVIDIA H200\"/\"$name\"/" > other.json
if "$ffa" tune run head_dim=128,heads=2:1 --tile 64x64 --mask full:100 --session a --cost-tables other.json > out 2> log
then
    fail "it was added to the file"
fi
grep -q 'cannot be fitted with this one' log || fail "$(cat log)"

# What is not to be measured is refused before anything is.
refuse() { # WANTED-MESSAGE ARGUMENTS...
    want=$1
    shift
    if "$ffa" tune run --session refused "$@" > out 2> log; then fail "taken: $*"; fi
    grep -q "$want" log || fail "$*: $(cat log)"
    [ ! -e refused ] || fail "$*: there is a file"
}
refuse "masks\[0\] is @" head_dim=64,heads=2:1 --mask @a.json
refuse "masks\[1\] is masks\[0\]" head_dim=64,heads=2:1 --mask full:8 --mask full:8
refuse "tiles\[0\] is '7x7', no tile" head_dim=64,heads=2:1 --tile 7x7
refuse "is there twice" head_dim=64,heads=2:1 --tile 64x64 --tile 64x64
refuse "dtype is 3" head_dim=64,heads=2:1,dtype=fp32
refuse "heads are 0:0" head_dim=64
refuse "flags is 2" head_dim=64,heads=2:1,softcap
refuse "there is no session file" head_dim=64,heads=2:1 --resume

# Out, and in again: the same.
mkdir folder
"$ffa" tune export a folder > out 2> log
"$ffa" tune import b folder/sessions-*.samples | grep -q '1 session added' || fail "nothing was imported"
"$ffa" tune show a --json > a.json
conforms tune_show < a.json
"$ffa" tune run head_dim=128,heads=8:1 --dry-run --json > out
conforms tune_run_dry_run < out
grep -q '"state": "pending"' out || fail "$(cat out)"
# shellcheck disable=SC2086
"$ffa" tune run $tune --session a --resume --json > out 2> log
conforms tune_show < out
"$ffa" tune show b --json > b.json
cmp a.json b.json

# Heads apart, and another head_dim of v: groups of tiles of their own, in one file.
"$ffa" tune run head_dim=64,heads=2:1,pack=0 --tile 64x64 --mask full:100 --session apart > out 2> log ||
    fail "$(cat log)"
grep -q '^head_dim 64, heads apart: ' out || fail "$(cat out)"
"$ffa" tune run head_dim=128:64,heads=2:2 --tile 64x64 --mask full:100 --session apart > out 2> log ||
    fail "$(cat log)"
grep -q '^head_dim 128:64: ' out || fail "$(cat out)"
grep -q '^  full:100 .* 64x64 ' out || fail "$(cat out)"

# Several specs in one command and file; compiled before, by the name of a device model that has a table.
mkdir tables
sed "s/\"device\": .*/\"device\": \"a model\",/" other.json > tables/model.json
two="head_dim=64,heads=2:1 head_dim=64,heads=2:2 --tile 64x64 --tile 128x128 --mask full:100"
# shellcheck disable=SC2086
"$ffa" tune run $two --compile-only --device 'a model' --cost-tables tables --json > out 2> log || fail "$(cat log)"
conforms tune_run_compile_only < out
[ "$(grep -c '"ready": 3' out)" = 2 ] || fail "$(cat out)"
# shellcheck disable=SC2086
FFA_JIT=never "$ffa" tune run $two --session two --budget 2h > out 2> log || fail "$(cat log)"
grep -q '2 of 2' log || fail "$(cat log)"
[ "$(grep -c '45 samples, over' out)" = 2 ] || fail "$(cat out)"
[ "$(grep -c ' of 3600.0 s' out)" -ge 1 ] || fail "not shared out: $(cat out)"
# One that was not begun is begun where others are resumed.
# shellcheck disable=SC2086
"$ffa" tune run head_dim=64,heads=4:1 $two --session two --resume > out 2> log || fail "$(cat log)"
grep -q 'heads=4:1' out || fail "$(cat out)"

# Of several specs one fails: one document, which says which.
status=0
"$ffa" tune run head_dim=64,heads=2:1,dtype=fp32 head_dim=64,heads=2:1 --tile 64x64 --mask full:100 --session mixed --json \
    > out 2> log || status=$?
[ $status = 2 ] || fail "$status: $(cat log)"
conforms tune_show < out
grep -q '"spec": "head_dim=64,heads=2:1,dtype=fp32"' out || fail "$(cat out)"
status=0
"$ffa" tune run head_dim=64,heads=2:1,dtype=fp32 head_dim=64,heads=2:1,softcap --session none --json > out 2> log || status=$?
[ $status = 2 ] || fail "$status: $(cat log)"
conforms error < out
status=0
"$ffa" tune run head_dim=64,heads=2:1 head_dim=64,heads=2:1,softcap --tile 64x64 --compile-only --json > out 2> log || status=$?
[ $status = 2 ] || fail "$status: $(cat log)"
conforms tune_run_compile_only < out

# Two GPUs, each with a share of the tiles; what was begun goes on; part files go.
"$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --mask full:100 --part 0/2 --session both.part0 > out 2> log ||
    fail "$(cat log)"
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --tile 128x64 --mask full:100 \
    --session both --devices 0,1 > out 2> log && fail "it was begun again"
grep -q "GPU 0 ended with status .* 'both.part0'" log || fail "$(cat log)"
rm both.part0
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --tile 128x64 --mask full:100 \
    --session both --devices 0,1 --resume > out 2> log || fail "$(cat log)"
[ "$(grep -c '30 samples, over' out)" = 2 ] || fail "$(cat out)"
grep -q '^  64x64 ' out || fail "$(cat out)"
grep -q '^  128x64 ' out || fail "$(cat out)"
[ -z "$(find . -name 'both.part*')" ] || fail "part files are left"
# Once they are joined there is nothing to go on with.
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --tile 128x64 --mask full:100 \
    --session both --devices 0,1 --resume > again 2> log || fail "$(cat log)"
cmp -s out again || fail "what was joined was measured again: $(cat again)"

# What was joined is not begun again without --resume, and said before anything is measured; a spec that was not is begun.
status=0
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --tile 128x64 --mask full:100 \
    --session both --devices 0,1 > out 2> log || status=$?
[ $status = 2 ] || fail "$status: $(cat log)"
grep -q 'of this spec: resume it' log || fail "$(cat log)"
if grep -q 'race' log; then fail "it was measured again: $(cat log)"; fi
[ -z "$(find . -name 'both.part*')" ] || fail "part files are left"
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=64,heads=2:1 head_dim=64,heads=2:2 --tile 64x64 --tile 128x64 \
    --mask full:100 --session both --devices 0,1 --resume > out 2> log || fail "$(cat log)"
[ "$(grep -c 'heads=2:1,pack' out)" = 2 ] || fail "$(cat out)"
[ "$(grep -c 'heads=2:2,pack' out)" = 2 ] || fail "$(cat out)"
# What could not be added at the end is said at the beginning.
status=0
FFA_EMULATOR_DEVICES=2 "$ffa" tune run head_dim=128,heads=2:1 --tile 64x64 --mask full:100 --session both --devices 0,1 \
    --cost-tables other.json > out 2> log || status=$?
[ $status = 2 ] || fail "$status: $(cat log)"
grep -q 'cannot be fitted with this one' log || fail "$(cat log)"
if grep -q 'race' log; then fail "it was measured before it was refused: $(cat log)"; fi
# Parts of a session on more GPUs would stay behind.
: > both.part2
if "$ffa" tune run head_dim=64,heads=2:1 --session both --devices 0,1 --resume > out 2> log; then fail "a part was left"; fi
grep -q "'both.part2' is there, of a session on more than 2 GPUs" log || fail "$(cat log)"
rm both.part2

# A backward pass: its orders race after the forward kernels, each checked; killed in that race, it goes on.
back="head_dim=64,heads=2:1,backward --tile 64x64 --mask full:140"
: > log
# shellcheck disable=SC2086
"$ffa" tune run $back --session back --verbose 2> log > out &
session=$!
while kill -0 "$session" 2> /dev/null && ! grep -q 'backward: race' log; do sleep 0.01; done
kill -KILL "$session" 2> /dev/null || true
wait "$session" || true
# shellcheck disable=SC2086
"$ffa" tune run $back --session back --resume > out 2> log || fail "$(cat log)"
if grep -q 'compile' log; then fail "it was compiled again"; fi
grep -q 'heads=2:1,pack=2,backward$' out || fail "$(cat out)"
grep -q '  orders    17 checked' out || fail "$(cat out)"
grep -q '^  full:140  *64  *2:1 ' out || fail "$(cat out)"
"$ffa" tune show back --json > a.json
conforms tune_show < a.json
# The order that the baseline was is kept.
mkdir backward-samples
"$ffa" tune export back backward-samples > out || fail "$(cat out)"
cat backward-samples/*.samples | tr -d ' \n' | grep -q '"baselines":\[\[[1-9]' || fail "$(cat out)"
# Where the forward session is there, only the backward one is begun; of a backward one that is there, neither.
"$ffa" tune run head_dim=64,heads=2:2 --tile 64x64 --mask full:70 --session half > out 2> log || fail "$(cat log)"
"$ffa" tune run head_dim=64,heads=2:2,backward,deterministic --tile 64x64 --mask full:70 --session half > out 2> log ||
    fail "$(cat log)"
if grep -q 'run: race' log; then fail "the forward race was run again: $(cat log)"; fi
grep -q 'pack=1,backward,deterministic$' out || fail "$(cat out)"
grep -q '  orders    5 checked' out || fail "$(cat out)"
if "$ffa" tune run head_dim=64,heads=2:2,backward,deterministic --session half > out 2> log; then fail "it was begun again"; fi
grep -q 'resume it' log || fail "$(cat log)"
# Begun beside a forward session of other masks, a backward one that was killed goes on alone, with the budget that it had.
"$ffa" tune run head_dim=64,heads=4:4 --tile 64x64 --mask full:70 --session other --budget 1 > out 2> log || fail "$(cat log)"
for resume in '' --resume; do
    # shellcheck disable=SC2086
    "$ffa" tune run head_dim=64,heads=4:4,backward,deterministic --mask full:64 --session other --budget 4 $resume \
        > out 2> log || fail "$(cat log)"
    if grep -q 'run: race' log; then fail "the forward race was run again: $(cat log)"; fi
    grep -q 'of 1.0 s' out || fail "the forward session has another budget: $(cat out)"
    grep -q 'of 4.0 s' out || fail "the backward session has another budget: $(cat out)"
done
# Of a part, whose sessions are taken up again though they are over, going on gives no more budget.
for resume in '' --resume; do
    # shellcheck disable=SC2086
    "$ffa" tune run head_dim=64,heads=4:4,backward,deterministic --tile 64x64 --mask full:64 --session parted --join joined \
        --budget 2h $resume > out$resume 2> log || fail "$(cat log)"
done
cmp -s out out--resume || fail "sessions that were over were changed: $(cat out--resume)"
"$ffa" tune run head_dim=64,heads=2:1,backward --dry-run --json > out
conforms tune_run_dry_run < out

# The first kernel hangs: a new process finds that it was the baseline.
status=0
"$ffa" tune run head_dim=64,heads=2:1 --tile 64x64 --mask full:100 --session c --run-timeout 0.001 \
    > out 2> log || status=$?
[ $status = 3 ] || fail "a baseline that hangs: $status, $(cat log)"
grep -q 'going on in a new process' log || fail "$(cat log)"
grep -q 'the baseline is hung' log || fail "$(cat log)"
status=0
"$ffa" tune run --tile 64x64 --mask full:100 --session dashes --run-timeout 0.001 -- head_dim=64,heads=2:1 \
    > out 2> log || status=$?
[ $status = 3 ] || fail "a baseline that hangs, after '--': $status, $(cat log)"
