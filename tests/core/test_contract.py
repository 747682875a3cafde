"""Every transport, between two real processes, under one contract."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.module_engine import DictEngine, expected_bytes
from tests.core.strategies import slot_sizes, state_dicts
from tests.core.weights_of import weights_of
from wsync_lab.bench.consumer import TensorEngine
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    PlanError,
    TransportUnavailable,
    UpdateRejected,
    WsyncError,
)
from wsync_lab.packing import Piece, Plan, as_bytes, pack_piece
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import TensorMeta, TensorSource

HOST_TRANSPORTS = ("cpu", "pinned", "cuda_vmm", "nccl")
SLOT_BYTES = 4096
METADATA = [TensorMeta(f"layers.{i}.weight", "bfloat16", (40, 33)) for i in range(9)]
METADATA += [TensorMeta("head", "float32", (3, 1000)), TensorMeta("none", "float16", (0, 4))]


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with ProcessEngine(DictEngine) as process:
        yield process


@pytest.fixture(autouse=True)
def healthy(engine: ProcessEngine) -> None:
    for attribute, value in {"reject": [], "fail_at": "", "delay_s": 0.0, "events": []}.items():
        engine.call("plant", attribute, value)


def connect(
    engine: ProcessEngine, transport: str, weights: dict[str, torch.Tensor], **config: Any
) -> WeightSync:
    options = {"slot_bytes": SLOT_BYTES, "num_slots": 2, "deadline_s": 20.0} | config
    return WeightSync.connect(TensorSource(weights.items()), engine, SyncConfig(transport, **options))


def next_version(engine: ProcessEngine) -> int:
    return int(engine.call("version")) + 1


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_successive_updates_arrive_bit_for_bit(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of(METADATA, seed=0)
    sync = connect(engine, transport, weights)
    for seed in range(1, 4):
        for name, tensor in weights_of(METADATA, seed).items():
            weights[name].copy_(tensor)
        report = sync.update(next_version(engine))
        assert engine.call("live_bytes") == expected_bytes(weights)
        assert engine.call("version") == report.weight_version
        assert report.sync_time_s == pytest.approx(sum(report.phase_times_s.values()))
    sync.close()


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), num_slots=st.integers(1, 8), seed=st.integers(0, 99))
def test_any_layout_ring_and_slot_size(
    engine: ProcessEngine, transport: str, data: st.DataObject, num_slots: int, seed: int
) -> None:
    metadata = data.draw(state_dicts(max_tensors=6))
    weights = weights_of(metadata, seed)
    slot_bytes = data.draw(slot_sizes(metadata))
    sync = connect(engine, transport, weights, slot_bytes=slot_bytes, num_slots=num_slots)
    sync.update(next_version(engine))
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)


def corrupt_bucket(monkeypatch: pytest.MonkeyPatch, corrupt: Callable[[torch.Tensor], object]) -> None:
    """Let ``corrupt`` loose on what the trainer packed of ``layers.4.weight``."""

    def pack(plan: Plan, piece: Piece, tensor: torch.Tensor, slot: torch.Tensor) -> None:
        pack_piece(plan, piece, tensor, slot)
        if plan.tensors[piece.tensor].name == "layers.4.weight":
            corrupt(slot[piece.slot_offset : piece.slot_offset + piece.num_bytes])

    monkeypatch.setattr("wsync_lab.protocol.stream.pack_piece", pack)


CORRUPTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "one bit": lambda data: data[100:101].bitwise_xor_(1),
    "two elements swapped": lambda data: data[:4].copy_(data[[2, 3, 0, 1]]),
    "nothing written": lambda data: data.fill_(0xA5),
}


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_bytes_changed_on_the_way_are_caught_before_they_are_live(
    engine: ProcessEngine, transport: str, corruption: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(METADATA, seed=12)
    sync = connect(engine, transport, weights, verify="digest")
    version = next_version(engine)
    with monkeypatch.context() as patch:
        corrupt_bucket(patch, CORRUPTIONS[corruption])
        with pytest.raises(UpdateRejected, match=r"1 tensors arrived with other bytes, first layers\.4"):
            sync.update(version)
    assert engine.call("events")[-1] == "rollback"
    sync.update(version)
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_slow_receiver_never_sees_a_slot_rewritten(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of(METADATA, seed=5)
    engine.call("plant", "delay_s", 0.02)
    sync = connect(engine, transport, weights)
    assert len(sync.plan.buckets) > 4
    report = sync.update(next_version(engine))
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)
    assert report.phase_times_s["apply"] >= 0.02


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@pytest.mark.parametrize("fail_at", ["begin", "load3", "finish"])
def test_a_failed_update_is_refused_and_the_next_one_works(
    engine: ProcessEngine, transport: str, fail_at: str
) -> None:
    weights = weights_of(METADATA, seed=6)
    sync = connect(engine, transport, weights)
    version = next_version(engine)
    engine.call("plant", "fail_at", fail_at)
    with pytest.raises(UpdateRejected, match=f"planted fault at {fail_at}"):
        sync.update(version)
    assert engine.call("version") == version - 1
    assert engine.call("events")[-1] == "rollback"
    assert engine.call("outcome")["touched"]
    engine.call("plant", "fail_at", "")
    sync.update(version)
    sync.close()
    assert engine.call("version") == version
    assert engine.call("live_bytes") == expected_bytes(weights)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_an_aborted_update_publishes_nothing(engine: ProcessEngine, transport: str) -> None:
    sync = connect(engine, transport, weights_of(METADATA, seed=7))
    version = next_version(engine)
    sync.prepare(version)
    sync.abort("another rank failed")
    assert engine.call("version") == version - 1
    assert "another rank failed" in engine.call("outcome")["reason"]
    sync.update(version)
    sync.close()
    assert engine.call("version") == version


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_versions_only_rise(engine: ProcessEngine, transport: str) -> None:
    sync = connect(engine, transport, weights_of(METADATA, seed=7))
    sync.update(next_version(engine))
    with pytest.raises(UpdateRejected, match="versions only rise"):
        sync.update(next_version(engine) - 1)
    assert not engine.call("outcome")["touched"]
    sync.update(next_version(engine))
    sync.close()


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_manifest_that_does_not_fit_is_refused_before_the_engine_is_touched(
    engine: ProcessEngine, transport: str
) -> None:
    engine.call("plant", "reject", ["head is unknown", "tail is missing"])
    with pytest.raises(UpdateRejected, match="head is unknown; tail is missing"):
        connect(engine, transport, weights_of(METADATA, seed=7))
    assert engine.call("events") == []


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_changed_model_is_noticed_before_a_byte_moves(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of(METADATA, seed=7)
    source = TensorSource(weights.items())
    sync = WeightSync.connect(source, engine, SyncConfig(transport, slot_bytes=SLOT_BYTES))
    source._tensors[0] = ("layers.0.weight", torch.zeros(2))
    with pytest.raises(PlanError, match=r"became layers\.0\.weight"):
        sync.update(next_version(engine))
    assert engine.call("events") == []
    sync.close()


class FailingSource(TensorSource):
    """Raises in the middle of its first pass."""

    broken = True

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, named in enumerate(super().__iter__()):
            if self.broken and index == 4:
                raise RuntimeError("the gather failed")
            yield named


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_gather_that_fails_aborts_the_update(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of(METADATA, seed=9)
    source = FailingSource(weights.items())
    sync = WeightSync.connect(source, engine, SyncConfig(transport, slot_bytes=SLOT_BYTES))
    version = next_version(engine)
    with pytest.raises(RuntimeError, match="the gather failed"):
        sync.update(version)
    assert "the gather failed" in engine.call("outcome")["reason"]
    source.broken = False
    sync.update(version)
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)


class CountingSource(TensorSource):
    """Counts gathers: in a sharded job each is a collective that every rank must join."""

    gathers = 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for named in super().__iter__():
            self.gathers += 1
            yield named


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_rank_whose_engine_fails_still_joins_every_gather(engine: ProcessEngine, transport: str) -> None:
    source = CountingSource(weights_of(METADATA, seed=9).items())
    sync = WeightSync.connect(source, engine, SyncConfig(transport, slot_bytes=SLOT_BYTES))
    engine.call("plant", "fail_at", "load2")
    with pytest.raises(UpdateRejected):
        sync.update(next_version(engine))
    assert source.gathers == len(METADATA)
    sync.close()


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_is_an_error_within_the_deadline(
    transport: str, number: signal.Signals
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    killed = number == signal.SIGKILL
    deadline_s = 20.0 if killed else 1.0
    with ProcessEngine(DictEngine) as victim:
        victim.call("plant", "delay_s", 0.05)
        sync = connect(victim, transport, weights_of(METADATA, seed=4), deadline_s=deadline_s)
        killer = threading.Timer(0.15, victim.signal, (number,))
        killer.start()
        start = time.monotonic()
        with pytest.raises(
            PeerLost if killed else DeadlineExceeded, match=r"rank 0, update 1, bucket \d+ of"
        ):
            sync.update(1)
        killer.join()
        assert time.monotonic() - start < (deadline_s / 2 if killed else deadline_s + 5)
        victim.signal(signal.SIGKILL)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1


def test_unknown_and_unavailable_transports_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown transport 'carrier pigeon': choose one of"):
        SyncConfig("carrier pigeon")
    with pytest.raises(TransportUnavailable, match=r"'cuda_ipc' needs a GPU: .* choose cpu, pinned"):
        WeightSync.connect(TensorSource([]), None, SyncConfig("cuda_ipc"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_slots is -1"):
        SyncConfig("pinned", num_slots=-1)


def test_an_engine_that_cannot_attach_is_reported_at_once() -> None:
    with ProcessEngine(DictEngine) as engine:
        engine.signal(signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WsyncError):
            connect(engine, "pinned", weights_of(METADATA, seed=1), deadline_s=30)
        assert time.monotonic() - start < 5


GIVE_BACK = ("pinned", "cuda_vmm")


def stored_bytes(sync: WeightSync) -> int:
    """What the kernel keeps for the slots."""
    (fd,) = sync._writer.fds()
    return os.fstat(fd).st_blocks * 512


@pytest.mark.parametrize("transport", GIVE_BACK)
def test_slots_that_are_given_back_cost_nothing_between_updates(
    engine: ProcessEngine, transport: str
) -> None:
    weights = weights_of(METADATA, seed=20)
    sync = connect(engine, transport, weights, hold_slots=False)
    for seed in (21, 22):
        for name, tensor in weights_of(METADATA, seed).items():
            weights[name].copy_(tensor)
        version = next_version(engine)
        sync.prepare(version)
        assert stored_bytes(sync) >= 2 * SLOT_BYTES
        ring = sync.commit().ring
        assert ring is not None
        assert (ring.num_bytes, ring.trainer_s > 0, ring.worker_s > 0) == (2 * SLOT_BYTES, True, True)
        assert stored_bytes(sync) == 0
        assert engine.call("live_bytes") == expected_bytes(weights)
    engine.call("plant", "fail_at", "load2")
    with pytest.raises(UpdateRejected):
        sync.update(next_version(engine))
    assert stored_bytes(sync) == 0
    engine.call("plant", "fail_at", "")
    sync.update(next_version(engine))
    assert engine.call("live_bytes") == expected_bytes(weights)
    sync.close()


def test_a_kernel_that_cannot_take_slots_again_is_named_before_an_update_begins(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = connect(engine, "pinned", weights_of(METADATA, seed=20), hold_slots=False)
    version = next_version(engine)
    with monkeypatch.context() as patch:
        patch.setattr("wsync_lab.transports.host_slots._MADV_POPULATE_WRITE", 9999)
        with pytest.raises(TransportUnavailable, match=r"Linux 5\.14.*leave hold_slots on"):
            sync.update(version)
    assert engine.call("events") == []
    sync.update(version)
    sync.close()


def shared_bytes(pid: int) -> int:
    """Shared pages that process ``pid`` has mapped."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("RssShmem:")[2].split()[0])


