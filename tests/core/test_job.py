"""Two trainer ranks, two engines: an update is live on both engines, or on neither."""

import multiprocessing
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.core.module_engine import DictEngine, expected_bytes
from tests.core.test_weights import free_port
from tests.core.weights_of import weights_of
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.protocol.job import JobSync
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import TensorMeta, TensorSource

METADATA = [TensorMeta(f"layers.{i}.weight", "bfloat16", (40, 33)) for i in range(6)]
TRANSPORTS = ("cpu", "pinned")
Ranks = list[Connection]


def rank_main(pipe: Connection, rank: int, port: int) -> None:
    """A trainer rank with its engine: (command, arguments) in, (error's name, its text, value) out."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    with ProcessEngine(DictEngine, start_method="fork") as engine:
        commands = Rank(engine, rank)
        while (request := pipe.recv()) is not None:
            try:
                pipe.send(("", "", getattr(commands, request[0])(*request[1:])))
            except Exception as error:  # the test asserts on it
                pipe.send((type(error).__name__, str(error), None))


class Rank:
    def __init__(self, engine: ProcessEngine, rank: int) -> None:
        self._engine, self._rank = engine, rank
        self._weights = self.expected(0)

    def expected(self, version: int) -> dict[str, torch.Tensor]:
        """Other values on each rank: they prove which trainer an engine is paired with."""
        return weights_of(METADATA, seed=2 * version + self._rank)

    def connect(self, transport: str) -> None:
        config = SyncConfig(transport, slot_bytes=4096, deadline_s=20)
        source = TensorSource(self._weights.items())
        self._sync = WeightSync.connect(source, self._engine, config, self._rank)

    def update(self, version: int) -> int:
        for name, tensor in self.expected(version).items():
            self._weights[name].copy_(tensor)
        return JobSync(self._sync).update(version).weight_version

    def lose_engine_before_commit(self) -> None:
        commit = self._sync.commit

        def late() -> Any:
            self._engine.signal(signal.SIGKILL)
            return commit()

        self._sync.commit = late  # type: ignore[method-assign]

    def plant(self, attribute: str, value: Any) -> None:
        self._engine.call("plant", attribute, value)

    def served(self) -> tuple[int, bool]:
        """The engine's version, and whether its bytes are exactly that version's."""
        version = self._engine.call("version")
        return version, self._engine.call("live_bytes") == expected_bytes(self.expected(version))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    context = multiprocessing.get_context("forkserver")
    port, pipes, processes = free_port(), [], []
    for rank in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=rank_main, args=(there, rank, port)))
        processes[-1].start()
        pipes.append(here)
    yield pipes
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join(20)


def on_all(ranks: Ranks, *request: Any) -> list[tuple[str, str, Any]]:
    for rank in ranks:
        rank.send(request)
    return [rank.recv() for rank in ranks]


def on(rank: Connection, *request: Any) -> Any:
    rank.send(request)
    error, text, value = rank.recv()
    assert not error, text
    return value


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fail_at", ["begin", "load3", "finish"])
def test_one_worker_that_rejects_stops_both(ranks: Ranks, transport: str, fail_at: str) -> None:
    on_all(ranks, "connect", transport)
    first = max(value[0] for _, _, value in on_all(ranks, "served")) + 1
    assert [value for _, _, value in on_all(ranks, "update", first)] == [first, first]
    on(ranks[1], "plant", "fail_at", fail_at)
    healthy, faulty = on_all(ranks, "update", first + 1)
    assert healthy[:2] == (
        "UpdateRejected",
        f"update {first + 1} failed on another rank: nothing was committed",
    )
    assert f"planted fault at {fail_at}" in faulty[1]
    assert [value[0] for _, _, value in on_all(ranks, "served")] == [first, first]
    on(ranks[1], "plant", "fail_at", "")
    on_all(ranks, "update", first + 2)
    assert [value for _, _, value in on_all(ranks, "served")] == [(first + 2, True)] * 2


def test_a_worker_lost_between_prepare_and_commit_is_every_ranks_error(ranks: Ranks) -> None:
    """The last test of this module: rank 1 has no engine afterwards."""
    on_all(ranks, "connect", "pinned")
    version = max(value[0] for _, _, value in on_all(ranks, "served")) + 1
    on_all(ranks, "update", version)
    on(ranks[1], "lose_engine_before_commit")
    start_s = time.monotonic()
    healthy, faulty = on_all(ranks, "update", version + 1)
    assert time.monotonic() - start_s < 10
    assert "another rank lost its engine" in healthy[1]
    assert faulty[0] == "PeerLost"
    assert on(ranks[0], "served") == (version + 1, True)
