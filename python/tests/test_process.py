# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, other processes, Ctrl-C, and the command lines."""
import itertools
import logging
import operator
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import libffa
from libffa import Mask
from libffa.torch import attention
from cases import MASKS, close, dense, dtypes, reference, tensors


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=300)


def test_threads(device):
    """Threads that plan, call and differentiate the same and different masks at once."""
    dtype, failed = dtypes(device)[0], []

    def work(number):
        try:
            for n in range(12):
                mask = Mask.window(48, 1 + (n + number) % 5, 0)
                q, k, v = tensors(device, dtype, mask)
                have = attention(q, k, v, mask)
                want = reference(q, k, v, dense(mask, device))[0]
                close(have, want, dtype)
                dout = torch.randn_like(want)
                for a, b in zip(torch.autograd.grad(have, (q, k), dout.to(dtype)), torch.autograd.grad(want, (q, k), dout)):
                    close(a, b, dtype)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


class _Packed(torch.utils.data.Dataset):
    """Makes masks, and attends, in the workers of a DataLoader."""

    def __len__(self):
        return 4

    def __getitem__(self, n):
        mask = Mask.from_cu_seqlens([0, 8 + n, 48], causal=True)
        torch.manual_seed(n)
        q, k, v = tensors(torch.device("cpu"), torch.float32, mask, grad=False)
        return mask, (q, k, v), attention(q, k, v, mask)


@pytest.mark.cpu_only
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start):
    """Masks come from workers by pickle; the parent has used the library before."""
    q, k, v = tensors(torch.device("cpu"), torch.float32, MASKS["causal"](), grad=False)
    attention(q, k, v, MASKS["causal"]())
    loader = torch.utils.data.DataLoader(_Packed(), batch_size=None, num_workers=2 if start == "fork" else 1,
                                         multiprocessing_context=start)
    for n, (mask, (q, k, v), out) in enumerate(loader):
        assert mask == Mask.from_cu_seqlens([0, 8 + n, 48], causal=True)
        assert torch.equal(out, attention(q, k, v, mask))


def _attends_in_a_child(x):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # which ends it
        os._exit(0 if torch.isfinite(attention(x, x, x, Mask.causal(x.shape[1]))).all() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.cpu_only
def test_fork_while_another_thread_plans():
    """The child's locks are its own. (Those of PyTorch's random numbers are not: inputs are made before.)"""
    stop = threading.Event()
    inputs = [torch.randn(1, 16 + n, 1, 8) for n in range(7)]

    def plan():
        for x in itertools.cycle(inputs):
            if stop.is_set():
                return
            attention(x, x, x, Mask.causal(x.shape[1]))
            libffa.torch.clear()

    thread = threading.Thread(target=plan)
    thread.start()
    try:
        assert all(_attends_in_a_child(torch.ones(1, 8, 1, 8)) for _ in range(5))
    finally:
        stop.set()
        thread.join()


@pytest.mark.cpu_only
@pytest.mark.parametrize("lock", ["mask.registry.lock", "context._lock", "torch._runtime.cache.lock"])
def test_fork_while_another_thread_holds_a_lock(lock, monkeypatch):
    """The child needs each of them: its mask is a new one, and no kernel and no context is there before."""
    libffa.torch.clear()
    monkeypatch.setattr(libffa.context, "_shared", {})
    held, stop = threading.Event(), threading.Event()

    def hold():
        with operator.attrgetter(lock)(libffa):
            held.set()
            stop.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60) and _attends_in_a_child(torch.ones(1, 9, 1, 8))
    finally:
        stop.set()
        thread.join()


@pytest.mark.cpu_only
def test_a_mask_crosses_processes():
    code = "import pickle, sys; m = pickle.load(open(sys.argv[1], 'rb')); print(m, m.slices())"
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        pickle.dump(MASKS["packed"](), file)
        file.flush()
        done = subprocess.run([sys.executable, "-c", code, file.name], capture_output=True, text=True, check=True)
    assert "area 469" in done.stdout and "torch" not in done.stderr


