"""Everything a run of the experiment depends on."""

from dataclasses import dataclass
from typing import Literal, get_args

from wsync_lab.config import MiB, SyncConfig
from wsync_lab.errors import ConfigError

EngineName = Literal["vllm", "plain"]
DTypeName = Literal["float32", "bfloat16"]
HIDDEN_SIZE_UNIT = 64  # two heads, each a multiple of the 32 that vLLM's CPU attention takes
_POSITIVE = (
    "num_steps",
    "num_pairs",
    "prompts_per_step",
    "samples_per_prompt",
    "prompt_tokens",
    "max_tokens",
    "hidden_size",
    "num_layers",
    "learning_rate",
)


@dataclass(frozen=True)
class ExperimentConfig:
    """One run: the same RL loop once for each transport, from the same weights and seeds.

    Args:
        transports: run in this order, on one pair of engines.
        num_pairs: colocated pairs, each a trainer rank and an engine on a slot of its own.
        prompts_per_step: prompts of one step, over all pairs; a multiple of ``num_pairs``.
        samples_per_prompt: size of a GRPO group, two at least.
        kl_coefficient: weight of the k3 KL to the reference policy in the loss.
        lora_rank: above 0, an adapter of that rank is trained and sent, and the base is frozen;
            vLLM takes 8, 16, 32 and more.
        lora_alpha, lora_targets: see ``lora.config.AdapterConfig``.
        megatron_tp, megatron_pp: above 0, the adapter is sharded over that many tensor- and
            pipeline-parallel ranks; their product is a multiple of ``num_pairs``.
        megatron_flush_bytes: see ``lora.megatron.gather.convert_adapter``.
        skip_sync_at: steps whose weight update is left out on purpose, to see the gap it makes.

    Raises:
        ConfigError: names the parameter, and what it may be.
    """

    transports: tuple[str, ...] = ("cpu", "pinned")
    num_steps: int = 30
    seed: int = 0
    engine: EngineName = "vllm"
    num_pairs: int = 2
    slot_bytes: int = 4 * MiB
    num_slots: int = 2
    deadline_s: float = 120.0
    verify: str = "off"
    dtype: DTypeName = "float32"
    tied_embeddings: bool = True
    vocab_size: int = 64
    hidden_size: int = 256
    num_layers: int = 4
    prompts_per_step: int = 16
    samples_per_prompt: int = 8
    prompt_tokens: int = 4
    max_tokens: int = 8
    learning_rate: float = 2e-3
    clip: float = 0.2
    kl_coefficient: float = 0.001
    skip_sync_at: tuple[int, ...] = ()
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )

    megatron_tp: int = 0
    megatron_pp: int = 0
    megatron_flush_bytes: int = 1 << 16

    def __post_init__(self) -> None:
        for transport in self.transports:
            self.sync_config(transport)
        if not self.transports:
            raise ConfigError("transports is empty: name at least one")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number above 0")
        self._check_choices()
        self._check_adapter()

    def sync_config(self, transport: str) -> SyncConfig:
        """What ``WeightSync`` needs for one of the transports."""
        return SyncConfig(transport, self.slot_bytes, self.num_slots, self.deadline_s, self.verify)

    @property
    def num_trainers(self) -> int:
        """Trainer ranks; the first of each ``num_trainers / num_pairs`` feeds an engine."""
        return self.megatron_tp * self.megatron_pp or self.num_pairs

    def _check_choices(self) -> None:
        if self.engine not in get_args(EngineName):
            raise ConfigError(f"engine is {self.engine!r}: choose one of {', '.join(get_args(EngineName))}")
        if self.dtype not in get_args(DTypeName):
            raise ConfigError(f"dtype is {self.dtype!r}: choose one of {', '.join(get_args(DTypeName))}")
        if self.hidden_size % HIDDEN_SIZE_UNIT:
            raise ConfigError(f"hidden_size is {self.hidden_size}: give a multiple of {HIDDEN_SIZE_UNIT}")
        if self.samples_per_prompt < 2:
            raise ConfigError("samples_per_prompt is 1: a group needs 2 or more to be normalised")
        if self.prompts_per_step % self.num_pairs:
            raise ConfigError(
                f"prompts_per_step is {self.prompts_per_step}: give a multiple of num_pairs, {self.num_pairs}"
            )

    def _check_adapter(self) -> None:
        if self.lora_rank < 0 or (self.lora_rank and not (self.lora_targets and self.lora_alpha > 0)):
            raise ConfigError(
                f"lora_rank is {self.lora_rank}: give 0, or a rank, targets and an alpha above 0"
            )
        tp, pp = self.megatron_tp, self.megatron_pp
        if min(tp, pp) < 0 or (tp > 0) != (pp > 0) or (tp and not self.lora_rank):
            raise ConfigError(
                f"megatron_tp is {tp}, megatron_pp {pp}, lora_rank {self.lora_rank}: "
                "give all three, or none of the first two"
            )
        if self.num_trainers % self.num_pairs:
            raise ConfigError(
                f"megatron_tp {tp} x megatron_pp {pp} ranks: give a multiple of num_pairs, {self.num_pairs}"
            )
