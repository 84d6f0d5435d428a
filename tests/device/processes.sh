#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: processes.sh FFA [OUT]
# Context-parallel passes between processes, two ranks of `ffa run`: with a GPU each where there are
# two, and both on one GPU, whose memory they share by CUDA IPC. Prints one line a case, "ok" or what
# went wrong, and exits with 1 if anything did, with 77 without a GPU. OUT keeps what ranks said.
# With FFA_EMULATOR_IPC and the emulator in LD_PRELOAD: small masks on FFA_EMULATOR_DEVICES.
set -u
ffa=$1
out=${2:-$(mktemp -d)}
mkdir -p "$out"
rendezvous=$out/meet # one folder for all cases: what a killed rank left there must not matter
limit=300            # seconds a case may take, compiling included
timeout=5            # of the ranks of a group that is broken
unset FFA_RENDEZVOUS RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS PMI_RANK PMI_SIZE || true
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK || true

if [ -n "${FFA_EMULATOR_IPC:-}" ]; then
    gpus=${FFA_EMULATOR_DEVICES:-1}
    full=full:200 causal=causal:256 varlen=varlen-causal:150,40,70 timed=causal:256
    heads="--heads 2:1 --head-dim 64"
else
    gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
    full=full:2048 causal=causal:4096 varlen=varlen-causal:3000,800,1296 timed=causal:8192
    heads="--heads 8:2"
fi
if [ "$gpus" = 0 ]; then
    echo "skipped: no GPU"
    exit 77
fi
bad=0

# say NAME PROBLEM: "" is none.
say() {
    if [ -z "$2" ]; then
        echo "$1: ok"
    else
        echo "$1: $2"
        bad=1
    fi
}

# start RANK NAME ARGUMENTS...: a rank in the background, as process $!
start() {
    rank=$1 log=$out/$2.$1
    shift 2
    timeout -s KILL $limit "$ffa" run --ranks 2 --rank "$rank" --rendezvous "$rendezvous" "$@" \
        > "$log.out" 2> "$log.err" &
}

# What two ranks that should succeed got wrong. 0's and 1's exit status, and what they said.
problem_of() {
    name=$1
    if [ "$2" != 0 ] || [ "$3" != 0 ]; then
        echo "exit $2 and $3: $(head -n 1 "$out/$name.0.err") / $(head -n 1 "$out/$name.1.err")"
    elif ! grep -q '^check    passed' "$out/$name.0.out"; then
        echo "rank 0 did not check"
    elif grep -q 'failed' "$out/$name.0.out"; then
        grep 'failed' "$out/$name.0.out" | head -n 1
    elif [ -s "$out/$name.1.out" ]; then
        echo "rank 1 printed something"
    elif ! grep -q "^backend  cuda: $4 GPU.*, 2 processes" "$out/$name.0.out"; then
        echo "not on $4 GPUs: $(head -n 1 "$out/$name.0.out")"
    fi
}

# both NAME GPUS ARGUMENTS...: a run that succeeds
both() {
    name=$1 wanted=$2
    shift 2
    start 0 "$name" --check "$@"
    first=$!
    start 1 "$name" --check "$@"
    second=$!
    wait $first
    first=$?
    wait $second
    second=$?
    say "$name" "$(problem_of "$name" $first $second "$wanted")"
}

# The last exchange that rank 1 has come to.
turn() {
    find "$rendezvous" -name '*-*.1' 2> /dev/null | sed -n 's/.*-\([0-9]*\)\.1$/\1/p' | sort -n | tail -n 1
}

# named NAME ARGUMENTS...: two ranks see one GPU by different names
named() {
    name=$1
    shift
    start 0 "$name" --check "$@"
    first=$!
    CUDA_VISIBLE_DEVICES=$(nvidia-smi --query-gpu=uuid --format=csv,noheader -i 0 2> /dev/null || echo GPU)
    start 1 "$name" --check "$@"
    second=$!
    CUDA_VISIBLE_DEVICES=0
    wait $first
    first=$?
    wait $second
    second=$?
    say "$name" "$(problem_of "$name" $first $second 1)"
}

