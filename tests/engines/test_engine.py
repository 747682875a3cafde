"""What every engine does around updates and before it generates, on a plain torch module."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.engines.bigram import VOCAB, Bigram, InterruptedSource, greedy
from tests.engines.client import connect
from wsync_lab.channel.messages import Begin, Failed, decode, encode
from wsync_lab.engines.base import Completion, Sampling
from wsync_lab.engines.plain import PlainEngine
from wsync_lab.errors import ConfigError, EngineFenced, PeerLost, ProtocolError, UpdateRejected
from wsync_lab.protocol.receiver import Receiver
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource

TRANSPORTS = ("cpu", "pinned")
PROMPTS = [[3], [50, 7], [7, 96, 12]]


class WatchedEngine(PlainEngine):
    """Counts calls of the engine proper, and fails where a test asks for it."""

    def __init__(self, module: Bigram) -> None:
        super().__init__(module)
        self.calls = 0
        self.cache_resets: list[bool | Exception] = []

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        self.calls += 1
        return super()._generate(prompts, sampling)

    def _reset_prefix_cache(self) -> bool:
        result = self.cache_resets.pop(0) if self.cache_resets else True
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def engine() -> WatchedEngine:
    return WatchedEngine(Bigram(seed=0))


def tokens(engine: PlainEngine, max_tokens: int = 8) -> list[list[int]]:
    return [sample.token_ids for sample in engine.generate(PROMPTS, Sampling(max_tokens))]


def expected(model: Bigram, max_tokens: int = 8) -> list[list[int]]:
    return [greedy(model, prompt, max_tokens) for prompt in PROMPTS]


def assert_fenced(engine: WatchedEngine, reason: str) -> None:
    calls = engine.calls
    with pytest.raises(EngineFenced, match=reason):
        tokens(engine)
    assert engine.calls == calls


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_engine_generates_with_what_was_committed_last(engine: WatchedEngine, transport: str) -> None:
    assert_fenced(engine, "synchronise once before generating")
    model = Bigram(seed=1)
    sync = connect(engine, ModuleSource(model), transport)
    assert_fenced(engine, "synchronise once before generating")
    for version in (1, 2, 5):
        model.load_state_dict(Bigram(seed=10 + version).state_dict())
        report = sync.update(version)
        assert tokens(engine) == expected(model)
        assert engine.generate([[1]], Sampling())[0].weight_version == report.weight_version == version
        assert engine.outcome()["committed"]
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_aborted_update_fences_until_a_good_one(engine: WatchedEngine, transport: str) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), transport)
    sync.update(1)
    sync.prepare(2)
    assert_fenced(engine, "a weight update is running")
    sync.abort("another rank failed")
    assert_fenced(engine, "another rank failed.*commit a full update")
    sync.update(2)
    assert tokens(engine) == expected(model)
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_failed_apply_fences_until_a_good_one(
    engine: WatchedEngine, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), transport)

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("wsync_lab.engines.in_place.TensorApplier.load", fail)
        with pytest.raises(UpdateRejected, match="out of memory"):
            sync.update(1)
    assert_fenced(engine, "out of memory")
    sync.update(1)
    assert tokens(engine) == expected(model)
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_update_refused_untouched_leaves_the_old_version_live(
    engine: WatchedEngine, transport: str
) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), transport)
    sync.update(3)
    before = expected(model)
    model.load_state_dict(Bigram(seed=2).state_dict())
    with pytest.raises(UpdateRejected, match="versions only rise"):
        sync.update(3)
    assert tokens(engine) == before
    assert not engine.outcome()["touched"]
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("reset", [False, OSError("the engine process is gone")])
def test_a_prefix_cache_that_stays_fences(
    engine: WatchedEngine, transport: str, reset: bool | Exception
) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), transport)
    engine.cache_resets = [reset]
    with pytest.raises((UpdateRejected, PeerLost), match=r"prefix cache|process is gone"):
        sync.update(1)
    assert_fenced(engine, "prefix cache|process is gone")
    sync.close()
    sync = connect(engine, ModuleSource(model), transport)
    sync.update(2)
    assert tokens(engine) == expected(model)
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_weights_that_do_not_fit_are_refused_with_every_fault(engine: WatchedEngine, transport: str) -> None:
    model = Bigram(seed=1).half()
    model.extra = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(UpdateRejected) as refusal:
        connect(engine, ModuleSource(model), transport)
    for fault in ("embed.weight float16", "head.weight float16", "extra.weight is unknown"):
        assert fault in str(refusal.value)
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), transport)
    sync.update(1)
    assert tokens(engine) == expected(model)
    sync.close()


def test_an_update_waits_for_a_generation_that_runs(
    engine: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), "pinned")
    sync.update(1)
    before, proper = expected(model), engine._generate
    entered, go = threading.Event(), threading.Event()

    def slow(prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        entered.set()
        assert go.wait(10)
        return proper(prompts, sampling)

    monkeypatch.setattr(engine, "_generate", slow)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(tokens, engine)
        assert entered.wait(10)
        model.load_state_dict(Bigram(seed=2).state_dict())
        update = pool.submit(sync.update, 2)
        with pytest.raises(TimeoutError):
            update.result(0.2)
        assert_fenced(engine, "a weight update is running")
        go.set()
        assert running.result(10) == before
        assert update.result(10).pause_s > 0.1
    assert tokens(engine) == expected(model)
    sync.close()


def test_a_request_that_an_update_overtook_is_refused_if_that_failed(
    engine: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the gate and the start of the generation, weights became a mixture."""
    sync = connect(engine, ModuleSource(Bigram(seed=1)), "pinned")
    sync.update(1)
    check = engine.gate.check

    def check_then_lose_an_update() -> None:
        check()
        monkeypatch.undo()
        sync.prepare(2)
        sync.abort("another rank failed")

    monkeypatch.setattr(engine.gate, "check", check_then_lose_an_update)
    assert_fenced(engine, "another rank failed")
    sync.close()


