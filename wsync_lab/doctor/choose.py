"""Which transport to take here, and why: ``transport="auto"``."""

from collections.abc import Sequence

from wsync_lab.doctor.findings import Choice, TransportFinding
from wsync_lab.doctor.machine import Machine, examine, has_gpu
from wsync_lab.errors import ConfigError

# Fewest bytes moved over the fastest memory first: data/raw has what each was measured at.
_ON_GPU = (
    ("cuda_vmm", "device to device, and its descriptor passes where CUDA IPC is refused"),
    ("cuda_ipc", "device to device"),
    ("pinned", "page-locked host memory: at the speed of the link"),
    ("nccl", "a broadcast, which takes the GPU's multiprocessors"),
    ("cpu", "pageable host memory, pickled: the slowest"),
)
_ON_HOST = (
    ("pinned", "shared host memory"),
    ("cuda_vmm", "the same memory, in the place of a GPU's"),
    ("nccl", "gloo, in the place of NCCL"),
    ("cpu", "pageable host memory, pickled: the slowest"),
)


def choose(transports: Sequence[TransportFinding], machine: Machine) -> Choice:
    """The first in the order of speed that works; those before it with what keeps them."""
    by_name = {finding.transport: finding for finding in transports}
    reasons: list[str] = []
    for name, meaning in _ON_GPU if has_gpu(machine) else _ON_HOST:
        finding = by_name.get(name)
        if finding is None:
            continue
        if finding.works:
            return Choice(name, [*reasons, f"{name}: {meaning}"])
        reasons.append(f"not {name}: {finding.reason}")
    return Choice(None, reasons)


def choose_transport() -> Choice:
    """Examine this machine and choose. Made once: a run keeps what it was given.

    Raises:
        ConfigError: no transport works here.
    """
    from wsync_lab.doctor.diagnose import diagnose

    choice = diagnose(examine()).choice
    if choice.transport is None:
        raise ConfigError(f"no transport works here: {'; '.join(choice.reasons)}")
    return choice
