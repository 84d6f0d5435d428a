# shellcheck shell=sh
t
t nonsense
t mask
t mask nonsense
t mask area
t mask area full:1 full:2
t mask area full:1 --nonsense
t mask area full:1 -j
t mask area full:1 --json=yes
t mask show full:1 --columns 0
t mask show full:1 --columns
t mask area nonsense:1 --json
t mask area --help
t run --help
t compile --help
t cache --help
