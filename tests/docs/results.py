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

MARK = "<!-- $ "
BLOCK = re.compile(r"<!-- \$ (bench/[^>\n]*) -->\n((?:(?!<!-- ).*\n)*)<!-- end -->\n")
FILE = re.compile(r"<!-- \$ (bench/[^>\n]*) > ([^ \n]*) -->\n")


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


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
        text = read(path)
        blocks, files = BLOCK.findall(text), FILE.findall(text)
        if len(blocks) + len(files) != text.count(MARK):
            sys.exit(f"{path}: a line '{MARK}...' has no 'bench/', or no '<!-- end -->' before the next comment")
        count += len(blocks) + len(files)
        wanted = BLOCK.sub(lambda found: f"{MARK}{found[1]} -->\n\n{output_of(found[1])}\n<!-- end -->\n", text)
        for name, have, want in [(path, text, wanted), *((target, read(target), output_of(command)) for command, target in files)]:
            if have != want and accepts:
                with open(name, "w", encoding="utf-8") as file:
                    file.write(want)
            elif have != want:
                bad = 1
                lines = difflib.unified_diff(have.splitlines(True), want.splitlines(True), name, "by its command", n=0)
                sys.stdout.writelines(list(lines)[:40])
    if not count:
        sys.exit("no document shows results")
    return bad


if __name__ == "__main__":
    sys.exit(main())
