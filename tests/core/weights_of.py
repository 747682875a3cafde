"""Weights whose every value depends on a seed and on the tensor's name."""

import hashlib

import torch

from wsync_lab.packing import as_bytes
from wsync_lab.weights import TensorMeta


def tensor_of(meta: TensorMeta, seed: int) -> torch.Tensor:
    """Random bytes for ``meta``: any bit pattern, NaN included, is a legal weight."""
    key = hashlib.blake2b(f"{seed}/{meta.name}".encode(), digest_size=6).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
    data = torch.randint(0, 256, (meta.num_bytes,), dtype=torch.uint8, generator=generator)
    if meta.dtype == "bool":
        data = data % 2
    return data.view(meta.torch_dtype).view(meta.shape)


def weights_of(metadata: list[TensorMeta], seed: int) -> dict[str, torch.Tensor]:
    return {meta.name: tensor_of(meta, seed) for meta in metadata}


def assert_same_bytes(received: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and stored bytes agree (``torch.equal`` equates 0.0 and -0.0)."""
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert TensorMeta.of(name, received[name]) == TensorMeta.of(name, tensor)
        assert torch.equal(as_bytes(received[name]), as_bytes(tensor)), name