def test_both_processes_are_smaller_between_updates(engine: ProcessEngine) -> None:
    slot_bytes = 4 << 20
    weights = weights_of([TensorMeta(f"w{i}", "uint8", (slot_bytes,)) for i in range(2)], seed=20)
    sync = connect(engine, "pinned", weights, slot_bytes=slot_bytes, hold_slots=False)
    pids = (os.getpid(), engine.pid)
    sync.prepare(next_version(engine))
    during = [shared_bytes(pid) for pid in pids]
    sync.commit()
    after = [shared_bytes(pid) for pid in pids]
    assert all(before - now >= 2 * slot_bytes for before, now in zip(during, after, strict=True))
    sync.close()


def test_slots_that_are_held_keep_their_memory(engine: ProcessEngine) -> None:
    sync = connect(engine, "pinned", weights_of(METADATA, seed=20))
    assert sync.update(next_version(engine)).ring is None
    assert stored_bytes(sync) >= 2 * SLOT_BYTES
    sync.close()


@pytest.mark.parametrize("transport", sorted(set(HOST_TRANSPORTS) - set(GIVE_BACK)))
def test_a_transport_that_cannot_give_its_slots_back_says_so(engine: ProcessEngine, transport: str) -> None:
    with pytest.raises(ConfigError, match=f"'{transport}' keeps its slots' memory: leave hold_slots on"):
        connect(engine, transport, weights_of(METADATA, seed=20), hold_slots=False)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_nothing_at_all_to_send_is_an_update(engine: ProcessEngine, transport: str) -> None:
    for metadata in ([], [TensorMeta("none", "float32", (0, 3))]):
        weights = weights_of(metadata, seed=1)
        sync = connect(engine, transport, weights)
        sync.update(next_version(engine))
        sync.close()
        assert engine.call("live_bytes") == expected_bytes(weights)


