"""A manifest names one adapter for one base, and every fault of it is told at once."""

import dataclasses
import itertools
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.lora.adapters_of import BASE, MODULES, adapter
from wsync_lab.errors import ConfigError
from wsync_lab.lora.base import base_digest_of
from wsync_lab.lora.manifest import (
    PREFIX,
    AdapterManifest,
    AdapterTargets,
    build_manifest,
    module_of,
    next_update_id,
)
from wsync_lab.weights import TensorSource

ENGINE = AdapterTargets(MODULES | {"layers.1.down_proj": (16, 40)}, 16, "float32", BASE)
ALL = MODULES | {"layers.1.down_proj": (16, 40)}
Q, DOWN = f"{PREFIX}layers.0.q_proj", f"{PREFIX}layers.1.down_proj"


def manifest(change: Any = None, **config: Any) -> AdapterManifest:
    """Of an adapter that fits, with ``change`` made to its tensors."""
    made = adapter(1, ALL, **config)
    tensors = dict(made.tensors)
    if change is not None:
        change(tensors)
    return build_manifest(7, made.base_digest, made.config, tensors, made.excluded)


def test_an_adapter_that_fits_has_no_faults() -> None:
    assert ENGINE.faults(manifest()) == []
    assert ENGINE.faults(manifest(target_modules=("q_proj",), rank=16)) == []
    assert ENGINE.faults(manifest(rank_pattern={"0.q_proj": 2, "down_proj": 7})) == []


@pytest.mark.parametrize(
    ("change", "config", "fault"),
    [
        (lambda t: t.pop(f"{Q}.lora_A.weight"), {}, "layers.0.q_proj has no lora_A"),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), {}, "layers.0.q_proj has no lora_B"),
        (
            lambda t: [t.pop(f"{DOWN}.lora_{m}.weight") for m in "AB"],
            {},
            "layers.1.down_proj is a target, and is missing",
        ),
        (
            lambda t: t.update({f"{DOWN}.lora_A.weight": torch.zeros(4, 39)}),
            {},
            "lora_A.weight float32[4, 39] is sent where the configuration says float32[4, 40]",
        ),
        (
            lambda t: t.update({f"{DOWN}.lora_B.weight": torch.zeros(16, 8)}),
            {},
            "lora_B.weight float32[16, 8] is sent where the configuration says float32[16, 4]",
        ),
        (
            lambda t: t.update({f"{Q}.lora_B.weight": t[f"{Q}.lora_B.weight"].bfloat16()}),
            {},
            "lora_B.weight bfloat16[24, 4] is sent where the configuration says float32[24, 4]",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.default.weight": torch.zeros(4, 16)}),
            {},
            "lora_A.default.weight is no name of a LoRA matrix",
        ),
        (lambda t: t.update({f"{PREFIX}lm_head.lora_A.weight": torch.zeros(4)}), {}, "lm_head cannot have"),
        (None, {"target_modules": ("q_proj", "in_proj")}, "target module in_proj is none of the engine's"),
        (None, {"rank": 17}, "rank 17 is over the engine's max_lora_rank 16"),
        (None, {"rank_pattern": {"q_proj": 32}}, "rank 32 is over the engine's max_lora_rank 16"),
        (None, {"dtype": "bfloat16"}, "the adapter is bfloat16, the engine holds float32"),
        (
            None,
            {"base": "other" * 8},
            "the adapter was trained on base otherotherot, the engine serves baseb",
        ),
    ],
)
def test_every_kind_of_fault_is_told(change: Any, config: dict[str, Any], fault: str) -> None:
    assert any(fault in text for text in ENGINE.faults(manifest(change, **config)))


def test_all_faults_are_told_at_once() -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{Q}.lora_A.weight"]
        tensors[f"{DOWN}.lora_A.weight"] = torch.zeros(3, 3)
        tensors["nonsense"] = torch.zeros(1)

    faults = ENGINE.faults(manifest(spoil, base="x" * 64))
    assert len(faults) == 4
    assert faults == sorted(faults)


