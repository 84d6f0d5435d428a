# shellcheck shell=sh
# Each command's --json, in each of its forms, is as its schema says; the compiler takes no time.
schemas=$SOURCE/tests/schema
trivial=$SOURCE/tests/data/templates/trivial
set=$SOURCE/tests/data/kernels.json
mkdir -m 700 store other merged
kernel="attention_forward head_dim=64 --arch sm_90a --templates $trivial --nvrtc $SLOW_NVRTC"
seen=

# s ARGUMENTS...: run, say whether the output is as the schema says, and what the exit status was.
s() {
    status=0
    "$FFA" "$@" --json > .json 2> .said || status=$?
    found=$(conforms .json "$@" --json)
    case $1 in mask | cache | bundle | tune) name="$1 $2" ;; *) name=$1 ;; esac
    seen="$seen $name,"
    echo "$name: ${found:-conforms}, exit $status"
}

echo "# compile, explain, warm"
# shellcheck disable=SC2086 # words
{
    s compile --list
    s compile $kernel --print
    s explain $kernel
    s compile $kernel
    s compile $kernel --force
    s explain $kernel
    s explain $kernel softcap=1
    FFA_JIT=never s compile $kernel softcap=1
    FAKE_NVRTC_FAIL=1 s compile $kernel out_fp32=1
    s warm "$set" --dry-run --templates "$trivial" --nvrtc "$SLOW_NVRTC"
    s warm "$set" --jobs 1 --templates "$trivial" --nvrtc "$SLOW_NVRTC" --shard 1/2
    s warm "$set" --jobs 1 --templates "$trivial" --nvrtc "$SLOW_NVRTC"
    FFA_JIT=never s warm "$set" --store other --templates "$trivial"
}
echo "# bundle"
s bundle export --to .
bundle=$(ls ffa-*.ffadb)
s bundle inspect "$bundle"
s bundle inspect "$bundle" --manifest
s bundle verify "$bundle"
s bundle verify "$bundle" --digest 00
s bundle import "$bundle" --store third.ffadb
s bundle merge merged "$bundle" third.ffadb
s bundle diff "$bundle" store/kernels.ffadb
echo "# doctor: plain, with a bundle, with one that is not there, with a compiler that is not"
s doctor
s doctor --bundle "$bundle"
s doctor --bundle missing.ffadb
s doctor --nvrtc no/such/file
FFA_JIT=never s doctor --store none
echo "# cache"
s cache path
s cache path --explain
s cache ls
s cache show "$("$FFA" cache ls --json | sed -n 's/.*"key": "\(.*\)",/\1/p' | head -n 1)"
s cache stats
s cache verify
s cache verify --rebuild 100% --templates "$trivial" --nvrtc "$SLOW_NVRTC"
s cache misses
s cache failures
s cache failures --forget
s cache gc --max-size 1G --dry-run
s cache rm "$("$FFA" cache ls --json | sed -n 's/.*"key": "\(.*\)",/\1/p' | head -n 1)"
s bundle diff "$bundle" store/kernels.ffadb
s cache clear
s cache ls
echo "# mask, plan, simulate, run"
s mask show causal:64
s mask show causal:64 --svg mask.svg
s mask check causal:64
s mask area causal:64
s plan --mask causal:64 --ranks 2
s plan --mask 'shift(full:4;q=-4)' --ranks 2
s plan --mask full:4x64 --ranks 2 --moves queries --svg plan.svg
s simulate --mask causal:640 --ranks 2,16 --ranks-per-node 4
s simulate --mask full:10 --ranks 16 --svg simulate.svg
s run --mask causal:64 --heads 2 --head-dim 64 --backend cpu
s run --mask causal:64 --heads 2 --head-dim 64 --backend cpu --check
s run --mask causal:64 --heads 2 --head-dim 64 --ranks 3 --backward --check
s run --mask full:8 --heads 2 --head-dim 64 --backend cpu --backward --deterministic --check
s run --mask causal:64 --heads 2 --head-dim 64 --backend cpu --time --repeat 2
s tune table
s tune explain causal:64 --heads 8:1
s tune explain full:1x65536 --spec head_dim=128,dtype=bf16,heads=8:1
s tune import a.ffatune "$SOURCE/tests/data/tune/machine1.samples"
s tune import back.ffatune "$SOURCE/tests/data/tune/backward.samples"
s tune show back.ffatune
s tune merge b.ffatune a.ffatune
s tune show a.ffatune
s tune export a.ffatune .
s tune run nonsense --session c.ffatune
s help
s help mask show
echo "# errors"
s cache show zz
s bundle verify nowhere.ffadb
s mask area nonsense:1
s plan --mask causal:64 --ranks 2 --rank 2
s simulate --mask full:8x64
s run --mask causal:4 --heads 3:2 --backend cpu

echo "# commands that were not asked, and schemas that are none"
"$FFA" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]* \{0,1\}[a-z]*\)  *[A-Z].*/\1/p' | while IFS= read -r name; do
    case $seen in *" ${name% },"*) ;; *) echo "$name" ;; esac
done
for file in "$schemas"/*.json; do
    echo '[]' | "$SCHEMA_CHECK" "$file" | grep -q "wrong type" || echo "$file takes anything"
done
