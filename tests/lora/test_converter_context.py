"""The rank cannot be lost on the way: beside the chain that loses it, ours does not type-check without."""

import inspect
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lora import loose_kwargs
from tests.lora.megatron_ranks import CONTEXT, whole_adapter
from tests.tooling.imports import ROOT, modules
from wsync_lab.lora.manifest import PREFIX, AdapterTargets, build_manifest
from wsync_lab.lora.megatron.context import ConverterContext
from wsync_lab.lora.megatron.layout import from_peft, to_peft
from wsync_lab.lora.megatron.names import MatrixName

QKV_B = [MatrixName(layer, "self_attention.linear_qkv", "B") for layer in range(CONTEXT.num_layers)]
TENSORS = whole_adapter(CONTEXT, seed=1)
FUSED = [(name, from_peft(name, TENSORS, CONTEXT)) for name in QKV_B]
EXPECTED = {name: tensor for name, tensor in TENSORS.items() if "lora_B" in name and ".self_attn." in name}
EXPECTED = {name: tensor for name, tensor in EXPECTED.items() if "o_proj" not in name}
MODULES = [name for name in modules() if name.startswith("wsync_lab.lora.megatron.")]


def right(converted: dict[str, torch.Tensor]) -> set[str]:
    return {
        name
        for name, tensor in converted.items()
        if tensor.shape == EXPECTED[name].shape and torch.equal(tensor, EXPECTED[name])
    }


def test_loose_options_are_lost_on_an_intermediate_flush() -> None:
    whole = dict(loose_kwargs.gather_all(FUSED, CONTEXT, 1 << 60, lora_rank=CONTEXT.rank))
    assert right(whole) == EXPECTED.keys()
    flushed = dict(loose_kwargs.gather_all(FUSED, CONTEXT, FUSED[0][1].nbytes, lora_rank=CONTEXT.rank))
    last_flush = {QKV_B[-1].peft(f"self_attn.{part}_proj") for part in "qkv"}
    assert right(flushed) == last_flush
    assert {tensor.shape[1] for name, tensor in flushed.items() if name not in last_flush} == {
        CONTEXT.hidden_size
    }


def test_loose_options_are_lost_where_a_chain_does_not_pass_them_on() -> None:
    lost = dict(loose_kwargs.gather_one_stage(FUSED, CONTEXT, lora_rank=CONTEXT.rank))
    assert right(lost) == set()


@pytest.mark.parametrize("num_waiting", [1, 3, 8])
def test_with_the_context_no_flush_changes_anything(num_waiting: int) -> None:
    converted: dict[str, torch.Tensor] = {}
    for first in range(0, len(FUSED), num_waiting):
        for name, whole in FUSED[first : first + num_waiting]:
            converted |= to_peft(name, whole, CONTEXT)
    assert right(converted) == EXPECTED.keys() == converted.keys()


def test_the_manifest_would_have_told() -> None:
    """Where the rank was lost, every wrong tensor is named before a byte moves."""
    flushed = dict(loose_kwargs.gather_all(FUSED, CONTEXT, 384, lora_rank=CONTEXT.rank))
    wrong = {**TENSORS, **flushed}
    shapes = {
        name.removeprefix(PREFIX).removesuffix(".lora_B.weight"): (
            tensor.shape[0],
            TENSORS[name.replace("lora_B", "lora_A")].shape[1],
        )
        for name, tensor in TENSORS.items()
        if "lora_B" in name
    }
    manifest = build_manifest(1, "base", CONTEXT.adapter_config(), wrong)
    faults = AdapterTargets(shapes, CONTEXT.rank, CONTEXT.dtype, "base").faults(manifest)
    assert len(faults) == len(flushed) - 3


def functions(module: types.ModuleType) -> list[Any]:
    found = [each for _, each in inspect.getmembers(module, inspect.isfunction)]
    return [each for each in found if each.__module__ == module.__name__]


@pytest.mark.parametrize("name", MODULES)
def test_no_step_has_options_that_could_be_left_out(name: str) -> None:
    for function in functions(import_module(name)):
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}, function
            if parameter.annotation is ConverterContext:
                assert parameter.default is parameter.empty, function


def test_the_steps_of_a_conversion_all_take_the_context() -> None:
    steps = {
        "gather": ("convert_adapter", "shard_adapter", "_batches", "_convert_batch", "_over_stages"),
        "layout": ("to_peft", "from_peft", "_split_qkv", "_join_qkv"),
        "sharding": ("shape_of",),
        "survey": ("survey", "_faults", "_expected"),
    }
    for module, names in steps.items():
        for name in names:
            function = getattr(import_module(f"wsync_lab.lora.megatron.{module}"), name)
            annotations = [each.annotation for each in inspect.signature(function).parameters.values()]
            assert ConverterContext in annotations, name


def test_a_step_without_the_context_does_not_run() -> None:
    with pytest.raises(TypeError, match="context"):
        to_peft(*FUSED[0])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="rank"):
        ConverterContext(alpha=8.0, dtype="bfloat16", modules=())  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        CONTEXT.rank = 8  # type: ignore[misc]


@pytest.mark.slow
def test_a_step_without_the_context_does_not_type_check(tmp_path: Path) -> None:
    for call, whole in (
        ("to_peft(name, whole)", False),
        ("to_peft(name, whole, context)", True),
        ("convert_adapter({}, groups=groups, flush_bytes=1)", False),
        ("convert_adapter({}, context, groups, 1)", True),
        ("ConverterContext(rank=1)", False),
    ):
        assert type_checks(tmp_path, call) == whole, call


def type_checks(folder: Path, call: str) -> bool:
    program = folder / "snippet.py"
    program.write_text(
        "import torch\n"
        "from wsync_lab.lora.megatron.context import ConverterContext\n"
        "from wsync_lab.lora.megatron.gather import convert_adapter\n"
        "from wsync_lab.lora.megatron.groups import ParallelGroups\n"
        "from wsync_lab.lora.megatron.layout import to_peft\n"
        "from wsync_lab.lora.megatron.names import MatrixName\n\n"
        "def step(name: MatrixName, whole: torch.Tensor, context: ConverterContext,"
        f" groups: ParallelGroups) -> None:\n    {call}\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(program)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode in {0, 1}, process.stderr
    return process.returncode == 0
