"""``pinned``: through page-locked host memory that trainer and worker both map.

Memory: the trainer owns one memfd with all slots; its descriptor goes to the worker once, over
the channel (``SCM_RIGHTS``). A slot may be reused after the worker's ``SlotFree``, sent when its
device has finished reading. Copies: D2H into the slot, H2D out of it; without a GPU the slot is
plain shared memory and the worker reads views of it. Peak extra bytes: the slots, and on a GPU
one bucket on the worker's device. Same node only. Needs ``memfd_create``, unix sockets and, on
a GPU, ``cudaHostRegister`` on both sides; no CUDA IPC, no ``pidfd_getfd``, no /dev/shm.
"""

from collections.abc import Sequence

import torch

from wsync_lab.packing import Plan
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter
from wsync_lab.transports.host_slots import HostReader, HostWriter


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    return HostWriter(plan, num_slots, device)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    return HostReader(plan, offer, fds, device)
