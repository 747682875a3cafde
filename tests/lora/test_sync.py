"""Adapters reach an engine in another process, whole, over every transport of a host."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engines.client import ThreadClient
from tests.lora.adapters_of import adapter
from tests.lora.plain_host import MODULES, PROMPTS, Mixer, MixerEngine, base, greedy
from wsync_lab.config import SyncConfig
from wsync_lab.engines.base import Sampling
from wsync_lab.engines.plain import PlainEngine
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.errors import ConfigError, EngineFenced, PeerLost, UpdateRejected
from wsync_lab.lora.manifest import build_manifest, next_update_id
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.job import JobSync
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource

HOST_TRANSPORTS = ("cpu", "pinned", "cuda_vmm", "nccl")
every_transport = pytest.mark.parametrize("transport", HOST_TRANSPORTS)
TARGETS = ("q_proj", "head")


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessEngine]:
    with ProcessEngine(MixerEngine) as engine:
        yield engine


def made(seed: int, **config: Any) -> Adapter:
    options: dict[str, Any] = {"target_modules": TARGETS}
    return adapter(seed, MODULES, base(), **(options | config))


class Trainer:
    """A source whose adapter the test sets."""

    def __init__(self, engine: Any, transport: str, **config: Any) -> None:
        options = {"slot_bytes": 1024, "num_slots": 2, "deadline_s": 20.0} | config
        self.now = made(0)
        self.sync = AdapterSync.connect(lambda: self.now, engine, SyncConfig(transport, **options))

    def send(self, adapter: Adapter, update_id: int | None = None) -> int:
        self.now = adapter
        return self.sync.update(update_id).weight_version


def served(engine: ProcessEngine) -> tuple[int, list[list[int]]]:
    answers = engine.call("tokens")
    (update_id,) = {update_id for update_id, _ in answers}
    return update_id, [token_ids for _, token_ids in answers]


@every_transport
def test_ranks_scaling_and_targets_change_from_update_to_update(
    shared: ProcessEngine, transport: str
) -> None:
    trainer = Trainer(shared, transport)
    configs: list[dict[str, Any]] = [
        {"rank": 8, "alpha": 16},
        {"rank": 4, "alpha": 9},
        {"rank": 16, "alpha": 16, "use_rslora": True},
        {"rank": 4, "target_modules": ("q_proj",)},
        {"rank": 2, "rank_pattern": {"head": 7}, "alpha_pattern": {"head": 3}},
    ]
    for seed, config in enumerate(configs):
        update_id = trainer.send(new := made(seed, **config))
        assert served(shared) == (update_id, greedy(new))
        manifest = build_manifest(update_id, new.base_digest, new.config, new.tensors)
        assert shared.call("adapters") == [
            update_id,
            dict(zip(new.tensors, manifest.digests, strict=True)),
            [update_id],
        ]
    assert shared.call("base")["digest"] == base()
    trainer.sync.close()


@every_transport
def test_a_refused_adapter_leaves_the_served_one_and_the_next_update_works(
    shared: ProcessEngine, transport: str
) -> None:
    trainer = Trainer(shared, transport)
    before = trainer.send(made(1)), greedy(made(1))
    for wrong, text in (
        (made(2, rank=65), "max_lora_rank 64"),
        (Adapter(made(2).config, made(2).tensors, "0" * 64), "was trained on base 000000000000"),
        (Adapter(made(2).config, made(2, target_modules=("q_proj",)).tensors, base()), "head is a target"),
    ):
        with pytest.raises(UpdateRejected, match=text):
            trainer.send(wrong)
        assert served(shared) == before
    with pytest.raises(UpdateRejected, match="each has a new id"):
        trainer.send(made(2), update_id=before[0])
    assert served(shared) == before
    assert served(shared) != (trainer.send(made(3)), greedy(made(1)))
    assert served(shared)[1] == greedy(made(3))
    trainer.sync.close()


@every_transport
def test_an_abort_after_prepare_leaves_the_served_one(shared: ProcessEngine, transport: str) -> None:
    trainer = Trainer(shared, transport)
    before = trainer.send(made(1)), greedy(made(1))
    trainer.now = made(2)
    trainer.sync.prepare(before[0] + 1)
    trainer.sync.abort("another rank failed")
    assert served(shared) == before
    assert shared.call("adapters")[2] == [before[0]]
    assert trainer.send(made(2)) > before[0] + 1
    assert served(shared)[1] == greedy(made(2))
    trainer.sync.close()


@every_transport
def test_a_source_that_fails_leaves_the_served_one(shared: ProcessEngine, transport: str) -> None:
    trainer = Trainer(shared, transport)
    before = trainer.send(made(1)), greedy(made(1))
    first = next(iter(made(2).tensors))
    tensors = {**made(2).tensors, first: made(3, rank=2).tensors[first]}
    trainer.now = Adapter(made(2).config, tensors, base())
    with pytest.raises(UpdateRejected, match="the configuration says"):
        trainer.sync.update()
    assert served(shared) == before
    trainer.send(made(4))
    assert served(shared)[1] == greedy(made(4))
    trainer.sync.close()


@every_transport
def test_50_updates_hold_one_adapter_and_no_more_descriptors(shared: ProcessEngine, transport: str) -> None:
    trainer = Trainer(shared, transport)
    trainer.send(made(0))
    descriptors = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{shared.pid}/fd"))
    for seed in range(50):
        update_id = trainer.send(made(seed, rank=1 + seed % 9))
        assert shared.call("adapters")[2] == [update_id]
    after = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{shared.pid}/fd"))
    assert after == descriptors
    trainer.sync.close()


def test_another_trainer_takes_over_from_one_that_is_lost(shared: ProcessEngine) -> None:
    lost = Trainer(shared, "pinned")
    before = lost.send(made(1)), greedy(made(1))
    lost.now = made(2)
    lost.sync.prepare(before[0] + 1)
    lost.sync.close()  # what the kernel does for a trainer that was killed
    trainer = Trainer(shared, "pinned")
    assert served(shared) == before
    assert trainer.send(made(3)) > before[0] + 1
    assert served(shared)[1] == greedy(made(3))
    with pytest.raises(PeerLost, match="connect again"):
        lost.sync.update()
    trainer.sync.close()


def test_two_trainers_over_rpc_never_mix(shared: ProcessEngine) -> None:
    """The second begins while the first is between two messages: the first is told so."""
    first, second = Trainer(shared, "cpu"), Trainer(shared, "cpu")
    first.now = made(1)
    first.sync.prepare(next_id := next_update_id())
    update_id = second.send(made(2))
    with pytest.raises(UpdateRejected, match="is not under way"):
        first.sync.commit()
    assert update_id > next_id
    assert served(shared) == (update_id, greedy(made(2)))


@pytest.mark.parametrize("transport", ["cpu", "pinned"])
def test_a_worker_that_is_killed_is_an_error_at_once(transport: str) -> None:
    with ProcessEngine(MixerEngine) as engine:
        trainer = Trainer(engine, transport)
        trainer.send(made(1))
        trainer.now = made(2)
        trainer.sync.prepare(next_update_id())
        engine.signal(signal.SIGKILL)
        with pytest.raises(PeerLost):
            trainer.sync.commit()
        with pytest.raises(PeerLost, match="connect again"):
            trainer.sync.update()


def test_requests_have_one_adapter_each_while_updates_come() -> None:
    engine = PlainEngine(Mixer())
    engine.adopt()
    trainer = Trainer(ThreadClient(engine), "cpu")
    answers = {trainer.send(made(0)): greedy(made(0))}
    done = threading.Event()

    def generate() -> list[tuple[set[int], list[list[int]]]]:
        seen = []
        while not done.is_set():
            samples = engine.generate(PROMPTS, Sampling(8))
            seen.append(({each.update_id for each in samples}, [each.token_ids for each in samples]))
        return seen

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate)
        for seed in range(1, 12):
            answers[trainer.send(made(seed))] = greedy(made(seed))
        done.set()
        seen = running.result(30)
    assert len({update_id for ids, _ in seen for update_id in ids}) > 1
    for (update_id,), token_ids in seen:
        assert token_ids == answers[update_id]


def test_an_adapter_before_its_base_is_refused() -> None:
    engine = PlainEngine(Mixer())
    trainer = Trainer(ThreadClient(engine), "pinned")
    with pytest.raises(UpdateRejected, match="knows no base weights"):
        trainer.send(made(1))
    with pytest.raises(EngineFenced):
        engine.generate(PROMPTS, Sampling(8))


def base_update(engine: PlainEngine, model: Mixer, version: int, verify: str = "digest") -> None:
    config = SyncConfig("pinned", 4096, verify=verify)
    sync = WeightSync.connect(ModuleSource(model), ThreadClient(engine), config)
    sync.update(version)
    sync.close()


def test_a_base_that_was_sent_names_itself_if_it_was_verified() -> None:
    engine = PlainEngine(Mixer(seed=9))
    base_update(engine, Mixer(), 1, verify="off")
    trainer = Trainer(ThreadClient(engine), "pinned")
    with pytest.raises(UpdateRejected, match="knows no base weights"):
        trainer.send(made(1))
    base_update(engine, Mixer(), 2)
    update_id = trainer.send(made(1))
    samples = engine.generate(PROMPTS, Sampling(8))
    assert [each.token_ids for each in samples] == greedy(made(1))
    assert {(each.weight_version, each.update_id) for each in samples} == {(2, update_id)}


def test_a_new_base_fences_the_adapter_of_the_old_one() -> None:
    engine = PlainEngine(Mixer())
    engine.adopt()
    trainer = Trainer(ThreadClient(engine), "pinned")
    trainer.send(made(1))
    base_update(engine, Mixer(seed=5), 1)
    with pytest.raises(EngineFenced, match="was trained on earlier base weights"):
        engine.generate(PROMPTS, Sampling(8))
    with pytest.raises(UpdateRejected, match="was trained on base"):
        trainer.send(made(2))
    base_update(engine, Mixer(), 2)
    trainer.send(made(3))
    assert [each.token_ids for each in engine.generate(PROMPTS, Sampling(8))] == greedy(made(3))


def test_a_dropped_adapter_leaves_the_base() -> None:
    engine = PlainEngine(Mixer())
    engine.adopt()
    trainer = Trainer(ThreadClient(engine), "cpu")
    trainer.send(made(1))
    engine.drop_adapter()
    samples = engine.generate(PROMPTS, Sampling(8))
    assert [each.token_ids for each in samples] == greedy(None)
    assert {each.update_id for each in samples} == {0}
    trainer.send(made(2))
    assert [each.token_ids for each in engine.generate(PROMPTS, Sampling(8))] == greedy(made(2))


def test_weights_can_be_adopted_before_the_first_update_alone() -> None:
    engine = PlainEngine(Mixer())
    base_update(engine, Mixer(seed=2), 1)
    with pytest.raises(ConfigError, match="before the first update"):
        engine.adopt()


def test_slots_of_adapters_are_kept() -> None:
    with pytest.raises(ConfigError, match="hold_slots"):
        AdapterSync.connect(lambda: made(0), None, SyncConfig("pinned", hold_slots=False))  # type: ignore[arg-type]


def test_a_job_of_one_rank_commits_by_vote(shared: ProcessEngine) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        trainer = Trainer(shared, "pinned")
        before = trainer.send(made(5))
        trainer.now = made(6)
        report = JobSync(trainer.sync).update(before + 1)
        assert served(shared) == (report.weight_version, greedy(made(6)))
        trainer.sync.close()
    finally:
        dist.destroy_process_group()
