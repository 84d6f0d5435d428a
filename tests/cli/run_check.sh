# shellcheck shell=sh
t run --mask varlen-causal:700,1300,96 --heads 8:2 --head-dim 128 --dtype bf16 --backend cpu --check
for dtype in bf16 fp16 fp32 fp64; do
    t run --mask window:200,left=30,right=4 --heads 4:2 --head-dim 64 --dtype $dtype --backend cpu --check --json
done
t run --mask full:64 --heads 2 --head-dim 32 --backend cpu --repeat 3
t run --mask varlen-causal:70,30,96 --heads 4:2 --head-dim 64 --backend cpu --backward --check --sinks 1 --softcap 4
t run --mask window:100,left=30,right=4 --heads 4:2 --head-dim 64 --dtype fp16 --backend cpu --backward --check --json
t run --mask full:64 --heads 2 --head-dim 32 --backend cpu --backward --repeat 3
t run --mask varlen-causal:70,30,96 --heads 4:2 --head-dim 64 --backend cpu --backward --isolate --check
t run --mask varlen-causal:70,30,96 --heads 4:2 --head-dim 64 --backend cpu --backward --deterministic --check
# lse has a gradient, too: with sinks it reaches dsink, and rows of nothing ignore it.
t run --mask causal:70x50 --heads 4:2 --head-dim 64 --backend cpu --backward --dlse --sinks 1 --check
t run --mask causal:70x50 --heads 4:2 --head-dim 64 --dtype fp64 --backend cpu --backward --dlse --check --json
t run --mask causal:70x50 --heads 4:2 --head-dim 64 --backend cpu --dlse
