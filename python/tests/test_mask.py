# SPDX-License-Identifier: Apache-2.0
"""Masks: every way to make one, facts, errors, pickles."""
import ctypes
import pickle

import numpy as np
import pytest
import torch

import libffa
from libffa import Mask
from cases import MASKS, dense

pytestmark = pytest.mark.cpu_only
CU = [0, 20, 41, 48]


@pytest.mark.parametrize("make", [
    list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32), lambda x: np.array(x, dtype=np.int32),
    lambda x: torch.tensor([x, x]).T[:, 0], lambda x: np.array([x, x]).T[:, 0]])
def test_cu_seqlens_of_any_kind(make):
    assert Mask.from_cu_seqlens(make(CU), causal=True) == Mask.from_cu_seqlens(CU, causal=True)
    assert Mask.from_cu_seqlens(make(CU), make(CU)) == Mask.from_cu_seqlens(CU)


@pytest.mark.parametrize("name", MASKS)
def test_what_is_made_is_what_is_read_back(name):
    mask = MASKS[name]()
    cells = dense(mask)
    assert mask.area == int(cells.sum())
    again = Mask.from_dense(cells)
    assert torch.equal(dense(again), cells)
    assert Mask.from_dense(cells.numpy()) == again
    assert Mask.from_json(mask.to_json()) == mask
    assert Mask.from_slices(mask.slices(), mask.seqlen_q, mask.seqlen_k) == mask


