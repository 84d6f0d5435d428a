#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: bench.sh BENCH_PARALLEL (with the emulator in LD_PRELOAD)
# bench_parallel with ranks that are processes: started by itself, over both transports, and by a
# launcher; and what becomes of all of them when one is killed, fails, or when who started them is
# killed. Its results are compared with the whole's by itself.
set -eu
bench=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK SLURM_PROCID SLURM_NTASKS PMI_RANK PMI_SIZE FFA_RENDEZVOUS || true
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK || true
# What hangs is to end before the test's own time does.
export FFA_EMULATOR_IPC=1 FFA_EMULATOR_DEVICES=2 FFA_EMULATOR_TIMEOUT_MS=60000 TMPDIR="$out"
case="--quick --case causal/8:1 --heads 4:2 --tokens 64 --rounds 1"

wrong() {
    echo "$*"
    cat "$out"/log*
    exit 1
}

# measured LOG TRANSPORT LINES: the table has so many plans, of two processes on two GPUs.
measured() {
    grep -q "^2 ranks, processes, on 2 x .*, $2, sums of fp32;" "$1" || wrong "not processes over $2"
    [ "$(grep -c '^causal/4:2 *\(forward\|backward\) .*%' "$1")" = "$3" ] || wrong "not $3 lines over $2"
}

# The processes that a process has started.
children() {
    tr ' ' '\n' < "/proc/$1/task/$1/children"
}

# Until rank 0 measures: the head of the table is there.
started() {
    tries=0
    while ! grep -qs '^case ' "$out/log" && [ $tries -lt 600 ] && kill -0 "$1" 2> /dev/null; do
        sleep 0.1
        tries=$((tries + 1))
    done
    # shellcheck disable=SC2046
    set -- $(children "$1")
    [ $# = 2 ] || wrong "$# ranks were started"
    first=$1 second=$2
}

# gone PROCESS...: within a while, whatever became of who started them
gone() {
    for process; do
        tries=0
        while kill -0 "$process" 2> /dev/null && ! grep -q '^State:.*Z' "/proc/$process/status" 2> /dev/null; do
            [ $tries -lt 300 ] || wrong "process $process was left behind"
            sleep 0.1
            tries=$((tries + 1))
        done
    done
}

# Two GPUs: processes without being asked for. The JSON has a line for each of the table's.
# shellcheck disable=SC2086
"$bench" $case --json "$out/json" > "$out/log" 2>&1 || wrong "failed"
measured "$out/log" pull 10
[ "$(grep -c '"rank_kind":"processes".*"efficiency_planned":[0-9]' "$out/json")" = 10 ] || wrong "not 10 lines of JSON"

# shellcheck disable=SC2086
FFA_EMULATOR_PEERS=0 "$bench" $case --transport exchange > "$out/log" 2>&1 || wrong "failed"
measured "$out/log" exchange 6

# Of a launcher: rank 0 prints the table, the other one nothing.
for rank in 1 0; do
    # shellcheck disable=SC2086
    RANK=$rank WORLD_SIZE=2 "$bench" $case --rendezvous "$out/meet" > "$out/log.$rank" 2>&1 &
done
wait
measured "$out/log.0" pull 10
[ ! -s "$out/log.1" ] || wrong "rank 1 printed something"

# A rank that is killed ends all, with its name.
rm "$out/log" # the last one's head
# shellcheck disable=SC2086
"$bench" $case --rounds 100 > "$out/log" 2>&1 &
bench_pid=$!
started $bench_pid
kill -KILL "$second"
! wait $bench_pid || wrong "a rank was killed, and exit 0"
grep -q "^bench_parallel: rank 1 has died" "$out/log" || wrong "rank 1 is not named"
grep -q "^bench_parallel: rank 1 was ended by signal 9$" "$out/log" || wrong "the signal is not named"
gone "$first" "$second"

# One that fails says why, and ends the other one, which names it.
# shellcheck disable=SC2086
RANK=1 WORLD_SIZE=2 "$bench" $case --rendezvous "$out/meet" --calibration "$out/none" > "$out/log.1" 2>&1 &
# shellcheck disable=SC2086
! RANK=0 WORLD_SIZE=2 "$bench" $case --rendezvous "$out/meet" > "$out/log.0" 2>&1 || wrong "rank 1 failed, and exit 0"
! wait $! || wrong "rank 1 failed with exit 0"
grep -q "^bench_parallel: rank 1: read: .*/none" "$out/log.1" || wrong "rank 1 does not say why"
grep -q "^bench_parallel: rank 1 gave up: read: .*/none" "$out/log.0" || wrong "rank 0 does not say why"

# A signal ends ranks, and leaves nothing.
rm "$out/log" # the last one's head
# shellcheck disable=SC2086
"$bench" $case --rounds 100 > "$out/log" 2>&1 &
bench_pid=$!
started $bench_pid
kill -TERM $bench_pid
! wait $bench_pid || wrong "exit 0 after SIGTERM"
gone "$first" "$second"
[ -z "$(find "$out" -name 'bench_parallel.*')" ] || wrong "a folder was left behind"

# Ranks do not outlive who started them.
rm "$out/log" # the last one's head
# shellcheck disable=SC2086
"$bench" $case --rounds 100 > "$out/log" 2>&1 &
bench_pid=$!
started $bench_pid
kill -KILL $bench_pid
wait $bench_pid || true
gone "$first" "$second"
