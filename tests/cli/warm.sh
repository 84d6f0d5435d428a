# shellcheck shell=sh
needs_nvrtc
set=$SOURCE/tests/data/kernels.json
t warm "$set" --dry-run --jobs 2
t warm "$set" --jobs 1
t warm "$set" --jobs 1
t warm "$set" --resume --json --jobs 2
t warm - --jobs 2 --jsonl < "$set"

echo "# two shards hold what one whole does, byte for byte"
SLURM_PROCID=0 SLURM_NTASKS=2 t warm "$set" --store share0 --jobs 1 --json --shard auto
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 t warm "$set" --store share1 --jobs 1 --shard auto
mkdir -m 755 whole merged
"$FFA" bundle export --to whole > exported
"$FFA" bundle merge merged share0 share1 > exported
[ "$(ls whole)" = "$(ls merged)" ] && echo "the same digest"
for key in $("$FFA" cache ls --json | sed -n 's/.*"key": "\(.*\)",/\1/p'); do
    "$FFA" cache show "$key" --store merged/*.ffadb --cubin part.cubin > listing
    "$FFA" cache show "$key" --cubin whole.cubin > listing
    cmp part.cubin whole.cubin && echo "equal bytes"
done

echo "# with a bundle, there is nothing to build"
t warm "$set" --store empty.ffadb --bundle merged/*.ffadb --jobs 1
FFA_JIT=never FFA_BUNDLES=$(ls merged/*) t warm "$set" --store none --jobs 1 --json
FFA_BUNDLES=$(ls merged/*) t explain attention_forward head_dim=64 tile_n=64 --arch sm_90a --store none |
    grep answers

echo "# a batch script has its launcher's variables, and warms all"
SLURM_PROCID=0 SLURM_NTASKS=8 t warm "$set" --jobs 1

echo "# the store covers the set, and not another"
FFA_JIT=never RANK=0 WORLD_SIZE=1 t warm "$set" --jobs 1
FFA_JIT=never RANK=3 WORLD_SIZE=2 t warm "$set" --templates "$SOURCE/tests/data/templates/trivial" --jobs 1 --json

echo "# presets"
for preset in training inference all; do
    total=$("$FFA" warm --preset $preset --dry-run --json | sed -n 's/.*"total": \(.*\),/\1/p')
    if [ "$total" -ge 1 ]; then echo "$preset has kernels"; fi
done
