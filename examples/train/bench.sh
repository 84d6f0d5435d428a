#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: bench.sh [OUT] [ARGUMENTS of train.py...]
# The training runs of the README on this machine's GPUs, 300 steps each: losses of all of them in
# OUT/losses.jsonl, their curves in OUT/losses.svg, the table in OUT/table.md. What cannot run here (flash-attn
# that is not installed, two GPUs that are not there) is left out, with a line that says so. RUNS="sdpa fa4 ..." in the
# environment: these runs only.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-training}
[ $# = 0 ] || shift
python=${PYTHON:-python3}
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" = 0 ]; then
    echo "no GPU: the table is of measured values only"
    exit 77
fi
mkdir -p "$out"
: > "$out/losses.jsonl"

# one NAME COMMAND...: a run that RUNS has, or a line that says it did not end well
one() {
    name=$1
    shift
    case " ${RUNS:-$name} " in
        *" $name "*) ;;
        *) return 0 ;;
    esac
    echo "== $name"
    "$@" --out "$out/losses.jsonl" > "$out/$name.log" 2>&1 || echo "   left out: $(tail -n 1 "$out/$name.log")"
    tail -n 1 "$out/$name.log"
}

train="$here/train.py"
one sdpa "$python" "$train" --attention sdpa "$@"
one sdpa-seed "$python" "$train" --attention sdpa --seed 1 "$@"
one libffa "$python" "$train" --attention libffa "$@"
one libffa-seed "$python" "$train" --attention libffa --seed 1 "$@"
one sdpa-compile "$python" "$train" --attention sdpa --compile "$@"
one libffa-compile "$python" "$train" --attention libffa --compile "$@"
one flex-compile "$python" "$train" --attention flex --compile "$@"
if "$python" -c 'from flash_attn import flash_attn_varlen_func' 2> /dev/null; then
    one flash "$python" "$train" --attention flash "$@"
else
    echo "left out: flash-attn is not installed"
fi
if "$python" -c 'from flash_attn.cute import flash_attn_varlen_func' 2> /dev/null; then
    one fa4 "$python" "$train" --attention fa4 "$@"
else
    echo "left out: flash-attn-4 is not installed"
fi
if [ "$gpus" -gt 1 ]; then
    torchrun="$python -m torch.distributed.run --standalone --nproc-per-node 2"
    # shellcheck disable=SC2086
    one context-parallel $torchrun "$train" --attention libffa --context-parallel 2 "$@"
    # shellcheck disable=SC2086
    one context-parallel-fsdp $torchrun "$train" --attention libffa --context-parallel 2 --fsdp "$@"
else
    echo "left out: context parallelism, which takes two GPUs"
fi
"$python" "$here/plot.py" "$out/losses.jsonl" > "$out/losses.svg"
{
    date +%F
    "$python" "$here/plot.py" --table "$out/losses.jsonl"
} | tee "$out/table.md"
