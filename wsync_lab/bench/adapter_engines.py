"""Engines for adapters in processes of their own: a tiny Qwen2, in plain torch or in vLLM."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wsync_lab.engines.base import Engine, Sampling
from wsync_lab.engines.plain import PlainEngine
from wsync_lab.engines.tiny import build_tiny_qwen2, save_model
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.sync import Adapter
from wsync_lab.weights import ModuleSource

_PROMPTS = [[3], [200, 7, 9]]
_TOKENS = 8
_TARGETS = ("q_proj", "v_proj", "down_proj")


def tiny_base() -> nn.Module:
    """The base model of every engine here."""
    return build_tiny_qwen2(tied=False, dtype="float32", seed=1)


def tiny_adapter(seed: int, rank: int = 8) -> Adapter:
    """An adapter of ``tiny_base`` that changes what it answers."""
    base, config = tiny_base(), AdapterConfig(rank, 2.0 * rank, _TARGETS, "float32")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, layer in base.named_modules():
        if isinstance(layer, nn.Linear) and config.targets(path):
            for matrix, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
                name = f"{PREFIX}{path}.lora_{matrix}.weight"
                tensors[name] = 0.3 * torch.randn(shape, generator=generator)
    return Adapter(config, tensors, base_digest_of(ModuleSource(base)))


class AdapterEngine:
    """For ``ProcessEngine``: the methods of ``Engine`` that an adapter update calls.

    ``kind`` is ``torch`` or ``vllm``; the base is adopted, so the engine answers from its start.
    """

    def __init__(self, kind: str) -> None:
        self._engine: Engine = _start_vllm() if kind == "vllm" else _start_plain()
        for name in ("attach", "serve", "handle", "outcome", "detach"):
            setattr(self, f"adapter_{name}", getattr(self._engine, f"adapter_{name}"))

    def answers(self) -> tuple[int, list[list[int]]]:
        """(update_id, greedy tokens): what a request gets now."""
        samples = self._engine.generate(_PROMPTS, Sampling(_TOKENS))
        (update_id,) = {sample.update_id for sample in samples}
        return update_id, [sample.token_ids for sample in samples]

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()


def _start_plain() -> PlainEngine:
    engine = PlainEngine(tiny_base())
    engine.adopt()
    return engine


def _start_vllm() -> VllmEngine:
    with tempfile.TemporaryDirectory(prefix="wsync-bench-") as folder:
        save_model(tiny_base(), Path(folder))
        options = VllmOptions(
            folder,
            "float32",
            load_format="auto",
            max_model_len=64,
            kv_cache_bytes=16 << 20,
            in_process=True,
            max_lora_rank=16,
        )
        engine = VllmEngine(options)
        engine.adopt()  # while the folder is there
    return engine
