"""How many threads the two ends of a pair copy with when they share a host's cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def half_of_the_cores() -> Iterator[None]:
    """Within it, torch uses at most half of this process's cores.

    The peer copies at the same time. Two OpenMP teams that both fill the cores wait for each
    other in busy loops: on two cores an update of 1 GB then takes several times as long
    (papers/log.md, 2026-12-01). The setting is the process's, so a thread that computes beside
    an update has fewer threads for its duration.
    """
    before = torch.get_num_threads()
    allowed = max(1, len(os.sched_getaffinity(0)) // 2)
    if before <= allowed:
        yield
        return
    torch.set_num_threads(allowed)
    try:
        yield
    finally:
        torch.set_num_threads(before)
