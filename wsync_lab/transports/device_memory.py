"""Memory of one GPU that a second process can map, through NVIDIA's own driver bindings.

Both kinds lie outside torch's caching allocator: an expandable segment could be shared only by
``pidfd_getfd``, which managed containers refuse. The driver's current context is torch's
primary one; callers hold ``torch.cuda.device``.
"""

import os
from abc import ABC, abstractmethod
from typing import Any

import torch

from wsync_lab.errors import TransportUnavailable


def driver() -> Any:
    """``cuda.bindings.driver``.

    Raises:
        TransportUnavailable: cuda-bindings is not installed.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise TransportUnavailable(
            f"device slots need cuda-bindings ({error}): pip install cuda-bindings"
        ) from None
    return bindings


def call(name: str, *args: Any) -> Any:
    """Call a function of the driver; returns what it gives beside its error code.

    Raises:
        TransportUnavailable: the driver refused; names the call and the error.
    """
    bindings = driver()
    code, *values = getattr(bindings, name)(*args)
    if code != bindings.CUresult.CUDA_SUCCESS:
        raise TransportUnavailable(f"{name} failed: {code.name}")
    return values[0] if values else None


def device_uuid(device: torch.device) -> str:
    """Which physical GPU ``device`` is: its index depends on CUDA_VISIBLE_DEVICES, this does not."""
    return str(torch.cuda.get_device_properties(device).uuid)


def as_tensor(pointer: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """1-D uint8 over memory that torch does not own; it must outlive the tensor."""
    interface = {"shape": (num_bytes,), "typestr": "|u1", "data": (pointer, False), "version": 3}
    holder = type("DeviceMemory", (), {"__cuda_array_interface__": interface})()
    return torch.as_tensor(holder, device=device)


class DeviceMemory(ABC):
    """``num_bytes`` at ``pointer``, mapped into this process until ``close``."""

    pointer: int
    num_bytes: int

    @abstractmethod
    def close(self) -> None:
        """Unmap, and free what this end owns. Safe to call twice."""


class VmmMemory(DeviceMemory):
    """Physical memory made by ``cuMemCreate``, here or in the process that exported ``fd``.

    The memory lives until its last handle and mapping are gone, whoever made it.
    """

    def __init__(self, num_bytes: int, device: torch.device, fd: int | None = None) -> None:
        self._properties = _vmm_properties(device)
        granularity = call("cuMemGetAllocationGranularity", self._properties, _minimum_granularity())
        self.num_bytes = -(-max(1, num_bytes) // granularity) * granularity
        self._mapped = False
        self.pointer = 0
        self._handle = self._create() if fd is None else self._import(fd)
        try:
            self._map()
        except BaseException:
            self.close()
            raise

    def export(self) -> int:
        """A file descriptor that another process can map; the caller owns it."""
        fd = int(call("cuMemExportToShareableHandle", self._handle, _posix_fd(), 0))
        os.set_inheritable(fd, False)
        return fd

    def close(self) -> None:
        if self._mapped:
            call("cuMemUnmap", self.pointer, self.num_bytes)
        if self.pointer:
            call("cuMemAddressFree", self.pointer, self.num_bytes)
        if self._handle is not None:
            call("cuMemRelease", self._handle)
        self._mapped, self.pointer, self._handle = False, 0, None

    def _create(self) -> Any:
        return call("cuMemCreate", self.num_bytes, self._properties, 0)

    def _import(self, fd: int) -> Any:
        return call("cuMemImportFromShareableHandle", fd, _posix_fd())

    def _map(self) -> None:
        self.pointer = int(call("cuMemAddressReserve", self.num_bytes, 0, 0, 0))
        call("cuMemMap", self.pointer, self.num_bytes, 0, self._handle, 0)
        self._mapped = True
        call("cuMemSetAccess", self.pointer, self.num_bytes, [_read_write(self._properties)], 1)


class IpcMemory(DeviceMemory):
    """Memory from plain ``cuMemAlloc``, named to other processes by a legacy IPC handle."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = max(1, num_bytes)
        self.pointer = int(call("cuMemAlloc", self.num_bytes))

    def export(self) -> bytes:
        """64 bytes that ``OpenedIpcMemory`` maps in another process."""
        return bytes(call("cuIpcGetMemHandle", self.pointer).reserved)

    def close(self) -> None:
        if self.pointer:
            call("cuMemFree", self.pointer)
        self.pointer = 0


class OpenedIpcMemory(DeviceMemory):
    """The other process's end of ``IpcMemory``."""

    def __init__(self, handle: bytes, num_bytes: int) -> None:
        bindings = driver()
        opened = bindings.CUipcMemHandle()
        opened.reserved = handle
        lazily = bindings.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        self.num_bytes = num_bytes
        self.pointer = int(call("cuIpcOpenMemHandle", opened, lazily.value))

    def close(self) -> None:
        if self.pointer:
            call("cuIpcCloseMemHandle", self.pointer)
        self.pointer = 0


def _vmm_properties(device: torch.device) -> Any:
    bindings = driver()
    properties = bindings.CUmemAllocationProp()
    properties.type = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.index or 0
    properties.requestedHandleTypes = _posix_fd()
    return properties


def _read_write(properties: Any) -> Any:
    bindings = driver()
    access = bindings.CUmemAccessDesc()
    access.location.type, access.location.id = properties.location.type, properties.location.id
    access.flags = bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _posix_fd() -> Any:
    return driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _minimum_granularity() -> Any:
    return driver().CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
