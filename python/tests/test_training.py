# SPDX-License-Identifier: Apache-2.0
"""The training example and those of frameworks, some steps of each on the CPU."""
import json
import pathlib
import re
import runpy
import sys
import xml.etree.ElementTree as xml

import pytest

torch = pytest.importorskip("torch")
import peers  # noqa: E402
from launch import launch  # noqa: E402

pytestmark = pytest.mark.cpu_only
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TINY = ("--size", "tiny", "--tokens", "384", "--steps", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def test_parity_with_flash_attention_4(run, monkeypatch):
    """By what stands for its package: the arguments are those that it documents."""
    for name, module in peers.flash_attention_4().items():
        monkeypatch.setitem(sys.modules, name, module)
    run(EXAMPLES / "train" / "train.py", "--attention", "sdpa,fa4", "--parity", 1e-4, *TINY)


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


@pytest.mark.parametrize("name, options, parallel", [
    ("train/train.py", ("--attention", "libffa", *TINY), ("--context-parallel", 2, "--fsdp")),
    ("nemo_automodel.py", ("--steps", 2, "--device", "cpu"), ("--context-parallel", 2)),
    ("veomni.py", ("--steps", 2, "--device", "cpu"), ("--ulysses", 2)),
])
def test_in_parallel(run, name, options, parallel):
    """Two ranks have the losses of one."""
    if not name.startswith("train/"):
        pytest.importorskip("transformers")
    together = losses(launch(EXAMPLES / name, *options, *parallel)[0])
    assert len(together) > 1 and together == pytest.approx(losses(run(EXAMPLES / name, *options)), abs=2e-4)


@pytest.mark.parametrize("name, options", [
    ("train/train.py", ("--attention", "libffa", "--context-parallel", 2)), ("nemo_automodel.py", ("--context-parallel", 2)),
    ("veomni.py", ("--ulysses", 2)), ("veomni.py", ("--context-parallel", 2))])
def test_parallel_without_a_launcher(name, options, monkeypatch):
    """One process does not share its rows with others."""
    if not name.startswith("train/"):
        pytest.importorskip("transformers")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(sys, "argv", [name, "--steps", "1", "--device", "cpu", *map(str, options)])
    monkeypatch.syspath_prepend(str((EXAMPLES / name).parent))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search("needs? torchrun", str(end.value))


@pytest.mark.parametrize("name, options, words", [
    ("nemo_automodel.py", ("--context-parallel", 3), "does not divide 2 ranks"), ("veomni.py", ("--ulysses", 1), "is not 2 ranks")])
def test_parallel_of_another_number_of_ranks(name, options, words):
    pytest.importorskip("transformers")
    with pytest.raises(AssertionError, match=words):
        launch(EXAMPLES / name, "--steps", 1, "--device", "cpu", *options)
