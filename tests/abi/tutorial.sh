#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: tutorial.sh PROGRAM SOURCE
# The tutorial's program prints what it should and what the page says, and each C block of docs/tutorial.md is a run of its
# lines, but for the indentation.
set -eu
"$1" | diff "$2/examples/training_step.expected" -
while IFS= read -r line; do
    grep -qxF -e "$line" "$2/docs/tutorial.md" || { echo "docs/tutorial.md does not have: $line"; exit 1; }
done < "$2/examples/training_step.expected"
awk '
    { sub(/^[ \t]+/, "") }
    FNR == NR { text = text $0 "\n"; next }
    /^```c$/ { on = 1; block = "\n"; line = FNR; next }
    /^```$/ && on {
        on = 0
        blocks++
        if (!index(text, block)) {
            print "docs/tutorial.md:" line ": this block is not in examples/training_step.c"
            bad = 1
        }
    }
    on { block = block $0 "\n" }
    END {
        if (!blocks) print "docs/tutorial.md has no C block"
        exit bad || !blocks
    }
' "$2/examples/training_step.c" "$2/docs/tutorial.md"