# killed NAME ARGUMENTS...: rank 1 is killed in the middle of its calls
killed() {
    name=$1
    shift
    rm -rf "$rendezvous" # else a turn of an earlier case
    start 0 "$name" --timeout $timeout --repeat 200 "$@"
    first=$!
    "$ffa" run --ranks 2 --rank 1 --rendezvous "$rendezvous" --timeout $timeout --repeat 200 "$@" \
        > "$out/$name.1.out" 2> "$out/$name.1.err" &
    second=$!
    waited=0
    while [ "$(turn || true)" = "" ] || [ "$(turn)" -lt 80 ]; do
        sleep 0.1
        waited=$((waited + 1))
        if [ $waited -gt 1200 ] || ! kill -0 $second 2> /dev/null; then
            break
        fi
    done
    kill -KILL $second 2> /dev/null
    begin=$(date +%s)
    wait $second
    second=$?
    wait $first
    first=$?
    took=$(($(date +%s) - begin))
    if [ $second != 137 ]; then
        say "$name" "rank 1 ended before it was killed: exit $second, $(head -n 1 "$out/$name.1.err")"
    elif [ $first = 0 ] || [ $first -gt 124 ]; then
        say "$name" "rank 0 ended with $first after $took s: $(head -n 1 "$out/$name.0.err")"
    elif ! grep -q 'rank 1' "$out/$name.0.err"; then
        say "$name" "rank 0 does not name rank 1: $(head -n 1 "$out/$name.0.err")"
    elif [ $took -gt $((4 * timeout)) ]; then
        say "$name" "rank 0 took $took s"
    else
        say "$name" ""
        echo "    exit $first after $took s: $(head -n 1 "$out/$name.0.err")"
    fi
}

# refused NAME: rank 1 cannot open a GPU
refused() {
    name=$1
    start 0 "$name" --mask causal:256
    first=$!
    start 1 "$name" --mask causal:256 --cudart "$out/none"
    wait $!
    second=$?
    wait $first
    first=$?
    if [ $first != $second ] || [ $first != 3 ]; then
        say "$name" "exit $first and $second, not 3: $(head -n 1 "$out/$name.0.err")"
    elif ! grep -q 'rank 1 gave up' "$out/$name.0.err"; then
        say "$name" "rank 0 does not name rank 1: $(head -n 1 "$out/$name.0.err")"
    else
        say "$name" ""
    fi
}

# all NAME GPUS
# shellcheck disable=SC2086 # several words
all() {
    both "$1-full" "$2" --mask $full $heads --backward
    both "$1-causal" "$2" --mask $causal $heads --backward
    both "$1-causal-stages" "$2" --mask $causal $heads --backward --stages 3 --deterministic
    both "$1-varlen-causal" "$2" --mask $varlen $heads --backward --dlse --sinks 1 \
        --trace "$out/trace"
    grep -q '"rank 1"' "$out/trace" || say "$1-trace" "rank 1 is not in it"
    both "$1-time" "$2" --mask $timed $heads --backward --repeat 20
    killed "$1-killed" --mask $timed $heads --backward
    both "$1-after-killed" "$2" --mask $causal $heads --backward
}

if [ "$gpus" -ge 2 ]; then
    all two-gpus 2
else
    echo "two-gpus: skipped, there is one"
fi
CUDA_VISIBLE_DEVICES=0 FFA_EMULATOR_DEVICES=1
export CUDA_VISIBLE_DEVICES FFA_EMULATOR_DEVICES
all one-gpu 1
# shellcheck disable=SC2086 # several words
named one-gpu-named --mask $causal $heads
refused refused
[ -n "${2:-}" ] || rm -rf "$out"
exit $bad
