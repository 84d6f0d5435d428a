# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: two processes, over gloo, and over GPUs of the device emulator where FFA_TEST_EMULATOR names it."""
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
HERE = pathlib.Path(__file__).resolve().parent
EMULATOR = os.environ.get("FFA_TEST_EMULATOR")


def launch(how, **variables):
    """ranks.py in two processes, which meet by a store of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "ranks.py"), how]
    variables = {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: ok" in done.stdout and "rank 1: ok" in done.stdout, done.stdout


def test_gather():
    launch("gather")


@pytest.mark.skipif(not EMULATOR, reason="FFA_TEST_EMULATOR names no folder of the device emulator")
def test_peer_emulated():
    # The emulator's thread-local state needs room, as it is loaded behind PyTorch. Bound now: PyTorch keeps its own runtime.
    launch("peer", GLIBC_TUNABLES="glibc.rtld.optional_static_tls=262144", LD_BIND_NOW="1", FFA_EMULATOR_SMS="8",
           FFA_EMULATOR_IPC="1", FFA_EMULATOR_DEVICES="2", FFA_EMULATOR_TIMEOUT_MS="120000",
           FFA_CACHE_DIR=os.path.join(EMULATOR, "cache"))
