#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: package.sh SOURCE LIBRARY DEVICE
# The package's tests, with the library of the build, on cpu or cuda.
set -eu
source=$1
. "$source/tests/python/python.sh"
if [ "$3" = cuda ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "skipped: no GPU that PyTorch finds"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
LIBFFA_LIBRARY=$2
PYTHONPATH=$source/python
PYTHONDONTWRITEBYTECODE=1
FFA_CACHE_DIR=$work
TORCHINDUCTOR_CACHE_DIR=$work/inductor
export LIBFFA_LIBRARY PYTHONPATH PYTHONDONTWRITEBYTECODE FFA_CACHE_DIR TORCHINDUCTOR_CACHE_DIR
cd "$source/python/tests"
"$python" -m pytest -q -p no:cacheprovider --rootdir "$source" --device "$3" .
