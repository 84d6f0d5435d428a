# SPDX-License-Identifier: Apache-2.0
"""The command `ffa` of the wheel, which also finds NVRTC and the CUDA runtime in NVIDIA's wheels."""
from __future__ import annotations

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(FOLDER, "bin", "ffa")


def main() -> None:
    """Become the command."""
    from ._library import wheel_folders

    environment = dict(os.environ)
    folders = list(filter(None, environment.get("LD_LIBRARY_PATH", "").split(":"))) + wheel_folders()
    if folders:
        environment["LD_LIBRARY_PATH"] = ":".join(folders)
    os.execve(PATH, ["ffa", *sys.argv[1:]], environment)
