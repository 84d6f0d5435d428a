# SPDX-License-Identifier: Apache-2.0
"""bench/bench_attention.py: masks, adapters of the peers against fp64, turns by a clock that the test moves, variants in
processes of their own, rows, tables and the picture."""
import functools
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import peers
from cases import close, dense, reference
from libffa import Mask, library_path

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.path.insert(0, BENCH)
import attention_bench  # noqa: E402
import attention_compare as compare  # noqa: E402
import attention_peers  # noqa: E402
import attention_report as report  # noqa: E402
import attention_turns as turns  # noqa: E402
import attention_variants  # noqa: E402
import bench_attention  # noqa: E402
import plot_attention  # noqa: E402
from attention_masks import TYPES, Case, Documents, Unsupported, read_masks  # noqa: E402

pytestmark = pytest.mark.cpu_only


def case_of(text):
    mask = Mask.parse(text)
    slices = tuple((*ranges, TYPES.index(kind)) for *ranges, kind in mask.slices())
    return Case(text, mask.seqlen_q, mask.seqlen_k, slices)


def cells_of(case):
    return dense(Mask.from_slices(case.slices, case.seqlen_q, case.seqlen_k))


# ---- masks ----

TEXTS = ["full:40", "causal:40", "causal:20x50", "causal:50x20", "window:40,left=7,right=0", "window:40,left=0,right=0",
         "window:40,left=3,right=5", "window:20x50,left=8,right=0", "varlen-full:10,25,5", "varlen-causal:10,25,5,1",
         "varlen-causal:8*4", "varlen-window:20,30/left=4,right=0", "varlen-window:30,20/left=3,right=2,global=2",
         "block-causal:40/block=16", "shared-prefix:10,20,10", "global-window:40,left=4,right=0,global=3",
         "union(window:40,left=3,right=0;full:40)", "union(varlen-full:20,20;causal:40)", "crop(causal:64;q=32:64)"]


@pytest.mark.parametrize("text", TEXTS)
def test_ranges_of_rows(text):
    case, keys = case_of(text), torch.arange(Mask.parse(text).seqlen_k)
    low, high = (torch.from_numpy(bound) for bound in case.bounds)
    assert (low[1:] >= high[:-1]).all() and (low <= high).all()
    inside = (keys >= low[..., None]) & (keys < high[..., None])
    assert torch.equal(inside.sum(0).bool(), cells_of(case)) and int(inside.sum()) == case.area


def test_areas_of_the_cases():
    for case in json.load(open(compare.CASES))["cases"]:
        if case["mask"]["seqlen_q"] <= 16384:
            mask = case["mask"]
            found = Case(case["name"], mask["seqlen_q"], mask["seqlen_k"], tuple(map(tuple, mask["slices"])))
            assert found.area == case["area"], case["name"]


@pytest.mark.parametrize("text, overlaps, rows_overlap", [
    ("varlen-causal:10,20", False, False), ("shared-prefix:10,20,10", False, True), ("union(full:20;causal:20)", True, True)])
def test_overlaps(text, overlaps, rows_overlap):
    case = case_of(text)
    assert (case.overlaps, case.rows_overlap) == (overlaps, rows_overlap)


@pytest.mark.parametrize("text", TEXTS)
def test_another_mask_of_the_same_cells(text):
    """It overlaps only where the mask does: MagiAttention refuses it otherwise, which left that peer out of every run."""
    case = case_of(text)
    again = case.restated()
    assert again.slices != case.slices and again.overlaps == case.overlaps
    assert torch.equal(cells_of(again), cells_of(case))


@pytest.mark.parametrize("text, want", [
    ("full:40", Documents([0, 40], [0, 40], -1, -1)),
    ("causal:20x50", Documents([0, 20], [0, 50], -1, 0)),
    ("window:40,left=7,right=0", Documents([0, 40], [0, 40], 7, 0)),
    ("window:40,left=0,right=0", Documents([0, 40], [0, 40], 0, 0)),
    ("window:20x50,left=8,right=3", Documents([0, 20], [0, 50], 8, 3)),
    ("window:40,left=-1,right=3", Documents([0, 40], [0, 40], -1, 3)),
    ("varlen-full:10,25,5", Documents([0, 10, 35, 40], [0, 10, 35, 40], -1, -1)),
    ("varlen-causal:10,25,1,5", Documents([0, 10, 35, 36, 41], [0, 10, 35, 36, 41], -1, 0)),
    ("varlen-window:20,30/left=4,right=0", Documents([0, 20, 50], [0, 20, 50], 4, 0)),
    ("union(full:40;window:40,left=3,right=0)", Documents([0, 40], [0, 40], -1, -1)),
    ("block-causal:40/block=16", "not packed documents"),
    ("shared-prefix:10,20,10", "several ranges"),
    ("causal:50x20", "no keys"),
    ("concat(causal:20;full:20)", "not packed documents"),
    ("concat(window:20,left=3,right=0;window:20,left=4,right=0)", "not packed documents"),
    ("crop(causal:64;k=8:64)", "no keys"),
    ("shift(full:20;k=5,size=20x25)", "not packed documents"),
])
def test_documents(text, want):
    if isinstance(want, str):
        with pytest.raises(Unsupported, match=want):
            case_of(text).documents
    else:
        assert case_of(text).documents == want


