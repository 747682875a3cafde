"""How fast this machine moves bytes at best: measured in the run that is compared with it."""

import time
from collections.abc import Callable

import torch

_COPY_BYTES = 256 << 20
_WARMUPS, _REPEATS = 2, 7


def measure(device: torch.device) -> dict[str, list[float]]:
    """Raw samples in GB/s of payload copied one way, by name.

    ``host``: between two host buffers, with as many threads as torch uses. On a GPU also
    ``d2d``, and ``d2h`` and ``h2d`` with page-locked host memory.
    """
    host, other = (torch.ones(_COPY_BYTES, dtype=torch.uint8) for _ in range(2))
    found = {"host": _samples(lambda: other.copy_(host), _nothing)}
    if device.type != "cuda":
        return found
    here, there = (torch.ones(4 * _COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    locked = torch.ones(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    part = here[:_COPY_BYTES]
    wait = torch.cuda.synchronize
    return found | {
        "d2d": [4 * rate for rate in _samples(lambda: there.copy_(here), wait)],
        "d2h": _samples(lambda: locked.copy_(part, non_blocking=True), wait),
        "h2d": _samples(lambda: part.copy_(locked, non_blocking=True), wait),
    }


def limit_s(device: torch.device, transport: str, num_bytes: int, ceilings: dict[str, float]) -> float:
    """The fewest bytes that the path must move, over the measured rates.

    Between processes every payload byte is copied twice: into a slot and out of it. On a GPU
    the two copies of ``cpu`` and ``pinned`` go over the link in opposite directions and may
    overlap, so the slower direction bounds them.
    """
    if device.type != "cuda":
        return 2 * num_bytes / ceilings["host"] / 1e9
    if transport in {"cpu", "pinned"}:
        return num_bytes / min(ceilings["d2h"], ceilings["h2d"]) / 1e9
    return 2 * num_bytes / ceilings["d2d"] / 1e9


def floor_s(device: torch.device, transport: str, num_bytes: int, ceilings: dict[str, float]) -> float:
    """Faster than this is a wrong measurement: one copy of the payload at the best rate seen."""
    both = 1 if device.type == "cuda" and transport in {"cpu", "pinned"} else 2
    return limit_s(device, transport, num_bytes, ceilings) / both


def _samples(copy: Callable[[], object], wait: Callable[[], None]) -> list[float]:
    return [_rate(copy, wait) for _ in range(_WARMUPS + _REPEATS)][_WARMUPS:]


def _rate(copy: Callable[[], object], wait: Callable[[], None]) -> float:
    wait()
    start_s = time.perf_counter()
    copy()
    wait()
    return _COPY_BYTES / (time.perf_counter() - start_s) / 1e9


def _nothing() -> None:
    """A copy on the host is complete when it returns."""
