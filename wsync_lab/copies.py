"""Many device-to-device copies in one kernel launch.

One launch a tensor leaves the memory idle between small copies, and torch's multi-tensor copy
stays well under the memory's rate. Here every pair is cut into chunks of equal size, one a
thread block, and a table of their addresses is uploaded once and replayed.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from wsync_lab.chunks import CHUNK_WORDS, WORD_BYTES, chunk_rows

_VECTOR_BYTES = 16  # what one thread loads at once; other addresses are copied by torch

Pair = tuple[torch.Tensor, torch.Tensor]  # (target, source), same dtype and shape


class CopyBatch:
    """Copies ``source`` into ``target`` for every pair, as often as ``run`` is called.

    The batch keeps addresses, not tensors: the caller makes a new one when any of them moved.
    On a CPU, and for what is not contiguous or not aligned, it keeps the tensors and uses
    ``copy_``.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        plain: list[Pair] = []
        self._others: list[Pair] = []
        for target, source in pairs:
            if target.numel():
                (plain if _is_plain(target, source) else self._others).append((target, source))
        self._table = _table(plain) if plain else None

    def run(self) -> None:
        """Queue all copies on the current stream."""
        if self._table is not None:
            _kernel()[(len(self._table),)](self._table, CHUNK_WORDS=CHUNK_WORDS, BLOCK=8192, num_warps=4)
        for target, source in self._others:
            target.copy_(source, non_blocking=True)


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    if not (target.is_cuda and source.device == target.device):
        return False
    if not (target.is_contiguous() and source.is_contiguous() and target.dtype == source.dtype):
        return False
    return not (target.data_ptr() | source.data_ptr() | target.nbytes) % _VECTOR_BYTES


def _table(pairs: list[Pair]) -> torch.Tensor:
    """(chunks, 3): target address, source address, words; on the device."""
    index, first, words = chunk_rows([target.nbytes // WORD_BYTES for target, _ in pairs])
    addresses = torch.tensor([[target.data_ptr(), source.data_ptr()] for target, source in pairs])
    rows = torch.cat([addresses[index] + WORD_BYTES * first[:, None], words[:, None]], dim=1)
    return rows.to(pairs[0][0].device)


@cache
def _kernel() -> Any:
    """Compiled at the first launch; Triton comes with torch's CUDA builds."""
    import triton
    import triton.language as tl

    @triton.jit
    def copy_chunks(table, CHUNK_WORDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        row = table + tl.program_id(0).to(tl.int64) * 3
        target = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.int64)), 16)
        source = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.int64)), 16)
        num_words = tl.multiple_of(tl.load(row + 2), 2)
        for start in tl.static_range(0, CHUNK_WORDS, BLOCK):
            words = start + tl.arange(0, BLOCK)
            inside = words < num_words
            tl.store(target + words, tl.load(source + words, mask=inside), mask=inside)

    return copy_chunks
