"""Ranks, scaling and targets mean what PEFT means by them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from wsync_lab.errors import ConfigError
from wsync_lab.lora.config import AdapterConfig

CONFIGS: list[dict[str, Any]] = [
    {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]},
    {"r": 4, "lora_alpha": 9, "target_modules": ["q_proj"], "use_rslora": True},
    {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"1.q_proj": 3, "down_proj": 5},
        "alpha_pattern": {r"layers\.[1-9]\.down_proj": 7},
        "use_rslora": True,
    },
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.down_proj = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(self.q_proj(x))
        return output


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(12)])


@pytest.mark.parametrize("settings", CONFIGS)
def test_ranks_scaling_and_targets_are_pefts(settings: dict[str, Any]) -> None:
    model = get_peft_model(Layers(), LoraConfig(**settings))
    config = AdapterConfig.from_peft(LoraConfig(**settings).to_dict(), "float32")
    for path, layer in model.get_base_model().named_modules():
        if isinstance(layer, nn.Linear) and "lora_" not in path and "base_layer" not in path:
            assert not config.targets(path)
        if hasattr(layer, "lora_A"):
            assert config.targets(path)
            assert config.rank_of(path) == layer.r["default"]
            assert config.scaling_of(path) == pytest.approx(layer.scaling["default"])


@pytest.mark.parametrize("settings", CONFIGS)
def test_a_configuration_survives_pefts_file(settings: dict[str, Any], tmp_path: Path) -> None:
    LoraConfig(**settings).save_pretrained(str(tmp_path))
    config = AdapterConfig.from_peft(json.loads((tmp_path / "adapter_config.json").read_text()), "float32")
    assert AdapterConfig.from_peft(config.to_peft(), "float32") == config


def test_one_configuration_has_one_encoding() -> None:
    written = AdapterConfig(8, 16, ("q_proj",), alpha_pattern={"q_proj": 4})
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=AdapterConfig)
    assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(written)
    assert read == written


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("lora_bias", True),
        ("layers_to_transform", [1]),
        ("layer_replication", [[0, 1]]),
        ("peft_type", "IA3"),
        ("target_modules", "all-linear"),
        ("target_modules", None),
    ],
)
def test_a_setting_that_would_be_lost_is_refused_by_name(setting: str, value: object) -> None:
    settings = LoraConfig(r=4, target_modules=["q_proj"]).to_dict() | {setting: value}
    with pytest.raises(ConfigError, match=setting):
        AdapterConfig.from_peft(settings, "float32")
