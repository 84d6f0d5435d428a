# shellcheck shell=sh
# Which rank a process is, and who does not come. No GPU is needed: processes meet before they open one.
t run --mask causal:64 --ranks 2 --rank 1
t run --mask causal:64 --rank 1 --rendezvous meet
t run --mask causal:64 --ranks 2 --rank 2 --rendezvous meet
t run --mask causal:64 --ranks 2 --rank 256 --rendezvous meet
t run --mask causal:64 --ranks 2 --rendezvous meet
t run --mask causal:64 --ranks 2 --rank 0 --rendezvous meet --backend cpu
t run --mask causal:64 --ranks 2 --rank 0 --rendezvous meet --device 0
t run --mask causal:64 --ranks 2 --rank 0 --rendezvous meet --isolate
t run --mask causal:64 --timeout 5
t run --mask causal:64 --timeout -1
t run --mask causal:64 --ranks 2 --timeout -1
t run --mask causal:64 --ranks 2 --timeout 86401
t run --mask causal:64 --timeout 0
t run --mask causal:64 --ranks 2 --backend cuda --timeout 0
t run --mask causal:64 --ranks 2 --backend cpu --timeout 5
t run --mask causal:64 --ranks 2 --timeout 5
t run --mask causal:64 --ranks 3 --rank 0 --rendezvous meet --timeout 0.2
t run --mask causal:64 --ranks 3 --rank 1 --rendezvous meet --timeout 0.2 --json
t run --mask causal:64 --ranks 2 --rank 0 --rendezvous soon --timeout 0.0001
t run --mask causal:64 --ranks 2 --rank 0 --rendezvous nowhere/at/all

echo '# A launcher says it; without a folder it is no matter.'
export RANK=1 WORLD_SIZE=2
t run --mask causal:64 --ranks 4 --rendezvous meet
t run --mask causal:64 --rendezvous meet --timeout 0.2
FFA_RENDEZVOUS=$WORK/other
export FFA_RENDEZVOUS
t run --mask causal:64 --timeout 0.2
t run --mask causal:64 --backend cpu
RANK=x t run --mask causal:64 --rendezvous meet
RANK=x t run --mask causal:64
unset WORLD_SIZE
t run --mask causal:64 --rendezvous meet
unset RANK

echo '# Not meant for a call whose rank nobody says.'
t run --mask causal:5 --ranks 8
