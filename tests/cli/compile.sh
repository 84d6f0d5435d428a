# shellcheck shell=sh
if ! "$FFA" doctor --json | grep -A4 '"nvrtc"' | grep -q '"state": "ok"'; then skip "no NVRTC"; fi
t compile attention_forward head_dim=128 dtype=bf16 --arch sm_90a --json
t compile attention_forward head_dim=128 dtype=bf16 --arch sm_90a
t compile attention_forward head_dim=128 dtype=bf16 --arch sm_90a --force --time
t compile attention_forward head_dim=64 --arch sm_90a --emit cubin forward.cubin
t compile attention_forward head_dim=64 --arch sm_90a --emit ptx forward.ptx --store none
t cache ls
t cache verify
head -c 4 forward.cubin | tail -c 3 && echo
grep -c '\.target sm_90a' forward.ptx
