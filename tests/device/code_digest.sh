#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: code_digest.sh FOLDER
# A digest of the templates in FOLDER, without their comments, blank lines and indentation: what a
# GPU pass is of. (The templates_digest of `ffa doctor` is of their bytes.)
set -eu
cd "$1"
code=$(
    for file in *; do
        echo "$file"
        "${CC:-cc}" -x c++ -fpreprocessed -w -E -P -dD "$file" || exit 1
    done
)
printf '%s\n' "$code" | tr -s ' \t\n' '\n' | sha256sum | cut -c 1-32
