# SPDX-License-Identifier: Apache-2.0
"""Variants of libffa that bench_attention.py times beside it: another checkout or build, deterministic calls, an environment.

Each runs in a process of its own, which loads its own library and takes its turns when it is told to; so a library of last
month and one of today are timed on the same masks and inputs, a few hundred milliseconds apart, on one GPU.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from typing import NamedTuple

from attention_turns import FailedElsewhere, Turn, take_turn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.path.join("build", "libffa.so")
VARIABLES = ("FFA_BUNDLES", "FFA_CACHE_DIR", "FFA_COST_TABLES", "FFA_JIT")  # that libffa reads (docs/store.md)
KEYS = "tree=DIR, library=FILE, deterministic, " + ", ".join(f"{name}=VALUE" for name in VARIABLES)
ANSWER_S = 300  # an answer takes no longer: a turn is some hundred milliseconds, first calls compile
END_S = 10  # nor does a process that is told to end


class Variant(NamedTuple):
    """NAME:KEY=VALUE,... as --variant has it.

    text           what follows the name
    tree           a checkout that was built: its python/ and its build/libffa.so are used; None: those of this one
    library        another libffa.so for the Python package of the tree
    deterministic  calls ask for gradients that have the same bits in every run
    environment    variables of the process
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
        if not colon or not re.fullmatch(r"[\w-]+", name) or name in taken:
            raise ValueError(f"'{text}' is not NAME: or NAME:KEY=VALUE,... with a NAME of letters, digits, - and _ that is none "
                             f"of {', '.join(taken)}")
        found = dict(tree=None, library=None, deterministic=False)
        environment = {}
        for word in filter(None, words.split(",")):
            key, equals, value = word.partition("=")
            if key == "deterministic" and not equals:
                found[key] = True
            elif key in ("tree", "library") and value:
                found[key] = os.path.abspath(value)
            elif key in VARIABLES and equals:
                environment[key] = value
            else:
                raise ValueError(f"'{word}' of variant '{name}' is none of {KEYS}")
        needed = [found["library"]]
        if found["tree"]:
            found["library"] = found["library"] or os.path.join(found["tree"], LIBRARY)
            needed = [os.path.join(found["tree"], "python", "libffa", "__init__.py"), found["library"]]
        for path in filter(None, needed):
            if not os.path.exists(path):
                raise ValueError(f"variant '{name}': there is no {path}")
        return cls(name, words, environment=environment, **found)


def build_of(library: str, tree: str) -> dict[str, str]:
    """What a library was, when its path says no more: the first half of its SHA-256, and the commit, if the tree is a checkout."""
    with open(library, "rb") as file:
        found = dict(library=library, sha256=hashlib.sha256(file.read()).hexdigest()[:32])
    git = lambda *words: subprocess.run(["git", "-C", tree, *words], capture_output=True, text=True, check=True).stdout.strip()
    try:
        if os.path.samefile(git("rev-parse", "--show-toplevel"), tree):  # else it lies in somebody else's
            found["commit"] = git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no checkout
    return found


class PreparedThere(NamedTuple):
    """What the process of a variant has ready: `Prepared` of attention_bench.py, whose calls are in that process."""

    process: VariantProcess
    parts: list[str]
    cold: dict[str, float]
    errors: dict[str, float]

    def taker(self, _clock, part):
        """Takes a turn: (settle_ms, measure_ms) -> Turn."""
        return functools.partial(self.process.turn, part)


class Ended(FailedElsewhere):
    """The process of a variant is no more."""


class VariantProcess:
    """A variant's process, and what it is asked for. Used as a context; it ends with it.

    version  that of its library
    failure  why it could not begin, or None
    """

    def __init__(self, variant: Variant, options):
        context = multiprocessing.get_context("spawn")  # a process that was forked could not use CUDA
        self.text = variant.text
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, variant, options), daemon=True)
        self.process.start()
        other.close()
        try:
            self.version, self.failure = self._answer()
        except Ended as error:
            self.version, self.failure = None, f"fails: {error}"

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.connection.close()  # which is how the process sees that it is over
        self.process.join(END_S)
        self.process.kill()
        self.process.join()

    def _answer(self):
        try:
            if not self.connection.poll(ANSWER_S):
                self.process.kill()
                raise Ended(f"its process gave no answer in {ANSWER_S} s")
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            raise Ended(f"its process ended with status {self.process.exitcode}") from None

    def _ask(self, what, *arguments):
        """What Server returns. FailedElsewhere: it raised something; Ended: there is no such process any more."""
        try:
            self.connection.send((what, arguments))
        except ConnectionError:
            pass  # it is over; the answer says so
        found, failure = self._answer()
        if failure:
            raise FailedElsewhere(failure)
        return found

    def try_to_prepare(self, case, shape, parts):
        """As Bench.try_to_prepare of attention_bench.py, in the variant's process."""
        try:
            ready, left_out = self._ask("prepare", case, shape, parts)
        except FailedElsewhere as error:
            return None, dict.fromkeys(parts, f"fails: {error}")
        return ready and PreparedThere(self, *ready), left_out

    def turn(self, part: str, settle_ms: float, measure_ms: float) -> Turn:
        """As take_turn of attention_turns.py, in the variant's process. FailedElsewhere: a call failed there."""
        return self._ask("turn", part, settle_ms, measure_ms)

    def drop(self) -> None:
        """Have it give up what is prepared, and its memory."""
        with contextlib.suppress(FailedElsewhere):  # whoever asks next is told
            self._ask("drop")


class Server:
    """What a variant's process does for those who ask."""

    def __init__(self, name, bench):
        self.name, self.bench, self.prepared = name, bench, None

    def prepare(self, case, shape, parts):
        """The calls of a mask and shape are ready then, in place of those before."""
        self.drop()
        inputs, want = self.bench.inputs_of(case, shape)
        found, left_out = self.bench.try_to_prepare(self.name, case, inputs, want, parts)
        self.prepared = found
        return found and (found.parts, found.cold, found.errors), left_out

    def turn(self, part, settle_ms, measure_ms):
        return take_turn(self.bench.clock, self.prepared.calls[part], settle_ms, measure_ms)

    def drop(self):
        self.prepared = None
        self.bench.clock.empty()


def serve(connection, variant: Variant, options) -> None:
    """The process of a variant: load it, say what it is, then answer until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked is interrupted, too, and closes the other end
    if variant.library:
        os.environ["LIBFFA_LIBRARY"] = variant.library
    if "FFA_CACHE_DIR" in os.environ:  # not libffa's: with an empty one, the variant's first calls are cold, too
        os.environ["FFA_CACHE_DIR"] = os.path.join(os.environ["FFA_CACHE_DIR"], variant.name)
    os.environ.update(variant.environment)
    sys.path.insert(0, os.path.join(variant.tree or ROOT, "python"))
    from attention_bench import Bench
    from attention_peers import first_line, load_systems

    systems, seconds, left_out = load_systems(["libffa"], deterministic=variant.deterministic)
    if left_out:
        connection.send((None, left_out["libffa"]))
        return
    bench = Bench.of_options(options, {variant.name: systems["libffa"]}, {variant.name: seconds["libffa"]})
    server = Server(variant.name, bench)
    connection.send((systems["libffa"].version, None))
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(server, what)(*arguments), None
        except Exception as error:  # is a row there, and the others go on
            answer = None, f"{type(error).__name__}: {first_line(error)}"
        connection.send(answer)
        bench.clock.wait()  # raises where the device is lost to this process, which then ends
