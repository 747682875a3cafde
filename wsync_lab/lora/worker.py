"""What an inference worker exposes of its adapters to its engine."""

from collections.abc import Sequence
from typing import Any

from wsync_lab.lora.receiver import AdapterHost, AdapterReceiver
from wsync_lab.protocol.endpoint import WorkerEndpoint


class AdapterWorker:
    """The methods that ``engines.adapters`` calls on each worker, without their prefix."""

    def __init__(self, host: AdapterHost, rank: int = 0) -> None:
        self._host, self._rank = host, rank
        self._endpoint = WorkerEndpoint(AdapterReceiver(host), rank)

    def attach(self, addresses: Sequence[str]) -> None:
        """As ``WorkerEndpoint.attach``, at this worker's own address."""
        self._endpoint.attach(addresses[self._rank])

    def serve(self) -> dict[str, Any]:
        return self._endpoint.serve()

    def handle(self, message: bytes, payload: bytes | None = None) -> bytes:
        return self._endpoint.handle(message, payload)

    def outcome(self) -> dict[str, Any] | None:
        return self._endpoint.outcome()

    def detach(self) -> None:
        self._endpoint.detach()

    def keep(self, update_id: int) -> None:
        """See ``AdapterHost.keep``."""
        self._host.keep(update_id)
