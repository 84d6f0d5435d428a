# shellcheck shell=sh
# What one run writes, the next reads; float32 is rounded, and said.
run() { t run --mask causal:40 --heads 2 --head-dim 16 --backend cpu "$@" | grep -v '^time\|^backend\|^backward'; }
run --dtype fp32 --out fp32.npy --lse lse.npy
run --dtype bf16 --q fp32.npy --k fp32.npy --v fp32.npy --out bf16.npy --check
run --dtype bf16 --q bf16.npy --k bf16.npy --v bf16.npy
run --dtype fp16 --q bf16.npy
# The same seed gives the same bytes.
run --dtype fp32 --out again.npy --lse again_lse.npy
cmp fp32.npy again.npy
cmp lse.npy again_lse.npy
head -c 70 fp32.npy | tail -c 60 && echo
head -c 70 bf16.npy | tail -c 60 && echo
head -c 70 lse.npy | tail -c 60 && echo
# Gradients: what is written is the same again, and from a dout that is read.
run --dtype fp32 --backward --dout fp32.npy --dq dq.npy --dk dk.npy --dv dv.npy --check
run --dtype fp32 --backward --dout fp32.npy --dq dq_again.npy --dk dk_again.npy --dv dv_again.npy
cmp dq.npy dq_again.npy
cmp dk.npy dk_again.npy
cmp dv.npy dv_again.npy
cmp -s dk.npy dv.npy || echo "dk and dv differ"
head -c 70 dk.npy | tail -c 60 && echo
# What one option writes, no other may write or read: files are compared, not their names.
bad() { t run --mask causal:40 --heads 2 --head-dim 16 --backend cpu "$@"; }
mkdir -p folder
ln -s folder link
ln -s fp32.npy other.npy
cp fp32.npy before.npy
bad --out same.npy --lse ./same.npy
bad --out folder/same.npy --lse link/same.npy --json
bad --backward --dq a.npy --dk a.npy --dv a.npy
bad --dtype fp32 --q fp32.npy --out fp32.npy
bad --dtype fp32 --backward --dout fp32.npy --dv "$PWD/other.npy"
echo '{"seqlen_q": 40, "seqlen_k": 40, "slices": [[0, 40, 0, 40, "causal"]]}' > mask.json
t run --mask @mask.json --heads 2 --head-dim 16 --backend cpu --out mask.json
t run --mask 'concat(@mask.json;full:4)' --heads 2 --head-dim 16 --backend cpu --out ./mask.json
cmp fp32.npy before.npy
find . -name same.npy -o -name a.npy
run --dtype fp32 --q fp32.npy --k fp32.npy --out /dev/null --lse /dev/null
