"""Wall time of a step, and of its phases."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Adds up the time spent in named phases since it was made.

    Phases do not nest. ``times_s`` has every phase and ``other``; they add up to ``wall_s``.
    """

    def __init__(self) -> None:
        self._start_s = time.perf_counter()
        self._times_s: dict[str, float] = {}
        self._open = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._open:
            raise RuntimeError(f"phase {name!r} was opened inside another one")
        start_s, self._open = time.perf_counter(), True
        try:
            yield
        finally:
            self._open = False
            self.add(name, time.perf_counter() - start_s)

    def add(self, name: str, seconds: float) -> None:
        """Count ``seconds``, negative ones too, for phase ``name``."""
        self._times_s[name] = self._times_s.get(name, 0.0) + seconds

    def stop(self) -> tuple[float, dict[str, float]]:
        """(wall_s, times_s) up to now."""
        wall_s = time.perf_counter() - self._start_s
        return wall_s, self._times_s | {"other": wall_s - sum(self._times_s.values())}
