# shellcheck shell=sh disable=SC3045 # ulimit -d: dash and bash have it
# Commands under a limit to their memory. Figures are those of the machine: "*".
(ulimit -d 900000 && "$FFA" mask area full:4) > /dev/null 2>&1 ||
    skip "a sanitizer's own memory is above the limit"
ulimit -d 900000
t mask area varlen-causal:1*10000000
t mask area block-causal:2147483647/block=33
t mask check 'concat(varlen-full:1*9000000;full:3)' --json
t run --mask causal:1048576 --heads 8 --head-dim 128 --dtype fp64 --backend cpu
t run --mask causal:524288 --heads 8 --head-dim 64 --backend cpu --ranks 2
t plan --mask varlen-causal:1*10000000 --ranks 2
t mask area causal:1000000
awk 'BEGIN { printf "{\"seqlen_q\": 9, \"seqlen_k\": 9, \"slices\": [[0, 1, 0, 1, 0]"; for (i = 0; i < 200000; i++) printf ",[0,9,0,9,0]"; print "]}" }' > many.json
t mask area @many.json
awk 'BEGIN { for (i = 0; i < 6000000; i++) printf "[" }' > brackets.json
t mask area @brackets.json
# Refused as the text is read, before anything is built.
t mask area block-causal:2147483647/block=1
t mask area 'shared-question:1*67108864,3'
t mask area 'shared-question:1*67108863,3'
ulimit -d 200000
t plan --mask causal:134217728 --ranks 2 --chunk 128
# The tiles of a rank's passes alone would take more.
ulimit -d 80000
t plan --mask causal:134217728 --ranks 32
