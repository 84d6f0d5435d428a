# shellcheck shell=sh
# What a job missed is what is warmed. The compiler is one that takes no time.
nvrtc="--nvrtc $SLOW_NVRTC"
trivial=$SOURCE/tests/data/templates/trivial

mkdir -m 700 job new

echo "# no store, and one without notes"
t warm --from-misses nowhere.ffadb
# shellcheck disable=SC2086 # two words
"$FFA" compile attention_forward head_dim=128 --arch sm_90a --templates "$trivial" $nvrtc --store job > made
t warm --from-misses job

echo "# a job that may not compile misses, twice"
for dim in 64 128 64; do
    FFA_JIT=never t compile attention_forward head_dim=$dim dtype=fp16 --arch sm_90a --templates "$trivial" --store job --json > asked
    grep -o 'FFA_[A-Z_]*"' asked
done
t cache misses --store job
t cache misses --store job --json
t cache stats --store job --json

echo "# warmed from its notes, into another store"
# shellcheck disable=SC2086
{
    t warm --from-misses job --templates "$trivial" $nvrtc --store new --jobs 1
    t warm --from-misses job --templates "$trivial" $nvrtc --store new --jobs 1 --json
}
FFA_JIT=never t compile attention_forward head_dim=64 dtype=fp16 --arch sm_90a --templates "$trivial" --store new

echo "# the text was edited since: today's is built"
cp -r "$trivial" edited
echo "// one line more" >> edited/attention_forward.cu
# shellcheck disable=SC2086
t warm --from-misses job --templates edited $nvrtc --store new --jobs 1

echo "# forgotten"
t cache misses --store job --forget
t cache misses --store job --forget --json
t cache misses --store job

echo "# failures"
# shellcheck disable=SC2086
FAKE_NVRTC_FAIL=1 t compile attention_forward head_dim=64 dtype=bf16 --arch sm_90a --templates "$trivial" $nvrtc --store job > failed
t cache failures --store job
"$FFA" explain attention_forward head_dim=64 dtype=bf16 --arch sm_90a --templates "$trivial" --store job | grep -E '^(answers|failed)'
t explain attention_forward head_dim=64 dtype=bf16 --arch sm_90a --templates "$trivial" --store job --json > explained
grep -A 2 '"failed"' explained
t cache failures --store job --json
t cache failures --store job --forget

echo "# refused"
t warm --from-misses job --preset training
t warm --from-misses job --arch sm_90a
t warm --from-misses ''
