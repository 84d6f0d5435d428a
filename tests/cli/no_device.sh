# shellcheck shell=sh
if "$FFA" doctor --json | grep -q '"backend": "cuda"'; then skip "there is a GPU here"; fi
t run --mask causal:4 --backend cuda
t run --mask causal:4 --backend cuda --device 0 --json
t run --mask causal:4 --backend auto --heads 1 --head-dim 64
