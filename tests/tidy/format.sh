#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: format.sh SOURCE
# The C and CUDA files under version control are as clang-format 14 writes them (.clang-format); other
# versions format differently. Skipped without it, and in a tree that git does not know.
set -eu
cd "$1"
skip() { echo "skipped: $1" && exit 77; }

git ls-files --error-unmatch tests/tidy/format.sh > /dev/null 2>&1 || skip "git does not list the files of this tree"
for name in clang-format-14 clang-format; do
    if command -v $name > /dev/null 2>&1 && $name --version | grep -q 'version 14\.'; then
        git ls-files -z --deleted '*.c' '*.h' '*.cu' | grep -q . && skip "files are deleted that git lists"
        git ls-files -z '*.c' '*.h' '*.cu' | xargs -0 $name --dry-run -Werror
        exit
    fi
done
skip "no clang-format 14"
