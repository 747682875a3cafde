"""Memory of this process: resident on a host; on a GPU, what torch allocated."""

from pathlib import Path

import torch


class Peak:
    """The most memory in use above the state at ``reset``.

    On a host, shared slots count in both processes. On a GPU only torch's allocations are seen;
    a transport's own slots are added by the caller, who knows their size.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at VmRSS
        self._start = self.now()

    def now(self) -> int:
        return torch.cuda.memory_allocated() if self._on_gpu else _status_bytes("VmRSS")

    def extra(self) -> int:
        most = torch.cuda.max_memory_allocated() if self._on_gpu else _status_bytes("VmHWM")
        return max(0, most - self._start)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)
