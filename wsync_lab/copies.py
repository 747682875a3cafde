"""Many device-to-device copies in one kernel launch.

One launch a tensor leaves the memory idle between small copies, and torch's multi-tensor copy
stays well under the memory's rate. Here every pair is cut into chunks of equal size, one a
thread block, and a table of their addresses is uploaded once and replayed.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch

_WORD_BYTES = 8
_CHUNK_BYTES = 1 << 16
_VECTOR_BYTES = 16  # what one thread loads at once; other addresses are copied by torch

Pair = tuple[torch.Tensor, torch.Tensor]  # (target, source), same dtype and shape


class CopyBatch:
    """Copies ``source`` into ``target`` for every pair, as often as ``run`` is called.

    The batch keeps addresses, not tensors: the caller makes a new one when any of them moved.
    On a CPU, and for what is not contiguous or not aligned, it keeps the tensors and uses
    ``copy_``.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        chunks: list[tuple[int, int, int]] = []
        self._others: list[Pair] = []
        device = torch.device("cpu")
        for target, source in pairs:
            if _is_plain(target, source):
                device = target.device
                chunks.extend(_chunks(target, source))
            elif target.numel():
                self._others.append((target, source))
        self._table = torch.tensor(chunks, dtype=torch.int64).to(device) if chunks else None

    def run(self) -> None:
        """Queue all copies on the current stream."""
        if self._table is not None:
            _kernel()[(len(self._table),)](
                self._table, CHUNK_WORDS=_CHUNK_BYTES // _WORD_BYTES, BLOCK=8192, num_warps=4
            )
        for target, source in self._others:
            target.copy_(source, non_blocking=True)


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    if not (target.is_cuda and source.device == target.device and target.numel()):
        return False
    if not (target.is_contiguous() and source.is_contiguous() and target.dtype == source.dtype):
        return False
    return not (target.data_ptr() | source.data_ptr() | target.nbytes) % _VECTOR_BYTES


def _chunks(target: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    to, of = target.data_ptr(), source.data_ptr()
    for start in range(0, target.nbytes, _CHUNK_BYTES):
        num_bytes = min(_CHUNK_BYTES, target.nbytes - start)
        yield to + start, of + start, num_bytes // _WORD_BYTES


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
