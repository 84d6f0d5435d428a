# shellcheck shell=sh
cp "$SOURCE/tests/data/calibration/h200.json" gpus.json
t simulate --mask causal:65536 --heads 64:8 --ranks 8 --calibration gpus.json
t simulate --mask causal:65536 --heads 64:8 --ranks 8 --calibration gpus.json --node-gb 100 --json | sed -n '/"model"/,/}/p'
t plan --mask causal:65536 --heads 64:8 --ranks 8 --calibration gpus.json | sed -n '/^times/,$p'
t run --mask causal:128 --ranks 2 --heads 2:1 --head-dim 64 --backend cpu --check --calibration gpus.json | sed -n '/^check/p'
# Damaged files, each with the place of what is wrong.
damaged() { # SED
    sed "$1" gpus.json > bad.json
    t simulate --mask causal:100 --calibration bad.json
}
t simulate --mask causal:100 --calibration none.json
mkdir folder.json
t simulate --mask causal:100 --calibration folder.json
# shellcheck disable=SC2016 # the last line, for sed
damaged '$d'
# shellcheck disable=SC2016
damaged '1s/{/[]/;2,$d'
damaged 's/"schema": 1/"schema": 2/'
damaged '/"schema"/d'
damaged 's/"gpus": 2/"gpus": 2, "gpus": 3/'
damaged 's/"links": \[/"link": [/'
damaged 's/"device": "made up"/"device": 7/'
damaged 's/"node_latency_ns": 20000/"node_latency_ns": -1/'
damaged 's/"launch_ns": 4000/"launch_ns": 4e3/'
damaged 's/"mbytes_s": 371000/"mbytes_s": 0/'
damaged 's/"range_bytes": 1048576/"range_bytes": 65536/'
damaged 's/"range_bytes": 16777216, //'
damaged 's/"range_bytes": 16777216/"range": 16777216/'
damaged 's/{"pass": "backward"/{"pass": "back"/'
damaged 's/"gflops": 590000/"gflops": 5000000000/'
damaged 's/"tile_m": 64/"tile_m": 4294967296/'
damaged 's/{"range_bytes": 65536.*/17,/'
t plan --mask causal:100 --ranks 2 --calibration bad.json
t run --mask causal:100 --ranks 2 --calibration bad.json
t run --mask causal:100 --calibration gpus.json
# What tiles cost besides their cells, copies into the window and SMs: a file of before has none of them.
sed 's/"gflops": \([0-9]*\)/"gflops": \1, "begin_tokens": 200/; s/"gpus": 2,/"gpus": 2, "sms": 132, "window_mbytes_s": 2000000, "source": "made up",/' gpus.json > begins.json
t simulate --mask causal:65536 --heads 64:8 --ranks 8 --calibration begins.json
t plan --mask causal:65536 --heads 64:8 --ranks 8 --algorithm best --calibration begins.json | sed -n '/^ rank/,/^$/p'
t run --mask causal:128 --ranks 2 --heads 2:1 --head-dim 64 --backend cpu --check --calibration begins.json | sed -n '/^check/p'
cp begins.json gpus.json
damaged 's/"begin_tokens": 200/"begin_tokens": -2/'
damaged 's/"begin_tokens": 200/"begin_tokens": 65537/'
damaged 's/"sms": 132/"sms": 5000/'
damaged 's/"window_mbytes_s": 2000000/"window_mbytes_s": "fast"/'
damaged 's/"source": "made up"/"source": 7/'
