#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: mutants.sh FFA TEMPLATES (with the emulator in LD_PRELOAD)
# Takes one line at a time out of a kernel, a wait, a fence or an arrival, and sees that the
# emulator notices: a check that fails, a launch that fails. The whole kernel passes.
set -eu
ffa=$1
templates=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# passes DIR ARGUMENTS...: under each of three schedules
passes() {
    dir=$1
    shift
    case " $* " in *' --mask '*) ;; *) set -- --mask varlen-causal:300,700,60 --heads 4:2 "$@" ;; esac
    for seed in 1 2 3; do
        FFA_EMULATOR_SEED=$seed "$ffa" run --check --store "$work/kernels.ffadb" --templates "$dir" \
            "$@" > "$work/out" 2>&1 || return 1
    done
}

# without FILE 'LINE' [N] ARGUMENTS...: the Nth statement that begins with LINE, 1 unless given
without() {
    file=$1
    line=$2
    count=1
    shift 2
    case ${1:-} in [0-9]*) count=$1 && shift ;; esac
    rm -rf "$work/t"
    cp -r "$templates" "$work/t"
    awk -v line="$line" -v count="$count" '
        !skip && index($0, line) && $1 != "*" && --count == 0 { skip = 1; print ";" }
        skip { if (/;/) skip = 0; next }
        { print }' "$templates/$file" > "$work/t/$file"
    if cmp -s "$templates/$file" "$work/t/$file"; then
        echo "$file has no '$line'" && bad=1
    elif passes "$work/t" "$@"; then
        echo "$file without '$line' passes" && bad=1
    elif grep -qE 'cannot load the module|error:' "$work/out"; then
        echo "$file without '$line' is no kernel: $(tail -n 1 "$work/out")" && bad=1
    else
        printf '%s without %s: %.120s\n' "$file" "'$line'" "$(tail -n 1 "$work/out")"
    fi
}

passes "$templates" --backward || { cat "$work/out" && bad=1; }
passes "$templates" --backward --deterministic || { cat "$work/out" && bad=1; }
without attention_forward.cu 'wait(bars, bars.k_empty('
without attention_forward.cu 'wait(bars, bars.v_full('
without attention_forward.cu 'wgmma_wait<1>();'
without attention_forward.cu 'mbarrier_arrive(bars.k_empty('
without attention_forward.cu 'fence_proxy_async();'
without attention_backward.cu 'wait(bars, bars.q_full(' --backward
# Two stages of dS.
without attention_backward.cu 'wait(bars, bars.ds_empty(' --backward --head-dim 64 --mask causal:900 --heads 4:1
without attention_backward.cu 'wait(bars, bars.dq_empty(' --backward
without attention_backward.cu 'sender_wait(bars, bars.dq_full(' --backward
without attention_backward.cu 'wait(bars, bars.ds_full(' --backward
without attention_backward.cu 'wgmma_wait<1>();' --backward
without attention_backward.cu 'fence_proxy_async();' --backward # dQ is staged
without attention_backward.cu '__syncwarp();' --backward
without attention_backward.cu 'fence_proxy_async();' 4 --backward # dS is there
without attention_backward.cu '__syncwarp();' 2 --backward
without attention_backward.cu 'bulk_wait_read<0>();' --backward
without attention_backward.cu 'bulk_wait_read<1>();' --backward --deterministic --head-dim 256 --mask full:300 --heads 4:1
without attention_backward.cu 'send_dq<senders - 1>(a, smem);' --backward --head-dim 256 --mask full:300 --heads 2:1
without attention_backward.cu 'bulk_wait<0>();' --backward # the block ends
without attention_backward.cu 'mbarrier_arrive(bars.tile_asked());' --backward
# Turns, where many tiles meet. (A turn is passed on by one of two calls: which one, is a matter of time.)
without attention_backward.cu 'bulk_wait<left>();' --backward --deterministic --mask full:1000 --heads 1:1
without attention_backward.cu 'turn_pass<0>(turn);' 2 --backward --deterministic --mask full:1000 --heads 1:1 # the tile ends
without attention_backward.cu 'mbarrier_arrive(turn.empty);' --backward --deterministic
exit $bad