def test_families():
    i, j = torch.arange(48)[:, None], torch.arange(48)[None]
    assert torch.equal(dense(Mask.window(48, 5, 2)), (j >= i - 5) & (j <= i + 2))
    assert torch.equal(dense(Mask.block_causal(48, 16)), i // 16 >= j // 16)
    document = torch.bucketize(torch.arange(48), torch.tensor(CU[1:]), right=True)
    same = document[:, None] == document[None]
    assert torch.equal(dense(Mask.from_cu_seqlens(CU, causal=True, window=(3, -1))), same & (j <= i) & (j >= i - 3))
    begin = torch.tensor(CU)[document]
    assert torch.equal(dense(Mask.from_cu_seqlens(CU, window=(3, 0), global_keys=2)),
                       same & (j <= i) & ((j >= i - 3) | (j < begin[:, None] + 2)))
    assert torch.equal(dense(Mask.shared_prefix(CU)), (same | (document == 0)[None]) & (i >= j))


def test_documents_without_tokens():
    mask = Mask.from_cu_seqlens([0, 0, 20, 20, 41, 48, 48], causal=True)
    assert mask == Mask.from_cu_seqlens(CU, causal=True)
    keys = Mask.from_cu_seqlens([0, 3, 8], [0, 0, 9], causal=True)  # the first one has rows, and no keys
    assert keys.slices() == [(3, 8, 0, 9, "causal")]


def test_numbers_of_any_kind():
    for eight in (np.int64(8), torch.tensor(8)):
        assert Mask.full(eight) == Mask.full(8) and Mask.block_causal(eight, eight) == Mask.block_causal(8, 8)
        assert Mask.window(eight, eight, 0) == Mask.causal(8)
    assert Mask.from_cu_seqlens(CU, window=np.array([3, 0])) == Mask.from_cu_seqlens(CU, window=(3, 0))
    for one in (np.int64(1), torch.tensor(1)):
        assert Mask.from_ranges([[0, 8]], [[0, 8]], one, 8) == Mask.causal(8)
    assert Mask.concat(Mask.full(4) for _ in range(2)) == Mask.concat([Mask.full(4)] * 2)
    assert Mask.per_head(Mask.full(4) for _ in range(2)).heads == 2


def test_ranges_of_magi_attention():
    mask = Mask.from_ranges(torch.tensor([[0, 10], [10, 48]]), [[0, 10], [0, 48]], [0, 1], 48)
    assert mask == Mask.from_slices([(0, 10, 0, 10, "full"), (10, 48, 0, 48, "causal")], 48)


def test_masks_from_masks():
    a, b = Mask.causal(10), Mask.full(20)
    both = Mask.concat([a, b])
    assert torch.equal(dense(both), torch.block_diag(dense(a).int(), dense(b).int()).bool())
    assert torch.equal(dense(both.crop((5, 30), (0, 30))), dense(both)[5:])
    assert torch.equal(dense(Mask.full(10) | a), dense(Mask.full(10)))
    assert a.shift(0, 2, 10, 12).area == a.area
    heads = Mask.per_head([a, Mask.full(10)])
    assert heads.heads == 2 and heads.area == a.area + 100
    assert pickle.loads(pickle.dumps(heads)) == heads
    assert heads.repeat_heads(2).slices(3) == Mask.full(10).slices()


def test_block_mask():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    document = torch.repeat_interleave(torch.arange(3), torch.tensor([100, 150, 50]))
    made = flex.create_block_mask(lambda b, h, q, k: (q >= k) & (document[q] == document[k]), 2, None, 300, 300, device="cpu")
    one = Mask.from_cu_seqlens([0, 100, 250, 300], causal=True)
    assert torch.equal(dense(Mask.from_block_mask(made)), dense(Mask.concat([one, one])))


@pytest.mark.parametrize("samples, heads", [(2, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("block", [32, (64, 32)])
def test_a_block_mask_of_samples_and_heads(samples, heads, block):
    """Each sample, and each head, has a mask of its own."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def visible(b, h, q, k):
        return (q >= k) & (q - k < 20 * (1 + b) + 30 * h)

    mask = Mask.from_block_mask(flex.create_block_mask(visible, samples, heads, 100, 70, device="cpu", BLOCK_SIZE=block))
    assert mask.heads == heads
    i, j = torch.arange(100)[:, None], torch.arange(70)[None]
    for head in range(heads):
        assert torch.equal(dense(mask, head=head), torch.block_diag(*(visible(b, head, i, j) for b in range(samples))).bool())


def test_an_exception_in_a_mask_mod_comes_out():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    made = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")

    def broken(b, h, q, k):
        raise KeyError("broken")

    made.mask_mod = broken
    with pytest.raises(KeyError, match="broken"):
        Mask.from_block_mask(made)


def test_pictures():
    mask = Mask.from_cu_seqlens(CU, causal=True)
    assert mask.show(24).count("\n") == 12
    assert mask._repr_svg_().startswith("<svg")
    assert repr(mask) == "Mask(48 x 48 tokens, area 469)"
    assert mask.check()["empty_rows"] == 0


def test_equality_hash_and_pickle():
    a, b = Mask.from_cu_seqlens(CU, causal=True), Mask.from_cu_seqlens(torch.tensor(CU), causal=True)
    assert a == b and hash(a) == hash(b) and a.id == b.id and a != Mask.full(48) and a != 3
    again = pickle.loads(pickle.dumps(a))
    assert again == a and again.id == a.id and again.slices() == a.slices()


@pytest.mark.parametrize("call, words", [
    (lambda: Mask.from_cu_seqlens([0, 20, 10]), "cu_q[2] is 10"),
    (lambda: Mask.from_cu_seqlens([0, 20], [0, 10, 20]), "cu_seqlens_k: 3 elements"),
    (lambda: Mask.from_cu_seqlens(7), "cu_seqlens_q"),
    (lambda: Mask.from_cu_seqlens(torch.tensor([0.0, 1.0])), "float32"),
    (lambda: Mask.from_slices([(0, 4, 0, 4, "causl")], 4), "'causl'"),
    (lambda: Mask.from_slices([(0, 5, 0, 4, "full")], 4), "slice 0: q_end"),
    (lambda: Mask.from_slices([(0, 5, 0, 4)], 4), "slices"),
    (lambda: Mask.full(0), "seqlen_q"),
    (lambda: Mask.from_dense(torch.ones(4, 4)), "float32"),
    (lambda: Mask.parse("causl:7"), "causl"),
    (lambda: Mask.full(4).slices(1), "head"),
    (lambda: Mask.per_head([]), "masks"),
    (lambda: Mask.from_cu_seqlens(None), "cu_seqlens_q: NoneType"),
    (lambda: Mask.from_cu_seqlens([0, -3, 5]), "cu_q[1] is -3"),
    (lambda: Mask.from_cu_seqlens([0, 2**64 + 5]), "cu_seqlens_q"),
    (lambda: Mask.from_cu_seqlens([0, 3.0]), "cu_seqlens_q: 'float'"),
    (lambda: Mask.from_cu_seqlens(torch.tensor([0, 3], dtype=torch.int16)), "int16, not int32 or int64"),
    (lambda: Mask.from_cu_seqlens([0, 8], window=3), "window: 3 is not a pair"),
    (lambda: Mask.from_cu_seqlens([0, 8], window=(2**64 + 1, 0)), "window"),
    (lambda: Mask.from_cu_seqlens([0, 8], window=(1, 0), global_keys="2"), "global_keys"),
    (lambda: Mask.full(8.0), "seqlen_q: 'float'"),
    (lambda: Mask.full(2**64 + 8), "seqlen_q"),
    (lambda: Mask.causal(8, 2**64 + 8), "seqlen_k"),
    (lambda: Mask.window(8, left=None), "left"),
    (lambda: Mask.block_causal(8, 2.0), "block"),
    (lambda: Mask.from_slices([(0, 4, 0, 4, 2**32)], 4), "slices[0]: type is 4294967296"),
    (lambda: Mask.from_slices([(2**64, 2**64 + 4, 0, 4, 0)], 4), "slices[0]"),
    (lambda: Mask.from_slices([(0, 4, 0, 4, None)], 4), "slices[0]"),
    (lambda: Mask.from_slices(np.array([0, 4, 0, 4, 1]), 4), "slices: [n, 5]"),
    (lambda: Mask.from_ranges([0, 4], [0, 4], 1, 4), "q_ranges: [n, 2]"),
    (lambda: Mask.from_dense([[0, 256], [0, 1]]), "cells"),
    (lambda: Mask.from_dense(torch.ones(4, 4, dtype=torch.int32)), "cells: integers, not booleans"),
    (lambda: Mask.from_dense(torch.ones(1, 1, 4, 4, dtype=torch.bool)), "cells: [1, 1, 4, 4]"),
    (lambda: Mask.from_block_mask(3), "block_mask: int"),
    (lambda: Mask.full(4).crop(2, (0, 4)), "q: 2 is not a pair"),
    (lambda: Mask.full(4).shift(0.5, 0), "q: 'float'"),
    (lambda: Mask.concat([Mask.full(4), 3]), "masks[1]: int"),
    (lambda: Mask.per_head([3]), "masks[0]: int"),
    (lambda: Mask.parse(b"full:4"), "words: bytes"),
    (lambda: Mask.parse("full:4\0,7"), "words: a NUL"),
    (lambda: Mask.from_json({}), "words: dict"),
])
def test_errors_are_sentences(call, words):
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        call()
    assert words in str(caught.value)


def test_every_status_has_its_class():
    from libffa import _abi, errors

    for name, base in (("INVALID", ValueError), ("NOMEM", MemoryError), ("TIMEOUT", TimeoutError), ("IO", OSError)):
        error = _abi.ffa_error(getattr(_abi, "FFA_" + name), 7, b"a sentence")
        made = errors.from_error(error)
        assert isinstance(made, base) and isinstance(made, libffa.FfaError)
        assert str(made) == "a sentence" and made.native == 7 and made.status == error.status
    assert len(errors._CLASSES) == 11
    assert ctypes.sizeof(_abi.ffa_error) == 504


def test_masks_outlive_their_objects_for_compiled_graphs():
    from libffa.mask import registry

    number = Mask.full(77).id
    assert registry.get(number).seqlen_q == 77
    for n in range(registry.MASKS + 1):
        Mask.full(1000 + n)
    with pytest.raises(LookupError, match="keep the Mask"):
        registry.get(number)
