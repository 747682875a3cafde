"""A 64-bit digest of one tensor: its dtype, shape and stored bytes, each in its place.

Every 8-byte word is combined with its index and mixed by the finaliser of SplitMix64 (Steele,
Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), then all are added
modulo 2^64. So equal elements in another order differ, unlike an XOR of elements
(``torch.hash_tensor``), and it runs on the tensor's own device. It guards against faults, not
against an adversary.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from wsync_lab.chunks import CHUNK_WORDS, WORD_BYTES, chunk_rows
from wsync_lab.packing import as_bytes
from wsync_lab.weights import TensorMeta

_TEMPORARY_WORDS = 1 << 20  # bounds the temporaries to a few times 8 MiB
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def tensor_digest(tensor: torch.Tensor) -> int:
    """Digest of ``tensor``, an unsigned 64-bit integer; waits for the tensor's device."""
    sums = [_chunk_sum(words, start) for start, words in _chunks(as_bytes(tensor))]
    return _finish(tensor, int(torch.stack(sums).sum()) if sums else 0)


def tensor_digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """``tensor_digest`` of each, on a GPU with one pass over their bytes in one launch."""
    batched = [tensor for tensor in tensors if _is_plain(tensor)]
    sums = iter(_sums_in_one_launch(batched) if batched else [])
    return [_finish(tensor, next(sums)) if _is_plain(tensor) else tensor_digest(tensor) for tensor in tensors]


def _finish(tensor: torch.Tensor, total: int) -> int:
    meta = TensorMeta.of("", tensor)
    text = f"{meta.dtype} {list(meta.shape)} {total}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _chunks(data: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    whole = data.numel() // 8 * 8
    words = _as_words(data[:whole])
    chunks = [
        (start, words[start : start + _TEMPORARY_WORDS]) for start in range(0, len(words), _TEMPORARY_WORDS)
    ]
    if whole < data.numel():
        tail = data.new_zeros(8)
        tail[: data.numel() - whole] = data[whole:]
        chunks.append((len(words), tail.view(torch.int64)))
    return chunks


def _as_words(data: torch.Tensor) -> torch.Tensor:
    """8-byte words of ``data``: a view where its place in memory allows one."""
    aligned = data.storage_offset() % 8 == 0
    return (data if aligned else data.clone()).view(torch.int64)


def _chunk_sum(words: torch.Tensor, start: int) -> torch.Tensor:
    mixed = torch.arange(start, start + len(words), device=words.device)
    mixed.mul_(_GOLDEN).bitwise_xor_(words)
    mixed.bitwise_xor_(_shift_right(mixed, 30)).mul_(_MIX[0])
    mixed.bitwise_xor_(_shift_right(mixed, 27)).mul_(_MIX[1])
    mixed.bitwise_xor_(_shift_right(mixed, 31))
    return mixed.sum()


def _shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's ``>>`` repeats the sign bit."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whole, aligned words on a GPU."""
    whole = tensor.is_cuda and tensor.numel() > 0 and tensor.is_contiguous()
    return whole and not (tensor.data_ptr() | tensor.nbytes) % WORD_BYTES


def _sums_in_one_launch(tensors: Sequence[torch.Tensor]) -> list[int]:
    device = tensors[0].device
    index, first, words = chunk_rows([tensor.nbytes // WORD_BYTES for tensor in tensors])
    addresses = torch.tensor([tensor.data_ptr() for tensor in tensors])
    table = torch.stack([addresses[index] + WORD_BYTES * first, words, first], dim=1).to(device)
    chunks = torch.empty(len(table), dtype=torch.int64, device=device)
    _kernel()[(len(table),)](
        table, chunks, CHUNK_WORDS=CHUNK_WORDS, BLOCK=2048, GOLDEN=_GOLDEN, MIX0=_MIX[0], MIX1=_MIX[1]
    )
    sums = torch.zeros(len(tensors), dtype=torch.int64, device=device)
    totals: list[int] = sums.index_add_(0, index.to(device), chunks).tolist()
    return totals


@cache
def _kernel() -> Any:
    """``_chunk_sum`` of every row (address, words, first word) of a table."""
    import triton
    import triton.language as tl

    @triton.jit
    def sum_chunks(  # type: ignore[no-untyped-def]
        table,
        sums,
        CHUNK_WORDS: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr,  # noqa: N803
        GOLDEN: tl.constexpr,  # noqa: N803
        MIX0: tl.constexpr,  # noqa: N803
        MIX1: tl.constexpr,  # noqa: N803
    ):
        row = table + tl.program_id(0).to(tl.int64) * 3
        address = tl.load(row).to(tl.pointer_type(tl.int64))
        num_words, first = tl.load(row + 1), tl.load(row + 2)
        total = tl.zeros([BLOCK], dtype=tl.int64)
        for start in tl.static_range(0, CHUNK_WORDS, BLOCK):
            words = start + tl.arange(0, BLOCK)
            inside = words < num_words
            mixed = (first + words) * GOLDEN ^ tl.load(address + words, mask=inside, other=0)
            mixed = (mixed ^ (mixed.to(tl.uint64, bitcast=True) >> 30).to(tl.int64, bitcast=True)) * MIX0
            mixed = (mixed ^ (mixed.to(tl.uint64, bitcast=True) >> 27).to(tl.int64, bitcast=True)) * MIX1
            mixed = mixed ^ (mixed.to(tl.uint64, bitcast=True) >> 31).to(tl.int64, bitcast=True)
            total += tl.where(inside, mixed, 0)
        tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))

    return sum_chunks
