"""``nccl``: a broadcast in a group of two, trainer and inference worker.

Memory: slots of the trainer and as many receive buffers of the worker, in each side's own
memory. The notice of a bucket comes first, then the broadcast: a receiver that is not there
cannot be waited for. A slot may be reused after the worker's ``SlotFree``. On a host without
GPU the same code runs on gloo over loopback, and records say ``collective: gloo``. A peer that
dies ends the collective with an error; a silent one, the deadline. Same node, or across nodes.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from wsync_lab.channel.link import close_all
from wsync_lab.errors import PeerLost, ProtocolError, TransportUnavailable
from wsync_lab.packing import Plan, align
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter, synchronize

_LOOPBACK = "127.0.0.1"
_TRAINER, _WORKER = 0, 1


class Pair:
    """The process group of the two ends; a new one after every update that ended early.

    A broadcast that was sent and never received would be taken for the next one.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store: Store | None = store
        self._rank = rank
        self._epoch = 0
        self._group: Any = None  # torch's stubs lack the methods of ProcessGroupGloo

    def join(self, deadline_s: float) -> None:
        if self._group is None and self._store is not None:
            store = PrefixStore(f"epoch{self._epoch}", self._store)
            self._group = _gloo_group(store, self._rank, deadline_s)

    def leave(self) -> None:
        self._group = None
        self._epoch += 1

    def close(self) -> None:
        """Free the group's and the store's connections and threads."""
        self._group = self._store = None

    def broadcast(self, tensor: torch.Tensor) -> dist.Work:
        """Start the broadcast of ``tensor`` from the trainer."""
        if self._group is None:
            raise ProtocolError("transport 'nccl' was not joined")
        work: dist.Work = self._group.broadcast(tensor, _TRAINER)
        return work


class BroadcastWriter(SlotWriter):
    slot_memory = "pageable"
    collective = "gloo"

    def __init__(self, plan: Plan, num_slots: int, device: torch.device) -> None:
        store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self.rendezvous = f"{_LOOPBACK}:{store.port}"
        self._pair = Pair(store, _TRAINER)
        self._slots = _buffers(plan, num_slots, device)
        self._device = device

    def join(self, deadline_s: float) -> None:
        self._pair.join(deadline_s)

    def reset(self) -> None:
        self._pair.leave()

    def slot(self, index: int) -> torch.Tensor:
        return self._slots[index]

    def publish(self, index: int, num_bytes: int) -> None:
        synchronize(self._device)
        # Not waited for: it ends when the worker, told by the notice that follows, receives.
        self._pair.broadcast(self._slots[index, :num_bytes])

    def close(self) -> None:
        self._pair.close()


class BroadcastReader(SlotReader):
    def __init__(self, plan: Plan, offer: SlotOffer, device: torch.device) -> None:
        host, _, port = offer.rendezvous.rpartition(":")
        store = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
        self._pair = Pair(store, _WORKER)
        self._slots = _buffers(plan, offer.num_slots, device)
        self._device = device

    def join(self, deadline_s: float) -> None:
        self._pair.join(deadline_s)

    def reset(self) -> None:
        self._pair.leave()

    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        try:
            self._pair.broadcast(self._slots[index, :num_bytes]).wait()
        except RuntimeError as error:
            raise PeerLost(f"the broadcast of slot {index} ended: {error}") from None
        return self._slots[index, :num_bytes]

    def release(self) -> None:
        synchronize(self._device)

    def close(self) -> None:
        self._pair.close()


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    _check_device(device)
    return BroadcastWriter(plan, num_slots, device)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    close_all(fds)
    _check_device(device)
    return BroadcastReader(plan, offer, device)


def _check_device(device: torch.device) -> None:
    if device.type == "cuda":
        raise TransportUnavailable("transport 'nccl' runs on gloo only, so far: choose pinned on a GPU")


def _buffers(plan: Plan, num_slots: int, device: torch.device) -> torch.Tensor:
    return torch.empty((num_slots, align(plan.high_water_bytes)), dtype=torch.uint8, device=device)


def _gloo_group(store: Store, rank: int, deadline_s: float) -> Any:
    """A process group apart from the default one, which belongs to the engine."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=deadline_s)
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    try:
        return gloo(store, rank, 2, options)
    except RuntimeError as error:
        raise PeerLost(f"the other end did not join the group within {deadline_s:g} s: {error}") from None
