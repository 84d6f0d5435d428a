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
