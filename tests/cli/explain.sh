# shellcheck shell=sh
t explain
t explain nonsense --arch sm_90a
t explain attention_forward head_dim=100 --arch sm_90a
t explain attention_forward --arch sm_80

# The rows of a template grow: those shown here are some of them.
some() {
    t explain attention_forward "$@" --arch sm_90a |
        awk '/^(dtype|tile_n) / || !/^[a-z0-9_]+ +-?[0-9]+ +(default|chosen)$/'
}
some head_dim=64
FFA_JIT=never some head_dim=64

echo "# what is there answers; else the nearest entry, line by line"
echo '{ "schema": 1, "kernels": [ { "template": "attention_forward", "values": { "dtype": ["bf16", "fp16"] } } ] }' |
    "$FFA" warm - --nvrtc "$SLOW_NVRTC" --jobs 1 > /dev/null
some dtype=bf16
some dtype=fp16 tile_n=64
t explain attention_forward dtype=fp16 kv_slots=1 --arch sm_90a --json |
    grep -vE '"(name|value|by)"|^    [{}],?$'
some --templates "$SOURCE/tests/data/templates/trivial" | grep -vE '^  text\..*none here'
some --store none
