# SPDX-License-Identifier: Apache-2.0
"""The training example on a GPU, some steps: losses of bf16 runs agree within what two of them differ by."""
import pathlib

import pytest

TRAIN = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train" / "train.py"
STEPS = ("--size", "small", "--tokens", "2048", "--steps", "6", "--parity", "0.02")


@pytest.fixture(autouse=True)
def gpu(device):
    if device.type != "cuda":
        pytest.skip("kernels of bf16 need a GPU")


def test_parity_with_sdpa(run):
    run(TRAIN, "--attention", "sdpa,libffa", *STEPS)


def test_parity_with_flash_attention_4(run):
    pytest.importorskip("flash_attn.cute")
    run(TRAIN, "--attention", "fa4,libffa", *STEPS)
