"""A LoRA policy whose adapter is sharded over tensor- and pipeline-parallel ranks, as Megatron's.

What is sharded is the adapter: its parameters, their gradients and the optimiser's state. Each
rank computes the whole policy on all samples, from the gathered adapter, and keeps the gradients
of its own shards. So the trainer's side of an update (shards, gather over TP, broadcast over PP,
conversion) is Megatron's; the speed of the training step is not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.policies import adapted_policy, connect_adapter, peft_name
from wsync_lab.experiment.policy import build_policy
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.megatron.context import PARTS, ConverterContext
from wsync_lab.lora.megatron.gather import Converted, convert_adapter, shard_adapter
from wsync_lab.lora.megatron.groups import ParallelGroups, build_groups
from wsync_lab.lora.sync import Adapter
from wsync_lab.protocol.carrier import EngineClient
from wsync_lab.protocol.job import PairSync
from wsync_lab.protocol.phases import SYNC_PHASES, SyncReport
from wsync_lab.weights import ModuleSource


class MegatronPolicy:
    """This rank's shards, and the whole policy to compute with. Every method is a collective."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        policy = build_policy(config)
        self._base_digest = base_digest_of(ModuleSource(policy))
        self._context = context_of(config, policy)
        self._groups: ParallelGroups = build_groups(config.megatron_tp, config.megatron_pp, self._context)
        self.module: nn.Module = adapted_policy(config, policy)
        own = self._shards_of({name: each.detach() for name, each in self._adapted().items()})
        self._shards = {name: nn.Parameter(shard.clone()) for name, shard in own.items()}
        self.refresh()

    def trained(self) -> list[nn.Parameter]:
        return list(self._shards.values())

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute with the shards as they are now."""
        whole = self._converted().tensors
        for name, parameter in self._adapted().items():
            parameter.copy_(whole[name])
            parameter.grad = None

    def take_gradients(self) -> None:
        """Give each shard its part of the gradients of the whole adapter."""
        gradients = {name: each.grad for name, each in self._adapted().items() if each.grad is not None}
        for name, gradient in self._shards_of(_shared(gradients, self._context)).items():
            self._shards[name].grad = gradient.clone()

    def connect(
        self, client: EngineClient | None, transport: str, rank: int
    ) -> tuple[PairSync, dict[str, Any]]:
        if client is None:
            self.adapter()  # the other ranks' gather
            return Follower(self.adapter), {}
        config, device = self._config.sync_config(transport), torch.device("cpu")
        return connect_adapter(self.adapter, client, config, rank, device)

    def adapter(self) -> Adapter:
        converted = self._converted()
        config = self._context.adapter_config()
        return Adapter(config, converted.tensors, self._base_digest, converted.excluded)

    def _converted(self) -> Converted:
        shards = {name: shard.detach() for name, shard in self._shards.items()}
        return convert_adapter(shards, self._context, self._groups, self._config.megatron_flush_bytes)

    def _shards_of(self, whole: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        at = self._groups
        place = {"tp_rank": at.tp_rank, "tp_size": at.tp_size, "pp_rank": at.pp_rank, "pp_size": at.pp_size}
        return shard_adapter(whole, self._context, **place)

    def _adapted(self) -> dict[str, nn.Parameter]:
        named = self.module.named_parameters()
        return {peft_name(name): parameter for name, parameter in named if parameter.requires_grad}


class Follower:
    """The part in an update of a rank that feeds no engine: it takes part in the gather."""

    def __init__(self, source: Callable[[], Adapter]) -> None:
        self._source, self._version = source, 0

    def prepare(self, version: int) -> None:
        self._version = version
        self._source()

    def commit(self) -> SyncReport:
        return SyncReport(self._version, 0, 0.0, dict.fromkeys(SYNC_PHASES, 0.0), 0.0, 0.0)

    def abort(self, reason: str) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        """There is nothing to free."""


def context_of(config: ExperimentConfig, policy: Any) -> ConverterContext:
    """The policy's shapes and the run's adapter."""
    shape, targets = policy.config, set(config.lora_targets)
    modules = [module for module, parts in PARTS.items() if {part.split(".")[1] for part in parts} <= targets]
    return ConverterContext(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        dtype=config.dtype,
        modules=tuple(modules),
        num_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_key_value_heads,
        head_dim=shape.hidden_size // shape.num_attention_heads,
    )


def _shared(gradients: dict[str, torch.Tensor], context: ConverterContext) -> dict[str, torch.Tensor]:
    """Projections that Megatron fuses have one ``A``: its gradient is the sum of theirs."""
    summed = dict(gradients)
    for layer in range(context.num_layers):
        for module in context.modules:
            names = [peft_name(f"model.layers.{layer}.{part}.lora_A.weight") for part in PARTS[module]]
            total = torch.stack([gradients[name] for name in names]).sum(dim=0)
            summed |= dict.fromkeys(names, total)
    return summed
