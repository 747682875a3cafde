"""Small adapters whose values depend on a seed and on the name of what they fill."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.sync import Adapter

MODULES = {"layers.0.q_proj": (24, 16), "layers.0.down_proj": (16, 40), "layers.1.q_proj": (24, 16)}
BASE = "base" * 16


def adapter(
    seed: int, modules: Mapping[str, tuple[int, int]] = MODULES, base: str = BASE, **config: Any
) -> Adapter:
    """For every one of ``modules`` (path: (out, in) features) that the configuration targets."""
    options: dict[str, Any] = {
        "rank": 4,
        "alpha": 8.0,
        "target_modules": ("q_proj", "down_proj"),
        "dtype": "float32",
    }
    made = AdapterConfig(**(options | config))
    tensors = {
        f"{PREFIX}{path}.lora_{matrix}.weight": values(f"{path} {matrix}", seed, shape, made.dtype)
        for path, features in modules.items()
        if made.targets(path)
        for matrix, shape in shapes(features, made.rank_of(path)).items()
    }
    return Adapter(made, tensors, base)


def shapes(features: tuple[int, int], rank: int) -> dict[str, tuple[int, int]]:
    out_features, in_features = features
    return {"A": (rank, in_features), "B": (out_features, rank)}


def values(name: str, seed: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))
