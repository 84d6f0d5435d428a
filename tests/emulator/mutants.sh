#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: mutants.sh FFA TEMPLATES [PART] (with the emulator in LD_PRELOAD)
# Takes one line at a time out of a kernel, a wait, a fence or an arrival, and sees that the
# emulator notices: a check that fails, a launch that fails. The whole kernel passes. PART is `one`,
# kernels of one rank, or `ranks`, those of context-parallel passes; both unless given.
# usage: mutants.sh --apply TEMPLATES: only sees that each line is there to be taken out.
set -eu
ffa=$1
templates=$2
part=${3:-both}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
pause=

# passes DIR ARGUMENTS...: under each of three schedules, or with `--test NAME CASE`: a device test
passes() {
    [ "$ffa" != --apply ] || return 0
    dir=$1
    shift
    if [ "${1:-}" = --test ]; then
        CK_RUN_CASE=$3 FFA_TEST_STORE=$work/kernels.ffadb FFA_TEST_TEMPLATES=$dir \
            "$(dirname "$ffa")/tests/test_device_$2" > "$work/out" 2>&1
        return
    fi
    case " $* " in *' --mask '*) ;; *) set -- --mask varlen-causal:300,700,60 --heads 4:2 "$@" ;; esac
    for seed in 1 2 3; do
        FFA_EMULATOR_SEED=$seed "$ffa" run --check --store "$work/kernels.ffadb" --templates "$dir" \
            "$@" > "$work/out" 2>&1 || return 1
    done
}

# without FILE 'LINE' [@FUNCTION] [N] ARGUMENTS...: the Nth statement that begins with LINE, 1 unless
# given, from FUNCTION's first line on
without() {
    file=$1
    line=$2
    what="without '$2'"
    shift 2
    nth "$@"
    shift "$given"
    awk -v line="$line" -v from="$from" -v count="$count" '
        from == "" || index($0, from) { is_there = 1 }
        is_there && !skip && index($0, line) && $1 != "*" && --count == 0 { skip = 1; print ";" }
        skip { if (/;/) skip = 0; next }
        { print }' "$templates/$file" > "$work/mutant"
    see "$@"
}

# instead FILE 'TEXT' 'OTHER' [@FUNCTION] [N] ARGUMENTS...: OTHER, where the Nth line with TEXT has it
instead() {
    file=$1
    line=$2
    other=$3
    what="with '$3' for '$2'"
    shift 3
    nth "$@"
    shift "$given"
    awk -v line="$line" -v other="$other" -v from="$from" -v count="$count" '
        from == "" || index($0, from) { is_there = 1 }
        is_there && (at = index($0, line)) && $1 != "*" && --count == 0 {
            $0 = substr($0, 1, at - 1) other substr($0, at + length(line)) }
        { print }' "$templates/$file" > "$work/mutant"
    see "$@"
}

# nth [@FUNCTION] [N] ...: sets from and count, and given to how many arguments they are
nth() {
    from=
    count=1
    given=0
    case ${1:-} in @*) from="void ${1#@}(" && given=1 && shift ;; esac
    case ${1:-} in [0-9]*) count=$1 && given=$((given + 1)) ;; esac
}

# With `pause` set, threads are held up before each line that begins with it: what is a matter of
# time, and of a time that no schedule at random has, is seen then. The pause itself does no harm.
paused() {
    [ -n "$pause" ] || { cat && return; }
    awk -v pause="$pause" '
        { text = $0; sub(/^ +/, "", text) }
        index(text, pause) == 1 { print "for (int i = 0; i < 300; ++i) __nanosleep(20);" }
        { print }'
}

# see ARGUMENTS...: the emulator sees the mutant of `file`
see() {
    rm -rf "$work/t"
    cp -r "$templates" "$work/t"
    if [ -n "$pause" ]; then
        for text in "$templates"/*.cu "$templates"/*.h; do
            paused < "$text" > "$work/t/${text##*/}"
        done
        if diff -rq "$templates" "$work/t" > "$work/differ"; then
            echo "$templates has no '$pause'" && bad=1
        elif ! passes "$work/t" "$@"; then
            cat "$work/out" && echo "a pause before '$pause' does not pass" && bad=1
        fi
    fi
    paused < "$work/mutant" > "$work/t/$file"
    if cmp -s "$templates/$file" "$work/mutant"; then
        echo "$file has no '$line'" && bad=1
    elif [ "$ffa" = --apply ]; then
        echo "$file $what"
    elif passes "$work/t" "$@"; then
        echo "$file $what passes" && bad=1
    elif grep -qE 'cannot load the module|error:' "$work/out"; then
        echo "$file $what is no kernel: $(tail -n 1 "$work/out")" && bad=1
    else
        printf '%s %s: %.120s\n' "$file" "$what" "$(tail -n 1 "$work/out")"
    fi
}

