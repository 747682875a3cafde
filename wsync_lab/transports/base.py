"""The contract of a transport: bytes only, through persistent staging slots.

A transport knows nothing of names, versions or commits. Its two ends are created once, at
init, from the plan and the number of slots; nothing is allocated or exported afterwards. The
update protocol guarantees the order: the trainer fills a slot and publishes it; the worker
reads and releases it; only then does the trainer fill it again.

Each transport is a module with two functions:

    open_writer(plan, num_slots, device) -> SlotWriter
        Allocates the slots, each for the fullest bucket of the plan.
    open_reader(plan, offer, fds, device) -> SlotReader
        Maps them. It owns, and closes, ``fds``, also when it fails.

Both raise ``TransportUnavailable`` with what is missing on this machine, and the remedy.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import torch


class SlotOffer(msgspec.Struct, frozen=True):
    """What the worker must know to build its end; descriptors travel beside it.

    Attributes:
        slot_memory: what the slots are made of, as records name it.
        rendezvous: where the ends of a collective meet, ``host:port``, or empty.
        held: False when both ends give the slots' memory back between updates.
        device_uuid: the GPU that holds the slots, or empty.
        handle: what maps the slots where no descriptor does, or empty.
    """

    transport: str
    num_slots: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    slot_memory: str
    rendezvous: str = ""
    held: bool = True
    device_uuid: str = ""
    handle: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""

    @classmethod
    def of(cls, transport: str, num_slots: int, writer: "SlotWriter", *, held: bool = True) -> "SlotOffer":
        """What ``writer`` offers."""
        return cls(
            transport,
            num_slots,
            writer.slot_memory,
            writer.rendezvous,
            held,
            writer.device_uuid,
            writer.handle,
        )


class SlotWriter(ABC):
    """Trainer end: owns the staging slots.

    Attributes:
        slot_memory: what the slots are made of, as records name it.
        collective: the collective library that carries the bytes, or None.
        rendezvous: see ``SlotOffer``.
        one_rpc_per_bucket: True when the payload travels inside the engine's RPC.
        device_uuid, handle: see ``SlotOffer``.
        can_give_back: True when the slots' memory can be given back between updates.
    """

    slot_memory: str
    collective: str | None = None
    rendezvous: str = ""
    one_rpc_per_bucket: bool = False
    device_uuid: str = ""
    handle: bytes = b""
    can_give_back: bool = False

    def fds(self) -> Sequence[int]:
        """Descriptors that the worker needs to map the slots; they stay owned by this end."""
        return ()

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        """Meet the worker's end, which joins at the same time; nothing to do if they have met.

        Called when the offer was accepted, and when an update starts. ``check_peer`` raises
        ``PeerLost`` once the other process is gone.
        """

    def reset(self) -> None:
        """An update ended early on both ends: forget the transfers that nobody will receive."""

    def take(self) -> None:
        """An update starts: put memory behind the slots that ``give_back`` emptied."""

    def give_back(self) -> None:
        """The update ended, on the worker's end too: free the slots' memory. What is mapped and
        exported stays so; contents are lost. Safe to call twice."""

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

    def __del__(self) -> None:
        _close_dropped(self)


class SlotReader(ABC):
    """Worker end: maps the trainer's slots once."""

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        """As in ``SlotWriter``."""

    def reset(self) -> None:
        """As in ``SlotWriter``."""

    def take(self) -> None:
        """As in ``SlotWriter``, after the trainer's end."""

    def give_back(self) -> None:
        """As in ``SlotWriter``, before the trainer's end."""

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

    def __del__(self) -> None:
        _close_dropped(self)


def _close_dropped(end: SlotWriter | SlotReader) -> None:
    """An end that nobody closed, after an error say, must not leave descriptors open, nor memory
    that is unmapped while the driver still has it registered."""
    with contextlib.suppress(Exception):  # it may not have been built to its end
        end.close()


def synchronize(device: torch.device) -> None:
    """Wait for everything queued on the device's current stream; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