def test_masks_of_a_file(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("# comment\n\ndocs varlen-causal:10,20  # packed\nwindow:40,left=7,right=0\n")
    found = read_masks(str(lines))
    assert [case.name for case in found] == ["docs", "window:40,left=7,right=0"]
    assert found[0].slices == case_of("varlen-causal:10,20").slices
    one = tmp_path / "mine.json"
    one.write_text(Mask.parse("varlen-causal:10,20").to_json())
    assert read_masks(str(one)) == [Case("mine", 30, 30, found[0].slices)]


@pytest.mark.parametrize("content, message", [
    ("", "no masks"), ("a b c", r":1: 3 words"), ("full:4\nnonsense:4", ":2: "), ("{", "Expecting"),
    ('{"seqlen_q": 4, "seqlen_k": 4, "kv_heads": []}', "one list of slices"),
    ('{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 5, "full"]]}', "not inside 4 x 4"),
    ('{"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 4, "diagonal"]]}', "'diagonal'")])
def test_files_that_are_wrong(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_masks(str(path))
    assert str(path) in str(caught.value)


# ---- systems ----

class MathSdpa(attention_peers.Sdpa):
    backend = attention_peers.SDPBackend.MATH


class EagerFlex(attention_peers.Flex):
    compiled = staticmethod(lambda function: function)


PACKAGES = {"fa3": peers.flash_attention_3, "fa4": peers.flash_attention_4, "cudnn-flex": peers.cudnn_flex, "magi": peers.magi}
CLASSES = {**attention_peers.SYSTEMS, "cudnn": MathSdpa, "flex": EagerFlex}
WINDOWS = {"window:40,left=7,right=0", "window:40,left=0,right=0", "window:40,left=3,right=5", "window:20x50,left=8,right=0",
           "varlen-window:20,30/left=4,right=0"}
PACKED = {"full:40", "causal:40", "causal:20x50", "varlen-full:10,25,5", "varlen-causal:10,25,5,1", "varlen-causal:8*4",
          "union(window:40,left=3,right=0;full:40)"}
OF_ROWS = PACKED | WINDOWS | {"block-causal:40/block=16", "shared-prefix:10,20,10", "global-window:40,left=4,right=0,global=3",
                              "union(varlen-full:20,20;causal:40)", "varlen-window:30,20/left=3,right=2,global=2",
                              "causal:50x20", "crop(causal:64;q=32:64)"}
DOES = {"libffa": OF_ROWS, "flex": OF_ROWS, "cudnn-flex": OF_ROWS, "fa3": PACKED | WINDOWS | {"crop(causal:64;q=32:64)"},
        "fa4": PACKED | WINDOWS | {"crop(causal:64;q=32:64)"},
        "cudnn": {"full:40", "causal:40", "union(window:40,left=3,right=0;full:40)"},
        "magi": OF_ROWS - {text for text in OF_ROWS if text.startswith("union")}}


@pytest.fixture
def install(monkeypatch):
    """Put modules where imports find them."""
    def put(modules):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
    return put


@pytest.fixture
def system(request, install):
    install(PACKAGES.get(request.param, dict)())
    return CLASSES[request.param]()


@pytest.mark.parametrize("system", DOES, indirect=True)
def test_systems_against_fp64(system):
    """What a system says it can do is right, and the rest it refuses with a sentence."""
    backward = system.name != "flex"  # which has no backward pass on the CPU
    for text in TEXTS:
        case = case_of(text)
        inputs = attention_bench.Inputs.make(case, report.Shape(4, 2, 16, 16), torch.float32, "cpu", 1)
        leaves = inputs[:3] if backward else [t.detach() for t in inputs[:3]]
        if text not in DOES[system.name]:
            with pytest.raises(Unsupported):
                system.prepare(case, *leaves, backward)
            continue
        call = system.prepare(case, *leaves, backward)
        want = reference(*(t[None] for t in inputs[:3]), cells_of(case))[0][0]
        out = call()
        assert out.shape == inputs.dout.shape, text
        close(out, want, torch.float32, text)
        with torch.no_grad():
            close(system.prepare(case, *leaves, False)(), want, torch.float32, text)
        if backward:
            have = torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)
            again = torch.autograd.grad(out, leaves, inputs.dout, retain_graph=True)
            for a, b, c in zip(have, again, torch.autograd.grad(want, inputs[:3], inputs.dout.double())):
                close(a, c, torch.float32, text)
                close(b, c, torch.float32, text)


def test_the_benchmark_has_the_same_reference():
    for text in TEXTS:
        case = case_of(text)
        inputs = attention_bench.Inputs.make(case, report.Shape(6, 2, 16, 8), torch.float64, "cpu", 2)
        out = reference(*(t[None] for t in inputs[:3]), cells_of(case))[0][0]
        want = out, *torch.autograd.grad(out, inputs[:3], inputs.dout.double())
        have = attention_bench.reference(case, inputs, 1)
        parts = slice(3, 6), slice(3, 6), slice(1, 2), slice(1, 2)
        for a, b, part in zip(have, want, parts):
            close(a, b[:, part], torch.float64, text)
        assert max(attention_bench.errors_of(have, want[0], want[1:], 1).values()) < 1e-10
    wrong = want[0].detach().clone()
    wrong[3, 3, 0] = float("nan")
    assert attention_bench.errors_of(have, wrong, (), 1) == {"out": float("inf")}


def test_builds_of_flash_attention_3(install):
    install(peers.flash_attention_3(("BACKWARD", "LOCAL", "FP16")))
    system = attention_peers.FlashAttention3()
    for part, dtype, message in (("backward", torch.bfloat16, "no backward pass"), ("forward", torch.float16, "no fp16")):
        with pytest.raises(Unsupported, match=message):
            system.check(part, dtype)
    system.check("forward", torch.bfloat16)
    inputs = attention_bench.Inputs.make(case_of("full:8"), report.Shape(2, 2, 8, 8), torch.float32, "cpu", 1)
    with pytest.raises(Unsupported, match="no windows"):
        system.prepare(case_of("window:8,left=2,right=0"), *inputs[:3], False)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_peer_that_is_not_installed(name, install):
    parts = {part.rpartition(".")[0] or part for part in PACKAGES[name]()} | set(PACKAGES[name]()) | {"fa3_fwd_interface"}
    install(dict.fromkeys(parts))  # None: importing it raises ImportError
    loaded, seconds, left_out = attention_peers.load_systems([name])
    assert not loaded and not seconds and left_out[name].startswith("not installed: ")


def test_a_peer_that_does_not_load(monkeypatch):
    class Broken(attention_peers.System):
        def __init__(self):
            raise KeyError("surprise")
    monkeypatch.setitem(attention_peers.SYSTEMS, "fa4", Broken)
    assert attention_peers.load_systems(["fa4"])[2] == {"fa4": "does not load: KeyError: 'surprise'"}


# ---- turns ----

class Clock(turns.WallClock):
    """Moves by what calls take; a call takes `takes(milliseconds that it ran without a pause)`."""

    def __init__(self):
        self.time, self.last, self.ran, self.order = 0.0, None, 0.0, []

    def now(self):
        return self.time

    def measure(self, call, count):
        if call is not self.last:
            self.last, self.ran = call, 0.0
            self.order.append(call)
        spent = 0.0
        for _ in range(count):
            ms = call.takes(self.ran)
            self.ran, spent = self.ran + ms, spent + ms
        self.time += spent / 1e3
        return spent / count, 0.25 * spent / count


class Work:
    """A call that takes twice as long until it ran for `warm` milliseconds."""

    def __init__(self, ms, warm=0.0):
        self.ms, self.warm = ms, warm

    def takes(self, ran):
        return self.ms * (2 if ran < self.warm else 1)

    def __call__(self):
        return self


def test_a_turn_is_settled():
    assert turns.take_turn(Clock(), Work(1, warm=100), 150, 60).ms == 1
    assert turns.take_turn(Clock(), Work(1, warm=100), 0, 60).ms == 2
    clock = Clock()
    turn = turns.take_turn(clock, Work(1), 150, 60)
    assert turn.host_ms == 0.25
    assert 0.15 <= turn.begin < 0.17 and turn.end == clock.time and 0.06 <= turn.end - turn.begin < 0.08


@pytest.mark.parametrize("ms", [0.001, 0.3, 14, 400])
def test_a_turn_has_two_groups_at_least(ms):
    calls = []

    class Counted(Clock):
        def measure(self, call, count):
            calls.append(count)
            return super().measure(call, count)
    assert turns.take_turn(Counted(), Work(ms), 0, 0).ms == pytest.approx(ms)
    assert len(calls) == 3 and calls[1] == calls[2] == max(1, min(50, int(15 / ms)))


def takers_of(clock, names):
    """Work of a millisecond a call for each name, and what takes turns of it."""
    work = {name: Work(1) for name in names}
    return work, {name: functools.partial(turns.take_turn, clock, call) for name, call in work.items()}


def test_each_round_begins_with_another():
    clock = Clock()
    work, takers = takers_of(clock, "abc")
    found, failed = turns.in_turns(clock.now, takers, 4, 0, 0, 1)
    names = {id(value): name for name, value in work.items()}
    # A turn that follows one of its own is not told apart by the clock.
    assert "".join(names[id(call)] for call in clock.order) == "abcbcacababc"
    assert {name: len(rounds) for name, rounds in found.items()} == dict(a=4, b=4, c=4) and not failed
    assert turns.in_turns(clock.now, {}, 4, 100, 0, 1) == ({}, {})


def test_the_chip_is_warm_before_the_first_turn():
    class Cold(Clock):
        """Half as fast until 0.9 s after its first work."""

        def measure(self, call, count):
            ms, host = super().measure(call, count)
            return (2 * ms, host) if self.time < 0.9 else (ms, host)
    for warm_ms, ms in ((0, 2), (900, 1)):
        clock = Cold()
        found, _ = turns.in_turns(clock.now, takers_of(clock, "ab")[1], 1, warm_ms, 0, 100)
        assert [rounds[0].ms for rounds in found.values()] == [ms, ms]


def test_spread_over_rounds():
    assert turns.summary([2.0, 1.0, 3.0, 2.0]) == dict(ms=2.0, spread=1.0, rounds_ms=[2.0, 1.0, 3.0, 2.0])


def test_state_of_the_gpu():
    clock = Clock()
    monitor = turns.Monitor(["a program that is not there"], clock.now)
    for clock.time, line in ((1, "1500, 600.5, 60\n"), (2, "1700, 700.0, 62\n"), (3, "1000, [N/A], 40\n"), (4, "a message\n")):
        monitor.add(line)
    assert monitor.state([(0.5, 2)]) == dict(clock_mhz=1600, power_w=650.2, temperature_c=61)
    assert monitor.state([(3, 4)]) == dict(clock_mhz=1000, temperature_c=40)
    assert monitor.state([(5, 6)]) == {}
    monitor.close()


def test_samples_of_a_process():
    monitor = turns.Monitor([sys.executable, "-c", "print('1500, 600, 60', flush=True)\nimport time; time.sleep(600)"])
    while not monitor.samples and monitor.thread.is_alive():
        time.sleep(0.01)
    monitor.close()
    assert monitor.state([(0, monitor.now())]) == dict(clock_mhz=1500, power_w=600, temperature_c=60)


class Event:
    """A CUDA event of a device whose calls take a millisecond each; what was done with events is in `log`."""

    log, ran = [], 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.ran
        self.log.append("record")

    def synchronize(self):
        self.log.append("wait")

    def elapsed_time(self, end):
        return end.at - self.at


def test_times_between_events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = turns.EventClock()

    def call():
        Event.ran += 1
        Event.log.append("call")
    ms, host_ms = clock.measure(call, 3)
    assert ms == 1 and host_ms >= 0
    assert Event.log == ["record", "call", "call", "call", "record", "wait"]


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU, as PyTorch and nvidia-smi describe one."""
    program = tmp_path / "nvidia-smi"
    program.write_text("""#!/bin/sh
[ "$1" = --id=GPU-12-34 ] || exit 1
case $* in
*-lms*) echo '1500, 600.5, 60'; exec sleep 600 ;;
*--query-gpu=driver_version,power.limit,clocks.max.sm*--format=csv,noheader,nounits) echo '580.1, 700.00, 1980' ;;
*) exit 1 ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _number: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: SimpleNamespace(uuid="12-34"))
    return program


