# SPDX-License-Identifier: Apache-2.0
"""Tuning sessions from Python."""
import json
import os

import pytest

import libffa
from libffa import _abi
from libffa._library import call

import cases

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "tune")


def sessions(path, *names):
    """A file of sessions, made of what machines have exported."""
    for name in names:
        with open(os.path.join(DATA, name), "rb") as file:
            samples = file.read()
        call("ffa_tune_import", os.fsencode(path), samples, len(samples), None)
    return path


@pytest.mark.cpu_only
def test_tuned_reads_sessions(tmp_path):
    """Two machines' files give one table, in either order, and the numbers of the report are those of the info."""
    one, two = sessions(tmp_path / "one", "machine1.samples"), sessions(tmp_path / "two", "machine2.samples")
    both = libffa.tuned(one, two)
    assert both.digest == libffa.tuned(two, one).digest
    assert both.is_published and both.gain > both.noise > 0
    assert both.table["device"] == both.device == "made-up device"
    assert len(both.samples["sessions"]) == 2
    assert libffa.tuned(one).samples["sessions"] != both.samples["sessions"]
    json.dumps(both.report)


@pytest.mark.cpu_only
def test_refusals(tmp_path):
    with pytest.raises(libffa.InvalidError, match="there are 0 files of sessions"):
        libffa.tuned()
    with pytest.raises(libffa.NotFoundError):
        libffa.tuned(tmp_path / "none")
    with pytest.raises(libffa.InvalidError, match="nonsense"):
        libffa.tune("nonsense", tmp_path / "none")
    assert not os.path.exists(tmp_path / "none")


def test_a_session(tmp_path):
    """A whole session, and one that goes on: nothing is measured twice."""
    if not cases.IS_GPU:
        pytest.skip("needs a GPU, or the emulator")
    seen = []
    spec = "head_dim=64,dtype=bf16,heads=2:1"
    options = dict(masks=["causal:64", "full:100"], tiles=["64x64", "128x128"])
    found = libffa.tune(spec, tmp_path / "s", progress=lambda *event: seen.append(event), **options)
    assert [phase for phase in dict.fromkeys(event[0] for event in seen)] == ["compile", "check", "race"]
    assert any(message == "64x64 checked" for _, _, _, message in seen)
    assert {kernel["state"] for kernel in found.samples["sessions"][0]["configurations"]} == {"checked"}
    with pytest.raises(libffa.InvalidError, match="resume it"):
        libffa.tune(spec, tmp_path / "s", **options)
    assert libffa.tune(spec, tmp_path / "s", resume=True, **options).samples == found.samples
    with pytest.raises(libffa.InvalidError, match="7x7"):
        libffa.tune(spec, tmp_path / "other", tiles=["7x7"])


def test_a_backward_session(tmp_path):
    """The orders of a backward pass, alone, and named as `ffa tune show` names them."""
    if not cases.IS_GPU:
        pytest.skip("needs a GPU, or the emulator")
    seen = []
    found = libffa.tune("head_dim=64,dtype=bf16,heads=2:1,backward", tmp_path / "s", masks=["causal:140"], backward_only=True,
                        budget=5, progress=lambda *event: seen.append(event))
    messages = {message for _, _, _, message in seen}
    assert {"1x1 checked", "2x4 checked", "1x2u checked"} <= messages
    assert [session["backward_tile_m"] > 0 for session in found.samples["sessions"]] == [True]
    with pytest.raises(libffa.InvalidError, match="backward"):
        libffa.tune("head_dim=64,dtype=bf16,heads=2:1", tmp_path / "other", backward_only=True)
