# shellcheck shell=sh
t plan --mask causal:65536 --ranks 8
t plan --mask varlen-causal:9000,30000,26536 --ranks 4 --ranks-per-node 2 --stages 3 --rank 1
t plan --mask varlen-causal:700,1300,96 --ranks 2 --heads 64:8 --head-dim 64 --json
t plan --mask full:128x65536 --ranks 4 --moves auto
t plan --mask causal:65536 --ranks 8 --algorithm affinity
t plan --mask full:4096x1024 --ranks 2 --keys replicated
t plan --mask causal:4096 --ranks 1 --algorithm min-heap --chunk 512 --buffers 3
t plan --mask varlen-causal:9000,30000,26536 --ranks 8 --stages 3 --svg plan.svg
cmp plan.svg "$SOURCE/examples/plan.svg" || { echo "draw it again by the command in docs/context-parallelism.md"; exit 1; }
t plan --mask causal:1024 --ranks 2 --svg plan.svg --json
t plan --mask causal:1024 --ranks 2 --svg no/such/folder/plan.svg
cat > nothing.json << 'END'
{"seqlen_q": 64, "seqlen_k": 64, "slices": []}
END
t plan --mask @nothing.json --ranks 4
t plan --mask causal:65536 --ranks 4 --heads 16 --head-dim 192 --head-dim-v 128
