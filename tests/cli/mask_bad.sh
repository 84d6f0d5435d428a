# shellcheck shell=sh
t mask area causal:0
t mask area causal:2147483648
t mask area causal:-1
t mask area varlen-causal:
t mask area varlen-causal:3,x
t mask area window:16,left=-2
t mask area nonsense:16
t mask area @no_such_file.json
printf '{"seqlen_q": 4,\n "seqlen_k": 4,\n "slices": [[0, 4, 0, 4 "full"]]}' > broken.json
t mask area @broken.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 4, "diagonal"]]}' > type.json
t mask area @type.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 4, 4]]}' > code.json
t mask area @code.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 4, 0], [3, 2, 0, 4, 0]]}' > reversed.json
t mask area @reversed.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 5, 0]]}' > range.json
t mask area @range.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [[-1, 4, 0, 4, 0]]}' > negative.json
t mask area @negative.json --json
printf '{"seqlen_q": 0, "seqlen_k": 4, "slices": []}' > empty.json
t mask area @empty.json
printf '{"seqlen_q": 4, "seqlen_k": 2147483648, "slices": []}' > long.json
t mask area @long.json
printf '{"seqlen_q": 4, "seqlen_k": 4, "slices": [], "sliced": 1}' > key.json
t mask area @key.json
t mask area 'concat(causal:3;'
t mask area 'concat(causal:3;full:4' --json
t mask area 'crop(causal:8;q=5:3)'
t mask area 'crop(causal:8;q=1:9)'
t mask area 'shift(causal:8;size=0)'
t mask area 'union(causal:8;causal:9)'
t mask area 'mirror(causal:8)'
t mask area block-causal:2147483647/block=1
t mask area 'shared-question:1*67108864,3'
