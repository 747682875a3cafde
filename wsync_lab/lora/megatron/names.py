"""Megatron's names of adapter matrices: parsed, ordered, moved between pipeline stages."""

import re
from dataclasses import dataclass

from wsync_lab.errors import ConfigError
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.megatron.context import ConverterContext

_PATTERN = re.compile(r"decoder\.layers\.(\d+)\.([\w.]+)\.lora_([AB])\.weight")


@dataclass(frozen=True, order=True)
class MatrixName:
    """Matrix ``A`` or ``B`` of ``module`` (as ``self_attention.linear_qkv``) in one layer."""

    layer: int
    module: str
    matrix: str

    def __str__(self) -> str:
        return f"decoder.layers.{self.layer}.{self.module}.lora_{self.matrix}.weight"

    def peft(self, part: str) -> str:
        """PEFT's name of ``part`` (as ``self_attn.q_proj``) of this matrix."""
        return f"{PREFIX}model.layers.{self.layer}.{part}.lora_{self.matrix}.weight"


def parse(name: str) -> MatrixName:
    """Raises ``ConfigError`` for what is no adapter matrix of a decoder layer."""
    found = _PATTERN.fullmatch(name)
    if found is None:
        raise ConfigError(f"{name} is no LoRA matrix of Megatron's: decoder.layers.N.MODULE.lora_A.weight")
    return MatrixName(int(found[1]), found[2], found[3])


def first_layer(pp_rank: int, pp_size: int, context: ConverterContext) -> int:
    """Megatron counts layers within a stage: the number of a stage's layer 0 in the whole model."""
    return pp_rank * (context.num_layers // pp_size)
