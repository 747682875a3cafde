"""``nccl``: a broadcast in a group of two, trainer and inference worker.

Memory: slots of the trainer and as many receive buffers of the worker, in each side's own
memory. The notice of a bucket comes first, then the broadcast: a receiver that is not there
cannot be waited for. A slot may be reused after the worker's ``SlotFree``. On a host without
GPU the same code runs on gloo over loopback, and records say ``collective: gloo``. A peer that
dies ends the collective with an error; a silent one, the deadline. Same node, or across nodes.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
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
_POLL_S = 0.02


class Pair:
    """The process group of the two ends; a new one after every update that ended early.

    A broadcast that was sent and never received would be taken for the next one.
    """

    def __init__(self, open_store: Callable[[timedelta], Store], rank: int) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._rank = rank
        self._epoch = 0
        self._group: Any = None  # torch's stubs lack the methods of ProcessGroupGloo

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        """Form the group, unless it stands. Forming one blocks, deaf to a peer that dies: so it
        runs in a thread, which is abandoned to its deadline when ``check_peer`` raises."""
        if self._group is not None:
            return
        forming: Future[Any] = Future()
        threading.Thread(
            target=self._form, args=(forming, timedelta(seconds=deadline_s)), daemon=True
        ).start()
        while not forming.done():
            check_peer()
            wait([forming], timeout=_POLL_S)
        self._group = forming.result()

    def _form(self, forming: "Future[Any]", timeout: timedelta) -> None:
        try:
            self._store = self._store or self._open_store(timeout)
            store = PrefixStore(f"epoch{self._epoch}", self._store)
            forming.set_result(_gloo_group(store, self._rank, timeout))
        except Exception as error:  # torch's errors are of several types
            forming.set_exception(PeerLost(f"the two ends formed no group within {timeout}: {error}"))

    def leave(self) -> None:
        self._group = None
        self._epoch += 1

    def close(self) -> None:
        """Free the group's and the store's connections and threads."""
        self._group = self._store = None
        self._open_store = _closed_store

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
        self._pair = Pair(lambda timeout: store, _TRAINER)
        self._slots = _buffers(plan, num_slots, device)
        self._device = device

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        self._pair.join(deadline_s, check_peer)

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
        self._pair = Pair(lambda timeout: TCPStore(host, int(port), timeout=timeout), _WORKER)
        self._slots = _buffers(plan, offer.num_slots, device)
        self._device = device

    def join(self, deadline_s: float, check_peer: Callable[[], None]) -> None:
        self._pair.join(deadline_s, check_peer)

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


def _closed_store(timeout: timedelta) -> Store:
    raise ProtocolError("this end of transport 'nccl' is closed")


def _gloo_group(store: Store, rank: int, timeout: timedelta) -> Any:
    """A process group apart from the default one, which belongs to the engine."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    return gloo(store, rank, 2, options)
