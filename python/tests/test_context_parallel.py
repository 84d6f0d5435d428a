# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: processes over gloo, and over GPUs of the device emulator where FFA_EMULATOR names it."""
import os
import pathlib

import pytest

pytest.importorskip("torch")
from launch import launch  # noqa: E402

RANKS = pathlib.Path(__file__).resolve().with_name("ranks.py")
EMULATOR = os.environ.get("FFA_EMULATOR")


def run(how, ranks=2, **variables):
    printed = launch(RANKS, how, ranks=ranks, **variables)
    assert [f"rank {rank}: ok" in text for rank, text in enumerate(printed)] == [True] * ranks, printed


@pytest.mark.cpu_only
def test_gather_and_ulysses():
    run("gather", ranks=4)


@pytest.mark.skipif(not EMULATOR, reason="FFA_EMULATOR names no folder of the device emulator")
def test_peer_emulated():
    # The emulator's thread-local state needs room, as it is loaded behind PyTorch. Bound now: PyTorch keeps its own runtime.
    # Kernels that wait for another process are slow on a busy machine; the time-out is for those that never end.
    run("peer", GLIBC_TUNABLES="glibc.rtld.optional_static_tls=262144", LD_BIND_NOW="1", FFA_EMULATOR_SMS="8",
        FFA_EMULATOR_IPC="1", FFA_EMULATOR_DEVICES="2", FFA_EMULATOR_TIMEOUT_MS="120000",
        FFA_CACHE_DIR=os.path.join(EMULATOR, "cache"))


@pytest.mark.cpu_only
def test_what_is_refused():
    run("refused", ranks=1)