def test_a_gpu_is_asked_about(gpu):
    monitor = turns.Monitor.of_gpu(compare.gpu_name())
    while not monitor.samples and monitor.thread.is_alive():
        time.sleep(0.01)
    monitor.close()
    assert [values for _, values in monitor.samples] == [[1500, 600.5, 60]]
    options = compare.parser().parse_args(["--peers=flex", "--commit", "abc"])
    row = compare.first_row(options, {"libffa": SimpleNamespace(version="0.1")}, {}, {"flex": "not there"}, ["--peers=flex"])
    assert (row["device"], row["driver"], row["power_limit_w"], row["clock_max_mhz"]) == ("A GPU", "580.1", 700, 1980)
    assert row["systems"] == {"libffa": "0.1", "flex": {"skipped": "not there"}} and row["commit"] == "abc"
    assert row["command"] == "bench/bench_attention.py --peers=flex"
    gpu.write_text("#!/bin/sh\nexit 1\n")
    assert "driver" not in compare.first_row(options, {}, {}, {}, [])


# ---- rows ----

class Peer(attention_peers.System):
    """Right results, at a speed of its own."""

    def __init__(self, name, ms, off=0.0, fails="", forward_only=False):
        self.name, self.ms, self.off, self.fails, self.forward_only = name, ms, off, fails, forward_only

    def check(self, part, dtype):
        if self.forward_only and part == "backward":
            raise Unsupported("this build has no backward pass")

    def prepare(self, case, q, k, v, backward):
        if self.fails == "masks":
            raise Unsupported("no such masks")
        if self.fails == "always" or (self.fails == "backward" and backward):
            raise RuntimeError("kernel is\nmissing")
        cells, off = cells_of(case), self.off
        return lambda: reference(q[None], k[None], v[None], cells)[0][0].to(q.dtype) * (1 + off)


