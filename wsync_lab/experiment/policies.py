"""What a trainer trains and sends: all weights of the policy, or an adapter of it alone."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from wsync_lab.config import SyncConfig
from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.policy import build_policy, shard_policy
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.carrier import EngineClient
from wsync_lab.protocol.job import PairSync
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource, full_tensor

_PEFT_NAME = "default"  # the name under which PEFT keeps an adapter, which its files leave out


class Policy(Protocol):
    """What a trainer actor needs of the policy that it trains."""

    module: nn.Module

    def trained(self) -> list[nn.Parameter]:
        """What the optimiser steps."""
        ...

    def take_gradients(self) -> None:
        """The backward pass of a step is done: give ``trained`` their gradients."""
        ...

    def refresh(self) -> None:
        """The optimiser has stepped: ``module`` computes with the result, and has no gradients."""
        ...

    def connect(
        self, client: EngineClient | None, transport: str, rank: int
    ) -> tuple[PairSync, dict[str, Any]]:
        """The sync to this rank's engine, if it feeds one, and what a record says of it."""
        ...


class ShardedModule:
    """A module whose own parameters are trained where they lie."""

    module: nn.Module

    def trained(self) -> list[nn.Parameter]:
        return [each for each in self.module.parameters() if each.requires_grad]

    def take_gradients(self) -> None:
        """They are there."""

    def refresh(self) -> None:
        for parameter in self.trained():
            parameter.grad = None


class FullPolicy(ShardedModule):
    """Every parameter is trained and sent; sharded with FSDP2."""

    def __init__(self, config: ExperimentConfig, mesh: DeviceMesh, device: torch.device) -> None:
        self._config, self._device = config, device
        self.module = shard_policy(build_policy(config).to(device), mesh)

    def connect(
        self, client: EngineClient | None, transport: str, rank: int
    ) -> tuple[PairSync, dict[str, Any]]:
        assert client is not None
        source, config = ModuleSource(self.module), self._config.sync_config(transport)
        sync = WeightSync.connect(source, client, config, rank, self._device)
        return sync, {
            "slot_memory": sync.slot_memory,
            "collective": sync.collective,
            "payload_bytes": sync.plan.payload_bytes,
            "num_tensors": len(sync.plan.tensors),
            "num_buckets": len(sync.plan.buckets),
        }


class LoraPolicy(ShardedModule):
    """PEFT's adapter is trained and sent; the base is frozen, and loaded by the engine itself."""

    def __init__(self, config: ExperimentConfig, mesh: DeviceMesh, device: torch.device) -> None:
        self._config, self._device = config, device
        policy = build_policy(config)
        self._base_digest = base_digest_of(ModuleSource(policy))
        self.module = shard_policy(adapted_policy(config, policy).to(device), mesh)

    def connect(
        self, client: EngineClient | None, transport: str, rank: int
    ) -> tuple[PairSync, dict[str, Any]]:
        assert client is not None
        return connect_adapter(self.adapter, client, self._config.sync_config(transport), rank, self._device)

    def adapter(self) -> Adapter:
        """The adapter as it is now, gathered from all ranks."""
        tensors = {
            peft_name(name): full_tensor(parameter)
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        config = AdapterConfig.from_peft(_peft_settings(self._config), self._config.dtype)
        return Adapter(config, tensors, self._base_digest)


def connect_adapter(
    source: Callable[[], Adapter], client: EngineClient, config: SyncConfig, rank: int, device: torch.device
) -> tuple[AdapterSync, dict[str, Any]]:
    """The sync of an adapter to one engine, and what a record says of it."""
    tensors = source().tensors
    sync = AdapterSync.connect(source, client, config, rank=rank, device=device)
    return sync, {
        "slot_memory": sync.slot_memory,
        "collective": sync.collective,
        "payload_bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "num_tensors": len(tensors),
    }


def adapted_policy(config: ExperimentConfig, policy: nn.Module) -> nn.Module:
    """``policy`` with PEFT's adapter in place, its base frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # PEFT draws A, the same on every rank
        return get_peft_model(policy, LoraConfig(**_peft_settings(config))).get_base_model()


def peft_name(name: str) -> str:
    """The name in PEFT's files of a parameter of ``adapted_policy``."""
    return f"{PREFIX}{name.replace(f'.{_PEFT_NAME}.', '.')}"


def _peft_settings(config: ExperimentConfig) -> dict[str, Any]:
    return {
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": list(config.lora_targets),
    }