if [ "$part" != one ]; then
    # Ranks of one device share its SMs out. What waits for ever is to end before the test's own time does.
    export FFA_EMULATOR_SMS=16 FFA_EMULATOR_TIMEOUT_MS=30000
    passes "$templates" --test arrivals one || { cat "$work/out" && bad=1; }
    passes "$templates" --test rows few || { cat "$work/out" && bad=1; }
    # In that test keys that have not arrived are NaN, and arrive once a launch has read what it does not wait for.
    # Keys that arrive: the waits of both passes, and where a stage ends.
    without backward_arrivals.h 'stage_wait(' --test arrivals one
    instead backward_arrivals.h 'stage_find(a.arrivals, tile_begin(block_begin))' '1' --test arrivals one
    instead kernel_arrivals.h '(long long)(ld_acquire_sys(a.flags + stage) - a.value) < 0' 'false' --test arrivals one
    instead kernel_arrivals.h 'a.stage_end[++stage] > a.stage_end[stage - 1]' 'a.stage_end[++stage] < 0' --test arrivals one
    instead kernel_arrivals.h 'key >= a.stage_end[stage]' 'key > a.stage_end[stage]' --test arrivals one
    # Departures: never told, told of another stage, counted for another one.
    without kernel_arrivals.h 'st_release_sys(' --test arrivals one
    instead kernel_arrivals.h 'd.slot + stage, d.value' 'd.slot, d.value' --test arrivals one
    without attention_backward.cu 'tile_departs(' --test arrivals one
    # Told too early: others read sums that are not complete, as a stage of many heads is not for long.
    set -- --ranks 2 --backend cuda --heads 12:12 --head-dim 64 --stages 3 --mask causal:384
    passes "$templates" --backward "$@" || { cat "$work/out" && bad=1; }
    instead kernel_arrivals.h '+ 1 != d.expected[stage]' '+ 1 != 1' "$@" --backward
    set -- --ranks 2 --backend cuda --heads 2:1 --head-dim 64 --stages 3 --mask causal:384
    passes "$templates" --backward "$@" || { cat "$work/out" && bad=1; }
    # Rows: their runs and segments, sums and where they are received.
    instead row_items.h 'begin_of(middle) <= row' 'begin_of(middle) < row' --test rows few
    instead row_copy.cu 'last - run.before < run.rows' 'last < items.rows' --test rows few
    instead row_copy.cu 'run.from + (row - run.before)' 'run.from' "$@"
    instead row_items.h 'begin_of(middle) <= row' 'begin_of(middle) < row' "$@" --backward
    without row_reduce.cu 'sums[i][c] += more[c];' "$@" --backward
    instead row_reduce.cu 'a.sources[segment.first + s] + (row - segment.row)' 'a.sources[segment.first + s]' @reduce_rows "$@" --backward
fi
[ "$part" != ranks ] || exit $bad

