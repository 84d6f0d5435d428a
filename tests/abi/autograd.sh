#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: autograd.sh LIBRARY SOURCE
# The autograd function of examples/autograd.py, with a Python that has PyTorch.
set -eu
python=
for name in "${PYTHON:-python3}" "$2/build/python/bin/python" /usr/bin/python3; do
    if "$name" -c 'import torch' 2> /dev/null; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: no Python with PyTorch"
    exit 77
fi
PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$2/examples
export PYTHONDONTWRITEBYTECODE PYTHONPATH
"$python" "$2/tests/abi/autograd_cases.py" "$1"
"$python" "$2/examples/autograd.py" "$1"
