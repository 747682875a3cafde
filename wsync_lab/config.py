"""What a caller chooses about a weight update."""

from dataclasses import dataclass
from typing import Literal, get_args

from wsync_lab.errors import ConfigError

TransportName = Literal["cpu", "pinned", "cuda_ipc", "cuda_vmm", "nccl"]
Verify = Literal["off", "digest"]
TRANSPORT_NAMES: tuple[str, ...] = get_args(TransportName)
MiB = 1 << 20


@dataclass(frozen=True)
class SyncConfig:
    """One transport and the size of its staging ring.

    Args:
        transport: one of ``TRANSPORT_NAMES``.
        slot_bytes: size of one staging slot, so the largest bucket.
        num_slots: slots in the ring; with two, packing overlaps applying.
        deadline_s: longest wait for the peer within one update.
        hold_slots: keep the ring's memory between updates; False gives it back after each one,
            and pays for taking it again in the next.
        verify: ``digest`` compares a digest of every tensor before anything is made live.

    Raises:
        ConfigError: a value is unknown or not positive.
    """

    transport: str
    slot_bytes: int = 64 * MiB
    num_slots: int = 2
    deadline_s: float = 60.0
    verify: str = "off"
    hold_slots: bool = True

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORT_NAMES:
            known = ", ".join(TRANSPORT_NAMES)
            raise ConfigError(f"unknown transport {self.transport!r}: choose one of {known}")
        if self.verify not in get_args(Verify):
            raise ConfigError(f"verify is {self.verify!r}: choose one of {', '.join(get_args(Verify))}")
        for name in ("slot_bytes", "num_slots", "deadline_s"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} is {value}: give a number above 0")
