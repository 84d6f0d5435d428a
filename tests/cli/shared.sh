# shellcheck shell=sh
# A group's store: made for it by the session and its workers, and trusted where that is asked for.
umask 077
set=$SOURCE/tests/data/kernels.json
"$FFA" warm "$set" --jobs 2 --nvrtc "$SLOW_NVRTC" --templates "$SOURCE/tests/data/templates/trivial" \
    --store group/kernels.ffadb --shared group | grep built | tail -n 1
stat -c '%a %n' group group/kernels.ffadb group/kernels.ffadb.locks
stat -c %a group/kernels.ffadb.locks/* | sort -u
t cache verify --store group --shared group
t cache verify --store group
"$FFA" doctor --store group --shared group | grep -A 1 ^store
t bundle export --store group --to .
"$FFA" bundle export --store group --to . --shared group | grep kernels
t cache ls --store group --shared all
