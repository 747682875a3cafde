"""What the adapter adds to vLLM's worker, by ``worker_extension_cls``."""

from collections.abc import Callable
from typing import Any

import torch

from wsync_lab.digest import tensor_digest
from wsync_lab.engines.vllm.adapters import VllmAdapters
from wsync_lab.engines.vllm.apply import InPlaceApplier, applier_for
from wsync_lab.errors import ConfigError, WsyncError
from wsync_lab.lora.worker import AdapterWorker
from wsync_lab.protocol.endpoint import WorkerEndpoint
from wsync_lab.protocol.receiver import Receiver

Answer = tuple[str, Any]


class WsyncWorkerExtension:
    """Methods for ``collective_rpc``, each one call of this worker's ``WorkerEndpoint``.

    An ``Answer`` is ("", value) or (name of a ``WsyncError``, text): vLLM would pass on an
    exception's text only.
    """

    vllm_config: Any
    model_runner: Any
    device: torch.device
    rank: int
    _wsync_state: tuple[WorkerEndpoint, InPlaceApplier, Receiver] | None = None
    _wsync_adapter_worker: AdapterWorker | None = None

    def wsync_attach(self, address: str) -> Answer:
        return _answer(lambda: self._wsync_endpoint().attach(address))

    def wsync_serve(self) -> Answer:
        return _answer(lambda: self._wsync_endpoint().serve())

    def wsync_handle(self, message: bytes, payload: bytes | None = None) -> Answer:
        return _answer(lambda: self._wsync_endpoint().handle(message, payload))

    def wsync_outcome(self) -> Answer:
        return _answer(lambda: self._wsync_endpoint().outcome())

    def wsync_detach(self) -> Answer:
        return _answer(lambda: self._wsync_endpoint().detach())

    def wsync_adopt(self, base_digest: str) -> Answer:
        """The engine was started with the weights of this digest."""
        return _answer(lambda: setattr(self._wsync()[2], "base_digest", base_digest))

    def wsync_adapter(self, method: str, *args: Any) -> Answer:
        """One call of this worker's ``AdapterWorker``."""
        return _answer(lambda: getattr(self._wsync_adapters(), method)(*args))

    def wsync_digests(self) -> Answer:
        parameters = self.model_runner.get_model().named_parameters()
        return _answer(lambda: {name: tensor_digest(parameter) for name, parameter in parameters})

    def wsync_describe(self) -> Answer:
        return _answer(
            lambda: {
                "device": self.device.type,
                "dtype": str(self.vllm_config.model_config.dtype).removeprefix("torch."),
                "apply_path": self._wsync()[1].path,
            }
        )

    def _wsync_endpoint(self) -> WorkerEndpoint:
        return self._wsync()[0]

    def _wsync(self) -> tuple[WorkerEndpoint, InPlaceApplier, Receiver]:
        if self._wsync_state is None:
            applier = applier_for(self.model_runner.get_model(), self.vllm_config, self.device)
            receiver = Receiver(applier)
            self._wsync_state = WorkerEndpoint(receiver, self.rank), applier, receiver
        return self._wsync_state

    def _wsync_adapters(self) -> AdapterWorker:
        if self.vllm_config.lora_config is None:
            raise ConfigError("this vLLM was started without LoRA: give VllmOptions a max_lora_rank")
        if self._wsync_adapter_worker is None:
            manager, receiver = self.model_runner.lora_manager, self._wsync()[2]
            host = VllmAdapters(manager, self.vllm_config, receiver, self.device)
            self._wsync_adapter_worker = AdapterWorker(host, self.rank)
        return self._wsync_adapter_worker


def _answer(call: Callable[[], Any]) -> Answer:
    try:
        return "", call()
    except WsyncError as error:
        return type(error).__name__, str(error)
