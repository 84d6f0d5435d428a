#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time attention: libffa beside its peers, or beside other builds and modes of itself, in turns in one run.

  bench/bench_attention.py --peers NAMES [options]      measure; --peers= --help has all options
  bench/bench_attention.py table [options] FILE ...     the tables of results files; table --help; needs no PyTorch

docs/figures.md says how times are taken and how to read the results.
"""
import sys


def main(arguments):
    """The exit status of a run."""
    if arguments[:1] == ["table"]:
        import attention_report
        return attention_report.main(arguments[1:])
    if any(word.split("=")[0] == "--peers" for word in arguments):
        import attention_compare
        return attention_compare.main(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if arguments:
        print("bench_attention.py: --peers is missing; --peers= is for libffa alone", file=sys.stderr)
    else:
        print(__doc__.strip(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
