# shellcheck shell=sh
# A machine without a CUDA runtime. What needs no device does not even look for one: LD_DEBUG has the
# loader print what it looks for.
looked_for_cuda() {
    found=$(LD_DEBUG=libs "$FFA" "$@" 2>&1 > /dev/null | grep -cE '(find library=|calling init: .*/)lib(cuda|cudart)\.' || true)
    echo "ffa $*: looked $found times"
}
looked_for_cuda mask area causal:8
looked_for_cuda plan --mask causal:4096 --ranks 4
looked_for_cuda simulate --mask causal:4096 --ranks 4
looked_for_cuda compile forward_combine --arch sm_90a
looked_for_cuda warm --preset training --dry-run
looked_for_cuda run --mask causal:4 --backend cpu --heads 1 --head-dim 64
if [ "$(LD_DEBUG=libs "$FFA" doctor 2>&1 | grep -c 'find library=libcudart')" = 0 ]; then
    echo "the loader does not say what it looks for"
fi
t run --mask causal:4 --heads 1 --head-dim 64 --cudart nowhere/libcudart.so
t run --mask causal:4 --backend cuda --cudart nowhere/libcudart.so
t run --mask causal:4 --backend cuda --device 0 --json --cudart nowhere/libcudart.so
t doctor --store none --cudart nowhere/libcudart.so
