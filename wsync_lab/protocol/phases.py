"""Where the time of one update went, on the trainer's clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SYNC_PHASES = ("gather", "pack", "transfer", "apply", "commit")


@dataclass(frozen=True)
class RingCost:
    """What it cost, in one update, that the ring's memory is given back between updates.

    Attributes:
        num_bytes: memory of the slots that was free until the update, and is again.
        trainer_s, worker_s: taking and giving back, at each end.
    """

    num_bytes: int
    trainer_s: float
    worker_s: float


@dataclass(frozen=True)
class SyncReport:
    """One committed update.

    Attributes:
        sync_time_s: from the trainer's call until the worker's acknowledgement that its device
            holds, and it has committed, the new weights; without ``pause_s``.
        phase_times_s: its parts, by ``SYNC_PHASES``; they add up to ``sync_time_s``.
        pause_s, resume_s: how long the engine took to stop and to go on generating.
        ring: the cost of slots that are not held, else None. Taking them lies within
            ``sync_time_s``, as transfer; so does what the worker gives back, as commit; what the
            trainer gives back comes after it.
    """

    weight_version: int
    payload_bytes: int
    sync_time_s: float
    phase_times_s: dict[str, float]
    pause_s: float
    resume_s: float
    ring: RingCost | None = None


def seconds_of(call: Callable[[], None]) -> float:
    """How long ``call()`` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass
class SyncClock:
    """Times one update on the trainer: what it is busy with, and the whole."""

    start_s: float = field(default_factory=time.perf_counter)
    prepared_s: float = 0.0
    committed_s: float = 0.0
    busy_s: dict[str, float] = field(default_factory=lambda: {"gather": 0.0, "pack": 0.0})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.busy_s[name] += time.perf_counter() - start

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.start_s

    def prepared(self) -> None:
        self.prepared_s = time.perf_counter()

    def committed(self) -> None:
        self.committed_s = time.perf_counter()

    def phase_times_s(self, pause_s: float, apply_s: float) -> dict[str, float]:
        """Parts of the time from start to commit, less the engine's pause, which came first.

        Applying overlaps gathering and packing, so it is charged only as far as the trainer
        waited for it; the rest of the waiting is transfer.
        """
        commit_s = self.committed_s - self.prepared_s
        waited_s = self.committed_s - self.start_s - pause_s - commit_s - sum(self.busy_s.values())
        charged_s = min(apply_s, waited_s)
        waits = {"transfer": waited_s - charged_s, "apply": charged_s, "commit": commit_s}
        return {name: max(0.0, (self.busy_s | waits)[name]) for name in SYNC_PHASES}
