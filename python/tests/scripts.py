# SPDX-License-Identifier: Apache-2.0
"""Scripts one after another in one process, which then imports PyTorch once: scripts.py JSON..., each [script, arguments].
Each meets the other ranks under a name of its own."""
import json
import os
import pathlib
import runpy
import sys

for attempt, command in enumerate(sys.argv[1:]):
    script, *arguments = json.loads(command)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(pathlib.Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
