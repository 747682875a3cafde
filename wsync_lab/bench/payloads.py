"""What a benchmark sends: names, dtypes and shapes of published models, or synthetic ones.

Shapes follow the models' public ``config.json`` files (Qwen2.5 technical report, arXiv
2412.15115) and the parameter names of Transformers' Qwen2 implementation.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from wsync_lab.errors import ConfigError
from wsync_lab.packing import as_bytes
from wsync_lab.weights import TensorMeta


@dataclass(frozen=True)
class Qwen2Shape:
    """The fields of a Qwen2 ``config.json`` that decide shapes."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Keys and values of one token in every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize


QWEN25 = {
    "qwen2.5-0.5b": Qwen2Shape(896, 24, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": Qwen2Shape(1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": Qwen2Shape(2048, 36, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": Qwen2Shape(3584, 28, 28, 4, 18944, 152064, False),
}
MIXED = "qwen2.5-0.5b-mixed"
FP8 = "qwen2.5-3b-fp8"
SYNTHETIC = "synthetic"
PAYLOAD_NAMES = (*QWEN25, MIXED, FP8, SYNTHETIC)


@dataclass(frozen=True)
class Payload:
    """Tensors to send; ``shape`` where a published model stands behind them."""

    name: str
    tensors: tuple[TensorMeta, ...]
    shape: Qwen2Shape | None = None

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)


def payload_of(name: str, num_bytes: int, num_tensors: int) -> Payload:
    """A preset, or, for ``synthetic``, ``num_tensors`` bfloat16 matrices of ``num_bytes`` in all.

    Raises:
        ConfigError: an unknown name, or tensors of less than one element.
    """
    if name == SYNTHETIC:
        return _synthetic(num_bytes, num_tensors)
    if name not in PAYLOAD_NAMES:
        raise ConfigError(f"unknown payload {name!r}: choose one of {', '.join(PAYLOAD_NAMES)}")
    shape = QWEN25[name.removesuffix("-mixed").removesuffix("-fp8")]
    return Payload(name, tuple(_tensors(shape, name)), shape)


def initial_values(tensors: tuple[TensorMeta, ...], device: torch.device) -> dict[str, torch.Tensor]:
    """Random bytes that depend on each tensor's name."""
    return {meta.name: _random(meta, device) for meta in tensors}


def change_values(weights: dict[str, torch.Tensor], version: int) -> None:
    """Other bytes everywhere, in place: sending the same weights again would prove nothing."""
    for name, tensor in weights.items():
        as_bytes(tensor).bitwise_xor_(_key(f"{name}/{version}") % 255 + 1)


def _synthetic(num_bytes: int, num_tensors: int) -> Payload:
    if num_tensors < 1 or num_bytes < 2 * num_tensors:
        raise ConfigError(f"{num_bytes} bytes in {num_tensors} tensors: give each tensor 2 bytes or more")
    elements = num_bytes // 2
    sizes = [elements * (i + 1) // num_tensors - elements * i // num_tensors for i in range(num_tensors)]
    tensors = (TensorMeta(f"layers.{i}.weight", "bfloat16", (size,)) for i, size in enumerate(sizes))
    return Payload(SYNTHETIC, tuple(tensors))


def _tensors(shape: Qwen2Shape, name: str) -> Iterator[TensorMeta]:
    norm = "float32" if name == MIXED else "bfloat16"
    yield TensorMeta("model.embed_tokens.weight", "bfloat16", (shape.vocab_size, shape.hidden_size))
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        yield from _layer(shape, prefix, norm, fp8=name == FP8)
    yield TensorMeta("model.norm.weight", norm, (shape.hidden_size,))
    if not shape.tied:
        yield TensorMeta("lm_head.weight", "bfloat16", (shape.vocab_size, shape.hidden_size))


def _layer(shape: Qwen2Shape, prefix: str, norm: str, *, fp8: bool) -> Iterator[TensorMeta]:
    hidden, kv = shape.hidden_size, shape.num_kv_heads * shape.head_dim
    matrices = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (shape.intermediate_size, hidden),
        "mlp.up_proj": (shape.intermediate_size, hidden),
        "mlp.down_proj": (hidden, shape.intermediate_size),
    }
    for name, size in matrices.items():
        yield TensorMeta(f"{prefix}.{name}.weight", "float8_e4m3fn" if fp8 else "bfloat16", size)
        if fp8:
            yield TensorMeta(f"{prefix}.{name}.weight_scale", "float32", (1,))
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            yield TensorMeta(f"{prefix}.{name}.bias", "bfloat16", size[:1])
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield TensorMeta(f"{prefix}.{name}.weight", norm, (hidden,))


def _random(meta: TensorMeta, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(_key(meta.name))
    words = torch.empty(-(-meta.num_bytes // 8), dtype=torch.int64, device=device)
    words.random_(generator=generator)
    return words.view(torch.uint8)[: meta.num_bytes].view(meta.torch_dtype).view(meta.shape)


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
