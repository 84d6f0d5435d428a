#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: exports.sh LIBRARY EXPORTS.TXT [--accept]
# What the library exports is what exports.txt lists, neither less nor more.
set -eu
export LC_ALL=C
found=$(nm -D --defined-only "$1" | awk '{ print $NF }' | sort)
if [ "${3:-}" = --accept ]; then
    echo "$found" > "$2"
    exit 0
fi
echo "$found" | diff "$2" - && exit 0
echo "the exports of $1 differ from $2 ('<' listed, '>' found)"
echo "if that is meant: $0 $1 $2 --accept"
exit 1
