#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: reference.sh FFA SOURCE
# docs/command.md is what the command prints; the man pages have no faults that groff or mandoc find;
# the completion scripts parse in each shell that is there, and bash's offers what it should.
set -eu
ffa=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$ffa" help --format markdown > "$work/command.md"
diff -u "$source/docs/command.md" "$work/command.md" || {
    echo "docs/command.md is stale: ffa help --format markdown > docs/command.md"
    exit 1
}

mkdir "$work/man"
"$ffa" help --format man --to "$work/man"
pages=$(find "$work/man" -name 'ffa*.1' | wc -l)
commands=$("$ffa" --help | grep -c '^  [a-z]')
[ "$pages" = $((commands + 1)) ] || { echo "$pages pages for $commands commands and ffa"; exit 1; }
for page in "$work/man"/*.1; do
    if command -v groff > /dev/null 2>&1; then
        groff -man -Tascii -ww -z "$page" 2> "$work/said"
        if [ -s "$work/said" ]; then cat "$work/said"; exit 1; fi
    fi
    # A page has no date: it would change with the day of the build.
    if command -v mandoc > /dev/null 2>&1 &&
        mandoc -T lint -W warning "$page" | grep -v 'missing date'; then exit 1; fi
done

for shell in bash zsh fish; do
    "$ffa" help --format $shell > "$work/ffa.$shell"
    if command -v $shell > /dev/null 2>&1; then $shell -n "$work/ffa.$shell"; fi
done
if command -v fish > /dev/null 2>&1; then
    got=$(fish -c "source $work/ffa.fish; complete -C'ffa mask '" 2>&1 | cut -f 1 | sort | tr '\n' ' ')
    [ "$got" = "area check show " ] || { echo "fish offers '$got' after 'ffa mask'"; exit 1; }
    got=$(fish -c "source $work/ffa.fish; complete -C'ffa cache verify --re'" 2>&1 | cut -f 1)
    [ "$got" = "--rebuild" ] || { echo "fish offers '$got' after 'ffa cache verify --re'"; exit 1; }
fi
command -v bash > /dev/null 2>&1 || { echo "skipped: no bash to try the completion in"; exit 77; }

# offers WANTED WORD...: completing the last word offers WANTED, all of it in this order.
offers() {
    wanted=$1
    shift
    cat > "$work/try.bash" << 'EOF'
. "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_ffa
echo "${COMPREPLY[*]}"
EOF
    got=$(cd "$source" && bash "$work/try.bash" "$work/ffa.bash" "$@")
    [ "$got" = "$wanted" ] || { echo "'$*' offers '$got', not '$wanted'"; exit 1; }
}
offers "compile cache" ffa c
offers "show check area" ffa mask ""
offers "--rebuild" ffa cache verify --r
offers "--ranks --ranks-per-node --rank" ffa plan --rank
offers "README.md" ffa mask show READ
offers "README.md" ffa mask show full:8 --svg READ
offers "include" ffa compile attention_forward --templates incl
offers "" ffa plan --ranks ""
