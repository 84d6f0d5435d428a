# shellcheck shell=sh
# Session files without a GPU: showing, merging, exporting, importing, and what is refused.
data=$SOURCE/tests/data/tune
t tune run head_dim=64,heads=2:1
t tune run head_dim=64,heads=2:1 --session a --budget soon
t tune run head_dim=64,heads=2:1 --session a --run-timeout -1
t tune run head_dim=63,heads=2:1 --session a --heads 2:x
t tune run nonsense --session a
t tune run head_dim=64,heads=2:1 --session a --device 'NVIDIA H200'
t tune run head_dim=64,heads=2:1 --compile-only --device 'NVIDIA H100' --cost-tables none
t tune run head_dim=64,heads=2:1 --compile-only --session a
t tune run head_dim=64,heads=2:1 --compile-only --dry-run
t tune run head_dim=64,heads=2:1 --session a --part 2/2
t tune run head_dim=64,heads=2:1 --session a --devices 0,x
t tune run head_dim=64,heads=2:1 --session a --devices 1,1
t tune run head_dim=64,heads=2:1 --session a --devices 0,1 --device 2
t tune run head_dim=192:128,heads=32:32 head_dim=64,heads=2:1,pack=0 --tile 64x96 --dry-run --device 'NVIDIA H200' --cost-tables none
t tune run head_dim=128,heads=64:8,backward --tile 64x96 --dry-run --device 'NVIDIA H200' --cost-tables none
t tune run head_dim=128,heads=16:16,backward --backward-only --mask causal:4096 --mask full:1x512 --budget 1m --dry-run --device 'NVIDIA H200' --cost-tables none
t tune run head_dim=128,heads=16:16 --backward-only --dry-run --device 'NVIDIA H200' --cost-tables none
t tune show none
t tune import a "$data/machine1.samples"
t tune import b "$data/machine2.samples" --json
t tune show a
t tune merge all a b
t tune merge all b a
t tune show all
mkdir folder
t tune export all folder
cp folder/costs-*.json folder/another.json
t tune export all folder
rm folder/another.json
t tune export all nowhere
t tune export all folder --json
t tune import all "$data/machine1.samples" "$SOURCE/README.md"
t tune import all folder
t tune merge all
# what could not be shown again is not taken in
sed '0,/causal:2048/s/causal:2048/causl:2048/' "$data/machine2.samples" > typo.samples
t tune import half "$data/machine1.samples" typo.samples
sed 's/"driver": "1.2.3"/"driver": "1.2.3\\u001b"/' "$data/machine2.samples" > escape.samples
t tune import half escape.samples
t tune export half folder
# nothing is ready where no store takes it
mkdir -m 777 open
chmod 777 open
t tune run head_dim=64,heads=8:8 --compile-only --device 'NVIDIA H200' --tile 64x64 --store open/kernels.ffadb
# all samples that docs speak of can be read
for samples in "$SOURCE"/bench/results/*/*.samples; do
    "$FFA" tune import "$(basename "$(dirname "$samples")")-$(basename "$samples" .samples)" "$samples"
done
# sessions of an H200, with a mask whose text is long
t tune import h200 "$SOURCE/bench/results/h200/tuning_groups.samples"
t tune show h200
# a backward session of a device that is made up
t tune import back "$data/backward.samples"
t tune show back
t tune export back folder
t tune run head_dim=128,heads=8192:1,backward --backward-only --dry-run --device 'NVIDIA H200' --cost-tables none
