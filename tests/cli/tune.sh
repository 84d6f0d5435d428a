# shellcheck shell=sh
if "$FFA" doctor --json | grep -q '"backend": "cuda"'; then skip "the transcript is of a machine without a GPU"; fi
t tune explain causal:1024 --heads 64:8
t tune explain varlen-full:8*200 --spec head_dim=128,dtype=bf16,heads=64:8 --device 'NVIDIA H200'
t tune explain full:128x65536 --spec head_dim=128,dtype=bf16,heads=8:1
t tune explain causal:300 --spec head_dim=128,dtype=bf16 --json

echo "# a table of another model, whose kernels of one warpgroup are quicker, and that knows times"
t tune table --device 'NVIDIA H200' --cost-tables none > printed
sed 1d printed > built-in.json
mkdir tables
"$FFA" tune table --cost-tables built-in.json 2> /dev/null | cmp - built-in.json && echo "a table reads back"
sed 's/"NVIDIA H200"/"X 1"/; s/\("consumers": 1.*"begin": \)231.0/\110.0/; s/"unit_us": 0.0/"unit_us": 0.01/; s/"origin": ".*"/"origin": "made up"/' \
    built-in.json > tables/x1.json
t tune explain causal:4096 --spec head_dim=128,dtype=bf16,heads=8:1 --device 'X 1' --cost-tables tables
t warm --list --spec head_dim=128,dtype=bf16,heads=64:8,split=0 --device 'X 1' --cost-tables tables | sed 's/^[0-9a-f]* //'

echo "# a part of a GPU has a long name, which is not cut"
mig='NVIDIA H100 80GB HBM3 MIG 1g.10gb'
sed "s/\"X 1\"/\"$mig\"/" tables/x1.json > tables/mig.json
t tune explain causal:512 --spec head_dim=128,dtype=bf16,heads=8:1 --device "$mig" --cost-tables tables/mig.json
FFA_COST_TABLES=tables "$FFA" doctor 2> /dev/null | grep -F "$mig" || echo "doctor has cut it"
rm tables/mig.json

echo "# files that are not used"
sed 's/"templates": ""/"templates": "0123456789abcdef0123456789abcdef"/; s/X 1/X 2/' tables/x1.json > tables/x2.json
sed 's/"worth": 0.03/"worth": 2/; s/X 1/X 3/' tables/x1.json > tables/x3.json
cp tables/x1.json tables/x4.json
FFA_COST_TABLES=tables "$FFA" doctor 2> said | sed -n '/^costs/,$p' | sed 's/this library has [0-9a-f]*/this library has DIGEST/'
sed 's/this library has [0-9a-f]*/this library has DIGEST/' said

echo "# what is refused"
t tune explain causal:64 --device 'X 9'
t tune table --device 'X 9' --json
t tune explain causal:64 --heads 3
t tune explain causal:64 --heads 3:2
t tune explain causal:64 --heads 3x2
t tune explain causal:64 --heads 0
t tune explain causal:64 --heads 0:5
t tune explain causal:64 --spec head_dim=128,dtype=bf16,heads=0:0
t tune explain causal:64 --spec head_dim=64
printf '{"seqlen_q": 4, "seqlen_k": 4, "kv_heads": [[], [[0, 4, 0, 4, "full"]], []]}' > three.json
t tune explain @three.json --heads 4:2
t tune explain causal:64 --spec head_dim=100
t tune explain nonsense:1
t tune explain
t tune table --cost-tables ''
t tune table more
t tune
t warm --from-misses store --device 'X 1'
# what only compiles, or only says, has no parts; nothing compiled is a failure
t tune run head_dim=64,heads=4:1 --compile-only --device 'NVIDIA H200' --part 1/2
t tune run head_dim=64,heads=4:1 --dry-run --part 1/2
t tune run head_dim=64,heads=4:1 --compile-only --device 'NVIDIA H200' --store none
