# SPDX-License-Identifier: Apache-2.0
"""Ranks as torchrun starts them, without the seconds that its own process takes to start."""
import os
import subprocess
import sys

from torch.distributed import TCPStore


def launch(script, *arguments, ranks=2, **variables):
    """What the ranks of a script printed, one after another. The store they meet at is this process's, on a port that
    is its own from here on. Fails with all that was printed where a rank fails."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port,
              "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": 1, "USE_LIBUV": "1", "GLOO_SOCKET_IFNAME": "lo"} | variables
    started = []
    for rank in range(ranks):
        own = {name: str(value) for name, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        started.append(subprocess.Popen([sys.executable, str(script), *map(str, arguments)], env=os.environ | own,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        printed = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(printed)
    return printed
