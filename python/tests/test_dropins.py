# SPDX-License-Identifier: Apache-2.0
"""Functions with the signatures that people have: flash-attn's, FlexAttention's, transformers'."""
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import libffa  # noqa: E402
import libffa.torch  # noqa: E402
from libffa import flash_attn, flex_attention  # noqa: E402

pytestmark = pytest.mark.cpu_only
CU = [0, 37, 38, 96]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def dense(cu_q, cu_k, causal, window):
    """flash-attn's definition of a varlen mask, cell by cell."""
    cells = torch.zeros(cu_q[-1], cu_k[-1], dtype=torch.bool)
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        i, j = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0), torch.arange(k1 - k0)
        left, right = window
        part = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        part &= (j <= i) if causal else part
        part &= (j >= i - left) if left >= 0 else part
        part &= (j <= i + right) if right >= 0 else part
        cells[q0:q1, k0:k1] = part
    return cells


def sdpa(q, k, v, cells, scale=None):
    """Of [tokens, heads, head_dim]; rows without keys are 0."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=cells, scale=scale, enable_gqa=True)[0].transpose(0, 1)
    return out.masked_fill(~cells.any(1)[:, None, None], 0.0)


def same(found, wanted, tolerance=2e-5):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (9, 4)])
def test_flash_attn_varlen(causal, window):
    cu_k = [0, 40, 44, 110]
    q, k, v = draw(96, 4, 16), draw(110, 2, 16, seed=1), draw(110, 2, 16, seed=2)
    cu_q_, cu_k_ = torch.tensor(CU, dtype=torch.int32), torch.tensor(cu_k, dtype=torch.int32)
    out = flash_attn.flash_attn_varlen_func(q, k, v, cu_q_, cu_k_, 58, 66, causal=causal, window_size=window, softmax_scale=0.3)
    wanted = sdpa(q, k, v, dense(CU, cu_k, causal, window), scale=0.3)
    same(out, wanted)
    weights = draw(96, 4, 16, seed=3).detach()
    for one, other in zip(torch.autograd.grad((out * weights).sum(), (q, k, v)),
                          torch.autograd.grad((wanted * weights).sum(), (q, k, v))):
        same(one, other)


def test_flash_attn_makes_the_calls_that_attention_prepared():
    """Of a mask that is equal: it costs the host what attention() does, and what finding the mask takes."""
    q, k, v = draw(96, 4, 16), draw(96, 2, 16, seed=1), draw(96, 2, 16, seed=2)
    mask, cu = libffa.Mask.from_cu_seqlens(CU, causal=True), torch.tensor(CU, dtype=torch.int32)
    calls = libffa.torch._calls._prepared

    def results(function):
        with torch.no_grad():
            plain = function()
        return plain, *torch.autograd.grad(function().sum(), (q, k, v))

    libffa.torch.clear()
    wanted = results(lambda: libffa.torch.attention(q, k, v, mask))
    prepared = dict(calls)
    assert len(prepared) == 3
    found = results(lambda: flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 58, 58, causal=True))
    assert calls == prepared and all(map(torch.equal, found, wanted))


def test_flash_attn_takes_a_batch_once(monkeypatch):
    made = []
    monkeypatch.setattr(flash_attn.Mask, "from_cu_seqlens",
                        lambda *a, _real=libffa.Mask.from_cu_seqlens, **k: made.append(1) or _real(*a, **k))
    q, k, v = draw(96, 2, 16), draw(96, 2, 16), draw(96, 2, 16)
    cu = torch.tensor(CU, dtype=torch.int32)
    first = flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 58, 58, causal=True)
    flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 58, 58, causal=True)
    assert len(made) == 1
    cu[1] = 20  # another batch in the same tensor
    other = flash_attn.flash_attn_varlen_func(q, k, v, cu, cu, 58, 58, causal=True)
    assert len(made) == 2 and not torch.equal(first, other)


def test_flash_attn_rows_behind_the_last_document():
    q = draw(100, 2, 16)
    cu = torch.tensor([0, 96], dtype=torch.int32)
    out, lse, none = flash_attn.flash_attn_varlen_func(q, q, q, cu, cu, causal=True, return_attn_probs=True)
    assert lse.shape == (2, 100) and none is None and not out[96:].any()
    same(out[:96], flash_attn.flash_attn_func(q[None, :96], q[None, :96], q[None, :96], causal=True)[0])


@pytest.mark.parametrize("change, kind, words", [
    ({"cu_seqlens_q": [0, 8]}, TypeError, "cu_seqlens_q: list"), ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k: NoneType"),
    ({"q": draw(7, 1, 8)}, ValueError, "cu_seqlens_q: ends at 8, q has 7 tokens"),
    ({"k": draw(7, 1, 8)}, ValueError, "cu_seqlens_k: ends at 8, k has 7 tokens"),
    ({"q": draw(1, 8, 1, 8)}, ValueError, "q has 1 tokens"),
    ({"window_size": None}, TypeError, "window_size: None"), ({"window_size": (None, 0)}, TypeError, "window"),
    ({"softcap": None}, TypeError, "softcap")])
def test_flash_attn_names_what_is_wrong(change, kind, words):
    q, cu = draw(8, 1, 8), torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(kind) as caught:
        flash_attn.flash_attn_varlen_func(**{"q": q, "k": q, "v": q, "cu_seqlens_q": cu, "cu_seqlens_k": cu} | change)
    assert words in str(caught.value)


def test_flash_attn_func_takes_four_dimensions():
    q = draw(2, 2, 8)  # of 2 tokens and 2 heads, which might be taken for each other
    with pytest.raises(ValueError, match="q: 3 dimensions"):
        flash_attn.flash_attn_func(q, q, q)


def test_flash_attn_windows_of_any_kind():
    q, cu = draw(8, 1, 8), torch.tensor([0, 8], dtype=torch.int64)
    want = flash_attn.flash_attn_varlen_func(q, q, q, cu, cu, window_size=(2, 0))
    assert torch.equal(flash_attn.flash_attn_varlen_func(q, q, q, cu, cu, window_size=[2, 0]), want)
    assert torch.equal(flash_attn.flash_attn_func(q[None], q[None], q[None], window_size=[2, 0])[0], want)


def test_flash_attn_refuses():
    q, cu = draw(8, 1, 8), torch.tensor([0, 8], dtype=torch.int32)
    for options in ({"dropout_p": 0.1}, {"alibi_slopes": q}, {"block_table": cu}):
        with pytest.raises(libffa.UnsupportedError, match=next(iter(options))):
            flash_attn.flash_attn_varlen_func(q, q, q, cu, cu, 8, 8, **options)


def test_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(CU).diff())

    def mask_mod(b, h, i, j):
        return (documents[i] == documents[j]) & (i >= j)

    block_mask = flex.create_block_mask(mask_mod, None, None, 96, 96, device="cpu", BLOCK_SIZE=32)
    q, k, v = draw(2, 4, 96, 16), draw(2, 2, 96, 16, seed=1), draw(2, 2, 96, 16, seed=2)
    out, lse = flex_attention.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True, return_lse=True)
    cells = dense(CU, CU, True, (-1, -1))
    same(out, F.scaled_dot_product_attention(q, k, v, attn_mask=cells, enable_gqa=True))
    assert lse.shape == (2, 4, 96)
    assert flex_attention.mask_of(block_mask).area == cells.sum()
    assert flex_attention.mask_of(block_mask) is flex_attention.mask_of(block_mask)
    with pytest.raises(ValueError, match="enable_gqa"):
        flex_attention.flex_attention(q, k, v, block_mask=block_mask)
    with pytest.raises(libffa.UnsupportedError, match="score_mod"):
        flex_attention.flex_attention(q, q, q, score_mod=lambda score, *_: score)


@pytest.mark.parametrize("heads_q, heads_kv, heads_mask", [(4, 4, 4), (4, 2, 4), (4, 2, 2)])
def test_flex_attention_by_heads(heads_q, heads_kv, heads_mask):
    """Heads of a BlockMask are query heads."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block_mask = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 9 + 20 * h + 40 * b), 2, heads_mask, 96, 96,
                                        device="cpu", BLOCK_SIZE=32)
    q, k, v = (draw(2, heads, 96, 16, seed=seed).detach() for seed, heads in enumerate((heads_q, heads_kv, heads_kv)))
    if heads_mask == heads_kv == heads_q:
        same(flex_attention.flex_attention(q, k, v, block_mask=block_mask), flex.flex_attention(q, k, v, block_mask=block_mask))
        return
    with pytest.raises(libffa.UnsupportedError, match=f"block_mask: {heads_mask} heads, query has 4 and key 2"):
        flex_attention.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)


