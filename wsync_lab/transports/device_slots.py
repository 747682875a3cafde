"""Staging slots in device memory that trainer and worker both map; what differs is how."""

from collections.abc import Sequence
from functools import cached_property

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import ProtocolError, TransportUnavailable
from wsync_lab.packing import Plan, align
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter, synchronize
from wsync_lab.transports.device_memory import DeviceMemory, as_tensor, device_uuid


def ring_bytes(plan: Plan, num_slots: int) -> int:
    """What ``num_slots`` slots, each for the fullest bucket, take."""
    return num_slots * align(plan.high_water_bytes)


def check_same_gpu(offer: SlotOffer, device: torch.device) -> None:
    """Raises ``TransportUnavailable`` unless the slots lie on the GPU that ``device`` is."""
    here = device_uuid(device)
    if offer.device_uuid != here:
        raise TransportUnavailable(
            f"the trainer's slots lie on GPU {offer.device_uuid}, this worker computes on {here}: "
            "place both on one GPU, or use nccl or pinned"
        )


class DeviceSlots:
    """The ring as tensors over ``memory``, which it owns."""

    def __init__(self, memory: DeviceMemory, plan: Plan, device: torch.device) -> None:
        self._memory, self._device = memory, device
        self._stride = align(plan.high_water_bytes)

    @cached_property
    def _bytes(self) -> torch.Tensor:
        return as_tensor(self._memory.pointer, self._memory.num_bytes, self._device)

    def slot(self, index: int) -> torch.Tensor:
        """Slot ``index`` as 1-D uint8."""
        if not self._memory.pointer:
            raise ProtocolError("the staging slots are closed")
        return self._bytes[index * self._stride : (index + 1) * self._stride]

    def close(self) -> None:
        """Unmap once nothing on the device uses the slots any more."""
        if self._memory.pointer:
            torch.cuda.synchronize(self._device)
        with torch.cuda.device(self._device):
            self._memory.close()


class DeviceWriter(SlotWriter):
    """Trainer end. ``publish`` waits for the pack: a notice says that the bytes are there."""

    def __init__(
        self, slots: DeviceSlots, slot_memory: str, device: torch.device, fds: Sequence[int], handle: bytes
    ) -> None:
        self._slots, self._device, self._fds = slots, device, fds
        self.slot_memory, self.handle = slot_memory, handle
        self.device_uuid = device_uuid(device)

    def fds(self) -> Sequence[int]:
        return self._fds

    def slot(self, index: int) -> torch.Tensor:
        return self._slots.slot(index)

    def publish(self, index: int, num_bytes: int) -> None:
        synchronize(self._device)

    def close(self) -> None:
        close_all(self._fds)
        self._fds = ()
        self._slots.close()


class DeviceReader(SlotReader):
    """Worker end: views of the slots. ``release`` waits until the device has read them."""

    def __init__(self, slots: DeviceSlots, device: torch.device) -> None:
        self._slots, self._device = slots, device

    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        return self._slots.slot(index)[:num_bytes]

    def release(self) -> None:
        synchronize(self._device)

    def close(self) -> None:
        self._slots.close()
