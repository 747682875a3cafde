"""Two trainer ranks, two engines: an update is live on both engines, or on neither."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.core.module_engine import DictEngine, expected_bytes
from tests.core.ports import free_port
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
    commands = Rank(rank)
    while (request := pipe.recv()) is not None:
        try:
            pipe.send(("", "", getattr(commands, request[0])(*request[1:])))
        except Exception as error:  # the test asserts on it
            pipe.send((type(error).__name__, str(error), None))
    commands.stop_engine()


class InterruptedSource(TensorSource):
    """Calls ``interrupt`` before its fourth tensor."""

    interrupt: Callable[[], None] = staticmethod(lambda: None)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, named in enumerate(super().__iter__()):
            if index == 3:
                self.interrupt()
            yield named


class Rank:
    def __init__(self, rank: int) -> None:
        self._rank, self._metadata = rank, METADATA
        self._engine = ProcessEngine(DictEngine, start_method="fork")

    def stop_engine(self) -> None:
        self._engine.close()

    def restart_engine(self) -> None:
        self._engine = ProcessEngine(DictEngine, start_method="fork")

    def expected(self, version: int) -> dict[str, torch.Tensor]:
        """Other values on each rank: they prove which trainer an engine is paired with."""
        return weights_of(self._metadata, seed=2 * version + self._rank)

    def connect(self, transport: str, num_tensors: int = len(METADATA)) -> None:
        self._metadata = METADATA[:num_tensors]
        self._weights = self.expected(0)
        config = SyncConfig(transport, slot_bytes=4096, deadline_s=20)
        self._source = InterruptedSource(self._weights.items())
        self._sync = WeightSync.connect(self._source, self._engine, config, self._rank)

    def update(self, version: int, deadline_s: float = 20.0) -> int:
        self._train(version)
        return JobSync(self._sync, deadline_s=deadline_s).update(version).weight_version

    def update_alone(self, version: int) -> int:
        """Without the other rank."""
        self._train(version)
        return self._sync.update(version).weight_version

    def _train(self, version: int) -> None:
        for name, tensor in self.expected(version).items():
            self._weights[name].copy_(tensor)

    def lose_engine_before_commit(self) -> None:
        commit = self._sync.commit

        def late() -> Any:
            self._engine.signal(signal.SIGKILL)
            return commit()

        self._sync.commit = late  # type: ignore[method-assign]

    def lose_engine_in_prepare(self) -> None:
        """Between two buckets."""
        self._source.interrupt = lambda: self._engine.signal(signal.SIGKILL)

    def break_commit(self) -> None:
        """The engine commits; what it reports is not what the trainer expects."""
        self._sync._carrier.finish = dict  # type: ignore[method-assign]

    def lose_trainer_before_vote(self, number: int) -> None:
        prepare = self._sync.prepare

        def prepare_and_stop(version: int) -> None:
            prepare(version)
            os.kill(os.getpid(), number)

        self._sync.prepare = prepare_and_stop  # type: ignore[method-assign]

    def plant(self, attribute: str, value: Any) -> None:
        self._engine.call("plant", attribute, value)

    def served(self) -> tuple[int, bool]:
        """The engine's version, and whether its bytes are exactly that version's."""
        version = self._engine.call("version")
        return version, self._engine.call("live_bytes") == expected_bytes(self.expected(version))


@contextmanager
def two_ranks() -> Iterator[tuple[Ranks, list[Any]]]:
    """Their pipes, and their processes."""
    multiprocessing.set_forkserver_preload(["torch", "wsync_lab.engines.process"])
    context = multiprocessing.get_context("forkserver")
    port, pipes, processes = free_port(), [], []
    for rank in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=rank_main, args=(there, rank, port)))
        processes[-1].start()
        pipes.append(here)
        there.close()  # so that a rank that dies is the end of its pipe
    try:
        yield pipes, processes
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(20)
            if process.is_alive():
                process.kill()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with two_ranks() as (pipes, _):
        yield pipes


def answer(rank: Connection) -> tuple[str, str, Any]:
    assert rank.poll(60), "a rank did not answer within 60 s"
    reply: tuple[str, str, Any] = rank.recv()
    return reply


def on_all(ranks: Ranks, *request: Any) -> list[tuple[str, str, Any]]:
    for rank in ranks:
        rank.send(request)
    return [answer(rank) for rank in ranks]


def next_version(ranks: Ranks) -> int:
    return 1 + max(value[0] for _, _, value in on_all(ranks, "served"))


def assert_served(ranks: Ranks, version: int) -> None:
    """Every engine, whole, with the bytes that its own trainer has for ``version``."""
    assert [value for _, _, value in on_all(ranks, "served")] == [(version, True)] * len(ranks)


def on(rank: Connection, *request: Any) -> Any:
    rank.send(request)
    error, text, value = answer(rank)
    assert not error, text
    return value


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fail_at", ["begin", "load3", "finish"])
def test_one_worker_that_rejects_stops_both(ranks: Ranks, transport: str, fail_at: str) -> None:
    on_all(ranks, "connect", transport)
    first = next_version(ranks)
    assert [value for _, _, value in on_all(ranks, "update", first)] == [first, first]
    on(ranks[1], "plant", "fail_at", fail_at)
    healthy, faulty = on_all(ranks, "update", first + 1)
    assert healthy[:2] == (
        "UpdateRejected",
        f"update {first + 1} failed on another rank: nothing was committed here",
    )
    assert f"planted fault at {fail_at}" in faulty[1]
    assert [value[0] for _, _, value in on_all(ranks, "served")] == [first, first]
    on(ranks[1], "plant", "fail_at", "")
    on_all(ranks, "update", first + 2)
    assert_served(ranks, first + 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_killed_between_two_buckets_stops_both(ranks: Ranks, transport: str) -> None:
    on_all(ranks, "connect", transport)
    version = next_version(ranks)
    on_all(ranks, "update", version)
    on(ranks[1], "lose_engine_in_prepare")
    healthy, faulty = on_all(ranks, "update", version + 1)
    assert "failed on another rank: nothing was committed" in healthy[1]
    assert faulty[0] == "PeerLost"
    assert on(ranks[0], "served")[0] == version
    on(ranks[1], "restart_engine")
    on_all(ranks, "connect", transport)
    assert [value for _, _, value in on_all(ranks, "update", version + 1)] == [version + 1] * 2
    assert_served(ranks, version + 1)


def test_ranks_that_name_different_versions_commit_nothing(ranks: Ranks) -> None:
    on_all(ranks, "connect", "pinned")
    version = next_version(ranks)
    on_all(ranks, "update", version)
    for rank, asked in zip(ranks, (version + 1, version + 2), strict=True):
        rank.send(("update", asked))
    for rank in ranks:
        assert f"was called with versions {version + 1} to {version + 2}" in answer(rank)[1]
    assert [value[0] for _, _, value in on_all(ranks, "served")] == [version] * 2
    on_all(ranks, "update", version + 1)
    assert_served(ranks, version + 1)


def test_a_rank_with_nothing_to_send_updates_with_the_others(ranks: Ranks) -> None:
    on(ranks[0], "connect", "pinned", 0)
    on(ranks[1], "connect", "pinned", 2)
    version = next_version(ranks)
    on_all(ranks, "update", version)
    assert_served(ranks, version)


def test_a_commit_that_fails_in_any_way_leaves_no_rank_waiting(ranks: Ranks) -> None:
    on_all(ranks, "connect", "pinned")
    version = next_version(ranks)
    on(ranks[1], "break_commit")
    healthy, faulty = on_all(ranks, "update", version)
    assert f"update {version} is committed here, but failed on another rank" in healthy[1]
    assert faulty[0] == "KeyError"
    on_all(ranks, "connect", "pinned")
    on_all(ranks, "update", version + 1)
    assert_served(ranks, version + 1)


def test_a_worker_lost_between_prepare_and_commit_is_every_ranks_error(ranks: Ranks) -> None:
    on_all(ranks, "connect", "pinned")
    version = next_version(ranks)
    on_all(ranks, "update", version)
    on(ranks[1], "lose_engine_before_commit")
    start_s = time.monotonic()
    healthy, faulty = on_all(ranks, "update", version + 1)
    assert time.monotonic() - start_s < 10
    assert f"update {version + 1} is committed here, but failed on another rank" in healthy[1]
    assert faulty[0] == "PeerLost"
    assert on(ranks[0], "served") == (version + 1, True)
    on(ranks[1], "restart_engine")
    on_all(ranks, "connect", "pinned")
    on_all(ranks, "update", version + 2)
    assert_served(ranks, version + 2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_trainer_lost_before_the_vote_is_an_abort_on_the_others(number: signal.Signals) -> None:
    with two_ranks() as (ranks, processes):
        on_all(ranks, "connect", "pinned")
        on_all(ranks, "update", 1)
        on(ranks[1], "lose_trainer_before_vote", number)
        start_s = time.monotonic()
        for rank in ranks:
            rank.send(("update", 2, 1.5))
        error, text, _ = answer(ranks[0])
        assert time.monotonic() - start_s < 20
        assert error == "UpdateRejected"
        assert text.startswith("update 2 lost a trainer rank")
        processes[1].kill()
        processes[1].join(20)
        assert on(ranks[0], "served")[0] == 1
        assert on(ranks[0], "update_alone", 2) == 2
        assert on(ranks[0], "served") == (2, True)
