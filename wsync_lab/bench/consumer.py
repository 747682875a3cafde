"""The receiving end of a benchmark: named tensors in a process of their own."""

from typing import Any

import torch

from wsync_lab.bench.memory import Peak
from wsync_lab.digest import tensor_digest
from wsync_lab.engines.in_place import TensorApplier
from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.packing import as_bytes
from wsync_lab.protocol.endpoint import WorkerEndpoint
from wsync_lab.protocol.receiver import Receiver
from wsync_lab.weights import TensorMeta


class TensorEngine:
    """For ``ProcessEngine``: what a trainer calls of an engine, and the checks of a benchmark.

    ``aliases`` are names that are live too, each tied to one of ``tensors``.
    """

    def __init__(
        self, tensors: list[tuple[str, str, list[int]]], device: str, aliases: dict[str, str] | None = None
    ) -> None:
        metas = [TensorMeta(name, dtype, tuple(shape)) for name, dtype, shape in tensors]
        where = torch.device(device)
        live = {meta.name: torch.zeros(meta.shape, dtype=meta.torch_dtype, device=where) for meta in metas}
        live |= {alias: live[name] for alias, name in (aliases or {}).items()}
        expected = ExpectedWeights({meta.name: meta for meta in metas}, aliases or {})
        self._applier = TensorApplier(live, expected, where)
        endpoint = WorkerEndpoint(Receiver(self._applier))
        self._endpoint, self._peak = endpoint, Peak(self._applier.device)
        self.attach, self.detach, self.handle = endpoint.attach, endpoint.detach, endpoint.handle

    def serve(self) -> dict[str, Any]:
        return self._endpoint.serve() | {"pause_s": 0.0, "resume_s": 0.0}

    def outcome(self) -> dict[str, Any]:
        return (self._endpoint.outcome() or {}) | {"pause_s": 0.0, "resume_s": 0.0}

    def digests(self) -> dict[str, int]:
        """Of what is live now, by name."""
        return {name: tensor_digest(tensor) for name, tensor in self._applier.live.items()}

    def stored_bytes(self) -> dict[str, bytes]:
        """What is live now, by name: for payloads small enough to send back."""
        return {name: as_bytes(tensor).cpu().numpy().tobytes() for name, tensor in self._applier.live.items()}

    def describe(self) -> dict[str, Any]:
        return {
            "engine": "torch",
            "engine_version": str(torch.__version__),
            "apply_path": self._applier.plan.path,
        }

    def reset_peak(self) -> None:
        self._peak.reset()

    def memory(self) -> tuple[int, int]:
        """(bytes in use now, most bytes above those at ``reset_peak``)."""
        return self._peak.now(), self._peak.extra()

    def close(self) -> None:
        self._endpoint.detach()
