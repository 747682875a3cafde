"""The vLLM adapter: what a fresh engine answers is what an updated one must answer."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engines.vllm_host import FAILURES
from wsync_lab.config import SyncConfig
from wsync_lab.digest import tensor_digest
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.engines.tiny import build_tiny_qwen2, save_model
from wsync_lab.errors import EngineFenced, UpdateRejected
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource, TensorMeta, TensorSource

pytestmark = pytest.mark.vllm
TRANSPORTS = ("cpu", "pinned")
MAX_TOKENS = 12
# The last one fills a block of vLLM's prefix cache.
PROMPTS = [[3], [200, 7, 9], [(7 * i) % 256 for i in range(150)]]
# Of a float32 log-probability of about -5 to -30, computed in another order of summation.
ROUNDING = 2e-4


@dataclasses.dataclass
class Policy:
    """A tiny model, and the engine of its folder in the vLLM process."""

    host: ProcessEngine
    folder: Path
    tied: bool
    dtype: str
    version: int = 0
    fresh: dict[tuple[int, ...], list[list[int]]] = dataclasses.field(default_factory=dict)

    def start(self) -> dict[str, Any]:
        self.version = 0
        description: dict[str, Any] = self.host.call("start", self.options(), timeout_s=110)
        return description

    def options(self) -> dict[str, Any]:
        return {"model": str(self.folder), "dtype": self.dtype, "max_model_len": 256}

    def model(self, seed: int) -> nn.Module:
        return build_tiny_qwen2(tied=self.tied, dtype=self.dtype, seed=seed)

    def connect(self, model: nn.Module, transport: str, **config: Any) -> WeightSync:
        return self.connect_source(ModuleSource(model), transport, **config)

    def connect_source(self, source: Any, transport: str, **config: Any) -> WeightSync:
        """One slot of 20 kB: a fused projection never comes in one bucket."""
        options = {"slot_bytes": 20_000, "num_slots": 1, "deadline_s": 30.0} | config
        return WeightSync.connect(source, self.host, SyncConfig(transport, **options))

    def update(self, sync: WeightSync) -> None:
        self.version += 1
        sync.update(self.version)

    def tokens(self) -> list[list[int]]:
        samples = self.host.call("generate", PROMPTS, {"max_tokens": MAX_TOKENS})
        return [sample["token_ids"] for sample in samples]

    def fresh_tokens(self, model: nn.Module) -> list[list[int]]:
        """What an engine started from ``model``, saved to disk, answers; asked once a model."""
        key = tuple(tensor_digest(tensor) for _, tensor in ModuleSource(model))
        if key not in self.fresh:
            save_model(model, self.folder)
            self.fresh[key] = self.host.call("fresh", self.options(), PROMPTS, MAX_TOKENS)
        return self.fresh[key]

    def assert_fenced(self, reason: str) -> None:
        requests = self.host.call("requests")
        with pytest.raises(EngineFenced, match=reason):
            self.tokens()
        assert self.host.call("requests") == requests


@pytest.fixture(scope="module", params=["tied-float32", "untied-float32", "tied-bfloat16"])
def policy(
    request: pytest.FixtureRequest, vllm_host: ProcessEngine, tmp_path_factory: pytest.TempPathFactory
) -> Policy:
    tying, dtype = request.param.split("-")
    policy = Policy(vllm_host, tmp_path_factory.mktemp("model"), tying == "tied", dtype)
    save_model(policy.model(seed=0), policy.folder)
    policy.start()
    return policy


def change(model: nn.Module, seed: int) -> None:
    """Other weights, in place, as a training step leaves them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)


def test_nothing_is_generated_before_the_first_commit(policy: Policy) -> None:
    policy.assert_fenced("no weights were committed yet")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_greedy_output_after_two_updates_is_that_of_a_fresh_engine(policy: Policy, transport: str) -> None:
    model = policy.model(seed=1)
    sync = policy.connect(model, transport)
    answers = []
    for seed in (10, 11):
        change(model, seed)
        policy.update(sync)
        answers.append(policy.tokens())
        assert answers[-1] == policy.fresh_tokens(model)
    sync.close()
    assert all(first != second for first, second in zip(*answers, strict=True))


