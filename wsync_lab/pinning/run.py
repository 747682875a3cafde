"""Every strategy with every number of held buckets: one record of kind ``pinning`` each."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from wsync_lab import provenance, records
from wsync_lab.config import MiB
from wsync_lab.errors import ConfigError
from wsync_lab.pinning.harness import run_strategy
from wsync_lab.pinning.memory import growth_bytes
from wsync_lab.pinning.strategies import STRATEGIES
from wsync_lab.weights import TensorMeta

UNBOUNDED = -1


@dataclass(frozen=True)
class PinningConfig:
    """Which strategies, over buckets of which size.

    Args:
        hold: how many buckets the engine keeps references to, each in turn; -1 keeps all.
        num_buckets: of one update; the engine gets ``num_updates`` of them.
        mixed: bfloat16 and float32 parameters in every bucket, instead of bfloat16 alone.

    Raises:
        ConfigError: names the parameter, and what it may be.
    """

    strategies: tuple[str, ...] = tuple(STRATEGIES)
    hold: tuple[int, ...] = (0, 4, UNBOUNDED)
    bucket_bytes: int = 4 * MiB
    num_buckets: int = 6
    num_updates: int = 2
    mixed: bool = True

    def __post_init__(self) -> None:
        if unknown := [name for name in self.strategies if name not in STRATEGIES]:
            raise ConfigError(f"unknown strategy {unknown[0]!r}: choose one of {', '.join(STRATEGIES)}")
        for name in ("bucket_bytes", "num_buckets", "num_updates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number above 0")
        if min(self.hold, default=0) < UNBOUNDED:
            raise ConfigError(f"hold is {self.hold}: give numbers from 0, or -1 for all")

    def tensors(self) -> Iterator[TensorMeta]:
        """Two parameters a bucket; in a mixed one they have different dtypes."""
        half = self.bucket_bytes // 2
        for index in range(self.num_buckets):
            other, size = ("float32", half // 4) if self.mixed else ("bfloat16", half // 2)
            yield TensorMeta(f"layers.{index}.weight", "bfloat16", (half // 2,))
            yield TensorMeta(f"layers.{index}.norm", other, (size,))


def run_pinning(config: PinningConfig, path: Path, progress: Callable[[str], None]) -> list[records.Record]:
    """Run ``config``; each record is appended to ``path`` as it ends."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envelope: records.Record = {
        "schema_version": records.SCHEMA_VERSION,
        "kind": "pinning",
        "run_id": records.new_run_id(),
        "status": "ok",
        "error": None,
        "provenance": provenance.collect(emulated_placement=device.type != "cuda"),
    }
    made: list[records.Record] = []
    for name, hold in product(config.strategies, config.hold):
        made.append(envelope | _measured(config, name, hold, device))
        records.append(path, made[-1])
        progress(f"{name}, {hold} held: {made[-1]['growth_bytes'] / 1e6:.1f} MB a bucket")
    return made


def _measured(config: PinningConfig, name: str, hold: int, device: torch.device) -> records.Record:
    outcome = run_strategy(
        name,
        list(config.tensors()),
        bucket_bytes=config.bucket_bytes,
        hold=None if hold == UNBOUNDED else hold,
        num_updates=config.num_updates,
        device=device,
    )
    settings = {"bucket_bytes": config.bucket_bytes, "mixed": config.mixed, "device": device.type}
    counts = {"num_buckets": config.num_buckets, "num_updates": config.num_updates}
    medium = "cuda_ipc" if device.type == "cuda" else "shared_memory"
    asked = {"strategy": name, "hold": hold, "medium": medium}
    growth = growth_bytes(outcome.worker_bytes if device.type == "cpu" else outcome.trainer_bytes)
    return {"config": asked | settings | counts, "growth_bytes": growth, **dataclasses.asdict(outcome)}
