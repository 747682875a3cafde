"""What a trainer trains and sends: all weights of the policy, or an adapter of it alone."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from wsync_lab.experiment.config import ExperimentConfig
from wsync_lab.experiment.policy import build_policy, shard_policy
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.manifest import PREFIX
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.carrier import EngineClient
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource, full_tensor

_PEFT_NAME = "default"  # the name under which PEFT keeps an adapter, which its files leave out


class FullPolicy:
    """Every parameter is trained and sent; sharded with FSDP2."""

    def __init__(self, config: ExperimentConfig, mesh: DeviceMesh, device: torch.device) -> None:
        self._config, self._device = config, device
        self.module = shard_policy(build_policy(config).to(device), mesh)

    def connect(self, client: EngineClient, transport: str, rank: int) -> tuple[WeightSync, dict[str, Any]]:
        """The sync to this rank's engine, and what a record says of it."""
        source, config = ModuleSource(self.module), self._config.sync_config(transport)
        sync = WeightSync.connect(source, client, config, rank, self._device)
        return sync, {
            "slot_memory": sync.slot_memory,
            "collective": sync.collective,
            "payload_bytes": sync.plan.payload_bytes,
            "num_tensors": len(sync.plan.tensors),
            "num_buckets": len(sync.plan.buckets),
        }


class LoraPolicy:
    """PEFT's adapter is trained and sent; the base is frozen, and loaded by the engine itself."""

    def __init__(self, config: ExperimentConfig, mesh: DeviceMesh, device: torch.device) -> None:
        self._config, self._device = config, device
        policy = build_policy(config)
        self._base_digest = base_digest_of(ModuleSource(policy))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # PEFT draws A, the same on every rank
            wrapped = get_peft_model(policy, LoraConfig(**_peft_settings(config)))
        self.module: nn.Module = shard_policy(wrapped.get_base_model().to(device), mesh)

    def connect(self, client: EngineClient, transport: str, rank: int) -> tuple[AdapterSync, dict[str, Any]]:
        """The sync to this rank's engine, and what a record says of it. A collective."""
        options = self._config.sync_config(transport)
        tensors = self.adapter().tensors
        sync = AdapterSync.connect(self.adapter, client, options, rank=rank, device=self._device)
        return sync, {
            "slot_memory": sync.slot_memory,
            "collective": sync.collective,
            "payload_bytes": sum(tensor.nbytes for tensor in tensors.values()),
            "num_tensors": len(tensors),
        }

    def adapter(self) -> Adapter:
        """The adapter as it is now, gathered from all ranks."""
        tensors = {
            f"{PREFIX}{name.replace(f'.{_PEFT_NAME}.', '.')}": full_tensor(parameter)
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        config = AdapterConfig.from_peft(_peft_settings(self._config), self._config.dtype)
        return Adapter(config, tensors, self._base_digest)


def _peft_settings(config: ExperimentConfig) -> dict[str, Any]:
    return {
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": list(config.lora_targets),
    }
