#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: example.sh PROGRAM SOURCE
# The example prints what it should, and README.md shows the very same text.
set -eu
"$1" | diff "$2/examples/attention.expected" -
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$2/README.md" |
    diff "$2/examples/attention.c" - || {
    echo "the example in README.md is not examples/attention.c"
    exit 1
}