class PeersClock(Clock):
    """Knows by name how long a system's calls take: backward twice as long."""

    def __init__(self, systems):
        super().__init__()
        self.systems = systems

    def measure(self, call, count):
        self.time += self.systems[call.system].ms * (2 if call.part == "backward" else 1) * count / 1e3
        return self.systems[call.system].ms * (2 if call.part == "backward" else 1), 0.01


def rows_of(systems, *arguments, variants=None):
    options = compare.parser().parse_args(["--peers=", "--device=cpu", "--dtype=fp32", "--shapes=4:2/16",
                                           "--rounds=2", *arguments])
    systems = {system.name: system for system in systems}
    seconds = dict.fromkeys(systems, 0.5)
    bench = attention_bench.Bench(options, systems, seconds, PeersClock(systems), lambda spans: dict(spans=len(spans)), variants)
    prepare = bench.prepare

    def tagged(name, *rest):
        found = prepare(name, *rest)
        for part, call in found.calls.items():
            def tag(call=call):
                return call()
            tag.system, tag.part = name, part
            found.calls[part] = tag
        return found
    bench.prepare = tagged
    return list(bench.rows("docs", case_of("varlen-causal:10,20"), *options.shapes))


def pick(rows, key, **wanted):
    return [row[key] for row in rows if key in row and all(row.get(name) == value for name, value in wanted.items())]


def test_rows_of_a_mask():
    rows = rows_of([Peer("libffa", 1.0), Peer("fa4", 1.25), Peer("flex", 2.0), Peer("fa3", 0.1, off=0.1),
                    Peer("cudnn", 1, fails="masks")], "--pass", "forward,backward,both")
    assert [(row["system"], row["skipped"]) for row in rows if "skipped" in row] == [("cudnn", "no such masks")]
    assert all(row["mask"] == "docs" and row["seqlen"] == 30 and row["heads"] == "4:2" for row in rows)
    cold = pick(rows, "cold", system="libffa")
    assert len(cold) == 1 and set(cold[0]) == set(report.COLD) and cold[0]["import_s"] == 0.5
    for part, ms in (("forward", 1.0), ("backward", 2.0), ("both", 3.0)):
        ours = {"system": "libffa", "pass": part}
        assert pick(rows, "ms", **ours) == [ms] and pick(rows, "rounds_ms", **ours) == [[ms, ms]]
        assert pick(rows, "best_peer", **ours) == ["fa4"] and pick(rows, "to_best_peer", **ours) == [pytest.approx(1.25)]
        # A peer with wrong results is no best peer, however fast.
        assert pick(rows, "wrong", system="fa3", **{"pass": part}) == [True]
        assert pick(rows, "wrong", **ours) == [False]
    cells = 10 * 11 // 2 + 20 * 21 // 2
    assert pick(rows, "tflops", system="libffa", **{"pass": "forward"}) == [pytest.approx(4 * cells * 4 * 16 / 1e-3 / 1e12)]
    assert pick(rows, "tflops", system="libffa", **{"pass": "backward"}) == [pytest.approx(10 * cells * 4 * 16 / 2e-3 / 1e12)]
    assert pick(rows, "spans", system="libffa", **{"pass": "both"}) == [4] and len(rows) == 1 + 4 + 3 * 4


def test_rows_of_all_systems(install, monkeypatch):
    """Each adapter goes all the way: plan, calls, another mask, turns."""
    for modules in PACKAGES.values():
        install(modules())
    monkeypatch.setattr(attention_peers, "SYSTEMS", CLASSES)
    systems, seconds, left_out = attention_peers.load_systems(CLASSES)
    options = compare.parser().parse_args(["--peers=", "--device=cpu", "--dtype=fp32", "--shapes=4:2/16",
                                           "--rounds=1", "--measure-ms=0", "--settle-ms=0", "--warm-ms=0", "--pass=forward"])
    bench = attention_bench.Bench.of_options(options, systems, seconds)
    rows = list(bench.rows("causal", case_of("causal:24"), *options.shapes))
    assert not left_out and [row["system"] for row in rows if "skipped" in row] == []
    assert [row["system"] for row in rows if "tflops" in row] == list(CLASSES)
    assert not any(row.get("wrong") for row in rows) and len(rows) == 2 * len(CLASSES)


def test_what_is_wrong_is_said_of_its_pass():
    class WrongGradients(Peer):
        def prepare(self, case, q, k, v, backward):
            right = super().prepare(case, q, k, v, backward)
            return lambda: right() + (q - q.detach()).sum() * 100
    rows = rows_of([Peer("libffa", 1.0), WrongGradients("fa4", 0.5)], "--pass", "forward,backward,both")
    assert {row["pass"]: (row["wrong"], list(row["errors"])) for row in rows if "tflops" in row and row["system"] == "fa4"} == {
        "forward": (False, ["out"]), "backward": (True, ["dq", "dk", "dv"]), "both": (True, ["out", "dq", "dk", "dv"])}
    assert pick(rows, "to_best_peer", system="libffa") == [0.5]


