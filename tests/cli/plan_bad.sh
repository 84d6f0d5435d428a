# shellcheck shell=sh
t plan
t plan --mask causal:64
t plan --mask causal:64 --ranks 65
t plan --mask causal:64 --ranks 0
t plan --mask causal:64 --ranks 4 --rank 4
t plan --mask causal:64 --ranks 4 --rank 4 --json
t plan --mask none:64 --ranks 4
t plan --mask causal:64 --ranks 4 --algorithm greedy
t plan --mask causal:64 --ranks 4 --keys here
t plan --mask causal:64 --ranks 4 --moves all
t plan --mask causal:64 --ranks 4 --heads 8:3
t plan --mask causal:64 --ranks 4 --heads eight
printf '{"seqlen_q": 4, "seqlen_k": 4, "kv_heads": [[], [[0, 4, 0, 4, "full"]], []]}' > three.json
t plan --mask @three.json --ranks 2 --heads 4:2
t plan --mask @three.json --ranks 2
t plan --mask causal:64 --ranks 4 --buffers 4
t plan --mask full:64x32 --ranks 4 --keys with-queries
t plan --mask causal:64 --ranks 4 --head-dim 7
t plan --mask causal:64 --ranks 4 --head-dim 12
t plan --mask causal:64 --ranks 4 --head-dim 264
t plan --mask causal:64 --ranks 4 --head-dim-v 12
t plan --mask causal:64 --ranks 4 --stages 13
t plan --mask causal:4096 --ranks 4 --algorithm exact --chunk 128
t plan causal:64 --ranks 4
