#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: exchange.sh FFA (with the emulator in LD_PRELOAD)
# Passes between emulated GPUs that do not reach each other's memory, as on several hosts: over NCCL,
# compared with the oracle. Ranks are threads, with different numbers of stages, and processes whose
# memory no other process can map. And what is refused, with the reason.
set -eu
ffa=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS PMI_RANK PMI_SIZE || true
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK FFA_NCCL || true
# What hangs is to end before the test's own time does.
export FFA_EMULATOR_SMS=8 FFA_EMULATOR_TIMEOUT_MS=120000 FFA_EMULATOR_DEVICES=3
unset FFA_EMULATOR_IPC || true
small="--backend cuda --heads 2:1 --head-dim 64"

# passed LOG: the run was checked, over NCCL.
passed() {
    if ! grep -q "^backend  cuda: .*over NCCL" "$1" || ! grep -q "^check    passed" "$1" ||
        ! grep -q "^dq dk dv passed" "$1"; then
        cat "$1"
        exit 1
    fi
}

# refused TEXT ARGUMENTS...
refused() {
    text=$1
    shift
    # shellcheck disable=SC2086
    if "$ffa" run --ranks 2 --mask causal:64 $small "$@" > "$out/log" 2>&1 ||
        ! grep -q "$text" "$out/log"; then
        echo "not refused, or not with '$text': $*"
        cat "$out/log"
        exit 1
    fi
}

# shellcheck disable=SC2086
FFA_EMULATOR_PEERS=0 "$ffa" run --ranks 3 --mask causal:500 $small --stages 3 --sinks 2 \
    --backward --check --timeline "$out/svg" > "$out/log" 2>&1 || true
passed "$out/log"

# shellcheck disable=SC2086
FFA_EMULATOR_PEERS=0 "$ffa" run --ranks 3 --mask causal:500 $small --stages 3 --dtype fp16 --wire-dtype fp16 \
    --backward --check > "$out/log" 2>&1 || true
passed "$out/log"

# shellcheck disable=SC2086
FFA_EMULATOR_PEERS=0 "$ffa" run --ranks 3 --mask causal:500 $small --stages 3 --sinks 2 --moves queries \
    --backward --check > "$out/log" 2>&1 || true
passed "$out/log"

for rank in 1 0; do
    # shellcheck disable=SC2086
    "$ffa" run --ranks 2 --rank $rank --rendezvous "$out/meet" --mask full:200 $small \
        --backward --check > "$out/log.$rank" 2>&1 &
done
wait
passed "$out/log.0"

export FFA_EMULATOR_PEERS=0
refused "cannot reach the memory of device" --transport pull
FFA_EMULATOR_NCCL_VERSION=21706 refused "is 2.17.6, older than 2.18.0"
refused "'/nowhere/libnccl.so.2' not there" --nccl /nowhere/libnccl.so.2
FFA_EMULATOR_DEVICES=1 refused "share a GPU" --transport exchange
