"""``cuda_ipc``: device to device through a slot from plain cudaMalloc and its legacy IPC handle.

Memory: the trainer owns one ``cuMemAlloc`` allocation with all slots, never torch's (an expandable
segment has no legacy handle, and torch's own IPC of it needs ``pidfd_getfd``). The handle is
exported once and opened once; no reference-counter file exists. A slot may be reused after the
worker's ``SlotFree``, sent when its device has finished reading (stream synchronise on each side).
Copies: two. Peak extra bytes: the slots. One GPU only, matched by UUID. Needs legacy CUDA IPC.

There is no stand-in for it on a host: without a GPU it says so.
"""

from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import TransportUnavailable
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter
from wsync_lab.transports.device_memory import IpcMemory, OpenedIpcMemory
from wsync_lab.transports.device_slots import (
    DeviceReader,
    DeviceSlots,
    DeviceWriter,
    check_same_gpu,
    ring_bytes,
)


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    _check_device(device)
    with torch.cuda.device(device):
        memory = IpcMemory(ring_bytes(plan, num_slots))
        handle = memory.export()
    return DeviceWriter(DeviceSlots(memory, plan, device), "cuda_malloc", device, (), handle)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    close_all(fds)
    _check_device(device)
    check_same_gpu(offer, device)
    with torch.cuda.device(device):
        memory = OpenedIpcMemory(offer.handle, ring_bytes(plan, offer.num_slots))
    return DeviceReader(DeviceSlots(memory, plan, device), device)


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise TransportUnavailable(
            "transport 'cuda_ipc' needs a GPU: a legacy IPC handle names cudaMalloc memory, and this "
            f"device is {device.type!r}; choose cpu, pinned, cuda_vmm or nccl here"
        )
