"""Tiny, randomly initialised Qwen2 models: the policies of tests and of the host experiment."""

from pathlib import Path

import torch
from torch import nn

from wsync_lab.errors import ConfigError
from wsync_lab.weights import ModuleSource

_MIN_HEAD_DIM = 32  # vLLM's CPU attention dies at the first request below it
# Wider than HF's 0.02, so that logits differ enough for greedy output to depend on the weights.
_INITIALIZER_RANGE = 0.2


def build_tiny_qwen2(
    *,
    tied: bool,
    dtype: str,
    seed: int,
    vocab_size: int = 256,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 2,
    intermediate_size: int = 128,
) -> nn.Module:
    """A Qwen2 model on the CPU, whose weights depend on ``seed`` alone, in ``dtype``.

    Raises:
        ConfigError: the heads are too narrow for vLLM, or do not divide ``hidden_size``.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if hidden_size % num_heads or hidden_size // num_heads < _MIN_HEAD_DIM:
        raise ConfigError(
            f"hidden_size {hidden_size} over {num_heads} heads: each head needs {_MIN_HEAD_DIM} or more"
        )
    config = Qwen2Config(
        architectures=[Qwen2ForCausalLM.__name__],
        dtype=dtype,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=_INITIALIZER_RANGE,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = Qwen2ForCausalLM(config)
    return model.to(getattr(torch, dtype)).eval()


def save_model(model: nn.Module, folder: Path) -> Path:
    """Write a model of ``build_tiny_qwen2`` to ``folder``, as an engine loads it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    save_file(dict(ModuleSource(model)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
