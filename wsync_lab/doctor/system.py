"""Findings about the kernel and the container."""

from wsync_lab.doctor.findings import Finding
from wsync_lab.doctor.machine import Machine
from wsync_lab.doctor.observe import Observation
from wsync_lab.doctor.questions import SMALL_SHM_BYTES

MiB = 1 << 20
_SECCOMP = {0: "none", 1: "strict", 2: "a filter"}
_YAMA = {
    0: "any process of the same user may be traced",
    1: "only descendants may be traced",
    2: "only CAP_SYS_PTRACE may trace",
    3: "nobody may trace",
}


def system_findings(machine: Machine) -> list[Finding]:
    """Seccomp, pidfd_getfd, Yama, namespaces, descriptors, shared and locked memory, versions."""
    return [
        _seccomp(machine["seccomp"]),
        _pidfd_getfd(machine["pidfd_getfd"]),
        _yama(machine["yama"]),
        _namespaces(machine["namespaces"]),
        _fd_passing(machine["fd_passing"]),
        _shared_memory(machine["shared_memory"]),
        _locked_memory(machine["locked_memory"]),
        *_versions(machine["versions"]),
    ]


def _unknown(subject: str, tried: str, seen: Observation) -> Finding:
    return Finding(subject, "unknown", tried, seen.error, "nothing can be said about it")


def _seccomp(seen: Observation) -> Finding:
    tried = "read Seccomp in /proc/self/status"
    if not seen.answered or seen.value["mode"] is None:
        return _unknown("seccomp", tried, seen)
    mode = seen.value["mode"]
    means = "single system calls may be refused" if mode else "no system call is refused by a filter"
    return Finding("seccomp", "limited" if mode else "ok", tried, _SECCOMP[mode], means)


def _pidfd_getfd(seen: Observation) -> Finding:
    tried = "a child took a descriptor of its parent"
    if not seen.answered:
        return _unknown("pidfd_getfd", tried, seen)
    if seen.value == "ok":
        return Finding(
            "pidfd_getfd", "ok", tried, "it got it", "torch's CUDA IPC may use expandable segments"
        )
    means = "torch's CUDA IPC cannot work with expandable segments; no transport of wsync_lab needs the call"
    reasons = {
        "ENOSYS": "take a kernel of 5.6 or later, or a transport that passes descriptors: cuda_vmm",
        "EPERM": "use cuda_vmm or cuda_ipc, or turn expandable segments off; papers/container-guide.md says "
        "what in the container permits the call",
    }
    remedy = reasons.get(seen.value, "use cuda_vmm or cuda_ipc, or turn expandable segments off")
    return Finding("pidfd_getfd", "fails", tried, str(seen.value), means, remedy)


def _yama(seen: Observation) -> Finding:
    tried = "read kernel.yama.ptrace_scope"
    if not seen.answered:
        return _unknown("yama", tried, seen)
    if seen.value is None:
        return Finding("yama", "absent", tried, "the kernel has no Yama", "it forbids nothing here")
    means = _YAMA.get(seen.value, "an unknown value")
    remedy = "" if seen.value == 0 else "only pidfd_getfd is concerned; nothing to do for our transports"
    return Finding("yama", "ok" if seen.value == 0 else "limited", tried, str(seen.value), means, remedy)


def _namespaces(seen: Observation) -> Finding:
    tried = "made a user and a mount namespace"
    if seen.answered:
        return Finding("namespaces", "ok", tried, "made", "wsync sandbox --profile tiny-shm works")
    return Finding(
        "namespaces",
        "fails",
        tried,
        seen.error,
        "wsync sandbox cannot impose tiny-shm; no transport needs it",
    )


def _fd_passing(seen: Observation) -> Finding:
    tried = "sent a memfd to another process over a unix socket"
    if seen.answered and seen.value:
        return Finding(
            "descriptor passing", "ok", tried, "its bytes arrived", "pinned and cuda_vmm can map slots"
        )
    happened = seen.error or "other bytes arrived"
    return Finding(
        "descriptor passing",
        "fails",
        tried,
        happened,
        "pinned and cuda_vmm cannot map their slots",
        "use cpu or nccl",
    )


def _shared_memory(seen: Observation) -> Finding:
    tried = "measured /dev/shm"
    if not seen.answered:
        return _unknown("/dev/shm", tried, seen)
    size = seen.value["size_bytes"]
    happened = f"{size / MiB:.0f} MiB"
    if size > SMALL_SHM_BYTES:
        return Finding("/dev/shm", "ok", tried, happened, "large enough for NCCL and data loaders")
    return Finding(
        "/dev/shm",
        "limited",
        tried,
        happened,
        "NCCL and data loaders can run out of it; our slots are memfds, which it does not limit",
        "start the container with --shm-size=1g or more",
    )


def _locked_memory(seen: Observation) -> Finding:
    tried = "locked 64 MiB"
    if not seen.answered:
        return _unknown("locked memory", tried, seen)
    limit = seen.value["limit_bytes"]
    bound = "no limit" if limit is None else f"limit {limit / MiB:.0f} MiB"
    happened = f"{'locked' if seen.value['locked'] else 'refused'}; {bound}"
    if seen.value["cap_ipc_lock"]:
        happened += ", passed by CAP_IPC_LOCK"
    if seen.value["locked"]:
        return Finding(
            "locked memory", "ok", tried, happened, "page-locked slots are not limited by mlock(2)"
        )
    means = "mlock is refused; cudaHostRegister, which pinned uses, is tried with the transport itself"
    return Finding("locked memory", "limited", tried, happened, means, "if pinned fails: --ulimit memlock=-1")


def _versions(seen: Observation) -> list[Finding]:
    tried = "looked for the installed package"
    if not seen.answered:
        return [_unknown("packages", tried, seen)]
    return [_version(name, version) for name, version in seen.value.items()]


def _version(name: str, version: str | None) -> Finding:
    tried = "looked for the installed package"
    if version is None:
        return Finding(
            name, "absent", tried, "not installed", "the experiment cannot run", f"pip install {name}"
        )
    return Finding(name, "ok", tried, version, "the experiment can use it")