passes "$templates" --backward || { cat "$work/out" && bad=1; }
passes "$templates" --backward --deterministic || { cat "$work/out" && bad=1; }
passes "$templates" --backward --head-dim 256 --mask varlen-causal:130,300,60 --heads 4:2 || { cat "$work/out" && bad=1; }
without forward_loads.h 'wait(bars, bars.k_empty('
without forward_products.h 'wait(bars, bars.v_full('
# The next work item is never asked for, where there are more of them than SMs.
without forward_loads.h 'mbarrier_arrive(bars.loads_asked());' --mask full:700 --heads 4:1
without attention_forward.cu 'wgmma_wait<1>();'
without attention_forward.cu 'mbarrier_arrive(bars.k_empty('
without forward_products.h 'fence_proxy_async();'
without backward_mask.h 'wait(bars, bars.q_full(' --backward
without attention_backward.cu 'wait(bars, bars.ds_empty(' --backward --head-dim 64 --mask causal:900 --heads 4:1
pause='piece_add(piece, w);' # else the sender is so fast that nobody needs the wait
without attention_backward.cu 'wait(bars, bars.dq_empty(' --backward
pause=
without backward_dq.h 'sender_wait<which>(bars, bars.dq_full(' --backward
without attention_backward.cu 'wait(bars, bars.ds_full(' --backward
without attention_backward.cu 'wgmma_wait<spec::softcap ? 0 : 1>();' --backward
without attention_backward.cu 'wgmma_wait<0>();' --backward
without backward_dq.h 'fence_proxy_async();' @send_dq --backward # a piece of dQ is in shared memory
without backward_dq.h '__syncwarp();' @copy_dq --backward
without attention_backward.cu 'fence_proxy_async();' @dq_run --backward # dS is there
without attention_backward.cu 'wgmma_wait<0>();' @piece_run --backward
without attention_backward.cu '__syncwarp();' @consumer_run --backward
without backward_dq.h 'bulk_wait_read<0>();' --backward
without backward_dq.h 'bulk_wait_read<1>();' --backward --deterministic --mask full:300 --heads 4:1
without attention_backward.cu 'send_dq<senders - 1>(a, smem);' --backward --head-dim 64
without backward_dq.h 'bulk_wait<0>();' --backward # the CUDA block ends
without backward_loads.h 'mbarrier_arrive(bars.loads_asked());' --backward
without backward_loads.h 'fetch_kv(a, smem, slot);' --backward
without backward_prepare.cu 'zero_counters(a);' --backward # the workspace holds anything
# A last piece of dQ of 32 columns. K and V are free when the consumers and the warpgroup of dQ say so.
passes "$templates" --backward --head-dim 96 || { cat "$work/out" && bad=1; }
without backward_mask.h 'wait(bars, bars.k_full(' --backward --head-dim 96
without attention_backward.cu 'mbarrier_arrive(bars.kv_empty());' --backward --head-dim 96
without attention_backward.cu 'mbarrier_arrive(bars.kv_empty());' 2 --backward --head-dim 96
# Tiles that nobody attends do not load K and V.
set -- --backward --mask window:16x1500,left=10,right=0 --heads 4:4
passes "$templates" "$@" || { cat "$work/out" && bad=1; }
instead backward_schedule.h 'slot_before->tile.sweep_count > 0' '1' "$@"
# Ordered accumulation, where many tiles meet. (A block is done by one of two calls: which one, is a matter of time.)
without backward_dq.h 'bulk_wait<left>();' --backward --deterministic --mask full:1000 --heads 1:1
without backward_dq.h 'ticket_done<0>(ticket);' 2 --backward --deterministic --mask full:1000 --heads 1:1 # the tile ends
without backward_dq.h 'mbarrier_arrive(ticket);' --backward --deterministic
without backward_tickets.h 'st_release_gpu(' --backward --deterministic
without backward_tickets.h 'until(at_ticket_empty, [&] { return held.come == held.passed; }' --backward --deterministic --mask full:1000 --heads 1:1 # the CUDA block ends
without backward_tickets.h 'until(at_ticket_empty, [&] { return held.come - held.passed < ticket_slots; }' --backward --deterministic --mask full:1000 --heads 1:1
instead backward_tickets.h '!mbarrier_test_wait_parity(bars.ticket_empty(slot), held.parity(held.passed))' 'false' --backward --deterministic --mask full:1000 --heads 1:1
# One producer fetches everything.
without backward_loads.h 'fetch_kv(a, smem, slot);' --backward --deterministic
without backward_loads.h 'mbarrier_arrive(bars.loads_asked());' --backward --deterministic
# Clusters of two blocks. What the copy engine brings to both, and what is given back to both.
set -- --backward --head-dim 256 --mask full:300 --heads 2:1
without backward_loads.h 'mbarrier_arrive(bars.loads_asked());' "$@"
instead attention_backward.cu 'cluster_sync();' '__syncthreads();' "$@"
without backward_mask.h 'wait(bars, bars.k_full(' "$@"
without backward_loads.h 'wait(bars, bars.kv_empty(' "$@"
instead backward_loads.h 'k_bytes + kx_bytes' 'k_bytes' "$@"
without backward_mask.h 'wait(bars, bars.q_full(' "$@"
without backward_loads.h 'wait(bars, bars.q_empty(' "$@"
without backward_mask.h 'wait(bars, bars.dout_full(' "$@"
without backward_loads.h 'wait(bars, bars.dout_empty(' "$@"
without backward_cluster.h 'mbarrier_arrive_at(bar, ' "$@"
instead backward_cluster.h 'mbarrier_arrive_at(bar, cluster_rank() ^ 1)' 'mbarrier_arrive(bar)' "$@"
# P, and dS for both blocks. (The other dS may still be read where P goes next: by this block's second
# warpgroup, and where there are two slots of dO, by the other block's first one.)
without backward_specialised.h 'wait(bars, bars.p_full(' "$@"
pause='wgmma_wait<1>(); /* for dQ, not for dK */'
without backward_specialised.h 'wait(bars, bars.ds_empty(' @consumer_run_p --backward --head-dim 256 --mask full:600x128 --heads 1:1
pause='piece_issue(dq, smem, ds_before.slot, 0);'
without backward_specialised.h 'wait(bars, bars.ds_empty(' @consumer_run_p --backward --head-dim 256 --head-dim-v 64 --mask full:600x128 --heads 1:1
pause=
without backward_exchange.h 'fence_proxy_async();' @ds_done "$@" # dS is there
without backward_exchange.h '__syncwarp();' @ds_done "$@"
instead backward_exchange.h 'mbarrier_arrive_expect_tx(bars.ds_full(slot), bytes)' 'mbarrier_arrive(bars.ds_full(slot))' "$@"
without backward_exchange.h 'cp_async_bulk_at(' "$@"
without backward_specialised.h 'wait(bars, bars.ds_full(' @last_piece "$@" # the tile ends
without backward_specialised.h 'wait(bars, bars.ds_full(' @consumer_run_p "$@"
# dQ, for which there is one place.
without backward_specialised.h 'wgmma_wait<1>();' @consumer_run_p "$@"
without backward_specialised.h 'wgmma_wait<1>();' @consumer_run_ds "$@"
pause='piece_add(piece, w);'
instead backward_specialised.h 'wait(bars, bars.dq_empty(w ^ 1)' 'if (w == 0) wait(bars, bars.dq_empty(w ^ 1)' "$@"
instead backward_specialised.h 'wait(bars, bars.dq_empty(w ^ 1)' 'if (w == 1) wait(bars, bars.dq_empty(w ^ 1)' "$@"
pause=
without backward_dq.h 'sender_wait<which>(bars, bars.dq_full(' "$@"
without backward_dq.h 'bulk_wait_read<0>();' "$@"
# The work items of the second block: many tiles of one block of rows, or of none.
set -- --backward --head-dim 256 --mask window:16x1500,left=10,right=0 --heads 4:4
without backward_schedule.h 'scheduler_wait(bars.item_full(),' "$@"
without backward_schedule.h 'scheduler_wait(bars.item_empty(),' "$@"
without backward_schedule.h 'mbarrier_arrive_at(bars.item_empty(), 0);' "$@"
without backward_schedule.h 'scheduler_wait(bars.tile_empty(' --backward --head-dim 256 --mask full:16x1500 --heads 4:4
without attention_backward.cu 'cluster_sync();' 2 --backward --head-dim 256 --mask full:16x64 --heads 1:1 # the end

