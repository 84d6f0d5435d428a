#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: cxx.sh SOURCE LIBRARY COMPILER
# Builds the consumer in C++17, strictly, and runs it.
set -eu
source=$1
library=$2
compiler=$3
if ! command -v "$compiler" > /dev/null 2>&1; then
    echo "skipped: no compiler '$compiler'"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$compiler" -std=c++17 -Wall -Wextra -Wpedantic -Wconversion -Werror -I "$source/include" -I "$source/src" \
    "$source/tests/abi/consumer/consumer.cc" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$work/consumer"
"$work/consumer"