def test_a_trainer_that_vanishes_in_mid_update_fences(
    engine: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the next trainer comes before the engine has noticed."""
    fail = Receiver.fail

    def late(receiver: Receiver, reason: str) -> Failed:
        time.sleep(0.1 if "PeerLost" in reason else 0)
        return fail(receiver, reason)

    monkeypatch.setattr(Receiver, "fail", late)
    model = Bigram(seed=1)
    source = InterruptedSource(model)
    lost = connect(engine, source, "pinned")
    source.interrupt = lost._carrier.close
    with pytest.raises(PeerLost):
        lost.update(1)
    sync = connect(engine, ModuleSource(model), "pinned")
    assert_fenced(engine, "PeerLost")
    sync.update(1)
    assert tokens(engine) == expected(model)
    sync.close()


def test_a_trainer_that_vanishes_between_two_rpcs_fences(engine: WatchedEngine) -> None:
    model = Bigram(seed=1)
    sync = connect(engine, ModuleSource(model), "cpu")
    sync._carrier.start()
    sync._post(Begin(1, sync.plan.digest))
    sync._carrier.receive()
    assert_fenced(engine, "a weight update is running")
    sync = connect(engine, ModuleSource(model), "cpu")
    sync.update(1)
    assert tokens(engine) == expected(model)
    sync.close()


def test_a_commit_whose_outcome_nobody_asks_for_is_live(engine: WatchedEngine) -> None:
    model = Bigram(seed=1)
    sync = connect(engine, ModuleSource(model), "cpu")
    sync._carrier.finish = dict  # type: ignore[method-assign]
    sync.prepare(1)
    with pytest.raises(KeyError):
        sync.commit()
    assert tokens(engine) == expected(model)


def test_a_second_begin_ends_the_update_under_way(engine: WatchedEngine) -> None:
    sync = connect(engine, ModuleSource(Bigram(seed=1)), "cpu")
    begin = encode(Begin(1, sync.plan.digest))
    engine.handle(begin)
    assert "end it before the next" in decode(engine.handle(begin)).reason  # type: ignore[attr-defined]
    assert engine.outcome()["committed"] is False
    sync.update(1)


def test_a_detached_engine_serves_what_it_has(engine: WatchedEngine) -> None:
    sync = connect(engine, ModuleSource(model := Bigram(seed=1)), "pinned")
    sync.update(1)
    engine.detach()
    assert tokens(engine) == expected(model)
    with pytest.raises((PeerLost, ProtocolError, UpdateRejected)):
        sync.update(2)
    assert tokens(engine) == expected(model)


def test_tied_weights_travel_once(engine: WatchedEngine) -> None:
    tied = WatchedEngine(Bigram(seed=0, tied=True))
    sync: WeightSync = connect(tied, ModuleSource(model := Bigram(seed=1, tied=True)), "pinned")
    sync.update(1)
    assert len(sync.plan.tensors) == 1
    assert tokens(tied) == expected(model)
    sync.close()


def test_samples_are_reproducible_and_scored_by_the_model(engine: WatchedEngine) -> None:
    model = Bigram(seed=1)
    connect(engine, ModuleSource(model), "cpu").update(1)
    sampling = Sampling(max_tokens=6, temperature=4.0, n=3, seed=42)
    samples = engine.generate(PROMPTS, sampling)
    assert samples == engine.generate(PROMPTS, sampling)
    assert samples != engine.generate(PROMPTS, Sampling(max_tokens=6, temperature=4.0, n=3, seed=43))
    assert [sample.prompt_index for sample in samples] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({tuple(sample.token_ids) for sample in samples}) == 9
    for sample in samples:
        token_ids = [*PROMPTS[sample.prompt_index], *sample.token_ids]
        logprobs = model(torch.tensor([token_ids]))[0].log_softmax(-1)[-7:-1]
        scored = logprobs.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
        assert sample.logprobs == pytest.approx(scored.tolist(), abs=1e-5)


def test_temperature_one_draws_from_the_models_distribution(engine: WatchedEngine) -> None:
    model = Bigram(seed=1)
    connect(engine, ModuleSource(model), "cpu").update(1)
    samples = engine.generate([[5]], Sampling(max_tokens=1, temperature=1.0, n=4000, seed=0))
    counts = torch.bincount(torch.tensor([s.token_ids[0] for s in samples]), minlength=VOCAB)
    probabilities = model(torch.tensor([[5]]))[0, -1].softmax(-1)
    assert (counts / 4000 - probabilities).abs().max() < 0.03


@pytest.mark.parametrize(
    "values", [{"max_tokens": 0}, {"n": 0, "temperature": 1.0}, {"temperature": -1.0}, {"n": 2}]
)
def test_sampling_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**values)


def test_an_engine_says_what_it_is(engine: WatchedEngine) -> None:
    assert engine.describe() | {"engine_version": ""} == {
        "engine": "plain",
        "engine_version": "",
        "device": "cpu",
        "dtype": "float32",
        "apply_path": "load_weights",
    }
