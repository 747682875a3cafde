"""A learnt load plan does what ``load_weights`` did, or says why it cannot."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wsync_lab.engines.load_plan import LoadPlan
from wsync_lab.packing import as_bytes

Named = list[tuple[str, torch.Tensor]]
WIDTH = 6
ROWS = {"q": 4, "k": 2, "v": 2, "gate": 5, "up": 5, "norm": 1}
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up"), "norm": ("norm",)}


class FusedModel:
    """Loads q, k, v into one parameter and gate, up into another, as engines do."""

    def __init__(self) -> None:
        self.parameters = {
            name: torch.zeros(sum(ROWS[part] for part in parts), WIDTH) for name, parts in FUSED.items()
        }

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            target, start = self.place(name)
            target.narrow(0, start, tensor.shape[0]).copy_(tensor)

    def place(self, name: str) -> tuple[torch.Tensor, int]:
        (fused,) = [fused for fused, parts in FUSED.items() if name in parts]
        before = FUSED[fused][: FUSED[fused].index(name)]
        return self.parameters[fused], sum(ROWS[part] for part in before)


def slot_of(names: Iterable[str], seed: int) -> tuple[torch.Tensor, Named]:
    """A slot's bytes and the tensors in them, without a gap."""
    sizes = [4 * WIDTH * ROWS[name] for name in names]
    slot = torch.empty(sum(sizes), dtype=torch.uint8)
    fill(slot, seed)
    views = [part.view(torch.float32).view(-1, WIDTH) for part in slot.split(sizes)]
    return slot, list(zip(names, views, strict=True))


def fill(slot: torch.Tensor, seed: int) -> None:
    slot.copy_(torch.randint(0, 256, slot.shape, generator=torch.Generator().manual_seed(seed)))


def learn(model: FusedModel, slot: torch.Tensor, tensors: Named) -> LoadPlan:
    plan = LoadPlan([model.parameters])
    plan.begin()
    assert not plan.replay(0, slot)
    with plan.learning(0, slot, slot.nbytes):
        model.load_weights(tensors)
    return plan


def bytes_of(model: FusedModel) -> dict[str, bytes]:
    return {name: as_bytes(tensor).numpy().tobytes() for name, tensor in model.parameters.items()}


@settings(max_examples=50, deadline=None)
@given(st.permutations(list(ROWS)), st.integers(0, 1000))
def test_a_replay_is_what_load_weights_does(names: list[str], seed: int) -> None:
    model, expected = FusedModel(), FusedModel()
    slot, tensors = slot_of(names, seed)
    plan = learn(model, slot, tensors)
    expected.load_weights(tensors)
    assert bytes_of(model) == bytes_of(expected)
    fill(slot, seed + 1)
    plan.begin()
    assert plan.replay(0, slot)
    expected.load_weights(tensors)
    assert bytes_of(model) == bytes_of(expected)
    assert plan.path == "load_plan"


class Casting(FusedModel):
    def load_weights(self, weights):
        super().load_weights((name, tensor.double()) for name, tensor in weights)


class Converting(FusedModel):
    """Its parameters have another dtype than what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters = {name: tensor.bfloat16() for name, tensor in self.parameters.items()}


class Skipping(FusedModel):
    def load_weights(self, weights):
        super().load_weights(list(weights)[1:])


class Twice(FusedModel):
    def load_weights(self, weights):
        weights = list(weights)
        super().load_weights(weights)
        super().load_weights(weights[:1])


class Scaling(FusedModel):
    def load_weights(self, weights):
        super().load_weights(weights)
        self.parameters["norm"].add_(1)


class ForeachScaling(FusedModel):
    def load_weights(self, weights):
        super().load_weights(weights)
        torch._foreach_add_(list(self.parameters.values()), 1.0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Casting, "copies 0 of 456 bytes|writes parameters by aten.copy_"),
        (Converting, r"converts torch.float32"),
        (Skipping, r"copies \d+ of 456 bytes"),
        (Twice, "copies some bytes twice"),
        (Scaling, "writes parameters by aten.add_"),
        (ForeachScaling, "writes parameters by aten._foreach_add_"),
    ],
)
def test_what_is_no_set_of_copies_is_refused_with_its_reason(
    kind: Callable[[], FusedModel], reason: str
) -> None:
    model = kind()
    slot, tensors = slot_of(ROWS, seed=1)
    plan = learn(model, slot, tensors)
    plan.begin()
    assert not plan.replay(0, slot)
    assert plan.path == "load_weights"
    assert re.search(reason, plan.reasons[0])


def test_a_parameter_that_moved_is_learnt_again() -> None:
    model = FusedModel()
    slot, tensors = slot_of(ROWS, seed=2)
    plan = learn(model, slot, tensors)
    model.parameters["qkv"] = torch.zeros_like(model.parameters["qkv"])
    plan.begin()
    assert not plan.replay(0, slot)
    with plan.learning(0, slot, slot.nbytes):
        model.load_weights(tensors)
    assert plan.replay(0, slot)


def test_bytes_at_a_new_address_in_every_update_are_loaded() -> None:
    model = FusedModel()
    slot, tensors = slot_of(ROWS, seed=3)
    plan = learn(model, slot, tensors)
    moved, tensors = slot_of(ROWS, seed=4)
    assert not plan.replay(0, moved)
    with plan.learning(0, moved, moved.nbytes):
        model.load_weights(tensors)
    assert "another address" in plan.reasons[0]
    assert not plan.replay(0, moved)


def test_nothing_refers_to_a_slot_that_was_forgotten() -> None:
    model = FusedModel()
    slot, tensors = slot_of(ROWS, seed=5)
    plan = learn(model, slot, tensors)
    plan.forget()
    assert not plan.replay(0, slot)


def test_other_buckets_are_learnt_beside_one_that_is_refused() -> None:
    model: Any = FusedModel()
    first, some = slot_of(["q", "k", "v"], seed=6)
    second, others = slot_of(["gate", "up", "norm"], seed=7)
    plan = LoadPlan([model.parameters])
    plan.begin()
    with plan.learning(0, first, first.nbytes):
        model.load_weights(some)
    with plan.learning(1, second, second.nbytes):
        model.load_weights(others[:1])
    assert plan.replay(0, first)
    assert not plan.replay(1, second)
    assert plan.path == "load_plan and load_weights"
