"""How one update ended on a worker."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateOutcome:
    """How one update ended on the worker.

    ``touched`` is False when it was refused before the engine's weights were touched.
    ``ring_s`` went into taking and giving back the slots' memory, where they are not held.
    """

    weight_version: int
    committed: bool
    touched: bool
    reason: str
    apply_s: float
    ring_s: float
