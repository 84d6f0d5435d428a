# shellcheck shell=sh
t run --mask block-causal:400,300,90/block=64 --ranks 8 --heads 2 --head-dim 32 --backend cpu --backward --check
t run --mask varlen-causal:900,140,960 --ranks 3 --stages 2 --delay 9 --heads 4:2 --head-dim 16 --dtype fp64 --sinks 2 --softcap 4 --backward --check --json
t run --mask full:64x256 --ranks 4 --ranks-per-node 2 --heads 2 --head-dim 8 --dtype fp32 --check
t run --mask full:48x2000 --ranks 4 --moves queries --heads 2 --head-dim 8 --dtype fp32 --backward --check
# What one rank writes, many write: in fp64, lse to the last bit of fp32.
t run --mask causal:1500 --heads 1 --head-dim 8 --dtype fp64 --backend cpu --out one.npy --lse one_lse.npy
t run --mask causal:1500 --heads 1 --head-dim 8 --dtype fp64 --ranks 6 --stages 3 --lse six_lse.npy
cmp one_lse.npy six_lse.npy && echo "the same lse"
