# SPDX-License-Identifier: Apache-2.0
"""usage: results.py SOURCE [--accept]

What the documents show of raw results is what programs of bench/ make of them. In README.md and docs/*.md

    <!-- $ bench/PROGRAM ARGUMENTS -->
    what it prints
    <!-- end -->

and `<!-- $ bench/PROGRAM ARGUMENTS > FILE -->` is what FILE has. Arguments may be patterns of files. --accept rewrites both.
"""
import difflib
import glob
import os
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"<!-- \$ (bench/[^>\n]*) -->\n(.*?)<!-- end -->\n", re.S)
FILE = re.compile(r"<!-- \$ (bench/[^>\n]*) > ([^ \n]*) -->\n")


def output_of(command):
    words = [path for word in shlex.split(command) for path in sorted(glob.glob(word)) or [word]]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout.strip() + "\n"


def main():
    os.chdir(sys.argv[1])
    accepts, bad, count = "--accept" in sys.argv[2:], 0, 0
    for path in ["README.md", *sorted(glob.glob("docs/*.md"))]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        wanted = BLOCK.sub(lambda found: f"<!-- $ {found[1]} -->\n\n{output_of(found[1])}\n<!-- end -->\n", text)
        pairs = [(path, text, wanted)]
        for command, target in FILE.findall(text):
            with open(target, encoding="utf-8") as file:
                pairs.append((target, file.read(), output_of(command)))
        count += len(BLOCK.findall(text)) + len(pairs) - 1
        for name, have, want in pairs:
            if have == want:
                continue
            if accepts:
                with open(name, "w", encoding="utf-8") as file:
                    file.write(want)
                continue
            bad = 1
            sys.stdout.writelines(list(difflib.unified_diff(have.splitlines(True), want.splitlines(True), name, "by its command", n=0))[:40])
    if not count:
        sys.exit("no document shows results")
    return bad


if __name__ == "__main__":
    sys.exit(main())
