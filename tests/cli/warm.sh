# shellcheck shell=sh
needs_nvrtc
set=$SOURCE/tests/data/kernels.json
t warm "$set" --dry-run --jobs 2
t warm "$set" --jobs 1
t warm "$set" --jobs 1
t warm "$set" --resume --json --jobs 2
"$SCHEMA_CHECK" "$SOURCE/tests/schema/warm.json" < .out && echo "as the schema says"
t warm - --jobs 2 --jsonl < "$set"

echo "# two shares hold what one whole does, byte for byte"
SLURM_PROCID=0 SLURM_NTASKS=2 t warm "$set" --store share0 --jobs 1 --json
"$SCHEMA_CHECK" "$SOURCE/tests/schema/warm.json" < .out && echo "as the schema says"
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 t warm "$set" --store share1 --jobs 1
blobs() { for store in "$@"; do "$FFA" cache ls --json --store "$store"; done | grep -E '"(key|digest)"' | sort; }
blobs store > whole
blobs share0 share1 > parts
wc -l < whole
cmp whole parts && echo "equal keys and digests"
for share in share0 share1; do
    for key in $("$FFA" cache ls --json --store $share | sed -n 's/.*"key": "\(.*\)",/\1/p'); do
        "$FFA" cache show "$key" --store $share --cubin part.cubin > listing
        "$FFA" cache show "$key" --cubin whole.cubin > listing
        cmp part.cubin whole.cubin && echo "equal bytes"
    done
done

echo "# the store covers the set, and not another"
FFA_JIT=never RANK=0 WORLD_SIZE=1 t warm "$set" --jobs 1
FFA_JIT=never RANK=3 WORLD_SIZE=2 t warm "$set" --templates "$SOURCE/tests/data/templates/trivial" --jobs 1 --json

echo "# presets"
for preset in training inference all; do
    total=$("$FFA" warm --preset $preset --dry-run --json | sed -n 's/.*"total": \(.*\),/\1/p')
    if [ "$total" -ge 1 ] && [ "$total" -le 48 ]; then echo "$preset: 1 to 48 kernels"; fi
done
