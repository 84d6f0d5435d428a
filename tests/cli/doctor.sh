# shellcheck shell=sh
if "$FFA" doctor --json | grep -q '"backend": "cuda"'; then skip "the transcript is of a machine without a GPU"; fi
t doctor --json
FFA_JIT=never t doctor
