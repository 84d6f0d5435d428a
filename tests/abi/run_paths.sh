#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: run_paths.sh FILE...
# No RPATH or RUNPATH of a program or library has an element that is empty or relative: the loader
# takes both for the working folder, so that a file there would run as part of the program. And none
# links a library of CUDA, which are all opened.
set -eu
export LC_ALL=C
if ! command -v readelf > /dev/null 2>&1; then
    echo "skipped: no readelf"
    exit 77
fi
bad=0
for file; do
    [ -f "$file" ] || { echo "$file is not there"; exit 1; }
    # One path a line: the brackets' content of "(RUNPATH) Library runpath: [a:b]".
    readelf -d "$file" | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\]$/\2/p' | {
        while IFS= read -r path; do
            case ":$path:" in
                *::*) echo "$file: an element of '$path' is empty" ; exit 1 ;;
            esac
            # shellcheck disable=SC2016 # $ORIGIN is for the loader
            echo "$path" | tr ':' '\n' | grep -vE '^(/|\$ORIGIN(/|$))' > /dev/null &&
                { echo "$file: an element of '$path' is relative"; exit 1; }
        done
        exit 0
    } || bad=1
    linked=$(readelf -d "$file" | grep -E '\(NEEDED\).*\[lib(cuda|cudart|nvrtc|nccl)[.-]' || true)
    if [ -n "$linked" ]; then
        echo "$file links: $linked"
        bad=1
    fi
done
exit $bad
