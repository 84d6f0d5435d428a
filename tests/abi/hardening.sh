#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: hardening.sh BUILD-TYPE sanitizers:LIST LIBRARY PROGRAM
# What is installed has the defences of cmake/FfaHarden.cmake: read from the ELF files themselves.
set -eu
export LC_ALL=C
type=$1
sanitizers=${2#sanitizers:}
library=$3
program=$4
if ! command -v readelf > /dev/null 2>&1; then
    echo "skipped: no readelf"
    exit 77
fi
bad=0
lacks() { echo "$1: $2"; bad=1; }

for file in "$library" "$program"; do
    readelf -lW "$file" > /dev/null # a failure ends the test
    readelf -lW "$file" | grep -q GNU_RELRO || lacks "$file" "no RELRO segment"
    readelf -dW "$file" | grep -qE 'BIND_NOW|FLAGS_1.* NOW' || lacks "$file" "symbols are bound late, so RELRO is partial"
    readelf -lW "$file" | grep GNU_STACK | grep -qE ' RW +0x' || lacks "$file" "the stack is executable, or nothing says that it is not"
    readelf -lW "$file" | grep -E '^ +LOAD' | grep -qE 'RWE' && lacks "$file" "a segment can be written and executed"
    readelf -hW "$file" | grep -qE 'Type: +DYN' || lacks "$file" "code is not position independent"
    readelf -sW "$file" | grep -q '__stack_chk_fail' || lacks "$file" "no stack protector"
    # Sanitizers check these calls themselves; without optimisation the sizes are not known.
    case $type in
        Release | RelWithDebInfo | MinSizeRel)
            [ -n "$sanitizers" ] ||
                readelf -sW "$file" | grep -v '__stack_chk' | grep -qE '__[a-z]+_chk' ||
                lacks "$file" "no call is fortified"
            ;;
    esac
done
exit $bad
