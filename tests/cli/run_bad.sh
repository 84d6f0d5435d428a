# shellcheck shell=sh
t run
t run --mask nonsense:4
t run --mask causal:4 --heads 8:3
t run --mask causal:4 --heads 8:0
t run --mask causal:4 --heads eight
t run --mask causal:4 --heads 8: --json
t run --mask causal:4 --dtype int8
t run --mask causal:4 --backend tpu
t run --mask causal:4 --backend cpu --head-dim 12
t run --mask causal:4 --backend cpu --head-dim 512
t run --mask causal:4 --backend cpu --head-dim 0
t run --mask causal:4 --backend cpu --head-dim-v 12
t run --mask causal:4 --backend cpu --head-dim-v 264
t run --mask causal:4 --backend cpu --scale nan
t run --mask causal:4 --backend cpu --scale 1e-400
t run --mask causal:4 --backend cpu --seed -1
t run --mask causal:4 --backend cpu --sm-margin -5
t run --mask causal:4 --backend cpu --dk dk.npy
t run --mask causal:4 --backend cpu --deterministic
t run --mask causal:4 --backend cpu --parts-max 2
t run --mask causal:4 --backend cpu --backward --ranks 2 --parts-max 2
t run --mask causal:4 --backend cpu --backward --parts-max 0
t run --mask causal:4 --backend cpu --backward-tile 64x256
t run --mask causal:4 --backend cpu --backward --ranks 2 --backward-tile 64x256
t run --mask causal:4 --backend cpu --backward --backward-tile 64
t run --mask causal:4 --backend cpu --backward --backward-tile 64x256,split=0
t run --mask causal:4 --backend cpu --backward --backward-tile 64x2048
t run --mask causal:4 --backend cpu --split --no-split
printf '{"seqlen_q": 4, "seqlen_k": 4, "kv_heads": [[], [], []]}' > three.json
t run --mask @three.json --heads 4:2 --backend cpu
t run --mask causal:4 --backend cpu --q missing.npy
mkdir folder.npy
t run --mask causal:4 --backend cpu --q folder.npy
cp "$SOURCE"/tests/fuzz/corpus/npy/*.npy .
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --q bf16.npy
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --q fortran.npy
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --q truncated.npy
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --q "$SOURCE/LICENSE"
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --out no/such/folder/out.npy
"$FFA" run --mask full:2x1 --heads 1 --head-dim 8 --dtype fp64 --out fp64.npy > /dev/null
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --q fp64.npy
t run --mask full:2x1 --heads 1 --head-dim 8 --backend cpu --dtype fp32 --q fp64.npy --json
t run --mask full:8 --backend cpu --device 0
