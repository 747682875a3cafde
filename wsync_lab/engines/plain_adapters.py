"""Adapters over the linear layers of a plain torch module, for tests without vLLM."""

from typing import Any

import torch
from torch import nn

from wsync_lab.digest import tensor_digests
from wsync_lab.lora.manifest import AdapterManifest, AdapterTargets, module_of
from wsync_lab.protocol.receiver import Receiver

_MAX_RANK = 64


class PlainAdapters:
    """``lora.receiver.AdapterHost``: each linear layer adds ``scaling * B @ A`` of what is served."""

    def __init__(self, module: nn.Module, base: Receiver, device: torch.device) -> None:
        self.device = device
        self._linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
        self._base = base
        self._held: dict[int, tuple[AdapterManifest, dict[str, torch.Tensor]]] = {}
        self._served = 0
        for path, layer in self._linear.items():
            layer.register_forward_hook(self._hook(path))

    def faults(self, manifest: AdapterManifest) -> list[str]:
        modules = {path: (layer.out_features, layer.in_features) for path, layer in self._linear.items()}
        dtype = str(next(iter(self._linear.values())).weight.dtype).removeprefix("torch.")
        return AdapterTargets(modules, _MAX_RANK, dtype, self._base.base_digest).faults(manifest)

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        self._held[manifest.update_id] = manifest, tensors

    def discard(self, update_id: int) -> None:
        self._held.pop(update_id, None)

    def keep(self, update_id: int) -> None:
        self._held = {held: adapter for held, adapter in self._held.items() if held == update_id}
        self._served = update_id

    def served(self) -> tuple[int, dict[str, int], list[int]]:
        """(update_id, digests of the served tensors by name, every update_id that is held)."""
        _, tensors = self._held.get(self._served, (None, {}))
        digests = dict(zip(tensors, tensor_digests(list(tensors.values())), strict=True))
        return self._served, digests, sorted(self._held)

    def _hook(self, path: str) -> Any:
        def add(_: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
            if self._served == 0:
                return output
            manifest, tensors = self._held[self._served]
            matrices = {module_of(name): tensor for name, tensor in tensors.items()}
            if (path, "A") not in matrices:
                return output
            update = inputs[0] @ matrices[path, "A"].T @ matrices[path, "B"].T
            return output + update * manifest.config.scaling_of(path)

        return add
