#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: calibrate.sh BENCH_PARALLEL FFA SCHEMA_CHECK SCHEMA (with the emulator in LD_PRELOAD)
# bench_parallel writes a calibration as the schema says, with each tile of a pass once, and the command
# reads it.
set -eu
file=$(mktemp)
trap 'rm -f "$file"' EXIT
"$1" --quick --ranks 2 --calibrate "$file"
"$3" "$4" < "$file"
if grep '"pass"' "$file" | sed 's/, "gflops.*//' | sort | uniq -d | grep .; then
    echo "more than once"
    exit 1
fi
"$2" simulate --mask causal:4096 --ranks 2 --calibration "$file" | grep 'alpha-beta, calibrated'
