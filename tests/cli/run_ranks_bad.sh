# shellcheck shell=sh
t run --mask causal:64 --ranks 0
t run --mask causal:64 --ranks 257
t run --mask causal:64 --ranks 4 --device 0
t run --mask causal:64 --stages 2
t run --mask causal:5 --ranks 8
t run --mask causal:64 --ranks 2 --stages 17
t run --mask causal:64 --ranks 2 --moves values
t run --mask causal:64 --moves keys
t run --mask causal:64 --ranks 2 --isolate
t run --mask causal:64 --ranks 2 --backward --deterministic
t run --mask causal:64 --timeline ranks.svg
t run --mask causal:64 --ranks 2 --backend cpu --trace ranks.json
t run --mask causal:64 --backend cuda --timeline ranks.svg --trace ranks.json
t run --mask causal:64 --ranks 2 --backend cuda --wire-dtype int8
t run --mask causal:64 --ranks 2 --backend cpu --wire-dtype bf16
