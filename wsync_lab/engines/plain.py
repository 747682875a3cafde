"""A plain torch module as an inference engine: no vLLM, one process, for fast tests."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from wsync_lab.engines.base import Completion, Engine, Sampling
from wsync_lab.engines.in_place import TensorApplier
from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.engines.plain_adapters import PlainAdapters
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.worker import AdapterWorker
from wsync_lab.protocol.endpoint import WorkerEndpoint
from wsync_lab.protocol.receiver import Receiver
from wsync_lab.weights import ModuleSource


def applier_of(module: nn.Module) -> TensorApplier:
    """Updates go into the parameters of ``module`` in place."""
    parameters = dict(module.named_parameters())
    return TensorApplier(parameters, ExpectedWeights.of(module), next(module.parameters()).device)


class PlainEngine(Engine):
    """``module`` maps token ids (1, T) to logits (1, T, V), or to an object with ``logits``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module.eval()
        self._applier = applier_of(module)
        self._receiver = Receiver(self._applier)
        self._endpoint = WorkerEndpoint(self._receiver)
        self._adapters = PlainAdapters(module, self._receiver, self._applier.device)
        self._adapter_worker = AdapterWorker(self._adapters)

    def describe(self) -> dict[str, Any]:
        return {
            "engine": "plain",
            "engine_version": str(torch.__version__),
            "device": self._applier.device.type,
            "dtype": str(next(self._module.parameters()).dtype).removeprefix("torch."),
            "apply_path": self._applier.plan.path,
        }

    def close(self) -> None:
        self._endpoint.detach()
        self._adapter_worker.detach()

    def adapters(self) -> tuple[int, dict[str, int], list[int]]:
        """See ``PlainAdapters.served``."""
        return self._adapters.served()

    def _own_digest(self) -> str:
        return base_digest_of(ModuleSource(self._module))

    def _workers(self, method: str, *args: Any) -> list[Any]:
        if method == "adopt":
            (self._receiver.base_digest,) = args
            return [None]
        of_adapters = method.startswith("adapter_")
        worker: Any = self._adapter_worker if of_adapters else self._endpoint
        return [getattr(worker, method.removeprefix("adapter_"))(*args)]

    def _reset_prefix_cache(self) -> bool:
        return True

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return [
            self._complete(index, prompt, sampling, sample)
            for index, prompt in enumerate(prompts)
            for sample in range(sampling.n)
        ]

    @torch.no_grad()
    def _complete(self, index: int, prompt: Sequence[int], sampling: Sampling, sample: int) -> Completion:
        seed = sampling.seed_of(index)
        generator = None if seed is None else torch.Generator().manual_seed(seed + sample)
        token_ids: list[int] = []
        logprobs: list[float] = []
        for _ in range(sampling.max_tokens):
            distribution = self._next_logprobs([*prompt, *token_ids])
            token_ids.append(_pick(distribution, sampling.temperature, generator))
            logprobs.append(distribution[token_ids[-1]].item())
        return Completion(index, token_ids, logprobs, self.gate.weight_version, self.update_id)

    def _next_logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """Log-probabilities (V,) of the token after ``token_ids``, on the CPU in float32."""
        output = self._module(torch.tensor([token_ids], device=self._applier.device))
        logits: torch.Tensor = getattr(output, "logits", output)
        return logits[0, -1].float().log_softmax(-1).cpu()


def _pick(logprobs: torch.Tensor, temperature: float, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(logprobs.argmax())
    weights = (logprobs / temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=generator))
