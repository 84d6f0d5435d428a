# shellcheck shell=sh
t cache path --explain
FFA_CACHE_DIR='' t cache path --explain
touch file # no folder can be made below it
FFA_CACHE_DIR='' XDG_CACHE_HOME="$WORK/file" t cache path --explain
FFA_CACHE_DIR='' XDG_CACHE_HOME=relative t cache path --explain
FFA_CACHE_DIR='' XDG_CACHE_HOME="$WORK/xdg" t cache path
(unset FFA_CACHE_DIR HOME TMPDIR && t cache path --explain)
t cache path --store "$WORK/mine.ffadb"
t cache path --store "$WORK/" --json
t cache path --store none
t cache ls
t cache ls --json
t cache stats
t cache verify --json
t cache show 12
t cache rm 12
t cache clear
t cache ls --store none
echo 'not a store' > foreign.ffadb
chmod 600 foreign.ffadb
t cache ls --store foreign.ffadb
t cache stats --store foreign.ffadb --json
