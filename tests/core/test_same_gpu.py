"""A GPU is known by its UUID: its index is another one in a process that sees other devices."""

import pytest
import torch

from wsync_lab.errors import TransportUnavailable
from wsync_lab.transports import device_slots
from wsync_lab.transports.base import SlotOffer

# What the worker sees when CUDA_VISIBLE_DEVICES is in the other order than the trainer's.
WORKER_SEES = {torch.device("cuda", 0): "GPU-b", torch.device("cuda", 1): "GPU-a"}


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "device_uuid", WORKER_SEES.__getitem__)


def offer(uuid: str) -> SlotOffer:
    return SlotOffer("cuda_vmm", 2, "cuda_vmm", device_uuid=uuid)


def test_the_same_gpu_under_another_index_is_the_same() -> None:
    device_slots.check_same_gpu(offer("GPU-a"), torch.device("cuda", 1))


@pytest.mark.parametrize("uuid", ["GPU-a", "GPU-z", ""])
def test_another_or_an_unknown_gpu_is_refused_by_name(uuid: str) -> None:
    with pytest.raises(TransportUnavailable, match=f"on GPU {uuid}, this worker computes on GPU-b"):
        device_slots.check_same_gpu(offer(uuid), torch.device("cuda", 0))
