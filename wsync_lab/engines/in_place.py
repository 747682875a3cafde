"""Weights that stay where they are: updates are copied into plain tensors."""

from collections.abc import Mapping, Sequence

import torch

from wsync_lab.engines.load_plan import LearnedLoads, LoadPlan
from wsync_lab.engines.manifest import ExpectedWeights
from wsync_lab.weights import TensorMeta


class TensorApplier(LearnedLoads):
    """Copies into ``live``, tensors by name; see ``protocol.receiver.Applier``.

    Args:
        device: where the tensors are.
    """

    def __init__(
        self, live: Mapping[str, torch.Tensor], expected: ExpectedWeights, device: torch.device
    ) -> None:
        self.live, self.device = live, device
        self._expected = expected
        self.plan = LoadPlan([live])

    def check(self, tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> list[str]:
        return self._expected.faults(tensors, aliases)

    def begin(self) -> None:
        self.plan.begin()

    @torch.no_grad()
    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            self.live[name].copy_(tensor, non_blocking=True)

    def finish(self) -> None:
        """Every tensor was copied: there is nothing left to do."""

    def rollback(self) -> None:
        """Nothing to restore: tensors stay in place, and a full update overwrites them all."""
