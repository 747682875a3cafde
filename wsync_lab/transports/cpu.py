"""``cpu``: pageable host copies, pickled through the engine's RPC. The baseline.

It repeats the opt-in path that frameworks fall back to where CUDA IPC fails (ROLL's
``bucket.detach().to("cpu").contiguous().numpy()`` through a ForkingPickler, one RPC a bucket),
so that every other transport is measured against what users have today.

Memory: owned by each side's ordinary heap. Copies: device to pageable host, into the pickle,
through the RPC layer (which copies again), out of the pickle, host to device. A bucket is
acknowledged by its RPC returning. Peak extra bytes: about three buckets on each side. Works on
one GPU, one node or across nodes; needs no system call or driver feature.
"""

import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import ProtocolError
from wsync_lab.packing import Plan, align
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter, synchronize


class PickleWriter(SlotWriter):
    slot_memory = "pageable"
    one_rpc_per_bucket = True

    def __init__(self, plan: Plan, num_slots: int, device: torch.device) -> None:
        size = (num_slots, align(plan.high_water_bytes))
        self._slots = torch.empty(size, dtype=torch.uint8, device=device)

    def slot(self, index: int) -> torch.Tensor:
        return self._slots[index]

    def publish(self, index: int, num_bytes: int) -> bytes:
        array = self._slots[index, :num_bytes].detach().to("cpu").contiguous().numpy()
        return bytes(ForkingPickler.dumps(array))

    def close(self) -> None:
        self._slots = self._slots[:0].clone()


class PickleReader(SlotReader):
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        if payload is None:
            raise ProtocolError("transport 'cpu' got a bucket without a payload")
        array = _ArrayUnpickler(io.BytesIO(payload)).load()
        return torch.from_numpy(array).to(self._device)

    def release(self) -> None:
        synchronize(self._device)

    def close(self) -> None:
        pass


def open_writer(plan: Plan, num_slots: int, device: torch.device) -> SlotWriter:
    return PickleWriter(plan, num_slots, device)


def open_reader(plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> SlotReader:
    close_all(fds)
    return PickleReader(device)


class _ArrayUnpickler(pickle.Unpickler):
    """Loads the pickle of one numpy array; any other global it names is refused."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
        }
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._ALLOWED:
            raise ProtocolError(f"a bucket's pickle names {module}.{name}: only numpy arrays are accepted")
        return super().find_class(module, name)
