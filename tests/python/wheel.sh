#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: wheel.sh SOURCE BUILD [LAUNCHER] [CUDA-ROOT]
# pip install of the tree into a new virtual environment, where PyTorch and the build's tools are those of the tests'
# Python; then the README's lines, the doctor and the command, away from the tree.
set -eu
source=$1
. "$source/tests/python/python.sh"
if ! "$python" -c 'import scikit_build_core' 2> /dev/null; then
    echo "skipped: no scikit-build-core"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LIBFFA_LIBRARY LD_LIBRARY_PATH
"$python" -m venv "$work/venv"
bin=$work/venv/bin
site=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/of_tests.pth"
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index \
    -C build-dir="$2" -C cmake.build-type=Debug -C cmake.define.CMAKE_C_COMPILER_LAUNCHER="${3:-}" \
    -C cmake.define.FFA_CUDA_ROOT="${4:-}" "$source" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

cd "$work"
# Only the system's C library and its like are found elsewhere.
for file in "$site"/libffa/bin/ffa "$site"/libffa/lib/*; do
    if ldd "$file" | grep -E 'not found|lib(ffa|xxhash|sqlite3|md|jansson)\.so' | grep -v "$site/libffa/"; then
        echo "$file: a library of another place"
        exit 1
    fi
done
awk '/^```python$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" > example.py
[ "$(wc -l < example.py)" -ge 5 ]
"$bin/python" example.py
"$bin/python" -m libffa doctor | grep "$site/libffa/lib/libffa.so"
"$bin/ffa" mask show causal:8 --columns 8
"$bin/python" -c 'import libffa, os; assert os.path.exists(libffa.include_dir() + "/ffa/ffa.h")'
