"""An engine that only holds adapters, for payloads of any names and shapes."""

from typing import Any

import torch

from wsync_lab.digest import tensor_digests
from wsync_lab.engines.adapters import ServesAdapters
from wsync_lab.lora.manifest import AdapterManifest, AdapterTargets
from wsync_lab.lora.worker import AdapterWorker


class AdapterStore:
    """``lora.receiver.AdapterHost`` of modules that are given by path: (out, in) features."""

    def __init__(self, targets: AdapterTargets, device: torch.device) -> None:
        self.device = device
        self._targets = targets
        self.held: dict[int, dict[str, torch.Tensor]] = {}

    def faults(self, manifest: AdapterManifest) -> list[str]:
        return self._targets.faults(manifest)

    def stage(self, manifest: AdapterManifest, tensors: dict[str, torch.Tensor]) -> None:
        self.held[manifest.update_id] = tensors

    def discard(self, update_id: int) -> None:
        self.held.pop(update_id, None)

    def keep(self, update_id: int) -> None:
        self.held = {held: tensors for held, tensors in self.held.items() if held == update_id}


class AdapterStoreEngine(ServesAdapters):
    """For ``ProcessEngine``. ``modules`` are [path, out, in]; the base is ``base_digest``."""

    def __init__(
        self, modules: list[tuple[str, int, int]], max_rank: int, dtype: str, base_digest: str, device: str
    ) -> None:
        super().__init__()
        shapes = {path: (out_features, in_features) for path, out_features, in_features in modules}
        targets = AdapterTargets(shapes, max_rank, dtype, base_digest)
        self._store = AdapterStore(targets, torch.device(device))
        self._worker = AdapterWorker(self._store)

    def digests(self) -> dict[str, int]:
        """Of the served adapter's tensors, by name."""
        tensors = self._store.held.get(self.update_id, {})
        return dict(zip(tensors, tensor_digests(list(tensors.values())), strict=True))

    def describe(self) -> dict[str, Any]:
        return {"engine": "torch", "engine_version": str(torch.__version__), "apply_path": "shadow adapter"}

    def _workers(self, method: str, *args: Any) -> list[Any]:
        return [getattr(self._worker, method.removeprefix("adapter_"))(*args)]
