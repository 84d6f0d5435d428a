# shellcheck shell=sh
t warm --help
t explain --help
t warm
t warm --preset nonsense
t warm --preset training set.json
t warm set.json
t warm --preset training --json --jsonl
t warm --preset training --dry-run --jsonl
t warm --preset training --jobs 0
t warm --preset training --jobs many
t warm --preset training --mem-per-job 2
t warm --preset training --mem-per-job 1M
t warm --preset training --timeout 0
t warm --preset training --deadline -1
t warm --preset training --shard 2/2
t warm --preset training --shard 1of2
# A launcher whose variables make no sense does not stand for the whole set; one that says half may be around another.
SLURM_PROCID=5 SLURM_NTASKS=4 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
SLURM_PROCID=x SLURM_NTASKS=4 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto --json
SLURM_PROCID=0 SLURM_NTASKS=0 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
RANK=-1 WORLD_SIZE=4 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
SLURM_PROCID=1 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
WORLD_SIZE=1 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
SLURM_PROCID=0 RANK=4 WORLD_SIZE=4 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto
SLURM_PROCID=5 SLURM_NTASKS=4 t warm --spec head_dim=64 --list
t warm --preset training --arch sm_80 --json
t warm --preset training --arch sm_90a,
t warm --preset training --store none

manifest() { echo "$1" | t warm - --dry-run; }
manifest '{ "schema": 1, "kernels": '
manifest '[]'
manifest '{ "schema": 2, "kernels": [] }'
manifest '{ "schema": 1 }'
manifest '{ "schema": 1, "kernels": [], "colour": 1 }'
manifest '{ "schema": 1, "kernels": [], "arch": "sm_90a" }'
manifest '{ "schema": 1, "kernels": [{}] }'
manifest '{ "schema": 1, "kernels": [{ "template": "nonsense" }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "values": { "head_dim": [64, 100] } }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "values": { "head_dim": [] } }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "values": { "head_dim": 1.5 } }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "values": { "colour": 1 } }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "valuez": {} }] }'
manifest '{ "schema": 1, "kernels": [{ "template": "attention_forward", "arch": ["sm_80"] }] }'
manifest '{ "schema": 1, "kernels": [] }'
# Combinations run through, the last value fastest; equal kernels count once.
manifest '{ "schema": 1, "arch": ["sm_90a"], "kernels": [
    { "template": "attention_forward", "values": { "head_dim": [64, 128], "dtype": ["bf16", "fp16"] } },
    { "template": "attention_forward", "values": { "dtype": 1 } } ] }'

# What is asked for is right, and the machine or the store is not.
set=$SOURCE/tests/data/kernels.json
t warm "$set" --jobs 1 --nvrtc no/such/libnvrtc.so
echo 'not a store' > foreign.ffadb
chmod 600 foreign.ffadb
t warm "$set" --jobs 1 --store foreign.ffadb --nvrtc "$SLOW_NVRTC"
t kernel-worker < /dev/null

echo "# the innermost launcher, and an empty variable is none"
SLURM_PROCID=0 SLURM_NTASKS=2 RANK=5 WORLD_SIZE=16 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto --store none
PMI_RANK=1 PMI_SIZE=4 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto --store none
RANK='' WORLD_SIZE='' SLURM_PROCID=0 SLURM_NTASKS=1 t warm --spec head_dim=64,dtype=bf16 --dry-run --shard auto --store none
