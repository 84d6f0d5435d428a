#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: headers.sh c17|cxx INCLUDE-FOLDER COMPILER...
# Each public header compiles alone, and twice in one file.
set -eu
language=$1
include=$2
shift 2
case $language in
    c17) flags="-x c -std=c17 -Wmissing-prototypes" ;;
    cxx) flags="-x c++ -std=c++17" ;;
esac
if ! command -v "$1" > /dev/null 2>&1; then
    echo "skipped: no compiler '$1'"
    exit 77
fi
for header in "$include"/ffa/*.h; do
    name=ffa/$(basename "$header")
    # shellcheck disable=SC2086 # a list of words
    printf '#include <%s>\n#include <%s>\n' "$name" "$name" |
        "$@" $flags -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only -I "$include" - ||
        { echo "$name does not compile alone as $language"; exit 1; }
done
