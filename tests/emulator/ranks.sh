#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: ranks.sh FFA SEEDS RANKS ARGUMENTS... (with the emulator in LD_PRELOAD)
# Passes of RANKS ranks over emulated GPUs, forward and backward, compared with the oracle, under the
# schedules 1 to SEEDS and as many inputs. A launch that waits for keys runs beside the streams that
# bring them, in several stages. Fails, too, where the plan has one stage only, as nothing is shown then,
# or, with --memory, one round, or where windows and workspace take more; and where a timeline or a trace was not written.
set -eu
ffa=$1
seeds=$2
ranks=$3
shift 3
log=$(mktemp)
trap 'rm -f "$log" "$log.svg" "$log.json"' EXIT
# Ranks of one device share its SMs out. What hangs is to end before the test's own time does.
export FFA_EMULATOR_SMS=16 FFA_EMULATOR_TIMEOUT_MS=30000

seed=1
while [ "$seed" -le "$seeds" ]; do
    if ! FFA_EMULATOR_SEED=$seed "$ffa" run --ranks "$ranks" --backend cuda --heads 2:1 --head-dim 64 \
        --stages 3 --seed "$seed" --backward --check --timeline "$log.svg" --trace "$log.json" "$@" > "$log" 2>&1; then
        cat "$log"
        echo "ranks $ranks, seed $seed: $*"
        exit 1
    fi
    case " $* " in
    *" --memory "*) # --memory BYTES --json
        grep -q '"rounds": [2-9]' "$log"
        bytes=$(sed -n 's/^ *"\(window\|workspace\)_bytes": \([0-9]*\),*$/\2/p' "$log" | head -2 | tr '\n' '+')
        cap=$(echo "$*" | sed 's/.*--memory \([0-9]*\).*/\1/')
        [ "$((${bytes}0))" -le "$cap" ]
        ;;
    *) grep -q "^ranks    $ranks: [23] stages forward, [23] backward" "$log" ;;
    esac
    grep -q '^</svg>' "$log.svg"
    grep -q '"traceEvents"' "$log.json"
    seed=$((seed + 1))
done
cat "$log"
