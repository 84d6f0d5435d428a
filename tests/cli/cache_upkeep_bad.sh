# shellcheck shell=sh
t cache gc
t cache gc --max-size 1X
t cache gc --max-size 9999999T
t cache gc --older-than -1d
t cache gc --older-than 1dd --json
t cache gc --older-than 30
t cache gc --older-than +30
t cache gc --older-than 30d
t cache gc --older-than 30d --store none
t cache verify --rebuild 0%
t cache verify --rebuild 10%%
t cache verify --rebuild 10%
t cache gc --help
