# shellcheck shell=sh
# Sets that are said as specs, and the table of models; nothing is compiled but by a made-up NVRTC.
fake="--nvrtc $SLOW_NVRTC"

echo "# the kernels of a spec"
t warm --spec head_dim=128,dtype=bf16,pack=8,backward,deterministic --list
t warm --spec head_dim=192:128,dtype=bf16,heads=8:1,split=auto --spec head_dim=192:128,dtype=bf16,pack=0 --list
t warm --spec head_dim=80,dtype=fp16,backward,parallel,max_logits --list --json

echo "# a spec that is wrong says so"
t warm --spec head_dim=128,dtype=bf16,color --list
t warm --spec head_dim=128,head_dim=64 --list
t warm --spec head_dim= --list
t warm --spec dtype=int8 --list
t warm --spec heads=8 --list
t warm --spec backward=2 --list
t warm --spec head_dim=128,dtype=bf16, --list
t warm --spec head_dim=100,dtype=bf16 --list
t warm --spec head_dim=128,dtype=fp32 --list
t warm --spec head_dim=128,dtype=bf16,deterministic --list
t warm --spec head_dim=128,dtype=bf16,split,backward --list
t warm --spec head_dim=128,dtype=bf16 --arch sm_80 --list
t warm --spec head_dim=128,dtype=bf16 --preset training
t warm --spec head_dim=128,dtype=bf16 --list --dry-run
t warm --spec head_dim=128,dtype=bf16 --list --jsonl
t warm --preset nonsense --list

echo "# specs in a manifest: all combinations, each kernel once"
manifest() { echo "$1" | t warm - --list; }
manifest '{ "schema": 1, "specs": [ { "values": { "head_dim": [64, "192:128"], "dtype": "bf16", "softcap": [0, 1] } } ],
            "kernels": [ { "template": "attention_forward", "values": { "head_dim": 64, "dtype": "bf16" } } ] }'
manifest '{ "schema": 1, "specs": { } }'
manifest '{ "schema": 1, "specs": [ { "template": "attention_forward" } ] }'
manifest '{ "schema": 1, "specs": [ { "values": { "head_dim": 100, "dtype": "bf16" } } ] }'
manifest '{ "schema": 1, "specs": [ { "values": { "head_dim": 64, "dtype": "bf16" }, "arch": ["sm_80"] } ] }'

echo "# shards are disjoint, cover the set, and have as much to compile each"
"$FFA" warm --preset training --list | sort > whole
for shard in 0 1 2 3 4 5 6 7; do
    "$FFA" warm --preset training --list --shard $shard/8 > part
    cat part >> parts
    grep -c ' attention_' part
done | sort -n | awk 'NR == 1 { least = $1 } { most = $1 } END { print most - least <= 1 ? "even" : "uneven" }'
sort parts | cmp - whole && echo "the whole set"
t warm --spec head_dim=128,dtype=bf16 --list --shard 1/2
t warm --spec head_dim=128,dtype=bf16 --list --shard auto

echo "# what may not be compiled is noted, all of it, and then compiled"
# shellcheck disable=SC2086 # words
{
    "$FFA" warm --spec head_dim=64,dtype=bf16 $fake > made
    FFA_JIT=never t warm --spec head_dim=64,dtype=bf16,backward --jobs 1
    FFA_JIT=never "$FFA" warm --spec head_dim=96,dtype=bf16 --dry-run > made
    FFA_JIT=never "$FFA" warm --spec head_dim=96,dtype=bf16 --list > made
    "$FFA" cache misses | awk 'NR > 1 { print $2 }' | sort
    "$FFA" warm --from-misses store $fake > made
    FFA_JIT=never t warm --spec head_dim=64,dtype=bf16,backward --jobs 1
}

echo "# without a device model: what jobs look up by any table there is, or by none"
tables=$SOURCE/cache/cost-tables
"$FFA" warm --preset training --list --cost-tables "$tables" | sort > every
for model in 'NVIDIA H200' 'NVIDIA H100 80GB HBM3'; do
    "$FFA" warm --preset training --list --cost-tables "$tables" --device "$model" | sort > one
    echo "$model: $(comm -12 one every | wc -l) of $(wc -l < one) kernels"
done
echo "in all $(wc -l < every)"
t warm --preset training --list --device 'NVIDIA H100 80GB HBM3' --cost-tables none
