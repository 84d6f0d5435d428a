# shellcheck shell=sh
# Families of models, as a program says their specs, and not as cache/models.json does: once a preset was
# warmed, a context that may not compile finds all that each needs.
fake="--nvrtc $SLOW_NVRTC --jobs 2"

# covers PRESET SPEC...: which specs are not covered; the store is that of the preset.
covers() {
    preset=$1
    shift
    # shellcheck disable=SC2086 # words
    "$FFA" warm --preset "$preset" $fake --store "$preset" > made
    echo "$preset: $(awk '$1 == "failed" { print $2 }' made) failed"
    for spec in "$@"; do
        status=0
        FFA_JIT=never "$FFA" warm --spec "$spec" --store "$preset" > said 2>&1 || status=$?
        echo "$preset: $spec: exit $status, $(awk '$1 == "hit" { print $2 }' said) found"
    done
}

training='' inference=''
forward='head_dim=128,dtype=bf16,pack=8 head_dim=128,dtype=fp16,pack=0 head_dim=64,dtype=bf16,heads=64:8 head_dim=80,dtype=bf16
    head_dim=96,dtype=bf16,heads=32:4 head_dim=192:128,dtype=bf16,heads=128:128 head_dim=192:128,dtype=bf16,pack=0
    head_dim=192,dtype=bf16 head_dim=256,dtype=bf16,pack=4 head_dim=256,dtype=bf16,softcap,heads=16:8
    head_dim=128,dtype=bf16,softcap head_dim=128,dtype=bf16,max_logits,pack=8'
for spec in $forward; do training="$training $spec,backward $spec,backward,deterministic $spec,backward,parallel"; done
# shellcheck disable=SC2086 # words
covers training $training head_dim=192:128,dtype=bf16,backward,parallel,deterministic,max_logits
for spec in $forward; do inference="$inference $spec"; done
inference="$inference head_dim=64,dtype=bf16,split head_dim=128,dtype=fp16,pack=5,split head_dim=192:128,dtype=bf16,split"
# shellcheck disable=SC2086 # words
covers inference $inference head_dim=256,dtype=bf16,softcap,heads=16:8,split=auto
covers mla head_dim=192:128,dtype=bf16,heads=16:16,backward,parallel head_dim=192:128,dtype=bf16,split

echo "# all has these, too, and the rest"
set --
for spec in $training $inference head_dim=72,dtype=fp16,staged,backward,grad_fp32 head_dim=128,dtype=bf16,staged,max_logits,pack=8 \
    head_dim=40,dtype=fp16,out_fp32,softcap,pack=4 head_dim=256,dtype=fp16,backward,parallel,max_logits,softcap,deterministic \
    head_dim=192:128,dtype=fp16,backward,debug head_dim=128,dtype=bf16,heads=8:1,split=auto,debug; do
    set -- "$@" --spec "$spec"
done
"$FFA" warm "$@" --list | sort > wanted
"$FFA" warm --preset all --list | sort > every
cut -d ' ' -f 1 every > keys
while read -r key kernel; do
    grep -q "$key" keys || echo "all lacks $kernel"
done < wanted
