"""Which base weights an adapter belongs to: one digest of a whole model.

It is made of the digests of the model's tensors by their checkpoint names, so that a trainer,
an engine that received an update and a folder of checkpoint files name the same weights alike.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from wsync_lab.digest import tensor_digest
from wsync_lab.errors import ConfigError
from wsync_lab.weights import WeightSource


def base_digest(digests: Mapping[str, int]) -> str:
    """One digest, of the digests of a model's tensors by name."""
    return digest_of(*zip(*sorted(digests.items()), strict=True)) if digests else digest_of([], [])


def base_digest_of(source: WeightSource) -> str:
    """``base_digest`` of a trainer's frozen weights; a collective where they are sharded."""
    return base_digest({name: tensor_digest(tensor) for name, tensor in source})


def checkpoint_digest(folder: Path) -> str:
    """``base_digest`` of the safetensors files in ``folder``.

    Raises:
        ConfigError: there are none.
    """
    from safetensors import safe_open

    digests: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            digests |= {name: tensor_digest(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    if not digests:
        raise ConfigError(f"{folder} holds no safetensors file: its weights cannot be named")
    return base_digest(digests)


def digest_of(names: Iterable[str], digests: Iterable[int]) -> str:
    """SHA-256 of named tensor digests, in their order."""
    pairs = list(zip(names, digests, strict=True))
    return hashlib.sha256(msgspec.msgpack.encode(pairs)).hexdigest()
