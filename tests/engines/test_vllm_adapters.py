"""Adapters into vLLM: what an engine that loaded PEFT's files answers is what ours must answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn

from tests.lora.adapters_of import values
from wsync_lab.config import SyncConfig
from wsync_lab.engines.process import ProcessEngine
from wsync_lab.engines.tiny import build_tiny_qwen2, save_model
from wsync_lab.errors import ConfigError, EngineFenced, UpdateRejected
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.config import AdapterConfig
from wsync_lab.lora.sync import Adapter, AdapterSync
from wsync_lab.protocol.sync import WeightSync
from wsync_lab.weights import ModuleSource

pytestmark = pytest.mark.vllm
MAX_TOKENS = 10
# The last one fills a block of vLLM's prefix cache.
PROMPTS = [[3], [200, 7, 9], [(7 * i) % 256 for i in range(150)]]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: list[dict[str, Any]] = [
    {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    {"r": 4, "lora_alpha": 9, "target_modules": ALL},
    {"r": 16, "lora_alpha": 9, "target_modules": ALL, "use_rslora": True},
    {"r": 8, "lora_alpha": 32, "target_modules": ["k_proj", "down_proj"]},
    {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "up_proj"],
        "rank_pattern": {"1.self_attn.q_proj": 16},
        "alpha_pattern": {"up_proj": 3},
    },
]
Tokens = list[list[int]]


def base_model() -> nn.Module:
    return build_tiny_qwen2(tied=False, dtype="float32", seed=1)


def trained(seed: int, settings: dict[str, Any], folder: Path | None = None) -> Adapter:
    """As PEFT holds it after some training, and saves it to ``folder``."""
    model = get_peft_model(base_model(), LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(0.3 * values(name, seed, tuple(parameter.shape), "float32"))
    if folder is not None:
        model.save_pretrained(str(folder))
    config = AdapterConfig.from_peft(model.peft_config["default"].to_dict(), "float32")
    tensors: dict[str, torch.Tensor] = get_peft_model_state_dict(model)
    return Adapter(config, tensors, base_digest_of(ModuleSource(base_model())))


class Setup:
    """An engine with LoRA, and what a fresh one answers with each of ``SETTINGS`` from files."""

    def __init__(self, host: ProcessEngine, folder: Path) -> None:
        self.host, self.folder = host, folder
        save_model(base_model(), folder / "model")
        self.folders = [folder / f"adapter-{index}" for index in range(len(SETTINGS))]
        pairs = enumerate(zip(SETTINGS, self.folders, strict=True))
        self.adapters = [trained(index, settings, path) for index, (settings, path) in pairs]
        paths = [str(path) for path in self.folders]
        self.fresh: list[Tokens] = host.call(
            "fresh_adapters", self.model, paths, PROMPTS, MAX_TOKENS, timeout_s=110
        )
        self.base: str = self.start()
        self.base_tokens = self.tokens()[1]

    @property
    def model(self) -> dict[str, Any]:
        return {"model": str(self.folder / "model"), "dtype": "float32", "max_model_len": 256}

    def start(self) -> str:
        options = self.model | {"load_format": "auto", "max_lora_rank": 16}
        self.host.call("start", options, timeout_s=110)
        digest: str = self.host.call("adopt")
        return digest

    def tokens(self) -> tuple[int, Tokens]:
        samples = self.host.call("generate", PROMPTS, {"max_tokens": MAX_TOKENS})
        (update_id,) = {sample["update_id"] for sample in samples}
        return update_id, [sample["token_ids"] for sample in samples]


class Trainer:
    def __init__(self, setup: Setup, transport: str) -> None:
        self.now = setup.adapters[0]
        config = SyncConfig(transport, 3000, 2, deadline_s=30.0)
        self.sync = AdapterSync.connect(lambda: self.now, setup.host, config)

    def send(self, adapter: Adapter) -> int:
        self.now = adapter
        return self.sync.update().weight_version


@pytest.fixture(scope="module")
def setup(vllm_host: ProcessEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    yield Setup(vllm_host, tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize("transport", ["cpu", "pinned", "cuda_vmm", "nccl"])
def test_greedy_output_after_each_commit_is_that_of_an_engine_with_the_files(
    setup: Setup, transport: str
) -> None:
    trainer = Trainer(setup, transport)
    for adapter, expected in zip(setup.adapters, setup.fresh, strict=True):
        update_id = trainer.send(adapter)
        assert setup.tokens() == (update_id, expected)
        assert setup.host.call("held") == 1
    trainer.sync.close()
    assert len({str(tokens) for tokens in [*setup.fresh, setup.base_tokens]}) == len(SETTINGS) + 1


def test_the_base_is_as_it_was_when_the_adapter_is_dropped(setup: Setup) -> None:
    assert setup.base == setup.adapters[0].base_digest
    trainer = Trainer(setup, "pinned")
    trainer.send(setup.adapters[2])
    setup.host.call("drop_adapter")
    assert setup.tokens() == (0, setup.base_tokens)
    assert setup.host.call("held") == 0
    trainer.sync.close()


def test_adapters_from_files_do_not_evict_the_one_that_has_none(setup: Setup) -> None:
    """Five of them pass through caches of four adapters and two kernel slots."""
    trainer = Trainer(setup, "pinned")
    update_id = trainer.send(setup.adapters[3])
    paths = [str(path) for path in setup.folders]
    assert setup.host.call("from_files", paths, PROMPTS, MAX_TOKENS) == setup.fresh
    assert setup.tokens() == (update_id, setup.fresh[3])
    next_id = trainer.send(setup.adapters[1])
    assert setup.tokens() == (next_id, setup.fresh[1])
    trainer.sync.close()


def test_an_adapter_that_vllm_cannot_activate_leaves_the_served_one(setup: Setup) -> None:
    trainer = Trainer(setup, "pinned")
    before = trainer.send(setup.adapters[0]), setup.fresh[0]
    held = setup.host.call("held")
    setup.host.call("fail_once", "activation")
    with pytest.raises(UpdateRejected, match="planted fault in activation"):
        trainer.send(setup.adapters[1])
    assert setup.tokens() == before
    assert setup.host.call("held") == held
    next_id = trainer.send(setup.adapters[2])
    assert setup.tokens() == (next_id, setup.fresh[2])
    trainer.sync.close()


def test_what_vllm_could_not_serve_is_refused_before_it_is_touched(setup: Setup) -> None:
    trainer = Trainer(setup, "pinned")
    before = trainer.send(setup.adapters[0]), setup.fresh[0]
    merged = base_model()
    next(iter(merged.parameters())).data += 1
    good = setup.adapters[1]
    for wrong, text in (
        (trained(7, SETTINGS[0] | {"r": 17}), "rank 17 is over the engine's max_lora_rank 16"),
        (Adapter(good.config, good.tensors, base_digest_of(ModuleSource(merged))), "was trained on base"),
        (
            Adapter(good.config, dict(list(good.tensors.items())[1:]), good.base_digest),
            "q_proj has no lora_A",
        ),
    ):
        with pytest.raises(UpdateRejected, match=text):
            trainer.send(wrong)
        assert setup.tokens() == before
    trainer.sync.close()


def test_an_engine_of_dummy_weights_has_no_base_for_an_adapter_until_one_is_sent(setup: Setup) -> None:
    """Last in this module: it starts another engine."""
    setup.host.call("start", setup.model | {"max_lora_rank": 16}, timeout_s=110)
    with pytest.raises(ConfigError, match="load_format='auto'"):
        setup.host.call("adopt")
    trainer = Trainer(setup, "pinned")
    with pytest.raises(UpdateRejected, match="knows no base weights"):
        trainer.send(setup.adapters[0])
    with pytest.raises(EngineFenced, match="no weights were committed yet"):
        setup.tokens()
    config = SyncConfig("pinned", 20_000, verify="digest")
    base = WeightSync.connect(ModuleSource(base_model()), setup.host, config)
    base.update(1)
    assert setup.tokens() == (0, setup.base_tokens)
    update_id = trainer.send(setup.adapters[0])
    assert setup.tokens() == (update_id, setup.fresh[0])
    base.close()
    trainer.sync.close()
    setup.host.call("start", setup.model, timeout_s=110)
    with pytest.raises(ConfigError, match="started without LoRA"):
        Trainer(setup, "cpu").send(setup.adapters[0])
