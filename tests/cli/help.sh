# shellcheck shell=sh
# Help on one command, and what of it other programs read. The whole reference is tests/docs'.
t help mask area
t help mask area --json
t help mask area --format man
t help cache
t help nonsense
t help mask nonsense
t help kernel-worker
t help doctor nonsense
t help nonsense --json
t help --format nonsense
t help --format bash mask area
t help --format man --to missing
t help --to .
t help --format man --json
