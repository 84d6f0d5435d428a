#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: samples.sh FFA SOURCE [--nvrtc] [--slow] [--accept]
# Runs the commands of README.md and docs/*.md and compares what they print with what stands below
# them. --accept rewrites the documents.
#
# A sample is a fenced block of the language 'console'. A line that starts with '$ ' is a command,
# what follows is its output, on stdout and stderr. Words after 'console' say more:
#   elide=A,B       lines that start with A or B, regular expressions, differ from run to run or from
#                   machine to machine: they stand as '...'
#   nvrtc=V         compiles, and prints what NVRTC V makes; run with --nvrtc, skipped where the
#                   compiler is another. Without --nvrtc these blocks are left out
#   slow            takes more than ten seconds: run with --slow only
#   measured=WHAT   was measured on a device, on a date, both in WHAT (with _ for blanks); not run
# Blocks of a document share a folder, in which the source's folders are, and a new store.
set -eu
ffa=$1
source=$2
shift 2
wants_nvrtc=
wants_slow=
accepts=
for option; do
    case $option in
        --nvrtc) wants_nvrtc=yes ;;
        --slow) wants_slow=yes ;;
        --accept) accepts=yes ;;
        *) echo "usage: samples.sh FFA SOURCE [--nvrtc] [--slow] [--accept]" && exit 2 ;;
    esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$ffa" "$work/bin/ffa"
PATH=$work/bin:$PATH
unset FFA_JIT FFA_BUNDLES FFA_COST_TABLES XDG_CACHE_HOME TERM NO_COLOR SLURM_PROCID SLURM_NTASKS OMPI_COMM_WORLD_RANK \
    OMPI_COMM_WORLD_SIZE RANK WORLD_SIZE || true
export PATH
compiler=$(ffa doctor --store none | sed -n 's/^nvrtc  *\([0-9.]*\),.*/\1/p')

# Run the block in file $1, whose first line is the fence; print it as it should be.
run_block() {
    fence=$(head -n 1 "$1")
    elided=$(echo "$fence" | sed -n 's/.* elide=\([^ ]*\).*/\1/p' | tr ',' '|')
    echo "$fence"
    grep '^\$ ' "$1" | while IFS= read -r line; do
        echo "$line"
        (cd "$folder" && sh -c "${line#??}") > "$work/out" 2>&1 || true
        if [ -n "$elided" ]; then
            awk -v elided="^ *($elided)" '$0 ~ elided { $0 = "..." } { print }' "$work/out" |
                awk '$0 != "..." || last != "..."; { last = $0 }' > "$work/less"
            mv "$work/less" "$work/out"
        fi
        # Without the line of progress that a slow machine sees every ten seconds.
        sed -e '/[0-9] of [0-9]*: hit [0-9]*, built/d' -e "s|$folder|.|g" "$work/out"
    done
}

# Whether the block with the fence $1 is run now; 2 if it is not as it should be.
is_wanted() {
    case $1 in
        *" measured="*)
            echo "$1" | grep -qE ' measured=[^ ]+,_20[0-9]{2}-[0-9]{2}-[0-9]{2}' || return 2
            return 1
            ;;
        *" nvrtc="*)
            [ -n "$wants_nvrtc" ] || return 1
            [ "$(echo "$1" | sed 's/.* nvrtc=\([^ ]*\).*/\1/')" = "$compiler" ] || return 3
            ;;
        *" slow") [ -n "$wants_slow" ] || return 1 ;;
        *) [ -z "$wants_nvrtc$wants_slow" ] || return 1 ;;
    esac
}

failed=0
ran=0
other=0
for one in $(cd "$source" && ls README.md docs/*.md); do
    : > "$work/new"
    folder=$work/$(basename "$one" .md)
    mkdir -p "$folder/home"
    for name in tests examples cache templates; do ln -s "$source/$name" "$folder/$name"; done
    export HOME="$folder/home" TMPDIR="$folder/home" FFA_CACHE_DIR="$folder/home/store"
    rm -f "$work/block"
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            '```console'*) printf '%s\n' "$line" > "$work/block" && continue ;;
            '```')
                if [ -f "$work/block" ]; then
                    fence=$(head -n 1 "$work/block")
                    status=0
                    is_wanted "$fence" || status=$?
                    if [ $status = 0 ]; then
                        ran=$((ran + 1))
                        run_block "$work/block" > "$work/ran"
                        if ! cmp -s "$work/block" "$work/ran" && [ -z "$accepts" ]; then
                            echo "$one:"
                            diff -u "$work/block" "$work/ran" || true
                            failed=$((failed + 1))
                        fi
                        mv "$work/ran" "$work/block"
                    elif [ $status = 2 ]; then
                        echo "$one: '$fence' has no device with a date: measured=NAME,_2026-11-22"
                        failed=$((failed + 1))
                    elif [ $status = 3 ]; then
                        other=$((other + 1))
                    fi
                    cat "$work/block" >> "$work/new"
                    rm -f "$work/block"
                fi
                ;;
            '$ '*)
                # A command below another fence would be a sample that nobody runs.
                if [ ! -f "$work/block" ]; then
                    echo "$one: '$line' is not in a block of the language console"
                    failed=$((failed + 1))
                fi
                ;;
        esac
        if [ -f "$work/block" ]; then
            printf '%s\n' "$line" >> "$work/block"
        else
            printf '%s\n' "$line" >> "$work/new"
        fi
    done < "$source/$one"
    if [ -n "$accepts" ] && ! cmp -s "$work/new" "$source/$one"; then
        cat "$work/new" > "$source/$one"
        echo "rewrote $one"
    fi
done
echo "$ran samples run, $failed differ, $other are of another NVRTC than ${compiler:-none}"
if [ $failed != 0 ]; then
    echo "if that is meant: $0 FFA SOURCE${wants_nvrtc:+ --nvrtc}${wants_slow:+ --slow} --accept"
    exit 1
fi
if [ $ran = 0 ] && [ $other != 0 ]; then
    echo "skipped: no NVRTC of the samples' version"
    exit 77
fi