def poison(sync: WeightSync) -> None:
    for index in range(sync._num_slots):
        sync._writer.slot(index).fill_(0xA5)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_slots_are_not_read_before_they_are_sent_nor_after_they_are_free(transport: str) -> None:
    """The second update of this engine replays learnt copies, the first one does not."""
    weights = weights_of(METADATA, seed=30)
    tensors = [(meta.name, meta.dtype, list(meta.shape)) for meta in METADATA]
    with ProcessEngine(TensorEngine, tensors, "cpu") as copying:
        sync = connect(copying, transport, weights)
        for version in (1, 2, 3):
            for name, tensor in weights_of(METADATA, seed=30 + version).items():
                weights[name].copy_(tensor)
            poison(sync)
            sync.update(version)
            poison(sync)
            stored = {name: as_bytes(tensor).numpy().tobytes() for name, tensor in weights.items()}
            assert copying.call("stored_bytes") == stored
        sync.close()


NAMES = ["a.b.c.0.weight", "layers.élan.重み", "w" * 5000, "with space/and:marks", ""]


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_any_name_arrives_as_it_was_sent(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of([TensorMeta(name, "bfloat16", (5, 7)) for name in NAMES], seed=2)
    sync = connect(engine, transport, weights)
    sync.update(next_version(engine))
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_the_same_weights_twice_change_nothing(engine: ProcessEngine, transport: str) -> None:
    weights = weights_of(METADATA, seed=3)
    sync = connect(engine, transport, weights)
    for _ in range(2):
        sync.update(next_version(engine))
        assert engine.call("live_bytes") == expected_bytes(weights)
    sync.close()


def open_descriptors(engine: ProcessEngine) -> tuple[int, int]:
    return tuple(len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), engine.pid))  # type: ignore[return-value]


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_50_offers_that_are_refused_leave_no_descriptor(engine: ProcessEngine, transport: str) -> None:
    engine.call("plant", "reject", ["head is unknown"])
    weights = weights_of(METADATA, seed=4)
    for attempt in range(50):
        with pytest.raises(UpdateRejected):
            connect(engine, transport, weights)
        if attempt == 4:
            before = open_descriptors(engine)
    assert open_descriptors(engine) == before


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_50_aborts_leave_no_descriptor_and_the_next_update_works(
    engine: ProcessEngine, transport: str
) -> None:
    weights = weights_of(METADATA, seed=5)
    sync = connect(engine, transport, weights)
    for attempt in range(50):
        sync.prepare(next_version(engine))
        sync.abort("another rank failed")
        if attempt == 4:
            before = open_descriptors(engine)
    assert open_descriptors(engine) == before
    sync.update(next_version(engine))
    sync.close()
    assert engine.call("live_bytes") == expected_bytes(weights)


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_an_engine_restarted_between_updates_is_connected_again(transport: str) -> None:
    weights = weights_of(METADATA, seed=6)
    with ProcessEngine(DictEngine) as first:
        sync = connect(first, transport, weights)
        sync.update(1)
    start = time.monotonic()
    with pytest.raises(PeerLost):
        sync.update(2)
    assert time.monotonic() - start < 5
    with pytest.raises(PeerLost, match=r"connect again|gone"):
        sync.update(2)
    sync.close()
    with ProcessEngine(DictEngine) as second:
        again = connect(second, transport, weights)
        again.update(2)
        assert second.call("live_bytes") == expected_bytes(weights)
        again.close()


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_a_closed_connection_leaves_no_descriptor_while_it_is_referred_to(
    engine: ProcessEngine, transport: str
) -> None:
    weights = weights_of(METADATA, seed=7)
    kept = []
    for attempt in range(8):
        sync = connect(engine, transport, weights)
        sync.update(next_version(engine))
        sync.close()
        kept.append(sync)
        if attempt == 2:
            before = open_descriptors(engine)
    assert open_descriptors(engine) == before