def test_what_fails_is_a_row():
    rows = rows_of([Peer("libffa", 1.0), Peer("fa3", 2.0, forward_only=True), Peer("fa4", 2.0, fails="backward"),
                    Peer("flex", 1.0, fails="always")])
    assert [(row["system"], row.get("pass"), row["skipped"]) for row in rows if "skipped" in row] == [
        ("fa3", "backward", "this build has no backward pass"), ("fa4", "backward", "fails: RuntimeError: kernel is"),
        ("flex", None, "fails: RuntimeError: kernel is")]
    assert [(row["system"], row["pass"]) for row in rows if "tflops" in row] == [
        ("libffa", "forward"), ("fa3", "forward"), ("fa4", "forward"), ("libffa", "backward")]
    assert "to_best_peer" not in rows[-1]


def test_tables():
    rows = [dict(device="GPU", systems={"libffa": "0.1", "magi": dict(skipped="not installed: magi")})]
    rows += rows_of([Peer("libffa", 1.0), Peer("fa4", 1.25), Peer("flex", 1.0, off=1.0), Peer("cudnn", 1, fails="masks")])
    text = report.tables(rows)
    assert "| mask | tokens | libffa | cuDNN" not in text  # which has no figures
    assert "| docs | 30 | 0 ±0 % | 0 ±0 % | wrong | 1.25 FlashAttention-4 |" in text
    assert "| cuDNN | docs 30 | no such masks |" in text and "| MagiAttention | all | not installed: magi |" in text
    assert text.count("TFLOP/s, ") == 2 and "| libffa | docs 30 | 0.5 |" in text
    wide = [dict(row, head_dim=64, head_dim_v=64) if "mask" in row else row for row in rows]
    both = report.tables(rows + wide[1:])
    assert both.index("4:2/16, fp32, backward: TFLOP/s, ") < both.index("4:2/64, fp32, forward: TFLOP/s, ")
    assert both.count("TFLOP/s, ") == 4 and "| cuDNN | docs 30 4:2/16, docs 30 4:2/64 | no such masks |" in both
    limited = [dict(row, host_ms=0.95) if "ms" in row else row for row in rows]
    assert "0 ±0 % *" in report.tables(limited)
    shown = {part: report.tables(rows, [part]) for part in report.TABLES}
    assert ["±0 %" in shown[part] for part in report.TABLES] == [True, False, False]
    assert ["first forward" in shown[part] for part in report.TABLES] == [False, True, False]
    assert ["Left out" in shown[part] for part in report.TABLES] == [False, False, True]


def test_order_of_tables():
    cells = [("mine", 8), ("varlen_causal", 1024), ("full", 4096), ("his", 8), ("full", 1024)]
    figures = [row for row in rows_of([Peer("libffa", 1.0), Peer("fa4", 0.5), Peer("docs", 1.0)]) if row.get("pass") == "forward"]
    text = report.tables([dict(row, mask=mask, seqlen=seqlen) for mask, seqlen in cells for row in reversed(figures)])
    at = [text.index(begin) for begin in ("| mask | tokens | libffa | FlashAttention-4 | docs |", "| full | 1k |", "| full | 4k |",
                                          "| packed documents, causal | 1k |", "| mine | 8 |", "| his | 8 |")]
    assert at == sorted(at)
    assert text.count("**0.50** FlashAttention-4") == 5  # bold: libffa is behind


