"""Whatever the ranks and flushes, the converted adapter is that of one process, and PEFT's."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch import nn

from tests.lora.megatron_ranks import CONTEXT, FLUSHES, digests_of, run_ranks, whole_adapter
from wsync_lab.digest import tensor_digest
from wsync_lab.errors import ConfigError
from wsync_lab.lora.manifest import PREFIX, AdapterTargets, build_manifest
from wsync_lab.lora.megatron.context import PARTS, ConverterContext
from wsync_lab.lora.megatron.gather import Converted
from wsync_lab.lora.megatron.layout import from_peft, to_peft
from wsync_lab.lora.megatron.names import MatrixName, parse
from wsync_lab.lora.megatron.sharding import join, split

NEVER = "never"


@pytest.fixture(scope="module")
def one_process() -> dict[str, int]:
    (_, (digests,), _, error), *_ = run_ranks(1, 1, [NEVER])
    assert error == ""
    return digests


def test_one_process_converts_to_the_adapter_that_was_sharded(one_process: dict[str, int]) -> None:
    expected = {name: tensor_digest(tensor) for name, tensor in whole_adapter(CONTEXT, seed=1).items()}
    assert one_process == expected
    assert digests_of(Converted(whole_adapter(CONTEXT, seed=2), {})) != expected


@pytest.mark.parametrize(("tp", "pp"), [(2, 2), (4, 1), (1, 4)])
def test_every_rank_has_it_whatever_the_flushes(tp: int, pp: int, one_process: dict[str, int]) -> None:
    for _, of_flushes, excluded, error in run_ranks(tp, pp, FLUSHES):
        assert error == ""
        assert excluded == {}
        for digests in of_flushes:
            assert list(digests.items()) == list(one_process.items())


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        ("missing", "rank tp=1 pp=1 has no decoder.layers.4.mlp.linear_fc1.lora_A.weight"),
        ("shape", "rank tp=1 pp=1 has decoder.layers.4.mlp.linear_fc1.lora_A.weight bfloat16[2, 48], not"),
    ],
)
def test_what_one_rank_lacks_is_every_ranks_error(spoil: str, text: str) -> None:
    errors = [error for *_, error in run_ranks(2, 2, [NEVER], spoil)]
    assert len(set(errors)) == 1
    assert text in errors[0]


def test_a_copy_that_differs_between_ranks_is_an_error() -> None:
    errors = [error for *_, error in run_ranks(2, 1, [NEVER], "differs")]
    assert all("differs between tensor-parallel ranks" in error for error in errors)


def test_a_gated_delta_net_is_excluded_by_rule_on_every_rank(one_process: dict[str, int]) -> None:
    for _, (digests,), excluded, error in run_ranks(1, 2, [NEVER], "gdn"):
        assert error == ""
        assert digests == one_process
        assert list(excluded) == ["model.layers.4.self_attention.in_proj"]
        assert "gated delta net" in excluded["model.layers.4.self_attention.in_proj"]


def test_the_converted_adapter_is_a_whole_manifest() -> None:
    tensors = whole_adapter(CONTEXT, seed=1)
    shapes = {
        name.removeprefix(PREFIX).removesuffix(".lora_B.weight"): (
            tensor.shape[0],
            tensors[name.replace("lora_B", "lora_A")].shape[1],
        )
        for name, tensor in tensors.items()
        if name.endswith("lora_B.weight")
    }
    manifest = build_manifest(1, "base", CONTEXT.adapter_config(), tensors)
    assert AdapterTargets(shapes, 4, "bfloat16", "base").faults(manifest) == []


contexts = st.builds(
    lambda groups, per_group, dim, rank, wide: dataclasses.replace(
        CONTEXT,
        num_query_groups=4 * groups,
        num_attention_heads=4 * groups * per_group,
        head_dim=dim,
        rank=rank,
        ffn_hidden_size=4 * wide,
        num_layers=1,
        dtype="float32",
    ),
    *(st.integers(1, 3) for _ in range(5)),
)


@given(contexts, st.sampled_from([1, 2, 4]))
def test_any_shape_survives_fusing_splitting_and_joining(context: ConverterContext, tp_size: int) -> None:
    tensors = whole_adapter(context, seed=3)
    back: dict[str, torch.Tensor] = {}
    for module in PARTS:
        for matrix in "AB":
            name = MatrixName(0, module, matrix)
            whole = from_peft(name, tensors, context)
            shards = split(name, whole, tp_size)
            assert all(shard.is_contiguous() for shard in shards)
            back |= to_peft(name, join(name, shards), context)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


class Layer(nn.Module):
    """One decoder layer's projections, under Hugging Face's names."""

    def __init__(self, context: ConverterContext) -> None:
        super().__init__()
        heads = context.num_attention_heads * context.head_dim
        keys = context.num_query_groups * context.head_dim
        hidden, wide = context.hidden_size, context.ffn_hidden_size
        sizes = {"q_proj": (hidden, heads), "k_proj": (hidden, keys), "v_proj": (hidden, keys)}
        self.self_attn = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
        self.self_attn["o_proj"] = nn.Linear(heads, hidden, bias=False)
        sizes = {"gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


class Model(nn.Module):
    def __init__(self, context: ConverterContext) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([Layer(context) for _ in range(context.num_layers)])


def fused_update(module: str, tensors: dict[str, torch.Tensor], context: ConverterContext) -> torch.Tensor:
    """What Megatron's fused layer adds to its output, by the rows of its definition, one by one."""
    a, b = (from_peft(MatrixName(0, module, matrix), tensors, context) for matrix in "AB")
    return context.alpha / context.rank * (b @ a)


