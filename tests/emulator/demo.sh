#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: demo.sh FFA KERNELS (with the emulator in LD_PRELOAD)
# Check that KERNELS, cache/demo.json, has every kernel that ./demo launches on a GPU: compile its
# kernels into a store, forbid compiling, and run the demo's shapes. To show that this check can fail,
# do the same with fewer kernels: the backward pass then misses one, and a mask of few tiles gets another
# forward kernel than before.
set -eu
ffa=$1
kernels=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FFA_CACHE_DIR="$work"

warm() { "$ffa" warm "$1" --arch sm_90a --shard 0/1 --store "$2"; }

# run STORE ARGUMENTS...
run() {
    store=$1
    shift
    FFA_JIT=never "$ffa" run --heads 8:2 --dtype bf16 --store "$store" "$@"
}

# kernel STORE: the key of the forward kernel that a mask gets whose tiles are fewer than SMs
kernel() {
    FFA_EMULATOR_SMS=16 run "$1" --head-dim 128 --mask full:128 | sed -n 's/^backend .*kernel \([0-9a-f]*\) .*/\1/p'
}

warm "$kernels" "$work/all"
for head_dim in 64 128; do
    run "$work/all" --head-dim $head_dim --mask varlen-causal:40,70,9 --backward --check
done

sed 's/\[2, 1\]/2/; s/"dkv_fp32": \[0, 1\]/"dkv_fp32": 0/' "$kernels" > "$work/fewer.json"
warm "$work/fewer.json" "$work/fewer"
if [ "$(kernel "$work/all")" = "$(kernel "$work/fewer")" ]; then
    echo "few tiles have the same kernel where there is one less" >&2
    exit 1
fi
if run "$work/fewer" --head-dim 128 --mask full:40 --backward > "$work/log" 2>&1; then
    echo "a backward kernel less was not missed" >&2
    exit 1
fi
grep "attention_backward.*dkv_fp32=1" "$work/log"
