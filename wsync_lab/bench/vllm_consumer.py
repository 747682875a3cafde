"""The receiving end of a benchmark: a real vLLM engine in a process of its own."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from wsync_lab.bench.memory import Peak
from wsync_lab.bench.payloads import Qwen2Shape
from wsync_lab.engines.vllm.engine import VllmEngine, VllmOptions

_KV_CACHE_BYTES = 1 << 30


class VllmTarget:
    """For ``ProcessEngine``: ``bench.consumer.TensorEngine``'s methods, over vLLM.

    The engine starts with dummy weights of ``shape`` (a ``Qwen2Shape`` as a list).
    """

    def __init__(self, shape: list[Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="wsync-bench-") as folder:
            write_config(Qwen2Shape(*shape), Path(folder))
            options = VllmOptions(
                folder, "bfloat16", max_model_len=128, kv_cache_bytes=_KV_CACHE_BYTES, in_process=True
            )
            self._engine = VllmEngine(options)
        self._peak = Peak(torch.device(self._engine.describe()["device"]))
        for name in ("attach", "detach", "serve", "handle", "outcome", "describe", "close", "digests"):
            setattr(self, name, getattr(self._engine, name))

    def reset_peak(self) -> None:
        self._peak.reset()

    def memory(self) -> tuple[int, int]:
        """(bytes in use now, most bytes above those at ``reset_peak``)."""
        return self._peak.now(), self._peak.extra()


def write_config(shape: Qwen2Shape, folder: Path) -> None:
    """A ``config.json`` that vLLM builds a model of this shape from."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    Qwen2Config(
        architectures=[Qwen2ForCausalLM.__name__],
        dtype="bfloat16",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
    ).save_pretrained(folder)
