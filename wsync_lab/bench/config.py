"""Everything that a benchmark depends on."""

from dataclasses import dataclass
from typing import Literal, get_args

from wsync_lab.bench.payloads import QWEN25, Payload, payload_of
from wsync_lab.config import MiB, SyncConfig
from wsync_lab.errors import ConfigError

EngineName = Literal["torch", "vllm"]


@dataclass(frozen=True)
class BenchConfig:
    """Updates of one payload through each transport, one after another.

    Args:
        payload: see ``bench.payloads``; ``payload_bytes`` and ``num_tensors`` are for ``synthetic``.
        warmups: updates before those that are timed.
        repeats: timed updates; ``cpu_repeats`` for transport ``cpu``, which takes far longer.
        wait_s: how long the engine's process may take to start.

    Raises:
        ConfigError: names the parameter, and what it may be.
    """

    transports: tuple[str, ...] = ("cpu", "pinned")
    payload: str = "synthetic"
    payload_bytes: int = 100_000_000
    num_tensors: int = 100
    slot_bytes: int = 64 * MiB
    num_slots: int = 2
    hold_slots: bool = True
    verify: str = "off"
    engine: str = "torch"
    warmups: int = 2
    repeats: int = 9
    cpu_repeats: int = 3
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.transports:
            raise ConfigError("transports is empty: name at least one")
        for transport in self.transports:
            self.sync_config(transport)
        for name in ("warmups", "repeats", "cpu_repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number above 0")
        if self.engine not in get_args(EngineName):
            raise ConfigError(f"engine is {self.engine!r}: choose one of {', '.join(get_args(EngineName))}")
        if self.load().name not in QWEN25 and self.engine == "vllm":
            raise ConfigError(
                f"payload {self.payload!r} is no model for vLLM: choose one of {', '.join(QWEN25)}"
            )

    def load(self) -> Payload:
        """The payload."""
        return payload_of(self.payload, self.payload_bytes, self.num_tensors)

    def sync_config(self, transport: str) -> SyncConfig:
        sizes = self.slot_bytes, self.num_slots
        return SyncConfig(transport, *sizes, self.deadline_s, self.verify, self.hold_slots)

    def repeats_of(self, transport: str) -> int:
        return self.cpu_repeats if transport == "cpu" else self.repeats
