#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: headers_only.sh SOURCE CUDA-INCLUDE GENERATOR
# A build needs CUDA's headers and none of its libraries: it can be configured where there are only the
# headers. One with older headers, or without, is refused with a sentence.
set -eu
source=$1
include=$2
generator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/headers" "$work/old/include" "$work/none"
ln -s "$include" "$work/headers/include"
echo '#define CUDA_VERSION 12060' > "$work/old/include/cuda.h"
: > "$work/old/include/cuda_runtime_api.h"

configure() { # ROOT
    rm -rf "$work/build"
    cmake -S "$source" -B "$work/build" -G "$generator" -DFFA_CUDA_ROOT="$work/$1" -DFFA_BUILD_TESTS=OFF \
        -DFFA_BUILD_BENCH=OFF > "$work/log" 2>&1
}
configure headers || { cat "$work/log"; exit 1; }
for root in old none; do
    if configure $root; then echo "$root: configured"; exit 1; fi
    tr -s ' \n' ' ' < "$work/log" | grep -q 'The headers of CUDA Toolkit >= 12.8 were not found' ||
        { cat "$work/log"; exit 1; }
done
