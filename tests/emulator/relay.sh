#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: relay.sh FFA (with the emulator in LD_PRELOAD)
# Passes between emulated GPUs of several nodes, inside which they reach each other's memory: over NCCL
# between nodes, compared with the oracle, under several schedules. Ranks are threads and processes;
# nodes have one rank or several, or fewer than the others, and ranks may have no keys. What is refused,
# with the reason; and a rank that is killed, whom those of its node and of the other one name.
set -eu
ffa=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS PMI_RANK PMI_SIZE || true
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK FFA_NCCL || true
# What hangs is to end before the test's own time does.
export FFA_EMULATOR_SMS=8 FFA_EMULATOR_TIMEOUT_MS=120000 FFA_EMULATOR_DEVICES=8
unset FFA_EMULATOR_IPC || true
small="--backend cuda --transport relay --head-dim 64"

# checked RANKS PER_NODE SEED ARGUMENTS...: passes over NCCL between nodes, right by the oracle.
checked() {
    ranks=$1 per_node=$2 seed=$3
    shift 3
    # shellcheck disable=SC2086
    FFA_EMULATOR_PEERS=$per_node FFA_EMULATOR_SEED=$seed "$ffa" run --ranks "$ranks" \
        --ranks-per-node "$per_node" --seed "$seed" $small --backward --check "$@" > "$out/log" 2>&1 || true
    if ! grep -q "^backend  cuda: .*over NCCL between nodes" "$out/log" ||
        ! grep -q "^check    passed" "$out/log" || ! grep -q "^dq dk dv passed" "$out/log"; then
        echo "ranks $ranks, $per_node a node, seed $seed: $*"
        cat "$out/log"
        exit 1
    fi
}

# refused TEXT ARGUMENTS...
refused() {
    text=$1
    shift
    # shellcheck disable=SC2086
    if "$ffa" run --ranks 4 --mask causal:256 --heads 2:1 $small "$@" > "$out/log" 2>&1 ||
        ! grep -q "$text" "$out/log"; then
        echo "not refused, or not with '$text': $*"
        cat "$out/log"
        exit 1
    fi
}

for seed in 1 2 3; do
    checked 4 2 $seed --mask causal:500 --heads 2:1 --stages 3 --sinks 2 --dlse
done
checked 8 4 1 --mask full:700 --heads 2:1 --stages 2
checked 8 2 2 --mask causal:900 --heads 4:2 --stages 3 --timeline "$out/svg" --trace "$out/json"
checked 3 2 1 --mask varlen-causal:200,90,110 --heads 2:1 --stages 3 --deterministic
checked 5 4 2 --mask window:512,left=200,right=0 --heads 4:1 --softcap 20
checked 4 1 1 --mask causal:300 --heads 2:1
checked 8 4 1 --mask full:400x3 --heads 2:1 --stages 2 # five ranks have no keys
checked 4 2 1 --mask full:200 --heads 2:1 --repeat 6 --time

export FFA_EMULATOR_PEERS=2
refused "cannot reach the memory of device" --ranks-per-node 4
refused "the plan is in rounds (memory_bytes), which only ranks that pull can run; these relay" --ranks-per-node 2 --mask causal:2048 --memory 2000000
FFA_EMULATOR_DEVICES=1 refused "share a GPU" --ranks-per-node 2

# Processes, each on the device of its rank.
export FFA_EMULATOR_IPC=1 FFA_EMULATOR_DEVICES=4

# start NAME RANK ARGUMENTS...: as process $!
start() {
    name=$1 rank=$2
    shift 2
    # shellcheck disable=SC2086
    "$ffa" run --ranks 4 --rank "$rank" --rendezvous "$out/$name" --ranks-per-node 2 $small \
        --mask causal:300 --heads 2:1 --stages 2 --backward "$@" > "$out/$name.$rank" 2>&1 &
}

for rank in 3 2 1 0; do
    start whole $rank --check
done
wait
if ! grep -q "^backend  cuda: 4 GPUs, 4 processes, over NCCL between nodes" "$out/whole.0" ||
    ! grep -q "^dq dk dv passed" "$out/whole.0"; then
    cat "$out/whole."[0-3]
    exit 1
fi

start killed 3 --repeat 1000 --timeout 5
victim=$!
others=
for rank in 2 1 0; do
    start killed $rank --repeat 1000 --timeout 5
    others="$others $!"
done
# The last gathering that rank 3 has come to: its calls begin after some.
turn() {
    find "$out/killed" -name '*-*.3' 2> /dev/null | sed -n 's/.*-\([0-9]*\)\.3$/\1/p' | sort -n | tail -n 1
}
waited=0
while [ "$(turn || true)" = "" ] || [ "$(turn)" -lt 100 ]; do
    sleep 0.1
    waited=$((waited + 1))
    if [ $waited -gt 600 ] || ! kill -0 $victim 2> /dev/null; then
        break
    fi
done
kill -KILL $victim
for process in $others; do
    if wait "$process"; then
        echo "a rank did not miss rank 3"
        exit 1
    fi
done
for rank in 0 1 2; do
    if ! grep -q "rank 3" "$out/killed.$rank"; then
        echo "rank $rank does not name rank 3"
        cat "$out/killed.$rank"
        exit 1
    fi
done
cat "$out/killed.0"