@pytest.mark.cpu_only
def test_the_core_needs_no_framework():
    done = python("import sys, libffa; libffa.Mask.causal(8).show(); assert 'torch' not in sys.modules and 'numpy' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.cpu_only
def test_a_missing_library_is_a_sentence():
    done = python("import libffa", LIBFFA_LIBRARY="/nowhere/libffa.so")
    assert "ImportError: libffa.so was not found: /nowhere/libffa.so" in done.stderr


@pytest.mark.cpu_only
def test_doctor(tmp_path):
    done = subprocess.run([sys.executable, "-m", "libffa", "doctor"], env={**os.environ, "FFA_CACHE_DIR": str(tmp_path)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert libffa.library_path() in done.stdout and f"{tmp_path}/kernels.ffadb" in done.stdout
    assert subprocess.run([sys.executable, "-m", "libffa", "docter"], capture_output=True).returncode == 2


def _has_nvrtc():
    from libffa.__main__ import _versions

    return bool(_versions().nvrtc_path)


def _requests(*what):
    return libffa._warm._Requests(libffa.context.Context(libffa.context.CPU), what, None).items


@pytest.mark.cpu_only
def test_warm(tmp_path, monkeypatch):
    monkeypatch.setenv("FFA_CACHE_DIR", str(tmp_path))
    kernel = ("attention_forward", {"head_dim": 63, "dtype": "bf16"})
    with pytest.raises(ValueError, match="head_dim is 63"):
        libffa.warm([kernel])
    with pytest.raises(ValueError, match="bf17"):
        libffa.warm("head_dim=64,dtype=bf17")
    requests = _requests("head_dim=64,dtype=bf16,backward", ("attention_forward", {"head_dim": 64}))
    assert {r.template_name for r in requests} >= {b"attention_forward", b"attention_backward"}
    # What any cost table's device may want: an H100's tiles of 256 columns, too.
    spec = "head_dim=256,dtype=bf16,heads=32:4"
    monkeypatch.setenv("FFA_COST_TABLES", "none")
    alone = len(_requests(spec))
    monkeypatch.setenv("FFA_COST_TABLES", str(Path(__file__).parents[2] / "cache" / "cost-tables"))
    assert len(_requests(spec)) > alone
    if not _has_nvrtc():
        pytest.skip("no NVRTC")
    kernel[1]["head_dim"], told = 64, []
    first = libffa.warm([kernel], progress=lambda *t: told.append(t))
    assert (first.requested, first.compiled, first.found) == (1, 1, 0) and told == [(1, 1, "")]
    assert libffa.warm([kernel]).found == 1


@pytest.mark.cpu_only
def test_ctrl_c_ends_a_warm_up(tmp_path):
    if not _has_nvrtc():
        pytest.skip("no NVRTC")
    code = ("import libffa\ntry:\n"
            "  libffa.warm([('attention_forward', {'head_dim': d, 'dtype': t}) for d in (64, 96, 128, 192, 256) for t in ('bf16', 'fp16')],\n"
            "              threads=1, progress=lambda *t: print('one', flush=True))\nexcept KeyboardInterrupt:\n  print('ended')\n")
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "FFA_CACHE_DIR": str(tmp_path)},
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "one\n"
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=200)
    assert rest.endswith("ended\n") and child.returncode == 0 and rest.count("one") < 9, time.monotonic() - begin


@pytest.mark.cpu_only
def test_log_lines_reach_the_logger(caplog):
    from libffa.context import _log

    with caplog.at_level(logging.WARNING, logger="libffa"):
        _log(None, 1, b"cache", b"event=odd")
        _log(None, 2, b"cache", b"event=fine")
    assert [r.getMessage() for r in caplog.records] == ["cache: event=odd"]
