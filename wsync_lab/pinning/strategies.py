"""How the trainer flattens a bucket before it exports it: what is done today, the fix, and its faults.

Each strategy returns, for the groups of one bucket, the flat tensors to export. All of a
bucket's are made before the first is sent: what shares memory is overwritten.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from wsync_lab.errors import ConfigError
from wsync_lab.packing import as_bytes

Tensors = Sequence[torch.Tensor]


class Strategy(ABC):
    """``bounds`` are ``bound.staging_bytes``; ``device`` is where the weights are."""

    def __init__(self, bounds: Mapping[str, int], device: torch.device) -> None:
        self._bounds, self._device = dict(bounds), device

    @abstractmethod
    def flatten(self, groups: Sequence[tuple[str, Tensors]]) -> list[torch.Tensor]:
        """One flat uint8 tensor a group (a dtype and its tensors), in their order."""

    def _new(self, num_bytes: int) -> torch.Tensor:
        """Memory that another process can map."""
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return memory if memory.is_cuda else memory.share_memory_()


class Fresh(Strategy):
    """A new flat tensor every time: it lives for as long as the engine keeps the mapping."""

    def flatten(self, groups: Sequence[tuple[str, Tensors]]) -> list[torch.Tensor]:
        return [_fill(self._new(_size(tensors)), tensors) for _, tensors in groups]


class Staged(Strategy):
    """One buffer a parameter dtype, of the bound's size, for good: nothing is exported twice."""

    def __init__(self, bounds: Mapping[str, int], device: torch.device) -> None:
        super().__init__(bounds, device)
        self._buffers = {dtype: self._new(num_bytes) for dtype, num_bytes in self._bounds.items()}

    def flatten(self, groups: Sequence[tuple[str, Tensors]]) -> list[torch.Tensor]:
        return [_fill(self._buffers[dtype][: _size(tensors)], tensors) for dtype, tensors in groups]


class StagedByFlatDtype(Staged):
    """The wrong key: flat tensors are all uint8, so the groups of a bucket share one buffer."""

    def __init__(self, bounds: Mapping[str, int], device: torch.device) -> None:
        largest = max(bounds.values(), default=0)
        super().__init__({"uint8": largest}, device)

    def flatten(self, groups: Sequence[tuple[str, Tensors]]) -> list[torch.Tensor]:
        return super().flatten([("uint8", tensors) for _, tensors in groups])


class Grow(Strategy):
    """Grows when a group does not fit: the engine still maps what was exported before."""

    def __init__(self, bounds: Mapping[str, int], device: torch.device) -> None:
        super().__init__(bounds, device)
        self._buffers: dict[str, torch.Tensor] = {}

    def flatten(self, groups: Sequence[tuple[str, Tensors]]) -> list[torch.Tensor]:
        return [_fill(self._fitting(dtype, _size(tensors)), tensors) for dtype, tensors in groups]

    def _fitting(self, dtype: str, num_bytes: int) -> torch.Tensor:
        buffer = self._buffers.get(dtype)
        if buffer is None or buffer.numel() < num_bytes:
            buffer = self._buffers[dtype] = self._new(num_bytes)
        return buffer[:num_bytes]


STRATEGIES: dict[str, type[Strategy]] = {
    "fresh": Fresh,
    "staged": Staged,
    "staged_by_flat_dtype": StagedByFlatDtype,
    "grow": Grow,
}


def strategy(name: str, bounds: Mapping[str, int], device: torch.device) -> Strategy:
    """Raises ``ConfigError`` for an unknown name."""
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name](bounds, device)


def _size(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _fill(flat: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        flat[start:end].copy_(as_bytes(tensor))
    return flat
