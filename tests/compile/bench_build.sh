#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: bench_build.sh SOURCE
# 'bench/bench_attention.py build' compiles variants of the forward template with nvcc, without a
# GPU, and what its launches take from the headers of templates/ is what is there. Exit 77 without
# nvcc or Python.
set -eu
source=$1
command -v python3 > /dev/null 2>&1 || { echo "skipped: no python3"; exit 77; }
for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if ! command -v nvcc > /dev/null 2>&1 && [ -x "$folder/bin/nvcc" ]; then PATH=$PATH:$folder/bin; fi
done
command -v nvcc > /dev/null 2>&1 || { echo "skipped: no nvcc"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 "$source/bench/bench_attention.py" build "$work" tile_n=64 head_dim=64,tile_n=64
[ -s "$work/tile_n64.cubin" ]
[ -s "$work/variants.json" ]
if python3 "$source/bench/bench_attention.py" build "$work" no_such_setting=1 2> /dev/null; then
    echo "a setting that the template does not have was taken"
    exit 1
fi

# Tables of results, without PyTorch.
python3 "$source/bench/bench_attention.py" table "$source/bench/results/h200/peers_192.jsonl" |
    grep -q '^| full | 4k |.*FlashAttention-4'

# The sizes that the script's own launches depend on.
PYTHONPATH=$source/bench python3 - "$source" << 'EOF'
import ctypes, re, sys
sys.dont_write_bytecode = True
import bench_attention as bench

text = open(sys.argv[1] + "/templates/attention_forward.args.h").read()
want = int(re.search(r"static_assert\(sizeof\(attention_forward_args\) == (\d+)", text)[1])
assert ctypes.sizeof(bench.Args) == want, (ctypes.sizeof(bench.Args), want)
assert ctypes.sizeof(bench.Tile) == 32
assert bench.shared_bytes(bench.variant("tile_n=64")[0]) > 0  # it reads settings by name
EOF
