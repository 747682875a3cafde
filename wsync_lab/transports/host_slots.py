"""Staging slots in host memory that two processes map: one memfd, one descriptor.

A memfd needs no name and no /dev/shm (containers give that 64 MB), and it is gone with its
last user, however that user ends. It is sealed against resizing: a peer that truncated it
would kill the other side with SIGBUS.
"""

import fcntl
import mmap
import os

import torch

from wsync_lab.errors import ProtocolError, TransportUnavailable
from wsync_lab.packing import align

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HOST_REGISTER_PORTABLE = 1  # cudaHostRegisterPortable


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
        mapping = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._memory: torch.Tensor | None = torch.frombuffer(mapping, dtype=torch.uint8)
        self.registered = device.type == "cuda"
        if self.registered:
            _register(self._memory)

    def slot(self, index: int) -> torch.Tensor:
        """Slot ``index`` as 1-D uint8."""
        if self._memory is None:
            raise ProtocolError("the staging slots are closed")
        return self._memory[index * self._stride : (index + 1) * self._stride]

    def close(self) -> None:
        """Unregister, then unmap: the other order leaves the address registered, and a later,
        innocent call fails with error 712."""
        if self._memory is not None and self.registered:
            _unregister(self._memory)
        self._memory = None


def _check_memfd(fd: int, num_bytes: int) -> None:
    size, seals = os.fstat(fd).st_size, fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if size < num_bytes or seals & _SEALS != _SEALS:
        raise ProtocolError(f"staging memory of {size} bytes, seals {seals:#x}: expected {num_bytes}, sealed")


def _register(memory: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()
    code = cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), _HOST_REGISTER_PORTABLE)
    if int(code) != 0:
        reason = cudart.cudaGetErrorString(code)
        raise TransportUnavailable(
            f"cudaHostRegister of {memory.numel()} bytes failed ({reason}): raise the limit on "
            "locked memory (ulimit -l), or use fewer or smaller slots"
        )


def _unregister(memory: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
