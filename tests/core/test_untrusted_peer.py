"""What a peer of another version, or a broken one, sends in place of slots and payloads is refused."""

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from wsync_lab.channel.messages import PROTOCOL_VERSION, Hello
from wsync_lab.channel.rendezvous import connect
from wsync_lab.config import SyncConfig
from wsync_lab.errors import ProtocolError
from wsync_lab.packing import build_plan
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.transports import open_reader
from wsync_lab.transports.base import SlotOffer, SlotReader
from wsync_lab.transports.host_slots import create_memfd
from wsync_lab.weights import TensorMeta, TensorSource

CPU = torch.device("cpu")
PLAN = build_plan([TensorMeta("w", "uint8", (4096,))], {}, 4096)


def unsealed(num_bytes: int) -> int:
    """A memfd that its owner may truncate later: reading it would then be a SIGBUS."""
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, num_bytes)
    return fd


def reader_of(transport: str, fds: Sequence[int]) -> SlotReader:
    return open_reader(PLAN, SlotOffer(transport, 2, "memfd"), fds, CPU)


BAD_SLOTS: dict[str, Callable[[], list[int]]] = {
    "not sealed": lambda: [unsealed(2 * 4096)],
    "too small": lambda: [create_memfd(1, 4096)],
    "none": list,
    "two": lambda: [create_memfd(2, 4096), create_memfd(2, 4096)],
}


@pytest.mark.parametrize("transport", ["pinned", "cuda_vmm"])
@pytest.mark.parametrize("fault", BAD_SLOTS)
def test_slots_that_are_not_what_was_agreed_are_refused_and_closed(transport: str, fault: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError):
        reader_of(transport, BAD_SLOTS[fault]())
    assert set(os.listdir("/proc/self/fd")) == before


class Touches:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self._path,)


def test_a_payload_that_is_no_array_is_not_loaded(tmp_path: Path) -> None:
    payload = pickle.dumps(Touches(tmp_path / "ran"))
    with pytest.raises(ProtocolError, match="only numpy arrays are accepted"):
        reader_of("cpu", []).read(0, 4096, payload)
    assert not (tmp_path / "ran").exists()


class OtherVersion:
    """An engine whose worker speaks the next protocol."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def submit(self, method: str, *args: Any) -> "Attaching":
        return Attaching(self._thread.submit(self._attach, *args))

    def _attach(self, address: str) -> None:
        self._link = connect(address, deadline_s=5)
        self._link.send(Hello(PROTOCOL_VERSION + 1, os.getpid(), 0), deadline_s=5)


class Attaching:
    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def result(self, timeout_s: float) -> None:
        self._future.result(timeout_s)


def test_a_worker_of_another_protocol_is_refused_by_its_number() -> None:
    source = TensorSource([("w", torch.zeros(3))])
    with pytest.raises(ProtocolError, match=f"another protocol than {PROTOCOL_VERSION}"):
        WeightSync.connect(source, OtherVersion(), SyncConfig("pinned", deadline_s=5))
