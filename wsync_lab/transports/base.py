"""The contract of a transport: bytes only, through persistent staging slots.

A transport knows nothing of names, versions or commits. Its two ends are created once, at
init, from the plan and the number of slots; nothing is allocated or exported afterwards. The
update protocol guarantees the order: the trainer fills a slot and publishes it; the worker
reads and releases it; only then does the trainer fill it again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from wsync_lab.packing import Plan


class SlotWriter(ABC):
    """Trainer end: owns the staging slots.

    Attributes:
        slot_memory: what the slots are made of, as records name it.
        collective: the collective library that carries the bytes, or None.
        one_rpc_per_bucket: True when the payload travels inside the engine's RPC.
    """

    slot_memory: str
    collective: ClassVar[str | None] = None
    one_rpc_per_bucket: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, plan: Plan, num_slots: int, device: torch.device) -> None:
        """Allocate ``num_slots`` slots for the fullest bucket of ``plan``.

        Raises:
            TransportUnavailable: names what is missing here, and the remedy.
        """

    @abstractmethod
    def fds(self) -> Sequence[int]:
        """Descriptors that the worker needs to map the slots; they stay owned by this end."""

    @abstractmethod
    def slot(self, index: int) -> torch.Tensor:
        """Slot ``index`` as 1-D uint8, to be packed into."""

    @abstractmethod
    def publish(self, index: int, num_bytes: int) -> bytes | None:
        """Complete all writes to the slot, so that the worker may read it after the notice.

        Returns the payload itself where it travels in the RPC, else None.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything; the worker's own mappings stay valid. Safe to call twice."""


class SlotReader(ABC):
    """Worker end: maps the trainer's slots once."""

    @abstractmethod
    def __init__(self, plan: Plan, num_slots: int, fds: Sequence[int], device: torch.device) -> None:
        """Map the slots. ``fds`` are owned, and closed, by this end, also on failure."""

    @abstractmethod
    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        """The first ``num_bytes`` of slot ``index`` as 1-D uint8 on this end's device.

        Valid until ``release()``.
        """

    @abstractmethod
    def release(self) -> None:
        """Return once the device has finished reading what ``read`` returned."""

    @abstractmethod
    def close(self) -> None:
        """Unmap. Safe to call twice."""
