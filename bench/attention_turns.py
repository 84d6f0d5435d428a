# SPDX-License-Identifier: Apache-2.0
"""How bench_attention.py takes times: systems in turns, each settled before it is timed, and the GPU's state meanwhile.

The chip is limited by power: its clock depends on what ran before. So each turn first runs its own calls for a while that
does not count, and every round begins with another system. Some 0.8 s after its first work a cold chip also falls to 0.83
of its clock, for 0.15 s, whatever it runs then; so before the first turn it is warmed up.
"""
from __future__ import annotations

import statistics
import subprocess
import threading
import time
from typing import Callable, NamedTuple, Sequence

GROUP_MS = 15  # calls between two readings of the clock take this long
GROUP_CALLS = 50  # at most: far from the number of launches that a stream takes without waiting


class WallClock:
    """Times of calls that return when they are done."""

    @staticmethod
    def now() -> float:
        """Seconds of a clock that only goes on."""
        return time.perf_counter()

    def wait(self) -> None:
        """Return when all calls are done."""

    def empty(self) -> None:
        """Give back memory that nothing uses."""

    def measure(self, call: Callable, count: int) -> tuple[float, float]:
        """Run `count` calls; the milliseconds that one takes, and those in which the host has enqueued it."""
        begin = self.now()
        for _ in range(count):
            call()
        ms = (self.now() - begin) * 1e3 / count
        return ms, ms


class EventClock(WallClock):
    """Times of back-to-back calls on the current CUDA stream, between two events."""

    def __init__(self):
        import torch

        self.cuda = torch.cuda
        self.events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def wait(self):
        self.cuda.synchronize()

    def empty(self):
        self.cuda.empty_cache()

    def measure(self, call, count):
        begin, end = self.events
        start = self.now()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        host = self.now() - start
        end.synchronize()
        return begin.elapsed_time(end) / count, host * 1e3 / count


class Turn(NamedTuple):
    """What one system's turn gave: medians over groups of calls, and when the part that counts began and ended, by a clock that
    all processes of the machine share."""

    ms: float
    host_ms: float
    begin: float
    end: float


def take_turn(clock, call: Callable, settle_ms: float, measure_ms: float) -> Turn:
    """Run calls for `settle_ms` that do not count, then for `measure_ms`, in two groups at least."""
    one, _ = clock.measure(call, 1)
    count = max(1, min(GROUP_CALLS, int(GROUP_MS / max(one, 1e-3))))
    spent = 0.0
    while spent < settle_ms:
        spent += count * clock.measure(call, count)[0]
    begin, spent, groups = clock.now(), 0.0, []
    while spent < measure_ms or len(groups) < 2:
        groups.append(clock.measure(call, count))
        spent += count * groups[-1][0]
    return Turn(*(statistics.median(column) for column in zip(*groups)), begin, clock.now())


Taker = Callable[[float, float], Turn]  # takes a turn: of settle_ms and measure_ms


class FailedElsewhere(Exception):
    """What failed in another process, with its message in full."""


def in_turns(now: Callable[[], float], takers: dict[str, Taker], rounds: int, warm_ms: float, settle_ms: float,
             measure_ms: float) -> tuple[dict[str, list[Turn]], dict[str, Exception]]:
    """(`rounds` turns of each system, on a chip that was warmed up for `warm_ms`, what others raised): round r begins with the
    r-th of them. A system that raises is out, and the others go on."""
    takers, failed, names = dict(takers), {}, list(takers)
    turns: dict[str, list[Turn]] = {name: [] for name in names}

    def take(name, *times):
        try:
            return takers[name](*times)
        except Exception as error:
            failed[name] = error
            del takers[name], turns[name]

    end = now() + warm_ms / 1e3
    while takers and now() < end:
        for name in list(takers):
            take(name, 0, GROUP_MS)
    for r in range(rounds if names else 0):
        at = r % len(names)
        for name in names[at:] + names[:at]:
            turn = take(name, settle_ms, measure_ms) if name in takers else None
            if turn:
                turns[name].append(turn)
    return turns, failed


def summary(milliseconds: Sequence[float]) -> dict:
    """The median of the rounds, (longest - shortest) / median, and the rounds themselves."""
    median = statistics.median(milliseconds)
    return dict(ms=median, spread=(max(milliseconds) - min(milliseconds)) / median, rounds_ms=list(milliseconds))


class Monitor:
    """Clock, power and temperature of a GPU, as nvidia-smi prints them several times a second.

    command  what prints a line "MHz, watts, degrees" a sample; a process of its own until close()
    """

    FIELDS = ("clock_mhz", "power_w", "temperature_c")
    QUERY = "clocks.sm,power.draw.instant,temperature.gpu"

    def __init__(self, command: Sequence[str], now: Callable[[], float] = WallClock.now):
        self.samples: list[tuple[float, list]] = []
        self.now, self.process = now, None
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return  # no nvidia-smi: no samples
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @classmethod
    def of_gpu(cls, gpu: str) -> Monitor:
        """That of the GPU which nvidia-smi knows by this name."""
        return cls(["nvidia-smi", f"--id={gpu}", f"--query-gpu={cls.QUERY}", "--format=csv,noheader,nounits", "-lms", "100"])

    def _read(self):
        for line in self.process.stdout:
            self.add(line)

    def add(self, line: str) -> None:
        """A line that was printed. A value that is no number, "[N/A]", is left out; so is a line that is no sample."""
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(self.FIELDS):
            self.samples.append((self.now(), [float(word) if word.replace(".", "", 1).isdigit() else None for word in words]))

    def state(self, spans: Sequence[tuple[float, float]]) -> dict[str, float]:
        """Means over the samples of these spans of time; without what has no samples."""
        found = [values for when, values in list(self.samples) if any(begin <= when <= end for begin, end in spans)]
        columns = {name: [values[i] for values in found if values[i] is not None] for i, name in enumerate(self.FIELDS)}
        return {name: round(statistics.fmean(column), 1) for name, column in columns.items() if column}

    def close(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.thread.join()
            self.process.stdout.close()
