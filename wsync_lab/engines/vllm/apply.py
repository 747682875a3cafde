"""How a vLLM worker takes new weights: in place, or by layerwise reload where it packs them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from wsync_lab.engines.load_plan import LearnedLoads, LoadPlan
from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.engines.vllm import compat
from wsync_lab.engines.vllm.checkpoint import expected_weights
from wsync_lab.errors import UpdateRejected
from wsync_lab.weights import TensorMeta

NamedTensors = Sequence[tuple[str, torch.Tensor]]


class InPlaceApplier(LearnedLoads):
    """Copies into the live parameters; see ``protocol.receiver.Applier``."""

    def __init__(self, model: nn.Module, vllm_config: VllmConfig, device: torch.device) -> None:
        self.device = device
        self._model: Any = model  # vLLM's models have load_weights
        self._vllm_config = vllm_config
        self._parameters: frozenset[str] = frozenset()
        self._loaded: set[str] = set()
        self._loaded_by: dict[int, set[str]] = {}  # bucket -> parameters
        self.plan = LoadPlan([module._parameters for module in model.modules()])

    @cached_property
    def _expected(self) -> ExpectedWeights:
        return expected_weights(self._vllm_config.model_config)

    def check(self, tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> list[str]:
        return self._expected.faults(tensors, aliases)

    @property
    def path(self) -> str:
        """How weights are applied, as records name it."""
        return self.plan.path

    def begin(self) -> None:
        if self.plan.begin():
            self._parameters = frozenset(name for name, _ in self._model.named_parameters())
        self._loaded = set()

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        replayed = super().replay(bucket, payload)
        if replayed:
            self._loaded |= self._loaded_by[bucket]
        return replayed

    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> AbstractContextManager[None]:
        return self._learning_names(bucket, super().learning(bucket, payload, num_bytes))

    @contextmanager
    def _learning_names(self, bucket: int, learning: AbstractContextManager[None]) -> Iterator[None]:
        before = set(self._loaded)
        with learning:
            yield
        self._loaded_by[bucket] = self._loaded - before

    def load(self, tensors: NamedTensors) -> None:
        with self._worker_context():
            self._loaded |= self._model.load_weights(iter(tensors)) or self._parameters

    def finish(self) -> None:
        """Raises ``UpdateRejected`` if vLLM's loader passed over a parameter."""
        left = sorted(self._parameters - self._loaded)
        if left and self._vllm_config.model_config.quantization is None:
            raise UpdateRejected(f"vLLM did not load {', '.join(left)}")

    def rollback(self) -> None:
        """Nothing to restore: parameters stay in place, and a full update overwrites them all."""

    @contextmanager
    def _worker_context(self) -> Iterator[None]:
        with torch.no_grad(), set_current_vllm_config(self._vllm_config):
            yield


class LayerwiseApplier(InPlaceApplier):
    """Reloads layer by layer: each is packed again when its last tensor has come."""

    @property
    def path(self) -> str:
        return "layerwise_reload"

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        """Never: what is packed from a tensor is no copy of it."""
        return False

    def learning(self, bucket: int, payload: torch.Tensor, num_bytes: int) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self) -> None:
        super().begin()
        with self._worker_context():
            initialize_layerwise_reload(self._model)

    def load(self, tensors: NamedTensors) -> None:
        super().load(tensors)
        slots = {tensor.untyped_storage().data_ptr() for _, tensor in tensors}
        for arguments in compat.pending_arguments(self._model):
            for name, value in arguments.arguments.items():
                if _lies_in(value, slots):
                    arguments.arguments[name] = value.clone()

    def finish(self) -> None:
        super().finish()
        self._finalize()
        # A tied head is packed from a parameter that its embedding loads, so reload passes over it.
        with self._worker_context():
            for head in compat.tied_heads(self._model):
                head.quant_method.process_weights_after_loading(head)

    def rollback(self) -> None:
        """Put complete kernel tensors back in every layer, old or new: reload can start again."""
        compat.forget_buffered_loads(self._model)
        self._finalize()

    def _finalize(self) -> None:
        with self._worker_context():
            finalize_layerwise_reload(self._model, self._vllm_config.model_config)


def applier_for(model: nn.Module, vllm_config: VllmConfig, device: torch.device) -> InPlaceApplier:
    """The applier that this engine's weights allow."""
    kind = InPlaceApplier if compat.holds_plain_weights(model) else LayerwiseApplier
    return kind(model, vllm_config, device)


def _lies_in(value: object, storages: set[int]) -> bool:
    """Whether ``value`` is a view of bytes that will be overwritten."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return False
    return value.untyped_storage().data_ptr() in storages