# ---- transformers ----

@pytest.fixture(scope="module")
def llama():
    """A small Llama of random weights, by its attention implementation and other settings."""
    transformers = pytest.importorskip("transformers")
    import libffa.transformers

    libffa.transformers.register()

    def make(implementation, cls="Llama", **settings):
        torch.manual_seed(0)
        config = getattr(transformers, cls + "Config")(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=256, attn_implementation=implementation, **settings)
        return getattr(transformers, cls + "ForCausalLM")(config)

    return make


def trained(model, batches, steps=3, **extra):
    """The losses of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        batch = batches(step)
        loss = model(**batch, **extra, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def ids_of(step, *shape):
    return torch.randint(64, shape, generator=torch.Generator().manual_seed(step))


def plain(step):
    ids = ids_of(step, 2, 48)
    return {"input_ids": ids, "labels": ids}


def padded(step):
    batch = plain(step)
    batch["attention_mask"] = torch.ones(2, 48, dtype=torch.long)
    batch["attention_mask"][0, :7] = 0
    batch["attention_mask"][1, 40:] = 0
    batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


def packed(step):
    ids = ids_of(step, 1, 96)
    positions = torch.cat([torch.arange(n) for n in torch.tensor(CU).diff()])[None]
    return {"input_ids": ids, "labels": ids.masked_fill(positions == 0, -100), "position_ids": positions}


@pytest.mark.parametrize("cls, settings, batches", [("Llama", {}, plain), ("Llama", {}, packed),
                                                    ("Mistral", {"sliding_window": 11}, padded),
                                                    ("Mistral", {"sliding_window": 11}, packed)])
def test_transformers_trains_as_with_sdpa(llama, cls, settings, batches):
    same(trained(llama("libffa", cls, **settings), batches), trained(llama("sdpa", cls, **settings), batches))


def test_transformers_makes_few_slices(llama, monkeypatch):
    """Masks are read, and not drawn cell by cell: by a model's own, and one of parts that are not known."""
    from transformers import masking_utils

    import libffa.transformers

    made, joined, dense = [], libffa.transformers._joined, libffa.transformers._dense
    monkeypatch.setattr(libffa.transformers, "_joined", lambda samples: made.append(joined(samples)) or made[-1])
    monkeypatch.setattr(libffa.transformers, "_dense", lambda _arguments: pytest.fail("drawn cell by cell"))
    llama("libffa", "Mistral", sliding_window=11)(**packed(0), use_cache=False)
    assert made and all(mask == libffa.Mask.from_cu_seqlens(CU, causal=True, window=(10, 0)) for mask in made)

    monkeypatch.setattr(libffa.transformers, "_dense", dense)
    unknown = masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, i, j: j < 5)
    assert libffa.transformers._describe(unknown) is None
    assert libffa.transformers.make_mask(1, 20, 20, mask_function=unknown, device="cpu").area == 20 * 21 // 2 + 10


