# shellcheck shell=sh
t simulate
t simulate --mask causal:100 --ranks 8,x
t simulate --mask causal:100 --ranks 0
t simulate --mask causal:100 --ranks 8,4097
t simulate --mask causal:100 --ranks ''
t simulate --mask causal:100 --heads 8
t simulate --mask causal:100 --heads 8:3
t simulate --mask causal:100 --dispatch better
t simulate --mask causal:100 --node-gb -1
t simulate --mask causal:100 --node-us 0.0001
for option in node-gb network-gb node-us network-us forward-tflops backward-tflops; do
    t simulate --mask causal:100 --$option 0
done
t simulate --mask causal:100 --head-dim 12
t simulate --mask causal:100 --ranks-per-node 0
t simulate --mask causal:100 --element-bytes 0
t simulate --mask causal:100 --chunk 0
t simulate --mask causal:100 --json --csv
t simulate --mask full:100x200
t simulate --mask nothing:100
t simulate --mask causal:100 --svg nowhere/picture.svg
t simulate --mask causal:100 --json --ranks 5000
