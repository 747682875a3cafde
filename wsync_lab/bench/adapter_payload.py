"""A payload of the size that the LoRA report names: 624 tensors, 169 417 728 bytes.

The report (data/published/roll_484.json) names no shapes. These are made to add up to exactly its
counts: 64 layers with the MLP projections of hidden size 5120 and intermediate size 17408, every
fourth with attention, and 56 projections more, at rank 16 in bfloat16.
"""

import hashlib
from collections.abc import Iterator

import torch

from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.sync import Adapter

RANK = 16
_HIDDEN, _INTERMEDIATE, _LAYERS, _ATTENTION_EVERY = 5120, 17408, 64, 4
_MLP = {"gate_proj": (_INTERMEDIATE, _HIDDEN), "up_proj": (_INTERMEDIATE, _HIDDEN)}
_MLP |= {"down_proj": (_HIDDEN, _INTERMEDIATE)}
_ATTENTION = {"q_proj": (12288, _HIDDEN), "k_proj": (1024, _HIDDEN)}
_ATTENTION |= {"v_proj": (1024, _HIDDEN), "o_proj": (_HIDDEN, 6144)}
_OTHERS = 55 * [480] + [448]  # output features of what makes the counts exact


def modules() -> dict[str, tuple[int, int]]:
    """(out, in) features of all 312 modules by path."""
    return dict(_modules())


def payload(seed: int, device: torch.device, base_digest: str) -> Adapter:
    """The adapter, of values that depend on the seed and on each tensor's name."""
    tensors = {}
    for path, (out_features, in_features) in _modules():
        for matrix, shape in (("A", (RANK, in_features)), ("B", (out_features, RANK))):
            name = f"{PREFIX}{path}.lora_{matrix}.weight"
            tensors[name] = _random(f"{name}/{seed}", shape, device)
    targets = tuple(sorted({path.rpartition(".")[2] for path, _ in _modules()}))
    return Adapter(AdapterConfig(RANK, 32.0, targets, "bfloat16"), tensors, base_digest)


def _modules() -> Iterator[tuple[str, tuple[int, int]]]:
    for layer in range(_LAYERS):
        for name, features in _MLP.items():
            yield f"model.layers.{layer}.mlp.{name}", features
        if layer % _ATTENTION_EVERY == _ATTENTION_EVERY - 1:
            for name, features in _ATTENTION.items():
                yield f"model.layers.{layer}.self_attn.{name}", features
    for index, out_features in enumerate(_OTHERS):
        yield f"model.layers.{index}.mixer.out_proj", (out_features, _HIDDEN)


def _random(key: str, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device).bfloat16()
