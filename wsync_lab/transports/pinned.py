"""``pinned``: through page-locked host memory that trainer and worker both map.

Memory: the trainer owns one memfd with all slots; its descriptor goes to the worker once, over
the channel (``SCM_RIGHTS``). A slot may be reused after the worker's ``SlotFree``, sent when its
device has finished reading. Copies: D2H into the slot, H2D out of it; without a GPU the slot is
plain shared memory and the worker reads views of it. Peak extra bytes: the slots, and on a GPU
one bucket on the worker's device. Same node only. Needs ``memfd_create``, unix sockets and, on
a GPU, ``cudaHostRegister`` on both sides; no CUDA IPC, no ``pidfd_getfd``, no /dev/shm.
"""

import os
from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import ProtocolError
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotReader, SlotWriter
from wsync_lab.transports.host_slots import HostSlots, create_memfd


class Writer(SlotWriter):
    def __init__(self, plan: Plan, num_slots: int, device: torch.device) -> None:
        self._device = device
        self._fd = create_memfd(num_slots, plan.high_water_bytes)
        try:
            self._slots = HostSlots(self._fd, num_slots, plan.high_water_bytes, device)
        except BaseException:
            os.close(self._fd)
            raise
        self.slot_memory = "registered_memfd" if self._slots.registered else "memfd"

    def fds(self) -> Sequence[int]:
        return (self._fd,)

    def slot(self, index: int) -> torch.Tensor:
        return self._slots.slot(index)

    def publish(self, index: int, num_bytes: int) -> None:
        _synchronize(self._device)

    def close(self) -> None:
        self._slots.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Reader(SlotReader):
    def __init__(self, plan: Plan, num_slots: int, fds: Sequence[int], device: torch.device) -> None:
        try:
            if len(fds) != 1:
                raise ProtocolError(f"transport 'pinned' needs 1 descriptor, {len(fds)} came")
            self._slots = HostSlots(fds[0], num_slots, plan.high_water_bytes, device)
        finally:
            close_all(fds)
        self._device = device
        on_gpu = plan.high_water_bytes if device.type == "cuda" else 0
        self._bucket = torch.empty(on_gpu, dtype=torch.uint8, device=device)

    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        view = self._slots.slot(index)[:num_bytes]
        if self._device.type != "cuda":
            return view
        self._bucket[:num_bytes].copy_(view, non_blocking=True)
        return self._bucket[:num_bytes]

    def release(self) -> None:
        _synchronize(self._device)

    def close(self) -> None:
        self._slots.close()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
