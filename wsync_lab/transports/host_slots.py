"""Staging slots in host memory that two processes map: one memfd, one descriptor.

A memfd needs no name and no /dev/shm (containers give that 64 MB), and it is gone with its
last user, however that user ends. It is sealed against resizing: a peer that truncated it
would kill the other side with SIGBUS.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence

import torch

from wsync_lab.channel.link import close_all
from wsync_lab.errors import ProtocolError, TransportUnavailable
from wsync_lab.packing import Plan, align
from wsync_lab.transports.base import SlotOffer, SlotReader, SlotWriter, synchronize

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HOST_REGISTER_PORTABLE = 1  # cudaHostRegisterPortable
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap has no name for it


def create_memfd(num_slots: int, slot_bytes: int) -> int:
    """A sealed memfd that holds ``num_slots`` slots; the caller owns the descriptor."""
    fd = os.memfd_create("wsync-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(1, num_slots * align(slot_bytes)))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class HostSlots:
    """``num_slots`` slots mapped from a memfd, page-locked when the device is a GPU.

    Page-locking pays ``cudaHostRegister`` on the mapping of each side; the kernel locks the
    shared pages once.
    """

    def __init__(self, fd: int, num_slots: int, slot_bytes: int, device: torch.device) -> None:
        self._stride = align(slot_bytes)
        _check_memfd(fd, num_slots * self._stride)
        # Touching a page for the first time costs far more than copying it: populate now.
        self._mapping: mmap.mmap | None = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._memory: torch.Tensor | None = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self.on_gpu = device.type == "cuda"
        self._registered = False
        self._register()

    def slot(self, index: int) -> torch.Tensor:
        """Slot ``index`` as 1-D uint8."""
        if self._memory is None:
            raise ProtocolError("the staging slots are closed")
        return self._memory[index * self._stride : (index + 1) * self._stride]

    def take(self) -> None:
        """Pages behind the mapping again, page-locked where they were."""
        self._advise(_MADV_POPULATE_WRITE)
        self._register()

    def unlock(self) -> None:
        """End the page-locking of this mapping: locked pages would outlive ``free_pages``."""
        if self._memory is not None and self._registered:
            _unregister(self._memory)
        self._registered = False

    def free_pages(self) -> None:
        """Punch the pages out of the memfd, for both mappings; they read as zeros from now on."""
        self._advise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Unregister, then unmap: the other order leaves the address registered, and a later,
        innocent call fails with error 712."""
        self.unlock()
        self._memory = self._mapping = None

    def _advise(self, advice: int) -> None:
        if self._mapping is None:
            raise ProtocolError("the staging slots are closed")
        try:
            self._mapping.madvise(advice)
        except OSError as error:
            raise TransportUnavailable(
                f"slots cannot be given back and taken again here ({error.strerror}; it needs Linux "
                "5.14 and enough memory): leave hold_slots on"
            ) from None

    def _register(self) -> None:
        if self.on_gpu and not self._registered and self._memory is not None:
            _register(self._memory)
            self._registered = True


class HostWriter(SlotWriter):
    """Trainer end over ``HostSlots``: packs straight into them."""

    can_give_back = True

    def __init__(self, plan: Plan, num_slots: int, device: torch.device) -> None:
        self._device = device
        self._fd = create_memfd(num_slots, plan.high_water_bytes)
        try:
            self._slots = HostSlots(self._fd, num_slots, plan.high_water_bytes, device)
        except BaseException:
            os.close(self._fd)
            raise
        self.slot_memory = "registered_memfd" if self._slots.on_gpu else "memfd"

    def fds(self) -> Sequence[int]:
        return (self._fd,)

    def take(self) -> None:
        self._slots.take()

    def give_back(self) -> None:
        self._slots.unlock()
        self._slots.free_pages()

    def slot(self, index: int) -> torch.Tensor:
        return self._slots.slot(index)

    def publish(self, index: int, num_bytes: int) -> None:
        synchronize(self._device)

    def close(self) -> None:
        self._slots.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class HostReader(SlotReader):
    """Worker end over ``HostSlots``: views on a CPU, one H2D copy a bucket on a GPU."""

    def __init__(self, plan: Plan, offer: SlotOffer, fds: Sequence[int], device: torch.device) -> None:
        try:
            if len(fds) != 1:
                raise ProtocolError(f"the offer needs 1 descriptor, {len(fds)} came")
            self._slots = HostSlots(fds[0], offer.num_slots, plan.high_water_bytes, device)
        finally:
            close_all(fds)
        self._device = device
        self._bucket_bytes = plan.high_water_bytes if device.type == "cuda" else 0
        self._bucket = torch.empty(self._bucket_bytes, dtype=torch.uint8, device=device)

    def take(self) -> None:
        self._slots.take()
        self._bucket = torch.empty(self._bucket_bytes, dtype=torch.uint8, device=self._device)

    def give_back(self) -> None:
        self._slots.unlock()
        self._bucket = self._bucket[:0].clone()

    def read(self, index: int, num_bytes: int, payload: bytes | None) -> torch.Tensor:
        view = self._slots.slot(index)[:num_bytes]
        if self._device.type != "cuda":
            return view
        self._bucket[:num_bytes].copy_(view, non_blocking=True)
        return self._bucket[:num_bytes]

    def release(self) -> None:
        synchronize(self._device)

    def close(self) -> None:
        self._slots.close()


def _check_memfd(fd: int, num_bytes: int) -> None:
    size, seals = os.fstat(fd).st_size, fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if size < num_bytes or seals & _SEALS != _SEALS:
        raise ProtocolError(f"staging memory of {size} bytes, seals {seals:#x}: expected {num_bytes}, sealed")


def _register(memory: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()
    code = cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), _HOST_REGISTER_PORTABLE)
    if int(code) != 0:
        reason = cudart.cudaGetErrorString(code)
        _consume_error()
        raise TransportUnavailable(
            f"cudaHostRegister of {memory.numel()} bytes failed ({reason}): raise the limit on "
            "locked memory (ulimit -l), or use fewer or smaller slots"
        )


def _consume_error() -> None:
    """The driver reports a failed registration once more, at the next kernel: let that be ours."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _unregister(memory: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