def test_tables_of_files(tmp_path, capsys):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"

    def write(path, ms, device="GPU", **cell):
        rows = rows_of([Peer("libffa", ms), Peer("fa4", 1.25)])
        rows = [dict(device=device, systems={}), *(dict(row, **cell, clock_mhz=1500, power_w=699.6) for row in rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def refused(*words):
        assert report.main([*words]) == 1
        return capsys.readouterr().err

    write(first, 1.0)
    write(second, 2.0, head_dim=64, head_dim_v=64)
    assert report.main([str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert said.index("4:2/16") < said.index("1.25 FlashAttention-4") < said.index("4:2/64") < said.index("**0.62** FlashAttention-4")
    assert report.main(["--shape", "4:2/64", "--pass", "backward", "--show", "figures", str(first), str(second)]) == 0
    assert capsys.readouterr().out.count("TFLOP/s, ") == 1
    assert report.main(["--without", "fa4,none", str(first)]) == 0 and "| FlashAttention-4 |" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        report.main(["--show", "all", str(first)])
    assert "--show: 'all' is none of figures, first, left-out" in capsys.readouterr().err

    # Cells in which libffa is slower, with how the GPU ran.
    assert report.main(["--below", "1", str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert "1.25 FlashAttention-4" not in said and "in 2 of 4 cells:" in said
    assert "| forward | 4:2/64 | docs | 30 | **0.62** FlashAttention-4 | 0.62 | 1500, 1500 | 700, 700 |" in said
    assert report.main(["--below", "0.1", str(first)]) == 0 and "in 0 of 2 cells." in capsys.readouterr().out
    second.write_text(second.read_text().replace("clock_mhz", "clock").replace("power_w", "power"))
    assert report.main(["--below", "1", str(second)]) == 0 and "| **0.62** FlashAttention-4 | - | - | - |" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        report.main(["--below", "1", "--without", "fa4", str(first)])
    assert "--below is a table of its own" in capsys.readouterr().err

    # Figures that are not of one run, or none.
    write(second, 2.0)
    for other in first, second:
        assert f"{second}: has libffa on docs of 30, forward, 4:2/16, as has {other}" in refused(str(other), str(second))
    write(second, 2.0, device="other", head_dim=64)
    assert f"{second}: is of other, the files before of GPU" in refused(str(first), str(second))
    second.write_text(json.dumps(dict(tflops=1)))
    assert f"{second}: not a results file" in refused(str(second))
    second.write_text("no results")
    assert f"{second}: Expecting value" in refused(str(first), str(second))
    assert "none: " in refused(str(tmp_path / "none"))


def test_picture(tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    variants = {name: There("tree=x", 1.25) for name in ("before", "<later>")}
    rows = rows_of([Peer("libffa", 1e-4), Peer("fa4", 2e-4), Peer("flex", 1.0, off=1.0)], variants=variants)
    rows = [dict(row, rounds_ms=[row["ms"], row["ms"] * 1.5]) if "ms" in row else row for row in rows]
    figures = [row for row in rows if "ms" in row]
    rows += [dict(row, mask="full") for row in figures] + [dict(row, dtype="fp16", mask="other") for row in figures]
    rows += [dict(row, head_dim=64, head_dim_v=32, mask="shaped") for row in figures]
    results.write_text("".join(json.dumps(row) + "\n" for row in [dict(device="GPU", systems={}), *rows]))
    plot_attention.main([str(results), "--pass", "backward"])
    svg = capsys.readouterr().out
    assert ">docs<" in svg and ">full<" in svg and ">other<" not in svg
    assert ">FlashAttention-4<" in svg and ">FlexAttention<" not in svg  # it is wrong
    assert "Backward, fp32, heads 4:2, head_dim 16:" in svg and svg.count("<circle") == 8
    assert ">before<" in svg and ">&lt;later&gt;<" in svg and ">shaped<" not in svg
    assert len(set(plot_attention.colours_of({"docs": dict.fromkeys(["libffa", "before", "<later>"])}).values())) == 3
    plot_attention.main([str(results), "--pass", "backward", "--shape", "4:2/64:32"])
    svg = capsys.readouterr().out
    assert ">shaped<" in svg and ">docs<" not in svg and "heads 4:2, head_dim 64:32: TFLOP/s" in svg
    with pytest.raises(SystemExit):
        plot_attention.main([str(results), "--pass", "both"])
    assert "no figures of the pass both" in capsys.readouterr().err


# ---- variants ----

def test_variants(tmp_path):
    parse = attention_variants.Variant.parse
    library, package = tmp_path / "build" / "libffa.so", tmp_path / "python" / "libffa" / "__init__.py"
    for path in library, package:
        path.parent.mkdir(parents=True)
        path.write_text("")
    found = parse(f"before:tree={tmp_path},deterministic,FFA_COST_TABLES=none,FFA_JIT=", ["libffa"])
    assert found == ("before", f"tree={tmp_path},deterministic,FFA_COST_TABLES=none,FFA_JIT=", str(tmp_path), str(library), True,
                     {"FFA_COST_TABLES": "none", "FFA_JIT": ""})
    assert parse(f"other:library={library}").tree is None and parse("same:").library is None
    assert parse(f"a:tree={tmp_path},library={package}").library == str(package)
    for text, message in (("before", "not NAME: or NAME:KEY"), (":deterministic", "not NAME:"), ("a/b:", "not NAME:"),
                          ("fa4:", "none of libffa, fa4"), ("a:tree=", "'tree=' of variant 'a' is none of"),
                          ("a:deterministic=1", "'deterministic=1' of"), ("a:templates=t", "none of tree=DIR, library=FILE, deter"),
                          ("a:FFA_COST_TABLE=none", "FFA_BUNDLES=VALUE, FFA_CACHE_DIR=VALUE, FFA_COST_TABLES=VALUE, FFA_JIT=VALUE"),
                          ("a:library=/no/such", "variant 'a': there is no /no/such"),
                          (f"a:tree={library.parent}", f"there is no {library.parent}/python/libffa/__init__.py")):
        with pytest.raises(ValueError) as caught:
            parse(text, ["libffa", "fa4"])
        assert message in str(caught.value)
    library.unlink()
    with pytest.raises(ValueError, match="there is no .*libffa.so"):
        parse(f"a:tree={tmp_path}")


def test_builds(tmp_path, monkeypatch):
    library = tmp_path / "libffa.so"
    library.write_text("")
    assert attention_variants.build_of(str(library), str(tmp_path)) == dict(
        library=str(library), sha256="e3b0c44298fc1c149afbf4c8996fb924")
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # those of a hook that runs the tests
        monkeypatch.delenv(name)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(attention_variants.build_of(str(library), str(tmp_path))["commit"]) == 12
    (tmp_path / "copy").mkdir()  # in a checkout whose commit is not its own
    assert "commit" not in attention_variants.build_of(str(library), str(tmp_path / "copy"))


OPTIONS = ["--peers=", "--device=cpu", "--dtype=fp32", "--shapes=4:2/16", "--rounds=2", "--measure-ms=0", "--settle-ms=0",
           "--warm-ms=0"]
SHAPE = report.Shape(4, 2, 16, 16)


@pytest.fixture
def variant_of(monkeypatch, tmp_path):
    """Starts the process of a variant."""
    monkeypatch.setenv("LIBFFA_LIBRARY", library_path())
    monkeypatch.setenv("FFA_CACHE_DIR", str(tmp_path / "store"))
    return lambda text: attention_variants.VariantProcess(attention_variants.Variant.parse(text), compare.parser().parse_args(OPTIONS))


# A package that says with its version what its process was given, computes by the definition, and does with call number
# FAIL_AT as FFA_BUNDLES says. Gradients have other bits than the time before where they need not have the same.
STAND_IN = '''
import os
import torch as pytorch  # its own torch is the package's

class Mask:
    @staticmethod
    def from_slices(slices, seqlen_q, seqlen_k):
        mask = Mask()
        mask.cells = pytorch.zeros(seqlen_q, seqlen_k, dtype=pytorch.bool)
        for q_begin, q_end, k_begin, k_end, kind in slices:
            i = pytorch.arange(q_end - q_begin)[:, None]
            key = pytorch.arange(seqlen_k)
            low, high = k_begin + i * bool(kind & 2), k_end - (q_end - q_begin - 1 - i) * bool(kind & 1)
            mask.cells[q_begin:q_end] |= (key >= low) & (key < high)
        return mask

def version():
    return "|".join([os.environ["LIBFFA_LIBRARY"], os.environ["FFA_CACHE_DIR"], __file__])

def library_path():
    return os.environ["LIBFFA_LIBRARY"]
'''
STAND_IN_TORCH = '''
import os, time
import torch

FAIL_AT = 5
calls = 0

class Drift(torch.autograd.Function):
    """The gradient is a millionth off every second time."""

    backwards = 0

    @staticmethod
    def forward(context, x, is_same):
        context.is_same = is_same
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        Drift.backwards += 1
        return gradient * (1 if context.is_same else 1 + 1e-6 * (Drift.backwards % 2)), None

def attention(q, k, v, mask, *, deterministic=False):
    global calls
    calls += 1
    what = os.environ.get("FFA_BUNDLES") if calls >= FAIL_AT else None
    if what == "raise":
        raise MemoryError("no room\\nfor it")
    if what == "exit":
        os._exit(3)
    if what == "hang":
        time.sleep(600)
    is_same = deterministic and what != "drift"
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~mask.cells, -torch.inf).softmax(-1)
    return Drift.apply(torch.einsum("hqk,khd->qhd", weights, v), is_same)
'''


@pytest.fixture
def tree(tmp_path):
    """A checkout with that package."""
    package = tmp_path / "tree" / "python" / "libffa"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "torch.py").write_text(STAND_IN_TORCH)
    library = tmp_path / "tree" / "build" / "libffa.so"
    library.parent.mkdir()
    library.write_text("")
    return tmp_path / "tree"


def test_what_a_variant_is_given(variant_of, tree):
    with variant_of(f"before:tree={tree}") as process:
        assert process.version == f"{tree}/build/libffa.so|{tree.parent}/store/before|{tree}/python/libffa/__init__.py"
    with variant_of(f"b:tree={tree},library={tree}/python,FFA_CACHE_DIR=") as process:
        assert process.version == f"{tree}/python||{tree}/python/libffa/__init__.py"


@pytest.mark.parametrize("how, wrong", [("", False), ("deterministic", False), ("deterministic,FFA_BUNDLES=drift", True)])
def test_gradients_that_are_said_to_repeat(variant_of, tree, how, wrong):
    """Deterministic calls are asked for, and their gradients compared with one another."""
    torch_file = tree / "python" / "libffa" / "torch.py"
    torch_file.write_text(torch_file.read_text().replace("FAIL_AT = 5", "FAIL_AT = 1"))
    with variant_of(f"x:tree={tree},{how}") as process:
        found, left_out = process.try_to_prepare(case_of("causal:24"), SHAPE, ["forward", "backward"])
        assert left_out == {}
        assert ("repeated" in found.errors) == wrong


def test_a_variant_takes_turns(variant_of):
    with variant_of("ordered:deterministic") as process:
        assert process.failure is None and process.version
        for text in ("causal:24", "varlen-full:10,20"):
            found, left_out = process.try_to_prepare(case_of(text), SHAPE, ["forward", "backward"])
            assert left_out == {} and sorted(found.parts) == ["backward", "forward"] and set(found.cold) == set(report.COLD)
            assert set(found.errors) == {"out", "dq", "dk", "dv"} and max(found.errors.values()) < 1e-4
            turn = found.taker(None, "backward")(0, 0)
            assert turn.ms > 0 and turn.begin < turn.end <= turns.WallClock.now()
        with pytest.raises(turns.FailedElsewhere, match="KeyError: 'sideways'"):
            found.taker(None, "sideways")(0, 0)
        assert found.taker(None, "forward")(0, 0).ms > 0  # it goes on
        process.drop()
        with pytest.raises(turns.FailedElsewhere, match="no attribute 'calls'"):
            found.taker(None, "forward")(0, 0)
        process.process.kill()
        ended = "its process ended with status -9"
        with pytest.raises(attention_variants.Ended, match=ended):
            found.taker(None, "forward")(0, 0)
        assert process.try_to_prepare(case_of("causal:24"), SHAPE, ["forward"]) == (None, {"forward": f"fails: {ended}"})
        process.drop()
    assert not process.process.is_alive()


@pytest.mark.parametrize("what, reason", [("raise", "fails: MemoryError: no room"), ("exit", "fails: its process ended with status 3"),
                                          ("hang", "fails: its process gave no answer in 1 s")])
def test_a_variant_that_fails_in_a_turn(variant_of, tree, monkeypatch, what, reason):
    """The others go on, and so does the run."""
    with variant_of(f"before:tree={tree},FFA_BUNDLES={what}") as process:
        found, _ = process.try_to_prepare(case_of("causal:8"), SHAPE, ["forward"])
        assert found  # its first four calls
        if what == "hang":
            monkeypatch.setattr(attention_variants, "ANSWER_S", 1)
        process.try_to_prepare = lambda *_: (found, {})
        rows = rows_of([Peer("libffa", 1.0)], "--pass", "forward", variants={"before": process})
    assert [(row["system"], row["skipped"], row["variant"]) for row in rows if "skipped" in row] == [
        ("before", reason, f"tree={tree},FFA_BUNDLES={what}")]
    assert [row["system"] for row in rows if "tflops" in row] == ["libffa"]
    assert not process.process.is_alive()


def test_a_variant_that_does_not_load(variant_of, tmp_path):
    library = tmp_path / "libffa.so"
    library.write_text("no library")
    with variant_of(f"broken:library={library}") as process:
        assert process.version is None and "libffa.so was not found" in process.failure and str(library) in process.failure


class There:
    """Stands for a variant's process. A call takes `ms`, in each later round a tenth more; backward twice that."""

    def __init__(self, text, ms, errors=None):
        self.text, self.ms, self.errors, self.turns, self.dropped = text, ms, errors or {}, {}, 0

    def try_to_prepare(self, _case, _shape, parts):
        return attention_variants.PreparedThere(self, parts, {"import_s": 1.0}, self.errors), {}

    def turn(self, part, settle_ms, _measure_ms):
        later = self.turns.setdefault(part, 0)
        self.turns[part] += settle_ms > 0  # else the chip is warmed up
        return turns.Turn(self.ms * (2 if part == "backward" else 1) * (1 + 0.1 * later), 0.01, 0, 1)

    def drop(self):
        self.dropped += 1


def test_rows_of_variants():
    variants = {"before": There("tree=x", 1.25), "off": There("FFA_JIT=y", 0.1, {"out": 1.0, "dq": 0.0})}
    rows = rows_of([Peer("libffa", 1.0), Peer("fa4", 2.0)], "--pass", "forward,backward,both", variants=variants)
    figures = [row for row in rows if "tflops" in row and row["pass"] == "forward"]
    assert [row["system"] for row in figures] == ["libffa", "before", "off", "fa4"]
    assert pick(rows, "variant", system="before", **{"pass": "both"}) == ["tree=x"]
    assert variants["before"].dropped == 1
    ratios = [1 / 1.25, 1 / 1.375]
    for part in ("forward", "backward", "both"):
        # A variant is no peer, however fast.
        assert pick(rows, "to_best_peer", system="libffa", **{"pass": part}) == [2.0]
        assert pick(rows, "to_libffa", system="before", **{"pass": part}) == [pytest.approx(sum(ratios) / 2)]
        assert pick(rows, "to_libffa_spread", system="before", **{"pass": part}) == [pytest.approx(ratios[0] - ratios[1])]
        assert pick(rows, "wrong", system="off", **{"pass": part}) == [part != "backward"]
        assert len(pick(rows, "to_libffa", system="off", **{"pass": part})) == (part == "backward")
    assert not pick(rows, "to_libffa", system="fa4") and len(rows) == 4 + 3 * 4
    text = report.tables([dict(systems={}), *rows])
    assert "| mask | tokens | libffa | before | off | FlashAttention-4 | before / libffa | off / libffa | libffa / best peer |" in text
    assert "| docs | 30 | 0 ±0 % | 0 ±5 % | wrong | 0 ±0 % | 0.764 ±0.036 | - | 2.00 FlashAttention-4 |" in text
    assert "0.764 ±0.036 of libffa" in compare.line_of(next(row for row in figures if row["system"] == "before"))
    wrong = rows_of([Peer("libffa", 1.0, off=1.0)], variants={"before": There("tree=x", 1.25)})
    assert not pick(wrong, "to_libffa", system="before")


# ---- the command ----

def command(*arguments):
    program = os.path.join(BENCH, "bench_attention.py")
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True)


def test_a_run(tmp_path):
    masks, results = tmp_path / "masks.txt", tmp_path / "results.jsonl"
    masks.write_text("docs varlen-causal:20,30\nunion(full:20;causal:20)\n")
    done = command("--peers=", "--library", library_path(), "--mask-file", str(masks), "--device", "cpu",
                   "--dtype", "fp32", "--shapes", "4:2/16:8", "--rounds", "2", "--measure-ms", "0",
                   "--settle-ms", "0", "--warm-ms", "0", "--table", "--json", str(results), "--variant", "ordered:deterministic")
    assert done.returncode == 0, done.stderr
    first, *rows = report.read_results(str(results))
    assert first["device"] == "cpu" and list(first["systems"]) == ["libffa", "ordered"] and first["settings"]["caches"] == "new"
    assert first["builds"]["ordered"] == first["builds"]["libffa"] and first["builds"]["libffa"]["library"] == library_path()
    assert [(row["mask"], row["system"], row.get("pass")) for row in rows] == [
        (mask, system, part) for mask in ("docs", "union(full:20;causal:20)")
        for system, part in (("libffa", None), ("ordered", None), *((system, part) for part in ("forward", "backward")
                                                                    for system in ("libffa", "ordered")))]
    assert report.tables([first, *rows]) in done.stdout
    assert command("table", str(results)).stdout == report.tables([first, *rows]) + "\n"


@pytest.mark.parametrize("arguments, message", [
    (["--peers", "fa4,fa5"], "'fa5' is none of cudnn, cudnn-flex, fa3, fa4, flex, magi"),
    (["--peers=", "--shapes", "4:2/64,6:4/64"], "'6:4/64': 6 query heads are not a multiple of 4 kv heads"),
    (["--peers=", "--shapes", "64:8"], "'64:8' is not HQ:HKV/DIM or HQ:HKV/DIM:DIM_V"),
    (["--peers=", "--shapes", "64:0/128"], "'64:0/128' is not HQ"),
    (["--peers=", "--rounds", "0"], "is 0, not at least 1"),
    (["--peers=", "--seqlens", "777"], "no mask 'full_777'"),
    (["--peers=", "--mask-file", "no_such_file"], "no_such_file"),
    (["--peers=", "--pass", "sideways"], "'sideways' is none of"),
    (["--peers=", "--variant", "fa4:deterministic"], "--variant: 'fa4:deterministic' is not NAME: or NAME:KEY=VALUE,... with a NAME"),
    (["--peers=", "--variant", "a:", "--variant", "a:"], "none of libffa, cudnn, cudnn-flex, fa3, fa4, flex, magi, a"),
])
def test_options_that_are_wrong(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        compare.main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_a_variant_that_fails_is_said(tmp_path):
    library = tmp_path / "libffa.so"
    library.write_text("no library")
    done = command(*OPTIONS, "--library", library_path(), "--masks=full", "--seqlens=1024", "--pass=forward", "--no-check",
                   "--variant", f"broken:library={library}")
    assert done.returncode == 1 and "broken is left out: " in done.stdout and "TFLOP/s" in done.stdout


def test_tables_need_no_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('PyTorch was imported')")
    program, results = (os.path.join(BENCH, *path) for path in (["bench_attention.py"], ["results", "h200", "peers_192.jsonl"]))
    done = subprocess.run([sys.executable, program, "table", results], env=dict(os.environ, PYTHONPATH=str(tmp_path)),
                          capture_output=True, text=True)
    assert done.returncode == 0 and "| full | 4k |" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments, status, says", [
    ([], 2, "--peers NAMES [options]"), (["--variant", "a:"], 2, "--peers is missing"), (["--help"], 0, "--peers NAMES [options]")])
def test_what_it_is_for(arguments, status, says, capsys):
    assert bench_attention.main(arguments) == status
    said = capsys.readouterr()
    assert says in (said.err if status else said.out)
