# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's BlockMask as structs of the library, one a sample."""
from __future__ import annotations

import ctypes as C
import functools

from . import _abi
from ._arrays import array
from ._library import struct


def _list(num_blocks, indices, sample, kept):
    """A pair of a sample's lists; what keeps them alive is added to `kept`."""
    num = array(num_blocks[sample].int(), "kv_num_blocks")
    index = array(indices[sample].int(), "kv_indices")
    rows, most = index.shape[-2:]
    kept += num, index
    return _abi.ffa_block_list(num_blocks=num.address, indices=index.address, num_head_stride=rows,
                               index_head_stride=rows * most, index_row_stride=most, blocks_max=most)


@functools.cache
def _indexing():
    """A mode: where tensors are indexed by tensors alone, as in document[q], it is one operator, of which vmap makes one call.
    PyTorch 2.6 asks for the index's value instead, which vmap does not have."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Indexing(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            if function is torch.Tensor.__getitem__:
                index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
                if index and all(isinstance(i, torch.Tensor) for i in index):
                    return torch.ops.aten.index(arguments[0], index)
            return function(*arguments, **(options or {}))

    return Indexing


def _callback(mask_mod, sample, device, failed):
    """mask_mod for a box at a time, by vmap, as FlexAttention evaluates it."""
    import torch

    over = torch.vmap(torch.vmap(mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None))
    first = torch.tensor(sample, device=device)

    @_abi.ffa_mask_mod
    def cells_of(_user, head, box, cells):
        try:
            area = _abi.ffa_mask_box.from_address(box)
            rows = torch.arange(area.q_begin, area.q_end, device=device)
            keys = torch.arange(area.k_begin, area.k_end, device=device)
            with _indexing()():
                found = over(first, torch.tensor(head, device=device), rows, keys)
            found = found.to(torch.uint8).expand(len(rows), len(keys)).cpu().contiguous()
            C.memmove(cells, found.data_ptr(), found.numel())
            return 0
        except BaseException as error:  # an exception does not pass through C: it is raised after the call
            failed.append(error)
            return -1

    return cells_of


def samples_of(block_mask):
    """For each sample an ffa_block_mask, what must outlive its use, and the list that receives what mask_mod raises."""
    if not hasattr(block_mask, "kv_num_blocks"):
        raise TypeError(f"block_mask: {type(block_mask).__name__}, not a BlockMask")
    samples, heads = block_mask.kv_num_blocks.shape[:2]
    for sample in range(samples):
        blocks, kept, failed = struct(_abi.ffa_block_mask), [], []
        blocks.heads = heads
        blocks.shape = _abi.ffa_mask_shape(*block_mask.seq_lengths)
        blocks.block = _abi.ffa_block_size(*block_mask.BLOCK_SIZE)
        blocks.kv = _list(block_mask.kv_num_blocks, block_mask.kv_indices, sample, kept)
        if block_mask.full_kv_num_blocks is not None:
            blocks.full = _list(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, sample, kept)
        if block_mask.mask_mod is not None:
            blocks.mask_mod = _callback(block_mask.mask_mod, sample, block_mask.kv_num_blocks.device, failed)
        yield blocks, kept, failed
