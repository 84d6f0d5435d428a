# shellcheck shell=sh
t mask area causal:4096
t mask area window:16384,left=1024,right=0 --json
t mask check block-causal:4096,8192/block=2048
t mask show varlen-causal:1000,3000,96 --columns 16
cat > two_heads.json << 'END'
{"seqlen_q": 8, "seqlen_k": 8, "kv_heads": [[[0, 8, 0, 8, "causal"], [4, 8, 0, 8, 0]], [[0, 4, 0, 4, "bicausal"]]]}
END
t mask check @two_heads.json
t mask check @two_heads.json --json
t mask area @two_heads.json --head 1
t mask area @two_heads.json --head 2
t mask show @two_heads.json --head 1 --columns 8 --json
t mask show full:64 --svg full.svg
t mask show full:64 --svg full.svg --json
head -c 4 full.svg
echo
t mask show full:64 --svg no/such/folder/full.svg
t mask show 'concat(causal:8;window:8,left=2,right=0)' --columns 16
t mask area 'crop(causal:4096;q=1024:2048)'
t mask check 'union(window:64,left=8,right=0;shift(full:16;k=4,size=64))'
t mask check 'shift(concat(@two_heads.json;full:4);q=-2,k=3,size=16x20)' --json
