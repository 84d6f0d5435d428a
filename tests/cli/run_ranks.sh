# shellcheck shell=sh
t run --mask block-causal:400,300,90/block=64 --ranks 8 --heads 2 --head-dim 32 --backend cpu --backward --check
t run --mask varlen-causal:900,140,960 --ranks 3 --stages 2 --delay 9 --heads 4:2 --head-dim 16 --dtype fp64 --sinks 2 --softcap 4 --backward --check --json
t run --mask full:64x256 --ranks 4 --ranks-per-node 2 --heads 2 --head-dim 8 --dtype fp32 --check
t run --mask full:48x2000 --ranks 4 --moves queries --heads 2 --head-dim 8 --dtype fp32 --backward --check
# What one rank writes, many write: in fp64, lse to 1e-13.
t run --mask causal:1500 --heads 1 --head-dim 8 --dtype fp64 --backend cpu --out one.npy --lse one_lse.npy
t run --mask causal:1500 --heads 1 --head-dim 8 --dtype fp64 --ranks 6 --stages 3 --lse six_lse.npy
od -An -v -tf8 -j128 one_lse.npy >one.txt
od -An -v -tf8 -j128 six_lse.npy >six.txt
paste one.txt six.txt | awk '
    { for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d > 1e-13 || d < -1e-13) bad++ } }
    END { print NR == 750 && !bad ? "the same lse" : "another lse" }'
# A gradient of lse, too, whichever side moves.
t run --mask causal:90 --ranks 3 --heads 2:1 --head-dim 8 --dtype fp64 --sinks 1 --backward --dlse --check
t run --mask full:48x90 --ranks 3 --moves queries --heads 2:1 --head-dim 8 --dtype fp64 --backward --dlse --check
# Values of another head_dim, whichever side moves.
t run --mask causal:300 --ranks 3 --heads 4:2 --head-dim 24 --head-dim-v 8 --dtype fp64 --sinks 1 --backward --dlse --check
t run --mask full:48x300 --ranks 4 --moves queries --heads 2:1 --head-dim 8 --head-dim-v 24 --dtype fp32 --backward --check
