# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package. pytest --device cpu (or cuda, or emulated); LIBFFA_LIBRARY names a library that is not in
the package."""
import runpy
import sys

import pytest
import torch

import cases
import emulated


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda", "emulated"))


@pytest.fixture(scope="session")
def device(request):
    name = request.config.getoption("--device")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device("cuda" if name == "cuda" else "cpu")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


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


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu_only: of nothing on a device")
    if config.getoption("--device") == "emulated":
        emulated.use()
        cases.IS_EMULATED = True
    cases.IS_GPU = config.getoption("--device") != "cpu"


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cpu":
        return
    for item in items:
        if item.get_closest_marker("cpu_only"):
            item.add_marker(pytest.mark.skip(reason="runs with --device cpu"))
