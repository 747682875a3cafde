"""``cuda_vmm``: device to device through VMM slots whose descriptor travels by ``SCM_RIGHTS``.

Memory: the trainer owns one ``cuMemCreate`` allocation with all slots; its POSIX descriptor goes
to the worker once, over the channel, and is mapped once. The physical memory lives until both
ends have let go of it. A slot may be reused after the worker's ``SlotFree``, sent when its device
has finished reading (stream synchronise on each side; nothing is ordered by luck). Copies: two,
into the slot and out of it. Peak extra bytes: the slots, rounded up to 2 MiB. One GPU only,
matched by UUID. Needs unix sockets and the driver's virtual memory management; no CUDA IPC, no
``pidfd_getfd``.

On a host without GPU the same control flow runs over a memfd: a descriptor, sent once, mapped
once, views read in place. Records then say ``slot_memory: memfd``; it is no measurement of a GPU.
"""

from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import ProtocolError
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter
from wsync_lab.transports.device_memory import VmmMemory
from wsync_lab.transports.device_slots import (
    DeviceReader,
    DeviceSlots,
    DeviceWriter,
    check_same_gpu,
    ring_bytes,
)
from wsync_lab.transports.host_slots import HostReader, HostWriter


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    if device.type != "cuda":
        return HostWriter(plan, num_slots, device)
    with torch.cuda.device(device):
        memory = VmmMemory(ring_bytes(plan, num_slots), device)
        fd = memory.export()
    return DeviceWriter(DeviceSlots(memory, plan, device), "cuda_vmm", device, (fd,), b"")


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    if device.type != "cuda":
        return HostReader(plan, offer, fds, device)
    try:
        if len(fds) != 1:
            raise ProtocolError(f"the offer needs 1 descriptor, {len(fds)} came")
        check_same_gpu(offer, device)
        with torch.cuda.device(device):
            memory = VmmMemory(ring_bytes(plan, offer.num_slots), device, fds[0])
    finally:
        close_all(fds)
    return DeviceReader(DeviceSlots(memory, plan, device), device)