def test_logprobs_are_the_trainers_up_to_rounding(policy: Policy) -> None:
    if policy.dtype != "float32":
        pytest.skip("in bfloat16 the two forward passes round differently")
    model = policy.model(seed=2)
    sync = policy.connect(model, "pinned")
    policy.update(sync)
    sync.close()
    sampling = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "n": 4, "seed": 5}
    samples = policy.host.call("generate", PROMPTS, sampling)
    assert samples == policy.host.call("generate", PROMPTS, sampling)
    assert [sample["prompt_index"] for sample in samples] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({tuple(sample["token_ids"]) for sample in samples}) == len(samples)
    assert all(sample["weight_version"] == policy.version for sample in samples)
    assert max(gap(model, sample) for sample in samples) < ROUNDING


def gap(model: nn.Module, sample: dict[str, Any]) -> float:
    """Largest difference between the engine's and ``model``'s log-probabilities of a sample."""
    prompt, sampled = PROMPTS[sample["prompt_index"]], sample["token_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
    return (logprobs - torch.tensor(sample["logprobs"])).abs().max().item()


@pytest.mark.parametrize("stage", FAILURES)
def test_an_update_that_fails_in_vllm_is_rolled_back_and_the_next_one_works(
    policy: Policy, stage: str
) -> None:
    model = policy.model(seed=3)
    sync = policy.connect(model, "pinned")
    policy.update(sync)
    change(model, seed=20)
    policy.host.call("fail_once", stage)
    with pytest.raises(UpdateRejected, match=f"planted fault in {stage}$"):
        policy.update(sync)
    policy.assert_fenced(f"planted fault in {stage}.*commit a full update before generating")
    policy.update(sync)
    assert policy.tokens() == policy.fresh_tokens(model)
    sync.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("index", [0, 6, 20])
def test_a_gather_that_fails_aborts_the_update_and_the_next_one_works(
    policy: Policy, transport: str, index: int
) -> None:
    model = policy.model(seed=4)
    policy.update(policy.connect(model, transport))
    before = policy.tokens()
    change(model, seed=21)
    sync = policy.connect_source(BrokenSource(model, index), transport)
    with pytest.raises(RuntimeError, match="the gather failed"):
        policy.update(sync)
    if index == 0:
        assert policy.tokens() == before
    else:
        policy.assert_fenced("the gather failed")
    policy.update(sync)
    assert policy.tokens() == policy.fresh_tokens(model)
    sync.close()


class BrokenSource(ModuleSource):
    """Raises once, instead of yielding tensor ``index``."""

    def __init__(self, module: nn.Module, index: int) -> None:
        super().__init__(module)
        self._index = index

    def __iter__(self):
        for index, named in enumerate(super().__iter__()):
            if index == self._index:
                self._index = -1
                raise RuntimeError("the gather failed")
            yield named


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_fault_of_a_manifest_is_named_and_the_engine_untouched(policy: Policy, transport: str) -> None:
    model = policy.model(seed=5)
    sync = policy.connect(model, "pinned")
    policy.update(sync)
    before = policy.tokens()
    with pytest.raises(UpdateRejected) as refusal:
        policy.connect_source(faulty(model), transport)
    for fault in (
        "model.layers.0.mlp.up_proj.weight is missing",
        "model.layers.7.mlp.up_proj.weight is unknown to the engine",
        f"model.norm.weight float64[64] is sent where the engine takes {policy.dtype}[64]",
        f"model.layers.1.self_attn.q_proj.weight {policy.dtype}[32, 128] is sent",
    ):
        assert fault in str(refusal.value)
    assert policy.tokens() == before
    policy.update(policy.connect(model, transport))
    assert policy.tokens() == before


def faulty(model: nn.Module) -> TensorSource:
    tensors = dict(ModuleSource(model))
    tensors["model.layers.7.mlp.up_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].double()
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = tensors[name].reshape(32, 128)
    return TensorSource(tensors.items(), ModuleSource(model).aliases())


def test_the_trainers_ties_must_be_the_engines(policy: Policy) -> None:
    other = build_tiny_qwen2(tied=not policy.tied, dtype=policy.dtype, seed=6)
    fault = "lm_head.weight is sent, but the engine ties it" if policy.tied else "not in the engine"
    with pytest.raises(UpdateRejected, match=fault):
        policy.connect(other, "pinned")


def test_the_checkpoint_names_of_a_policy_are_what_the_engine_takes(policy: Policy) -> None:
    names = [TensorMeta.of(name, tensor) for name, tensor in policy.model(seed=1).named_parameters()]
    assert list(ModuleSource(policy.model(seed=2)).metadata()) == names
    assert policy.host.call("describe")["apply_path"] == "layerwise_reload"
