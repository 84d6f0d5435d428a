#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: run.sh FFA SOURCE NAME [--accept]
# Runs tests/cli/NAME.sh in a fresh folder and compares its transcript with NAME.exact, or line by
# line with the patterns of NAME.glob ('*' and '?'). --accept rewrites NAME.exact.
#
# CTest also sets SLOW_NVRTC, the compiler of tests/support/slow_nvrtc.c, and SCHEMA_CHECK, which
# validates JSON on stdin against a schema; t does so with all that --json and --jsonl print.
#
# A case is a list of calls of t: "t mask area causal:8" prints the command, what it said on stdout
# and (marked with '!') on stderr, and its exit status where that is not 0.
set -eu
FFA=$1
SOURCE=$2
name=$3
here=$SOURCE/tests/cli
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export FFA SOURCE WORK

# The user's own settings have no say here.
unset FFA_JIT FFA_COST_TABLES XDG_CACHE_HOME TERM NO_COLOR || true
unset SLURM_PROCID SLURM_NTASKS SLURM_NTASKS_PER_NODE || true
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE || true
unset RANK WORLD_SIZE LOCAL_WORLD_SIZE LOCAL_RANK FFA_RENDEZVOUS PMI_RANK PMI_SIZE || true
export HOME="$WORK" TMPDIR="$WORK" FFA_CACHE_DIR="$WORK/store"

# Check what a command printed by its schema in tests/schema; what is not as it says is printed.
conforms() { # FILE ARGUMENTS...
    file=$1
    shift
    name=${1:-}
    case $name in mask | cache | bundle | tune) name=${name}_${2:-} ;; esac
    case " $* " in
        *" --jsonl "*) name=${name}_event ;;
        *" --json "*) ;;
        *) return 0 ;;
    esac
    case "$name $* " in
        "warm "*" --dry-run "*) name=warm_dry_run ;;
        "warm "*" --list "*) name=warm_list ;;
        "tune_run "*" --dry-run "*) name=tune_run_dry_run ;;
        "tune_run "*" --compile-only "*) name=tune_run_compile_only ;;
        "compile "*" --list "*) name=compile_list ;;
        "compile "*" --print "*) name=compile_print ;;
        "bundle_inspect "*" --manifest "*) name=bundle_inspect_manifest ;;
    esac
    if head -n 2 "$file" | tr -d '\n' | grep -q '^{ *"error":'; then name=error; fi
    case $name in
        cache_show) name=cache_ls ;;
        cache_rm | cache_clear) name=cache_removed ;;
        cache_misses | cache_failures) case " $* " in *" --forget "*) name=cache_removed ;; esac ;;
        bundle_merge) name=bundle_export ;;
        tune_run) name=tune_show ;;
        tune_import) name=tune_merge ;;
        *_event)
            while IFS= read -r line; do
                echo "$line" | "$SCHEMA_CHECK" "$SOURCE/tests/schema/$name.json" || echo "not as $name.json says"
            done < "$file"
            return 0
            ;;
    esac
    "$SCHEMA_CHECK" "$SOURCE/tests/schema/$name.json" < "$file" || echo "not as $name.json says"
}

t() {
    echo "\$ ffa $*"
    status=0
    "$FFA" "$@" > "$WORK/.out" 2> "$WORK/.err" || status=$?
    cat "$WORK/.out"
    conforms "$WORK/.out" "$@"
    # Without the line of progress that a slow machine sees every ten seconds.
    sed -e '/[0-9] of [0-9]*: hit [0-9]*, built/d' -e 's/^/! /' "$WORK/.err"
    if [ $status != 0 ]; then echo "exit $status"; fi
}

# The case needs a compiler that compiles.
needs_nvrtc() {
    "$FFA" doctor --json | grep -A4 '"nvrtc"' | grep -q '"state": "ok"' || skip "no NVRTC"
}

# A reason to skip the whole case.
skip() {
    echo "skipped: $1" > "$WORK/.skip"
    exit 77
}

set +e
(
    set -eu
    cd "$WORK"
    # shellcheck disable=SC1090 # one of several
    . "$here/$name.sh"
) > "$WORK/.transcript"
status=$?
set -e
if [ $status = 77 ]; then
    cat "$WORK/.skip"
    exit 77
fi
sed "s|$WORK|WORK|g; s|$SOURCE|SOURCE|g" "$WORK/.transcript" > "$WORK/.got"

if [ $status != 0 ]; then
    cat "$WORK/.got"
    echo "$name.sh itself failed with $status"
    exit 1
fi
if [ "${4:-}" = --accept ]; then
    if [ -f "$here/$name.glob" ]; then
        echo "$name has patterns: edit $name.glob by hand; it said:"
        cat "$WORK/.got"
    else
        cp "$WORK/.got" "$here/$name.exact"
    fi
    exit 0
fi
if [ -f "$here/$name.exact" ]; then
    diff -u "$here/$name.exact" "$WORK/.got" && exit 0
    echo "if that is meant: $0 FFA SOURCE $name --accept"
    exit 1
fi

# Patterns: line by line, so that a difference is found where it is.
n=0
exec 3< "$here/$name.glob"
# shellcheck disable=SC2094 # it is only read
while IFS= read -r got; do
    n=$((n + 1))
    IFS= read -r want <&3 || want='(the end)'
    pattern=$(printf '%s' "$want" | sed 's/[][\\]/\\&/g')
    # shellcheck disable=SC2254 # a pattern it shall be
    case $got in
        $pattern) ;;
        *)
            printf '%s.glob:%d: got  %s\n%s.glob:%d: want %s\n' "$name" $n "$got" "$name" $n "$want"
            cat "$WORK/.got"
            exit 1
            ;;
    esac
done < "$WORK/.got"
if IFS= read -r want <&3; then
    echo "$name.glob:$((n + 1)): the output ended, wanted: $want"
    exit 1
fi
