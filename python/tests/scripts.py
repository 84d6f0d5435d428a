# SPDX-License-Identifier: Apache-2.0
"""Scripts one after another: scripts.py JSON..., each [script, arguments]. Each runs in a fork of this process, which has
imported what takes seconds, and meets the other ranks under a name of its own."""
import importlib
import json
import os
import pathlib
import runpy
import sys

for name in ("torch", "torch.distributed.fsdp", "torch._dynamo", "transformers.models.llama.modeling_llama"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for attempt, command in enumerate(sys.argv[1:]):
    script, *arguments = json.loads(command)
    child = os.fork()
    if child == 0:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(pathlib.Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        sys.exit(status)
