"""Machines as answers: what ``examine`` would have brought back from each."""

from typing import Any

from wsync_lab.doctor.machine import Machine
from wsync_lab.doctor.observe import Observation

GiB = 1 << 30


def answers(**values: Any) -> Machine:
    return {name.replace("__", " "): Observation(value) for name, value in values.items()}


def error(text: str) -> Observation:
    return Observation(error=text)


def carried(slot_memory: str, collective: str | None = None) -> Observation:
    return Observation({"slot_memory": slot_memory, "collective": collective})


def laptop() -> Machine:
    """No GPU, nothing refused."""
    machine = answers(
        seccomp={"mode": 0},
        pidfd_getfd="ok",
        yama=0,
        namespaces=True,
        fd_passing=True,
        shared_memory={"size_bytes": 8 * GiB, "free_bytes": 8 * GiB},
        locked_memory={"limit_bytes": None, "cap_ipc_lock": False, "locked": True},
        mps=False,
        versions={"torch": "2.13.0", "ray": "2.60.0", "vllm": None},
        gpus={"devices": [], "visible": None},
    )
    return machine | {
        "transport cpu": carried("pageable"),
        "transport pinned": carried("memfd"),
        "transport cuda_ipc": error("TransportUnavailable: transport 'cuda_ipc' needs a GPU"),
        "transport cuda_vmm": carried("memfd"),
        "transport nccl": carried("memfd", "gloo"),
    }


def h200() -> Machine:
    """One GPU, nothing refused, NCCL before 2.30."""
    return laptop() | {
        "gpus": Observation({"devices": [{"name": "NVIDIA H200", "uuid": "GPU-1111"}], "visible": None}),
        "expandable_segments": Observation(False),
        "nccl": Observation("2.28.9"),
        "torch_ipc plain": Observation(True),
        "torch_ipc expandable": Observation(True),
        "transport pinned": carried("registered_memfd"),
        "transport cuda_ipc": carried("cuda_malloc"),
        "transport cuda_vmm": carried("cuda_vmm"),
        "transport nccl": error("TransportUnavailable: NCCL 2.28.9 refuses two ranks on one GPU"),
    }


def affected_container() -> Machine:
    """The report's: a filter refuses pidfd_getfd, and expandable segments are on."""
    return h200() | {
        "seccomp": Observation({"mode": 2}),
        "pidfd_getfd": Observation("EPERM"),
        "namespaces": error("PermissionError: [Errno 1] Operation not permitted"),
        "expandable_segments": Observation(True),
        "torch_ipc expandable": error("OSError: RuntimeError: pidfd_getfd: Operation not permitted"),
        "shared_memory": Observation({"size_bytes": 64 << 20, "free_bytes": 64 << 20}),
        "locked_memory": Observation({"limit_bytes": 8 << 20, "cap_ipc_lock": False, "locked": False}),
    }


MACHINES: dict[str, Machine] = {
    "laptop": laptop(),
    "h200": h200(),
    "affected-container": affected_container(),
    "old-kernel": h200()
    | {"pidfd_getfd": Observation("ENOSYS"), "torch_ipc expandable": error("OSError: ENOSYS")},
    "new-nccl-with-mps": h200()
    | {"nccl": Observation("2.30.7"), "mps": Observation(True), "transport nccl": carried("cuda", "nccl")},
    "yama-3": laptop() | {"yama": Observation(3), "pidfd_getfd": Observation("EPERM")},
    "reversed-devices": h200()
    | {
        "gpus": Observation(
            {
                "devices": [
                    {"name": "RTX 4090", "uuid": "GPU-bbbb"},
                    {"name": "RTX 4090", "uuid": "GPU-aaaa"},
                ],
                "visible": "1,0",
            }
        )
    },
    "no-legacy-ipc": h200()
    | {
        "torch_ipc plain": error("OSError: CUDA driver error: unknown error"),
        "torch_ipc expandable": error("OSError: CUDA driver error: unknown error"),
        "transport cuda_ipc": error("TransportUnavailable: cuIpcGetMemHandle: unknown error"),
        "transport cuda_vmm": error("WsyncError: crashed"),
    },
    "nothing-works": {
        key: error("no answer in 90 s") if key.startswith("transport") else value
        for key, value in laptop().items()
    }
    | {"yama": error("crashed by SIGSEGV"), "fd_passing": Observation(False)},
}
