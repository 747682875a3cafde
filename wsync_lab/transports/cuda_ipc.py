"""``cuda_ipc``: device to device through a slot from plain cudaMalloc and its legacy IPC handle.

There is no stand-in for it on a host: without a GPU it says so.
"""

from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import TransportUnavailable
from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    raise _unavailable(device)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    close_all(fds)
    raise _unavailable(device)


def _unavailable(device: torch.device) -> TransportUnavailable:
    if device.type == "cuda":
        return TransportUnavailable("transport 'cuda_ipc' has no device slots yet: choose pinned on a GPU")
    return TransportUnavailable(
        "transport 'cuda_ipc' needs a GPU: a legacy IPC handle names cudaMalloc memory, and this "
        f"device is {device.type!r}; choose cpu, pinned, cuda_vmm or nccl here"
    )
