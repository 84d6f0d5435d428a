# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# Sets `python` to an interpreter with the package's needs, that of cmake/setup.sh first; without one the test is
# skipped. Sourced with `source`, the top folder, set.
python=
for name in "${FFA_PYTHON:-}" "${source:?}/build/python/bin/python" python3 /usr/bin/python3; do
    if [ -n "$name" ] && "$name" -c 'import sys, pytest, numpy, torch
sys.exit(not hasattr(torch.library, "custom_op"))' 2> /dev/null; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: no Python with PyTorch >= 2.6, numpy and pytest (./test fetches them into build/python)"
    exit 77
fi