def test_a_tensor_that_is_not_a_target_is_a_fault() -> None:
    made = adapter(1, ALL)
    config = msgspec.structs.replace(made.config, target_modules=("q_proj",))
    faults = ENGINE.faults(build_manifest(7, BASE, config, made.tensors))
    assert "layers.0.down_proj is sent, and is no target of the configuration" in faults


def test_a_name_that_comes_twice_is_a_fault() -> None:
    good = manifest()
    twice = msgspec.structs.replace(
        good, tensors=(*good.tensors, good.tensors[0]), digests=(*good.digests, good.digests[0])
    )
    assert any("is sent 2 times" in fault for fault in ENGINE.faults(twice))


def test_what_is_excluded_may_be_missing() -> None:
    def without_down(tensors: dict[str, torch.Tensor]) -> None:
        for matrix in "AB":
            del tensors[f"{DOWN}.lora_{matrix}.weight"]

    excluded = {"layers.1.down_proj": "not converted"}
    assert ENGINE.faults(msgspec.structs.replace(manifest(without_down), excluded=excluded)) == []


def test_an_engine_without_base_weights_takes_no_adapter() -> None:
    engine = dataclasses.replace(ENGINE, base_digest=None)
    assert any("knows no base weights" in fault for fault in engine.faults(manifest()))


def test_the_payload_digest_changes_with_the_policy_alone() -> None:
    first, same, other = (adapter(seed) for seed in (1, 1, 2))
    digests = [
        build_manifest(number, BASE, made.config, made.tensors).payload_digest
        for number, made in enumerate((first, same, other), start=1)
    ]
    assert digests[0] == digests[1] != digests[2]


@given(st.data())
def test_any_changed_field_changes_the_digest_and_the_wire_does_not(data: st.DataObject) -> None:
    good = manifest(rank_pattern={"q_proj": 3, "0.down_proj": 2}, alpha_pattern={"q_proj": 5})
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(good), type=AdapterManifest)
    assert (read, read.digest) == (good, good.digest)
    change: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"update_id": good.update_id + 1},
                {"base_digest": "x"},
                {"tensors": good.tensors[::-1]},
                {"digests": (good.digests[0] ^ 1, *good.digests[1:])},
                {"excluded": {"a": "b"}},
                {"config": msgspec.structs.replace(good.config, alpha=9.0)},
                {"config": msgspec.structs.replace(good.config, use_rslora=True)},
                {"config": msgspec.structs.replace(good.config, rank_pattern={"q_proj": 3})},
            ]
        )
    )
    assert msgspec.structs.replace(good, **change).digest != good.digest


@given(st.lists(st.integers(1, 1 << 62), min_size=1))
def test_update_ids_rise_whatever_the_clock_does(times: list[int]) -> None:
    ids = [0]
    for now in times:
        ids.append(next_update_id(ids[-1], partial(int, now)))
    assert all(before < after for before, after in itertools.pairwise(ids))


def test_a_restarted_trainer_goes_on_above_its_predecessor() -> None:
    assert next_update_id() < next_update_id()


@pytest.mark.parametrize("name", ["layers.0.q_proj.lora_A.weight", f"{PREFIX}.lora_A.weight", f"{Q}.weight"])
def test_a_name_that_peft_does_not_write_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a LoRA matrix"):
        module_of(name)


def test_the_base_digest_is_of_names_dtypes_shapes_and_bytes() -> None:
    weights = {"a": torch.arange(6.0), "b": torch.ones(2)}
    digest = base_digest_of(TensorSource(weights.items()))
    assert digest == base_digest_of(TensorSource(reversed(weights.items())))
    for changed in (
        weights | {"a": torch.arange(6.0).view(2, 3)},
        weights | {"b": torch.ones(2).bfloat16()},
        {"a": weights["b"], "b": weights["a"]},
    ):
        assert base_digest_of(TensorSource(changed.items())) != digest
