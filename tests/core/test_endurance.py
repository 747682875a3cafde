"""Hundreds of updates leave memory and descriptors flat; killed processes leave nothing behind."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from tests.core.module_engine import DictEngine, expected_bytes
from tests.core.weights_of import weights_of
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import WsyncError
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import TensorMeta, TensorSource

HOST_TRANSPORTS = ("cpu", "pinned", "cuda_vmm", "nccl")
METADATA = [TensorMeta(f"layers.{i}.weight", "float32", (128, 130)) for i in range(8)]
NUM_UPDATES = 500
NUM_KILLS = 50
MiB = 1 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of its own, so that everything left behind is ours."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(os.listdir("/dev/shm"))
    yield tmp_path
    assert sorted(os.listdir("/dev/shm")) == before


@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
def test_500_updates_keep_memory_and_descriptors_flat(transport: str, private_tmp: Path) -> None:
    weights = weights_of(METADATA, seed=1)
    with ProcessEngine(DictEngine) as engine:
        config = SyncConfig(transport, slot_bytes=200_000)
        sync = WeightSync.connect(TensorSource(weights.items()), engine, config)
        pids = (os.getpid(), engine.pid)
        for version in range(1, NUM_UPDATES + 1):
            weights["layers.3.weight"].fill_(version)
            sync.update(version)
            if version == NUM_UPDATES // 2:
                before = [(resident_bytes(pid), num_descriptors(pid)) for pid in pids]
        after = [(resident_bytes(pid), num_descriptors(pid)) for pid in pids]
        assert engine.call("live_bytes") == expected_bytes(weights)
        sync.close()
    for (bytes_before, fds_before), (bytes_after, fds_after) in zip(before, after, strict=True):
        assert fds_after == fds_before
        assert bytes_after - bytes_before < 8 * MiB
    assert list(private_tmp.glob("wsync-*")) == []


def train_forever(pipe: Connection, transport: str, folder: str) -> None:
    """A trainer with its engine; says the engine's pid, then updates until it is killed."""
    import tempfile

    tempfile.tempdir = folder
    torch.set_num_threads(1)
    source = TensorSource(weights_of(METADATA, seed=2).items())
    engine = ProcessEngine(DictEngine, start_method="fork")  # a second fork server takes seconds
    pipe.send(engine.pid)
    for version in range(1, 10_000):
        sync = WeightSync.connect(source, engine, SyncConfig(transport, slot_bytes=200_000))
        sync.update(version)
        sync.close()


def alive(pid: int) -> bool:
    """Neither gone nor a zombie that its parent has not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < until, f"process {pid} outlived its trainer"
        time.sleep(0.01)


def kill_one(transport: str, folder: Path, delay_s: float, victim: str) -> None:
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    trainer = context.Process(target=train_forever, args=(there, transport, str(folder)))
    trainer.start()
    engine_pid = here.recv()
    time.sleep(delay_s)
    os.kill(engine_pid if victim == "engine" else trainer.pid or 0, signal.SIGKILL)
    trainer.join(20)
    assert trainer.exitcode is not None, "the trainer hangs"
    wait_until_gone(engine_pid)
    trainer.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_50_kills_at_random_points_leave_nothing_and_the_next_run_works(private_tmp: Path) -> None:
    generator = random.Random(7)
    for kill in range(NUM_KILLS):
        transport = HOST_TRANSPORTS[kill % len(HOST_TRANSPORTS)]
        victim = ("engine", "trainer")[kill // len(HOST_TRANSPORTS) % 2]
        kill_one(transport, private_tmp, generator.uniform(0, 0.1), victim)
    for abandoned in private_tmp.glob("wsync-*"):
        os.utime(abandoned, (0, 0))  # as old as it will be when a later run comes by
    weights = weights_of(METADATA, seed=3)
    with ProcessEngine(DictEngine) as engine:
        sync = WeightSync.connect(TensorSource(weights.items()), engine, SyncConfig("pinned"))
        sync.update(1)
        assert engine.call("live_bytes") == expected_bytes(weights)
        sync.close()
    assert list(private_tmp.glob("wsync-*")) == []


def test_a_trainer_that_is_killed_leaves_the_engine_free_for_the_next_one() -> None:
    """The engine notices at once, rolls back, and attaches to another trainer."""
    weights = weights_of(METADATA, seed=4)
    with ProcessEngine(DictEngine) as engine:
        engine.call("plant", "delay_s", 0.05)
        config = SyncConfig("pinned", slot_bytes=200_000, deadline_s=30)
        sync = WeightSync.connect(TensorSource(weights.items()), engine, config)
        sync._carrier.start()
        sync.close()  # what the kernel does for a trainer that was killed
        start = time.monotonic()
        assert "PeerLost" in engine.call("outcome")["reason"]
        assert time.monotonic() - start < 10
        with pytest.raises(WsyncError):
            sync.update(1)
        again = WeightSync.connect(TensorSource(weights.items()), engine, config)
        again.update(1)
        assert engine.call("live_bytes") == expected_bytes(weights)
        again.close()
