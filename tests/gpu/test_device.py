"""What only a GPU can show: device slots between processes, and copies in one launch."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from wsync_lab.bench import correctness, payloads
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.bench.layouts import LAYOUT_NAMES, LayoutSource
from wsync_lab.config import SyncConfig
from wsync_lab.copies import CopyBatch
from wsync_lab.digest import tensor_digest, tensor_digests
from wsync_lab.engines.in_place import TensorApplier
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import PeerLost, UpdateRejected
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.transports.base import SlotOffer
from wsync_lab.weights import TensorSource

pytestmark = pytest.mark.gpu
MiB = 1 << 20
_CYCLES = 40_000_000  # about 20 ms
TRANSPORTS = ("cpu", "pinned", "cuda_ipc", "cuda_vmm")
REAL = {"pinned": "registered_memfd", "cuda_ipc": "cuda_malloc", "cuda_vmm": "cuda_vmm"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_layout_arrives_byte_for_byte(transport: str, tmp_path: Path) -> None:
    made = correctness.run_correctness([transport], LAYOUT_NAMES, 65_536, 1, tmp_path / "a.jsonl")
    assert [(record["error"], record.get("num_mismatched")) for record in made] == [(None, 0)] * len(made)
    assert all(record["config"]["slot_memory"] == REAL.get(transport, "pageable") for record in made)


def test_copies_in_one_launch_are_those_of_torch(cuda: torch.device) -> None:
    generator = torch.Generator(cuda).manual_seed(3)
    sizes = [1, 2, 3, 16, 4096, 65_536, 65_537, 1 << 20, (1 << 20) + 8, 7_000_001]
    base = torch.randint(0, 256, (sum(sizes) + 64,), dtype=torch.uint8, device=cuda, generator=generator)
    sources = list(base[: sum(sizes)].split(sizes))
    sources += [torch.randn(301, 77, device=cuda).t(), torch.randn(64, 64, device=cuda)[::2]]
    targets = [torch.full_like(source, 7) for source in sources]
    batch = CopyBatch(zip(targets, sources, strict=True))
    for _ in range(2):
        base.bitwise_xor_(0x5A)
        batch.run()
        assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_digests_in_one_launch_are_those_of_the_cpu(cuda: torch.device) -> None:
    tensors = [tensor for layout in LAYOUT_NAMES for _, tensor in LayoutSource(layout, 5, cuda)]
    tensors.append(torch.randint(0, 256, (5_000_008,), dtype=torch.uint8, device=cuda))
    expected = [tensor_digest(tensor.cpu()) for tensor in tensors]
    assert tensor_digests(tensors) == expected
    tensors[-1][3_000_001] ^= 1
    assert tensor_digests(tensors)[-1] != expected[-1]


@pytest.mark.parametrize("transport", ["cuda_ipc", "cuda_vmm", "pinned"])
def test_other_bytes_are_caught_by_their_digest(
    weights: dict[str, torch.Tensor], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(weights) as engine:
        sync = connect(engine, weights, transport, verify="digest")
        for version in (1, 2, 3):
            payloads.change_values(weights, version)
            sync.update(version)
        publish = sync._writer.publish

        def corrupt(index: int, num_bytes: int) -> bytes | None:
            sync._writer.slot(index)[num_bytes // 3] ^= 1  # half is padding, which no digest covers
            return publish(index, num_bytes)

        monkeypatch.setattr(sync._writer, "publish", corrupt)
        with pytest.raises(UpdateRejected, match="arrived with other bytes"):
            sync.update(4)
        monkeypatch.undo()
        sync.update(4)
        assert engine.call("digests") == {n: tensor_digest(t) for n, t in weights.items()}
        sync.close()


@pytest.fixture
def weights(cuda: torch.device) -> dict[str, torch.Tensor]:
    return payloads.initial_values(payloads.payload_of("synthetic", 64 * MiB, 40).tensors, cuda)


def connect(
    engine: ProcessEngine, weights: dict[str, torch.Tensor], transport: str, verify: str = "off"
) -> WeightSync:
    config = SyncConfig(transport, slot_bytes=8 * MiB, deadline_s=20, verify=verify)
    source = TensorSource(weights.items())
    return WeightSync.connect(source, engine, config, device=torch.device("cuda", 0))


def described(weights: dict[str, torch.Tensor]) -> list[tuple[str, str, list[int]]]:
    return [(n, str(t.dtype).removeprefix("torch."), list(t.shape)) for n, t in weights.items()]


def start(weights: dict[str, torch.Tensor]) -> ProcessEngine:
    return ProcessEngine(TensorEngine, described(weights), "cuda")


class SlowApplier(TensorApplier):
    """Its device is busy before it reads a bucket, long after the host queued the copies."""

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        torch.cuda._sleep(_CYCLES)
        super().load(tensors)

    def replay(self, bucket: int, payload: torch.Tensor) -> bool:
        torch.cuda._sleep(_CYCLES)
        return super().replay(bucket, payload)


class SlowEngine(TensorEngine):
    def __init__(self, tensors: list[tuple[str, str, list[int]]], device: str) -> None:
        super().__init__(tensors, device)
        self._applier.__class__ = SlowApplier


@pytest.mark.parametrize("transport", ["cuda_ipc", "cuda_vmm", "pinned"])
def test_200_updates_are_right_and_take_no_memory(weights: dict[str, torch.Tensor], transport: str) -> None:
    free = []
    with start(weights) as engine:
        sync = connect(engine, weights, transport)
        for version in range(1, 201):
            payloads.change_values(weights, version)
            sync.update(version)
            if version in {5, 200}:
                expected = {name: tensor_digest(tensor) for name, tensor in weights.items()}
                assert engine.call("digests") == expected
                free.append(torch.cuda.mem_get_info()[0])
        assert abs(free[0] - free[1]) <= 64 * MiB
        assert engine.call("describe")["apply_path"] == "load_plan"
        sync.close()


@pytest.mark.parametrize("transport", ["cuda_ipc", "cuda_vmm"])
def test_a_slot_is_not_rewritten_while_a_slow_reader_reads(
    weights: dict[str, torch.Tensor], transport: str
) -> None:
    with ProcessEngine(SlowEngine, described(weights), "cuda") as engine:
        sync = connect(engine, weights, transport)
        for version in (1, 2, 3):
            payloads.change_values(weights, version)
            sync.update(version)
            assert engine.call("digests") == {n: tensor_digest(t) for n, t in weights.items()}
        sync.close()


@pytest.mark.parametrize("transport", ["cuda_ipc", "cuda_vmm"])
def test_a_killed_worker_is_an_error_and_its_memory_comes_back(
    weights: dict[str, torch.Tensor], transport: str
) -> None:
    for attempt in range(4):
        with start(weights) as engine:
            sync = connect(engine, weights, transport)
            sync.update(1)
            os.kill(engine.pid, signal.SIGKILL)
            with pytest.raises(PeerLost):
                sync.update(2)
            sync.close()
        time.sleep(0.5)
        if attempt == 0:
            before = torch.cuda.mem_get_info()[0]
    assert before - torch.cuda.mem_get_info()[0] <= 64 * MiB


def test_slots_on_another_gpu_are_refused_by_uuid(
    weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = SlotOffer.of
    elsewhere = "GPU-00000000-1111-2222-3333-444444444444"
    monkeypatch.setattr(SlotOffer, "of", lambda *args, **kwargs: replace_uuid(of(*args, **kwargs), elsewhere))
    with start(weights) as engine, pytest.raises(UpdateRejected, match=elsewhere):
        connect(engine, weights, "cuda_vmm")


def replace_uuid(offer: SlotOffer, uuid: str) -> SlotOffer:
    import msgspec

    return msgspec.structs.replace(offer, device_uuid=uuid)
