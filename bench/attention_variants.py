# SPDX-License-Identifier: Apache-2.0
"""Variants of libffa that bench_attention.py times beside it: another checkout or build, deterministic calls, an environment.

Each runs in a process of its own, which loads its own library and takes its turns when it is told to; so a library of last
month and one of today are timed on the same masks and inputs, a few hundred milliseconds apart, on one GPU.
"""
from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from typing import NamedTuple

from attention_turns import Turn, take_turn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.path.join("build", "libffa.so")
KEYS = "tree=DIR, library=FILE, deterministic, FFA_...=VALUE"


class Variant(NamedTuple):
    """NAME:KEY=VALUE,... as --variant has it.

    tree           a checkout that was built: its python/ and its build/libffa.so are used; None: those of this one
    library        another libffa.so for the Python package of the tree
    deterministic  calls ask for gradients that have the same bits in every run
    environment    variables whose names begin with FFA_, in the variant's process only
    """

    name: str
    text: str
    tree: str | None
    library: str | None
    deterministic: bool
    environment: dict[str, str]

    @classmethod
    def parse(cls, text: str, taken=()) -> Variant:
        """ValueError: it is none, or its name is one of `taken`."""
        name, colon, words = text.partition(":")
        if not name or not colon or name in taken:
            raise ValueError(f"'{text}' is not NAME:KEY=VALUE,... with a NAME other than {', '.join(taken)}")
        found = dict(tree=None, library=None, deterministic=False)
        environment = {}
        for word in filter(None, words.split(",")):
            key, equals, value = word.partition("=")
            if key == "deterministic" and not equals:
                found[key] = True
            elif key in ("tree", "library") and value:
                found[key] = os.path.abspath(value)
            elif key.startswith("FFA_") and equals:
                environment[key] = value
            else:
                raise ValueError(f"'{word}' of variant '{name}' is none of {KEYS}")
        if found["tree"] and not found["library"]:
            found["library"] = os.path.join(found["tree"], LIBRARY)
        for path in filter(None, (found["tree"], found["library"])):
            if not os.path.exists(path):
                raise ValueError(f"variant '{name}': there is no {path}")
        return cls(name, words, environment=environment, **found)


class PreparedThere(NamedTuple):
    """What the process of a variant has ready: `Prepared` of attention_compare.py, whose calls are in that process."""

    process: VariantProcess
    parts: list[str]
    cold: dict[str, float]
    errors: dict[str, float]

    def taker(self, _clock, part):
        """Takes a turn: (settle_ms, measure_ms) -> Turn."""
        return functools.partial(self.process.turn, part)


class VariantProcess:
    """A variant's process, and what it is asked for. Used as a context; it ends with it.

    text     what follows its name
    version  that of its library
    failure  why it could not begin, or None
    """

    def __init__(self, variant: Variant, options):
        context = multiprocessing.get_context("spawn")  # a process that was forked could not use CUDA
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, variant, options), daemon=True)
        self.process.start()
        other.close()
        self.text = variant.text
        self.version, self.failure = self._receive()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.connection.close()  # which is how the process sees that it is over
        self.process.join()

    def _receive(self):
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return None, f"fails: its process ended with status {self.process.exitcode}"

    def ready(self, case, parts):
        """As Bench.ready of attention_compare.py, in the variant's process."""
        try:
            self.connection.send(("ready", (case, parts)))
        except ConnectionError:
            pass  # it is over; receiving says so
        found, left_out = self._receive()
        if isinstance(left_out, str):
            left_out = dict.fromkeys(parts, left_out)
        return found and PreparedThere(self, *found), left_out

    def turn(self, part: str, settle_ms: float, measure_ms: float) -> Turn:
        """RuntimeError: the process ended, or a call failed."""
        self.connection.send(("turn", (part, settle_ms, measure_ms)))
        found, failure = self._receive()
        if failure:
            raise RuntimeError(failure)
        return found


class Server:
    """What a variant's process does for those who ask."""

    def __init__(self, name, bench, inputs_of):
        self.name, self.bench, self.inputs_of, self.prepared = name, bench, inputs_of, None

    def ready(self, case, parts):
        """Make the calls of a mask ready, in place of those of the mask before."""
        self.prepared = None
        self.bench.clock.empty()
        inputs, want = self.inputs_of(case)
        self.prepared, left_out = self.bench.ready(self.name, case, inputs, want, parts)
        found = self.prepared
        return found and (list(found.calls), found.cold, found.errors), left_out

    def turn(self, part, settle_ms, measure_ms):
        """A turn, and None."""
        return take_turn(self.bench.clock, self.prepared.calls[part], settle_ms, measure_ms), None


def serve(connection, variant: Variant, options) -> None:
    """The process of a variant: load it, say what it is, then answer until the other end is closed."""
    if variant.library:
        os.environ["LIBFFA_LIBRARY"] = variant.library
    os.environ.update(variant.environment)
    if not variant.environment.get("FFA_CACHE_DIR") and "FFA_CACHE_DIR" in os.environ:
        os.environ["FFA_CACHE_DIR"] = os.path.join(os.environ["FFA_CACHE_DIR"], variant.name)  # its first calls are cold, too
    sys.path.insert(0, os.path.join(variant.tree or ROOT, "python"))
    from attention_compare import Bench, load_systems
    from attention_peers import first_line

    systems, seconds, left_out = load_systems(["libffa"], deterministic=variant.deterministic)
    if left_out:
        connection.send((None, left_out["libffa"]))
        return
    bench = Bench.of_options(options, {variant.name: systems["libffa"]}, {variant.name: seconds["libffa"]})
    server = Server(variant.name, bench, bench.inputs_of)
    connection.send((systems["libffa"].version, None))
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(server, what)(*arguments)
        except Exception as error:  # is said where it is asked for, and the run goes on
            answer = None, f"fails: {type(error).__name__}: {first_line(error)}"
        connection.send(answer)
