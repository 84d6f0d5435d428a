# shellcheck shell=sh
# What stores and their places can do to a command: a sentence each, and nothing is left behind.
compile() {
    "$FFA" compile attention_forward --arch sm_90a --nvrtc "$SLOW_NVRTC" \
        --templates "$SOURCE/tests/data/templates/trivial" "$@" 2>&1 | grep -E 'layer|warning'
}

# A limit to the size of files: the kernel is compiled and used, and no file is left.
(
    ulimit -f 100
    compile --store small/k.ffadb
)
ls small
compile --store small/k.ffadb
compile --store small/k.ffadb

# What is no regular file is not waited for.
rm small/k.ffadb-journal
mkfifo small/k.ffadb-journal
t cache verify --store small/k.ffadb
t bundle inspect small/k.ffadb
rm small/k.ffadb-journal
t bundle verify /dev/null

# Nobody is told to change the mode of what all share.
mkdir -m 1777 shared
t cache ls --store shared/k.ffadb
t cache ls --store shared/k.ffadb --json

# A dry run needs a store that can be read, no more.
chmod 0400 small/k.ffadb
"$FFA" cache gc --max-size 1 --dry-run --store small/k.ffadb | grep removed
chmod 0600 small/k.ffadb

# Names of places.
t cache ls --store s3://bucket/k
FFA_CACHE_DIR=https://host/cache t cache ls
FFA_CACHE_DIR=$(printf '%05000d' 0) t cache ls
compile --store file:k.ffadb
ls file:k.ffadb
long=$WORK/$(printf '%0200d/%0200d/%0200d' 1 2 3)
FFA_CACHE_DIR=$long compile
FFA_CACHE_DIR=$long compile
t cache show ''
t cache show 28 --cubin x
t cache show '' --json
