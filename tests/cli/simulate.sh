# shellcheck shell=sh
t simulate --mask varlen-causal:8192*8 --ranks 64,8
t simulate --mask causal:65536 --ranks 8,24 --ranks-per-node 4 --heads 24:8 --head-dim 64 --element-bytes 1 \
    --dispatch zigzag --chunk 512 --forward-tflops 300 --backward-tflops 250 --node-gb 100 --network-gb 20 \
    --node-us 5 --network-us 50 --csv
t simulate --mask window:20000,left=500,right=0 --ranks 4 --heads 4:4 --json
t simulate --mask shared-question:2000,6000 --ranks 1,2,16 --svg picture.svg --csv
grep -c '<polyline' picture.svg
grep -o '<title>[^<]*' picture.svg | head -n 2
"$FFA" simulate --mask 'varlen-causal:8192*8' --heads 64:8 --ranks 1,2,4,8,16,32,64 --svg simulate.svg > said 2>&1
cmp simulate.svg "$SOURCE/examples/simulate.svg" || { echo "draw it again by the command in docs/context-parallelism.md"; exit 1; }
t simulate --mask full:5 --ranks 8
t simulate --mask window:524288,left=1000,right=0 --ranks 4096 --csv
t simulate --mask causal:65536 --ranks 8 --heads 16:16 --head-dim 192 --head-dim-v 128
