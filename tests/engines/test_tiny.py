"""The tiny models of tests and of the host experiment."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from wsync_lab.engines.tiny import build_tiny_qwen2, save_model
from wsync_lab.errors import ConfigError
from wsync_lab.packing import as_bytes
from wsync_lab.weights import ModuleSource


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    models = [build_tiny_qwen2(tied=True, dtype="float32", seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    first, second, third = (model.state_dict() for model in models)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(as_bytes(first[name]), as_bytes(second[name]))
    assert not torch.equal(first[name], third[name])


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_holds_the_same_bytes(tmp_path: Path, tied: bool) -> None:
    model = build_tiny_qwen2(tied=tied, dtype="bfloat16", seed=1, vocab_size=100)
    folder = save_model(model, tmp_path / "model")
    source = ModuleSource(build_tiny_qwen2(tied=tied, dtype="bfloat16", seed=1, vocab_size=100))
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == {meta.name for meta in source.metadata()}
    assert ("lm_head.weight" in saved) is not tied
    assert all(torch.equal(as_bytes(saved[name]), as_bytes(tensor)) for name, tensor in source)


def test_heads_too_narrow_for_vllm_are_refused() -> None:
    with pytest.raises(ConfigError, match="each head needs 32"):
        build_tiny_qwen2(tied=True, dtype="float32", seed=0, hidden_size=64, num_heads=4)
