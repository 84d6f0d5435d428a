#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: package.sh SOURCE LIBRARY DEVICE [EMULATOR]
# The package's tests, with the library of the build, on cpu or cuda; some of them emulated, with the folder EMULATOR.
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
unset FFA_JIT FFA_BUNDLES FFA_COST_TABLES
cd "$source/python/tests"
set -- "$3" "${4:-}"
if [ "$1" = emulated ]; then
    FFA_EMULATOR=$2
    FFA_EMULATOR_SMS=8
    FFA_CACHE_DIR=$2/cache
    GLIBC_TUNABLES=glibc.rtld.optional_static_tls=262144
    export FFA_EMULATOR FFA_EMULATOR_SMS GLIBC_TUNABLES
    set -- "$1" test_attention.py test_context_parallel.py test_tune.py \
        -k '(layouts and packed) or options or strides or graph_mask or peer or session'
else
    set -- "$1" .
fi
device=$1
shift
"$python" -m pytest -q -p no:cacheprovider --rootdir "$source" --device "$device" "$@"
