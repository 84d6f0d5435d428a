# shellcheck shell=sh
needs_nvrtc
for dtype in bf16 fp16; do
    "$FFA" compile attention_forward head_dim=64 dtype=$dtype --arch sm_90a > /dev/null
done

# What the processes of this store counted, each when it ended.
"$FFA" compile attention_forward head_dim=64 --arch sm_90a > /dev/null
FFA_JIT=never "$FFA" compile attention_forward head_dim=128 --arch sm_90a 2> /dev/null || echo "exit $?"
t cache stats --json

# A proof by building it again: nothing here depends on paths or times.
t cache verify --rebuild 100%
t cache verify --rebuild 1 --seed 3 --json

# What another compiler or another template text built cannot be proved here.
t cache verify --rebuild 100% --nvrtc "$SLOW_NVRTC"
cp -r "$SOURCE/templates" templates
echo '// another text' >> templates/attention_forward.cu
t cache verify --rebuild 100% --templates templates
FFA_JIT=never t cache verify --rebuild 100%

t cache gc --max-size 10M --dry-run
t cache gc --older-than 1d
t cache gc --max-size 1 --older-than 30d --json --dry-run
t cache gc --max-size 128K
t cache ls