# Pairs: dS on its way to the other block, its place, which dQ takes, and who fetches Q and dO.
set -- --backward --backward-tile 64x256
passes "$templates" "$@" || { cat "$work/out" && bad=1; }
passes "$templates" "$@" --deterministic || { cat "$work/out" && bad=1; }
without backward_pairs.h 'wait(bars, bars.ds_full(' "$@"
without backward_pairs.h 'fence_proxy_async();' "$@"
without backward_pairs.h 'wait(bars, bars.dsx_full(' @send_ds "$@"
without backward_pairs.h 'wait(bars, bars.dq_empty(' "$@"
without backward_pairs.h 'wait(bars, bars.dsx_full(' @pair_piece_run "$@"
without backward_pairs.h 'mbarrier_arrive(bars.ds_empty(' "$@"
without backward_pairs.h 'mbarrier_arrive_at(bars.ds_empty(' "$@"
without backward_pairs.h 'mbarrier_arrive(bars.kv_empty());' "$@"
without backward_pairs.h 'mbarrier_arrive(bars.tile_empty(' "$@"
without backward_loads.h 'wait(bars, bars.kv_empty(' "$@"
without backward_loads.h 'wait(bars, bars.dout_empty(' "$@"
without backward_dq.h 'mbarrier_arrive_at(dq_empty,' "$@"
instead backward_dq.h 'mbarrier_arrive_at(dq_empty, cluster_rank() ^ 1)' 'mbarrier_arrive(dq_empty)' "$@"
without attention_backward.cu 'release(bars.dout_empty(' "$@"
exit $bad
