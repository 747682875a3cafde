"""Memory that two processes share, as each of them sees it, and whether it rises."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch


def shared_bytes(device: torch.device) -> int:
    """On a GPU what torch's allocator holds; on a host the shared pages that this process maps.

    ``RssShmem`` of proc_pid_status(5): pages that were touched.
    """
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) << 10
    return 0


def growth_bytes(samples: Sequence[int]) -> float:
    """Bytes that memory rises by from one sample to the next: the slope of a straight line
    through the second half of them, so that filling up at the start does not count."""
    late = samples[len(samples) // 2 :]
    return float(np.polyfit(range(len(late)), late, 1)[0]) if len(late) > 1 else 0.0


def rises(samples: Sequence[int], bucket_bytes: int) -> bool:
    """Whether memory goes on rising by more than a tenth of a bucket a bucket."""
    return growth_bytes(samples) > bucket_bytes / 10
