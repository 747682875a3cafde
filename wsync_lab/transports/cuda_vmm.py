"""``cuda_vmm``: device to device through VMM slots whose descriptor travels by ``SCM_RIGHTS``.

On a host without GPU the same control flow runs over a memfd: a descriptor, sent once, mapped
once, views read in place. Records then say ``slot_memory: memfd``; it is no measurement of a
GPU. The slot is owned by the trainer; it may be reused after the worker's ``SlotFree``. Needs
unix sockets, and on a GPU the driver's virtual memory management; no CUDA IPC, no
``pidfd_getfd``.
"""

from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import TransportUnavailable
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter
from wsync_lab.transports.host_slots import HostReader, HostWriter

_NO_DEVICE_SLOTS = "transport 'cuda_vmm' has no device slots yet: choose pinned on a GPU"


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    if device.type == "cuda":
        raise TransportUnavailable(_NO_DEVICE_SLOTS)
    return HostWriter(plan, num_slots, device)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    if device.type == "cuda":
        close_all(fds)
        raise TransportUnavailable(_NO_DEVICE_SLOTS)
    return HostReader(plan, offer, fds, device)
