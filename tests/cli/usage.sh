# shellcheck shell=sh
t
t --version extra
t --help extra --json
# What cannot be written is said, whatever it is.
for words in --help --version 'mask --help' 'mask area full:4'; do
    # shellcheck disable=SC2086 # words
    "$FFA" $words > /dev/full 2> full || echo "$words: exit $?: $(cat full)"
done
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
