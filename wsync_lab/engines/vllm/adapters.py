"""How a vLLM worker holds adapters that came by an update: in memory, with no file behind them.

vLLM keeps adapters in two caches that evict the least recently used: those it knows, and those
in the slots that its kernels read. It loads what it does not know from the path of a request,
and dies where there is nothing. So ours are pinned among the known; a request names one that is
held, or is not made. Caches of keys and values are indexed by an adapter's name: each update
has a name of its own.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

from wsync_lab.engines.vllm import compat
from wsync_lab.engines.vllm.checkpoint import expected_weights
from wsync_lab.errors import UpdateRejected
from wsync_lab.lora.manifest import AdapterManifest, AdapterTargets
from wsync_lab.protocol.receiver import Receiver

_IDS = (1 << 31) - 1  # vLLM keeps an adapter's id in 32 bits in places


def request_of(update_id: int) -> LoRARequest:
    """How a request names the adapter of ``update_id``; its path is never read."""
    name = f"wsync-{update_id}"
    return LoRARequest(name, 1 + update_id % _IDS, lora_path=name)


class VllmAdapters:
    """``lora.receiver.AdapterHost`` of one worker whose engine was started with LoRA enabled."""

    def __init__(
        self, worker_manager: Any, vllm_config: VllmConfig, base: Receiver, device: torch.device
    ) -> None:
        self.device = device
        self._manager: Any = worker_manager._adapter_manager
        self._vllm_config, self._base = vllm_config, base
        self._held: set[int] = set()

    def faults(self, manifest: AdapterManifest) -> list[str]:
        lora = self._vllm_config.lora_config
        dtype = str(lora.lora_dtype).removeprefix("torch.")
        targets = AdapterTargets(self._modules, lora.max_lora_rank, dtype, self._base.base_digest)
        return targets.faults(manifest)

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        identity = request_of(manifest.update_id).lora_int_id
        if identity in self._manager.list_adapters():
            raise UpdateRejected(
                f"adapter {manifest.update_id} would take another's id: take a new update_id"
            )
        model = LoRAModel.from_lora_tensors(
            lora_model_id=identity,
            tensors=tensors,
            peft_helper=PEFTHelper.from_dict(manifest.config.to_peft()),
            device=str(self.device),
            dtype=self._vllm_config.lora_config.lora_dtype,
            weights_mapper=compat.rename_mapper(self._manager.model),
        )
        self._held.add(manifest.update_id)
        self._manager.add_adapter(model)
        self._manager._registered_adapters.pin(identity)
        self._manager.activate_adapter(identity)

    def discard(self, update_id: int) -> None:
        self._manager.remove_adapter(request_of(update_id).lora_int_id)
        self._held.discard(update_id)

    def keep(self, update_id: int) -> None:
        for held in self._held - {update_id}:
            self.discard(held)

    @cached_property
    def _modules(self) -> Mapping[str, tuple[int, int]]:
        """Every linear layer that vLLM can adapt, by its checkpoint path: (out, in) unsharded."""
        weights = expected_weights(self._vllm_config.model_config).tensors
        shapes = {}
        for path, layer in self._manager.modules.items():
            if isinstance(layer, BaseLinearLayerWithLoRA):
                for module in self._manager.packed_modules.get(path, [path]):
                    if f"{module}.weight" in weights:
                        out_features, in_features = weights[f"{module}.weight"].shape
                        shapes[module] = (out_features, in_features)
        return shapes
