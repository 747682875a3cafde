"""A 64-bit digest of one tensor: its dtype, shape and stored bytes, each in its place.

Every 8-byte word is combined with its index and mixed by the finaliser of SplitMix64 (Steele,
Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), then all are added
modulo 2^64. So equal elements in another order differ, unlike an XOR of elements
(``torch.hash_tensor``), and it runs on the tensor's own device. It guards against faults, not
against an adversary.
"""

import hashlib

import torch

from wsync_lab.packing import as_bytes
from wsync_lab.weights import TensorMeta

_CHUNK_WORDS = 1 << 20  # bounds the temporaries to a few times 8 MiB
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def tensor_digest(tensor: torch.Tensor) -> int:
    """Digest of ``tensor``, an unsigned 64-bit integer; waits for the tensor's device."""
    meta = TensorMeta.of("", tensor)
    sums = [_chunk_sum(words, start) for start, words in _chunks(as_bytes(tensor))]
    total = int(torch.stack(sums).sum()) if sums else 0
    text = f"{meta.dtype} {list(meta.shape)} {total}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _chunks(data: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    whole = data.numel() // 8 * 8
    words = _as_words(data[:whole])
    chunks = [(start, words[start : start + _CHUNK_WORDS]) for start in range(0, len(words), _CHUNK_WORDS)]
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