@pytest.mark.parametrize("q_length, kv_length, q_offset, kv_offset, tokens", [
    (8, 8, 0, 0, 8), (8, 8, 0, 0, 5), (4, 8, 4, 0, 8), (4, 6, 6, 4, 10), (4, 6, 6, 4, 12), (4, 6, 6, 4, 7), (4, 9, 2, 0, 6)])
def test_transformers_padding(q_length, kv_length, q_offset, kv_offset, tokens):
    """Of any place and length, also where a cache has less or more than the batch: as for SDPA."""
    masking_utils = pytest.importorskip("transformers.masking_utils")
    import libffa.transformers

    attention_mask = torch.ones(3, tokens, dtype=torch.bool)
    attention_mask[1, :3] = False
    attention_mask[2, 4:6] = False
    options = {"batch_size": 3, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
               "mask_function": masking_utils.causal_mask_function, "attention_mask": attention_mask, "device": "cpu"}
    mask = libffa.transformers.make_mask(**options)
    cells = masking_utils.sdpa_mask(**options, allow_is_causal_skip=False)
    for sample, wanted in enumerate(cells):
        rows, keys = (sample * q_length, (sample + 1) * q_length), (sample * kv_length, (sample + 1) * kv_length)
        have = mask if mask.seqlen_q == q_length else mask.crop(rows, keys)
        assert (have | libffa.Mask.from_dense(wanted[0])).check()["area"] == have.check()["area"] == wanted.sum()


def test_transformers_refuses_tensors_of_masks(llama):
    model, ids = llama("libffa"), ids_of(0, 1, 8)
    with pytest.raises(libffa.UnsupportedError, match="attention_mask: a tensor of 4 dimensions; pass libffa_mask"):
        model(ids, attention_mask=torch.ones(1, 1, 8, 8, dtype=torch.bool))


def test_transformers_takes_a_mask_and_generates(llama):
    prefix = libffa.Mask.shared_prefix([0, 30, 60, 96])
    one = trained(llama("libffa"), packed, libffa_mask=prefix)
    cells = torch.zeros(96, 96, dtype=torch.bool)
    for q0, q1, k0, k1, kind in prefix.slices():
        block = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        cells[q0:q1, k0:k1] |= block.tril(k1 - k0 - (q1 - q0)) if kind == "causal" else block
    same(one, trained(llama("sdpa"), packed, attention_mask=cells[None, None]))
    ids = ids_of(0, 2, 12)
    made = [llama(name).generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0) for name in ("libffa", "sdpa")]
    assert torch.equal(*made)