def rows_of(part: str, context: ConverterContext) -> list[int]:
    """Where the rows of a projection lie in the fused layer: counted, not computed by the code."""
    groups, dim, wide = context.num_query_groups, context.head_dim, context.ffn_hidden_size
    per_group = context.num_attention_heads // groups
    kinds = {"q_proj": range(per_group), "k_proj": [per_group], "v_proj": [per_group + 1]}
    if part in kinds:
        heads = [group * (per_group + 2) + head for group in range(groups) for head in kinds[part]]
        return [head * dim + row for head in heads for row in range(dim)]
    return list(range(wide)) if part == "gate_proj" else list(range(wide, 2 * wide))


@given(contexts)
def test_the_converted_adapter_computes_what_peft_computes(context: ConverterContext) -> None:
    tensors = whole_adapter(context, seed=4)
    settings: dict[str, Any] = context.adapter_config().to_peft()
    config = LoraConfig(r=settings["r"], lora_alpha=8, target_modules=settings["target_modules"])
    model = get_peft_model(Model(context), config)
    base = {name: parameter.clone() for name, parameter in model.named_parameters() if "base" in name}
    set_peft_model_state_dict(model, tensors)
    for module, parts in PARTS.items():
        update = fused_update(module, tensors, context)
        for part in parts:
            layer = model.get_submodule(f"base_model.model.model.layers.0.{part}")
            weight = base[f"base_model.model.model.layers.0.{part}.base_layer.weight"]
            rows = rows_of(part.split(".")[1], context) if len(parts) > 1 else list(range(len(update)))
            x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(5))
            torch.testing.assert_close(layer(x), x @ (weight + update[rows]).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"modules": ("self_attention.in_proj",)},
            "self_attention.in_proj cannot be adapted: .*leave it out",
        ),
        ({"modules": ("mlp.router",)}, "unknown module 'mlp.router': choose among"),
        ({"num_attention_heads": 6}, "6 heads in 4 query groups"),
        ({"rank": 0}, "rank is 0"),
    ],
)
def test_a_context_that_cannot_be_converted_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dataclasses.replace(CONTEXT, **change)


@pytest.mark.parametrize(("tp", "pp", "text"), [(8, 1, "num_query_groups is 4"), (1, 3, "num_layers is 8")])
def test_ranks_that_do_not_divide_the_model_are_refused(tp: int, pp: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CONTEXT.check_parallel(tp, pp)


def test_a_name_that_is_no_matrix_is_refused() -> None:
    assert str(parse("decoder.layers.3.mlp.linear_fc2.lora_B.weight")).endswith(
        "3.mlp.linear_fc2.lora_B.weight"
    )
    with pytest.raises(ConfigError, match="no LoRA matrix of Megatron's"):
        parse("decoder.layers.3.mlp.linear_fc2.weight")
