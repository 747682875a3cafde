"""Findings about the GPU, and about torch's CUDA IPC: the path that frameworks take today."""

from wsync_lab.doctor.findings import Finding
from wsync_lab.doctor.machine import Machine, has_gpu
from wsync_lab.doctor.observe import Observation

_SAME_GPU_NCCL = (2, 30)


def torch_findings(machine: Machine) -> list[Finding]:
    """Devices, MPS, the allocator's setting, torch's IPC both ways, NCCL."""
    if not has_gpu(machine):
        return [_no_gpu(machine["gpus"])]
    return [
        _devices(machine["gpus"]),
        _mps(machine["mps"]),
        _allocator(machine["expandable_segments"], machine["torch_ipc expandable"]),
        _ipc("torch CUDA IPC, plain segments", machine["torch_ipc plain"]),
        _ipc("torch CUDA IPC, expandable segments", machine["torch_ipc expandable"]),
        _nccl(machine["nccl"]),
    ]


def _no_gpu(seen: Observation) -> Finding:
    happened = seen.error or "torch sees none"
    means = "every transport runs over host memory: the control flow is real, speeds are not a GPU's"
    return Finding("gpu", "absent", "asked torch for CUDA devices", happened, means)


def _devices(seen: Observation) -> Finding:
    names = "; ".join(
        f"{index}: {each['name']} {each['uuid']}" for index, each in enumerate(seen.value["devices"])
    )
    visible = seen.value["visible"]
    tried = "asked torch for CUDA devices"
    if visible is None:
        return Finding("gpu", "ok", tried, names, "device slots can be used")
    means = (
        f"CUDA_VISIBLE_DEVICES={visible} decides what index 0 is in this process; other processes may differ"
    )
    remedy = "nothing: ends are matched by UUID, and another GPU is refused by name"
    return Finding("gpu", "limited", tried, names, means, remedy)


def _mps(seen: Observation) -> Finding:
    tried = "looked for the daemon's pipe"
    if seen.answered and seen.value:
        means = "kernels of trainer and engine overlap; a client that is killed can take the others down"
        return Finding("cuda mps", "ok", tried, "it runs", means, "do not kill processes at work on the GPU")
    means = "kernels of trainer and engine take turns: updates through device slots are slower"
    return Finding("cuda mps", "absent", tried, seen.error or "it does not run", means)


def _allocator(effective: Observation, works: Observation) -> Finding:
    tried = "asked torch's allocator, once it ran"
    if not effective.answered:
        return Finding(
            "expandable segments", "unknown", tried, effective.error, "nothing can be said about it"
        )
    if not effective.value:
        return Finding("expandable segments", "ok", tried, "off", "torch's CUDA IPC needs no pidfd_getfd")
    if works.answered:
        return Finding("expandable segments", "ok", tried, "on", "torch's CUDA IPC works with them here")
    remedy = "PYTORCH_ALLOC_CONF=expandable_segments:False in the trainer, or cuda_vmm or cuda_ipc"
    return Finding(
        "expandable segments", "fails", tried, "on", "torch's CUDA IPC cannot work with them here", remedy
    )


def _ipc(subject: str, seen: Observation) -> Finding:
    tried = "sent a tensor to another process"
    if seen.answered and seen.value:
        return Finding(subject, "ok", tried, "it arrived", "frameworks' own path works in this form")
    happened = seen.error or "other values arrived"
    remedy = "take the transport that is recommended below"
    return Finding(subject, "fails", tried, happened, "frameworks' own path fails in this form", remedy)


def _nccl(seen: Observation) -> Finding:
    tried = "asked torch for its NCCL"
    if not seen.answered:
        return Finding("nccl", "unknown", tried, seen.error, "nothing can be said about it")
    major, minor, *_ = map(int, seen.value.split("."))
    if (major, minor) >= _SAME_GPU_NCCL:
        means = "two ranks may share a GPU with NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL_NVLS_ENABLE=0"
        return Finding("nccl", "ok", tried, seen.value, means)
    means = "two ranks cannot share a GPU: nccl needs crossed pairs, so two GPUs"
    return Finding("nccl", "limited", tried, seen.value, means, "NCCL 2.30 or later, or another transport")
