"""A minimal engine for protocol tests: named tensors that updates are copied into."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wsync_lab.packing import as_bytes
from wsync_lab.protocol.endpoint import WorkerEndpoint
from wsync_lab.protocol.receiver import LoadsOnly, Receiver
from wsync_lab.weights import TensorMeta


class DictApplier(LoadsOnly):
    """Takes any manifest; ``faults`` makes it misbehave where a test asks for it."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.live: dict[str, torch.Tensor] = {}
        self.incoming: dict[str, torch.Tensor] = {}
        self.events: list[str] = []
        self.reject: list[str] = []
        self.fail_at = ""
        self.delay_s = 0.0
        self.loads = 0

    def check(self, tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> list[str]:
        return self.reject

    def begin(self) -> None:
        self.loads = 0
        self.incoming = {}
        self._event("begin")

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.loads += 1
        self._event(f"load{self.loads}")
        time.sleep(self.delay_s)
        self.incoming |= {name: tensor.clone() for name, tensor in tensors}

    def finish(self) -> None:
        self._event("finish")
        self.live = self.incoming

    def rollback(self) -> None:
        self.events.append("rollback")
        self.live = {}

    def _event(self, name: str) -> None:
        self.events.append(name)
        if name == self.fail_at:
            raise RuntimeError(f"planted fault at {name}")


class DictEngine:
    """The engine methods that a trainer calls, over a ``DictApplier``; for ``ProcessEngine``."""

    def __init__(self) -> None:
        self.applier = DictApplier()
        self.endpoint = WorkerEndpoint(Receiver(self.applier))
        self.attach, self.handle, self.detach = (
            self.endpoint.attach,
            self.endpoint.handle,
            self.endpoint.detach,
        )

    def serve(self) -> dict[str, Any]:
        return self.endpoint.serve() | {"pause_s": 0.0, "resume_s": 0.0}

    def outcome(self) -> dict[str, Any]:
        return (self.endpoint.outcome() or {}) | {"pause_s": 0.0, "resume_s": 0.0}

    def plant(self, attribute: str, value: Any) -> None:
        setattr(self.applier, attribute, value)

    def version(self) -> int:
        return self.endpoint.weight_version

    def events(self) -> list[str]:
        return self.applier.events

    def live_bytes(self) -> dict[str, tuple[str, list[int], bytes]]:
        """What the engine serves: dtype, shape and stored bytes by name."""
        return {
            name: (str(tensor.dtype), list(tensor.shape), as_bytes(tensor).numpy().tobytes())
            for name, tensor in self.applier.live.items()
        }


def expected_bytes(weights: dict[str, torch.Tensor]) -> dict[str, list[Any]]:
    """``live_bytes`` of an engine that holds exactly ``weights``, as it arrives over the pipe."""
    return {
        name: [str(tensor.dtype), list(tensor.shape), as_bytes(tensor).numpy().tobytes()]
        for name, tensor in weights.items()
    }
