# SPDX-License-Identifier: Apache-2.0
"""The training example and those of frameworks, some steps of each on the CPU."""
import importlib.util
import json
import pathlib
import re
import runpy
import sys
import xml.etree.ElementTree as xml

import pytest

torch = pytest.importorskip("torch")
from launch import launch  # noqa: E402

pytestmark = pytest.mark.cpu_only
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
TINY = ("--size", "tiny", "--tokens", "384", "--steps", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script in this process, and get what it printed."""

    def run_(script, *arguments):
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(script.parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            assert not end.code, capsys.readouterr()
        return capsys.readouterr().out

    return run_


def losses(text):
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", text)]


def test_parity_with_sdpa(run, tmp_path):
    out = tmp_path / "losses.jsonl"
    printed = run(EXAMPLES / "train" / "train.py", "--attention", "sdpa,libffa", "--parity", 1e-4, "--out", out, *TINY)
    assert "losses differ by" in printed
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["attention"] for line in lines if line.get("summary")] == ["sdpa", "libffa"]
    curves = [line["loss"] for line in lines if "loss" in line]
    assert len(curves) == 8 and curves[:4] == pytest.approx(curves[4:], abs=1e-4)

    picture = xml.fromstring(run(EXAMPLES / "train" / "plot.py", out))
    names = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sdpa", "libffa"} <= set(names)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
    assert run(EXAMPLES / "train" / "plot.py", "--table", out).count("\n") == 4


def test_a_difference_fails(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--attention", "sdpa,libffa", "--parity", "-1", *TINY])
    monkeypatch.syspath_prepend(str(EXAMPLES / "train"))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLES / "train" / "train.py"), run_name="__main__")
    assert end.value.code


def test_documents_do_not_meet(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "train"))
    import text

    first, again = (next(text.batches(2000, 3)) for _ in range(2))
    assert torch.equal(first.ids, again.ids)
    begins = first.cu_seqlens[:-1].long()
    assert not first.positions[begins].any() and (first.positions == 0).sum() == len(begins)
    assert (first.labels[first.cu_seqlens[1:].long() - 1] == -100).all()
    inside = first.labels != -100
    assert torch.equal(first.labels[inside], first.ids.roll(-1)[inside])


def test_in_parallel(run):
    """Two ranks, by each way to be parallel, have the losses of one."""
    runs = [(EXAMPLES / "train" / "train.py", ("--attention", "libffa", *TINY), ("--context-parallel", 2, "--fsdp"))]
    if importlib.util.find_spec("transformers"):
        options = ("--steps", 2, "--device", "cpu")
        runs.append((EXAMPLES / "nemo_automodel.py", options, ("--context-parallel", 2)))
        runs.append((EXAMPLES / "veomni.py", options, ("--ulysses", 2)))
    commands = [json.dumps([str(script), *map(str, options + more)]) for script, options, more in runs]
    parallel = launch(HERE / "scripts.py", *commands)[0]
    alone = "".join(run(script, *options) for script, options, _ in runs)
    assert len(losses(alone)) == 4 + 2 * (len(runs) - 1)
    assert losses(parallel) == pytest.approx(losses(alone), abs=2e-4)
