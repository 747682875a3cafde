"""Everything that a conversion depends on, in one value that every step must be given.

There are no defaults and no keyword arguments that a step could forget to pass on: a step that
lacks the context does not type-check and does not run.
"""

from dataclasses import dataclass

from wsync_lab.errors import ConfigError
from wsync_lab.lora.config import AdapterConfig

# Megatron's fused linear layers, and the projections of Hugging Face's models that each holds.
PARTS = {
    "self_attention.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
}
# Modules that exist, and cannot be converted: the rule, and why.
EXCLUDED = {
    "self_attention.in_proj": (
        "the input projection of a gated delta net stacks tensors of different meaning, which a split "
        "into projections would mix"
    )
}


@dataclass(frozen=True, kw_only=True)
class ConverterContext:
    """Shapes of the model, and the adapter's configuration.

    Attributes:
        modules: the fused layers that are adapted, keys of ``PARTS``.
        num_query_groups: key and value heads; each serves ``num_attention_heads`` over it.
        ffn_hidden_size: features between gate and down projection.

    Raises:
        ConfigError: a module cannot be converted, or sizes do not divide.
    """

    rank: int
    alpha: float
    dtype: str
    modules: tuple[str, ...]
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int

    def __post_init__(self) -> None:
        for module in self.modules:
            if module in EXCLUDED:
                raise ConfigError(f"{module} cannot be adapted: {EXCLUDED[module]}; leave it out")
            if module not in PARTS:
                raise ConfigError(f"unknown module {module!r}: choose among {', '.join(PARTS)}")
        if self.num_attention_heads % self.num_query_groups:
            raise ConfigError(
                f"{self.num_attention_heads} heads in {self.num_query_groups} query groups: "
                "each group needs equally many"
            )
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}: give a number above 0")

    @property
    def features(self) -> dict[str, tuple[int, int]]:
        """(out, in) features of each of Megatron's fused layers."""
        heads = self.num_attention_heads * self.head_dim
        keys = self.num_query_groups * self.head_dim
        return {
            "self_attention.linear_qkv": (heads + 2 * keys, self.hidden_size),
            "self_attention.linear_proj": (self.hidden_size, heads),
            "mlp.linear_fc1": (2 * self.ffn_hidden_size, self.hidden_size),
            "mlp.linear_fc2": (self.hidden_size, self.ffn_hidden_size),
        }

    def adapter_config(self) -> AdapterConfig:
        """The same in PEFT's terms."""
        targets = sorted(part.rpartition(".")[2] for module in self.modules for part in PARTS[module])
        return AdapterConfig(self.rank, self.alpha, tuple(targets), self.dtype)

    def check_parallel(self, tp_size: int, pp_size: int) -> None:
        """Raise ``ConfigError`` unless layers, query groups and features divide over the ranks."""
        for name, size, ranks in (
            ("num_layers", self.num_layers, pp_size),
            ("num_query_groups", self.num_query_groups, tp_size),
            ("ffn_hidden_size", self.ffn_hidden_size, tp_size),
        ):
            if size % ranks:
                raise ConfigError(f"{name} is {size}: it does not divide over {ranks} ranks")
