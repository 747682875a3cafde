"""What an adapter is, apart from its tensors: ranks, scaling and targets, as PEFT defines them.

The rules are those of ``peft.LoraConfig`` (huggingface/peft, ``tuners/lora/config.py``): a
target names the end of a module's path, a pattern is a regular expression for it, the first
one that matches decides, and the update of a module is ``scaling * B @ A``.
"""

import re
from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any, TypeVar

import msgspec

from wsync_lab.errors import ConfigError

Rank = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Value = TypeVar("Value")

# Everything in a PEFT configuration that would change what the two matrices mean. Each is left
# at a value that says "not used", or refused by name.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "use_dora": (False,),
    "lora_bias": (False,),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
    "layers_to_transform": (None,),
    "layers_pattern": (None, []),
    "exclude_modules": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "megatron_config": (None,),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False,),
    "use_bdlora": (None,),
    "fan_in_fan_out": (False,),
}


class AdapterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks, scaling and targets of one adapter.

    Args:
        rank, alpha: of every module that no pattern names.
        target_modules: ends of module paths, for example ``q_proj``.
        dtype: of every tensor of the adapter, torch's name.
        rank_pattern, alpha_pattern: exceptions, by a regular expression for a path's end.
        use_rslora: divide alpha by the root of the rank (Kalajdzievski: A rank stabilization
            scaling factor for fine-tuning with LoRA, arXiv 2312.03732) instead of the rank.
    """

    rank: Rank
    alpha: float
    target_modules: tuple[str, ...]
    dtype: str = "bfloat16"
    rank_pattern: dict[str, Rank] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False

    def __post_init__(self) -> None:
        """An alpha of 16 and one of 16.0 are one configuration, and have one encoding."""
        floats = {end: float(alpha) for end, alpha in self.alpha_pattern.items()}
        msgspec.structs.force_setattr(self, "alpha", float(self.alpha))
        msgspec.structs.force_setattr(self, "alpha_pattern", floats)

    def targets(self, module: str) -> bool:
        """Whether this adapter has matrices for ``module``, a path such as ``layers.0.q_proj``."""
        return any(module == end or module.endswith(f".{end}") for end in self.target_modules)

    def rank_of(self, module: str) -> int:
        return _first_match(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """What ``B @ A`` is multiplied by."""
        rank, alpha = self.rank_of(module), _first_match(self.alpha_pattern, module, self.alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    @property
    def highest_rank(self) -> int:
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    def to_peft(self) -> dict[str, Any]:
        """The fields of ``adapter_config.json`` that hold this configuration."""
        return {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": list(self.target_modules),
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": dict(self.alpha_pattern),
            "use_rslora": self.use_rslora,
            "bias": "none",
        }

    @classmethod
    def from_peft(cls, config: Mapping[str, Any], dtype: str) -> "AdapterConfig":
        """The configuration in ``adapter_config.json``, or in ``LoraConfig.to_dict()``.

        Raises:
            ConfigError: names every setting that has no meaning here.
        """
        check_supported(config)
        return cls(
            config["r"],
            config["lora_alpha"],
            tuple(sorted(config["target_modules"])),
            dtype,
            dict(config.get("rank_pattern") or {}),
            dict(config.get("alpha_pattern") or {}),
            bool(config.get("use_rslora")),
        )


def check_supported(config: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for settings of a PEFT configuration that would be lost."""
    used = [name for name, unused in _UNSUPPORTED.items() if config.get(name, unused[0]) not in unused]
    if config.get("peft_type", "LORA") != "LORA":
        used.append(f"peft_type={config['peft_type']}")
    if isinstance(config.get("target_modules"), str | None):
        used.append("target_modules as a pattern, or left out (list the ends of module paths)")
    if used:
        raise ConfigError(f"this adapter needs {', '.join(used)}: train it without, or merge it")


def _first_match(patterns: Mapping[str, Value], module: str, otherwise: Value) -> Value:
    matches = (value for end, value in patterns.items() if re.match(rf"(.*\.)?({end})$", module))
    return next(matches, otherwise)
