"""How a record's transport is shown: what really carried the bytes, never a stand-in's GPU name."""

from typing import Any

# The slot memory, or the collective, that makes a transport the real thing.
_REAL = {
    "cpu": "pageable",
    "pinned": "registered_memfd",
    "cuda_ipc": "cuda_malloc",
    "cuda_vmm": "cuda_vmm",
    "nccl": "nccl",
}


def carried_by(config: dict[str, Any]) -> str:
    """The memory of the slots, or the collective where one carries the bytes."""
    return str(config.get("collective") or config.get("slot_memory") or "unknown")


def transport_label(config: dict[str, Any]) -> str:
    """``pinned`` where it is page-locked, ``pinned (memfd)`` on a host without a GPU,
    ``memfd for cuda_vmm`` where host memory stands in for device memory."""
    transport, carrier = str(config["transport"]), carried_by(config)
    if carrier == _REAL[transport]:
        return transport
    stands_in = transport.startswith("cuda_") or transport == "nccl"
    return f"{carrier} for {transport}" if stands_in else f"{transport} ({carrier})"
